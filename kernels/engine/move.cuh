// How the engine moves payload: by a warp, by a block, or by all blocks of the engine together.
//
// Loads are relaxed at system scope: what they read was written by other agents, and L1 may hold an
// older copy. What orders them is the acquire of the doorbell or of the line that announced the
// message, and the barrier that hands this on from the thread that looked to the block.
#ifndef BELLPUSH_ENGINE_MOVE_CUH
#define BELLPUSH_ENGINE_MOVE_CUH

#include <bellpush/impl/order.cuh>
#include "engine.h"

namespace bp {
namespace engine {

// Loads that a thread has in flight: over NVLink an SM pulls the faster the more there are.
constexpr uint32_t in_flight = 8;
// Payload up to this is moved by the warp that found it: two barriers of the block cost as much.
constexpr uint32_t warp_bytes = 1024;
// Payload of more than this is shared among the blocks, which one SM would pull at 27 GB/s (docs/results/link-h200.md),
// in pieces that a block of 512 threads moves with 64 bytes a thread.
constexpr uint64_t share_bytes = 128 << 10;
constexpr uint64_t piece_bytes = 32 << 10;

template <class T>
BP_DEV T ld_any(uint64_t at) {
  if constexpr (sizeof(T) == 16) {
    return ld_line(reinterpret_cast<const u128*>(at));
  } else if constexpr (sizeof(T) == 4) {
    return ld_relaxed_sys(reinterpret_cast<const uint32_t*>(at));
  } else {
    return ld_byte(reinterpret_cast<const uint8_t*>(at));
  }
}

// Aligned units of 16 bytes are written at once, in long messages and in short ones: a receiver may look at nothing
// else (ll.cuh).
template <class T>
BP_DEV void st_any(uint64_t at, T v) {
  if constexpr (sizeof(T) == 16) {
    st_unit(reinterpret_cast<u128*>(at), v);
  } else {
    *reinterpret_cast<T*>(at) = v;
  }
}

// `count` units of T, dealt to `size` threads of which this is number `rank`.
template <class T>
BP_DEV void move_units(uint64_t to, uint64_t from, uint64_t count, uint32_t rank, uint32_t size) {
  for (uint64_t i = rank; i < count; i += (uint64_t)size * in_flight) {
    T v[in_flight] = {};  // or what a skipped load would leave is kept, in local memory
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t k = 0; k < in_flight; k++) {
      const uint64_t at = i + (uint64_t)k * size;
      if (at < count) v[k] = ld_any<T>(from + at * sizeof(T));
    }
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t k = 0; k < in_flight; k++) {
      const uint64_t at = i + (uint64_t)k * size;
      if (at < count) st_any(to + at * sizeof(T), v[k]);
    }
  }
}

// Head and tail byte by byte, what lies between in units that are aligned at both ends.
template <class T>
BP_DEV void move_aligned(uint64_t to, uint64_t from, uint64_t bytes, uint32_t rank, uint32_t size) {
  uint64_t head = (0 - to) & (sizeof(T) - 1);
  head = head < bytes ? head : bytes;
  const uint64_t units = (bytes - head) / sizeof(T);
  const uint64_t end = head + units * sizeof(T);
  move_units<uint8_t>(to, from, head, rank, size);
  move_units<T>(to + head, from + head, units, rank, size);
  move_units<uint8_t>(to + end, from + end, bytes - end, rank, size);
}

BP_DEV_COLD void move_odd(uint64_t to, uint64_t from, uint64_t bytes, uint32_t rank, uint32_t size) {
  if (((to ^ from) & 3) == 0) {
    move_aligned<uint32_t>(to, from, bytes, rank, size);
  } else {
    move_units<uint8_t>(to, from, bytes, rank, size);
  }
}

// Global memory to global memory.
//
// Out of line, as all that is called from several places and not once a round: the engine's code is
// read once a message, and what does not fit into an SM's instruction caches costs as much as a fence.
BP_DEV_COLD void move(uint64_t to, uint64_t from, uint64_t bytes, uint32_t rank, uint32_t size) {
  if (((to ^ from) & 15) == 0) {
    move_aligned<u128>(to, from, bytes, rank, size);
  } else {
    move_odd(to, from, bytes, rank, size);
  }
}

// The same of whole units that are aligned at both ends.
BP_DEV void move_copied_units(uint64_t to, const uint8_t* from, uint32_t bytes, uint32_t rank,
                              uint32_t size) {
  constexpr uint32_t N = 4;
#if defined(__CUDACC__)
#pragma unroll 1
#endif
  for (uint32_t first = rank * 16; first < bytes; first += N * size * 16) {
    u128 v[N] = {};  // as in move_units
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t j = 0; j < N; j++) {
      const uint32_t at = first + j * size * 16;
      if (at < bytes) v[j] = *reinterpret_cast<const u128*>(from + at);
    }
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t j = 0; j < N; j++) {
      const uint32_t at = first + j * size * 16;
      if (at < bytes) st_any(to + at, v[j]);
    }
  }
}

// Copied bytes (a WQE, a slot's stream) to global memory; whole words where the destination and the
// copy allow it, four of them to a store.
BP_DEV_COLD void move_copied(uint64_t to, const uint8_t* from, uint64_t bytes, uint32_t rank,
                             uint32_t size) {
  uint64_t head = (0 - to) & 15;
  head = head < bytes ? head : bytes;
  if (((reinterpret_cast<uint64_t>(from) + head) & 3) != 0) head = bytes;
  const uint64_t units = (bytes - head) / 16, end = head + units * 16;
  uint8_t* out = reinterpret_cast<uint8_t*>(to);
  for (uint64_t i = rank; i < head; i += size) out[i] = from[i];
  for (uint64_t i = rank; i < units; i += size) {
    const uint32_t* w = reinterpret_cast<const uint32_t*>(from + head + i * 16);
    st_any(to + head + i * 16, u128{{w[0], w[1], w[2], w[3]}});
  }
  for (uint64_t i = end + rank; i < bytes; i += size) out[i] = from[i];
}

// Payload that a warp moves with one load and one store a lane, which is what most messages are: whole
// words, or units that are aligned at both ends.
BP_DEV bool is_little(uint64_t to, uint64_t from, uint64_t bytes) {
  const uint64_t all = to | from | bytes;
  return ((all & 3) == 0 && bytes <= 4 * 32) || ((all & 15) == 0 && bytes <= 16 * 32);
}
template <class T, class From>
BP_DEV void move_few(uint64_t to, uint32_t bytes, uint32_t rank, uint32_t size, From from) {
#if defined(__CUDACC__)
#pragma unroll 1  // a lane has one as a rule
#endif
  for (uint32_t at = rank * sizeof(T); at < bytes; at += size * sizeof(T)) {
    st_any<T>(to + at, from(at));
  }
}
BP_DEV void move_little(uint64_t to, uint64_t from, uint32_t bytes, uint32_t rank, uint32_t size) {
  if (((to | from | bytes) & 15) == 0) {
    move_few<u128>(to, bytes, rank, size, [&](uint32_t at) { return ld_any<u128>(from + at); });
  } else {
    move_few<uint32_t>(to, bytes, rank, size, [&](uint32_t at) { return ld_any<uint32_t>(from + at); });
  }
}
// From a copy: words only. One of 8 bytes is written at once, as a signal's word is read.
BP_DEV void move_words(uint64_t to, const uint8_t* from, uint32_t bytes, uint32_t rank, uint32_t size) {
  const auto word = [&](uint32_t at) { return *reinterpret_cast<const uint32_t*>(from + at); };
  if (((to | bytes) & 15) == 0) {
    move_few<u128>(to, bytes, rank, size, [&](uint32_t at) {
      return u128{{word(at), word(at + 4), word(at + 8), word(at + 12)}};
    });
  } else if (bytes == 8 && (to & 7) == 0) {
    if (rank == 0) st_any<uint64_t>(to, (uint64_t)word(4) << 32 | word(0));
  } else {
    move_few<uint32_t>(to, bytes, rank, size, word);
  }
}

// ---- Jobs behind the control block: payload that all blocks move -----------------------------------

BP_DEV bp_engine_control_block* control_block_of(const bp_engine_args& a) {
  return reinterpret_cast<bp_engine_control_block*>(a.control);
}
BP_DEV bp_engine_job* job_of(const bp_engine_args& a, uint32_t block) {
  return reinterpret_cast<bp_engine_job*>(a.control + BP_ENGINE_CONTROL_BLOCK_BYTES) + block;
}

struct piece {
  uint64_t to, from, bytes;  // 0 bytes: there is none
  uint32_t slots;            // 0: `bytes` from `from` on; else so many of the run's slots, from number `from` on
};

// A job's word: its pieces << 32 | the next one. It is drawn from and read as one, so a number that was
// drawn says by itself whether it is a piece of the job that it was drawn from, whatever is opened
// since. And that one's description stays as it is until the piece is done. Draws that find nothing
// left are few (one for each look that found some), and never reach the upper half.
BP_DEV bool is_piece(uint64_t word) { return (uint32_t)word < word >> 32; }
BP_DEV bool has_pieces(const bp_engine_job* job) { return is_piece(ld_relaxed_gpu(&job->next)); }

constexpr uint32_t run_words = sizeof(bp_engine_run) / 8;
BP_DEV uint64_t* words_of(bp_engine_run* run) { return reinterpret_cast<uint64_t*>(run); }

BP_DEV piece piece_of(uint64_t to, const bp_engine_run& run, uint64_t number) {
  const uint64_t first = number * run.piece, left = run.count - first, n = left < run.piece ? left : run.piece;
  return {to + first * run.bytes, first, n * run.bytes, (uint32_t)n};
}
BP_DEV piece piece_of(uint64_t to, uint64_t from, uint64_t bytes, uint64_t number) {
  const uint64_t at = number * piece_bytes;
  return {to + at, from + at, bytes - at < piece_bytes ? bytes - at : piece_bytes, 0};
}

// Takes the next piece of a job, of which the caller has seen that there are some, or has taken one. Reads the run that
// it is of.
BP_DEV piece take_piece(bp_engine_job* job, bp_engine_run* run) {
  const uint64_t drawn = atomic_add(&job->next, 1);
  if (!is_piece(drawn)) return {};
  fence_acquire_gpu();  // the job's description, written before `next`, before it is read here
  const uint64_t number = (uint32_t)drawn;
  // All of it at once.
  const uint64_t to = ld_relaxed_gpu(&job->to), from = ld_relaxed_gpu(&job->from);
  const uint64_t bytes = ld_relaxed_gpu(&job->bytes);
  for (uint32_t i = 0; i < run_words; i++) words_of(run)[i] = ld_relaxed_gpu(words_of(&job->run) + i);
  return run->line != BP_LINE_NONE ? piece_of(to, *run, number) : piece_of(to, from, bytes, number);
}

BP_DEV uint64_t pieces_of(uint64_t bytes) { return (bytes + piece_bytes - 1) / piece_bytes; }
BP_DEV uint64_t pieces_of(const bp_engine_run& run) { return (run.count + run.piece - 1) / run.piece; }

// Lets the blocks take pieces of a job whose description this thread has written: all but number 0, which is this
// block's.
BP_DEV void open_pieces(const bp_engine_args& a, bp_engine_job* job, uint64_t pieces) {
  st_relaxed_gpu(&job->done, uint64_t{0});
  // The description, and through causality the doorbell that this block acquired and the payload
  // behind it, before `next`, for the blocks that draw.
  fence_gpu();
  st_relaxed_gpu(&job->next, pieces << 32 | 1);
  atomic_add(&control_block_of(a)->open, 1);
}

// Nobody reads a job's description while it is written: the job before has no piece that is not done.
BP_DEV piece open_job(const bp_engine_args& a, bp_engine_job* job, uint64_t to, uint64_t from,
                      uint64_t bytes) {
  st_relaxed_gpu(&job->to, to);
  st_relaxed_gpu(&job->from, from);
  st_relaxed_gpu(&job->bytes, bytes);
  st_relaxed_gpu(&job->run.line, (uint32_t)BP_LINE_NONE);
  open_pieces(a, job, pieces_of(bytes));
  return piece_of(to, from, bytes, 0);
}
BP_DEV piece open_job(const bp_engine_args& a, bp_engine_job* job, uint64_t to, bp_engine_run run) {
  st_relaxed_gpu(&job->to, to);
  st_relaxed_gpu(&job->missing, uint64_t{0});
  for (uint32_t i = 0; i < run_words; i++) st_relaxed_gpu(words_of(&job->run) + i, words_of(&run)[i]);
  open_pieces(a, job, pieces_of(run));
  return piece_of(to, run, 0);
}

// The piece that this thread's block moved is done, or given up. The caller has synchronised its block.
BP_DEV void end_piece(bp_engine_job* job) {
  // The block's stores before the count, for the job's owner, whose fence of system scope then
  // covers them (causality order is cumulative).
  fence_gpu();
  atomic_add(&job->done, 1);
}

}  // namespace engine
}  // namespace bp

#endif
