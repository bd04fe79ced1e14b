// How the ranks make sure, at the beginning of a call, that all call the same; and how they go on when
// they do not.
//
// The first channel compares what the first quick messages say. The others do not consume anything
// before it has (in a call of quick messages each compares by itself: all of a rank's say the same).
// When ranks differ, some have begun on channels and streams that others do not use. The first
// channel sends and consumes on each of those what the others do, so that all ranks have sent and consumed the
// same messages, and the next call can begin: one quick message, and K of the exchange stream.
#ifndef BELLPUSH_AGREE_CUH
#define BELLPUSH_AGREE_CUH

#include "quick.cuh"

namespace bp {
namespace coll {

// Channels on which a rank sends messages of a stream before it knows what the others call.
struct opening {
  uint32_t quick, exchange;
};
BP_DEV opening opening_of(const bp_coll_call& h, uint32_t all_channels) {
  // What another rank says may be anything.
  const uint32_t n = h.channels < 1 ? 1 : h.channels < all_channels ? h.channels : all_channels;
  if (h.algorithm == BP_COLL_QUICK) return {n, 0};
  return {1, h.algorithm == BP_COLL_RING ? 0 : n};
}

// The first channel says what is called, where the call itself goes by other streams.
template <class P>
BP_DEV outcome announce(const channel<P>& c) {
  if (c.index == 0) return quick::send(c, c.quick, 0, 0);
  return {BP_COLL_OK, 0};
}

// Compares what all ranks call, and tells the other channels (and, where ranks differ, the host).
template <class P>
BP_DEV outcome compare(const channel<P>& c) {
  // As a thread has seen it first: a peer may write its message anew at any time.
  uint32_t differs = c.a.ranks;
  bp_coll_call said{};
  const outcome o = quick::wait_heads(c, c.quick, [&](uint32_t r, const bp_coll_call& theirs) {
    if (differs == c.a.ranks && !quick::same(theirs, c.own())) {
      differs = r;
      said = theirs;
    }
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
  if (code != BP_COLL_CORRUPT && tid() == 0) c.publish(code);
  return {code, other};
}

// Sends and consumes a quick message on the channels from `first` on, up to `end`.
template <class P>
BP_DEV outcome settle_quick(const channel<P>& c, uint32_t first, uint32_t end) {
  outcome o{BP_COLL_OK, 0};
  for (uint32_t i = first; i < end && o.ok(); i++) {
    channel<P> other(c.a, i);
    other.call = c.call;
    o = quick::send(other, other.quick, 0, 0);
    if (o.ok()) o = quick::wait_heads(other, other.quick);
    if (tid() == 0) other.state()->quick = other.quick + 1;
  }
  return o;
}
// Sends what is missing of a channel's first K messages of the exchange stream, and consumes those of everyone.
template <class P>
BP_DEV_COLD outcome settle_stream(channel<P> c, uint64_t sent) {
  outcome o{BP_COLL_OK, 0};
  for (uint64_t n = c.exchange + sent; n < c.exchange + depth && o.ok(); n++) {
    if (tid() == 0) c.head(c.exchange_stage(n, c.a.rank), n);
    o = c.send_all(n, [](uint32_t) { return (uint64_t)0; }, [&](uint32_t) { return c.a.rank; });
  }
  for (uint64_t n = c.exchange; n < c.exchange + depth && o.ok(); n++) o = c.receive_any(n);
  if (tid() == 0) c.state()->exchange = c.exchange + depth;
  return o;
}
template <class P>
BP_DEV outcome settle_exchange(const channel<P>& c, uint32_t first, uint32_t end) {
  outcome o{BP_COLL_OK, 0};
  for (uint32_t i = first; i < end && o.ok(); i++) {
    channel<P> other(c.a, i);
    other.call = c.call;
    o = settle_stream(other, 0);
  }
  return o;
}

// The first channel's: what it sent or consumes by its own streams is not settled here.
template <class P>
BP_DEV outcome settle(channel<P>& c) {
  const opening own = opening_of(c.own(), c.a.all_channels);
  opening most = own;
  for (uint32_t r = 0; r < c.a.ranks; r++) {
    if (r == c.a.rank) continue;
    bp_coll_call said;
    quick::head_of(c, r, c.quick, &said);  // it has come
    const opening theirs = opening_of(said, c.a.all_channels);
    most.quick = most.quick < theirs.quick ? theirs.quick : most.quick;
    most.exchange = most.exchange < theirs.exchange ? theirs.exchange : most.exchange;
  }
  // A peer may write its message anew at any time: one thread's finding is everybody's.
  const uint64_t word = block_scope{}.broadcast((uint64_t)most.quick << 32 | most.exchange);
  outcome o = settle_quick(c, own.quick, (uint32_t)(word >> 32));
  if (o.ok()) o = settle_exchange(c, own.exchange, (uint32_t)word);
  return o;
}

// Consumes the quick message by which ranks say what they call. BP_COLL_OK: all call the same.
// BP_COLL_MISMATCH: they do not, and all that was sent too much is consumed but what this channel has begun
// on the exchange stream.
template <class P>
BP_DEV outcome agree(channel<P>& c) {
  if (c.index != 0) return c.verdict();
  const outcome o = compare(c);
  if (o.code == BP_COLL_MISMATCH) {
    const outcome settled = settle(c);
    if (!settled.ok()) return settled;
  }
  c.quick++;
  return o;
}

// As agree(), for a channel that has found a difference by itself.
template <class P>
BP_DEV outcome concede(channel<P>& c) {
  if (c.index == 0) return agree(c);
  const outcome o = quick::wait_heads(c, c.quick++);
  return o.ok() ? c.verdict() : o;
}

// How a call ended that did not end well, for the host, the other ranks and the next call. `found`: by this
// channel itself, before the first one has said so.
template <class P>
BP_DEV_COLD void end_otherwise(channel<P> c, outcome o, bool found) {
  if (found && o.code == BP_COLL_MISMATCH) o = concede(c);
  if (o.code != BP_COLL_MISMATCH) return c.give_up(o);
  if (tid() != 0) return;
  // The first channel has settled what another one did not begin with.
  if (c.index == 0 || c.index < opening_of(c.own(), c.a.all_channels).quick) c.state()->quick = c.quick;
}

}  // namespace coll
}  // namespace bp

#endif
