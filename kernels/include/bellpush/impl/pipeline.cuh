// A long message by a block through the slots of an exclusive queue pair, as a pipeline: nobody waits for a whole batch.
//
// The first warp's leader takes completions and grants slots by them. The second's, unless the path is in-band, watches
// which slots are filled, and rings for those that are without a gap. All other warps fill slots, dealt round in order,
// as far as they are granted, and fence each by itself: a fence waits for the stores of its own warp, while the others
// go on.
//
// Their words lie in the block's scratch memory. A slot's credit reaches its warp through `granted`: the NIC has read
// the slot before the CQE that the first leader saw, and no GPU stores before the branch on `granted` is decided. A
// filled slot reaches the second leader through `filled`: its warp's fence, of the NIC's scope, comes before that word.
#ifndef BELLPUSH_IMPL_PIPELINE_CUH
#define BELLPUSH_IMPL_PIPELINE_CUH

#include <bellpush/impl/slots.cuh>

namespace bp {

namespace detail {

struct pipeline_words {
  uint32_t granted;     // chunks that may be written
  uint32_t stop;        // nothing more is granted
  uint32_t status;      // why
  uint32_t filled[32];  // chunks that each warp has filled
};
static_assert(sizeof(pipeline_words) <= block_scratch_bytes, "the scratch memory holds them");

struct pipeline {
  uint64_t first;      // ticket of the first chunk
  uint32_t chunks;
  uint32_t capacity;
  uint64_t remote, src, bytes;
  bool signals;        // the last chunk asks for a CQE
  bool rings;          // for the last chunk too
};

// Grants chunks as completions come, until all are, or nothing comes any more.
template <class P>
BP_DEV void grant(const bp_qp& qp, pipeline_words* words, const pipeline& p, cq_cursor* cursor) {
  const uint64_t limit = ticket_limit<P>(qp, true);
  uint32_t granted = words->granted;
  bp_status_code s = BP_OK;
  for (deadline patience; granted < p.chunks;) {
    const found f = take_cqe<P>(qp, cursor, p.first + granted + 1 - limit);
    if (f == found::error) {
      s = BP_CQE_ERROR;
      break;
    }
    const uint64_t room = cursor->done + limit - p.first;
    if (f == found::cqe && room > granted) {
      granted = room < p.chunks ? (uint32_t)room : p.chunks;
      st_shared(&words->granted, granted);
      patience = deadline{};
      continue;
    }
    if (patience.expired(qp.timeout_ns)) {
      s = BP_TIMEOUT;
      break;
    }
    yield_();
  }
  words->status = s;
  if (s != BP_OK) st_shared(&words->stop, 1u);
}

// Whether chunk `c` may be written, as soon as that is known. By a whole warp.
BP_DEV bool is_granted(const pipeline_words* words, uint32_t c) {
  uint64_t may = 0;
  if (lane() == 0) {
    for (;;) {
      const bool stopped = ld_shared(&words->stop) != 0;  // before the look at what was granted until then
      may = ld_shared(&words->granted) > c;
      if (may || stopped) break;
      yield_();
    }
  }
  return warp_broadcast(may) != 0;
}

template <class P>
BP_DEV void fill_chunks(const bp_endpoint& ep, pipeline_words* words, const pipeline& p, uint32_t writer,
                        uint32_t writers) {
  const bp_qp& qp = ep.qp;
  const warp_scope scope;
  uint32_t filled = 0;
  for (uint32_t c = writer; c < p.chunks && is_granted(words, c); c += writers) {
    const uint64_t at = (uint64_t)c * p.capacity, ticket = p.first + c;
    wqe w = make_wqe(BP_OP_RDMA_WRITE, 3, p.remote + at, ep.remote_rkey);
    w.bytes = (uint32_t)(p.bytes - at < p.capacity ? p.bytes - at : p.capacity);
    if ((p.signals && c == p.chunks - 1) || ((ticket + 1) & (qp.credit_period - 1)) == 0) {
      w.fm_ce_se |= BP_CTRL_CQ_UPDATE;
    }
    u128 early = unit_zero();
    if constexpr (P::inband) early = early_payload<P::line_v>(scope, p.src + at, w.bytes);
    fill_slot<P>(qp, scope, w, p.src + at, ticket, early);
    if constexpr (!P::inband) {
      syncwarp();  // all lanes' stores before the fence
      filled++;
      if (lane() == 0) {
        fence_before_doorbell<P::reach_v>();
        st_shared(&words->filled[writer], filled);
      }
    }
  }
}

// Rings for chunks that are filled without a gap; returns how many were rung for.
template <class P>
BP_DEV uint32_t ring_chunks(const bp_qp& qp, pipeline_words* words, const pipeline& p, uint32_t writers) {
  uint32_t filled = 0, rung = 0;
  for (uint32_t last = p.chunks; filled < last;) {
    if (ld_shared(&words->stop) != 0) last = ld_shared(&words->granted);
    uint32_t next = p.chunks;
    for (uint32_t w = 0; w < writers; w++) {
      const uint32_t first_open = w + ld_shared(&words->filled[w]) * writers;
      next = next < first_open ? next : first_open;
    }
    if (next == filled) {
      yield_();
      continue;
    }
    filled = next;
    if (filled == p.chunks && !p.rings) break;
    rung = filled;
    tell<P>(qp, p.first + rung);
  }
  return rung;
}

// Whether it is worth it: a warp that grants, one that rings, and two that write at least; several chunks for each of
// those, and slots for them.
constexpr uint32_t pipeline_chunks = 8;
BP_DEV bool fits_pipeline(const bp_qp& qp, uint64_t bytes, uint32_t capacity) {
  return block_threads() % 32 == 0 && block_threads() >= 128 && qp.slot_limit >= pipeline_chunks &&
         bytes > (uint64_t)capacity * pipeline_chunks;
}

// Sends a part of a message. All threads of the block call it.
template <class P>
BP_DEV bp_status_code put_part(const bp_endpoint& ep, uint32_t capacity, uint64_t remote, uint64_t src,
                               uint64_t bytes, uint32_t flags, uint64_t* end) {
  static_assert(!P::shared, "tickets are taken as slots are granted");
  const bp_qp& qp = ep.qp;
  const block_scope scope;
  pipeline_words* words = reinterpret_cast<pipeline_words*>(block_scratch());
  const room r = load_room<P>(qp);
  const uint64_t free = r.done + ticket_limit<P>(qp, true) - r.next;
  const uint64_t chunks = (bytes + capacity - 1) / capacity;
  const pipeline p = {r.next, (uint32_t)chunks, capacity, remote, src, bytes, !(flags & unsignalled),
                      !(flags & defer_ring)};
  scope.sync();  // all have read the state, and nobody uses the scratch memory any more
  if (tid() < 32) words->filled[tid()] = 0;
  if (tid() == 0) {
    words->granted = free < chunks ? (uint32_t)free : p.chunks;
    words->stop = r.error != BP_OK;
    words->status = r.error != BP_OK ? BP_DEAD : BP_OK;
    if (r.error != BP_OK) words->granted = 0;
    // WQEs that another verb has not rung for come before ours.
    if (r.error == BP_OK) ring_pending<P>(qp);
  }
  scope.sync();
  cq_cursor cursor = {};
  uint32_t rung = 0;
  constexpr uint32_t leaders = P::inband ? 1 : 2;
  const uint32_t warp = tid() / 32, writers = block_threads() / 32 - leaders;
  if (warp >= leaders) {
    fill_chunks<P>(ep, words, p, warp - leaders, writers);
  } else if (tid() == 0) {
    cursor = load_cursor<P>(qp);
    if (words->stop == 0) grant<P>(qp, words, p, &cursor);
  } else if (tid() == 32) {
    if constexpr (!P::inband) rung = ring_chunks<P>(qp, words, p, writers);
  }
  if constexpr (!P::inband) rung = (uint32_t)block_broadcast_u64(rung, 32);
  scope.sync();
  const uint32_t posted = words->granted;
  const bp_status_code status = (bp_status_code)words->status;
  scope.sync();  // all have read the words
  if (end) *end = p.first + posted;
  if (tid() == 0 && posted != 0) {
    const uint64_t after = p.first + posted;
    store_cursor<P>(qp, &cursor);
    take<P>(qp, p.first, posted, cursor.done, r.most, true);
    const uint64_t top = posted == p.chunks && p.signals ? after : last_credit_end(qp, p.first, posted);
    if (top > p.first) note_signalled<P>(qp, top);
    if constexpr (!P::inband) {
      mark_exclusive<P>(qp, p.first, posted, 1, r.marked);
      if (rung != 0) store_state<P>(&state_of(qp)->rung, p.first + rung);
    }
  }
  if (tid() == 0 && status == BP_CQE_ERROR) fail_by_cqe<P>(qp, cursor);
  scope.sync();  // the state before any thread's next verb
  return status;
}

// Sends a message of several slots, so many windows at a time: what a warp waits for others is bounded by that.
constexpr uint32_t part_windows = 64;
template <class P>
BP_DEV_COLD bp_status_code put_pipeline(const bp_endpoint& ep, uint32_t capacity, uint64_t remote, uint64_t src,
                                        uint64_t bytes, uint32_t flags, uint64_t* end) {
  const uint64_t most = (uint64_t)capacity * ep.qp.slot_limit * part_windows;
  for (; bytes > most; bytes -= most, remote += most, src += most) {
    const bp_status_code s = put_part<P>(ep, capacity, remote, src, most, unsignalled, end);
    if (s != BP_OK) return s;
  }
  return put_part<P>(ep, capacity, remote, src, bytes, flags, end);
}

}  // namespace detail

}  // namespace bp

#endif
