// How the leader warp has the block, and the other blocks, work for it.
#ifndef BELLPUSH_ENGINE_TEAM_CUH
#define BELLPUSH_ENGINE_TEAM_CUH

#include "slot_run.cuh"

namespace bp {
namespace engine {

BP_DEV_COLD void perform(uint32_t rank, uint32_t size) {
  block_state* b = team{}.b();
  const order& o = b->work;
  if (o.kind == order_move) {
    move(o.to, o.from, o.bytes, rank, size);
  } else if (o.kind == order_copied) {
    move_copied(o.to, reinterpret_cast<const uint8_t*>(o.from), o.bytes, rank, size);
  } else if (o.kind == order_slots) {
    perform_slots();
  } else if (o.kind == order_peek) {
    perform_peek();
  } else if (o.kind == order_run) {
    perform_run();
  } else if (o.kind == order_lines) {
    for (uint32_t i = o.first + rank; i < o.end; i += size) {
      const context* q = &b->qps[o.k];
      if (!take_line(q->slot, q->fixed.line, q->sequence, b->stream, i)) {
        st_shared(&b->work.missing, i);  // whichever thread's comes last will do
      }
    }
  }
}

// Has the whole block carry out the order that the leader has written, or the leader warp where it is not
// worth two barriers. The leader warp calls it together, after a syncwarp that follows the order before.
BP_DEV_COLD void dispatch(bool small) {
  const team t;
  if (small || t.alone()) {
    syncwarp();
    perform(t.rank(), t.size());
    syncwarp();
  } else {
    syncthreads();
    perform(tid(), block_threads());
    syncthreads();
  }
}

// Moves bytes with as many of the block's threads as they are worth.
BP_DEV void carry_bytes(team t, uint32_t kind, uint64_t to, uint64_t from, uint64_t bytes) {
  syncwarp();
  if (t.leads()) {
    order& o = t.b()->work;
    o.kind = kind;
    o.to = to;
    o.from = from;
    o.bytes = bytes;
  }
  dispatch(bytes <= warp_bytes);
}
BP_DEV void carry_copied(team t, uint64_t to, const uint8_t* from, uint64_t bytes) {
  const uint64_t at = reinterpret_cast<uint64_t>(from);
  if (((to | at | bytes) & 3) == 0 && bytes <= 4 * 32) {
    move_words(to, from, (uint32_t)bytes, t.rank(), t.size());
    syncwarp();
  } else {
    carry_bytes(t, order_copied, to, at, bytes);
  }
}
BP_DEV void carry_move(team t, uint64_t to, uint64_t from, uint64_t bytes) {
  if (is_little(to, from, bytes)) {
    move_little(to, from, (uint32_t)bytes, t.rank(), t.size());
    syncwarp();
  } else {
    carry_bytes(t, order_move, to, from, bytes);
  }
}

// The other warps: from order to order.
BP_DEV void assist() {
  for (;;) {
    syncthreads();
    if (team{}.b()->work.kind == order_exit) return;
    perform(tid(), block_threads());
    syncthreads();
  }
}

// Writes the order for a piece of a job, and of a run if it is of one. The leader's.
BP_DEV void order_piece(order& o, const piece& p, bp_engine_job* job) {
  o.kind = p.slots != 0 ? order_run : order_move;
  o.to = p.to;
  o.from = p.from;
  o.bytes = p.bytes;
  o.first = (uint32_t)p.from;
  o.end = p.slots;
  o.job = reinterpret_cast<uint64_t>(job);
}

// Moves pieces of a job that are left to be taken.
BP_DEV_COLD void work_off(uint32_t block) {
  const team t;
  bp_engine_job* job = job_of(t.b()->args, block);
  order& o = t.b()->work;
  for (;;) {
    syncwarp();  // all have done with the order before
    if (t.leads()) {
      order_piece(o, take_piece(job, &o.run), job);
    }
    syncwarp();
    if (o.bytes == 0) return;
    dispatch(o.kind == order_move && o.bytes <= warp_bytes);
    if (t.leads()) end_piece(job);
  }
}

// Sees this block's own job through, which is open, and of which it has the order for the first piece.
BP_DEV void see_through(uint64_t pieces) {
  const team t;
  bp_engine_job* job = job_of(t.b()->args, bid());
  dispatch(false);
  if (t.leads()) end_piece(job);
  work_off(bid());
  // Bounded: whoever took a piece moves it, or gives it up after so many looks; the launch's other blocks may
  // not have begun, and then have taken none.
  if (t.leads()) {
    while (ld_relaxed_gpu(&job->done) != pieces) yield_();
    fence_gpu();  // acquire: the pieces' counts, which carry their stores, before our fence
    atomic_add(&control_block_of(t.b()->args)->open, ~0ull);
  }
  syncwarp();
}

BP_DEV_COLD void share(uint64_t to, uint64_t from, uint64_t bytes) {
  const team t;
  bp_engine_job* job = job_of(t.b()->args, bid());
  syncwarp();
  if (t.leads()) order_piece(t.b()->work, open_job(t.b()->args, job, to, from, bytes), job);
  see_through(pieces_of(bytes));
}

// Has all blocks take the slots of a run, which the order describes. Returns how many of them, from the last one back
// to the first that lacked a line, were not.
BP_DEV_COLD uint32_t share_run(uint64_t to) {
  const team t;
  bp_engine_job* job = job_of(t.b()->args, bid());
  const bp_engine_run& run = t.b()->work.run;
  if (t.leads()) order_piece(t.b()->work, open_job(t.b()->args, job, to, run), job);
  see_through(pieces_of(run));
  return (uint32_t)warp_broadcast(t.leads() ? ld_relaxed_gpu(&job->missing) : 0);
}

// Moves payload with as many threads as it is worth.
BP_DEV void move_payload(team t, uint64_t to, uint64_t from, uint64_t bytes) {
  if (bytes <= share_bytes || grid_blocks() == 1) {
    carry_move(t, to, from, bytes);
  } else {
    share(to, from, bytes);
  }
}

// Helps other blocks with their jobs. The leader warp looks at 32 of them at a time.
BP_DEV_COLD void help() {
  const team t;
  for (uint32_t base = 0; base < grid_blocks(); base += 32) {
    const auto number = [&](uint32_t i) { return (bid() + base + i) % grid_blocks(); };
    const uint32_t open = ballot_each(t, [&](uint32_t i) {
      return base + i < grid_blocks() && has_pieces(job_of(t.b()->args, number(i)));
    });
    each_bit(open, [&](uint32_t i) { work_off(number(i)); });
  }
}

}  // namespace engine
}  // namespace bp

#endif
