// Entry point of the engine on a GPU.
#define BP_MAX_THREADS 512
#include "engine/run.cuh"

BP_KERNEL(bp_engine, bp_engine_args) { bp::engine::run(args); }
