// Streams through a window with no protocol around them, beside which `bellpush bench --post` shows those of queue
// pairs: no WQE, no doorbell, no completion queue and no verb. A slot's warp stores it as soon as the host has copied
// out what it had, which a word of host memory says. Every wait is bounded by a time.
#define BP_MAX_THREADS 512
#include <bellpush/bellpush.cuh>
#include "args.h"

namespace {

BP_DEV uint32_t* word_of(uint64_t words, uint32_t slot) {
  return reinterpret_cast<uint32_t*>(words + (uint64_t)slot * BP_STREAM_WORD_BYTES);
}

// Waits until the slot has been copied out in this lap; false where it was not in time. What the warp stores next comes
// behind the host's loads.
BP_DEV bool await_credit(const bp_stream_args& a, uint32_t slot, uint32_t lap) {
  uint64_t is_free = 1;
  if (bp::lane() == 0) {
    bp::deadline limit;
    while (bp::ld_relaxed_sys(word_of(a.credits, slot)) != lap) {
      if (limit.expired(a.limit_ns)) {
        is_free = 0;
        break;
      }
      bp::yield_();
    }
    bp::fence_acquire_sys();
  }
  bp::syncwarp();  // the leader's acquire is its warp's
  return bp::shfl_u64(is_free, 0) != 0;
}

// As push/kernel stores a slot, then a flag where that has its doorbell.
struct by_flag {
  const bp_stream_args& a;
  BP_DEV void operator()(uint32_t slot, uint64_t from, uint32_t lap) const {
    bp::detail::copy_to_slot(bp::warp_scope{}, a.window + (uint64_t)slot * a.slot_bytes, from, a.slot_bytes);
    bp::syncwarp();
    if (bp::lane() == 0) {
      bp::fence_release_sys();  // the warp's stores, which the barrier put before this, before the flag, for the host
      bp::st_relaxed_sys(word_of(a.flags, slot), lap);
    }
  }
};

// Lines that carry the lap's number, as in-band slots have them, and no fence.
template <bp::line L>
struct by_lines {
  const bp_stream_args& a;
  BP_DEV void operator()(uint32_t slot, uint64_t from, uint32_t lap) const {
    bp::u128* to = reinterpret_cast<bp::u128*>(a.window + (uint64_t)slot * a.slot_bytes);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
    const uint32_t units = a.slot_bytes / 16;  // a multiple of 32: the whole warp has a unit, or none
    const auto load = [&](uint32_t i) {
      const uint32_t* at = words + bp::first_word<L>(i);
      return bp::u128{{at[0], at[1], at[2], L == bp::line::d60s4 && i % 4 != 3 ? at[3] : 0}};
    };
    const auto store = [&](uint32_t i, const bp::u128& v) {
      bp::st_line_unit<L>(to, i, bp::unit_line<L>(v, i, lap), true);
    };
    // Four units' loads in flight before the first store.
    uint32_t i = bp::lane();
    for (; i + 96 < units; i += 128) {
      const bp::u128 v0 = load(i), v1 = load(i + 32), v2 = load(i + 64), v3 = load(i + 96);
      store(i, v0);
      store(i + 32, v1);
      store(i + 64, v2);
      store(i + 96, v3);
    }
    for (; i < units; i += 32) store(i, load(i));
  }
};

// All laps: the grid's warps take the slots in turn. Ends when the host has copied all of it, or by the first wait that
// was too long.
template <class Store>
BP_DEV void stream(const bp_stream_args& a, Store store) {
  bp_link_result* result = reinterpret_cast<bp_link_result*>(a.results) + bp::bid();
  const uint32_t first = (bp::bid() * bp::block_threads() + bp::tid()) / 32;
  const uint32_t warps = bp::grid_blocks() * (bp::block_threads() / 32);
  bp::syncthreads();
  const uint64_t start_ns = bp::now_ns();
  bool is_whole = true;
  for (uint32_t lap = 1; lap <= a.laps && is_whole; lap++) {
    for (uint32_t slot = first; slot < a.slots && is_whole; slot += warps) {
      is_whole = lap == 1 || await_credit(a, slot, lap - 1);
      const uint32_t place = ((lap - 1) * a.slots + slot) % a.places;
      if (is_whole) store(slot, a.src + (uint64_t)place * a.place_bytes, lap);
    }
  }
  for (uint32_t slot = first; slot < a.slots && is_whole; slot += warps) is_whole = await_credit(a, slot, a.laps);
  if (!is_whole && bp::lane() == 0) bp::atomic_max(&result->status, (uint32_t)BP_TIMEOUT);
  bp::syncthreads();
  if (bp::tid() == 0) {
    result->start_ns = start_ns;
    result->end_ns = bp::now_ns();
  }
}

}  // namespace

BP_KERNEL(bp_stream_kernel, bp_stream_args) { stream(args, by_flag{args}); }
BP_KERNEL(bp_stream_inband_60_4, bp_stream_args) { stream(args, by_lines<bp::line::d60s4>{args}); }
BP_KERNEL(bp_stream_inband_12_4, bp_stream_args) { stream(args, by_lines<bp::line::d12s4>{args}); }
