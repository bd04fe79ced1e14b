// The software NIC's engine as a kernel: on a GPU it is the NIC of the in-process link.
//
// A block has up to BP_ENGINE_BLOCK_QPS queue pairs, a lane of its first warp (the *crew*) each.
// The crew looks at UAR registers, in-band lines and what the host asks for, takes what was posted,
// checks it and completes it; the other warps wait at a barrier and help with payload that is worth
// it, and long payload goes on a board from which all blocks take pieces.
//
// The engine does WRITE, READ, FETCH_ADD, CMP_SWAP and NOP that are correct, of reliable connections
// with a CQ of their own. Everything else it gives back, with the queue pair (engine.h).
//
// Orders, each with its observer:
//   * doorbell (or line) -> WQE, payload: the polling lane's acquire of system scope pairs with the
//     sender's fence (a line needs none: it is one store); the crew's syncwarp and the block's
//     barrier hand it on to the threads that load. Observer: this block.
//   * payload -> CQE's tail: all threads' stores, a barrier, then the leader's fence of system
//     scope, which is cumulative, then the tail. The CQE's body lies before the same fence, so one
//     fence serves both. Observer: whoever polls the CQ, and after it reads what arrived.
//   * message -> message: a WQE that does not continue the one before is carried out behind a
//     fence, so that a flag written after data is seen after them. Observer: the peer.
//   * state -> record's number: a fence of system scope. Observer: the host's thread.
#ifndef BELLPUSH_ENGINE_CUH
#define BELLPUSH_ENGINE_CUH

#include "engine_wqe.cuh"

namespace bp {
namespace engine {

constexpr uint32_t crew_threads = 32;
constexpr uint32_t first_lines = 32;  // of a slot, looked at before its length is known
// WQEs and bytes of one visit, so that no queue pair starves another.
constexpr uint32_t visit_wqes = 64;
constexpr uint64_t visit_bytes = 256 << 10;
constexpr uint64_t no_row = ~0ull;  // written and not fenced, and nothing continues it

enum order_kind : uint32_t { order_move, order_copied, order_lines, order_exit };

// What the crew asks the block to do.
struct order {
  uint32_t kind;
  uint32_t first, end;  // lines
  uint32_t missing;     // out: a line that had not come
  const context* q;
  uint64_t to, from, bytes;
};

struct block_state {
  context qps[BP_ENGINE_BLOCK_QPS];
  uint64_t polled[BP_ENGINE_BLOCK_QPS][2];
  order work;
  uint64_t old_value;
  uint8_t valid[first_lines];
  alignas(16) uint8_t wqe[BP_ENGINE_WQE_BYTES];
  alignas(16) uint8_t stream[16];  // args.slot_bytes of them
};

static_assert(sizeof(block_state) <= BP_ENGINE_SHARED_BYTES, "the host asks for so much");

// The block, as one of its threads sees it.
struct team {
  const bp_engine_args* a;
  block_state* b;
  uint32_t rank, size;  // in the crew
  BP_DEV bool leads() const { return rank == 0; }
  BP_DEV bool alone() const { return block_threads() <= crew_threads; }
};

BP_DEV void note_missing(uint32_t* word, uint32_t line) {
#if defined(__CUDACC__)
  *reinterpret_cast<volatile uint32_t*>(word) = line;  // whichever thread's comes last will do
#else
  __atomic_store_n(word, line, __ATOMIC_RELAXED);
#endif
}

BP_DEV void perform(block_state* b, uint32_t rank, uint32_t size) {
  const order& o = b->work;
  if (o.kind == order_move) {
    move(o.to, o.from, o.bytes, rank, size);
  } else if (o.kind == order_copied) {
    move_copied(o.to, reinterpret_cast<const uint8_t*>(o.from), o.bytes, rank, size);
  } else if (o.kind == order_lines) {
    for (uint32_t i = o.first + rank; i < o.end; i += size) {
      if (!take_line(o.q, b->stream, i)) note_missing(&b->work.missing, i);
    }
  }
}

// Has the whole block carry an order out, or the crew where it is not worth two barriers. The crew
// calls it together.
BP_DEV void carry(const team& t, const order& o, bool small) {
  syncwarp();  // the order before this one has been read
  if (t.leads()) t.b->work = o;
  if (small || t.alone()) {
    syncwarp();
    perform(t.b, t.rank, t.size);
    syncwarp();
  } else {
    syncthreads();
    perform(t.b, tid(), block_threads());
    syncthreads();
  }
}

// The other warps: from order to order.
BP_DEV void assist(block_state* b) {
  for (;;) {
    syncthreads();
    if (b->work.kind == order_exit) return;
    perform(b, tid(), block_threads());
    syncthreads();
  }
}

// Pieces of a job that are left to be taken; says whether there was one.
BP_DEV bool work_off(const team& t, bp_engine_job* job) {
  bool any = false;
  for (;;) {
    piece p{0, 0, 0};
    if (t.leads()) p = take_piece(job);
    p.bytes = warp_broadcast(p.bytes);
    if (p.bytes == 0) return any;
    p.to = warp_broadcast(p.to);
    p.from = warp_broadcast(p.from);
    carry(t, order{order_move, 0, 0, 0, nullptr, p.to, p.from, p.bytes}, false);
    if (t.leads()) end_piece(job);
    any = true;
  }
}

// Moves payload with as many threads as it is worth.
BP_DEV void move_payload(const team& t, uint64_t to, uint64_t from, uint64_t bytes) {
  if (bytes < share_bytes || grid_blocks() == 1) {
    carry(t, order{order_move, 0, 0, 0, nullptr, to, from, bytes}, bytes <= warp_bytes);
    return;
  }
  bp_engine_job* job = job_of(*t.a, bid());
  if (t.leads()) open_job(*t.a, job, to, from, bytes);
  syncwarp();
  work_off(t, job);
  // Bounded: whoever took a piece moves it; the launch's other blocks may not have begun, and then
  // have taken none.
  if (t.leads()) {
    while (ld_acquire_gpu(&job->done) != (bytes + piece_bytes - 1) / piece_bytes) yield_();
    fence_gpu();  // acquire: the pieces' counts, which carry their stores, before our fence
    atomic_add(&board_of(*t.a)->open, ~0ull);
  }
  syncwarp();
}

// Helps other blocks, if there is a job.
BP_DEV bool help(const team& t) {
  bool any = false;
  for (uint32_t i = 0; i < grid_blocks(); i++) any |= work_off(t, job_of(*t.a, (bid() + i) % grid_blocks()));
  return any;
}

// ---- A queue pair between host and engine -----------------------------------------------------

BP_DEV uint32_t slot_index(uint32_t k) { return bid() + k * grid_blocks(); }
BP_DEV bp_qpc* qpc_of(const bp_engine_args& a, uint32_t k) {
  return reinterpret_cast<bp_qpc*>(a.contexts) + slot_index(k);
}
BP_DEV bp_qpc_record* record_of(const bp_engine_args& a, uint32_t k) {
  return reinterpret_cast<bp_qpc_record*>(a.records) + slot_index(k);
}

// Takes a queue pair that the host granted with that number.
BP_DEV void take(const team& t, uint32_t k, uint64_t grant) {
  context* q = &t.b->qps[k];
  const uint64_t* from = reinterpret_cast<const uint64_t*>(&qpc_of(*t.a, k)->fixed);
  uint64_t* to = reinterpret_cast<uint64_t*>(&q->fixed);  // `state` follows in both
  for (uint32_t i = t.rank; i < (sizeof(bp_qpc_fixed) + sizeof(bp_qpc_state)) / 8; i += t.size) {
    to[i] = ld_relaxed_sys(from + i);
  }
  syncwarp();
  if (t.leads()) {
    q->grant = grant;
    q->told = q->state.wqes;
    q->row_end = 0;
    q->body_of = no_body;
    q->dbr_due = 0;
    if (q->fixed.line != BP_LINE_NONE) aim(q);
  }
  syncwarp();
}

BP_DEV void store_state(uint64_t* to, const bp_qpc_state& state) {
  const uint64_t* from = reinterpret_cast<const uint64_t*>(&state);
  for (uint32_t i = 0; i < sizeof(bp_qpc_state) / 8; i++) st_relaxed_sys(to + i, from[i]);
}

BP_DEV void give_back(const team& t, uint32_t k, uint32_t why) {
  context* q = &t.b->qps[k];
  syncwarp();
  if (t.leads()) {
    bp_qpc_record* record = record_of(*t.a, k);
    if (q->dbr_due) look_at_record(q);
    q->state.why = why;
    store_state(reinterpret_cast<uint64_t*>(&record->state), q->state);
    st_relaxed_sys(&qpc_of(*t.a, k)->returned, q->grant);
    // The state, and all that the engine has written for this queue pair, before the number, for
    // the host's thread.
    fence_sys();
    st_relaxed_sys(&record->returned, q->grant);
    q->grant = 0;
  }
  syncwarp();
}

// Tells the host what was done; nobody waits for it.
BP_DEV void tell_counts(const bp_engine_args& a, uint32_t k, context* q) {
  bp_qpc_state* to = &record_of(a, k)->state;
  st_relaxed_sys(&to->bytes, q->state.bytes);
  st_relaxed_sys(&to->inband, q->state.inband);
  st_relaxed_sys(&to->blueflame, q->state.blueflame);
  st_relaxed_sys(&to->doorbells, q->state.doorbells);
  st_relaxed_sys(&to->wqes, q->state.wqes);
  q->told = q->state.wqes;
}

// ---- Carrying a request out -------------------------------------------------------------------

// Whether the send CQ has room; looks at the consumer index when it seems full.
BP_DEV bool has_cq_room(const team& t, context* q) {
  const uint64_t pi = q->state.cq_pi;
  if (pi - q->state.cq_ci < q->fixed.cqes) return true;
  // Acquire: the consumer's reads of its entries come before our next writes to them.
  const uint32_t word = ld_acquire_sys(reinterpret_cast<const uint32_t*>(q->fixed.cq_dbr));
  const uint32_t in_use = (uint32_t)warp_broadcast(((uint32_t)pi - be32(word)) & 0xffffff);
  if (in_use >= q->fixed.cqes) return false;
  if (t.leads()) q->state.cq_ci = pi - in_use;
  syncwarp();
  return true;
}

// All of a CQE but its tail.
BP_DEV uint64_t write_body(const context* q, uint64_t pi, uint32_t bytes) {
  const uint64_t cqe = q->fixed.cq + (pi & (q->fixed.cqes - 1)) * sizeof(bp_cqe64);
  u128* line = reinterpret_cast<u128*>(cqe);
  st_line(line, unit_zero());
  st_line(line + 1, unit_zero());
  st_line(line + 2, u128{{be32(q->fixed.uidx), 0, 0, be32(bytes)}});
  st_relaxed_sys(reinterpret_cast<uint64_t*>(cqe + 48), uint64_t{0});
  return cqe;
}

// The leader's. Writes the next CQE, behind everything that was written for the queue pair. The body
// of the one after it, which says the same of every WRITE, is written ahead where its place is free:
// the fence would else wait for its way to the poller's memory and back.
BP_DEV void write_cqe(context* q, uint32_t opcode, uint32_t counter, uint32_t bytes) {
  const uint64_t pi = q->state.cq_pi;
  const bool there = q->body_of == pi && bytes == 0;
  const uint64_t cqe = there ? q->fixed.cq + (pi & (q->fixed.cqes - 1)) * sizeof(bp_cqe64)
                             : write_body(q, pi, bytes);
  const uint64_t owner = (pi & q->fixed.cqes) != 0;
  const uint64_t swapped = (counter & 0xff) << 8 | (counter >> 8 & 0xff);
  const uint64_t tail = be32(opcode << 24 | q->fixed.qpn) | swapped << 32 | owner << 56;
  // Payload (the block's, through its barrier) and the CQE's body before its tail, for the poller.
  fence_sys();
  st_relaxed_sys(reinterpret_cast<uint64_t*>(cqe + 56), tail);
  q->state.cq_pi = pi + 1;
  q->row_end = 0;
  q->body_of = no_body;
  if (pi + 1 - q->state.cq_ci < q->fixed.cqes) {
    write_body(q, pi + 1, 0);
    q->body_of = pi + 1;
  }
}

BP_DEV uint64_t atomic_word(uint64_t at, uint32_t opcode, const uint8_t* copy) {
  uint64_t* word = reinterpret_cast<uint64_t*>(at);
  const uint64_t swap_add = long_at(copy, 32), compare = long_at(copy, 40);
  return opcode == BP_OP_ATOMIC_FA ? atomic_add_sys(word, swap_add)
                                   : atomic_cas_sys(word, compare, swap_add);
}

// Checks a request's keys and ranges, and carries it out. A bp_return says why the engine does not;
// nothing has been written then.
constexpr uint32_t done = ~0u;
BP_DEV uint32_t execute(const team& t, context* q, const request& r, const uint8_t* copy) {
  const bp_qpc_fixed& f = q->fixed;
  // 1. Check. Every look at memory is the leader's word: lanes that saw different things would part.
  uint64_t remote = 0;
  if (r.bytes != 0) {
    const uint32_t right = r.opcode == BP_OP_RDMA_WRITE  ? BP_RIGHT_REMOTE_WRITE
                           : r.opcode == BP_OP_RDMA_READ ? BP_RIGHT_REMOTE_READ
                                                         : BP_RIGHT_REMOTE_ATOMIC;
    if ((f.peer_rights & right) == 0) return BP_RETURN_KEY;
    remote = resolve(f.peer_keys, f.peer_pd, r.rkey, r.raddr, r.bytes, right);
  }
  const uint32_t local_right = scatters(r.opcode) ? BP_RIGHT_LOCAL_WRITE : BP_RIGHT_GATHER;
  uint64_t local = 0;
  uint32_t entries = 0, refused = 0;
  for (uint32_t at = r.payload; at < r.end;) {
    const segment s = segment_at(copy, at);
    if (!s.is_inline) {
      entries++;
      local = resolve(f.keys, f.pd, s.lkey, s.addr, s.bytes, local_right);
      refused |= local == 0;
    }
    at = s.next;
  }
  refused |= r.bytes != 0 && remote == 0;
  if (warp_broadcast(refused) != 0) return BP_RETURN_KEY;
  remote = warp_broadcast(remote);
  local = warp_broadcast(local);
  if (is_atomic(r.opcode) && ((r.raddr | remote) & 7) != 0) return BP_RETURN_WQE;
  if (r.signalled && !has_cq_room(t, q)) return BP_RETURN_CQ_FULL;
  // 2. In order: what does not go on where the last one ended comes behind a fence.
  if (r.bytes != 0 && q->row_end != 0 && (r.opcode != BP_OP_RDMA_WRITE || remote != q->row_end)) {
    syncwarp();
    if (t.leads()) {
      fence_sys();  // messages before this one, before what this one writes or reads, for the peer
      q->row_end = 0;
    }
    syncwarp();
  }
  // 3. Move.
  if (is_atomic(r.opcode)) {
    if (t.leads()) t.b->old_value = atomic_word(remote, r.opcode, copy);
    syncwarp();
  }
  uint64_t at_remote = remote;
  uint32_t offset = 0;
  for (uint32_t at = r.payload; at < r.end;) {
    const segment s = segment_at(copy, at);
    if (s.is_inline) {
      const uint64_t from = reinterpret_cast<uint64_t>(copy + s.at);
      carry(t, order{order_copied, 0, 0, 0, nullptr, at_remote, from, s.bytes}, s.bytes <= warp_bytes);
    } else {
      // Keys stay while a message is carried out (`epoch`), so this finds what the check found.
      const uint64_t mine =
          entries == 1 ? local
                       : warp_broadcast(resolve(f.keys, f.pd, s.lkey, s.addr, s.bytes, local_right));
      if (mine == 0) return BP_RETURN_KEY;
      if (r.opcode == BP_OP_RDMA_WRITE) {
        move_payload(t, at_remote, mine, s.bytes);
      } else if (r.opcode == BP_OP_RDMA_READ) {
        move_payload(t, mine, at_remote, s.bytes);
      } else {
        const uint64_t from = reinterpret_cast<uint64_t>(&t.b->old_value) + offset;
        carry(t, order{order_copied, 0, 0, 0, nullptr, mine, from, s.bytes}, true);
      }
    }
    at_remote += s.bytes;
    offset += s.bytes;
    at = s.next;
  }
  if (t.leads() && r.bytes != 0) q->row_end = r.opcode == BP_OP_RDMA_WRITE ? remote + r.bytes : no_row;
  return done;
}

// The leader's. Counts a request that was carried out, and completes it.
BP_DEV void finish(context* q, const request& r, uint32_t counter) {
  q->state.wqes++;
  q->state.bytes += r.bytes;
  if (r.signalled) write_cqe(q, r.opcode, counter, scatters(r.opcode) ? r.bytes : 0);
}

}  // namespace engine
}  // namespace bp

#endif
