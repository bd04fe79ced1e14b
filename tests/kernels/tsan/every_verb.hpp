// A NIC in plain memory that serves every verb: WRITEs (gathered, inline, from in-band lines, from BlueFlame's buffer),
// READs and atomics; and callers that send by them to other lanes, which wait for signals. The NIC moves payload by
// plain accesses, and senders and receivers touch it so: what signal, completion and doorbell do not order is a race
// that the sanitizer sees.
#ifndef BELLPUSH_TESTS_EVERY_VERB_HPP
#define BELLPUSH_TESTS_EVERY_VERB_HPP

#include <stdio.h>
#include <string.h>

#include <atomic>
#include <thread>
#include <vector>

#include <bellpush/bellpush.cuh>
#include "host/threads.hpp"
#include "nic_memory.hpp"

// How the NIC stores the word of a signal. A negative control says relaxed.
#ifndef NIC_SIGNAL
#define NIC_SIGNAL __ATOMIC_RELEASE
#endif

namespace verbs {

constexpr uint32_t qpn = 0x1234, lkey = 0x77, window_lkey = 0x78, sink_lkey = 0x79, rkey = 0x99;
constexpr uint32_t slot_bytes = 256, message = 60, stride = 64;

using Memory = NicMemory<slot_bytes>;

// A queue pair and its NIC, which runs until it is told to stop.
struct Nic {
  Memory m;
  uint8_t *local, *remote;
  uint64_t bytes;  // of each
  bool inband = false;
  std::atomic<bool> stop{false};
  uint64_t ci = 0, cq_pi = 0, wrong = 0;
  uint8_t w[512];  // the WQE

  static uint64_t word64(const uint8_t* p) { return (uint64_t)be32(p) << 32 | be32(p + 4); }

  Nic(uint8_t* local, uint8_t* remote, uint64_t bytes) : local(local), remote(remote), bytes(bytes) {
    memset(static_cast<void*>(&m), 0, sizeof m);
    for (uint32_t i = 0; i < 1u << cq_log; i++) m.cq[i * 64 + 63] = BP_CQE_INVALID << 4 | 1;
  }

  bp_endpoint endpoint(uint32_t tag) {
    const auto at = [](const void* p) { return reinterpret_cast<uint64_t>(p); };
    bp_endpoint ep = {};
    bp_qp& qp = ep.qp;
    inband = (tag & (BP_TAG_INBAND_12_4 | BP_TAG_INBAND_14_2 | BP_TAG_INBAND_60_4)) != 0;
    qp.sq = at(m.sq), qp.cq = at(m.cq), qp.dbr = at(m.dbr), qp.cq_dbr = at(m.cq_dbr);
    qp.uar = at(m.uar), qp.state = at(&m.state), qp.ready = at(m.ready), qp.status = at(&m.status);
    // In-band sequences wrap under way, through the scrub laps.
    qp.window = bp_window{at(m.window), 0, window_lkey, slot_bytes, slots, 0xfffffffd};
    qp.timeout_ns = 20ull * 1000 * 1000 * 1000;
    qp.qpn = qpn, qp.slot_limit = slots, qp.sq_log = sq_log, qp.cq_log = cq_log;
    qp.credit_period = inband ? 1 : 16;
    ep.local_va = at(local), ep.local_bytes = ep.remote_bytes = bytes;
    ep.local_lkey = lkey, ep.remote_rkey = rkey, ep.sink_lkey = sink_lkey;
    ep.tag = tag;
    return ep;
  }

  void run() {
    while (!stop.load(std::memory_order_relaxed)) {
      const uint32_t ds = inband ? from_lines() : from_ring_or_buffer();
      if (ds == 0) {
        std::this_thread::yield();
        continue;
      }
      execute();
      if (w[11] & BP_CTRL_CQ_UPDATE) complete();
      ci += inband ? 1 : (ds + 3) / 4;
    }
  }

  // The next WQE's ds, if there is one.
  uint32_t from_ring_or_buffer() {
    const uint64_t bell = __atomic_load_n(reinterpret_cast<uint64_t*>(m.uar + BP_UAR_DOORBELL_OFFSET), __ATOMIC_ACQUIRE);
    const uint32_t dbr = __builtin_bswap32(__atomic_load_n(&m.dbr[BP_DBR_SND], __ATOMIC_ACQUIRE));
    for (uint32_t index : {__builtin_bswap32((uint32_t)bell) >> 8, dbr}) {
      const uint32_t ahead = (index - (uint32_t)ci) & 0xffff;
      if (ahead == 0 || ahead > 1u << sq_log) continue;
      for (uint32_t i = 0; i < 4; i++) memcpy(w + i * 64, m.sq + (ci + i) % (1 << sq_log) * 64, i < ahead ? 64 : 0);
      return w[7] & 63;
    }
    // BlueFlame: whole if the check word says so.
    bp::u128 units[BP_UAR_BF_BYTES / 16];
    uint32_t sum = 0;
    for (uint32_t u = 0; u < BP_UAR_BF_BYTES / 16; u++) {
      units[u] = bp::ld_line(reinterpret_cast<const bp::u128*>(m.uar + BP_UAR_BF_OFFSET) + u);
    }
    memcpy(w, units, sizeof units);
    const uint32_t ds = w[7] & 63, blocks = (ds + 3) / 4;
    if (ds == 0 || blocks > 4 || (be32(w) >> 8 & 0xffff) != (ci & 0xffff)) return 0;
    for (uint32_t u = 0; u < blocks * 4; u++) sum += bp::check_unit(units[u], u);
    return sum == units[0].w[3] ? ds : 0;
  }

  uint32_t from_lines() {
    const bp::window_place place = bp::place_of(bp_window{0, 0, 0, slot_bytes, slots, 0}, ci);
    const uint32_t seq =
        bp::inband_sequence<bp::line::d12s4>(bp_window{0, 0, 0, slot_bytes, slots, 0xfffffffd}, place.lap);
    const bp::u128* slot = reinterpret_cast<const bp::u128*>(m.window + place.slot * slot_bytes);
    for (uint32_t i = 0, lines = 1; i < lines; i++) {
      const bp::u128 line = bp::ld_line(slot + i);
      if (line.w[3] != seq) return 0;
      memcpy(w + 12 * i, line.w, 12);
      // The byte count of inline data ends the slot; of anything else ds does.
      if (i == 0) lines = w[3] == BP_OP_RDMA_WRITE ? 3 : ((w[7] & 63) * 16 + 11) / 12;
      if (i == 2 && w[3] == BP_OP_RDMA_WRITE) lines = (36 + (be32(w + 32) & ~BP_INLINE_FLAG) + 11) / 12;
    }
    return w[7] & 63;
  }

  void execute() {
    const uint32_t opcode = w[3];
    wrong += (be32(w) >> 8 & 0xffff) != (ci & 0xffff) || be32(w + 4) >> 8 != qpn;
    if (opcode == BP_OP_NOP) return;
    const uint64_t to = word64(w + 16);
    const bool is_atomic = opcode == BP_OP_ATOMIC_FA || opcode == BP_OP_ATOMIC_CS;
    const uint8_t* data = w + (is_atomic ? 48 : 32);  // segment
    const uint32_t n = be32(data) & ~BP_INLINE_FLAG, key = be32(data + 4);
    const bool is_inline = (be32(data) & BP_INLINE_FLAG) != 0;
    const uint64_t from = word64(data + 8);
    const uint64_t room = key == window_lkey ? sizeof m.window : bytes;
    if (be32(w + 24) != rkey || to + n > bytes || (!is_inline && from + n > room)) {
      wrong++;
    } else if (opcode == BP_OP_RDMA_WRITE && is_inline && n == 8) {
      uint64_t v;
      memcpy(&v, data + 4, 8);
      __atomic_store_n(reinterpret_cast<uint64_t*>(remote + to), v, NIC_SIGNAL);
    } else if (opcode == BP_OP_RDMA_WRITE) {
      memcpy(remote + to, is_inline ? data + 4 : (key == window_lkey ? m.window : local) + from, n);
    } else if (opcode == BP_OP_RDMA_READ && key == lkey) {
      memcpy(local + from, remote + to, n);
    } else if (is_atomic) {
      uint64_t* p = reinterpret_cast<uint64_t*>(remote + to);
      uint64_t old = word64(w + 40);  // of a compare and swap: what is expected
      if (opcode == BP_OP_ATOMIC_FA) {
        old = __atomic_fetch_add(p, word64(w + 32), NIC_SIGNAL);
      } else {
        __atomic_compare_exchange_n(p, &old, word64(w + 32), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
      }
      if (key == lkey) memcpy(local + from, &old, 8);
    } else {
      wrong++;
    }
  }

  void complete() {
    uint8_t* cqe = m.cq + (cq_pi & ((1 << cq_log) - 1)) * 64;
    memset(cqe, 0, 56);
    const uint64_t owner = cq_pi >> cq_log & 1, counter = ci & 0xffff;
    const uint64_t tail =
        (uint64_t)(BP_CQE_REQ << 4 | owner) << 56 | (counter & 0xff) << 40 | (counter >> 8) << 32;
    __atomic_store_n(reinterpret_cast<uint64_t*>(cqe + 56), tail, __ATOMIC_RELEASE);
    cq_pi++;
  }
};

// Both regions: messages of all callers; what callers get back; a row of words a caller: signal, result, swapped.
struct Args {
  bp_endpoint ep, peer;
  bp_auto_endpoint both;
  uint8_t *local, *remote;
  uint64_t gets, words;  // offsets
  uint64_t* wrong;       // one a thread of the grid
  uint32_t rounds;
};

// The verbs of an endpoint with one path, and of an auto endpoint.
template <class P>
struct by_path {
  const Args& a;
  template <class Scope, class Op>
  bp_status_code put_signal(Scope s, uint64_t at, uint32_t n, uint64_t word, Op op) {
    return bp::put_signal<P>(a.ep, s, at, a.local + at, n, word, op);
  }
  template <class Scope>
  bp_status_code put(Scope s, uint64_t at, uint32_t n) { return bp::put<P>(a.ep, s, at, a.local + at, n); }
  template <class Scope>
  bp_status_code get(Scope s, void* to, uint64_t at, uint32_t n) { return bp::get<P>(a.ep, s, to, at, n); }
  template <class Scope>
  bp_status_code add(Scope s, uint64_t at, void* old) { return bp::fetch_add<P>(a.ep, s, at, 1, old); }
  template <class Scope>
  bp_status_code swap(Scope s, uint64_t at, void* old) { return bp::compare_swap<P>(a.ep, s, at, 0, 7, old); }
  template <class Scope>
  bp_status_code quiet(Scope s) { return bp::quiet<P>(a.ep, s); }
};
template <class A>
struct by_auto {
  const Args& a;
  template <class Scope, class Op>
  bp_status_code put_signal(Scope s, uint64_t at, uint32_t n, uint64_t word, Op op) {
    const bp_status_code before = bp::fence<A>(a.both, s);
    return before != BP_OK ? before : bp::put_signal<A>(a.both, s, at, a.local + at, n, word, op);
  }
  template <class Scope>
  bp_status_code put(Scope s, uint64_t at, uint32_t n) { return bp::put<A>(a.both, s, at, a.local + at, n); }
  template <class Scope>
  bp_status_code get(Scope s, void* to, uint64_t at, uint32_t n) { return bp::get<A>(a.both, s, to, at, n); }
  template <class Scope>
  bp_status_code add(Scope s, uint64_t at, void* old) { return bp::fetch_add<A>(a.both, s, at, 1, old); }
  template <class Scope>
  bp_status_code swap(Scope s, uint64_t at, void* old) { return bp::compare_swap<A>(a.both, s, at, 0, 7, old); }
  template <class Scope>
  bp_status_code quiet(Scope s) { return bp::quiet<A>(a.both, s); }
};

// Bytes of a message, for every choice of an auto endpoint one and more.
inline uint32_t length_of(uint32_t n) { return n % 4 == 0 ? message : 12 * (1 + n % 4); }

// The first block sends, and looks at what it gets back; the second waits for its signals, and looks at what came.
template <class V, class Scope>
inline void exchange(const Args& a, V v, Scope scope, uint32_t caller) {
  uint64_t wrong = 0;
  const uint64_t words = a.words + caller * 24;
  const uint64_t first = (uint64_t)caller * a.rounds * stride;
  const auto differs = [&](const uint8_t* p, uint64_t at, uint32_t n) {
    uint64_t found = 0;
    for (uint32_t i = scope.rank(); i < n; i += scope.size()) found += p[i] != (uint8_t)((at + i) * 167);
    return found;
  };
  if (bp::bid() == 0) {
    for (uint32_t n = 0; n < a.rounds; n++) {
      const uint64_t at = first + n * stride;
      if (n % 3 == 2) {  // told of by the next signal
        wrong += v.put(scope, at, length_of(n)) != BP_OK;
      } else if (n % 2) {
        wrong += v.put_signal(scope, at, length_of(n), words, bp::signal_set{n + 1}) != BP_OK;
      } else {
        wrong += v.put_signal(scope, at, length_of(n), words, bp::signal_add{n % 3 == 0 && n ? 2u : 1u}) != BP_OK;
      }
    }
    wrong += v.quiet(scope) != BP_OK;
    wrong += v.get(scope, a.local + a.gets + caller * stride, first, message) != BP_OK;
    wrong += v.add(scope, words + 8, a.local + words + 8) != BP_OK;
    wrong += v.swap(scope, words + 16, a.local + words + 16) != BP_OK;
#ifndef WAITS_FOR_NOTHING
    wrong += v.quiet(scope) != BP_OK;
#endif
    wrong += differs(a.local + a.gets + caller * stride, first, message);
    uint64_t old[2];
    memcpy(old, a.local + words + 8, 16);
    wrong += old[0] != 5 || old[1] != 0;
  } else {
    for (uint32_t n = 0; n < a.rounds; n++) {
      if (n % 3 == 2) continue;
      const uint64_t* signal = reinterpret_cast<const uint64_t*>(a.remote + words);
      wrong += bp::wait_signal(a.peer, scope, signal, n + 1) != BP_OK;
      wrong += differs(a.remote + first + n * stride, first + n * stride, length_of(n));
      if (n % 3 == 0 && n) wrong += differs(a.remote + first + (n - 1) * stride, first + (n - 1) * stride, length_of(n - 1));
    }
  }
  a.wrong[bp::bid() * bp::block_threads() + bp::tid()] += wrong;
}

// Runs `kernel` with two blocks; `tag`: of the endpoint, or of an auto endpoint's in-band half.
inline int check(const char* name, size_t (*kernel)(const void*) noexcept, uint32_t threads, uint32_t callers,
                 uint32_t rounds, uint32_t tag, const bp_choices* choices = nullptr) {
  const uint64_t gets = (uint64_t)callers * rounds * stride, words = gets + callers * stride;
  const uint64_t bytes = words + callers * 24;
  std::vector<uint64_t> local((bytes + 7) / 8), remote(local.size()), wrong(2 * threads);
  Args a = {};
  a.local = reinterpret_cast<uint8_t*>(local.data()), a.remote = reinterpret_cast<uint8_t*>(remote.data());
  a.gets = gets, a.words = words, a.wrong = wrong.data(), a.rounds = rounds;
  for (uint64_t i = 0; i < gets; i++) a.local[i] = (uint8_t)(i * 167);
  for (uint32_t c = 0; c < callers; c++) remote[(words + c * 24) / 8 + 1] = 5;
  Nic nic(a.local, a.remote, bytes), second(a.local, a.remote, bytes), idle(a.local, a.remote, bytes);
  a.ep = nic.endpoint(tag), a.peer = idle.endpoint(tag);
  if (choices != nullptr) {
    a.both.bell = nic.endpoint(BP_TAG_PUSH | BP_TAG_KERNEL | BP_TAG_SYSTEM);
    a.both.inband = second.endpoint(BP_TAG_PUSH | BP_TAG_INBAND_12_4 | BP_TAG_SYSTEM);
    a.both.by_thread = a.both.by_warp = a.both.by_block = *choices;
    a.both.tag = tag;
  }
  std::thread engine([&] { nic.run(); }), other([&] { second.run(); });
  bp_host::run_threads(kernel, 2, threads, 0, a);
  nic.stop.store(true, std::memory_order_relaxed), second.stop.store(true, std::memory_order_relaxed);
  engine.join(), other.join();
  uint64_t bad = nic.wrong + second.wrong;
  for (uint64_t w : wrong) bad += w;
  printf("%s: %llu and %llu WQEs, %llu wrong\n", name, (unsigned long long)nic.ci, (unsigned long long)second.ci,
         (unsigned long long)bad);
  return bad != 0;
}

}  // namespace verbs

#endif
