// A message by itself, by the shortest way: a plain WRITE with a completion at most, of a size that
// one warp moves in a trip or two. That is what somebody waits for.
//
// What is on this way is one function that calls next to nothing: a caller's values that outlive a
// call of what needs many registers lie in local memory, and as an acquire empties L1, each of them
// would be a trip to L2. Whatever is not plain is left as it was, for the ways in coalesce.cuh and
// run.cuh, which say what becomes of it.
#ifndef BELLPUSH_ENGINE_SINGLE_WRITE_CUH
#define BELLPUSH_ENGINE_SINGLE_WRITE_CUH

#include "coalesce.cuh"

namespace bp {
namespace engine {

enum single_write : uint32_t {
  single_done,    // and nothing is known of the next
  single_next,    // done, and the next one has begun to come, or will
  single_coalesce,     // done, and two more have begun to come
  single_waits,   // not all of it has come; the look waits for the rest
  single_key,     // the block does not remember the key that the slot names
  single_body,    // no CQE's body is written ahead
  single_buffer,  // no doorbell was rung: it is in the BlueFlame buffer
  single_other,   // for whoever looks more closely
};

// The message's end: its completion, if one is asked for. All lanes have stored, and met at a syncwarp.
BP_DEV void end_single(team t, context* q, bool asked, uint64_t end, bool near, uint32_t index) {
  if (!t.leads()) return;
  if (asked) {
    const uint64_t pi = q->state.cq_pi;
    const cqe_tail tail(q, pi, BP_OP_RDMA_WRITE, index);
    // As in complete().
    fence_written(q->far != 0 || !near);
    st_relaxed_sys(tail.to, tail.value);
    q->state.cq_pi = pi + 1;
    q->coalesced_end = 0;
    q->far = 0;
  } else {
    note_written(q, end, near);
  }
}

// Nothing else has come: the fence that the next message would begin with, which nobody waits for now.
BP_DEV void settle_early(team t, context* q) {
  if (q->coalesced_end != 0) fence_coalesced(t, q);
}

// Why a message that asks for a completion cannot have one this way; single_done: it can.
BP_DEV uint32_t single_cqe(const context* q) {
  const uint64_t pi = q->state.cq_pi;
  if (pi + 1 - q->state.cq_ci > q->fixed.cqes) return single_other;
  return pi + 1 > q->bodies ? single_body : single_done;
}

// Carries out a WRITE of inline data that lies in a copy, from the control segment on: all but the
// counts. `bytes` of payload, which are there. Anything but single_done: nothing was done.
BP_DEV uint32_t write_inline(team t, context* q, const uint8_t* copy, uint32_t bytes, uint32_t index,
                             bool by_blueflame) {
  const bp_qpc_fixed& f = q->fixed;
  // 1. Check.
  const uint32_t rkey = word_at(copy, 24);
  const known_key& theirs = known(t, f.peer_keys, rkey);
  if (theirs.table != f.peer_keys || theirs.key != rkey) return single_key;
  if ((f.peer_rights & BP_RIGHT_REMOTE_WRITE) == 0) return single_other;
  const uint64_t remote =
      resolve(theirs, f.peer_pd, long_at(copy, 16), bytes, BP_RIGHT_REMOTE_WRITE);
  if (remote == 0) return single_other;
  const bool asked = (copy[11] & BP_CTRL_CQ_UPDATE) != 0;
  if (asked) {
    const uint32_t why = single_cqe(q);
    if (why != single_done) return why;
  }
  // 2. Carry out.
  const bool near = (theirs.rights & BP_KEY_NEAR) != 0;
  if (needs_fence(*q, remote, is_marked(copy))) fence_coalesced(t, q);
  const uint8_t* payload = copy + inband_header_bytes;
  if (((remote | bytes) & 3) == 0 && bytes <= 4 * 32) {
    move_words(remote, payload, bytes, t.rank(), t.size());
  } else if (!by_blueflame) {
    move_stream(remote, copy, bytes, t.rank(), t.size());
  } else {
    move_copied(remote, payload, bytes, t.rank(), t.size());
  }
  syncwarp();  // the stores, before the leader's fence; and all have read what it changes
  // Before the CQE: its reader may use the buffer again.
  if (by_blueflame && t.leads()) clear_blueflame(q);
  end_single(t, q, asked, remote + bytes, near, index);
  return single_done;
}

// ---- Slots ------------------------------------------------------------------------------------

// Looks at a slot that has begun to come, before other queue pairs get their turn: the rest comes within a
// look or two as a rule, and to come here again takes longer.
constexpr uint32_t slot_looks = 16;
// And at the one behind a full slot, which is part of a longer message.
constexpr uint32_t next_looks = 6;

// Lines of a slot from `first` to `end`, to the stream; returns how many from `first` on have come.
BP_DEV uint32_t leader_warp_lines(team t, const place& p, uint32_t line, uint32_t first, uint32_t end,
                           uint8_t* stream) {
  if (t.size() == 32) return take_lines(p, line, first, end, stream);
  uint32_t came = 0;
  for (uint32_t at = first; at < end && first + came == at; at += 32) {
    came += trailing_ones(ballot_each(t, [&](uint32_t i) {
      return at + i < end && take_line(p.slot, line, p.sequence, stream, at + i);
    }));
  }
  return came;
}

// Carries out the next slot if it holds a WRITE of inline data, as most do. `came` lines of it lie in
// the stream already. `looks`: how often to look for its beginning.
BP_DEV_COLD uint32_t single_slot(uint32_t k, uint32_t came, uint32_t looks) {
  const team t;
  context* q = t.qp(k);
  const bp_qpc_fixed& f = q->fixed;
  const uint32_t line = f.line, lines = q->lines;
  const place here{*q, 0}, next{*q, 1}, third{*q, f.slots > 1 ? 2u : 1u};
  uint8_t* stream = t.b()->stream;
  // 1. Look, until all lines have come that the header says there are. Those that have come are not
  // looked at again, so what was checked of them stays.
  uint32_t end = q->expect, bytes = 0, need = 0;
  end = end < 32 ? 32 : end;
  if (came == 0) syncwarp();  // all have done with the stream
  for (uint32_t look = 0;; look++) {
    if (bytes == 0) {
      // The control segment says how much more there is at least, and that how much there is in all.
      need = lines_of(line, sizeof(bp_wqe_ctrl));
      if (came >= need) {
        if (least_bytes(stream) != inband_header_bytes) return single_other;
        need = lines_of(line, inband_header_bytes);
        if (came >= need) {
          bytes = plain_bytes(stream, f.qpn, q->state.ticket);
          if (bytes == 0) return single_other;
          need = end = lines_of(line, inband_header_bytes + bytes);
          if (need > lines || need > coalesce_max_lines) return single_other;
        }
      }
    }
    if (came >= need) break;
    if (look >= (came == 0 ? looks : slot_looks)) {
      if (t.leads()) {
        // The last one, since its writer mostly stores lines in their order; the first that is missing if the
        // last was there already, or rounds would find it again and again.
        q->missing = q->missing == need - 1 ? came : need - 1;
        if (bytes != 0) q->expect = need;
      }
      syncwarp();
      return single_waits;
    }
    came += leader_warp_lines(t, here, line, came, end < lines ? end : lines, stream);
    syncwarp();  // the stream, before the looks at it
  }
  // 2. Carry out. On their way meanwhile: whether the next ones have begun.
  const uint32_t beyond = ld_relaxed_sys(sequence_at(next, line, 0));
  const uint32_t further = ld_relaxed_sys(sequence_at(third, line, 0));
  const uint32_t why = write_inline(t, q, stream, bytes, (uint32_t)q->state.ticket, false);
  if (why != single_done) return why;
  // No room for another unit: there is more, which continues this.
  const bool is_full = inband_header_bytes + bytes + 16 > lines * line_data(line);
  if (t.leads()) {  // after the CQE, which somebody waits for
    q->hint = word_at(stream, 24);
    q->expect = need;
    q->state.ticket++;
    q->state.inband++;
    q->state.wqes++;
    q->state.bytes += bytes;
    aim(q, next);
  }
  syncwarp();
  if (sequence_of(line, beyond) == next.sequence) {
    return sequence_of(line, further) == third.sequence ? single_coalesce : single_next;
  }
  if (q->coalesced_end == 0) return single_done;
  if (is_full) return single_next;
  settle_early(t, q);
  return single_done;
}

// ---- WQEs -------------------------------------------------------------------------------------

// Whole units that are aligned at both ends, of which no thread has more than it can have in flight.
BP_DEV void move_single(uint64_t to, uint64_t from, uint32_t bytes, uint32_t rank, uint32_t size) {
  u128 v[in_flight] = {};  // as in move_units
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t j = 0; j < in_flight; j++) {
    const uint32_t at = (rank + j * size) * 16;
    if (at < bytes) v[j] = ld_any<u128>(from + at);
  }
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t j = 0; j < in_flight; j++) {
    const uint32_t at = (rank + j * size) * 16;
    if (at < bytes) st_any(to + at, v[j]);
  }
}

// Carries out a WRITE with one gather entry, the next WQE, of which a copy lies at an offset.
BP_DEV_COLD uint32_t single_gather(uint32_t k, uint32_t offset) {
  const team t;
  context* q = t.qp(k);
  const bp_qpc_fixed& f = q->fixed;
  const uint64_t ci = q->state.ci;
  const uint8_t* copy = t.b()->wqe + offset;
  // 1. Check.
  if (!is_plain(copy, f.qpn, (uint32_t)ci)) return single_other;
  const plain_write w(copy);
  const known_key &theirs = known(t, f.peer_keys, w.rkey), &ours = known(t, f.keys, w.lkey);
  if (theirs.table != f.peer_keys || theirs.key != w.rkey || ours.table != f.keys ||
      ours.key != w.lkey || (f.peer_rights & BP_RIGHT_REMOTE_WRITE) == 0) {
    return single_other;
  }
  const uint64_t remote = resolve(theirs, f.peer_pd, w.raddr, w.bytes, BP_RIGHT_REMOTE_WRITE);
  const uint64_t local = resolve(ours, f.pd, w.addr, w.bytes, BP_RIGHT_GATHER);
  const bool asked = (copy[11] & BP_CTRL_CQ_UPDATE) != 0;
  const bool in_units = ((remote | local | w.bytes) & 15) == 0 && w.bytes <= in_flight * 16 * t.size();
  if (remote == 0 || local == 0 || !(in_units || is_little(remote, local, w.bytes)) ||
      (asked && single_cqe(q) != single_done)) {
    return single_other;
  }
  // 2. Carry out.
  const bool near = (theirs.rights & BP_KEY_NEAR) != 0;
  if (needs_fence(*q, remote, false)) fence_coalesced(t, q);
  if (in_units) {
    move_single(remote, local, w.bytes, t.rank(), t.size());
  } else {
    move_little(remote, local, w.bytes, t.rank(), t.size());
  }
  syncwarp();  // the stores, before the leader's fence; and all have read what it changes
  // Before the CQE: its reader may use the buffer again.
  if (t.leads() && f.blueflame) clear_blueflame(q);
  end_single(t, q, asked, remote + w.bytes, near, (uint32_t)ci);
  if (t.leads()) {  // after the CQE, which somebody waits for
    q->state.ci = ci + 1;
    if (q->state.producer < ci + 1) q->state.producer = ci + 1;
    q->state.blueflame += offset != 0;
    q->state.wqes++;
    q->state.bytes += w.bytes;
    if (q->dbr_due) look_at_record(q);
  }
  syncwarp();
  if (q->state.producer != ci + 1) return single_next;
  settle_early(t, q);
  return single_done;
}

constexpr uint32_t buffer_units = BP_UAR_BF_BYTES / 16;
constexpr uint32_t buffer_at = BP_WQEBB_BYTES;  // where its copy lies, behind one of the ring's next WQE

// Carries out what a doorbell told of, if that is one WRITE with one gather entry.
BP_DEV_COLD uint32_t single_wqe(uint32_t k) {
  const team t;
  context* q = t.qp(k);
  const bp_qpc_fixed& f = q->fixed;
  const uint64_t ci = q->state.ci;
  // On its way while the doorbell is understood: what lies where the next WQE is expected, in the ring and in
  // the buffer. It was written before the doorbell, if that tells of it.
  const u128* next = reinterpret_cast<const u128*>(f.sq) + (ci & (f.sq_blocks - 1)) * 4;
  const u128* buffer = reinterpret_cast<const u128*>(f.uar + BP_UAR_BF_OFFSET);
  const uint32_t all = f.blueflame ? 4 + buffer_units : 4, first = t.rank();
  const auto load = [&](uint32_t u) { return ld_line(u < 4 ? next + u : buffer + (u - 4)); };
  const u128 early = first < all ? load(first) : unit_zero();
  if (t.leads()) ring(q, t.b()->polled[k][0], t.b()->polled[k][1]);
  u128* units = reinterpret_cast<u128*>(t.b()->wqe);
  if (first < all) units[first] = early;
  for (uint32_t u = first + t.size(); u < all; u += t.size()) units[u] = load(u);
  syncwarp();
  if (q->state.producer - ci == 1) return single_gather(k, 0);
  const bool is_buffer = q->state.producer == ci && f.blueflame && !q->dbr_due;
  return is_buffer && t.b()->polled[k][1] != 0 ? single_buffer : single_other;
}

// ---- BlueFlame --------------------------------------------------------------------------------

// Whether a whole WQE of this queue pair lies in the copy of the BlueFlame buffer.
BP_DEV bool is_whole(const context* q, const uint8_t* copy) {
  const ctrl c(copy);
  if (c.index != (q->state.ci & 0xffff) || c.qpn != q->fixed.qpn || c.ds == 0 || c.blocks() > 4) {
    return false;
  }
  const u128* units = reinterpret_cast<const u128*>(copy);
  uint32_t sum = 0;
  for (uint32_t u = 0; u < c.blocks() * 4; u++) sum += check_unit(units[u], u);
  return sum == units[0].w[3];
}

// Carries out the WQE in the BlueFlame buffer, which single_wqe() has copied, after that found that nothing
// else is posted.
BP_DEV_COLD uint32_t single_blueflame(uint32_t k) {
  const team t;
  context* q = t.qp(k);
  const uint8_t* copy = t.b()->wqe + buffer_at;
  if (!is_whole(q, copy)) return single_waits;
  // Inline data that end where the WQE does.
  const ctrl c(copy);
  const uint32_t count = word_at(copy, 32), bytes = count & ~BP_INLINE_FLAG;
  if ((count & BP_INLINE_FLAG) == 0) return single_gather(k, buffer_at);
  if (c.opcode != BP_OP_RDMA_WRITE || bytes == 0 || bytes > BP_UAR_BF_BYTES ||
      (inband_header_bytes + bytes + 15) / 16 != c.ds) {
    return single_other;
  }
  const uint64_t ci = q->state.ci;
  const uint32_t why = write_inline(t, q, copy, bytes, (uint32_t)ci, true);
  if (why != single_done) return why;
  if (t.leads()) {
    q->state.ci = q->state.producer = ci + c.blocks();
    q->state.blueflame++;
    q->state.wqes++;
    q->state.bytes += bytes;
  }
  syncwarp();
  settle_early(t, q);
  return single_done;
}

}  // namespace engine
}  // namespace bp

#endif
