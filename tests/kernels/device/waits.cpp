// Waits look at what they wait for once more before they say that the queue pair has ended.
#include <bellpush/impl/order.cuh>
#include "check.hpp"

namespace bp {

void (*before_error)();
const uint32_t* error_word;

// Whether an acquire has come since the last look at what the NIC brings.
bool acquired;
const void *done_word, *cqe_words, *signalled;
bool is_look(const void* p) {
  return p == done_word || p == signalled || ((uintptr_t)p >= (uintptr_t)cqe_words && (uintptr_t)p < (uintptr_t)cqe_words + 256);
}
void seen_acquire() { acquired = true; }

uint32_t seen_load(const uint32_t* p) {
  if (p == error_word) before_error();
  return ld_relaxed_gpu(p);
}
uint64_t seen_load(const uint64_t* p) {
  if (is_look(p)) acquired = false;
  return ld_relaxed_gpu(p);
}
uint64_t seen_look(const uint64_t* p) {
  if (is_look(p)) acquired = false;
  return ld_relaxed_sys(p);
}
uint32_t seen_look(const uint32_t* p) { return ld_relaxed_sys(p); }

void (*at_reason)();
const uint32_t* reason;
void seen_store(uint32_t* p, uint32_t v) {
  if (p == reason) at_reason();
  st_relaxed_sys(p, v);
}
void seen_store(uint64_t* p, uint64_t v) { st_relaxed_sys(p, v); }

}  // namespace bp

#define ld_relaxed_gpu seen_load
#define ld_relaxed_sys seen_look
#define fence_acquire_sys seen_acquire
#define st_relaxed_sys seen_store
#include <bellpush/bellpush.cuh>

bp_endpoint ep;
bp_qp_state state;
uint64_t signal_word;

bp_status_code wait_for(uint64_t value) {
  return bp::wait_signal(ep, bp::thread_scope{}, &signal_word, value);
}

bp_status_code test_for(uint64_t value) {
  return bp::test_signal(ep, bp::thread_scope{}, &signal_word, value);
}

// A shared queue pair's CQ: ticket 0 is complete, ticket 1 is in error. While the finder of both writes down why,
// others wait for the first.
using shared = bp::path<bp::data::pull, bp::kick::kernel, bp::share::shared>;
alignas(64) bp_cqe64 cqes[4];
uint32_t ready[64], dbr[16];
bp_status status;
bp_status_code waited, tested;

void what_is_complete_stays_so() {
  bp::error_word = nullptr;
  ep.tag = shared::tag_v;
  state = {};
  ep.qp.ready = (uint64_t)ready;
  ep.qp.dbr = ep.qp.cq_dbr = (uint64_t)dbr;
  ep.qp.cq = (uint64_t)cqes;
  ep.qp.cq_log = 2;
  ep.qp.sq_log = 6;
  ep.qp.status = (uint64_t)&status;
  state.reserved = state.signalled = 2;
  state.ring = 2 << bp::ring_shift;
  ready[0] = 1;
  ready[1] = 2;
  for (bp_cqe64& cqe : cqes) cqe.op_own = 0xf0;
  cqes[0].op_own = 0;
  cqes[1].op_own = BP_CQE_REQ_ERR << 4;
  reinterpret_cast<uint8_t*>(&cqes[1])[61] = 1;  // wqe_counter
  reinterpret_cast<uint8_t*>(&cqes[1])[BP_CQE_SYNDROME_OFFSET] = 0x13;
  bp::reason = &status.syndrome;
  bp::at_reason = [] {
    waited = bp::wait<shared>(ep, bp::thread_scope{}, 1);
    tested = bp::test<shared>(ep, bp::thread_scope{}, 1);
  };
  CHECK(bp::wait<shared>(ep, bp::thread_scope{}, 2) == BP_CQE_ERROR);
  CHECK(waited == BP_OK && tested == BP_OK);
  CHECK(status.syndrome == 0x13 && status.ticket == 1);
}

// The finder has the CQE and has not written it down when the queue pair ends for another reason: its turn is waited
// for. (Its part is the executor's yield.)
void a_cqe_that_another_caller_has_is_waited_for() {
  state = {};
  state.reserved = state.signalled = 2;
  state.ring = 2 << bp::ring_shift;
  state.cq_lock = 1;
  state.error = BP_DEAD;
  bp_host_current()->grid->hooks.yield = [](void*) {
    state.done = 1;
    state.cq_ci = 1;
    state.cq_lock = 0;
  };
  CHECK(bp::wait<shared>(ep, bp::thread_scope{}, 1) == BP_OK);
  CHECK(bp::wait<shared>(ep, bp::thread_scope{}, 2) == BP_DEAD);
}

// After a wait, what the NIC brought can be read: behind the last look there is an acquire, whoever took the CQE. An
// exclusive queue pair has one only where something was fetched.
template <class P>
void brought_data_come_before_the_return(bool fetches) {
  bp::done_word = &state.done;
  bp::cqe_words = cqes;
  ep.tag = P::tag_v;
  const auto begin = [&] {
    state = {};
    state.reserved = state.signalled = state.rung = 1;
    state.ring = 1 << bp::ring_shift;
    state.fetched = fetches && !P::shared ? 1 : 0;
    for (bp_cqe64& cqe : cqes) cqe.op_own = 0xf0;
    cqes[0].op_own = 0;
    bp::acquired = false;
  };
  const bool wanted = P::shared || fetches;
  begin();
  CHECK(bp::wait<P>(ep, bp::thread_scope{}, 1) == BP_OK);
  CHECK(bp::acquired == wanted && state.fetched == 0);
  bp::acquired = false;
  CHECK(bp::wait<P>(ep, bp::thread_scope{}, 1) == BP_OK);
  CHECK(bp::acquired == P::shared);
  begin();
  CHECK(bp::test<P>(ep, bp::thread_scope{}, 1) == BP_OK);
  CHECK(bp::acquired == wanted && state.fetched == 0);
  bp::acquired = false;
  CHECK(bp::quiet<P>(ep, bp::thread_scope{}) == BP_OK);
  CHECK(bp::acquired == P::shared);
}

// One in no part of the credits is none, whatever is outstanding.
void no_part_of_the_credits_is_none() {
  using P = bp::path<bp::data::pull, bp::kick::kernel, bp::share::exclusive>;
  state = {};
  bp_endpoint pulls = ep;
  pulls.tag = P::tag_v;
  pulls.qp.sq_log = 6;
  CHECK(bp::serves<P>(pulls));
  bp::reclaim<P>(pulls, 0);
  CHECK(state.reserved == 0);
}

int main() {
  ep.qp.state = (uint64_t)&state;
  ep.qp.timeout_ns = 1000000000;
  bp::error_word = &state.error;
  // Between a look at the word and the one at the error, the signal comes, and then the error.
  bp::before_error = [] {
    signal_word = 7;
    state.error = BP_CQE_ERROR;
  };
  bp::signalled = &signal_word;
  CHECK(wait_for(7) == BP_OK);
  CHECK(bp::acquired);  // the data, which came before the word
  CHECK(wait_for(8) == BP_CQE_ERROR);
  CHECK(test_for(8) == BP_CQE_ERROR);
  bp::acquired = false;
  CHECK(test_for(7) == BP_OK && bp::acquired);
  bp::before_error = [] {};
  state.error = BP_OK;
  CHECK(test_for(8) == BP_PENDING);
  what_is_complete_stays_so();
  a_cqe_that_another_caller_has_is_waited_for();
  brought_data_come_before_the_return<shared>(true);
  using exclusive = bp::path<bp::data::pull, bp::kick::kernel, bp::share::exclusive>;
  brought_data_come_before_the_return<exclusive>(true);
  brought_data_come_before_the_return<exclusive>(false);
  no_part_of_the_credits_is_none();
}
