// All-reduce by kernels that reduce and send: a block a channel, each with queue pairs of its own to
// every other rank, and a share of the elements.
//
// Streams. What a channel sends to a rank is a stream of messages, counted over all calls: the quick
// stream and the exchange stream go from every rank to every other, the ring stream from each to the
// next. A message of the latter two is put into a slot of the receiver's region, header and payload in
// one, and its signal is added to afterwards; so a receiver that sees the signal at n + 1 may read message
// n. A quick message is small, has no signal, and shows by itself what of it has come (quick.cuh).
// Every call begins with a quick message of the first channel, which says what is called (agree.cuh);
// a call that is small enough is nothing but one quick message a channel.
//
// Why a slot may be written again. Every rank keeps one rule: it sends message n + K (K is
// BP_COLL_DEPTH) only after it has consumed message n of everyone that it receives from. At a call's
// end all messages are sent and consumed, so the rule holds from call to call without any barrier.
//   * Exchange: whoever sends n + K has consumed everyone's n; everyone who sent n had consumed
//     everyone's n - K. So n - K is consumed everywhere, and n + K may take its slot: 2 K slots.
//   * Quick: whoever sends n + 1 has consumed everyone's n; everyone who sent n had consumed everyone's
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
// nothing, and all name that one. Every wait is bounded by the timeout, and after it by the grace.
#ifndef BELLPUSH_COLLECTIVE_CUH
#define BELLPUSH_COLLECTIVE_CUH

#include "agree.cuh"

namespace bp {
namespace coll {

// `messages` messages of the exchange stream under the rule above. The first one goes out before the ranks have
// agreed; the second at once after that, unless it is made of what the first brings (`second_waits`).
template <class P, class Send, class Consume>
BP_DEV outcome exchange_stream(channel<P>& c, uint64_t messages, bool second_waits, Send send,
                               Consume consume) {
  static_assert(depth == 2, "two messages are on their way");
  outcome o = announce(c);
  if (o.ok()) o = send(0);
  if (o.ok()) o = agree(c);
  if (o.code == BP_COLL_MISMATCH) {
    const outcome taken = c.receive_all(c.exchange++);
    return taken.ok() ? o : taken;
  }
  if (o.ok() && 1 < messages && !second_waits) o = send(1);
  for (uint64_t m = 0; m < messages && o.ok(); m++) {
    o = c.receive_all(c.exchange + m);
    if (!o.ok()) break;
    consume(m);
    if (m == 0 && 1 < messages && second_waits) o = send(1);
    if (m + depth < messages && o.ok()) o = send(m + depth);
  }
  c.exchange += messages;
  return o;
}

// Every rank sends all its elements to all others, and each adds up all of them.
template <class P>
BP_DEV outcome one_shot(channel<P>& c) {
  const cut shares{c.count, c.a.chunk_bytes / element_bytes(c.a.dtype), 1, 1};
  const uint64_t rounds = shares.rounds(), messages = rounds ? rounds : 1;
  auto send = [&](uint64_t m) {
    const auto piece = shares.at(m, 0);
    const uint64_t slot = c.exchange_stage(c.exchange + m, c.a.rank);
    const uint64_t bytes = piece.count * element_bytes(c.a.dtype);
    if (tid() == 0) c.head(slot, c.exchange + m);
    copy(c.in(piece.first), bytes, c.payload(slot), 0);
    return c.send_all(c.exchange + m, [&](uint32_t) { return bytes; },
                    [&](uint32_t) { return c.a.rank; });
  };
  auto consume = [&](uint64_t m) {
    const auto piece = shares.at(m, 0);
    work w = c.on(piece.first, piece.count);
    w.peers = c.a.region + c.payload(c.exchange_slot(0, c.exchange + m));
    w.stride = c.exchange_slot(1, 0) - c.exchange_slot(0, 0);
    reduce(c.a.dtype, c.a.op, kind::fold, w);
  };
  return exchange_stream(c, messages, false, send, consume);
}

// Every rank adds up its part, of all ranks' elements, and sends the result to all others. Message
// 0 scatters; then message 2 j + 1 scatters round j + 1 while message 2 j + 2 gathers round j.
template <class P>
BP_DEV outcome two_shot(channel<P>& c) {
  const uint64_t size = element_bytes(c.a.dtype);
  const cut shares{c.count, c.a.chunk_bytes / size, 16 / size, c.a.ranks};
  const uint64_t rounds = shares.rounds() ? shares.rounds() : 1;
  const uint64_t messages = 2 * rounds;
  struct phase {
    bool gathers;
    uint64_t round;
  };
  auto phase_of = [&](uint64_t m) -> phase {
    if (m == 0) return {false, 0};
    if (m == messages - 1) return {true, rounds - 1};
    if (m % 2) return {false, (m + 1) / 2};
    return {true, m / 2 - 1};
  };
  auto send = [&](uint64_t m) {
    const phase ph = phase_of(m);
    if (ph.gathers) {
      const auto piece = shares.at(ph.round, c.a.rank);
      const uint64_t slot = c.exchange_stage(c.exchange + m, c.a.rank), bytes = piece.count * size;
      syncthreads();  // all of the part was added up
      if (tid() == 0) c.head(slot, c.exchange + m);
      copy(c.out(piece.first), bytes, c.payload(slot), 0);
      return c.send_all(c.exchange + m, [&](uint32_t) { return bytes; },
                      [&](uint32_t) { return c.a.rank; });
    }
    for (uint32_t r = 0; r < c.a.ranks; r++) {
      if (r == c.a.rank) continue;
      const auto piece = shares.at(ph.round, r);
      const uint64_t slot = c.exchange_stage(c.exchange + m, r);
      if (tid() == 0) c.head(slot, c.exchange + m);
      copy(c.in(piece.first), piece.count * size, c.payload(slot), 0);
    }
    return c.send_all(c.exchange + m, [&](uint32_t r) { return shares.at(ph.round, r).count * size; },
                    [&](uint32_t r) { return r; });
  };
  auto consume = [&](uint64_t m) {
    const phase ph = phase_of(m);
    if (!ph.gathers) {
      const auto piece = shares.at(ph.round, c.a.rank);
      work w = c.on(piece.first, piece.count);
      w.peers = c.a.region + c.payload(c.exchange_slot(0, c.exchange + m));
      w.stride = c.exchange_slot(1, 0) - c.exchange_slot(0, 0);
      reduce(c.a.dtype, c.a.op, kind::fold, w);
      return;
    }
    for (uint32_t r = 0; r < c.a.ranks; r++) {
      if (r == c.a.rank) continue;
      const auto piece = shares.at(ph.round, r);
      copy(c.a.region + c.payload(c.exchange_slot(r, c.exchange + m)), piece.count * size,
           c.out(piece.first), 0);
    }
  };
  return exchange_stream(c, messages, rounds == 1, send, consume);
}

// Ring: partial results go round once, the results once more. Message `step * K + k` of a round, as
// rank r sends it, carries piece `chunk * K + k` with chunk = r - step (modulo ranks): chunk c begins
// at rank c, is finished by the rank before it, N - 1 steps later, and goes on from there. So
// message m + K is made of message m.
template <class P>
BP_DEV outcome ring_around(channel<P>& c) {
  outcome o = announce(c);
  if (o.ok()) o = agree(c);
  if (!o.ok()) return o;
  const uint64_t size = element_bytes(c.a.dtype), partial = partial_bytes(c.a.dtype, c.a.op);
  const uint32_t last = c.a.ranks - 1;
  const cut shares{c.count, c.a.chunk_bytes / partial, 16 / size, c.a.ranks * depth};
  const uint64_t a_round = 2ull * last * depth, messages = shares.rounds() * a_round;

  struct place {
    cut::piece piece;
    uint32_t step;
  };
  // What message m carries when `rank` sends it.
  auto place_of = [&](uint64_t m, uint32_t rank) -> place {
    const uint32_t in_round = (uint32_t)(m % a_round), step = in_round / depth;
    const uint32_t chunk = (rank + 2 * c.a.ranks - step) % c.a.ranks;
    return {shares.at(m / a_round, chunk * depth + in_round % depth), step};
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
    // Where message m + K is made, unless that begins a round.
    const uint64_t next = p.step + 1 < 2 * last ? c.payload(c.ring_stage(c.ring + m + depth)) : 0;
    if (p.step >= last) {
      copy(from, p.piece.count * size, c.out(p.piece.first), next);
      return;
    }
    work w = c.on(p.piece.first, p.piece.count);
    w.peers = from;
    w.also = next;
    reduce(c.a.dtype, c.a.op, p.step + 1 < last ? kind::begin : kind::finish, w);
  };

  for (uint64_t m = 0; m < depth && m < messages && o.ok(); m++) o = send(m);
  for (uint64_t m = 0; m < messages && o.ok(); m++) {
    o = c.receive_previous(c.ring + m);
    if (!o.ok()) break;
    consume(m);
    if (m + depth < messages) o = send(m + depth);
  }
  c.ring += messages;
  return o;
}

// Whether there is nothing to send, and what there is to do is done.
template <class P>
BP_DEV bool needs_nobody(const channel<P>& c) {
  if (c.a.ranks == 1) {
    if (c.a.in != c.a.out) copy(c.in(0), c.count * element_bytes(c.a.dtype), c.out(0), 0);
    return true;
  }
  // The host has the reason, or will. One thread's answer: the word may change while others look.
  return block_scope{}.broadcast(ld_relaxed_gpu(&c.shared()->dead)) != 0;
}

// A call of few channels is launched to begin while the kernel before it ends, which may be the call before.
BP_DEV void begin_early(const bp_coll_args& args) {
  fetch_endpoints(args);
  syncthreads();
  await_kernel_before();
  if (args.early) release_kernel_behind();
}

template <class P>
BP_DEV void all_reduce(const bp_coll_args& args) {
  begin_early(args);
  channel<P> c(args, bid(), true);
  if (needs_nobody(c)) return;
  outcome o;
  if (args.algorithm == BP_COLL_ONE_SHOT) {
    o = one_shot(c);
  } else if (args.algorithm == BP_COLL_TWO_SHOT) {
    o = two_shot(c);
  } else {
    o = ring_around(c);
  }
  syncthreads();
  if (!o.ok()) return end_otherwise(c, o, false);
  if (tid() == 0) {
    c.state()->quick = c.quick;
    c.state()->exchange = c.exchange;
    c.state()->ring = c.ring;
  }
}

// Every rank sends all its elements to all others in one quick message, and adds up all of them. A kernel
// of its own: a launch of few microseconds feels how much code it brings along.
template <class P>
BP_DEV void all_reduce_quick(const bp_coll_args& args) {
  begin_early(args);
  channel<P> c(args, bid(), true);
  if (needs_nobody(c)) return;
  const uint64_t bytes = c.count * element_bytes(args.dtype);
  outcome o = quick::send(c, c.quick, c.in(0), bytes);
  if (tid() + 1 == block_threads()) c.begin();
  if (o.ok()) o = quick::receive(c, c.quick, bytes);
  if (!o.ok()) return end_otherwise(c, o, true);
  work w = c.on(0, c.count);
  w.peers = quick::payload_of(0, bytes);
  w.stride = quick::payload_of(1, bytes) - w.peers;
  reduce(args.dtype, args.op, kind::fold, w);
  if (tid() == 0) c.state()->quick = c.quick + 1;
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
