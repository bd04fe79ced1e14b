// Compile-time choices: scope of the caller and path of a message. Each instantiation has one path; no kernel
// selects a doorbell by a run-time flag.
#ifndef BELLPUSH_PATH_CUH
#define BELLPUSH_PATH_CUH

#include <bellpush/impl/order.cuh>

namespace bp {

enum class data {
  push,  // this GPU writes the payload into the window (or inline)
  pull,  // the NIC reads the payload from this GPU's memory
};
enum class kick {
  kernel,     // fence, doorbell record, doorbell
  blueflame,  // the WQE itself is stored to the UAR when the QP is idle
  inband,     // no doorbell: the NIC recognises whole lines in the slots
};
enum class share {
  exclusive,  // one caller at a time (a thread, a warp or a block) uses the QP
  shared,     // any number of callers at once
};
enum class order {
  later,   // the NIC takes the later of DBR and doorbell (the software NIC): one fence
  strict,  // the DBR is visible before the doorbell (silicon): a second fence
};

// In-band line formats: bytes of data, bytes of sequence.
enum class line { d12s4, d14s2, d60s4 };

// A path. `staged` is push with a window in ordinary host memory, with an ordinary lkey.
template <data D, kick K, share S = share::exclusive, reach R = reach::system,
          order O = order::later, line L = line::d12s4>
struct path {
  static constexpr data data_v = D;
  static constexpr kick kick_v = K;
  static constexpr share share_v = S;
  // BlueFlame's buffer is in the UAR, which is never this GPU's memory: only system scope orders the next doorbell
  // behind it.
  static constexpr reach reach_v = K == kick::blueflame ? reach::system : R;
  static constexpr order order_v = O;
  static constexpr line line_v = L;
  static constexpr bool inband = K == kick::inband;
  static constexpr bool shared = S == share::shared;
  // What serves() compares with the endpoint's tag.
  static constexpr uint32_t fences_v = (reach_v == reach::system ? BP_TAG_SYSTEM : 0) |
                                       (O == order::strict ? BP_TAG_STRICT : 0);
  static constexpr uint32_t tag_v = fences_v | (D == data::push ? BP_TAG_PUSH : BP_TAG_PULL) |
                                    (K == kick::kernel      ? BP_TAG_KERNEL
                                     : K == kick::blueflame ? BP_TAG_BLUEFLAME
                                     : L == line::d12s4     ? BP_TAG_INBAND_12_4
                                     : L == line::d14s2     ? BP_TAG_INBAND_14_2
                                                            : BP_TAG_INBAND_60_4);
  static_assert(!(inband && D == data::pull), "in-band is push only: the data announce themselves");
  static_assert(!(K == kick::blueflame && shared),
                "BlueFlame needs a QP of its own: two callers' stores would mix in one buffer");
};

// Whether path P is the endpoint's: another would write slots, WQEs or doorbells that the NIC takes for
// something else. Fences beyond those that the endpoint needs do no harm.
template <class P>
BP_DEV bool serves(const bp_endpoint& ep) {
  return (ep.tag | P::fences_v) == P::tag_v;
}

// Lane 0's value. As the broadcast of every scope does, it also orders lane 0's earlier loads and stores before the
// other lanes' later ones (a shuffle alone orders no memory).
BP_DEV uint64_t warp_broadcast(uint64_t v) {
  v = shfl_u64(v, 0);
  syncwarp();
  return v;
}

// Scope of a verb's caller. All threads of the scope call it with the same arguments and get the same status;
// thread 0 of the scope is its leader. The leader's warp leads with it where that costs nothing: 32 lanes that do
// the same work are faster than 31 that wait for one.
struct thread_scope {
  BP_DEV uint32_t rank() const { return 0; }
  BP_DEV uint32_t size() const { return 1; }
  BP_DEV bool leads() const { return true; }
  BP_DEV void sync_leading() const {}
  BP_DEV void sync() const {}
  BP_DEV uint64_t broadcast(uint64_t v) const { return v; }
};
// A full warp; a block's last warp may have fewer lanes.
struct warp_scope {
  BP_DEV uint32_t rank() const { return lane(); }
  BP_DEV uint32_t size() const {
    uint32_t first = tid() - lane();
    uint32_t rest = block_threads() - first;
    return rest < 32 ? rest : 32;
  }
  BP_DEV bool leads() const { return true; }
  BP_DEV void sync_leading() const { syncwarp(); }
  BP_DEV void sync() const { syncwarp(); }
  BP_DEV uint64_t broadcast(uint64_t v) const { return warp_broadcast(v); }
};
struct block_scope {
  BP_DEV uint32_t rank() const { return tid(); }
  BP_DEV uint32_t size() const { return block_threads(); }
  BP_DEV bool leads() const { return tid() < 32; }
  BP_DEV void sync_leading() const { syncwarp(); }
  // A block of one warp needs only the warp's collectives.
  BP_DEV void sync() const {
    if (block_threads() <= 32) {
      syncwarp();
    } else {
      syncthreads();
    }
  }
  BP_DEV uint64_t broadcast(uint64_t v) const {
    return block_threads() <= 32 ? warp_broadcast(v) : block_broadcast_u64(v, 0);
  }
};

template <class Scope>
constexpr bool is_thread_scope = false;
template <>
inline constexpr bool is_thread_scope<thread_scope> = true;
template <class Scope>
constexpr bool is_warp_scope = false;
template <>
inline constexpr bool is_warp_scope<warp_scope> = true;
template <class Scope>
constexpr bool is_block_scope = false;
template <>
inline constexpr bool is_block_scope<block_scope> = true;

// Calls `f()`, which posts. Lanes of a warp that call it at once on a shared queue pair, each for itself, take turns. A
// GPU may hold a lane that has left a wait, or never waited, until those beside it have left it too; and a lane that
// waits for room waits for the WQEs of all tickets before its own. So no lane waits while one beside it has taken a
// ticket, or the word `ring`, and not yet posted.
template <class P, class Scope, class F>
BP_DEV auto in_turn([[maybe_unused]] Scope scope, F f) -> decltype(f()) {
#if defined(__CUDACC__)
  if constexpr (P::shared && is_thread_scope<Scope>) {
    decltype(f()) result{};
    const uint32_t all = __activemask();
    if (__builtin_expect((all & (all - 1)) == 0, 1)) return f();  // the loop costs it 50 ns
    BP_NO_UNROLL for (uint32_t left = all;;) {
      if (lane() == trailing_zeros(left)) result = f();
      left &= left - 1;
      if (left == 0) return result;  // after the last turn no lane depends on another
      __syncwarp(all);               // the next lane's turn comes after this one's
    }
  } else {
    return f();
  }
#else
  return f();  // lanes wait for nobody but at collectives
#endif
}

// The lanes of a warp, each with a message of its own: one reservation, one fence and one doorbell for all of them, as
// far as half the window (the ring) takes them. All lanes of the warp call the verb together, with the same flags; each
// has its own arguments, ticket and status. A lane that is not `active` posts nothing and gets BP_OK.
struct lanes_scope {
  bool active = true;
  BP_DEV uint32_t vote(bool pred) const { return ballot(pred); }
  BP_DEV warp_scope all() const { return {}; }
};

#if defined(__CUDACC__)
// Lanes of a warp that are at one instruction together, by chance, as a scope. Their number changes nothing but the
// time.
struct mask_scope {
  uint32_t mask;
  BP_DEV uint32_t rank() const { return bits_set(mask & ((1u << lane()) - 1)); }
  BP_DEV uint32_t size() const { return bits_set(mask); }
  BP_DEV bool leads() const { return true; }
  BP_DEV void sync_leading() const { sync(); }
  BP_DEV void sync() const { __syncwarp(mask); }
  BP_DEV uint64_t broadcast(uint64_t v) const {
    v = __shfl_sync(mask, static_cast<unsigned long long>(v), static_cast<int>(trailing_zeros(mask)));
    sync();
    return v;
  }
  BP_DEV uint32_t vote(bool pred) const { return __ballot_sync(mask, pred); }
  BP_DEV mask_scope all() const { return *this; }
};
#endif

// Runs `f(scope, i)` for i in 0..n: one warp per call where a block has work for all its warps; otherwise all
// threads together, call after call.
template <class Scope, class F>
BP_DEV void for_each_part(Scope scope, uint32_t n, F f) {
  for (uint32_t i = 0; i < n; i++) f(scope, i);
}
template <class F>
BP_DEV void for_each_part(block_scope scope, uint32_t n, F f) {
  const uint32_t warps = block_threads() / 32;
  if (block_threads() % 32 == 0 && n >= warps) {
    for (uint32_t i = tid() / 32; i < n; i += warps) f(warp_scope{}, i);
  } else {
    for (uint32_t i = 0; i < n; i++) f(scope, i);
  }
}

// Run-time options of a verb.
enum flags : uint32_t {
  none = 0,
  defer_ring = 1,   // mark ready only; a later verb or ring() rings for it as well
  unsignalled = 2,  // ask for no CQE; quiet() and wait() still work
};

// What a signal does to the peer's 8-byte word. It is a type, so that no kernel selects a WQE's kind at run time.
struct signal_add {
  uint64_t value;  // an atomic addition: signals of many senders count up
};
struct signal_set {
  uint64_t value;  // a write of 8 bytes: cheaper for the NIC than an atomic, and for one sender a word
};

// Instead of a word an immediate: the peer's oldest receive completes, and brings the number. The signal's offset may
// be any in the peer's region.
struct signal_imm {
  uint32_t value;
};

}  // namespace bp

#endif
