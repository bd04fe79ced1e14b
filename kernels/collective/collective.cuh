// All-reduce by kernels that reduce and send, on channels: each has queue pairs of its own to every other
// rank, a share of the elements, and a block, or two where it exchanges: one sends and one receives.
//
// Streams. What a channel sends to a rank is a stream of messages, counted over all calls: the LL
// stream and the all-to-all stream go from every rank to every other, the ring stream from each to the
// next. A message of the latter two is put into a slot of the receiver's region, header and payload in
// one, and its signal is added to afterwards; so a receiver that sees the signal at n + 1 may read message
// n. An LL message is small, has no signal, and shows by itself what of it has come (ll.cuh).
// Every message says what is called, but those of a ring, which begins with an LL message for that
// (call_mismatch.cuh); a call that is small enough is nothing but one LL message a channel.
//
// Why a slot may be written again. Every rank keeps one rule: it sends message n + K (K is
// BP_COLL_DEPTH) only after it has consumed message n of everyone that it receives from. At a call's
// end all messages are sent and consumed, so the rule holds from call to call without any barrier.
//   * All-to-all: whoever sends n + K has consumed everyone's n; everyone who sent n had consumed
//     everyone's n - K. So n - K is consumed everywhere, and n + K may take its slot: 2 K slots.
//   * LL: whoever sends n + 1 has consumed everyone's n; everyone who sent n had consumed everyone's
//     n - 1. So n + 1 may take the slot of n - 1: 2 slots.
//   * Ring of N: whoever sends n + K has consumed n of the rank before, which had consumed n - K of
//     the one before it, and so on to the rank after: that one has consumed n - (N - 1) K. So
//     n + K may take its slot: N K slots.
// Messages are sent from a stage, which has as many slots for a stream as its receivers have. By the
// same rule they have consumed what a slot of it held: a NIC may read it again for a packet whose
// acknowledgement was lost, but the receiver drops that packet as a duplicate, so what it says then
// does not matter.
// That a thread has read a slot before another one sends is the scope's synchronisation: a load that
// has returned its value (which was added up and stored) reads nothing that is written later.
//
// Failure. A rank that waits in vain tells everybody whom it waited for, and listens. Whoever hears
// that answers with whom it waits for itself. So the waits can be followed to the one rank that says
// nothing, and all name that one. Every wait is bounded by the timeout, and after it by the grace, in which
// a rank also waits until the others have what it told them.
#ifndef BELLPUSH_COLLECTIVE_CUH
#define BELLPUSH_COLLECTIVE_CUH

#include "all_to_all.cuh"

namespace bp {
namespace coll {

// Ring: partial results go round once, the results once more. Message `step * J + j` of a round, as
// rank r sends it, carries piece `chunk * J + j` with chunk = r - step (modulo ranks): chunk c begins
// at rank c, is finished by the rank before it, N - 1 steps later, and goes on from there. So
// message m + J is made of message m. J is K, or less where pieces would be short.
constexpr uint32_t ring_piece = 4096;  // bytes
template <class P>
BP_DEV outcome ring_around(channel<P>& c) {
  outcome o = announce(c);
  if (tid() + 1 == block_threads()) c.begin();
  if (o.ok()) o = call_mismatch(c);
  if (!o.ok()) return o;
  const uint64_t size = element_bytes(c.a.dtype), partial = partial_bytes(c.a.dtype, c.a.op);
  const uint32_t last = c.a.ranks - 1;
  const uint64_t long_ones = c.count * partial / c.a.ranks / ring_piece;
  const uint32_t j = long_ones < 1 ? 1 : long_ones < depth ? (uint32_t)long_ones : depth;
  const cut shares{c.count, c.a.piece_bytes / partial, 16 / size, c.a.ranks * j};
  const uint64_t a_round = 2ull * last * j, messages = shares.rounds() * a_round;

  struct place {
    cut::piece piece;
    uint32_t step;
  };
  // What message m carries when `rank` sends it.
  auto place_of = [&](uint64_t m, uint32_t rank) -> place {
    const uint32_t in_round = (uint32_t)(m % a_round), step = in_round / j;
    const uint32_t chunk = (rank + 2 * c.a.ranks - step) % c.a.ranks;
    return {shares.at(m / a_round, chunk * j + in_round % j), step};
  };
  auto send = [&](uint64_t m) {
    const place p = place_of(m, c.a.rank);
    const uint64_t slot = c.ring_stage(c.ring + m);
    if (tid() == 0) c.head(slot, c.ring + m);
    if (p.step == 0) {
      work w = c.on(p.piece.first, p.piece.count);
      w.also = c.payload(slot);
      reduce(c.a.dtype, c.a.op, kind::begin, w);
    }
    return c.send_next(c.ring + m, p.piece.count * (p.step < last ? partial : size));
  };
  auto consume = [&](uint64_t m) {
    const place p = place_of(m, c.previous());
    const uint64_t from = c.a.region + c.payload(c.ring_slot(c.ring + m));
    // Where message m + J is made, unless that begins a round.
    const uint64_t next = p.step + 1 < 2 * last ? c.payload(c.ring_stage(c.ring + m + j)) : 0;
    if (p.step >= last) {
      copy(from, p.piece.count * size, c.out(p.piece.first), next);
      return;
    }
    work w = c.on(p.piece.first, p.piece.count);
    w.peers = from;
    w.also = next;
    reduce(c.a.dtype, c.a.op, p.step + 1 < last ? kind::begin : kind::finish, w);
  };

  for (uint64_t m = 0; m < j && m < messages && o.ok(); m++) o = send(m);
  for (uint64_t m = 0; m < messages && o.ok(); m++) {
    o = c.receive_previous(c.ring + m);
    if (!o.ok()) break;
    consume(m);
    if (m + j < messages) o = send(m + j);
  }
  c.ring += messages;
  return o;
}

// The host has the reason, or will. One thread's answer: the word may change while others look.
template <class P>
BP_DEV bool has_ended(const channel<P>& c) {
  return block_scope{}.broadcast(c.dead) != 0;
}

// Of a single rank: its elements as results, which a NaN's bits feel.
template <class P>
BP_DEV void reduce_alone(const channel<P>& c) {
  work w = c.on(0, c.count);
  w.peers = w.own;  // looked at ahead, and not used
  reduce(c.a.dtype, c.a.op, kind::fold, w);
}

// A call of few channels is launched to begin while the kernel before it ends, which may be the call before. What
// needs nothing of that is done first.
BP_DEV void prepare(const bp_coll_args& args, uint32_t index) {
  fetch_endpoints(args, index);
  if (tid() == 0) words()->ended = 0;
  syncthreads();
}
BP_DEV void begin_early(const bp_coll_args& args) {
  await_kernel_before();
  if (args.early) release_kernel_behind();
}

template <class P>
BP_DEV void all_reduce(const bp_coll_args& args) {
  // The second half of an all-to-all's blocks receive.
  const bool sends = bid() < args.channels;
  const uint32_t index = sends ? bid() : bid() - args.channels;
  prepare(args, index);
  begin_early(args);
  channel<P> c(args, index, true);
  const bool all_to_all_call = args.algorithm == BP_COLL_ONE_SHOT || args.algorithm == BP_COLL_TWO_SHOT;
  if (args.ranks == 1) {
    if (sends) reduce_alone(c);
    return;
  }
  if (has_ended(c)) {
    if (all_to_all_call) stay_away(c, sends);
    return;
  }
  if (args.algorithm == BP_COLL_ONE_SHOT) return all_to_all<P, one_shot>(c, sends);
  if (args.algorithm == BP_COLL_TWO_SHOT) return all_to_all<P, two_shot>(c, sends);
  const outcome o = ring_around(c);
  syncthreads();
  if (!o.ok()) return end_otherwise(c, o, {c.index == 0, 0});
  if (tid() == 0) {
    c.state()->ll = c.ll;
    c.state()->ring = c.ring;
  }
}

// Every rank sends all its elements to all others in one LL message, and adds up all of them. A kernel
// of its own: a launch of few microseconds feels how much code it brings along.
template <class P>
BP_DEV void all_reduce_ll(const bp_coll_args& args) {
  prepare(args, bid());
  const elements mine = elements_of(args, bid());
  const uint32_t size = element_bytes(args.dtype), bytes = (uint32_t)mine.count * size;
  ll::sender<P> to(args, bid(), true, bytes);
  ll::payload payload(args.in + mine.first * size, bytes, to.first_word());
  make_here(payload.from);
  begin_early(args);
  payload.start();
  to.start(args.ranks);
  if constexpr (!P::inband) touch_states(args);
  channel<P> c(args, bid(), true);
  if (args.ranks > 1) {
    // After which all have read the call's number.
    if (has_ended(c)) return;
    ll::post(c, c.ll, payload, to);
    if (tid() + 1 == block_threads()) c.begin();
    const outcome o = ll::receive(c, c.ll, bytes);
    if (!o.ok()) return end_otherwise(c, o, {true, 0});
  }
  ll::fold(c, payload, args.out + mine.first * size);
  if (tid() == 0) c.state()->ll = c.ll + 1;
}

// Waits for all that was sent, so that queue pairs can go: a block a channel.
template <class P>
BP_DEV void drain(const bp_coll_args& args) {
  await_kernel_before();
  channel<P> c(args, bid());
  for (uint32_t r = 0; r < args.ranks; r++) {
    if (r != args.rank) quiet<P>(c.to(r), block_scope{});
  }
}

}  // namespace coll
}  // namespace bp

#endif
