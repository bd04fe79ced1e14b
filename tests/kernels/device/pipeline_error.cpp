// A block's long in-band put finds the window full, and the CQEs that come are: complete, complete, error. What is
// complete is said to be.
#include <string.h>
#include <bellpush/bellpush.cuh>
#include "check.hpp"
#include "host/threads.hpp"
using P = bp::path<bp::data::push, bp::kick::inband, bp::share::exclusive>;
constexpr uint32_t slots = 8, slot_bytes = 128;
alignas(64) bp_cqe64 cqes[128];
alignas(64) uint8_t window[slots * slot_bytes], src[65536];
uint32_t cq_dbr[16];
bp_qp_state state;
bp_status status;

void cqe(uint32_t i, uint32_t opcode, uint64_t ticket) {
  uint8_t* c = (uint8_t*)&cqes[i];
  if (opcode == BP_CQE_REQ_ERR) c[BP_CQE_SYNDROME_OFFSET] = 0x13;
  c[60] = (uint8_t)(ticket >> 8);
  c[61] = (uint8_t)ticket;
  c[63] = (uint8_t)(opcode << 4);
}
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
  bp_endpoint ep = {};
  for (bp_cqe64& c : cqes) c.op_own = 0xf0;
  ep.tag = P::tag_v;
  ep.remote_bytes = 1 << 20;
  ep.qp.cq = (uint64_t)cqes;
  ep.qp.cq_dbr = (uint64_t)cq_dbr;
  ep.qp.state = (uint64_t)&state;
  ep.qp.status = (uint64_t)&status;
  ep.qp.window.va = (uint64_t)window;
  ep.qp.window.slots = slots;
  ep.qp.window.slot_bytes = slot_bytes;
  ep.qp.window.inband_seq0 = 1;
  ep.qp.slot_limit = slots;
  ep.qp.sq_log = 6;
  ep.qp.cq_log = 7;
  ep.qp.credit_period = 2;
  ep.qp.timeout_ns = 100000000;
  uint64_t end[slots];
  for (uint32_t i = 0; i < slots; i++)
    CHECK(bp::put<P>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &end[i]) == BP_OK);
  CHECK(end[7] == 8);
  cqe(0, 0, 0);
  cqe(1, 0, 1);
  cqe(2, BP_CQE_REQ_ERR, 2);
  uint32_t put_status = 99;
  const put_args args{ep, (uint64_t)&put_status};
  bp_host::run_threads(kernel, 1, 128, 0, args);
  const bp_status_code w0 = bp::wait<P>(ep, bp::thread_scope{}, end[0]),
                       w1 = bp::wait<P>(ep, bp::thread_scope{}, end[1]);
  const bp_status_code t0 = bp::test<P>(ep, bp::thread_scope{}, end[0]);
  CHECK(put_status == BP_CQE_ERROR);
  CHECK(status.ticket == 2);
  CHECK(w0 == BP_OK && w1 == BP_OK && t0 == BP_OK);
}
