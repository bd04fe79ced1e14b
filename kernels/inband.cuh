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

// A slot's data stream, word by word. Words 0 to 7 are control segment and remote address.
template <bool inline_v>
struct slot_stream {
  const wqe& w;
  uint64_t ticket;
  uint32_t qpn;
  BP_DEV uint32_t bytes() const {
    return inline_v ? inband_header_bytes + w.bytes : w.ds * BP_DS_BYTES;
  }
  BP_DEV uint32_t word(uint32_t k) const {
    if (k < 8 || !inline_v) {
      const u128 u = wqe_unit<false>(w, k / 4, ticket, qpn);
      const uint32_t lo = k & 1 ? u.w[1] : u.w[0], hi = k & 1 ? u.w[3] : u.w[2];
      return k & 2 ? hi : lo;  // no dynamic index: the unit stays in registers
    }
    return inline_word(w, k - 8);
  }
  BP_DEV uint32_t half(uint32_t h) const { return word(h / 2) >> (16 * (h & 1)) & 0xffff; }
};

// Writes one slot. All threads of the scope take part; nothing is waited for.
template <line L, bool inline_v, class Scope>
BP_DEV void write_slot(const bp_qp& qp, Scope scope, const wqe& w, uint64_t ticket) {
  using F = line_format<L>;
  const bp_window& win = qp.window;
  const slot_stream<inline_v> s{w, ticket, qp.qpn};
  const uint32_t seq = inband_sequence<L>(win, ticket);
  const uint32_t all = win.slot_bytes / F::bytes;
  const uint32_t used = (s.bytes() + F::data - 1) / F::data;
  const uint32_t lines = seq == 1 ? all : used;
  u128* slot = reinterpret_cast<u128*>(win.va + (uint64_t)slot_of(win, ticket) * win.slot_bytes);
  if constexpr (L == line::d12s4) {
    for (uint32_t i = scope.rank(); i < lines; i += scope.size()) {
      st_line(slot + i, u128{{s.word(3 * i), s.word(3 * i + 1), s.word(3 * i + 2), seq}});
    }
  } else if constexpr (L == line::d14s2) {
    for (uint32_t i = scope.rank(); i < lines; i += scope.size()) {
      u128 v;
      for (uint32_t j = 0; j < 4; j++) {
        const uint32_t hi = j == 3 ? seq : s.half(7 * i + 2 * j + 1);
        v.w[j] = s.half(7 * i + 2 * j) | hi << 16;
      }
      st_line(slot + i, v);
    }
  } else {
#if defined(__CUDACC__)
    static_assert(!__is_same(Scope, thread_scope), "a 60+4 line is stored by four lanes at once");
    for (uint32_t i = scope.rank(); i < lines * 4; i += scope.size()) {
      const uint32_t k = i / 4 * 15 + i % 4 * 4;
      const uint32_t last = i % 4 == 3 ? seq : s.word(k + 3);
      st_line(slot + i, u128{{s.word(k), s.word(k + 1), s.word(k + 2), last}});
    }
#else
    // On a CPU four lanes' stores are never one: one lane writes the line, its sequence last.
    for (uint32_t i = scope.rank(); i < lines; i += scope.size()) {
      for (uint32_t q = 0; q < 4; q++) {
        const uint32_t k = i * 15 + q * 4;
        const uint32_t last = q == 3 ? seq : s.word(k + 3);
        st_line(slot + i * 4 + q, u128{{s.word(k), s.word(k + 1), s.word(k + 2), last}});
      }
    }
#endif
  }
}

}  // namespace bp

#endif
