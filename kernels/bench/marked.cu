// The benchmark's rows with marks, for `bench --trace`: kernels of their own, so that those of bench.cu and auto.cu,
// whose times count, are what they would be without.
#define BP_MAX_THREADS 512
#include "rows.cuh"
#include "entry/paths.h"

namespace {

template <class P, class Args>
BP_DEV void marked(const Args& args) {
  bench<P, bp::block_scope, true>(args);
}

}  // namespace

BP_KERNEL(bp_marked_push_kernel, bp_bench_args) { marked<push_kernel>(args); }
BP_KERNEL(bp_marked_push_blueflame, bp_bench_args) { marked<push_blueflame>(args); }
BP_KERNEL(bp_marked_push_inband_12_4, bp_bench_args) { marked<push_inband_12_4>(args); }
BP_KERNEL(bp_marked_push_inband_14_2, bp_bench_args) { marked<push_inband_14_2>(args); }
BP_KERNEL(bp_marked_push_inband_60_4, bp_bench_args) { marked<push_inband_60_4>(args); }
BP_KERNEL(bp_marked_pull_kernel, bp_bench_args) { marked<pull_kernel>(args); }
BP_KERNEL(bp_marked_pull_blueflame, bp_bench_args) { marked<pull_blueflame>(args); }
BP_KERNEL(bp_marked_push_kernel_near, bp_bench_args) { marked<push_kernel_near>(args); }
BP_KERNEL(bp_marked_pull_kernel_near, bp_bench_args) { marked<pull_kernel_near>(args); }
BP_KERNEL(bp_marked_push_kernel_strict, bp_bench_args) { marked<push_kernel_strict>(args); }
BP_KERNEL(bp_marked_push_blueflame_strict, bp_bench_args) { marked<push_blueflame_strict>(args); }
BP_KERNEL(bp_marked_pull_kernel_strict, bp_bench_args) { marked<pull_kernel_strict>(args); }
BP_KERNEL(bp_marked_pull_blueflame_strict, bp_bench_args) { marked<pull_blueflame_strict>(args); }
BP_KERNEL(bp_marked_auto, bp_auto_bench_args) { marked<auto_later>(args); }
BP_KERNEL(bp_marked_auto_near, bp_auto_bench_args) { marked<auto_near>(args); }
BP_KERNEL(bp_marked_auto_strict, bp_auto_bench_args) { marked<auto_strict>(args); }
