// Execution model: who am I, who is beside me, what time is it. One source for CUDA (nvcc) and for
// the host executor (any C++17 compiler, kernels/include/bellpush/impl/lane.hpp).
//
// Grids, blocks and warps are one-dimensional; a block has at most 1,024 threads, a warp 32, and
// the last warp of a block may be partial.
//
// Warp semantics, the same text for both branches: lanes progress independently. A collective
// (syncwarp, shfl_u64, ballot) must be reached by every lane of the warp, syncthreads and
// block_broadcast_u64 by every lane of the block; lanes that have returned from the kernel are
// left out. Nothing else converges: code between two collectives may run in any interleaving, and
// no lane may assume that its neighbour is where it is. A collective orders the memory accesses of
// its participants among each other, and nothing else does.
//
// What the host branch does *not* imitate: lockstep, the cost of divergence, the GPU's memory model
// (a host lane is at least as ordered as the C++ memory model says), 32-bit pointers, textures.
// Every spin must call yield_(): on the host the lane that would end the spin may be a fibre of the
// same thread.
#ifndef BELLPUSH_EXEC_CUH
#define BELLPUSH_EXEC_CUH

#include <stddef.h>
#include <stdint.h>

// Most threads a block of the kernels in this file; fewer leave more registers to each.
#ifndef BP_MAX_THREADS
#define BP_MAX_THREADS 1024
#endif

#ifdef __CUDACC__

#define BP_DEV __device__ __forceinline__
// For rare or slow branches: keeps them out of every caller's code.
#define BP_DEV_COLD inline __device__ __noinline__

// Before a loop of which one turn is work enough.
#define BP_NO_UNROLL _Pragma("unroll 1")

// Defines an entry point; the body follows and sees its one argument as `args`. Begin the line with
// BP_KERNEL: build.rs finds the library's own entry points by that.
#define BP_KERNEL(name, ArgsType)                        \
  extern "C" __global__ void __launch_bounds__(BP_MAX_THREADS, 1) \
      name(const __grid_constant__ ArgsType args)

namespace bp {

// Of the calling thread: its number in its block, and its block's; how many there are of each; its number in its warp.
BP_DEV uint32_t tid() { return threadIdx.x; }
BP_DEV uint32_t bid() { return blockIdx.x; }
BP_DEV uint32_t block_threads() { return blockDim.x; }
BP_DEV uint32_t grid_blocks() { return gridDim.x; }
BP_DEV uint32_t lane() { return threadIdx.x % 32; }

// The whole warp's mask: bits of lanes that a partial warp lacks, or that have returned, are not
// waited for.
BP_DEV void syncwarp() { __syncwarp(); }
// Four neighbouring lanes.
BP_DEV void syncquad() { __syncwarp(0xfu << (lane() & ~3u)); }
// The whole block, as CUDA's.
BP_DEV void syncthreads() { __syncthreads(); }

// Another lane's value. The whole warp calls it.
BP_DEV uint64_t shfl_u64(uint64_t v, uint32_t src_lane) {
  return __shfl_sync(0xffffffffu, static_cast<unsigned long long>(v), static_cast<int>(src_lane));
}

// A bit for each lane of the warp whose `pred` holds. The whole warp calls it.
BP_DEV uint32_t ballot(bool pred) { return __ballot_sync(0xffffffffu, pred); }

// Bits 0 below the lowest 1, of a word that is not 0; bits that are 1.
BP_DEV uint32_t trailing_zeros(uint32_t v) { return static_cast<uint32_t>(__ffs(static_cast<int>(v))) - 1; }
BP_DEV uint32_t bits_set(uint32_t v) { return static_cast<uint32_t>(__popc(v)); }

// The root thread's value, for every thread of the block.
BP_DEV uint64_t block_broadcast_u64(uint64_t v, uint32_t root_tid) {
  __shared__ uint64_t word;
  __syncthreads();  // everybody has read the previous broadcast's word
  if (threadIdx.x == root_tid) word = v;
  __syncthreads();
  return word;
}

// Memory of the block for a verb that all its threads call together.
constexpr uint32_t block_scratch_bytes = 192;
BP_DEV unsigned char* block_scratch() {
  __shared__ __align__(16) unsigned char bytes[block_scratch_bytes];
  return bytes;
}

// In every spin. The hardware's scheduler needs no hint.
BP_DEV void yield_() {}
// In a loop that may have nothing to do for long.
BP_DEV void rest_() {}

// Wall clock in ns. Its step is the GPU's (32 ns on Hopper, about 1 us on older ones).
BP_DEV uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

// The SM's clock in cycles: differences on one SM only.
BP_DEV uint64_t clock_ticks() { return static_cast<uint64_t>(clock64()); }

// The block's dynamic shared memory, 128-byte aligned, as large as the launch asked for.
BP_DEV unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char bp_dynamic_shared_bytes[];
  return bp_dynamic_shared_bytes;
}

// Programmatic dependent launch (PTX ISA, griddepcontrol), of a kernel that was launched to begin before
// the one in front of it has ended: waits until that one has, and all that it wrote is to be seen. All
// threads call it, and touch nothing before it that another kernel writes.
BP_DEV void await_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the kernel behind this one begin, if it was launched so, once every block has called this.
BP_DEV void release_kernel_behind() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Has a value be made here, and not where it is used.
template <class T>
BP_DEV void make_here(T& v) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(v));
  } else {
    asm volatile("" : "+r"(v));
  }
}

// A copy for a call out of line. ptxas loads a kernel argument's words for such a call ahead of the branch that leads to
// it: 40 loads, 120 ns, in each put that does not take it. These wait for the clock, whose highest bit is 0.
template <class T>
BP_DEV T late_copy(const T& v) {
  static_assert(sizeof(T) % 4 == 0, "words");
  uint32_t zero;
  asm volatile("{ .reg .b64 now; mov.u64 now, %%clock64; shr.u64 now, now, 63; cvt.u32.u64 %0, now; }" : "=r"(zero));
  uint32_t words[sizeof(T) / 4];
  __builtin_memcpy(words, &v, sizeof(T));
  for (uint32_t i = 0; i < sizeof(T) / 4; i++) words[i] |= zero;
  T copy;
  __builtin_memcpy(&copy, words, sizeof(T));
  return copy;
}

// Has the line at an address of global memory come to L1, and waits for nothing: by a load that nobody uses, since
// prefetch.global.L1 brings it no nearer (an all-reduce of 8 bytes took 5.6 us with this and 5.9 with that).
BP_DEV void touch(uint64_t address) {
  [[maybe_unused]] uint32_t nobodys;
  asm volatile("ld.weak.global.u32 %0, [%1];" : "=r"(nobodys) : "l"(address) : "memory");
}

// Ends the whole launch with an error. For broken invariants; a message is shown on the host only.
BP_DEV void trap(const char*) { __trap(); }

}  // namespace bp

#else  // the host executor

#include <bellpush/impl/lane.hpp>

#define BP_DEV inline
#define BP_DEV_COLD inline __attribute__((noinline))
#define BP_NO_UNROLL

// The entry point takes the argument's address, and called with none returns its size, so that a
// launch with another struct is refused. noexcept: a lane's stack cannot be unwound from outside.
#define BP_KERNEL(name, ArgsType)                                  \
  static void bp_body_##name(const ArgsType& args) noexcept;       \
  extern "C" size_t name(const void* args) noexcept;               \
  extern "C" size_t name(const void* args) noexcept {              \
    if (args) bp_body_##name(*static_cast<const ArgsType*>(args)); \
    return sizeof(ArgsType);                                       \
  }                                                                \
  static void bp_body_##name([[maybe_unused]] const ArgsType& args) noexcept

namespace bp {

// What the GPU's half above says of each, on fibres or threads of the host.
BP_DEV uint32_t tid() { return bp_host_current()->tid; }
BP_DEV uint32_t bid() { return bp_host_current()->bid; }
BP_DEV uint32_t block_threads() { return bp_host_current()->grid->block_threads; }
BP_DEV uint32_t grid_blocks() { return bp_host_current()->grid->grid_blocks; }
BP_DEV uint32_t lane() { return bp_host_current()->tid % 32; }

// The same: who waits lets other lanes run.
BP_DEV void syncwarp() { bp_host::wait(&bp_host_current()->warp->barrier); }
BP_DEV void syncquad() { bp_host::wait(&bp_host_current()->warp->quads[lane() / 4]); }
BP_DEV void syncthreads() { bp_host::wait(&bp_host_current()->block->barrier); }
BP_DEV uint64_t shfl_u64(uint64_t v, uint32_t src_lane) { return bp_host::shfl(v, src_lane); }
BP_DEV uint32_t ballot(bool pred) { return bp_host::ballot(pred); }
BP_DEV uint32_t trailing_zeros(uint32_t v) { return static_cast<uint32_t>(__builtin_ctz(v)); }
BP_DEV uint32_t bits_set(uint32_t v) { return static_cast<uint32_t>(__builtin_popcount(v)); }
BP_DEV uint64_t block_broadcast_u64(uint64_t v, uint32_t root_tid) {
  return bp_host::broadcast(v, root_tid);
}

// The block's memory for such a verb.
constexpr uint32_t block_scratch_bytes = BP_HOST_SCRATCH_BYTES;
BP_DEV unsigned char* block_scratch() { return bp_host_current()->block->scratch; }

// In every spin: lets other lanes run.
BP_DEV void yield_() { bp_host_yield(); }
// In a loop that may have nothing to do for long: lets other threads run too.
BP_DEV void rest_() {
  bp_host_yield();
  bp_host::rest();
}

// One clock for both, the host's monotonic one in ns; and the block's dynamic shared memory.
BP_DEV uint64_t now_ns() { return bp_host::monotonic_ns(); }
BP_DEV uint64_t clock_ticks() { return bp_host::monotonic_ns(); }
BP_DEV unsigned char* dynamic_shared() { return bp_host_current()->block->shared; }
// A stream's kernels run one after the other here.
BP_DEV void await_kernel_before() {}
BP_DEV void release_kernel_behind() {}
template <class T>
BP_DEV void make_here(T&) {}
template <class T>
BP_DEV T late_copy(const T& v) {
  return v;
}
BP_DEV void touch(uint64_t) {}
BP_DEV void trap(const char* why) { bp_host_fault(why); }

}  // namespace bp

#endif
#endif
