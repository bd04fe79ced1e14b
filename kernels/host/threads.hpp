// Runs a kernel with one std::thread a lane, for race checkers (g++ -fsanitize=thread): what two
// lanes do without an order between them is then a race between two threads. Needs no Rust; link
// host/exec.cpp and the kernel.
#ifndef BELLPUSH_HOST_THREADS_HPP
#define BELLPUSH_HOST_THREADS_HPP

#include <stdio.h>
#include <stdlib.h>

#include <thread>
#include <vector>

#include <bellpush/impl/lane.hpp>

namespace bp_host {

// Returns when every lane has returned from the kernel.
template <class Args>
void run_threads(size_t (*kernel)(const void*) noexcept, uint32_t grid_blocks,
                 uint32_t block_threads, size_t shared_bytes, const Args& args) {
  if (kernel(nullptr) != sizeof(Args)) {
    fprintf(stderr, "run_threads: the kernel takes %zu bytes, not %zu\n", kernel(nullptr),
            sizeof(Args));
    abort();
  }
  bp_host_hooks hooks = {};
  hooks.yield = [](void*) { std::this_thread::yield(); };
  hooks.fault = [](void*, const char* why) {
    fprintf(stderr, "host kernel fault: %s\n", why);
    abort();
  };
  hooks.collective_timeout_ns = 60ull * 1000 * 1000 * 1000;
  bp_host_grid* grid = bp_host_grid_new(grid_blocks, block_threads, shared_bytes, &hooks);
  if (!grid) abort();
  std::vector<std::thread> threads;
  for (uint32_t bid = 0; bid < grid_blocks; ++bid) {
    for (uint32_t tid = 0; tid < block_threads; ++tid) {
      bp_host_lane* lane = bp_host_grid_lane(grid, bid, tid, nullptr);
      threads.emplace_back([=, &args] { bp_host_lane_run(lane, kernel, &args); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  bp_host_grid_free(grid);
}

}  // namespace bp_host

#endif
