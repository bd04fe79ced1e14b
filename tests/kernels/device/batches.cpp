// Batches that are looked at while they are written, among everything else that a caller posts on the same send queue,
// against a NIC that executes what it is told of: exactly the WQEs of calls that returned BP_OK, in order.
#include <string.h>

#include <deque>
#include <random>

#include <bellpush/bellpush.cuh>

#include "check.hpp"

constexpr uint32_t sq_log = 4, blocks = 1 << sq_log, cq_log = 5, qpn = 0x123, period = 4;
alignas(64) uint8_t sq[blocks * 64], uar[4096], local[4096];
alignas(64) bp_cqe64 cqes[1 << cq_log];
uint32_t ready[blocks], dbr[16], cq_dbr[16];
bp_qp_state state;
bp_status status;
std::mt19937 dice;
uint32_t any(uint32_t n) { return dice() % n; }

struct posted {
  uint64_t ticket;
  uint32_t opcode;
  uint64_t raddr, gather;
  uint32_t bytes;
  bool of_batch = false, asks = false;  // whether its CQE is asked for is looked at for those of batches
};
std::deque<posted> posts;
uint64_t executed, told, cqes_made, executed_by_buffer, wqes;
bool has_buffer;

uint32_t be(const uint8_t* p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

void execute(const uint8_t* (*unit)(uint64_t, uint32_t)) {
  const uint8_t* ctrl = unit(executed, 0);
  const uint32_t index = be(ctrl) >> 8 & 0xffff, opcode = be(ctrl) & 0xff, ds = be(ctrl + 4) & 0x3f;
  CHECK(index == (executed & 0xffff));
  CHECK(be(ctrl + 4) >> 8 == qpn);
  CHECK(ds >= 1 && ds <= 16);
  if (opcode != BP_OP_NOP) {
    CHECK(!posts.empty());
    const posted p = posts.front();
    posts.pop_front();
    CHECK(p.ticket == executed && p.opcode == opcode);
    CHECK(!p.of_batch || p.asks == ((ctrl[11] & BP_CTRL_CQ_UPDATE) != 0));
    const uint8_t* at = unit(executed, 1);
    CHECK(((uint64_t)be(at) << 32 | be(at + 4)) == p.raddr);
    if (p.gather != 0) {
      const uint8_t* d = unit(executed, 2);
      CHECK(be(d) == p.bytes && ((uint64_t)be(d + 8) << 32 | be(d + 12)) == p.gather && ds == 3);
    }
  }
  wqes++;
  if ((ctrl[11] & BP_CTRL_CQ_UPDATE) != 0) {
    uint8_t* cqe = (uint8_t*)&cqes[cqes_made % (1 << cq_log)];
    cqe[60] = (uint8_t)(executed >> 8);
    cqe[61] = (uint8_t)executed;
    cqe[63] = (uint8_t)(cqes_made >> cq_log & 1);
    cqes_made++;
  }
  executed += (ds + 3) / 4;
}
const uint8_t* of_sq(uint64_t t, uint32_t u) { return sq + (t * 4 + u) % (blocks * 4) * 16; }
const uint8_t* of_buffer(uint64_t, uint32_t u) { return uar + BP_UAR_BF_OFFSET + u * 16; }
void look(uint32_t next) {
  const uint64_t t = executed + (uint16_t)(next - (uint32_t)executed);
  if ((uint16_t)(next - (uint32_t)executed) < 0x8000 && t > told) told = t;
}
bool takes_buffer = true;
void nic() {
  takes_buffer = any(4) != 0;
  if (has_buffer && takes_buffer) {
    const uint8_t* ctrl = of_buffer(0, 0);
    const uint32_t ds = be(ctrl + 4) & 0x3f;
    if (be(ctrl + 4) >> 8 == qpn && (be(ctrl) >> 8 & 0xffff) == (executed & 0xffff) && ds != 0) {
      uint32_t sum = 0;
      for (uint32_t u = 0; u < (ds + 3) / 4 * 4; u++) {
        bp::u128 v;
        memcpy(&v, of_buffer(0, u), 16);
        sum += bp::check_unit(v, u);
      }
      uint32_t said;
      memcpy(&said, ctrl + 12, 4);
      if (sum == said && told <= executed) {
        executed_by_buffer++;
        execute(of_buffer);
      }
    }
  }
  uint32_t d;
  memcpy(&d, (uint8_t*)dbr + 4 * BP_DBR_SND, 4);
  look(__builtin_bswap32(d));
  uint64_t bell;
  memcpy(&bell, uar + BP_UAR_DOORBELL_OFFSET, 8);
  if (bell != 0) look(__builtin_bswap32((uint32_t)bell) >> 8 & 0xffff);
  uint32_t most = any(8) == 0 ? any(6) : 1000;
  while (executed < told && most-- != 0) execute(of_sq);
  CHECK(executed <= state.reserved);
}

template <class P>
void fuzz(uint32_t seed, uint64_t begin) {
  dice.seed(seed);
  posts.clear();
  memset(sq, 0, sizeof sq);
  memset(uar, 0, sizeof uar);
  memset(cqes, 0, sizeof cqes);
  state = {};
  status = {};
  executed = told = begin;
  cqes_made = 0;
  has_buffer = P::kick_v == bp::kick::blueflame && P::order_v == bp::order::later;
  for (bp_cqe64& c : cqes) c.op_own = 0xf1;
  for (uint32_t i = 0; i < blocks; i++) ready[(begin + i) % blocks] = (uint32_t)(begin + i) - blocks;
  state.reserved = state.done = state.rung = state.signalled = begin;
  state.ring = begin << bp::ring_shift;
  dbr[BP_DBR_SND] = __builtin_bswap32((uint32_t)begin & 0xffff);
  bp_endpoint ep = {};
  ep.tag = P::tag_v;
  ep.local_va = (uint64_t)local;
  ep.local_iova = 0x100000000;
  ep.remote_iova = 0x200000000;
  ep.local_bytes = ep.remote_bytes = sizeof local;
  ep.qp.sq = (uint64_t)sq;
  ep.qp.uar = (uint64_t)uar;
  ep.qp.cq = (uint64_t)cqes;
  ep.qp.dbr = (uint64_t)dbr;
  ep.qp.cq_dbr = (uint64_t)cq_dbr;
  ep.qp.state = (uint64_t)&state;
  ep.qp.ready = (uint64_t)ready;
  ep.qp.status = (uint64_t)&status;
  ep.qp.sq_log = sq_log;
  ep.qp.cq_log = cq_log;
  ep.qp.qpn = qpn;
  ep.qp.slot_limit = blocks;
  ep.qp.credit_period = period;
  ep.qp.timeout_ns = 3000000000;
  const bp::thread_scope one;
  for (uint32_t step = 0; step < 3000; step++) {
    const uint32_t flags = any(4);
    const uint64_t to = any(400) * 8, from = any(400) * 8, first = state.reserved;
    const uint32_t bytes = 1 + any(64);
    uint64_t end = 0;
    switch (any(9)) {
      case 0: case 1: case 2: {  // a batch
        const uint32_t n = 1 + any(any(3) == 0 ? 40 : 8), bad = any(3) == 0 ? any(n) : ~0u;
        std::vector<bp::message> list;
        for (uint32_t i = 0; i < n; i++) list.push_back({any(400) * 8ull, local + any(400) * 8, 1 + any(64)});
        if (bad != ~0u) list[bad].bytes = any(2) ? 0 : ~0ull;
        // Expected before it is called: those before the last batch's may be executed during the call.
        const size_t size = posts.size();
        const bool good = bad == ~0u;
        if (good) {
          for (uint32_t i = 0; i < n; i++) {
            const bool asks = (i == n - 1 && !(flags & bp::unsignalled)) || (first + i + 1) % period == 0;
            posts.push_back({first + i, BP_OP_RDMA_WRITE, ep.remote_iova + list[i].remote_offset,
                             ep.local_iova + ((uint64_t)list[i].src - (uint64_t)local), (uint32_t)list[i].bytes, true,
                             asks});
          }
        }
        bp_status_code s;
        const bp_qp_state before = state;
        if (any(2)) {
          s = bp::put_vector<P>(ep, one, n, list.data(), flags, &end);
        } else {
          s = bp::put_batch<P>(ep, one, n, [&](uint32_t i) { return list[i]; }, flags, &end);
        }
        CHECK(s == (good ? BP_OK : BP_INVALID));
        if (good) {
          CHECK(end == first + n);
        } else {
          CHECK(end == 0 && posts.size() == size && memcmp(&before, &state, sizeof state) == 0);
        }
        break;
      }
      case 3: {
        posts.push_back({first, BP_OP_RDMA_WRITE, ep.remote_iova + to, ep.local_iova + from, bytes});
        CHECK(bp::put<P>(ep, one, to, local + from, bytes, flags, &end) == BP_OK);
        break;
      }
      case 4: {
        const uint32_t length = 1 + any(220);
        posts.push_back({first, BP_OP_RDMA_WRITE, ep.remote_iova + to, 0, 0});
        CHECK(bp::put_inline<P>(ep, one, to, local + any(4), length, flags, &end) == BP_OK);
        break;
      }
      case 5: {
        posts.push_back({first, BP_OP_RDMA_WRITE, ep.remote_iova + to, ep.local_iova + from, bytes});
        posts.push_back({first + 1, BP_OP_ATOMIC_FA, ep.remote_iova + 8, 0, 0});
        CHECK(bp::put_signal<P>(ep, one, to, local + from, bytes, 8, bp::signal_add{1}, flags, &end) == BP_OK);
        break;
      }
      case 6: {
        posts.push_back({first, BP_OP_RDMA_READ, ep.remote_iova + to, ep.local_iova + from, bytes});
        CHECK(bp::get<P>(ep, one, local + from, to, bytes, flags, &end) == BP_OK);
        break;
      }
      case 7: {
        if (any(3) == 0) CHECK(bp::quiet<P>(ep, one) == BP_OK);
        if (any(2) == 0) bp::ring<P>(ep, one);
        break;
      }
      case 8: {  // refused
        CHECK(bp::put<P>(ep, one, to, local + from, 0, flags, &end) == BP_INVALID);
        CHECK(bp::put_inline<P>(ep, one, sizeof local, local, 1, flags, &end) == BP_INVALID);
        CHECK(bp::put_signal<P>(ep, one, to, local + from, bytes, 4, bp::signal_set{1}, flags, &end) == BP_INVALID);
        CHECK(state.reserved == first && end == 0);
        break;
      }
    }
    if (any(2)) nic();
  }
  takes_buffer = true;
  CHECK(bp::quiet<P>(ep, one) == BP_OK);
  CHECK(posts.empty());
}

template <class P>
void path() {
  wqes = executed_by_buffer = 0;
  for (uint32_t seed = 0; seed < 200; seed++) {
    fuzz<P>(seed, seed % 4 == 0 ? 0 : seed % 4 == 1 ? 65500 + seed : seed % 4 == 2 ? (1ull << 32) - 200 : 8190);
  }
  CHECK(wqes > 1000000);
  CHECK((executed_by_buffer > 1000) == (P::kick_v == bp::kick::blueflame && P::order_v == bp::order::later));
}

int main() {
  bp_host_current()->grid->hooks.yield = [](void*) { nic(); };
  constexpr bp::share own = bp::share::exclusive;
  path<bp::path<bp::data::pull, bp::kick::kernel, own, bp::reach::gpu>>();
  path<bp::path<bp::data::pull, bp::kick::kernel, own, bp::reach::system>>();
  path<bp::path<bp::data::pull, bp::kick::kernel, bp::share::shared>>();
  path<bp::path<bp::data::pull, bp::kick::blueflame>>();
  path<bp::path<bp::data::pull, bp::kick::blueflame, own, bp::reach::system, bp::order::strict>>();
}
