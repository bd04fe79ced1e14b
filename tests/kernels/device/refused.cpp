// Arguments that are refused: every verb of every path returns BP_INVALID, reads no payload, and changes no word of the
// queue pair, whatever state that is in. A batch that is looked at while it is written may leave WQEs in blocks of the
// send queue that nobody has taken.
#include <string.h>

#include <bellpush/bellpush.cuh>

#include "check.hpp"
#include "host/threads.hpp"

constexpr bp::data push = bp::data::push, pull = bp::data::pull;
constexpr uint32_t blocks = 16, slots = 16, slot_bytes = 256;

// All that a verb may store to, but for the send queue.
struct memory {
  alignas(64) bp_cqe64 cqes[32];
  alignas(64) uint8_t window[slots * slot_bytes];
  alignas(64) uint8_t uar[4096];
  alignas(64) bp_qp_state state;
  uint32_t ready[blocks], dbr[16], cq_dbr[16];
  bp_status status;
  uint64_t end;
};
memory now, before;
alignas(64) uint8_t sq[blocks * 64], sq_before[blocks * 64], local[4096];
constexpr uint64_t far = 1ull << 40;  // where nothing is mapped, as a rule

template <class P>
bp_endpoint endpoint(uint64_t reserved, uint64_t done, uint32_t error) {
  memset(&now, 0, sizeof now);
  memset(sq, 0x5a, sizeof sq);
  for (bp_cqe64& cqe : now.cqes) cqe.op_own = 0xf0;
  for (uint32_t i = 0; i < blocks; i++) now.ready[i] = i;
  now.state.reserved = now.state.rung = now.state.signalled = reserved;
  now.state.done = done;
  now.state.ring = reserved << bp::ring_shift;
  now.state.error = error;
  now.end = 77;
  bp_endpoint ep = {};
  ep.tag = P::tag_v;
  ep.local_va = (uint64_t)local;
  ep.local_iova = 0x1000000;
  ep.remote_iova = 0x2000000;
  ep.local_bytes = ep.remote_bytes = sizeof local;
  ep.qp.sq = (uint64_t)sq;
  ep.qp.uar = (uint64_t)now.uar;
  ep.qp.cq = (uint64_t)now.cqes;
  ep.qp.dbr = (uint64_t)now.dbr;
  ep.qp.cq_dbr = (uint64_t)now.cq_dbr;
  ep.qp.state = (uint64_t)&now.state;
  ep.qp.ready = (uint64_t)now.ready;
  ep.qp.status = (uint64_t)&now.status;
  ep.qp.sq_log = 4;
  ep.qp.cq_log = 5;
  ep.qp.slot_limit = slots;
  ep.qp.credit_period = 4;
  ep.qp.timeout_ns = 1000;
  ep.qp.window.va = (uint64_t)now.window;
  ep.qp.window.gather_base = 0x3000000;
  ep.qp.window.slots = slots;
  ep.qp.window.slot_bytes = slot_bytes;
  ep.qp.window.inband_seq0 = 9;
  memcpy(&before, &now, sizeof now);
  memcpy(sq_before, sq, sizeof sq);
  return ep;
}

bool is_untouched() { return memcmp(&now, &before, sizeof now) == 0 && memcmp(sq, sq_before, sizeof sq) == 0; }

// Every verb with arguments that are wrong in one way each. `nowhere` cannot be read.
template <class P, class Scope, class Check>
void call(const bp_endpoint& ep, Scope s, Check is_refused) {
  const void* nowhere = (const void*)far;
  void* out = (void*)far;
  uint64_t* const end = &now.end;
  const uint64_t all = sizeof local;
  struct range {
    uint64_t offset, bytes;
  };
  const range wrong[] = {{0, 0},     {all, 0},          {all, 1},      {all - 7, 8},     {0, all + 1}, {~0ull, 1},
                         {~0ull, 2}, {~0ull - 6, 8},    {1, ~0ull},    {~0ull, ~0ull},   {0, ~0ull},   {8, 1ull << 32},
                         {0, 1ull << 32}, {0, (1ull << 32) + 8}, {all + 8, ~0ull - 7}, {0, (1ull << 30) + 1}};
  for (const uint32_t flags : {0u, 1u, 2u, 3u}) {
    for (const range& w : wrong) {
      is_refused(bp::put<P>(ep, s, w.offset, nowhere, w.bytes, flags, end));
      is_refused(bp::put<P>(ep, s, w.offset, local, w.bytes, flags, end));
      is_refused(bp::put_inline<P>(ep, s, w.offset, nowhere, w.bytes, flags, end));
      is_refused(bp::put_imm<P>(ep, s, w.offset, nowhere, w.bytes, 1, flags, end));
      is_refused(bp::put_imm<P>(ep, s, w.offset, local, w.bytes, 1, flags, end));
      is_refused(bp::put_signal<P>(ep, s, w.offset, nowhere, w.bytes, 8, bp::signal_add{1}, flags, end));
      is_refused(bp::put_signal<P>(ep, s, w.offset, local, w.bytes, 8, bp::signal_set{1}, flags, end));
      is_refused(bp::get<P>(ep, s, local, w.offset, w.bytes, flags, end));
      is_refused(bp::get<P>(ep, s, out, w.offset, w.bytes, flags, end));
      is_refused(bp::put_strided<P>(ep, s, 3, w.offset, 8, local, 8, w.bytes, flags, end));
    }
    for (const uint64_t at : {all, all - 7, ~uint64_t{0}, ~uint64_t{6}, ~uint64_t{7}}) {
      is_refused(bp::fetch_add<P>(ep, s, at, 1, local, flags, end));
      is_refused(bp::fetch_add<P>(ep, s, at, 1, nullptr, flags, end));
      is_refused(bp::compare_swap<P>(ep, s, at, 1, 2, local, flags, end));
      is_refused(bp::compare_swap<P>(ep, s, at, 1, 2, nullptr, flags, end));
      is_refused(bp::signal<P>(ep, s, at, bp::signal_add{1}, flags, end));
      is_refused(bp::signal<P>(ep, s, at, bp::signal_set{1}, flags, end));
      is_refused(bp::put_value<P>(ep, s, at, 1ull, flags, end));
      is_refused(bp::put_signal<P>(ep, s, 0, local, 8, at, bp::signal_add{1}, flags, end));
      is_refused(bp::put_signal<P>(ep, s, 0, local, 8, at, bp::signal_set{1}, flags, end));
      is_refused(bp::put_signal<P>(ep, s, 0, local, 2048, at, bp::signal_set{1}, flags, end));
      is_refused(bp::put_signal<P>(ep, s, 0, local, 2048, at, bp::signal_add{1}, flags, end));
    }
    is_refused(bp::signal<P>(ep, s, all, bp::signal_imm{1}, flags, end));
    is_refused(bp::put_signal<P>(ep, s, 0, local, 8, all, bp::signal_imm{1}, flags, end));
    is_refused(bp::put_signal<P>(ep, s, 0, local, 8, 4, bp::signal_set{1}, flags, end));
    is_refused(bp::signal<P>(ep, s, 4, bp::signal_set{1}, flags, end));
    for (void* at : {(void*)nullptr, out, (void*)(local + all - 7), (void*)(local + all), (void*)(local - 1), (void*)~0ull}) {
      is_refused(bp::get<P>(ep, s, at, 0, 8, flags, end));
      if (at != nullptr) {
        is_refused(bp::fetch_add<P>(ep, s, 0, 1, at, flags, end));
        is_refused(bp::compare_swap<P>(ep, s, 0, 1, 2, at, flags, end));
      }
      if (P::data_v == pull) {
        is_refused(bp::put<P>(ep, s, 0, at, 8, flags, end));
        is_refused(bp::put_imm<P>(ep, s, 0, at, 8, 1, flags, end));
        is_refused(bp::put_signal<P>(ep, s, 0, at, 8, 8, bp::signal_add{1}, flags, end));
      }
    }
    is_refused(bp::put_inline<P>(ep, s, 0, nowhere, 221, flags, end));
    is_refused(bp::put_vector<P>(ep, s, 0, (const bp::message*)nowhere, flags, end));
  }
}

// A list whose last, first or only message is wrong.
template <class P, class Scope, class Check>
void call_lists(const bp_endpoint& ep, Scope s, Check is_refused) {
  for (const uint32_t n : {1u, 2u, 7u, 8u, 9u, 16u, 33u}) {
    for (uint32_t bad = 0; bad < n; bad++) {
      for (const bp::message& wrong : {bp::message{0, local, 0}, bp::message{sizeof local, local, 8}, bp::message{0, local, ~0ull},
                                       bp::message{~0ull, local, 8}}) {
        const auto list = [&](uint32_t i) { return i == bad ? wrong : bp::message{i * 8, local + i * 8, 8}; };
        is_refused(bp::put_batch<P>(ep, s, n, list, bp::none, &now.end));
        is_refused(bp::put_batch<P>(ep, s, n, list, bp::defer_ring | bp::unsignalled, &now.end));
      }
    }
  }
  is_refused(bp::put_strided<P>(ep, s, 3, 0, 1ull << 63, local, 8, 8, 0, &now.end));
  is_refused(bp::put_strided<P>(ep, s, 3, 0, 1ull << 40, local, 8, 8, 0, &now.end));
}

struct states {
  uint64_t reserved, done;
  uint32_t error;
};
constexpr states cases[] = {{0, 0, 0},   {5, 5, 0},   {29, 29, 0}, {29, 20, 0},         {29, 13, 0},
                            {29, 13, 2}, {30, 30, 2}, {65535, 65530, 0}, {(1ull << 32) - 3, (1ull << 32) - 9, 0}};
uint32_t calls;

template <class P>
void by_thread() {
  for (const states& c : cases) {
    const bp_endpoint ep = endpoint<P>(c.reserved, c.done, c.error);
    call<P>(ep, bp::thread_scope{}, [](bp_status_code s) {
      calls++;
      CHECK(s == BP_INVALID);
      CHECK(is_untouched());
    });
    call_lists<P>(ep, bp::thread_scope{}, [&](bp_status_code s) {
      calls++;
      CHECK(s == BP_INVALID);
      CHECK(memcmp(&now, &before, sizeof now) == 0);
      // Blocks that are taken and not complete stay.
      for (uint64_t t = c.done; t < c.reserved; t++) CHECK(memcmp(sq + t % blocks * 64, sq_before, 64) == 0);
    });
  }
}

struct args {
  bp_endpoint ep;
  uint64_t done, reserved;
};
bool wrong_status;
template <class P, class Scope>
size_t kernel(const void* a) noexcept {
  if (a == nullptr) return sizeof(args);
  const args& given = *(const args*)a;
  const auto check = [&](bp_status_code s) {
    if (s != BP_INVALID) wrong_status = true;
  };
  call<P>(given.ep, Scope{}, check);
  call_lists<P>(given.ep, Scope{}, check);
  return sizeof(args);
}
template <class P, class Scope>
void by_threads(uint32_t n) {
  for (const states& c : {cases[0], cases[3], cases[4], cases[5]}) {
    const args given = {endpoint<P>(c.reserved, c.done, c.error), c.done, c.reserved};
    bp_host::run_threads(kernel<P, Scope>, 1, n, 0, given);
    CHECK(!wrong_status);
    CHECK(memcmp(&now, &before, sizeof now) == 0);
    for (uint64_t t = c.done; t < c.reserved; t++) CHECK(memcmp(sq + t % blocks * 64, sq_before, 64) == 0);
  }
}

template <class P>
void path() {
  if constexpr (P::line_v != bp::line::d60s4) by_thread<P>();
}
template <bp::share S, bp::reach R, bp::order O>
void paths() {
  path<bp::path<push, bp::kick::kernel, S, R, O>>();
  path<bp::path<pull, bp::kick::kernel, S, R, O>>();
  path<bp::path<push, bp::kick::inband, S, R, O>>();
  path<bp::path<push, bp::kick::inband, S, R, O, bp::line::d14s2>>();
  if constexpr (S == bp::share::exclusive) {
    path<bp::path<push, bp::kick::blueflame, S, R, O>>();
    path<bp::path<pull, bp::kick::blueflame, S, R, O>>();
  }
}
template <bp::share S>
void shares() {
  paths<S, bp::reach::gpu, bp::order::later>();
  paths<S, bp::reach::gpu, bp::order::strict>();
  paths<S, bp::reach::system, bp::order::later>();
  paths<S, bp::reach::system, bp::order::strict>();
}

template <bp::share S>
void together() {
  by_threads<bp::path<pull, bp::kick::kernel, S>, bp::warp_scope>(4);
  by_threads<bp::path<push, bp::kick::kernel, S>, bp::warp_scope>(4);
  by_threads<bp::path<push, bp::kick::inband, S>, bp::warp_scope>(4);
  by_threads<bp::path<push, bp::kick::inband, S, bp::reach::system, bp::order::later, bp::line::d60s4>, bp::warp_scope>(4);
  by_threads<bp::path<pull, bp::kick::kernel, S>, bp::block_scope>(34);
  if constexpr (S == bp::share::exclusive) by_threads<bp::path<pull, bp::kick::blueflame>, bp::warp_scope>(4);
}

// An endpoint of zeros: nothing is read through it.
template <class P>
void zeros() {
  const bp_endpoint ep = {};
  call<P>(ep, bp::thread_scope{}, [](bp_status_code s) { CHECK(s == BP_INVALID); });
  call_lists<P>(ep, bp::thread_scope{}, [](bp_status_code s) { CHECK(s == BP_INVALID); });
}

int main() {
  zeros<bp::path<pull, bp::kick::kernel>>();
  zeros<bp::path<push, bp::kick::kernel, bp::share::shared>>();
  zeros<bp::path<push, bp::kick::inband>>();
  zeros<bp::path<push, bp::kick::blueflame>>();
  zeros<bp::path<pull, bp::kick::blueflame>>();
  shares<bp::share::exclusive>();
  shares<bp::share::shared>();
  together<bp::share::exclusive>();
  together<bp::share::shared>();
  CHECK(calls > 100000);
}
