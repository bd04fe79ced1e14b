// The same by BlueFlame, of a NIC that takes WQEs from its buffer and of one that takes the store for a doorbell, and by
// auto endpoints, whose lengths take every choice there is.
#include "every_verb.hpp"

// All lanes of a caller that has its queue pair alone load the word `marked` with the others that a put needs, and the
// leader alone looks at it. It stores the word, for a WQE of several blocks, after the scope's last sync, while a lane
// may load it for the next put. Nothing else in that function is a plain access.
extern "C" const char* __tsan_default_suppressions() { return "race:bp::mark_exclusive<"; }

using namespace bp;
using blueflame = path<data::push, kick::blueflame>;
using strict = path<data::pull, kick::blueflame, share::exclusive, reach::system, order::strict>;
using alone = auto_path<>;
using shared = auto_path<share::shared>;

BP_KERNEL(blueflame_by_thread, verbs::Args) {
  verbs::exchange(args, verbs::by_path<blueflame>{args}, thread_scope{}, 0);
}
BP_KERNEL(blueflame_by_warp, verbs::Args) {
  verbs::exchange(args, verbs::by_path<blueflame>{args}, warp_scope{}, 0);
}
BP_KERNEL(strict_by_warp, verbs::Args) {
  verbs::exchange(args, verbs::by_path<strict>{args}, warp_scope{}, 0);
}
BP_KERNEL(auto_by_block, verbs::Args) {
  verbs::exchange(args, verbs::by_auto<alone>{args}, block_scope{}, 0);
}
BP_KERNEL(auto_by_thread, verbs::Args) {
  verbs::exchange(args, verbs::by_auto<shared>{args}, thread_scope{}, tid());
}

// Of messages of up to 24, 36, 48 bytes and more.
bp_choices choices(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  bp_choices all;
  memset(&all, 0xff, sizeof all);
  all.up_to[0] = 24, all.up_to[1] = 36, all.up_to[2] = 48;
  all.choice = a | b << 4 | c << 8 | d << 12;
  return all;
}

int main() {
  int failed = 0;
  failed += verbs::check("BlueFlame, a thread", blueflame_by_thread, 1, 1, 25, blueflame::tag_v);
  failed += verbs::check("BlueFlame, a warp", blueflame_by_warp, 32, 1, 25, blueflame::tag_v);
  failed += verbs::check("BlueFlame strict, a warp", strict_by_warp, 32, 1, 25, strict::tag_v);
  const bp_choices first =
      choices(BP_CHOICE_INBAND, BP_CHOICE_BLUEFLAME, BP_CHOICE_PULL_BLUEFLAME, BP_CHOICE_PUSH);
  const bp_choices second = choices(BP_CHOICE_INLINE, BP_CHOICE_INBAND, BP_CHOICE_PULL, BP_CHOICE_PUSH);
  failed += verbs::check("auto, a block", auto_by_block, 40, 1, 25, alone::tag_v, &first);
  failed += verbs::check("auto, threads", auto_by_thread, 8, 8, 19, shared::tag_v, &second);
  return failed != 0;
}
