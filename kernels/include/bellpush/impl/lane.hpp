// A lane of the host executor, and the collectives over its warp and block.
//
// The same code is right whether lanes are fibres of one thread or threads of their own: all that
// lanes share is reached through the __atomic builtins or is ordered by a barrier made of them, and
// every wait goes through bp_host_yield(). Race checkers therefore see exactly the ordering that a
// kernel asked for.
#ifndef BELLPUSH_HOST_LANE_HPP
#define BELLPUSH_HOST_LANE_HPP

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

extern "C" {

// What the executor does when a lane waits, and when it must not go on. `owner` is the lane's.
struct bp_host_hooks {
  void (*yield)(void* owner);
  void (*fault)(void* owner, const char* why);  // does not return
  uint64_t collective_timeout_ns;               // a collective that waits longer is a fault
};

// All lanes that have not exited arrive; the last one opens the next generation.
struct bp_host_barrier {
  uint64_t exited_arrived;  // exited 63:32, arrived 31:0, of `lanes` together
  uint32_t generation;
  uint32_t lanes;
};

// What one lane contributes to a collective; the stamp tells it from what an exited lane left.
struct bp_host_slot {
  uint64_t value;
  uint64_t stamp;
};

struct alignas(64) bp_host_warp {
  struct bp_host_barrier barrier;
  struct bp_host_barrier quads[8];  // of four neighbouring lanes each
  struct bp_host_slot slots[2][32];
};

#define BP_HOST_SCRATCH_BYTES 192

struct alignas(64) bp_host_block {
  struct bp_host_barrier barrier;
  uint64_t broadcast[2];
  unsigned char* shared;
  alignas(16) unsigned char scratch[BP_HOST_SCRATCH_BYTES];
};

struct bp_host_grid {
  struct bp_host_hooks hooks;
  uint32_t grid_blocks;
  uint32_t block_threads;
  struct bp_host_lane* lanes;
  struct bp_host_warp* warps;
  struct bp_host_block* blocks;
  unsigned char* shared;
};

struct bp_host_lane {
  struct bp_host_grid* grid;
  struct bp_host_block* block;
  struct bp_host_warp* warp;
  void* owner;
  uint32_t tid;
  uint32_t bid;
  uint64_t warp_stamp;   // collectives over slots that this lane has taken part in
  uint64_t block_stamp;
};

// Returns the argument's size; runs the kernel's body unless `args` is null.
typedef size_t (*bp_host_kernel)(const void* args);

// The lane that runs on this thread; outside a grid, a block of one lane.
struct bp_host_lane* bp_host_current(void);
void bp_host_set_current(struct bp_host_lane* lane);
void bp_host_yield(void);
[[noreturn]] void bp_host_fault(const char* why);

// A grid's lanes, all set up, or null when memory is short. Any thread may make and free it.
struct bp_host_grid* bp_host_grid_new(uint32_t grid_blocks, uint32_t block_threads,
                                      size_t shared_bytes, const struct bp_host_hooks* hooks);
struct bp_host_lane* bp_host_grid_lane(struct bp_host_grid* grid, uint32_t bid, uint32_t tid,
                                       void* owner);
void bp_host_grid_free(struct bp_host_grid* grid);

// Runs the kernel as this lane and marks the lane exited.
void bp_host_lane_run(struct bp_host_lane* lane, bp_host_kernel kernel,
                      const void* args);

}  // extern "C"

namespace bp_host {

static inline uint64_t monotonic_ns() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

static inline void rest() { sched_yield(); }

// Called by the lane whose arrival or exit made the barrier complete: all others wait in it, so
// nobody else changes it.
static inline void open(bp_host_barrier* b, uint32_t arrived) {
  __atomic_fetch_sub(&b->exited_arrived, arrived, __ATOMIC_RELAXED);
  // Publishes what every lane did before it arrived (acquired through the counter) to all of them.
  __atomic_fetch_add(&b->generation, 1, __ATOMIC_RELEASE);
}

static inline bool complete(const bp_host_barrier* b, uint64_t exited_arrived) {
  uint32_t arrived = static_cast<uint32_t>(exited_arrived);
  return arrived != 0 && arrived + (exited_arrived >> 32) == b->lanes;
}

static inline void wait(bp_host_barrier* b) {
  // Cannot change before this lane arrives.
  uint32_t generation = __atomic_load_n(&b->generation, __ATOMIC_RELAXED);
  uint64_t now = __atomic_add_fetch(&b->exited_arrived, 1, __ATOMIC_ACQ_REL);
  if (complete(b, now)) {
    open(b, static_cast<uint32_t>(now));
    return;
  }
  uint64_t since = 0;
  for (uint32_t spins = 1; __atomic_load_n(&b->generation, __ATOMIC_ACQUIRE) == generation;
       ++spins) {
    bp_host_yield();
    if (spins % 1024 != 0) continue;
    uint64_t limit = bp_host_current()->grid->hooks.collective_timeout_ns;
    uint64_t t = monotonic_ns();
    if (since == 0) since = t;
    if (t - since > limit) bp_host_fault("a collective was not reached by every lane");
  }
}

// The lane takes part in no further collective.
static inline void leave(bp_host_barrier* b) {
  uint64_t now = __atomic_add_fetch(&b->exited_arrived, uint64_t{1} << 32, __ATOMIC_ACQ_REL);
  if (complete(b, now)) open(b, static_cast<uint32_t>(now));
}

// Two sets of slots suffice: a lane that writes a set again has passed the barrier of the set
// between, so every lane has read the set before.
static inline const bp_host_slot* exchange(uint64_t v) {
  bp_host_lane* me = bp_host_current();
  uint64_t stamp = ++me->warp_stamp;
  bp_host_slot* set = me->warp->slots[stamp % 2];
  set[me->tid % 32] = bp_host_slot{v, stamp};
  wait(&me->warp->barrier);
  return set;
}

static inline uint64_t shfl(uint64_t v, uint32_t src_lane) {
  return exchange(v)[src_lane % 32].value;
}

static inline uint32_t ballot(bool pred) {
  const bp_host_slot* set = exchange(pred);
  uint64_t stamp = bp_host_current()->warp_stamp;
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    if (set[i].stamp == stamp && set[i].value) bits |= uint32_t{1} << i;
  }
  return bits;
}

static inline uint64_t broadcast(uint64_t v, uint32_t root_tid) {
  bp_host_lane* me = bp_host_current();
  uint64_t* word = &me->block->broadcast[++me->block_stamp % 2];  // two words, as above
  if (me->tid == root_tid) *word = v;
  wait(&me->block->barrier);
  return *word;
}

}  // namespace bp_host

#endif
