// Random posts, waits and a NIC that executes at random and fails one WQE, past 2^16 and 2^32. After each call: BP_OK
// for nothing but what is executed; no error and no timeout for what a CQE that is there says is complete; no block
// is written again before it is executed.
#include <deque>
#include <random>

#include "bed.hpp"
#include "check.hpp"

bed<6, 7> q;
std::mt19937_64 dice;
uint64_t any(uint64_t n) { return dice() % n; }
uint64_t executed, told;
uint64_t said;     // tickets that success CQEs which are written cover
uint64_t fail_at;  // ticket
bool failed;
uint32_t be(const uint8_t* p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }
void look(uint32_t next) {
  const uint64_t t = executed + (uint16_t)(next - (uint32_t)executed);
  if ((uint16_t)(next - (uint32_t)executed) <= q.blocks && t > told) told = t;
}
void nic() {
  look(__builtin_bswap32(q.dbr[BP_DBR_SND]) & 0xffff);
  uint64_t bell;
  memcpy(&bell, q.uar + BP_UAR_DOORBELL_OFFSET, 8);
  if (bell) look(__builtin_bswap32((uint32_t)bell) >> 8 & 0xffff);
  uint64_t most = any(3) == 0 ? any(6) : any(3) == 0 ? 1000 : 0;
  while (executed < told && most--) {
    const uint8_t* w = q.sq + executed % q.blocks * 64;
    const uint32_t ds = be(w + 4) & 63, index = be(w) >> 8 & 0xffff;
    CHECK(index == (executed & 0xffff));
    CHECK(ds >= 1 && ds <= 16);
    const uint64_t end = executed + (ds + 3) / 4;
    if (executed >= fail_at && !failed) failed = true, said = executed;
    if (failed) {
      q.cqe(BP_CQE_REQ_ERR, executed);
    } else if (w[11] & BP_CTRL_CQ_UPDATE) {
      q.cqe(0, executed);
      said = end;
    }
    executed = end;
  }
}
uint64_t n_ok, n_wrong;
void check_done(uint64_t end, bool was_said, bp_status_code s) {
  if (s == BP_OK) {
    CHECK(executed >= end && (!failed || said >= end));
    n_ok++;
  } else if (was_said) {
    n_wrong++;
  }
}
template <class P>
void round(uint32_t seed, uint64_t begin) {
  dice.seed(seed);
  bp_endpoint ep = q.begin<P>(begin, 16);
  executed = told = said = begin;
  failed = false;
  fail_at = any(2) ? begin + any(400) : ~0ull;
  const bp_endpoint now = bp::within(ep, 0);
  std::deque<uint64_t> ends;
  const bp::thread_scope me;
  for (int step = 0; step < 600; step++) {
    const uint32_t flags = (uint32_t)any(4);
    uint64_t end = 0;
    bp_status_code s = BP_INVALID;
    const uint64_t before = q.state.reserved;
    switch (any(8)) {
      case 0:
      case 1:
      case 2:
        s = bp::put_inline<P>(now, me, 0, q.local, 1 + any(220), flags, &end);
        break;
      case 3:
        s = bp::put<P>(now, me, 0, q.local, 64, flags, &end);
        break;
      case 4:
        s = bp::put_strided<P>(now, me, 1 + any(20), 0, 64, q.local, 32, 32, flags, &end);
        break;
      case 5:
        bp::ring<P>(now, me);
        break;
      case 6:
        bp::reclaim<P>(now, 1 + any(8));
        break;
      case 7: {
        const uint64_t was = said;
        const uint64_t done = bp::completed<P>(now, me);
        CHECK(done <= executed && done <= (failed ? said : executed));
        if (done < was && q.made == q.state.cq_ci) n_wrong++;
        break;
      }
    }
    if (s == BP_OK) ends.push_back(end);
    CHECK(s == BP_OK || s == BP_INVALID || q.state.reserved == before || P::data_v == bp::data::pull);
    CHECK(executed <= q.state.reserved && q.state.reserved <= executed + q.blocks);
    nic();
    while (ends.size() > 40) ends.pop_front();
    if (!ends.empty() && any(2)) {
      const uint64_t e = ends[any(ends.size())];
      const bool was = said >= e;
      if (any(2))
        check_done(e, was, bp::test<P>(now, me, e));
      else if (q.state.signalled >= e)
        check_done(e, was, bp::wait<P>(now, me, e));
    }
    if (failed && any(20) == 0) break;
  }
}
template <class P>
void all() {
  n_ok = n_wrong = 0;
  for (uint32_t seed = 0; seed < 4000; seed++) {
    const uint64_t at[] = {0, (1 << 16) - 200, (1ull << 32) - 200, any(1ull << 40)};
    round<P>(seed, at[seed % 4]);
  }
  CHECK(n_ok > 100000 && n_wrong == 0);
}

int main() {
  using namespace bp;
  all<path<data::pull, kick::kernel, share::exclusive>>();
  all<path<data::pull, kick::kernel, share::shared>>();
}
