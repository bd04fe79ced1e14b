// Entry points that work on a table of peers: what the host's Peers launches.
#define BP_MAX_THREADS 512
#include <bellpush/bellpush.cuh>
#include "args.h"
#include "paths.h"
#include "peers.h"

namespace {

template <class P, class Scope>
BP_DEV bp_status_code all_gather(const bp_peers_args& a, Scope scope, uint32_t* whom) {
  const bp_peers& p = a.peers;
  const uint32_t next = (p.rank + 1) % p.n;
  for (uint32_t step = 0; step + 1 < p.n; step++) {
    const uint64_t first = (p.rank + p.n - step) % p.n * a.bytes;
    for (uint32_t part = 0; part < p.rails; part++) {
      const uint64_t begin = a.bytes * part / p.rails, end = a.bytes * (part + 1) / p.rails;
      if (begin == end) continue;
      const void* from = reinterpret_cast<const void*>(a.local + first + begin);
      const bp_endpoint ep = bp::peer(p, next, bp::rail_of(p, step + part));
      const bp_status_code s = bp::put<P>(ep, scope, first + begin, from, end - begin);
      if (s != BP_OK) {
        *whom = next;
        return s;
      }
    }
    if (const bp_status_code s = bp::barrier_all<P>(p, scope, whom)) return s;
  }
  return BP_OK;
}

// A function for each scope: inlined into one kernel they take ptxas long.
#if defined(__CUDACC__)
template <class P, class Scope>
__device__ __noinline__ void run(const bp_peers_args& a, Scope scope) {
#else
template <class P, class Scope>
void run(const bp_peers_args& a, Scope scope) {
#endif
  bp_status_code s = BP_OK;
  uint32_t whom = a.peers.rank;
  for (uint32_t n = 0; n < a.count && s == BP_OK; n++) {
    switch (a.op) {
      case BP_PEERS_QUIET: s = bp::quiet_all<P>(a.peers, scope, &whom); break;
      case BP_PEERS_SYNC: s = bp::sync_all<P>(a.peers, scope, &whom); break;
      case BP_PEERS_BARRIER: s = bp::barrier_all<P>(a.peers, scope, &whom); break;
      case BP_PEERS_ALL_GATHER: s = all_gather<P>(a, scope, &whom); break;
      default: s = BP_INVALID;
    }
  }
  bp_peers_status* const status = reinterpret_cast<bp_peers_status*>(a.status);
  if (scope.rank() == 0 && s != BP_OK && bp::ld_relaxed_sys(&status->code) == BP_OK) {
    bp::st_relaxed_sys(&status->whom, whom);
    bp::fence_sys();  // whom before why, for the host
    bp::st_relaxed_sys(&status->code, (uint32_t)s);
  }
}

template <class P>
BP_DEV void run_any(const bp_peers_args& a) {
  if (bp::bid() != 0) return;
  if (a.scope == BP_SCOPE_BLOCK) {
    run<P>(a, bp::block_scope{});
  } else if (a.scope == BP_SCOPE_WARP) {
    if (bp::tid() < 32) run<P>(a, bp::warp_scope{});
  } else if constexpr (P::line_v != bp::line::d60s4) {  // of which four lanes write a line
    if (bp::tid() == 0) run<P>(a, bp::thread_scope{});
  }
}

}  // namespace

// The strict ones do for every doorbell: fences beyond those that an endpoint needs do no harm.
BP_KERNEL(bp_peers_push_kernel_strict, bp_peers_args) { run_any<push_kernel_strict>(args); }
BP_KERNEL(bp_peers_push_blueflame_strict, bp_peers_args) { run_any<push_blueflame_strict>(args); }
BP_KERNEL(bp_peers_pull_kernel_strict, bp_peers_args) { run_any<pull_kernel_strict>(args); }
BP_KERNEL(bp_peers_pull_blueflame_strict, bp_peers_args) { run_any<pull_blueflame_strict>(args); }
BP_KERNEL(bp_peers_push_inband_12_4, bp_peers_args) { run_any<push_inband_12_4>(args); }
BP_KERNEL(bp_peers_push_inband_14_2, bp_peers_args) { run_any<push_inband_14_2>(args); }
BP_KERNEL(bp_peers_push_inband_60_4, bp_peers_args) { run_any<push_inband_60_4>(args); }
