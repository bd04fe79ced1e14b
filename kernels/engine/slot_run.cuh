// Runs of in-band slots that are longer than a block has warps for: all blocks take them.
//
// The block whose queue pair it is looks at headers and last lines, a thread a slot, and checks them. The run that it
// then opens as a job (move.cuh) is of plain WRITEs that continue each other and have one length, so a slot's number
// says where its payload goes. All blocks join slots and move payload. A header is joined again with the rest, and not
// looked at again: what counts is the copy that was checked.
//
// A last line does not say that the others have come. Who joins a slot looks for each of its lines, so many times.
// Where one is missing still, the slot and all behind it are left to the queue pair's block, which waits for it by
// single looks. Of the slots behind it some may have been moved, and are moved again: nobody was told of them. Nothing
// behind a slot that is no such WRITE, or is not allowed, is moved before it: the run has ended there.
#ifndef BELLPUSH_ENGINE_SLOT_RUN_CUH
#define BELLPUSH_ENGINE_SLOT_RUN_CUH

#include "slots.cuh"

namespace bp {
namespace engine {

// The least that is worth it, in rounds of slots that a block would take by itself: a job's way to the other blocks and
// back is about as long.
constexpr uint32_t shared_rounds = 2;
// And the most payload, so that the block's other queue pairs get their turn.
constexpr uint32_t shared_run_bytes = 1 << 20;
// Looks for the lines of a slot whose last one has come.
constexpr uint32_t join_looks = 16;
// Room for a slot's first lines, of each thread's: an odd number of words, so that threads are not in each other's way.
constexpr uint32_t peek_bytes = 68;
static_assert(peek_bytes >= 60 && inband_header_bytes <= 3 * 12, "the header's lines, of each format");

// One thread's look at slot `i`: whether its header is that of the run's WRITE number `i`, and its last line has come.
BP_DEV bool is_of_run(const context& q, const order& o, uint32_t i, uint8_t* header) {
  const uint32_t line = q.fixed.line, bytes = (uint32_t)o.bytes;
  const place p(q, i);
  const uint32_t* last = sequence_at(p, line, lines_of(line, inband_header_bytes + bytes) - 1);
  if (line == BP_LINE_60_4) {
    if (!take_line(p.slot, line, p.sequence, header, 0) || ld_relaxed_sys(last) != p.sequence) return false;
  } else {
    u128 v[3];  // in flight together
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t j = 0; j < 3; j++) v[j] = ld_line(reinterpret_cast<const u128*>(p.slot) + j);
    bool all = sequence_of(line, ld_relaxed_sys(last)) == p.sequence;
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t j = 0; j < 3; j++) all &= unpack_line(v[j], line, p.sequence, header + j * line_data(line));
    if (!all) return false;
  }
  return plain_bytes(header, q.fixed.qpn, q.state.ticket + i) == bytes && word_at(header, 24) == o.key &&
         long_at(header, 16) == o.from + (uint64_t)i * bytes && !is_marked(header);
}

// The whole block's, a thread a slot.
BP_DEV_COLD void perform_peek() {
  block_state* b = team{}.b();
  const order& o = b->work;
  uint8_t* header = b->stream + tid() * peek_bytes;
  const bool whole = tid() < o.end && is_of_run(b->qps[o.k], o, tid(), header);
  const uint32_t mask = ballot(whole), asked = ballot(whole && (header[11] & BP_CTRL_CQ_UPDATE) != 0);
  if (lane() == 0) b->peeked[tid() / 32] = {mask, asked};
}

// The whole block's: each warp joins a slot and moves its payload.
BP_DEV_COLD void perform_run() {
  block_state* b = team{}.b();
  const order& o = b->work;
  const bp_engine_run& r = o.run;
  const uint32_t warp = tid() / 32, i = o.first + warp;
  if (warp >= o.end) return;
  uint8_t* stream = b->stream + warp * r.part;
  const place p(r, i);
  const uint32_t need = lines_of(r.line, inband_header_bytes + r.bytes);
  uint32_t have = 0;
  for (uint32_t look = 0; have < need && look < join_looks; look++) {
    if (look != 0) yield_();
    have += take_lines(p, r.line, have, need, stream);
  }
  syncwarp();  // the stream, before it is moved
  if (have == need) {
    move_stream(o.to + (uint64_t)warp * r.bytes, stream, r.bytes, lane(), 32);
  } else if (lane() == 0) {
    atomic_max(&reinterpret_cast<bp_engine_job*>(o.job)->missing, uint64_t{r.count - i});
  }
}

}  // namespace engine
}  // namespace bp

#endif
