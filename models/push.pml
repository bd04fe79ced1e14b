/* The push protocol of a queue pair that one caller has (docs/protocol.md, sections 1 to 7), with a GPU
 * whose stores arrive in any order and a NIC that reads as late as it may.
 *
 * GPU: a store waits in `late` until it arrives, at any time, in any order between words; later stores to a
 * word replace earlier ones. A fence waits until all have arrived. A plain load may find in L1 what was there
 * at any time since the last acquire.
 * NIC: it finds doorbell register and record at any time, fetches WQEs in order, reads a WQE's payload as
 * often as it likes (it sends again what was lost) until the peer has acknowledged it, completes in order,
 * and its own writes arrive in order.
 *
 * What must hold: a WQE and its payload are the ticket's own whenever the NIC reads them; a get's data are
 * there when its wait returns; the CQ never overflows; and the caller comes to its end. No step leads back to
 * a state that was, so that whoever does not stop comes to an end.
 *
 * Each part of the protocol can be taken away by a macro, and then something of that fails:
 * NO_FENCE, ONE_FENCE (with STRICT), NO_CREDITS, NO_RING_CREDITS (with SQ=2 SLOTS=4), COMPLETES_EARLY,
 * NEVER_COMPLETES, PERIOD_OF_THE_RING, SHORT_COUNTERS, WAITS_FOR_REGISTER (with LARGE SLOTS=4), SHALLOW_CQ (with
 * SLOTS=4 PERIOD=1), NO_ACQUIRE, NIC_UNORDERED, RECORD_LEFT_BEHIND (with STRICT), WAITS_UNRUNG. STRICT is silicon's
 * order: the record alone counts, and is read when the register is rung. OWN_PAGE: no other queue pair's register has
 * the NIC look.
 *
 * Left out: WQEs of several blocks and their ready words (section 4), NOPs, waits for a WQE that asked for no
 * CQE, messages of several chunks (5), callers that share the queue pair (6), registers that queue pairs
 * share, BlueFlame (7), errors. Half of the limit is the period here, and a quarter in section 4: two slots
 * have no quarter, and CQEs that are rarer are the harder case.
 */

#ifndef N
#define N 10            /* tickets */
#endif
#ifndef SQ
#define SQ 4            /* basic blocks of the send queue, at most 4 */
#endif
#ifndef SLOTS
#define SLOTS 2         /* slots of the window, at most 4 */
#endif
#ifdef PERIOD_OF_THE_RING
#define PERIOD 4        /* asks for CQEs too seldom for a window of two slots */
#endif
#ifndef PERIOD
#define PERIOD ((SLOTS < SQ -> SLOTS : SQ) / 2)
#endif
/* Indices are counted modulo COUNTERS, 2^16 in mlx5, and SQ is at most a quarter of that. In a queue of half
 * of that, the largest that mlx5 has, the record alone counts, and is stored before the register. */
#if defined(LARGE) || defined(SHORT_COUNTERS)
#define COUNTERS (2 * SQ)
#else
#define COUNTERS (4 * SQ)
#endif
#if defined(STRICT) || defined(LARGE)
#define RECORD_FIRST
#endif
#ifdef SHALLOW_CQ
#define CQES (SLOTS < SQ -> SLOTS : SQ) /* as deep as what is outstanding */
#else
#define CQES (2 * SQ)
#endif
#ifdef NO_CREDITS
#define LIMIT 4
#else
#define LIMIT SLOTS
#endif
#ifdef NO_RING_CREDITS
#define BLOCKS (SQ + 1)
#else
#define BLOCKS SQ
#endif

#define WQE(t) ((t) % SQ)
#define SLOT(t) (SQ + (t) % SLOTS)
#define DBR 8
#define UAR 9
#define CQ_DBR 10
#define WORDS 11
#define NONE 255
#define FETCHED 255     /* where what a get brings goes */

#define PUT 0
#define GET 1
/* A WQE as one word: ticket + 1, kind, signalled. A slot: ticket + 1. */
#define ENTRY(t, kind, asks) (((t) + 1) * 4 + (kind) * 2 + (asks))

byte memory[WORDS];     /* as the NIC reads it */
byte late[WORDS];       /* the GPU's stores under way */
byte cq[2 * SQ];        /* as the GPU reads it */
byte fetched;           /* what gets bring, as the GPU reads it */
chan writes = [4] of { byte, byte }; /* the NIC's writes under way: place (a CQE, or FETCHED), value */
byte taken_cqes;        /* by the caller */
byte reported;          /* of these, to the NIC */

#define store(word, value) late[word] = value
bool doorbell;          /* the register was stored to, as silicon sees it */
#ifdef STRICT
#define DOORBELL doorbell = true
#else
#define DOORBELL skip
#endif

#define is_there(word) (late[word] == NONE)
#define arrived (is_there(0) && is_there(1) && is_there(2) && is_there(3) && is_there(4) && is_there(5) && \
                 is_there(6) && is_there(7) && is_there(8) && is_there(9) && is_there(10))
#define ARRIVES(word) d_step { late[word] != NONE -> memory[word] = late[word]; late[word] = NONE }

proctype arrivals() {
  byte word, value;
end:
  do
  :: ARRIVES(0) :: ARRIVES(1) :: ARRIVES(2) :: ARRIVES(3) :: ARRIVES(4)
  :: ARRIVES(5) :: ARRIVES(6) :: ARRIVES(7) :: ARRIVES(8) :: ARRIVES(10)
  :: d_step { late[UAR] != NONE -> memory[UAR] = late[UAR]; late[UAR] = NONE; DOORBELL }
  :: d_step { writes ? word, value ->
       if
       :: word == FETCHED -> fetched = value
       :: else -> cq[word] = value
       fi; word = 0; value = 0 }
#ifdef NIC_UNORDERED
  :: d_step { len(writes) > 1 -> writes ? word, value; writes ! word, value; word = 0; value = 0 }
#endif
  od
}

#define valid(index) (cq[(index) % CQES] != NONE && cq[(index) % CQES] / COUNTERS == ((index) / CQES) % 2)

byte ticket;            /* the caller's next */
byte done;              /* all below are complete */
byte rung;

inline ring() {
#ifndef NO_FENCE
  (arrived);
#endif
#ifdef RECORD_LEFT_BEHIND
  skip;
#else
  store(DBR, ticket % COUNTERS);
#endif
#if defined(RECORD_FIRST) && !defined(ONE_FENCE)
  (arrived);
#endif
  store(UAR, ticket % COUNTERS);
  rung = ticket
}

/* Takes one CQE, for which it waits. */
inline take_cqe() {
#ifndef WAITS_UNRUNG
  if
  :: rung != ticket && !valid(taken_cqes) -> ring()
  :: else
  fi;
#endif
  atomic {
    valid(taken_cqes) ->
    start = cq[taken_cqes % CQES] % COUNTERS;
    done = done + (start + COUNTERS - done % COUNTERS) % COUNTERS + 1;
    taken_cqes++;
    start = 0;
    if
    :: taken_cqes - reported > CQES / 4 -> reported = taken_cqes; store(CQ_DBR, taken_cqes)
    :: else
    fi
  }
}

proctype caller() {
  byte start, kind, asks, cached;
  do
  :: ticket < N ->
     do
     :: ticket >= done + LIMIT || ticket >= done + BLOCKS -> take_cqe()
     :: else -> break
     od;
     if
     :: kind = PUT; store(SLOT(ticket), ticket + 1)
#ifndef PUTS_ONLY
     :: kind = GET
#endif
     fi;
     asks = ((ticket + 1) % PERIOD == 0 || kind == GET || ticket + 1 == N -> 1 : 0);
     store(WQE(ticket), ENTRY(ticket, kind, asks));
     cached = fetched; /* L1 may hold what was there until now */
     ticket++;
     if
     :: ring()
     :: skip /* deferred, for a later one */
     fi;
     if
     :: kind == GET ->
        do
        :: done < ticket -> take_cqe()
        :: else -> break
        od;
#ifdef NO_ACQUIRE
        assert(cached == ticket);
#else
        assert(fetched == ticket);
#endif
     :: else
     fi;
     kind = 0; asks = 0; cached = 0
  :: else -> break
  od;
  do
  :: done < N -> take_cqe()
  :: else -> break
  od
}

byte producer, consumed, acknowledged; /* WQEs told of, fetched, complete */
byte entry[SQ];                        /* those between the last two */
bit sent[SQ];                          /* their payload was read */

#define is_own(t) (entry[(t) % SQ] / 2 % 2 == GET || memory[SLOT(t)] == (t) + 1)
/* A payload is read as often as the NIC likes. Once it was, another look counts only if it shows another's. */
#define SENDS(i) atomic { acknowledged + i < consumed && \
                          (!sent[(acknowledged + i) % SQ] || !is_own(acknowledged + i)) -> \
                          assert(is_own(acknowledged + i)); sent[(acknowledged + i) % SQ] = 1 }

/* An index counts if it is ahead, and at most a queue ahead. */
inline told(index) {
  ahead = (index + COUNTERS - consumed % COUNTERS) % COUNTERS;
  if
  :: ahead <= SQ && consumed + ahead > producer -> producer = consumed + ahead
  :: else
  fi;
  ahead = 0
}

proctype nic() {
  byte seen, record, ahead, cqes, late_read;
end:
  do
#ifdef STRICT
  :: atomic { doorbell -> doorbell = false; told(memory[DBR]) }
#else
  /* The register and then the record, and nothing between them. It looks when a register of the page has changed,
   * and so in a page that others use as well at any time; here the record says when, where that harms nobody. */
#if defined(LARGE) && !defined(WAITS_FOR_REGISTER)
  :: memory[DBR] != record -> /* at every step: a register has its bytes again after two rings */
#elif defined(OWN_PAGE) || defined(LARGE)
  :: memory[UAR] != seen ->
#else
  :: memory[UAR] != seen || memory[DBR] != record ->
#endif
     atomic {
       if
       :: memory[UAR] != seen -> seen = memory[UAR];
#ifndef LARGE
          told(seen)
#endif
       :: else
       fi
     };
     atomic {
       if
       :: memory[DBR] != record -> record = memory[DBR]; told(record)
       :: else
       fi
     }
#endif
  :: atomic { consumed < producer ->
       assert(memory[WQE(consumed)] / 4 == consumed + 1); /* the ticket's own WQE */
       entry[consumed % SQ] = memory[WQE(consumed)];
       sent[consumed % SQ] = 0;
       consumed++ }
  :: SENDS(0) :: SENDS(1) :: SENDS(2) :: SENDS(3)
#ifdef COMPLETES_EARLY
  :: atomic { acknowledged < consumed && late_read == 0 && len(writes) < 3 ->
       if
       :: entry[acknowledged % SQ] / 2 % 2 == PUT -> late_read = acknowledged + 1
       :: else
       fi;
#elif defined(NEVER_COMPLETES)
  :: atomic { false ->
#else
  :: atomic { acknowledged < consumed && sent[acknowledged % SQ] && len(writes) < 3 ->
#endif
       if
       :: entry[acknowledged % SQ] / 2 % 2 == GET -> writes ! FETCHED, acknowledged + 1
       :: else
       fi;
       if
       :: entry[acknowledged % SQ] % 2 ->
          assert(cqes - memory[CQ_DBR] < CQES);
          writes ! (cqes % CQES), ((cqes / CQES) % 2) * COUNTERS + acknowledged % COUNTERS;
          cqes++
       :: else
       fi;
       entry[acknowledged % SQ] = 0;
       sent[acknowledged % SQ] = 0;
       acknowledged++ }
#ifdef COMPLETES_EARLY
  :: atomic { late_read != 0 -> assert(memory[SLOT(late_read - 1)] == late_read); late_read = 0 }
#endif
  od
}

init {
  atomic {
    byte i;
    for (i : 0 .. WORDS - 1) { late[i] = NONE }
    for (i : 0 .. CQES - 1) { cq[i] = NONE }
    i = 0;
    run arrivals(); run caller(); run nic()
  }
}
