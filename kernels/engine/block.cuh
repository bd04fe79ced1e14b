// What a block of the engine has in shared memory, and its first warp, the leader warp.
#ifndef BELLPUSH_ENGINE_BLOCK_CUH
#define BELLPUSH_ENGINE_BLOCK_CUH

#include "wqe.cuh"

namespace bp {
namespace engine {

constexpr uint32_t leader_warp_threads = 32;
constexpr uint32_t most_warps = BP_MAX_THREADS / 32;

enum order_kind : uint32_t { order_move, order_copied, order_lines, order_slots, order_peek, order_run, order_exit };

// What the leader warp asks the block to do.
struct order {
  uint32_t kind;
  uint32_t first, end;  // lines; or slots, of which each warp takes one, or in a peek each thread
  uint32_t missing;     // out: a line that had not come
  uint32_t taken;       // out: slots that were
  uint32_t ahead;       // slots: how far ahead one more is looked at; 0: none is
  uint32_t begun;       // out: 1: that one has begun to come
  uint32_t k;           // whose lines or slots
  uint32_t key;         // slots: what their WRITEs name, of what the block remembers; peek: the key itself
  uint64_t to, from, bytes;
  uint64_t job;         // run: whose slots these are
  bp_engine_run run;
};

// What a warp found in a slot.
struct found_slot {
  uint64_t remote;
  uint32_t bytes;  // 0: it has not come, or is not to be coalesced
  uint8_t signalled;
  uint8_t marked;  // as is_marked() says
  uint8_t comes;   // 1: not all of it has come
  uint8_t reserved;
};

// What a warp's threads found in 32 slots, as bits.
struct peeked_slots {
  uint32_t whole;  // so they seem, and they continue each other
  uint32_t asked;  // they ask for a CQE
};

// What the leader warp's rounds go by, and what the last one found, as bits by queue pair.
struct watch {
  uint64_t start, epoch, confirmed;
  uint32_t round;
  uint32_t hot;  // the queue pair whose slot was taken last, whose next one is looked at ahead
  uint32_t came;  // and how many lines of that lie in the stream, for this round's visit
  uint32_t flags, news, ahead, bodies;
};

struct block_state {
  context qps[BP_ENGINE_BLOCK_QPS];
  uint64_t polled[BP_ENGINE_BLOCK_QPS][2];
  bp_engine_args args;
  known_key keys[known_keys];
  order work;
  request req;       // what is carried out by itself
  uint32_t parsed;   // 1: that it is one
  watch rounds;
  found_slot found[most_warps];
  peeked_slots peeked[most_warps];
  uint64_t old_value;
  alignas(16) uint8_t wqe[BP_ENGINE_WQE_BYTES];
  // A slot's stream, args.slot_bytes of it, behind 12 bytes: its payload is then in whole units, which
  // lanes read without getting into each other's way.
  alignas(16) uint8_t before_stream[12];
  uint8_t stream[20];
};

static_assert((offsetof(block_state, stream) + inband_header_bytes) % 16 == 0, "whole units");
static_assert(sizeof(block_state) <= BP_ENGINE_SHARED_BYTES, "the host asks for so much");

// The block, as one of its leader warp sees it. It has no members: what functions out of line were passed by
// reference would lie in local memory, which every acquire of a poll empties L1 of; and of an address
// that is made here the compiler knows that it is shared memory.
struct team {
  BP_DEV block_state* b() const { return reinterpret_cast<block_state*>(dynamic_shared()); }
  BP_DEV context* qp(uint32_t k) const { return &b()->qps[k]; }
  BP_DEV uint32_t rank() const { return tid(); }
#if defined(__CUDACC__)
  BP_DEV uint32_t size() const { return leader_warp_threads; }  // which the host sees to
#else
  BP_DEV uint32_t size() const { return block_threads() < leader_warp_threads ? block_threads() : leader_warp_threads; }
#endif
  BP_DEV bool leads() const { return tid() == 0; }
  BP_DEV bool alone() const { return block_threads() <= leader_warp_threads; }
};

BP_DEV uint32_t ones(uint32_t mask) {
#if defined(__CUDACC__)
  return (uint32_t)__popc(mask);
#else
  return (uint32_t)__builtin_popcount(mask);
#endif
}
// Set bits without a gap, from the lowest on.
BP_DEV uint32_t trailing_ones(uint32_t mask) { return ones(mask & ~(mask + 1)); }

template <class F>
BP_DEV void each_bit(uint32_t mask, F f) {
  for (; mask != 0; mask &= mask - 1) f(ones((mask & (0 - mask)) - 1));
}

// What a leader warp's lanes say of up to 32 things, as bits.
template <class F>
BP_DEV uint32_t ballot_each(team t, F f) {
  uint32_t mask = 0;
  for (uint32_t first = 0; first < 32; first += t.size()) {
    const uint32_t i = first + t.rank();
    mask |= ballot(i < 32 && f(i)) << first;
  }
  return mask;
}

// What this thread stored, or has seen stored through a barrier, for a queue pair, before its next
// stores, for the peer and whoever polls the CQ.
BP_DEV void fence_written(bool far) {
  if (far) {
    fence_sys();
  } else {
    fence_gpu();
  }
}

// Where the block remembers a key, if it does.
BP_DEV known_key& known(team t, uint64_t table, uint32_t key) {
  return t.b()->keys[((key >> 8) ^ (uint32_t)(table >> 12)) % known_keys];
}

// A key of a NIC, from what the block remembers or from the table; one without a table if there is
// none. The leader warp calls it together.
BP_DEV const known_key& find_key(team t, uint64_t table, uint32_t key) {
  known_key* k = &known(t, table, key);
  if (k->table != table || k->key != key) {
    syncwarp();  // all have looked at the entry
    if (t.leads()) read_key(k, table, key);
    syncwarp();
  }
  return *k;
}

BP_DEV void forget_keys(team t) {
  syncwarp();
  for (uint32_t i = t.rank(); i < known_keys; i += t.size()) t.b()->keys[i].table = 0;
  syncwarp();
}

}  // namespace engine
}  // namespace bp

#endif
