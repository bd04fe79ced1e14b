// The engine's loop: who has something, what it is, and when to end (engine.cuh says how it works).
#ifndef BELLPUSH_ENGINE_RUN_CUH
#define BELLPUSH_ENGINE_RUN_CUH

#include "engine_rows.cuh"

namespace bp {
namespace engine {

// ---- Visits -----------------------------------------------------------------------------------

// Copies 16-byte units `from` to `units`.
BP_DEV void copy_units(team t, uint8_t* to, uint64_t base, uint64_t first, uint64_t mask,
                       uint32_t from, uint32_t units) {
  for (uint32_t u = from + t.rank(); u < units; u += t.size()) {
    reinterpret_cast<u128*>(to)[u] = ld_line(reinterpret_cast<const u128*>(base) + ((first + u) & mask));
  }
  syncwarp();
}

// Whether a whole WQE of this queue pair lies in the copy of the BlueFlame buffer.
BP_DEV bool is_whole(const context* q, const uint8_t* copy) {
  const ctrl c(copy);
  if (c.index != (q->state.ci & 0xffff) || c.qpn != q->fixed.qpn || c.ds == 0 || c.blocks() > 4) {
    return false;
  }
  const u128* units = reinterpret_cast<const u128*>(copy);
  uint32_t sum = 0;
  for (uint32_t u = 0; u < c.blocks() * 4; u++) sum += check_unit(units[u], u);
  return sum == units[0].w[3];
}

// Takes what was posted to a ring or stored to the BlueFlame buffer, up to a budget.
BP_DEV_COLD void visit_ring(uint32_t k) {
  const team t;
  context* q = t.qp(k);
  const uint64_t mask = (uint64_t)q->fixed.sq_blocks * 4 - 1;
  // On its way while the doorbell is understood: what lies where the next WQEs are expected. It was
  // written before the doorbell, if that tells of it.
  bool is_early = true;
  const u128 early = ld_line(reinterpret_cast<const u128*>(q->fixed.sq) + ((q->state.ci * 4 + t.rank()) & mask));
  if (t.leads()) ring(q, t.b()->polled[k][0], t.b()->polled[k][1]);
  syncwarp();
  constexpr uint64_t most_blocks = BP_ENGINE_WQE_BYTES / BP_WQEBB_BYTES;
  const uint64_t start_wqes = q->state.wqes, start_bytes = q->state.bytes;
  uint64_t first = 0, copied = 0;  // the copy's blocks: `copied` of them from `first`
  for (bool begins = true;; begins = false) {
    if (q->state.wqes - start_wqes >= visit_wqes || q->state.bytes - start_bytes >= visit_bytes) return;
    if (q->state.producer == q->state.ci && q->dbr_due) {
      syncwarp();  // all have seen that
      if (t.leads()) look_at_record(q);
      syncwarp();
      is_early = false;  // the record may tell of WQEs that were written since
    }
    const uint64_t ci = q->state.ci, known = q->state.producer - ci;
    const bool by_ring = known != 0;
    const uint8_t* copy = t.b()->wqe;
    if (by_ring) {
      uint64_t have = ci - first < copied ? copied - (ci - first) : 0;
      copy += (have != 0 ? ci - first : 0) * BP_WQEBB_BYTES;
      if (have == 0 || (have < known && ctrl(copy).blocks() > have)) {
        first = ci;
        have = copied = known < most_blocks ? known : most_blocks;
        syncwarp();  // all have done with the copy before it changes
        uint32_t there = 0;
        if (is_early) {
          is_early = false;
          reinterpret_cast<u128*>(t.b()->wqe)[t.rank()] = early;
          there = t.size();
        }
        copy_units(t, t.b()->wqe, q->fixed.sq, ci * 4, mask, there, (uint32_t)copied * 4);
        copy = t.b()->wqe;
      }
      if (carry_row(t, k, copy, (uint32_t)have) != 0) continue;
    } else if (q->fixed.blueflame && t.b()->polled[k][1] != 0 && begins) {
      copied = 0;
      is_early = false;
      copy_units(t, t.b()->wqe, q->fixed.uar + BP_UAR_BF_OFFSET, 0, ~0ull, 0, BP_UAR_BF_BYTES / 16);
      if (!is_whole(q, copy)) return;  // not all of it has come
    } else {
      return;
    }
    const ctrl c(copy);
    // A check word lies where other opcodes have their immediate.
    if ((by_ring && c.blocks() > known) || (!by_ring && c.opcode != BP_OP_RDMA_WRITE) ||
        c.index != (ci & 0xffff) || c.qpn != q->fixed.qpn || !understand(t, copy, c.ds * BP_DS_BYTES)) {
      return give_back(k, BP_RETURN_WQE);
    }
    const uint32_t why = execute(k, copy);
    if (why != done) return give_back(k, why);
    syncwarp();
    if (t.leads()) {
      if (q->fixed.blueflame) clear_blueflame(q);  // as in carry_row
      q->state.ci = ci + c.blocks();
      if (q->state.producer < q->state.ci) q->state.producer = q->state.ci;
      q->state.blueflame += !by_ring;
    }
    finish(t, k, (uint32_t)ci);
    syncwarp();
  }
}

// Takes the next slot by itself; false: it has not come, or the queue pair was returned.
BP_DEV bool visit_slot(team t, uint32_t k) {
  context* q = t.qp(k);
  const uint32_t line = q->fixed.line, data = line_data(line);
  const uint32_t slot_lines = q->fixed.slot_bytes / line_bytes(line);
  const uint32_t early = crew_threads * 16 / line_bytes(line);
  const uint32_t look = slot_lines < early ? slot_lines : early;
  const auto lines_of = [&](uint32_t bytes) { return (bytes + data - 1) / data; };
  uint8_t* stream = t.b()->stream;
  // The first lines; a short stream's other lines never come.
  const uint32_t came = row_of_ones(ballot_each(t, [&](uint32_t i) {
    return i < look && take_line(q->slot, line, q->sequence, stream, i);
  }));
  syncwarp();
  if (carry_slot(t, k, came)) return true;
  // The control segment says how much more there is at least, and that how much there is in all.
  uint32_t need = lines_of(sizeof(bp_wqe_ctrl)), total = 0;
  if (came >= need) {
    need = lines_of(least_bytes(stream));
    if (came >= need) {
      total = stream_bytes(stream);
      need = lines_of(total);
      if (total == 0 || need > slot_lines) return give_back(k, BP_RETURN_WQE), false;
    }
  }
  uint32_t missing = came < need && came < look ? came : ~0u;
  if (missing == ~0u && need > look) {
    const bool small = (need - look) * 16 <= warp_bytes;
    syncwarp();
    if (t.leads()) {
      order& o = t.b()->work;
      o.kind = order_lines;
      o.first = look;
      o.end = need;
      o.missing = ~0u;
      o.k = k;
    }
    dispatch(small);
    missing = t.b()->work.missing;
  }
  syncwarp();
  if (t.leads()) {
    q->is_long = need > look;
    if (missing != ~0u) q->missing = missing;  // waited for
  }
  syncwarp();
  if (missing != ~0u) return false;
  const ctrl c(stream);
  const bool is_inline = total != c.ds * BP_DS_BYTES;
  if (c.index != (q->state.ticket & 0xffff) || c.qpn != q->fixed.qpn ||
      (!is_inline && !ends_by_ds(stream, total)) || !understand(t, stream, total)) {
    return give_back(k, BP_RETURN_WQE), false;
  }
  const uint32_t why = execute(k, stream);
  if (why != done) return give_back(k, why), false;
  syncwarp();
  const uint32_t counter = (uint32_t)q->state.ticket;
  syncwarp();  // all have the ticket
  if (t.leads()) {
    if (t.b()->req.bytes != 0) q->hint = t.b()->req.rkey;
    q->state.ticket++;
    q->state.inband++;
    aim(q);
  }
  finish(t, k, counter);
  syncwarp();
  return true;
}

// Takes whole slots in their order, up to a budget. Where slots are long, or one follows another,
// rows of them first.
BP_DEV_COLD void visit_slots(uint32_t k) {
  const team t;
  context* q = t.qp(k);
  const uint64_t start_wqes = q->state.wqes, start_bytes = q->state.bytes;
  for (bool begins = true;; begins = false) {
    if (q->state.wqes - start_wqes >= visit_wqes || q->state.bytes - start_bytes >= visit_bytes) return;
    if ((!begins || q->is_long) && carry_slots(t, k) != 0) continue;
    if (!visit_slot(t, k)) return;
  }
}

// ---- Looking ----------------------------------------------------------------------------------

enum : uint32_t { nothing = 0, has_work = 1, has_news = 2, is_ahead = 4, wants_ahead = 8 };
// Every so many rounds the crew looks at what the host asks and other blocks have to give, and does
// what can wait: between them a round is one load.
constexpr uint32_t thorough_rounds = 8;
constexpr uint32_t telling_rounds = 16;

// The number of the grant that is in force, or was, when `asked` was written.
BP_DEV uint64_t last_grant(uint64_t asked) { return (asked - 1) | 1; }

// One lane's look at one queue pair.
BP_DEV uint32_t look_at(const bp_engine_args& a, block_state* b, uint32_t k, bool thorough,
                        bool telling) {
  context* q = &b->qps[k];
  const bp_qpc* qpc = qpc_of(a, k);
  uint32_t found = nothing;
  if (thorough) {
    // Relaxed, so that it is in flight together with the load below; what it finds is loaded again
    // with acquire before it is used.
    const uint64_t asked = ld_relaxed_sys(&qpc->asked);
    if (q->grant == 0) {
      // Granted and not returned, perhaps in an earlier launch, and perhaps asked for since.
      return asked != 0 && last_grant(asked) != ld_relaxed_sys(&qpc->returned) ? has_news : nothing;
    }
    if (asked != q->grant) found |= has_news;
  }
  if (q->grant == 0) return nothing;
  if (q->fixed.line != BP_LINE_NONE) {
    const uint64_t at = q->slot + (uint64_t)(q->missing + 1) * line_bytes(q->fixed.line) - 4;
    // Acquire: what the sender ordered before the line, before the looks at the slot.
    const uint32_t word = ld_acquire_sys(reinterpret_cast<const uint32_t*>(at));
    const uint32_t stands = standing(q, sequence_of(q->fixed.line, word));
    found |= stands == 1 ? has_work : stands == 2 ? is_ahead : nothing;
  } else {
    const uint64_t* buffer = reinterpret_cast<const uint64_t*>(q->fixed.uar + BP_UAR_BF_OFFSET);
    const uint64_t* doorbell = reinterpret_cast<const uint64_t*>(q->fixed.uar + BP_UAR_DOORBELL_OFFSET);
    uint64_t second = ld_relaxed_sys(buffer);
    // Acquire: what the ringer stored before the register (WQE, record, payload), before our loads.
    const uint64_t first = ld_acquire_sys(doorbell);
    const bool stored = q->fixed.blueflame ? second != 0 : second != q->state.registers[1];
    if (stored) second = ld_acquire_sys(buffer);  // as above
    b->polled[k][0] = first;
    b->polled[k][1] = second;
    const bool posted = q->state.ci != q->state.producer || q->dbr_due != 0;
    if (first != q->state.registers[0] || stored || posted) found |= has_work;
  }
  if (thorough && found == nothing) {
    if (telling && q->told != q->state.wqes) tell_counts(a, k, q);
    if (wants_bodies(q)) found |= wants_ahead;
  }
  return found;
}

// What the whole crew saw, as bits by queue pair.
struct seen {
  uint32_t work, news, ahead, bodies;
};
BP_DEV seen look_round(team t, bool thorough, bool telling) {
  seen s{0, 0, 0, 0};
  for (uint32_t first = 0; first < BP_ENGINE_BLOCK_QPS; first += t.size()) {
    const uint32_t k = first + t.rank();
    const uint32_t found = k < BP_ENGINE_BLOCK_QPS ? look_at(t.b()->args, t.b(), k, thorough, telling) : nothing;
    s.work |= ballot((found & has_work) != 0) << first;
    s.ahead |= ballot((found & is_ahead) != 0) << first;
    if (!thorough) continue;
    s.news |= ballot((found & has_news) != 0) << first;
    s.bodies |= ballot((found & wants_ahead) != 0) << first;
  }
  syncwarp();  // what a lane acquired, before the crew's loads
  return s;
}

// Something was asked about a queue pair: the number, with acquire, says what.
BP_DEV_COLD void answer(uint32_t k) {
  const team t;
  const bp_qpc* qpc = qpc_of(t.b()->args, k);
  // Acquire: the context, written before the number.
  const uint64_t asked = warp_broadcast(ld_acquire_sys(&qpc->asked));
  if (t.b()->qps[k].grant == 0) take(t, k, last_grant(asked));
  if (asked != t.b()->qps[k].grant) give_back(k, BP_RETURN_ASKED);
}

// Says that this block holds nothing of what the host changed before the epoch.
BP_DEV_COLD void confirm(uint64_t epoch) {
  const team t;
  forget_keys(t);
  if (t.leads()) {
    // Everything that this block wrote, before the answer, for the host, which may free the memory;
    // and the epoch before the next look at a key.
    fence_sys();
    st_relaxed_sys(reinterpret_cast<uint64_t*>(t.b()->args.answers) + bid(), epoch);
  }
  syncwarp();
}

// The first warp, until the launch ends.
BP_DEV void run_crew(team t) {
  block_state* b = t.b();
  for (uint32_t k = t.rank(); k < BP_ENGINE_BLOCK_QPS; k += t.size()) b->qps[k].grant = 0;
  forget_keys(t);
  const bp_engine_board* board = board_of(t.b()->args);
  const uint64_t start = now_ns();
  uint64_t confirmed = 0;
  for (uint32_t round = 0;; round++) {
    const bool thorough = t.b()->args.rounds != 0 || round % thorough_rounds == 0;
    uint64_t epoch = confirmed, stop = 0, open = 0;
    if (thorough) {
      epoch = ld_relaxed_sys(&board->epoch);
      stop = ld_relaxed_sys(&board->stop);
      open = ld_relaxed_gpu(&board->open);
    }
    const bool telling = t.b()->args.rounds != 0 || round % telling_rounds == 0;
    const seen s = look_round(t, thorough, telling);
    each_bit(s.news, [&](uint32_t k) { answer(k); });
    // What was given back in this round is not visited.
    each_bit(s.ahead & ~s.news, [&](uint32_t k) { give_back(k, BP_RETURN_WQE); });
    each_bit(s.work & ~s.news, [&](uint32_t k) {
      if (b->qps[k].fixed.line != BP_LINE_NONE) {
        visit_slots(k);
      } else {
        visit_ring(k);
      }
    });
    if (thorough) {
      each_bit(s.bodies, [&](uint32_t k) { write_ahead(k); });
      const uint64_t now_epoch = warp_broadcast(epoch);
      if (now_epoch != confirmed) confirm(confirmed = now_epoch);
      if (warp_broadcast(open) != 0) help();
      const bool over = t.b()->args.rounds != 0 ? round + 1 >= t.b()->args.rounds
                                         : round % 32 == 0 && now_ns() - start > t.b()->args.run_ns;
      if (warp_broadcast(over || stop != 0) != 0) break;
    }
    if (s.work == 0) rest_();
  }
  // The next launch takes the queue pairs as they stand.
  for (uint32_t k = t.rank(); k < BP_ENGINE_BLOCK_QPS; k += t.size()) {
    context* q = &b->qps[k];
    if (q->grant == 0) continue;
    store_state(reinterpret_cast<uint64_t*>(&qpc_of(t.b()->args, k)->state), q->state);
    if (q->told != q->state.wqes) tell_counts(t.b()->args, k, q);
  }
  fence_sys();  // what was written and not fenced yet, before whatever the next launch writes
}

BP_DEV void run(const bp_engine_args& args) {
  const team t;
  if (tid() >= crew_threads) return assist();
  if (t.leads()) t.b()->args = args;
  syncwarp();
  run_crew(t);
  if (!t.alone()) {
    syncwarp();
    if (t.leads()) t.b()->work.kind = order_exit;
    syncthreads();
  }
}

}  // namespace engine
}  // namespace bp

#endif
