// The frame of the kernels that post on plain memory: a common start, the calls, times and statuses.
#ifndef BELLPUSH_BENCH_POST_CUH
#define BELLPUSH_BENCH_POST_CUH

#define BP_MAX_THREADS 128
#include <bellpush/bellpush.cuh>
#include "args.h"

namespace post {

constexpr uint32_t batch = 32;       // puts that one doorbell rings for, in rows of batches
constexpr uint32_t put_bytes = 64;   // of a pull, whose payload stays where it is
constexpr uint32_t messages = BP_POST_REMOTE_BYTES / 64;  // that differ
constexpr uint32_t small_bytes = 8;  // of an inline or in-band put, whose payload travels

BP_DEV uint64_t remote_of(uint32_t message) { return (uint64_t)message * 64 & (BP_POST_REMOTE_BYTES - 1); }
BP_DEV uint64_t source_of(const bp_post_args& a, uint32_t message) {
  return a.src + ((uint64_t)message * 64 & (BP_POST_SRC_BYTES - 1));
}

BP_DEV const bp_endpoint& endpoint_of(const bp_post_args& a) {
  return reinterpret_cast<const bp_endpoint*>(a.endpoints)[a.one_qp ? 0 : bp::bid()];
}

// A block's number of callers of this scope, and the number that this caller has on its queue pair.
struct caller {
  uint32_t in_block, number;
};
template <class Scope>
BP_DEV caller caller_of(const bp_post_args& a, Scope scope) {
  const uint32_t in_block = bp::block_threads() / scope.size();
  return {in_block, (a.one_qp ? bp::bid() * in_block : 0) + bp::tid() / scope.size()};
}

// All blocks begin together: a block waits, within bounds, until all are there.
BP_DEV bp_status_code begin(const bp_post_args& a, bp_post_result* result) {
  bp_status_code s = BP_OK;
  bp::syncthreads();
  if (bp::tid() == 0) {
    uint64_t* arrived = reinterpret_cast<uint64_t*>(a.arrived);
    bp::atomic_add(arrived, 1);
    bp::deadline limit;
    while (s == BP_OK && bp::ld_relaxed_gpu(arrived) < bp::grid_blocks()) {
      if (limit.expired(a.limit_ns)) s = BP_TIMEOUT;
      bp::yield_();
    }
    result->start_ns = bp::now_ns();
  }
  bp::syncthreads();
  return s;
}

// Times `call(i)`, which returns a status, `calls` times by every thread.
template <class Call>
BP_DEV void timed(const bp_post_args& a, Call call) {
  bp_post_result* result = reinterpret_cast<bp_post_result*>(a.results) + bp::bid();
  bp_status_code worst = begin(a, result);
  BP_NO_UNROLL for (uint32_t i = 0; i < a.calls; i++) {
    const bp_status_code s = call(i);
    worst = s > worst ? s : worst;
  }
  bp::syncthreads();
  if (bp::tid() == 0) {
    result->end_ns = bp::now_ns();
    bp::fence_sys();  // the leader's stores, and through the barrier its block's, before the clock, for everybody
    result->drained_ns = bp::now_ns();
  }
  if (worst != BP_OK) bp::atomic_max(&result->status, (uint32_t)worst);
}

}  // namespace post

#endif
