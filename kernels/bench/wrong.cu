// Programs that lack one step, and the same with it: what the adversary says of each (tests/adversary/wrong.rs). Their
// WQEs say which line posted them.
#define BELLPUSH_WHERE
#define BP_MAX_THREADS 32
#include <bellpush/bellpush.cuh>
#include "bench/args.h"
#include "bench/gate.cuh"

namespace {

// Of the arguments `op.value` is whether the step is there, and `op.compare` the address of memory that the host reads:
enum : uint64_t {
  gate_at = 0,
  words_at = 64,      // of barriers: those of the other rank's are set
  table_at = 1024,    // bp_endpoint[2], of which the second is the peer's
  remotes_at = 2048,  // bp_remote[2]
};

using pull = bp::path<bp::data::pull, bp::kick::kernel>;
using auto_path = bp::auto_path<>;
constexpr bp::thread_scope thread;
constexpr uint64_t bytes = 48, far = 1024;

struct program {
  const bp_auto_op_args& a;
  bp_endpoint ep;
  uint8_t* src;
  bool right;
  uint64_t host;
  BP_DEV program(const bp_auto_op_args& args)
      : a(args), ep(args.op.ep), src(reinterpret_cast<uint8_t*>(args.op.local)), right(args.op.value != 0),
        host(args.op.compare + gate_at) {}
  BP_DEV void reuse(uint64_t at = 0) const { static_cast<volatile uint8_t*>(src)[at + 5] = 0xee; }
  BP_DEV bp_status_code quiet() const {
    return a.ep.bell.tag != 0 ? bp::quiet<auto_path>(a.ep, thread) : bp::quiet<pull>(ep, thread);
  }
  // The end of all that was posted, and what became of it.
  BP_DEV void end(bp_status_code s) const {
    const bp_status_code last = quiet();
    if (s == BP_OK) s = last;
    bp::st_relaxed_sys(reinterpret_cast<uint32_t*>(a.op.status), (uint32_t)s);
  }
  // Posts, stands still until the NIC has looked, waits as a right program does, and uses the source again.
  template <class Post, class Wait>
  BP_DEV void use_again(Post post, Wait wait, uint64_t at = 0) const {
    bp_status_code s = post();
    gate::pass(host);
    if (right) gate::done(host);
    const bp_status_code waited = wait();
    if (right && s == BP_OK) s = waited;
    reuse(at);
    if (!right) gate::done(host);
    end(s);
  }
};

}  // namespace

// An auto endpoint's put of a length that its table pulls, taken for one that is free at its return.
BP_KERNEL(bp_wrong_auto, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  p.use_again([&] { return bp::put<auto_path>(args.ep, thread, 0, p.src, bytes); },  // taken for pushed
              [&] { return p.right ? p.quiet() : BP_OK; });
}

// A wait that gave up, taken for one that ended.
BP_KERNEL(bp_wrong_timeout, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  p.use_again([&] { return bp::put<pull>(p.ep, thread, 0, p.src, bytes); },  // given up
              [&] { return bp::quiet<pull>(p.right ? p.ep : bp::within(p.ep, 1), thread); });
}

// Two puts, and a wait for the first one's ticket; the second one's source is used again.
BP_KERNEL(bp_wrong_ticket, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  uint64_t first = bp::posted<pull>(p.ep), second = first;
  p.use_again(
      [&] {
        const bp_status_code s = bp::put<pull>(p.ep, thread, 0, p.src + far, bytes);
        return s != BP_OK ? s : bp::put<pull>(p.ep, thread, 0, p.src, bytes, bp::none, &second);  // of another ticket
      },
      [&] { return bp::wait<pull>(p.ep, thread, p.right ? second : first); });
}

// The last message of a batch.
BP_KERNEL(bp_wrong_batch, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  const auto list = [&](uint32_t i) { return bp::message{i * 64, p.src + i * 64, bytes}; };
  uint64_t end = 0;
  p.use_again([&] { return bp::put_batch<pull>(p.ep, thread, 5, list, bp::none, &end); },  // of a batch
              [&] { return p.right ? bp::wait<pull>(p.ep, thread, end) : BP_OK; }, 4 * 64);
}

// A put whose signal, or immediate, says that the data are there: at the peer, which tells nothing here.
BP_KERNEL(bp_wrong_signal, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  p.use_again([&] { return bp::put_signal<pull>(p.ep, thread, 0, p.src, bytes, far, bp::signal_add{1}); },  // signalled
              [&] { return p.right ? p.quiet() : BP_OK; });
}
BP_KERNEL(bp_wrong_imm, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  p.use_again([&] { return bp::put_imm<pull>(p.ep, thread, 0, p.src, bytes, 9); },  // with an immediate
              [&] { return p.right ? p.quiet() : BP_OK; });
}

// Sends on what it fetches, without a wait between.
template <class Fetch, class Send>
BP_DEV void send_on(const program& p, Fetch fetch, Send send) {
  bp_status_code s = fetch();
  if (p.right) {
    gate::pass(p.host);
    gate::done(p.host);
    if (s == BP_OK) s = p.quiet();
  }
  if (s == BP_OK) s = send();
  if (!p.right) {
    gate::pass(p.host);
    gate::done(p.host);
  }
  p.end(s);
}
BP_KERNEL(bp_wrong_get, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  send_on(p, [&] { return bp::get<pull>(p.ep, thread, p.src, far, bytes); },
          [&] { return bp::put<pull>(p.ep, thread, 0, p.src + 40, bytes); });  // of what get brings
}
BP_KERNEL(bp_wrong_atomic, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  send_on(p, [&] { return bp::fetch_add<pull>(p.ep, thread, far, 1, p.src); },
          [&] { return bp::put<pull>(p.ep, thread, 0, p.src, 8); });  // of what fetch_add brings
}

// A barrier that waits for no put, before the source is used again. The other rank has come.
BP_KERNEL(bp_wrong_barrier, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  const uint64_t at = args.op.compare, words = at + words_at;
  const bp_peers peers{at + table_at, at + remotes_at, words, words + 256, 0, 2, 1, 1};
  const auto put = [&] {
    const bp_status_code s = bp::put<pull>(bp::peer(peers, 1), thread, 0, p.src, bytes);  // before a barrier
    return s != BP_OK || p.right ? s : bp::sync_all<pull>(peers, thread);
  };
  p.use_again(put, [&] { return p.right ? bp::barrier_all<pull>(peers, thread) : BP_OK; });
}

// Sends on what a peer puts here, when the host says that the NIC has some of it; or when the peer's signal says that it
// is there.
BP_KERNEL(bp_wrong_forward, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  gate::pass(p.host);
  if (p.right) gate::done(p.host);
  bp_status_code s = BP_OK;
  if (p.right) s = bp::wait_signal(p.ep, thread, reinterpret_cast<const uint64_t*>(p.src + 4096), 1);
  if (s == BP_OK) s = bp::put<pull>(p.ep, thread, 0, p.src, args.op.bytes);  // of what a peer puts
  if (!p.right) gate::done(p.host);
  p.end(s);
}

// A stage of two slots, of which a message is made and sent four times over: all wait for their turn, or none does. As
// the collectives' stages, but for the rule that says when a slot is free.
BP_KERNEL(bp_wrong_stage, bp_auto_op_args) {
  if (bp::tid() != 0) return;
  const program p(args);
  bp_status_code s = BP_OK;
  uint64_t ends[4] = {};
  for (uint32_t n = 0; n < 4 && s == BP_OK; n++) {
    if (n == 2) {
      gate::pass(p.host);
      if (p.right) gate::done(p.host);
    }
    if (p.right && n >= 2) s = bp::wait<pull>(p.ep, thread, ends[n - 2]);
    uint64_t* const slot = reinterpret_cast<uint64_t*>(p.src + n % 2 * 64);
    for (uint32_t i = 0; i < 6; i++) slot[i] = n * 0x0101010101010101u + i;
    if (s == BP_OK) s = bp::put<pull>(p.ep, thread, n * 64, slot, bytes, bp::none, ends + n);  // from a stage
  }
  if (!p.right) gate::done(p.host);
  p.end(s);
}
