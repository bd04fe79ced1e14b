// What is complete is said to be, whatever came after it (docs/device-api.md, the table of statuses).
#include <string.h>
#include <bellpush/bellpush.cuh>
#include "check.hpp"

using P = bp::path<bp::data::push, bp::kick::kernel, bp::share::exclusive>;
using S = bp::path<bp::data::push, bp::kick::kernel, bp::share::shared>;
alignas(64) bp_cqe64 cqes[128];
uint32_t ready[64], dbr[16], cq_dbr[16];
alignas(64) uint8_t sq[64 * 64], uar[4096], src[256];
bp_qp_state state;
bp_status status;
bp_endpoint ep;
uint64_t made;

void cqe(uint32_t opcode, uint64_t ticket) {
  uint8_t* c = (uint8_t*)&cqes[made];
  if (opcode == BP_CQE_REQ_ERR) c[BP_CQE_SYNDROME_OFFSET] = 0x13;
  c[60] = (uint8_t)(ticket >> 8);
  c[61] = (uint8_t)ticket;
  c[63] = (uint8_t)(opcode << 4);
  made++;
}
template <class Path>
void begin() {
  ep = {};
  state = {};
  status = {};
  made = 0;
  for (bp_cqe64& c : cqes) c.op_own = 0xf0;
  for (uint32_t i = 0; i < 64; i++) ready[i] = i;
  ep.tag = Path::tag_v;
  ep.remote_bytes = 1 << 20;
  ep.qp.sq = (uint64_t)sq;
  ep.qp.cq = (uint64_t)cqes;
  ep.qp.dbr = (uint64_t)dbr;
  ep.qp.cq_dbr = (uint64_t)cq_dbr;
  ep.qp.uar = (uint64_t)uar;
  ep.qp.state = (uint64_t)&state;
  ep.qp.ready = (uint64_t)ready;
  ep.qp.status = (uint64_t)&status;
  ep.qp.sq_log = 6;
  ep.qp.cq_log = 7;
  ep.qp.slot_limit = 32;
  ep.qp.credit_period = 8;
  ep.qp.timeout_ns = 10000000;
}

// An inline put of 3 blocks is complete; the put behind it failed. Both CQEs are there when wait(first) looks.
template <class Path>
void both_cqes_at_once() {
  begin<Path>();
  uint64_t first, second;
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 128, bp::none, &first) == BP_OK);
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &second) == BP_OK);
  CHECK(first == 3 && second == 4);
  cqe(0, 0);
  cqe(BP_CQE_REQ_ERR, 3);
  const bp_status_code w = bp::wait<Path>(ep, bp::thread_scope{}, first);
  CHECK(w == BP_OK && bp::wait<Path>(ep, bp::thread_scope{}, first) == BP_OK);
  CHECK(bp::test<Path>(ep, bp::thread_scope{}, first) == BP_OK);
  CHECK(bp::wait<Path>(ep, bp::thread_scope{}, second) == BP_CQE_ERROR);
}

// A wait for room for one block takes the CQE of a WQE of four.
template <class Path>
void done_in_the_middle() {
  begin<Path>();
  uint64_t first = 0, end = 0;
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 220, bp::none, &first) == BP_OK);  // 4 blocks
  CHECK(first == 4);
  for (int i = 0; i < 60; i++)
    CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &end) == BP_OK);
  CHECK(end == 64);
  cqe(0, 0);
  // Room for one block: the first CQE is taken.
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &end) == BP_OK);
  cqe(BP_CQE_REQ_ERR, 4);
  const bp_status_code w = bp::wait<Path>(ep, bp::thread_scope{}, first);
  // and after the error is known
  const bp_status_code e = bp::wait<Path>(ep, bp::thread_scope{}, end);
  const bp_status_code again = bp::wait<Path>(ep, bp::thread_scope{}, first);
  CHECK(w == BP_OK && again == BP_OK && e == BP_CQE_ERROR);
}

// The same without an error: the puts behind it are not complete yet.
template <class Path>
void done_in_the_middle_and_nothing_more() {
  begin<Path>();
  uint64_t first = 0, end = 0;
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 220, bp::none, &first) == BP_OK);  // 4 blocks
  for (int i = 0; i < 60; i++)
    CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &end) == BP_OK);
  cqe(0, 0);
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &end) == BP_OK);
  const bp_status_code t = bp::test<Path>(ep, bp::thread_scope{}, first),
                       w = bp::wait<Path>(ep, bp::thread_scope{}, first);
  const bp_status_code again = bp::put_inline<Path>(bp::within(ep, 0), bp::thread_scope{}, 0, src, 8, bp::none, &end);
  CHECK(t == BP_OK && w == BP_OK && again == BP_OK);
}

// An unsignalled put, then one that fails: its error CQE says that the first is complete, as Endpoint::reset counts
// it.
template <class Path>
void complete_by_an_error_cqe() {
  begin<Path>();
  uint64_t first = 0, second = 0;
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::unsignalled, &first) == BP_OK);
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &second) == BP_OK);
  cqe(BP_CQE_REQ_ERR, 1);
  const bp_status_code s = bp::wait<Path>(ep, bp::thread_scope{}, second),
                       w = bp::wait<Path>(ep, bp::thread_scope{}, first);
  CHECK(s == BP_CQE_ERROR && w == BP_OK);
}

// A wait for a slot takes the CQE of a WQE of four blocks, and an error follows.
template <class Path>
void ready_word_is_there() {
  begin<Path>();
  static uint8_t window[4 * 64];
  ep.qp.window.va = (uint64_t)window;
  ep.qp.window.slots = ep.qp.slot_limit = 4;
  ep.qp.window.slot_bytes = 64;
  ep.qp.credit_period = 1;
  uint64_t first = 0, end = 0;
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 220, bp::none, &first) == BP_OK);  // 4 blocks
  cqe(0, 0);
  CHECK(bp::put<Path>(ep, bp::thread_scope{}, 0, src, 64, bp::none, &end) ==
        BP_OK);  // needs one slot: takes that CQE
  cqe(BP_CQE_REQ_ERR, 4);
  const bp_status_code w = bp::wait<Path>(ep, bp::thread_scope{}, first);
  CHECK(w == BP_OK);
}

template <class Path>
void all() {
  both_cqes_at_once<Path>();
  done_in_the_middle<Path>();
  done_in_the_middle_and_nothing_more<Path>();
  complete_by_an_error_cqe<Path>();
  ready_word_is_there<Path>();
}

int main() {
  all<P>();
  all<S>();
}
