/* In-band slots (docs/protocol.md, section 8): neither fence nor doorbell, the lines of a slot say by their
 * sequence when it is whole. As in push.pml a store arrives at any time, in any order between lines; a line
 * arrives whole. The NIC may look at a line before those in front of it are there, as lanes of a GPU do.
 *
 * What must hold: whatever the NIC takes for a ticket's lines are that ticket's, each time it reads them,
 * until the peer has acknowledged them; it never sees a line ahead of what it expects; and the caller comes
 * to its end. No step leads back to a state that was, so that whoever does not stop comes to an end. Sequences
 * cycle through 1 to CYCLE, here several times.
 *
 * Without a part something of that fails: NO_CREDITS, NO_SCRUB, ONE_SCRUB_LAP, ALL_CLEARED_AT_ONE, UNFENCED_SCRUB,
 * NOT_CLEARED, TORN, DATA_FIRST, COMPLETES_EARLY, NEVER_COMPLETES, SELDOM_SIGNALLED.
 *
 * Left out: callers that share the queue pair, messages of several slots, errors, CQEs that are under way.
 */

#ifndef N
#define N 10            /* tickets */
#endif
#define SLOTS 2
#define LINES 2         /* of a slot */
#ifndef CYCLE
#define CYCLE 3
#endif
#define FIRST 3         /* sequence of the first lap */
#if defined(NO_SCRUB) || defined(ALL_CLEARED_AT_ONE)
#define SCRUB_LAPS 0
#elif defined(ONE_SCRUB_LAP)
#define SCRUB_LAPS 1
#else
#define SCRUB_LAPS 2    /* of a cycle, from its first on */
#endif
#define CQES 4
#define COUNTERS 8
#ifdef NO_CREDITS
#define LIMIT (SLOTS + 1)
#else
#define LIMIT SLOTS
#endif
#ifdef SELDOM_SIGNALLED
#define PERIOD 4
#else
#define PERIOD 1
#endif
#define ALL (SLOTS * LINES)
#define LINE(t, i) (((t) % SLOTS) * LINES + (i))
#define SEQUENCE(t) ((FIRST - 1 + (t) / SLOTS) % CYCLE + 1)
/* What a line says beside its sequence: whose it is, and in the first one how many lines there are. */
#define DATA(t, i, lines) (((t) + 1) * 4 + ((i) == 0 -> (lines) : 0))
#define NONE 255

byte sequence[ALL], data[ALL];           /* the window as the NIC reads it */
byte late_sequence[ALL], late_data[ALL]; /* lines under way */
byte cq[CQES];                           /* counter, and lap */
byte taken_cqes;

#ifdef TORN
#define ARRIVES(i) d_step { late_sequence[i] != NONE -> sequence[i] = late_sequence[i]; late_sequence[i] = NONE } \
                :: d_step { late_data[i] != NONE -> data[i] = late_data[i]; late_data[i] = NONE }
#else
#define ARRIVES(i) d_step { late_sequence[i] != NONE -> sequence[i] = late_sequence[i]; late_sequence[i] = NONE; \
                            data[i] = late_data[i]; late_data[i] = NONE }
#endif

proctype arrivals() {
end:
  do
  :: ARRIVES(0) :: ARRIVES(1) :: ARRIVES(2) :: ARRIVES(3)
  od
}

#define valid(index) (cq[(index) % CQES] != NONE && cq[(index) % CQES] / COUNTERS == ((index) / CQES) % 2)

#define clear_line(i) d_step { late_sequence[LINE(ticket, i)] = 0; late_data[LINE(ticket, i)] = 0 }
#define store_line(i) d_step { late_sequence[LINE(ticket, i)] = SEQUENCE(ticket); \
                               late_data[LINE(ticket, i)] = DATA(ticket, i, lines) }

proctype caller() {
  byte ticket, done, lines, i;
  do
  :: ticket < N ->
     do
     :: ticket >= done + LIMIT ->
        atomic {
          valid(taken_cqes) ->
          i = cq[taken_cqes % CQES] % COUNTERS;
          done = done + (i + COUNTERS - done % COUNTERS) % COUNTERS + 1;
          taken_cqes++;
          i = 0
        }
     :: else -> break
     od;
     if
     :: lines = 1
     :: lines = 2
     fi;
     if
     :: lines == 1 && SEQUENCE(ticket) <= SCRUB_LAPS -> /* first the line behind them */
        clear_line(1);
#ifndef UNFENCED_SCRUB
        late_sequence[LINE(ticket, 1)] == NONE
#endif
#ifdef ALL_CLEARED_AT_ONE /* one lap, but the stream's lines too: a NIC may have looked before */
     :: SEQUENCE(ticket) == 1 ->
        clear_line(0);
        clear_line(1);
        late_sequence[LINE(ticket, 0)] == NONE && late_sequence[LINE(ticket, 1)] == NONE
#endif
     :: else
     fi;
     store_line(0);
     if
     :: lines == 2 -> store_line(1)
     :: else
     fi;
     ticket++
  :: else -> break
  od;
  do
  :: done < N -> /* the last one asks for a CQE */
     atomic {
       valid(taken_cqes) ->
       i = cq[taken_cqes % CQES] % COUNTERS;
       done = done + (i + COUNTERS - done % COUNTERS) % COUNTERS + 1;
       taken_cqes++;
       i = 0
     }
  :: else -> break
  od
}

byte expected, acknowledged; /* tickets taken, and complete */

#define is_own(t) (data[LINE(t, 0)] / 4 == (t) + 1 && \
                   (data[LINE(t, 0)] % 4 < 2 || data[LINE(t, 1)] / 4 == (t) + 1))
/* As often as the NIC likes: a look counts only if it shows another's. */
#define SENDS_AGAIN(i) atomic { acknowledged + i < expected && !is_own(acknowledged + i) -> \
                                assert(is_own(acknowledged + i)) }

/* A line's data are found, and taken. */
inline takes() {
  assert(found / 4 == expected + 1);
  if
  :: have == 0 -> wants = found % 4
  :: else
  fi;
  found = 0;
  have++;
  if
  :: have == wants -> have = 0; wants = 1; ahead = 0; expected++
  :: else
  fi
}

proctype nic() {
  byte have, wants = 1, found, ahead, cqes, late_read;
end:
  do
  /* Line after line: its sequence, and then its data. */
#ifdef DATA_FIRST
  :: atomic { expected < N -> found = data[LINE(expected, have)] };
     if
     :: sequence[LINE(expected, have)] == SEQUENCE(expected)
     :: else -> goto end
     fi;
#else
  :: expected < N && sequence[LINE(expected, have)] == SEQUENCE(expected) ->
     found = data[LINE(expected, have)];
#endif
     atomic { takes() }
  /* The last line before the first one: sequence and data by one load, which counts if the sequence is right. */
  :: atomic { expected < N && have == 0 && ahead == 0 && sequence[LINE(expected, 1)] == SEQUENCE(expected) ->
              ahead = data[LINE(expected, 1)] }
  :: atomic { have == 1 && ahead != 0 -> found = ahead; takes() }
  /* A first line ahead of its ticket is an overrun. */
  :: atomic { have == 0 && expected < N &&
              sequence[LINE(expected, 0)] == SEQUENCE(expected + SLOTS) && CYCLE > 2 -> assert(false) }
  :: SENDS_AGAIN(0) :: SENDS_AGAIN(1)
#ifdef COMPLETES_EARLY
  :: atomic { acknowledged < expected && late_read == 0 -> late_read = acknowledged + 1;
#elif defined(NEVER_COMPLETES)
  :: atomic { false ->
#else
  :: atomic { acknowledged < expected ->
#endif
       if
       :: (acknowledged + 1) % PERIOD == 0 || acknowledged + 1 == N ->
          assert(cqes - taken_cqes < CQES);
          cq[cqes % CQES] = ((cqes / CQES) % 2) * COUNTERS + acknowledged % COUNTERS;
          cqes++
       :: else
       fi;
       acknowledged++ }
#ifdef COMPLETES_EARLY
  :: atomic { late_read != 0 -> assert(data[LINE(late_read - 1, 0)] / 4 == late_read); late_read = 0 }
#endif
  od
}

init {
  atomic {
    byte i;
    for (i : 0 .. ALL - 1) {
      late_sequence[i] = NONE; late_data[i] = NONE;
#ifdef NOT_CLEARED
      sequence[i] = FIRST; data[i] = 252 + (i % LINES == 0 -> 1 : 0) /* an earlier user's */
#endif
    }
    for (i : 0 .. CQES - 1) { cq[i] = NONE }
    i = 0;
    run arrivals(); run caller(); run nic()
  }
}
