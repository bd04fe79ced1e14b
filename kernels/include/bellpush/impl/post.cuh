// Tickets for a scope, and one WQE of any kind on its way.
#ifndef BELLPUSH_IMPL_POST_CUH
#define BELLPUSH_IMPL_POST_CUH

#include <bellpush/impl/doorbell.cuh>
#include <bellpush/impl/inband.cuh>

namespace bp {

constexpr uint64_t max_message_bytes = 1u << 30;  // bytes of one WQE's message on a reliable queue pair (PRM)

namespace detail {

BP_DEV bool in_range(uint64_t offset, uint64_t bytes, uint64_t limit) {
  return (bytes <= limit) & (offset <= limit - bytes);  // without a branch
}

// Whether a message has 0 bytes or leaves the peer's region. Without a branch, as the next.
BP_DEV bool is_outside(const bp_endpoint& ep, uint64_t remote_offset, uint64_t bytes) {
  return (bytes == 0) | !in_range(remote_offset, bytes, ep.remote_bytes);
}
// Refuses a path that is not the endpoint's, and such a message.
template <class P>
BP_DEV bool refuses(const bp_endpoint& ep, uint64_t remote_offset, uint64_t bytes) {
  return !serves<P>(ep) || is_outside(ep, remote_offset, bytes);
}
// Whether one WQE cannot gather or scatter a message: it is too long, or leaves the local region. And its address in
// WQEs.
BP_DEV bool is_outside_local(const bp_endpoint& ep, uint64_t va, uint64_t bytes) {
  return (bytes > max_message_bytes) | !in_range(va - ep.local_va, bytes, ep.local_bytes);
}
BP_DEV uint64_t local_iova(const bp_endpoint& ep, uint64_t va) { return ep.local_iova + (va - ep.local_va); }

// Whether one thread stores all units of a WQE's block. Where the send queue is in this GPU's memory, L2 joins the
// stores of a line, so the fewest instructions win. In host memory the units of a block by four lanes are one store;
// else each of them becomes a write TLP.
template <class P>
inline constexpr bool thread_stores_wqe = P::reach_v == reach::gpu;

// Stores one WQE into the SQ; all threads of the scope take part.
template <class P, bool inline_v, class Scope>
BP_DEV void store_wqe(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket) {
  const uint32_t units = wqe_blocks(w) * 4;
  if ((is_thread_scope<Scope> || thread_stores_wqe<P>) && units == 4) {
    if (scope.rank() != 0) return;
    // One block lies in one piece.
    u128* block = sq_unit(qp, ticket, 0);
    const auto unit = [&](uint32_t u) { return wqe_unit<inline_v>(w, u, ticket, qp.qpn); };
    // The NIC reads `ds` units; what an older WQE has left behind them is not looked at.
    if constexpr (!P::shared) {  // a put on a shared queue pair took 16 ns longer so
      if (w.ds == 3) return st_units(block, unit(0), unit(1), unit(2));
    }
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t u = 0; u < 4; u++) {
      if (u < w.ds) st_unit(block + u, unit(u));
    }
    return;
  }
  for (uint32_t u = scope.rank(); u < units; u += scope.size()) {
    st_unit(sq_unit(qp, ticket, u), wqe_unit<inline_v>(w, u, ticket, qp.qpn));
  }
}

// Stores one WQE into the SQ, or the slot; in-band an inline payload is a value: one in memory goes through put_window.
template <class P, bool inline_v, class Scope>
BP_DEV void write_posted(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket) {
  if constexpr (!P::inband) {
    store_wqe<P, inline_v>(qp, scope, w, ticket);
  } else if constexpr (inline_v) {
    write_value<P::line_v>(qp, scope, w, ticket);
  } else {
    write_slot<P::line_v, false>(qp, scope, w, ticket, unit_zero());
  }
}

// Tickets that a scope has got.
struct tickets {
  uint64_t first;
  bool idle;        // no other ticket is outstanding
  bool alone;       // shared: see reservation
  uint64_t marked;  // exclusive: see mark_exclusive()
};

// The leader waits for tickets and broadcasts what it got.
template <class P, class Scope>
BP_DEV reservation reserve_for(const bp_qp& qp, Scope scope, uint32_t n, bool slots) {
  if constexpr (is_thread_scope<Scope>) return reserve<P>(qp, n, slots);
  return of_word(scope.broadcast(scope.rank() == 0 ? word_of(reserve<P>(qp, n, slots)) : 0));
}
// By value: a reference would force a queue pair in the caller's registers into memory.
template <class P, class Scope>
BP_DEV_COLD uint64_t reserve_cold(bp_qp qp, Scope scope, uint32_t n, bool slots) {
  return word_of(reserve_for<P>(qp, scope, n, slots));
}

// What an exclusive caller reads before it takes tickets, loaded ahead. All threads of its scope read it and see the
// same values: the leader changes these words only between the sync in with_room() and the one that ends its verb.
template <class P>
BP_DEV room room_ahead([[maybe_unused]] const bp_qp& qp) {
  if constexpr (P::shared) return {};
  return load_room<P>(qp);
}

// Takes `n` tickets for the whole scope, and calls `body(got)`; or returns why there are none. `r`: room_ahead().
// `refused`: nothing may be posted; looked at here because a branch of its own costs as much as ten instructions.
template <class P, class Scope, class Body>
BP_DEV bp_status_code with_room(const bp_qp& qp, Scope scope, uint32_t n, bool slots, [[maybe_unused]] const room& r,
                                bool refused, Body body) {
  tickets got = {r.next, r.next == r.done, false, r.marked};
  bool there = false;
  if constexpr (!P::shared) {
    // There is room as a rule, and no thread needs to be told. No branch separates the loads from their use: ptxas
    // would make them wait there for everything in flight, a payload that was loaded ahead included.
    there = !refused & (r.error == BP_OK) & ((uint32_t)(r.next - r.done) + n <= ticket_limit<P>(qp, slots));
    scope.sync();
  }
  if (there) {
    if constexpr (!P::shared) {
      if (scope.rank() == 0) take<P>(qp, r.next, n, r.done, r.most, slots);
    }
  } else {
    if (refused) return BP_INVALID;
    reservation its;
    if constexpr (P::shared) {
      its = reserve_for<P>(qp, scope, n, slots);
    } else {
      // Out of line: the usual case stays one short piece of code, which does not look at a status.
      its = of_word(reserve_cold<P>(late_copy(qp), scope, n, slots));
    }
    if (its.status != BP_OK) return its.status;
    got = {its.ticket, its.idle, its.alone, r.marked};
  }
  return body(got);
}
template <class P, class Scope, class Body>
BP_DEV bp_status_code with_tickets(const bp_qp& qp, Scope scope, uint32_t n, bool slots, Body body) {
  return with_room<P>(qp, scope, n, slots, room_ahead<P>(qp), false, body);
}

// Posts one WQE of any kind. A signalled WQE's CQE covers it and all before it. `by_blueflame`: false where a path of
// BlueFlame is to take the doorbell all the same.
template <class P, bool inline_v, class Scope>
BP_DEV bp_status_code post_now(const bp_qp& queues, Scope scope, wqe w, uint32_t flags, uint64_t* end,
                               [[maybe_unused]] bool by_blueflame) {
  // Read once, wherever it lies: no store below can change it. All of these in flight together.
  bp_qp qp = queues;
  if constexpr (!P::inband) {
    make_here(qp.sq);
    make_here(qp.dbr);
    make_here(qp.uar);
    make_here(qp.state);
    make_here(qp.qpn);
  }
  if (!can_write_lines<P>(scope)) return BP_INVALID;
  const uint32_t blocks = P::inband ? 1 : wqe_blocks(w);
  return with_room<P>(qp, scope, blocks, P::inband, room_ahead<P>(qp), w.refused, [&](const tickets& got) {
    const uint64_t ticket = got.first;
    const uint64_t after = ticket + blocks;
    const bool signal = !(flags & unsignalled) ||
                        last_credit_end(qp, ticket, blocks) > ticket;
    if (signal) {
      w.fm_ce_se |= BP_CTRL_CQ_UPDATE;
      // Before the NIC is told anything: the CQE may come at once.
      if (scope.rank() == 0) note_signalled<P>(qp, after);
    }
    if constexpr (!inline_v) {
      if (scope.rank() == 0 && w.fetches) note_fetch<P>(qp, after);
    }
    if (end) *end = after;
    if constexpr (P::inband) {
      write_posted<P, inline_v>(qp, scope, w, ticket);
    } else if constexpr (P::kick_v == kick::blueflame) {
      // Idle and small enough: the whole WQE goes into the UAR. (An immediate needs ctrl.imm.)
      if (by_blueflame && got.idle && w.opcode == BP_OP_RDMA_WRITE && blocks * BP_WQEBB_BYTES <= BP_UAR_BF_BYTES) {
        if (scope.rank() == 0) {
          mark_exclusive<P>(qp, ticket, 1, blocks, got.marked);
          store_state<P>(&state_of(qp)->rung, after);
        }
        if constexpr (P::order_v == order::strict) {
          store_wqe<P, inline_v>(qp, scope, w, ticket);
          scope.sync();
          blueflame_strict<P, inline_v>(qp, scope, w, ticket);
          scope.sync();  // as below
          return BP_OK;
        }
        // A gathered payload lies elsewhere and must be visible first; an inline one travels in the store.
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
    if constexpr (!P::inband) store_wqe<P, inline_v>(qp, scope, w, ticket);
    publish<P>(qp, scope, ticket, 1, blocks, got.marked, got.alone, !(flags & defer_ring));
    return BP_OK;
  });
}
template <class P, bool inline_v, class Scope>
BP_DEV bp_status_code post(const bp_qp& qp, Scope scope, const wqe& w, uint32_t flags, uint64_t* end,
                           bool by_blueflame = true) {
  return in_turn<P>(scope, [&] { return post_now<P, inline_v>(qp, scope, w, flags, end, by_blueflame); });
}

// A WRITE of 1 to 16 bytes that are in registers, the first in the lowest bits of `low`. To be posted as inline.
template <class P>
BP_DEV wqe write_of_value(const located<bp_endpoint>& ep, uint64_t remote_offset, uint32_t bytes, uint64_t low,
                          uint64_t high) {
  // In-band a slot's WQE counts its units up to the inline header.
  const uint32_t ds = P::inband || bytes <= BP_DS_BYTES - 4 ? 3 : 4;
  wqe w = wqe_to_peer(ep, BP_OP_RDMA_WRITE, ds, ep.remote_iova + remote_offset);
  w.bytes = bytes;
  w.swap_add = low;
  w.compare = high;
  w.is_value = true;
  return w;
}

// What a signal does to the peer's word, as a WQE; `is_set`: to be posted as inline.
template <class Op>
constexpr bool is_set = false;
template <>
inline constexpr bool is_set<signal_set> = true;
template <class P>
BP_DEV wqe signal_wqe(const located<bp_endpoint>& ep, uint64_t signal_offset, signal_add op) {
  wqe w = wqe_to_peer(ep, BP_OP_ATOMIC_FA, 4, ep.remote_iova + signal_offset);
  w.bytes = 8;
  w.swap_add = op.value;
  w.gather = ep.sink_iova;
  w.lkey = ep.sink_lkey;
  return w;
}
template <class P>
BP_DEV wqe signal_wqe(const located<bp_endpoint>& ep, uint64_t signal_offset, signal_set op) {
  wqe w = write_of_value<P>(ep, signal_offset, 8, op.value, 0);
  // The software NIC's engine on a GPU stores WRITEs that continue each other in any order, but for one with this mark.
  // Silicon's writes arrive in order without it. A kernel of order::strict may have an endpoint of either.
  if (P::order_v == order::later || (ep.tag & BP_TAG_STRICT) == 0) w.fm_ce_se = BP_CTRL_FENCE_SMALL;
  return w;
}
template <class P>
BP_DEV wqe signal_wqe(const located<bp_endpoint>& ep, uint64_t signal_offset, signal_imm op) {
  wqe w = wqe_to_peer(ep, BP_OP_RDMA_WRITE_IMM, 2, ep.remote_iova + signal_offset);  // of 0 bytes
  w.imm = op.value;
  return w;
}

}  // namespace detail

}  // namespace bp

#endif
