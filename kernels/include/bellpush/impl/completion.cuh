// Completions: CQEs and how far they say that a queue pair is, and waits for that. Tickets: credit.cuh.
#ifndef BELLPUSH_COMPLETION_CUH
#define BELLPUSH_COMPLETION_CUH

#include <bellpush/impl/state.cuh>

namespace bp {

// Ends the QP for every caller: all waits check `error`. The first reason is kept; the host can read it while
// kernels run. Callers get BP_TIMEOUT only if they may continue: after a timeout that ended the QP they get
// BP_DEAD.
BP_DEV_COLD void fail(bp_qp_state* st, bp_status* status, bp_status_code code, uint32_t syndrome, uint64_t ticket) {
  if (atomic_cas(&st->error, 0, code == BP_TIMEOUT ? BP_DEAD : code) != 0) return;
  st_relaxed_sys(&status->syndrome, syndrome);
  st_relaxed_sys(&status->ticket, ticket);
  fence_sys();  // reason before code, for the host
  st_relaxed_sys(&status->code, (uint32_t)code);
}
// Out of line and by value, as all that is rare: a queue pair in the caller's registers would have to be stored for a
// reference to it.
BP_DEV void fail(const bp_qp& qp, bp_status_code code, uint32_t syndrome, uint64_t ticket) {
  fail(state_of(qp), reinterpret_cast<bp_status*>(qp.status), code, syndrome, ticket);
}

template <class P>
BP_DEV bp_status_code error_of(const bp_qp& qp) {
  return (bp_status_code)load_state<P>(&state_of(qp)->error);
}

// Position of a caller in the CQ, in registers during a wait.
struct cq_cursor {
  uint64_t ci;        // next CQE
  uint64_t reported;  // consumer index as reported to the NIC
  uint64_t done;      // tickets below are complete
  uint64_t marked;    // exclusive: WQEs that begin below this ticket may have several blocks
};

// Progress of the QP. The NIC has read the slots and blocks below it before the CQE that `done` follows, so this
// caller's stores to them come after those reads: no GPU stores before the branch on this load is decided. Data that
// the NIC brought are not ordered by it; see acquire_done().
template <class P>
BP_DEV uint64_t load_done(const bp_qp& qp) {
  return load_state<P>(&state_of(qp)->done);
}

// After a wait of a shared QP that has seen `done` or a CQE: orders data that a WQE brought here before the caller's
// reads. One fence at the end of a wait instead of an acquire at each poll, which would empty L1 each time.
template <class P>
BP_DEV void acquire_done() {
  if constexpr (P::shared) fence_acquire_sys();
}

template <class P>
BP_DEV cq_cursor load_cursor(const bp_qp& qp) {
  bp_qp_state* st = state_of(qp);
  const uint64_t marked = P::shared || P::inband ? 0 : load_state<P>(&st->marked);
  return {load_state<P>(&st->cq_ci), load_state<P>(&st->cq_ci_reported), load_done<P>(qp), marked};
}

// Tells the NIC how many CQEs were taken, once every quarter of the ring. The NIC reads this only to detect an overrun,
// and the CQ is twice as deep as the SQ, so that is in time.
template <class P>
BP_DEV void report_cqes(const bp_qp& qp, cq_cursor* c) {
  if (c->ci - c->reported <= (1u << qp.cq_log) / 4) return;
  c->reported = c->ci;
  store_state<P>(&state_of(qp)->cq_ci_reported, c->ci);
  st_relaxed_sys(reinterpret_cast<uint32_t*>(qp.cq_dbr), be32((uint32_t)c->ci & 0xffffff));
}

template <class P>
BP_DEV void store_cursor(const bp_qp& qp, cq_cursor* c) {
  bp_qp_state* st = state_of(qp);
  report_cqes<P>(qp, c);
  store_state<P>(&st->cq_ci, c->ci);
  if constexpr (P::shared) {
    // Acquire: the NIC's writes before the CQEs that were taken, and release: those before `done`, for the waits of
    // other threads that find it.
    fence_acquire_sys();
    st_release_gpu(&st->done, c->done);
  } else {
    store_state<P>(&st->done, c->done);
  }
}

// A poll of the end of a CQE: its last 8 bytes are one store of the NIC, made after the rest.
//
// Relaxed: an acquire would empty L1 at each poll, and the next put would fetch its state from L2 again. The NIC's
// reads are ordered all the same: our stores to its slots and blocks happen only if the poll has found the CQE, and no
// GPU stores before a branch is decided. The NIC's writes are not ordered; acquire_fetched() (exclusive),
// store_cursor() and acquire_done() (shared) order them where there are any.
BP_DEV uint64_t look(const uint64_t* tail) { return ld_relaxed_sys(tail); }

// Records that the WQE which ends at `end` brings data here.
template <class P>
BP_DEV void note_fetch(const bp_qp& qp, uint64_t end) {
  if constexpr (!P::shared) store_state<P>(&state_of(qp)->fetched, end);
}

// End of the last WQE that brings data here, for an exclusive wait; 0 for none.
template <class P>
BP_DEV uint64_t load_fetched(const bp_qp& qp) {
  return P::shared ? 0 : load_state<P>(&state_of(qp)->fetched);
}

// After an exclusive wait of the leader: orders data that a WQE brought here before the caller's reads.
template <class P>
BP_DEV void acquire_fetched(const bp_qp& qp, uint64_t fetched) {
  if (fetched == 0) return;
  fence_acquire_sys();
  if (fetched <= load_done<P>(qp)) store_state<P>(&state_of(qp)->fetched, uint64_t{0});
}

// Ready words. Shared: each WQE has one in each of its blocks, by which others ring for it. Exclusive: they only say
// where a WQE of several blocks ends (below); one of one block gets them within a lap of one of several (`marked`), so
// that a word which counts several blocks is never older than a lap. The host begins with the block's own number in
// each: no ticket of that block, in any lap, takes that for ready.
BP_DEV uint32_t* ready_word(const bp_qp& qp, uint64_t ticket) {
  return reinterpret_cast<uint32_t*>(qp.ready) + (ticket & (sq_blocks(qp) - 1));
}

// Blocks of the WQE that begins at `start`, from its ready word; 0 if the word is another WQE's, as a rule of the
// lap before. The control segment counts at most 63 units, which is 16 blocks.
BP_DEV uint32_t ready_blocks(uint32_t word, uint64_t start) {
  const uint32_t blocks = word - (uint32_t)start;
  return blocks <= 16 ? blocks : 0;
}

// A CQE names only the first ticket of its WQE, and its ready word says where that WQE ends. `done` is never recorded
// behind the first block of several: the ticket one lap on could then be taken, and its word would replace the one that
// says where. `early`: the word of ticket `begun`, as it was before the look. In-band a WQE has one ticket.
template <class P>
BP_DEV void settle(const bp_qp& qp, cq_cursor* c, [[maybe_unused]] uint64_t begun, [[maybe_unused]] uint32_t early) {
  if constexpr (!P::inband) {
    const uint64_t start = c->done - 1;
    if constexpr (!P::shared) {
      if (start >= c->marked) return;
    }
    uint32_t blocks = P::shared && start == begun ? ready_blocks(early, start) : 0;
    if (blocks == 0) blocks = ready_blocks(ld_relaxed_gpu(ready_word(qp, start)), start);
    if (blocks != 0) c->done = start + blocks;
  }
}

enum class found { nothing, cqe, error };

// Moves the cursor past the CQE whose end is `tail`, if that has come and is no error.
BP_DEV found take_tail(const bp_qp& qp, cq_cursor* c, uint64_t tail) {
  const uint32_t op_own = (uint32_t)(tail >> 56);
  if ((op_own >> 4) == BP_CQE_INVALID || (op_own & 1) != (uint32_t)((c->ci >> qp.cq_log) & 1)) {
    return found::nothing;
  }
  const uint32_t counter = (uint32_t)((tail >> 32) & 0xff) << 8 | (uint32_t)((tail >> 40) & 0xff);
  c->done += (counter - (uint32_t)c->done) & 0xffff;
  // A queue pair completes in order: what was posted before the WQE that failed is complete, with or without a CQE. The
  // cursor stays at an error CQE: those behind it are of WQEs that were flushed, and complete nothing.
  if ((op_own >> 4) == BP_CQE_REQ_ERR) return found::error;
  c->ci++;
  c->done++;
  return found::cqe;
}

// CQEs that one look covers where several are to come. A look is a trip to the CQ's memory: 1 us where that is the
// host's, and 1.3 to 2.4 behind a stream of stores to it (H200, docs/results/long-messages.md). The WQEs of a whole
// window have four to eight CQEs.
constexpr uint32_t looks = 4;
// Tickets that one message may well have with one CQE.
constexpr uint32_t single_cqe_tickets = 2;

// Polls the CQ once and takes the CQEs that are there, up to the target and to an error CQE; fail_by_cqe() handles that,
// after the progress before it has been recorded.
template <class P>
BP_DEV found take_cqes(const bp_qp& qp, cq_cursor* c, uint64_t target) {
  const uint32_t mask = (1u << qp.cq_log) - 1;
  const uint64_t begun = c->done;
  const bool several = target - begun > single_cqe_tickets;
  uint64_t tails[looks];
  // In flight together with the tails: as a rule the next CQE is that of the WQE behind `done`.
  const uint32_t early = P::shared && !P::inband ? ld_relaxed_gpu(ready_word(qp, begun)) : 0;
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t k = 0; k < looks; k++) {
    const uint64_t cqe = qp.cq + ((c->ci + k) & mask) * sizeof(bp_cqe64);
    tails[k] = k == 0 || several ? look(reinterpret_cast<const uint64_t*>(cqe + 56)) : ~uint64_t{0};  // invalid
  }
  found all = found::nothing;
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t k = 0; k < looks; k++) {
    if (all == found::error || c->done >= target) break;
    const found f = take_tail(qp, c, tails[k]);
    if (f == found::nothing) break;
    all = f;
  }
  if (c->done != begun) settle<P>(qp, c, begun, early);
  return all;
}

// Ends the QP with the error CQE at the cursor, which has been stored.
template <class P>
BP_DEV_COLD void fail_by_cqe(bp_qp qp, cq_cursor c) {
  const uint64_t at = c.ci & ((1u << qp.cq_log) - 1);
  const uint64_t cqe = qp.cq + at * sizeof(bp_cqe64);
  const uint64_t body = ld_acquire_sys(reinterpret_cast<const uint64_t*>(cqe + 48));
  fence_gpu();  // `done` before the error, for waits of complete tickets (see is_done())
  fail(qp, BP_CQE_ERROR, (uint32_t)(body >> 48 & 0xff) << 8 | (uint32_t)(body >> 56), c.done);
}

// Takes CQEs towards `target` and returns the QP's progress. On a shared QP one caller at a time does so; the
// others read its result. `had_turn` (may be null): set if this caller was the one.
template <class P>
BP_DEV uint64_t poll_cq(const bp_qp& qp, uint64_t target, bool* had_turn = nullptr) {
  bp_qp_state* st = state_of(qp);
  if constexpr (P::shared) {
    const uint64_t done = ld_relaxed_gpu(&st->done);
    if (done >= target) return done;
    if (ld_relaxed_gpu(&st->cq_lock) != 0 || atomic_cas(&st->cq_lock, 0, 1) != 0) return done;
  }
  if (had_turn) *had_turn = true;
  const cq_cursor before = load_cursor<P>(qp);
  cq_cursor c = before;
  if (c.done < target) {
    // A poll for a CQE that is not there costs a round trip to the CQ's memory, so polling stops at the target; and
    // after 64 CQEs, because the caller has a wait of its own.
    found last = found::cqe;
    for (uint32_t n = 0; last == found::cqe && c.done < target && n < 64; n += looks) {
      last = take_cqes<P>(qp, &c, target);
    }
    if (c.done != before.done) store_cursor<P>(qp, &c);
    if (last == found::error) fail_by_cqe<P>(qp, c);
  }
  if constexpr (P::shared) st_release_gpu(&st->cq_lock, 0u);
  return c.done;
}

// Whether a QP in error has reached `target` all the same. On a shared QP another caller may have taken that CQE
// without having recorded it when the error came.
template <class P>
BP_DEV_COLD bool is_done(bp_qp qp, uint64_t target) {
  fence_gpu();  // the error before the load of `done`, which its finder stored before it
  bool is = false, had_turn = false;
  for (deadline turn;;) {
    is = poll_cq<P>(qp, target, &had_turn) >= target;
    if (is || had_turn || turn.expired(qp_timeout_ns(qp))) break;
    yield_();
  }
  if (is) acquire_done<P>();
  return is;
}

// Bits of the word `ring` (doorbell.cuh), and where its ticket begins.
constexpr uint64_t ring_held = 1, ring_left = 2;
constexpr uint32_t ring_shift = 2;

template <class P>
BP_DEV void ring_ready(const bp_qp& qp);  // doorbell.cuh

// For waits on a shared QP, now and then: the awaited WQEs may have been made ready since the wait began, by a
// caller that deferred its doorbell and left.
template <class P>
BP_DEV void ring_for_others(const bp_qp& qp, const deadline& wait) {
  if ((wait.polls & 31) == 31) ring_ready<P>(qp);
}

// Time of the first poll for a CQE. A poll crosses to the CQ's memory and back, about 1 us; one that comes just too
// early makes the wait a whole poll longer. An exclusive caller therefore learns how long after the start of a wait
// its CQEs come. A first poll that finds a CQE makes the next one a little earlier; one that misses by one poll
// makes it later. A miss by more means that the NIC takes longer than a poll; the start of polling then does not
// matter.
struct first_look {
  uint32_t after = 0;
  uint64_t start = 0;
  BP_DEV static first_look now() {
    first_look look;
#if defined(__CUDACC__)  // a CPU polls its own cache
    look.start = clock_ticks();
#endif
    return look;
  }
  template <class P>
  BP_DEV void load([[maybe_unused]] const bp_qp& qp) {
#if defined(__CUDACC__)
    after = load_state<P>(&state_of(qp)->look_after);
#endif
  }
  // Bounded: learn() keeps it under 2,048 ticks, about 1 us.
  BP_DEV void wait() const {
    while (after != 0 && clock_ticks() - start < after) {
    }
  }
  template <class P>
  BP_DEV void learn([[maybe_unused]] const bp_qp& qp, [[maybe_unused]] uint32_t missed) const {
#if defined(__CUDACC__)
    constexpr uint32_t earlier = 16, later = 256, most = 2048;
    const uint32_t less = missed == 0 ? earlier : later;
    const uint32_t next = missed == 1 ? after + later : after - (after < less ? after : less);
    store_state<P>(&state_of(qp)->look_after, next < most ? next : most);
#endif
  }
};

// State that an exclusive caller loads before it waits.
struct outlook {
  cq_cursor cursor;
  bp_status_code error;
  first_look first;
};
template <class P>
BP_DEV outlook load_outlook(const bp_qp& qp, const first_look& first) {
  outlook o;
  o.first = first;
  o.first.template load<P>(qp);
  o.error = error_of<P>(qp);
  o.cursor = load_cursor<P>(qp);
  return o;
}

// An exclusive caller's wait. All threads that lead may call it together: they poll the CQ as one, and only the
// leader records the progress.
template <class P>
BP_DEV bp_status_code wait_exclusive(const bp_qp& qp, bool leader, const outlook& o,
                                     uint64_t target) {
  cq_cursor c = o.cursor;
  bp_status_code s = o.error;
  // Complete tickets stay complete, whatever came after them.
  if (c.done >= target) return BP_OK;
  if (s != BP_OK) return s;
  deadline limit;
  uint32_t missed = 0;
  bool ended = false;
  const bool may_wait = qp.timeout_ns != 0;  // otherwise the caller wants one poll, which says nothing of when to begin
  if (may_wait) o.first.wait();
  do {
    const found f = take_cqes<P>(qp, &c, target);
    if (f == found::cqe) continue;
    if (f == found::error) {
      s = c.done >= target ? BP_OK : BP_CQE_ERROR;
      ended = true;
      break;
    }
    missed++;
    if (limit.expired(qp.timeout_ns)) {
      s = BP_TIMEOUT;
      break;
    }
    yield_();
  } while (c.done < target);
  if (leader) {
    if (c.done != o.cursor.done) store_cursor<P>(qp, &c);
    // By the leader alone: another lane may have seen CQEs that came too late for the leader, whose cursor is recorded.
    if (ended) fail_by_cqe<P>(qp, c);
    if (may_wait) o.first.template learn<P>(qp, missed);
  }
  return s;
}

// Waits until tickets below `target` are complete. The QP's timeout bounds the wait; after it nothing is taken.
template <class P>
BP_DEV bp_status_code wait_done(const bp_qp& qp, uint64_t target) {
  deadline limit;
  if constexpr (P::shared) {
    for (;;) {
      if (poll_cq<P>(qp, target) >= target) {
        acquire_done<P>();
        return BP_OK;
      }
      if (bp_status_code e = error_of<P>(qp)) return is_done<P>(qp, target) ? BP_OK : e;
      ring_for_others<P>(qp, limit);
      if (limit.expired(qp.timeout_ns)) return BP_TIMEOUT;
      yield_();
    }
  } else {
    return wait_exclusive<P>(qp, true, load_outlook<P>(qp, first_look::now()), target);
  }
}

}  // namespace bp

#endif
