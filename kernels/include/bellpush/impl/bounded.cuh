// Tickets of shared queue pairs for callers with a bound of their own (within()).
#ifndef BELLPUSH_IMPL_BOUNDED_CUH
#define BELLPUSH_IMPL_BOUNDED_CUH

#include <bellpush/impl/credit.cuh>

namespace bp {

// Takes tickets only while there is room for all of them, by compare-and-swap: none that is taken has to wait for room.
// So a bound that ends leaves no ticket behind, however short it is. (The usual atomic add may get a ticket whose room
// others have taken meanwhile, and then waits with it for the queue pair's own timeout.)
template <class P>
BP_DEV reservation reserve_bounded(const bp_qp& qp, uint32_t n, bool writes_slots) {
  bp_qp_state* st = state_of(qp);
  const uint64_t limit = ticket_limit<P>(qp, writes_slots);
  for (deadline wait, crowd;;) {
    const room r = load_room<P>(qp);
    if (r.error != BP_OK) return {BP_DEAD, 0, false, false};
    if (r.next + n <= r.done + limit) {
      // `done` only grows, so there is room if nobody has taken a ticket since `next` was read.
      if (atomic_cas_relaxed(&st->reserved, r.next, r.next + n) == r.next) {
        if (writes_slots) atomic_max(&st->max_credits, (uint32_t)(r.next + n - r.done));
        return {BP_OK, r.next, r.next == r.done, r.next << ring_shift == r.ring};
      }
      // Somebody else has got it. That is no lack of room, so it ends for a crowd only.
      if (crowd.expired(qp_timeout_ns(qp))) return {BP_TIMEOUT, 0, false, false};
    } else {
      // The WQEs that fill the ring may be waiting for a doorbell that their caller deferred, before this wait or since.
      if ((wait.polls & 31) == 0) ring_ready<P>(qp);
      if (poll_cq<P>(qp, r.next + n - limit) < r.next + n - limit && wait.expired(qp.timeout_ns)) {
        return {BP_TIMEOUT, 0, false, false};
      }
    }
    yield_();
  }
}

}  // namespace bp

#endif
