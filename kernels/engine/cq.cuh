// Order between messages, and completions.
//
// What a fence must reach follows from where the bytes lie that it orders (order.cuh): in this GPU's
// memory, which everyone reads through its L2, a fence of gpu scope is enough and a third of the
// time; a byte elsewhere makes it system scope. A CQE lies elsewhere as a rule, so all of it but its
// tail is written ahead, behind a fence that nobody waits for: of a CQE for a WRITE nothing else
// changes. The tail is one store.
#ifndef BELLPUSH_ENGINE_CQ_CUH
#define BELLPUSH_ENGINE_CQ_CUH

#include "team.cuh"

namespace bp {
namespace engine {

constexpr uint64_t no_row = ~0ull;  // written and not fenced, and nothing continues it
constexpr uint32_t few_bodies = 8;

// Notes what was written last, by the leader.
BP_DEV void note_written(context* q, uint64_t end, bool near) {
  q->coalesced_end = end;
  if (!near) q->far = 1;
}

// Messages before this one, before what it writes or reads. The leader warp calls it together.
BP_DEV void fence_coalesced(team t, context* q) {
  syncwarp();
  if (t.leads()) {
    fence_written(q->far);
    q->coalesced_end = 0;
    q->far = 0;
  }
  syncwarp();
}

// Learns the consumer index, if it is later than the one that is known. The leader warp calls it together.
BP_DEV void refresh_room(team t, context* q) {
  const uint64_t pi = q->state.cq_pi;
  // Acquire: the consumer's reads of its entries come before our next writes to them.
  const uint32_t word = ld_acquire_sys(reinterpret_cast<const uint32_t*>(q->fixed.cq_dbr));
  const uint32_t in_use = (uint32_t)warp_broadcast(((uint32_t)pi - be32(word)) & 0xffffff);
  syncwarp();  // all have read the state
  if (t.leads() && in_use < pi - q->state.cq_ci) q->state.cq_ci = pi - in_use;
  syncwarp();
}

// Whether the send CQ has room for `n`; looks at the consumer index when it seems full.
BP_DEV bool has_cq_room(team t, context* q, uint32_t n) {
  if (q->state.cq_pi + n - q->state.cq_ci <= q->fixed.cqes) return true;
  refresh_room(t, q);
  return q->state.cq_pi + n - q->state.cq_ci <= q->fixed.cqes;
}

BP_DEV uint64_t cqe_at(const context* q, uint64_t pi) {
  return q->fixed.cq + (pi & (q->fixed.cqes - 1)) * sizeof(bp_cqe64);
}

// All of a CQE but its tail.
BP_DEV void write_body(const context* q, uint64_t pi, uint32_t bytes) {
  u128* line = reinterpret_cast<u128*>(cqe_at(q, pi));
  st_line(line, unit_zero());
  st_line(line + 1, unit_zero());
  st_line(line + 2, u128{{be32(q->fixed.uidx), 0, 0, be32(bytes)}});
  st_relaxed_sys(reinterpret_cast<uint64_t*>(line + 3), uint64_t{0});
}

// CQEs whose places are free, up to 32.
BP_DEV uint64_t free_cqes(const context* q) {
  const uint64_t room = q->fixed.cqes - (q->state.cq_pi - q->state.cq_ci);
  return room < 32 ? room : 32;
}

// Bodies for the next CQEs, with a fence: a lane one. The leader warp calls it together.
BP_DEV_COLD void write_ahead(uint32_t k) {
  const team t;
  context* q = t.qp(k);
  const uint64_t end = q->state.cq_pi + free_cqes(q);
  const uint64_t from = q->bodies > q->state.cq_pi ? q->bodies : q->state.cq_pi;
  for (uint64_t pi = from + t.rank(); pi < end; pi += t.size()) write_body(q, pi, 0);
  fence_sys();  // this lane's bodies, before any lane's tail, for the poller
  syncwarp();
  if (t.leads() && end > q->bodies) q->bodies = end;
  syncwarp();
}

BP_DEV bool wants_bodies(const context* q) {
  const uint64_t room = free_cqes(q), few = room < few_bodies ? room : few_bodies;
  return q->bodies < q->state.cq_pi + few;
}

// A CQE's last 8 bytes (opcode, queue pair, counter, owner), made before the fence that they wait for.
struct cqe_tail {
  uint64_t* to;
  uint64_t value;
  BP_DEV cqe_tail(const context* q, uint64_t pi, uint32_t opcode, uint32_t index)
      : to(reinterpret_cast<uint64_t*>(cqe_at(q, pi) + 56)) {
    const uint64_t owner = (pi & q->fixed.cqes) != 0;
    const uint64_t swapped = (index & 0xff) << 8 | (index >> 8 & 0xff);
    value = be32(opcode << 24 | q->fixed.qpn) | swapped << 32 | owner << 56;
  }
};

// CQEs for messages `counter` + i of every bit i of `mask`, behind everything that was written for the
// queue pair; `bytes` where one tells how much was scattered. There is room. The leader warp calls it together.
BP_DEV_COLD void complete(uint32_t k, uint32_t opcode, uint32_t mask, uint32_t counter,
                          uint32_t bytes) {
  const team t;
  context* q = t.qp(k);
  const uint64_t pi = q->state.cq_pi;
  const uint32_t n = ones(mask);
  bool far = q->far != 0;
  if (bytes != 0) {
    if (t.leads()) write_body(q, pi, bytes);
    far = true;
    syncwarp();
  } else if (pi + n > q->bodies) {
    write_ahead(k);
  }
  for (uint32_t i = t.rank(); i < 32; i += t.size()) {
    if ((mask >> i & 1) == 0) continue;
    const uint64_t at = pi + ones(mask & ((1u << i) - 1));
    const cqe_tail tail(q, at, opcode, counter + i);
    // Payload (the block's, through its barrier), and a body, before this lane's tail, for the
    // poller and through it for whoever reads the payload.
    fence_written(far);
    st_relaxed_sys(tail.to, tail.value);
  }
  syncwarp();
  if (t.leads()) {
    q->state.cq_pi = pi + n;
    q->coalesced_end = 0;
    q->far = 0;
  }
  syncwarp();
}

}  // namespace engine
}  // namespace bp

#endif
