// Kernels whose WQEs say which line posted them, for tests of what the adversary says of it. Some of them are wrong.
#define BELLPUSH_WHERE
#define BP_MAX_THREADS 32
#include <bellpush/bellpush.cuh>
#include "bench/args.h"
#include "bench/gate.cuh"

namespace {

// Of the arguments `op.value` is the verb's number, or what a kernel says of it, and `op.compare` the address of memory
// that the host reads. There lie:
enum : uint64_t {
  gate_at = 0,        // gate.cuh
  words_at = 64,      // 512 bytes that begin as the verb needs them
  table_at = 1024,    // bp_endpoint[2], of which the second is the peer's
  remotes_at = 2048,  // bp_remote[2]
  ring_at = 4096,     // two units for each block that was posted
};

using pull = bp::path<bp::data::pull, bp::kick::kernel>;
using push = bp::path<bp::data::push, bp::kick::kernel>;
using blueflame = bp::path<bp::data::push, bp::kick::blueflame>;
using shared_pull = bp::path<bp::data::pull, bp::kick::kernel, bp::share::shared>;
using auto_path = bp::auto_path<>;

// A function of a user's own, whose callers are what its WQEs name.
template <class P, class Scope>
BP_DEV bp_status_code send(const bp::located<bp_endpoint>& ep, Scope scope, const void* src) {
  return bp::put<P>(ep, scope, 8, src, 24);
}

// One of the verbs, each on a line of its own, which the test finds by its number.
template <class P>
BP_DEV bp_status_code verb(const bp_auto_op_args& a) {
  const bp_endpoint& ep = a.op.ep;
  const bp::warp_scope warp;
  const bp::thread_scope thread;
  const bool leads = bp::tid() == 0;
  const uint8_t* src = reinterpret_cast<const uint8_t*>(a.op.local);
  void* dst = reinterpret_cast<void*>(a.op.local);
  const bp::message two[] = {{0, src, 16}, {64, src + 64, 16}};
  const auto list = [&](uint32_t i) { return bp::message{i * 64, src + i * 64, 16}; };
  switch (a.op.value) {
    case 0: return bp::put<P>(ep, warp, 0, src, 48);
    case 1: return bp::put<P>(bp::within(ep, 1000000000), warp, 0, src, 48);
    case 2: return send<P>(ep, warp, src);
    case 3: return bp::put_inline<P>(ep, warp, 0, src, 100);
    case 4: return bp::put_value<P>(ep, warp, 0, uint64_t{7});
    case 5: return bp::put_signal<P>(ep, warp, 0, src, 48, 64, bp::signal_add{1});
    case 6: return bp::put_signal<P>(ep, warp, 0, src, a.op.bytes, 0, bp::signal_set{1});
    case 7: return bp::put_imm<P>(ep, warp, 0, src, 48, 9);
    case 8: return bp::signal<P>(ep, warp, 64, bp::signal_set{2});
    case 9: return bp::put<P>(ep, bp::lanes_scope{}, bp::lane() * 16, src + bp::lane() * 16, 16);
    case 10: return bp::put_batch<P>(ep, warp, 5, list);
    case 11: return leads ? bp::put_batch<P>(ep, thread, 5, list) : BP_OK;
    case 12: return leads ? bp::put_strided<P>(ep, thread, 3, 0, 64, src, 64, 16) : BP_OK;
    case 13: return leads ? bp::put_vector<P>(ep, thread, 2, two) : BP_OK;
    case 14: return bp::get<P>(ep, warp, dst, 0, 48);
    case 15: return bp::fetch_add<P>(ep, warp, 64, 1, nullptr);
    case 16: return bp::compare_swap<P>(ep, warp, 64, 1, 2, dst);
    case 17: return bp::put<P>(ep, bp::block_scope{}, 0, src, a.op.bytes);
    default: return BP_INVALID;
  }
}

// The same of an auto endpoint, whose puts are pulled; and a barrier of two ranks, the other of which has come.
BP_DEV bp_status_code verb_of_auto(const bp_auto_op_args& a) {
  bp_auto_endpoint ep = a.ep;
  for (uint32_t i = 0; i < 8; i++) ep.by_warp.by_class[i] = BP_CHOICE_PULL * 0x11111111u;
  const bp::warp_scope warp;
  void* src = reinterpret_cast<void*>(a.op.local);
  const uint64_t at = a.op.compare, words = at + words_at;
  const bp_peers peers{at + table_at, at + remotes_at, words, words + 256, 0, 2, 1, 1};
  using bell = auto_path::bell;
  switch (a.op.value) {
    case 100: return bp::put<auto_path>(ep, warp, 0, src, 48);
    case 101: return bp::put_signal<auto_path>(ep, warp, 0, src, 48, 64, bp::signal_add{1});
    case 102: return bp::get<auto_path>(ep, warp, src, 0, 48);
    case 103: return bp::fetch_add<auto_path>(ep, warp, 64, 1, nullptr);
    case 104: return bp::compare_swap<auto_path>(ep, warp, 64, 1, 2, src);
    case 105: return bp::sync_all<bell>(peers, warp);
    default: return BP_INVALID;
  }
}

// One message of the whole grid, of one block.
BP_DEV bp_status_code verb_of_blocks(const bp_auto_op_args& a) {
  bp::blocks_state* const state = reinterpret_cast<bp::blocks_state*>(a.op.compare + words_at);
  const bp::blocks_scope all{bp::bid(), bp::grid_blocks(), state};
  const void* src = reinterpret_cast<const void*>(a.op.local);
  switch (a.op.value) {
    case 200: return bp::put<shared_pull>(a.op.ep, all, 0, src, 48);
    case 201: return bp::put_signal<shared_pull>(a.op.ep, all, 0, src, 48, 64, bp::signal_set{1});
    default: return verb<shared_pull>(a);
  }
}

// Copies the first two units of the ring's blocks, as far as they are posted; behind the last there are zeros.
template <class P>
BP_DEV void show_ring(const bp_auto_op_args& a, const bp_qp& qp, uint64_t posted) {
  bp::u128* out = reinterpret_cast<bp::u128*>(a.op.compare + ring_at);
  for (uint64_t t = bp::tid(); t < posted; t += bp::block_threads()) {
    for (uint32_t u = 0; u < 2; u++) out[2 * t + u] = *bp::sq_unit(qp, t, u);
  }
}

template <class P, class Verb>
BP_DEV void post(const bp_auto_op_args& a, const bp_endpoint& ep, Verb verb) {
  const bp_status_code s = verb();
  bp::syncthreads();
  if (bp::tid() == 0) *reinterpret_cast<uint32_t*>(a.op.status) = s;
  show_ring<P>(a, ep.qp, bp::posted<P>(ep));
}

}  // namespace

BP_KERNEL(bp_where_pull, bp_auto_op_args) {
  post<pull>(args, args.op.ep, [&] { return verb<pull>(args); });
}
BP_KERNEL(bp_where_push, bp_auto_op_args) {
  post<push>(args, args.op.ep, [&] { return verb<push>(args); });
}
BP_KERNEL(bp_where_blueflame, bp_auto_op_args) {
  post<blueflame>(args, args.op.ep, [&] { return verb<blueflame>(args); });
}
BP_KERNEL(bp_where_shared, bp_auto_op_args) {
  post<shared_pull>(args, args.op.ep, [&] { return verb_of_blocks(args); });
}
BP_KERNEL(bp_where_auto, bp_auto_op_args) {
  post<auto_path::bell>(args, args.ep.bell, [&] { return verb_of_auto(args); });
}

// Puts, and writes to what it has put (0), or to the WQE (1); or waits for completion before that, and is right (2).
BP_KERNEL(bp_where_reuse, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const bp::thread_scope thread;
  const bp_endpoint& ep = args.op.ep;
  void* const src = reinterpret_cast<void*>(args.op.local);
  const uint64_t ticket = bp::posted<pull>(ep);
  bp_status_code s = bp::put<pull>(ep, thread, 0, src, 48);  // of what is used again
  gate::pass(args.op.compare + gate_at);
  if (args.op.value == 2) {
    gate::done(args.op.compare + gate_at);
    if (s == BP_OK) s = bp::quiet<pull>(ep, thread);
  }
  if (args.op.value == 1) {
    bp::st_weak(&bp::sq_unit(ep.qp, ticket, 2)->w[0], bp::be32(47));
  } else {
    static_cast<volatile uint8_t*>(src)[5] = 0xee;
  }
  gate::done(args.op.compare + gate_at);
  if (s == BP_OK) s = bp::quiet<pull>(ep, thread);
  bp::st_relaxed_sys(reinterpret_cast<uint32_t*>(args.op.status), (uint32_t)s);
}

// Tells the NIC of a WQE, and then writes it (0); or the other way round, and is right (1).
BP_KERNEL(bp_where_early, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const bp::thread_scope thread;
  const bp_endpoint& ep = args.op.ep;
  void* const src = reinterpret_cast<void*>(args.op.local);
  if (args.op.value == 0) {
    bp::tell<pull>(ep.qp, bp::posted<pull>(ep) + 1);
    gate::pass(args.op.compare + gate_at);
  }
  bp_status_code s = bp::put<pull>(ep, thread, 0, src, 48);  // of what was told of
  if (args.op.value != 0) gate::pass(args.op.compare + gate_at);
  gate::done(args.op.compare + gate_at);
  if (s == BP_OK) s = bp::quiet<pull>(ep, thread);
  bp::st_relaxed_sys(reinterpret_cast<uint32_t*>(args.op.status), (uint32_t)s);
}
