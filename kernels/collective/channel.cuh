// A channel of a collective: its streams of messages to and from the other ranks, and what happens when a
// rank is waited for in vain. collective.cuh says why it works.
#ifndef BELLPUSH_CHANNEL_CUH
#define BELLPUSH_CHANNEL_CUH

#include <bellpush/bellpush.cuh>
#include "collective.h"
#include "reduce.cuh"

namespace bp {
namespace coll {

constexpr uint32_t depth = BP_COLL_DEPTH;

BP_DEV uint32_t lowest_bit(uint32_t mask) {
#if defined(__CUDACC__)
  return (uint32_t)__ffs((int)mask) - 1;
#else
  return (uint32_t)__builtin_ctz(mask);
#endif
}

BP_DEV uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// How a block's elements are cut: rounds of `pieces` pieces of up to `most` elements; the pieces of a
// round are alike, multiples of 16 bytes, and the last ones may be short or empty.
struct cut {
  uint64_t count, most, grain;
  uint32_t pieces;
  BP_DEV uint64_t rounds() const { return (count + most * pieces - 1) / (most * pieces); }
  struct piece {
    uint64_t first, count;
  };
  BP_DEV piece at(uint64_t round, uint32_t index) const {
    const uint64_t start = round * most * pieces, rest = count - start;
    const uint64_t all = rest < most * pieces ? rest : most * pieces;
    const uint64_t each = round_up((all + pieces - 1) / pieces, grain);
    const uint64_t first = each * index < all ? each * index : all;
    return {start + first, all - first < each ? all - first : each};
  }
};

// Words of a block's shared memory; what LL messages need comes behind them.
struct block_words {
  uint32_t failed;  // the rank + 1 that a send failed to
  uint32_t ended;   // why a thread waits no longer (ll.cuh)
  uint32_t pad[14];
  bp_endpoint near[BP_COLL_NEAR_ENDPOINTS];
};
BP_DEV block_words* words() { return reinterpret_cast<block_words*>(dynamic_shared()); }

// How a wait or a post ended: BP_COLL_OK, or a code and whom it is about.
struct outcome {
  uint32_t code, rank;
  BP_DEV bool ok() const { return code == BP_COLL_OK; }
};

// The verbs as functions of their own: inlined wherever a message is sent, they would take ptxas
// minutes.
template <class P, class Scope>
BP_DEV_COLD bp_status_code send_message(const bp_endpoint& ep, Scope scope, uint64_t remote,
                                        uint64_t from, uint64_t bytes, uint64_t signal) {
  return put_signal<P>(ep, scope, remote, reinterpret_cast<void*>(from), bytes, signal, signal_add{1},
                       unsignalled);
}
template <class P, class Scope>
BP_DEV_COLD bp_status_code send_bytes(const bp_endpoint& ep, Scope scope, uint64_t remote,
                                      uint64_t from, uint64_t bytes) {
  return put<P>(ep, scope, remote, reinterpret_cast<void*>(from), bytes, unsignalled);
}
template <class P>
BP_DEV_COLD void send_report(const bp_endpoint& ep, uint64_t remote, const uint64_t* word,
                             uint64_t timeout_ns) {
  put_inline<P>(within(ep, timeout_ns), block_scope{}, remote, word, 8);
}

// Waits until the other side has all that was sent to it: BP_TIMEOUT if that is not so yet.
template <class P>
BP_DEV_COLD bp_status_code await_told(const bp_endpoint& ep, uint64_t timeout_ns) {
  return quiet<P>(within(ep, timeout_ns), block_scope{});
}

BP_DEV const bp_endpoint& endpoint_of(const bp_coll_args& a, uint32_t channel, uint32_t rank) {
  return reinterpret_cast<const bp_endpoint*>(a.endpoints)[(uint64_t)channel * a.ranks + rank];
}

// Brings the endpoints to the next ranks to shared memory; a barrier follows. No kernel writes them, so they
// can come while the kernel before this one ends: a launch begins with an empty L1, and the verbs would look at
// parts of them one after the other, 0.2 us each.
BP_DEV uint32_t near_endpoints(const bp_coll_args& a) {
  constexpr uint32_t most = BP_COLL_NEAR_ENDPOINTS;
  return a.ranks - 1 < most ? a.ranks - 1 : most;
}
BP_DEV void fetch_endpoints(const bp_coll_args& a, uint32_t channel) {
  constexpr uint32_t lines = sizeof(bp_endpoint) / sizeof(u128);
  for (uint32_t i = tid(); i < near_endpoints(a) * lines; i += block_threads()) {
    const uint32_t r = a.rank + 1 + i / lines;
    const bp_endpoint* from = &endpoint_of(a, channel, r < a.ranks ? r : r - a.ranks);
    reinterpret_cast<u128*>(words()->near)[i] = reinterpret_cast<const u128*>(from)[i % lines];
  }
}

// Has the states of their queue pairs come to L1, where the verbs find them: once no kernel before this one writes
// them, and beside what the caller loads itself, for each trip to L2 takes 0.25 us.
BP_DEV void touch_states(const bp_coll_args& a) {
  constexpr uint32_t line = 128, lines = sizeof(bp_qp_state) / line;
  for (uint32_t i = tid(); i < near_endpoints(a) * lines; i += block_threads()) {
    touch(words()->near[i / lines].qp.state + i % lines * line);
  }
}

// The endpoint to the rank `i` places on, in registers.
BP_DEV bp_endpoint copy_of(const bp_coll_args& a, uint32_t channel, bool fetched, uint32_t i) {
  if (fetched && i <= BP_COLL_NEAR_ENDPOINTS) return words()->near[i - 1];
  return endpoint_of(a, channel, a.rank + i < a.ranks ? a.rank + i : a.rank + i - a.ranks);
}

// Offset in a region of LL message n from `rank`.
BP_DEV uint64_t ll_slot_of(const bp_coll_args& a, uint32_t channel, uint32_t rank, uint64_t n) {
  return a.ll_slots + (((uint64_t)channel * a.ranks + rank) * BP_COLL_LL_SLOTS + n % BP_COLL_LL_SLOTS) *
                             BP_COLL_LL_SLOT_BYTES;
}

// A channel's elements of a call.
struct elements {
  uint64_t first, count;
};
BP_DEV elements elements_of(const bp_coll_args& a, uint32_t channel) {
  const uint64_t first = a.share * channel < a.count ? a.share * channel : a.count;
  return {first, a.count - first < a.share ? a.count - first : a.share};
}

// One channel's part of one call. Functions that are not inlined take it by value: an object whose address is
// given away lies in memory for everyone, and so do the kernel's arguments that it refers to.
template <class P>
struct channel {
  const bp_coll_args& a;
  uint32_t index;
  bool fetched;  // its endpoints, by fetch_endpoints()
  uint32_t dead;  // as it was at first
  uint64_t call;
  uint64_t ll, all_to_all, ring;  // messages of each stream before this call
  uint64_t first, count;    // this channel's elements

  BP_DEV channel(const bp_coll_args& args, uint32_t number, bool has_fetched = false)
      : a(args), index(number), fetched(has_fetched) {
    const bp_coll_channel* st = state();
    // Past L1, where an earlier launch may have left it: begin() of this launch's last block adds to it.
    // All on their way at once: what is made of one waits for those before it.
    call = ld_relaxed_gpu(&shared()->call);
    dead = ld_relaxed_gpu(&shared()->dead);
    ll = st->ll;
    all_to_all = st->all_to_all;
    ring = st->ring;
    const elements mine = elements_of(a, index);
    first = mine.first;
    count = mine.count;
  }

  // A channel's blocks alone write it.
  BP_DEV bp_coll_channel* state() const {
    return reinterpret_cast<bp_coll_channel*>(a.channel_state) + index;
  }
  BP_DEV bp_coll_shared* shared() const { return reinterpret_cast<bp_coll_shared*>(a.shared); }

  // One thread, once all of the block have read the call's number: the last block counts it.
  BP_DEV void begin() const {
    bp_coll_shared* sh = shared();
    if (grid_blocks() > 1) {
      if (atomic_add(&sh->begun, 1) + 1 != grid_blocks()) return;
      st_relaxed_gpu(&sh->begun, uint64_t{0});
    }
    st_relaxed_gpu(&sh->call, call + 1);
  }
  // What this rank calls.
  BP_DEV bp_coll_call own() const {
    return {call, a.count, a.dtype, a.op, a.algorithm, a.channels};
  }

  BP_DEV const bp_endpoint& to(uint32_t rank) const {
    const uint32_t i = (rank > a.rank ? rank : rank + a.ranks) - a.rank - 1;
    return fetched && i < BP_COLL_NEAR_ENDPOINTS ? words()->near[i] : endpoint_of(a, index, rank);
  }
  // The rank `i` places on, of less than all: without a division, which takes longer than a trip to L1.
  BP_DEV uint32_t behind(uint32_t i) const {
    const uint32_t r = a.rank + i;
    return r < a.ranks ? r : r - a.ranks;
  }
  BP_DEV uint32_t next() const { return behind(a.ranks > 1 ? 1 : 0); }
  BP_DEV uint32_t previous() const { return behind(a.ranks - 1); }
  BP_DEV uint64_t slot_bytes() const { return BP_COLL_HEADER_BYTES + a.chunk_bytes; }
  BP_DEV uint64_t in(uint64_t element) const {
    return a.in + (first + element) * element_bytes(a.dtype);
  }
  BP_DEV uint64_t out(uint64_t element) const {
    return a.out + (first + element) * element_bytes(a.dtype);
  }

  // Offsets in a region: where message n from `rank` lies, and its signal.
  BP_DEV uint64_t ll_slot(uint32_t rank, uint64_t n) const { return ll_slot_of(a, index, rank, n); }
  BP_DEV uint64_t all_to_all_slot(uint32_t rank, uint64_t n) const {
    return a.all_to_all_slots +
           (((uint64_t)index * a.ranks + rank) * 2 * depth + n % (2 * depth)) * slot_bytes();
  }
  BP_DEV uint64_t all_to_all_signal(uint32_t rank) const {
    return a.all_to_all_signals + ((uint64_t)index * a.ranks + rank) * 8;
  }
  BP_DEV uint64_t ring_slot(uint64_t n) const {
    const uint64_t slots = (uint64_t)a.ranks * depth;
    return a.ring_slots + ((uint64_t)index * slots + n % slots) * slot_bytes();
  }
  BP_DEV uint64_t ring_signal() const { return a.ring_signals + (uint64_t)index * 8; }
  // Where message n is made.
  BP_DEV uint64_t ll_stage(uint64_t n) const {
    return a.ll_stage + ((uint64_t)index * BP_COLL_LL_SLOTS + n % BP_COLL_LL_SLOTS) *
                               BP_COLL_LL_SLOT_BYTES;
  }
  // All-to-all: a column for each rank that gets one of its own, the own
  // rank's for what all get.
  BP_DEV uint64_t all_to_all_stage(uint64_t n, uint32_t column) const {
    return stage((n % (2 * depth)) * a.ranks + column);
  }
  BP_DEV uint64_t ring_stage(uint64_t n) const {
    const uint64_t slots = (uint64_t)a.ranks * depth;
    return stage(2 * slots + n % slots);
  }
  BP_DEV uint64_t stage(uint64_t slot) const {
    return a.stage + ((uint64_t)index * 3 * depth * a.ranks + slot) * slot_bytes();
  }
  BP_DEV uint64_t payload(uint64_t slot) const { return slot + BP_COLL_HEADER_BYTES; }

  // One thread writes a staged message's header.
  BP_DEV void head(uint64_t slot, uint64_t message) const {
    bp_coll_header* h = reinterpret_cast<bp_coll_header*>(slot);
    h->message = message;
    h->said = own();
    for (uint64_t& word : h->reserved) word = 0;
  }

  // ---- Sending -------------------------------------------------------------------------------

  // Has `post(scope, rank)` send to every other rank: a warp each, at once, if messages are small or the NIC
  // fetches them, so that the warps' fences overlap; else by the whole block. A scope's first thread calls
  // `failed(rank)` of the rank that its scope cannot send to, and goes no further.
  template <class Post, class Failed>
  BP_DEV void to_each(bool small, Post post, Failed failed) const {
    const uint32_t warps = (block_threads() + 31) / 32, warp = tid() / 32;
    if (small || P::data_v == data::pull || warps == 1) {
      for (uint32_t i = 1 + warp; i < a.ranks; i += warps) {
        const uint32_t r = behind(i);
        if (post(warp_scope{}, r)) continue;
        if (lane() == 0) failed(r);
        return;
      }
    } else {
      for (uint32_t i = 1; i < a.ranks; i++) {
        const uint32_t r = behind(i);
        if (post(block_scope{}, r)) continue;
        if (tid() == 0) failed(r);
        return;
      }
    }
  }

  // The same once all of the block have come here, and how it went.
  template <class Post>
  BP_DEV outcome to_all(bool small, Post post) const {
    if (tid() == 0) words()->failed = 0;
    // The stage is written and the slots consumed by all, before anyone sends from it or tells it.
    syncthreads();
    to_each(small, post, [](uint32_t r) { words()->failed = r + 1; });
    syncthreads();
    const uint32_t who = words()->failed;
    syncthreads();  // all have read the word before it is written again
    return who ? outcome{BP_COLL_LINK, who - 1} : outcome{BP_COLL_OK, 0};
  }

  // Sends message n of the all-to-all stream to everyone: `bytes(rank)` of payload from the stage's
  // column `column(rank)`.
  template <class Bytes, class Column>
  BP_DEV outcome send_all(uint64_t n, Bytes bytes, Column column) const {
    return to_all(bytes(next()) <= 2048, [&](auto scope, uint32_t r) {
      return send_message<P>(to(r), scope, all_to_all_slot(a.rank, n), all_to_all_stage(n, column(r)),
                             BP_COLL_HEADER_BYTES + bytes(r), all_to_all_signal(a.rank)) == BP_OK;
    });
  }

  // Sends message n of the ring stream to the next rank.
  BP_DEV outcome send_next(uint64_t n, uint64_t bytes) const {
    syncthreads();  // as in send_all
    const bp_status_code s = send_message<P>(to(next()), block_scope{}, ring_slot(n),
                                             ring_stage(n), BP_COLL_HEADER_BYTES + bytes,
                                             ring_signal());
    return s == BP_OK ? outcome{BP_COLL_OK, 0} : outcome{BP_COLL_LINK, next()};
  }

  // ---- Waiting -------------------------------------------------------------------------------

  // Waits until `there(r)` is BP_COLL_OK for all ranks: lanes of the first warp look at one rank each.
  // BP_COLL_SILENT means not yet, and any other code ends the wait. So does the timeout, and anybody who has
  // given up; but not while only this rank itself is waited for, which is another block that ends by
  // itself. Now and then `differs(r)` says whether to end with BP_COLL_MISMATCH. `there` is an acquire.
  template <class There, class Differs>
  BP_DEV outcome await(There there, Differs differs) const {
    uint64_t ended = 0;
    if (tid() < 32) {
      const uint32_t lanes = block_threads() < 32 ? block_threads() : 32;
      for (uint32_t base = 0; base < a.ranks && ended == 0; base += lanes) {
        const uint32_t r = base + lane();
        deadline limit;
        uint32_t found = r < a.ranks ? BP_COLL_SILENT : BP_COLL_OK;
        for (;;) {
          if (found != BP_COLL_OK) found = there(r);
          if (ballot(found != BP_COLL_OK) == 0) break;
          const bool expired = limit.expired(a.timeout_ns);
          const bool round = (limit.polls & 31) == 0;
          if (round && found < BP_COLL_LINK && differs(r)) found = BP_COLL_MISMATCH;
          uint32_t why = ballot(found > BP_COLL_SILENT);
          if (round && why == 0 && ballot(expired || given_up(r)) != 0) {
            why = ballot(found != BP_COLL_OK && r != a.rank);
          }
          if (why != 0) {
            ended = shfl_u64((uint64_t)found << 32 | r, lowest_bit(why));
            break;
          }
          yield_();
        }
      }
    }
    ended = block_scope{}.broadcast(ended);
    return {(uint32_t)(ended >> 32), (uint32_t)ended};
  }

  BP_DEV static bool never(uint32_t) { return false; }

  BP_DEV uint64_t report(uint32_t r) const {
    return ld_acquire_sys(reinterpret_cast<const uint64_t*>(a.region + a.reports) + r);
  }
  BP_DEV bool given_up(uint32_t r) const {
    return ld_relaxed_gpu(&shared()->dead) != 0 || (r < a.ranks && report(r) != 0);
  }

  // Message n in a slot of the region, with its signal's word, as one look finds it: header and signal are on
  // their way together. `announced` is the thread's: the signal was there before, so the header is.
  BP_DEV uint32_t look_at(uint64_t slot, uint64_t signal, uint64_t n, bool* announced) const {
    static_assert(offsetof(bp_coll_header, said) == 8, "the words below");
    const u128* header = reinterpret_cast<const u128*>(a.region + slot);
    const u128 v[3] = {ld_line(header), ld_line(header + 1), ld_line(header + 2)};
    const bool there = ld_acquire_sys(reinterpret_cast<const uint64_t*>(a.region + signal)) > n;
    if (!there && !a.unwaited) return BP_COLL_SILENT;
    auto word = [&](uint32_t i) { return v[i / 2].w[i % 2 * 2] | (uint64_t)v[i / 2].w[i % 2 * 2 + 1] << 32; };
    const bool right = word(0) == n && word(1) == call;
    const bool same = word(2) == a.count && word(3) == (a.dtype | (uint64_t)a.op << 32) &&
                      word(4) == (a.algorithm | (uint64_t)a.channels << 32);
    if (right && same) return BP_COLL_OK;
    if (*announced || a.unwaited) return right ? BP_COLL_MISMATCH : BP_COLL_CORRUPT;
    // Parts of the header may be older than the signal.
    *announced = true;
    return BP_COLL_SILENT;
  }

  // The first rank for which `wrong(r)` holds, or `ranks`: lanes of the first warp look at one each.
  template <class Wrong>
  BP_DEV uint32_t find(Wrong wrong) const {
    uint32_t found = a.ranks;
    if (tid() < 32) {
      const uint32_t lanes = block_threads() < 32 ? block_threads() : 32;
      for (uint32_t base = 0; base < a.ranks && found == a.ranks; base += lanes) {
        const uint32_t r = base + lane();
        const uint32_t mask = ballot(r < a.ranks && wrong(r));
        if (mask) found = base + lowest_bit(mask);
      }
    }
    return (uint32_t)block_scope{}.broadcast(found);
  }

  // Waits for message n of everyone; `own()` is what await() asks of this rank, and `differs` as there.
  // BP_COLL_MISMATCH: somebody calls something else, which `any` takes as well.
  template <class Own, class Differs>
  BP_DEV outcome receive_all(uint64_t n, bool any, Own own, Differs differs) const {
    uint32_t announced = a.ranks;  // a lane may look at several ranks, one after the other
    return await([&](uint32_t r) -> uint32_t {
      if (r == a.rank) return own();
      bool was = announced == r;
      const uint32_t found = look_at(all_to_all_slot(r, n), all_to_all_signal(r), n, &was);
      if (was) announced = r;
      return found == BP_COLL_MISMATCH && any ? (uint32_t)BP_COLL_OK : found;
    }, differs);
  }
  BP_DEV outcome receive_any(uint64_t n) const {
    return receive_all(n, true, [] { return (uint32_t)BP_COLL_OK; }, never);
  }
  // Waits for message n of the rank before.
  BP_DEV outcome receive_previous(uint64_t n) const {
    bool announced = false;
    return await([&](uint32_t r) -> uint32_t {
      if (r != previous()) return BP_COLL_OK;
      const uint32_t found = look_at(ring_slot(n), ring_signal(), n, &announced);
      return found == BP_COLL_MISMATCH ? (uint32_t)BP_COLL_CORRUPT : found;  // all have agreed
    }, never);
  }

  // ---- What the first channel found (call_mismatch.cuh) ----------------------------------------------

  // `settles`: what channels take where ranks differ (call_mismatch.cuh).
  BP_DEV void publish(uint32_t code, uint64_t settles) const {
    st_relaxed_gpu(&shared()->settles, settles);
    st_release_gpu(&shared()->verdict, 2 * call + (code == BP_COLL_OK ? 1 : 2));
  }
  BP_DEV bool verdict_is(uint32_t code) const {
    return ld_acquire_gpu(&shared()->verdict) == 2 * call + (code == BP_COLL_OK ? 1 : 2);
  }
  BP_DEV outcome verdict() const {
    const uint64_t* word = &shared()->verdict;
    // The first channel's own waits may be three timeouts and the grace long.
    uint64_t said = 0;
    if (tid() == 0) {
      deadline limit;
      while ((said = ld_relaxed_gpu(word)) <= 2 * call) {
        if (ld_relaxed_gpu(&shared()->dead) != 0 ||
            limit.expired(3 * a.timeout_ns + a.grace_ns)) {
          break;
        }
        yield_();
      }
      fence_acquire_gpu();  // the verdict before `settles`
    }
    said = block_scope{}.broadcast(said);
    if (said == 2 * call + 1) return {BP_COLL_OK, 0};
    const bool differ = said == 2 * call + 2;
    return {(uint32_t)(differ ? BP_COLL_MISMATCH : BP_COLL_SILENT), a.rank};
  }

  // ---- Failure -------------------------------------------------------------------------------

  // One thread: the first call that differs, and what ended the communicator, are the host's to read. The second has a
  // place of its own, since ranks that differ go on; only one block of all calls gets to tell it (`dead`).
  BP_DEV void tell_host(outcome o, const bp_coll_call* said) const {
    if (said && atomic_cas(&shared()->status, 0, 1) != 0) return;
    bp_coll_status* st = reinterpret_cast<bp_coll_status*>(a.status) + (said ? 0 : 1);
    st_relaxed_sys(&st->rank, o.rank);
    st->own = own();
    if (said) st->said = *said;
    fence_sys();  // reason before code, for the host
    st_relaxed_sys(&st->code, o.code);
  }

  // Ends the communicator at this rank. The first block that fails tells the other ranks whom it
  // waited for, and finds out who is to blame.
  BP_DEV void give_up(outcome why) const {
    bp_coll_shared* sh = shared();
    uint64_t claimed = 0;
    if (tid() == 0) {
      claimed = atomic_cas(&sh->dead, 0, 1) == 0;
      if (claimed) sh->report = (uint64_t)why.rank + 1;
    }
    claimed = block_scope{}.broadcast(claimed);
    if (!claimed) return;
    const uint64_t begin = block_scope{}.broadcast(now_ns());
    // The rank that was waited for comes last: it is the one that may take nothing.
    for (uint32_t i = 0; i < a.ranks; i++) {
      const uint32_t r = (why.rank + 1 + i) % a.ranks;
      if (r == a.rank) continue;
      send_report<P>(to(r), a.reports + a.rank * 8, &sh->report, grace_left(begin));
    }
    outcome blamed = why;
    if (tid() == 0 && why.code != BP_COLL_CORRUPT) blamed = follow(why, begin);
    await_heard((uint32_t)block_scope{}.broadcast(blamed.rank), begin);
    if (tid() == 0) tell_host(blamed, nullptr);
  }

  // What is left of the grace: one thread's clock for all of the block.
  BP_DEV uint64_t grace_left(uint64_t begin) const {
    const uint64_t spent = now_ns() - begin;
    return block_scope{}.broadcast(spent < a.grace_ns ? a.grace_ns - spent : 0);
  }

  // The program may go, and its queue pairs with it, once the host knows. Then this rank would be the one that says
  // nothing, for those who have not heard whom it blames. So it waits for all but the one to blame, a little for each
  // in turn, since more may be gone.
  BP_DEV void await_heard(uint32_t blamed, uint64_t begin) const {
    const uint64_t each = a.grace_ns / 16;
    uint64_t waiting = ((uint64_t{2} << (a.ranks - 1)) - 1) & ~(uint64_t{1} << a.rank) & ~(uint64_t{1} << blamed);
    while (waiting != 0) {
      for (uint32_t r = 0; r < a.ranks; r++) {
        if ((waiting >> r & 1) == 0) continue;
        const uint64_t left = grace_left(begin);
        if (left == 0) return;
        if (await_told<P>(to(r), left < each ? left : each) != BP_TIMEOUT) waiting &= ~(uint64_t{1} << r);
      }
    }
  }

  // Follows the waits from rank to rank until one has said nothing for the whole grace.
  BP_DEV outcome follow(outcome why, uint64_t begin) const {
    for (;;) {
      const bool over = elapsed_ns(begin) > a.grace_ns;
      uint32_t reports = 0;
      for (uint32_t r = 0; r < a.ranks; r++) reports += r != a.rank && report(r) != 0;
      // Nobody is left who could still say something, or would be given time to.
      if (over || reports + 2 >= a.ranks) {
        uint32_t who = why.rank;
        for (uint32_t hops = 0; hops < a.ranks; hops++) {
          const uint64_t said = report(who);
          if (said == 0 || said > a.ranks) break;
          if (said - 1 == a.rank) return {BP_COLL_LATE, who};
          who = (uint32_t)said - 1;
        }
        if (over || report(who) == 0) return {who == why.rank ? why.code : (uint32_t)BP_COLL_SILENT, who};
      }
      yield_();
    }
  }

  BP_DEV work on(uint64_t element, uint64_t n) const {
    return {in(element), 0, 0, a.rank, a.ranks, n, out(element), 0};
  }
};

}  // namespace coll
}  // namespace bp

#endif
