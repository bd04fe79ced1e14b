// Negative control: slots are written without a credit, while the NIC reads them. Many puts, because
// a put that happens to come after its slot was read is in order.
#define MOCK_CREDITS (1 << sq_log)
#include "mock_nic.hpp"

BP_KERNEL(by_thread, mock::Args) {
  const uint64_t caller = (uint64_t)bp::bid() * bp::block_threads() + bp::tid();
  mock::puts<mock::shared>(args, bp::thread_scope{}, caller);
}

int main() { mock::check(by_thread, 2, 8, 16, 1000); }
