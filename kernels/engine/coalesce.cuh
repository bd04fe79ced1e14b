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

// Beside a number of slots: the one behind them had not come.
constexpr uint32_t slots_wait = 1u << 31;

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
    o.k = k;
    o.key = (uint32_t)(&key - t.b()->keys);
  }
  dispatch(false);
  const found_slot* found = t.b()->found;
  const uint32_t n = t.b()->work.taken;
  const uint32_t waits = n < warps && found[n].comes != 0 ? slots_wait : 0;
  if (n == 0) return waits;
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
    aim(q, place(*q, n));
  }
  syncwarp();
  return n | waits;
}

}  // namespace engine
}  // namespace bp

#endif
