// Callers on a shared queue pair that has no room. Those with a bound of their own take no ticket, and end nothing that
// others need; the others give theirs back.
#include <bellpush/impl/order.cuh>
#include "check.hpp"

namespace bp {

void (*after_room)(), (*before_swap)();  // another caller, behind a look at the room, and right before the tickets change
const uint64_t* tickets;
word_pair seen_pair(const uint64_t* p) {
  const word_pair v = ld_relaxed_gpu_pair(p);
  if (p == tickets) after_room();
  return v;
}
uint64_t seen_swap(uint64_t* p, uint64_t expected, uint64_t desired) {
  if (p == tickets) before_swap();
  return atomic_cas_relaxed(p, expected, desired);
}

}  // namespace bp

#define ld_relaxed_gpu_pair seen_pair
#define atomic_cas_relaxed seen_swap
#include <bellpush/bellpush.cuh>

using shared = bp::path<bp::data::pull, bp::kick::kernel, bp::share::shared>;

alignas(64) uint8_t sq[64 * 64], uar[4096], local[64];
alignas(64) bp_cqe64 cqes[4];
uint32_t ready[64], dbr[16];
bp_qp_state state;
bp_status status;

bp_endpoint endpoint() {
  state = {};
  status = {};
  bp_endpoint ep = {};
  ep.tag = shared::tag_v;
  ep.local_va = ep.local_iova = (uint64_t)local;
  ep.local_bytes = ep.remote_bytes = sizeof local;
  ep.qp.sq = (uint64_t)sq;
  ep.qp.uar = (uint64_t)uar;
  ep.qp.cq = (uint64_t)cqes;
  ep.qp.dbr = ep.qp.cq_dbr = (uint64_t)dbr;
  ep.qp.state = (uint64_t)&state;
  ep.qp.ready = (uint64_t)ready;
  ep.qp.status = (uint64_t)&status;
  ep.qp.sq_log = 6;
  ep.qp.cq_log = 2;
  ep.qp.credit_period = 16;
  ep.qp.timeout_ns = 10000000000;
  for (bp_cqe64& cqe : cqes) cqe.op_own = 0xf0;
  for (uint32_t i = 0; i < 64; i++) ready[i] = i;
  bp::tickets = &state.reserved;
  bp::after_room = bp::before_swap = [] {};
  return ep;
}

bp_status_code put(const bp_endpoint& ep) { return bp::put<shared>(ep, bp::thread_scope{}, 0, local, 8); }

int main() {
  // Room for one, which another caller takes between the look and the ticket.
  const bp_endpoint full = endpoint();
  state.reserved = 63;
  state.ring = (uint64_t)63 << bp::ring_shift;
  bp::after_room = [] { state.reserved = 64; };
  CHECK(put(bp::within(full, 0)) == BP_TIMEOUT);
  CHECK(state.reserved == 64 && state.error == 0 && status.code == 0);

  // The same, right before the ticket.
  const bp_endpoint late = endpoint();
  state.reserved = 63;
  state.ring = (uint64_t)63 << bp::ring_shift;
  bp::before_swap = [] { state.reserved = 64; };
  CHECK(put(bp::within(late, 0)) == BP_TIMEOUT);
  CHECK(put(bp::within(late, 1000)) == BP_TIMEOUT);
  CHECK(state.reserved == 64 && state.error == 0 && status.code == 0);

  // Others come all the time, and there is room: it is taken at last.
  const bp_endpoint crowd = endpoint();
  bp::before_swap = [] {
    if (state.reserved < 5) state.reserved++;
  };
  state.ring = (uint64_t)5 << bp::ring_shift;
  CHECK(put(bp::within(crowd, 0)) == BP_OK);
  CHECK(state.reserved == 6 && state.error == 0);

  // Without such a bound the ticket comes first. It is given back for the wait: the queue pair goes on.
  bp_endpoint first = endpoint();
  first.qp.timeout_ns = 1000;
  state.reserved = 64;
  state.ring = (uint64_t)64 << bp::ring_shift;
  CHECK(put(first) == BP_TIMEOUT);
  CHECK(state.reserved == 64 && state.error == 0 && status.code == 0);

  // Others hold tickets behind it, and give them back in time.
  auto& hook = bp_host_current()->grid->hooks.yield;
  const auto no_hook = hook;
  first = endpoint();
  first.qp.timeout_ns = 2000000;
  state.reserved = 64;
  state.ring = (uint64_t)64 << bp::ring_shift;
  bp::before_swap = [] {
    if (state.reserved == 65) state.reserved = 66;
    bp::before_swap = [] {};
  };
  static uint32_t waits;
  waits = 0;
  hook = [](void*) {
    if (++waits == 10) state.reserved = 65;
  };
  CHECK(put(first) == BP_TIMEOUT);
  CHECK(waits >= 10 && state.reserved == 64 && state.error == 0 && status.code == 0);

  // Room comes in the ring's first lap, and others have given back more than it took: nothing is waited for twice.
  first = endpoint();
  first.qp.timeout_ns = 2000000;
  state.reserved = 64;
  state.ring = (uint64_t)64 << bp::ring_shift;
  waits = 0;
  hook = [](void*) {
    if (++waits != 10) return;
    state.done = 4;
    state.reserved = 6;
    state.ring = (uint64_t)6 << bp::ring_shift;
  };
  CHECK(put(first) == BP_OK);
  CHECK(waits >= 10 && state.reserved == 7 && state.error == 0);

  // A wait has read tickets that another caller gives back before its NOP: it waits for that one alone.
  first = endpoint();
  first.qp.timeout_ns = 2000000;
  state.done = state.signalled = 8;
  state.reserved = 12;
  state.ring = (uint64_t)8 << bp::ring_shift;
  bp::after_room = [] {
    if (state.reserved == 12) state.reserved = 8;
  };
  hook = [](void*) { state.done = 9; };
  CHECK(bp::quiet<shared>(first, bp::thread_scope{}) == BP_OK);
  CHECK(state.reserved == 9 && state.error == 0);
  hook = no_hook;

  // Or do not: a ticket that nobody fills would block theirs.
  first = endpoint();
  first.qp.timeout_ns = 1000;
  state.reserved = 64;
  state.ring = (uint64_t)64 << bp::ring_shift;
  bp::before_swap = [] { state.reserved = 66; };
  CHECK(put(first) == BP_DEAD);
  CHECK(state.reserved == 66 && status.code == BP_TIMEOUT);

  // Somebody has the doorbell's word for a while: that is waited for, however short the bound is.
  const bp_endpoint held = endpoint();
  static uint32_t yields;
  yields = 0;
  state.ring = bp::ring_held;
  bp_host_current()->grid->hooks.yield = [](void*) {
    if (++yields == 100) state.ring = 0;
  };
  CHECK(put(bp::within(bp::within(held, 5000), 0)) == BP_OK);
  CHECK(state.error == 0 && state.ring >> bp::ring_shift == 1);

  // The bound of a bound is the first one's still.
  const bp_endpoint twice = bp::within(bp::within(held, 5000), 0);
  CHECK(bp::qp_timeout_ns(twice.qp) >= held.qp.timeout_ns && twice.qp.timeout_ns == 0);
  CHECK(bp::qp_timeout_ns(held.qp) == held.qp.timeout_ns);
}
