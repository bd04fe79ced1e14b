// put and quiet on one queue pair, from threads, warps and blocks of two blocks, and from one block
// that has it alone: no race among the lanes, nor between the lanes and the NIC.
#include "mock_nic.hpp"

BP_KERNEL(by_thread, mock::Args) {
  const uint64_t caller = (uint64_t)bp::bid() * bp::block_threads() + bp::tid();
  mock::puts<mock::shared>(args, bp::thread_scope{}, caller);
}
BP_KERNEL(by_thread_strict, mock::Args) {
  const uint64_t caller = (uint64_t)bp::bid() * bp::block_threads() + bp::tid();
  mock::puts<mock::strict>(args, bp::thread_scope{}, caller);
}
BP_KERNEL(by_warp, mock::Args) {
  mock::puts<mock::shared>(args, bp::warp_scope{}, bp::bid() * 2 + bp::tid() / 32);
}
BP_KERNEL(by_block, mock::Args) {
  mock::puts<mock::shared>(args, bp::block_scope{}, bp::bid());
}
BP_KERNEL(alone, mock::Args) { mock::puts<mock::exclusive>(args, bp::block_scope{}, 0); }

int main() {
  int failed = 0;
  failed += mock::check(by_thread, 2, 16, 32, 12);
  failed += mock::check(by_thread_strict, 2, 8, 16, 12);
  failed += mock::check(by_warp, 2, 48, 4, 8);
  failed += mock::check(by_block, 2, 40, 2, 8);
  failed += mock::check(alone, 1, 40, 1, 100);
  return failed != 0;
}
