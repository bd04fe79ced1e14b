// Negative control: a window of twice the slots that its memory has. What the lanes write behind it AddressSanitizer
// must report: a bound that is off by a slot is what it is run for.
#include "tsan/every_verb.hpp"

using push = bp::path<bp::data::push, bp::kick::kernel>;

BP_KERNEL(by_warp, bp_endpoint) {
  bp::put<push>(args, bp::warp_scope{}, 0, reinterpret_cast<const void*>(args.local_va), 60);
}

int main() {
  std::vector<uint64_t> local(512), remote(512), window(slots * verbs::slot_bytes / 8);
  auto* bytes = reinterpret_cast<uint8_t*>(local.data());
  verbs::Nic nic(bytes, reinterpret_cast<uint8_t*>(remote.data()), 4096);
  bp_endpoint ep = nic.endpoint(push::tag_v);
  ep.qp.window.va = reinterpret_cast<uint64_t>(window.data());
  ep.qp.window.slots = 2 * slots, ep.qp.slot_limit = 2 * slots;
  for (uint32_t n = 0; n < ep.qp.window.slots; n++) bp_host::run_threads(by_warp, 1, 32, 0, ep);
}
