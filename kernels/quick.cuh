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
BP_DEV uint32_t units_of(uint64_t n, uint32_t bytes) {
  if ((n & 0xfffff) < BP_COLL_QUICK_SLOTS) return most_units;
  return head_units + (bytes + unit_data - 1) / unit_data;
}

// Where receive() leaves rank r's units of payload, in shared memory.
BP_DEV uint32_t payload_units(uint32_t bytes) { return (bytes + unit_data - 1) / unit_data; }
BP_DEV uint64_t* units_from(uint32_t r, uint32_t bytes) {
  return reinterpret_cast<uint64_t*>(words() + 1) + r * payload_units(bytes);
}

// Where message n is made, on paths that do not make it in a slot: where the NIC reads it, or where the verbs copy
// it from.
template <class P>
BP_DEV uint64_t made_at(const channel<P>& c, uint64_t n) {
  if constexpr (P::data_v == data::pull) return c.quick_stage(n);
  return reinterpret_cast<uint64_t>(words() + 1) + BP_COLL_QUICK_ALL_BYTES;
}

// A message's data are words of 4 bytes: the head's, then the payload's.
constexpr uint32_t head_words = head_units * 2;

// Unit `unit` of a message's head.
BP_DEV uint64_t head_unit(const bp_coll_call& h, uint32_t unit) {
  const uint64_t kinds = h.dtype | (uint64_t)h.op << 32, ways = h.algorithm | (uint64_t)h.channels << 32;
  const uint64_t low = unit == 0 ? h.call : h.count, high = unit == 2 ? kinds : ways;
  return unit < 2 ? low : high;
}
BP_DEV uint32_t head_word(const bp_coll_call& h, uint32_t word) {
  const uint64_t unit = head_unit(h, word / 2);
  return (uint32_t)(word % 2 ? unit >> 32 : unit);
}

// Two words of data, one behind the other.
struct pair {
  uint32_t first, second;
};

// What a message carries.
struct payload {
  uint64_t from;
  uint32_t bytes;
  uint32_t sent;          // the word of data that this thread sends first
  pair to_send, to_fold;  // that pair, and the one that this thread adds up first
  BP_DEV payload(uint64_t source, uint32_t length, uint32_t first) : from(source), bytes(length), sent(first) {}
  // Both are on their way from the beginning, beside what else a call needs from L2.
  BP_DEV void start() {
    if (whole()) {
      to_send = load_whole(sent);
      to_fold = load_whole(head_words + tid() * 2);
    } else {
      to_send = load(sent);
      to_fold = load(head_words + tid() * 2);
    }
  }
  BP_DEV bool whole() const { return ((from | bytes) & 3) == 0; }
  // Words `word` and the next, as far as they are the payload's; else 0.
  BP_DEV pair load(uint32_t word) const {
    if (whole()) return load_whole(word);
    const uint32_t at = offset(word);
    return {by_halves(at), by_halves(at + 4)};
  }
  BP_DEV pair load_whole(uint32_t word) const {
    return {one(offset(word)), one(offset(word) + 4)};
  }
  BP_DEV uint32_t one(uint32_t at) const { return at < bytes ? *reinterpret_cast<const uint32_t*>(from + at) : 0; }
  // Out of range for the head's words; that of its last one wraps to the payload's first.
  BP_DEV static uint32_t offset(uint32_t word) { return (word - head_words) * 4; }
  // Elements are 2 or 4 bytes.
  BP_DEV uint32_t by_halves(uint32_t at) const {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(from + at);
    return (at < bytes ? halves[0] : 0) | (at + 2 < bytes ? (uint32_t)halves[1] << 16 : 0);
  }
};

// Message n of this rank.
struct message {
  bp_coll_call said;
  uint32_t flag;
  // Words `word` and the next of its data, of which the payload's are these.
  BP_DEV pair words(uint32_t word, const pair& v) const {
    return {word < head_words ? head_word(said, word) : v.first,
            word + 1 < head_words ? head_word(said, word + 1) : v.second};
  }
};

// Whether a warp each sends a message of so many bytes to the others; else all warps send to one after the other.
BP_DEV bool is_small(uint32_t bytes, uint32_t ranks) { return bytes <= (ranks == 2 ? 128 : 1024); }

// In-band slots carry a message that lies nowhere: of unit `unit` of a slot's stream, the first word of data.
template <line L>
BP_DEV uint32_t word_of(uint32_t unit) {
  return (uint32_t)((int32_t)(bp::first_word<L>(unit) - inband_header_bytes / 4 + 1) >> 1);
}
// The unit's words: each of data with a flag behind it.
template <line L>
BP_DEV u128 slot_unit(const message& m, const pair& p, uint32_t unit) {
  const pair v = m.words(word_of<L>(unit), p);
  const bool odd = ((bp::first_word<L>(unit) - inband_header_bytes / 4) & 1) != 0;
  return u128{{odd ? m.flag : v.first, odd ? v.first : m.flag, odd ? m.flag : v.second, odd ? v.second : m.flag}};
}

// What a thread can have ready of its first message before it knows anything that the call before leaves.
template <class P>
struct outlet {
  uint32_t peer = 0;  // its scope's first, this many ranks on
  bool warps = true;  // whether that is a warp
  uint32_t capacity = 0;
  uint64_t slot = 0;  // where the rank's messages of even numbers go
  bp_endpoint ep;
  detail::room room;
  BP_DEV outlet(const bp_coll_args& a, uint32_t index, bool fetched, uint32_t bytes) {
    if constexpr (P::inband) {
      warps = is_small(bytes, a.ranks) || block_threads() <= 32;
      peer = warps ? 1 + tid() / 32 : 1;
      if (a.ranks == 1) return;
      // A warp without a rank to send to has the first one's, so that all of the block know the capacity.
      ep = copy_of(a, index, fetched, peer < a.ranks ? peer : 1);
      capacity = inband_capacity<P::line_v>(ep.qp.window);
      slot = quick_slot_of(a, index, a.rank, 0);
      make_here(peer);
      make_here(capacity);
      make_here(slot);
    }
  }
  // The first word of data that this thread sends.
  BP_DEV uint32_t first_word() const {
    if constexpr (P::inband) return word_of<P::line_v>(warps ? lane() : tid());
    return tid() * 2;
  }
  BP_DEV void start(uint32_t ranks) {
    if constexpr (P::inband) {
      // Nobody else looks at that queue pair.
      if (peer < ranks) room = detail::load_room<P>(ep.qp);
    }
  }
};

// Any thread's reason for the block to end its wait: the first one, so that a message that could not be sent is not
// taken for one that was. Of several at once any will do.
BP_DEV void end_wait(outcome o) {
  if (ld_shared(&words()->ended) == 0) st_shared(&words()->ended, o.code << 16 | o.rank);
}

// Sends message n to everyone from where it is made first. All of the block have come here.
template <class P>
BP_DEV void post_made(const channel<P>& c, uint64_t n, uint32_t units, const message& m, const payload& p) {
  u128* made = reinterpret_cast<u128*>(made_at(c, n));
  for (uint32_t u = tid(); u < units; u += block_threads()) {
    const pair v = m.words(u * 2, u * 2 == p.sent ? p.to_send : p.load(u * 2));
    made[u] = u128{{v.first, m.flag, v.second, m.flag}};
  }
  syncthreads();
  c.to_each(is_small(p.bytes, c.a.ranks), [&](auto scope, uint32_t r) {
    return send_bytes<P>(c.to(r), scope, c.quick_slot(c.a.rank, n), made_at(c, n),
                         units * sizeof(u128)) == BP_OK;
  }, [](uint32_t r) { end_wait({BP_COLL_LINK, r}); });
}
template <class P>
BP_DEV_COLD void post_long(channel<P> c, uint64_t n, uint32_t units, message m, payload p) {
  post_made(c, n, units, m, p);
}

// Sends message n from a scope to the rank that its outlet has ready, and to every `step`th after it.
template <class P, class Scope>
BP_DEV void post_lines(const channel<P>& c, uint64_t n, uint32_t bytes, const message& m, const payload& p,
                       outlet<P>& to, Scope scope, uint32_t step) {
  constexpr line L = P::line_v;
  const uint64_t slot = to.slot + n % BP_COLL_QUICK_SLOTS * BP_COLL_QUICK_SLOT_BYTES;
  for (uint32_t i = to.peer; i < c.a.ranks;) {
    const bp_status_code s = detail::put_words<P>(to.ep, to.room, scope, slot, bytes,
                                                  slot_unit<L>(m, p.to_send, scope.rank()), [&](uint32_t unit) {
      return slot_unit<L>(m, p.load(word_of<L>(unit)), unit);
    });
    if (s != BP_OK) {
      if (scope.rank() == 0) end_wait({BP_COLL_LINK, c.behind(i)});
      return;
    }
    i += step;
    if (i >= c.a.ranks) return;
    to.ep = copy_of(c.a, c.index, c.fetched, i);
    to.start(c.a.ranks);
  }
}

// Sends message n to everyone; payload and outlet are started. Where that fails, it ends the block's wait.
template <class P>
BP_DEV void post(const channel<P>& c, uint64_t n, const payload& p, [[maybe_unused]] outlet<P>& to) {
  const uint32_t units = units_of(n, p.bytes), bytes = units * (uint32_t)sizeof(u128);
  const message m{c.own(), flag_of(n)};
  if constexpr (P::inband) {
    // All endpoints are made alike.
    if (bytes > to.capacity) return post_long<P>(c, n, units, m, p);
    if (to.warps) return post_lines(c, n, bytes, m, p, to, warp_scope{}, (block_threads() + 31) / 32);
    post_lines(c, n, bytes, m, p, to, block_scope{}, 1);
  } else {
    post_made(c, n, units, m, p);
  }
}

// Sends message n, which carries nothing but what is called, and says how it went.
template <class P>
BP_DEV outcome send_head(const channel<P>& c, uint64_t n) {
  syncthreads();  // nobody looks at the word any more
  if (tid() == 0) words()->ended = 0;
  syncthreads();
  outlet<P> to(c.a, c.index, c.fetched, 0);
  payload p(0, 0, to.first_word());
  p.start();
  to.start(c.a.ranks);
  post(c, n, p, to);
  syncthreads();
  const uint32_t word = words()->ended;
  return {word >> 16, word & 0xffff};
}

BP_DEV bool has_come(const u128& v, uint32_t flag) { return v.w[1] == flag && v.w[3] == flag; }
// The whole unit is one load; its halves carry their own flags, so nothing else has to be ordered.
template <class P>
BP_DEV u128 unit_from(const channel<P>& c, uint32_t r, uint64_t n, uint32_t unit) {
  return ld_line(reinterpret_cast<const u128*>(c.a.region + c.quick_slot(r, n)) + unit);
}

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
BP_DEV outcome receive(const channel<P>& c, uint64_t n, uint32_t bytes) {
  const uint32_t units = head_units + payload_units(bytes);
  const uint32_t peers = c.a.ranks - 1, all = units * peers;
  const bp_coll_call own = c.own();
  syncthreads();  // the queue pairs are at rest
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
      units_from(r, bytes)[unit - head_units] = word;
    } else if (wanted && word != head_unit(own, unit)) {
      end_wait({BP_COLL_MISMATCH, r});
    }
    for (unit += block_threads(); unit >= units; unit -= units) other++;
  }
  syncthreads();
  const uint32_t word = words()->ended;
  return {word >> 16, word & 0xffff};
}

// Adds up one unit of all ranks, in the order of ranks; `own` is rank `rank`'s, and rank r's lies at
// `others[r * stride]`.
template <class T, class Op>
BP_DEV uint64_t fold_unit(uint64_t own, const uint64_t* others, uint32_t stride, uint32_t rank, uint32_t ranks) {
  constexpr uint32_t n = unit_data / sizeof(T);
  typename Op::acc sum[n];
  const auto unit = [&](uint32_t r) { return bits_as<pack<T, n>>(r == rank ? own : others[r * stride]); };
  pack<T, n> v = unit(0);
  for (uint32_t k = 0; k < n; k++) sum[k] = Op::from(v.v[k]);
  BP_NO_UNROLL for (uint32_t r = 1; r < ranks; r++) {
    v = unit(r);
    for (uint32_t k = 0; k < n; k++) sum[k] = Op::join(sum[k], Op::from(v.v[k]));
  }
  for (uint32_t k = 0; k < n; k++) v.v[k] = Op::finish(sum[k], ranks);
  return bits_as<uint64_t>(v);
}
// Sums first, and no table to jump by, which a launch would have to fetch.
template <class T, class... Args>
BP_DEV uint64_t fold_unit_by(uint32_t op, Args... args) {
  if (op == BP_COLL_SUM) return fold_unit<T, op_sum<T>>(args...);
  if (op == BP_COLL_MEAN) return fold_unit<T, op_mean<T>>(args...);
  return op == BP_COLL_MAX ? fold_unit<T, op_max<T>>(args...) : fold_unit<T, op_min<T>>(args...);
}
template <class... Args>
BP_DEV uint64_t fold_unit_of(uint32_t dtype, uint32_t op, Args... args) {
  if (dtype == BP_COLL_F32) return fold_unit_by<f32>(op, args...);
  if (dtype == BP_COLL_I32) return fold_unit_by<i32>(op, args...);
  return dtype == BP_COLL_F16 ? fold_unit_by<f16>(op, args...) : fold_unit_by<bf16>(op, args...);
}

// Adds up what receive() has left and this rank's own payload, into `out`.
template <class P>
BP_DEV void fold(const channel<P>& c, const payload& p, uint64_t out) {
  const uint32_t units = payload_units(p.bytes);
  for (uint32_t u = tid(); u < units; u += block_threads()) {
    const pair own = u == tid() ? p.to_fold : p.load(head_words + u * 2);
    const uint64_t result = fold_unit_of(c.a.dtype, c.a.op, own.first | (uint64_t)own.second << 32,
                                         units_from(0, p.bytes) + u, units, c.a.rank, c.a.ranks);
    const uint64_t to = out + u * unit_data;
    const uint32_t left = p.bytes - u * unit_data;
    if (aligned(to, unit_data) && left >= unit_data) {
      *reinterpret_cast<uint64_t*>(to) = result;
    } else {
      for (uint32_t k = 0; k < unit_data && k < left; k += 2) {
        *reinterpret_cast<uint16_t*>(to + k) = (uint16_t)(result >> (8 * k));
      }
    }
  }
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
