// Counts how often an observer sees a doorbell before what it tells of. Queues and windows lie in host memory and CPU
// threads are the observers. Each queue pair is shared by callers of two blocks, on two multiprocessors, so that a
// doorbell covers WQEs of the other one: whether its ringer's fence covers those too
// (kernels/include/bellpush/impl/order.cuh) is what is counted here. There are many queue pairs, of few callers, so
// that many doorbells are seen; an observer looks at the newest WQEs that one covers before anything else, because
// those are what it may have overtaken. Other blocks store to the host all the while, so that the queues on the way are
// deep.
//
//   nvcc -std=c++17 -O3 -arch=sm_90 -Ikernels/include -o order_observer tests/cuda/order_observer.cu
//   timeout 60 ./order_observer [seconds a case, 5; at most 10]
//
// Two cases have the fence that the placement asks for (system scope): nothing may be seen too early. Their two
// controls differ in the ringer's fence alone (gpu scope): there the observers must see something, or they are blind.
// Also checked: every launch ends, its last doorbells cover all that was posted, all of it came in the end, and
// doorbells were seen that cover both blocks' WQEs. Exit status 0: all as it must be; 1: it is not; 2: blind; 3: CUDA
// failed; 4: a launch did not end.
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#define BP_MAX_THREADS 256
#include <bellpush/bellpush.cuh>

#define CHECK_CUDA(call)                                                                  \
  do {                                                                                    \
    const cudaError_t error = (call);                                                     \
    if (error != cudaSuccess) {                                                           \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error));    \
      exit(3);                                                                            \
    }                                                                                     \
  } while (0)

constexpr uint32_t ring_log = 10, ring = 1u << ring_log, slot_bytes = 64;
constexpr uint32_t message = 32;
constexpr uint32_t sharers = 2, lanes = 2, callers = sharers * lanes;  // of a queue pair: blocks, and threads of each
constexpr uint32_t each = (ring - 1) / callers, total = each * callers;  // messages of a caller, and of a queue pair
constexpr uint32_t first_qpn = 0x123, local_key = 0x55, window_key = 0x66, remote_key = 0x77;
constexpr uint64_t remote_base = 0x10000000;
constexpr uint32_t flag_bytes = 16384;                      // of a queue pair: DBR, doorbell and CQ
constexpr uint32_t noise_threads = 256, noise_units = 4096;  // of a block that stores to the host all the while
constexpr uint64_t launch_ns = 5000000000;
constexpr uint32_t newest = 3;  // WQEs looked at as soon as a doorbell is seen

struct post_args {
  const bp_endpoint* eps;
  uint64_t source;     // message k's bytes at k * message
  uint32_t qps;
  uint32_t* begun;     // blocks that post
  uint32_t* ended;
  uint32_t* places;    // multiprocessors that those run on
  bp::u128* noise;     // in host memory
  uint32_t* bad;       // statuses, in host memory
  uint32_t* done;      // 1: all that post have ended, in host memory
};

// Block b < sharers * qps posts on queue pair b % qps, the others store.
template <class P>
__global__ void __launch_bounds__(noise_threads) post(const __grid_constant__ post_args a) {
  const uint32_t posting = a.qps * sharers, b = blockIdx.x;
  const uint64_t since = bp::now_ns();
  if (b >= posting) {
    bp::u128* mine = a.noise + (uint64_t)(b - posting) * noise_units;
    for (uint32_t i = 0; bp::ld_relaxed_gpu(a.ended) < posting && bp::elapsed_ns(since) < launch_ns; i++) {
      for (uint32_t k = threadIdx.x; k < noise_units; k += noise_threads) bp::st_unit(mine + k, bp::u128{{i, b, k, i}});
    }
    return;
  }
  if (threadIdx.x >= 32) return;
  if (threadIdx.x == 0) {
    asm volatile("mov.u32 %0, %%smid;" : "=r"(a.places[b]));
    atomicAdd(a.begun, 1u);
    while (bp::ld_relaxed_gpu(a.begun) < posting && bp::elapsed_ns(since) < 20000000) continue;
  }
  __syncwarp();
  if (threadIdx.x < lanes) {
    bp_endpoint ep = a.eps[b % a.qps];
    ep.tag = P::tag_v;  // the controls' fences are weaker than these queues need
    const uint32_t caller = b / a.qps * lanes + threadIdx.x;
    uint32_t bad = 0;
    for (uint32_t i = 0; i < each; i++) {
      const uint64_t at = (uint64_t)(caller * each + i) * message;
      bad |= bp::put<P>(ep, bp::thread_scope{}, at, reinterpret_cast<const void*>(a.source + at), message);
    }
    if (bad != 0) atomicOr_system(a.bad, bad);
  }
  __syncwarp();
  if (threadIdx.x == 0) {
    __threadfence_system();
    if (atomicAdd(a.ended, 1u) + 1 == posting) bp::st_relaxed_sys(a.done, 1u);
  }
}

uint32_t word_of(uint32_t k, uint32_t i) { return (k + 1) * 0x9E3779B9u + i; }

struct counts {
  uint64_t launches, posted, rings, both, looks, early_wqe, early_payload, never, bad, short_rings, beside;
  void add(const counts& c) {
    launches += c.launches, posted += c.posted, rings += c.rings, both += c.both, looks += c.looks;
    early_wqe += c.early_wqe, early_payload += c.early_payload, never += c.never, bad += c.bad;
    short_rings += c.short_rings, beside += c.beside;
  }
};

struct stage {
  char *sq, *window, *flags, *noise, *host;           // host memory
  char *source, *state, *ready, *eps, *words;         // GPU memory
  uint32_t qps, blocks, observers;

  stage(uint32_t multiprocessors) {
    qps = std::min(32u, std::max(1u, multiprocessors / 4));
    blocks = qps * sharers + std::min(32u, multiprocessors - std::min(multiprocessors, qps * sharers));
    observers = std::min({16u, qps, std::max(2u, std::thread::hardware_concurrency()) - 1});
    const auto pinned = [](char** p, size_t bytes) {
      CHECK_CUDA(cudaHostAlloc(p, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    };
    pinned(&sq, (size_t)qps * ring * 64);
    pinned(&window, (size_t)qps * ring * slot_bytes);
    pinned(&flags, (size_t)qps * flag_bytes);
    pinned(&noise, (size_t)blocks * noise_units * sizeof(bp::u128));
    pinned(&host, 4096);
    CHECK_CUDA(cudaMalloc(&source, (size_t)total * message));
    CHECK_CUDA(cudaMalloc(&state, qps * sizeof(bp_qp_state)));
    CHECK_CUDA(cudaMalloc(&ready, (size_t)qps * ring * 4));
    CHECK_CUDA(cudaMalloc(&eps, qps * sizeof(bp_endpoint)));
    CHECK_CUDA(cudaMalloc(&words, 4096));
    std::vector<uint32_t> payload;
    for (uint32_t k = 0; k < total; k++) {
      for (uint32_t i = 0; i < message / 4; i++) payload.push_back(word_of(k, i));
    }
    CHECK_CUDA(cudaMemcpy(source, payload.data(), payload.size() * 4, cudaMemcpyHostToDevice));
    std::vector<bp_endpoint> filled;
    for (uint32_t n = 0; n < qps; n++) filled.push_back(endpoint(n));
    CHECK_CUDA(cudaMemcpy(eps, filled.data(), qps * sizeof(bp_endpoint), cudaMemcpyHostToDevice));
  }

  bp_endpoint endpoint(uint32_t n) const {
    bp_endpoint ep = {};
    bp_qp& q = ep.qp;
    q.sq = (uint64_t)sq_of(n);
    q.dbr = (uint64_t)flags_of(n);
    q.uar = (uint64_t)flags_of(n) + 4096;
    q.cq = (uint64_t)flags_of(n) + 8192;  // never looked at: nothing fills up
    q.cq_log = 6;
    q.cq_dbr = (uint64_t)flags_of(n) + 64;
    q.status = (uint64_t)flags_of(n) + 128;
    q.state = (uint64_t)state + n * sizeof(bp_qp_state);
    q.ready = (uint64_t)ready + (uint64_t)n * ring * 4;
    q.window.va = (uint64_t)window_of(n);
    q.window.lkey = window_key;
    q.window.slot_bytes = slot_bytes;
    q.window.slots = ring;
    q.window.inband_seq0 = 1;
    q.timeout_ns = 2000000000;
    q.qpn = first_qpn + n;
    q.slot_limit = ring;
    q.sq_log = ring_log;
    q.credit_period = ring / 4;
    ep.local_va = ep.local_iova = (uint64_t)source;
    ep.local_bytes = (uint64_t)total * message;
    ep.local_lkey = local_key;
    ep.remote_iova = remote_base;
    ep.remote_bytes = (uint64_t)total * message;
    ep.remote_rkey = remote_key;
    return ep;
  }
  char* sq_of(uint32_t n) const { return sq + (size_t)n * ring * 64; }
  char* window_of(uint32_t n) const { return window + (size_t)n * ring * slot_bytes; }
  char* flags_of(uint32_t n) const { return flags + (size_t)n * flag_bytes; }
  uint32_t* done() const { return reinterpret_cast<uint32_t*>(host); }
  uint32_t* bad() const { return reinterpret_cast<uint32_t*>(host) + 1; }
};

uint32_t from_be(uint32_t v) { return __builtin_bswap32(v); }
uint32_t word_at(const char* p) { return __atomic_load_n(reinterpret_cast<const uint32_t*>(p), __ATOMIC_RELAXED); }

// The message that the WQE at an index sends; -1 if it is not there, or not whole.
template <class P>
int64_t message_at(const stage& s, uint32_t n, uint32_t index) {
  const char* w = s.sq_of(n) + (size_t)index * 64;
  const uint64_t remote = (uint64_t)from_be(word_at(w + 16)) << 32 | from_be(word_at(w + 20));
  const uint64_t k = (remote - remote_base) / message;
  const uint64_t gather = (uint64_t)from_be(word_at(w + 40)) << 32 | from_be(word_at(w + 44));
  const bool push = P::data_v == bp::data::push;
  const uint64_t from = push ? (uint64_t)index * slot_bytes : (uint64_t)s.source + k * message;
  const bool whole = from_be(word_at(w)) == ((index & 0xffff) << 8 | BP_OP_RDMA_WRITE) &&
                     from_be(word_at(w + 4)) == ((first_qpn + n) << 8 | 3) && remote >= remote_base && k < total &&
                     from_be(word_at(w + 24)) == remote_key && from_be(word_at(w + 32)) == message &&
                     from_be(word_at(w + 36)) == (push ? window_key : local_key) && gather == from;
  return whole ? (int64_t)k : -1;
}
template <class P>
bool payload_at(const stage& s, uint32_t n, uint32_t index, int64_t k) {
  if (P::data_v != bp::data::push) return true;
  bool whole = true;
  for (uint32_t i = 0; i < message / 4; i++) {
    whole &= word_at(s.window_of(n) + (size_t)index * slot_bytes + i * 4) == word_of((uint32_t)k, i);
  }
  return whole;
}

uint32_t bell_of(const stage& s, uint32_t n) {
  const auto doorbell = reinterpret_cast<const uint64_t*>(s.flags_of(n) + 4096 + BP_UAR_DOORBELL_OFFSET);
  return from_be((uint32_t)__atomic_load_n(doorbell, __ATOMIC_ACQUIRE)) >> 8 & 0xffff;
}

// One queue pair, once: has a doorbell come, and all that it tells of?
template <class P>
void look(const stage& s, uint32_t n, uint32_t* seen, counts* c) {
  // Whichever of doorbell and DBR says more, as the NIC takes them.
  const uint32_t bell = bell_of(s, n);
  const auto record = reinterpret_cast<const uint32_t*>(s.flags_of(n)) + BP_DBR_SND;
  const uint32_t told = from_be(__atomic_load_n(record, __ATOMIC_ACQUIRE)) & 0xffff;
  const uint32_t end = std::min(std::max(bell, told), total);
  if (end <= *seen) return;
  c->rings++;
  uint32_t blocks = 0;
  for (uint32_t i = end; i-- > *seen && end - i <= newest;) {
    c->looks++;
    const int64_t k = message_at<P>(s, n, i);
    if (k < 0) {
      c->early_wqe++;
    } else {
      c->early_payload += !payload_at<P>(s, n, i, k);
      blocks |= 1u << (uint32_t)k / (each * lanes);
    }
  }
  c->both += blocks == (1u << sharers) - 1;
  *seen = end;
}

// An observer: looks at every `step`th queue pair in turn until the launch is over.
template <class P>
void watch(const stage& s, uint32_t first, uint32_t step, counts* result) {
  using clock = std::chrono::steady_clock;
  const auto until = clock::now() + std::chrono::nanoseconds(launch_ns + 1000000000);
  std::vector<uint32_t> seen(s.qps);
  counts c = {};
  for (uint32_t round = 1;; round++) {
    const bool over = __atomic_load_n(s.done(), __ATOMIC_ACQUIRE) != 0;
    for (uint32_t n = first; n < s.qps; n += step) look<P>(s, n, &seen[n], &c);
    if (over) break;
    if (round % 65536 == 0 && clock::now() > until) {
      printf("a launch did not end\n");
      fflush(stdout);
      _Exit(4);
    }
  }
  *result = c;
}

template <class P>
counts launch(const stage& s) {
  memset(s.sq, 0, (size_t)s.qps * ring * 64);
  memset(s.window, 0, (size_t)s.qps * ring * slot_bytes);
  memset(s.host, 0, 4096);
  for (uint32_t n = 0; n < s.qps; n++) {
    memset(s.flags_of(n), 0, 8192);
    memset(s.flags_of(n) + 8192, 0xff, flag_bytes - 8192);
  }
  CHECK_CUDA(cudaMemset(s.state, 0, s.qps * sizeof(bp_qp_state)));
  CHECK_CUDA(cudaMemset(s.ready, 0, (size_t)s.qps * ring * 4));
  CHECK_CUDA(cudaMemset(s.words, 0, 4096));
  CHECK_CUDA(cudaDeviceSynchronize());
  std::vector<counts> results(s.observers);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < s.observers; t++) {
    threads.emplace_back(watch<P>, std::cref(s), t, s.observers, &results[t]);
  }
  uint32_t* words = reinterpret_cast<uint32_t*>(s.words);
  const post_args a{reinterpret_cast<const bp_endpoint*>(s.eps), (uint64_t)s.source, s.qps, words, words + 32,
                    words + 64, reinterpret_cast<bp::u128*>(s.noise), s.bad(), s.done()};
  post<P><<<s.blocks, noise_threads>>>(a);
  CHECK_CUDA(cudaGetLastError());
  for (std::thread& t : threads) t.join();
  CHECK_CUDA(cudaDeviceSynchronize());
  counts c = {};
  for (const counts& r : results) c.add(r);
  std::vector<uint32_t> places(s.qps * sharers);
  CHECK_CUDA(cudaMemcpy(places.data(), a.places, places.size() * 4, cudaMemcpyDeviceToHost));
  for (uint32_t n = 0; n < s.qps; n++) {
    c.beside += places[n] == places[n + s.qps];
    c.short_rings += bell_of(s, n) != total;
    for (uint32_t i = 0; i < total; i++) {
      const int64_t k = message_at<P>(s, n, i);
      c.never += k < 0 || !payload_at<P>(s, n, i, k);
    }
  }
  c.bad = *s.bad() != 0;
  c.launches = 1;
  c.posted = (uint64_t)s.qps * total;
  return c;
}

template <class P>
counts count(const stage& s, const char* name, double seconds) {
  using clock = std::chrono::steady_clock;
  counts c = {};
  const auto begin = clock::now();
  while (std::chrono::duration<double>(clock::now() - begin).count() < seconds) c.add(launch<P>(s));
  using u = unsigned long long;
  printf("%-24s %5llu launches, %9llu posted, %9llu rings seen (%llu for both blocks), %9llu WQEs looked at: %llu WQEs "
         "and %llu payloads came after their doorbell, %llu never; %llu launches with a bad status, %llu doorbells "
         "missing, %llu times both blocks on one multiprocessor\n",
         name, (u)c.launches, (u)c.posted, (u)c.rings, (u)c.both, (u)c.looks, (u)c.early_wqe, (u)c.early_payload,
         (u)c.never, (u)c.bad, (u)c.short_rings, (u)c.beside);
  fflush(stdout);
  return c;
}

template <bp::data D, bp::reach R>
using path = bp::path<D, bp::kick::kernel, bp::share::shared, R>;
using bp::data;
using bp::reach;

int main(int argc, char** argv) {
  const double seconds = std::min(10.0, argc > 1 ? atof(argv[1]) : 5);
  CHECK_CUDA(cudaSetDevice(0));
  int multiprocessors = 0;
  CHECK_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  const stage s((uint32_t)multiprocessors);
  printf("%u queue pairs, %u blocks, %u observers\n", s.qps, s.blocks, s.observers);
  const counts cases[] = {count<path<data::pull, reach::system>>(s, "pull, fence.sys", seconds),
                          count<path<data::push, reach::system>>(s, "push, fence.sys", seconds)};
  const counts controls[] = {count<path<data::pull, reach::gpu>>(s, "control: pull, fence.gpu", seconds),
                             count<path<data::push, reach::gpu>>(s, "control: push, fence.gpu", seconds)};
  bool right = true, sighted = true;
  uint64_t seen = 0;
  for (const counts& c : cases) {
    right &= c.early_wqe + c.early_payload + c.never + c.bad + c.short_rings == 0;
    sighted &= c.both != 0 && c.beside < c.posted / total / 2;
  }
  for (const counts& c : controls) seen += c.early_wqe + c.early_payload;
  sighted &= seen != 0;
  printf("%s; the controls saw %llu%s\n", right ? "in order" : "NOT IN ORDER", (unsigned long long)seen,
         sighted ? "" : ": blind, this run says nothing");
  return !right ? 1 : sighted ? 0 : 2;
}
