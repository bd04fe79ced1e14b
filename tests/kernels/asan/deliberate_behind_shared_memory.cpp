// Negative control: lanes write behind the shared memory that their block asked for, which is the last of the grid's.
#include <bellpush/exec.cuh>
#include "host/threads.hpp"

struct Args {
  uint32_t bytes;
};

BP_KERNEL(fill, Args) {
  bp::dynamic_shared()[bp::tid() * 4] = 1;
  if (bp::tid() * 4 >= args.bytes) bp::dynamic_shared()[bp::tid() * 4] = 2;
}

int main() { bp_host::run_threads(fill, 1, 64, 128, Args{128}); }
