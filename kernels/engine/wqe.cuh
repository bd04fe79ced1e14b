// From a doorbell or a slot to a checked request, for the engine on a GPU.
//
// What a program wrote is copied into shared memory first; only the copy is looked at. Whatever is
// not a plain, whole, correct request of the kinds below goes back to the host with the queue pair,
// which finds out by itself what is wrong (crates/soft-nic). So nothing here says *which* error it is.
#ifndef BELLPUSH_ENGINE_WQE_CUH
#define BELLPUSH_ENGINE_WQE_CUH

#include <bellpush/impl/inband.cuh>
#include "move.cuh"

namespace bp {
namespace engine {

// A queue pair in shared memory, while the engine has it.
struct context {
  bp_qpc_fixed fixed;
  bp_qpc_state state;
  uint64_t grant;      // odd: number of the grant; 0: the engine has not got it
  uint64_t told;       // WQEs that the record tells of
  uint64_t coalesced_end;    // end of what was written and not fenced yet; 0: all is fenced
  uint64_t slot;       // in-band: where the next slot lies
  uint64_t bodies;     // CQEs before this number have their bodies, for whoever polls
  uint32_t far;        // 1: some of what is not fenced yet is not in this GPU's memory
  uint32_t sequence;   // in-band: of the next slot's lines
  uint32_t missing;    // and a line of it that had not come
  uint32_t hint;       // the last slot's remote key
  uint32_t expect;     // in-band: lines of the last message, to be looked at first
  uint32_t coalescing;    // 1: the last slots were coalesced
  uint32_t lines;      // in-band, of a slot
  uint32_t part;       // bytes of their data, in whole units
  uint32_t coalesced_slots;  // most slots that are coalesced; 0: none are
  uint32_t run_bytes;  // payload of the last one of those
  uint64_t run_end;    // and where it ended
  uint32_t dbr_due;    // 1: the doorbell record is to be looked at
};

// A key as a block remembers it, until the next epoch.
struct known_key {
  uint64_t table;  // 0: none
  uint64_t va, iova, bytes;
  uint32_t key, pd, rights, reserved;
};
constexpr uint32_t known_keys = 16;

struct request {
  uint32_t opcode;
  bool signalled;
  uint32_t payload, end;  // the segments behind the headers, as offsets in the copy
  uint32_t bytes;
  uint32_t rkey;
  uint64_t raddr;
};

// A copy that is 4-byte aligned, as all segments in it are.
BP_DEV uint32_t word_at(const uint8_t* copy, uint32_t at) {
  return be32(*reinterpret_cast<const uint32_t*>(copy + at));
}
BP_DEV uint64_t long_at(const uint8_t* copy, uint32_t at) {
  return (uint64_t)word_at(copy, at) << 32 | word_at(copy, at + 4);
}

BP_DEV bool has_remote(uint32_t opcode) { return opcode != BP_OP_NOP; }
BP_DEV bool is_atomic(uint32_t opcode) {
  return opcode == BP_OP_ATOMIC_FA || opcode == BP_OP_ATOMIC_CS;
}
BP_DEV bool scatters(uint32_t opcode) { return opcode == BP_OP_RDMA_READ || is_atomic(opcode); }

// Whether a WRITE's writer wants it seen behind all before it, wherever they ended: a signal that is set.
BP_DEV bool is_marked(const uint8_t* copy) { return (copy[11] & BP_CTRL_FENCE_SMALL) != 0; }

// Whether a fence belongs between what was written before, and a write to `remote`: unless that goes on where the other
// ended.
BP_DEV bool needs_fence(const context& q, uint64_t remote, bool marked) {
  return q.coalesced_end != 0 && (marked || remote != q.coalesced_end);
}

struct ctrl {
  uint32_t opcode, index, qpn, ds;
  BP_DEV explicit ctrl(const uint8_t* copy) {
    const uint32_t first = word_at(copy, 0), second = word_at(copy, 4);
    opcode = first & 0xff;
    index = first >> 8 & 0xffff;
    qpn = second >> 8;
    ds = second & 0x3f;
  }
  BP_DEV uint32_t blocks() const { return ds > 4 ? (ds + 3) / 4 : 1; }
};

// A segment of payload: an entry that names memory, or inline bytes at an offset of the copy.
struct segment {
  bool is_inline;
  uint32_t bytes, lkey, at, next;
  uint64_t addr;
};
BP_DEV segment segment_at(const uint8_t* copy, uint32_t at) {
  const uint32_t count = word_at(copy, at);
  if ((count & BP_INLINE_FLAG) != 0) {
    const uint32_t bytes = count & ~BP_INLINE_FLAG;
    const uint64_t end = ((uint64_t)at + 4 + bytes + 15) & ~15ull;
    return {true, bytes, 0, at + 4, end > 0xffffffff ? 0xffffffffu : (uint32_t)end, 0};
  }
  return {false, count, word_at(copy, at + 4), 0, at + 16, long_at(copy, at + 8)};
}

// Reads a copy whose headers and payload segments end at `end`. False: not for the engine.
BP_DEV bool parse(const uint8_t* copy, uint32_t end, request* r) {
  const ctrl c(copy);
  r->opcode = c.opcode;
  r->signalled = (copy[11] & BP_CTRL_CQ_UPDATE) != 0;
  r->bytes = 0;
  r->payload = r->end = 16;
  if (c.opcode == BP_OP_NOP) return c.ds != 0;
  if (c.opcode != BP_OP_RDMA_WRITE && !scatters(c.opcode)) return false;
  const uint32_t header = is_atomic(c.opcode) ? 48 : 32;
  if (c.ds * BP_DS_BYTES < header || end < header) return false;
  r->raddr = long_at(copy, 16);
  r->rkey = word_at(copy, 24);
  r->payload = header;
  r->end = end;
  uint64_t total = 0;
  for (uint32_t at = header; at < end;) {
    if (end - at < 4) return false;
    const segment s = segment_at(copy, at);
    if (s.is_inline ? scatters(c.opcode) || s.bytes > end - s.at : end - at < 16 || s.bytes == 0) {
      return false;  // an entry of 0 bytes speaks of 2^31
    }
    total += s.bytes;
    at = s.next;
  }
  if (total > 0x80000000u || (is_atomic(c.opcode) && total != 8)) return false;
  r->bytes = (uint32_t)total;
  return true;
}

// One thread's: reads a key from its table. The key first, with acquire: where it is the one that is
// asked for, the rest is what was written before it, or later. An entry goes by its key first, and
// changes only after every block has confirmed an epoch in between, where it forgets what it knows.
BP_DEV_COLD void read_key(known_key* to, uint64_t table, uint32_t key) {
  to->table = 0;
  if (key >> 8 >= BP_KEY_TABLE_KEYS) return;
  const bp_key* k = reinterpret_cast<const bp_key*>(table) + (key >> 8);
  if (ld_acquire_sys(&k->key) != key) return;
  to->va = ld_relaxed_sys(&k->va);
  to->iova = ld_relaxed_sys(&k->iova);
  to->bytes = ld_relaxed_sys(&k->bytes);
  to->pd = ld_relaxed_sys(&k->pd);
  to->rights = ld_relaxed_sys(&k->rights);
  to->key = key;
  to->table = table;
}

// Where the engine reaches a range, if the key allows that access to all of it; else 0.
BP_DEV uint64_t resolve(const known_key& k, uint32_t pd, uint64_t addr, uint64_t bytes,
                        uint32_t right) {
  const uint64_t offset = addr - k.iova;
  if (k.table == 0 || k.pd != pd || (k.rights & right) == 0) return 0;
  if (addr < k.iova || offset > k.bytes || bytes > k.bytes - offset) return 0;
  return k.va + offset;
}

// The producer index that a 16-bit counter stands for, if it lies within the ring.
BP_DEV void learn(context* q, uint32_t counter) {
  const uint64_t ci = q->state.ci;
  const uint32_t distance = (counter - (uint32_t)ci) & 0xffff;
  if (distance <= q->fixed.sq_blocks && ci + distance > q->state.producer) {
    q->state.producer = ci + distance;
  }
}

// A UAR register: the producer index is that of its control segment, and ds more.
BP_DEV void learn_register(context* q, uint64_t v) {
  const uint32_t first = be32((uint32_t)v), second = be32((uint32_t)(v >> 32));
  if (second >> 8 == q->fixed.qpn) learn(q, (first >> 8) + ((second & 0x3f) + 3) / 4);
}

// Learns the producer index from the registers that changed (docs/protocol.md, section 7): the later
// of doorbell and record, bounded by the ring. The record is looked at when what the register told is
// done: the page is this queue pair's alone, so a record that is later has a doorbell that comes.
BP_DEV void ring(context* q, uint64_t r0, uint64_t r1) {
  const bool first = r0 != q->state.registers[0];
  const bool second = !q->fixed.blueflame && r1 != q->state.registers[1];
  if (!first && !second) return;
  q->state.doorbells++;
  q->state.registers[0] = r0;
  if (first) learn_register(q, r0);
  if (second) {
    q->state.registers[1] = r1;
    learn_register(q, r1);
  }
  q->dbr_due = 1;
}

BP_DEV void look_at_record(context* q) {
  q->dbr_due = 0;
  // Acquire: the WQEs, written before the record. The register was acquired before this load, so a
  // record written before the doorbell is seen here.
  const uint32_t* record = reinterpret_cast<const uint32_t*>(q->fixed.dbr) + BP_DBR_SND;
  const uint32_t dbr = ld_acquire_sys(record);
  if (dbr != q->state.dbr_seen) {
    q->state.dbr_seen = dbr;
    learn(q, be32(dbr) & 0xffff);
  }
}

// So that a WQE in the UAR's second buffer is not taken again.
BP_DEV void clear_blueflame(const context* q) {
  u128* buffer = reinterpret_cast<u128*>(q->fixed.uar + BP_UAR_BF_OFFSET);
  for (uint32_t u = 0; u < 4; u++) st_line(buffer + u, unit_zero());
}

// ---- In-band slots ----------------------------------------------------------------------------

BP_DEV uint32_t line_bytes(uint32_t line) { return line == BP_LINE_60_4 ? 64 : 16; }
BP_DEV uint32_t line_data(uint32_t line) {
  return line == BP_LINE_60_4 ? 60 : line == BP_LINE_14_2 ? 14 : 12;
}

// Lines that a stream of less than 2^31 bytes needs: divided by 60, 14 or 12, as products, of which the
// compiler would make one long division.
BP_DEV uint32_t lines_of(uint32_t line, uint32_t bytes) {
  const uint64_t n = (uint64_t)bytes + line_data(line) - 1;
  if (line == BP_LINE_60_4) return (uint32_t)(n * 0x88888889 >> 37);
  if (line == BP_LINE_14_2) return (uint32_t)(n * 0x92492493 >> 35);
  return (uint32_t)(n * 0xaaaaaaab >> 35);
}

// A slot, and the sequence of its lines.
struct place {
  uint64_t slot;
  uint32_t sequence;
  // Of any ticket.
  BP_DEV place(const bp_qpc_fixed& f, uint64_t ticket) {
    bp_window w{};
    w.slots = f.slots;
    w.inband_seq0 = f.seq0;
    // The library's endpoints have a power of two of slots; another sender's window may have any number.
    const bool is_power = (f.slots & (f.slots - 1)) == 0;
    const window_place at =
        is_power ? place_of(w, ticket) : window_place{(uint32_t)(ticket % f.slots), ticket / f.slots};
    sequence = f.line == BP_LINE_14_2 ? inband_sequence<line::d14s2>(w, at.lap)
                                      : inband_sequence<line::d12s4>(w, at.lap);
    slot = f.window + (uint64_t)at.slot * f.slot_bytes;
  }
  // `n` slots after the one that the context points at, or a run begins with, at most a lap: without the divisions.
  BP_DEV place(const context& q, uint32_t n) : slot(q.slot), sequence(q.sequence) {
    pass(q.fixed.window, q.fixed.slots, q.fixed.slot_bytes, q.fixed.line, n);
  }
  BP_DEV place(const bp_engine_run& r, uint32_t n) : slot(r.slot), sequence(r.sequence) {
    pass(r.window, r.slots, r.slot_bytes, r.line, n);
  }

 private:
  BP_DEV void pass(uint64_t window, uint32_t slots, uint32_t slot_bytes, uint32_t line, uint32_t n) {
    const uint64_t lap = (uint64_t)slots * slot_bytes;
    slot += (uint64_t)n * slot_bytes;
    if (slot - window < lap) return;
    slot -= lap;
    sequence = sequence == (line == BP_LINE_14_2 ? 0xffffu : 0xffffffffu) ? 1 : sequence + 1;
  }
};
// Where the sequence of a slot's line `i` stands.
BP_DEV const uint32_t* sequence_at(const place& p, uint32_t line, uint32_t i) {
  return reinterpret_cast<const uint32_t*>(p.slot + (uint64_t)(i + 1) * line_bytes(line) - 4);
}

// Points the context at a slot.
BP_DEV void aim(context* q, const place& p) {
  q->sequence = p.sequence;
  q->slot = p.slot;
  q->missing = 0;
}

// A line's sequence, from its last word.
BP_DEV uint32_t sequence_of(uint32_t line, uint32_t last_word) {
  return line == BP_LINE_14_2 ? last_word >> 16 : last_word;
}

// How the sequence of the line to be waited for stands: 0 it has not come, 1 it has, 2 it is of a
// later lap, whose writer had no credit (wire::inband, Standing).
BP_DEV uint32_t standing(uint32_t line, uint32_t sequence, uint32_t found) {
  const uint32_t m = line == BP_LINE_14_2 ? 0xffffu : 0xffffffffu;
  if (found == sequence) return 1;
  if (found == 0) return 0;
  const uint32_t distance = found > sequence ? found - sequence : m - (sequence - found);
  return distance <= m / 2 ? 2 : 0;
}

// A line of 16 bytes: its data as words of the stream, and whether it is of this lap.
BP_DEV bool unpack_line(const u128& v, uint32_t line, uint32_t sequence, uint8_t* to) {
  if (sequence_of(line, v.w[3]) != sequence) return false;
  if (line == BP_LINE_12_4) {
    for (uint32_t k = 0; k < 3; k++) reinterpret_cast<uint32_t*>(to)[k] = v.w[k];
  } else {
    uint16_t* half = reinterpret_cast<uint16_t*>(to);
    for (uint32_t k = 0; k < 7; k++) half[k] = (uint16_t)(v.w[k / 2] >> (k % 2 * 16));
  }
  return true;
}

// Line `i` of a slot. Lines of 16 bytes come in one load. Those of 64 are looked at twice: the
// sequence with acquire, then the data, which its writer stored with or before it.
BP_DEV bool take_line(uint64_t slot, uint32_t line, uint32_t sequence, uint8_t* stream, uint32_t i) {
  const uint64_t at = slot + (uint64_t)i * line_bytes(line);
  uint8_t* to = stream + i * line_data(line);
  if (line != BP_LINE_60_4) {
    return unpack_line(ld_line(reinterpret_cast<const u128*>(at)), line, sequence, to);
  }
  if (ld_acquire_sys(reinterpret_cast<const uint32_t*>(at + 60)) != sequence) return false;
  for (uint32_t u = 0; u < 4; u++) {
    const u128 v = ld_line(reinterpret_cast<const u128*>(at) + u);
    for (uint32_t k = 0; k < (u == 3 ? 3 : 4); k++) reinterpret_cast<uint32_t*>(to)[u * 4 + k] = v.w[k];
  }
  return true;
}

// Bytes that stream_bytes() looks at, from the control segment.
BP_DEV uint32_t least_bytes(const uint8_t* stream) {
  const ctrl c(stream);
  return c.opcode == BP_OP_RDMA_WRITE && c.ds == 3 ? inband_header_bytes : sizeof(bp_wqe_ctrl);
}

// Bytes of the stream, from those: 0 when the engine does not take it. Only what the device
// verbs make: inline data behind the remote address, or segments without inline data.
BP_DEV uint32_t stream_bytes(const uint8_t* stream) {
  const ctrl c(stream);
  if (c.ds == 0) return 0;
  if (c.opcode == BP_OP_RDMA_WRITE && c.ds == 3 && (word_at(stream, 32) & BP_INLINE_FLAG) != 0) {
    const uint32_t bytes = word_at(stream, 32) & ~BP_INLINE_FLAG;
    return bytes > 0x100000 ? 0 : inband_header_bytes + bytes;
  }
  return c.ds * BP_DS_BYTES;
}

// Whether data segments are all there is behind the headers; the stream's bytes count to `end`.
BP_DEV bool ends_by_ds(const uint8_t* stream, uint32_t end) {
  const ctrl c(stream);
  if (!has_remote(c.opcode)) return true;
  for (uint32_t at = is_atomic(c.opcode) ? 48 : 32; at + 4 <= end; at += 16) {
    if ((word_at(stream, at) & BP_INLINE_FLAG) != 0) return false;
  }
  return true;
}

}  // namespace engine
}  // namespace bp

#endif
