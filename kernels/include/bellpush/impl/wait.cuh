// Waiting for completions: who looks, and what must be posted so that one comes.
#ifndef BELLPUSH_IMPL_WAIT_CUH
#define BELLPUSH_IMPL_WAIT_CUH

#include <bellpush/impl/post.cuh>

namespace bp {

namespace detail {

constexpr uint64_t everything = ~uint64_t{0};

// Posts a NOP whose CQE covers all earlier WQEs, and waits for `end`.
template <class P, class Scope>
BP_DEV_COLD bp_status_code wait_by_nop(const bp_qp& qp, Scope scope, uint64_t end) {
  bp_status_code s = post<P, false>(qp, scope, make_wqe(BP_OP_NOP, 1, 0, 0), none, nullptr);
  if (scope.rank() == 0) {
    if (s == BP_OK) {
      s = wait_done<P>(qp, end);
      if (s == BP_OK) acquire_fetched<P>(qp, load_fetched<P>(qp));
    } else if (s == BP_DEAD) {
      s = error_of<P>(qp);  // a wait returns the QP's error
    }
  }
  return (bp_status_code)scope.broadcast(s);
}

// wait() and quiet(): `end` is a ticket, or `everything` for all tickets posted before the call.
template <class P, class Scope>
BP_DEV bp_status_code wait_all(const bp_qp& qp, Scope scope, uint64_t end) {
  // 1 << 8: no requested CQE covers `end`; a NOP must request one.
  const uint64_t nop = 1 << 8;
  uint64_t word = 0;
  const bool leader = scope.rank() == 0;
  if (P::shared ? leader : scope.leads()) {
    // All loads in flight together: on a shared QP each is a trip to L2.
    bp_qp_state* st = state_of(qp);
    const uint64_t reserved = load_state<P>(&st->reserved);
    const uint64_t signalled = load_state<P>(&st->signalled);
    const uint64_t fetched = load_fetched<P>(qp);
    const outlook o = load_outlook<P>(qp);
    if (end == everything) end = reserved;
    // All threads have read these words before the leader changes any.
    if constexpr (!P::shared) scope.sync_leading();
    if (leader) ring_pending<P>(qp);
    if (signalled < end) {
      word = o.error == BP_OK ? nop : (uint64_t)o.error;
    } else if constexpr (P::shared) {
      word = wait_done<P>(qp, end);
    } else {
      word = wait_exclusive<P>(qp, leader, o, end);
      if (leader && word == BP_OK) acquire_fetched<P>(qp, fetched);
    }
  }
  word = scope.broadcast(word);
  if (word != nop) return (bp_status_code)word;
  return wait_by_nop<P>(qp, scope, end);
}

}  // namespace detail

}  // namespace bp

#endif
