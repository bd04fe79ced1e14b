// Counts how often an observer sees a doorbell before what it tells of. Queues and window lie in host memory, a CPU
// thread is the observer, and on a GPU 132 blocks of 32 callers post on one shared queue pair, so that nearly all
// that a doorbell covers is another caller's, of another multiprocessor: whether its ringer's fence covers that too
// (kernels/order.cuh) is what is counted here.
//
//   nvcc -std=c++17 -O3 -arch=sm_90 -Ikernels -o order_observer tests/cuda/order_observer.cu
//   timeout 60 ./order_observer [seconds a case, 5]
//
// Two cases have the fence that the placement asks for (system scope): nothing may be seen too early. Their two
// controls differ in the ringer's fence alone (gpu scope): there the observer must see something, or it is blind. Also
// checked: every launch ends, and its last doorbell covers all that was posted. Exit status 0: all as it must be.
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <vector>

#define BP_MAX_THREADS 32
#include "bellpush.cuh"

#define CHECK_CUDA(call)                                                                  \
  do {                                                                                    \
    const cudaError_t error = (call);                                                     \
    if (error != cudaSuccess) {                                                           \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error));    \
      exit(3);                                                                            \
    }                                                                                     \
  } while (0)

constexpr uint32_t ring_log = 15, ring = 1u << ring_log, message = 16, slot_bytes = 64;
constexpr uint32_t qpn = 0x123, local_key = 0x55, window_key = 0x66, remote_key = 0x77;
constexpr uint64_t remote_base = 0x10000000;

struct post_args {
  bp_endpoint ep;
  uint64_t source;     // message k's bytes at k * message
  uint32_t each;       // messages of a caller
  uint32_t* begun;     // blocks
  uint32_t* ended;
  uint32_t* bad;       // statuses, in host memory
  uint32_t* done;      // 1: all blocks have ended, in host memory
};

template <class P>
__global__ void __launch_bounds__(32) post(const __grid_constant__ post_args a) {
  if (threadIdx.x == 0) {
    atomicAdd(a.begun, 1u);
    const uint64_t since = bp::now_ns();
    while (bp::ld_relaxed_gpu(a.begun) < gridDim.x && bp::elapsed_ns(since) < 20000000) continue;
  }
  __syncwarp();
  const uint32_t caller = blockIdx.x * 32 + threadIdx.x;
  uint32_t bad = 0;
  for (uint32_t i = 0; i < a.each; i++) {
    const uint64_t at = (uint64_t)(caller * a.each + i) * message;
    bad |= bp::put<P>(a.ep, bp::thread_scope{}, at, reinterpret_cast<const void*>(a.source + at), message);
  }
  if (bad != 0) atomicOr_system(a.bad, bad);
  __syncwarp();
  if (threadIdx.x == 0) {
    __threadfence_system();
    if (atomicAdd(a.ended, 1u) + 1 == gridDim.x) bp::st_relaxed_sys(a.done, 1u);
  }
}

uint32_t word_of(uint32_t k, uint32_t i) { return (k + 1) * 0x9E3779B9u + i; }

struct counts {
  uint64_t launches, posted, rings, looks, early_wqe, early_payload, never, bad, short_rings;
};

struct stage {
  char *sq, *window, *flags;  // host
  char *source, *state, *ready, *words;  // GPU
  uint32_t blocks, each, total;
  bp_endpoint ep;

  stage(int multiprocessors) {
    blocks = (uint32_t)std::min(132, multiprocessors);
    each = (ring - 1) / (blocks * 32);
    total = blocks * 32 * each;
    const auto host = [](char** p, size_t bytes) {
      CHECK_CUDA(cudaHostAlloc(p, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    };
    host(&sq, ring * 64);
    host(&window, (size_t)ring * slot_bytes);
    host(&flags, 16384);
    CHECK_CUDA(cudaMalloc(&source, (size_t)total * message));
    CHECK_CUDA(cudaMalloc(&state, sizeof(bp_qp_state)));
    CHECK_CUDA(cudaMalloc(&ready, ring * 4));
    CHECK_CUDA(cudaMalloc(&words, 256));
    std::vector<uint32_t> payload;
    for (uint32_t k = 0; k < total; k++) {
      for (uint32_t i = 0; i < message / 4; i++) payload.push_back(word_of(k, i));
    }
    CHECK_CUDA(cudaMemcpy(source, payload.data(), payload.size() * 4, cudaMemcpyHostToDevice));
    ep = {};
    bp_qp& q = ep.qp;
    q.sq = (uint64_t)sq;
    q.dbr = (uint64_t)flags;
    q.uar = (uint64_t)flags + 4096;
    q.cq = (uint64_t)flags + 8192;  // never looked at: nothing fills up
    q.cq_log = 6;
    q.cq_dbr = (uint64_t)flags + 64;
    q.status = (uint64_t)flags + 128;
    q.state = (uint64_t)state;
    q.ready = (uint64_t)ready;
    q.window.va = (uint64_t)window;
    q.window.lkey = window_key;
    q.window.slot_bytes = slot_bytes;
    q.window.slots = ring;
    q.window.inband_seq0 = 1;
    q.timeout_ns = 2000000000;
    q.qpn = qpn;
    q.slot_limit = ring;
    q.sq_log = ring_log;
    q.credit_period = ring / 4;
    ep.local_va = ep.local_iova = (uint64_t)source;
    ep.local_bytes = (uint64_t)total * message;
    ep.local_lkey = local_key;
    ep.remote_iova = remote_base;
    ep.remote_bytes = (uint64_t)total * message;
    ep.remote_rkey = remote_key;
  }
  uint32_t* done() { return reinterpret_cast<uint32_t*>(flags + 256); }
  uint32_t* bad() { return reinterpret_cast<uint32_t*>(flags + 260); }
};

uint32_t from_be(uint32_t v) { return __builtin_bswap32(v); }
uint32_t word_at(const char* p) { return __atomic_load_n(reinterpret_cast<const uint32_t*>(p), __ATOMIC_RELAXED); }

// The message that the WQE at an index sends; -1 if it is not there, or not whole.
template <class P>
int64_t message_at(const stage& s, uint32_t index) {
  const char* w = s.sq + (size_t)index * 64;
  const uint64_t remote = (uint64_t)from_be(word_at(w + 16)) << 32 | from_be(word_at(w + 20));
  const uint64_t k = (remote - remote_base) / message;
  const uint64_t gather = (uint64_t)from_be(word_at(w + 40)) << 32 | from_be(word_at(w + 44));
  const bool push = P::data_v == bp::data::push;
  const uint64_t from = push ? (uint64_t)index * slot_bytes : (uint64_t)s.source + k * message;
  const bool whole = from_be(word_at(w)) == ((index & 0xffff) << 8 | BP_OP_RDMA_WRITE) &&
                     from_be(word_at(w + 4)) == (qpn << 8 | 3) && remote >= remote_base && k < s.total &&
                     from_be(word_at(w + 24)) == remote_key && from_be(word_at(w + 32)) == message &&
                     from_be(word_at(w + 36)) == (push ? window_key : local_key) && gather == from;
  return whole ? (int64_t)k : -1;
}
bool payload_at(const stage& s, uint32_t index, int64_t k) {
  bool whole = true;
  for (uint32_t i = 0; i < message / 4; i++) {
    whole &= word_at(s.window + (size_t)index * slot_bytes + i * 4) == word_of((uint32_t)k, i);
  }
  return whole;
}

template <class P>
void watch(stage& s, counts* c) {
  using clock = std::chrono::steady_clock;
  const auto doorbell = reinterpret_cast<const uint64_t*>(s.flags + 4096 + BP_UAR_DOORBELL_OFFSET);
  const auto record = reinterpret_cast<const uint32_t*>(s.flags) + BP_DBR_SND;
  const auto until = clock::now() + std::chrono::seconds(8);
  uint32_t seen = 0;
  std::vector<uint32_t> early;
  for (uint32_t round = 1;; round++) {
    const bool over = __atomic_load_n(s.done(), __ATOMIC_ACQUIRE) != 0;
    // Whichever of the two says more, as the NIC takes them.
    const uint32_t bell = from_be((uint32_t)__atomic_load_n(doorbell, __ATOMIC_ACQUIRE)) >> 8 & 0xffff;
    const uint32_t told = from_be(__atomic_load_n(record, __ATOMIC_ACQUIRE)) & 0xffff;
    const uint32_t end = std::min(std::max(bell, told), s.total);
    if (end > seen) c->rings++;
    // The newest first: they are what a doorbell may have overtaken.
    for (uint32_t i = end; i-- > seen;) {
      c->looks++;
      const int64_t k = message_at<P>(s, i);
      if (k < 0) {
        c->early_wqe++;
        early.push_back(i);
      } else if (P::data_v == bp::data::push && !payload_at(s, i, k)) {
        c->early_payload++;
        early.push_back(i);
      }
    }
    seen = std::max(seen, end);
    if (over) break;
    if (round % 65536 == 0 && clock::now() > until) {
      printf("a launch did not end\n");
      exit(4);
    }
  }
  CHECK_CUDA(cudaDeviceSynchronize());
  for (const uint32_t i : early) {
    const int64_t k = message_at<P>(s, i);
    c->never += k < 0 || (P::data_v == bp::data::push && !payload_at(s, i, k));
  }
  const uint32_t bell = from_be((uint32_t)__atomic_load_n(doorbell, __ATOMIC_ACQUIRE)) >> 8 & 0xffff;
  c->short_rings += bell != s.total;
  c->bad += *s.bad() != 0;
}

template <class P>
counts count(stage& s, const char* name, double seconds) {
  using clock = std::chrono::steady_clock;
  counts c = {};
  const auto begin = clock::now();
  while (std::chrono::duration<double>(clock::now() - begin).count() < seconds) {
    memset(s.sq, 0, ring * 64);
    memset(s.window, 0, (size_t)ring * slot_bytes);
    memset(s.flags, 0, 8192);
    memset(s.flags + 8192, 0xff, 8192);
    CHECK_CUDA(cudaMemset(s.state, 0, sizeof(bp_qp_state)));
    CHECK_CUDA(cudaMemset(s.ready, 0, ring * 4));
    CHECK_CUDA(cudaMemset(s.words, 0, 256));
    CHECK_CUDA(cudaDeviceSynchronize());
    uint32_t* words = reinterpret_cast<uint32_t*>(s.words);
    const post_args a{s.ep, (uint64_t)s.source, s.each, words, words + 32, s.bad(), s.done()};
    post<P><<<s.blocks, 32>>>(a);
    CHECK_CUDA(cudaGetLastError());
    watch<P>(s, &c);
    c.launches++;
    c.posted += s.total;
  }
  printf("%-32s %6llu launches, %10llu posted, %9llu rings seen, %10llu WQEs looked at: %llu WQEs and %llu payloads "
         "came after their doorbell (%llu never), %llu launches with a bad status, %llu with a doorbell missing\n",
         name, (unsigned long long)c.launches, (unsigned long long)c.posted, (unsigned long long)c.rings,
         (unsigned long long)c.looks, (unsigned long long)c.early_wqe, (unsigned long long)c.early_payload,
         (unsigned long long)c.never, (unsigned long long)c.bad, (unsigned long long)c.short_rings);
  fflush(stdout);
  return c;
}

template <bp::data D, bp::reach R>
using path = bp::path<D, bp::kick::kernel, bp::share::shared, R>;
using bp::data;
using bp::reach;

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 5;
  CHECK_CUDA(cudaSetDevice(0));
  int multiprocessors = 0;
  CHECK_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  stage s(multiprocessors);
  const counts cases[] = {count<path<data::pull, reach::system>>(s, "pull, fence.sys", seconds),
                          count<path<data::push, reach::system>>(s, "push, fence.sys", seconds)};
  const counts controls[] = {count<path<data::pull, reach::gpu>>(s, "control: pull, fence.gpu", seconds),
                             count<path<data::push, reach::gpu>>(s, "control: push, fence.gpu", seconds)};
  bool right = true;
  uint64_t seen = 0;
  for (const counts& c : cases) right &= c.early_wqe + c.early_payload + c.bad + c.short_rings == 0 && c.rings != 0;
  for (const counts& c : controls) seen += c.early_wqe + c.early_payload;
  printf("%s; the controls saw %llu%s\n", right ? "in order" : "NOT IN ORDER", (unsigned long long)seen,
         seen != 0 ? "" : ": blind, this run says nothing");
  return !right ? 1 : seen == 0 ? 2 : 0;
}
