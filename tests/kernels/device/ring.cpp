// Ready words, and who rings.
#include <atomic>
#include <string>
#include <vector>

#include <bellpush/impl/order.cuh>
#include "check.hpp"
#include "host/threads.hpp"

namespace bp {

struct event {
  const uint32_t* word;  // stored; null: a fence before a doorbell
  uint32_t value;        // of a fence: whether it has system scope
};
std::vector<event> events;

void seen_store(uint32_t* p, uint32_t v) {
  events.push_back({p, v});
  st_relaxed_gpu(p, v);
}
void seen_store(uint64_t* p, uint64_t v) { st_relaxed_gpu(p, v); }
template <reach R>
void seen_fence() {
  events.push_back({nullptr, R == reach::system});
}

// A word that this look does not see yet, and what it sees there.
const uint32_t* late_word;
uint32_t late_value;
std::atomic<uint32_t> words_seen;
uint32_t seen_load(const uint32_t* p) {
  words_seen++;
  return p == late_word ? late_value : ld_relaxed_gpu(p);
}
uint64_t seen_load(const uint64_t* p) { return ld_relaxed_gpu(p); }

// What a ringer does: an acquire, a doorbell.
std::string steps;
std::vector<uint32_t> acquired_at;  // words seen by then
void seen_acquire() {
  steps += 'a';
  acquired_at.push_back(words_seen);
}

void (*at_doorbell)(uint64_t bell);
void seen_doorbell(uint64_t*, uint64_t v) {
  steps += 'd';
  at_doorbell(v);
}

}  // namespace bp

#define st_relaxed_gpu seen_store
#define ld_relaxed_gpu seen_load
#define fence_before_doorbell seen_fence
#define fence_acquire_gpu seen_acquire
#define st_mmio seen_doorbell
#include <bellpush/bellpush.cuh>

using P = bp::path<bp::data::pull, bp::kick::kernel, bp::share::shared>;
using alone = bp::path<bp::data::pull, bp::kick::kernel, bp::share::exclusive>;
constexpr uint32_t blocks_log = 6, blocks_all = 1 << blocks_log;
constexpr bp::thread_scope one;

struct queue {
  alignas(64) uint8_t sq[blocks_all * 64] = {};
  uint32_t ready[blocks_all] = {};
  uint32_t dbr[16] = {};
  alignas(64) bp_cqe64 cqes[4] = {};
  bp_qp_state state = {};
  bp_status status = {};
  bp_qp qp = {};
  queue() {
    for (uint32_t i = 0; i < blocks_all; i++) ready[i] = i;  // as the host does
    qp.sq = (uint64_t)sq;
    qp.ready = (uint64_t)ready;
    qp.dbr = qp.cq_dbr = (uint64_t)dbr;
    qp.state = (uint64_t)&state;
    qp.status = (uint64_t)&status;
    qp.cq = (uint64_t)cqes;
    qp.cq_log = 2;
    qp.sq_log = blocks_log;
    qp.credit_period = 8;
    qp.timeout_ns = 1000000000;
    for (bp_cqe64& cqe : cqes) cqe.op_own = 0xf0;
    rung = bells = 0;
    bp::at_doorbell = note_bell;
    bp::late_word = nullptr;
  }
  void cqe(uint32_t n, uint8_t counter) {
    cqes[n].op_own = 0;
    reinterpret_cast<uint8_t*>(&cqes[n])[61] = counter;  // wqe_counter's low half
  }
  uint64_t take(uint32_t blocks) { return bp::atomic_add(&state.reserved, blocks); }
  void make_ready(uint64_t ticket, uint32_t blocks = 1) { bp::mark_shared<P, false>(qp, one, ticket, 1, blocks); }
  void ring(uint64_t ticket, uint32_t blocks = 1) {
    bp::ring_shared<P>(qp, one, bp::ask_ring<P>(qp), ticket, ticket + blocks);
  }
  bool is_at(uint64_t ticket, uint64_t bits = 0) const { return state.ring == (ticket << bp::ring_shift | bits); }

  static uint32_t rung, bells;
  static void note_bell(uint64_t bell) {
    rung = __builtin_bswap32((uint32_t)bell) >> 8;
    bells++;
  }
};
uint32_t queue::rung, queue::bells;

// All words say the WQE's end. The words behind a WQE's first come before a fence, and the first ones after it: that
// fence has the scope that the NIC needs, because whoever rings has none for this caller's stores.
template <class Path>
void words_behind_the_first_come_before_it() {
  queue q;
  bp::events.clear();
  const uint64_t ticket = 62;  // over the ring's end
  bp::mark_shared<Path, false>(q.qp, one, ticket, 2, 3);
  uint32_t fences = 0, words = 0;
  for (const bp::event& e : bp::events) {
    if (e.word == nullptr) {
      fences++;
      CHECK(e.value == (Path::reach_v == bp::reach::system));
      continue;
    }
    words++;
    const bool is_first = e.word == bp::ready_word(q.qp, ticket) || e.word == bp::ready_word(q.qp, ticket + 3);
    CHECK(fences == is_first);
  }
  CHECK(fences == 1 && words == 6);
  for (uint32_t b = 0; b < 6; b++) CHECK(*bp::ready_word(q.qp, ticket + b) == ticket + (b < 3 ? 3 : 6));
}

// A word of the lap before gives back no credit of this one.
void a_stale_word_gives_no_credit() {
  for (const uint32_t stale : {100u - 64 + 2, 100u, 100u + 17, 0u}) {
    queue q;
    *bp::ready_word(q.qp, 100) = stale;
    q.cqe(0, 100);
    bp::cq_cursor c{0, 0, 100, 0};
    CHECK(bp::take_cqes<P>(q.qp, &c, 110) == bp::found::cqe);
    CHECK(c.done == 101);
  }
  queue q;
  *bp::ready_word(q.qp, 100) = 116;
  q.cqe(0, 100);
  bp::cq_cursor c{0, 0, 100, 0};
  CHECK(bp::take_cqes<P>(q.qp, &c, 110) == bp::found::cqe);
  CHECK(c.done == 116);
}

// A wait that needs no more than a WQE's first block takes its CQE, and records the whole WQE; one for that comes after.
template <class Path>
void nobodys_cqe_is_missed() {
  queue q;
  q.state.reserved = q.state.signalled = 4;
  q.state.ring = 4 << bp::ring_shift;
  if constexpr (Path::shared) {
    q.make_ready(0);
    q.make_ready(1, 3);
  } else {
    bp::mark_exclusive<Path>(q.qp, 0, 1, 1, 0);
    bp::mark_exclusive<Path>(q.qp, 1, 1, 3, 0);
  }
  q.cqe(0, 1);
  CHECK(bp::wait_done<Path>(q.qp, 1) == BP_OK);
  CHECK(q.state.cq_ci == 1 && q.state.done == 4);
  CHECK(bp::wait_done<Path>(q.qp, 4) == BP_OK);
  CHECK(q.state.cq_ci == 1 && q.state.done == 4);
  CHECK(bp::poll_cq<Path>(q.qp, 4) == 4);
}

// In-band there are no ready words: after 2^32 tickets too, a slot's CQE completes that slot alone.
void a_slot_is_one_ticket() {
  using inband = bp::path<bp::data::push, bp::kick::inband, bp::share::exclusive>;
  queue q;
  q.qp.timeout_ns = 1000000;
  for (uint64_t back = 0; back < 20; back++) {
    q.state.done = ((uint64_t)1 << 32) - back;
    CHECK(bp::poll_cq<inband>(q.qp, q.state.done + 1) == q.state.done);
    CHECK(bp::wait_done<inband>(q.qp, q.state.done + 1) == BP_TIMEOUT);
  }
}

// Who finds its own WQE next, and no mark, looks at no ready word.
void one_alone_rings_without_a_look() {
  queue q;
  const uint64_t a = q.take(3);
  q.make_ready(a, 3);
  bp::words_seen = 0;
  q.ring(a, 3);
  CHECK(q.rung == 3 && q.bells == 1 && q.is_at(3) && bp::words_seen == 0);
}

// A gap before a WQE: its caller leaves, and the gap's rings for both.
void a_gaps_caller_rings_for_those_behind_it() {
  queue q;
  const uint64_t a = q.take(1), b = q.take(2);
  q.make_ready(b, 2);
  q.ring(b, 2);
  CHECK(q.bells == 0 && q.is_at(0, bp::ring_left));
  q.make_ready(a);
  bp::steps.clear();
  bp::words_seen = 0;
  bp::acquired_at = {};
  q.ring(a);
  CHECK(q.bells == 1 && q.rung == 3 && q.is_at(3));
  // What was left, before the look; what was seen, before the doorbell.
  CHECK(bp::steps == "aad" && bp::acquired_at[0] == 0 && bp::acquired_at[1] == bp::words_seen);
}

// Of two gaps, the first one's caller leaves the mark to the second's.
void a_mark_outlasts_a_caller_that_cannot_ring_for_all() {
  queue q;
  const uint64_t a = q.take(1), b = q.take(1), c = q.take(1);
  q.make_ready(c);
  q.ring(c);
  q.make_ready(a);
  q.ring(a);
  CHECK(q.rung == 1 && q.is_at(1, bp::ring_left));
  q.make_ready(b);
  q.ring(b);
  CHECK(q.rung == 3 && q.bells == 2 && q.is_at(3));
}

// While one rings, others post without an end: it looks once, and goes.
queue* busy;
void a_ringer_does_not_ring_for_ever() {
  queue q;
  busy = &q;
  q.make_ready(q.take(1));
  const uint64_t second = q.take(1);
  q.make_ready(second);
  bp::at_doorbell = [](uint64_t bell) {
    queue::note_bell(bell);
    if (queue::bells < 1000) busy->make_ready(busy->take(1));
  };
  q.ring(second);
  CHECK(q.bells == 1 && q.rung == 2 && q.is_at(2));
  q.ring(2);  // nobody's doorbell is lost
  CHECK(q.bells == 2 && q.rung == 3 && q.is_at(3));
}

// Whoever finds another ringing stays until its WQE is rung, or until it rings itself.
void a_poster_outlasts_whoever_rings() {
  static queue q;
  static uint32_t yields;
  static uint64_t given_back;
  bp_host_grid* grid = bp_host_current()->grid;
  grid->hooks.yield = [](void*) {
    if (++yields == 3) q.state.ring = given_back;
  };
  for (const bool for_both : {true, false}) {
    const uint64_t a = q.take(1), b = q.take(1);
    q.state.ring = a << bp::ring_shift | bp::ring_held;
    given_back = (for_both ? b + 1 : a + 1) << bp::ring_shift;
    q.make_ready(b);
    yields = queue::bells = 0;
    q.ring(b);
    CHECK(yields == 3 && q.bells == (for_both ? 0 : 1) && q.is_at(b + 1));
  }
}

// One that has the word and does not run ends the queue pair, in time, for everybody.
// Who waits for completions neither waits for the word `ring` nor takes it where nothing is ready: hundreds that did
// would keep it from a poster.
void a_wait_does_not_wait_to_ring() {
  queue q;
  q.take(4);
  q.make_ready(0);
  q.state.ring |= bp::ring_held;
  bp::ring_ready<P>(q.qp);  // held: returns at once
  CHECK(q.is_at(0, bp::ring_held) && q.bells == 0 && q.state.error == BP_OK);
  q.state.ring = 0;
  bp::ring_ready<P>(q.qp);
  CHECK(q.is_at(1) && q.bells == 1 && q.rung == 1);
  bp::words_seen = 0;
  bp::ring_ready<P>(q.qp);  // a gap: one look at its word, and `ring` is not taken
  CHECK(q.is_at(1) && q.bells == 1 && bp::words_seen == 1);
  q.make_ready(2);
  q.state.ring |= bp::ring_left;
  q.make_ready(1);
  bp::ring_ready<P>(q.qp);  // keeps the mark for the gap behind
  CHECK(q.is_at(3, bp::ring_left) && q.bells == 2);
}

void a_ringer_that_does_not_run_ends_the_queue_pair() {
  queue q;
  bp_host_current()->grid->hooks.yield = [](void*) {};
  q.qp.timeout_ns = 2000000;
  q.state.ring = bp::ring_held;
  q.make_ready(q.take(1));
  q.ring(0);
  CHECK(q.bells == 0 && q.state.error == BP_DEAD && q.status.code == BP_TIMEOUT && q.status.ticket == 1);
}

// Deferred posts are rung for by ring(), a later post, a wait; and what lies behind a gap by the gap's caller.
void deferred_posts_are_rung_for() {
  bp_endpoint ep = {};
  ep.tag = P::tag_v;
  queue q;
  const auto defer = [&] {
    const uint64_t ticket = q.take(1);
    q.make_ready(ticket);
    return ticket;
  };
  const auto ring = [&] {
    ep.qp = q.qp;
    bp::ring<P>(ep, one);
  };
  defer();
  defer();
  ring();
  CHECK(q.bells == 1 && q.rung == 2);
  ring();
  CHECK(q.bells == 1);

  defer();
  const uint64_t later = defer();
  q.ring(later);
  CHECK(q.bells == 2 && q.rung == 4 && q.is_at(4));

  defer();
  busy = &q;
  bp::at_doorbell = [](uint64_t bell) {
    queue::note_bell(bell);
    busy->cqe(0, 4);
  };
  bp_host_current()->grid->hooks.yield = [](void*) {};
  CHECK(bp::wait_done<P>(q.qp, 5) == BP_OK);
  CHECK(q.bells == 3 && q.rung == 5);

  const uint64_t gap = q.take(1);
  defer();
  ring();  // and goes
  CHECK(q.bells == 3 && q.is_at(5, bp::ring_left));
  q.make_ready(gap);
  q.ring(gap);
  CHECK(q.bells == 4 && q.rung == 7 && q.is_at(7));
}

// A look finds all that is ready without a gap: over the ring's end, and where the word behind a WQE's first is seen
// late, as it may be before the acquire.
constexpr uint64_t scan_from = ((uint64_t)1 << 32) - 39;
uint32_t scan_lengths[] = {1, 3, 1, 1, 16, 2, 4, 1, 1, 1, 4, 1, 1, 1, 1, 1,
                           1, 1, 1, 1, 2,  1, 1, 1, 1, 3, 1, 1, 1, 2, 1, 5};

struct scan_args {
  const bp_qp* qp;
  uint64_t end;
};
std::atomic<uint32_t> wrong;
size_t scan_by_warps(const void* a) noexcept {
  if (a != nullptr) {
    const scan_args& args = *(const scan_args*)a;
    wrong += bp::scan_ready(*args.qp, bp::warp_scope{}, scan_from) != args.end;
  }
  return sizeof(scan_args);
}

// The first `n` WQEs are ready.
void a_look_finds_what_is_ready(uint32_t n, uint32_t threads) {
  queue q;
  uint64_t end = scan_from;
  for (uint32_t i = 0; i < blocks_all; i++) *bp::ready_word(q.qp, scan_from + i) = (uint32_t)(scan_from + i - 63);
  std::vector<uint64_t> middle = {scan_from + 99};  // none
  for (uint32_t i = 0; i < n; i++) {
    q.make_ready(end, scan_lengths[i]);
    for (uint32_t b = 1; b < scan_lengths[i]; b++) middle.push_back(end + b);
    end += scan_lengths[i];
  }
  CHECK(end <= scan_from + blocks_all);
  for (const uint64_t ticket : middle) {
    bp::late_word = ticket == scan_from + 99 ? nullptr : bp::ready_word(q.qp, ticket);
    bp::late_value = (uint32_t)(ticket - 63);
    CHECK(bp::scan_ready(q.qp, one, scan_from) == end);
    wrong = 0;
    // A thread a lane is dear: one word of each WQE.
    if (ticket % 3 == 0) bp_host::run_threads(scan_by_warps, 1, threads, 0, scan_args{&q.qp, end});
    CHECK(wrong == 0);
  }
}

// A queue pair of one caller: the words say where a long WQE ends, and no word of one is older than a lap.
struct poster {
  queue q;
  bp_endpoint ep = {};
  uint8_t payload[220] = {};
  explicit poster(uint64_t start) {
    q.state.reserved = q.state.done = q.state.rung = start;
    ep.tag = alone::tag_v;
    ep.remote_bytes = 1 << 20;
  }
  // Returns how many ready words it wrote.
  uint32_t put(uint32_t bytes) {
    ep.qp = q.qp;
    bp::events.clear();
    CHECK(bp::put_inline<alone>(ep, one, 0, payload, bytes) == BP_OK);
    q.state.done = q.state.reserved;
    uint32_t words = 0;
    for (const bp::event& e : bp::events) words += e.word != nullptr;
    return words;
  }
  // Where a WQE that begins at `start` ends, as a wait sees it.
  uint64_t end_of(uint64_t start) {
    bp::cq_cursor c{0, 0, start + 1, q.state.marked};
    bp::settle<alone>(q.qp, &c, start, 0);
    return c.done;
  }
};

void words_follow_a_long_wqe_for_a_lap() {
  const uint64_t two_32 = (uint64_t)1 << 32;
  for (const uint64_t start : {(uint64_t)0, (uint64_t)61, two_32 - 66, two_32 - 3, two_32 - 1}) {
    poster p(start);
    CHECK(p.put(8) == 0 && p.put(8) == 0);
    CHECK(p.put(100) == 3);
    const uint64_t end = p.q.state.reserved;
    CHECK(p.end_of(end - 3) == end && p.end_of(end - 1) == end);
    for (uint32_t n = 0; n < blocks_all; n++) CHECK(p.put(8) == 1);
    for (uint32_t n = 0; n < 3 * blocks_all; n++) CHECK(p.put(8) == 0);
    // No word that was left there counts, as long as the queue pair lives.
    const uint64_t next = p.q.state.reserved;
    for (const uint64_t later : {(uint64_t)0, two_32 - 4 * blocks_all, two_32, 3 * two_32}) {
      p.q.state.reserved = p.q.state.done = next + later;
      for (uint32_t n = 0; n < blocks_all; n++) {
        CHECK(p.put(8) == 0);
        CHECK(p.end_of(p.q.state.done - 1) == p.q.state.done);
      }
    }
  }
}

// The UAR is never this GPU's memory, wherever the queues lie.
void blueflame_has_system_scope() {
  using bp::reach;
  using flame = bp::path<bp::data::push, bp::kick::blueflame, bp::share::exclusive, reach::gpu>;
  using kernel = bp::path<bp::data::push, bp::kick::kernel, bp::share::exclusive, reach::gpu>;
  CHECK(flame::reach_v == reach::system);
  CHECK(kernel::reach_v == reach::gpu);
}

int main() {
  using near = bp::path<bp::data::pull, bp::kick::kernel, bp::share::shared, bp::reach::gpu>;
  words_behind_the_first_come_before_it<P>();
  words_behind_the_first_come_before_it<near>();
  a_stale_word_gives_no_credit();
  a_slot_is_one_ticket();
  nobodys_cqe_is_missed<P>();
  nobodys_cqe_is_missed<alone>();
  one_alone_rings_without_a_look();
  a_gaps_caller_rings_for_those_behind_it();
  a_mark_outlasts_a_caller_that_cannot_ring_for_all();
  a_ringer_does_not_ring_for_ever();
  a_poster_outlasts_whoever_rings();
  a_wait_does_not_wait_to_ring();
  a_ringer_that_does_not_run_ends_the_queue_pair();
  deferred_posts_are_rung_for();
  for (const uint32_t n : {0u, 1u, 5u, 6u, 7u, 20u, 31u, 32u}) a_look_finds_what_is_ready(n, 39);
  words_follow_a_long_wqe_for_a_lap();
  blueflame_has_system_scope();
}
