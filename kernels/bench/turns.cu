// Round trips: a message to the peer, which waits for its signal and answers with one of its own. Half of one is the time
// from a kernel that puts to the kernel that sees it.
#define BP_MAX_THREADS 512
#include <bellpush/bellpush.cuh>
#include "args.h"
#include "entry/paths.h"

namespace {

template <class P, class Endpoint>
BP_DEV void take_turns(const Endpoint& ep, const bp_turns& a) {
  const bp::block_scope scope;
  uint64_t* ticks = reinterpret_cast<uint64_t*>(a.ticks);
  const uint64_t* word = reinterpret_cast<const uint64_t*>(a.word);
  const uint64_t start_ns = bp::now_ns();
  const uint64_t start_ticks = bp::clock_ticks();
  bp_status_code s = BP_OK;
  uint32_t done = 0;
  for (; done < a.messages && s == BP_OK; done += s == BP_OK) {
    scope.sync();
    const uint64_t t = bp::clock_ticks();
    if (!a.begins) s = bp::wait_signal(ep, scope, word, done + 1);
    const uint64_t at = done % a.places * a.stride;
    const void* src = reinterpret_cast<const void*>(a.src + at);
    if (s == BP_OK) s = bp::put_signal<P>(ep, scope, at, src, a.bytes, a.signal_offset, bp::signal_add{1});
    if (a.begins && s == BP_OK) s = bp::wait_signal(ep, scope, word, done + 1);
    if (scope.rank() == 0) ticks[done] = bp::clock_ticks() - t;
  }
  if (s == BP_OK) s = bp::quiet<P>(ep, scope);
  if (scope.rank() == 0) {
    bp_bench_result* result = reinterpret_cast<bp_bench_result*>(a.result);
    result->status = s;
    result->posted = done;
    result->start_ns = start_ns;
    result->end_ns = bp::now_ns();
    result->start_ticks = start_ticks;
    result->end_ticks = bp::clock_ticks();
  }
}

}  // namespace

BP_KERNEL(bp_turns_push_kernel, bp_turns_args) { take_turns<push_kernel>(args.ep, args.turns); }
BP_KERNEL(bp_turns_push_blueflame, bp_turns_args) { take_turns<push_blueflame>(args.ep, args.turns); }
BP_KERNEL(bp_turns_push_inband_12_4, bp_turns_args) { take_turns<push_inband_12_4>(args.ep, args.turns); }
BP_KERNEL(bp_turns_push_inband_14_2, bp_turns_args) { take_turns<push_inband_14_2>(args.ep, args.turns); }
BP_KERNEL(bp_turns_push_inband_60_4, bp_turns_args) { take_turns<push_inband_60_4>(args.ep, args.turns); }
BP_KERNEL(bp_turns_pull_kernel, bp_turns_args) { take_turns<pull_kernel>(args.ep, args.turns); }
BP_KERNEL(bp_turns_pull_blueflame, bp_turns_args) { take_turns<pull_blueflame>(args.ep, args.turns); }
BP_KERNEL(bp_turns_push_kernel_near, bp_turns_args) { take_turns<push_kernel_near>(args.ep, args.turns); }
BP_KERNEL(bp_turns_pull_kernel_near, bp_turns_args) { take_turns<pull_kernel_near>(args.ep, args.turns); }
BP_KERNEL(bp_turns_push_kernel_strict, bp_turns_args) { take_turns<push_kernel_strict>(args.ep, args.turns); }
BP_KERNEL(bp_turns_push_blueflame_strict, bp_turns_args) { take_turns<push_blueflame_strict>(args.ep, args.turns); }
BP_KERNEL(bp_turns_pull_kernel_strict, bp_turns_args) { take_turns<pull_kernel_strict>(args.ep, args.turns); }
BP_KERNEL(bp_turns_pull_blueflame_strict, bp_turns_args) { take_turns<pull_blueflame_strict>(args.ep, args.turns); }
BP_KERNEL(bp_turns_auto, bp_auto_turns_args) { take_turns<auto_later>(args.ep, args.turns); }
BP_KERNEL(bp_turns_auto_near, bp_auto_turns_args) { take_turns<auto_near>(args.ep, args.turns); }
BP_KERNEL(bp_turns_auto_strict, bp_auto_turns_args) { take_turns<auto_strict>(args.ep, args.turns); }
