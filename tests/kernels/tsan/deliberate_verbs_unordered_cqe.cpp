// Negative control: a CQE that is not released: credits come home before the slot was read.
#define MOCK_STORE __ATOMIC_RELAXED
#include "mock_nic.hpp"

BP_KERNEL(by_thread, mock::Args) {
  const uint64_t caller = (uint64_t)bp::bid() * bp::block_threads() + bp::tid();
  mock::puts<mock::shared>(args, bp::thread_scope{}, caller);
}

int main() { mock::check(by_thread, 2, 8, 16, 20); }
