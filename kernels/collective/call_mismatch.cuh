// How the ranks find out that they call different things, and how they go on then.
//
// A ring call begins with an LL message of the first channel, which says what is called, and consumes nothing before
// the first channel has compared what those of all ranks say. The messages of other calls all say it, so each
// channel compares by itself; where one finds a difference, the first channel says it by an LL message, if it has not,
// and compares. It tells the other channels, and the host.
//
// Ranks that differ have begun on channels and streams that others do not use. So that all have sent and
// consumed the same messages, and the next call can begin, every channel that anybody uses takes one LL
// message and K of the all-to-all stream, as far as anybody's call uses these: each channel's own block
// sends what is missing of them and consumes them, and the first channel's does it for channels that this
// rank's call does not use, in ascending order.
// So whoever waits on a channel waits for blocks that wait for nobody, or for channels below it.
#ifndef BELLPUSH_CALL_MISMATCH_CUH
#define BELLPUSH_CALL_MISMATCH_CUH

#include "ll.cuh"

namespace bp {
namespace coll {

// Channels on which a call uses a stream, or says what it is.
struct opening {
  uint32_t ll, all_to_all;
};
BP_DEV opening opening_of(const bp_coll_call& h, uint32_t all_channels) {
  // What another rank says may be anything.
  const uint32_t n = h.channels < 1 ? 1 : h.channels < all_channels ? h.channels : all_channels;
  if (h.algorithm == BP_COLL_LL) return {n, 0};
  return {1, h.algorithm == BP_COLL_RING ? 0 : n};
}

// The first channel says what is called, where the call itself goes by other streams.
template <class P>
BP_DEV outcome announce(const channel<P>& c) {
  if (c.index == 0) return ll::send_head(c, c.ll);
  return {BP_COLL_OK, 0};
}

// Compares what all ranks call, and tells the other channels (and, where ranks differ, the host).
template <class P>
BP_DEV outcome compare(const channel<P>& c) {
  // As a thread has seen it first: a peer may write its message anew at any time.
  uint32_t differs = c.a.ranks;
  bp_coll_call said{};
  opening most = opening_of(c.own(), c.a.all_channels);
  const outcome o = ll::wait_heads(c, c.ll, [&](uint32_t r, const bp_coll_call& theirs) {
    if (differs == c.a.ranks && !ll::same(theirs, c.own())) {
      differs = r;
      said = theirs;
    }
    const opening its = opening_of(theirs, c.a.all_channels);
    most.ll = most.ll < its.ll ? its.ll : most.ll;
    most.all_to_all = most.all_to_all < its.all_to_all ? its.all_to_all : most.all_to_all;
  });
  if (!o.ok()) return o;
  const uint32_t other = c.find([&](uint32_t r) { return r == differs; });
  uint32_t code = BP_COLL_OK;
  if (other < c.a.ranks) {
    if (tid() < 32 && differs == other) {
      code = said.call == c.call ? BP_COLL_MISMATCH : BP_COLL_CORRUPT;
      if (code == BP_COLL_MISMATCH) c.tell_host({code, other}, &said);
    }
    // The thread that heard it is lane `other` modulo the warp's lanes.
    const uint32_t lanes = block_threads() < 32 ? block_threads() : 32;
    code = (uint32_t)block_broadcast_u64(code, other % lanes);
  }
  if (code == BP_COLL_CORRUPT) return {code, other};
  if (tid() < 32) {
    // What any lane has heard.
    for (uint32_t lane_of = 0; lane_of < 32 && lane_of < block_threads(); lane_of++) {
      const uint64_t word = shfl_u64((uint64_t)most.ll << 32 | most.all_to_all, lane_of);
      most.ll = most.ll < word >> 32 ? (uint32_t)(word >> 32) : most.ll;
      most.all_to_all = most.all_to_all < (uint32_t)word ? (uint32_t)word : most.all_to_all;
    }
    if (tid() == 0) c.publish(code, (uint64_t)most.ll << 32 | most.all_to_all);
  }
  return {code, other};
}

// Consumes the LL message by which all ranks say what they call. BP_COLL_OK: all call the same.
template <class P>
BP_DEV outcome call_mismatch(channel<P>& c) {
  if (c.index != 0) return c.verdict();
  const outcome o = compare(c);
  if (o.ok()) c.ll++;
  return o;
}

// What this rank's call has sent on a channel.
struct begun {
  bool ll;            // its LL message
  uint64_t all_to_all;  // messages of the all-to-all stream, K at most
};

// Sends what is missing of the messages that a channel takes where ranks differ, and consumes them.
template <class P>
BP_DEV_COLD outcome settle_channel(channel<P> c, opening most, begun sent) {
  outcome o{BP_COLL_OK, 0};
  if (c.index < most.ll) {
    if (!sent.ll) o = ll::send_head(c, c.ll);
    if (o.ok()) o = ll::wait_heads(c, c.ll);
    if (tid() == 0) c.state()->ll = c.ll + 1;
  }
  if (c.index >= most.all_to_all) return o;
  for (uint64_t n = c.all_to_all + sent.all_to_all; n < c.all_to_all + depth && o.ok(); n++) {
    if (tid() == 0) c.head(c.all_to_all_stage(n, c.a.rank), n);
    o = c.send_all(n, [](uint32_t) { return (uint64_t)0; }, [&](uint32_t) { return c.a.rank; });
  }
  for (uint64_t n = c.all_to_all; n < c.all_to_all + depth && o.ok(); n++) o = c.receive_any(n);
  if (tid() == 0) c.state()->all_to_all = c.all_to_all + depth;
  return o;
}

// The ranks differ, says this channel, which has heard it of rank `other`. BP_COLL_MISMATCH: so they do, and
// all that was sent is consumed. The channel's queue pairs are this block's.
template <class P>
BP_DEV outcome settle(channel<P>& c, uint32_t other, begun sent) {
  outcome o{BP_COLL_OK, 0};
  if (c.index != 0) {
    o = c.verdict();
  } else {
    if (!sent.ll) o = announce(c);
    if (o.ok()) o = compare(c);
    sent.ll = true;
  }
  // That rank says one thing and another, or has the first channel wait for nothing.
  if (o.ok() || (o.code == BP_COLL_SILENT && o.rank == c.a.rank)) return {BP_COLL_CORRUPT, other};
  if (o.code != BP_COLL_MISMATCH) return o;
  const uint64_t word = block_scope{}.broadcast(ld_relaxed_gpu(&c.shared()->settles));
  const opening most{(uint32_t)(word >> 32), (uint32_t)word};
  outcome settled = settle_channel(c, most, sent);
  if (c.index == 0) {
    const uint32_t end = most.ll > most.all_to_all ? most.ll : most.all_to_all;
    for (uint32_t i = c.a.channels; i < end && settled.ok(); i++) {
      channel<P> unused(c.a, i);
      unused.call = c.call;
      settled = settle_channel(unused, most, {false, 0});
    }
  }
  return settled.ok() ? o : settled;
}

// How a call ended that did not end well, for the host, the other ranks and the next call.
template <class P>
BP_DEV_COLD void end_otherwise(channel<P> c, outcome o, begun sent) {
  if (o.code == BP_COLL_MISMATCH) o = settle(c, o.rank, sent);
  if (o.code != BP_COLL_MISMATCH) c.give_up(o);
}

}  // namespace coll
}  // namespace bp

#endif
