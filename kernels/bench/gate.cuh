// A kernel that stands still where the host wants it to: three words of 4 bytes in memory that the host reads and
// writes. The kernel is there; it may go on; it has done what it was to do.
#ifndef BELLPUSH_BENCH_GATE_CUH
#define BELLPUSH_BENCH_GATE_CUH

#include <bellpush/bellpush.cuh>

namespace gate {

constexpr uint64_t patience_ns = 20000000000;

BP_DEV void say(uint64_t gate, uint32_t word) {
  bp::fence_sys();  // what this thread stored before, for the host, which looks at it once it sees the word
  bp::st_relaxed_sys(reinterpret_cast<uint32_t*>(gate) + word, 1u);
}

// Says that it is here, and waits until the host lets it go on.
BP_DEV void pass(uint64_t gate) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(gate);
  say(gate, 0);
  for (bp::deadline patience; bp::ld_relaxed_sys(words + 1) == 0 && !patience.expired(patience_ns);) bp::yield_();
}

// Says that it has done it.
BP_DEV void done(uint64_t gate) { say(gate, 2); }

}  // namespace gate

#endif
