// A queue pair in plain memory, the least NIC that can serve it, and kernels that put through it
// from many lanes. The NIC reads WQEs and window slots, and the lanes write them, by plain accesses:
// whatever is not ordered by doorbell, doorbell record, CQE and the lanes among themselves is a race
// that the sanitizer sees.
#ifndef BELLPUSH_TESTS_MOCK_NIC_HPP
#define BELLPUSH_TESTS_MOCK_NIC_HPP

#include <stdio.h>
#include <string.h>

#include <atomic>
#include <thread>
#include <vector>

#include <bellpush/bellpush.cuh>
#include "host/threads.hpp"
#include "nic_memory.hpp"

// How the NIC reads doorbell and doorbell record. A negative control says relaxed.
#ifndef MOCK_LOAD
#define MOCK_LOAD __ATOMIC_ACQUIRE
#endif
// How the NIC stores the last word of a CQE.
#ifndef MOCK_STORE
#define MOCK_STORE __ATOMIC_RELEASE
#endif
// Slots that may be written at once.
#ifndef MOCK_CREDITS
#define MOCK_CREDITS slots
#endif

namespace mock {

constexpr uint32_t qpn = 0x1234, lkey = 0x77, rkey = 0x99, message = 60;
constexpr uint32_t slot_bytes = 64;

using Memory = NicMemory<slot_bytes>;

struct Nic {
  Memory& m;
  std::vector<uint8_t>& remote;
  std::atomic<bool> stop{false};
  uint64_t ci = 0, cq_pi = 0;
  uint64_t wrong = 0, wqes = 0;


  void run() {
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t bell =
          __atomic_load_n(reinterpret_cast<uint64_t*>(m.uar + BP_UAR_DOORBELL_OFFSET), MOCK_LOAD);
      const uint32_t dbr = __builtin_bswap32(__atomic_load_n(&m.dbr[BP_DBR_SND], MOCK_LOAD));
      const uint32_t rung = __builtin_bswap32((uint32_t)bell) >> 8;
      // The later of the two, if it is no more than a ring ahead.
      uint32_t ahead = 0;
      for (uint32_t index : {rung, dbr}) {
        const uint32_t n = (index - (uint32_t)ci) & 0xffff;
        if (n <= 1u << sq_log && n > ahead) ahead = n;
      }
      for (; ahead > 0; ahead--) execute();
      std::this_thread::yield();
    }
  }

  void execute() {
    uint8_t wqe[64];
    memcpy(wqe, m.sq + (ci & ((1 << sq_log) - 1)) * 64, 64);
    const uint32_t opcode = be32(wqe) & 0xff;
    wrong += (be32(wqe) >> 8 & 0xffff) != (ci & 0xffff) || be32(wqe + 4) >> 8 != qpn;
    if (opcode == BP_OP_RDMA_WRITE) {
      const uint64_t to = (uint64_t)be32(wqe + 16) << 32 | be32(wqe + 20);
      const uint32_t bytes = be32(wqe + 32);
      const uint64_t from = (uint64_t)be32(wqe + 40) << 32 | be32(wqe + 44);
      const bool fits = to + bytes <= remote.size() && from + bytes <= sizeof(m.window);
      if (!fits || be32(wqe + 24) != rkey || be32(wqe + 36) != lkey) {
        wrong++;
      } else {
        memcpy(&remote[to], m.window + from, bytes);
      }
    } else {
      wrong += opcode != BP_OP_NOP;
    }
    if (wqe[11] & BP_CTRL_CQ_UPDATE) complete();
    ci++;
    wqes++;
  }

  void complete() {
    uint8_t* cqe = m.cq + (cq_pi & ((1 << cq_log) - 1)) * 64;
    memset(cqe, 0, 56);
    const uint64_t owner = cq_pi >> cq_log & 1, counter = ci & 0xffff;
    const uint64_t tail = (uint64_t)(BP_CQE_REQ << 4 | owner) << 56 | (counter & 0xff) << 40 |
                          (counter >> 8) << 32;
    __atomic_store_n(reinterpret_cast<uint64_t*>(cqe + 56), tail, MOCK_STORE);
    cq_pi++;
  }
};

struct Args {
  bp_endpoint ep;
  const uint8_t* src;
  uint64_t* failed;  // one a caller
  uint32_t puts;
};

template <class P, class Scope>
inline void puts(const Args& a, Scope scope, uint64_t caller) {
  uint64_t failed = 0;
  for (uint32_t n = 0; n < a.puts; n++) {
    const uint64_t at = (caller * a.puts + n) * message;
    // Some put off their doorbells, some ask for no CQE.
    const uint32_t flags = n % 3 == 1 ? bp::defer_ring : n % 5 == 2 ? bp::unsignalled : bp::none;
    failed += bp::put<P>(a.ep, scope, at, a.src + at, message, flags) != BP_OK;
  }
  failed += bp::quiet<P>(a.ep, scope) != BP_OK;
  if (scope.rank() == 0) a.failed[caller] = failed;
}

// Runs a kernel against the NIC; 0 if everything arrived as it was sent. A control whose credits are
// off cannot say that, and only runs.
inline int check(size_t (*kernel)(const void*) noexcept, uint32_t blocks, uint32_t threads,
                 uint32_t callers, uint32_t puts) {
  static Memory m;
  memset(static_cast<void*>(&m), 0, sizeof(m));
  for (uint32_t i = 0; i < 1u << cq_log; i++) m.cq[i * 64 + 63] = BP_CQE_INVALID << 4 | 1;
  const size_t bytes = (size_t)callers * puts * message;
  std::vector<uint8_t> src(bytes), remote(bytes);
  for (size_t i = 0; i < bytes; i++) src[i] = (uint8_t)(i * 167 + i / 251);
  std::vector<uint64_t> failed(callers);

  Args a = {};
  bp_qp& qp = a.ep.qp;
  const auto at = [](void* p) { return reinterpret_cast<uint64_t>(p); };
  qp.sq = at(m.sq), qp.cq = at(m.cq), qp.dbr = at(m.dbr), qp.cq_dbr = at(m.cq_dbr);
  qp.uar = at(m.uar), qp.state = at(&m.state), qp.ready = at(m.ready), qp.status = at(&m.status);
  qp.window = bp_window{at(m.window), 0, lkey, slot_bytes, slots, 0};
  qp.timeout_ns = 20ull * 1000 * 1000 * 1000;
  qp.qpn = qpn, qp.slot_limit = MOCK_CREDITS, qp.sq_log = sq_log, qp.cq_log = cq_log;
  a.ep.remote_bytes = bytes, a.ep.remote_rkey = rkey;
  a.ep.tag = BP_TAG_PUSH | BP_TAG_KERNEL;  // threads of one process: any fences will do
  a.src = src.data(), a.failed = failed.data(), a.puts = puts;

  Nic nic{m, remote};
  std::thread engine([&] { nic.run(); });
  bp_host::run_threads(kernel, blocks, threads, 0, a);
  nic.stop.store(true, std::memory_order_relaxed);
  engine.join();
  uint64_t bad = nic.wrong;
  for (uint64_t f : failed) bad += f;
  const bool same = src == remote;
  printf("%llu WQEs, %llu wrong, %s\n", (unsigned long long)nic.wqes, (unsigned long long)bad,
         same ? "the same bytes" : "other bytes");
  return bad != 0 || !same;
}

using shared = bp::path<bp::data::push, bp::kick::kernel, bp::share::shared>;
using strict = bp::path<bp::data::push, bp::kick::kernel, bp::share::shared, bp::reach::gpu,
                        bp::order::strict>;
using exclusive = bp::path<bp::data::push, bp::kick::kernel>;

}  // namespace mock

#endif
