// What is complete is said to be, whatever came after it (docs/device-api.md, the table of statuses).
#include "bed.hpp"
#include "check.hpp"

using P = bp::path<bp::data::push, bp::kick::kernel, bp::share::exclusive>;
using S = bp::path<bp::data::push, bp::kick::kernel, bp::share::shared>;
bed<6, 7> q;
bp_endpoint ep;
uint8_t src[256];

template <class Path>
void begin() {
  ep = q.begin<Path>(0, 8);
  ep.qp.slot_limit = 32;
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
  q.cqe(0, 0);
  q.cqe(BP_CQE_REQ_ERR, 3);
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
  q.cqe(0, 0);
  // Room for one block: the first CQE is taken.
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &end) == BP_OK);
  q.cqe(BP_CQE_REQ_ERR, 4);
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
  q.cqe(0, 0);
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
  q.cqe(BP_CQE_REQ_ERR, 1);
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
  q.cqe(0, 0);
  CHECK(bp::put<Path>(ep, bp::thread_scope{}, 0, src, 64, bp::none, &end) ==
        BP_OK);  // needs one slot: takes that CQE
  q.cqe(BP_CQE_REQ_ERR, 4);
  const bp_status_code w = bp::wait<Path>(ep, bp::thread_scope{}, first);
  CHECK(w == BP_OK);
}

// A put waits for room for one block. The error CQE of the second put says that the first is complete, which is room
// enough; nothing is posted behind an error all the same.
template <class Path>
void no_post_behind_an_error() {
  begin<Path>();
  uint64_t end = 0;
  for (int i = 0; i < 64; i++)
    CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &end) == BP_OK);
  CHECK(end == 64);
  q.cqe(BP_CQE_REQ_ERR, 1);
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &end) == BP_CQE_ERROR);
  CHECK(q.state.done == 1 && q.state.reserved == 64);
  CHECK(bp::put_inline<Path>(ep, bp::thread_scope{}, 0, src, 8, bp::none, &end) == BP_DEAD);
}

template <class Path>
void all() {
  both_cqes_at_once<Path>();
  done_in_the_middle<Path>();
  done_in_the_middle_and_nothing_more<Path>();
  complete_by_an_error_cqe<Path>();
  ready_word_is_there<Path>();
  no_post_behind_an_error<Path>();
}

int main() {
  all<P>();
  all<S>();
}
