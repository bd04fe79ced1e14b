// In-band slots: data that announce themselves.
//
// A slot is a row of lines; every line carries a sequence number behind its data. The lines' data
// bytes, one after the other, are an mlx5 WQE: control segment, remote address, and then inline
// header and payload (whose byte count, not ds, says where the slot ends: ds counts up to the unit
// that the inline header begins in), or data and atomic segments as in an SQ. The NIC sends a slot
// when all its lines carry the sequence it expects. No store is ordered with any other: no fence,
// no doorbell.
//
// Sequence. Slot t % slots is written by ticket t in lap t / slots; its sequence is the lap's number
// counted from `inband_seq0` through 1..M (M = 2^32 - 1, or 65535), never 0. When the count starts
// again at 1, the sender writes every line of the slot, so that no line of the cycle before is left
// that could pass for one of this cycle.
//
// A line must arrive whole. 16-byte lines are one store of one thread. 60+4 lines are 64 bytes
// stored by four neighbouring lanes in one warp instruction: that these arrive together is an
// assumption about the GPU and the link, which `bellpush bench --tearing` checks on a machine.
#ifndef BELLPUSH_INBAND_CUH
#define BELLPUSH_INBAND_CUH

#include "credit.cuh"
#include "wqe.cuh"

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

// Payload bytes that one slot takes, in whole 16-byte units so that chunks stay aligned.
template <line L>
BP_DEV uint32_t inband_capacity(const bp_window& w) {
  return (w.slot_bytes / line_format<L>::bytes * line_format<L>::data - inband_header_bytes) & ~15u;
}

template <line L>
BP_DEV uint32_t inband_sequence(const bp_window& w, uint64_t ticket) {
  uint64_t lap = w.inband_seq0 - 1 + lap_of(w, ticket);
  if (lap >= line_format<L>::seq_max) lap %= line_format<L>::seq_max;
  return (uint32_t)lap + 1;
}

// A slot's data stream, word by word: nine words of header (control segment, remote address, inline
// header), then payload; or, not inline, the WQE as it stands in an SQ. Every lane makes all of the
// header: cheaper than lanes that go different ways to make a part each.
template <bool inline_v, bool aligned_v>
struct slot_stream {
  const wqe& w;
  uint64_t ticket;
  uint32_t header[16];

  BP_DEV slot_stream(const wqe& w_, uint64_t ticket_, uint32_t qpn) : w(w_), ticket(ticket_) {
    const u128 u[4] = {wqe_unit<false>(w, 0, ticket, qpn), wqe_unit<false>(w, 1, ticket, qpn),
                       wqe_unit<false>(w, 2, ticket, qpn), wqe_unit<false>(w, 3, ticket, qpn)};
    for (uint32_t i = 0; i < 16; i++) header[i] = u[i / 4].w[i % 4];
    if (inline_v) header[8] = be32(BP_INLINE_FLAG | w.bytes);
  }
  BP_DEV uint32_t bytes() const {
    return inline_v ? inband_header_bytes + w.bytes : w.ds * BP_DS_BYTES;
  }
  BP_DEV uint32_t payload(uint32_t k) const {
    return payload_u32(w.gather, (k - 9) * 4, w.bytes, aligned_v);
  }
  BP_DEV uint32_t word(uint32_t k) const {
    if (inline_v && k >= 9) return payload(k);
    uint32_t v = 0;
    // Selects, not a lookup: an index that is not constant would put the array into memory.
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (uint32_t i = 0; i < (inline_v ? 9 : 16); i++) v = k == i ? header[i] : v;
    return v;
  }
};

// The 16 bytes that a lane stores: unit `i` of the slot, which is line `i` or a quarter of one.
// `payload_v`: the unit lies behind the header, so none of its words can be one of the header's.
template <line L, bool payload_v, class Stream>
BP_DEV u128 slot_unit(const Stream& s, uint32_t i, uint32_t seq) {
  const auto word = [&](uint32_t k) { return payload_v ? s.payload(k) : s.word(k); };
  if constexpr (L == line::d12s4) {
    return u128{{word(3 * i), word(3 * i + 1), word(3 * i + 2), seq}};
  } else if constexpr (L == line::d14s2) {
    // Seven half words from half word 7i: from a word's start for even i, from its middle else.
    const uint32_t k = 7 * i / 2, shift = 16 * (i & 1);
    const uint32_t a = word(k), b = word(k + 1), c = word(k + 2), d = word(k + 3);
    const auto pick = [&](uint32_t lo, uint32_t hi) {
      return shift == 0 ? lo : lo >> 16 | hi << 16;
    };
    return u128{{pick(a, b), pick(b, c), pick(c, d), (d >> shift & 0xffff) | seq << 16}};
  } else {
    const uint32_t k = i / 4 * 15 + i % 4 * 4;
    return u128{{word(k), word(k + 1), word(k + 2), i % 4 == 3 ? seq : word(k + 3)}};
  }
}

template <line L, bool inline_v, bool aligned_v, class Scope>
BP_DEV void write_lines(const bp_window& win, Scope scope, const slot_stream<inline_v, aligned_v>& s) {
  using F = line_format<L>;
  constexpr uint32_t units = F::bytes / 16;
  constexpr uint32_t header_units = 3;  // in every format the first three hold all of the header
  const uint32_t seq = inband_sequence<L>(win, s.ticket);
  const uint32_t used = (s.bytes() + F::data - 1) / F::data;
  const uint32_t n = (seq == 1 ? win.slot_bytes / F::bytes : used) * units;
  u128* slot = reinterpret_cast<u128*>(win.va + (uint64_t)slot_of(win, s.ticket) * win.slot_bytes);
#if defined(__CUDACC__)
  static_assert(units == 1 || !__is_same(Scope, thread_scope),
                "a 60+4 line is stored by four lanes at once");
  const uint32_t step = scope.size();
  uint32_t i = scope.rank();
  // The first round, in which each lane may have the header's or payload.
  if (i < n) st_line(slot + i, slot_unit<L, false>(s, i, seq));
  i += step;
  if constexpr (inline_v) {
    for (; i < header_units; i += step) st_line(slot + i, slot_unit<L, false>(s, i, seq));
    // The rest with four units' loads in flight before the first store.
    for (; i < n; i += 4 * step) {
      u128 v[4];
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) v[k] = slot_unit<L, true>(s, i + k * step, seq);
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) {
        if (i + k * step < n) st_line(slot + i + k * step, v[k]);
      }
    }
  } else {
    for (; i < n; i += step) st_line(slot + i, slot_unit<L, false>(s, i, seq));
  }
#else
  // On a CPU lanes' stores are never one: a lane writes whole lines, the sequence last.
  for (uint32_t i = scope.rank() * units; i < n; i += units * scope.size()) {
    for (uint32_t q = 0; q < units; q++) {
      const bool behind = inline_v && i + q >= header_units;
      st_line(slot + i + q, behind ? slot_unit<L, inline_v>(s, i + q, seq)
                                   : slot_unit<L, false>(s, i + q, seq));
    }
  }
#endif
}

template <line L, bool inline_v, class Scope>
BP_DEV_COLD void write_slot_unaligned(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket) {
  write_lines<L>(qp.window, scope, slot_stream<inline_v, false>(w, ticket, qp.qpn));
}

// Writes one slot. All threads of the scope take part; nothing is waited for.
template <line L, bool inline_v, class Scope>
BP_DEV void write_slot(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket) {
  if constexpr (inline_v) {
    if ((w.gather & 3) != 0) {
      write_slot_unaligned<L, inline_v>(qp, scope, w, ticket);
      return;
    }
  }
  write_lines<L>(qp.window, scope, slot_stream<inline_v, true>(w, ticket, qp.qpn));
}

}  // namespace bp

#endif
