// bellpush's device verbs. Include this in a kernel of your own.
//
//   using P = bp::path<bp::data::push, bp::kick::inband>;
//   bp::put<P>(endpoint, bp::block_scope{}, remote_offset, source, bytes);
//   bp::quiet<P>(endpoint, bp::block_scope{});
//
// A verb is called by all threads of a scope (thread_scope, warp_scope, block_scope) with the same
// arguments, and returns the same bp_status_code to all of them. The endpoint's path, a template
// argument, must be the one that the host made the endpoint for. Remote addresses are offsets into
// the peer's region, local ones addresses of this GPU (in the local region where the NIC reads or
// writes them). Every wait is bounded by the endpoint's timeout; after an error CQE all verbs and
// waits of that endpoint return an error, and the host finds the reason in its status word.
#ifndef BELLPUSH_CUH
#define BELLPUSH_CUH

#include "credit.cuh"
#include "doorbell.cuh"
#include "inband.cuh"
#include "order.cuh"
#include "path.cuh"
#include "wqe.cuh"

namespace bp {

enum flags : uint32_t {
  none = 0,
  defer_ring = 1,   // mark ready only; a later verb or ring() rings for it as well
  unsignalled = 2,  // ask for no CQE; quiet() and wait() still work
};

constexpr uint32_t max_inline_bytes = BP_UAR_BF_BYTES - inband_header_bytes;  // 220
constexpr uint64_t max_message_bytes = 1u << 30;  // one WQE of a reliable queue pair (PRM)

namespace detail {

BP_DEV bool in_range(uint64_t offset, uint64_t bytes, uint64_t limit) {
  return bytes <= limit && offset <= limit - bytes;
}

// A local address as the local region names it; false where it lies outside.
BP_DEV bool local_iova(const bp_endpoint& ep, uint64_t va, uint64_t bytes, uint64_t* iova) {
  if (!in_range(va - ep.local_va, bytes, ep.local_bytes)) return false;
  *iova = ep.local_iova + (va - ep.local_va);
  return true;
}

// Copies into a window slot: 16-byte stores; an odd tail is padded with zeros. Reads no byte past
// the source's end.
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

// Stores one WQE into the SQ, all threads of the scope together.
template <bool inline_v, class Scope>
BP_DEV void store_wqe(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket) {
  const uint32_t units = wqe_blocks(w) * 4;
  for (uint32_t u = scope.rank(); u < units; u += scope.size()) {
    *sq_unit(qp, ticket, u) = wqe_unit<inline_v>(w, u, ticket, qp.qpn);
  }
}

BP_DEV wqe make_wqe(uint32_t opcode, uint32_t ds, uint64_t raddr, uint32_t rkey) {
  wqe w;
  w.opcode = opcode;
  w.ds = ds;
  w.fm_ce_se = 0;
  w.imm = 0;
  w.raddr = raddr;
  w.rkey = rkey;
  w.bytes = 0;
  w.gather = 0;
  w.lkey = 0;
  w.swap_add = 0;
  w.compare = 0;
  return w;
}

// The leader's reservation, told to the whole scope. `idle`: nothing else is out.
template <class P, class Scope>
BP_DEV bp_status_code reserve_all(const bp_qp& qp, Scope scope, uint32_t n, bool slots,
                                  uint64_t* ticket, bool* idle) {
  uint64_t t = 0, done = 0;
  bp_status_code s = BP_OK;
  if (scope.rank() == 0) s = reserve<P>(qp, n, slots, &t, &done);
  // One word carries all three: no QP lives for 2^56 tickets.
  const uint64_t word = scope.broadcast(t << 8 | (uint64_t)(t == done) << 7 | (uint32_t)s);
  *ticket = word >> 8;
  *idle = (word >> 7 & 1) != 0;
  return (bp_status_code)(word & 0x7f);
}

// Posts one WQE of any kind. A signalled WQE's CQE covers it and all before it.
template <class P, bool inline_v, class Scope>
BP_DEV bp_status_code post(const bp_qp& qp, Scope scope, wqe w, uint32_t flags, uint64_t* end) {
  const uint32_t blocks = P::inband ? 1 : wqe_blocks(w);
  uint64_t ticket;
  bool idle;
  bp_status_code s = reserve_all<P>(qp, scope, blocks, P::inband, &ticket, &idle);
  if (s != BP_OK) return s;
  const uint64_t after = ticket + blocks;
  const bool signal = !(flags & unsignalled) ||
                      last_credit_end(qp, ticket, blocks) > ticket;
  if (signal) {
    w.fm_ce_se |= BP_CTRL_CQ_UPDATE;
    // Before anything is told to the NIC: the CQE may come at once.
    if (scope.rank() == 0) note_signalled<P>(qp, after);
  }
  if (end) *end = after;
  if constexpr (P::inband) {
    if (inline_v) w.ds = 3;  // see inband.cuh: the byte count says the rest
    write_slot<P::line_v, inline_v>(qp, scope, w, ticket, unit_zero());
    return BP_OK;
  }
  if constexpr (P::kick_v == kick::blueflame) {
    // Idle and small enough: the WQE goes into the UAR whole. (An immediate needs ctrl.imm.)
    if (idle && w.opcode == BP_OP_RDMA_WRITE && blocks * BP_WQEBB_BYTES <= BP_UAR_BF_BYTES) {
      if (scope.rank() == 0) {
        mark_ready<P>(qp, ticket, 1, blocks);
        st_relaxed_gpu(&state_of(qp)->rung, after);
      }
      // A gathered payload lies elsewhere and must be there first; an inline one travels along.
      if constexpr (!inline_v) {
        scope.sync();
        if (scope.rank() == 0) fence_before_doorbell<P::reach_v>();
        scope.sync();
      }
      blueflame_store<inline_v>(qp, scope, w, ticket);
      scope.sync();  // all threads have read the payload: any of them may write it again
      return BP_OK;
    }
  }
  store_wqe<inline_v>(qp, scope, w, ticket);
  scope.sync();
  if (scope.rank() == 0) {
    mark_ready<P>(qp, ticket, 1, blocks);
    if (!(flags & defer_ring)) ring_pending<P>(qp);
  }
  return BP_OK;
}

// A message through window slots, streamed in chunks of a slot: as many at a time as half the
// window, so that one half is filled while the NIC empties the other.
template <class P, class Scope>
BP_DEV bp_status_code put_window(const bp_endpoint& ep, Scope scope, uint64_t remote, uint64_t src,
                                 uint64_t bytes, uint32_t flags, uint64_t* end) {
  const bp_qp& qp = ep.qp;
  const bp_window& win = qp.window;
  uint32_t capacity;
  if constexpr (P::inband) {
    capacity = inband_capacity<P::line_v>(win);
  } else {
    capacity = win.slot_bytes;
  }
  // A small message's payload is on its way here while the reservation goes to L2 and back.
  u128 early = unit_zero();
  const bool small = P::inband && bytes <= capacity && whole_words(src, bytes);
  if constexpr (P::inband) {
    if (small) early = unit_payload<P::line_v, true>(src, (uint32_t)bytes, scope.rank());
  }
  const uint32_t limit = ticket_limit<P>(qp, true);
  const uint32_t batch = limit < 2 ? 1 : (limit / 2 < 64 ? limit / 2 : 64);
  while (bytes > 0) {
    // Mostly one, which saves a 64-bit division.
    const uint64_t chunks = bytes <= capacity ? 1 : (bytes + capacity - 1) / capacity;
    const uint32_t n = chunks < batch ? (uint32_t)chunks : batch;
    uint64_t ticket;
    bool idle;
    bp_status_code s = reserve_all<P>(qp, scope, n, true, &ticket, &idle);
    if (s != BP_OK) return s;
    const bool last_batch = n == chunks;
    const uint64_t batch_bytes = last_batch ? bytes : (uint64_t)n * capacity;
    const uint64_t after = ticket + n;
    const bool signal_last = last_batch && !(flags & unsignalled);
    if (scope.rank() == 0) {
      // Before a slot is written: its CQE may come at once.
      const uint64_t top = signal_last ? after : last_credit_end(qp, ticket, n);
      if (top > ticket) note_signalled<P>(qp, top);
    }
    for_each_part(scope, n, [&](auto part, uint32_t c) {
      const uint64_t at = (uint64_t)c * capacity;
      wqe w = make_wqe(BP_OP_RDMA_WRITE, 3, remote + at, ep.remote_rkey);
      w.bytes = (uint32_t)(batch_bytes - at < capacity ? batch_bytes - at : capacity);
      if ((signal_last && c == n - 1) || ((ticket + c + 1) & (qp.credit_period - 1)) == 0) {
        w.fm_ce_se |= BP_CTRL_CQ_UPDATE;
      }
      if constexpr (P::inband) {
        w.gather = src + at;
        if (!small && whole_words(w.gather, w.bytes)) {
          early = unit_payload<P::line_v, true>(w.gather, w.bytes, part.rank());
        }
        write_slot<P::line_v, true>(qp, part, w, ticket + c, early);
      } else {
        const uint64_t slot = (uint64_t)slot_of(win, ticket + c) * win.slot_bytes;
        copy_to_slot(part, win.va + slot, src + at, w.bytes);
        w.gather = win.gather_base + slot;
        w.lkey = win.lkey;
        store_wqe<false>(qp, part, w, ticket + c);
      }
    });
    // All threads' payload and WQEs before the leader's fence; and all have read the source, which
    // any of them may write again. (In-band there is no fence, but the same promise.)
    scope.sync();
    if constexpr (!P::inband) {
      if (scope.rank() == 0) {
        mark_ready<P>(qp, ticket, n, 1);
        if (!(last_batch && (flags & defer_ring))) ring_pending<P>(qp);
      }
    }
    remote += batch_bytes;
    src += batch_bytes;
    bytes -= batch_bytes;
    if (end) *end = ticket + n;
  }
  return BP_OK;
}

}  // namespace detail

// Writes `bytes` bytes from `src` to the peer's region at `remote_offset`. push: `src` may be any
// memory this GPU can read, and may be reused at once. pull: `src` lies in the local region and
// stays untouched until the put is complete. `end` (may be null) receives the ticket for wait() and
// test(). Refuses 0 bytes and ranges outside the regions with BP_INVALID; BP_TIMEOUT when no room
// came (a message of several slots may then be posted in part).
template <class P, class Scope>
BP_DEV bp_status_code put(const bp_endpoint& ep, Scope scope, uint64_t remote_offset,
                          const void* src, uint64_t bytes, uint32_t flags = none,
                          uint64_t* end = nullptr);

// Writes up to 220 bytes that travel in the WQE itself. `src` may be reused at once.
template <class P, class Scope>
BP_DEV bp_status_code put_inline(const bp_endpoint& ep, Scope scope, uint64_t remote_offset,
                                 const void* src, uint32_t bytes, uint32_t flags = none,
                                 uint64_t* end = nullptr) {
  if (bytes == 0 || bytes > max_inline_bytes ||
      !detail::in_range(remote_offset, bytes, ep.remote_bytes)) {
    return BP_INVALID;
  }
  if constexpr (P::inband) {
    // A slot of 64 bytes holds 12 bytes of payload or none: larger ones take several.
    return detail::put_window<P>(ep, scope, ep.remote_iova + remote_offset, (uint64_t)src, bytes,
                                 flags, end);
  } else {
    const uint32_t ds = 2 + (4 + bytes + BP_DS_BYTES - 1) / BP_DS_BYTES;
    wqe w = detail::make_wqe(BP_OP_RDMA_WRITE, ds, ep.remote_iova + remote_offset, ep.remote_rkey);
    w.bytes = bytes;
    w.gather = (uint64_t)src;
    return detail::post<P, true>(ep.qp, scope, w, flags, end);
  }
}

template <class P, class Scope>
BP_DEV bp_status_code put(const bp_endpoint& ep, Scope scope, uint64_t remote_offset,
                          const void* src, uint64_t bytes, uint32_t flags, uint64_t* end) {
  if (bytes == 0 || !detail::in_range(remote_offset, bytes, ep.remote_bytes)) return BP_INVALID;
  if constexpr (P::data_v == data::push && P::kick_v == kick::blueflame) {
    if (bytes <= max_inline_bytes) {
      return put_inline<P>(ep, scope, remote_offset, src, (uint32_t)bytes, flags, end);
    }
  }
  if constexpr (P::data_v == data::push) {
    return detail::put_window<P>(ep, scope, ep.remote_iova + remote_offset, (uint64_t)src, bytes,
                                 flags, end);
  } else {
    wqe w = detail::make_wqe(BP_OP_RDMA_WRITE, 3, ep.remote_iova + remote_offset, ep.remote_rkey);
    if (bytes > max_message_bytes || !detail::local_iova(ep, (uint64_t)src, bytes, &w.gather)) {
      return BP_INVALID;
    }
    w.bytes = (uint32_t)bytes;
    w.lkey = ep.local_lkey;
    return detail::post<P, false>(ep.qp, scope, w, flags, end);
  }
}

// Adds `value` to the 8-byte word at `remote_offset`; the old value goes to `result` (8 bytes in the
// local region, aligned; null: nowhere) by the time the verb is complete.
template <class P, class Scope>
BP_DEV bp_status_code fetch_add(const bp_endpoint& ep, Scope scope, uint64_t remote_offset,
                                uint64_t value, void* result, uint32_t flags = none,
                                uint64_t* end = nullptr) {
  if (!detail::in_range(remote_offset, 8, ep.remote_bytes)) return BP_INVALID;
  wqe w = detail::make_wqe(BP_OP_ATOMIC_FA, 4, ep.remote_iova + remote_offset, ep.remote_rkey);
  w.bytes = 8;
  w.swap_add = value;
  w.gather = ep.sink_iova;
  w.lkey = ep.sink_lkey;
  if (result != nullptr) {
    if (!detail::local_iova(ep, (uint64_t)result, 8, &w.gather)) return BP_INVALID;
    w.lkey = ep.local_lkey;
  }
  return detail::post<P, false>(ep.qp, scope, w, flags, end);
}

// Writes `swap` to the 8-byte word at `remote_offset` if it holds `compare`; `result` as above.
template <class P, class Scope>
BP_DEV bp_status_code compare_swap(const bp_endpoint& ep, Scope scope, uint64_t remote_offset,
                                   uint64_t compare, uint64_t swap, void* result,
                                   uint32_t flags = none, uint64_t* end = nullptr) {
  if (!detail::in_range(remote_offset, 8, ep.remote_bytes)) return BP_INVALID;
  wqe w = detail::make_wqe(BP_OP_ATOMIC_CS, 4, ep.remote_iova + remote_offset, ep.remote_rkey);
  w.bytes = 8;
  w.swap_add = swap;
  w.compare = compare;
  w.gather = ep.sink_iova;
  w.lkey = ep.sink_lkey;
  if (result != nullptr) {
    if (!detail::local_iova(ep, (uint64_t)result, 8, &w.gather)) return BP_INVALID;
    w.lkey = ep.local_lkey;
  }
  return detail::post<P, false>(ep.qp, scope, w, flags, end);
}

// Puts, then adds `value` to the peer's 8-byte signal word. A reliable queue pair executes in order,
// so whoever sees the signal (wait_signal) sees the data.
template <class P, class Scope>
BP_DEV bp_status_code put_signal(const bp_endpoint& ep, Scope scope, uint64_t remote_offset,
                                 const void* src, uint64_t bytes, uint64_t signal_offset,
                                 uint64_t value, uint32_t flags = none, uint64_t* end = nullptr) {
  if (!detail::in_range(signal_offset, 8, ep.remote_bytes)) return BP_INVALID;
  bp_status_code s =
      put<P>(ep, scope, remote_offset, src, bytes, flags | defer_ring | unsignalled, end);
  if (s != BP_OK) return s;
  // The signal takes its ticket after all of the data's, also where others share the QP.
  scope.sync();
  return fetch_add<P>(ep, scope, signal_offset, value, nullptr, flags, end);
}

// Reads `bytes` bytes of the peer's region at `remote_offset` into `dst` (in the local region).
template <class P, class Scope>
BP_DEV bp_status_code get(const bp_endpoint& ep, Scope scope, void* dst, uint64_t remote_offset,
                          uint64_t bytes, uint32_t flags = none, uint64_t* end = nullptr) {
  wqe w = detail::make_wqe(BP_OP_RDMA_READ, 3, ep.remote_iova + remote_offset, ep.remote_rkey);
  if (bytes == 0 || bytes > max_message_bytes ||
      !detail::in_range(remote_offset, bytes, ep.remote_bytes) ||
      !detail::local_iova(ep, (uint64_t)dst, bytes, &w.gather)) {
    return BP_INVALID;
  }
  w.bytes = (uint32_t)bytes;
  w.lkey = ep.local_lkey;
  return detail::post<P, false>(ep.qp, scope, w, flags, end);
}

// Rings for all that was marked ready with defer_ring.
template <class P, class Scope>
BP_DEV void ring(const bp_endpoint& ep, Scope scope) {
  scope.sync();
  if (scope.rank() == 0) ring_pending<P>(ep.qp);
}

namespace detail {

constexpr uint64_t everything = ~uint64_t{0};

// wait() and quiet(): `end` is a ticket, or `everything` that was posted before the call.
template <class P, class Scope>
BP_DEV bp_status_code wait_all(const bp_qp& qp, Scope scope, uint64_t end) {
  // 1 << 8: nobody asked for a CQE that covers `end`, a NOP must.
  const uint64_t nop = 1 << 8;
  uint64_t word = 0;
  scope.sync();
  if (scope.rank() == 0) {
    // All loads in flight together; a trip to L2 each, one after the other, would cost more than
    // the NIC takes.
    bp_qp_state* st = state_of(qp);
    const uint64_t reserved = ld_relaxed_gpu(&st->reserved);
    const uint64_t signalled = ld_relaxed_gpu(&st->signalled);
    const bp_status_code before = error_of(qp);
    const cq_cursor cursor = load_cursor<P>(qp);
    if (end == everything) end = reserved;
    ring_pending<P>(qp);
    if (signalled < end) {
      word = nop;
    } else if constexpr (P::shared) {
      word = wait_done<P>(qp, end);
    } else {
      word = wait_exclusive<P>(qp, cursor, before, end);
    }
  }
  word = scope.broadcast(word);
  if (word != nop) return (bp_status_code)word;
  bp_status_code s = post<P, false>(qp, scope, make_wqe(BP_OP_NOP, 1, 0, 0), none, nullptr);
  if (s != BP_OK) return s;
  if (scope.rank() == 0) word = wait_done<P>(qp, end);
  return (bp_status_code)scope.broadcast(word);
}

}  // namespace detail

// Waits until everything below ticket `end` is complete: its bytes are in the peer's memory, or the
// local memory for get and atomics. BP_TIMEOUT ends the wait only; the operations go on.
template <class P, class Scope>
BP_DEV bp_status_code wait(const bp_endpoint& ep, Scope scope, uint64_t end) {
  return detail::wait_all<P>(ep.qp, scope, end);
}

// Waits for everything that was posted before the call, by anyone.
template <class P, class Scope>
BP_DEV bp_status_code quiet(const bp_endpoint& ep, Scope scope) {
  return detail::wait_all<P>(ep.qp, scope, detail::everything);
}

// Asks once whether everything below `end` is complete: BP_OK, BP_PENDING or the QP's error. An
// unsignalled operation stays pending until something signalled follows it.
template <class P, class Scope>
BP_DEV bp_status_code test(const bp_endpoint& ep, Scope scope, uint64_t end) {
  bp_status_code s = BP_PENDING;
  if (scope.rank() == 0) {
    if (poll_cq<P>(ep.qp, end) >= end) {
      s = BP_OK;
    } else if (bp_status_code e = error_of(ep.qp)) {
      s = e;
    }
  }
  return (bp_status_code)scope.broadcast(s);
}

// Waits until the 8-byte word at `signal` (memory that a peer's put_signal adds to) is at least
// `value`. Ends early when the endpoint's QP is in error. After BP_OK the data that was put before
// the signal can be read.
template <class Scope>
BP_DEV bp_status_code wait_signal(const bp_endpoint& ep, Scope scope, const uint64_t* signal,
                                  uint64_t value) {
  bp_status_code s = BP_OK;
  if (scope.rank() == 0) {
    deadline limit;
    // Acquire, system scope: the peer's data (written by the NIC before the signal) before our
    // reads of them.
    while (ld_acquire_sys(signal) < value) {
      if ((s = error_of(ep.qp)) != BP_OK) break;
      if (limit.expired(ep.qp.timeout_ns)) {
        s = BP_TIMEOUT;
        break;
      }
      yield_();
    }
  }
  return (bp_status_code)scope.broadcast(s);
}

}  // namespace bp

#endif
