// In-band slots that follow each other: each warp of a block looks at one, and those that are whole and continue
// each other are carried out together.
#ifndef BELLPUSH_ENGINE_SLOTS_CUH
#define BELLPUSH_ENGINE_SLOTS_CUH

#include "block.cuh"

namespace bp {
namespace engine {

constexpr uint32_t line_loads = 8;   // of a lane, in flight together
constexpr uint32_t coalesce_max_lines = 512;  // of a slot that a warp takes

// Payload of a slot's stream that holds a WRITE of inline data and nothing else; 0 for all others,
// which the leader warp looks at by itself. The first lines may be anything: the caller checks that they
// have come.
BP_DEV uint32_t plain_bytes(const uint8_t* stream, uint32_t qpn, uint64_t ticket) {
  const ctrl c(stream);
  const uint32_t count = word_at(stream, 32), bytes = count & ~BP_INLINE_FLAG;
  const bool plain = c.opcode == BP_OP_RDMA_WRITE && c.ds == 3 && c.qpn == qpn &&
                     c.index == (ticket & 0xffff) && (count & BP_INLINE_FLAG) != 0;
  return plain && bytes <= 0x100000 ? bytes : 0;
}

// A lane's share of a warp's look at lines of 16 bytes: line `first` + lane and every 32nd behind it,
// up to `end`. No sequence is 0.
template <uint32_t N>
BP_DEV void load_lines(uint64_t slot, uint32_t first, uint32_t end, u128* v) {
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t j = 0; j < N; j++) {
    const uint32_t i = first + j * 32 + lane();
    v[j] = i < end ? ld_line(reinterpret_cast<const u128*>(slot) + i) : unit_zero();
  }
}

// The data of such lines to the stream, where they have come. Returns how many have, from `first` on.
template <uint32_t N>
BP_DEV uint32_t unpack_lines(const u128* v, uint32_t line, uint32_t sequence, uint32_t first,
                             uint32_t end, uint8_t* stream) {
  uint32_t came = 0;
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t j = 0; j < N; j++) {
    if (first + j * 32 >= end) break;
    const uint32_t i = first + j * 32 + lane();
    const uint32_t mask = ballot(unpack_line(v[j], line, sequence, stream + i * line_data(line)));
    if (came == j * 32) came += trailing_ones(mask);
  }
  return came;
}

// What is not a line of 12+4, out of the way of those.
BP_DEV_COLD uint32_t take_some_others(uint64_t slot, uint32_t line, uint32_t sequence, uint32_t first,
                                      uint32_t end, uint8_t* stream) {
  if (line == BP_LINE_14_2) {
    u128 v[line_loads];
    load_lines<line_loads>(slot, first, end, v);
    return unpack_lines<line_loads>(v, BP_LINE_14_2, sequence, first, end, stream);
  }
  uint32_t came = 0;
#if defined(__CUDACC__)
#pragma unroll 1
#endif
  for (uint32_t j = 0; j < line_loads && came == j * 32; j++) {
    const uint32_t i = first + j * 32 + lane();
    came += trailing_ones(ballot(i < end && take_line(slot, BP_LINE_60_4, sequence, stream, i)));
  }
  return came;
}

// A whole warp's look at lines from `first` to `end`, as many at a time as are in flight together: the
// lines' data to the stream. Returns how many from `first` on have come.
BP_DEV uint32_t take_lines(const place& p, uint32_t line, uint32_t first, uint32_t end,
                           uint8_t* stream) {
  uint32_t came = 0;
#if defined(__CUDACC__)
#pragma unroll 1
#endif
  for (uint32_t at = first; at < end && first + came == at; at += line_loads * 32) {
    if (line == BP_LINE_12_4) {
      u128 v[line_loads];
      load_lines<line_loads>(p.slot, at, end, v);
      came += unpack_lines<line_loads>(v, BP_LINE_12_4, p.sequence, at, end, stream);
    } else {
      came += take_some_others(p.slot, line, p.sequence, at, end, stream);
    }
  }
  return came;
}

// A stream's payload to where it goes.
BP_DEV void move_stream(uint64_t to, const uint8_t* stream, uint32_t bytes, uint32_t rank,
                        uint32_t size) {
  const uint8_t* payload = stream + inband_header_bytes;
  if (((to | bytes) & 15) == 0) {
    move_copied_units(to, payload, bytes, rank, size);
  } else {
    move_copied(to, payload, bytes, rank, size);
  }
}

// Whether slot `i` of those that were looked at is carried out together with the ones before it: it is whole, its
// payload goes on where the one before ended, and it is not marked.
BP_DEV bool goes_on(const found_slot* found, uint32_t i) {
  if (found[i].bytes == 0 || i == 0) return found[i].bytes != 0;
  return found[i].marked == 0 && found[i].remote == found[i - 1].remote + found[i - 1].bytes;
}

// Looks at a slot that has begun to come: those behind it have come about as far, and what is not whole now is another
// round's.
constexpr uint32_t begun_looks = 3;

// A warp's look at a slot, whose lines go to the stream. It counts only when every line that its stream needs has come.
BP_DEV found_slot look_at_slot(const context& q, const known_key& key, uint32_t i, uint8_t* stream) {
  const bp_qpc_fixed& f = q.fixed;
  const uint32_t line = f.line;
  const place p(q, i);
  uint32_t came = 0, need = lines_of(line, inband_header_bytes), bytes = 0;
  for (uint32_t look = 1;; look++) {
    came += take_lines(p, line, came, bytes != 0 ? need : q.lines, stream);
    syncwarp();  // the stream, before the looks at its header
    if (bytes == 0 && came >= need) {
      bytes = plain_bytes(stream, f.qpn, q.state.ticket + i);
      need = lines_of(line, inband_header_bytes + bytes);
      if (bytes == 0 || need > q.lines) return {};
    }
    // What has come is not looked at again, so what was checked of it stays.
    if (bytes != 0 && came >= need) break;
    if (came == 0 || look == begun_looks) return found_slot{0, 0, 0, 0, 1, 0};
  }
  uint64_t remote = 0;
  if (word_at(stream, 24) == key.key) {
    remote = resolve(key, f.peer_pd, long_at(stream, 16), bytes, BP_RIGHT_REMOTE_WRITE);
  }
  const uint8_t signalled = (stream[11] & BP_CTRL_CQ_UPDATE) != 0;
  return found_slot{remote, remote != 0 ? bytes : 0, signalled, is_marked(stream), 0, 0};
}

// The whole block's.
BP_DEV_COLD void perform_slots() {
  block_state* b = team{}.b();
  const order& o = b->work;
  const context& q = b->qps[o.k];
  const uint32_t warp = tid() / 32;
  uint8_t* stream = b->stream + warp * q.part;
  // 1. Look. On its way meanwhile: whether one far ahead has begun.
  const bool looks_ahead = warp == 0 && o.ahead != 0;
  const place far_ahead(q, looks_ahead ? o.ahead : 0);
  const uint32_t word = looks_ahead ? ld_relaxed_sys(sequence_at(far_ahead, q.fixed.line, 0)) : 0;
  if (warp < o.end) {
    const found_slot found = look_at_slot(q, b->keys[o.key], warp, stream);
    if (lane() == 0) b->found[warp] = found;
  }
  if (tid() == 0) b->work.begun = looks_ahead && sequence_of(q.fixed.line, word) == far_ahead.sequence;
  syncthreads();
  // 2. Carry out.
  const uint32_t n = trailing_ones(ballot(lane() < o.end && goes_on(b->found, lane())));
  if (tid() == 0) b->work.taken = n;
  if (warp < n) {
    // Messages before these, which the block's barriers have shown to this thread, before what it
    // stores, for the peer.
    if (needs_fence(q, b->found[0].remote, b->found[0].marked != 0)) fence_written(q.far);
    move_stream(b->found[warp].remote, stream, b->found[warp].bytes, lane(), 32);
  }
}

}  // namespace engine
}  // namespace bp

#endif
