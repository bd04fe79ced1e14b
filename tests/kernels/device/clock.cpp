// Waits end by their time, and by nothing else.
#include <bellpush/exec.cuh>
#include "check.hpp"

namespace bp {
uint64_t told;
uint64_t told_ns() { return told; }
}  // namespace bp

#define now_ns told_ns
#include <bellpush/impl/order.cuh>

bool expires_at(bp::deadline* wait, uint64_t now, uint64_t timeout_ns) {
  bp::told = now;
  bool expired = false;
  for (int i = 0; i < 32; i++) expired |= wait->expired(timeout_ns);
  return expired;
}

int main() {
  bp::deadline wait;
  CHECK(!expires_at(&wait, 5000, 1000));
  CHECK(!expires_at(&wait, 5600, 1000));
  CHECK(!expires_at(&wait, 4000, 1000));  // the clock was set back: the wait begins again
  CHECK(!expires_at(&wait, 4999, 1000));
  CHECK(expires_at(&wait, 5001, 1000));
  bp::deadline patient;
  CHECK(!expires_at(&patient, 5000, ~0ull));
  CHECK(!expires_at(&patient, 4000, ~0ull));
  CHECK(bp::deadline{}.expired(0));  // at the first poll
  bp::told = 4000;
  CHECK(bp::elapsed_ns(5000) == 0 && bp::elapsed_ns(3000) == 1000);
}
