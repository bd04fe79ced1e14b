// What comes after a post: ring, wait, wait_local, quiet, fence, test, reclaim; posted, completed; and within.
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
// posting verb too: see room_for_tickets() for the effect of a timeout then.
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

// Waits until what was put before the ticket `end` need not stay any longer: its source may be written again. push has
// read it at the put's return. pull's NIC reads it later, so that this waits for completion.
template <class P, class Scope>
BP_DEV bp_status_code wait_local([[maybe_unused]] const bp_endpoint& ep, [[maybe_unused]] Scope scope,
                                 [[maybe_unused]] uint64_t end) {
  if constexpr (P::data_v == data::push) {
    return serves<P>(ep) ? BP_OK : BP_INVALID;
  } else {
    return wait<P>(ep, scope, end);
  }
}

// Orders all that was posted on these endpoints before what the caller posts afterwards on any endpoint: the others'
// peers see it after this. A queue pair orders its own writes, so there it is not needed. It costs a wait for
// completion of each, of which the doorbells are rung first.
template <class P, class Scope, class... Endpoints>
BP_DEV bp_status_code fence(Scope scope, const bp_endpoint& first, const Endpoints&... others) {
  (ring<P>(others, scope), ...);
  bp_status_code status = quiet<P>(first, scope);
  [[maybe_unused]] const auto note = [&](bp_status_code s) { status = status == BP_OK ? s : status; };
  (note(quiet<P>(others, scope)), ...);
  return status;
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

// Tickets taken so far, by all callers: what was posted last ends there or before. Any thread of the scope that posted.
template <class P>
BP_DEV uint64_t posted(const bp_endpoint& ep) {
  return serves<P>(ep) ? load_state<P>(&state_of(ep.qp)->reserved) : 0;
}

// Takes the completions that have come (64 CQEs at most), and returns the number of tickets that are complete, from
// the first on: it never shrinks. posted() - completed() tickets are outstanding; those behind the last CQE that was
// asked for stay so.
template <class P, class Scope>
BP_DEV uint64_t completed(const bp_endpoint& ep, Scope scope) {
  uint64_t done = 0;
  if (serves<P>(ep) && scope.rank() == 0) {
    done = poll_cq<P>(ep.qp, load_state<P>(&state_of(ep.qp)->reserved));
    acquire_done<P>();
    acquire_fetched<P>(ep.qp, load_fetched<P>(ep.qp));
  }
  return scope.broadcast(done);
}

// The endpoint with another bound for waits: `ns` nanoseconds; 0: whatever would have to wait looks once, and returns
// BP_TIMEOUT. On a shared queue pair a put with it takes a ticket only while there is room, so that the bound's end
// leaves nothing behind. Waits for a turn at a lock or doorbell keep the queue pair's own bound. A wait reads the clock
// every 32nd poll, so that it ends up to 64 polls late.
BP_DEV bp_endpoint within(bp_endpoint ep, uint64_t ns) {
  if (!has_own_bound(ep.qp)) {
    const uint64_t us = ep.qp.timeout_ns / 1000 + 1;
    ep.qp.own_timeout_us = us < 0xffffffff ? (uint32_t)us : 0xffffffff;
  }
  ep.qp.timeout_ns = ns;
  return ep;
}

// One thread: takes completions if fewer than one in `part` of the credits (rounded down) are free, so that later
// puts find them without a wait. Polls the CQ only if a CQE is due. A `part` of 0 is none: nothing is taken.
template <class P>
BP_DEV void reclaim(const bp_endpoint& ep, uint32_t part) {
  if (!serves<P>(ep) || part == 0) return;
  const uint32_t limit = ticket_limit<P>(ep.qp, true);
  const uint64_t end = load_state<P>(&state_of(ep.qp)->reserved) - (limit - limit / part);
  if ((int64_t)(end - load_done<P>(ep.qp)) > 0) poll_cq<P>(ep.qp, end);
}

}  // namespace bp

#endif
