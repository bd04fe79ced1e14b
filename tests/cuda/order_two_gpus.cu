// Counts how often a GPU sees a doorbell before what it tells of, and a line of a slot before all of it. GPU 0 posts.
// Queues and windows lie in the memory of GPU 1, which observes, as with the NIC's engine there; or in GPU 0's own,
// where a fence of gpu scope is enough, and another multiprocessor observes, or GPU 1. Beside it blocks of GPU 0 store
// into both memories all the while, so that the queues on the way are deep.
//
//   nvcc -std=c++17 -O3 -arch=sm_90 -Ikernels/include -o order_two_gpus tests/cuda/order_two_gpus.cu
//   timeout 120 ./order_two_gpus [seconds a case, 3; at most 10]
//
// Nothing may be seen too early. Three controls say whether an observer can see it: a fence of gpu scope where system
// scope is needed; no fence; lines that are two stores. Those of GPU 1's memory must show something. Exit status as
// that of order_observer.cu; 5: there are no two GPUs that reach each other.
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
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

constexpr uint32_t ring_log = 10, ring = 1u << ring_log, slot_bytes = 128;
constexpr uint32_t total = ring - 1;  // messages of a queue pair in one launch: no queue fills up
constexpr uint32_t message = 48, words = message / 4;
constexpr uint32_t queue_pairs = 32, noise_blocks = 64, threads = 256, noise_units = 4096;
constexpr uint32_t first_qpn = 0x123, local_key = 0x55, window_key = 0x66, remote_key = 0x77;
constexpr uint64_t remote_base = 0x10000000, launch_ns = 4000000000;
constexpr uint32_t newest = 3;  // WQEs looked at as soon as a doorbell is seen
constexpr uint32_t page = 4096, dbr_offset = 1024;  // of a queue pair: its UAR page, and the DBR in it
constexpr uint32_t sequence = 2;  // of the first lap: with 1 a sender would write whole slots

enum class how { verb, unfenced, torn };  // as the verbs do it; without a fence; lines as two stores

struct args {
  const bp_endpoint* eps;
  uint64_t source;   // in GPU 0
  char *sq, *window, *bells;  // in the same GPU's memory
  bp::u128* noise[2];         // in each GPU's
  uint32_t* ended;   // blocks that have posted, in GPU 0
  uint32_t* done;    // 1: all have, in host memory
  uint32_t* bad;     // statuses, in host memory
};
struct counts {
  unsigned long long posted, rings, looks, early, never, bad;
};

__host__ __device__ uint32_t word_of(uint32_t k, uint32_t i) { return (k + 1) * 0x9E3779B9u + i; }

// The lines of a slot, each as two stores, of which the first has the sequence: what an in-band put must not be.
__device__ void put_torn(const bp_endpoint& ep, uint32_t k, const uint32_t* from) {
  uint32_t stream[21] = {};
  for (uint32_t i = 0; i < words; i++) stream[9 + i] = from[i];
  const uint64_t remote = ep.remote_iova + (uint64_t)k * message;
  stream[0] = bp::be32(k << 8 | BP_OP_RDMA_WRITE), stream[1] = bp::be32(ep.qp.qpn << 8 | 3);
  stream[4] = bp::be32((uint32_t)(remote >> 32)), stream[5] = bp::be32((uint32_t)remote);
  stream[6] = bp::be32(remote_key), stream[8] = bp::be32(BP_INLINE_FLAG | message);
  uint64_t* to = reinterpret_cast<uint64_t*>(ep.qp.window.va + (uint64_t)k * slot_bytes);
  for (uint32_t line = 0; line < 7; line++) {
    bp::st_relaxed_sys(to + 2 * line + 1, (uint64_t)sequence << 32 | stream[3 * line + 2]);
  }
  for (uint32_t line = 0; line < 7; line++) {
    bp::st_relaxed_sys(to + 2 * line, (uint64_t)stream[3 * line + 1] << 32 | stream[3 * line]);
  }
}

// Block b < queue_pairs posts on queue pair b, the others store into the GPUs' memories in turn.
template <class P, how H>
__global__ void __launch_bounds__(threads) post(const __grid_constant__ args a) {
  const uint32_t b = blockIdx.x;
  const uint64_t since = bp::now_ns();
  if (b >= queue_pairs) {
    for (uint32_t i = 0; bp::ld_relaxed_gpu(a.ended) < queue_pairs && bp::elapsed_ns(since) < launch_ns; i++) {
      bp::u128* mine = a.noise[i % 2] + (uint64_t)(b - queue_pairs) * noise_units;
      for (uint32_t k = threadIdx.x; k < noise_units; k += threads) bp::st_unit(mine + k, bp::u128{{i, b, k, i}});
    }
    return;
  }
  if (threadIdx.x != 0) return;
  const bp_endpoint ep = a.eps[b];
  uint32_t bad = 0;
  for (uint32_t k = 0; k < total; k++) {
    const uint64_t at = (uint64_t)k * message;
    const uint32_t* from = reinterpret_cast<const uint32_t*>(a.source + at);
    if (H == how::torn) {
      put_torn(ep, k, from);
    } else if (H == how::unfenced) {
      bp::wqe w = bp::make_wqe(BP_OP_RDMA_WRITE, 3, ep.remote_iova + at, ep.remote_rkey);
      w.bytes = message;
      w.gather = (uint64_t)from;
      w.lkey = ep.local_lkey;
      for (uint32_t u = 0; u < 4; u++) bp::st_unit(bp::sq_unit(ep.qp, k, u), bp::wqe_unit<false>(w, u, k, ep.qp.qpn));
      bp::tell<P>(ep.qp, k + 1);
    } else {
      bad |= bp::put<P>(ep, bp::thread_scope{}, at, from, message, bp::unsignalled);
    }
  }
  if (bad != 0) atomicOr_system(a.bad, bad);
  __threadfence_system();
  if (atomicAdd(a.ended, 1u) + 1 == queue_pairs) bp::st_relaxed_sys(a.done, 1u);
}

__device__ uint32_t at(const char* p) { return bp::ld_relaxed_sys(reinterpret_cast<const uint32_t*>(p)); }

// Whether WQE k of a queue pair is there, with its payload where that was pushed.
template <class P>
__device__ bool is_whole(const args& a, uint32_t n, uint32_t k) {
  const char* w = a.sq + ((size_t)n * ring + k) * 64;
  constexpr bool push = P::data_v == bp::data::push;
  const uint64_t remote = remote_base + (uint64_t)k * message;
  const uint64_t gather = push ? (uint64_t)k * slot_bytes : a.source + (uint64_t)k * message;
  bool whole = at(w) == bp::be32(k << 8 | BP_OP_RDMA_WRITE) && at(w + 4) == bp::be32((first_qpn + n) << 8 | 3) &&
               at(w + 20) == bp::be32((uint32_t)remote) && at(w + 24) == bp::be32(remote_key) &&
               at(w + 32) == bp::be32(message) && at(w + 36) == bp::be32(push ? window_key : local_key) &&
               at(w + 44) == bp::be32((uint32_t)gather);
  if (push) {
    const char* slot = a.window + ((size_t)n * ring + k) * slot_bytes;
    for (uint32_t i = 0; i < words; i++) whole &= at(slot + i * 4) == word_of(k, i);
  }
  return whole;
}

// The observer: block n looks at queue pair n, by one thread, until all has been posted, and at all of it then.
template <class P>
__global__ void watch(const __grid_constant__ args a, counts* result) {
  const uint32_t n = blockIdx.x;
  const uint64_t since = bp::now_ns();
  counts c = {};
  uint32_t seen = 0;
  for (bool over = false; !over && bp::elapsed_ns(since) < launch_ns;) {
    over = bp::ld_acquire_sys(a.done) != 0;
    const char* bell = a.bells + (size_t)n * page + BP_UAR_DOORBELL_OFFSET;
    const uint32_t rung = bp::be32((uint32_t)bp::ld_acquire_sys(reinterpret_cast<const uint64_t*>(bell))) >> 8 & 0xffff;
    const char* record = a.bells + (size_t)n * page + dbr_offset + 4 * BP_DBR_SND;
    const uint32_t told = bp::be32(bp::ld_acquire_sys(reinterpret_cast<const uint32_t*>(record))) & 0xffff;
    const uint32_t end = rung > told ? rung : told;  // whichever says more, as the NIC takes them
    if (end <= seen || end > total) continue;
    c.rings++;
    for (uint32_t k = end; k-- > seen && end - k <= newest;) {
      c.looks++;
      c.early += !is_whole<P>(a, n, k);
    }
    seen = end;
  }
  for (uint32_t k = 0; k < total; k++) c.never += !is_whole<P>(a, n, k);
  c.posted = total;
  result[n] = c;
}

// Line i of a slot: whether it has come, and whether with other data than it must have.
__device__ void look_at_line(const args& a, uint32_t n, uint32_t k, uint32_t i, bool* there, bool* early) {
  const bp::u128* line = reinterpret_cast<const bp::u128*>(a.window + ((size_t)n * ring + k) * slot_bytes) + i;
  const bp::u128 v = bp::ld_line(line);
  const uint64_t remote = remote_base + (uint64_t)k * message;
  *there = v.w[3] == sequence;
  for (uint32_t j = 0; j < 3; j++) {
    const uint32_t s = 3 * i + j;
    const uint32_t wanted = s == 0   ? bp::be32(k << 8 | BP_OP_RDMA_WRITE)
                            : s == 1 ? bp::be32((first_qpn + n) << 8 | 3)
                            : s == 5 ? bp::be32((uint32_t)remote)
                            : s == 6 ? bp::be32(remote_key)
                            : s == 8 ? bp::be32(BP_INLINE_FLAG | message)
                            : s >= 9 ? word_of(k, s - 9)
                                     : v.w[j];
    *early |= *there && v.w[j] != wanted;
  }
}

// The observer of in-band slots: a lane a line of the slot that is about to come. Where one is there at the first look,
// it goes some slots ahead: the poster is faster.
__global__ void watch_slots(const __grid_constant__ args a, counts* result) {
  const uint32_t n = blockIdx.x, i = threadIdx.x;
  constexpr uint32_t lines = 7, ahead = 16;  // of 12 bytes: 36 of header, 48 of payload
  const uint64_t since = bp::now_ns();
  counts c = {};
  bool is_new = true;
  for (uint32_t k = 0; k < total && bp::ld_acquire_sys(a.done) == 0 && bp::elapsed_ns(since) < launch_ns;) {
    bool there = true, early = false;
    if (i < lines) look_at_line(a, n, k, i, &there, &early);
    c.looks++;
    c.early += __popc(__ballot_sync(~0u, early));
    const bool whole = __all_sync(~0u, there);
    c.rings += whole && !is_new;
    if (whole) k += is_new ? ahead : 1;
    is_new = whole;
  }
  while (bp::ld_acquire_sys(a.done) == 0 && bp::elapsed_ns(since) < launch_ns) continue;
  for (uint32_t k = 0; k < total; k++) {
    bool there = true, early = false;
    if (i < lines) look_at_line(a, n, k, i, &there, &early);
    c.never += !__all_sync(~0u, there && !early);
  }
  c.posted = total;
  if (i == 0) result[n] = c;
}

struct stage {
  char *source, *state, *ready, *eps, *ended;          // GPU 0
  char *sq[2], *window[2], *bells[2], *noise[2];       // each GPU
  counts* results[2];
  char *host, *cq;                                     // host

  stage() {
    const auto on_gpu = [](auto** p, size_t bytes) { CHECK_CUDA(cudaMalloc(p, bytes)); };
    const auto pinned = [](char** p, size_t bytes) {
      CHECK_CUDA(cudaHostAlloc(p, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    };
    for (int gpu = 0; gpu < 2; gpu++) {
      CHECK_CUDA(cudaSetDevice(gpu));
      on_gpu(&sq[gpu], (size_t)queue_pairs * ring * 64);
      on_gpu(&window[gpu], (size_t)queue_pairs * ring * slot_bytes);
      on_gpu(&bells[gpu], (size_t)queue_pairs * page);
      on_gpu(&noise[gpu], (size_t)noise_blocks * noise_units * sizeof(bp::u128));
      on_gpu(&results[gpu], queue_pairs * sizeof(counts));
    }
    CHECK_CUDA(cudaSetDevice(0));
    on_gpu(&state, queue_pairs * sizeof(bp_qp_state));
    on_gpu(&ready, (size_t)queue_pairs * ring * 4);
    on_gpu(&source, (size_t)total * message);
    on_gpu(&eps, queue_pairs * sizeof(bp_endpoint));
    on_gpu(&ended, 256);
    pinned(&host, page);
    pinned(&cq, page);
    std::vector<uint32_t> payload;
    for (uint32_t k = 0; k < total; k++) {
      for (uint32_t i = 0; i < words; i++) payload.push_back(word_of(k, i));
    }
    CHECK_CUDA(cudaMemcpy(source, payload.data(), payload.size() * 4, cudaMemcpyHostToDevice));
  }

  // A queue pair whose queues and window lie in a GPU's memory.
  bp_endpoint endpoint(uint32_t n, uint32_t tag, int gpu) const {
    bp_endpoint ep = {};
    bp_qp& q = ep.qp;
    q.sq = (uint64_t)sq[gpu] + (uint64_t)n * ring * 64;
    q.uar = (uint64_t)bells[gpu] + (uint64_t)n * page;
    q.dbr = q.uar + dbr_offset;
    q.cq = (uint64_t)cq;  // never looked at: nothing fills up
    q.cq_log = 4;
    q.cq_dbr = (uint64_t)host + 64;
    q.status = (uint64_t)host + 128;
    q.state = (uint64_t)state + n * sizeof(bp_qp_state);
    q.ready = (uint64_t)ready + (uint64_t)n * ring * 4;
    q.window.va = (uint64_t)window[gpu] + (uint64_t)n * ring * slot_bytes;
    q.window.lkey = window_key;
    q.window.slot_bytes = slot_bytes;
    q.window.slots = ring;
    q.window.inband_seq0 = sequence;
    q.timeout_ns = 1000000000;
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
    ep.tag = tag;
    return ep;
  }
};

// Queues in GPU `owner`'s memory, and who looks at them.
template <class P, how H>
counts launch(const stage& s, int owner, int observer) {
  constexpr bool inband = P::kick_v == bp::kick::inband;
  CHECK_CUDA(cudaSetDevice(0));
  std::vector<bp_endpoint> filled;
  for (uint32_t n = 0; n < queue_pairs; n++) filled.push_back(s.endpoint(n, P::tag_v, owner));
  CHECK_CUDA(cudaMemcpy(s.eps, filled.data(), filled.size() * sizeof(bp_endpoint), cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemset(s.state, 0, queue_pairs * sizeof(bp_qp_state)));
  CHECK_CUDA(cudaMemset(s.ready, 0, (size_t)queue_pairs * ring * 4));
  CHECK_CUDA(cudaMemset(s.ended, 0, 256));
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaSetDevice(owner));
  CHECK_CUDA(cudaMemset(s.sq[owner], 0, (size_t)queue_pairs * ring * 64));
  CHECK_CUDA(cudaMemset(s.window[owner], 0, (size_t)queue_pairs * ring * slot_bytes));
  CHECK_CUDA(cudaMemset(s.bells[owner], 0, (size_t)queue_pairs * page));
  CHECK_CUDA(cudaDeviceSynchronize());
  memset(s.host, 0, page);
  memset(s.cq, 0xff, page);
  uint32_t* flags = reinterpret_cast<uint32_t*>(s.host);
  const auto noise = [&](int gpu) { return reinterpret_cast<bp::u128*>(s.noise[gpu]); };
  const args a{reinterpret_cast<const bp_endpoint*>(s.eps), (uint64_t)s.source, s.sq[owner], s.window[owner],
               s.bells[owner], {noise(0), noise(1)}, reinterpret_cast<uint32_t*>(s.ended), flags, flags + 1};
  cudaStream_t beside;  // on one GPU both kernels run at once
  CHECK_CUDA(cudaSetDevice(observer));
  CHECK_CUDA(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
  if constexpr (inband) {
    watch_slots<<<queue_pairs, 32, 0, beside>>>(a, s.results[observer]);
  } else {
    watch<P><<<queue_pairs, 1, 0, beside>>>(a, s.results[observer]);
  }
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaSetDevice(0));
  post<P, H><<<queue_pairs + noise_blocks, threads>>>(a);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaSetDevice(observer));
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaStreamDestroy(beside));
  counts each[queue_pairs], sum = {};
  CHECK_CUDA(cudaMemcpy(each, s.results[observer], sizeof(each), cudaMemcpyDeviceToHost));
  for (const counts& c : each) {
    sum.posted += c.posted, sum.rings += c.rings, sum.looks += c.looks, sum.early += c.early, sum.never += c.never;
  }
  sum.bad = flags[1] != 0;
  return sum;
}

template <class P, how H = how::verb>
counts count(const stage& s, const char* name, double seconds, int owner, int observer) {
  using clock = std::chrono::steady_clock;
  counts c = {};
  const auto begin = clock::now();
  while (std::chrono::duration<double>(clock::now() - begin).count() < seconds) {
    const counts one = launch<P, H>(s, owner, observer);
    c.posted += one.posted, c.rings += one.rings, c.looks += one.looks, c.early += one.early, c.never += one.never;
    c.bad += one.bad;
  }
  printf("%-38s %9llu posted, %8llu seen as they came, %9llu looks: %llu too early, %llu never, %llu bad launches\n",
         name, c.posted, c.rings, c.looks, c.early, c.never, c.bad);
  fflush(stdout);
  return c;
}

using bp::data;
using bp::kick;
using bp::reach;
using bp::share;
template <data D, share S, reach R>
using bell = bp::path<D, kick::kernel, S, R>;
template <share S>
using slots = bp::path<data::push, kick::inband, S, reach::system>;
constexpr share one = share::exclusive, many = share::shared;

int main(int argc, char** argv) {
  const double seconds = std::min(10.0, argc > 1 ? atof(argv[1]) : 3);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // a kernel that is loaded late would wait for the observer's end
  int gpus = 0, there = 0, back = 0;
  CHECK_CUDA(cudaGetDeviceCount(&gpus));
  if (gpus > 1) {
    CHECK_CUDA(cudaDeviceCanAccessPeer(&there, 0, 1));
    CHECK_CUDA(cudaDeviceCanAccessPeer(&back, 1, 0));
  }
  if (!there || !back) {
    printf("no two GPUs that reach each other\n");
    return 5;
  }
  for (int gpu = 0; gpu < 2; gpu++) {
    CHECK_CUDA(cudaSetDevice(gpu));
    CHECK_CUDA(cudaDeviceEnablePeerAccess(1 - gpu, 0));
  }
  const stage s;
  const counts cases[] = {
      count<bell<data::pull, one, reach::system>>(s, "GPU 1: exclusive pull", seconds, 1, 1),
      count<bell<data::push, one, reach::system>>(s, "GPU 1: exclusive push", seconds, 1, 1),
      count<bell<data::pull, many, reach::system>>(s, "GPU 1: shared pull", seconds, 1, 1),
      count<bell<data::push, many, reach::system>>(s, "GPU 1: shared push", seconds, 1, 1),
      count<slots<one>>(s, "GPU 1: exclusive in-band", seconds, 1, 1),
      count<slots<many>>(s, "GPU 1: shared in-band", seconds, 1, 1),
      count<bell<data::pull, one, reach::gpu>>(s, "own, seen by itself: exclusive pull", seconds, 0, 0),
      count<bell<data::push, one, reach::gpu>>(s, "own, seen by itself: exclusive push", seconds, 0, 0),
      count<bell<data::push, many, reach::gpu>>(s, "own, seen by GPU 1: shared push", seconds, 0, 1),
  };
  const counts controls[] = {
      count<bell<data::push, one, reach::gpu>>(s, "control, GPU 1: push, fence.gpu", seconds, 1, 1),
      count<bell<data::pull, one, reach::gpu>, how::unfenced>(s, "control, GPU 1: no fence", seconds, 1, 1),
      count<slots<one>, how::torn>(s, "control, GPU 1: lines as two stores", seconds, 1, 1),
  };
  const counts own =
      count<bell<data::pull, one, reach::gpu>, how::unfenced>(s, "control, own: no fence", seconds, 0, 0);
  bool right = true;
  for (const counts& c : cases) right &= c.early + c.never + c.bad == 0 && c.rings != 0;
  const bool sees = controls[0].early + controls[1].early != 0 && controls[2].early != 0;
  printf("%s%s%s\n", right ? "in order" : "NOT IN ORDER", sees ? "" : ": a control saw nothing, this run is blind",
         own.early != 0 ? "" : "; of GPU 0's own memory this run says nothing");
  return !right ? 1 : sees ? 0 : 2;
}
