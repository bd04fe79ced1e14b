// Payload that the engine's blocks share: every piece of a job is taken once.
#include <string.h>

#include <vector>

#include <bellpush/impl/order.cuh>
#include "check.hpp"

namespace bp {

// What comes between a helper's accesses: after its look at a job, number 0, and before each load behind
// that.
void (*at_load[8])();
uint32_t loads;
void let_others_come() {
  void (*then)() = at_load[loads];
  at_load[loads] = nullptr;
  if (then != nullptr) then();
}
template <class T>
T seen_load(const T* p) {
  if (loads >= 8) return ld_relaxed_gpu(p);
  if (loads != 0) let_others_come();
  const T v = ld_relaxed_gpu(p);
  if (loads == 0) let_others_come();
  loads++;
  return v;
}

}  // namespace bp

#define ld_relaxed_gpu seen_load
#include "engine/move.cuh"

using namespace bp::engine;

alignas(128) uint64_t control[(BP_ENGINE_CONTROL_BLOCK_BYTES + sizeof(bp_engine_job)) / 8];
bp_engine_args args = {};
constexpr uint64_t first_bytes = 5 * piece_bytes, second_bytes = 9 * piece_bytes - 7;
constexpr uint64_t first_to = 1ull << 40, second_to = 1ull << 41;
std::vector<uint64_t> taken;  // of the second job

bp_engine_job* job() { return job_of(args, 0); }

bp_engine_run run_of_job = {};
bool take() {
  if (!has_pieces(job())) return false;
  const piece p = take_piece(job(), &run_of_job);
  if (p.bytes == 0) return false;
  end_piece(job());
  if (p.to >= second_to) taken.push_back((p.to - second_to) / piece_bytes);
  return true;
}

void take_all() {
  const uint32_t loads = bp::loads;
  bp::loads = 8;  // not the helper's
  while (take()) continue;
  bp::loads = loads;
}
void open_second() {
  CHECK(job()->done == first_bytes / piece_bytes);  // what its owner waits for
  const uint32_t loads = bp::loads;
  bp::loads = 8;
  CHECK(open_job(args, job(), second_to, 1, second_bytes).to == second_to);
  end_piece(job());  // the first one, its owner's
  taken.push_back(0);
  bp::loads = loads;
}

// A helper sees the first job's last piece. Before it draws, another takes that; at load number `i` the
// owner opens the second job.
void all_pieces_once(uint32_t i) {
  taken.clear();
  bp::loads = 8;
  open_job(args, job(), first_to, 1, first_bytes);
  end_piece(job());
  for (int k = 0; k < 3; k++) CHECK(take());
  static uint32_t opens_at;
  opens_at = i;
  bp::at_load[0] = [] {
    take_all();
    if (opens_at == 0) open_second();
  };
  if (i != 0) bp::at_load[i] = open_second;
  bp::loads = 0;
  take();
  bp::loads = 8;
  // It may have looked less often.
  if (i != 0 && bp::at_load[i] != nullptr) open_second();
  bp::at_load[i] = nullptr;
  while (take()) continue;
  std::vector<bool> seen(9);
  for (const uint64_t n : taken) {
    CHECK(n < seen.size() && !seen[n]);
    seen[n] = true;
  }
  CHECK(taken.size() == seen.size());
  CHECK(job()->done == seen.size());
}

// A run of 13 slots, four a piece, and after it a job of memory again.
void pieces_of_slots() {
  const auto check = [](const piece& p, uint32_t first) {
    const uint32_t slots = first == 12 ? 1 : 4;
    CHECK(p.from == first && p.slots == slots && p.bytes == slots * 100 && p.to == first_to + first * 100);
    end_piece(job());
  };
  bp_engine_run run = {}, seen = {};
  run.line = BP_LINE_12_4;
  run.count = 13;
  run.bytes = 100;
  run.piece = 4;
  job()->missing = 5;  // the run's before this
  check(open_job(args, job(), first_to, run), 0);
  CHECK(job()->missing == 0);
  for (uint32_t first = 4; first < 13; first += 4) check(take_piece(job(), &seen), first);
  CHECK(memcmp(&seen, &run, sizeof run) == 0);
  CHECK(!take() && job()->done == pieces_of(run));
  CHECK(open_job(args, job(), first_to, 1, first_bytes).slots == 0);
  CHECK(take_piece(job(), &seen).slots == 0);
}

int main() {
  args.control = (uint64_t)control;
  for (uint32_t i = 0; i < 6; i++) all_pieces_once(i);
  pieces_of_slots();
}
