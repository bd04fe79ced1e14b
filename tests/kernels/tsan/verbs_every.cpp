// put_signal and wait_signal, get and atomics by push, pull and in-band, of threads that share a queue pair, of warps and
// of a block that has one alone: no race among the lanes, with the NIC, nor between a sender's lanes and those that wait.
#include "every_verb.hpp"

using namespace bp;
using push = path<data::push, kick::kernel, share::shared>;
using pull = path<data::pull, kick::kernel, share::shared>;
using inband = path<data::push, kick::inband, share::shared>;
using push_alone = path<data::push, kick::kernel>;
using inband_alone = path<data::push, kick::inband>;

BP_KERNEL(push_by_thread, verbs::Args) {
  verbs::exchange(args, verbs::by_path<push>{args}, thread_scope{}, tid());
}
BP_KERNEL(pull_by_thread, verbs::Args) {
  verbs::exchange(args, verbs::by_path<pull>{args}, thread_scope{}, tid());
}
BP_KERNEL(inband_by_thread, verbs::Args) {
  verbs::exchange(args, verbs::by_path<inband>{args}, thread_scope{}, tid());
}
BP_KERNEL(pull_by_warp, verbs::Args) {
  verbs::exchange(args, verbs::by_path<pull>{args}, warp_scope{}, tid() / 32);
}
BP_KERNEL(inband_by_warp, verbs::Args) {
  verbs::exchange(args, verbs::by_path<inband>{args}, warp_scope{}, tid() / 32);
}
BP_KERNEL(push_by_block, verbs::Args) {
  verbs::exchange(args, verbs::by_path<push_alone>{args}, block_scope{}, 0);
}
BP_KERNEL(inband_by_block, verbs::Args) {
  verbs::exchange(args, verbs::by_path<inband_alone>{args}, block_scope{}, 0);
}

int main() {
  int failed = 0;
  failed += verbs::check("push, threads", push_by_thread, 8, 8, 19, push::tag_v);
  failed += verbs::check("pull, threads", pull_by_thread, 8, 8, 19, pull::tag_v);
  failed += verbs::check("in-band, threads", inband_by_thread, 8, 8, 19, inband::tag_v);
  failed += verbs::check("pull, warps", pull_by_warp, 40, 2, 13, pull::tag_v);
  failed += verbs::check("in-band, warps", inband_by_warp, 40, 2, 13, inband::tag_v);
  failed += verbs::check("push, a block", push_by_block, 40, 1, 13, push_alone::tag_v);
  failed += verbs::check("in-band, a block", inband_by_block, 40, 1, 13, inband_alone::tag_v);
  return failed != 0;
}
