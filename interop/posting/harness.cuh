// Posts of other libraries on queues in plain memory that no NIC reads: one kernel a case, times by the global timer,
// as `bellpush bench --post` has them.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#define CK(x)                                                                        \
  do {                                                                               \
    cudaError_t e_ = (x);                                                            \
    if (e_ != cudaSuccess) {                                                         \
      printf("#ERR %s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_)); \
      fflush(stdout);                                                                \
      exit(3);                                                                       \
    }                                                                                \
  } while (0)

namespace posting {

// ---- device side -------------------------------------------------------------------------------
struct times {
  uint64_t start, end, drain;
};
struct common_args {
  uint32_t n;         // calls a caller
  uint32_t one_qp;    // all blocks use QP 0
  uint32_t* arrived;  // zeroed before the launch
  uint32_t* bad;      // OR of all statuses that were not OK
  times* t;           // one a block
};

__device__ __forceinline__ uint64_t now() {
  uint64_t v;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v)::"memory");
  return v;
}
__device__ __forceinline__ uint32_t qp_of(const common_args& a) { return a.one_qp ? 0 : blockIdx.x; }

// All blocks begin together (bounded: after 50 ms they begin anyway).
__device__ __forceinline__ void start(const common_args& a) {
  __syncthreads();
  if (threadIdx.x == 0) {
    if (gridDim.x > 1) {
      atomicAdd(a.arrived, 1u);
      const uint64_t t0 = now();
      while (*(volatile uint32_t*)a.arrived < gridDim.x && now() - t0 < 50000000ull) {
      }
    }
    a.t[blockIdx.x].start = now();
  }
  __syncthreads();
}
__device__ __forceinline__ void stop(const common_args& a, uint32_t bad) {
  __syncthreads();
  if (threadIdx.x == 0) {
    a.t[blockIdx.x].end = now();
    __threadfence_system();  // outside of the main number; "drained" has it
    a.t[blockIdx.x].drain = now();
  }
  if (bad) atomicOr(a.bad, bad);
}

__device__ __forceinline__ uint32_t be32(uint32_t v) { return __byte_perm(v, 0, 0x0123); }

// ---- host side ---------------------------------------------------------------------------------
struct place {
  const char* name;
  bool sq_host, dbr_host, uar_host;
};
static const place ggh{"ggh", false, false, true}, hhh{"hhh", true, true, true};

// Memory of one kind, handed out from the front; reset between cases.
struct pool {
  char* base = nullptr;
  size_t size = 0, used = 0, most = 0;
  bool host = false;
  void make(size_t bytes, bool on_host) {
    size = bytes, host = on_host;
    if (on_host) {
      CK(cudaHostAlloc((void**)&base, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
      memset(base, 0, bytes);
    } else {
      CK(cudaMalloc((void**)&base, bytes));
      CK(cudaMemset(base, 0, bytes));
    }
  }
  char* take(size_t bytes, size_t align = 4096) {
    used = (used + align - 1) / align * align;
    char* p = base + used;
    used += bytes;
    if (used > size) {
      printf("#ERR pool of %zu MiB too small\n", size >> 20);
      exit(3);
    }
    most = std::max(most, used);
    return p;
  }
  void zero() {
    if (host) {
      memset(base, 0, used);
    } else {
      CK(cudaMemset(base, 0, used));
    }
  }
};
static pool gpu, pinned;
inline pool& in(bool host) { return host ? pinned : gpu; }

struct qp_mem {
  char *sq, *dbr, *uar;
  bool sq_host, dbr_host, uar_host;
};

struct grid {
  const char* name;
  int blocks, threads;
  bool one_qp;
  uint32_t n;         // calls a caller
  uint32_t callers;   // a QP
  int unit;           // 0: ns a put; 1: M puts a second
  uint32_t each = 1;  // WQEs (puts) a call
  uint32_t qps() const { return one_qp ? 1 : blocks; }
  uint64_t per_qp() const { return (uint64_t)n * callers * each; }
  uint64_t puts() const { return per_qp() * qps(); }
};

static int sms = 132;

inline void init(size_t gpu_mib = 64, size_t host_mib = 64) {
  CK(cudaSetDevice(0));
  int n = 0;
  CK(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
  sms = std::min(n, 132);
  gpu.make(gpu_mib << 20, false);
  pinned.make(host_mib << 20, true);
  setvbuf(stdout, nullptr, _IOLBF, 0);
}

// The cases. T thread scope, W warp scope, B block scope.
inline grid c1() { return {"c1", 1, 1, true, 4000, 1, 0}; }
inline grid c2() { return {"c2", sms, 1, false, 1000, 1, 1}; }
inline grid c3() { return {"c3", 1, 32, true, 62, 32, 1}; }
inline grid c4() { return {"c4", sms, 128, false, 7, 128, 1}; }
inline grid c5() { return {"c5", sms, 128, true, 1, (uint32_t)sms * 128, 1}; }
inline grid b32t() { return {"b32t", 1, 1, true, 120, 1, 0, 32}; }
inline grid b32w() { return {"b32w", 1, 32, true, 120, 1, 0, 32}; }
inline grid b32w132() { return {"b32w132", sms, 32, false, 30, 1, 1, 32}; }
inline grid named(grid g, const char* name) {
  g.name = name;
  return g;
}

// Ring of blocks that is larger than what is posted (each WQE one block), so that nobody waits.
inline uint32_t ring_for(uint64_t wqes) {
  uint32_t r = 128;
  while (r <= wqes) r *= 2;
  return r;
}

static times *t_host = nullptr, *t_gpu = nullptr;
static uint32_t* words = nullptr;

// Waits for the kernel, but not for ever: where one caller waits for another's WQE, a mistake would hold the GPU.
inline void finish(const char* impl, const grid& g) {
  constexpr int seconds = 15;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  for (;;) {
    const cudaError_t e = cudaStreamQuery(0);
    if (e == cudaSuccess) return;
    if (e != cudaErrorNotReady) {
      printf("#ERR %s %s: %s\n", impl, g.name, cudaGetErrorString(e));
      fflush(stdout);
      _exit(3);
    }
    if (std::chrono::steady_clock::now() > until) {
      printf("#ERR %s %s: the kernel did not end within %d s\n", impl, g.name, seconds);
      fflush(stdout);
      _exit(4);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// Runs a case: `prepare()` fills the queues' structures (after all pools were zeroed), `launch(common_args)`
// launches the kernel, `check()` says what is wrong ("" for nothing).
template <class Prepare, class Launch, class Check>
void bench(const char* impl, const grid& g, const char* where, int reps, Prepare prepare, Launch launch,
           Check check) {
  if (!t_host) {
    CK(cudaHostAlloc((void**)&t_host, sizeof(times) * 256, cudaHostAllocMapped));
    CK(cudaMalloc((void**)&words, 256));
    CK(cudaMalloc((void**)&t_gpu, sizeof(times) * 256));
  }
  std::vector<double> ns, drained;
  std::string why;
  for (int r = 0; r <= reps; r++) {  // the first is a warm-up
    gpu.zero();
    pinned.zero();
    gpu.used = pinned.used = 0;
    prepare();
    CK(cudaMemset(words, 0, 256));
    CK(cudaDeviceSynchronize());
    common_args c{g.n, g.one_qp ? 1u : 0u, words, words + 32, t_gpu};
    launch(c);
    CK(cudaGetLastError());
    finish(impl, g);
    uint32_t bad = 0;
    CK(cudaMemcpy(&bad, words + 32, 4, cudaMemcpyDeviceToHost));
    CK(cudaMemcpy(t_host, t_gpu, sizeof(times) * g.blocks, cudaMemcpyDeviceToHost));
    uint64_t s = ~0ull, e = 0, d = 0;
    for (int b = 0; b < g.blocks; b++) {
      s = std::min(s, t_host[b].start), e = std::max(e, t_host[b].end), d = std::max(d, t_host[b].drain);
    }
    if (r > 0) {
      ns.push_back((double)(e - s));
      drained.push_back((double)(d - s));
    }
    if (why.empty()) {
      char text[160];
      if (bad)
        snprintf(text, sizeof text, "status %u", bad), why = text;
      else
        why = check();
    }
  }
  std::sort(ns.begin(), ns.end());
  std::sort(drained.begin(), drained.end());
  const double puts = (double)g.puts(), mid = ns[ns.size() / 2], dr = drained[drained.size() / 2];
  const auto show = [&](double v) { return g.unit == 0 ? v / puts : puts / v * 1e3; };
  printf("ROW\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%s\n", impl, g.name, where, g.unit == 0 ? "ns" : "M/s",
         show(mid), show(g.unit == 0 ? ns.front() : ns.back()), show(g.unit == 0 ? ns.back() : ns.front()), show(dr),
         puts, why.empty() ? "ok" : why.c_str());
}

// A copy of queue memory, wherever it lies.
inline std::vector<uint8_t> fetch(const void* p, size_t bytes) {
  std::vector<uint8_t> v(bytes);
  CK(cudaMemcpy(v.data(), p, bytes, cudaMemcpyDefault));
  return v;
}
template <class T>
T fetch_word(const void* p) {
  T v;
  CK(cudaMemcpy(&v, p, sizeof v, cudaMemcpyDefault));
  return v;
}

inline uint32_t swap32(uint32_t v) { return __builtin_bswap32(v); }

struct expect {
  bool dbr = true, bell = true;
  uint64_t rung = ~0ull;  // where the last doorbell is not that of the last WQE
};
// WQEs stored, last doorbell record, last doorbell: of QP 0 and the last one.
inline std::string check_queues(const std::vector<qp_mem>& qps, uint64_t wqes, uint32_t ring, expect x = {}) {
  char text[160];
  for (size_t k : {size_t(0), qps.size() - 1}) {
    const qp_mem& q = qps[k];
    const auto sq = fetch(q.sq, (size_t)ring * 64);
    uint64_t found = 0;
    for (uint32_t i = 0; i < ring; i++) {
      const uint8_t op = sq[i * 64 + 3];
      const uint32_t index = sq[i * 64 + 1] << 8 | sq[i * 64 + 2];
      found += (op == 0x08 || op == 0x12 || op == 0x15) && index == (i & 0xffff);
    }
    if (found != wqes) {
      snprintf(text, sizeof text, "QP %zu: %llu WQEs stored, not %llu", k, (unsigned long long)found,
               (unsigned long long)wqes);
      return text;
    }
    const uint64_t rung = x.rung == ~0ull ? wqes : x.rung;
    const uint32_t want = swap32((uint32_t)rung & 0xffff);
    const uint32_t dbr = fetch_word<uint32_t>(q.dbr + 4);
    if (x.dbr && dbr != want) {
      snprintf(text, sizeof text, "QP %zu: DBR %08x, not %08x", k, dbr, want);
      return text;
    }
    const uint32_t bell = (uint32_t)fetch_word<uint64_t>(q.uar + 0x800);
    if (x.bell && bell != swap32(((uint32_t)rung & 0xffff) << 8)) {
      snprintf(text, sizeof text, "QP %zu: doorbell %08x, not index %llu", k, bell, (unsigned long long)rung);
      return text;
    }
  }
  return "";
}

inline std::vector<qp_mem> make_queues(const place& p, uint32_t qps, uint32_t ring) {
  std::vector<qp_mem> v(qps);
  char* sq = in(p.sq_host).take((size_t)qps * ring * 64);
  char* dbr = in(p.dbr_host).take((size_t)qps * 64);
  char* uar = in(p.uar_host).take((size_t)qps * 4096);
  for (uint32_t i = 0; i < qps; i++) {
    v[i] = {
        sq + (size_t)i * ring * 64, dbr + (size_t)i * 64, uar + (size_t)i * 4096, p.sq_host, p.dbr_host, p.uar_host};
  }
  return v;
}
// Copies host structures into a place of GPU memory that was taken before.
inline void put_gpu(void* to, const void* from, size_t bytes) {
  CK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

}  // namespace posting
