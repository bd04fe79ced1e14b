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
 * there when its wait returns; the CQ never overflows; and the caller comes to its end.
 *
 * Each part of the protocol can be taken away by a macro, and then something of that fails:
 * NO_FENCE, ONE_FENCE (with STRICT), NO_CREDITS, COMPLETES_EARLY, PERIOD_OF_THE_RING, SHORT_COUNTERS, NO_ACQUIRE,
 * NIC_UNORDERED, RECORD_LEFT_BEHIND, WAITS_UNRUNG. STRICT is silicon's order: the record alone counts, and
 * is read when the register is rung.
 */

#ifndef N
#define N 10            /* tickets */
#endif
#define SQ 4            /* basic blocks of the send queue */
#ifndef SLOTS
#define SLOTS 2         /* slots of the window, at most 4 */
#endif
#ifdef PERIOD_OF_THE_RING
#define PERIOD 4        /* asks for CQEs too seldom for a window of two slots */
#else
#define PERIOD (SLOTS / 2)
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
#define CQES 4
#ifdef NO_CREDITS
#define LIMIT 4
#else
#define LIMIT SLOTS
#endif

#define WQE(t) ((t) % SQ)
#define SLOT(t) (SQ + (t) % SLOTS)
#define DBR 8
#define UAR 9
#define WORDS 10
#define NONE 255

#define PUT 0
#define GET 1
/* A WQE as one word: ticket + 1, kind, signalled. A slot: ticket + 1. */
#define ENTRY(t, kind, asks) (((t) + 1) * 4 + (kind) * 2 + (asks))

byte memory[WORDS];     /* as the NIC reads it */
byte late[WORDS];       /* the GPU's stores under way */
byte cq[CQES];          /* as the GPU reads it */
byte fetched;           /* what gets bring, as the GPU reads it */
chan writes = [4] of { byte, byte }; /* the NIC's writes under way: place (a CQE, or CQES for `fetched`), value */
byte taken_cqes;        /* by the caller */

#define store(word, value) late[word] = value
bool doorbell;          /* the register was stored to, as silicon sees it */
#ifdef STRICT
#define DOORBELL doorbell = true
#else
#define DOORBELL skip
#endif

#define is_there(word) (late[word] == NONE)
#define arrived (is_there(0) && is_there(1) && is_there(2) && is_there(3) && is_there(4) && is_there(5) && \
                 is_there(6) && is_there(7) && is_there(8) && is_there(9))
#define ARRIVES(word) d_step { late[word] != NONE -> memory[word] = late[word]; late[word] = NONE }

proctype arrivals() {
  byte word, value;
end:
  do
  :: ARRIVES(0) :: ARRIVES(1) :: ARRIVES(2) :: ARRIVES(3) :: ARRIVES(4)
  :: ARRIVES(5) :: ARRIVES(6) :: ARRIVES(7) :: ARRIVES(8)
  :: d_step { late[UAR] != NONE -> memory[UAR] = late[UAR]; late[UAR] = NONE; DOORBELL }
  :: d_step { writes ? word, value ->
       if
       :: word == CQES -> fetched = value
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
    start = 0
  }
}

proctype caller() {
  byte start, kind, asks, cached;
  do
  :: ticket < N ->
     do
     :: ticket >= done + LIMIT || ticket >= done + SQ -> take_cqe()
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
  byte seen, record, ahead, which, cqes, late_read;
end:
  do
#ifdef STRICT
  :: atomic { doorbell -> doorbell = false; told(memory[DBR]) }
#elif defined(LARGE)
  :: atomic { memory[DBR] != record -> record = memory[DBR]; told(record) }
#else
  /* The register and then the record, and nothing between them. */
  :: memory[UAR] != seen || memory[DBR] != record ->
     atomic {
#ifdef RECORD_ALONE
       if
       :: memory[UAR] != seen -> seen = memory[UAR]; told(seen)
       :: memory[DBR] != record -> record = memory[DBR]; told(record)
       :: else
       fi
     }
#else
       if
       :: memory[UAR] != seen -> seen = memory[UAR]; told(seen)
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
#endif
  :: atomic { consumed < producer ->
       assert(memory[WQE(consumed)] / 4 == consumed + 1); /* the ticket's own WQE */
       entry[consumed % SQ] = memory[WQE(consumed)];
       sent[consumed % SQ] = 0;
       consumed++ }
  :: atomic { acknowledged < consumed ->
       which = acknowledged;
       do
       :: which + 1 < consumed -> which++
       :: break
       od;
       assert(entry[which % SQ] / 2 % 2 == GET || memory[SLOT(which)] == which + 1); /* its own payload */
       sent[which % SQ] = 1;
       which = 0 }
#ifdef COMPLETES_EARLY
  :: atomic { acknowledged < consumed && late_read == 0 && len(writes) < 3 ->
       if
       :: entry[acknowledged % SQ] / 2 % 2 == PUT -> late_read = acknowledged + 1
       :: else
       fi;
#else
  :: atomic { acknowledged < consumed && sent[acknowledged % SQ] && len(writes) < 3 ->
#endif
       if
       :: entry[acknowledged % SQ] / 2 % 2 == GET -> writes ! CQES, acknowledged + 1
       :: else
       fi;
       if
       :: entry[acknowledged % SQ] % 2 ->
          assert(cqes - taken_cqes < CQES);
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
