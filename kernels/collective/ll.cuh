// LL messages of a channel: one WRITE that shows by itself what of it has come.
//
// Three words of data lie beside a flag, which is the message's number, in 16 aligned bytes. A NIC writes
// those at once, whatever the order in which it writes the rest; so a receiver that polls the data has them
// as soon as they have come, without a signal after them and without another trip to look at them. (In-band lines
// take the same for granted of a GPU's stores, and NCCL's LL128 protocol of 128 bytes, on systems that it knows. Of a
// NIC of silicon it is not known, and more than NCCL's LL asks, which has a flag in every 8 bytes: there are
// no LL messages over one, see below.)
// A message begins with what its sender calls; its payload is this rank's share of a call. Slots of LL messages
// hold nothing else, ever.
#ifndef BELLPUSH_LL_CUH
#define BELLPUSH_LL_CUH

#include <stddef.h>

#include "channel.cuh"

namespace bp {
namespace coll {
namespace ll {

// Units of 16 bytes: three words of data and their flag.
constexpr uint32_t unit_words = 3, unit_data = 4 * unit_words;
constexpr uint32_t head_units = (sizeof(bp_coll_call) + unit_data - 1) / unit_data;
constexpr uint32_t most_units = BP_COLL_LL_SLOT_BYTES / sizeof(u128);
static_assert(most_units >= head_units + (BP_COLL_LL_BYTES + unit_data - 1) / unit_data,
              "a slot holds all units");

// Not 0 for the first messages: that is what a slot holds that was never written.
BP_DEV uint32_t flag_of(uint64_t n) { return (uint32_t)n + 1; }

BP_DEV uint32_t payload_units(uint32_t bytes) { return (bytes + unit_data - 1) / unit_data; }

// Units that message n is sent in. Flags come again after 2^32 messages; so that no older one waits in a slot
// until then, all of it is written from time to time.
BP_DEV uint32_t units_of(uint64_t n, uint32_t bytes) {
  if ((n & 0xfffff) < BP_COLL_LL_SLOTS) return most_units;
  return head_units + payload_units(bytes);
}

// A unit's words of data.
struct triple {
  uint32_t w[unit_words];
};
BP_DEV bool same(const triple& x, const triple& y) {
  return x.w[0] == y.w[0] && x.w[1] == y.w[1] && x.w[2] == y.w[2];
}

// Where receive() leaves rank r's units of payload, in shared memory.
BP_DEV triple* units_from(uint32_t r, uint32_t bytes) {
  return reinterpret_cast<triple*>(words() + 1) + r * payload_units(bytes);
}

// Where message n is made, on paths that do not make it in a slot: where the NIC reads it, or where the verbs copy
// it from.
template <class P>
BP_DEV uint64_t made_at(const channel<P>& c, uint64_t n) {
  if constexpr (P::data_v == data::pull) return c.ll_stage(n);
  return reinterpret_cast<uint64_t>(words() + 1) + BP_COLL_LL_ALL_BYTES;
}

// A message's data are words of 4 bytes: the head's, filled up to whole units, then the payload's.
constexpr uint32_t head_words = head_units * unit_words;

// A word of a message's head, but the call's number. An index into the kernel's arguments: one load.
BP_DEV uint32_t called(const bp_coll_args& a, uint32_t word) {
  static_assert(offsetof(bp_coll_args, channels) - offsetof(bp_coll_args, count) ==
                offsetof(bp_coll_call, channels) - offsetof(bp_coll_call, count), "in the same order");
  constexpr uint32_t first = offsetof(bp_coll_call, count) / 4;
  if (word - first >= sizeof(bp_coll_call) / 4 - first) return 0;
  uint32_t v;
  memcpy(&v, reinterpret_cast<const uint8_t*>(&a.count) + (word - first) * 4, 4);
  return v;
}
// Words `word` and the next two of the head of a message of call number `call`, as far as they are the head's; else 0.
BP_DEV triple head_words_of(const bp_coll_args& a, uint64_t call, uint32_t word) {
  triple v;
  for (uint32_t i = 0; i < unit_words; i++) {
    v.w[i] = word + i == 0 ? (uint32_t)call : word + i == 1 ? (uint32_t)(call >> 32) : called(a, word + i);
  }
  return v;
}

// What a message carries.
struct payload {
  uint64_t from;
  uint32_t bytes;
  uint32_t sent;            // the word of data that this thread sends first
  triple to_send, to_fold;  // that and the next two, and the three that this thread adds up first
  BP_DEV payload(uint64_t source, uint32_t length, uint32_t first) : from(source), bytes(length), sent(first) {}
  // Both are on their way from the beginning, beside what else a call needs from L2.
  BP_DEV void start() {
    if (whole()) {
      to_send = load_whole(sent);
      to_fold = load_whole(head_words + tid() * unit_words);
    } else {
      to_send = load(sent);
      to_fold = load(head_words + tid() * unit_words);
    }
  }
  BP_DEV bool whole() const { return ((from | bytes) & 3) == 0; }
  // Words `word` and the next two, as far as they are the payload's; else 0.
  BP_DEV triple load(uint32_t word) const {
    if (whole()) return load_whole(word);
    const uint32_t at = offset(word);
    return {{by_halves(at), by_halves(at + 4), by_halves(at + 8)}};
  }
  BP_DEV triple load_whole(uint32_t word) const {
    const uint32_t at = offset(word);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(address(at));
    return {{at < bytes ? words[0] : 0, at + 4 < bytes ? words[1] : 0, at + 8 < bytes ? words[2] : 0}};
  }
  // Out of range for the head's words, and those before it; from its last ones on it wraps to the payload's first.
  BP_DEV static uint32_t offset(uint32_t word) { return (word - head_words) * 4; }
  // With its sign, so that what lies behind a word has the next address, wherever offsets wrap.
  BP_DEV uint64_t address(uint32_t at) const { return from + (uint64_t)(int64_t)(int32_t)at; }
  // Elements are 2 or 4 bytes.
  BP_DEV uint32_t by_halves(uint32_t at) const {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(address(at));
    return (at < bytes ? halves[0] : 0) | (at + 2 < bytes ? (uint32_t)halves[1] << 16 : 0);
  }
};

// Message n of this rank.
struct message {
  uint64_t call;
  uint32_t flag;
};

// Whether a warp each sends a message of so many bytes to the others; else all warps send to one after the other.
BP_DEV bool is_small(uint32_t bytes, uint32_t ranks) { return bytes <= (ranks == 2 ? 128 : 1024); }

// In-band slots carry a message that lies nowhere: where in it a unit of a slot's stream begins, in words of data and
// flags; 0 or more behind the slot's header.
template <line L>
BP_DEV int32_t message_word(uint32_t unit) {
  return (int32_t)bp::first_word<L>(unit) - (int32_t)(inband_header_bytes / 4);
}
// The first word of data from there on. Every fourth word is a flag.
template <line L>
BP_DEV uint32_t word_of(uint32_t unit) {
  const int32_t first = message_word<L>(unit);
  return (uint32_t)(first - (first >> 2));
}
// Which of the unit's words is a flag: the same of all units that lie a multiple of 16 units apart.
template <line L>
BP_DEV uint32_t flag_in(uint32_t unit) {
  return 3 - ((uint32_t)message_word<L>(unit) & 3);
}
// The unit's words: three of data, and the flag among them.
BP_DEV u128 with_flag(const triple& v, uint32_t flag, uint32_t at) {
  return u128{{at == 0 ? flag : v.w[0], at == 1 ? flag : at > 1 ? v.w[1] : v.w[0],
               at == 2 ? flag : at > 2 ? v.w[2] : v.w[1], at == 3 ? flag : v.w[2]}};
}

// What a thread can have ready of its first message before it knows anything that the call before leaves.
template <class P>
struct sender {
  uint32_t peer = 0;  // its scope's first, this many ranks on
  bool warps = true;  // whether that is a warp
  uint32_t capacity = 0;
  uint64_t slot = 0;  // where the rank's messages of even numbers go
  // Of the unit that this thread writes first: the head's words, without the call's number, masks of what is the
  // number's low and high word, and which is a flag.
  triple head = {}, low = {}, high = {};
  uint32_t flag_at = 0;
  bp_endpoint ep;
  bp::room room;
  BP_DEV sender(const bp_coll_args& a, uint32_t index, bool fetched, uint32_t bytes) {
    if constexpr (P::inband) {
      warps = is_small(bytes, a.ranks) || block_threads() <= 32;
      peer = warps ? 1 + tid() / 32 : 1;
      if (a.ranks == 1) return;
      // A warp without a rank to send to has the first one's, so that all of the block know the capacity.
      ep = copy_of(a, index, fetched, peer < a.ranks ? peer : 1);
      capacity = inband_capacity<P::line_v>(ep.qp.window);
      slot = ll_slot_of(a, index, a.rank, 0);
      make_here(peer);
      make_here(capacity);
      make_here(slot);
      const uint32_t first = first_word();
      head = head_words_of(a, 0, first);
      for (uint32_t i = 0; i < unit_words; i++) {
        low.w[i] = first + i == 0 ? ~0u : 0;
        high.w[i] = first + i == 1 ? ~0u : 0;
        make_here(head.w[i]);
        make_here(low.w[i]);
        make_here(high.w[i]);
      }
      flag_at = flag_in<P::line_v>(first_unit());
      make_here(flag_at);
    }
  }
  BP_DEV uint32_t first_unit() const { return warps ? lane() : tid(); }
  // The first word of data that this thread sends.
  BP_DEV uint32_t first_word() const {
    if constexpr (P::inband) return word_of<P::line_v>(first_unit());
    return tid() * unit_words;
  }
  BP_DEV void start(uint32_t ranks) {
    if constexpr (P::inband) {
      // Nobody else looks at that queue pair.
      if (peer < ranks) room = detail::room_ahead<P>(ep.qp);
    }
  }
  // The words of that unit, in which the payload leaves the head's words 0.
  BP_DEV u128 opening(const message& m, const triple& payload) const {
    const uint32_t call = (uint32_t)m.call, more = (uint32_t)(m.call >> 32);
    triple v;
    for (uint32_t i = 0; i < unit_words; i++) {
      v.w[i] = head.w[i] | payload.w[i] | (call & low.w[i]) | (more & high.w[i]);
    }
    return with_flag(v, m.flag, flag_at);
  }
  // The words of one behind it.
  BP_DEV u128 unit(const bp_coll_args& a, const message& m, const payload& p, uint32_t unit) const {
    constexpr line L = P::line_v;
    const uint32_t word = word_of<L>(unit);
#if defined(__CUDACC__)
    // A warp away at least: no head in there, and the flag lies where it did.
    (void)a;
    return with_flag(p.load(word), m.flag, flag_at);
#else
    triple v = p.load(word);
    const triple head = head_words_of(a, m.call, word);
    for (uint32_t i = 0; i < unit_words; i++) v.w[i] |= head.w[i];
    return with_flag(v, m.flag, flag_in<L>(unit));
#endif
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
    const uint32_t word = u * unit_words;
    const triple v = u < head_units ? head_words_of(c.a, m.call, word) : word == p.sent ? p.to_send : p.load(word);
    made[u] = u128{{v.w[0], v.w[1], v.w[2], m.flag}};
  }
  syncthreads();
  c.to_each(is_small(p.bytes, c.a.ranks), [&](auto scope, uint32_t r) {
    return send_bytes<P>(c.to(r), scope, c.ll_slot(c.a.rank, n), made_at(c, n),
                         units * sizeof(u128)) == BP_OK;
  }, [](uint32_t r) { end_wait({BP_COLL_LINK, r}); });
}
template <class P>
BP_DEV_COLD void post_long(channel<P> c, uint64_t n, uint32_t units, message m, payload p) {
  post_made(c, n, units, m, p);
}

// Sends message n from a scope to the rank that its sender has ready, and to every `step`th after it.
template <class P, class Scope>
BP_DEV void post_lines(const channel<P>& c, uint64_t n, uint32_t bytes, const message& m, const payload& p,
                       sender<P>& to, Scope scope, uint32_t step) {
  const uint64_t slot = to.slot + n % BP_COLL_LL_SLOTS * BP_COLL_LL_SLOT_BYTES;
  for (uint32_t i = to.peer; i < c.a.ranks;) {
    const u128 first = to.opening(m, p.to_send);
    const bp_status_code s = detail::put_words<P>(to.ep, to.room, scope, slot, bytes, first,
                                                  [&](uint32_t unit) { return to.unit(c.a, m, p, unit); });
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

// Sends message n to everyone; payload and sender are started. Where that fails, it ends the block's wait.
template <class P>
BP_DEV void post(const channel<P>& c, uint64_t n, const payload& p, [[maybe_unused]] sender<P>& to) {
  static_assert(P::order_v == order::later, "the software NIC writes 16 aligned bytes at once");
  const uint32_t units = units_of(n, p.bytes), bytes = units * (uint32_t)sizeof(u128);
  const message m{c.call, flag_of(n)};
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
  sender<P> to(c.a, c.index, c.fetched, 0);
  payload p(0, 0, to.first_word());
  p.start();
  to.start(c.a.ranks);
  post(c, n, p, to);
  syncthreads();
  const uint32_t word = words()->ended;
  return {word >> 16, word & 0xffff};
}

BP_DEV bool has_come(const u128& v, uint32_t flag) { return v.w[3] == flag; }
BP_DEV triple data_of(const u128& v) { return {{v.w[0], v.w[1], v.w[2]}}; }
// The whole unit is one load, as it was one store: nothing else has to be ordered.
template <class P>
BP_DEV u128 unit_from(const channel<P>& c, uint32_t r, uint64_t n, uint32_t unit) {
  return ld_line(reinterpret_cast<const u128*>(c.a.region + c.ll_slot(r, n)) + unit);
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
  bool all = true;
  for (uint32_t u = 0; u < head_units; u++) all = has_come(v[u], flag_of(n)) && all;
  *said = {v[0].w[0] | (uint64_t)v[0].w[1] << 32, v[0].w[2] | (uint64_t)v[1].w[0] << 32, v[1].w[1], v[1].w[2],
           v[2].w[0], v[2].w[1]};
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
  const u128* at = reinterpret_cast<const u128*>(c.a.region + c.ll_slot(r, n)) + unit;
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
constexpr uint32_t crowd = 1024;

// Waits for message n of everyone, of `bytes` bytes, and leaves the payloads in shared memory.
// BP_COLL_MISMATCH: somebody calls something else.
template <class P>
BP_DEV outcome receive(const channel<P>& c, uint64_t n, uint32_t bytes) {
  const uint32_t units = head_units + payload_units(bytes);
  const uint32_t peers = c.a.ranks - 1, all = units * peers;
  syncthreads();  // the queue pairs are at rest
  // Takes what has completed while the others' messages are on their way: else a send waits for it now and then, until
  // credits return. It is a trip to the CQ that the call takes longer, and channels' queue pairs complete at different
  // messages; so all take it in the same one of as many calls as there are messages to a completion, and in others
  // who has hardly a credit left.
  if (tid() < near_endpoints(c.a)) {
    const bp_endpoint& ep = words()->near[tid()];
    reclaim<P>(ep, (c.call & (ep.qp.credit_period - 1)) == 0 ? 2 : 4);
  }
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
    triple due = head_words_of(c.a, c.call, unit * unit_words);
    for (uint32_t i = 0; i < unit_words; i++) make_here(due.w[i]);
    if (!wait_units(c, wanted, r, n, unit, &limit, &v)) break;
    if (wanted && unit >= head_units) {
      units_from(r, bytes)[unit - head_units] = data_of(v);
    } else if (wanted && !same(data_of(v), due)) {
      end_wait({BP_COLL_MISMATCH, r});
    }
    for (unit += block_threads(); unit >= units; unit -= units) other++;
  }
  syncthreads();
  const uint32_t word = words()->ended;
  return {word >> 16, word & 0xffff};
}

template <class T>
struct unit_of {
  T v[unit_data / sizeof(T)];
};

// Adds up one unit of all ranks, in the order of ranks; `own` is rank `rank`'s, and rank r's lies at
// `others[r * stride]`.
template <class T, class Op>
BP_DEV triple fold_unit(const triple& own, const triple* others, uint32_t stride, uint32_t rank, uint32_t ranks) {
  constexpr uint32_t n = unit_data / sizeof(T);
  typename Op::acc sum[n];
  const auto unit = [&](uint32_t r) { return bits_as<unit_of<T>>(r == rank ? own : others[r * stride]); };
  unit_of<T> v = unit(0);
  for (uint32_t k = 0; k < n; k++) sum[k] = Op::from(v.v[k]);
  BP_NO_UNROLL for (uint32_t r = 1; r < ranks; r++) {
    v = unit(r);
    for (uint32_t k = 0; k < n; k++) sum[k] = Op::join(sum[k], Op::from(v.v[k]));
  }
  for (uint32_t k = 0; k < n; k++) v.v[k] = Op::finish(sum[k], ranks);
  return bits_as<triple>(v);
}
// By the bits of what to do: comparisons with it become a table to jump by, which a launch would have to fetch.
template <class T, class... Args>
BP_DEV triple fold_unit_by(uint32_t op, Args... args) {
  static_assert(BP_COLL_SUM == 0 && BP_COLL_MAX == 1 && BP_COLL_MIN == 2 && BP_COLL_MEAN == 3, "by their bits");
  if (op & 1) return op & 2 ? fold_unit<T, op_mean<T>>(args...) : fold_unit<T, op_max<T>>(args...);
  return op & 2 ? fold_unit<T, op_min<T>>(args...) : fold_unit<T, op_sum<T>>(args...);
}
template <class... Args>
BP_DEV triple fold_unit_of(uint32_t dtype, uint32_t op, Args... args) {
  if (dtype == BP_COLL_F32) return fold_unit_by<f32>(op, args...);
  if (dtype == BP_COLL_I32) return fold_unit_by<i32>(op, args...);
  return dtype == BP_COLL_F16 ? fold_unit_by<f16>(op, args...) : fold_unit_by<bf16>(op, args...);
}

// Adds up what receive() has left and this rank's own payload, into `out`.
template <class P>
BP_DEV void fold(const channel<P>& c, const payload& p, uint64_t out) {
  const uint32_t units = payload_units(p.bytes);
  for (uint32_t u = tid(); u < units; u += block_threads()) {
    const triple own = u == tid() ? p.to_fold : p.load(head_words + u * unit_words);
    const triple result = fold_unit_of(c.a.dtype, c.a.op, own, units_from(0, p.bytes) + u, units, c.a.rank, c.a.ranks);
    const uint64_t to = out + u * unit_data;
    const uint32_t left = p.bytes - u * unit_data;
    if (aligned(to, 4) && left >= unit_data) {
      for (uint32_t k = 0; k < unit_words; k++) reinterpret_cast<uint32_t*>(to)[k] = result.w[k];
    } else {
      const unit_of<uint16_t> halves = bits_as<unit_of<uint16_t>>(result);
      for (uint32_t k = 0; k < 2 * unit_words; k++) {
        if (2 * k < left) reinterpret_cast<uint16_t*>(to)[k] = halves.v[k];
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

}  // namespace ll
}  // namespace coll
}  // namespace bp

#endif
