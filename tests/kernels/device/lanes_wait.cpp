// A warp waits on an exclusive queue pair: its lanes look one by one. The leader looks before two CQEs come (one of a
// complete put, one of an error); another lane looks after. That lane does not end the queue pair: the leader records
// what is complete, and has seen nothing.
#include <string.h>
#include <atomic>
#include <bellpush/impl/order.cuh>
#include "check.hpp"
#include "host/threads.hpp"
namespace bp {
void at_look();
uint64_t seen_look(const uint64_t* p) {
  if ((uint32_t)(bp_host_current()->tid) == 0) {
    const uint64_t v = ld_relaxed_sys(p);
    return v;
  }
  at_look();
  return ld_relaxed_sys(p);
}
uint32_t seen_look(const uint32_t* p) { return ld_relaxed_sys(p); }
}  // namespace bp
#define ld_relaxed_sys seen_look
#include "bed.hpp"
using P = bp::path<bp::data::pull, bp::kick::kernel, bp::share::exclusive>;
bed<6, 7> q;
std::atomic<int> leader_looked, written;
bool armed;
namespace bp {
void at_look() {
  if (!armed) return;
  while (leader_looked == 0) bp_host_yield();
  int none = 0;
  if (written.compare_exchange_strong(none, 1)) {
    q.cqe(0, 0);
    q.cqe(BP_CQE_REQ_ERR, 1);
    written = 2;
  }
  while (written != 2) bp_host_yield();
}
}  // namespace bp
struct wait_args {
  bp_endpoint ep;
  uint64_t status;
};
size_t kernel(const void* a) noexcept {
  if (a != nullptr) {
    const wait_args& args = *(const wait_args*)a;
    const bp_status_code s = bp::wait<P>(bp::within(args.ep, 0), bp::warp_scope{}, 2);
    if (bp::tid() == 0) *(uint32_t*)args.status = s;
  }
  return sizeof(wait_args);
}
int main() {
  bp_endpoint ep = q.begin<P>(0, 8);
  ep.qp.timeout_ns = 100000000;
  CHECK(bp::put<P>(ep, bp::thread_scope{}, 0, q.local, 64) == BP_OK);
  CHECK(bp::put<P>(ep, bp::thread_scope{}, 0, q.local, 64) == BP_OK);
  armed = true;
  leader_looked = 0;
  uint32_t waited = 99;
  const wait_args args{ep, (uint64_t)&waited};
  // The leader's only look is at the start: others wait for it by the barrier of the executor.
  std::thread t([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    leader_looked = 1;
  });
  bp_host::run_threads(kernel, 1, 32, 0, args);
  t.join();
  armed = false;
  const bp_status_code first = bp::wait<P>(ep, bp::thread_scope{}, 1);
  CHECK(first == BP_OK);
  CHECK(waited != BP_TIMEOUT || q.state.error == BP_OK);  // "BP_TIMEOUT always means that the queue pair goes on"
}
