// Watching signal words that a peer's NIC writes.
//
// Looks are relaxed, so that many are in flight together; an acquire of system scope behind the one that found what was
// waited for orders the data, which the NIC wrote before the word, before the caller's reads. The scope's broadcast
// hands that on to its other threads.
#ifndef BELLPUSH_IMPL_WATCH_CUH
#define BELLPUSH_IMPL_WATCH_CUH

#include <bellpush/impl/state.cuh>
#include <bellpush/path.cuh>

namespace bp {

// How a signal word compares with the value that is given, as unsigned numbers.
enum class cmp { eq, ne, gt, ge, lt, le };

namespace detail {

template <cmp C>
BP_DEV bool compares(uint64_t word, uint64_t value) {
  if constexpr (C == cmp::eq) {
    return word == value;
  } else if constexpr (C == cmp::ne) {
    return word != value;
  } else if constexpr (C == cmp::gt) {
    return word > value;
  } else if constexpr (C == cmp::ge) {
    return word >= value;
  } else if constexpr (C == cmp::lt) {
    return word < value;
  } else {
    return word <= value;
  }
}

// Looks until `look()` says that what is waited for is there; `once`: one time. All threads of `scope` look together,
// and each gets the same answer. Ends early if the endpoint's QP is in error.
template <class Scope, class Look>
BP_DEV bp_status_code watch(const bp_endpoint& ep, Scope scope, bool once, Look look) {
  deadline limit;
  for (uint64_t ends = BP_OK;; yield_()) {
    if (look()) {
      fence_acquire_sys();  // the data that the NIC wrote before the word, before the caller's reads
      return BP_OK;
    }
    if (ends != BP_OK) return (bp_status_code)ends;
    if (scope.rank() == 0) {
      // Another caller may put the QP into error meanwhile, so the load bypasses L1. The word may have come before
      // the error: one more look follows.
      ends = ld_relaxed_gpu(&state_of(ep.qp)->error);
      if (ends != BP_OK) {
        fence_sys();  // this look before that one
      } else if (limit.expired(ep.qp.timeout_ns)) {
        ends = BP_TIMEOUT;
      }
    }
    ends = scope.broadcast(ends);
    if (once && ends != BP_CQE_ERROR && ends != BP_DEAD) return BP_PENDING;
  }
}

template <cmp C, class Scope>
BP_DEV bp_status_code watch_word(const bp_endpoint& ep, Scope scope, const uint64_t* word, uint64_t value, bool once) {
  bp_status_code s = BP_OK;
  if (scope.rank() == 0) {
    s = watch(ep, thread_scope{}, once, [&] { return compares<C>(ld_relaxed_sys(word), value); });
  }
  return (bp_status_code)scope.broadcast(s);
}

// Words of an array but for those with a `skip`.
struct signal_words {
  const uint64_t* words;
  const uint32_t* skip;
  uint32_t n;
  BP_DEV bool is_wanted(uint32_t i) const { return i < n && (skip == nullptr || skip[i] == 0); }
};

// Which of the words `first`.. compare, and which are wanted: a bit for each of those that a look has in flight.
struct seen {
  uint32_t wanted, there;
};
constexpr uint32_t words_a_watch = 8;
template <cmp C>
BP_DEV seen look_at(thread_scope, const signal_words& s, uint32_t first, uint64_t value) {
  uint64_t word[words_a_watch];
  seen found = {0, 0};
  for (uint32_t k = 0; k < words_a_watch; k++) word[k] = first + k < s.n ? ld_relaxed_sys(s.words + first + k) : 0;
  for (uint32_t k = 0; k < words_a_watch; k++) {
    const bool is_wanted = s.is_wanted(first + k);
    found.wanted |= (uint32_t)is_wanted << k;
    found.there |= (uint32_t)(is_wanted && compares<C>(word[k], value)) << k;
  }
  return found;
}
template <cmp C>
BP_DEV seen look_at(warp_scope, const signal_words& s, uint32_t first, uint64_t value) {
  const uint32_t i = first + lane();
  const bool is_wanted = s.is_wanted(i);
  const bool is_there = is_wanted && compares<C>(ld_relaxed_sys(s.words + i), value);
  return {ballot(is_wanted), ballot(is_there)};
}
BP_DEV uint32_t words_of(thread_scope) { return words_a_watch; }
BP_DEV uint32_t words_of(warp_scope scope) { return scope.size(); }

// Who looks: a thread, or of a warp or block its first warp. Calls `f(looker)` by those, and returns what thread 0 of
// them got to all of the scope.
template <class F>
BP_DEV uint64_t by_lookers(thread_scope scope, F f) {
  return f(scope);
}
template <class Scope, class F>
BP_DEV uint64_t by_lookers(Scope scope, F f) {
  uint64_t result = 0;
  if (scope.leads()) result = f(warp_scope{});
  return scope.broadcast(result);
}

template <cmp C, class Scope>
BP_DEV bp_status_code watch_all(const bp_endpoint& ep, Scope scope, signal_words s, uint64_t value) {
  return (bp_status_code)by_lookers(scope, [&](auto looker) -> uint64_t {
    uint32_t from = 0;  // all before it have been seen
    return watch(ep, looker, false, [&] {
      for (; from < s.n; from += words_of(looker)) {
        const seen found = look_at<C>(looker, s, from, value);
        if (found.there != found.wanted) return false;
      }
      return true;
    });
  });
}

template <cmp C, class Scope>
BP_DEV bp_status_code watch_any(const bp_endpoint& ep, Scope scope, signal_words s, uint64_t value, uint32_t* index) {
  const uint64_t result = by_lookers(scope, [&](auto looker) -> uint64_t {
    uint32_t at = s.n;
    const uint64_t status = watch(ep, looker, false, [&] {
      uint32_t wanted = 0;
      for (uint32_t from = 0; from < s.n; from += words_of(looker)) {
        const seen found = look_at<C>(looker, s, from, value);
        wanted |= found.wanted;
        if (found.there != 0) {
          at = from + trailing_zeros(found.there);
          return true;
        }
      }
      return wanted == 0;
    });
    return (uint64_t)at << 8 | status;
  });
  *index = (uint32_t)(result >> 8);
  return (bp_status_code)(result & 0xff);
}

template <cmp C, class Scope>
BP_DEV bp_status_code watch_some(const bp_endpoint& ep, Scope scope, signal_words s, uint64_t value, uint32_t* indices,
                                 uint32_t* count) {
  const uint64_t result = by_lookers(scope, [&](auto looker) -> uint64_t {
    uint32_t n = 0;
    const uint64_t status = watch(ep, looker, false, [&] {
      uint32_t wanted = 0;
      for (uint32_t from = 0; from < s.n; from += words_of(looker)) {
        const seen found = look_at<C>(looker, s, from, value);
        wanted |= found.wanted;
        const uint32_t words = words_of(looker);
        for (uint32_t k = looker.rank(); k < words; k += looker.size()) {
          const uint32_t bit = 1u << k;
          if ((found.there & bit) != 0) indices[n + bits_set(found.there & (bit - 1))] = from + k;
        }
        n += bits_set(found.there);
      }
      return n != 0 || wanted == 0;
    });
    return (uint64_t)n << 8 | status;
  });
  *count = (uint32_t)(result >> 8);
  return (bp_status_code)(result & 0xff);
}

}  // namespace detail

}  // namespace bp

#endif
