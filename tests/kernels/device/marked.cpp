// What the engine on a GPU does with a signal that is set: it is carried out behind all before it, also right behind
// the data, and its word is written at once.
#include "check.hpp"
#include <bellpush/bellpush.cuh>
#include "engine/slots.cuh"

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

int main() {
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
