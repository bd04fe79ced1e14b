// Entry points of the verbs that the host's Endpoint does not call: for tests.
#define BP_MAX_THREADS 512
#include <bellpush/bellpush.cuh>
#include "args.h"
#include "paths.h"

namespace {

BP_CALL put_set(const bp_op_args& a, Scope scope, uint64_t remote, const void* local) {
  return bp::put_signal<P>(a.ep, scope, remote, local, a.bytes, a.signal_offset, bp::signal_set{a.value}, a.flags);
}
BP_CALL signal_add(const bp_op_args& a, Scope scope, uint64_t remote) {
  return bp::signal<P>(a.ep, scope, remote, bp::signal_add{a.value}, a.flags);
}
BP_CALL signal_set(const bp_op_args& a, Scope scope, uint64_t remote) {
  return bp::signal<P>(a.ep, scope, remote, bp::signal_set{a.value}, a.flags);
}
struct sixteen_bytes {
  uint64_t low, high;
};
BP_CALL put_value(const bp_op_args& a, Scope scope, uint64_t remote) {
  switch (a.bytes) {
    case 1: return bp::put_value<P>(a.ep, scope, remote, (uint8_t)a.value, a.flags);
    case 2: return bp::put_value<P>(a.ep, scope, remote, (uint16_t)a.value, a.flags);
    case 4: return bp::put_value<P>(a.ep, scope, remote, (uint32_t)a.value, a.flags);
    case 8: return bp::put_value<P>(a.ep, scope, remote, a.value, a.flags);
    case 16: return bp::put_value<P>(a.ep, scope, remote, sixteen_bytes{a.value, a.compare}, a.flags);
    default: return BP_INVALID;
  }
}
BP_CALL put_imm(const bp_op_args& a, Scope scope, uint64_t remote, const void* local) {
  return bp::put_imm<P>(a.ep, scope, remote, local, a.bytes, (uint32_t)a.value, a.flags);
}
BP_CALL signal_imm(const bp_op_args& a, Scope scope, uint64_t remote) {
  return bp::signal<P>(a.ep, scope, remote, bp::signal_imm{(uint32_t)a.value}, a.flags);
}
BP_CALL put_within(const bp_op_args& a, Scope scope, uint64_t remote, const void* local) {
  return bp::put<P>(bp::within(a.ep, a.compare), scope, remote, local, a.bytes, a.flags);
}
BP_CALL wait_within(const bp_op_args& a, Scope scope) {
  return bp::wait<P>(bp::within(a.ep, a.compare), scope, a.value);
}
BP_CALL fence(const bp_op_args& a, Scope scope, const void* other) {
  return bp::fence<P>(scope, a.ep, *static_cast<const bp_endpoint*>(other));
}
BP_CALL count_tickets(const bp_op_args& a, Scope scope, void* local) {
  uint64_t* words = static_cast<uint64_t*>(local);
  const uint64_t done = bp::completed<P>(a.ep, scope);
  if (scope.rank() == scope.size() - 1) words[1] = done;  // every thread is told
  if (scope.rank() == 0) words[0] = bp::posted<P>(a.ep);
  return BP_OK;
}
BP_CALL put_vector(const bp_op_args& a, Scope scope) {
  return bp::put_vector<P>(a.ep, scope, (uint32_t)a.value, reinterpret_cast<const bp::message*>(a.compare), a.flags);
}
BP_CALL quiet(const bp_op_args& a, Scope scope) { return bp::quiet<P>(a.ep, scope); }
BP_CALL wait(const bp_op_args& a, Scope scope, uint64_t end) { return bp::wait<P>(a.ep, scope, end); }
BP_CALL put_by_blocks(const bp_op_args& a, Scope who, uint32_t n, uint64_t* end) {
  const uint64_t remote = a.remote_offset + n * a.remote_stride;
  const void* local = reinterpret_cast<const void*>(a.local + n * a.local_stride);
  if (a.op == BP_VERB_PUT_BLOCKS) return bp::put<P>(a.ep, who, remote, local, a.bytes, a.flags, end);
  const bp::signal_add op{a.value};
  return bp::put_signal<P>(a.ep, who, remote, local, a.bytes, a.signal_offset, op, a.flags, end);
}

template <class P, class Scope>
BP_DEV bp_status_code call(const bp_op_args& a, Scope scope, uint64_t call_index) {
  const uint64_t remote = a.remote_offset + call_index * a.remote_stride;
  void* local = a.local ? reinterpret_cast<void*>(a.local + call_index * a.local_stride) : nullptr;
  switch (a.op) {
    case BP_VERB_PUT_SET: return put_set<P>(a, scope, remote, local);
    case BP_VERB_SIGNAL_ADD: return signal_add<P>(a, scope, remote);
    case BP_VERB_SIGNAL_SET: return signal_set<P>(a, scope, remote);
    case BP_VERB_PUT_VALUE: return put_value<P>(a, scope, remote);
    case BP_VERB_PUT_WITHIN: return put_within<P>(a, scope, remote, local);
    case BP_VERB_WAIT_WITHIN: return wait_within<P>(a, scope);
    case BP_VERB_WAIT_LOCAL: return bp::wait_local<P>(a.ep, scope, a.value);
    case BP_VERB_FENCE: return fence<P>(a, scope, local);
    case BP_VERB_PUT_IMM: return put_imm<P>(a, scope, remote, local);
    case BP_VERB_SIGNAL_IMM: return signal_imm<P>(a, scope, remote);
    case BP_VERB_PUT_VECTOR: return put_vector<P>(a, scope);
    case BP_VERB_COUNT_TICKETS: return count_tickets<P>(a, scope, local);
    default: return BP_INVALID;
  }
}

template <class P, class Scope>
BP_DEV void run(const bp_op_args& a, Scope scope, uint64_t caller) {
  bp_status_code first = BP_OK;
  for (uint32_t n = 0; n < a.count && first == BP_OK; n++) first = call<P>(a, scope, caller * a.count + n);
  if (a.quiet_after && first == BP_OK) first = quiet<P>(a, scope);
  if (scope.rank() == 0) reinterpret_cast<uint32_t*>(a.status)[caller] = first;
}

BP_DEV uint64_t global_thread() { return (uint64_t)bp::bid() * bp::block_threads() + bp::tid(); }

// Calls `f(scope, caller)` in the scope that the host names.
template <class F>
BP_DEV void in_scope(uint32_t scope, F f) {
  if (scope == BP_SCOPE_BLOCK) {
    f(bp::block_scope{}, (uint64_t)bp::bid());
  } else if (scope == BP_SCOPE_WARP) {
    f(bp::warp_scope{}, global_thread() / 32);
  } else {
    f(bp::thread_scope{}, global_thread());
  }
}

template <class P>
BP_DEV void run_block(const bp_op_args& a) {
  run<P>(a, bp::block_scope{}, bp::bid());
}
// The one caller of its queue pair, in the scope that the host names.
template <class P>
BP_DEV void run_alone(const bp_op_args& a) {
  in_scope(a.scope, [&](auto scope, uint64_t caller) { run<P>(a, scope, caller); });
}
// All blocks make each call together; thread 0 of each has a ticket too, and waits for it.
template <class P>
BP_DEV void run_blocks(const bp_op_args& a) {
  auto* state = reinterpret_cast<bp::blocks_state*>(a.compare);
  const bp::blocks_scope who{a.scope + bp::bid(), bp::grid_blocks() + a.others, state};
  bp_status_code first = BP_OK;
  for (uint32_t n = 0; n < a.count && first == BP_OK; n++) {
    uint64_t end = 0;
    first = put_by_blocks<P>(a, who, n, &end);
    if (a.quiet_after && first == BP_OK) first = wait<P>(a, bp::block_scope{}, end);
  }
  if (bp::tid() == 0) reinterpret_cast<uint32_t*>(a.status)[bp::bid()] = first;
}
template <class P>
BP_DEV void run_any(const bp_op_args& a) {
  if (a.op == BP_VERB_PUT_BLOCKS || a.op == BP_VERB_PUT_SIGNAL_BLOCKS) return run_blocks<P>(a);
  run_alone<P>(a);
}

template <bp::cmp C, class Scope>
BP_DEV bp_status_code watch_by(const bp_watch_args& a, Scope scope, uint32_t* found) {
  const uint64_t* words = reinterpret_cast<const uint64_t*>(a.words);
  const uint32_t* skip = reinterpret_cast<const uint32_t*>(a.skip);
  uint32_t n = 0;
  bp_status_code s = BP_INVALID;
  switch (a.watch) {
    case BP_WATCH_TEST: return bp::test_signal<C>(a.ep, scope, words, a.value);
    case BP_WATCH_WAIT: return bp::wait_signal<C>(a.ep, scope, words, a.value);
    case BP_WATCH_ALL: return bp::wait_signal_all<C>(a.ep, scope, words, a.n, a.value, skip);
    case BP_WATCH_ANY: s = bp::wait_signal_any<C>(a.ep, scope, words, a.n, a.value, &n, skip); break;
    case BP_WATCH_SOME: s = bp::wait_signal_some<C>(a.ep, scope, words, a.n, a.value, found + 1, &n, skip); break;
    default: break;
  }
  if (scope.rank() == scope.size() - 1) *found = n;  // every thread has been told
  return s;
}
template <class Scope>
BP_DEV bp_status_code watch(const bp_watch_args& a, Scope scope, uint32_t* found) {
  switch (a.cmp) {
    case BP_CMP_EQ: return watch_by<bp::cmp::eq>(a, scope, found);
    case BP_CMP_NE: return watch_by<bp::cmp::ne>(a, scope, found);
    case BP_CMP_GT: return watch_by<bp::cmp::gt>(a, scope, found);
    case BP_CMP_GE: return watch_by<bp::cmp::ge>(a, scope, found);
    case BP_CMP_LT: return watch_by<bp::cmp::lt>(a, scope, found);
    case BP_CMP_LE: return watch_by<bp::cmp::le>(a, scope, found);
    default: return BP_INVALID;
  }
}

}  // namespace

BP_KERNEL(bp_extra_push_kernel, bp_op_args) { run_block<push_kernel>(args); }
BP_KERNEL(bp_extra_push_blueflame, bp_op_args) { run_block<push_blueflame>(args); }
BP_KERNEL(bp_extra_push_inband_12_4, bp_op_args) { run_block<push_inband_12_4>(args); }
BP_KERNEL(bp_extra_push_inband_14_2, bp_op_args) { run_block<push_inband_14_2>(args); }
BP_KERNEL(bp_extra_push_inband_60_4, bp_op_args) { run_block<push_inband_60_4>(args); }
BP_KERNEL(bp_extra_pull_kernel, bp_op_args) { run_alone<pull_kernel>(args); }
BP_KERNEL(bp_extra_push_kernel_strict, bp_op_args) { run_block<push_kernel_strict>(args); }
BP_KERNEL(bp_extra_push_blueflame_strict, bp_op_args) { run_block<push_blueflame_strict>(args); }
BP_KERNEL(bp_extra_pull_kernel_strict, bp_op_args) { run_block<pull_kernel_strict>(args); }
BP_KERNEL(bp_extra_shared_push_kernel, bp_op_args) { run_any<shared_push_kernel>(args); }
BP_KERNEL(bp_extra_shared_pull_kernel, bp_op_args) { run_any<shared_pull_kernel>(args); }
BP_KERNEL(bp_extra_shared_push_inband_12_4, bp_op_args) { run_any<shared_push_inband>(args); }

BP_KERNEL(bp_watch_signals, bp_watch_args) {
  in_scope(args.scope, [&](auto scope, uint64_t caller) {
    uint32_t* found = reinterpret_cast<uint32_t*>(args.found) + caller * (args.n + 1);
    const bp_status_code s = watch(args, scope, found);
    if (scope.rank() == 0) reinterpret_cast<uint32_t*>(args.status)[caller] = s;
  });
}
