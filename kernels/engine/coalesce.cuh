// Requests that continue each other, carried out as one.
//
// That is as good as one after the other, because nothing lies between them: their bytes are one range at each end, and
// a message that does not continue them begins behind a fence. What is not plain ends the coalescing, and is carried
// out, or returned, by itself and after it.
#ifndef BELLPUSH_ENGINE_COALESCE_CUH
#define BELLPUSH_ENGINE_COALESCE_CUH

#include "engine.cuh"

namespace bp {
namespace engine {

constexpr uint32_t coalesce_max_bytes = 64 << 10;  // of one message, to be coalesced with others

// ---- WQEs -------------------------------------------------------------------------------------

// A WRITE with one gather entry, as it stands in a copy of the ring.
struct plain_write {
  uint64_t raddr, addr;
  uint32_t rkey, lkey, bytes;
  BP_DEV explicit plain_write(const uint8_t* wqe)
      : raddr(long_at(wqe, 16)), addr(long_at(wqe, 40)), rkey(word_at(wqe, 24)),
        lkey(word_at(wqe, 36)), bytes(word_at(wqe, 32)) {}
};

// Whether a basic block holds one.
BP_DEV bool is_plain(const uint8_t* wqe, uint32_t qpn, uint32_t index) {
  const ctrl c(wqe);
  const uint32_t bytes = word_at(wqe, 32);  // with the flag of inline data
  return c.opcode == BP_OP_RDMA_WRITE && c.ds == 3 && c.qpn == qpn && c.index == (index & 0xffff) &&
         bytes - 1 < 0x80000000u - 1;
}

BP_DEV bool continues(const plain_write& w, const plain_write& before) {
  return w.bytes <= coalesce_max_bytes && before.bytes <= coalesce_max_bytes && w.rkey == before.rkey &&
         w.lkey == before.lkey && w.raddr == before.raddr + before.bytes &&
         w.addr == before.addr + before.bytes;
}

// Executes, as one, the WRITEs that a copy of `blocks` basic blocks begins with. Returns its length; 0 when it
// begins with something else, or with what is not allowed, or there is no room for its CQEs: that is
// for whoever looks at one WQE.
BP_DEV uint32_t execute_coalesced(team t, uint32_t k, const uint8_t* copy, uint32_t blocks) {
  context* q = t.qp(k);
  const bp_qpc_fixed& f = q->fixed;
  const uint32_t ci = (uint32_t)q->state.ci;
  const auto at = [&](uint32_t i) { return copy + i * BP_WQEBB_BYTES; };
  // 1. Look: a lane a block, at it and the one before.
  uint32_t continuing = ballot_each(t, [&](uint32_t i) {
    return i < blocks && is_plain(at(i), f.qpn, ci + i) &&
           (i == 0 || continues(plain_write(at(i)), plain_write(at(i - 1))));
  });
  uint32_t n = trailing_ones(continuing);
  if (n == 0) return 0;
  const uint32_t asked = ballot_each(
      t, [&](uint32_t i) { return i < n && (at(i)[11] & BP_CTRL_CQ_UPDATE) != 0; });
  const plain_write first(at(0)), last(at(n - 1));
  const uint64_t bytes = last.raddr - first.raddr + last.bytes;
  // 2. Check: all of them as one.
  if ((f.peer_rights & BP_RIGHT_REMOTE_WRITE) == 0) return 0;
  const known_key& theirs = find_key(t, f.peer_keys, first.rkey);
  const uint64_t remote = resolve(theirs, f.peer_pd, first.raddr, bytes, BP_RIGHT_REMOTE_WRITE);
  const bool near = (theirs.rights & BP_KEY_NEAR) != 0;
  const known_key& ours = find_key(t, f.keys, first.lkey);
  const uint64_t local = resolve(ours, f.pd, first.addr, bytes, BP_RIGHT_GATHER);
  if (remote == 0 || local == 0 || !has_cq_room(t, q, ones(asked))) return 0;
  // 3. Carry out.
  if (needs_fence(*q, remote, false)) fence_coalesced(t, q);
  move_payload(t, remote, local, bytes);
  if (t.leads()) {
    note_written(q, remote + bytes, near);
    // Before the CQE: its reader may use the buffer again. Also for WQEs of the ring: the buffer's
    // index would be the next one again after 2^16 blocks.
    if (f.blueflame) clear_blueflame(q);
  }
  syncwarp();
  if (asked != 0) complete(k, BP_OP_RDMA_WRITE, asked, ci, 0);
  if (t.leads()) {  // after the CQE, which somebody waits for
    q->state.ci += n;
    q->state.wqes += n;
    q->state.bytes += bytes;
  }
  syncwarp();
  return n;
}

// ---- Slots ------------------------------------------------------------------------------------

// Beside a number of slots: the one behind them had not come; or many more have begun to come.
constexpr uint32_t slots_wait = 1u << 31, slots_many = 1u << 30, slots_count = slots_many - 1;

// Has each warp take a slot, and those that continue each other carried out. Returns how many were; 0 when the next
// one has not come, or is for whoever looks at one slot.
BP_DEV_COLD uint32_t carry_slots(uint32_t k) {
  const team t;
  context* q = t.qp(k);
  const bp_qpc_fixed& f = q->fixed;
  const uint32_t warps = q->coalesced_slots;
  if (warps == 0 || (f.peer_rights & BP_RIGHT_REMOTE_WRITE) == 0) return 0;
  const known_key& key = find_key(t, f.peer_keys, q->hint);
  if (key.table == 0 || !has_cq_room(t, q, warps)) return 0;
  const bool near = (key.rights & BP_KEY_NEAR) != 0;
  syncwarp();
  if (t.leads()) {
    order& o = t.b()->work;
    o.kind = order_slots;
    o.end = warps;
    o.ahead = grid_blocks() > 1 && f.slots >= (1 + shared_rounds) * warps ? (1 + shared_rounds) * warps - 1 : 0;
    o.k = k;
    o.key = (uint32_t)(&key - t.b()->keys);
  }
  dispatch(false);
  const found_slot* found = t.b()->found;
  const uint32_t n = t.b()->work.taken;
  const uint32_t behind = n == warps         ? (t.b()->work.begun != 0 ? slots_many : 0)
                          : found[n].comes != 0 ? slots_wait
                                                : 0;
  if (n == 0) return behind;
  const uint32_t counter = (uint32_t)q->state.ticket;
  const uint32_t asked = ballot_each(t, [&](uint32_t i) { return i < n && found[i].signalled != 0; });
  if (t.leads()) {
    const uint64_t end = found[n - 1].remote + found[n - 1].bytes;
    note_written(q, end, near);
  }
  syncwarp();
  if (asked != 0) complete(k, BP_OP_RDMA_WRITE, asked, counter, 0);
  if (t.leads()) {
    q->state.bytes += found[n - 1].remote + found[n - 1].bytes - found[0].remote;
    q->state.ticket += n;
    q->state.inband += n;
    q->state.wqes += n;
    q->run_bytes = found[n - 1].bytes;
    q->run_end = found[n - 1].remote + found[n - 1].bytes;
    aim(q, place(*q, n));
  }
  syncwarp();
  return n | behind;
}

// Slots from the next one on that a peek has found to be of one run.
BP_DEV uint32_t peeked_together(team t, uint32_t most) {
  const peeked_slots* peeked = t.b()->peeked;
  const uint32_t i = t.rank(), all = trailing_ones(ballot(i * 32 < most && peeked[i].whole == ~0u));
  return all * 32 + (all * 32 < most ? trailing_ones(peeked[all].whole) : 0);
}

// Of the slots that were peeked at, those from number `first` on, 32 at most and before `end`, that ask for a CQE.
BP_DEV uint32_t peeked_asked(team t, uint32_t first, uint32_t end) {
  const uint32_t asked = t.b()->peeked[first / 32].asked, left = end - first;
  return left < 32 ? asked & ((1u << left) - 1) : asked;
}

// Has all blocks take the slots that go on where the round before ended, and are as long. Returns whether as many may
// follow; if not, what was not taken is for the next round.
BP_DEV_COLD bool share_slots(uint32_t k) {
  const team t;
  context* q = t.qp(k);
  const bp_qpc_fixed& f = q->fixed;
  const known_key& key = find_key(t, f.peer_keys, q->hint);
  if (key.table == 0) return false;
  const uint64_t remote = q->run_end, addr = remote - key.va + key.iova;
  const uint32_t each = q->run_bytes;
  // 1. Look.
  const uint32_t fit = shared_run_bytes / each, room = t.b()->args.slot_bytes / peek_bytes;
  uint32_t most = block_threads() < f.slots ? block_threads() : f.slots;
  most = most < fit ? most : fit;
  most = most < room ? most : room;
  syncwarp();
  if (t.leads()) {
    order& o = t.b()->work;
    o.kind = order_peek;
    o.end = most;
    o.k = k;
    o.key = key.key;
    o.from = addr;
    o.bytes = each;
  }
  dispatch(false);
  const uint32_t n = peeked_together(t, most);
  // 2. Check: all of them as one.
  uint32_t asked = 0;
  for (uint32_t first = 0; first < n; first += 32) asked += ones(peeked_asked(t, first, n));
  if (n < shared_rounds * q->coalesced_slots || !has_cq_room(t, q, asked)) return false;
  if (resolve(key, f.peer_pd, addr, (uint64_t)n * each, BP_RIGHT_REMOTE_WRITE) != remote) return false;
  const bool near = (key.rights & BP_KEY_NEAR) != 0;
  // 3. Carry out. No fence: these go on where the round before ended, and none is marked.
  syncwarp();
  if (t.leads()) {
    t.b()->work.run = bp_engine_run{f.window,    q->slot, f.slots, f.slot_bytes,       f.line,
                                    q->sequence, n,       each,    q->coalesced_slots, q->part};
  }
  const uint32_t done = n - share_run(remote);
  const uint32_t ticket = (uint32_t)q->state.ticket;
  const uint64_t bytes = (uint64_t)done * each;
  for (uint32_t first = 0; first < done; first += 32) {
    // Each time: a lane's CQEs come behind its own fence, of the scope that the bytes want.
    if (t.leads()) note_written(q, remote + bytes, near);
    syncwarp();
    const uint32_t mask = peeked_asked(t, first, done);
    if (mask != 0) complete(k, BP_OP_RDMA_WRITE, mask, ticket + first, 0);
  }
  if (t.leads()) {
    q->state.bytes += bytes;
    q->state.ticket += done;
    q->state.inband += done;
    q->state.wqes += done;
    q->run_end = remote + bytes;
    aim(q, place(*q, done));
  }
  syncwarp();
  return done == most;
}

}  // namespace engine
}  // namespace bp

#endif
