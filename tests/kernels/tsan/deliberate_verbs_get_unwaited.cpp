// Negative control: what a get and atomics bring is read before they are complete.
#define WAITS_FOR_NOTHING
#include "every_verb.hpp"

using inband = bp::path<bp::data::push, bp::kick::inband>;

BP_KERNEL(by_block, verbs::Args) {
  verbs::exchange(args, verbs::by_path<inband>{args}, bp::block_scope{}, 0);
}

int main() { return verbs::check("unwaited", by_block, 4, 1, 13, inband::tag_v); }
