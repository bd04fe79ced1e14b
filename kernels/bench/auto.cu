// Entry points on auto endpoints: rows of the benchmark, and the verbs, which tests drive.
#define BP_MAX_THREADS 512
#include "rows.cuh"
#include "entry/paths.h"

namespace {

BP_CALL put(const bp_auto_op_args& a, Scope scope, uint64_t remote, void* local) {
  const uint64_t bytes = a.op.bytes + bp::lane() * a.op.compare;
  return bp::put<P>(a.ep, scope, remote, local, bytes, a.op.flags);
}
BP_CALL put_signal(const bp_auto_op_args& a, Scope scope, uint64_t remote, void* local) {
  return bp::put_signal<P>(a.ep, scope, remote, local, a.op.bytes, a.op.signal_offset,
                           bp::signal_add{a.op.value}, a.op.flags);
}
// Waits for the put's own ticket, after a look.
BP_CALL put_and_wait(const bp_auto_op_args& a, Scope scope, uint64_t remote, void* local) {
  bp::auto_ticket end;
  bp_status_code s = bp::put<P>(a.ep, scope, remote, local, a.op.bytes, a.op.flags, &end);
  if (s == BP_OK) s = bp::test<P>(a.ep, scope, end);
  return s == BP_PENDING ? bp::wait<P>(a.ep, scope, end) : s;
}
// The signal may go by the other queue pair: its message is the first byte alone.
BP_CALL put_fence_signal(const bp_auto_op_args& a, Scope scope, uint64_t remote, void* local) {
  bp_status_code s = bp::put<P>(a.ep, scope, remote, local, a.op.bytes, a.op.flags);
  if (s == BP_OK) s = bp::fence<P>(a.ep, scope);
  if (s != BP_OK) return s;
  return bp::put_signal<P>(a.ep, scope, remote, local, 1, a.op.signal_offset,
                           bp::signal_add{a.op.value}, a.op.flags);
}
BP_CALL get(const bp_auto_op_args& a, Scope scope, uint64_t remote, void* local) {
  return bp::get<P>(a.ep, scope, local, remote, a.op.bytes, a.op.flags);
}
BP_CALL fetch_add(const bp_auto_op_args& a, Scope scope, uint64_t remote, void* local) {
  return bp::fetch_add<P>(a.ep, scope, remote, a.op.value, local, a.op.flags);
}
BP_CALL compare_swap(const bp_auto_op_args& a, Scope scope, uint64_t remote, void* local) {
  return bp::compare_swap<P>(a.ep, scope, remote, a.op.compare, a.op.value, local, a.op.flags);
}
BP_CALL quiet(const bp_auto_op_args& a, Scope scope) { return bp::quiet<P>(a.ep, scope); }

template <class A, class Scope>
BP_DEV bp_status_code call(const bp_auto_op_args& args, Scope scope, uint64_t row) {
  const bp_op_args& a = args.op;
  const uint64_t remote = a.remote_offset + row * a.remote_stride;
  void* local = a.local ? reinterpret_cast<void*>(a.local + row * a.local_stride) : nullptr;
  switch (a.op) {
    case BP_VERB_PUT: return put<A>(args, scope, remote, local);
    case BP_VERB_PUT_SIGNAL: return put_signal<A>(args, scope, remote, local);
    case BP_VERB_TEST: return put_and_wait<A>(args, scope, remote, local);
    case BP_VERB_FENCE: return put_fence_signal<A>(args, scope, remote, local);
    case BP_VERB_GET: return get<A>(args, scope, remote, local);
    case BP_VERB_FETCH_ADD: return fetch_add<A>(args, scope, remote, local);
    case BP_VERB_COMPARE_SWAP: return compare_swap<A>(args, scope, remote, local);
    case BP_VERB_QUIET: return quiet<A>(args, scope);
    case BP_VERB_WAIT_SIGNAL:
      return bp::wait_signal(args.ep, scope, reinterpret_cast<const uint64_t*>(local), a.value);
    default: return BP_INVALID;
  }
}

template <class A, class Scope>
BP_DEV void run(const bp_auto_op_args& args, Scope scope, uint64_t caller) {
  const bp_op_args& a = args.op;
  bp_status_code s = BP_OK;
  for (uint32_t n = 0; n < a.count && s == BP_OK; n++) s = call<A>(args, scope, caller * a.count + n);
  if (a.quiet_after && s == BP_OK) s = quiet<A>(args, scope);
  if (scope.rank() == 0) reinterpret_cast<uint32_t*>(a.status)[caller] = s;
}

template <class A>
BP_DEV void run_any(const bp_auto_op_args& args) {
  const uint64_t thread = (uint64_t)bp::bid() * bp::block_threads() + bp::tid();
  switch (args.op.scope) {
    case BP_SCOPE_BLOCK: return run<A>(args, bp::block_scope{}, bp::bid());
    case BP_SCOPE_WARP: return run<A>(args, bp::warp_scope{}, thread / 32);
    default: return run<A>(args, bp::thread_scope{}, thread);
  }
}

}  // namespace

BP_KERNEL(bp_bench_auto, bp_auto_bench_args) { bench<auto_later>(args); }
BP_KERNEL(bp_bench_auto_near, bp_auto_bench_args) { bench<auto_near>(args); }
BP_KERNEL(bp_bench_auto_strict, bp_auto_bench_args) { bench<auto_strict>(args); }

BP_KERNEL(bp_verb_auto, bp_auto_op_args) { run<auto_later>(args, bp::block_scope{}, bp::bid()); }
BP_KERNEL(bp_verb_auto_near, bp_auto_op_args) { run<auto_near>(args, bp::block_scope{}, bp::bid()); }
BP_KERNEL(bp_verb_auto_strict, bp_auto_op_args) { run<auto_strict>(args, bp::block_scope{}, bp::bid()); }
BP_KERNEL(bp_verb_shared_auto, bp_auto_op_args) { run_any<shared_auto>(args); }
