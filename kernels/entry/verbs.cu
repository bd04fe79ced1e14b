// Entry points that call one verb: what the host's Endpoint launches, and what tests drive.
#define BP_MAX_THREADS 512
#include <bellpush/bellpush.cuh>
#include "args.h"
#include "paths.h"

namespace {

BP_CALL put(const bp_op_args& a, Scope scope, uint64_t remote, void* local) {
  return bp::put<P>(a.ep, scope, remote, local, a.bytes, a.flags);
}
BP_CALL put_inline(const bp_op_args& a, Scope scope, uint64_t remote, void* local) {
  return bp::put_inline<P>(a.ep, scope, remote, local, a.bytes, a.flags);
}
BP_CALL put_signal(const bp_op_args& a, Scope scope, uint64_t remote, void* local) {
  return bp::put_signal<P>(a.ep, scope, remote, local, a.bytes, a.signal_offset,
                           bp::signal_add{a.value}, a.flags);
}
BP_CALL put_batch(const bp_op_args& a, Scope scope, uint64_t remote, void* local) {
  if (a.value >> 32 != 0) return BP_INVALID;
  return bp::put_strided<P>(a.ep, scope, (uint32_t)a.value, remote, a.remote_stride, local, a.local_stride, a.bytes,
                            a.flags);
}
BP_CALL put_lanes(const bp_op_args& a, Scope lanes, uint64_t remote, void* local) {
  return bp::put<P>(a.ep, lanes, remote, local, a.bytes + bp::lane() * a.compare, a.flags);
}
BP_CALL get(const bp_op_args& a, Scope scope, uint64_t remote, void* local) {
  return bp::get<P>(a.ep, scope, local, remote, a.bytes, a.flags);
}
BP_CALL fetch_add(const bp_op_args& a, Scope scope, uint64_t remote, void* local) {
  return bp::fetch_add<P>(a.ep, scope, remote, a.value, local, a.flags);
}
BP_CALL compare_swap(const bp_op_args& a, Scope scope, uint64_t remote, void* local) {
  return bp::compare_swap<P>(a.ep, scope, remote, a.compare, a.value, local, a.flags);
}
BP_CALL quiet(const bp_op_args& a, Scope scope) { return bp::quiet<P>(a.ep, scope); }

template <class P, class Scope>
BP_DEV bp_status_code call(const bp_op_args& a, Scope scope, uint64_t call_index) {
  const uint64_t row = call_index * (a.op == BP_VERB_PUT_BATCH ? a.value : 1);
  const uint64_t remote = a.remote_offset + row * a.remote_stride;
  void* local = a.local ? reinterpret_cast<void*>(a.local + row * a.local_stride) : nullptr;
  switch (a.op) {
    case BP_VERB_PUT: return put<P>(a, scope, remote, local);
    case BP_VERB_PUT_INLINE: return put_inline<P>(a, scope, remote, local);
    case BP_VERB_PUT_SIGNAL: return put_signal<P>(a, scope, remote, local);
    case BP_VERB_PUT_BATCH: return put_batch<P>(a, scope, remote, local);
    case BP_VERB_GET: return get<P>(a, scope, remote, local);
    case BP_VERB_FETCH_ADD: return fetch_add<P>(a, scope, remote, local);
    case BP_VERB_COMPARE_SWAP: return compare_swap<P>(a, scope, remote, local);
    case BP_VERB_QUIET: return quiet<P>(a, scope);
    case BP_VERB_TEST: return bp::test<P>(a.ep, scope, a.value);
    case BP_VERB_WAIT_SIGNAL:
      return bp::wait_signal(a.ep, scope, reinterpret_cast<const uint64_t*>(local), a.value);
    default: return BP_INVALID;
  }
}

template <class P, class Scope>
BP_DEV void run(const bp_op_args& a, Scope scope, uint64_t caller) {
  bp_status_code first = BP_OK;
  for (uint32_t n = 0; n < a.count; n++) {
    const bp_status_code s = call<P>(a, scope, caller * a.count + n);
    if (first == BP_OK) first = s;
    if (s != BP_OK && s != BP_PENDING) break;
  }
  if (a.quiet_after && first == BP_OK) first = quiet<P>(a, scope);
  if (scope.rank() == 0) reinterpret_cast<uint32_t*>(a.status)[caller] = first;
}

BP_DEV uint64_t global_thread() { return (uint64_t)bp::bid() * bp::block_threads() + bp::tid(); }

// The lanes of a warp stay together, whatever status one of them gets.
template <class P>
BP_DEV void run_lanes(const bp_op_args& a) {
  const uint64_t thread = global_thread();
  bp_status_code first = BP_OK;
  if constexpr (P::line_v == bp::line::d60s4) {
    first = BP_INVALID;  // four lanes write a line
  } else {
    const bp::lanes_scope lanes{(a.value >> bp::lane() & 1) != 0};
    for (uint32_t n = 0; n < a.count; n++) {
      const uint64_t row = thread * a.count + n;
      void* local = reinterpret_cast<void*>(a.local + row * a.local_stride);
      const bp_status_code s = put_lanes<P>(a, lanes, a.remote_offset + row * a.remote_stride, local);
      if (first == BP_OK) first = s;
    }
    if (a.quiet_after) {
      const bp_status_code s = quiet<P>(a, bp::warp_scope{});
      if (first == BP_OK) first = s;
    }
  }
  reinterpret_cast<uint32_t*>(a.status)[thread] = first;
}

// The host's calls of a stream: behind one that failed none is carried out until the host has heard of it, so that a
// signal says nothing of data that were not posted. A quiet waits for what was.
template <class P>
BP_DEV void run_block(const bp_op_args& a) {
  if (a.op == BP_VERB_PUT_LANES) return run_lanes<P>(a);
  const bp::block_scope block;
  uint32_t* const status = reinterpret_cast<uint32_t*>(a.status) + bp::bid();
  uint32_t* const failed = a.op == BP_VERB_QUIET ? nullptr : reinterpret_cast<uint32_t*>(a.failed);
  if (failed == nullptr) return run<P>(a, block, bp::bid());
  // Relaxed: kernels of a stream are ordered. The barrier: all threads read it before one writes it below.
  const bool is_flushed = bp::ld_relaxed_gpu(failed) != BP_OK;
  block.sync();
  if (is_flushed) {
    if (block.rank() == 0) *status = BP_FLUSHED;
    return;
  }
  run<P>(a, block, bp::bid());
  if (block.rank() == 0 && *status != BP_OK) bp::st_relaxed_gpu(failed, *status);
}

template <class P>
BP_DEV void run_any(const bp_op_args& a) {
  const uint64_t thread = global_thread();
  if (a.op == BP_VERB_PUT_LANES) {
    run_lanes<P>(a);
  } else if (a.scope == BP_SCOPE_BLOCK) {
    run<P>(a, bp::block_scope{}, bp::bid());
  } else if (a.scope == BP_SCOPE_WARP) {
    run<P>(a, bp::warp_scope{}, thread / 32);
  } else {
    run<P>(a, bp::thread_scope{}, thread);
  }
}

}  // namespace

// The host's Endpoint: a block at a time, by every path.
BP_KERNEL(bp_verb_push_kernel, bp_op_args) { run_block<push_kernel>(args); }
BP_KERNEL(bp_verb_push_blueflame, bp_op_args) { run_block<push_blueflame>(args); }
BP_KERNEL(bp_verb_push_inband_12_4, bp_op_args) { run_block<push_inband_12_4>(args); }
BP_KERNEL(bp_verb_push_inband_14_2, bp_op_args) { run_block<push_inband_14_2>(args); }
BP_KERNEL(bp_verb_push_inband_60_4, bp_op_args) { run_block<push_inband_60_4>(args); }
BP_KERNEL(bp_verb_pull_kernel, bp_op_args) { run_block<pull_kernel>(args); }
BP_KERNEL(bp_verb_pull_blueflame, bp_op_args) { run_block<pull_blueflame>(args); }
BP_KERNEL(bp_verb_push_kernel_near, bp_op_args) { run_block<push_kernel_near>(args); }
BP_KERNEL(bp_verb_pull_kernel_near, bp_op_args) { run_block<pull_kernel_near>(args); }
BP_KERNEL(bp_verb_push_kernel_strict, bp_op_args) { run_block<push_kernel_strict>(args); }
BP_KERNEL(bp_verb_push_blueflame_strict, bp_op_args) { run_block<push_blueflame_strict>(args); }
BP_KERNEL(bp_verb_pull_kernel_strict, bp_op_args) { run_block<pull_kernel_strict>(args); }
BP_KERNEL(bp_verb_pull_blueflame_strict, bp_op_args) { run_block<pull_blueflame_strict>(args); }

// Many callers on one queue pair, in every scope.
BP_KERNEL(bp_verb_shared_push_kernel, bp_op_args) { run_any<shared_push_kernel>(args); }
BP_KERNEL(bp_verb_shared_pull_kernel, bp_op_args) { run_any<shared_pull_kernel>(args); }
BP_KERNEL(bp_verb_shared_push_inband_12_4, bp_op_args) { run_any<shared_push_inband>(args); }
