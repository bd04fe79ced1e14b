// Tickets and credits.
//
// A ticket is a position in the send queue (in basic blocks; in-band: in slots), counted from 0, and never wraps.
// Ticket i owns block i % sq_blocks of the SQ and slot i % slots of the window. One number therefore gives the
// whole state: `done` tickets are complete; ticket i may write its block when i < done + sq_blocks, and its slot
// when i < done + slots. The slot's credit returns exactly once, when `done` passes the ticket: at the completion
// of the one WQE that reads the slot.
#ifndef BELLPUSH_CREDIT_CUH
#define BELLPUSH_CREDIT_CUH

#include <bellpush/impl/completion.cuh>

namespace bp {

// What a caller reads before it takes tickets, all in flight together.
struct room {
  bp_status_code error;
  uint64_t next, done;
  uint64_t marked;  // exclusive
  uint64_t ring;    // shared
  uint32_t most;
};
template <class P>
BP_DEV room load_room(const bp_qp& qp) {
  static_assert(offsetof(bp_qp_state, reserved) % 16 == 0 && offsetof(bp_qp_state, marked) % 16 == 0, "pairs");
  const bp_qp_state* st = state_of(qp);
  const word_pair tickets = load_pair<P>(&st->reserved), rest = load_pair<P>(&st->marked);
  const uint64_t ring = P::shared && !P::inband ? ld_relaxed_gpu(&st->ring) : 0;
  return {(bp_status_code)(uint32_t)rest.second, tickets.first, tickets.second, rest.first, ring,
          (uint32_t)(rest.second >> 32)};
}

// Most outstanding tickets: the ring; for a caller that writes slots, the window.
template <class P>
BP_DEV uint32_t ticket_limit(const bp_qp& qp, bool writes_slots) {
  // An in-band QP sends everything through slots.
  return P::inband || writes_slots ? qp.slot_limit : sq_blocks(qp);
}

// Takes tickets `next .. next + n` of an exclusive QP that has room for them. `most`: the most credits that were in
// use before.
template <class P>
BP_DEV void take(const bp_qp& qp, uint64_t next, uint32_t n, uint64_t done, uint32_t most,
                 bool writes_slots) {
  static_assert(!P::shared, "callers that share a QP take tickets by an atomic add");
  store_state<P>(&state_of(qp)->reserved, next + n);
  const uint32_t in_use = (uint32_t)(next + n - done);
  // No branch: it would wait for all loads that are in flight, a payload that was loaded ahead included.
  if (writes_slots) store_state<P>(&state_of(qp)->max_credits, most < in_use ? in_use : most);
}

// Waits until there is room for `n` tickets; what a ticket needs, and nothing is taken yet. `next`: the tickets taken
// so far. Out of line, as room_for_tickets(): the usual way stays one short piece of code.
template <class P>
BP_DEV_COLD bp_status_code wait_for_room(bp_qp qp, uint32_t n, uint64_t limit, uint64_t next) {
  // The WQEs that fill the ring may be waiting for a doorbell that their caller deferred.
  ring_ready<P>(qp);
  if constexpr (P::shared) {
    for (deadline wait;;) {
      next = ld_relaxed_gpu(&state_of(qp)->reserved);
      const bool has_room = next + n <= limit + poll_cq<P>(qp, next + n - limit);
      // Also with room: the CQE of the error may stand behind those that made it.
      if (bp_status_code e = error_of<P>(qp)) return e;
      if (has_room) return BP_OK;
      ring_for_others<P>(qp, wait);
      if (wait.expired(qp.timeout_ns)) return BP_TIMEOUT;
      yield_();
    }
  } else {
    if (bp_status_code s = wait_done<P>(qp, next + n - limit)) return s;
    return error_of<P>(qp);
  }
}

// Shared: gives the tickets from `ticket` to `end` back, of which nothing has been written; false if others have taken
// tickets behind them. Who has read `reserved` meanwhile knows of tickets that may not come: see wait_by_nop().
BP_DEV bool give_back(bp_qp_state* st, uint64_t ticket, uint64_t end) {
  return atomic_cas_relaxed(&st->reserved, end, ticket) == end;
}

// Shared: waits until tickets `ticket` to `end`, behind which others have taken some, have room: tickets below `target`
// are complete. Meanwhile it gives them back as soon as it can, and waits for room without. Those who hold tickets behind
// do the same, so that the last goes first. One that has posted does not go, nor those before it: if no room comes for
// twice the timeout, the QP is moved to error, because a ticket that is never filled would block every later one for ever.
enum class held { have_room, given_back, failed };
template <class P>
BP_DEV held wait_with_tickets(const bp_qp& qp, uint64_t ticket, uint64_t end, uint64_t target) {
  bp_qp_state* st = state_of(qp);
  for (uint32_t waits = 0; waits < 2; waits++) {
    for (deadline wait;;) {
      if (poll_cq<P>(qp, target) >= target) {
        acquire_done<P>();
        return held::have_room;
      }
      if (error_of<P>(qp) != BP_OK) return held::failed;
      if (ld_relaxed_gpu(&st->reserved) == end && give_back(st, ticket, end)) return held::given_back;
      ring_for_others<P>(qp, wait);
      if (wait.expired(qp.timeout_ns)) break;
      yield_();
    }
  }
  fail(qp, BP_TIMEOUT, 0, ticket);
  return held::failed;
}

// Tickets that a caller got, or why not.
struct reservation {
  bp_status_code status;
  uint64_t ticket;
  bool idle;   // exclusive: no other ticket was outstanding
  bool alone;  // shared: all that was posted before is rung for, and nobody has come since
};
BP_DEV reservation refused(bp_status_code status) { return {status, 0, false, false}; }
// In one register: a leader hands it round, or a call out of line returns it, and nothing of it has to lie in memory. No
// queue pair lives for 2^56 tickets.
BP_DEV uint64_t word_of(const reservation& r) {
  return r.ticket << 8 | (uint64_t)r.idle << 7 | (uint64_t)r.alone << 6 | (uint32_t)r.status;
}
BP_DEV reservation of_word(uint64_t word) {
  return {(bp_status_code)(word & 0x3f), word >> 8, (word >> 7 & 1) != 0, (word >> 6 & 1) != 0};
}

// Shared: the most credits that were in use, of which `most` was seen. No thread waits for this atomic.
BP_DEV void note_in_use(bp_qp_state* st, bool writes_slots, uint32_t in_use, uint32_t most) {
  if (writes_slots) atomic_max_if(in_use > most, &st->max_credits, in_use);
}

// Shared: room for `n` tickets that have been taken, from `ticket` on, of a queue pair that was seen not to have it, or
// with an error. They are given back for the wait, and taken anew where there is room. Others may take that first: then
// it waits again, until twice the timeout is over (five times in all, with the wait that then goes on).
template <class P>
BP_DEV_COLD uint64_t room_for_tickets(bp_qp qp, uint64_t ticket, uint32_t n, bool writes_slots, bp_status_code error) {
  bp_qp_state* st = state_of(qp);
  if (error != BP_OK) {
    give_back(st, ticket, ticket + n);
    return word_of(refused(BP_DEAD));
  }
  const uint64_t limit = ticket_limit<P>(qp, writes_slots);
  BP_NO_UNROLL for (uint64_t begun_ns = now_ns();;) {
    // What was seen of the QP's progress is older than the tickets.
    const uint64_t end = ticket + n, done = load_done<P>(qp);
    if (end <= done + limit) {
      note_in_use(st, writes_slots, (uint32_t)(end - done), 0);
      return word_of({BP_OK, ticket, false, false});
    }
    ring_ready<P>(qp);
    const bool gave = give_back(st, ticket, end);
    const held found = gave ? held::given_back : wait_with_tickets<P>(qp, ticket, end, end - limit);
    if (found == held::have_room) continue;
    if (found == held::failed) return word_of(refused(BP_DEAD));
    if (bp_status_code e = error_of<P>(qp)) return word_of(refused(e));
    if (elapsed_ns(begun_ns) > 2 * qp.timeout_ns) return word_of(refused(BP_TIMEOUT));
    if (bp_status_code s = wait_for_room<P>(qp, n, limit, ticket)) return word_of(refused(s));
    ticket = atomic_add(&st->reserved, n);
  }
}

// Shared: takes `n` tickets for a caller with a bound of its own (within()), only while there is room for all of them.
// None that is taken has to wait for room, so the bound's end leaves no ticket behind, however short it is. Where
// others take the room that it has waited for, it waits again, for another such bound at most.
template <class P>
BP_DEV_COLD uint64_t take_bounded(bp_qp qp, uint32_t n, bool writes_slots) {
  constexpr uint32_t tries = 1024;  // of which each that fails has let another caller take a ticket
  bp_qp_state* st = state_of(qp);
  const uint64_t limit = ticket_limit<P>(qp, writes_slots);
  BP_NO_UNROLL for (uint64_t lost_ns = 0;;) {
    const room r = load_room<P>(qp);
    if (r.error != BP_OK) return word_of(refused(BP_DEAD));
    uint64_t next = r.next, done = r.done;
    BP_NO_UNROLL for (uint32_t i = 0; i < tries && next + n <= done + limit; i++) {
      // `done` only grows, so there is room if nobody has taken a ticket since.
      const uint64_t found = atomic_cas_relaxed(&st->reserved, next, next + n);
      if (found == next) {
        note_in_use(st, writes_slots, (uint32_t)(next + n - done), r.most);
        return word_of({BP_OK, next, false, next << ring_shift == r.ring});
      }
      next = found;
      done = load_done<P>(qp);
    }
    if (lost_ns != 0 && elapsed_ns(lost_ns) >= qp.timeout_ns) return word_of(refused(BP_TIMEOUT));
    if (bp_status_code s = wait_for_room<P>(qp, n, limit, next)) return word_of(refused(s));
    if (lost_ns == 0) lost_ns = now_ns();
  }
}

// Takes `n` consecutive tickets for one caller (a scope's leader). A wait for room that times out has taken nothing.
template <class P>
BP_DEV reservation reserve(const bp_qp& qp, uint32_t n, bool writes_slots) {
  bp_qp_state* st = state_of(qp);
  const uint64_t limit = ticket_limit<P>(qp, writes_slots);
  if constexpr (P::shared) {
    if (has_own_bound(qp)) return of_word(take_bounded<P>(late_copy(qp), n, writes_slots));
    // There is room as a rule. So the tickets are taken while the words that tell are on their way: one trip to L2
    // instead of two. No branch lies between these loads and the atomic; ptxas would wait for them there.
    const room r = load_room<P>(qp);
    const uint64_t ticket = atomic_add_apart(&st->reserved, n);
    // One branch for both: each costs as much as ten instructions.
    if ((r.error != BP_OK) | (ticket + n > r.done + limit)) {
      return of_word(room_for_tickets<P>(late_copy(qp), ticket, n, writes_slots, r.error));
    }
    note_in_use(st, writes_slots, (uint32_t)(ticket + n - r.done), r.most);
    return {BP_OK, ticket, false, !P::inband && ticket << ring_shift == r.ring};
  } else {
    const room r = load_room<P>(qp);
    uint64_t done = r.done;
    if (r.error != BP_OK) return refused(BP_DEAD);
    if (r.next + n > done + limit) {
      if (bp_status_code s = wait_for_room<P>(qp, n, limit, r.next)) return refused(s);
      done = r.next + n - limit;
    }
    take<P>(qp, r.next, n, done, r.most, writes_slots);
    return {BP_OK, r.next, r.next == done, false};
  }
}

// Records that a requested CQE covers all tickets below `end`.
template <class P>
BP_DEV void note_signalled(const bp_qp& qp, uint64_t end) {
  bp_qp_state* st = state_of(qp);
  if constexpr (P::shared) {
    atomic_max(&st->signalled, end);
  } else {
    store_state<P>(&st->signalled, end);
  }
}

// Consecutive WQEs request a CQE at every end that reaches or passes a multiple of the credit period. Returns the
// last such end within tickets `ticket .. ticket + n`; `ticket` or less if there is none.
BP_DEV uint64_t last_credit_end(const bp_qp& qp, uint64_t ticket, uint32_t n) {
  return (ticket + n) & ~(uint64_t)(qp.credit_period - 1);
}

}  // namespace bp

#endif
