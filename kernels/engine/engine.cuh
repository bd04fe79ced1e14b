// The software NIC's engine as a kernel: on a GPU it is the NIC of the in-process link.
//
// A block has up to BP_ENGINE_BLOCK_QPS queue pairs, a lane of its first warp (the *leader warp*) each.
// The leader warp looks at UAR registers and in-band lines, and now and then at what the host asks for; it
// takes what was posted, checks it and completes it. A plain message by itself goes a short way
// (single_write.cuh). WQEs whose ranges continue each other are coalesced, and of slots that follow each
// other every warp takes one (coalesce.cuh). The other warps wait at a barrier and help with payload that
// is worth it. Long payload, and a long run of slots (slot_run.cuh), become a job behind the control block, of
// which all blocks take pieces.
//
// The engine does WRITE, READ, FETCH_ADD, CMP_SWAP and NOP that are correct, of reliable connections
// with a CQ of their own. Everything else it gives back, with the queue pair (engine.h).
//
// Orders, each with its observer:
//   * doorbell (or line) -> WQE, payload: the polling lane's acquire of system scope pairs with the
//     sender's fence (a line needs none: it is one store); the leader warp's syncwarp and the block's
//     barrier hand it on to the threads that load. Observer: this block.
//   * payload -> CQE's tail: all threads' stores, a barrier, then a fence of the tail's thread, which
//     is cumulative, then the tail (cq.cuh: its scope, and when the body is written). Other blocks' stores:
//     their barrier, a fence, their count of pieces, which the job's owner acquires before that. Observer:
//     whoever polls the CQ, and after it reads what arrived.
//   * message -> message: a WQE that does not continue the one before is carried out behind a
//     fence, so that a flag written after data is seen after them. Observer: the peer.
//   * state -> record's number: a fence of system scope. Observer: the host's thread.
#ifndef BELLPUSH_ENGINE_CUH
#define BELLPUSH_ENGINE_CUH

#include "cq.cuh"

namespace bp {
namespace engine {

// WQEs and bytes of one visit, so that no queue pair starves another.
constexpr uint32_t visit_wqes = 64;
constexpr uint64_t visit_bytes = 256 << 10;

// ---- A queue pair between host and engine -----------------------------------------------------

BP_DEV uint32_t slot_index(uint32_t k) { return bid() + k * grid_blocks(); }
BP_DEV bp_qpc* qpc_of(const bp_engine_args& a, uint32_t k) {
  return reinterpret_cast<bp_qpc*>(a.contexts) + slot_index(k);
}
BP_DEV bp_qpc_record* record_of(const bp_engine_args& a, uint32_t k) {
  return reinterpret_cast<bp_qpc_record*>(a.records) + slot_index(k);
}

// What in-band slots need of divisions, once a grant.
BP_DEV void prepare_slots(const block_state* b, context* q) {
  const bp_qpc_fixed& f = q->fixed;
  aim(q, place(f, q->state.ticket));
  q->expect = 1;
  q->lines = f.slot_bytes / line_bytes(f.line);
  q->part = (q->lines * line_data(f.line) + 15) & ~15u;
  // Coalesced: a slot a warp, each with its part of the stream.
  uint32_t n = block_threads() / 32;
  n = n < most_warps ? n : most_warps;
  n = n < f.slots ? n : f.slots;
  const uint32_t places = q->part != 0 ? b->args.slot_bytes / q->part : 0;
  n = n < places ? n : places;
  q->coalesced_slots = n >= 2 && q->lines <= coalesce_max_lines ? n : 0;
}

// Takes a queue pair that the host granted with that number.
BP_DEV void take(team t, uint32_t k, uint64_t grant) {
  context* q = t.qp(k);
  const uint64_t* from = reinterpret_cast<const uint64_t*>(&qpc_of(t.b()->args, k)->fixed);
  uint64_t* to = reinterpret_cast<uint64_t*>(&q->fixed);  // `state` follows in both
  for (uint32_t i = t.rank(); i < (sizeof(bp_qpc_fixed) + sizeof(bp_qpc_state)) / 8; i += t.size()) {
    to[i] = ld_relaxed_sys(from + i);
  }
  syncwarp();
  if (t.leads()) {
    q->grant = grant;
    q->told = q->state.wqes;
    q->coalesced_end = 0;
    q->far = 0;
    q->bodies = q->state.cq_pi;
    q->hint = q->coalescing = 0;
    q->dbr_due = 0;
    if (q->fixed.line != BP_LINE_NONE) prepare_slots(t.b(), q);
  }
  syncwarp();
}

BP_DEV void store_state(uint64_t* to, const bp_qpc_state& state) {
  const uint64_t* from = reinterpret_cast<const uint64_t*>(&state);
  for (uint32_t i = 0; i < sizeof(bp_qpc_state) / 8; i++) st_relaxed_sys(to + i, from[i]);
}

BP_DEV_COLD void give_back(uint32_t k, uint32_t why) {
  const team t;
  context* q = t.qp(k);
  syncwarp();
  if (t.leads()) {
    bp_qpc_record* record = record_of(t.b()->args, k);
    if (q->dbr_due) look_at_record(q);
    q->state.why = why;
    store_state(reinterpret_cast<uint64_t*>(&record->state), q->state);
    st_relaxed_sys(&qpc_of(t.b()->args, k)->returned, q->grant);
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

// ---- A request by itself ----------------------------------------------------------------------

BP_DEV uint64_t atomic_word(uint64_t at, uint32_t opcode, const uint8_t* copy) {
  uint64_t* word = reinterpret_cast<uint64_t*>(at);
  const uint64_t swap_add = long_at(copy, 32), compare = long_at(copy, 40);
  return opcode == BP_OP_ATOMIC_FA ? atomic_add_sys(word, swap_add)
                                   : atomic_cas_sys(word, compare, swap_add);
}

// A segment of this queue pair's own memory: where it is, 0 if a key does not allow it.
BP_DEV uint64_t own_segment(team t, const context* q, const segment& s, uint32_t right,
                            bool* near) {
  const known_key& key = find_key(t, q->fixed.keys, s.lkey);
  *near = (key.rights & BP_KEY_NEAR) != 0;
  return resolve(key, q->fixed.pd, s.addr, s.bytes, right);
}

// Checks a request of any kind, its keys and ranges, and carries it out. A bp_return says why the
// engine does not; nothing has been written then.
constexpr uint32_t done = ~0u;
BP_DEV_COLD uint32_t execute(uint32_t k, const uint8_t* copy) {
  const team t;
  context* q = t.qp(k);
  const request& r = t.b()->req;
  const bp_qpc_fixed& f = q->fixed;
  const bool writes = r.opcode == BP_OP_RDMA_WRITE;
  // 1. Check.
  uint64_t remote = 0;
  bool near = true;  // all that is written
  if (r.bytes != 0) {
    const uint32_t right = writes                        ? BP_RIGHT_REMOTE_WRITE
                           : r.opcode == BP_OP_RDMA_READ ? BP_RIGHT_REMOTE_READ
                                                         : BP_RIGHT_REMOTE_ATOMIC;
    if ((f.peer_rights & right) == 0) return BP_RETURN_KEY;
    const known_key& key = find_key(t, f.peer_keys, r.rkey);
    remote = resolve(key, f.peer_pd, r.raddr, r.bytes, right);
    if (r.opcode != BP_OP_RDMA_READ) near = (key.rights & BP_KEY_NEAR) != 0;
    if (remote == 0) return BP_RETURN_KEY;
  }
  const uint32_t local_right = scatters(r.opcode) ? BP_RIGHT_LOCAL_WRITE : BP_RIGHT_GATHER;
  bool to_near = true;
  for (uint32_t at = r.payload; at < r.end;) {
    const segment s = segment_at(copy, at);
    if (!s.is_inline && own_segment(t, q, s, local_right, &to_near) == 0) return BP_RETURN_KEY;
    if (scatters(r.opcode)) near &= to_near;
    at = s.next;
  }
  if (is_atomic(r.opcode) && ((r.raddr | remote) & 7) != 0) return BP_RETURN_WQE;
  if (r.signalled && !has_cq_room(t, q, 1)) return BP_RETURN_CQ_FULL;
  // 2. In order: what does not go on where the last one ended comes behind a fence.
  if (r.bytes != 0 && needs_fence(*q, remote, !writes || is_marked(copy))) fence_coalesced(t, q);
  // 3. Move.
  if (is_atomic(r.opcode)) {
    if (t.leads()) t.b()->old_value = atomic_word(remote, r.opcode, copy);
    syncwarp();
  }
  uint64_t at_remote = remote;
  uint32_t offset = 0;
  for (uint32_t at = r.payload; at < r.end;) {
    const segment s = segment_at(copy, at);
    if (s.is_inline) {
      carry_copied(t, at_remote, copy + s.at, s.bytes);
    } else {
      // Keys stay while a message is carried out (`epoch`), so this finds what the check found.
      const uint64_t mine = own_segment(t, q, s, local_right, &to_near);
      if (warp_broadcast(mine) == 0) return BP_RETURN_KEY;
      if (writes) {
        move_payload(t, at_remote, mine, s.bytes);
      } else if (r.opcode == BP_OP_RDMA_READ) {
        move_payload(t, mine, at_remote, s.bytes);
      } else {
        carry_copied(t, mine, reinterpret_cast<const uint8_t*>(&t.b()->old_value) + offset, s.bytes);
      }
    }
    at_remote += s.bytes;
    offset += s.bytes;
    at = s.next;
  }
  if (t.leads() && r.bytes != 0) note_written(q, writes ? remote + r.bytes : no_row, near);
  return done;
}

// Whether a copy holds a request for the engine; it is noted then. The leader warp calls it together.
BP_DEV bool understand(team t, const uint8_t* copy, uint32_t end) {
  block_state* b = t.b();
  syncwarp();  // the one before is done
  if (t.leads()) b->parsed = parse(copy, end, &b->req);
  syncwarp();
  return b->parsed != 0;
}

// Counts a request that was carried out, and completes it.
BP_DEV void finish(team t, uint32_t k, uint32_t counter) {
  context* q = t.qp(k);
  const request& r = t.b()->req;
  if (t.leads()) {
    q->state.wqes++;
    q->state.bytes += r.bytes;
  }
  syncwarp();
  if (r.signalled) complete(k, r.opcode, 1, counter, scatters(r.opcode) ? r.bytes : 0);
}

}  // namespace engine
}  // namespace bp

#endif
