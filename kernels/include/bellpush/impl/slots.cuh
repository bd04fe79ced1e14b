// Messages through the slots of the window.
#ifndef BELLPUSH_IMPL_SLOTS_CUH
#define BELLPUSH_IMPL_SLOTS_CUH

#include <bellpush/impl/post.cuh>

namespace bp {

namespace detail {

// Copies into a window slot with 16-byte stores. Zeros pad an odd tail. Reads no byte past the source's end.
template <class Scope>
BP_DEV void copy_to_slot(Scope scope, uint64_t slot, uint64_t src, uint32_t bytes) {
  u128* to = reinterpret_cast<u128*>(slot);
  const uint32_t step = scope.size();
  uint32_t i = scope.rank();
  if (((src | bytes) & 15) == 0) {
    const u128* from = reinterpret_cast<const u128*>(src);
    const uint32_t n = bytes / 16;
    // Four loads in flight before the first store.
    for (; i + 3 * step < n; i += 4 * step) {
      const u128 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
      to[i] = a;
      to[i + step] = b;
      to[i + 2 * step] = c;
      to[i + 3 * step] = d;
    }
    for (; i < n; i += step) to[i] = from[i];
  } else {
    const bool words = ((src | bytes) & 3) == 0;
    for (; i * 16 < bytes; i += step) {
      u128 v;
      for (uint32_t k = 0; k < 4; k++) v.w[k] = payload_u32(src, i * 16 + k * 4, bytes, words);
      to[i] = v;
    }
  }
}

// Fills the slot of `ticket` with w.bytes bytes from `src`, and posts its WQE, without the doorbell. `early` is the
// result of early_payload().
template <class P, class Scope>
BP_DEV void fill_slot(const bp_qp& qp, Scope scope, wqe w, uint64_t src, uint64_t ticket,
                      const u128& early) {
  if constexpr (P::inband) {
    w.gather = src;
    write_slot<P::line_v, true>(qp, scope, w, ticket, early);
  } else {
    const bp_window& win = qp.window;
    const uint64_t slot = (uint64_t)place_of(win, ticket).slot * win.slot_bytes;
    copy_to_slot(scope, win.va + slot, src, w.bytes);
    w.gather = win.gather_base + slot;
    w.lkey = win.lkey;
    store_wqe<P, false>(qp, scope, w, ticket);
  }
}

// Has `n` WQEs of one block, or slots, of a reservation sent, after the whole scope has written them.
template <class P, class Scope>
BP_DEV void send_slots(const bp_qp& qp, Scope scope, const tickets& got, uint32_t n, bool ring) {
  publish<P>(qp, scope, got.first, n, 1, got.marked, got.alone, ring);
}

// Sends a message of one slot, which `fill(w, ticket)` fills.
template <class P, class Scope, class Fill>
BP_DEV bp_status_code post_slot(const located<bp_endpoint>& ep, const room& r, Scope scope, uint64_t remote,
                                uint32_t bytes, uint32_t flags, uint64_t* end, Fill fill) {
  const bp_qp& qp = ep.qp;
  wqe w = wqe_to_peer(ep, BP_OP_RDMA_WRITE, 3, remote);
  w.bytes = bytes;
  return with_room<P>(qp, scope, 1, true, r, false, [&](const tickets& got) {
    const uint64_t ticket = got.first;
    if (!(flags & unsignalled) || last_credit_end(qp, ticket, 1) > ticket) {
      w.fm_ce_se |= BP_CTRL_CQ_UPDATE;
      // Before the slot is written: the CQE may come at once.
      if (scope.rank() == 0) note_signalled<P>(qp, ticket + 1);
    }
    if (end) *end = ticket + 1;
    fill(w, ticket);
    send_slots<P>(qp, scope, got, 1, !(flags & defer_ring));
    return BP_OK;
  });
}

template <class P, class Scope>
BP_DEV bp_status_code put_slot(const located<bp_endpoint>& ep, Scope scope, uint64_t remote, uint64_t src,
                               uint32_t bytes, uint32_t flags, uint64_t* end) {
  u128 early = unit_zero();
  if constexpr (P::inband) early = early_payload<P::line_v>(scope, src, bytes);
  const room r = room_ahead<P>(ep.qp);
  return post_slot<P>(ep, r, scope, remote, bytes, flags, end, [&](const wqe& w, uint64_t ticket) {
    fill_slot<P>(ep.qp, scope, w, src, ticket, early);
  });
}

// In-band: sends a message of one slot whose payload is in registers; `payload` and `early` as in write_lines().
// The caller has checked that a slot holds it, and has loaded `r` after its last verb on the endpoint.
template <class P, class Scope, class Payload>
BP_DEV bp_status_code put_words(const located<bp_endpoint>& ep, const room& r, Scope scope, uint64_t remote_offset,
                                uint32_t bytes, const u128& early, Payload payload) {
  if (!can_write_lines<P>(scope) || !in_range(remote_offset, bytes, ep.remote_bytes)) {
    return BP_INVALID;
  }
  return post_slot<P>(ep, r, scope, ep.remote_iova + remote_offset, bytes, unsignalled, nullptr,
                      [&](const wqe& w, uint64_t ticket) {
    write_lines<P::line_v, true>(ep.qp, scope, w, ticket, early, payload);
  });
}

// Slots that a caller fills at a time, of so many callers that fill them together: as many are left for the NIC.
template <class P>
BP_DEV uint32_t slots_a_batch(const bp_qp& qp, uint32_t callers) {
  const uint32_t part = ticket_limit<P>(qp, true) / (callers + 1);
  return part == 0 ? 1 : part < 64 ? part : 64;
}

// Streams a message through slots in chunks of `capacity`, half a window at a time: the caller fills one half while
// the NIC empties the other.
template <class P, class Scope>
BP_DEV_COLD bp_status_code put_slots(located<bp_endpoint> ep, Scope scope, uint32_t capacity,
                                     uint64_t remote, uint64_t src, uint64_t bytes, uint32_t flags,
                                     uint64_t* end, uint32_t callers = 1) {
  const bp_qp& qp = ep.qp;
  const uint32_t batch = slots_a_batch<P>(qp, callers);
  while (bytes > 0) {
    const uint64_t chunks = (bytes + capacity - 1) / capacity;
    const uint32_t n = chunks < batch ? (uint32_t)chunks : batch;
    const bool last_batch = n == chunks;
    const uint64_t batch_bytes = last_batch ? bytes : (uint64_t)n * capacity;
    const bool signal_last = last_batch && !(flags & unsignalled);
    const bp_status_code s = with_tickets<P>(qp, scope, n, true, [&](const tickets& got) {
      const uint64_t ticket = got.first, after = ticket + n;
      if (scope.rank() == 0) {
        // Before a slot is written: the CQE may come at once.
        const uint64_t top = signal_last ? after : last_credit_end(qp, ticket, n);
        if (top > ticket) note_signalled<P>(qp, top);
      }
      for_each_part(scope, n, [&](auto part, uint32_t c) {
        const uint64_t at = (uint64_t)c * capacity;
        wqe w = wqe_to_peer(ep, BP_OP_RDMA_WRITE, 3, remote + at);
        w.bytes = (uint32_t)(batch_bytes - at < capacity ? batch_bytes - at : capacity);
        if ((signal_last && c == n - 1) || ((ticket + c + 1) & (qp.credit_period - 1)) == 0) {
          w.fm_ce_se |= BP_CTRL_CQ_UPDATE;
        }
        u128 early = unit_zero();
        if constexpr (P::inband) early = early_payload<P::line_v>(part, src + at, w.bytes);
        fill_slot<P>(qp, part, w, src + at, ticket + c, early);
      });
      send_slots<P>(qp, scope, got, n, !(last_batch && (flags & defer_ring)));
      if (end) *end = after;
      return BP_OK;
    });
    if (s != BP_OK) return s;
    remote += batch_bytes;
    src += batch_bytes;
    bytes -= batch_bytes;
  }
  return BP_OK;
}

}  // namespace detail

}  // namespace bp

#endif
