// Two blocks of 80 lanes (a partial last warp) share memory between collectives only: no race.
#include <stdio.h>

#include <bellpush/exec.cuh>
#include "host/threads.hpp"

struct Args {
  uint64_t* words;   // one a lane of a block, then one a block
  uint64_t* wrong;   // one a lane of the grid
  uint32_t rounds;
};

BP_KERNEL(collectives, Args) {
  const uint32_t n = bp::block_threads();
  uint64_t* words = args.words + bp::bid() * n;
  uint64_t* shared = reinterpret_cast<uint64_t*>(bp::dynamic_shared());
  uint64_t wrong = 0;
  for (uint32_t round = 0; round < args.rounds; ++round) {
    words[bp::tid()] = round + bp::tid();
    bp::syncthreads();
    uint32_t peer = (bp::tid() + 1 + round) % n;
    wrong += words[peer] != round + peer;
    bp::syncthreads();
    uint32_t in_warp = n - bp::tid() / 32 * 32 < 32 ? n % 32 : 32;
    wrong += bp::shfl_u64(bp::tid() + round, round % in_warp) !=
             bp::tid() / 32 * 32 + round % in_warp + round;
    uint32_t all = in_warp == 32 ? 0xffffffffu : (1u << in_warp) - 1;
    wrong += bp::ballot(true) != all;
    wrong += bp::ballot(bp::lane() == round % 7) != 1u << round % 7;
    // The elected lane's plain store, seen after the warp's barrier.
    if (bp::lane() == 0) shared[bp::tid() / 32] = round;
    bp::syncwarp();
    wrong += shared[bp::tid() / 32] != round;
    wrong += bp::block_broadcast_u64(bp::tid() * 10 + round, round % n) != round % n * 10 + round;
  }
  args.wrong[bp::bid() * n + bp::tid()] = wrong;
  // Half of the lanes leave; the others go on among themselves.
  if (bp::tid() % 2) return;
  if (bp::ballot(true) & 0xaaaaaaaau) args.wrong[bp::bid() * n + bp::tid()]++;
  bp::syncthreads();
}

int main() {
  const uint32_t blocks = 2, threads = 80;
  std::vector<uint64_t> words(blocks * threads), wrong(blocks * threads);
  Args args = {words.data(), wrong.data(), 10};
  bp_host::run_threads(collectives, blocks, threads, 1024, args);
  uint64_t sum = 0;
  for (uint64_t w : wrong) sum += w;
  printf("wrong %llu\n", static_cast<unsigned long long>(sum));
  return sum != 0;
}
