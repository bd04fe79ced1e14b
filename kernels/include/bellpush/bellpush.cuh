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
// writes them). Every wait is bounded by the endpoint's timeout; after an error CQE verbs post nothing
// (docs/device-api.md, "Statuses": which verb returns what, and what was posted then).
#ifndef BELLPUSH_CUH
#define BELLPUSH_CUH

#include <bellpush/impl/credit.cuh>
#include <bellpush/impl/doorbell.cuh>
#include <bellpush/impl/inband.cuh>
#include <bellpush/impl/order.cuh>
#include <bellpush/impl/wqe.cuh>
#include <bellpush/path.cuh>

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

// What a reservation brought.
struct tickets {
  bp_status_code status;
  uint64_t first;
  bool idle;  // nothing else is out
};

// The leader waits for tickets and tells the others, in one word: no QP lives for 2^56 tickets.
template <class P, class Scope>
BP_DEV uint64_t reserve_word(const bp_qp& qp, Scope scope, uint32_t n, bool slots) {
  uint64_t t = 0, done = 0;
  bp_status_code s = BP_OK;
  if (scope.rank() == 0) s = reserve<P>(qp, n, slots, &t, &done);
  return scope.broadcast(t << 8 | (uint64_t)(t == done) << 7 | (uint32_t)s);
}
// By value: a queue pair that a caller has in registers would have to lie in memory for a reference.
template <class P, class Scope>
BP_DEV_COLD uint64_t reserve_word_cold(bp_qp qp, Scope scope, uint32_t n, bool slots) {
  return reserve_word<P>(qp, scope, n, slots);
}

// What an exclusive caller looks at before it takes tickets. All threads of its scope do: they see the same, because
// the leader changes these words only between the sync in take_room() and the one that ends its verb.
struct room {
  bp_status_code error;
  uint64_t next, done;
  uint32_t most;
};
template <class P>
BP_DEV room load_room([[maybe_unused]] const bp_qp& qp) {
  if constexpr (P::shared) return {};
  return {error_of<P>(qp), load_state<P>(&state_of(qp)->reserved), load_done<P>(qp),
          load_state<P>(&state_of(qp)->max_credits)};
}

// Tickets for the whole scope.
template <class P, class Scope>
BP_DEV tickets take_room(const bp_qp& qp, Scope scope, uint32_t n, bool slots, [[maybe_unused]] const room& r) {
  uint64_t word;
  if constexpr (!P::shared) {
    // Mostly there is room, and no thread needs to be told. There is no branch between the loads and their use:
    // across one, ptxas would have them wait for everything that is in flight, a payload that was loaded ahead
    // included.
    const bool there = (r.error == BP_OK) & (r.next + n <= r.done + ticket_limit<P>(qp, slots));
    scope.sync();
    if (there) {
      if (scope.rank() == 0) take<P>(qp, r.next, n, r.done, r.most, slots);
      return {BP_OK, r.next, r.next == r.done};
    }
    // Out of line: what is mostly done stays one short piece of code.
    word = reserve_word_cold<P>(qp, scope, n, slots);
  } else {
    word = reserve_word<P>(qp, scope, n, slots);
  }
  return {(bp_status_code)(word & 0x7f), word >> 8, (word >> 7 & 1) != 0};
}
template <class P, class Scope>
BP_DEV tickets reserve_all(const bp_qp& qp, Scope scope, uint32_t n, bool slots) {
  return take_room<P>(qp, scope, n, slots, load_room<P>(qp));
}

// Posts one WQE of any kind. A signalled WQE's CQE covers it and all before it.
template <class P, bool inline_v, class Scope>
BP_DEV bp_status_code post(const bp_qp& qp, Scope scope, wqe w, uint32_t flags, uint64_t* end) {
  if (!can_write_lines<P>(scope)) return BP_INVALID;
  const uint32_t blocks = P::inband ? 1 : wqe_blocks(w);
  const tickets got = reserve_all<P>(qp, scope, blocks, P::inband);
  if (got.status != BP_OK) return got.status;
  const uint64_t ticket = got.first;
  const uint64_t after = ticket + blocks;
  const bool signal = !(flags & unsignalled) ||
                      last_credit_end(qp, ticket, blocks) > ticket;
  if (signal) {
    w.fm_ce_se |= BP_CTRL_CQ_UPDATE;
    // Before anything is told to the NIC: the CQE may come at once.
    if (scope.rank() == 0) note_signalled<P>(qp, after);
  }
  if constexpr (!inline_v) {
    if (scope.rank() == 0 && w.fetches) note_fetch<P>(qp, after);
  }
  if (end) *end = after;
  if constexpr (P::inband) {
    static_assert(!inline_v, "in-band payload goes through put_window");
    write_slot<P::line_v, false, P::shared>(qp, scope, w, ticket, unit_zero());
    scope.sync();
    return BP_OK;
  }
  if constexpr (P::kick_v == kick::blueflame) {
    // Idle and small enough: the WQE goes into the UAR whole. (An immediate needs ctrl.imm.)
    if (got.idle && w.opcode == BP_OP_RDMA_WRITE && blocks * BP_WQEBB_BYTES <= BP_UAR_BF_BYTES) {
      if (scope.rank() == 0) {
        mark_ready<P>(qp, ticket, 1, blocks);
        store_state<P>(&state_of(qp)->rung, after);
      }
      if constexpr (P::order_v == order::strict) {
        store_wqe<inline_v>(qp, scope, w, ticket);
        scope.sync();
        blueflame_strict<P, inline_v>(qp, scope, w, ticket);
        scope.sync();  // as below
        return BP_OK;
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

// Fills the slot of `ticket` with w.bytes bytes from `src`, and posts its WQE short of the doorbell.
// `early`: what early_payload said.
template <class P, class Scope>
BP_DEV void fill_slot(const bp_qp& qp, Scope scope, wqe w, uint64_t src, uint64_t ticket,
                      const u128& early) {
  if constexpr (P::inband) {
    w.gather = src;
    write_slot<P::line_v, true, P::shared>(qp, scope, w, ticket, early);
  } else {
    const bp_window& win = qp.window;
    const uint64_t slot = (uint64_t)place_of(win, ticket).slot * win.slot_bytes;
    copy_to_slot(scope, win.va + slot, src, w.bytes);
    w.gather = win.gather_base + slot;
    w.lkey = win.lkey;
    store_wqe<false>(qp, scope, w, ticket);
  }
}

// After all of the scope have filled `n` slots from `ticket` on: has them sent.
template <class P, class Scope>
BP_DEV void send_slots(const bp_qp& qp, Scope scope, uint64_t ticket, uint32_t n, bool ring) {
  // All threads' payload and WQEs before the leader's fence; and all have read the source, which
  // any of them may write again. (In-band there is no fence, but the same promise.)
  scope.sync();
  if constexpr (!P::inband) {
    if (scope.rank() == 0) {
      mark_ready<P>(qp, ticket, n, 1);
      if (ring) ring_pending<P>(qp);
    }
  }
}

// A message of one slot, which `fill(w, ticket)` fills.
template <class P, class Scope, class Fill>
BP_DEV bp_status_code post_slot(const bp_endpoint& ep, const room& r, Scope scope, uint64_t remote, uint32_t bytes,
                                uint32_t flags, uint64_t* end, Fill fill) {
  const bp_qp& qp = ep.qp;
  wqe w = make_wqe(BP_OP_RDMA_WRITE, 3, remote, ep.remote_rkey);
  w.bytes = bytes;
  const tickets got = take_room<P>(qp, scope, 1, true, r);
  if (got.status != BP_OK) return got.status;
  const uint64_t ticket = got.first;
  if (!(flags & unsignalled) || last_credit_end(qp, ticket, 1) > ticket) {
    w.fm_ce_se |= BP_CTRL_CQ_UPDATE;
    // Before the slot is written: its CQE may come at once.
    if (scope.rank() == 0) note_signalled<P>(qp, ticket + 1);
  }
  if (end) *end = ticket + 1;
  fill(w, ticket);
  send_slots<P>(qp, scope, ticket, 1, !(flags & defer_ring));
  return BP_OK;
}

template <class P, class Scope>
BP_DEV bp_status_code put_slot(const bp_endpoint& ep, Scope scope, uint64_t remote, uint64_t src,
                               uint32_t bytes, uint32_t flags, uint64_t* end) {
  u128 early = unit_zero();
  if constexpr (P::inband) early = early_payload<P::line_v>(scope, src, bytes);
  const room r = load_room<P>(ep.qp);
  return post_slot<P>(ep, r, scope, remote, bytes, flags, end, [&](const wqe& w, uint64_t ticket) {
    fill_slot<P>(ep.qp, scope, w, src, ticket, early);
  });
}

// In-band: a message of one slot that lies nowhere; `payload` and `early` as write_lines() takes them. The caller has
// seen that a slot holds it, and loaded `r` since it called the endpoint's verbs last.
template <class P, class Scope, class Payload>
BP_DEV bp_status_code put_words(const bp_endpoint& ep, const room& r, Scope scope, uint64_t remote_offset,
                                uint32_t bytes, const u128& early, Payload payload) {
  if (!can_write_lines<P>(scope) || !in_range(remote_offset, bytes, ep.remote_bytes)) {
    return BP_INVALID;
  }
  return post_slot<P>(ep, r, scope, ep.remote_iova + remote_offset, bytes, unsignalled, nullptr,
                      [&](const wqe& w, uint64_t ticket) {
    write_lines<P::line_v, true, P::shared>(ep.qp, scope, w, ticket, early, payload);
  });
}

// A message streamed through slots in chunks of `capacity`: as many at a time as half the window, so
// that one half is filled while the NIC empties the other.
template <class P, class Scope>
BP_DEV_COLD bp_status_code put_slots(const bp_endpoint& ep, Scope scope, uint32_t capacity,
                                     uint64_t remote, uint64_t src, uint64_t bytes, uint32_t flags,
                                     uint64_t* end) {
  const bp_qp& qp = ep.qp;
  const uint32_t limit = ticket_limit<P>(qp, true);
  const uint32_t batch = limit < 2 ? 1 : (limit / 2 < 64 ? limit / 2 : 64);
  while (bytes > 0) {
    const uint64_t chunks = (bytes + capacity - 1) / capacity;
    const uint32_t n = chunks < batch ? (uint32_t)chunks : batch;
    const tickets got = reserve_all<P>(qp, scope, n, true);
    if (got.status != BP_OK) return got.status;
    const uint64_t ticket = got.first;
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
      u128 early = unit_zero();
      if constexpr (P::inband) early = early_payload<P::line_v>(part, src + at, w.bytes);
      fill_slot<P>(qp, part, w, src + at, ticket + c, early);
    });
    send_slots<P>(qp, scope, ticket, n, !(last_batch && (flags & defer_ring)));
    remote += batch_bytes;
    src += batch_bytes;
    bytes -= batch_bytes;
    if (end) *end = after;
  }
  return BP_OK;
}

// A message through window slots.
template <class P, class Scope>
BP_DEV bp_status_code put_window(const bp_endpoint& ep, Scope scope, uint64_t remote, uint64_t src,
                                 uint64_t bytes, uint32_t flags, uint64_t* end) {
  if (!can_write_lines<P>(scope)) return BP_INVALID;
  const bp_window& win = ep.qp.window;
  uint32_t capacity;
  if constexpr (P::inband) {
    capacity = inband_capacity<P::line_v>(win);
  } else {
    capacity = win.slot_bytes;
  }
  if (bytes <= capacity) return put_slot<P>(ep, scope, remote, src, (uint32_t)bytes, flags, end);
  return put_slots<P>(ep, scope, capacity, remote, src, bytes, flags, end);
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
                                 const void* src, uint64_t bytes, uint32_t flags = none,
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
    const uint32_t ds = 2 + (4 + (uint32_t)bytes + BP_DS_BYTES - 1) / BP_DS_BYTES;
    wqe w = make_wqe(BP_OP_RDMA_WRITE, ds, ep.remote_iova + remote_offset, ep.remote_rkey);
    w.bytes = (uint32_t)bytes;
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
      return put_inline<P>(ep, scope, remote_offset, src, bytes, flags, end);
    }
  }
  if constexpr (P::data_v == data::push) {
    return detail::put_window<P>(ep, scope, ep.remote_iova + remote_offset, (uint64_t)src, bytes,
                                 flags, end);
  } else {
    wqe w = make_wqe(BP_OP_RDMA_WRITE, 3, ep.remote_iova + remote_offset, ep.remote_rkey);
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
  wqe w = make_wqe(BP_OP_ATOMIC_FA, 4, ep.remote_iova + remote_offset, ep.remote_rkey);
  w.bytes = 8;
  w.swap_add = value;
  w.gather = ep.sink_iova;
  w.lkey = ep.sink_lkey;
  if (result != nullptr) {
    if (!detail::local_iova(ep, (uint64_t)result, 8, &w.gather)) return BP_INVALID;
    w.lkey = ep.local_lkey;
    w.fetches = true;
  }
  return detail::post<P, false>(ep.qp, scope, w, flags, end);
}

// Writes `swap` to the 8-byte word at `remote_offset` if it holds `compare`; `result` as above.
template <class P, class Scope>
BP_DEV bp_status_code compare_swap(const bp_endpoint& ep, Scope scope, uint64_t remote_offset,
                                   uint64_t compare, uint64_t swap, void* result,
                                   uint32_t flags = none, uint64_t* end = nullptr) {
  if (!detail::in_range(remote_offset, 8, ep.remote_bytes)) return BP_INVALID;
  wqe w = make_wqe(BP_OP_ATOMIC_CS, 4, ep.remote_iova + remote_offset, ep.remote_rkey);
  w.bytes = 8;
  w.swap_add = swap;
  w.compare = compare;
  w.gather = ep.sink_iova;
  w.lkey = ep.sink_lkey;
  if (result != nullptr) {
    if (!detail::local_iova(ep, (uint64_t)result, 8, &w.gather)) return BP_INVALID;
    w.lkey = ep.local_lkey;
    w.fetches = true;
  }
  return detail::post<P, false>(ep.qp, scope, w, flags, end);
}

// Puts, then adds `value` to the peer's 8-byte signal word. A reliable queue pair executes in order,
// so whoever sees the signal (wait_signal) sees the data. After an error the signal was not posted,
// but the data may have been, and then may be rung for by the next verb only; after BP_TIMEOUT the
// same call may be made again, as long as `src` is what it was.
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
  wqe w = make_wqe(BP_OP_RDMA_READ, 3, ep.remote_iova + remote_offset, ep.remote_rkey);
  if (bytes == 0 || bytes > max_message_bytes ||
      !detail::in_range(remote_offset, bytes, ep.remote_bytes) ||
      !detail::local_iova(ep, (uint64_t)dst, bytes, &w.gather)) {
    return BP_INVALID;
  }
  w.bytes = (uint32_t)bytes;
  w.lkey = ep.local_lkey;
  w.fetches = true;
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

// Posts what will report everything before it, and waits for `end`.
template <class P, class Scope>
BP_DEV_COLD bp_status_code wait_by_nop(const bp_qp& qp, Scope scope, uint64_t end) {
  bp_status_code s = post<P, false>(qp, scope, make_wqe(BP_OP_NOP, 1, 0, 0), none, nullptr);
  if (scope.rank() == 0) {
    if (s == BP_OK) {
      s = wait_done<P>(qp, end);
      if (s == BP_OK) acquire_fetched<P>(qp, load_fetched<P>(qp));
    } else if (s == BP_DEAD) {
      s = error_of<P>(qp);  // a wait says what a wait says
    }
  }
  return (bp_status_code)scope.broadcast(s);
}

// wait() and quiet(): `end` is a ticket, or `everything` that was posted before the call.
template <class P, class Scope>
BP_DEV bp_status_code wait_all(const bp_qp& qp, Scope scope, uint64_t end) {
  // 1 << 8: nobody asked for a CQE that covers `end`, a NOP must.
  const uint64_t nop = 1 << 8;
  uint64_t word = 0;
  const bool leader = scope.rank() == 0;
  if (P::shared ? leader : scope.leads()) {
    // All loads in flight together: of a shared QP each is a trip to L2.
    bp_qp_state* st = state_of(qp);
    const uint64_t reserved = load_state<P>(&st->reserved);
    const uint64_t signalled = load_state<P>(&st->signalled);
    const uint64_t fetched = load_fetched<P>(qp);
    const outlook o = load_outlook<P>(qp);
    if (end == everything) end = reserved;
    // All have looked before the leader changes anything.
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

// Waits until everything below ticket `end` is complete: its bytes are in the peer's memory, or the
// local memory for get and atomics. BP_TIMEOUT ends the wait only; the operations go on. Where a NOP
// must ask for the CQE this is a posting verb as well: see reserve() for what a timeout then does.
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
    bp_status_code e = BP_OK;
    if (poll_cq<P>(ep.qp, end) >= end || ((e = error_of<P>(ep.qp)) && is_done<P>(ep.qp, end))) {
      s = BP_OK;
      acquire_fetched<P>(ep.qp, load_fetched<P>(ep.qp));
    } else if (e != BP_OK) {
      s = e;
    }
  }
  return (bp_status_code)scope.broadcast(s);
}

// One thread: takes completions if less than one in `part` of the credits (rounded down) is free, so that who sends in
// rows finds them without a wait. Looks at the CQ only if one is due.
template <class P>
BP_DEV void reclaim(const bp_endpoint& ep, uint32_t part) {
  const uint32_t limit = ticket_limit<P>(ep.qp, true);
  const uint64_t end = load_state<P>(&state_of(ep.qp)->reserved) - (limit - limit / part);
  if ((int64_t)(end - load_done<P>(ep.qp)) > 0) poll_cq<P>(ep.qp, end);
}

// Waits until the 8-byte word at `signal` (memory that a peer's put_signal adds to) is at least
// `value`. Ends early when it is not and the endpoint's QP is in error. After BP_OK the data that was put before
// the signal can be read.
template <class Scope>
BP_DEV bp_status_code wait_signal(const bp_endpoint& ep, Scope scope, const uint64_t* signal,
                                  uint64_t value) {
  bp_status_code s = BP_OK;
  if (scope.rank() == 0) {
    deadline limit;
    // Acquire, system scope: the peer's data (written by the NIC before the signal) before our reads of them.
    for (bp_status_code error = BP_OK; ld_acquire_sys(signal) < value; yield_()) {
      if (error != BP_OK || limit.expired(ep.qp.timeout_ns)) {
        s = error != BP_OK ? error : BP_TIMEOUT;
        break;
      }
      // Whoever has the QP may put it into error meanwhile, so past L1. The word may have come before that: it is
      // looked at once more.
      error = (bp_status_code)ld_relaxed_gpu(&state_of(ep.qp)->error);
      if (error != BP_OK) fence_sys();  // this look before that one
    }
  }
  return (bp_status_code)scope.broadcast(s);
}

}  // namespace bp

#endif
