// The engine's loop: who has something, what it is, and when to end (engine.cuh says how it works).
#ifndef BELLPUSH_ENGINE_RUN_CUH
#define BELLPUSH_ENGINE_RUN_CUH

#include "single_write.cuh"

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

// Takes what was posted to a ring or stored to the BlueFlame buffer, up to a budget.
BP_DEV_COLD void visit_ring(uint32_t k) {
  const team t;
  context* q = t.qp(k);
  const uint64_t mask = (uint64_t)q->fixed.sq_blocks * 4 - 1;
  // On its way while the doorbell is understood: what lies where the next WQEs are expected. It was
  // written before the doorbell, if that tells of it.
  bool is_early = true;
  const uint64_t unit = (q->state.ci * 4 + t.rank()) & mask;
  const u128 early = ld_line(reinterpret_cast<const u128*>(q->fixed.sq) + unit);
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
      if (execute_coalesced(t, k, copy, (uint32_t)have) != 0) continue;
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
      if (q->fixed.blueflame) clear_blueflame(q);  // as in execute_coalesced
      q->state.ci = ci + c.blocks();
      if (q->state.producer < q->state.ci) q->state.producer = q->state.ci;
      q->state.blueflame += !by_ring;
    }
    finish(t, k, (uint32_t)ci);
    syncwarp();
  }
}

// Takes the next slot by itself, whatever it holds; false: it has not come, or the queue pair was
// returned.
BP_DEV_COLD bool visit_slot(uint32_t k) {
  const team t;
  context* q = t.qp(k);
  const uint32_t line = q->fixed.line, slot_lines = q->lines;
  const uint32_t early = leader_warp_threads * 16 / line_bytes(line);
  const uint32_t look = slot_lines < early ? slot_lines : early;
  uint8_t* stream = t.b()->stream;
  syncwarp();  // all have done with it
  // The first lines; a short stream's other lines never come.
  const uint32_t came = trailing_ones(ballot_each(t, [&](uint32_t i) {
    return i < look && take_line(q->slot, line, q->sequence, stream, i);
  }));
  syncwarp();
  // The control segment says how much more there is at least, and that how much there is in all.
  uint32_t need = lines_of(line, sizeof(bp_wqe_ctrl)), total = 0;
  if (came >= need) {
    need = lines_of(line, least_bytes(stream));
    if (came >= need) {
      total = stream_bytes(stream);
      need = lines_of(line, total);
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
  if (t.leads() && missing != ~0u) q->missing = missing;  // waited for
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
    aim(q, place(*q, 1));
  }
  finish(t, k, counter);
  syncwarp();
  return true;
}

// Takes whole slots in their order, up to a budget. Coalesces where two more have begun to come before one is done, and
// as long as they continue each other: what two or three warps do together one does as soon.
BP_DEV_COLD void visit_slots(uint32_t k) {
  const team t;
  watch& w = t.b()->rounds;
  uint32_t came = k == w.hot ? w.came : 0;
  syncwarp();  // all have read that
  if (t.leads()) w.hot = k;
  const uint64_t start_wqes = t.qp(k)->state.wqes, start_bytes = t.qp(k)->state.bytes;
  bool together = t.qp(k)->coalescing != 0, continues = true, many = false, has_key = false;
  uint32_t looks = 1;
  for (;;) {
    context* q = t.qp(k);
    if (q->state.wqes - start_wqes >= visit_wqes || q->state.bytes - start_bytes >= visit_bytes) return;
    if (many) {
      many = share_slots(k);
      continue;
    }
    if (together) {
      came = 0;  // the stream is that of all
      const uint32_t taken = carry_slots(k), n = taken & slots_count;
      many = (taken & slots_many) != 0;
      together = n > 1;
      continues = together || (taken & slots_wait) != 0;  // what has not come may continue these
      if (t.leads()) q->coalescing = together;
      syncwarp();
      if (n != 0) continue;
    }
    const uint32_t how = single_slot(k, came, looks);
    came = 0;
    if (how == single_next || how == single_coalesce) {
      together = continues && how == single_coalesce;
      looks = next_looks;
      has_key = false;
    } else if (how == single_key && !has_key) {
      has_key = true;  // if there is one
      find_key(t, q->fixed.peer_keys, word_at(t.b()->stream, 24));
    } else if (how == single_body) {
      write_ahead(k);
    } else if (how == single_done || how == single_waits || !visit_slot(k)) {
      return;
    }
  }
}

// Takes what a doorbell told of.
BP_DEV void visit_doorbell(uint32_t k) {
  uint32_t how = single_wqe(k);
  if (how == single_buffer) how = single_blueflame(k);
  if (how != single_done && how != single_waits) visit_ring(k);
}

// ---- Looking ----------------------------------------------------------------------------------

enum : uint32_t { nothing = 0, has_work = 1, has_news = 2, is_ahead = 4, wants_ahead = 8 };
// Every so many rounds the leader warp looks at what the host asks and other blocks have to give, and does
// what can wait: between them a round is one load.
constexpr uint32_t thorough_rounds = 16;
constexpr uint32_t telling_rounds = 32;

// The number of the grant that is in force, or was, when `asked` was written.
BP_DEV uint64_t last_grant(uint64_t asked) { return (asked - 1) | 1; }

// What a lane looks at for a queue pair, and what it finds there while nothing has come. It stays as
// it is until something is found, so a lane that has one queue pair keeps it in registers: a round is
// a load or two and a comparison.
struct sight {
  const uint32_t* line_word = nullptr;  // of an in-band line, the word that has the sequence
  const uint64_t* doorbell = nullptr;   // or the UAR's first register, and behind it the second
  uint32_t line = 0, sequence = 0;
  uint64_t first = 0, second = 0;
  bool posted = false;  // a visit ended early
  BP_DEV sight(const block_state* b, uint32_t k) {
    const context* q = &b->qps[k % BP_ENGINE_BLOCK_QPS];
    if (k >= BP_ENGINE_BLOCK_QPS || q->grant == 0) return;
    const bp_qpc_fixed& f = q->fixed;
    if (f.line != BP_LINE_NONE) {
      line_word = reinterpret_cast<const uint32_t*>(
          q->slot + (uint64_t)(q->missing + 1) * line_bytes(f.line) - 4);
      line = f.line;
      sequence = q->sequence;
    } else {
      doorbell = reinterpret_cast<const uint64_t*>(f.uar + BP_UAR_DOORBELL_OFFSET);
      first = q->state.registers[0];
      second = f.blueflame ? 0 : q->state.registers[1];
      posted = q->state.ci != q->state.producer || q->dbr_due != 0;
    }
  }
};

// A look for messages.
BP_DEV uint32_t glance(const sight& s, block_state* b, uint32_t k) {
  if (s.line_word != nullptr) {
    // Acquire: what the sender ordered before the line, before the looks at the slot.
    const uint32_t word = ld_acquire_sys(s.line_word);
    const uint32_t stands = standing(s.line, s.sequence, sequence_of(s.line, word));
    return stands == 1 ? has_work : stands == 2 ? is_ahead : nothing;
  }
  if (s.doorbell == nullptr) return nothing;
  const uint64_t* buffer = s.doorbell + (BP_UAR_BF_OFFSET - BP_UAR_DOORBELL_OFFSET) / 8;
  uint64_t second = ld_relaxed_sys(buffer);
  // Acquire: what the ringer stored before the register (WQE, record, payload), before our loads.
  const uint64_t first = ld_acquire_sys(s.doorbell);
  if (first == s.first && second == s.second && !s.posted) return nothing;
  if (second != s.second) second = ld_acquire_sys(buffer);  // as above
  b->polled[k][0] = first;
  b->polled[k][1] = second;
  return has_work;
}

// What a thorough round looks at besides.
BP_DEV uint32_t look_around(const bp_engine_args& a, block_state* b, uint32_t k, uint32_t found,
                            uint64_t asked, bool telling) {
  context* q = &b->qps[k];
  if (q->grant == 0) {
    // Granted and not returned, perhaps in an earlier launch, and perhaps asked for since.
    return asked != 0 && last_grant(asked) != ld_relaxed_sys(&qpc_of(a, k)->returned) ? has_news : nothing;
  }
  if (asked != q->grant) found |= has_news;
  if (found == nothing) {
    if (telling && q->told != q->state.wqes) tell_counts(a, k, q);
    if (wants_bodies(q)) found |= wants_ahead;
  }
  return found;
}

// The first lines of the hot queue pair's next slot, as many as the last message had: with the look that
// finds it, its data are here. They come before the look's acquire: each says by its sequence, which came in the
// same load, whether it is of this lap, and nothing outside of it is looked at on that ground.
constexpr uint32_t loads_ahead = 6;  // of a lane
BP_DEV uint32_t lines_ahead(team t, uint32_t hot) {
  const context* q = t.qp(hot % BP_ENGINE_BLOCK_QPS);
  if (hot >= BP_ENGINE_BLOCK_QPS || q->grant == 0 || t.size() != 32) return 0;
  if (q->fixed.line != BP_LINE_12_4 && q->fixed.line != BP_LINE_14_2) return 0;
  const uint32_t n = q->expect < 32 || q->fixed.line == BP_LINE_14_2 ? 32 : q->expect;
  return n < q->lines ? n : q->lines;
}

// What else a round found (watch.flags).
constexpr uint32_t is_over = 1, is_rare = 2, has_jobs = 4, has_epoch = 8;

// Rounds of looks until there is something, or the launch is over. Returns the queue pairs with work,
// as bits. By itself and without a call, so that nothing of it lies in local memory.
BP_DEV_COLD uint32_t look_out() {
  const team t;
  block_state* b = t.b();
  const bp_engine_args& a = b->args;
  const bp_engine_control_block* control = control_block_of(a);
  const uint32_t hot = b->rounds.hot;
  const bool stepped = a.rounds != 0;
  const uint32_t ahead_end = lines_ahead(t, hot);
  const uint64_t ahead_at = t.qp(hot % BP_ENGINE_BLOCK_QPS)->slot;
  const sight mine(b, t.rank());
  // A block without a queue pair has only the others' jobs to look at, and does so every round.
  const bool watches = mine.line_word != nullptr || mine.doorbell != nullptr;
  const bool idle = ballot(watches) == 0 && t.size() == BP_ENGINE_BLOCK_QPS && grid_blocks() > 1;
  for (uint32_t round = b->rounds.round;; round++) {
    const bool thorough = stepped || round % thorough_rounds == 0;
    const bool telling = stepped || round % telling_rounds == 0;
    uint64_t epoch = 0, stop = 0, open = 0;
    if (thorough) {
      epoch = ld_relaxed_sys(&control->epoch);
      stop = ld_relaxed_sys(&control->stop);
      open = ld_relaxed_gpu(&control->open);
    }
    u128 early[loads_ahead] = {};
    if (ahead_end > 32) {
      load_lines<loads_ahead>(ahead_at, 0, ahead_end, early);
    } else if (ahead_end != 0) {
      load_lines<1>(ahead_at, 0, ahead_end, early);
    }
    uint32_t work = 0, news = 0, ahead = 0, bodies = 0;
    for (uint32_t first = 0; first < BP_ENGINE_BLOCK_QPS; first += t.size()) {
      const uint32_t k = first + t.rank();
      // Relaxed, so that it is in flight together with the glance's; what it finds is loaded again with
      // acquire before it is used.
      const bool around = thorough && k < BP_ENGINE_BLOCK_QPS;
      const uint64_t asked = around ? ld_relaxed_sys(&qpc_of(a, k)->asked) : 0;
      uint32_t found = glance(t.size() == BP_ENGINE_BLOCK_QPS ? mine : sight(b, k), b, k);
      if (around) found = look_around(a, b, k, found, asked, telling);
      if (!thorough && ballot(found != nothing) == 0) continue;
      work |= ballot((found & has_work) != 0) << first;
      ahead |= ballot((found & is_ahead) != 0) << first;
      if (!thorough) continue;
      news |= ballot((found & has_news) != 0) << first;
      bodies |= ballot((found & wants_ahead) != 0) << first;
    }
    uint32_t flags = (news | ahead | bodies) != 0 ? is_rare : 0;
    if (thorough) {
      uint32_t mine = 0;
      if (t.leads()) {
        const bool over = stepped ? round + 1 >= a.rounds
                                  : round % 32 == 0 && elapsed_ns(b->rounds.start) > a.run_ns;
        mine = (over || stop != 0 ? is_over : 0) | (open != 0 ? has_jobs : 0) |
               (epoch != b->rounds.confirmed ? has_epoch : 0);
      }
      flags |= (uint32_t)warp_broadcast(mine);
    } else if (idle) {
      rest_();
      flags |= has_jobs;
    }
    // What was given back in this round is not visited.
    work &= ~(news | ahead);
    if ((work | flags) == 0) {
      rest_();
      continue;
    }
    uint32_t came = 0;
    // The stream is this queue pair's while none is visited before it.
    if (hot < 32 && (work & ((2u << hot) - 1)) == 1u << hot) {
      const context& q = b->qps[hot];
      came = q.fixed.line == BP_LINE_12_4
                 ? unpack_lines<loads_ahead>(early, BP_LINE_12_4, q.sequence, 0, ahead_end, b->stream)
                 : unpack_lines<1>(early, BP_LINE_14_2, q.sequence, 0, ahead_end, b->stream);
    }
    syncwarp();  // what a lane acquired, before the leader warp's loads; and all have the round's number
    if (t.leads()) {
      b->rounds.round = round + 1;
      b->rounds.epoch = epoch;
      b->rounds.came = came;
      b->rounds.flags = flags;
      b->rounds.news = news;
      b->rounds.ahead = ahead & ~news;
      b->rounds.bodies = bodies;
    }
    syncwarp();
    return work;
  }
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
BP_DEV_COLD void confirm() {
  const team t;
  forget_keys(t);
  if (t.leads()) {
    watch& w = t.b()->rounds;
    w.confirmed = w.epoch;
    // Everything that this block wrote, before the answer, for the host, which may free the memory;
    // and the epoch before the next look at a key.
    fence_sys();
    st_relaxed_sys(reinterpret_cast<uint64_t*>(t.b()->args.answers) + bid(), w.epoch);
  }
  syncwarp();
}

// What has time: what the host asks, what other blocks have to give, what can be written ahead.
BP_DEV_COLD void do_rare() {
  const team t;
  const watch& w = t.b()->rounds;
  each_bit(w.news, [&](uint32_t k) { answer(k); });
  each_bit(w.ahead, [&](uint32_t k) { give_back(k, BP_RETURN_WQE); });
}
BP_DEV_COLD void do_later() {
  const team t;
  const uint32_t flags = t.b()->rounds.flags;
  each_bit(t.b()->rounds.bodies, [&](uint32_t k) {
    if (t.qp(k)->grant == 0) return;  // given back since
    refresh_room(t, t.qp(k));  // here, so that no message has to
    write_ahead(k);
  });
  if ((flags & has_epoch) != 0) confirm();
  if ((flags & has_jobs) != 0) help();
}

// The first warp, until the launch ends.
BP_DEV void run_leader_warp(team t) {
  block_state* b = t.b();
  for (uint32_t k = t.rank(); k < BP_ENGINE_BLOCK_QPS; k += t.size()) b->qps[k].grant = 0;
  forget_keys(t);
  if (t.leads()) b->rounds = watch{now_ns(), 0, 0, 0, ~0u, 0, 0, 0, 0, 0};
  syncwarp();
  for (;;) {
    const uint32_t work = look_out();
    if ((t.b()->rounds.flags & is_rare) != 0) do_rare();
    each_bit(work, [&](uint32_t k) {
      if (t.qp(k)->fixed.line != BP_LINE_NONE) {
        visit_slots(k);
      } else {
        visit_doorbell(k);
      }
    });
    const uint32_t flags = t.b()->rounds.flags;
    if ((flags & (is_rare | has_jobs | has_epoch)) != 0) do_later();
    if ((flags & is_over) != 0) break;
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
  if (tid() >= leader_warp_threads) return assist();
  if (t.leads()) t.b()->args = args;
  syncwarp();
  run_leader_warp(t);
  if (!t.alone()) {
    syncwarp();
    if (t.leads()) t.b()->work.kind = order_exit;
    syncthreads();
  }
}

}  // namespace engine
}  // namespace bp

#endif
