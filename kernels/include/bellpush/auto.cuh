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

// The choice for a length. The ranges' ends are compared side by side, without a branch.
BP_DEV uint32_t choice_of(const bp_choices& c, uint64_t bytes) {
  const uint32_t length = bytes >> 32 != 0 ? ~0u : (uint32_t)bytes;
  uint32_t range = 0;
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t i = 0; i < BP_CHOICE_RANGES - 1; i++) range += length > c.up_to[i];
  return c.choice >> range * BP_CHOICE_BITS & ((1u << BP_CHOICE_BITS) - 1);
}

// The table of a scope. A block of one thread, or of one warp, posts as that does.
BP_DEV const bp_choices& choices_of(const bp_auto_endpoint& ep, thread_scope) { return ep.by_thread; }
BP_DEV const bp_choices& choices_of(const bp_auto_endpoint& ep, warp_scope) { return ep.by_warp; }
BP_DEV const bp_choices& choices_of(const bp_auto_endpoint& ep, block_scope) {
  const uint32_t threads = block_threads();
  return threads == 1 ? ep.by_thread : threads <= 32 ? ep.by_warp : ep.by_block;
}

// How a message goes: its length's choice, but push for a pull of what the NIC cannot read, and for what is too long to
// be inline; and a doorbell where these kernels have no BlueFlame. `gather`: a pulled payload's address in WQEs.
template <class A, class Scope>
BP_DEV uint32_t choose(const bp_auto_endpoint& ep, Scope scope, const void* src, uint64_t bytes, uint64_t* gather) {
  const uint32_t choice = choice_of(choices_of(ep, scope), bytes);
  if (choice == BP_CHOICE_PULL || choice == BP_CHOICE_PULL_BLUEFLAME) {
    const bool can = bytes <= max_message_bytes && local_iova(ep.bell, (uint64_t)src, bytes, gather);
    if (!can) return BP_CHOICE_PUSH;
    return A::has_blueflame ? choice : (uint32_t)BP_CHOICE_PULL;
  }
  const bool is_inline = choice == BP_CHOICE_INLINE || choice == BP_CHOICE_BLUEFLAME;
  if (is_inline && bytes > max_inline_bytes) return BP_CHOICE_PUSH;
  return choice == BP_CHOICE_BLUEFLAME && !A::has_blueflame ? (uint32_t)BP_CHOICE_INLINE : choice;
}

}  // namespace detail

// Writes `bytes` bytes from `src` to the peer's region at `remote_offset`, as the table has it for their number. `src`
// may be any memory that this GPU can read. Where it lies in the local region the NIC may read it: it stays untouched
// until the put is complete. Elsewhere it may be reused at once. Puts may pass one another. Statuses are those of a put
// of the path that was chosen.
template <class A, class Scope>
BP_DEV bp_status_code put(const bp_auto_endpoint& ep, Scope scope, uint64_t remote_offset, const void* src,
                          uint64_t bytes, uint32_t flags = none, auto_ticket* end = nullptr) {
  if (!serves<A>(ep) || bytes == 0 || !detail::in_range(remote_offset, bytes, ep.bell.remote_bytes)) return BP_INVALID;
  uint64_t gather = 0;
  const uint32_t choice = detail::choose<A>(ep, scope, src, bytes, &gather);
  if (end) end->is_inband = choice == BP_CHOICE_INBAND;
  uint64_t* const at = end ? &end->end : nullptr;
  const uint64_t remote = ep.bell.remote_iova + remote_offset;
  // Lanes of a warp whose messages take other choices take turns too.
  return in_turn<typename A::bell>(scope, [&] {
    switch (choice) {
      case BP_CHOICE_INBAND:
        return detail::put_window<typename A::inband>(ep.inband, scope, remote, (uint64_t)src, bytes, flags, at);
      case BP_CHOICE_INLINE:
        return detail::post_inline<typename A::bell>(ep.bell, scope, remote, src, bytes, flags, at);
      case BP_CHOICE_PULL:
        return detail::post_gather<typename A::pull>(ep.bell, scope, remote, gather, bytes, flags, at);
      case BP_CHOICE_BLUEFLAME:
        if constexpr (A::has_blueflame) {
          return detail::post_inline<typename A::blueflame>(ep.bell, scope, remote, src, bytes, flags, at);
        }
        [[fallthrough]];
      case BP_CHOICE_PULL_BLUEFLAME:
        if constexpr (A::has_blueflame) {
          using P = typename A::pull_blueflame;
          return detail::post_gather<P>(ep.bell, scope, remote, gather, bytes, flags, at);
        }
        [[fallthrough]];
      default:
        return detail::put_window<typename A::bell>(ep.bell, scope, remote, (uint64_t)src, bytes, flags, at);
    }
  });
}

// Puts, then does `op` (signal_add or signal_set) to the peer's 8-byte signal word, both on one queue pair: an observer
// of the signal also sees these data, and not what other puts have sent (fence() before it sees to that).
template <class A, class Scope, class Op>
BP_DEV bp_status_code put_signal(const bp_auto_endpoint& ep, Scope scope, uint64_t remote_offset, const void* src,
                                 uint64_t bytes, uint64_t signal_offset, Op op, uint32_t flags = none,
                                 auto_ticket* end = nullptr) {
  static_assert(!__is_same(Op, signal_imm), "auto endpoints have no receives: there are two queue pairs");
  using bell = typename A::bell;
  const bool in_range = detail::in_range(remote_offset, bytes, ep.bell.remote_bytes) &&
                        detail::may_signal(ep.bell, signal_offset, op);
  if (!serves<A>(ep) || bytes == 0 || !in_range) return BP_INVALID;
  uint64_t gather = 0;
  const uint32_t choice = detail::choose<A>(ep, scope, src, bytes, &gather);
  if (end) end->is_inband = choice == BP_CHOICE_INBAND;
  uint64_t* const at = end ? &end->end : nullptr;
  return in_turn<bell>(scope, [&] {
    switch (choice) {
      case BP_CHOICE_INBAND:
        return put_signal<typename A::inband>(ep.inband, scope, remote_offset, src, bytes, signal_offset, op, flags,
                                              at);
      case BP_CHOICE_PULL:
      case BP_CHOICE_PULL_BLUEFLAME: {
        // One doorbell for both.
        const message m{remote_offset, src, bytes};
        return detail::post_signal<typename A::pull>(ep.bell, scope, m, signal_offset, op, flags, at);
      }
      default:
        return put_signal<bell>(ep.bell, scope, remote_offset, src, bytes, signal_offset, op, flags, at);
    }
  });
}

// get, fetch_add and compare_swap go by `bell`; otherwise they are what they are on other endpoints.
template <class A, class Scope>
BP_DEV bp_status_code get(const bp_auto_endpoint& ep, Scope scope, void* dst, uint64_t remote_offset, uint64_t bytes,
                          uint32_t flags = none, auto_ticket* end = nullptr) {
  if (!serves<A>(ep)) return BP_INVALID;
  if (end) end->is_inband = false;
  return get<typename A::bell>(ep.bell, scope, dst, remote_offset, bytes, flags, end ? &end->end : nullptr);
}
template <class A, class Scope>
BP_DEV bp_status_code fetch_add(const bp_auto_endpoint& ep, Scope scope, uint64_t remote_offset, uint64_t value,
                                void* result, uint32_t flags = none, auto_ticket* end = nullptr) {
  if (!serves<A>(ep)) return BP_INVALID;
  if (end) end->is_inband = false;
  uint64_t* const at = end ? &end->end : nullptr;
  return fetch_add<typename A::bell>(ep.bell, scope, remote_offset, value, result, flags, at);
}
template <class A, class Scope>
BP_DEV bp_status_code compare_swap(const bp_auto_endpoint& ep, Scope scope, uint64_t remote_offset, uint64_t compare,
                                   uint64_t swap, void* result, uint32_t flags = none, auto_ticket* end = nullptr) {
  if (!serves<A>(ep)) return BP_INVALID;
  if (end) end->is_inband = false;
  uint64_t* const at = end ? &end->end : nullptr;
  return compare_swap<typename A::bell>(ep.bell, scope, remote_offset, compare, swap, result, flags, at);
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

// Waits for all that was posted before the call on both queue pairs, by any caller.
template <class A, class Scope>
BP_DEV bp_status_code quiet(const bp_auto_endpoint& ep, Scope scope) {
  if (!serves<A>(ep)) return BP_INVALID;
  const bp_status_code s = quiet<typename A::bell>(ep.bell, scope);
  if (ep.inband.tag == 0) return s;
  const bp_status_code t = quiet<typename A::inband>(ep.inband, scope);
  return s != BP_OK ? s : t;
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
