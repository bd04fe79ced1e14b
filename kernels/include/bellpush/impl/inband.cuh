// In-band slots: data from which the NIC recognises that a message is whole.
//
// A slot is an array of lines; every line carries a sequence number behind its data. The lines' data bytes, joined,
// are an mlx5 WQE: control segment and remote address, then either inline header and payload, or data and atomic
// segments as in an SQ. With inline data the byte count, not ds, gives the end of the slot: ds counts up to the
// unit in which the inline header begins. The NIC sends a slot when all its lines carry the expected sequence
// number. No store is ordered with any other: no fence, no doorbell.
//
// Sequence number. Ticket t writes slot t % slots in lap t / slots. The slot's sequence number is the lap's number,
// counted from `inband_seq0` through 1..M (M = 2^32 - 1, or 65535), never 0. In the laps with sequence 1 and 2, the
// scrub laps, the sender clears the lines behind its stream, so that no line keeps a sequence until the next cycle comes
// to it. One such lap is not enough: the lines of its own streams carry its sequence, and nothing else clears those.
//
// A line must arrive whole. 16-byte lines are one store of one thread. 60+4 lines are 64 bytes, stored by four
// neighbouring lanes in one warp instruction. Their arrival together is an assumption about the GPU and the link,
// which `bellpush bench --tearing` checks on a machine. A scope of fewer than four threads cannot write them.
#ifndef BELLPUSH_INBAND_CUH
#define BELLPUSH_INBAND_CUH

#include <bellpush/impl/credit.cuh>
#include <bellpush/impl/wqe.cuh>
#include <bellpush/path.cuh>

namespace bp {

template <line L>
struct line_format;
template <>
struct line_format<line::d12s4> {
  static constexpr uint32_t bytes = 16, data = 12, seq_max = 0xffffffffu;
};
template <>
struct line_format<line::d14s2> {
  static constexpr uint32_t bytes = 16, data = 14, seq_max = 0xffffu;
};
template <>
struct line_format<line::d60s4> {
  static constexpr uint32_t bytes = 64, data = 60, seq_max = 0xffffffffu;
};

constexpr uint32_t inband_header_bytes = 36;  // control 16, remote address 16, inline header 4

// Payload bytes of one slot, in whole 16-byte units so that chunks stay aligned.
template <line L>
BP_DEV uint32_t inband_capacity(const bp_window& w) {
  return (w.slot_bytes / line_format<L>::bytes * line_format<L>::data - inband_header_bytes) & ~15u;
}

// The smallest slot (an atomic's WQE and the sequences must fit), and what it holds: a put of no more needs no look at
// the size of the window's slots.
constexpr uint32_t inband_least_slot = 128;
template <line L>
constexpr uint32_t least_capacity =
    (inband_least_slot / line_format<L>::bytes * line_format<L>::data - inband_header_bytes) & ~15u;

// The sequences of scrub laps are 1 up to this.
constexpr uint32_t scrub_laps = 2;

template <line L>
BP_DEV uint32_t inband_sequence(const bp_window& w, uint64_t lap_number) {
  // Modulo 2^32 - 1: the sum of the halves, twice, and once less if that is the modulus itself. Cheaper than a
  // branch that is never taken.
  uint64_t lap = w.inband_seq0 - 1 + lap_number;
  lap = (lap & 0xffffffff) + (lap >> 32);
  lap = (lap & 0xffffffff) + (lap >> 32);
  uint32_t m = lap == 0xffffffff ? 0 : (uint32_t)lap;
  if constexpr (line_format<L>::seq_max == 0xffff) {  // which divides 2^32 - 1
    m = (m & 0xffff) + (m >> 16);
    m = (m & 0xffff) + (m >> 16);
    m = m == 0xffff ? 0 : m;
  }
  return m + 1;
}

// First word of unit `i` in a slot's data stream; for a 14+2 line with an odd number, the word in whose middle the
// line begins.
template <line L>
BP_DEV uint32_t first_word(uint32_t i) {
  if constexpr (L == line::d12s4) {
    return 3 * i;
  } else if constexpr (L == line::d14s2) {
    return 7 * i / 2;
  } else {
    return i / 4 * 15 + i % 4 * 4;
  }
}

// Payload words of unit `i`, as far as it has any. The stream's words 0 to 8 are header and result in 0. No ticket
// is needed, so a caller can load them while it waits for one.
template <line L, bool words_v>
BP_DEV u128 unit_payload(uint64_t src, uint32_t bytes, uint32_t i) {
  const uint32_t k = first_word<L>(i);
  u128 v;
  for (uint32_t j = 0; j < 4; j++) {
    const uint32_t offset = (k + j - 9) * 4;  // wraps, and is out of range, for the header's words
    v.w[j] = payload_u32(src, k + j < 9 ? bytes : offset, bytes, words_v);
  }
  return v;
}

// The first words of a slot's stream: control segment, remote address and inline header; for a WQE without inline
// data all of it, as in an SQ. Every lane computes all of them, which is cheaper than divergent lanes that compute
// a part each.
constexpr uint32_t header_units = 3;  // in every format the first three hold all of an inline header
template <bool inline_v>
struct slot_header {
  static constexpr uint32_t words = inline_v ? 9 : 16;
  uint32_t w[16];
  BP_DEV slot_header(const wqe& wqe, uint64_t ticket, uint32_t qpn) {
    for (uint32_t u = 0; u < 4; u++) {
      const u128 v = wqe_unit<false>(wqe, u, ticket, qpn);
      for (uint32_t i = 0; i < 4; i++) w[u * 4 + i] = v.w[i];
    }
    if (inline_v) w[8] = be32(BP_INLINE_FLAG | wqe.bytes);
  }
  // Replaces the header's words in `v`, of unit `i`. It selects with constant indices; a lookup would put the array
  // into memory.
  template <line L>
  BP_DEV void over(u128* v, uint32_t i) const {
    constexpr uint32_t units = inline_v ? header_units : 6;
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t u = 0; u < units; u++) {
#if defined(__CUDACC__)
#pragma unroll
#endif
      for (uint32_t j = 0; j < 4; j++) {
        const uint32_t k = first_word<L>(u) + j;
        if (k < words) v->w[j] = i == u ? w[k] : v->w[j];
      }
    }
  }
};

// The 16 bytes of unit `i`, which is a line or a quarter of one, from its stream words.
template <line L>
BP_DEV u128 unit_line(const u128& v, uint32_t i, uint32_t seq) {
  if constexpr (L == line::d12s4) {
    return u128{{v.w[0], v.w[1], v.w[2], seq}};
  } else if constexpr (L == line::d14s2) {
    // Seven half words: from the first word's start for even i, from its middle for odd i.
    const bool odd = (i & 1) != 0;
    const auto pick = [&](uint32_t lo, uint32_t hi) { return odd ? lo >> 16 | hi << 16 : lo; };
    const uint32_t last = odd ? v.w[3] >> 16 : v.w[3] & 0xffff;
    return u128{{pick(v.w[0], v.w[1]), pick(v.w[1], v.w[2]), pick(v.w[2], v.w[3]), last | seq << 16}};
  } else {
    return u128{{v.w[0], v.w[1], v.w[2], i % 4 == 3 ? seq : v.w[3]}};
  }
}

template <line L>
constexpr uint32_t line_units = line_format<L>::bytes / 16;

// Units that a scope's threads store in one pass: whole lines, so that the same four lanes always store a line
// together. Remaining threads store none.
template <line L, class Scope>
BP_DEV uint32_t pass_units(Scope scope) {
  return scope.size() & ~(line_units<L> - 1);
}
template <class P, class Scope>
BP_DEV bool can_write_lines(Scope scope) {
  // Any scope has one thread. The compiler does not know a warp's size, and would query it.
  if constexpr (!P::inband || line_units<P::line_v> == 1) return true;
  return pass_units<P::line_v>(scope) != 0;
}

// Stores unit `i` of a slot, if `is_there`. The whole warp calls it together where a line has several units.
template <line L>
BP_DEV void st_line_unit(u128* slot, uint32_t i, const u128& v, bool is_there) {
  if constexpr (line_units<L> == 1) {
    if (is_there) st_line(slot + i, v);
  } else {
#if defined(__CUDACC__)
    syncwarp();  // nothing else makes the four lanes' stores one instruction
    if (is_there) st_line(slot + i, v);
#else
    // On a CPU the stores of several lanes are never one. Within a warp they are at least ordered, the units with
    // the sequence number last; so a line that is not stored together is torn here as on a GPU.
    const bool is_last = i % line_units<L> == line_units<L> - 1;
    if (is_there && !is_last) st_line(slot + i, v);
    syncwarp();
    if (is_there && is_last) st_line(slot + i, v);
#endif
  }
}

// Clears the lines behind a slot's last one, in a scrub lap: 0 is no lap's sequence. The NIC does not wait for these.
// They are therefore stored before the lines that it waits for, with a fence between: one that came after the NIC has
// sent the slot could be there after the slot's next writer's line, and would have overwritten it for good.
template <line L, class Scope>
BP_DEV void scrub_lines(u128* slot, Scope scope, uint32_t first_unit, uint32_t end_unit) {
  const uint32_t step = pass_units<L>(scope), rank = scope.rank();
  const uint32_t in_warp = line_units<L> == 1 ? 0 : rank % 32;  // all lanes of a warp make the same number of passes
  BP_NO_UNROLL for (uint32_t i = first_unit + rank; i - in_warp < end_unit; i += step) {
    st_line_unit<L>(slot, i, unit_zero(), rank < step && i < end_unit);
  }
  fence_sys();  // orders them before the scope's other lines, for the NIC and for the slot's next writer
  scope.sync();
}

// `payload(i)`: the payload words of unit `i`, as from unit_payload(); `early`: those of this thread's first unit.
template <line L, bool inline_v, class Scope, class Payload>
BP_DEV void write_lines(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket, const u128& early,
                        Payload payload) {
  using F = line_format<L>;
  const bp_window& win = qp.window;
  constexpr uint32_t units = line_units<L>;
  const slot_header<inline_v> header(w, ticket, qp.qpn);
  const window_place place = place_of(win, ticket);
  const uint32_t seq = inband_sequence<L>(win, place.lap);
  const uint32_t bytes = inline_v ? inband_header_bytes + w.bytes : w.ds * BP_DS_BYTES;
  const uint32_t used = (bytes + F::data - 1) / F::data;
  u128* slot = reinterpret_cast<u128*>(win.va + (uint64_t)place.slot * win.slot_bytes);
  const uint32_t n = used * units;
  if (seq <= scrub_laps) scrub_lines<L>(slot, scope, n, win.slot_bytes / F::bytes * units);
  const auto headed = [&](uint32_t i, u128 v) {
    header.template over<L>(&v, i);
    return unit_line<L>(v, i, seq);
  };
  const auto behind = [&](uint32_t i) { return inline_v ? payload(i) : unit_zero(); };
  static_assert(units == 1 || !is_thread_scope<Scope>, "a 60+4 line is stored by four lanes at once");
  const uint32_t step = pass_units<L>(scope), rank = scope.rank();
  const uint32_t in_warp = units == 1 ? 0 : rank % 32;  // all lanes of a warp make the same number of passes
  const auto store = [&](uint32_t i, const u128& v) {
    st_line_unit<L>(slot, i, v, units == 1 ? i < n : (rank < step) & (i < n));
  };
  uint32_t i = rank;
  if (i - in_warp < n) store(i, headed(i, early));
  i += step;
  for (; i - in_warp < n && i - in_warp < (inline_v ? header_units : 16); i += step) {
    store(i, headed(i, behind(i)));
  }
  // The remaining units, with four units' loads in flight before the first store.
  for (; i - in_warp < n; i += 4 * step) {
    u128 v[4];
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t k = 0; k < 4; k++) v[k] = behind(i + k * step);
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t k = 0; k < 4; k++) {
      const uint32_t at = i + k * step;
      store(at, unit_line<L>(v[k], at, seq));
    }
  }
}

// A payload in memory, at `w.gather`.
template <line L, bool inline_v, bool words_v, class Scope>
BP_DEV void write_gathered(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket, const u128& early) {
  write_lines<L, inline_v>(qp, scope, w, ticket, early, [&](uint32_t i) {
    return unit_payload<L, words_v>(w.gather, w.bytes, i);
  });
}

// A put whose payload is not whole words. Its parts are passed one by one: passing a WQE by reference would put it
// into memory for all callers.
template <line L, class Scope>
BP_DEV_COLD void write_slot_bytes(bp_qp qp, Scope scope, uint64_t raddr, uint32_t rkey,
                                  uint64_t src, uint32_t bytes, uint32_t fm_ce_se,
                                  uint64_t ticket) {
  wqe w = make_wqe(BP_OP_RDMA_WRITE, header_units, raddr, rkey);
  w.gather = src;
  w.bytes = bytes;
  w.fm_ce_se = fm_ce_se;
  const u128 early = unit_payload<L, false>(src, bytes, scope.rank());
  write_gathered<L, true, false>(qp, scope, w, ticket, early);
}

BP_DEV bool whole_words(uint64_t src, uint64_t bytes) { return ((src | bytes) & 3) == 0; }

// The unit of a slot's payload that this thread needs first: its first one; of a thread that writes all, the first
// that is payload.
template <line L, class Scope>
BP_DEV uint32_t early_unit(Scope scope) {
  return L == line::d12s4 && is_thread_scope<Scope> ? header_units : scope.rank();
}
// That unit, if the payload is whole words: loaded while the caller waits for a ticket. Without a branch, see
// with_room().
template <line L, class Scope>
BP_DEV u128 early_payload(Scope scope, uint64_t src, uint32_t bytes) {
  return unit_payload<L, true>(src, whole_words(src, bytes) ? bytes : 0, early_unit<L>(scope));
}

// A payload of whole words by one thread, in 12+4 lines. A short one: the header fills the first three lines, and the
// payload the rest, so that no word has to be selected; `early` its first three, `word(k)` the k-th. Any other one, and
// each of a scrub lap, by `rest()`.
constexpr uint32_t short_bytes = 48;
template <class Word, class Rest>
BP_DEV void write_short(const bp_qp& qp, const wqe& w, uint64_t ticket, const u128& early, Word word, Rest rest) {
  const bp_window& win = qp.window;
  const window_place place = place_of(win, ticket);
  const uint32_t seq = inband_sequence<line::d12s4>(win, place.lap);
  if ((seq <= scrub_laps) | (w.bytes > short_bytes)) return rest();
  const slot_header<true> header(w, ticket, qp.qpn);
  u128* slot = reinterpret_cast<u128*>(win.va + (uint64_t)place.slot * win.slot_bytes);
  for (uint32_t i = 0; i < header_units; i++) {
    st_line(slot + i, u128{{header.w[3 * i], header.w[3 * i + 1], header.w[3 * i + 2], seq}});
  }
  st_line(slot + header_units, u128{{early.w[0], early.w[1], early.w[2], seq}});
  BP_NO_UNROLL for (uint32_t at = 12; at < w.bytes; at += 12) {
    const uint32_t k = at / 4;
    st_line(slot + header_units + at / 12, u128{{word(k), word(k + 1), word(k + 2), seq}});
  }
}

// Writes one slot. All threads of the scope take part; nothing is waited for.
template <line L, bool inline_v, class Scope>
BP_DEV void write_slot(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket,
                       const u128& early) {
  if constexpr (inline_v) {
    if (!whole_words(w.gather, w.bytes)) {
      write_slot_bytes<L>(late_copy(qp), scope, w.raddr, w.rkey, w.gather, w.bytes, w.fm_ce_se, ticket);
      return;
    }
    if constexpr (L == line::d12s4 && is_thread_scope<Scope>) {
      const auto word = [&](uint32_t k) { return payload_u32(w.gather, 4 * k, w.bytes, true); };
      // The general way begins with the first unit, which has no payload.
      write_short(qp, w, ticket, early, word, [&] { write_gathered<L, true, true>(qp, scope, w, ticket, unit_zero()); });
      return;
    }
  }
  write_gathered<L, inline_v, true>(qp, scope, w, ticket, early);
}

// Writes one slot whose payload is a value in registers.
template <line L, class Scope>
BP_DEV void write_value(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket) {
  const auto unit = [&](uint32_t i) {
    const uint32_t k = first_word<L>(i) - inband_header_bytes / 4;  // wraps, and is no payload, for the header's words
    return u128{{value_word(w, k), value_word(w, k + 1), value_word(w, k + 2), value_word(w, k + 3)}};
  };
  const auto lines = [&] { write_lines<L, true>(qp, scope, w, ticket, unit(scope.rank()), unit); };
  if constexpr (L == line::d12s4 && is_thread_scope<Scope>) {
    const auto word = [&](uint32_t k) { return value_word(w, k); };
    write_short(qp, w, ticket, unit(header_units), word, lines);
  } else {
    lines();
  }
}

}  // namespace bp

#endif
