// Entry points with which the executors are tested; they use exec.cuh and nothing else, but for marks.
#include <bellpush/exec.cuh>
#include <bellpush/mark.cuh>

namespace {

BP_DEV uint32_t load_relaxed(const uint32_t* p) {
#ifdef __CUDACC__
  return *static_cast<const volatile uint32_t*>(p);
#else
  return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}

BP_DEV void store_relaxed(uint32_t* p, uint32_t v) {
#ifdef __CUDACC__
  *static_cast<volatile uint32_t*>(p) = v;
#else
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
#endif
}

}  // namespace

// out[i] = in[i] + add, over the whole grid.
struct bp_selftest_copy_args {
  uint64_t out;
  uint64_t in;
  uint64_t words;
  uint64_t add;
};

BP_KERNEL(bp_selftest_copy, bp_selftest_copy_args) {
  uint64_t* out = reinterpret_cast<uint64_t*>(args.out);
  const uint64_t* in = reinterpret_cast<const uint64_t*>(args.in);
  uint64_t step = uint64_t{bp::grid_blocks()} * bp::block_threads();
  for (uint64_t i = uint64_t{bp::bid()} * bp::block_threads() + bp::tid(); i < args.words;
       i += step) {
    out[i] = in[i] + args.add;
  }
}

// Sums values through every collective, `rounds` times. Per block, three words: the sum of tids,
// the ballot of odd lanes in warp 0, and the number of rounds in which a thread saw a wrong value.
struct bp_selftest_reduce_args {
  uint64_t out;
  uint64_t rounds;
};

BP_KERNEL(bp_selftest_reduce, bp_selftest_reduce_args) {
  uint64_t* out = reinterpret_cast<uint64_t*>(args.out) + 3 * bp::bid();
  uint64_t* sums = reinterpret_cast<uint64_t*>(bp::dynamic_shared());  // a word a warp
  const uint32_t warps = (bp::block_threads() + 31) / 32;
  const uint32_t in_warp =
      bp::block_threads() - bp::tid() / 32 * 32 < 32 ? bp::block_threads() % 32 : 32;
  uint64_t total = 0;
  uint64_t wrong = 0;
  uint32_t odd = 0;
  for (uint64_t round = 0; round < args.rounds; ++round) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < in_warp; ++i) sum += bp::shfl_u64(bp::tid(), i);
    odd = bp::ballot(bp::lane() % 2 == 1);
    bp::syncthreads();  // everybody has read the previous round's sums
    if (bp::lane() == 0) sums[bp::tid() / 32] = sum;
    bp::syncthreads();
    total = 0;
    for (uint32_t w = 0; w < warps; ++w) total += sums[w];
    uint32_t root = static_cast<uint32_t>(round % bp::block_threads());
    uint64_t told = bp::block_broadcast_u64(round * 1000 + bp::tid(), root);
    wrong += told != round * 1000 + root;
    bp::syncwarp();
  }
  uint64_t bad = 0;
  for (uint32_t i = 0; i < in_warp; ++i) bad += bp::shfl_u64(wrong, i);
  if (bp::tid() == 0) {
    out[0] = total;
    out[1] = odd;
    out[2] = bad;
  }
}

// Announces itself, then waits for the host's flag, at most `timeout_ns`; says which it was.
struct bp_selftest_flag_args {
  uint64_t flag;       // uint32_t: 0 until the host writes
  uint64_t result;     // uint32_t: 1 while running, 2 flag seen, 3 timeout
  uint64_t timeout_ns;
};

BP_KERNEL(bp_selftest_flag, bp_selftest_flag_args) {
  const uint32_t* flag = reinterpret_cast<const uint32_t*>(args.flag);
  uint32_t* result = reinterpret_cast<uint32_t*>(args.result);
  if (bp::tid() == 0 && bp::bid() == 0) store_relaxed(result, 1);
  uint64_t since = bp::now_ns();
  bool seen = false;
  while (!(seen = load_relaxed(flag) != 0) && bp::now_ns() - since < args.timeout_ns) bp::yield_();
  bp::syncthreads();
  if (bp::tid() == 0 && bp::bid() == 0) store_relaxed(result, seen ? 2 : 3);
}

// One lane never reaches the collective: the executor must end the launch, not hang. Host only in
// the tests; a GPU would wait for ever.
struct bp_selftest_stuck_args {
  uint64_t flag;  // uint32_t: released when non-zero
};

BP_KERNEL(bp_selftest_stuck, bp_selftest_stuck_args) {
  const uint32_t* flag = reinterpret_cast<const uint32_t*>(args.flag);
  if (bp::tid() == 1) {
    while (load_relaxed(flag) == 0) bp::yield_();
  }
  bp::syncthreads();
}

// `yields` yields a lane: what a spin costs.
struct bp_selftest_yield_args {
  uint64_t yields;
};

BP_KERNEL(bp_selftest_yield, bp_selftest_yield_args) {
  for (uint64_t i = 0; i < args.yields; ++i) bp::yield_();
}

// Each thread writes `count` marks: of `what`, with its place in the grid << 32 | 0, 1, 2, ...
struct bp_selftest_marks_args {
  struct bp_marks marks;
  uint64_t count;
  uint64_t what;
};

BP_KERNEL(bp_selftest_marks, bp_selftest_marks_args) {
  const uint64_t thread = uint64_t{bp::bid()} * bp::block_threads() + bp::tid();
  for (uint64_t i = 0; i < args.count; ++i) {
    bp::mark(args.marks, static_cast<uint32_t>(args.what), thread << 32 | i);
  }
}
