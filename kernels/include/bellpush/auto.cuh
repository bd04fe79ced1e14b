// Auto endpoints: each put takes the path that a table has for its length. The table was measured on the machine, or is
// the host's own (docs/auto.md).
//
// An auto endpoint has two queue pairs to the same peer: `bell`, whose WQEs are pushed, pulled, inline or by BlueFlame,
// and `inband`. Nothing orders WQEs of one with those of the other. fence() does.
#ifndef BELLPUSH_AUTO_CUH
#define BELLPUSH_AUTO_CUH

#include <bellpush/get.cuh>
#include <bellpush/put.cuh>
#include <bellpush/wait.cuh>

namespace bp {

namespace detail {

template <bool first, class T, class U>
struct either {
  using type = T;
};
template <class T, class U>
struct either<false, T, U> {
  using type = U;
};

}  // namespace detail

// What a kernel is compiled for that uses an auto endpoint. The arguments mean what they mean to `path`.
template <share S = share::exclusive, reach R = reach::system, order O = order::later, line L = line::d12s4>
struct auto_path {
  using bell = path<data::push, kick::kernel, S, R, O>;
  using pull = path<data::pull, kick::kernel, S, R, O>;
  using inband = path<data::push, kick::inband, S, reach::system, order::later, L>;
  using blueflame = path<data::push, kick::blueflame, share::exclusive, reach::system, O>;
  using pull_blueflame = path<data::pull, kick::blueflame, share::exclusive, reach::system, O>;
  // BlueFlame's buffer takes one caller's stores, and the next doorbell needs a fence of system scope behind them.
  static constexpr bool has_blueflame = S == share::exclusive && R == reach::system;
  // Those that may take BlueFlame, and may take the doorbell: one piece of code for both.
  using any_inline = typename detail::either<has_blueflame, blueflame, bell>::type;
  using any_pull = typename detail::either<has_blueflame, pull_blueflame, pull>::type;
  static constexpr uint32_t line_v = inband::tag_v & (BP_TAG_INBAND_12_4 | BP_TAG_INBAND_14_2 | BP_TAG_INBAND_60_4);
  // What serves() adds to the endpoint's tag: stronger fences do no harm, and an endpoint may lack the in-band queue
  // pair.
  static constexpr uint32_t spare_v = bell::fences_v | line_v;
  static constexpr uint32_t tag_v = BP_TAG_AUTO | spare_v;
};

// Whether the endpoint is one for kernels of path A.
template <class A>
BP_DEV bool serves(const bp_auto_endpoint& ep) {
  return (ep.tag | A::spare_v) == A::tag_v;
}

// A ticket, and the queue pair that it counts on.
struct auto_ticket {
  uint64_t end;
  bool is_inband;
};

namespace detail {

// The class of a length (bp_choices): from the highest bit of the number before it, and the bit behind that.
BP_DEV uint32_t class_of(uint32_t length) {
  const uint32_t x = (length < 3 ? 3 : length) - 1;
#if defined(__CUDACC__)
  return (__float_as_uint(__uint2float_rz(x)) >> 22) - 256;  // a float's exponent has them both in one place
#else
  const uint32_t e = 31 - (uint32_t)__builtin_clz(x);
  return 2 * e + (x >> (e - 1) & 1) - 2;
#endif
}

constexpr uint32_t choice_mask = (1u << BP_CHOICE_BITS) - 1;

// The choice for a length, by the ranges. Their ends are compared side by side, without a branch.
BP_DEV uint32_t choice_by_range(const bp_choices& c, uint32_t length) {
  uint32_t range = 0;
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t i = 0; i < BP_CHOICE_RANGES - 1; i++) range += length > c.up_to[i];
  return c.choice >> range * BP_CHOICE_BITS & choice_mask;
}

// The choice for a length. A put waits for it, and all threads of a block make it: one look, as a rule.
BP_DEV uint32_t choice_of(const bp_choices& c, uint64_t bytes) {
  const uint32_t length = bytes >> 32 != 0 ? ~0u : (uint32_t)bytes;
  const uint32_t at = class_of(length);
  const uint32_t choice = c.by_class[at / 8] >> at % 8 * BP_CHOICE_BITS & choice_mask;
  return __builtin_expect(choice == BP_CHOICE_BY_RANGE, 0) ? choice_by_range(c, length) : choice;
}

// The table of a scope. A block of one thread, or of one warp, posts as that does.
BP_DEV const bp_choices& choices_of(const bp_auto_endpoint& ep, thread_scope) { return ep.by_thread; }
BP_DEV const bp_choices& choices_of(const bp_auto_endpoint& ep, warp_scope) { return ep.by_warp; }
BP_DEV const bp_choices& choices_of(const bp_auto_endpoint& ep, block_scope) {
  const uint32_t threads = block_threads();
  return threads == 1 ? ep.by_thread : threads <= 32 ? ep.by_warp : ep.by_block;
}

// Whether a message is pulled: its choice says so, and the NIC can read it. What cannot be pulled is pushed.
BP_DEV bool is_pulled(const bp_endpoint& ep, uint32_t choice, const void* src, uint64_t bytes) {
  const bool wanted = choice == BP_CHOICE_PULL || choice == BP_CHOICE_PULL_BLUEFLAME;
  return wanted && !is_outside_local(ep, (uint64_t)src, bytes);
}

// A put by the queue pair that has a doorbell. What is too long to be inline is pushed.
template <class A, class Scope>
BP_DEV bp_status_code put_by_bell(const located<bp_endpoint>& ep, Scope scope, uint32_t choice, uint64_t remote,
                                  const void* src, uint64_t bytes, uint32_t flags, uint64_t* end) {
  const bool by_blueflame = choice == BP_CHOICE_BLUEFLAME || choice == BP_CHOICE_PULL_BLUEFLAME;
  if (is_pulled(ep, choice, src, bytes)) {
    return post_gather<typename A::any_pull>(ep, scope, remote, local_iova(ep, (uint64_t)src), bytes, false, flags, end,
                                             by_blueflame);
  }
  if ((choice == BP_CHOICE_INLINE || choice == BP_CHOICE_BLUEFLAME) && bytes <= max_inline_bytes) {
    return post_inline<typename A::any_inline>(ep, scope, remote, src, bytes, false, flags, end, by_blueflame);
  }
  return put_window<typename A::bell>(ep, scope, remote, (uint64_t)src, bytes, flags, end);
}

}  // namespace detail

// Writes `bytes` bytes from `src` to the peer's region at `remote_offset`, as the table has it for their number. `src`
// may be any memory that this GPU can read. Where it lies in the local region the NIC may read it: it stays untouched
// until the put is complete. Elsewhere it may be reused at once. Puts may pass one another. Statuses are those of a put
// of the path that was chosen.
template <class A, class Scope>
BP_DEV bp_status_code put(const located<bp_auto_endpoint>& ep, Scope scope, uint64_t remote_offset, const void* src,
                          uint64_t bytes, uint32_t flags = none, auto_ticket* end = nullptr) {
  if (!serves<A>(ep) || bytes == 0 || !detail::in_range(remote_offset, bytes, ep.bell.remote_bytes)) return BP_INVALID;
  const uint32_t choice = detail::choice_of(detail::choices_of(ep, scope), bytes);
  if (end) end->is_inband = choice == BP_CHOICE_INBAND;
  uint64_t* const at = end ? &end->end : nullptr;
  const uint64_t remote = ep.bell.remote_iova + remote_offset;
  // Lanes of a warp whose messages take other choices take turns too.
  return in_turn<typename A::bell>(scope, [&] {
    if (choice == BP_CHOICE_INBAND) {
      return detail::put_window<typename A::inband>(detail::part_of(ep, ep.inband), scope, remote, (uint64_t)src, bytes,
                                                    flags, at);
    }
    return detail::put_by_bell<A>(detail::part_of(ep, ep.bell), scope, choice, remote, src, bytes, flags, at);
  });
}

// Puts, then does `op` (signal_add or signal_set) to the peer's 8-byte signal word, both on one queue pair: an observer
// of the signal also sees these data, and not what other puts have sent (fence() before it sees to that).
template <class A, class Scope, class Op>
BP_DEV bp_status_code put_signal(const located<bp_auto_endpoint>& ep, Scope scope, uint64_t remote_offset,
                                 const void* src, uint64_t bytes, uint64_t signal_offset, Op op, uint32_t flags = none,
                                 auto_ticket* end = nullptr) {
  static_assert(!__is_same(Op, signal_imm), "auto endpoints have no receives: there are two queue pairs");
  using bell = typename A::bell;
  const bool in_range = detail::in_range(remote_offset, bytes, ep.bell.remote_bytes) &&
                        detail::may_signal(ep.bell, signal_offset, op);
  if (!serves<A>(ep) || bytes == 0 || !in_range) return BP_INVALID;
  const uint32_t choice = detail::choice_of(detail::choices_of(ep, scope), bytes);
  if (end) end->is_inband = choice == BP_CHOICE_INBAND;
  uint64_t* const at = end ? &end->end : nullptr;
  return in_turn<bell>(scope, [&] {
    if (choice == BP_CHOICE_INBAND) {
      return put_signal<typename A::inband>(detail::part_of(ep, ep.inband), scope, remote_offset, src, bytes,
                                            signal_offset, op, flags, at);
    }
    if (detail::is_pulled(ep.bell, choice, src, bytes)) {
      // One doorbell for both.
      const message m{remote_offset, src, bytes};
      return detail::post_signal<typename A::pull>(detail::part_of(ep, ep.bell), scope, m, signal_offset, op, false,
                                                   flags, at);
    }
    return put_signal<bell>(detail::part_of(ep, ep.bell), scope, remote_offset, src, bytes, signal_offset, op, flags,
                            at);
  });
}

// get, fetch_add and compare_swap go by `bell`; otherwise they are what they are on other endpoints.
template <class A, class Scope>
BP_DEV bp_status_code get(const located<bp_auto_endpoint>& ep, Scope scope, void* dst, uint64_t remote_offset,
                          uint64_t bytes, uint32_t flags = none, auto_ticket* end = nullptr) {
  if (!serves<A>(ep)) return BP_INVALID;
  if (end) end->is_inband = false;
  uint64_t* const at = end ? &end->end : nullptr;
  return get<typename A::bell>(detail::part_of(ep, ep.bell), scope, dst, remote_offset, bytes, flags, at);
}
template <class A, class Scope>
BP_DEV bp_status_code fetch_add(const located<bp_auto_endpoint>& ep, Scope scope, uint64_t remote_offset,
                                uint64_t value, void* result, uint32_t flags = none, auto_ticket* end = nullptr) {
  if (!serves<A>(ep)) return BP_INVALID;
  if (end) end->is_inband = false;
  uint64_t* const at = end ? &end->end : nullptr;
  return fetch_add<typename A::bell>(detail::part_of(ep, ep.bell), scope, remote_offset, value, result, flags, at);
}
template <class A, class Scope>
BP_DEV bp_status_code compare_swap(const located<bp_auto_endpoint>& ep, Scope scope, uint64_t remote_offset,
                                   uint64_t compare, uint64_t swap, void* result, uint32_t flags = none,
                                   auto_ticket* end = nullptr) {
  if (!serves<A>(ep)) return BP_INVALID;
  if (end) end->is_inband = false;
  uint64_t* const at = end ? &end->end : nullptr;
  return compare_swap<typename A::bell>(detail::part_of(ep, ep.bell), scope, remote_offset, compare, swap, result,
                                        flags, at);
}

// Rings for all that was posted with defer_ring.
template <class A, class Scope>
BP_DEV void ring(const bp_auto_endpoint& ep, Scope scope) {
  if (serves<A>(ep)) ring<typename A::bell>(ep.bell, scope);
}

// Waits for a ticket: what was posted before it on the same queue pair is complete. quiet() waits for everything.
template <class A, class Scope>
BP_DEV bp_status_code wait(const bp_auto_endpoint& ep, Scope scope, const auto_ticket& end) {
  if (!serves<A>(ep)) return BP_INVALID;
  if (end.is_inband) return wait<typename A::inband>(ep.inband, scope, end.end);
  return wait<typename A::bell>(ep.bell, scope, end.end);
}

// Asks once for a ticket: BP_OK, BP_PENDING or the queue pair's error.
template <class A, class Scope>
BP_DEV bp_status_code test(const bp_auto_endpoint& ep, Scope scope, const auto_ticket& end) {
  if (!serves<A>(ep)) return BP_INVALID;
  if (end.is_inband) return test<typename A::inband>(ep.inband, scope, end.end);
  return test<typename A::bell>(ep.bell, scope, end.end);
}

namespace detail {

// Waits for all of both queue pairs of an exclusive endpoint. One broadcast for both; and whether there is anything to
// wait for is known of both before the first wait, whose clock runs from here, so that the queue pair that has nothing
// under way costs neither a step behind the last CQE nor one before the first look.
template <class A, class Scope>
BP_DEV bp_status_code quiet_both(const bp_auto_endpoint& ep, Scope scope) {
  using bell = typename A::bell;
  using inband = typename A::inband;
  constexpr uint32_t second = 16;  // bit of the word where the in-band queue pair's part begins
  uint64_t word = 0, bell_end = everything, lines_end = everything;
  if (waits<bell>(scope)) {
    const first_look first = first_look::now();
    const word_pair by_bell = load_pair<bell>(&state_of(ep.bell.qp)->reserved);  // and `done`
    const uint64_t fetched = load_fetched<bell>(ep.bell.qp);
    word_pair by_lines = {0, 0};
    if (ep.inband.tag != 0) by_lines = load_pair<inband>(&state_of(ep.inband.qp)->reserved);
    if ((by_bell.first != by_bell.second) | (fetched != 0)) {
      word = wait_leading<bell>(ep.bell.qp, scope, &bell_end, first);
    }
    if (by_lines.first != by_lines.second) {
      word |= wait_leading<inband>(ep.inband.qp, scope, &lines_end, first) << second;
    }
  }
  word = scope.broadcast(word);
  if (__builtin_expect(word == BP_OK, 1)) return BP_OK;  // what follows would be a part of each wait's time
  uint64_t s = word & ((1 << second) - 1), t = word >> second;
  if (s == needs_nop) s = wait_by_nop<bell>(ep.bell.qp, scope, bell_end);
  if (t == needs_nop) t = wait_by_nop<inband>(ep.inband.qp, scope, lines_end);
  return (bp_status_code)(s != BP_OK ? s : t);
}

}  // namespace detail

// Waits for all that was posted before the call on both queue pairs, by any caller.
template <class A, class Scope>
BP_DEV bp_status_code quiet(const bp_auto_endpoint& ep, Scope scope) {
  if (!serves<A>(ep)) return BP_INVALID;
  if constexpr (!A::bell::shared) {
    return detail::quiet_both<A>(ep, scope);
  } else {
    const bp_status_code s = quiet<typename A::bell>(ep.bell, scope);
    if (ep.inband.tag == 0) return s;
    const bp_status_code t = quiet<typename A::inband>(ep.inband, scope);
    return s != BP_OK ? s : t;
  }
}

// Orders all that was posted before the call, on both queue pairs, before all that is posted after it. Only completion
// orders two queue pairs, so it waits for that.
template <class A, class Scope>
BP_DEV bp_status_code fence(const bp_auto_endpoint& ep, Scope scope) {
  return quiet<A>(ep, scope);
}

// One thread: takes completions on both queue pairs, as reclaim() does on one.
template <class A>
BP_DEV void reclaim(const bp_auto_endpoint& ep, uint32_t part) {
  if (!serves<A>(ep)) return;
  reclaim<typename A::bell>(ep.bell, part);
  if (ep.inband.tag != 0) reclaim<typename A::inband>(ep.inband, part);
}

// Waits until a peer's put_signal has brought the word at `signal` to where it compares with `value`.
template <cmp C = cmp::ge, class Scope>
BP_DEV bp_status_code wait_signal(const bp_auto_endpoint& ep, Scope scope, const uint64_t* signal, uint64_t value) {
  return wait_signal<C>(ep.bell, scope, signal, value);
}

}  // namespace bp

#endif
