// The host executor's C++ side: which lane runs on this thread, and the memory of a grid.
// The one translation unit that a program links beside its kernels; needs no C++ runtime.
#include <bellpush/impl/lane.hpp>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

// A fibre never moves to another thread, so its thread's word is always the right one; the
// executor sets it again at every switch.
__thread bp_host_lane* current_lane;

// Device functions called outside any grid (a unit test of the WQE builders, say) see a block of
// one lane.
struct Solo {
  bp_host_grid grid;
  bp_host_block block;
  bp_host_warp warp;
  bp_host_lane lane;
};
__thread Solo solo;

void solo_yield(void*) { sched_yield(); }

[[noreturn]] void die(const char* why) {
  fprintf(stderr, "bellpush: host kernel fault: %s\n", why);
  abort();
}

void solo_fault(void*, const char* why) { die(why); }

bp_host_lane* solo_lane() {
  if (!solo.lane.grid) {
    solo.grid.hooks = bp_host_hooks{solo_yield, solo_fault, 0};
    solo.grid.grid_blocks = solo.grid.block_threads = 1;
    solo.block.barrier.lanes = solo.warp.barrier.lanes = solo.warp.quads[0].lanes = 1;
    solo.lane.block = &solo.block;
    solo.lane.warp = &solo.warp;
    solo.lane.grid = &solo.grid;
  }
  return &solo.lane;
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

extern "C" {

bp_host_lane* bp_host_current() { return current_lane ? current_lane : solo_lane(); }

void bp_host_set_current(bp_host_lane* lane) { current_lane = lane; }

void bp_host_yield() {
  bp_host_lane* me = bp_host_current();
  me->grid->hooks.yield(me->owner);
}

void bp_host_fault(const char* why) {
  bp_host_lane* me = bp_host_current();
  me->grid->hooks.fault(me->owner, why);
  die(why);  // the hook does not return
}

bp_host_grid* bp_host_grid_new(uint32_t grid_blocks, uint32_t block_threads, size_t shared_bytes,
                               const bp_host_hooks* hooks) {
  const size_t lanes = size_t{grid_blocks} * block_threads;
  const size_t warps_per_block = (block_threads + 31) / 32;
  const size_t shared = round_up(shared_bytes, 128);
  const size_t head = round_up(sizeof(bp_host_grid), 128);
  const size_t blocks_at = head;
  const size_t warps_at = blocks_at + round_up(grid_blocks * sizeof(bp_host_block), 128);
  const size_t lanes_at =
      warps_at + round_up(grid_blocks * warps_per_block * sizeof(bp_host_warp), 128);
  const size_t shared_at = lanes_at + round_up(lanes * sizeof(bp_host_lane), 128);
  const size_t bytes = shared_at + grid_blocks * shared;

  char* base = static_cast<char*>(aligned_alloc(128, bytes));
  if (!base) return nullptr;
  memset(base, 0, shared_at);  // shared memory starts undefined, as on a GPU
  bp_host_grid* grid = reinterpret_cast<bp_host_grid*>(base);
  grid->hooks = *hooks;
  grid->grid_blocks = grid_blocks;
  grid->block_threads = block_threads;
  grid->blocks = reinterpret_cast<bp_host_block*>(base + blocks_at);
  grid->warps = reinterpret_cast<bp_host_warp*>(base + warps_at);
  grid->lanes = reinterpret_cast<bp_host_lane*>(base + lanes_at);
  grid->shared = reinterpret_cast<unsigned char*>(base + shared_at);
  for (uint32_t bid = 0; bid < grid_blocks; ++bid) {
    bp_host_block* block = &grid->blocks[bid];
    block->barrier.lanes = block_threads;
    block->shared = grid->shared + bid * shared;
    bp_host_warp* warps = &grid->warps[bid * warps_per_block];
    for (uint32_t tid = 0; tid < block_threads; ++tid) {
      bp_host_lane* lane = &grid->lanes[size_t{bid} * block_threads + tid];
      lane->grid = grid;
      lane->block = block;
      lane->warp = &warps[tid / 32];
      lane->warp->barrier.lanes++;
      lane->warp->quads[tid % 32 / 4].lanes++;
      lane->tid = tid;
      lane->bid = bid;
    }
  }
  return grid;
}

bp_host_lane* bp_host_grid_lane(bp_host_grid* grid, uint32_t bid, uint32_t tid, void* owner) {
  bp_host_lane* lane = &grid->lanes[size_t{bid} * grid->block_threads + tid];
  lane->owner = owner;
  return lane;
}

void bp_host_grid_free(bp_host_grid* grid) { free(grid); }

void bp_host_lane_run(bp_host_lane* lane, bp_host_kernel kernel, const void* args) {
  bp_host_set_current(lane);
  kernel(args);
  bp_host_set_current(lane);
  bp_host::leave(&lane->warp->quads[lane->tid % 32 / 4]);
  bp_host::leave(&lane->warp->barrier);
  bp_host::leave(&lane->block->barrier);
  bp_host_set_current(nullptr);
}

}  // extern "C"
