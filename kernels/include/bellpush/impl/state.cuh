// The words of a queue pair's state, and where a ticket lies in its rings.
#ifndef BELLPUSH_IMPL_STATE_CUH
#define BELLPUSH_IMPL_STATE_CUH

#include <bellpush/impl/order.cuh>
#include <bellpush/wire.h>

namespace bp {

BP_DEV bp_qp_state* state_of(const bp_qp& qp) { return reinterpret_cast<bp_qp_state*>(qp.state); }
BP_DEV uint32_t sq_blocks(const bp_qp& qp) { return 1u << qp.sq_log; }

// Whether a caller has given a bound of its own (within()), and the queue pair's bound all the same: of waits that
// nobody may give up early, because others' WQEs depend on them.
BP_DEV bool has_own_bound(const bp_qp& qp) { return qp.own_timeout_us != 0; }
BP_DEV uint64_t qp_timeout_ns(const bp_qp& qp) {
  return has_own_bound(qp) ? (uint64_t)qp.own_timeout_us * 1000 : qp.timeout_ns;
}

// Words of the QP's state. Shared: other callers change them at any time. Exclusive: this caller's
// alone, or handed to it by a synchronisation of its own; so they are plain memory and stay in L1,
// which spares a verb the trips to L2 before its first store.
template <class P, class T>
BP_DEV T load_state(const T* word) {
  if constexpr (P::shared) {
    return ld_relaxed_gpu(word);
  } else {
    return ld_weak(word);
  }
}
template <class P, class T>
BP_DEV void store_state(T* word, T value) {
  if constexpr (P::shared) {
    st_relaxed_gpu(word, value);
  } else {
    st_weak(word, value);
  }
}

// Two adjacent words at once.
template <class P>
BP_DEV word_pair load_pair(const uint64_t* words) {
  if constexpr (P::shared) {
    return ld_relaxed_gpu_pair(words);
  } else {
    return ld_weak_pair(words);
  }
}

// A ticket's slot and lap. An endpoint's window has a power of two of slots: a branch for others would cost each in-band
// put some 30 cycles.
struct window_place {
  uint32_t slot;
  uint64_t lap;
};
BP_DEV window_place place_of(const bp_window& w, uint64_t ticket) {
  const uint32_t mask = w.slots - 1;
  return {(uint32_t)ticket & mask, ticket >> bits_set(mask)};
}

}  // namespace bp

#endif
