// Quick messages of a channel: one WRITE that shows by itself what of it has come.
//
// Each word of data lies beside a flag, which is the message's number, in 8 aligned bytes. A NIC writes
// those at once, whatever the order in which it writes the rest; so a receiver that polls the data has them
// as soon as they have come, without a signal after them and without another trip to look at them. (NCCL's
// LL protocol takes the same for granted.) A message begins with what its sender calls; its payload is
// this rank's share of a call. Slots of quick messages hold nothing else, ever.
#ifndef BELLPUSH_QUICK_CUH
#define BELLPUSH_QUICK_CUH

#include "channel.cuh"

namespace bp {
namespace coll {
namespace quick {

// Units of 16 bytes: two words, each with its flag.
constexpr uint32_t unit_data = 8;
constexpr uint32_t head_units = sizeof(bp_coll_call) / unit_data;
constexpr uint32_t most_units = head_units + BP_COLL_QUICK_BYTES / unit_data;
static_assert(most_units * sizeof(u128) == BP_COLL_QUICK_SLOT_BYTES, "a slot holds all units");

// Not 0 for the first messages: that is what a slot holds that was never written.
BP_DEV uint32_t flag_of(uint64_t n) { return (uint32_t)n + 1; }

// Units that message n is sent in. Flags come again after 2^32 messages; so that no older one waits in a slot
// until then, all of it is written from time to time.
BP_DEV uint32_t units_of(uint64_t n, uint64_t bytes) {
  if ((n & 0xfffff) < BP_COLL_QUICK_SLOTS) return most_units;
  return head_units + (uint32_t)((bytes + unit_data - 1) / unit_data);
}

// Words of a message's head.
BP_DEV uint64_t head_word(const bp_coll_call& h, uint32_t unit) {
  if (unit == 0) return h.call;
  if (unit == 1) return h.count;
  if (unit == 2) return h.dtype | (uint64_t)h.op << 32;
  return h.algorithm | (uint64_t)h.channels << 32;
}

// Where receive() leaves rank r's payload, in shared memory.
BP_DEV uint64_t payload_of(uint32_t r, uint64_t bytes) {
  return reinterpret_cast<uint64_t>(words() + 1) + r * round_up(bytes, 16);
}

// Where message n is made: where the NIC reads it, or where the verbs copy it from.
template <class P>
BP_DEV uint64_t made_at(const channel<P>& c, uint64_t n) {
  if constexpr (P::data_v == data::pull) return c.quick_stage(n);
  return payload_of(0, 0) + BP_COLL_QUICK_ALL_BYTES;
}

// What a message carries: this thread's first unit of it is on its way from the beginning, beside what else a call
// needs from L2.
struct payload {
  uint64_t from, bytes;
  uint32_t low = 0, high = 0;
  BP_DEV payload(uint64_t source, uint64_t length) : from(source), bytes(length) { load(tid(), &low, &high); }
  BP_DEV void load(uint32_t unit, uint32_t* first, uint32_t* second) const {
    if (unit < head_units) return;
    const bool whole = ((from | bytes) & 3) == 0;
    const uint32_t at = (unit - head_units) * unit_data;
    *first = payload_u32(from, at, (uint32_t)bytes, whole);
    *second = payload_u32(from, at + 4, (uint32_t)bytes, whole);
  }
};

// Sends message n to everyone.
template <class P>
BP_DEV outcome send(const channel<P>& c, uint64_t n, const payload& p) {
  const uint32_t units = units_of(n, p.bytes), flag = flag_of(n);
  const bp_coll_call own = c.own();
  u128* made = reinterpret_cast<u128*>(made_at(c, n));
  uint32_t low = p.low, high = p.high;
  for (uint32_t u = tid(); u < units; u += block_threads()) {
    if (u != tid()) p.load(u, &low, &high);
    if (u < head_units) {
      const uint64_t word = head_word(own, u);
      low = (uint32_t)word;
      high = (uint32_t)(word >> 32);
    }
    made[u] = u128{{low, flag, high, flag}};
  }
  if (tid() == 0) words()->ended = 0;  // before the barrier in to_all()
  return c.to_all(units <= 128, [&](auto scope, uint32_t r) {
    return send_bytes<P>(c.to(r), scope, c.quick_slot(c.a.rank, n), made_at(c, n),
                         units * sizeof(u128)) == BP_OK;
  });
}

BP_DEV bool has_come(const u128& v, uint32_t flag) { return v.w[1] == flag && v.w[3] == flag; }
// The whole unit is one load; its halves carry their own flags, so nothing else has to be ordered.
template <class P>
BP_DEV u128 unit_from(const channel<P>& c, uint32_t r, uint64_t n, uint32_t unit) {
  return ld_line(reinterpret_cast<const u128*>(c.a.region + c.quick_slot(r, n)) + unit);
}

// Any thread's reason for the block to end its wait; whichever comes last will do.
BP_DEV void end_wait(outcome o) { st_shared(&words()->ended, o.code << 16 | o.rank); }

BP_DEV bool same(const bp_coll_call& x, const bp_coll_call& y) {
  return x.call == y.call && x.count == y.count && x.dtype == y.dtype && x.op == y.op &&
         x.algorithm == y.algorithm && x.channels == y.channels;
}

// What rank r calls in its message n; whether all of that has come. One trip: all loads are on their way before
// the first is looked at.
template <class P>
BP_DEV bool head_of(const channel<P>& c, uint32_t r, uint64_t n, bp_coll_call* said) {
  u128 v[head_units];
  for (uint32_t u = 0; u < head_units; u++) v[u] = unit_from(c, r, n, u);
  uint64_t word[head_units];
  bool all = true;
  for (uint32_t u = 0; u < head_units; u++) {
    all = has_come(v[u], flag_of(n)) && all;
    word[u] = v[u].w[0] | (uint64_t)v[u].w[2] << 32;
  }
  *said = {word[0], word[1], (uint32_t)word[2], (uint32_t)(word[2] >> 32),
           (uint32_t)word[3], (uint32_t)(word[3] >> 32)};
  return all;
}

// Now and then, in a wait for rank r's message n: whether it will come. Ends the wait if not: when it has
// lasted too long, when somebody has given up, and when the message says something else than what this rank
// calls, because its other units may never come then.
template <class P>
BP_DEV_COLD void look_round(channel<P> c, uint32_t r, uint64_t n, bool expired) {
  if (expired || c.given_up(r)) end_wait({BP_COLL_SILENT, r});
  bp_coll_call said;
  if (head_of(c, r, n, &said) && !same(said, c.own())) end_wait({BP_COLL_MISMATCH, r});
  if (c.index != 0 && c.verdict_is(BP_COLL_MISMATCH)) end_wait({BP_COLL_MISMATCH, r});
}

// A warp waits for units of message n of other ranks, one a lane; `wanted` is false for a lane without one.
// False: somebody has ended the wait. One look at a time: with three on their way, a third of a trip apart, the
// wait took 2 us longer (measured; presumably looks at one word wait for each other).
template <class P>
BP_DEV bool wait_units(const channel<P>& c, bool wanted, uint32_t r, uint64_t n, uint32_t unit,
                       deadline* limit, u128* v) {
  const uint32_t flag = flag_of(n);
  const u128* at = reinterpret_cast<const u128*>(c.a.region + c.quick_slot(r, n)) + unit;
  for (;;) {
    if (wanted) *v = ld_line(at);
    const bool missing = wanted && !has_come(*v, flag);
    if (ballot(missing) == 0 || c.a.unwaited) return true;
    const bool expired = limit->expired(c.a.timeout_ns);
    if ((limit->polls & 31) == 0) {
      if (missing) look_round(c, r, n, expired);
      if (ballot(ld_shared(&words()->ended) != 0) != 0) return false;
    }
    yield_();
  }
}

// Units of a call, on all its channels, from which on one warp of a block waits for the last unit of each
// message before any thread looks at the others, where there are several messages to wait for: thousands of looks at
// memory that several write to are in their way (measured with four ranks, 16 KiB: 84 us without this, 19 with it).
// With a single other rank they are not, and a trip is saved.
constexpr uint32_t crowd = 1536;

// Waits for message n of everyone, of `bytes` bytes, and leaves the payloads in shared memory.
// BP_COLL_MISMATCH: somebody calls something else.
template <class P>
BP_DEV outcome receive(const channel<P>& c, uint64_t n, uint64_t bytes) {
  const uint32_t units = head_units + (uint32_t)((bytes + unit_data - 1) / unit_data);
  const uint32_t peers = c.a.ranks - 1, all = units * peers;
  const bp_coll_call own = c.own();
  // Takes what has completed while the others' messages are on their way: else a send waits for it now and
  // then, until credits return.
  if (tid() < near_endpoints(c.a)) reclaim<P>(words()->near[tid()]);
  deadline limit;
  u128 v = unit_zero();
  if (peers > 1 && all * c.a.channels > crowd) {
    for (uint32_t base = 0; tid() < 32 && base < peers; base += warp_scope{}.size()) {
      const uint32_t i = base + lane() < peers ? base + lane() : 0;
      if (!wait_units(c, base + lane() < peers, c.behind(i + 1), n, units - 1, &limit, &v)) break;
    }
    syncthreads();
  }
  uint32_t other = tid() / units, unit = tid() - other * units;
  for (uint32_t base = tid() - lane(); base < all; base += block_threads()) {
    const bool wanted = base + lane() < all;
    const uint32_t r = wanted ? c.behind(other + 1) : c.next();
    if (!wait_units(c, wanted, r, n, unit, &limit, &v)) break;
    const uint64_t word = v.w[0] | (uint64_t)v.w[2] << 32;
    if (wanted && unit >= head_units) {
      *reinterpret_cast<uint64_t*>(payload_of(r, bytes) + (unit - head_units) * unit_data) = word;
    } else if (wanted && word != head_word(own, unit)) {
      end_wait({BP_COLL_MISMATCH, r});
    }
    for (unit += block_threads(); unit >= units; unit -= units) other++;
  }
  syncthreads();
  const uint32_t word = words()->ended;
  return {word >> 16, word & 0xffff};
}

// Waits for the head of message n of everyone, and hands each out to `hear(rank, said)`, to one thread, maybe
// more than once.
template <class P, class Hear>
BP_DEV outcome wait_heads(const channel<P>& c, uint64_t n, Hear hear) {
  if (c.a.unwaited) return {BP_COLL_OK, 0};
  return c.await([&](uint32_t r) -> uint32_t {
    if (r == c.a.rank) return BP_COLL_OK;
    bp_coll_call said;
    if (!head_of(c, r, n, &said)) return BP_COLL_SILENT;
    hear(r, said);
    return BP_COLL_OK;
  }, c.never);
}
template <class P>
BP_DEV outcome wait_heads(const channel<P>& c, uint64_t n) {
  return wait_heads(c, n, [](uint32_t, const bp_coll_call&) {});
}

}  // namespace quick
}  // namespace coll
}  // namespace bp

#endif
