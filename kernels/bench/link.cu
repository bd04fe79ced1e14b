// Entry points of `bellpush link`: what stores, loads, fences and flags cost between this GPU and
// memory elsewhere. Every loop is bounded by a count and by a time.
#include <bellpush/impl/order.cuh>
#include "collective/reduce.cuh"
#include "args.h"

namespace {

BP_DEV bp_link_result* result_of_block(uint64_t results) {
  return reinterpret_cast<bp_link_result*>(results) + bp::bid();
}

BP_DEV void store(uint32_t* p, uint32_t v) { bp::st_relaxed_sys(p, v); }
BP_DEV void store(uint64_t* p, uint32_t v) { bp::st_relaxed_sys(p, (uint64_t)v << 32 | v); }
BP_DEV void store(bp::u128* p, uint32_t v) { bp::st_line(p, bp::u128{{v, v, v, v}}); }

BP_DEV uint32_t load(const uint32_t* p) { return bp::ld_relaxed_sys(p); }
BP_DEV uint64_t load(const uint64_t* p) { return bp::ld_relaxed_sys(p); }
BP_DEV bp::u128 load(const bp::u128* p) { return bp::ld_line(p); }

BP_DEV uint64_t words(uint32_t v) { return v; }
BP_DEV uint64_t words(uint64_t v) { return (v & 0xffffffffu) + (v >> 32); }
BP_DEV uint64_t words(const bp::u128& v) {
  return (uint64_t)v.w[0] + v.w[1] + v.w[2] + v.w[3];
}

template <class Word>
BP_DEV Word* at(const bp_link_move_args& a, uint32_t lap, uint64_t i) {
  return reinterpret_cast<Word*>(a.target + (uint64_t)lap * a.lap_bytes + i * a.stride_bytes);
}

template <class Word>
BP_DEV void store_lap(const bp_link_move_args& a, uint32_t lap, uint64_t first, uint64_t step) {
  for (uint64_t i = first; i < a.accesses; i += step) store(at<Word>(a, lap, i), a.value);
}

// Four loads of a thread are in flight at a time, in the last round as well: the model of `bellpush
// link` counts on it. So all are issued before the first value is used.
template <class Word>
BP_DEV uint64_t load_lap(const bp_link_move_args& a, uint32_t lap, uint64_t first,
                         uint64_t step) {
  uint64_t sum = 0;
  for (uint64_t i = first; i < a.accesses; i += 4 * step) {
    Word v0 = load(at<const Word>(a, lap, i)), v1{}, v2{}, v3{};
    if (i + step < a.accesses) v1 = load(at<const Word>(a, lap, i + step));
    if (i + 2 * step < a.accesses) v2 = load(at<const Word>(a, lap, i + 2 * step));
    if (i + 3 * step < a.accesses) v3 = load(at<const Word>(a, lap, i + 3 * step));
    sum += words(v0) + words(v1) + words(v2) + words(v3);
  }
  return sum;
}

BP_DEV void end_lap(uint32_t how) {
  if (how == BP_LINK_RUN_ON) return;
  bp::syncthreads();
  if (how == BP_LINK_BARRIER) return;
  // What the block stored, which the barrier has put before the leader's fence, before whatever
  // the block does next, for every observer of that scope.
  if (bp::tid() == 0) {
    if (how == BP_LINK_FENCE_GPU) {
      bp::fence_gpu();
    } else {
      bp::fence_sys();
    }
  }
  bp::syncthreads();
}

// Laps of `body(lap, first, step)`, which returns the sum of what it loaded.
template <class Body>
BP_DEV void laps(const bp_link_move_args& a, Body body) {
  bp_link_result* result = result_of_block(a.results);
  const uint64_t first = (uint64_t)bp::bid() * bp::block_threads() + bp::tid();
  const uint64_t step = (uint64_t)bp::grid_blocks() * bp::block_threads();
  bp::syncthreads();
  const uint64_t start_ns = bp::now_ns();
  uint64_t sum = 0;
  uint32_t lap = 0;
  bp_status_code status = BP_OK;
  for (; lap < a.laps; lap++) {
    // Asked now and then, because asking is a barrier; all threads get the leader's answer.
    if ((lap & 63) == 63 && bp::block_broadcast_u64(bp::now_ns() - start_ns > a.limit_ns, 0)) {
      status = BP_TIMEOUT;
      break;
    }
    sum += body(lap, first, step);
    // The branch makes the lap wait for its loads; no memory is filled so that it is taken.
    if (sum == ~0ull) bp::trap("a sum of words that were never stored");
    end_lap(a.each_lap);
  }
  bp::syncthreads();
  if (bp::tid() == 0) {
    bp::fence_sys();  // the block's last store has arrived before the clock is read
    result->status = status;
    result->laps = lap;
    result->start_ns = start_ns;
    result->end_ns = bp::now_ns();
  }
  bp::atomic_add(&result->sum, sum);
}

BP_DEV uint32_t word_at(uint64_t from, uint64_t i, uint64_t count) {
  return i < count ? reinterpret_cast<const uint32_t*>(from)[i] : 0;
}

// The other side's unit, once it has come.
BP_DEV bool await_unit(const bp::u128* at, uint32_t flag, uint64_t limit_ns, bp::u128* v) {
  bp::deadline limit;
  for (;;) {
    *v = bp::ld_line(at);
    if (v->w[3] == flag) return true;
    if (limit.expired(limit_ns)) return false;
    bp::yield_();
  }
}

}  // namespace

BP_KERNEL(bp_link_store, bp_link_move_args) {
  laps(args, [&](uint32_t lap, uint64_t first, uint64_t step) -> uint64_t {
    if (args.access_bytes == 16) {
      store_lap<bp::u128>(args, lap, first, step);
    } else if (args.access_bytes == 8) {
      store_lap<uint64_t>(args, lap, first, step);
    } else {
      store_lap<uint32_t>(args, lap, first, step);
    }
    return 0;
  });
}

BP_KERNEL(bp_link_load, bp_link_move_args) {
  laps(args, [&](uint32_t lap, uint64_t first, uint64_t step) {
    if (args.access_bytes == 16) return load_lap<bp::u128>(args, lap, first, step);
    if (args.access_bytes == 8) return load_lap<uint64_t>(args, lap, first, step);
    return load_lap<uint32_t>(args, lap, first, step);
  });
}

BP_KERNEL(bp_link_chase, bp_link_chase_args) {
  if (bp::tid() != 0 || bp::bid() != 0) return;
  bp_link_result* result = result_of_block(args.results);
  const uint64_t mask = (args.span_bytes - 1) & ~7ull;
  const uint64_t start_ns = bp::now_ns();
  uint64_t offset = 0;
  uint32_t n = 0;
  bp_status_code status = BP_OK;
  for (; n < args.count; n++) {
    if ((n & 63) == 63 && bp::now_ns() - start_ns > args.limit_ns) {
      status = BP_TIMEOUT;
      break;
    }
    // The next address needs this value.
    const uint64_t v = bp::ld_relaxed_sys(reinterpret_cast<const uint64_t*>(args.target + offset));
    offset = (offset + args.stride_bytes + v) & mask;
  }
  result->status = status;
  result->laps = n;
  result->start_ns = start_ns;
  result->end_ns = bp::now_ns();
  result->sum = offset;
}

BP_KERNEL(bp_link_flag, bp_link_flag_args) {
  if (bp::tid() != 0 || bp::bid() != 0) return;
  bp_link_result* result = result_of_block(args.results);
  uint64_t* out = reinterpret_cast<uint64_t*>(args.store_at);
  const uint64_t* in = reinterpret_cast<const uint64_t*>(args.watch_at);
  const uint64_t start_ns = bp::now_ns();
  bp_status_code status = BP_OK;
  uint32_t n = 0;
  for (; n < args.rounds && status == BP_OK; n++) {
    const uint64_t round = n + 1;
    if (!args.answers) bp::st_relaxed_sys(out, round);
    bp::deadline deadline;
    while (bp::ld_relaxed_sys(in) < round) {
      bp::yield_();
      if (deadline.expired(args.limit_ns)) {
        status = BP_TIMEOUT;
        break;
      }
    }
    if (args.answers && status == BP_OK) bp::st_relaxed_sys(out, round);
  }
  result->status = status;
  result->laps = status == BP_OK ? n : n - 1;
  result->start_ns = start_ns;
  result->end_ns = bp::now_ns();
}

// Slots take turns: whoever makes call n + 1 has everyone's n, so everyone had all of n - 1.
BP_KERNEL(bp_link_exchange, bp_link_exchange_args) {
  bp::await_kernel_before();
  bp::release_kernel_behind();
  bp_link_exchange_state* st = reinterpret_cast<bp_link_exchange_state*>(args.state);
  if (bp::block_broadcast_u64(bp::ld_relaxed_gpu(&st->status), 0) != BP_OK) return;
  const uint64_t call = bp::ld_relaxed_gpu(&st->calls), slot = call % 2 * args.most;
  const uint32_t units = (args.count + 2) / 3, flag = (uint32_t)call + 1;
  const uint32_t first = bp::bid() * bp::block_threads() + bp::tid();
  const uint32_t step = bp::grid_blocks() * bp::block_threads();
  bp::u128* send = reinterpret_cast<bp::u128*>(args.send) + slot;
  const auto own = [&](uint32_t u) {
    return bp::u128{{word_at(args.in, 3 * u, args.count), word_at(args.in, 3 * u + 1, args.count),
                     word_at(args.in, 3 * u + 2, args.count), flag}};
  };
  for (uint32_t u = first; u < units; u += step) bp::st_line(send + u, own(u));
  for (uint32_t u = first; u < units; u += step) {
    float sum[3] = {};
    // In the order of ranks, so that all have the same bits.
    for (uint32_t r = 0; r < args.ranks; r++) {
      bp::u128 v = own(u);
      const bp::u128* at = reinterpret_cast<const bp::u128*>(args.receive) + 2 * args.most * (uint64_t)r + slot + u;
      if (r != args.rank && !await_unit(at, flag, args.limit_ns, &v)) {
        bp::st_relaxed_gpu(&st->status, (uint64_t)BP_TIMEOUT);
        break;
      }
      for (uint32_t i = 0; i < 3; i++) {
        sum[i] = r == 0 ? bp::coll::bits_as<float>(v.w[i]) : sum[i] + bp::coll::bits_as<float>(v.w[i]);
      }
    }
    for (uint32_t i = 0; i < 3; i++) {
      if (3 * u + i < args.count) reinterpret_cast<float*>(args.out)[3 * u + i] = sum[i];
    }
  }
  bp::syncthreads();
  if (bp::tid() != 0 || bp::atomic_add(&st->ended, 1) + 1 != bp::grid_blocks()) return;
  bp::st_relaxed_gpu(&st->ended, uint64_t{0});
  bp::st_relaxed_gpu(&st->calls, call + 1);
}
