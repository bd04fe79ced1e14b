// A look at several CQEs takes what looks at one after the other would: those that are there without a gap, up to the
// target and to the first error.
#include <random>

#include <bellpush/bellpush.cuh>
#include "check.hpp"

using P = bp::path<bp::data::push, bp::kick::kernel, bp::share::exclusive>;

constexpr uint32_t sq_log = 6;
alignas(64) bp_cqe64 cqes[64];
uint32_t ready[1 << sq_log];
bp_qp qp;

void write_cqe(uint64_t ci, uint32_t opcode, uint64_t ticket) {
  uint8_t* cqe = reinterpret_cast<uint8_t*>(&cqes[ci & ((1u << qp.cq_log) - 1)]);
  cqe[60] = (uint8_t)(ticket >> 8);
  cqe[61] = (uint8_t)ticket;
  cqe[63] = (uint8_t)(opcode << 4 | (ci >> qp.cq_log & 1));
}

int main() {
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t n) { return random() % n; };
  uint32_t taken[bp::looks + 1] = {}, errors = 0, ends = 0;
  qp.cq = (uint64_t)cqes;
  qp.ready = (uint64_t)ready;
  qp.sq_log = sq_log;
  for (int round = 0; round < 200000; round++) {
    qp.cq_log = 1 + (uint32_t)below(6);
    const uint32_t entries = 1u << qp.cq_log;
    const uint64_t ci = below(1000), done = below(1 << 20);
    // What the lap before has left, and the first lap.
    for (uint64_t k = 0; k < entries; k++) {
      if (ci + k < entries) {
        cqes[ci + k].op_own = BP_CQE_INVALID << 4;
      } else {
        write_cqe(ci + k - entries, 0, below(1 << 16));
      }
    }
    const uint64_t there = below((entries < 8 ? entries : 8) + 1);  // a ring holds their WQEs
    const uint64_t bad = below(4) == 0 ? below(there + 1) : there;
    uint64_t starts[64], ticket = done;
    for (uint64_t k = 0; k < there; k++) {
      starts[k] = ticket + below(3);
      // A WQE of one to four blocks, of which the ready word of its first tells.
      const uint64_t blocks = 1 + below(4);
      // So does each of its other blocks.
      for (uint64_t b = 0; b < blocks; b++) ready[(starts[k] + b) & ((1u << sq_log) - 1)] = (uint32_t)(starts[k] + blocks);
      // Blocks between were of WQEs of one block that asked for no CQE.
      for (uint64_t b = ticket; b < starts[k]; b++) ready[b & ((1u << sq_log) - 1)] = (uint32_t)b + 1;
      write_cqe(ci + k, k == bad ? (uint32_t)BP_CQE_REQ_ERR : 0u, starts[k]);
      ticket = starts[k] + blocks;
    }
    const uint64_t target = done + 1 + below(12);
    const bool several = target - done > bp::single_cqe_tickets;

    uint64_t n = 0, reached = done;
    bool error = false;
    while (n < (several ? bp::looks : 1) && n < there && reached < target && !error) {
      error = n == bad;
      if (!error) reached = starts[n] + 1;
      n++;
    }
    if (error) {
      // What is before the WQE that failed is complete, of whose CQE the cursor does not go past.
      reached = starts[--n];
    } else if (n != 0) {
      // The end of the last WQE that was taken, whose first block is all that its CQE names.
      const uint64_t start = starts[n - 1];
      reached = start + (ready[start & ((1u << sq_log) - 1)] - (uint32_t)start);
    }

    // Of an exclusive queue pair the words of WQEs that begin at `marked` or behind are not looked at.
    bp::cq_cursor c = {ci, ci, done, ~0ull};
    const bp::found f = bp::take_cqes<P>(qp, &c, target);
    CHECK(c.ci == ci + n);
    if (!error && n != 0) {
      bp::cq_cursor single = {ci, ci, done, starts[n - 1]};
      bp::take_cqes<P>(qp, &single, target);
      CHECK(single.ci == c.ci && single.done == starts[n - 1] + 1);
    }
    CHECK(f == (error ? bp::found::error : n == 0 ? bp::found::nothing : bp::found::cqe));
    CHECK(c.done == reached);
    taken[n]++;
    errors += error;
    ends += reached >= target;
  }
  for (uint32_t n : taken) CHECK(n > 1000);
  CHECK(errors > 1000 && ends > 1000);
}
