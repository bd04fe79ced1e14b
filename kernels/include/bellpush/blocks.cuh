// One message by several blocks of a kernel, over one queue pair that they share: put and put_signal of blocks_scope.
//
// One multiprocessor waits for its loads, its credits and its fences in turn; several overlap them. The blocks take
// chunks of the message in order, a few at a time, so that slots that follow each other continue each other at the
// peer, and a NIC can carry them out together.
#ifndef BELLPUSH_BLOCKS_CUH
#define BELLPUSH_BLOCKS_CUH

#include <bellpush/put.cuh>

namespace bp {

// What the blocks of one blocks_scope share, in this GPU's memory. Zeros before the first message; whoever has got
// BP_TIMEOUT from a verb of this scope zeroes it, when none of the blocks is in a verb, before the next one.
struct alignas(16) blocks_state {
  uint64_t next;     // chunks that have been taken
  uint64_t arrived;  // blocks that have posted theirs
  uint64_t end;      // the highest ticket of any of them
  uint64_t worst;    // the highest status
  uint64_t result;   // of the last message: ticket, shifted left by 8, and status
  uint64_t round;    // messages so far
};
static_assert(sizeof(blocks_state) == 48, "so many bytes are zeroed");

constexpr uint32_t max_scope_blocks = 65535;

// Blocks, at most max_scope_blocks, that put a message together. All threads of all of them call the verb, with the same arguments but for `rank`;
// all get the same status and the same ticket, once the last block has posted its part. So the blocks run at the same
// time, and only one message of a `state` is under way.
struct blocks_scope {
  uint32_t rank, count;
  blocks_state* state;
};

namespace detail {

// Posts chunks of `capacity` bytes as long as there are some that nobody has taken. All blocks call it.
template <class P>
BP_DEV_COLD bp_status_code put_chunks(located<bp_endpoint> ep, blocks_scope who, uint32_t capacity, uint64_t remote,
                                      uint64_t src, uint64_t bytes, uint32_t flags, uint64_t* end) {
  const block_scope scope;
  const uint64_t chunks = (bytes + capacity - 1) / capacity;
  const uint32_t batch = slots_a_batch<P>(ep.qp, who.count);
  for (;;) {
    uint64_t first = 0;
    if (scope.rank() == 0) first = atomic_add(&who.state->next, batch);
    first = scope.broadcast(first);
    if (first >= chunks) return BP_OK;
    const bool is_last = chunks - first <= batch;
    const uint64_t at = first * capacity, part = is_last ? bytes - at : (uint64_t)batch * capacity;
    const bp_status_code s = put_slots<P>(ep, scope, capacity, remote + at, src + at, part,
                                          is_last ? flags : flags | unsignalled, end, who.count);
    if (s != BP_OK) {
      // Nobody takes what follows.
      if (scope.rank() == 0) atomic_add(&who.state->next, chunks);
      return s;
    }
  }
}

// A block that has taken chunks waits for room at most five times the queue pair's timeout (room_for_tickets()), and once
// for the word `ring`, before it takes more or arrives; and the others for it a little longer.
constexpr uint64_t meet_timeouts = 7;

// Tells the other blocks of a result, and waits for all; the last one calls `finish(&end)`, if all is well, before the
// others return.
template <class Finish>
BP_DEV bp_status_code meet(const bp_qp& qp, blocks_scope who, bp_status_code s, uint64_t mine, uint64_t* end,
                           Finish finish) {
  const block_scope scope;
  blocks_state* st = who.state;
  scope.sync();  // all threads have read their parts of the source
  uint64_t round = 0, is_last = 0;
  if (scope.rank() == 0) {
    round = ld_relaxed_gpu(&st->round);  // it stays until this block has arrived
    atomic_max(&st->end, mine);
    atomic_max(&st->worst, (uint64_t)s);
    // Release: this block's tickets, and the two words above, before its arrival, for the last block; which acquires:
    // a signal's ticket comes behind all of the data's.
    fence_gpu();
    is_last = atomic_add(&st->arrived, 1) == who.count - 1;
    if (is_last) fence_gpu();
  }
  uint64_t result = 0;
  if (scope.broadcast(is_last) != 0) {
    uint64_t last = ld_relaxed_gpu(&st->end);
    s = (bp_status_code)ld_relaxed_gpu(&st->worst);
    scope.sync();  // all have read them
    if (s == BP_OK) s = finish(&last);
    result = last << 8 | (uint64_t)s;
    if (scope.rank() == 0) {
      st_relaxed_gpu(&st->next, (uint64_t)0);
      st_relaxed_gpu(&st->arrived, (uint64_t)0);
      st_relaxed_gpu(&st->end, (uint64_t)0);
      st_relaxed_gpu(&st->worst, (uint64_t)0);
      st_relaxed_gpu(&st->result, result);
      // Release: these, before the round, for the other blocks' waits and their next message.
      st_release_gpu(&st->round, round + 1);
    }
  } else if (scope.rank() == 0) {
    deadline patience;
    for (uint64_t seen = 0;;) {
      if (ld_relaxed_gpu(&st->round) != round) {
        fence_acquire_gpu();  // pairs with the release above
        result = ld_relaxed_gpu(&st->result);
        break;
      }
      const uint64_t progress = ld_relaxed_gpu(&st->next) + ld_relaxed_gpu(&st->arrived);
      if (progress != seen) {
        seen = progress;
        patience = deadline{};
      }
      if (patience.expired(meet_timeouts * qp.timeout_ns)) {
        result = mine << 8 | BP_TIMEOUT;
        break;
      }
      yield_();
    }
  }
  result = scope.broadcast(result);
  if (end) *end = result >> 8;
  return (bp_status_code)(result & 0xff);
}

// Whether the first block alone posts: a pull is one WQE, and so is a message of one slot.
template <class P>
BP_DEV uint32_t chunk_bytes(const bp_endpoint& ep, uint64_t bytes) {
  uint32_t capacity = 0;
  if constexpr (P::inband) {
    capacity = inband_capacity<P::line_v>(ep.qp.window);
  } else if constexpr (P::data_v == data::push) {
    capacity = ep.qp.window.slot_bytes;
  }
  return bytes <= capacity ? 0 : capacity;
}

// A put of all blocks, each its chunks of it, or of the first alone. The last to come calls `finish`, if all is well.
template <class P, class Finish>
BP_DEV bp_status_code put_by_blocks(const located<bp_endpoint>& ep, blocks_scope who, uint64_t remote_offset,
                                    const void* src, uint64_t bytes, uint32_t flags, uint64_t* end, Finish finish) {
  static_assert(P::shared, "several blocks post on the queue pair");
  if (who.rank >= who.count || who.count > max_scope_blocks) return BP_INVALID;
  // A bound of the caller's own could end one block's wait and not another's.
  if (refuses<P>(ep, remote_offset, bytes) || has_own_bound(ep.qp)) return BP_INVALID;
  if (!can_write_lines<P>(block_scope{})) return BP_INVALID;
  bp_status_code s = BP_OK;
  uint64_t mine = 0;
  if (const uint32_t capacity = chunk_bytes<P>(ep, bytes)) {
    s = put_chunks<P>(ep, who, capacity, ep.remote_iova + remote_offset, (uint64_t)src, bytes, flags, &mine);
  } else if (who.rank == 0) {
    s = put<P>(ep, block_scope{}, remote_offset, src, bytes, flags, &mine);
  }
  return meet(ep.qp, who, s, mine, end, finish);
}

}  // namespace detail

// A put by several blocks, as by one (put.cuh): `end` covers the whole message. It may be rung for early, whatever
// `flags` say. BP_INVALID also for an endpoint of within(). Another status than BP_OK is the highest that a block has
// got; part of the message may be posted then. BP_TIMEOUT: also that a block did not come.
template <class P>
BP_DEV bp_status_code put(const located<bp_endpoint>& ep, blocks_scope who, uint64_t remote_offset, const void* src,
                          uint64_t bytes, uint32_t flags = none, uint64_t* end = nullptr) {
  return detail::put_by_blocks<P>(ep, who, remote_offset, src, bytes, flags, end, [](uint64_t*) { return BP_OK; });
}

// The same, then a signal, which the block posts that comes last: an observer of the signal sees the whole message.
template <class P, class Op>
BP_DEV bp_status_code put_signal(const located<bp_endpoint>& ep, blocks_scope who, uint64_t remote_offset,
                                 const void* src, uint64_t bytes, uint64_t signal_offset, Op op, uint32_t flags = none,
                                 uint64_t* end = nullptr) {
  if (!detail::may_signal(ep, signal_offset, op)) return BP_INVALID;
  return detail::put_by_blocks<P>(ep, who, remote_offset, src, bytes, flags | defer_ring | unsignalled, end,
                                  [&](uint64_t* last) {
                                    return signal<P>(ep, block_scope{}, signal_offset, op, flags, last);
                                  });
}

}  // namespace bp

#endif
