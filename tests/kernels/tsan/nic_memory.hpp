// What a NIC in plain memory and its queue pair share.
#ifndef BELLPUSH_TESTS_NIC_MEMORY_HPP
#define BELLPUSH_TESTS_NIC_MEMORY_HPP

#include <stdint.h>
#include <string.h>

#include <bellpush/bellpush.cuh>

constexpr uint32_t sq_log = 6, cq_log = 7, slots = 4;

template <uint32_t slot_bytes>
struct NicMemory {
  alignas(64) uint8_t sq[64 << sq_log];
  alignas(64) uint8_t cq[64 << cq_log];
  alignas(64) uint8_t window[slots * slot_bytes];
  alignas(64) uint8_t uar[BP_UAR_BYTES];
  alignas(64) uint32_t dbr[2], cq_dbr[2];
  alignas(64) uint32_t ready[1 << sq_log];
  bp_qp_state state;
  bp_status status;
};

// A big-endian word.
inline uint32_t be32(const uint8_t* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return __builtin_bswap32(v);
}

#endif
