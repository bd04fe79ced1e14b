// Tickets, credits and completions.
//
// A ticket is a position in the send queue (in basic blocks; in-band: in slots), counted from 0 and
// never wrapped. Ticket i owns block i % sq_blocks of the SQ and slot i % slots of the window, so
// one number says it all: `done` tickets are complete, and ticket i may write its block when
// i < done + sq_blocks, its slot when i < done + slots. The slot's credit returns exactly once, when
// `done` passes the ticket: at the completion of the one WQE that reads the slot.
#ifndef BELLPUSH_CREDIT_CUH
#define BELLPUSH_CREDIT_CUH

#include "path.cuh"

namespace bp {

// Ends the QP for every caller: all waits look at `error`. The first reason is kept, and the host
// can read it while kernels run.
BP_DEV void fail(const bp_qp& qp, bp_status_code code, uint32_t syndrome, uint64_t ticket) {
  bp_qp_state* st = state_of(qp);
  if (atomic_cas(&st->error, 0, code) != 0) return;
  bp_status* status = reinterpret_cast<bp_status*>(qp.status);
  st_relaxed_sys(&status->syndrome, syndrome);
  st_relaxed_sys(&status->ticket, ticket);
  fence_sys();  // reason before code, for the host
  st_relaxed_sys(&status->code, (uint32_t)code);
}

BP_DEV bp_status_code error_of(const bp_qp& qp) {
  return (bp_status_code)ld_relaxed_gpu(&state_of(qp)->error);
}

// Where a caller stands in the CQ. Kept in registers while it waits.
struct cq_cursor {
  uint64_t ci;        // next CQE
  uint64_t reported;  // consumer index that the NIC knows
  uint64_t done;      // tickets below are complete
};

// How far the QP is. Shared: acquire, so that what the finder of the CQE saw (slots read by the NIC)
// comes before this caller's stores. An exclusive caller found it itself, or was handed the QP by a
// synchronisation of its own, and spares its L1 the acquire.
template <class P>
BP_DEV uint64_t load_done(const bp_qp& qp) {
  return P::shared ? ld_acquire_gpu(&state_of(qp)->done) : ld_relaxed_gpu(&state_of(qp)->done);
}

template <class P>
BP_DEV cq_cursor load_cursor(const bp_qp& qp) {
  bp_qp_state* st = state_of(qp);
  return {ld_relaxed_gpu(&st->cq_ci), ld_relaxed_gpu(&st->cq_ci_reported), load_done<P>(qp)};
}

template <class P>
BP_DEV void store_cursor(const bp_qp& qp, cq_cursor* c) {
  bp_qp_state* st = state_of(qp);
  if (c->ci - c->reported > (1u << qp.cq_log) / 4) {
    // The NIC looks at this only to notice an overrun; the CQ is twice as deep as the SQ, so a
    // report in time is one a quarter ring late.
    c->reported = c->ci;
    st_relaxed_gpu(&st->cq_ci_reported, c->ci);
    st_relaxed_sys(reinterpret_cast<uint32_t*>(qp.cq_dbr), be32((uint32_t)c->ci & 0xffffff));
  }
  st_relaxed_gpu(&st->cq_ci, c->ci);
  if constexpr (P::shared) {
    // Release: the NIC has read the slots below `done`, before another thread writes them again.
    st_release_gpu(&st->done, c->done);
  } else {
    st_relaxed_gpu(&st->done, c->done);
  }
}

// Takes CQEs until tickets below `target` are complete or no CQE is there. Reading one that is not
// there costs a round trip to the CQ's memory, so it stops at the target. False after an error CQE.
template <class P>
BP_DEV bool drain(const bp_qp& qp, cq_cursor* c, uint64_t target) {
  const uint32_t mask = (1u << qp.cq_log) - 1;
  for (uint32_t n = 0; c->done < target && n < 64; n++) {  // bounded: the caller has its own wait
    const uint64_t cqe = qp.cq + (c->ci & mask) * sizeof(bp_cqe64);
    // The last 8 bytes are one store of the NIC's, made after the rest. Acquire: what the NIC read
    // (window slots) and wrote (READ data, atomics' results) before this CQE, before what we do
    // next.
    const uint64_t tail = ld_acquire_sys(reinterpret_cast<const uint64_t*>(cqe + 56));
    const uint32_t op_own = (uint32_t)(tail >> 56);
    if ((op_own >> 4) == BP_CQE_INVALID || (op_own & 1) != (uint32_t)((c->ci >> qp.cq_log) & 1)) {
      break;
    }
    c->ci++;
    const uint32_t counter = (uint32_t)((tail >> 32) & 0xff) << 8 | (uint32_t)((tail >> 40) & 0xff);
    const uint64_t start = c->done + ((counter - (uint32_t)c->done) & 0xffff);
    if ((op_own >> 4) == BP_CQE_REQ_ERR) {
      const uint64_t body = ld_acquire_sys(reinterpret_cast<const uint64_t*>(cqe + 48));
      fail(qp, BP_CQE_ERROR, (uint32_t)(body >> 48 & 0xff) << 8 | (uint32_t)(body >> 56), start);
      return false;
    }
    // A WQE ends at least one block after its start; its ready word is asked only if that is not
    // enough for the caller.
    c->done = start + 1;
    if constexpr (!P::inband) {
      if (c->done < target) {
        const uint32_t* ready = reinterpret_cast<const uint32_t*>(qp.ready);
        const uint32_t end = ld_relaxed_gpu(ready + (start & (sq_blocks(qp) - 1)));
        c->done = start + (uint32_t)(end - (uint32_t)start);
      }
    }
  }
  return true;
}

// Takes CQEs towards `target` and returns how far the QP is. With a shared QP one caller at a time
// does; the others look at what it found.
template <class P>
BP_DEV uint64_t poll_cq(const bp_qp& qp, uint64_t target) {
  bp_qp_state* st = state_of(qp);
  if constexpr (P::shared) {
    const uint64_t done = ld_acquire_gpu(&st->done);
    if (done >= target) return done;
    if (ld_relaxed_gpu(&st->cq_lock) != 0 || atomic_cas(&st->cq_lock, 0, 1) != 0) return done;
  }
  cq_cursor c = load_cursor<P>(qp);
  const uint64_t before = c.ci;
  drain<P>(qp, &c, target);
  if (c.ci != before) store_cursor<P>(qp, &c);
  if constexpr (P::shared) st_release_gpu(&st->cq_lock, 0u);
  return c.done;
}

template <class P>
BP_DEV void ring_pending(const bp_qp& qp);  // doorbell.cuh

// In the waits of a shared QP, now and then: what they wait for may have been made ready since they
// began, by a caller that put its doorbell off and left.
template <class P>
BP_DEV void ring_for_others(const bp_qp& qp, const deadline& wait) {
  if ((wait.polls & 31) == 31) ring_pending<P>(qp);
}

// An exclusive caller's wait, from a cursor and an error state that it has loaded.
template <class P>
BP_DEV bp_status_code wait_exclusive(const bp_qp& qp, cq_cursor c, bp_status_code s,
                                     uint64_t target) {
  deadline limit;
  const uint64_t before = c.ci;
  while (s == BP_OK && c.done < target) {
    if (!drain<P>(qp, &c, target)) {
      s = BP_CQE_ERROR;
    } else if (c.done < target) {
      if (limit.expired(qp.timeout_ns)) s = BP_TIMEOUT;
      yield_();
    }
  }
  if (c.ci != before) store_cursor<P>(qp, &c);
  return s;
}

// Waits until tickets below `target` are complete. Bounded by the QP's timeout, which ends the wait
// and takes nothing.
template <class P>
BP_DEV bp_status_code wait_done(const bp_qp& qp, uint64_t target) {
  deadline limit;
  if constexpr (P::shared) {
    for (;;) {
      if (poll_cq<P>(qp, target) >= target) return BP_OK;
      if (bp_status_code e = error_of(qp)) return e;
      ring_for_others<P>(qp, limit);
      if (limit.expired(qp.timeout_ns)) return BP_TIMEOUT;
      yield_();
    }
  } else {
    // In flight together.
    const bp_status_code s = error_of(qp);
    return wait_exclusive<P>(qp, load_cursor<P>(qp), s, target);
  }
}

// Tickets that may be out at once: the ring, and for a caller that writes slots the window.
template <class P>
BP_DEV uint32_t ticket_limit(const bp_qp& qp, bool writes_slots) {
  if (P::inband) writes_slots = true;  // what an in-band QP sends, it sends through slots
  const uint32_t ring = P::inband ? 0x8000u : sq_blocks(qp);
  if (!writes_slots || (qp.flags & BP_QP_CREDITS_OFF)) return ring;
  return qp.window.slots < ring ? qp.window.slots : ring;
}

// Takes `n` tickets in a row for one caller (a scope's leader). Waits for room first, so that a
// wait that times out has taken nothing. Where callers share the QP the room may be gone by the
// time of the atomic add; such a ticket waits on, and if that times out the QP is moved to error,
// because a ticket that nobody fills would be a hole that stops everyone behind it for ever.
// `done` receives how far the QP was when the tickets were taken.
template <class P>
BP_DEV bp_status_code reserve(const bp_qp& qp, uint32_t n, bool writes_slots, uint64_t* ticket,
                              uint64_t* done) {
  bp_qp_state* st = state_of(qp);
  const uint64_t limit = ticket_limit<P>(qp, writes_slots);
  // Three loads in flight together; the branches come after.
  const bp_status_code before = error_of(qp);
  uint64_t next = ld_relaxed_gpu(&st->reserved);
  *done = load_done<P>(qp);
  if (before != BP_OK) return BP_DEAD;
  if (next + n > *done + limit) {
    // What fills the ring may be waiting for a doorbell that its caller put off.
    ring_pending<P>(qp);
    if constexpr (P::shared) {
      deadline wait;
      for (;;) {
        next = ld_relaxed_gpu(&st->reserved);
        if (next + n <= limit + poll_cq<P>(qp, next + n - limit)) break;
        if (bp_status_code e = error_of(qp)) return e;
        ring_for_others<P>(qp, wait);
        if (wait.expired(qp.timeout_ns)) return BP_TIMEOUT;
        yield_();
      }
    } else {
      bp_status_code s = wait_done<P>(qp, next + n - limit);
      if (s != BP_OK) return s;
      *done = next + n - limit;
    }
  }
  if constexpr (P::shared) {
    next = atomic_add(&st->reserved, n);
    *done = ld_acquire_gpu(&st->done);
    if (next + n > *done + limit) {
      bp_status_code s = wait_done<P>(qp, next + n - limit);
      if (s == BP_TIMEOUT) fail(qp, BP_TIMEOUT, 0, next);
      if (s != BP_OK) return s;
      *done = next + n - limit;
    }
  } else {
    st_relaxed_gpu(&st->reserved, next + n);
  }
  // Nobody waits for this one.
  if (writes_slots) atomic_max(&st->max_credits, (uint32_t)(next + n - *done));
  *ticket = next;
  return BP_OK;
}

// Notes that a CQE was asked for which covers all tickets below `end`.
template <class P>
BP_DEV void note_signalled(const bp_qp& qp, uint64_t end) {
  bp_qp_state* st = state_of(qp);
  if constexpr (P::shared) {
    atomic_max(&st->signalled, end);
  } else {
    st_relaxed_gpu(&st->signalled, end);
  }
}

// A row of WQEs asks for a CQE at every end that reaches or passes a multiple of the credit period:
// the last such end that tickets `ticket .. ticket + n` come to; `ticket` or less if none.
BP_DEV uint64_t last_credit_end(const bp_qp& qp, uint64_t ticket, uint32_t n) {
  return (ticket + n) & ~(uint64_t)(qp.credit_period - 1);
}

}  // namespace bp

#endif
