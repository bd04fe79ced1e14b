// Waits look at what they wait for once more before they say that the queue pair has ended.
#include "check.hpp"
#include "order.cuh"

namespace bp {

void (*before_error)();
const uint32_t* error_word;

uint32_t seen_load(const uint32_t* p) {
  if (p == error_word) before_error();
  return ld_relaxed_gpu(p);
}
uint64_t seen_load(const uint64_t* p) { return ld_relaxed_gpu(p); }

}  // namespace bp

#define ld_relaxed_gpu seen_load
#include "bellpush.cuh"

bp_endpoint ep;
bp_qp_state state;
uint64_t signal_word;

bp_status_code wait_for(uint64_t value) {
  return bp::wait_signal(ep, bp::thread_scope{}, &signal_word, value);
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
  CHECK(wait_for(7) == BP_OK);
  CHECK(wait_for(8) == BP_CQE_ERROR);
}
