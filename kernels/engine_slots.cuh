// A row of in-band slots: each warp of a block looks at one, and those that are whole and continue
// each other are carried out together.
#ifndef BELLPUSH_ENGINE_SLOTS_CUH
#define BELLPUSH_ENGINE_SLOTS_CUH

#include "engine_block.cuh"

namespace bp {
namespace engine {

constexpr uint32_t line_loads = 8;                    // of a lane, in flight together
constexpr uint32_t row_lines = line_loads * 32;       // of a slot that a warp takes

// Payload of a slot's stream that holds a WRITE of inline data and nothing else; 0 for all others,
// which the crew looks at by itself. The first lines may be anything: the caller checks that they
// have come.
BP_DEV uint32_t plain_bytes(const uint8_t* stream, uint32_t qpn, uint64_t ticket) {
  const ctrl c(stream);
  const uint32_t count = word_at(stream, 32), bytes = count & ~BP_INLINE_FLAG;
  const bool plain = c.opcode == BP_OP_RDMA_WRITE && c.ds == 3 && c.qpn == qpn &&
                     c.index == (ticket & 0xffff) && (count & BP_INLINE_FLAG) != 0;
  return plain && bytes <= 0x100000 ? bytes : 0;
}

// A warp's look at a slot: its lines to the warp's part of the stream. Says which have come.
BP_DEV void take_lines(const place& p, uint32_t line, uint32_t lines, uint8_t* stream,
                       uint32_t (&came)[line_loads]) {
  if (line == BP_LINE_60_4) {
    for (uint32_t j = 0; j < line_loads; j++) {
      const uint32_t i = lane() + j * 32;
      came[j] = j * 32 < lines
                    ? ballot(i < lines && take_line(p.slot, line, p.sequence, stream, i))
                    : 0;
    }
    return;
  }
  u128 v[line_loads];
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t j = 0; j < line_loads; j++) {
    const uint32_t i = lane() + j * 32;
    if (i < lines) v[j] = ld_line(reinterpret_cast<const u128*>(p.slot) + i);
  }
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t j = 0; j < line_loads; j++) {
    const uint32_t i = lane() + j * 32;
    came[j] = ballot(i < lines && unpack_line(v[j], line, p.sequence, stream + i * line_data(line)));
  }
}

// Whether the first `need` lines have come.
BP_DEV bool all_came(const uint32_t (&came)[line_loads], uint32_t need) {
  bool all = true;
  for (uint32_t j = 0; j < line_loads; j++) {
    const uint32_t rest = need > j * 32 ? need - j * 32 : 0;
    const uint32_t wanted = rest >= 32 ? ~0u : (1u << rest) - 1;
    all &= (came[j] & wanted) == wanted;
  }
  return all;
}

// Slots in a row that are whole and whose payload goes on where the one before ended.
BP_DEV uint32_t row_of_slots(const block_state* b, uint32_t most) {
  uint32_t n = 0;
  for (uint64_t next = 0; n < most; n++) {
    const found_slot& s = b->found[n];
    if (s.bytes == 0 || (n != 0 && s.remote != next)) break;
    next = s.remote + s.bytes;
  }
  return n;
}

// The whole block's.
BP_DEV_COLD void perform_slots() {
  block_state* b = team{}.b();
  const order& o = b->work;
  const context& q = b->qps[o.k];
  const bp_qpc_fixed& f = q.fixed;
  const uint32_t warp = tid() / 32, line = f.line, data = line_data(line);
  uint8_t* stream = b->stream + warp * o.part;
  // 1. Look. A slot counts only when every line that its stream needs has come.
  if (warp < o.end) {
    const uint64_t ticket = q.state.ticket + warp;
    const uint32_t lines = f.slot_bytes / line_bytes(line);
    uint32_t came[line_loads];
    take_lines(place(f, ticket), line, lines, stream, came);
    syncwarp();  // the stream, before the looks at its header
    uint32_t bytes = plain_bytes(stream, f.qpn, ticket);
    const uint32_t need = (inband_header_bytes + bytes + data - 1) / data;
    uint64_t remote = 0;
    if (bytes != 0 && need <= lines && all_came(came, need) && word_at(stream, 24) == b->keys[o.key].key) {
      remote = resolve(b->keys[o.key], f.peer_pd, long_at(stream, 16), bytes, BP_RIGHT_REMOTE_WRITE);
    }
    if (lane() == 0) {
      const uint32_t signalled = (stream[11] & BP_CTRL_CQ_UPDATE) != 0;
      b->found[warp] = found_slot{remote, remote != 0 ? bytes : 0, signalled};
    }
  }
  syncthreads();
  // 2. Carry out.
  if (warp < row_of_slots(b, o.end)) {
    // Messages before these, which the block's barriers have shown to this thread, before what it
    // stores, for the peer.
    if (q.row_end != 0 && q.row_end != b->found[0].remote) fence_written(q.far);
    move_copied(b->found[warp].remote, stream + inband_header_bytes, b->found[warp].bytes, lane(), 32);
  }
}

}  // namespace engine
}  // namespace bp

#endif
