// Entry points of the benchmark: messages one after the other by every path, plain stores, torn lines.
#define BP_MAX_THREADS 512
#include <bellpush/bellpush.cuh>
#include "args.h"
#include "entry/paths.h"

namespace {

constexpr uint64_t fresh_bytes = 16 << 20;  // of an L2 that holds more

// Latency: a quiet after each message, or after each batch of several, through the first endpoint. Named, not looked up,
// as in a kernel whose argument it is: an index would make each of its words a load.
template <class P>
BP_DEV bp_status_code one_by_one(const bp_bench_args& a, uint32_t* posted) {
  const bp::block_scope scope;
  const bp_endpoint& ep = a.ep[0];
  uint64_t* ticks = reinterpret_cast<uint64_t*>(a.ticks);
  bp_status_code s = BP_OK;
  for (uint32_t m = 0; m < a.messages && s == BP_OK; m++) {
    const uint64_t at = m * a.stride;
    scope.sync();
    const uint64_t t = bp::clock_ticks();
    s = bp::put<P>(ep, scope, a.remote_offset + at, reinterpret_cast<const void*>(a.src + at),
                   a.bytes);
    *posted += s == BP_OK;
    if (s == BP_OK) s = bp::quiet<P>(ep, scope);
    if (scope.rank() == 0) ticks[m] = bp::clock_ticks() - t;
  }
  return s;
}

// The same with `each_quiet` messages on their way at once: one doorbell and one completion a batch.
template <class P>
BP_DEV bp_status_code batch_by_batch(const bp_bench_args& a, uint32_t* posted) {
  const bp::block_scope scope;
  const bp_endpoint& ep = a.ep[0];
  uint64_t* ticks = reinterpret_cast<uint64_t*>(a.ticks);
  bp_status_code s = BP_OK;
  uint64_t start = 0;
  for (uint32_t m = 0, in_batch = 0, batch = 0; m < a.messages && s == BP_OK; m++) {
    const uint64_t at = m * a.stride;
    if (in_batch == 0) {
      scope.sync();
      start = bp::clock_ticks();
    }
    const bool last = ++in_batch == a.each_quiet || m + 1 == a.messages;
    s = bp::put<P>(ep, scope, a.remote_offset + at, reinterpret_cast<const void*>(a.src + at),
                   a.bytes, last ? 0 : bp::unsignalled | bp::defer_ring);
    *posted += s == BP_OK;
    if (s != BP_OK || !last) continue;
    s = bp::quiet<P>(ep, scope);
    if (in_batch == a.each_quiet && scope.rank() == 0) ticks[batch] = bp::clock_ticks() - start;
    in_batch = 0;
    batch++;
  }
  return s;
}

// Throughput: messages through all endpoints in turn, rung for now and then.
template <class P>
BP_DEV bp_status_code in_a_row(const bp_bench_args& a, uint32_t* posted) {
  const bp::block_scope scope;
  bp_status_code s = BP_OK;
  uint32_t e = 0, unrung = 0;
  for (uint32_t m = 0; m < a.messages && s == BP_OK; m++) {
    const uint64_t at = m * a.stride;
    const bool ring = ++unrung == a.ring_every;
    if (ring) unrung = 0;
    s = bp::put<P>(a.ep[e], scope, a.remote_offset + at, reinterpret_cast<const void*>(a.src + at),
                   a.bytes, ring ? bp::unsignalled : bp::unsignalled | bp::defer_ring);
    *posted += s == BP_OK;
    if (++e == a.endpoints) e = 0;
  }
  for (e = 0; e < a.endpoints && s == BP_OK; e++) s = bp::quiet<P>(a.ep[e], scope);
  return s;
}

template <class P>
BP_DEV void bench(const bp_bench_args& a) {
  const bp::block_scope scope;
  // Messages begin where a kernel that has just computed them would have left them.
  const uint64_t bytes = a.messages * a.stride;
  const uint64_t fresh = bytes < fresh_bytes ? bytes : fresh_bytes;
  for (uint64_t at = scope.rank() * 128; at < fresh; at += scope.size() * 128) {
    bp::prefetch_l2(a.src + at);
  }
  scope.sync();
  const uint64_t start_ns = bp::now_ns();
  const uint64_t start_ticks = bp::clock_ticks();
  uint32_t posted = 0;
  const bp_status_code s = a.each_quiet == 0   ? in_a_row<P>(a, &posted)
                           : a.each_quiet == 1 ? one_by_one<P>(a, &posted)
                                               : batch_by_batch<P>(a, &posted);
  if (scope.rank() == 0) {
    bp_bench_result* result = reinterpret_cast<bp_bench_result*>(a.result);
    result->status = s;
    result->posted = posted;
    result->start_ns = start_ns;
    result->end_ns = bp::now_ns();
    result->start_ticks = start_ticks;
    result->end_ticks = bp::clock_ticks();
  }
}

}  // namespace

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
