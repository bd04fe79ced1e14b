// A block's long in-band put finds the window full, and the CQEs that come are: complete, complete, error. What is
// complete is said to be.
#include "bed.hpp"
#include "check.hpp"
#include "host/threads.hpp"

using P = bp::path<bp::data::push, bp::kick::inband, bp::share::exclusive>;
constexpr uint32_t slots = 8, slot_bytes = 128;
bed<6, 7> q;
alignas(64) uint8_t window[slots * slot_bytes], src[65536];

struct put_args {
  bp_endpoint ep;
  uint64_t status;
};
size_t kernel(const void* a) noexcept {
  if (a != nullptr) {
    const put_args& args = *(const put_args*)a;
    const bp_status_code s = bp::put<P>(args.ep, bp::block_scope{}, 0, src, 4096);
    if (bp::tid() == 0) *(uint32_t*)args.status = s;
  }
  return sizeof(put_args);
}

int main() {
  bp_endpoint ep = q.begin<P>(0, 2);
  ep.qp.window.va = (uint64_t)window;
  ep.qp.window.slots = ep.qp.slot_limit = slots;
  ep.qp.window.slot_bytes = slot_bytes;
  ep.qp.window.inband_seq0 = 1;
  ep.qp.timeout_ns = 100000000;
  uint64_t end[slots];
  for (uint32_t i = 0; i < slots; i++)
    CHECK(bp::put<P>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &end[i]) == BP_OK);
  CHECK(end[7] == 8);
  q.cqe(0, 0);
  q.cqe(0, 1);
  q.cqe(BP_CQE_REQ_ERR, 2);
  uint32_t put_status = 99;
  const put_args args{ep, (uint64_t)&put_status};
  bp_host::run_threads(kernel, 1, 128, 0, args);
  const bp_status_code w0 = bp::wait<P>(ep, bp::thread_scope{}, end[0]),
                       w1 = bp::wait<P>(ep, bp::thread_scope{}, end[1]);
  const bp_status_code t0 = bp::test<P>(ep, bp::thread_scope{}, end[0]);
  CHECK(put_status == BP_CQE_ERROR);
  CHECK(q.status.ticket == 2);
  CHECK(w0 == BP_OK && w1 == BP_OK && t0 == BP_OK);
}
