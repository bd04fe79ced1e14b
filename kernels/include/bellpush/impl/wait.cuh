// Waiting for completions: who looks, and what must be posted so that one comes.
#ifndef BELLPUSH_IMPL_WAIT_CUH
#define BELLPUSH_IMPL_WAIT_CUH

#include <bellpush/impl/post.cuh>

namespace bp {

namespace detail {

constexpr uint64_t everything = ~uint64_t{0};

// Posts a NOP whose CQE covers all earlier WQEs, and waits for `end`. On a shared QP that may have counted tickets which
// were given back since, and which come no more: all that are posted lie before the NOP.
template <class P, class Scope>
BP_DEV_COLD bp_status_code wait_by_nop(const bp_qp& qp, Scope scope, uint64_t end) {
  uint64_t after = 0;
  bp_status_code s = post<P, false>(qp, scope, make_wqe(BP_OP_NOP, 1, 0, 0), none, &after);
  if (scope.rank() == 0) {
    if (s == BP_OK) {
      s = wait_done<P>(qp, P::shared && after < end ? after : end);
      if (s == BP_OK) acquire_fetched<P>(qp, load_fetched<P>(qp));
    } else if (s == BP_DEAD) {
      s = error_of<P>(qp);  // a wait returns the QP's error
    }
  }
  return (bp_status_code)scope.broadcast(s);
}

// What a wait's threads find: a status, or this: no requested CQE covers `end`, and a NOP must request one.
constexpr uint64_t needs_nop = 1 << 8;

// The threads of a scope that wait; they tell the others. On an exclusive queue pair the leader's warp waits as one.
template <class P, class Scope>
BP_DEV bool waits(Scope scope) {
  return P::shared ? scope.rank() == 0 : scope.leads();
}

// Waits for `*end`, a ticket, or `everything`, which becomes the end of all tickets posted before the call: a NOP's are
// behind it. Those threads call it. `first`: its clock begins where the wait does.
template <class P, class Scope>
BP_DEV uint64_t wait_leading(const bp_qp& qp, Scope scope, uint64_t* end, const first_look& first) {
  const bool leader = scope.rank() == 0;
  // All loads in flight together: on a shared QP each is a trip to L2.
  bp_qp_state* st = state_of(qp);
  const uint64_t reserved = load_state<P>(&st->reserved);
  const uint64_t signalled = load_state<P>(&st->signalled);
  const uint64_t fetched = load_fetched<P>(qp);
  const outlook o = load_outlook<P>(qp, first);
  if (*end == everything) *end = reserved;
  // All threads have read these words before the leader changes any.
  if constexpr (!P::shared) scope.sync_leading();
  if (leader) ring_pending<P>(qp);
  if (signalled < *end) return o.error == BP_OK ? needs_nop : (uint64_t)o.error;
  if constexpr (P::shared) {
    return wait_done<P>(qp, *end);
  } else {
    const uint64_t s = wait_exclusive<P>(qp, leader, o, *end);
    if (leader && s == BP_OK) acquire_fetched<P>(qp, fetched);
    return s;
  }
}

// wait() and quiet().
template <class P, class Scope>
BP_DEV bp_status_code wait_all(const bp_qp& qp, Scope scope, uint64_t end) {
  uint64_t word = 0;
  if (waits<P>(scope)) word = wait_leading<P>(qp, scope, &end, first_look::now());
  word = scope.broadcast(word);
  if (word != needs_nop) return (bp_status_code)word;
  return wait_by_nop<P>(qp, scope, end);
}

}  // namespace detail

}  // namespace bp

#endif
