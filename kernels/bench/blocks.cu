// Entry points of the benchmark: messages one after the other, each by all blocks of the grid.
#define BP_MAX_THREADS 512
#include "rows.cuh"
#include "entry/paths.h"

namespace {

// The latency of each message, or all of them in a row, on one endpoint.
template <class P, bool marked>
BP_DEV bp_status_code by_blocks(const bp_blocks_bench_args& args, uint32_t* posted) {
  const bp::block_scope scope;
  const bp_bench_rows& a = args.rows;
  const bp::blocks_scope who{bp::bid(), bp::grid_blocks(), reinterpret_cast<bp::blocks_state*>(args.state)};
  uint64_t* ticks = reinterpret_cast<uint64_t*>(a.ticks);
  const uint32_t flags = a.each_quiet != 0 ? bp::none : bp::unsignalled;
  bp_status_code s = BP_OK;
  for (uint32_t m = 0; m < a.messages && s == BP_OK; m++) {
    const uint64_t at = m * a.stride;
    note<marked>(a, scope, args.ep, BP_MARK_PUT, m);
    const uint64_t t = bp::clock_ticks();
    uint64_t end = 0;
    const void* src = reinterpret_cast<const void*>(a.src + at);
    s = bp::put<P>(args.ep, who, a.remote_offset + at, src, a.bytes, flags, &end);
    *posted += s == BP_OK;
    note_returned<marked>(a, scope, args.ep, end, m, s);
    const bool waits = s == BP_OK && (a.each_quiet || m + 1 == a.messages);
    if (waits) s = bp::wait<P>(args.ep, scope, end);
    if (a.each_quiet && who.rank == 0 && scope.rank() == 0) ticks[m] = bp::clock_ticks() - t;
    if (waits) note<marked>(a, scope, args.ep, BP_MARK_COMPLETE, m, s);
  }
  return s;
}

template <class P, bool marked = false>
BP_DEV void bench_blocks(const bp_blocks_bench_args& args) {
  measure<marked>(args.rows, [&](uint32_t* posted) { return by_blocks<P, marked>(args, posted); });
}

using shared_push_inband_60_4 = push_inband<bp::line::d60s4, bp::share::shared>;

}  // namespace

BP_KERNEL(bp_bench_blocks_push_kernel, bp_blocks_bench_args) { bench_blocks<shared_push_kernel>(args); }
BP_KERNEL(bp_bench_blocks_push_inband_12_4, bp_blocks_bench_args) { bench_blocks<shared_push_inband>(args); }
BP_KERNEL(bp_bench_blocks_push_inband_60_4, bp_blocks_bench_args) { bench_blocks<shared_push_inband_60_4>(args); }

// With marks, for a trace.
BP_KERNEL(bp_marked_blocks_push_kernel, bp_blocks_bench_args) { bench_blocks<shared_push_kernel, true>(args); }
BP_KERNEL(bp_marked_blocks_push_inband_12_4, bp_blocks_bench_args) { bench_blocks<shared_push_inband, true>(args); }
BP_KERNEL(bp_marked_blocks_push_inband_60_4, bp_blocks_bench_args) {
  bench_blocks<shared_push_inband_60_4, true>(args);
}
