// Several WQEs of one block each with one reservation, one fence and one doorbell: batches, and the lanes of a warp,
// each with a message of its own.
#ifndef BELLPUSH_IMPL_MANY_CUH
#define BELLPUSH_IMPL_MANY_CUH

#include <bellpush/impl/pipeline.cuh>

namespace bp {

// A message of a batch: `bytes` bytes from `src` to the peer's region at `remote_offset`.
struct message {
  uint64_t remote_offset;
  const void* src;
  uint64_t bytes;
};

namespace detail {

// Whether a message fits into one WQE of one block, or one slot, of path P, and lies in the regions. Without branches: of
// a list in memory the messages behind it are loaded meanwhile.
template <class P>
BP_DEV bool is_single(const bp_endpoint& ep, const message& m) {
  uint64_t most = max_message_bytes;
  if constexpr (P::inband) {
    most = inband_capacity<P::line_v>(ep.qp.window);
  } else if constexpr (P::data_v == data::push) {
    most = ep.qp.window.slot_bytes;
  }
  const bool fits = (m.bytes - 1 < most) & in_range(m.remote_offset, m.bytes, ep.remote_bytes);
  if constexpr (P::data_v != data::pull) return fits;
  return fits & in_range((uint64_t)m.src - ep.local_va, m.bytes, ep.local_bytes);
}

// Whether all of a list's messages do. Each warp of a block looks at all of them, and needs no other one's answer.
template <class P, class List>
BP_DEV bool all_single(const bp_endpoint& ep, thread_scope, uint32_t n, List list) {
  bool fit = true;
  for (uint32_t i = 0; i < n; i++) fit &= is_single<P>(ep, list(i));
  return fit;
}
template <class P, class Scope, class List>
BP_DEV bool all_single(const bp_endpoint& ep, Scope, uint32_t n, List list) {
  bool fit = true;
  const uint32_t step = warp_scope{}.size();
  for (uint32_t i = lane(); i < n; i += step) fit &= is_single<P>(ep, list(i));
  return ballot(!fit) == 0;
}

// Writes message `m` with ticket `ticket`: payload and WQE, or the slot. All threads of the scope take part.
template <class P, class Scope>
BP_DEV void write_message(const located<bp_endpoint>& ep, Scope scope, const message& m, uint64_t ticket,
                          uint32_t fm_ce_se) {
  wqe w = wqe_to_peer(ep, BP_OP_RDMA_WRITE, 3, ep.remote_iova + m.remote_offset);
  w.bytes = (uint32_t)m.bytes;
  w.fm_ce_se = fm_ce_se;
  if constexpr (P::data_v == data::push) {
    u128 early = unit_zero();
    if constexpr (P::inband) early = early_payload<P::line_v>(scope, (uint64_t)m.src, w.bytes);
    fill_slot<P>(ep.qp, scope, w, (uint64_t)m.src, ticket, early);
  } else {
    w.gather = ep.local_iova + ((uint64_t)m.src - ep.local_va);
    w.lkey = ep.local_lkey;
    store_wqe<P, false>(ep.qp, scope, w, ticket);
  }
}

// The completion bits of the WQE that ends at `after`: the last one of a batch asks for a CQE, unless the caller wants
// none, and each at the end of a credit period. A batch and a period are shorter than 2^32.
BP_DEV uint32_t asks(const bp_qp& qp, uint64_t after, uint64_t last, uint32_t flags) {
  const uint32_t end = (uint32_t)after;
  const bool is_last = end == (uint32_t)last && !(flags & unsignalled);
  return is_last || (end & (qp.credit_period - 1)) == 0 ? (uint32_t)BP_CTRL_CQ_UPDATE : 0;
}

// Whether a batch's WQEs are written as if none asked for a CQE, and ask_behind() mends those that do: they are few, and
// a look at each costs its thread five instructions. Not in-band, where a slot is seen as it comes, and not where the
// word that it mends holds a line as well.
template <class P, class Scope>
inline constexpr bool asks_behind = is_thread_scope<Scope> && !P::inband && !has_lines;

// Sets the completion bits that asks() gives, of the WQEs from `first` to `last`, of one block each. By the thread that
// stored them, before they are marked ready or rung for: nobody reads a WQE sooner.
BP_DEV void ask_behind(const bp_qp& qp, uint64_t first, uint64_t last, uint32_t flags) {
  const auto ask = [&](uint64_t after) {
    st_weak(&sq_unit(qp, after - 1, 0)->w[2], (uint32_t)BP_CTRL_CQ_UPDATE << 24);
  };
  if (!(flags & unsignalled)) ask(last);
  BP_NO_UNROLL for (uint64_t end = last_credit_end(qp, first, (uint32_t)(last - first)); end > first;
                    end -= qp.credit_period) {
    ask(end);
  }
}

// Before the NIC is told anything: the CQE may come at once. By the leader.
template <class P>
BP_DEV void note_asked(const bp_qp& qp, uint64_t first, uint32_t n, uint32_t flags) {
  const uint64_t top = flags & unsignalled ? last_credit_end(qp, first, n) : first + n;
  if (top > first) note_signalled<P>(qp, top);
}

// A message of one WQE or slot and the signal behind it, with one reservation and one doorbell. `refused`: neither is
// to be posted (with_room()).
template <class P, class Scope, class Op>
BP_DEV bp_status_code post_signal(const located<bp_endpoint>& ep, Scope scope, const message& m, uint64_t signal_offset,
                                  Op op, bool refused, uint32_t flags, uint64_t* end) {
  const bp_qp& qp = ep.qp;
  if (!can_write_lines<P>(scope)) return BP_INVALID;
  constexpr bool slots = P::data_v == data::push;
  return with_room<P>(qp, scope, 2, slots, room_ahead<P>(qp), refused, [&](const tickets& got) {
    const uint64_t first = got.first, last = first + 2;
    if (scope.rank() == 0) note_asked<P>(qp, first, 2, flags);
    if (end) *end = last;
    write_message<P>(ep, scope, m, first, asks(qp, first + 1, last, flags));
    wqe w = signal_wqe<P>(ep, signal_offset, op);
    w.fm_ce_se |= asks(qp, last, last, flags);
    write_posted<P, is_set<Op>>(qp, scope, w, first + 1);
    send_slots<P>(qp, scope, got, 2, !(flags & defer_ring));
    return BP_OK;
  });
}

// The lowest `n` of the bits that are set.
BP_DEV uint32_t lowest_bits(uint32_t bits, uint32_t n) {
  uint32_t rest = bits;
  BP_NO_UNROLL while (n-- != 0) rest &= rest - 1;
  return bits & ~rest;
}

// Lanes of a warp, those with `takes_part` with one WQE of one block each, which `write(ticket, fm_ce_se)` stores. All
// of `lanes` call it, with the same flags; each gets its own result.
template <class P, class Lanes, class Write>
BP_DEV bp_status_code post_lanes(const bp_qp& qp, Lanes lanes, bool takes_part, bool slots, uint32_t flags,
                                 uint64_t* end, Write write) {
  const auto scope = lanes.all();
  const uint32_t limit = ticket_limit<P>(qp, slots), most = limit < 2 ? 1 : limit / 2;
  // Half a window (a ring) at a time, as batches: a whole one would have to wait for the last tickets before it, of
  // which no CQE tells if they were posted unsignalled.
  for (uint32_t who = lanes.vote(takes_part), now; who != 0; who &= ~now) {
    now = bits_set(who) <= most ? who : lowest_bits(who, most);
    const uint32_t n = bits_set(now), options = now == who ? flags : (flags & ~(uint32_t)defer_ring) | unsignalled;
    const bp_status_code s = with_tickets<P>(qp, scope, n, slots, [&](const tickets& got) {
      const uint64_t mine = got.first + bits_set(now & ((1u << lane()) - 1)), last = got.first + n;
      if (scope.rank() == 0) note_asked<P>(qp, got.first, n, options);
      if ((now >> lane() & 1) != 0) {
        write(mine, asks(qp, mine + 1, last, options));
        if (end) *end = mine + 1;
      }
      send_slots<P>(qp, scope, got, n, !(options & defer_ring));
      return BP_OK;
    });
    // A lane whose message went before is well.
    if (s != BP_OK) return (who >> lane() & 1) != 0 ? s : BP_OK;
  }
  return BP_OK;
}

#if defined(__CUDACC__)
// Lanes of a warp that put at once on one shared queue pair, each for itself, post together; by turns each would pay
// for the fences and atomics of all before it. They have the same flags and the same bound, all of their own or all
// the queue pair's. False: not so, or this lane's message takes more than one WQE or slot.
template <class P>
BP_DEV bool put_together(const located<bp_endpoint>& ep, const message& m, uint32_t flags, uint64_t* end,
                         bp_status_code* status) {
  const mask_scope here{__activemask()};
  if (__builtin_expect((here.mask & (here.mask - 1)) == 0, 1)) return false;
  int same_queue = 0, same_bound = 0;
  // The first of them takes the tickets of all: with the queue pair's bound it may end the queue pair.
  const uint64_t key = flags | (uint64_t)has_own_bound(ep.qp) << 2;
  __match_all_sync(here.mask, static_cast<unsigned long long>(ep.qp.state | key << 60), &same_queue);
  __match_all_sync(here.mask, static_cast<unsigned long long>(ep.qp.timeout_ns), &same_bound);
  if (!same_queue || !same_bound) return false;
  const bool fits = is_single<P>(ep, m);
  *status = post_lanes<P>(ep.qp, here, fits, P::data_v == data::push, flags, end,
                          [&](uint64_t ticket, uint32_t fm_ce_se) {
                            write_message<P>(ep, thread_scope{}, m, ticket, fm_ce_se);
                          });
  return fits;
}
#endif

// Four neighbouring threads, who write the four units of a WQE's block.
struct quad_scope {
  BP_DEV uint32_t rank() const { return tid() % 4; }
  BP_DEV uint32_t size() const {
    const uint32_t rest = block_threads() - (tid() - rank());
    return rest < 4 ? rest : 4;
  }
  BP_DEV void sync() const { syncquad(); }
};

// Calls `f(part, i)` for the messages 0..n, each by a part of the scope: by a thread, by four, or by all.
template <class P, class F>
BP_DEV void for_each_message(thread_scope scope, uint32_t n, F f) {
  for (uint32_t i = 0; i < n; i++) f(scope, i);
}
template <class P, class Scope, class F>
BP_DEV void for_each_message(Scope scope, uint32_t n, F f) {
  if constexpr (P::inband && line_units<P::line_v> > 1) {
    for_each_part(scope, n, f);  // lanes of a warp store a line together
  } else if constexpr (P::data_v == data::pull && thread_stores_wqe<P>) {
    for (uint32_t i = scope.rank(); i < n; i += scope.size()) f(thread_scope{}, i);
  } else {
    const uint32_t parts = (scope.size() + 3) / 4;
    for (uint32_t i = scope.rank() / 4; i < n; i += parts) f(quad_scope{}, i);
  }
}

// `n` messages, `list(i)` each, of at most a window's (a ring's) worth.
template <class P, class Scope, class List>
BP_DEV bp_status_code post_batch(const located<bp_endpoint>& ep, Scope scope, uint32_t n, List list, uint32_t flags,
                                 uint64_t* end) {
  const bp_qp& qp = ep.qp;
  return with_tickets<P>(qp, scope, n, P::data_v == data::push, [&](const tickets& got) {
    const uint64_t first = got.first, last = first + n;
    if (scope.rank() == 0) note_asked<P>(qp, first, n, flags);
    if (end) *end = last;
    for_each_message<P>(scope, n, [&](auto part, uint32_t i) {
      const uint32_t fm_ce_se = asks_behind<P, Scope> ? 0 : asks(qp, first + i + 1, last, flags);
      write_message<P>(ep, part, list(i), first + i, fm_ce_se);
    });
    if constexpr (asks_behind<P, Scope>) ask_behind(qp, first, last, flags);
    send_slots<P>(qp, scope, got, n, !(flags & defer_ring));
    return BP_OK;
  });
}

// Any number of messages, all of which the caller has looked at: half a window (a ring) at a time.
template <class P, class Scope, class List>
BP_DEV bp_status_code post_batches(const located<bp_endpoint>& ep, Scope scope, uint32_t n, List list, uint32_t flags,
                                   uint64_t* end) {
  const uint32_t limit = ticket_limit<P>(ep.qp, P::data_v == data::push), most = limit < 2 ? 1 : limit / 2;
  if (n <= most) return post_batch<P>(ep, scope, n, list, flags, end);
  for (uint32_t at = 0; at < n; at += most) {
    const uint32_t left = n - at;
    const bool is_last = left <= most;
    const bp_status_code s = post_batch<P>(
        ep, scope, is_last ? left : most, [&](uint32_t i) { return list(at + i); },
        is_last ? flags : (flags & ~(uint32_t)defer_ring) | unsignalled, end);
    if (s != BP_OK) return s;
  }
  return BP_OK;
}

// Whether a batch is looked at while it is written. An exclusive caller's blocks behind its last ticket are nobody
// else's, and the NIC does not execute what no doorbell counts, so a batch of which a message is refused is left there.
// Not in-band, where a line is seen as it comes, and not where payload is copied, which a refused one need not have.
template <class P, class Scope>
inline constexpr bool looks_while_writing =
    !P::shared && P::data_v == data::pull && (is_warp_scope<Scope> || is_thread_scope<Scope>);

// `n` messages, `list(i)` each, that nobody has looked at yet; false where there is no room for all of them, or they are
// more than a batch.
template <class P, class Scope, class List>
BP_DEV bool post_unseen(const located<bp_endpoint>& given, Scope scope, uint32_t n, List list, uint32_t flags,
                        uint64_t* end, bp_status_code* status) {
  static_assert(looks_while_writing<P, Scope>, "others look first");
  // In registers for the whole batch: ptxas else moves each from where it has it, for every message.
  located<bp_endpoint> ep = given;
  bp_qp& qp = ep.qp;
  make_here(qp.sq);
  make_here(qp.qpn);
  make_here(qp.credit_period);
  make_here(ep.local_va);
  make_here(ep.local_iova);
  make_here(ep.local_bytes);
  make_here(ep.remote_iova);
  make_here(ep.remote_bytes);
  make_here(ep.local_lkey);
  make_here(ep.remote_rkey);
  const uint64_t limit = ticket_limit<P>(qp, false);
  const room r = load_room<P>(qp);
  const uint64_t first = r.next, last = first + n;
  if ((r.error != BP_OK) | (n > limit / 2) | (last > r.done + limit)) return false;
  scope.sync();  // all have read the words that the leader changes
  uint32_t misfits = 0;  // a word: of a bool ptxas makes two instructions more for each message
  for_each_message<P>(scope, n, [&](auto part, uint32_t i) {
    const message m = list(i);
    misfits += is_single<P>(ep, m) ? 0 : 1;
    const uint32_t fm_ce_se = asks_behind<P, Scope> ? 0 : asks(qp, first + i + 1, last, flags);
    write_message<P>(ep, part, m, first + i, fm_ce_se);
  });
  *status = BP_INVALID;
  if (is_thread_scope<Scope> ? misfits != 0 : ballot(misfits != 0) != 0) return true;
  if (scope.rank() == 0) {
    take<P>(qp, first, n, r.done, r.most, false);
    note_asked<P>(qp, first, n, flags);
  }
  if constexpr (asks_behind<P, Scope>) ask_behind(qp, first, last, flags);
  if (end) *end = last;
  send_slots<P>(qp, scope, {first, first == r.done, false, r.marked}, n, !(flags & defer_ring));
  *status = BP_OK;
  return true;
}

}  // namespace detail

}  // namespace bp

#endif
