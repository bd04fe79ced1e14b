// What comes after a post: ring, wait, quiet, test, reclaim.
#ifndef BELLPUSH_WAIT_CUH
#define BELLPUSH_WAIT_CUH

#include <bellpush/impl/wait.cuh>

namespace bp {

// Rings for all WQEs that were marked ready with defer_ring.
template <class P, class Scope>
BP_DEV void ring(const bp_endpoint& ep, Scope scope) {
  if (!serves<P>(ep)) return;
  scope.sync();
  if (scope.rank() == 0) ring_pending<P>(ep.qp);
}

// Waits until all tickets below `end` are complete: the bytes are in the peer's memory, or in local memory for get
// and atomics. BP_TIMEOUT ends only the wait; the operations continue. If a NOP must request the CQE, this is a
// posting verb too: see reserve() for the effect of a timeout then.
template <class P, class Scope>
BP_DEV bp_status_code wait(const bp_endpoint& ep, Scope scope, uint64_t end) {
  if (!serves<P>(ep)) return BP_INVALID;
  return detail::wait_all<P>(ep.qp, scope, end);
}

// Waits for all WQEs posted before the call, by any caller.
template <class P, class Scope>
BP_DEV bp_status_code quiet(const bp_endpoint& ep, Scope scope) {
  if (!serves<P>(ep)) return BP_INVALID;
  return detail::wait_all<P>(ep.qp, scope, detail::everything);
}

// Tests once whether all tickets below `end` are complete: BP_OK, BP_PENDING or the QP's error. An unsignalled
// operation stays pending until a signalled one follows it.
template <class P, class Scope>
BP_DEV bp_status_code test(const bp_endpoint& ep, Scope scope, uint64_t end) {
  if (!serves<P>(ep)) return BP_INVALID;
  bp_status_code s = BP_PENDING;
  if (scope.rank() == 0) {
    bp_status_code e = BP_OK;
    if (poll_cq<P>(ep.qp, end) >= end || ((e = error_of<P>(ep.qp)) && is_done<P>(ep.qp, end))) {
      s = BP_OK;
      acquire_done<P>();
      acquire_fetched<P>(ep.qp, load_fetched<P>(ep.qp));
    } else if (e != BP_OK) {
      s = e;
    }
  }
  return (bp_status_code)scope.broadcast(s);
}

// One thread: takes completions if fewer than one in `part` of the credits (rounded down) are free, so that later
// puts find them without a wait. Polls the CQ only if a CQE is due.
template <class P>
BP_DEV void reclaim(const bp_endpoint& ep, uint32_t part) {
  if (!serves<P>(ep)) return;
  const uint32_t limit = ticket_limit<P>(ep.qp, true);
  const uint64_t end = load_state<P>(&state_of(ep.qp)->reserved) - (limit - limit / part);
  if ((int64_t)(end - load_done<P>(ep.qp)) > 0) poll_cq<P>(ep.qp, end);
}

}  // namespace bp

#endif
