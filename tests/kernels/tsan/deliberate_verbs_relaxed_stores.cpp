// Negative control: verbs whose stores release nothing: ready words, doorbell record, doorbell.
#include <bellpush/exec.cuh>
#pragma GCC diagnostic ignored "-Wbuiltin-macro-redefined"
#define MOCK_STORE 3  // the NIC still releases
#include <atomic>
#include <thread>
#include <vector>

#include "host/threads.hpp"
static_assert(__ATOMIC_RELEASE == 3, "the NIC still releases");
#undef __ATOMIC_RELEASE
#define __ATOMIC_RELEASE __ATOMIC_RELAXED
#include "mock_nic.hpp"

BP_KERNEL(by_thread, mock::Args) {
  const uint64_t caller = (uint64_t)bp::bid() * bp::block_threads() + bp::tid();
  mock::puts<mock::shared>(args, bp::thread_scope{}, caller);
}

int main() { mock::check(by_thread, 2, 8, 16, 20); }
