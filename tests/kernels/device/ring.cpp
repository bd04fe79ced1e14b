// Ready words, and who rings.
#include <vector>

#include <bellpush/impl/order.cuh>
#include "check.hpp"

namespace bp {

struct event {
  const uint32_t* word;  // stored; null: a fence
  uint32_t value;
};
std::vector<event> events;

void seen_store(uint32_t* p, uint32_t v) {
  events.push_back({p, v});
  st_relaxed_gpu(p, v);
}
void seen_store(uint64_t* p, uint64_t v) { st_relaxed_gpu(p, v); }
void seen_fence() { events.push_back({nullptr, 0}); }

void (*at_doorbell)(uint64_t bell);
void seen_doorbell(uint64_t*, uint64_t v) { at_doorbell(v); }

}  // namespace bp

#define st_relaxed_gpu seen_store
#define fence_gpu seen_fence
#define st_mmio seen_doorbell
#include <bellpush/bellpush.cuh>

using P = bp::path<bp::data::pull, bp::kick::kernel, bp::share::shared>;
constexpr uint32_t blocks_log = 6;

struct queue {
  uint32_t ready[1 << blocks_log] = {};
  uint32_t dbr[16] = {};
  alignas(64) bp_cqe64 cqes[4] = {};
  bp_qp_state state = {};
  bp_qp qp = {};
  queue() {
    qp.ready = (uint64_t)ready;
    qp.dbr = (uint64_t)dbr;
    qp.state = (uint64_t)&state;
    qp.cq = (uint64_t)cqes;
    qp.cq_log = 2;
    qp.sq_log = blocks_log;
    qp.timeout_ns = 1000000000;
  }
};

// All words say the WQE's end; of one of several blocks, the first is stored behind a fence that the others are
// before.
void words_behind_the_first_come_before_it() {
  queue q;
  bp::events.clear();
  const uint64_t ticket = 62;  // over the ring's end
  bp::mark_ready<P>(q.qp, ticket, 2, 3);
  std::vector<const uint32_t*> unfenced, stored;
  for (const bp::event& e : bp::events) {
    if (e.word == nullptr) {
      unfenced.clear();
      continue;
    }
    stored.push_back(e.word);
    unfenced.push_back(e.word);
    for (uint32_t i = 0; i < 2; i++) {
      const uint64_t start = ticket + i * 3;
      if (e.word != bp::ready_word(q.qp, start)) continue;
      for (uint32_t b = 1; b < 3; b++) {
        bool before = false, between = true;
        for (const uint32_t* word : stored) before |= word == bp::ready_word(q.qp, start + b);
        for (const uint32_t* word : unfenced) between &= word != bp::ready_word(q.qp, start + b);
        CHECK(before && between);
      }
    }
  }
  for (uint32_t b = 0; b < 6; b++) CHECK(*bp::ready_word(q.qp, ticket + b) == ticket + (b < 3 ? 3 : 6));
}

// A word of the lap before gives back no credit of this one.
void a_stale_word_gives_no_credit() {
  for (const uint32_t stale : {100u - 64 + 2, 100u, 100u + 17, 0u}) {
    queue q;
    *bp::ready_word(q.qp, 100) = stale;
    uint8_t* tail = reinterpret_cast<uint8_t*>(&q.cqes[0]) + 56;
    tail[5] = 100;  // wqe_counter
    bp::cq_cursor c{0, 0, 100};
    CHECK(bp::take_cqe<P>(q.qp, &c, 110) == bp::found::cqe);
    CHECK(c.done == 101);
  }
  queue q;
  *bp::ready_word(q.qp, 100) = 116;
  reinterpret_cast<uint8_t*>(&q.cqes[0])[61] = 100;
  bp::cq_cursor c{0, 0, 100};
  CHECK(bp::take_cqe<P>(q.qp, &c, 110) == bp::found::cqe);
  CHECK(c.done == 116);
}

// A wait that needs no more than a WQE's first block takes its CQE; one for the whole WQE comes after.
template <class Path>
void nobodys_cqe_is_missed() {
  queue q;
  q.state.reserved = q.state.signalled = 4;
  bp::mark_ready<Path>(q.qp, 0, 1, 1);
  bp::mark_ready<Path>(q.qp, 1, 1, 3);
  reinterpret_cast<uint8_t*>(&q.cqes[0])[61] = 1;  // wqe_counter
  for (uint32_t n = 1; n < 4; n++) q.cqes[n].op_own = 0xf0;
  CHECK(bp::wait_done<Path>(q.qp, 1) == BP_OK);
  CHECK(q.state.cq_ci == 1);
  CHECK(bp::wait_done<Path>(q.qp, 4) == BP_OK);
  CHECK(q.state.cq_ci == 1 && q.state.done == 4);
  CHECK(bp::poll_cq<Path>(q.qp, 4) == 4);
}

// In-band there are no ready words: after 2^32 tickets too, a slot's CQE completes that slot alone.
void a_slot_is_one_ticket() {
  using inband = bp::path<bp::data::push, bp::kick::inband, bp::share::exclusive>;
  queue q;
  for (bp_cqe64& cqe : q.cqes) cqe.op_own = 0xf0;
  q.qp.timeout_ns = 1000000;
  for (uint64_t back = 0; back < 20; back++) {
    q.state.done = ((uint64_t)1 << 32) - back;
    CHECK(bp::poll_cq<inband>(q.qp, q.state.done + 1) == q.state.done);
    CHECK(bp::wait_done<inband>(q.qp, q.state.done + 1) == BP_TIMEOUT);
  }
}

// While one rings, others post without an end.
queue* shared;
uint64_t posted, rung;
uint32_t waiting, bells;
constexpr uint32_t most = 1000;

void others_post(uint64_t bell) {
  rung = __builtin_bswap32((uint32_t)bell) >> 8;
  if (++bells == most) return;
  bp::mark_ready<P>(shared->qp, posted, 1, 1);
  posted++;
  // One that finds a last round stays (here: until the holder has returned), others leave.
  if (shared->state.ring_lock == bp::ring_last) waiting++;
}

void a_ringer_does_not_ring_for_ever() {
  queue q;
  shared = &q;
  bp::at_doorbell = others_post;
  bp::mark_ready<P>(q.qp, 0, 1, 1);
  posted = 1;
  bp::ring_pending<P>(q.qp);
  CHECK(bells < most);
  CHECK(q.state.ring_lock == bp::ring_free);
  CHECK(rung == posted || waiting != 0);  // nobody's doorbell is lost
  bp::at_doorbell = [](uint64_t bell) { rung = __builtin_bswap32((uint32_t)bell) >> 8; };
  bp::ring_pending<P>(q.qp);
  CHECK(rung == posted);
}

// And in somebody's last round a poster stays until that one has left.
void a_poster_outlasts_a_last_round() {
  static queue q;
  q.state.ring_lock = bp::ring_last;
  bp::at_doorbell = [](uint64_t bell) { rung = __builtin_bswap32((uint32_t)bell) >> 8; };
  rung = 0;
  bp::mark_ready<P>(q.qp, 0, 1, 1);
  bp_host_grid* grid = bp_host_current()->grid;
  static uint32_t yields;
  grid->hooks.yield = [](void*) {
    if (++yields == 3) q.state.ring_lock = bp::ring_free;
  };
  bp::ring_pending<P>(q.qp);
  CHECK(yields == 3 && rung == 1);
}

// Not for ever, though: one that has looked for too long leaves its doorbell to that one.
void a_last_round_is_prolonged() {
  static queue q;
  bp_host_grid* grid = bp_host_current()->grid;
  grid->hooks.yield = [](void*) {};
  bp::at_doorbell = [](uint64_t bell) {
    rung = __builtin_bswap32((uint32_t)bell) >> 8;
    if (rung == bp::ring_rounds) {  // in the last round
      CHECK(q.state.ring_lock == bp::ring_last);
      bp::mark_ready<P>(q.qp, posted++, 1, 1);
      bp::ring_pending<P>(q.qp);
      CHECK(q.state.ring_lock == bp::ring_more);
    } else if (rung < bp::ring_rounds) {
      bp::mark_ready<P>(q.qp, posted++, 1, 1);
    }
  };
  bp::mark_ready<P>(q.qp, 0, 1, 1);
  posted = 1;
  bp::ring_pending<P>(q.qp);
  CHECK(rung == bp::ring_rounds + 1 && posted == rung);
  CHECK(q.state.ring_lock == bp::ring_free);
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
  words_behind_the_first_come_before_it();
  a_stale_word_gives_no_credit();
  a_ringer_does_not_ring_for_ever();
  a_poster_outlasts_a_last_round();
  a_last_round_is_prolonged();
  using alone = bp::path<bp::data::pull, bp::kick::kernel, bp::share::exclusive>;
  a_slot_is_one_ticket();
  nobodys_cqe_is_missed<P>();
  nobodys_cqe_is_missed<alone>();
  blueflame_has_system_scope();
}
