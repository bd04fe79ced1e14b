// All ordered accesses of device code: fences, MMIO stores, loads and stores with a scope. All inline PTX that
// orders is here (exec.cuh has some that does not). The host branch expresses the same with __atomic builtins.
//
// Streams and observers. A post consists of four streams: payload into the window, the WQE into the SQ, the
// doorbell record (DBR), the doorbell register (UAR). The observer is the NIC. The scope of a fence follows from
// the places of window, SQ and DBR, never from the place of the doorbell:
//   * all of them in this GPU's memory: the NIC reads them through this GPU's L2, in which a gpu-scope fence has
//     performed them, so gpu scope is enough;
//   * one of them in host or peer memory: the stores travel on after L2 and another agent observes them there, so the
//     fence must have system scope (docs/protocol.md, section 6, has a measurement of the failure).
// Data that the NIC brings (of a get, or an atomic's old value) and their CQE are two of its writes. The software
// NIC has a fence between them. Silicon's writes arrive in order if they go to the same memory. PCIe does not order
// a write to this GPU and one to the host's memory, and no acquire here can replace that order. With CQs in host
// memory, as endpoints have them, such data are therefore certain after a wait only if they go to host memory too
// (docs/hardware.md).
//
// A release store has a fence of its own (two MEMBARs in SASS after an explicit fence). Where one fence covers
// several stores, the code is therefore a fence and relaxed stores.
//
// PTX ISA, "Memory Consistency Model": causality order is cumulative. A thread that observes another thread's flag
// (acquire, gpu scope) orders the stores that the other one fenced before the flag before its own later ones, for
// every observer in that fence's scope. On shared queue pairs each poster therefore fences at the NIC's scope before
// its ready word, and whoever rings for it acquires; tests/cuda/order_observer.cu counts violations on a GPU.
#ifndef BELLPUSH_ORDER_CUH
#define BELLPUSH_ORDER_CUH

#include <bellpush/exec.cuh>
#include <bellpush/wire.h>

namespace bp {

// Places of window, SQ and DBR, which determine the scope of the fence before the doorbell.
enum class reach { gpu, system };

struct alignas(16) u128 {
  uint32_t w[4];
};

#if defined(__CUDACC__)

BP_DEV void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
BP_DEV void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// The halves of those two (PTX ISA 8.6, sm_90). A release waits until this thread's stores, and those that it has
// observed, are performed; L1 keeps what it holds. An acquire empties L1 and waits for nothing.
#if __CUDA_ARCH__ >= 900
BP_DEV void fence_release_gpu() { asm volatile("fence.release.gpu;" ::: "memory"); }
BP_DEV void fence_release_sys() { asm volatile("fence.release.sys;" ::: "memory"); }
BP_DEV void fence_acquire_gpu() { asm volatile("fence.acquire.gpu;" ::: "memory"); }
BP_DEV void fence_acquire_sys() { asm volatile("fence.acquire.sys;" ::: "memory"); }
#else
BP_DEV void fence_release_gpu() { fence_gpu(); }
BP_DEV void fence_release_sys() { fence_sys(); }
BP_DEV void fence_acquire_gpu() { fence_gpu(); }
BP_DEV void fence_acquire_sys() { fence_sys(); }
#endif

BP_DEV uint64_t ld_acquire_sys(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
// A relaxed load leaves L1 as it is; an acquire empties it.
BP_DEV uint64_t ld_relaxed_sys(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
BP_DEV uint32_t ld_relaxed_sys(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
BP_DEV uint32_t ld_acquire_sys(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// A byte, loaded past L1.
BP_DEV uint8_t ld_byte(const uint8_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return (uint8_t)v;
}
// 16 bytes in one load (below: one store) of type b128, a scalar: one access in the memory model (PTX ISA 8.3,
// sm_70). A vector of four words is four accesses in any order, although ptxas generates the same instruction.
BP_DEV u128 ld_line(const u128* p) {
  u128 v;
  asm volatile(
      "{ .reg .b64 low, high; .reg .b128 q; ld.relaxed.sys.global.b128 q, [%4];"
      "  mov.b128 {low, high}, q; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high; }"
      : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
      : "l"(p)
      : "memory");
  return v;
}
BP_DEV uint64_t ld_relaxed_gpu(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
BP_DEV uint32_t ld_relaxed_gpu(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
BP_DEV uint64_t ld_acquire_gpu(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
BP_DEV uint32_t ld_acquire_gpu(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// Plain accesses, which stay in L1. As assembly, adjacent loads are in flight together, and none moves behind a
// branch.
BP_DEV uint64_t ld_weak(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.weak.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
BP_DEV uint32_t ld_weak(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.weak.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// Two adjacent words, 16-byte aligned, in one load. Each word is an access of its own.
struct word_pair {
  uint64_t first, second;
};
BP_DEV word_pair ld_weak_pair(const uint64_t* p) {
  word_pair v;
  asm volatile("ld.weak.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.first), "=l"(v.second) : "l"(p) : "memory");
  return v;
}
BP_DEV word_pair ld_relaxed_gpu_pair(const uint64_t* p) {
  word_pair v;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.first), "=l"(v.second) : "l"(p) : "memory");
  return v;
}
BP_DEV void st_weak(uint64_t* p, uint64_t v) {
  asm volatile("st.weak.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
BP_DEV void st_weak(uint32_t* p, uint32_t v) {
  asm volatile("st.weak.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
BP_DEV void st_relaxed_gpu(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
BP_DEV void st_relaxed_gpu(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
BP_DEV void st_release_gpu(uint64_t* p, uint64_t v) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
BP_DEV void st_release_gpu(uint32_t* p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
BP_DEV void st_relaxed_sys(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
BP_DEV void st_relaxed_sys(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// The doorbell: st.mmio, because relaxed or volatile stores to the same word may be merged on the way.
BP_DEV void st_mmio(uint64_t* p, uint64_t v) {
  asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// 16 bytes in one store that is neither split nor cached on the way.
BP_DEV void st_line(u128* p, u128 v) {
  asm volatile(
      "{ .reg .b64 low, high; .reg .b128 q; mov.b64 low, {%1, %2}; mov.b64 high, {%3, %4};"
      "  mov.b128 q, {low, high}; st.relaxed.sys.global.b128 [%0], q; }" ::"l"(p),
      "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
      : "memory");
}
// The same for payload, which a fence of its writer publishes, or a reader that checks all of it. A compiler may
// turn an assignment into two stores, in any order.
BP_DEV void st_unit(u128* p, u128 v) {
  asm volatile(
      "{ .reg .b64 low, high; .reg .b128 q; mov.b64 low, {%1, %2}; mov.b64 high, {%3, %4};"
      "  mov.b128 q, {low, high}; st.weak.global.b128 [%0], q; }" ::"l"(p),
      "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
      : "memory");
}
// Three of them, one behind the other, in one statement: in a loop ptxas then gives each registers of its own, and need
// not wait until the store before has read those that it writes again (put_strided of a thread: 47 instead of 53 ns).
BP_DEV void st_units(u128* p, const u128& a, const u128& b, const u128& c) {
  asm volatile(
      "{ .reg .b64 low, high; .reg .b128 first, second, third;"
      "  mov.b64 low, {%1, %2}; mov.b64 high, {%3, %4}; mov.b128 first, {low, high};"
      "  mov.b64 low, {%5, %6}; mov.b64 high, {%7, %8}; mov.b128 second, {low, high};"
      "  mov.b64 low, {%9, %10}; mov.b64 high, {%11, %12}; mov.b128 third, {low, high};"
      "  st.weak.global.b128 [%0], first; st.weak.global.b128 [%0+16], second;"
      "  st.weak.global.b128 [%0+32], third; }" ::"l"(p),
      "r"(a.w[0]), "r"(a.w[1]), "r"(a.w[2]), "r"(a.w[3]), "r"(b.w[0]), "r"(b.w[1]), "r"(b.w[2]), "r"(b.w[3]),
      "r"(c.w[0]), "r"(c.w[1]), "r"(c.w[2]), "r"(c.w[3])
      : "memory");
}
BP_DEV uint64_t atomic_add(uint64_t* p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(old)
               : "l"(p), "l"(v)
               : "memory");
  return old;
}
// The same for callers that go on before they need the result: each lane adds by itself. Where ptxas knows that all lanes
// of a warp add the same, one of them adds the sum, waits for it, and hands the parts round. That a lane's mask is never
// 0 keeps it from knowing.
BP_DEV uint64_t atomic_add_apart(uint64_t* p, uint64_t v) {
  uint64_t old;
  asm volatile(
      "{ .reg .pred never; .reg .b32 mask; .reg .b64 sum;"
      "  mov.u32 mask, %%lanemask_eq; setp.eq.u32 never, mask, 0; mov.b64 sum, %2; @never add.u64 sum, sum, 1;"
      "  atom.relaxed.gpu.global.add.u64 %0, [%1], sum; }"
      : "=l"(old)
      : "l"(p), "l"(v)
      : "memory");
  return old;
}
BP_DEV void atomic_max(uint64_t* p, uint64_t v) {
  asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
BP_DEV void atomic_max(uint32_t* p, uint32_t v) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// Without a branch, which costs more than the atomic.
BP_DEV void atomic_max_if(bool is_wanted, uint32_t* p, uint32_t v) {
  asm volatile("{ .reg .pred wanted; setp.ne.u32 wanted, %2, 0; @wanted red.relaxed.gpu.global.max.u32 [%0], %1; }" ::"l"(p),
               "r"(v), "r"((uint32_t)is_wanted)
               : "memory");
}
// Atomics as a NIC makes them, for every agent in the system that accesses the word with atomics too.
BP_DEV uint64_t atomic_add_sys(uint64_t* p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.relaxed.sys.global.add.u64 %0, [%1], %2;"
               : "=l"(old)
               : "l"(p), "l"(v)
               : "memory");
  return old;
}
BP_DEV uint64_t atomic_cas_sys(uint64_t* p, uint64_t expected, uint64_t desired) {
  uint64_t old;
  asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(p), "l"(expected), "l"(desired)
               : "memory");
  return old;
}
// Compare-and-swap; returns the old value.
BP_DEV uint64_t atomic_cas_relaxed(uint64_t* p, uint64_t expected, uint64_t desired) {
  uint64_t old;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(p), "l"(expected), "l"(desired)
               : "memory");
  return old;
}
// Sets bits; returns the old value.
BP_DEV uint64_t atomic_or(uint64_t* p, uint64_t bits) {
  uint64_t old;
  asm volatile("atom.relaxed.gpu.global.or.b64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(bits) : "memory");
  return old;
}
// Compare-and-swap with acquire; returns the old value.
BP_DEV uint32_t atomic_cas(uint32_t* p, uint32_t expected, uint32_t desired) {
  uint32_t old;
  asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(p), "r"(expected), "r"(desired)
               : "memory");
  return old;
}

#else  // host executor

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not model fences. The publishing stores (ready, DBR, doorbell, unlock) are release stores on
// this branch, so that its checks do not depend on the fences.
BP_DEV void host_fence() {}
#else
BP_DEV void host_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#endif
BP_DEV void fence_gpu() { host_fence(); }
BP_DEV void fence_sys() { host_fence(); }
BP_DEV void fence_release_gpu() { host_fence(); }
BP_DEV void fence_release_sys() { host_fence(); }
BP_DEV void fence_acquire_gpu() { host_fence(); }
BP_DEV void fence_acquire_sys() { host_fence(); }

BP_DEV uint64_t ld_acquire_sys(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
BP_DEV uint64_t ld_relaxed_sys(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
BP_DEV uint32_t ld_relaxed_sys(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
BP_DEV uint32_t ld_acquire_sys(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
BP_DEV uint8_t ld_byte(const uint8_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
BP_DEV u128 ld_line(const u128* p) {
  const uint64_t* q = reinterpret_cast<const uint64_t*>(p);
  const uint64_t high = __atomic_load_n(q + 1, __ATOMIC_ACQUIRE);
  const uint64_t low = __atomic_load_n(q, __ATOMIC_RELAXED);
  return {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
}
// Acquire: an acquire fence follows where one is needed, and ThreadSanitizer does not see it.
BP_DEV uint64_t ld_relaxed_gpu(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
BP_DEV uint32_t ld_relaxed_gpu(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
BP_DEV uint64_t ld_weak(const uint64_t* p) { return *p; }
BP_DEV uint32_t ld_weak(const uint32_t* p) { return *p; }
BP_DEV uint64_t ld_acquire_gpu(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
BP_DEV uint32_t ld_acquire_gpu(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
struct word_pair {
  uint64_t first, second;
};
BP_DEV word_pair ld_weak_pair(const uint64_t* p) { return {p[0], p[1]}; }
BP_DEV word_pair ld_relaxed_gpu_pair(const uint64_t* p) {
  const uint64_t first = __atomic_load_n(p, __ATOMIC_ACQUIRE);
  return {first, __atomic_load_n(p + 1, __ATOMIC_ACQUIRE)};
}
template <class T>
BP_DEV void st_weak(T* p, T v) {
  *p = v;
}
BP_DEV void st_relaxed_gpu(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
BP_DEV void st_relaxed_gpu(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
BP_DEV void st_release_gpu(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
BP_DEV void st_release_gpu(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
BP_DEV void st_relaxed_sys(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
BP_DEV void st_relaxed_sys(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
BP_DEV void st_mmio(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
// The half with the last word (an in-band line's sequence number, a unit's flag) is stored last and releases the
// other.
BP_DEV void st_line(u128* p, u128 v) {
  uint64_t* q = reinterpret_cast<uint64_t*>(p);
  __atomic_store_n(q, (uint64_t)v.w[0] | (uint64_t)v.w[1] << 32, __ATOMIC_RELAXED);
  __atomic_store_n(q + 1, (uint64_t)v.w[2] | (uint64_t)v.w[3] << 32, __ATOMIC_RELEASE);
}
BP_DEV void st_unit(u128* p, u128 v) { st_line(p, v); }
BP_DEV void st_units(u128* p, const u128& a, const u128& b, const u128& c) {
  st_unit(p, a);
  st_unit(p + 1, b);
  st_unit(p + 2, c);
}
BP_DEV uint64_t atomic_add(uint64_t* p, uint64_t v) {
  return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}
BP_DEV uint64_t atomic_add_apart(uint64_t* p, uint64_t v) { return atomic_add(p, v); }
BP_DEV uint64_t atomic_or(uint64_t* p, uint64_t bits) {
  return __atomic_fetch_or(p, bits, __ATOMIC_ACQ_REL);
}
BP_DEV uint64_t atomic_add_sys(uint64_t* p, uint64_t v) {
  return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}
BP_DEV uint64_t atomic_cas_relaxed(uint64_t* p, uint64_t expected, uint64_t desired) {
  __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
BP_DEV uint64_t atomic_cas_sys(uint64_t* p, uint64_t expected, uint64_t desired) {
  __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
template <class T>
BP_DEV void atomic_max(T* p, T v) {
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old < v &&
         !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
BP_DEV void atomic_max_if(bool is_wanted, uint32_t* p, uint32_t v) {
  if (is_wanted) atomic_max(p, v);
}
BP_DEV uint32_t atomic_cas(uint32_t* p, uint32_t expected, uint32_t desired) {
  __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}

#endif

// A word of shared memory that threads of a block exchange without a barrier: not ordered, not torn, and loaded
// each time.
BP_DEV uint32_t ld_shared(const uint32_t* p) {
#if defined(__CUDACC__)
  return *const_cast<const volatile uint32_t*>(p);
#else
  return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}
BP_DEV void st_shared(uint32_t* p, uint32_t v) {
#if defined(__CUDACC__)
  *const_cast<volatile uint32_t*>(p) = v;
#else
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
#endif
}

// The same as atomics, for a word that one thread stores while others poll it: a race checker takes these for what they
// are.
BP_DEV uint32_t poll_shared(uint32_t* p) {
#if defined(__CUDACC__)
  return atomicAdd(p, 0u);
#else
  return ld_shared(p);
#endif
}
BP_DEV void post_shared(uint32_t* p, uint32_t v) {
#if defined(__CUDACC__)
  atomicExch(p, v);
#else
  st_shared(p, v);
#endif
}

// Prefetches a line into this GPU's L2.
BP_DEV void prefetch_l2([[maybe_unused]] uint64_t address) {
#if defined(__CUDACC__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

// Before a doorbell, or before the word that lets another caller ring for this one: orders payload, WQE and all stores
// that this thread has observed before its next stores, for the NIC. A release is enough: the NIC needs nothing that
// this thread has loaded, and what the caller keeps in L1 (endpoint, queue pair's state, its own data) stays there.
template <reach R>
BP_DEV void fence_before_doorbell() {
  if constexpr (R == reach::system) {
    fence_release_sys();
  } else {
    fence_release_gpu();
  }
}

BP_DEV uint32_t be32(uint32_t v) {
#if defined(__CUDACC__)
  return __byte_perm(v, 0, 0x0123);
#else
  return __builtin_bswap32(v);
#endif
}

// be32((index & 0xffff) << 8 | low): a WQE's index and, below it, its opcode.
BP_DEV uint32_t be32_index(uint32_t index, uint32_t low) {
#if defined(__CUDACC__)
  return __byte_perm(index, low, 0x4015);  // one instruction; `low` has one byte
#else
  return be32((index & 0xffff) << 8 | low);
#endif
}

// Time since `begin`; 0 if the clock was set back meanwhile.
BP_DEV uint64_t elapsed_ns(uint64_t begin) {
  const uint64_t now = now_ns();
  return now > begin ? now - begin : 0;
}

// Clock of a wait. It is read every 32nd time only, because a read costs more than a poll; the first read starts
// the time. The GPU's global timer may be set back.
struct deadline {
  uint64_t start_ns = 0;
  uint32_t polls = 0;
  BP_DEV bool expired(uint64_t timeout_ns) {
    if (timeout_ns == 0) return true;  // one poll was all that the caller wanted
    if ((++polls & 31) != 0) return false;
    const uint64_t now = now_ns();
    // From the beginning again where the timer has been set back: it would have to come back to where it was.
    if ((start_ns == 0) | (now < start_ns)) start_ns = now;
    return now - start_ns > timeout_ns;
  }
};

}  // namespace bp

#endif
