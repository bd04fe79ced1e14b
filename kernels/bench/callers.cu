// Rows of the benchmark by one thread and by a warp, which call the verbs with those scopes: `bench --tune` measures
// their tables with these. bench.cu and auto.cu have the rows of a block, whose code is another.
#define BP_MAX_THREADS 32
#include "rows.cuh"
#include "entry/paths.h"

using bp::thread_scope;
using bp::warp_scope;

BP_KERNEL(bp_bench_thread_push_kernel, bp_bench_args) { bench<push_kernel, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_push_blueflame, bp_bench_args) { bench<push_blueflame, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_push_inband_12_4, bp_bench_args) { bench<push_inband_12_4, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_push_inband_14_2, bp_bench_args) { bench<push_inband_14_2, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_pull_kernel, bp_bench_args) { bench<pull_kernel, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_pull_blueflame, bp_bench_args) { bench<pull_blueflame, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_push_kernel_near, bp_bench_args) { bench<push_kernel_near, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_pull_kernel_near, bp_bench_args) { bench<pull_kernel_near, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_push_kernel_strict, bp_bench_args) { bench<push_kernel_strict, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_push_blueflame_strict, bp_bench_args) { bench<push_blueflame_strict, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_pull_kernel_strict, bp_bench_args) { bench<pull_kernel_strict, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_pull_blueflame_strict, bp_bench_args) { bench<pull_blueflame_strict, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_auto, bp_auto_bench_args) { bench<auto_later, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_auto_near, bp_auto_bench_args) { bench<auto_near, thread_scope>(args); }
BP_KERNEL(bp_bench_thread_auto_strict, bp_auto_bench_args) { bench<auto_strict, thread_scope>(args); }

BP_KERNEL(bp_bench_warp_push_kernel, bp_bench_args) { bench<push_kernel, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_push_blueflame, bp_bench_args) { bench<push_blueflame, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_push_inband_12_4, bp_bench_args) { bench<push_inband_12_4, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_push_inband_14_2, bp_bench_args) { bench<push_inband_14_2, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_pull_kernel, bp_bench_args) { bench<pull_kernel, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_pull_blueflame, bp_bench_args) { bench<pull_blueflame, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_push_kernel_near, bp_bench_args) { bench<push_kernel_near, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_pull_kernel_near, bp_bench_args) { bench<pull_kernel_near, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_push_kernel_strict, bp_bench_args) { bench<push_kernel_strict, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_push_blueflame_strict, bp_bench_args) { bench<push_blueflame_strict, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_pull_kernel_strict, bp_bench_args) { bench<pull_kernel_strict, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_pull_blueflame_strict, bp_bench_args) { bench<pull_blueflame_strict, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_auto, bp_auto_bench_args) { bench<auto_later, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_auto_near, bp_auto_bench_args) { bench<auto_near, warp_scope>(args); }
BP_KERNEL(bp_bench_warp_auto_strict, bp_auto_bench_args) { bench<auto_strict, warp_scope>(args); }
