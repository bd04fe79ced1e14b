// Building mlx5 WQEs, 16 bytes at a time: a WQE is a row of 16-byte units (mlx5 calls them DS), and
// each thread of a scope builds and stores the units that fall to it, so that a warp writes whole
// 64-byte blocks.
#ifndef BELLPUSH_WQE_CUH
#define BELLPUSH_WQE_CUH

#include <bellpush/impl/state.cuh>
#include <bellpush/where.cuh>

namespace bp {

#if defined(BELLPUSH_WHERE)
inline namespace where {
#endif

// What a WQE says, before its index is known. Addresses and lengths in the machine's order.
struct wqe {
  uint32_t opcode;
  uint32_t ds;          // units that the NIC reads
  uint32_t fm_ce_se;    // BP_CTRL_*
  uint32_t imm;         // immediate, machine order
  uint64_t raddr;
  uint32_t rkey;
  uint32_t bytes;       // gather or inline length
  uint64_t gather;      // gather or scatter address; inline: the payload's address in this GPU
  uint32_t lkey;
  uint64_t swap_add;    // atomics; of a value the first 8 bytes
  uint64_t compare;     // atomics; of a value the last 8 bytes
  bool is_value;        // inline: the payload is those two words, and lies in no memory
  bool fetches;         // brings data here that the caller will read
  bool refused;         // lies outside a region: not to be posted
#if defined(BELLPUSH_WHERE)
  uint32_t file, line;  // as of `located`; line 0: nobody knows
#endif
};

BP_DEV wqe make_wqe(uint32_t opcode, uint32_t ds, uint64_t raddr, uint32_t rkey) {
  wqe w;
  w.opcode = opcode;
  w.ds = ds;
  w.fm_ce_se = 0;
  w.imm = 0;
  w.raddr = raddr;
  w.rkey = rkey;
  w.bytes = 0;
  w.gather = 0;
  w.lkey = 0;
  w.swap_add = 0;
  w.compare = 0;
  w.is_value = false;
  w.fetches = false;
  w.refused = false;
#if defined(BELLPUSH_WHERE)
  w.file = 0;
  w.line = 0;
#endif
  return w;
}

#if defined(BELLPUSH_WHERE)
}  // namespace where
#endif

// One to the peer of an endpoint.
BP_DEV wqe wqe_to_peer(const located<bp_endpoint>& ep, uint32_t opcode, uint32_t ds, uint64_t raddr) {
  wqe w = make_wqe(opcode, ds, raddr, ep.remote_rkey);
#if defined(BELLPUSH_WHERE)
  w.file = ep.file;
  w.line = ep.line;
#endif
  return w;
}

BP_DEV uint32_t wqe_blocks(const wqe& w) { return (w.ds + 3) / 4; }

// Payload that is not whole words at a word's address: byte by byte.
BP_DEV_COLD uint32_t payload_bytes(const uint8_t* p, uint32_t left) {
  uint32_t v = 0;
  for (uint32_t i = 0; i < 4 && i < left; i++) v |= (uint32_t)p[i] << (8 * i);
  return v;
}
// 4 bytes of payload at `offset`, never reading at or past `bytes`; missing bytes are 0. `words`:
// address and length are multiples of 4. A constant there makes it one load without a branch.
BP_DEV uint32_t payload_u32(uint64_t src, uint32_t offset, uint32_t bytes, bool words) {
  if (words) return offset < bytes ? *reinterpret_cast<const uint32_t*>(src + offset) : 0;
  const uint8_t* p = reinterpret_cast<const uint8_t*>(src + offset);
  return offset < bytes ? payload_bytes(p, bytes - offset) : 0;
}

BP_DEV u128 unit_ctrl(const wqe& w, uint64_t index, uint32_t qpn) {
  u128 u;
  u.w[0] = be32_index((uint32_t)index, w.opcode);
  u.w[1] = be32(qpn << 8 | w.ds);
  u.w[2] = w.fm_ce_se << 24;  // little-endian word: signature 0, stream 0, fm_ce_se in byte 11
  u.w[3] = be32(w.imm);
#if defined(BELLPUSH_WHERE)
  u.w[2] |= (w.line >> 8) << 8 | (w.line & 0xff) << 16;  // bytes 9 and 10
#endif
  return u;
}
BP_DEV u128 unit_pair(uint64_t address, uint32_t word) {  // remote address: address, key, 0
  u128 u;
  u.w[0] = be32((uint32_t)(address >> 32));
  u.w[1] = be32((uint32_t)address);
  u.w[2] = be32(word);
  u.w[3] = 0;
  return u;
}
BP_DEV u128 unit_to_peer(const wqe& w, [[maybe_unused]] uint64_t index) {
  u128 u = unit_pair(w.raddr, w.rkey);
#if defined(BELLPUSH_WHERE)
  const auto add = [](uint32_t sum, uint32_t half) { return digest(digest(sum, half), half >> 8); };
  if (w.line != 0) u.w[3] = be32(add(add(w.file, w.line), (uint32_t)index));
#endif
  return u;
}
BP_DEV u128 unit_data(uint32_t bytes, uint32_t lkey, uint64_t address) {
  u128 u;
  u.w[0] = be32(bytes);
  u.w[1] = be32(lkey);
  u.w[2] = be32((uint32_t)(address >> 32));
  u.w[3] = be32((uint32_t)address);
  return u;
}
BP_DEV u128 unit_atomic(uint64_t swap_add, uint64_t compare) {
  u128 u;
  u.w[0] = be32((uint32_t)(swap_add >> 32));
  u.w[1] = be32((uint32_t)swap_add);
  u.w[2] = be32((uint32_t)(compare >> 32));
  u.w[3] = be32((uint32_t)compare);
  return u;
}
BP_DEV u128 unit_zero() { return u128{{0, 0, 0, 0}}; }

BP_DEV bool is_atomic(const wqe& w) {
  return w.opcode == BP_OP_ATOMIC_FA || w.opcode == BP_OP_ATOMIC_CS;
}

// Word `k` of a payload that is in registers; 0 behind its end.
BP_DEV uint32_t value_word(const wqe& w, uint32_t k) {
  const uint64_t half = k < 2 ? w.swap_add : w.compare;
  return k < 4 ? (uint32_t)(half >> (32 * (k & 1))) : 0;
}

// Word `k` of a WQE with inline payload, counted after the control segment's four words and the
// remote address's four: word 0 is the inline header.
BP_DEV uint32_t inline_word(const wqe& w, uint32_t k, bool words) {
  if (k == 0) return be32(BP_INLINE_FLAG | w.bytes);
  return w.is_value ? value_word(w, k - 1) : payload_u32(w.gather, (k - 1) * 4, w.bytes, words);
}

// One of two units. Lanes of a warp that build a unit each select among words: cheaper than lanes that diverge, whose
// parts run one after the other.
BP_DEV u128 select_unit(bool first, const u128& a, const u128& b) {
  u128 v;
  for (uint32_t i = 0; i < 4; i++) v.w[i] = first ? a.w[i] : b.w[i];
  return v;
}

// 16-byte unit `u` of a WQE. `inline_v` says that the payload follows in the WQE itself.
template <bool inline_v>
BP_DEV u128 wqe_unit(const wqe& w, uint32_t u, uint64_t index, uint32_t qpn) {
  const u128 head = select_unit(u == 0, unit_ctrl(w, index, qpn), unit_to_peer(w, index));
  u128 rest;
  if constexpr (inline_v) {
    if (u < 2) return head;
    for (uint32_t i = 0; i < 4; i++) rest.w[i] = inline_word(w, (u - 2) * 4 + i, ((w.gather | w.bytes) & 3) == 0);
  } else {
    const u128 data = unit_data(w.bytes, w.lkey, w.gather);
    rest = select_unit(u == 2 && is_atomic(w), unit_atomic(w.swap_add, w.compare), data);
  }
  return select_unit(u < w.ds, select_unit(u < 2, head, rest), unit_zero());
}

// The SQ's unit `u` of the WQE at `index`; a WQE may run over the ring's end. A ring has at most 2^15 blocks.
BP_DEV u128* sq_unit(const bp_qp& qp, uint64_t index, uint32_t u) {
  const uint32_t unit = ((uint32_t)index * 4 + u) & (sq_blocks(qp) * 4 - 1);
  return reinterpret_cast<u128*>(qp.sq) + unit;
}

// BlueFlame's check word (see doorbell.cuh): the contribution of one unit.
BP_DEV uint32_t check_word(uint32_t w, uint32_t i) {
  uint32_t x = w + i * 0x9E3779B9u;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  return x ^ (x >> 16);
}
BP_DEV uint32_t check_unit(const u128& v, uint32_t u) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 4; i++) {
    if (u * 4 + i != 3) sum += check_word(v.w[i], u * 4 + i);  // word 3 holds the sum itself
  }
  return sum;
}

}  // namespace bp

#endif
