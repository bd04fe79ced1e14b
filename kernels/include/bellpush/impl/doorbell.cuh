// Publishing WQEs: ready, doorbell record, doorbell; and BlueFlame.
//
// Marking ready and ringing are separate steps. A caller marks its WQEs ready; a ringer covers all consecutive
// ready WQEs, so that one doorbell serves many WQEs and many callers.
#ifndef BELLPUSH_DOORBELL_CUH
#define BELLPUSH_DOORBELL_CUH

#include <bellpush/impl/credit.cuh>
#include <bellpush/impl/wqe.cuh>
#include <bellpush/path.cuh>

namespace bp {

// The two stores that tell the NIC that tickets below `end` are ready. The caller has fenced.
template <class P>
BP_DEV void tell(const bp_qp& qp, uint64_t end) {
  const uint32_t index = (uint32_t)end & 0xffff;
  st_relaxed_sys(reinterpret_cast<uint32_t*>(qp.dbr) + BP_DBR_SND, be32(index));
  // strict: orders the DBR before the UAR, for a NIC that reads the DBR when the doorbell reaches it.
  // later: unordered. The NIC takes the later of the two, and both were fenced behind the WQEs: either one is
  // enough, and the other is then stale or equal.
  if constexpr (P::order_v == order::strict) fence_before_doorbell<P::reach_v>();
  // Like NVSHMEM: the next index with ds 0. With libmlx5's way, the last WQE's control segment, the ringer would
  // have to read back other callers' WQEs.
  const uint64_t bell = (uint64_t)be32(qp.qpn << 8) << 32 | be32_index(index, 0);
  st_mmio(reinterpret_cast<uint64_t*>(qp.uar + BP_UAR_DOORBELL_OFFSET), bell);
}

// Rings for all WQEs below `end` of an exclusive queue pair.
template <class P>
BP_DEV void ring_exclusive(const bp_qp& qp, uint64_t end) {
  // Orders payload and WQEs of this thread, and through the scope's sync of its other threads, before DBR and UAR, for
  // the NIC.
  fence_before_doorbell<P::reach_v>();
  tell<P>(qp, end);
  store_state<P>(&state_of(qp)->rung, end);
}

// Who rings, on a shared queue pair. `ring` is one word: the ticket below which all is rung, a bit for the caller that
// rings at present, and one that says that somebody has left WQEs to others.
//
// A caller whose WQE is ready polls the word until the WQE is rung, or until it is the one that rings. That one looks
// at the ready words from `rung` on once, rings for all that are ready without a gap, and gives the word back. So a
// doorbell serves all callers that became ready meanwhile, and nobody is held by what others post.
//
// A gap is a WQE before ours whose caller has its ticket and is not yet ready. We leave then, and say so in the word:
// that caller rings for us. It takes the word after it has become ready, and after us; the release of ours, and its
// acquire, let it see our ready word. A caller that finds no such mark, and `rung` at its own WQE, rings without a look
// at any ready word.
BP_DEV uint64_t rung_of(uint64_t ring) { return ring >> ring_shift; }

// How many ready words one look has in flight: of a thread, and of each lane of a warp.
constexpr uint32_t words_a_look = 8, words_a_lane = 4;

// End of the WQEs that are ready from `end` on, without a gap. The caller fences (acquire) before it tells the NIC.
BP_DEV uint64_t scan_ready(const bp_qp& qp, thread_scope, uint64_t end) {
  const uint64_t stop = end + sq_blocks(qp);
  while (end < stop) {
    uint32_t word[words_a_look];
    for (uint32_t k = 0; k < words_a_look; k++) word[k] = ld_relaxed_gpu(ready_word(qp, end + k));
    const uint64_t from = end;
    bool is_open = true;
    for (uint32_t k = 0; k < words_a_look; k++) {
      const uint32_t blocks = ready_blocks(word[k], from + k);
      // A block behind its WQE's first counts as part of that WQE: its word may be seen late.
      is_open &= blocks != 0 || from + k < end;
      if (is_open && blocks != 0) end = from + k + blocks;
    }
    if (!is_open) break;
  }
  return end;
}
// The same by all lanes of a warp.
BP_DEV uint64_t scan_ready(const bp_qp& qp, warp_scope, uint64_t end) {
  const uint64_t stop = end + sq_blocks(qp);
  while (end < stop) {
    uint32_t word[words_a_lane];
    for (uint32_t k = 0; k < words_a_lane; k++) word[k] = ld_relaxed_gpu(ready_word(qp, end + k * 32 + lane()));
    bool is_open = true;
    for (uint32_t k = 0; k < words_a_lane && is_open; k++) {
      const uint64_t from = end;
      const uint32_t blocks = ready_blocks(word[k], from + lane());
      const uint32_t there = ballot(blocks != 0);
      const uint32_t n = there == ~0u ? 32 : trailing_zeros(~there);
      if (n == 0) return end;
      end = shfl_u64(from + lane() + blocks, n - 1);
      // A WQE that ends behind what was seen, or a gap: the words in hand are no longer those from `end` on.
      is_open = end == from + 32;
    }
  }
  return end;
}
#if defined(__CUDACC__)
// The same by the first of some lanes.
BP_DEV uint64_t scan_ready(const bp_qp& qp, mask_scope scope, uint64_t end) {
  return scope.rank() == 0 ? scan_ready(qp, thread_scope{}, end) : end;
}
#endif

// Tells the NIC of all below `to`, and gives the word `ring` back.
template <class P>
BP_DEV void give_ring_back(const bp_qp& qp, uint64_t from, uint64_t to, bool left) {
  if (to != from) tell<P>(qp, to);
  // Release: this doorbell before the next holder's, and our ready word before that holder's look.
  st_release_gpu(&state_of(qp)->ring, to << ring_shift | (left ? ring_left : 0));
}

// One look at the ready words, by whoever has the word `ring`, which was `word` before; and gives it back.
template <class P, class Scope>
BP_DEV void look_and_ring(const bp_qp& qp, Scope scope, uint64_t word, uint64_t end) {
  const uint64_t from = rung_of(word);
  // Acquire before the look: the ready words that were left to us, by those who had `ring` before. After it: the
  // payload and WQEs of the callers whose words were seen, before the doorbell. Each of those has fenced at the NIC's
  // scope before its word (mark_shared), so nothing of theirs is on its way any more.
  fence_acquire_gpu();
  const uint64_t to = scan_ready(qp, scope, from);
  fence_acquire_gpu();
  if (scope.rank() == 0) {
    bool left = to < end;
    if (!left && (word & ring_left) != 0) left = to < ld_relaxed_gpu(&state_of(qp)->reserved);
    give_ring_back<P>(qp, from, to, left);
  }
  scope.sync();
}

// The usual way out is short; this is the other, out of line: somebody else has the word, or has left WQEs, or there
// are some before ours that are not rung. Ends once all below `end` is rung, or the word was ours. Whoever has the word
// gives it back after one look and one doorbell, so waiting for it is short. The bound is for a caller that does not
// run.
//
// Lanes of a warp may all be here, each for itself, and a GPU may hold one that leaves the loop until the others do. So
// what belongs to holding the word is done within the loop, and no lane leaves it with the word.
template <class P, class Scope>
BP_DEV_COLD void ring_and_look(bp_qp qp, Scope scope, uint64_t word, uint64_t end) {
  bp_qp_state* st = state_of(qp);
  deadline patience;
  for (bool is_over = false; !is_over;) {
    word = scope.broadcast(word);
    if ((word & ring_held) == 0) {
      look_and_ring<P>(qp, scope, word, end);
      is_over = true;
    } else if (rung_of(word) >= end) {
      is_over = true;
    } else {
      uint64_t gives_up = 0;
      if (scope.rank() == 0) {
        gives_up = patience.expired(qp_timeout_ns(qp));
        if (gives_up != 0) {
          fail(qp, BP_TIMEOUT, 0, end);
        } else {
          word = ld_relaxed_gpu(&st->ring);
          const bool asks = (word & ring_held) == 0 && rung_of(word) < end;
          word = asks ? atomic_or(&st->ring, ring_held) : word | ring_held;  // seen, not taken
          if ((word & ring_held) != 0 && rung_of(word) < end) yield_();
        }
      }
      is_over = scope.broadcast(gives_up) != 0;
    }
  }
}

// The first step of ringing, by the leader.
template <class P>
BP_DEV uint64_t ask_ring(const bp_qp& qp) {
  static_assert(P::shared && !P::inband, "others have no such word");
  return atomic_or(&state_of(qp)->ring, ring_held);
}

// Rings for the caller's own WQEs, `first` up to `end`, which are ready, and for others'. `word` is what the leader's
// ask_ring() returned. Scope: the threads that look at ready words together; all of them call.
template <class P, class Scope>
BP_DEV void ring_shared(const bp_qp& qp, Scope scope, uint64_t word, uint64_t first, uint64_t end) {
  if (scope.rank() == 0) {
    if (word == first << ring_shift) {
      // No acquire: no word of others is read. Record and register come after those of the holder before, who released
      // them before the value that our atomic has found: a GPU makes no store before the branch on that value is
      // decided. This is an argument of the hardware; PTX's model would ask for an acquire here.
      give_ring_back<P>(qp, first, end, false);
      if constexpr (is_thread_scope<Scope>) return;
      word = ring_held | end << ring_shift;  // nothing is left to do
    }
  }
  word = scope.broadcast(word);
  if ((word & ring_held) == 0 || rung_of(word) < end) ring_and_look<P>(late_copy(qp), scope, word, end);
}

// Rings for everything that is ready. What is ready behind a gap is left to the gap's caller, as a post leaves it: it
// may have been deferred, and nobody else need come for it.
template <class P>
BP_DEV void ring_pending(const bp_qp& qp) {
  if constexpr (P::inband) {
    return;  // nothing to ring
  } else if constexpr (P::shared) {
    const bp_qp_state* st = state_of(qp);
    const uint64_t end = ld_relaxed_gpu(&st->reserved);
    if (rung_of(ld_relaxed_gpu(&st->ring)) >= end) return;
    ring_and_look<P>(qp, thread_scope{}, ring_held, end);  // which asks for the word itself
  } else {
    bp_qp_state* st = state_of(qp);
    const uint64_t end = load_state<P>(&st->reserved);
    if (load_state<P>(&st->rung) != end) ring_exclusive<P>(qp, end);
  }
}

// The same for a caller that waits, and looks again: it does not wait for the word `ring`, and takes it only if the WQE
// behind those that are rung is ready. Hundreds of callers may wait at once. If each took the word in turn, to find
// nothing, those on multiprocessors that are far from the word would never get it, and the one among them whose WQE
// all wait for would be held (seen on an H200, 228 warps).
template <class P>
BP_DEV void ring_ready(const bp_qp& qp) {
  if constexpr (P::shared && !P::inband) {
    uint64_t word = ld_relaxed_gpu(&state_of(qp)->ring);
    const uint64_t from = rung_of(word);
    if ((word & ring_held) != 0 || ready_blocks(ld_relaxed_gpu(ready_word(qp, from)), from) == 0) return;
    word = ask_ring<P>(qp);
    if ((word & ring_held) == 0) look_and_ring<P>(qp, thread_scope{}, word, 0);
  } else {
    ring_pending<P>(qp);
  }
}

// Exclusive: the words of `count` WQEs of `blocks` blocks each from `ticket` on, where they are needed. `marked` is the
// state's word as room_ahead() read it.
template <class P>
BP_DEV void mark_exclusive(const bp_qp& qp, uint64_t ticket, uint32_t count, uint32_t blocks, uint64_t marked) {
  if (blocks == 1 && ticket >= marked) return;
  if (count == 1 && blocks == 1) return st_relaxed_gpu(ready_word(qp, ticket), (uint32_t)ticket + 1);
  const uint64_t end = ticket + (uint64_t)count * blocks;
  if (blocks != 1) store_state<P>(&state_of(qp)->marked, end + sq_blocks(qp));
  for (uint64_t at = ticket, next = ticket; at < end; at++) {
    if (at == next) next += blocks;
    st_relaxed_gpu(ready_word(qp, at), (uint32_t)next);
  }
}

// Shared: makes `count` WQEs of `blocks` blocks each from `ticket` on ready. All threads of the scope have stored and
// synchronised. With `Asks` the leader asks for the word `ring` while its fence waits, and returns what it was.
template <class P, bool Asks, class Scope>
BP_DEV uint64_t mark_shared(const bp_qp& qp, Scope scope, uint64_t ticket, uint32_t count, uint32_t blocks) {
  const auto end_of = [&](uint32_t i) { return ticket + (uint64_t)(i + 1) * blocks; };
  uint64_t ring = 0;
  if (scope.rank() == 0) {
    // Sets the words of all blocks, so that none keeps a number that comes true 2^32 tickets later. Those behind a
    // WQE's first come before the fence, because once the first word is visible, another caller may ring, and other
    // callers may take and mark the tickets one lap on.
    for (uint32_t i = 0; i < count; i++) {
      for (uint32_t left = blocks - 1; left != 0; left--) {
        st_relaxed_gpu(ready_word(qp, end_of(i) - left), (uint32_t)end_of(i));
      }
    }
    if constexpr (Asks) ring = ask_ring<P>(qp);
    // Orders payload, WQEs (ours, and our scope's through its sync) and those words before the first ones, for the
    // thread that will ring and for the NIC, and through them for the callers that have the tickets next. It has the
    // NIC's scope, so that whoever rings needs no such fence for our stores.
    fence_before_doorbell<P::reach_v>();
  }
  const auto first_word = [&](uint32_t i) {
    st_relaxed_gpu(ready_word(qp, end_of(i) - blocks), (uint32_t)end_of(i));
  };
  if (count == 1) {
    if (scope.rank() == 0) first_word(0);
    return ring;
  }
  // The leader's fence before all threads' words: it has waited until the scope's stores are performed, so that no word
  // stored behind this can be seen before them. This too is an argument of the hardware: PTX's model asks each thread
  // that stores a word for a fence.
  scope.sync();
  for (uint32_t i = scope.rank(); i < count; i += scope.size()) first_word(i);
  scope.sync();  // and these before the leader's look, or give_ring_back()
  return ring;
}

// Has the NIC told of `count` WQEs of `blocks` blocks each from `ticket` on, which all threads of the scope have
// stored. All of them call it. In-band the slots have told it already.
template <class P, class Scope>
BP_DEV void publish([[maybe_unused]] const bp_qp& qp, Scope scope, [[maybe_unused]] uint64_t ticket,
                    [[maybe_unused]] uint32_t count, [[maybe_unused]] uint32_t blocks,
                    [[maybe_unused]] uint64_t marked, [[maybe_unused]] bool alone, [[maybe_unused]] bool ring) {
  // Orders all threads' payload and WQEs before the leader's fence, and all threads' reads of the source before the
  // return, after which it may be overwritten.
  scope.sync();
  [[maybe_unused]] const uint64_t end = ticket + (uint64_t)count * blocks;
  if constexpr (P::inband) {
    return;
  } else if constexpr (P::shared) {
    const auto have_rung = [&](uint64_t word) {
      if constexpr (is_block_scope<Scope>) {
        if (scope.rank() == 0) ring_shared<P>(qp, thread_scope{}, word, ticket, end);
      } else {
        ring_shared<P>(qp, scope, word, ticket, end);
      }
    };
    // Where nobody else is about, the word `ring` is asked for while the fence waits. Others would wait with us. These
    // are two ways written out: with a condition before the fence ptxas waits for the word there, 100 ns.
    if (ring && alone) {
      have_rung(mark_shared<P, true>(qp, scope, ticket, count, blocks));
    } else {
      uint64_t word = mark_shared<P, false>(qp, scope, ticket, count, blocks);
      if (!ring) return;
      if (scope.rank() == 0) word = ask_ring<P>(qp);
      have_rung(word);
    }
  } else if (scope.rank() == 0) {
    mark_exclusive<P>(qp, ticket, count, blocks, marked);
    if (ring) ring_exclusive<P>(qp, end);
  }
}

// BlueFlame (order::later). One instruction of one warp stores the whole WQE to the UAR's buffer, and the NIC
// executes it from there without reading the SQ. An inline payload needs no fence: the NIC depends on no other
// store.
//
// A store of more than 16 bytes may arrive in parts. The NIC takes a WQE from the buffer only if its index is the
// expected one and its check word matches: a sum over all words of the WQE's blocks, in ctrl.imm, which silicon
// ignores in RDMA_WRITE. Until then it waits, as for a WQE that has not come.
//
// The payload must not change during the call, as in any call. It is read for the sum, for the SQ and for the
// buffer. If it changes in between, the NIC does not take the WQE from the buffer: it waits in the SQ for the next
// doorbell, and no torn message is sent.
//
// Used only while the QP is idle: one buffer is enough, and nothing in it can be overwritten unseen. The doorbell
// record must not claim this WQE, which is not ordered in the SQ. It must not fall 2^15 behind either, where its 16
// bits would pass for a number ahead. So every 8192 blocks it gets the number of complete blocks, which is always
// correct. The SQ is written all the same, because the next ordinary doorbell covers this index too.
template <bool inline_v, class Scope>
BP_DEV void blueflame_store(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket) {
  const uint32_t units = wqe_blocks(w) * 4;
  if (scope.rank() == 0 && (ticket ^ (ticket + units / 4)) >> 13 != 0) {
    st_relaxed_sys(reinterpret_cast<uint32_t*>(qp.dbr) + BP_DBR_SND, be32((uint32_t)ticket & 0xffff));
  }
  uint32_t sum = 0;
  // Every thread sums all units: they are few, and this saves a reduction.
  for (uint32_t u = 0; u < units; u++) sum += check_unit(wqe_unit<inline_v>(w, u, ticket, qp.qpn), u);
  u128* buffer = reinterpret_cast<u128*>(qp.uar + BP_UAR_BF_OFFSET);
  for (uint32_t u = scope.rank(); u < units; u += scope.size()) {
    u128 v = wqe_unit<inline_v>(w, u, ticket, qp.qpn);
    if (u == 0) v.w[3] = sum;
    st_unit(sq_unit(qp, ticket, u), v);
    st_line(buffer + u, v);
  }
}

// BlueFlame as silicon has it (order::strict), after libmlx5. The WQE is in the SQ and the DBR claims it before the
// buffer is written, in case the store arrives in parts: the NIC then takes the first 8 bytes for a doorbell and
// reads the SQ. It saves the NIC that read, not a fence. The caller has stored the WQE and synchronised the scope.
template <class P, bool inline_v, class Scope>
BP_DEV void blueflame_strict(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket) {
  const uint32_t units = wqe_blocks(w) * 4;
  if (scope.rank() == 0) {
    // Orders payload and WQE of the whole scope, through its sync, before the DBR, for the NIC.
    fence_before_doorbell<P::reach_v>();
    const uint32_t next = (uint32_t)(ticket + units / 4) & 0xffff;
    st_relaxed_sys(reinterpret_cast<uint32_t*>(qp.dbr) + BP_DBR_SND, be32(next));
    // Orders the DBR before the buffer, for a NIC that reads the DBR when the WQE reaches it.
    fence_before_doorbell<P::reach_v>();
  }
  scope.sync();
  u128* buffer = reinterpret_cast<u128*>(qp.uar + BP_UAR_BF_OFFSET);
  for (uint32_t u = scope.rank(); u < units; u += scope.size()) {
    st_line(buffer + u, wqe_unit<inline_v>(w, u, ticket, qp.qpn));
  }
}

}  // namespace bp

#endif
