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
  const uint64_t bell = (uint64_t)be32(qp.qpn << 8) << 32 | be32(index << 8);
  st_mmio(reinterpret_cast<uint64_t*>(qp.uar + BP_UAR_DOORBELL_OFFSET), bell);
}

// Values of the ring lock. A holder that has rung for others often enough marks its round as the last one. A poster
// that has polled this mark for too long asks the holder for more rounds, and leaves.
constexpr uint32_t ring_free = 0, ring_held = 1, ring_last = 2, ring_more = 3;
constexpr uint32_t ring_rounds = 16;
// Polls of the lock during another caller's last round, each a trip to L2: far longer than that round, which the
// ring's length bounds, unless its holder is not running.
constexpr uint32_t ring_looks = 1 << 20;

// Rings for everything that is ready. Shared: only one caller at a time scans and rings. A caller that finds the
// lock held leaves. The holder looks again after unlocking; the two fences ensure that either the holder sees our
// ready word or we see its unlocked lock (each side stores, fences, loads), so no doorbell is lost. While others
// post, a holder finds something at every look. To bound this, it marks a round as its last one before it scans,
// with a fence between: then either its scan sees our ready word or we see the mark. In the latter case we stay
// until the lock has another holder, or us, or for ring_looks polls; a holder that finds ring_more begins its
// rounds anew.
template <class P>
BP_DEV void ring_pending(const bp_qp& qp) {
  if constexpr (P::inband) {
    return;  // nothing to ring
  } else if constexpr (!P::shared) {
    bp_qp_state* st = state_of(qp);
    const uint64_t end = load_state<P>(&st->reserved);
    if (load_state<P>(&st->rung) == end) return;
    // Orders payload and WQEs of this thread, and through the scope's sync of its other threads, before DBR and
    // UAR, for the NIC.
    fence_before_doorbell<P::reach_v>();
    tell<P>(qp, end);
    store_state<P>(&st->rung, end);
  } else {
    bp_qp_state* st = state_of(qp);
    for (uint32_t round = 0, looks = 0;;) {
      uint32_t holder = ld_relaxed_gpu(&st->ring_lock);
      if (holder == ring_free) holder = atomic_cas(&st->ring_lock, ring_free, ring_held);
      if (holder == ring_last) {
        // Our ready word was fenced before this, so a holder that finds ring_more sees it.
        if (++looks >= ring_looks && atomic_cas(&st->ring_lock, ring_last, ring_more) == ring_last) return;
        yield_();
        continue;
      }
      if (holder != ring_free) return;
      const uint64_t first = ld_relaxed_gpu(&st->rung);  // in flight meanwhile
      const bool is_last = ++round == ring_rounds;
      if (is_last) {
        st_relaxed_gpu(&st->ring_lock, ring_last);
        fence_sc_gpu();  // the mark before the looks at ready words
      }
      uint64_t end = first;
      while (end - first < sq_blocks(qp)) {
        // Acquire: the marker's payload and WQE, before our fence (which then covers them too).
        const uint32_t blocks = ready_blocks(ld_acquire_gpu(ready_word(qp, end)), end);
        if (blocks == 0) break;
        end += blocks;
      }
      if (end != first) {
        // Payload and WQEs of all callers whose ready words were seen, before DBR and UAR, for the NIC.
        fence_before_doorbell<P::reach_v>();
        tell<P>(qp, end);
        st_relaxed_gpu(&st->rung, end);
      }
      if (is_last) {
        fence_gpu();  // `rung` before the unlock, for the next holder
        // The holder of the last round leaves, whatever is there, but not what was left to it.
        if (atomic_cas(&st->ring_lock, ring_last, ring_free) == ring_last) return;
        // Release: the ready words that were left to us, for the next holder of the lock.
        st_release_gpu(&st->ring_lock, ring_free);
        round = 0;
        continue;
      }
      st_release_gpu(&st->ring_lock, ring_free);
      fence_sc_gpu();  // the unlock before the look at the next ready word
      if (ready_blocks(ld_relaxed_gpu(ready_word(qp, end)), end) == 0) return;
    }
  }
}

// Marks `count` WQEs ready, `blocks` basic blocks each, from `ticket` on. The leader calls it after the scope's
// sync.
template <class P>
BP_DEV void mark_ready(const bp_qp& qp, uint64_t ticket, uint32_t count, uint32_t blocks) {
  const auto end_of = [&](uint32_t i) { return ticket + (uint64_t)(i + 1) * blocks; };
  // Sets the words of all blocks, so that none keeps a number that comes true 2^32 tickets later. No caller reads
  // those behind a WQE's first; they come before the fence, because once the first word is visible, another caller
  // may ring, and other callers may take and mark the tickets one lap on.
  for (uint32_t i = 0; i < count; i++) {
    for (uint32_t left = blocks - 1; left != 0; left--) {
      st_relaxed_gpu(ready_word(qp, end_of(i) - left), (uint32_t)end_of(i));
    }
  }
  // Orders payload, WQEs (ours, and our scope's through its sync) and those words before the first ones, for the
  // thread that will ring, and through it and the NIC for the callers that have the tickets next.
  if constexpr (P::shared) fence_gpu();
  for (uint32_t i = 0; i < count; i++) {
    st_relaxed_gpu(ready_word(qp, end_of(i) - blocks), (uint32_t)end_of(i));
  }
  // Orders the ready words before the look at the ringer's lock (see ring_pending).
  if constexpr (P::shared) fence_sc_gpu();
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
    *sq_unit(qp, ticket, u) = v;
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
