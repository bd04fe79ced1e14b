// Writes into the peer's region: put, put_inline, put_value, put_signal, put_imm; put_batch, put_strided and put_vector
// of many messages.
#ifndef BELLPUSH_PUT_CUH
#define BELLPUSH_PUT_CUH

#include <bellpush/impl/many.cuh>
#include <bellpush/signal.cuh>

namespace bp {

constexpr uint32_t max_inline_bytes = BP_UAR_BF_BYTES - inband_header_bytes;  // 220

namespace detail {

// Posts `bytes` bytes, at most max_inline_bytes, in the WQE itself. `refused`: not to be posted (with_room()).
template <class P, class Scope>
BP_DEV bp_status_code post_inline(const located<bp_endpoint>& ep, Scope scope, uint64_t remote, const void* src,
                                  uint64_t bytes, bool refused, uint32_t flags, uint64_t* end,
                                  bool by_blueflame = true) {
  const uint32_t ds = 2 + (4 + (uint32_t)bytes + BP_DS_BYTES - 1) / BP_DS_BYTES;
  wqe w = wqe_to_peer(ep, BP_OP_RDMA_WRITE, ds, remote);
  w.refused = refused;
  w.bytes = (uint32_t)bytes;
  w.gather = (uint64_t)src;
  return post<P, true>(ep.qp, scope, w, flags, end, by_blueflame);
}

// Posts `bytes` bytes, at most max_message_bytes, that the NIC gathers from `gather` in the local region. `refused`:
// not to be posted.
template <class P, class Scope>
BP_DEV bp_status_code post_gather(const located<bp_endpoint>& ep, Scope scope, uint64_t remote, uint64_t gather,
                                  uint64_t bytes, bool refused, uint32_t flags, uint64_t* end,
                                  bool by_blueflame = true) {
  wqe w = wqe_to_peer(ep, BP_OP_RDMA_WRITE, 3, remote);
  w.refused = refused;
  w.bytes = (uint32_t)bytes;
  w.gather = gather;
  w.lkey = ep.local_lkey;
  return post<P, false>(ep.qp, scope, w, flags, end, by_blueflame);
}

}  // namespace detail

// Writes up to 220 bytes that travel in the WQE itself. `src` may be reused after the return.
template <class P, class Scope>
BP_DEV bp_status_code put_inline(const located<bp_endpoint>& ep, Scope scope, uint64_t remote_offset,
                                 const void* src, uint64_t bytes, uint32_t flags = none,
                                 uint64_t* end = nullptr) {
  if (bytes > max_inline_bytes || !serves<P>(ep)) return BP_INVALID;
  const bool refused = detail::is_outside(ep, remote_offset, bytes);
  if constexpr (P::inband) {
    if (refused) return BP_INVALID;
    // The smallest slot holds 48 bytes of payload: a larger one may take several slots.
    return detail::put_window<P>(ep, scope, ep.remote_iova + remote_offset, (uint64_t)src, bytes,
                                 flags, end);
  } else {
    return detail::post_inline<P>(ep, scope, ep.remote_iova + remote_offset, src, bytes, refused, flags, end);
  }
}

// Writes a value of 1, 2, 4, 8 or 16 bytes, from registers into the WQE (in-band: into a slot). All threads of the
// scope give the same one.
template <class P, class Scope, class T>
BP_DEV bp_status_code put_value(const located<bp_endpoint>& ep, Scope scope, uint64_t remote_offset, T value,
                                uint32_t flags = none, uint64_t* end = nullptr) {
  constexpr uint32_t bytes = sizeof(T);
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16, "a value fits into registers");
  static_assert(__is_trivially_copyable(T), "a value's bytes are all that there is to it");
  if (!serves<P>(ep)) return BP_INVALID;
  uint64_t words[2] = {0, 0};
  __builtin_memcpy(words, &value, bytes);
  wqe w = detail::write_of_value<P>(ep, remote_offset, bytes, words[0], words[1]);
  w.refused = detail::is_outside(ep, remote_offset, bytes);
  return detail::post<P, true>(ep.qp, scope, w, flags, end);
}

// Writes `bytes` bytes from `src` to the peer's region at `remote_offset`. push: `src` may be any
// memory this GPU can read, and may be reused at once. pull: `src` lies in the local region and
// stays untouched until the put is complete. `end` (may be null) receives the ticket for wait() and
// test(). Refuses 0 bytes and ranges outside the regions with BP_INVALID; BP_TIMEOUT when no room
// came (a message of several slots may then be posted in part).
template <class P, class Scope>
BP_DEV bp_status_code put(const located<bp_endpoint>& ep, Scope scope, uint64_t remote_offset,
                          const void* src, uint64_t bytes, uint32_t flags = none,
                          uint64_t* end = nullptr) {
  if (!serves<P>(ep)) return BP_INVALID;
  bool refused = detail::is_outside(ep, remote_offset, bytes);
  if constexpr (P::data_v == data::push && P::kick_v == kick::blueflame) {
    if (bytes <= max_inline_bytes) {
      return put_inline<P>(ep, scope, remote_offset, src, bytes, flags, end);
    }
  }
#if defined(__CUDACC__)
  if constexpr (P::shared && is_thread_scope<Scope>) {
    bp_status_code s;
    if (detail::put_together<P>(ep, message{remote_offset, src, bytes}, flags, end, &s)) return s;
  }
#endif
  if constexpr (P::data_v == data::push) {
    if (refused) return BP_INVALID;
    return detail::put_window<P>(ep, scope, ep.remote_iova + remote_offset, (uint64_t)src, bytes,
                                 flags, end);
  } else {
    refused |= detail::is_outside_local(ep, (uint64_t)src, bytes);
    return detail::post_gather<P>(ep, scope, ep.remote_iova + remote_offset, detail::local_iova(ep, (uint64_t)src),
                                  bytes, refused, flags, end);
  }
}

namespace detail {

// A message of any length, and its signal behind it.
template <class P, class Scope, class Op>
BP_DEV bp_status_code put_then_signal(const located<bp_endpoint>& ep, Scope scope, uint64_t remote_offset,
                                      const void* src, uint64_t bytes, uint64_t signal_offset, Op op, uint32_t flags,
                                      uint64_t* end) {
  const bp_status_code s = put<P>(ep, scope, remote_offset, src, bytes, flags | defer_ring | unsignalled, end);
  if (s != BP_OK) return s;
  // The signal's ticket follows all of the data's, also where other callers share the QP.
  scope.sync();
  return signal<P>(ep, scope, signal_offset, op, flags, end);
}
// Out of line where it is the rare case.
template <class P, class Scope, class Op>
BP_DEV_COLD bp_status_code put_then_signal_cold(located<bp_endpoint> ep, Scope scope, uint64_t remote_offset,
                                                const void* src, uint64_t bytes, uint64_t signal_offset, Op op,
                                                uint32_t flags, uint64_t* end) {
  return put_then_signal<P>(ep, scope, remote_offset, src, bytes, signal_offset, op, flags, end);
}

}  // namespace detail

// Puts, then does `op` (signal_add or signal_set) to the peer's 8-byte signal word. A reliable queue pair executes in
// order: an observer of the signal (wait_signal) also sees the data. A message of one WQE or slot takes its ticket
// together with the signal: both are posted, or neither. Of a longer one the data may be posted without the signal when
// this returns an error, and possibly only the next verb rings for them. After BP_TIMEOUT the same call may be repeated
// while `src` is unchanged.
template <class P, class Scope, class Op>
BP_DEV bp_status_code put_signal(const located<bp_endpoint>& ep, Scope scope, uint64_t remote_offset,
                                 const void* src, uint64_t bytes, uint64_t signal_offset, Op op,
                                 uint32_t flags = none, uint64_t* end = nullptr) {
  if (!serves<P>(ep)) return BP_INVALID;
  const bool refused = !detail::may_signal(ep, signal_offset, op);
  if constexpr (P::kick_v != kick::blueflame) {
    const message m{remote_offset, src, bytes};
    if (detail::is_single<P>(ep, m) & (ticket_limit<P>(ep.qp, P::data_v == data::push) > 1)) {
      return in_turn<P>(scope, [&] {
        return detail::post_signal<P>(ep, scope, m, signal_offset, op, refused, flags, end);
      });
    }
  }
  if (refused || detail::is_outside(ep, remote_offset, bytes)) return BP_INVALID;
  if constexpr (P::kick_v == kick::blueflame) {
    return detail::put_then_signal<P>(ep, scope, remote_offset, src, bytes, signal_offset, op, flags, end);
  } else {
    return detail::put_then_signal_cold<P>(late_copy(ep), scope, remote_offset, src, bytes, signal_offset, op, flags,
                                           end);
  }
}

// Puts, and brings the number `imm` to the peer with its oldest receive (Options::receives, Endpoint::poll_immediate):
// whoever takes it sees the data. pull: in one WQE; push: by a WQE or slot of its own behind the data, as a signal.
template <class P, class Scope>
BP_DEV bp_status_code put_imm(const located<bp_endpoint>& ep, Scope scope, uint64_t remote_offset, const void* src,
                              uint64_t bytes, uint32_t imm, uint32_t flags = none, uint64_t* end = nullptr) {
  if constexpr (P::data_v == data::push) {
    return put_signal<P>(ep, scope, remote_offset, src, bytes, remote_offset, signal_imm{imm}, flags, end);
  } else {
    if (!serves<P>(ep)) return BP_INVALID;
    wqe w = wqe_to_peer(ep, BP_OP_RDMA_WRITE_IMM, 3, ep.remote_iova + remote_offset);
    w.refused = detail::is_outside(ep, remote_offset, bytes) | detail::is_outside_local(ep, (uint64_t)src, bytes);
    w.gather = detail::local_iova(ep, (uint64_t)src);
    w.imm = imm;
    w.bytes = (uint32_t)bytes;
    w.lkey = ep.local_lkey;
    return detail::post<P, false>(ep.qp, scope, w, flags, end);
  }
}

// As put(), of a message for each lane of the warp. A lane whose message is refused, or takes more than one WQE of one
// block or one slot, gets BP_INVALID and posts nothing; the others' are posted. Unless `unsignalled`,
// the last message asks for a CQE, which completes all of them. Where more lanes have messages than half the window
// (the ring) takes, they go in turns; BP_TIMEOUT then says of each lane by itself that its message was not posted.
template <class P>
BP_DEV bp_status_code put(const located<bp_endpoint>& ep, lanes_scope lanes, uint64_t remote_offset, const void* src,
                          uint64_t bytes, uint32_t flags = none, uint64_t* end = nullptr) {
  const message m{remote_offset, src, bytes};
  const bool fits = serves<P>(ep) && detail::is_single<P>(ep, m);
  const bp_status_code s = detail::post_lanes<P>(
      ep.qp, lanes, lanes.active && fits, P::data_v == data::push, flags, end, [&](uint64_t ticket, uint32_t fm_ce_se) {
        detail::write_message<P>(ep, thread_scope{}, m, ticket, fm_ce_se);
      });
  return !lanes.active ? BP_OK : fits ? s : BP_INVALID;
}

// Puts `n` messages, of which `list(i)` gives the i-th: any thread of the scope may ask for any, more than once. `list`
// calls no verb on the endpoint: WQEs are written where its tickets would be, before the batch's are taken. One
// reservation, one fence and one doorbell for a ring's (a window's) half of them. Each must fit into one WQE of one
// block or one slot, as for lanes. Returns BP_INVALID, and posts nothing, if one does not, or is refused.
template <class P, class Scope, class List>
BP_DEV bp_status_code put_batch(const located<bp_endpoint>& ep, Scope scope, uint32_t n, List list,
                                uint32_t flags = none, uint64_t* end = nullptr) {
  if (n == 0 || !serves<P>(ep) || !can_write_lines<P>(scope)) return BP_INVALID;
  if constexpr (detail::looks_while_writing<P, Scope>) {
    bp_status_code s;
    if (detail::post_unseen<P>(ep, scope, n, list, flags, end, &s)) return s;
  }
  if (!detail::all_single<P>(ep, scope, n, list)) return BP_INVALID;
  return in_turn<P>(scope, [&] { return detail::post_batches<P>(ep, scope, n, list, flags, end); });
}

// Puts `n` messages of `bytes` bytes each: the i-th from `src + i * src_stride` to `remote_offset + i * remote_stride`.
template <class P, class Scope>
BP_DEV bp_status_code put_strided(const located<bp_endpoint>& ep, Scope scope, uint32_t n, uint64_t remote_offset,
                                  uint64_t remote_stride, const void* src, uint64_t src_stride, uint64_t bytes,
                                  uint32_t flags = none, uint64_t* end = nullptr) {
  const auto list = [=](uint32_t i) {
    return message{remote_offset + i * remote_stride, static_cast<const uint8_t*>(src) + i * src_stride, bytes};
  };
  if (n == 0 || !serves<P>(ep) || !can_write_lines<P>(scope)) return BP_INVALID;
  // All lie between the first and the last, unless a product wraps.
  if (((remote_stride | src_stride) >> 31) != 0) return put_batch<P>(ep, scope, n, list, flags, end);
  if (!detail::is_single<P>(ep, list(0)) || !detail::is_single<P>(ep, list(n - 1))) return BP_INVALID;
  return in_turn<P>(scope, [&] { return detail::post_batches<P>(ep, scope, n, list, flags, end); });
}

// Puts the `n` messages of a list in memory that this GPU reads.
template <class P, class Scope>
BP_DEV bp_status_code put_vector(const located<bp_endpoint>& ep, Scope scope, uint32_t n, const message* list,
                                 uint32_t flags = none, uint64_t* end = nullptr) {
  return put_batch<P>(ep, scope, n, [=](uint32_t i) { return list[i]; }, flags, end);
}

}  // namespace bp

#endif
