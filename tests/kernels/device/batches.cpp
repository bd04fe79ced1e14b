// Batches that are looked at while they are written, among everything else that a caller posts on the same send queue,
// against a NIC that executes what it is told of: exactly the WQEs of calls that returned BP_OK, in order.
#include <deque>
#include <random>

#include "bed.hpp"
#include "check.hpp"

constexpr uint32_t period = 4;
bed<4, 5> q;
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
uint64_t executed, told, executed_by_buffer, wqes;
bool has_buffer;

uint32_t be(const uint8_t* p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

void execute(const uint8_t* (*unit)(uint64_t, uint32_t)) {
  const uint8_t* ctrl = unit(executed, 0);
  const uint32_t index = be(ctrl) >> 8 & 0xffff, opcode = be(ctrl) & 0xff, ds = be(ctrl + 4) & 0x3f;
  CHECK(index == (executed & 0xffff));
  CHECK(be(ctrl + 4) >> 8 == q.qpn);
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
  if ((ctrl[11] & BP_CTRL_CQ_UPDATE) != 0) q.cqe(0, executed);
  executed += (ds + 3) / 4;
}
const uint8_t* of_sq(uint64_t t, uint32_t u) { return q.sq + (t * 4 + u) % (q.blocks * 4) * 16; }
const uint8_t* of_buffer(uint64_t, uint32_t u) { return q.uar + BP_UAR_BF_OFFSET + u * 16; }
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
    if (be(ctrl + 4) >> 8 == q.qpn && (be(ctrl) >> 8 & 0xffff) == (executed & 0xffff) && ds != 0) {
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
  memcpy(&d, (uint8_t*)q.dbr + 4 * BP_DBR_SND, 4);
  look(__builtin_bswap32(d));
  uint64_t bell;
  memcpy(&bell, q.uar + BP_UAR_DOORBELL_OFFSET, 8);
  if (bell != 0) look(__builtin_bswap32((uint32_t)bell) >> 8 & 0xffff);
  uint32_t most = any(8) == 0 ? any(6) : 1000;
  while (executed < told && most-- != 0) execute(of_sq);
  CHECK(executed <= q.state.reserved);
}

template <class P>
void fuzz(uint32_t seed, uint64_t begin) {
  dice.seed(seed);
  posts.clear();
  bp_endpoint ep = q.begin<P>(begin, period);
  ep.remote_bytes = sizeof q.local;
  ep.qp.timeout_ns = 3000000000;
  executed = told = begin;
  has_buffer = P::kick_v == bp::kick::blueflame && P::order_v == bp::order::later;
  const bp::thread_scope one;
  for (uint32_t step = 0; step < 3000; step++) {
    const uint32_t flags = any(4);
    const uint64_t to = any(400) * 8, from = any(400) * 8, first = q.state.reserved;
    const uint32_t bytes = 1 + any(64);
    uint64_t end = 0;
    switch (any(9)) {
      case 0: case 1: case 2: {  // a batch
        const uint32_t n = 1 + any(any(3) == 0 ? 40 : 8), bad = any(3) == 0 ? any(n) : ~0u;
        std::vector<bp::message> list;
        for (uint32_t i = 0; i < n; i++) list.push_back({any(400) * 8ull, q.local + any(400) * 8, 1 + any(64)});
        if (bad != ~0u) list[bad].bytes = any(2) ? 0 : ~0ull;
        // Expected before it is called: those before the last batch's may be executed during the call.
        const size_t size = posts.size();
        const bool good = bad == ~0u;
        if (good) {
          for (uint32_t i = 0; i < n; i++) {
            const bool asks = (i == n - 1 && !(flags & bp::unsignalled)) || (first + i + 1) % period == 0;
            posts.push_back({first + i, BP_OP_RDMA_WRITE, ep.remote_iova + list[i].remote_offset,
                             ep.local_iova + ((uint64_t)list[i].src - (uint64_t)q.local), (uint32_t)list[i].bytes, true,
                             asks});
          }
        }
        bp_status_code s;
        const bp_qp_state before = q.state;
        if (any(2)) {
          s = bp::put_vector<P>(ep, one, n, list.data(), flags, &end);
        } else {
          s = bp::put_batch<P>(ep, one, n, [&](uint32_t i) { return list[i]; }, flags, &end);
        }
        CHECK(s == (good ? BP_OK : BP_INVALID));
        if (good) {
          CHECK(end == first + n);
        } else {
          CHECK(end == 0 && posts.size() == size && memcmp(&before, &q.state, sizeof q.state) == 0);
        }
        break;
      }
      case 3: {
        posts.push_back({first, BP_OP_RDMA_WRITE, ep.remote_iova + to, ep.local_iova + from, bytes});
        CHECK(bp::put<P>(ep, one, to, q.local + from, bytes, flags, &end) == BP_OK);
        break;
      }
      case 4: {
        const uint32_t length = 1 + any(220);
        posts.push_back({first, BP_OP_RDMA_WRITE, ep.remote_iova + to, 0, 0});
        CHECK(bp::put_inline<P>(ep, one, to, q.local + any(4), length, flags, &end) == BP_OK);
        break;
      }
      case 5: {
        posts.push_back({first, BP_OP_RDMA_WRITE, ep.remote_iova + to, ep.local_iova + from, bytes});
        posts.push_back({first + 1, BP_OP_ATOMIC_FA, ep.remote_iova + 8, 0, 0});
        CHECK(bp::put_signal<P>(ep, one, to, q.local + from, bytes, 8, bp::signal_add{1}, flags, &end) == BP_OK);
        break;
      }
      case 6: {
        posts.push_back({first, BP_OP_RDMA_READ, ep.remote_iova + to, ep.local_iova + from, bytes});
        CHECK(bp::get<P>(ep, one, q.local + from, to, bytes, flags, &end) == BP_OK);
        break;
      }
      case 7: {
        if (any(3) == 0) CHECK(bp::quiet<P>(ep, one) == BP_OK);
        if (any(2) == 0) bp::ring<P>(ep, one);
        break;
      }
      case 8: {  // refused
        CHECK(bp::put<P>(ep, one, to, q.local + from, 0, flags, &end) == BP_INVALID);
        CHECK(bp::put_inline<P>(ep, one, sizeof q.local, q.local, 1, flags, &end) == BP_INVALID);
        CHECK(bp::put_signal<P>(ep, one, to, q.local + from, bytes, 4, bp::signal_set{1}, flags, &end) == BP_INVALID);
        CHECK(q.state.reserved == first && end == 0);
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
