// The all-to-all stream of a channel: from every rank to every other, by two blocks, one of which sends and one
// receives, so that both directions are busy at once. Each runs an algorithm's half:
//
//   messages      how many there are in this call
//   after(m)      own messages that must have been consumed here before message m can be made
//   make(m)       makes message m in the stage
//   post(m)       sends it to all
//   consume(m)    adds up or copies what has come
//
// Every message says what its sender calls. The first K are sent at once, the next when the first one of all
// ranks has been consumed, which says the same. One that says otherwise, or an LL message where none is due, shows
// that the ranks differ; then the first channel says and compares as call_mismatch.cuh has it.
//
// The queue pairs are the sending block's until it has left, and then the receiving one's, which ends the call. It
// consumes message m only when its own rank has sent it too, for it may write over what that was made of (a call
// in place).
#ifndef BELLPUSH_ALL_TO_ALL_CUH
#define BELLPUSH_ALL_TO_ALL_CUH

#include "call_mismatch.cuh"

namespace bp {
namespace coll {

// How many messages of the stream have been consumed, once it is `least`. 0: the receiving block has ended before;
// `unheard`: nothing came of it for longer than it may wait, as where the GPU has no room for it.
constexpr uint64_t unheard = ~uint64_t{0};
template <class P>
BP_DEV uint64_t wait_consumed(const channel<P>& c, uint64_t least) {
  const bp_coll_channel* st = c.state();
  uint64_t there = 0;
  if (tid() == 0) {
    deadline limit;
    while ((there = ld_relaxed_gpu(&st->consumed)) < least) {
      const bool stopped = ld_relaxed_gpu(&st->stopped) == c.call + 1;
      if (stopped || limit.expired(4 * c.a.timeout_ns + c.a.grace_ns)) {
        there = stopped ? 0 : unheard;
        break;
      }
      yield_();
    }
    fence_acquire_gpu();  // the count before what this block does with what it counts
  }
  return block_scope{}.broadcast(there);
}

template <class P, class Algorithm>
BP_DEV outcome send_messages(const channel<P>& c, const Algorithm& algorithm) {
  bp_coll_channel* st = c.state();
  uint64_t consumed = c.all_to_all;
  for (uint64_t m = 0; m < algorithm.messages; m++) {
    uint64_t needed = algorithm.after(m);
    if (needed + depth < m + 1) needed = m + 1 - depth;
    if (consumed < c.all_to_all + needed) {
      consumed = wait_consumed(c, c.all_to_all + needed);
      if (consumed == 0) break;
      if (consumed == unheard) return {BP_COLL_SILENT, c.a.rank};
    }
    algorithm.make(m);
    const outcome o = algorithm.post(m);
    if (!o.ok()) return o;
    // All have read what the message was made of: post() ends with a barrier.
    if (tid() == 0) st_release_gpu(&st->sent, c.all_to_all + m + 1);
    if (m == 0 && tid() + 1 == block_threads()) c.begin();
  }
  return {BP_COLL_OK, 0};
}

template <class P, class Algorithm>
BP_DEV void sending_block(const channel<P>& c, const Algorithm& algorithm) {
  const outcome o = send_messages(c, algorithm);
  syncthreads();
  if (tid() != 0) return;
  bp_coll_channel* st = c.state();
  if (!o.ok()) st_relaxed_gpu(&st->failed, (uint64_t)o.code << 32 | o.rank);
  st_release_gpu(&st->left, c.call + 1);  // after that, and after what the queue pairs have here
}

// Waits until the sending block has left; 0, or why it failed.
template <class P>
BP_DEV uint64_t take_over(const channel<P>& c) {
  bp_coll_channel* st = c.state();
  uint64_t failed = 0;
  if (tid() == 0) {
    // All that the other block does is bounded; but it may not have come at all, as in wait_consumed().
    deadline limit;
    bool gone = false;
    while (ld_relaxed_gpu(&st->left) != c.call + 1 && !gone) {
      gone = limit.expired(4 * c.a.timeout_ns + c.a.grace_ns);
      yield_();
    }
    fence_acquire_gpu();  // that it has left before all that it did until then
    failed = gone ? (uint64_t)BP_COLL_SILENT << 32 | c.a.rank : ld_relaxed_gpu(&st->failed);
  }
  return block_scope{}.broadcast(failed);
}

// Waits for message n of everyone, and for this rank's own.
template <class P>
BP_DEV outcome receive_same(const channel<P>& c, uint64_t n) {
  const bp_coll_channel* st = c.state();
  auto own = [&]() -> uint32_t {
    const uint64_t failed = ld_relaxed_gpu(&st->failed);
    const uint64_t sent = ld_acquire_gpu(&st->sent);
    if (failed != 0) return BP_COLL_LINK;  // take_over() tells why
    return sent > n ? BP_COLL_OK : BP_COLL_SILENT;
  };
  // Now and then: whether a rank that sent nothing on this stream calls something else.
  auto differs = [&](uint32_t r) {
    if (n != c.all_to_all) return false;
    if (c.index != 0) return c.verdict_is(BP_COLL_MISMATCH);
    // A rank that has everyone's messages of this call may have begun the next one.
    bp_coll_call said;
    return r < c.a.ranks && r != c.a.rank && ll::head_of(c, r, c.ll, &said) && said.call <= c.call;
  };
  return c.receive_all(n, false, own, differs);
}

template <class P, class Algorithm>
BP_DEV outcome receive_messages(channel<P>& c, const Algorithm& algorithm) {
  bp_coll_channel* st = c.state();
  if (tid() + 1 == block_threads()) c.begin();
  for (uint64_t m = 0; m < algorithm.messages; m++) {
    const outcome o = receive_same(c, c.all_to_all + m);
    if (o.code == BP_COLL_MISMATCH && m != 0) return {BP_COLL_CORRUPT, o.rank};
    if (!o.ok()) return o;
    algorithm.consume(m);
    syncthreads();
    // All have read the slots and written the results, for the sending block.
    if (tid() == 0) st_release_gpu(&st->consumed, c.all_to_all + m + 1);
  }
  return {BP_COLL_OK, 0};
}

template <class P, class Algorithm>
BP_DEV void receiving_block(channel<P>& c, const Algorithm& algorithm) {
  outcome o = receive_messages(c, algorithm);
  bp_coll_channel* st = c.state();
  if (!o.ok() && tid() == 0) st_relaxed_gpu(&st->stopped, c.call + 1);
  const uint64_t failed = take_over(c);
  if (failed != 0) o = {(uint32_t)(failed >> 32), (uint32_t)failed};
  if (o.ok()) {
    if (tid() == 0) st->all_to_all = c.all_to_all + algorithm.messages;
    return;
  }
  const uint64_t sent = block_scope{}.broadcast(ld_relaxed_gpu(&st->sent));
  end_otherwise(c, o, {false, sent < c.all_to_all ? 0 : sent - c.all_to_all});
}

// What a block leaves for the other one if it does not take part, because the communicator has ended: they may
// learn of that one after the other.
template <class P>
BP_DEV void stay_away(const channel<P>& c, bool sends) {
  if (tid() != 0) return;
  bp_coll_channel* st = c.state();
  if (!sends) return st_relaxed_gpu(&st->stopped, c.call + 1);
  st_relaxed_gpu(&st->failed, (uint64_t)BP_COLL_SILENT << 32 | c.a.rank);
  st_release_gpu(&st->left, c.call + 1);
}

// Every rank sends all its elements to all others, and each adds up all of them.
template <class P>
struct one_shot {
  const channel<P>& c;
  const cut shares;
  const uint64_t messages;

  BP_DEV explicit one_shot(const channel<P>& of)
      : c(of),
        shares{of.count, of.a.piece_bytes / element_bytes(of.a.dtype), 1, 1},
        messages(shares.rounds() ? shares.rounds() : 1) {}

  BP_DEV uint64_t after(uint64_t) const { return 0; }
  BP_DEV uint64_t bytes_of(uint64_t m) const { return shares.at(m, 0).count * element_bytes(c.a.dtype); }
  BP_DEV void make(uint64_t m) const {
    const uint64_t slot = c.all_to_all_stage(c.all_to_all + m, c.a.rank);
    if (tid() == 0) c.head(slot, c.all_to_all + m);
    copy(c.in(shares.at(m, 0).first), bytes_of(m), c.payload(slot), 0);
  }
  BP_DEV outcome post(uint64_t m) const {
    const uint64_t bytes = bytes_of(m);
    return c.send_all(c.all_to_all + m, [&](uint32_t) { return bytes; }, [&](uint32_t) { return c.a.rank; });
  }
  BP_DEV void consume(uint64_t m) const {
    const auto piece = shares.at(m, 0);
    work w = c.on(piece.first, piece.count);
    w.peers = c.a.region + c.payload(c.all_to_all_slot(0, c.all_to_all + m));
    w.stride = c.all_to_all_slot(1, 0) - c.all_to_all_slot(0, 0);
    reduce(c.a.dtype, c.a.op, kind::fold, w);
  }
};

// Every rank adds up its part, of all ranks' elements, and sends the result to all others. Messages are
// scattered a few rounds ahead of those that gather: S S S G S G S G .. S G G G.
template <class P>
struct two_shot {
  static constexpr uint64_t ahead = depth - 1;
  const channel<P>& c;
  const uint64_t size;
  const cut shares;
  const uint64_t rounds, messages;

  BP_DEV explicit two_shot(const channel<P>& of)
      : c(of),
        size(element_bytes(of.a.dtype)),
        shares{of.count, of.a.piece_bytes / size, 16 / size, of.a.ranks},
        rounds(shares.rounds() ? shares.rounds() : 1),
        messages(2 * rounds) {}

  struct phase {
    bool gathers;
    uint64_t round;
  };
  BP_DEV phase phase_of(uint64_t m) const {
    const uint64_t lead = rounds < ahead ? rounds : ahead;
    if (m < lead) return {false, m};
    if (m >= messages - lead) return {true, m - rounds};
    const uint64_t turn = m - lead;
    return {turn % 2 == 0, turn / 2 + (turn % 2 ? lead : 0)};
  }
  // The message that scatters a round.
  BP_DEV uint64_t scattered_by(uint64_t round) const {
    const uint64_t lead = rounds < ahead ? rounds : ahead;
    return round < lead ? round : lead + 2 * (round - lead) + 1;
  }

  // What is gathered was added up here.
  BP_DEV uint64_t after(uint64_t m) const {
    const phase ph = phase_of(m);
    return ph.gathers ? scattered_by(ph.round) + 1 : 0;
  }
  BP_DEV uint64_t bytes_to(const phase& ph, uint32_t r) const {
    return shares.at(ph.round, ph.gathers ? c.a.rank : r).count * size;
  }
  // What all get is made once.
  BP_DEV uint32_t column_to(const phase& ph, uint32_t r) const { return ph.gathers ? c.a.rank : r; }

  BP_DEV void make(uint64_t m) const {
    const phase ph = phase_of(m);
    for (uint32_t r = 0; r < c.a.ranks; r++) {
      if ((r == c.a.rank) != ph.gathers) continue;
      const uint64_t first = shares.at(ph.round, r).first, slot = c.all_to_all_stage(c.all_to_all + m, r);
      if (tid() == 0) c.head(slot, c.all_to_all + m);
      copy(ph.gathers ? c.out(first) : c.in(first), bytes_to(ph, r), c.payload(slot), 0);
    }
  }
  BP_DEV outcome post(uint64_t m) const {
    const phase ph = phase_of(m);
    return c.send_all(c.all_to_all + m, [&](uint32_t r) { return bytes_to(ph, r); },
                      [&](uint32_t r) { return column_to(ph, r); });
  }
  BP_DEV void consume(uint64_t m) const {
    const phase ph = phase_of(m);
    if (!ph.gathers) {
      const auto piece = shares.at(ph.round, c.a.rank);
      work w = c.on(piece.first, piece.count);
      w.peers = c.a.region + c.payload(c.all_to_all_slot(0, c.all_to_all + m));
      w.stride = c.all_to_all_slot(1, 0) - c.all_to_all_slot(0, 0);
      reduce(c.a.dtype, c.a.op, kind::fold, w);
      return;
    }
    for (uint32_t r = 0; r < c.a.ranks; r++) {
      if (r == c.a.rank) continue;
      const auto piece = shares.at(ph.round, r);
      copy(c.a.region + c.payload(c.all_to_all_slot(r, c.all_to_all + m)), piece.count * size, c.out(piece.first), 0);
    }
  }
};

template <class P, template <class> class Algorithm>
BP_DEV void all_to_all(channel<P>& c, bool sends) {
  Algorithm<P> algorithm(c);
  if (sends) return sending_block(c, algorithm);
  return receiving_block(c, algorithm);
}

}  // namespace coll
}  // namespace bp

#endif
