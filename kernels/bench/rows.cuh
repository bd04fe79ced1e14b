// Rows of the benchmark: messages of one length one after the other, by one block, which is what the scope says, on
// endpoints of path P.
#ifndef BELLPUSH_BENCH_ROWS_CUH
#define BELLPUSH_BENCH_ROWS_CUH

#include <bellpush/bellpush.cuh>
#include "args.h"

namespace {

constexpr uint64_t fresh_bytes = 16 << 20;  // of an L2 that holds more

// Where the ticket of a put on an endpoint is to go, for the mark of its return.
BP_DEV uint64_t no_ticket(const bp_endpoint&) { return 0; }
BP_DEV bp::auto_ticket no_ticket(const bp_auto_endpoint&) { return {0, false}; }
BP_DEV uint64_t end_of(uint64_t ticket) { return ticket; }
BP_DEV uint64_t end_of(const bp::auto_ticket& ticket) { return ticket.end; }

// The queue pair that a put took. Which of an auto endpoint's that is, the ticket alone says.
BP_DEV uint32_t qpn_of(const bp_endpoint& ep, uint64_t) { return ep.qp.qpn; }
BP_DEV uint32_t qpn_of(const bp_auto_endpoint& ep, const bp::auto_ticket& ticket) {
  return ticket.is_inband ? ep.inband.qp.qpn : ep.bell.qp.qpn;
}
BP_DEV uint32_t beside(const bp_endpoint&) { return 0; }
BP_DEV uint32_t beside(const bp_auto_endpoint&) { return BP_MARK_OF_AUTO; }

BP_DEV uint64_t message_value(uint32_t m, uint32_t qpn, bp_status_code s) {
  return m | (uint64_t)qpn << 32 | (uint64_t)s << 56;
}

// A mark of message m, in kernels that are there for a trace. Those whose times count have none.
template <bool marked, class Scope, class Ep>
BP_DEV void note([[maybe_unused]] const bp_bench_rows& a, [[maybe_unused]] Scope scope, [[maybe_unused]] const Ep& ep,
                 [[maybe_unused]] bp_bench_mark what, [[maybe_unused]] uint32_t m,
                 [[maybe_unused]] bp_status_code s = BP_OK) {
  if constexpr (marked) {
    const uint64_t value = message_value(m, qpn_of(ep, no_ticket(ep)), s);
    if (scope.rank() == 0) bp::mark(a.marks, what | beside(ep), value);
  }
}

// The same of the return of its put, with the put's ticket.
template <bool marked, class Scope, class Ep, class Ticket>
BP_DEV void note_returned([[maybe_unused]] const bp_bench_rows& a, [[maybe_unused]] Scope scope,
                          [[maybe_unused]] const Ep& ep, [[maybe_unused]] const Ticket& ticket,
                          [[maybe_unused]] uint32_t m, [[maybe_unused]] bp_status_code s) {
  if constexpr (marked) {
    const uint32_t what = BP_MARK_PUT_RETURNED | (uint32_t)end_of(ticket) << 8;
    if (scope.rank() == 0) bp::mark(a.marks, what, message_value(m, qpn_of(ep, ticket), s));
  }
}

// Latency: a quiet after each message, or after each batch of several, through the first endpoint. Named, not looked
// up, as in a kernel whose argument it is: an index would make each of its words a load.
template <class P, bool marked, class Scope, class Args>
BP_DEV bp_status_code one_by_one(const Args& args, Scope scope, uint32_t* posted) {
  const auto& ep = args.ep[0];
  const bp_bench_rows& a = args.rows;
  uint64_t* ticks = reinterpret_cast<uint64_t*>(a.ticks);
  bp_status_code s = BP_OK;
  for (uint32_t m = 0; m < a.messages && s == BP_OK; m++) {
    const uint64_t at = m * a.stride;
    scope.sync();
    note<marked>(a, scope, ep, BP_MARK_PUT, m);
    auto ticket = no_ticket(ep);
    const uint64_t t = bp::clock_ticks();
    s = bp::put<P>(ep, scope, a.remote_offset + at, reinterpret_cast<const void*>(a.src + at),
                   a.bytes, bp::none, marked ? &ticket : nullptr);
    *posted += s == BP_OK;
    note_returned<marked>(a, scope, ep, ticket, m, s);
    if (s == BP_OK) s = bp::quiet<P>(ep, scope);
    if (scope.rank() == 0) ticks[m] = bp::clock_ticks() - t;
    note<marked>(a, scope, ep, BP_MARK_COMPLETE, m, s);
  }
  return s;
}

// The same with `each_quiet` messages on their way at once: one doorbell and one completion a batch.
template <class P, bool marked, class Scope, class Args>
BP_DEV bp_status_code batch_by_batch(const Args& args, Scope scope, uint32_t* posted) {
  const auto& ep = args.ep[0];
  const bp_bench_rows& a = args.rows;
  uint64_t* ticks = reinterpret_cast<uint64_t*>(a.ticks);
  bp_status_code s = BP_OK;
  uint64_t start = 0;
  for (uint32_t m = 0, in_batch = 0, batch = 0; m < a.messages && s == BP_OK; m++) {
    const uint64_t at = m * a.stride;
    if (in_batch == 0) {
      scope.sync();
      start = bp::clock_ticks();
    }
    const bool last = ++in_batch == a.each_quiet || m + 1 == a.messages;
    note<marked>(a, scope, ep, BP_MARK_PUT, m);
    auto ticket = no_ticket(ep);
    s = bp::put<P>(ep, scope, a.remote_offset + at, reinterpret_cast<const void*>(a.src + at),
                   a.bytes, last ? 0 : bp::unsignalled | bp::defer_ring, marked ? &ticket : nullptr);
    *posted += s == BP_OK;
    note_returned<marked>(a, scope, ep, ticket, m, s);
    if (s != BP_OK || !last) continue;
    s = bp::quiet<P>(ep, scope);
    if (in_batch == a.each_quiet && scope.rank() == 0) ticks[batch] = bp::clock_ticks() - start;
    note<marked>(a, scope, ep, BP_MARK_COMPLETE, m, s);
    in_batch = 0;
    batch++;
  }
  return s;
}

// Throughput: messages through all endpoints in turn, rung for now and then.
template <class P, bool marked, class Scope, class Args>
BP_DEV bp_status_code in_a_row(const Args& args, Scope scope, uint32_t* posted) {
  const bp_bench_rows& a = args.rows;
  bp_status_code s = BP_OK;
  uint32_t e = 0, unrung = 0;
  for (uint32_t m = 0; m < a.messages && s == BP_OK; m++) {
    const uint64_t at = m * a.stride;
    const bool ring = ++unrung == a.ring_every;
    if (ring) unrung = 0;
    note<marked>(a, scope, args.ep[e], BP_MARK_PUT, m);
    auto ticket = no_ticket(args.ep[e]);
    s = bp::put<P>(args.ep[e], scope, a.remote_offset + at, reinterpret_cast<const void*>(a.src + at),
                   a.bytes, ring ? bp::unsignalled : bp::unsignalled | bp::defer_ring, marked ? &ticket : nullptr);
    *posted += s == BP_OK;
    note_returned<marked>(a, scope, args.ep[e], ticket, m, s);
    if (++e == a.endpoints) e = 0;
  }
  for (e = 0; e < a.endpoints && s == BP_OK; e++) {
    s = bp::quiet<P>(args.ep[e], scope);
    note<marked>(a, scope, args.ep[e], BP_MARK_COMPLETE, a.messages - 1, s);
  }
  return s;
}

// Measures `send(&posted)`, a block's part of the messages; the first block says what came of it.
template <bool marked, class Send>
BP_DEV void measure(const bp_bench_rows& a, Send send) {
  const bp::block_scope scope;
  // Messages begin where a kernel that has just computed them would have left them.
  const uint64_t bytes = a.messages * a.stride;
  const uint64_t fresh = bytes < fresh_bytes ? bytes : fresh_bytes;
  for (uint64_t at = scope.rank() * 128; at < fresh; at += scope.size() * 128) {
    bp::prefetch_l2(a.src + at);
  }
  scope.sync();
  if (marked && scope.rank() == 0) bp::mark(a.marks, BP_MARK_ROUND_BEGINS, a.round);
  const uint64_t start_ns = bp::now_ns();
  const uint64_t start_ticks = bp::clock_ticks();
  uint32_t posted = 0;
  const bp_status_code s = send(&posted);
  if (bp::bid() == 0 && scope.rank() == 0) {
    bp_bench_result* result = reinterpret_cast<bp_bench_result*>(a.result);
    result->status = s;
    result->posted = posted;
    result->start_ns = start_ns;
    result->end_ns = bp::now_ns();
    result->start_ticks = start_ticks;
    result->end_ticks = bp::clock_ticks();
  }
  if (marked && scope.rank() == 0) bp::mark(a.marks, BP_MARK_ROUND_ENDS, a.round);
}

template <class P, class Scope = bp::block_scope, bool marked = false, class Args>
BP_DEV void bench(const Args& args) {
  const bp_bench_rows& a = args.rows;
  const Scope scope;
  measure<marked>(a, [&](uint32_t* posted) {
    return a.each_quiet == 0   ? in_a_row<P, marked>(args, scope, posted)
           : a.each_quiet == 1 ? one_by_one<P, marked>(args, scope, posted)
                               : batch_by_batch<P, marked>(args, scope, posted);
  });
}

}  // namespace

#endif
