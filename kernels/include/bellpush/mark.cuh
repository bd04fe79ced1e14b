// Marks: when a kernel was where, in a ring that the host reads while the kernel runs (docs/trace.md).
//
//   bp::mark(args.marks, 1);             // the host's Marks::device() gives it
//   bp::put<P>(endpoint, scope, remote_offset, source, bytes);
//   bp::mark(args.marks, 2, bytes);
#ifndef BELLPUSH_MARK_CUH
#define BELLPUSH_MARK_CUH

#include <bellpush/exec.cuh>
#include <bellpush/impl/order.cuh>
#include <bellpush/wire.h>

namespace bp {

// Writes down that the calling thread is here, with two numbers of its own: each thread that calls it writes a mark.
// Waits for nobody, and orders nothing. The newest marks take the place of the oldest.
BP_DEV void mark(const bp_marks& m, uint32_t what, uint64_t value = 0) {
  if (m.ring == 0) return;
  const uint64_t ns = now_ns();  // first: what follows takes time itself
  const uint64_t number = atomic_add(reinterpret_cast<uint64_t*>(m.begun), 1);
  // A reader that finds the lap in both units has a whole mark: a unit is one store, on the host one whose last word
  // comes last.
  const uint32_t lap = (uint32_t)(number >> m.ring_log) + 1;
  const uint64_t place = number & ((uint64_t{1} << m.ring_log) - 1);
  u128* at = reinterpret_cast<u128*>(m.ring + place * sizeof(bp_mark));
  st_line(at, u128{{(uint32_t)ns, (uint32_t)(ns >> 32), what, lap}});
  st_line(at + 1, u128{{(uint32_t)value, (uint32_t)(value >> 32), bid(), tid() | lap << 16}});
}

}  // namespace bp

#endif
