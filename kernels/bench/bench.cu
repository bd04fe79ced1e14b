// Entry points of the benchmark: messages one after the other by every path, plain stores, torn lines.
#define BP_MAX_THREADS 512
#include "rows.cuh"
#include "entry/paths.h"

BP_KERNEL(bp_bench_push_kernel, bp_bench_args) { bench<push_kernel>(args); }
BP_KERNEL(bp_bench_push_blueflame, bp_bench_args) { bench<push_blueflame>(args); }
BP_KERNEL(bp_bench_push_inband_12_4, bp_bench_args) { bench<push_inband_12_4>(args); }
BP_KERNEL(bp_bench_push_inband_14_2, bp_bench_args) { bench<push_inband_14_2>(args); }
BP_KERNEL(bp_bench_push_inband_60_4, bp_bench_args) { bench<push_inband_60_4>(args); }
BP_KERNEL(bp_bench_pull_kernel, bp_bench_args) { bench<pull_kernel>(args); }
BP_KERNEL(bp_bench_pull_blueflame, bp_bench_args) { bench<pull_blueflame>(args); }
BP_KERNEL(bp_bench_push_kernel_near, bp_bench_args) { bench<push_kernel_near>(args); }
BP_KERNEL(bp_bench_pull_kernel_near, bp_bench_args) { bench<pull_kernel_near>(args); }
BP_KERNEL(bp_bench_push_kernel_strict, bp_bench_args) { bench<push_kernel_strict>(args); }
BP_KERNEL(bp_bench_push_blueflame_strict, bp_bench_args) { bench<push_blueflame_strict>(args); }
BP_KERNEL(bp_bench_pull_kernel_strict, bp_bench_args) { bench<pull_kernel_strict>(args); }
BP_KERNEL(bp_bench_pull_blueflame_strict, bp_bench_args) { bench<pull_blueflame_strict>(args); }

BP_KERNEL(bp_store_rate, bp_store_args) {
  bp_bench_result* result = reinterpret_cast<bp_bench_result*>(args.result);
  bp::syncthreads();
  const uint64_t start_ns = bp::now_ns();
  const uint32_t threads = bp::block_threads();
  const uint64_t laps = args.total_bytes / args.window_bytes;
  const uint64_t units = args.window_bytes / 16;
  const bp::u128* from = reinterpret_cast<const bp::u128*>(args.src);
  bp::u128* to = reinterpret_cast<bp::u128*>(args.window);
  for (uint64_t lap = 0; lap < laps; lap++) {
    for (uint64_t i = bp::tid(); i < units; i += threads) bp::st_line(to + i, from[i]);
  }
  bp::fence_sys();  // the last store has arrived, before the clock is read
  bp::syncthreads();
  if (bp::tid() == 0) {
    result->status = BP_OK;
    result->posted = (uint32_t)laps;
    result->start_ns = start_ns;
    result->end_ns = bp::now_ns();
  }
}

// Every 16 bytes of a line carry the same counter, so a line that is not all one number is torn.
// `line_bytes / 16` neighbouring lanes write a line with one instruction.
BP_KERNEL(bp_tear_writer, bp_tear_args) {
  const uint64_t start = bp::now_ns();
  const uint32_t* stop = reinterpret_cast<const uint32_t*>(args.stop);
  const uint64_t units = (uint64_t)args.count * (args.line_bytes / 16);
  bp::u128* lines = reinterpret_cast<bp::u128*>(args.lines);
  for (uint32_t n = 1;; n++) {
    for (uint64_t i = bp::tid(); i < units; i += bp::block_threads()) {
      bp::st_line(lines + i, bp::u128{{n, n, n, n}});
    }
    if ((n & 255) == 0) {
      if (bp::now_ns() - start > args.duration_ns || bp::ld_relaxed_gpu(stop) != 0) return;
      bp::yield_();
    }
  }
}
