// Signals: 8-byte words of the receiver's memory by which a sender says that data are there. signal; test_signal,
// wait_signal; wait_signal_all, wait_signal_any and wait_signal_some of many words.
#ifndef BELLPUSH_SIGNAL_CUH
#define BELLPUSH_SIGNAL_CUH

#include <bellpush/impl/post.cuh>
#include <bellpush/impl/watch.cuh>

namespace bp {

namespace detail {

// An addition's address is the NIC's to check, as every atomic's; a word that is set must lie in one piece.
BP_DEV bool may_signal(const bp_endpoint& ep, uint64_t signal_offset, signal_add) {
  return in_range(signal_offset, 8, ep.remote_bytes);
}
BP_DEV bool may_signal(const bp_endpoint& ep, uint64_t signal_offset, signal_imm) {
  return signal_offset < ep.remote_bytes;
}
BP_DEV bool may_signal(const bp_endpoint& ep, uint64_t signal_offset, signal_set) {
  return in_range(signal_offset, 8, ep.remote_bytes) & (((ep.remote_iova + signal_offset) & 7) == 0);
}

}  // namespace detail

// Does `op` (signal_add or signal_set) to the peer's 8-byte word at `signal_offset`, behind all that was posted on
// the queue pair before: whoever sees it sees what was put before.
template <class P, class Scope, class Op>
BP_DEV bp_status_code signal(const located<bp_endpoint>& ep, Scope scope, uint64_t signal_offset, Op op,
                             uint32_t flags = none, uint64_t* end = nullptr) {
  if (!serves<P>(ep) || !detail::may_signal(ep, signal_offset, op)) return BP_INVALID;
  return detail::post<P, detail::is_set<Op>>(ep.qp, scope, detail::signal_wqe<P>(ep, signal_offset, op), flags, end);
}

// Tests once whether the 8-byte word at `signal` (this end's memory) compares with `value`, by default is at least
// that: BP_OK, BP_PENDING, or the error of the endpoint's QP if it is not. After BP_OK all threads of the scope can
// read the data that were put before the signal.
template <cmp C = cmp::ge, class Scope>
BP_DEV bp_status_code test_signal(const bp_endpoint& ep, Scope scope, const uint64_t* signal, uint64_t value) {
  return detail::watch_word<C>(ep, scope, signal, value, true);
}

// The same, and waits until it does. Ends early if it does not and the endpoint's QP is in error.
template <cmp C = cmp::ge, class Scope>
BP_DEV bp_status_code wait_signal(const bp_endpoint& ep, Scope scope, const uint64_t* signal, uint64_t value) {
  return detail::watch_word<C>(ep, scope, signal, value, false);
}

// Of these three `signals` is an array of `n` words, each of which is compared with `value`; those with a `skip` that
// is not 0 (null: none) are passed over. A warp or block looks at 32 words at once.

// Waits until all of the words compare.
template <cmp C = cmp::ge, class Scope>
BP_DEV bp_status_code wait_signal_all(const bp_endpoint& ep, Scope scope, const uint64_t* signals, uint32_t n,
                                      uint64_t value, const uint32_t* skip = nullptr) {
  return detail::watch_all<C>(ep, scope, detail::signal_words{signals, skip, n}, value);
}

// Waits until one of them does. `index` receives the lowest such word's number, or `n` where all are passed over.
template <cmp C = cmp::ge, class Scope>
BP_DEV bp_status_code wait_signal_any(const bp_endpoint& ep, Scope scope, const uint64_t* signals, uint32_t n,
                                      uint64_t value, uint32_t* index, const uint32_t* skip = nullptr) {
  return detail::watch_any<C>(ep, scope, detail::signal_words{signals, skip, n}, value, index);
}

// Waits until at least one of them does. `indices`, room for `n` in memory that all threads of the scope reach,
// receives the numbers of all that do, in order; `count` how many, 0 where all are passed over.
template <cmp C = cmp::ge, class Scope>
BP_DEV bp_status_code wait_signal_some(const bp_endpoint& ep, Scope scope, const uint64_t* signals, uint32_t n,
                                       uint64_t value, uint32_t* indices, uint32_t* count,
                                       const uint32_t* skip = nullptr) {
  return detail::watch_some<C>(ep, scope, detail::signal_words{signals, skip, n}, value, indices, count);
}

}  // namespace bp

#endif
