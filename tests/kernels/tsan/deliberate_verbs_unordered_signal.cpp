// Negative control: signals that release nothing. Whoever has waited for one reads data that no order brings.
#define NIC_SIGNAL __ATOMIC_RELAXED
#include "every_verb.hpp"

using push = bp::path<bp::data::push, bp::kick::kernel, bp::share::shared>;

BP_KERNEL(by_thread, verbs::Args) {
  verbs::exchange(args, verbs::by_path<push>{args}, bp::thread_scope{}, bp::tid());
}

int main() { return verbs::check("unordered", by_thread, 4, 4, 13, push::tag_v); }
