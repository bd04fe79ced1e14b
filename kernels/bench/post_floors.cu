// The stores and fences of a post alone, beside which `bellpush bench --post` shows the verbs.
// No ticket, no credit and no state: a WQE's index follows from the loop.
#include "post.cuh"

namespace {

using namespace post;
using bp::order;
using bp::reach;

// What comes between a WQE and its doorbell.
enum class fence {
  none,           // nothing: not correct, but a bound for all that is
  gpu,            // a fence of gpu scope, then record and doorbell
  system,         // a fence of system scope
  gpu_strict,     // record and doorbell have another between them
  system_strict,
};

template <fence F>
BP_DEV void ring(const bp_qp& qp, uint64_t end) {
  constexpr bool is_system = F == fence::system || F == fence::system_strict;
  constexpr bool is_strict = F == fence::gpu_strict || F == fence::system_strict;
  constexpr reach R = is_system ? reach::system : reach::gpu;
  constexpr order O = is_strict ? order::strict : order::later;
  // The WQE before record and doorbell, for whoever reads it behind them.
  if constexpr (F != fence::none) bp::fence_before_doorbell<R>();
  bp::tell<bp::path<bp::data::pull, bp::kick::kernel, bp::share::exclusive, R, O>>(qp, end);
}

BP_DEV bp::wqe wqe_of(const bp_post_args& a, const bp_endpoint& ep, uint32_t message, uint32_t bytes) {
  bp::wqe w = bp::make_wqe(BP_OP_RDMA_WRITE, 3, ep.remote_iova + remote_of(message), ep.remote_rkey);
  w.fm_ce_se = BP_CTRL_CQ_UPDATE;
  w.bytes = bytes;
  w.gather = source_of(a, message);
  w.lkey = ep.local_lkey;
  return w;
}

// Unit `u` of the WQE of message `index`, which is also the WQE's place.
BP_DEV void store_unit(const bp_post_args& a, const bp_endpoint& ep, uint32_t index, uint32_t u) {
  bp::st_unit(bp::sq_unit(ep.qp, index, u), bp::wqe_unit<false>(wqe_of(a, ep, index, put_bytes), u, index, ep.qp.qpn));
}
BP_DEV void store_wqe(const bp_post_args& a, const bp_endpoint& ep, uint32_t index) {
  const bp::wqe w = wqe_of(a, ep, index, put_bytes);
  bp::u128* block = bp::sq_unit(ep.qp, index, 0);
  for (uint32_t u = 0; u < w.ds; u++) bp::st_unit(block + u, bp::wqe_unit<false>(w, u, index, ep.qp.qpn));
}

template <class Body>
BP_DEV void bare(const bp_post_args& a, Body body) {
  const bp_endpoint ep = endpoint_of(a);
  timed(a, [&](uint32_t i) {
    body(ep, i);
    return BP_OK;
  });
}

// A WQE and a ring by one thread a queue pair.
template <fence F>
BP_DEV void by_thread(const bp_post_args& a) {
  bare(a, [&](const bp_endpoint& ep, uint32_t i) {
    store_wqe(a, ep, i);
    ring<F>(ep.qp, i + 1);
  });
}

// The same with 64 bytes on their way through a slot: loaded, stored, and gathered from there.
template <fence F>
BP_DEV void by_pushes(const bp_post_args& a) {
  bare(a, [&](const bp_endpoint& ep, uint32_t i) {
    bp::wqe w = wqe_of(a, ep, i, put_bytes);
    const bp::u128* from = reinterpret_cast<const bp::u128*>(w.gather);
    const uint64_t slot = (uint64_t)i * ep.qp.window.slot_bytes;
    bp::u128* to = reinterpret_cast<bp::u128*>(ep.qp.window.va + slot);
    for (uint32_t u = 0; u < put_bytes / 16; u++) to[u] = from[u];
    w.gather = ep.qp.window.gather_base + slot;
    w.lkey = ep.qp.window.lkey;
    bp::u128* block = bp::sq_unit(ep.qp, i, 0);
    for (uint32_t u = 0; u < w.ds; u++) bp::st_unit(block + u, bp::wqe_unit<false>(w, u, i, ep.qp.qpn));
    ring<F>(ep.qp, i + 1);
  });
}

// A WQE and a ring by one thread where the index comes from a counter in memory, and what is known to the NIC goes into another: what a verb
// has to do that is called by nobody who counts for it.
template <fence F>
BP_DEV void by_counters(const bp_post_args& a) {
  bare(a, [&](const bp_endpoint& ep, uint32_t) {
    bp_qp_state* state = bp::state_of(ep.qp);
    const uint64_t index = bp::ld_weak(&state->reserved);
    store_wqe(a, ep, (uint32_t)index);
    bp::st_weak(&state->reserved, index + 1);
    ring<F>(ep.qp, index + 1);
    bp::st_weak(&state->rung, index + 1);
  });
}

// The same by one of several callers, as if no other came: a ticket, and the word by which one of them rings, asked for
// while the fence waits; it is given back behind the doorbell.
template <fence F>
BP_DEV void by_ticket(const bp_post_args& a) {
  constexpr reach R = F == fence::system ? reach::system : reach::gpu;
  bare(a, [&](const bp_endpoint& ep, uint32_t) {
    bp_qp_state* state = bp::state_of(ep.qp);
    const uint32_t index = (uint32_t)bp::atomic_add(&state->reserved, 1);
    store_wqe(a, ep, index);
    const uint64_t word = bp::atomic_or(&state->ring, bp::ring_held);
    bp::fence_before_doorbell<R>();  // the WQE before record and doorbell, for the NIC
    if ((word & bp::ring_held) != 0) return;  // one caller: never
    bp::tell<bp::path<bp::data::pull, bp::kick::kernel, bp::share::shared, R>>(ep.qp, index + 1);
    // This doorbell before the next caller's.
    bp::st_release_gpu(&state->ring, (uint64_t)(index + 1) << bp::ring_shift);
  });
}

// The same where a warp takes a ticket for each of its lanes at once, and rings once for them.
template <fence F>
BP_DEV void by_tickets(const bp_post_args& a) {
  constexpr reach R = F == fence::system ? reach::system : reach::gpu;
  const uint32_t lane = bp::lane();
  bare(a, [&](const bp_endpoint& ep, uint32_t) {
    bp_qp_state* state = bp::state_of(ep.qp);
    uint64_t first = 0;
    if (lane == 0) first = bp::atomic_add(&state->reserved, 32);
    first = bp::warp_broadcast(first);
    store_wqe(a, ep, (uint32_t)first + lane);
    bp::syncwarp();
    if (lane == 0) {
      const uint64_t word = bp::atomic_or(&state->ring, bp::ring_held);
      bp::fence_before_doorbell<R>();  // all lanes' WQEs before record and doorbell, for the NIC
      if ((word & bp::ring_held) == 0) {  // one warp: always
        bp::tell<bp::path<bp::data::pull, bp::kick::kernel, bp::share::shared, R>>(ep.qp, first + 32);
        // This doorbell before the next one's.
        bp::st_release_gpu(&state->ring, (first + 32) << bp::ring_shift);
      }
    }
    bp::syncwarp();
  });
}

// A WQE by four lanes of a warp, and a ring by the first.
template <fence F>
BP_DEV void by_lanes(const bp_post_args& a) {
  const uint32_t lane = bp::lane();
  bare(a, [&](const bp_endpoint& ep, uint32_t i) {
    if (lane < 4) store_unit(a, ep, i, lane);
    bp::syncwarp();
    if (lane == 0) ring<F>(ep.qp, i + 1);
    bp::syncwarp();
  });
}

// `post(ep, n)` by all callers of a queue pair, each for numbers of its own: nobody has to ask for a place.
template <class Scope, class Post>
BP_DEV void by_all(const bp_post_args& a, Post post) {
  const caller c = caller_of(a, Scope{});
  const uint32_t callers = a.one_qp ? bp::grid_blocks() * c.in_block : c.in_block;
  bare(a, [&](const bp_endpoint& ep, uint32_t i) { post(ep, i * callers + c.number); });
}
template <fence F>
BP_DEV void wqes_by_all(const bp_post_args& a) {
  by_all<bp::thread_scope>(a, [&](const bp_endpoint& ep, uint32_t index) {
    store_wqe(a, ep, index);
    ring<F>(ep.qp, index + 1);
  });
}

// A batch and its ring by one thread.
template <fence F>
BP_DEV void batch_by_thread(const bp_post_args& a) {
  bare(a, [&](const bp_endpoint& ep, uint32_t i) {
    BP_NO_UNROLL for (uint32_t k = 0; k < batch; k++) store_wqe(a, ep, i * batch + k);
    ring<F>(ep.qp, (i + 1) * batch);
  });
}

// Batches by warps in whole lines, four lanes a WQE, and a ring a batch by each warp's first lane.
template <fence F>
BP_DEV void batches_by_warps(const bp_post_args& a) {
  const uint32_t lane = bp::lane();
  by_all<bp::warp_scope>(a, [&](const bp_endpoint& ep, uint32_t n) {
    for (uint32_t k = 0; k < batch; k += 8) store_unit(a, ep, n * batch + k + lane / 4, lane % 4);
    bp::syncwarp();
    if (lane == 0) ring<F>(ep.qp, (n + 1) * batch);
    bp::syncwarp();
  });
}

// One load, whose value is needed: of a word that a NIC could write, past L1, and of a queue pair's own state.
BP_DEV void by_look(const bp_post_args& a) {
  timed(a, [&](uint32_t i) {
    return bp::ld_relaxed_sys(reinterpret_cast<const uint64_t*>(source_of(a, i))) != 0 ? BP_OK : BP_PENDING;
  });
}
BP_DEV void by_state(const bp_post_args& a) {
  const bp_qp_state* state = bp::state_of(a.ep.qp);
  timed(a, [&](uint32_t) { return bp::ld_weak(&state->done) == 0 ? BP_OK : BP_PENDING; });
}

// An in-band slot of the window's first lap: the four lines of 12 + 4 bytes that 8 bytes take, and no fence.
BP_DEV void store_slot(const bp_post_args& a, const bp_endpoint& ep, uint32_t slot) {
  const bp::wqe w = wqe_of(a, ep, slot, small_bytes);
  const bp::u128 ctrl = bp::unit_ctrl(w, slot, ep.qp.qpn), to = bp::unit_pair(w.raddr, w.rkey);
  const uint32_t* payload = reinterpret_cast<const uint32_t*>(w.gather);
  const uint32_t seq = ep.qp.window.inband_seq0;
  bp::u128* line = reinterpret_cast<bp::u128*>(ep.qp.window.va + (uint64_t)slot * ep.qp.window.slot_bytes);
  bp::st_line(line, {{ctrl.w[0], ctrl.w[1], ctrl.w[2], seq}});
  bp::st_line(line + 1, {{ctrl.w[3], to.w[0], to.w[1], seq}});
  bp::st_line(line + 2, {{to.w[2], to.w[3], bp::be32(BP_INLINE_FLAG | small_bytes), seq}});
  bp::st_line(line + 3, {{payload[0], payload[1], 0, seq}});
}

// The same in the slot of a ticket.
BP_DEV void slot_by_ticket(const bp_post_args& a) {
  bare(a, [&](const bp_endpoint& ep, uint32_t) {
    store_slot(a, ep, (uint32_t)bp::atomic_add(&bp::state_of(ep.qp)->reserved, 1));
  });
}

// And where a warp takes a ticket for each of its lanes at once.
BP_DEV void slots_by_ticket(const bp_post_args& a) {
  const uint32_t lane = bp::lane();
  bare(a, [&](const bp_endpoint& ep, uint32_t) {
    uint64_t first = 0;
    if (lane == 0) first = bp::atomic_add(&bp::state_of(ep.qp)->reserved, 32);
    store_slot(a, ep, (uint32_t)bp::warp_broadcast(first) + lane);
  });
}

}  // namespace

BP_KERNEL(bp_post_floor_thread_none, bp_post_args) { by_thread<fence::none>(args); }
BP_KERNEL(bp_post_floor_thread, bp_post_args) { by_thread<fence::gpu>(args); }
BP_KERNEL(bp_post_floor_thread_strict, bp_post_args) { by_thread<fence::gpu_strict>(args); }
BP_KERNEL(bp_post_floor_thread_system, bp_post_args) { by_thread<fence::system>(args); }
BP_KERNEL(bp_post_floor_thread_system_strict, bp_post_args) { by_thread<fence::system_strict>(args); }
BP_KERNEL(bp_post_floor_push, bp_post_args) { by_pushes<fence::gpu>(args); }
BP_KERNEL(bp_post_floor_push_system, bp_post_args) { by_pushes<fence::system>(args); }
BP_KERNEL(bp_post_floor_counted, bp_post_args) { by_counters<fence::gpu>(args); }
BP_KERNEL(bp_post_floor_counted_system, bp_post_args) { by_counters<fence::system>(args); }
BP_KERNEL(bp_post_floor_ticket, bp_post_args) { by_ticket<fence::gpu>(args); }
BP_KERNEL(bp_post_floor_ticket_system, bp_post_args) { by_ticket<fence::system>(args); }
BP_KERNEL(bp_post_floor_tickets, bp_post_args) { by_tickets<fence::gpu>(args); }
BP_KERNEL(bp_post_floor_ticket_inband, bp_post_args) { slot_by_ticket(args); }
BP_KERNEL(bp_post_floor_tickets_inband, bp_post_args) { slots_by_ticket(args); }
BP_KERNEL(bp_post_floor_lanes, bp_post_args) { by_lanes<fence::gpu>(args); }
BP_KERNEL(bp_post_floor_lanes_system, bp_post_args) { by_lanes<fence::system>(args); }
BP_KERNEL(bp_post_floor_all, bp_post_args) { wqes_by_all<fence::gpu>(args); }
BP_KERNEL(bp_post_floor_batch_thread, bp_post_args) { batch_by_thread<fence::gpu>(args); }
BP_KERNEL(bp_post_floor_batch_warp, bp_post_args) { batches_by_warps<fence::gpu>(args); }
BP_KERNEL(bp_post_floor_batch_warp_system, bp_post_args) { batches_by_warps<fence::system>(args); }
BP_KERNEL(bp_post_floor_inband, bp_post_args) {
  by_all<bp::thread_scope>(args, [&](const bp_endpoint& ep, uint32_t slot) { store_slot(args, ep, slot); });
}

BP_KERNEL(bp_post_floor_look, bp_post_args) { by_look(args); }
BP_KERNEL(bp_post_floor_state, bp_post_args) { by_state(args); }
