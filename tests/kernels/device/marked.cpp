// What the engine on a GPU does with a signal that is set: it is carried out behind all before it, also right behind
// the data, and its word is written at once. And what else ends a run of slots.
#include "check.hpp"
#include <bellpush/bellpush.cuh>
#include "engine/slot_run.cuh"

using namespace bp::engine;

using later = bp::path<bp::data::push, bp::kick::kernel>;
using strict = bp::path<bp::data::push, bp::kick::kernel, bp::share::exclusive, bp::reach::system, bp::order::strict>;

// Whether kernels of path P mark a signal that they set on an endpoint of this tag.
template <class P>
bool marks(uint32_t tag) {
  bp_endpoint ep = {};
  ep.tag = tag;
  CHECK(bp::serves<P>(ep));
  return bp::detail::signal_wqe<P>(ep, 0, bp::signal_set{1}).fm_ce_se == BP_CTRL_FENCE_SMALL;
}

found_slot found[4];
context q = {};

// Slots of 48 bytes, each behind the one before.
void four_slots() {
  for (uint32_t i = 0; i < 4; i++) found[i] = found_slot{0x1000 + 48 * i, 48, 0, 0, 0, 0};
}

// Those that are carried out together, from the first on.
uint32_t slots_together() {
  uint32_t n = 0;
  while (n < 4 && goes_on(found, n)) n++;
  return n;
}

// Slots of 8 lines of 12 + 4, sequence 7, in each of which is a WRITE of 44 bytes.
alignas(64) uint32_t window[2][8][4];
void write_word(uint32_t slot, uint32_t i, uint32_t v) { window[slot][i / 3][i % 3] = v; }
void write_slots() {
  for (uint32_t i = 0; i < 2; i++) {
    for (uint32_t line = 0; line < 7; line++) window[i][line][3] = 7;
    write_word(i, 0, bp::be32(i << 8 | BP_OP_RDMA_WRITE));
    write_word(i, 1, bp::be32(0x55 << 8 | 3));
    write_word(i, 2, 0);
    write_word(i, 5, bp::be32(0x1000 + i * 44));
    write_word(i, 6, bp::be32(0x99));
    write_word(i, 8, bp::be32(BP_INLINE_FLAG | 44));
  }
  q.fixed.window = q.slot = (uint64_t)window;
  q.fixed.slots = 2;
  q.fixed.slot_bytes = 128;
  q.fixed.line = BP_LINE_12_4;
  q.fixed.qpn = 0x55;
  q.sequence = 7;
}
// Whether the second one is of the run that the first begins.
bool follows() {
  order o = {};
  o.key = 0x99;
  o.from = 0x1000;
  o.bytes = 44;
  alignas(4) uint8_t header[peek_bytes];
  CHECK(is_of_run(q, o, 0, header));
  return is_of_run(q, o, 1, header);
}
// The same with a word of the second one changed.
bool follows_with(uint32_t i, uint32_t v) {
  write_slots();
  write_word(1, i, v);
  return follows();
}

int main() {
  CHECK((write_slots(), follows()));
  CHECK(!follows_with(2, BP_CTRL_FENCE_SMALL << 24));  // marked: byte 11
  CHECK(!follows_with(0, bp::be32(1 << 8 | BP_OP_ATOMIC_FA)));
  CHECK(!follows_with(0, bp::be32(0 << 8 | BP_OP_RDMA_WRITE)));  // another ticket's
  CHECK(!follows_with(1, bp::be32(0x56 << 8 | 3)));
  CHECK(!follows_with(5, bp::be32(0x1000)));
  CHECK(!follows_with(6, bp::be32(0x98)));
  CHECK(!follows_with(8, bp::be32(BP_INLINE_FLAG | 40)));
  const uint32_t lines[] = {0, 2, 6};  // the header's, and the last one
  for (const uint32_t line : lines) {
    write_slots();
    window[1][line][3] = 6;
    CHECK(!follows());
  }
  q = {};

  four_slots();
  CHECK(slots_together() == 4);
  found[2].marked = 1;
  CHECK(slots_together() == 2);
  found[0].marked = 1;  // the first begins behind the fence
  CHECK(slots_together() == 2);

  q.coalesced_end = 0x1030;
  CHECK(!needs_fence(q, 0x1030, false) && needs_fence(q, 0x1030, true));
  CHECK(needs_fence(q, 0x2000, false));
  q.coalesced_end = 0;
  CHECK(!needs_fence(q, 0x2000, true));  // nothing is unfenced

  // What the NIC is decides, not what the kernel was compiled for.
  CHECK(marks<later>(later::tag_v));
  CHECK(marks<strict>(later::tag_v));
  CHECK(!marks<strict>(strict::tag_v));

  // One lane writes both halves.
  alignas(16) uint8_t copy[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  alignas(16) uint8_t to[16] = {};
  move_words((uint64_t)to + 8, copy, 8, 1, 32);
  for (const uint8_t byte : to) CHECK(byte == 0);
  move_words((uint64_t)to + 8, copy, 8, 0, 32);
  for (uint32_t i = 0; i < 16; i++) CHECK(to[i] == (i < 8 ? 0 : i - 7));
}
