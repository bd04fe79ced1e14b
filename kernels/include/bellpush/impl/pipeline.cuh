// A long in-band message by a block through the few slots of an exclusive queue pair, as a pipeline: nobody waits for a
// whole batch.
//
// One thread takes completions and grants slots by them. The other warps fill slots, dealt round in order, as far as
// they are granted. `granted` lies in the block's scratch memory: the NIC has read a slot before the CQE that the
// granting thread saw, and no GPU stores before the branch on `granted` is decided.
//
// A doorbell path gains nothing by this: each chunk's fence, and the words by which its warp tells the one that rings,
// cost what the waits of a batch do, and an engine that carries out together what one doorbell covers finds less of it
// (docs/results/long-messages.md).
#ifndef BELLPUSH_IMPL_PIPELINE_CUH
#define BELLPUSH_IMPL_PIPELINE_CUH

#include <bellpush/impl/slots.cuh>

namespace bp {

namespace detail {

struct pipeline_words {
  uint32_t granted;  // chunks that may be written
  uint32_t stop;     // nothing more is granted
  uint32_t status;   // why
};
static_assert(sizeof(pipeline_words) <= block_scratch_bytes, "the scratch memory holds them");

struct pipeline {
  uint64_t first;  // ticket of the first chunk
  uint32_t chunks;
  uint32_t capacity;
  uint64_t remote, src, bytes;
  bool signals;    // the last chunk asks for a CQE
};

// Grants chunks as completions come, until all are, or nothing comes any more.
template <class P>
BP_DEV void grant(const bp_qp& qp, pipeline_words* words, const pipeline& p, cq_cursor* cursor) {
  const uint64_t limit = ticket_limit<P>(qp, true);
  uint32_t granted = words->granted;
  bp_status_code s = BP_OK;
  for (deadline patience; granted < p.chunks;) {
    const found f = take_cqes<P>(qp, cursor, p.first + p.chunks - limit);
    if (f == found::error) {
      s = BP_CQE_ERROR;
      break;
    }
    report_cqes<P>(qp, cursor);  // a part may have more CQEs than the CQ has entries
    const uint64_t room = cursor->done + limit - p.first;
    if (f == found::cqe && room > granted) {
      granted = room < p.chunks ? (uint32_t)room : p.chunks;
      post_shared(&words->granted, granted);
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
  if (s != BP_OK) post_shared(&words->stop, 1u);
}

// Whether chunk `c` may be written, as soon as that is known. By a whole warp.
BP_DEV bool is_granted(pipeline_words* words, uint32_t c) {
  uint64_t may = 0;
  if (lane() == 0) {
    for (;;) {
      const bool stopped = poll_shared(&words->stop) != 0;  // before the look at what was granted until then
      may = poll_shared(&words->granted) > c;
      if (may || stopped) break;
      yield_();
    }
  }
  return warp_broadcast(may) != 0;
}

// Units of a slot that each lane of a warp has loaded before the slot is granted: the loads take as long as the grant.
constexpr uint32_t units_ahead = 8;

// Writes a slot's lines from what was loaded: unit `lane + k * 32` of its stream is `v[k]`. By a whole warp.
template <line L>
BP_DEV void write_ahead(const bp_qp& qp, const wqe& w, uint64_t ticket, const u128 (&v)[units_ahead]) {
  using F = line_format<L>;
  const bp_window& win = qp.window;
  const slot_header<true> header(w, ticket, qp.qpn);
  const window_place place = place_of(win, ticket);
  const uint32_t seq = inband_sequence<L>(win, place.lap);
  const uint32_t used = (inband_header_bytes + w.bytes + F::data - 1) / F::data;
  const uint32_t n = used * line_units<L>;
  u128* slot = reinterpret_cast<u128*>(win.va + (uint64_t)place.slot * win.slot_bytes);
  if (seq <= scrub_laps) scrub_lines<L>(slot, warp_scope{}, n, win.slot_bytes / F::bytes * line_units<L>);
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (uint32_t k = 0; k < units_ahead; k++) {
    const uint32_t i = k * 32 + lane();
    if (k * 32 >= n) break;  // for all lanes
    u128 unit = v[k];
    if (k == 0) header.template over<L>(&unit, i);
    st_line_unit<L>(slot, i, unit_line<L>(unit, i, seq), i < n);
  }
}

template <class P>
BP_DEV void fill_chunks(const located<bp_endpoint>& ep, pipeline_words* words, const pipeline& p, uint32_t writer,
                        uint32_t writers) {
  const bp_qp& qp = ep.qp;
  const warp_scope scope;
  const bool fits = qp.window.slot_bytes <= units_ahead * 32 * sizeof(u128);
  for (uint32_t c = writer; c < p.chunks; c += writers) {
    const uint64_t at = (uint64_t)c * p.capacity, ticket = p.first + c, src = p.src + at;
    wqe w = wqe_to_peer(ep, BP_OP_RDMA_WRITE, 3, p.remote + at);
    w.bytes = (uint32_t)(p.bytes - at < p.capacity ? p.bytes - at : p.capacity);
    const bool is_ahead = fits && whole_words(src, w.bytes);
    u128 ahead[units_ahead];
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t k = 0; k < units_ahead; k++) {
      ahead[k] = unit_payload<P::line_v, true>(src, is_ahead ? w.bytes : 0, k * 32 + lane());
    }
    if (!is_granted(words, c)) break;
    if ((p.signals && c == p.chunks - 1) || ((ticket + 1) & (qp.credit_period - 1)) == 0) {
      w.fm_ce_se |= BP_CTRL_CQ_UPDATE;
    }
    if (is_ahead) {
      write_ahead<P::line_v>(qp, w, ticket, ahead);
    } else {
      fill_slot<P>(qp, scope, w, src, ticket, early_payload<P::line_v>(scope, src, w.bytes));
    }
  }
}

// Whether it is worth it: a warp that grants, and three that write at least; several chunks for each of those. Where
// the window has more slots than two batches, batches overlap as they are.
constexpr uint32_t pipeline_chunks = 8, pipeline_slots = 64;
BP_DEV bool fits_pipeline(const bp_qp& qp, uint64_t bytes, uint32_t capacity) {
  return block_threads() % 32 == 0 && block_threads() >= 128 && qp.slot_limit >= pipeline_chunks &&
         qp.slot_limit < pipeline_slots && bytes > (uint64_t)capacity * pipeline_chunks;
}

// Sends a part of a message. All threads of the block call it.
template <class P>
BP_DEV bp_status_code put_part(const located<bp_endpoint>& ep, uint32_t capacity, uint64_t remote, uint64_t src,
                               uint64_t bytes, uint32_t flags, uint64_t* end) {
  static_assert(P::inband && !P::shared, "no doorbell is rung, and tickets are taken as slots are granted");
  const bp_qp& qp = ep.qp;
  const block_scope scope;
  pipeline_words* words = reinterpret_cast<pipeline_words*>(block_scratch());
  const room r = load_room<P>(qp);
  const uint64_t free = r.done + ticket_limit<P>(qp, true) - r.next;
  const uint32_t chunks = (uint32_t)((bytes + capacity - 1) / capacity);
  const pipeline p = {r.next, chunks, capacity, remote, src, bytes, !(flags & unsignalled)};
  scope.sync();  // all have read the state, and nobody uses the scratch memory any more
  if (tid() == 0) {
    const bool lives = r.error == BP_OK;
    words->granted = !lives ? 0 : free < chunks ? (uint32_t)free : chunks;
    words->stop = !lives;
    words->status = lives ? BP_OK : BP_DEAD;
  }
  scope.sync();
  cq_cursor cursor = {};
  if (tid() >= 32) {
    fill_chunks<P>(ep, words, p, tid() / 32 - 1, block_threads() / 32 - 1);
  } else if (tid() == 0) {
    cursor = load_cursor<P>(qp);
    if (words->stop == 0) grant<P>(qp, words, p, &cursor);
  }
  scope.sync();  // all slots are written, and all have read the source
  const uint32_t posted = words->granted;
  const bp_status_code status = (bp_status_code)words->status;
  if (end) *end = p.first + posted;
  // Also where nothing was posted: what was taken before an error is complete.
  if (tid() == 0 && r.error == BP_OK) store_cursor<P>(qp, &cursor);
  if (tid() == 0 && posted != 0) {
    const uint64_t after = p.first + posted;
    take<P>(qp, p.first, posted, cursor.done, r.most, true);
    const uint64_t top = posted == chunks && p.signals ? after : last_credit_end(qp, p.first, posted);
    if (top > p.first) note_signalled<P>(qp, top);
  }
  if (tid() == 0 && status == BP_CQE_ERROR) fail_by_cqe<P>(qp, cursor);
  scope.sync();  // words and state before any thread's next verb
  return status;
}

// Sends a message of several slots, so many windows at a time: what a warp waits for others is bounded by that.
constexpr uint32_t part_windows = 64;
template <class P>
BP_DEV_COLD bp_status_code put_pipeline(located<bp_endpoint> ep, uint32_t capacity, uint64_t remote, uint64_t src,
                                        uint64_t bytes, uint32_t flags, uint64_t* end) {
  const uint64_t most = (uint64_t)capacity * ep.qp.slot_limit * part_windows;
  for (; bytes > most; bytes -= most, remote += most, src += most) {
    const bp_status_code s = put_part<P>(ep, capacity, remote, src, most, unsignalled, end);
    if (s != BP_OK) return s;
  }
  return put_part<P>(ep, capacity, remote, src, bytes, flags, end);
}

// Sends a message through window slots.
template <class P, class Scope>
BP_DEV bp_status_code put_window(const located<bp_endpoint>& ep, Scope scope, uint64_t remote, uint64_t src,
                                 uint64_t bytes, uint32_t flags, uint64_t* end) {
  if (!can_write_lines<P>(scope)) return BP_INVALID;
  const bp_window& win = ep.qp.window;
  uint32_t capacity, least = 0;
  if constexpr (P::inband) {
    capacity = inband_capacity<P::line_v>(win);
    least = least_capacity<P::line_v>;
  } else {
    capacity = win.slot_bytes;
  }
  if (bytes <= least || bytes <= capacity) {
    return in_turn<P>(scope, [&] { return put_slot<P>(ep, scope, remote, src, (uint32_t)bytes, flags, end); });
  }
  if constexpr (P::inband && !P::shared && is_block_scope<Scope>) {
    if (fits_pipeline(ep.qp, bytes, capacity)) {
      return put_pipeline<P>(late_copy(ep), capacity, remote, src, bytes, flags, end);
    }
  }
  return in_turn<P>(scope, [&] {
    return put_slots<P>(late_copy(ep), scope, capacity, remote, src, bytes, flags, end);
  });
}

}  // namespace detail

}  // namespace bp

#endif
