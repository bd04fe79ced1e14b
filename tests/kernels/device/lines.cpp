// In-band slots: what is stored together, and in which order.
#include <string.h>

#include <atomic>
#include <set>
#include <vector>

#include <bellpush/impl/order.cuh>
#include "check.hpp"
#include "host/threads.hpp"

namespace bp {

void (*at_store)(u128* p, const u128& v);
void (*at_fence)();
void seen_line(u128* p, u128 v) {
  at_store(p, v);
  st_line(p, v);
}
void seen_fence() { at_fence(); }

}  // namespace bp

#define st_line seen_line
#define fence_sys seen_fence
#include <bellpush/bellpush.cuh>

constexpr uint32_t slot_bytes = 4096;
alignas(64) uint8_t window[slot_bytes];
uint8_t payload[3000];
bp_qp_state state;

bp_endpoint endpoint(uint64_t seq0, uint32_t tag) {
  state = {};
  memset(window, 0, sizeof window);
  for (uint32_t i = 0; i < sizeof payload; i++) payload[i] = (uint8_t)(i * 7 + 1);
  bp_endpoint ep = {};
  ep.tag = tag;
  ep.remote_bytes = 1 << 20;
  ep.qp.state = (uint64_t)&state;
  ep.qp.window.va = (uint64_t)window;
  ep.qp.window.slots = 1;
  ep.qp.window.slot_bytes = slot_bytes;
  ep.qp.window.inband_seq0 = seq0;
  ep.qp.slot_limit = 1;
  ep.qp.sq_log = 6;
  ep.qp.credit_period = 1;
  ep.qp.timeout_ns = 1000000000;
  return ep;
}

// All of a slot's first lines are whole: their data.
template <bp::line L>
void whole_up_to(uint32_t bytes) {
  using F = bp::line_format<L>;
  std::vector<uint8_t> stream;
  for (uint32_t at = 0; at < slot_bytes; at += F::bytes) {
    stream.insert(stream.end(), window + at, window + at + F::data);
  }
  CHECK(memcmp(&stream[bp::inband_header_bytes], payload, bytes) == 0);
}

struct put_args {
  bp_endpoint ep;
  uint32_t bytes;
  uint64_t status;  // bp_status_code
};
template <class P>
size_t put_by_block(const void* a) noexcept {
  if (a != nullptr) {
    const put_args& args = *(const put_args*)a;
    *(uint32_t*)args.status = bp::put<P>(args.ep, bp::block_scope{}, 0, payload, args.bytes);
  }
  return sizeof(put_args);
}

template <bp::line L, bp::share S>
using path = bp::path<bp::data::push, bp::kick::inband, S, bp::reach::system, bp::order::later, L>;
using wide = path<bp::line::d60s4, bp::share::exclusive>;

// Blocks of any number of threads, one of whose warps is late: whoever looks at a line's sequence finds the
// line's other units there.
uint32_t late_warp;
std::atomic<uint32_t> stored[slot_bytes / 16], torn;

void late_store(bp::u128* p, const bp::u128&) {
  static thread_local bool has_waited = false;
  const uint64_t since = bp::now_ns();
  while (!has_waited && bp::tid() / 32 == late_warp && bp::now_ns() - since < 5000000) bp::yield_();
  has_waited = true;
  const uint32_t i = (uint32_t)(p - (bp::u128*)window);
  for (uint32_t k = 1; i % 4 == 3 && k < 4; k++) torn += stored[i - k] == 0;
  stored[i]++;
}

void lines_are_stored_whole(uint32_t threads, uint32_t bytes) {
  bp::at_fence = [] {};
  bp::at_store = late_store;
  for (late_warp = 0; late_warp < (threads + 31) / 32; late_warp++) {
    uint32_t status = 99;
    const put_args args{endpoint(1, wide::tag_v), bytes, (uint64_t)&status};
    for (auto& s : stored) s = 0;
    torn = 0;
    bp_host::run_threads(put_by_block<wide>, 1, threads, 0, args);
    if (threads < 4) {
      CHECK(status == BP_INVALID && state.reserved == 0);
      continue;
    }
    CHECK(status == BP_OK);
    CHECK(torn == 0);
    for (const auto& s : stored) CHECK(s == 1);  // all of the slot, in a scrub lap
    whole_up_to<bp::line::d60s4>(bytes);
  }
}

// A scrub lap: a fence lies between the lines that the NIC does not wait for and those
// that it does.
template <bp::line L, bp::share S>
void trailing_lines_come_first(uint64_t bytes) {
  static std::vector<const uint8_t*> unfenced;
  static std::set<const uint8_t*> seen;
  static uint32_t used;
  using F = bp::line_format<L>;
  const bp_endpoint ep = endpoint(1, path<L, S>::tag_v);
  unfenced.clear();
  seen.clear();
  used = (uint32_t)(bp::inband_header_bytes + bytes + F::data - 1) / F::data * F::bytes;
  bp::at_fence = [] { unfenced.clear(); };
  bp::at_store = [](bp::u128* p, const bp::u128&) {
    const uint8_t* at = (const uint8_t*)p;
    if (at < window + used) {
      for (const uint8_t* other : unfenced) CHECK(other < window + used);
    }
    unfenced.push_back(at);
    seen.insert(at);
  };
  CHECK((bp::put<path<L, S>>(ep, bp::thread_scope{}, 0, payload, bytes)) == BP_OK);
  CHECK(seen.size() == slot_bytes / 16);  // all of the slot was written
  whole_up_to<L>((uint32_t)bytes);
}

// The same, of a batch's message that four lanes store, one of which is late.
uint32_t late_lane;

template <class P>
size_t batch_by_warp(const void* a) noexcept {
  if (a != nullptr) {
    const put_args& args = *(const put_args*)a;
    const auto list = [&](uint32_t) { return bp::message{0, payload, args.bytes}; };
    *(uint32_t*)args.status = bp::put_batch<P>(args.ep, bp::warp_scope{}, 1, list);
  }
  return sizeof(put_args);
}

template <bp::line L, bp::share S>
void trailing_lines_of_all_lanes_come_first(uint32_t threads) {
  using F = bp::line_format<L>;
  using batched = path<L, S>;
  static constexpr uint32_t bytes = 1000;
  static constexpr uint32_t used = (bp::inband_header_bytes + bytes + F::data - 1) / F::data;
  bp::at_fence = [] {};
  bp::at_store = [](bp::u128* p, const bp::u128&) {
    static thread_local bool has_waited = false;
    const uint64_t since = bp::now_ns();
    while (!has_waited && bp::lane() == late_lane && bp::now_ns() - since < 5000000) bp::yield_();
    has_waited = true;
    const uint32_t i = (uint32_t)(p - (bp::u128*)window);
    for (uint32_t k = used; i < used && k < slot_bytes / 16; k++) torn += stored[k] == 0;
    stored[i]++;
  };
  for (late_lane = 0; late_lane < 4 && late_lane < threads; late_lane++) {
    uint32_t status = 99;
    const put_args args{endpoint(1, batched::tag_v), bytes, (uint64_t)&status};
    for (auto& s : stored) s = 0;
    torn = 0;
    bp_host::run_threads(batch_by_warp<batched>, 1, threads, 0, args);
    CHECK(status == BP_OK);
    CHECK(torn == 0);
    for (const auto& s : stored) CHECK(s == 1);
    whole_up_to<L>(bytes);
  }
}

// Laps of two cycles, of which the messages with sequence 1 and 2 are long or short: no line has kept a lap's sequence.
struct laps_args {
  bp_qp qp;
  uint32_t fills;  // bit i: laps[i] has a long message; the last lap has one always
};

template <bp::line L, class Write>
void write_laps(const laps_args& args, Write write) {
  using F = bp::line_format<L>;
  const uint64_t laps[] = {0, 1, F::seq_max, F::seq_max + 1ull};
  for (uint32_t i = 0; i < sizeof laps / sizeof *laps; i++) {
    const uint32_t bytes = (args.fills | 8) >> i & 1 ? 2800 : 8, seq = bp::inband_sequence<L>(args.qp.window, laps[i]);
    for (uint32_t end = F::bytes; bp::lane() == 0 && end <= slot_bytes; end += F::bytes) {
      uint32_t kept = 0;
      memcpy(&kept, window + end - (F::bytes - F::data), F::bytes - F::data);
      CHECK(kept != seq);
    }
    bp::syncwarp();
    bp::wqe w = bp::make_wqe(BP_OP_RDMA_WRITE, 3, 0, 0);
    w.gather = (uint64_t)payload;
    w.bytes = bytes;
    write(w, laps[i]);
    bp::syncwarp();
    if (bp::lane() == 0) whole_up_to<L>(bytes);
  }
}

template <bp::line L, class Scope>
size_t laps_by(const void* a) noexcept {
  if (a != nullptr) {
    const laps_args& args = *(const laps_args*)a;
    write_laps<L>(args, [&](const bp::wqe& w, uint64_t ticket) {
      bp::write_slot<L, true>(args.qp, Scope{}, w, ticket, bp::early_payload<L>(Scope{}, w.gather, w.bytes));
    });
  }
  return sizeof(laps_args);
}
template <bp::line L>
size_t laps_by_pipeline(const void* a) noexcept {
  if (a != nullptr) {
    const laps_args& args = *(const laps_args*)a;
    write_laps<L>(args, [&](const bp::wqe& w, uint64_t ticket) {
      bp::u128 ahead[bp::detail::units_ahead];
      for (uint32_t k = 0; k < bp::detail::units_ahead; k++) {
        ahead[k] = bp::unit_payload<L, true>(w.gather, w.bytes, k * 32 + bp::lane());
      }
      bp::detail::write_ahead<L>(args.qp, w, ticket, ahead);
    });
  }
  return sizeof(laps_args);
}

void no_line_keeps_a_sequence(size_t (*kernel)(const void*) noexcept, uint32_t threads) {
  bp::at_fence = [] {};
  bp::at_store = [](bp::u128*, const bp::u128&) {};
  for (uint32_t fills = 0; fills < 8; fills++) {
    bp_host::run_threads(kernel, 1, threads, 0, laps_args{endpoint(1, 0).qp, fills});
  }
}

int main() {
  no_line_keeps_a_sequence(laps_by<bp::line::d12s4, bp::thread_scope>, 1);
  no_line_keeps_a_sequence(laps_by<bp::line::d14s2, bp::thread_scope>, 1);
  no_line_keeps_a_sequence(laps_by<bp::line::d12s4, bp::warp_scope>, 32);
  no_line_keeps_a_sequence(laps_by<bp::line::d60s4, bp::warp_scope>, 32);
  no_line_keeps_a_sequence(laps_by_pipeline<bp::line::d12s4>, 32);
  no_line_keeps_a_sequence(laps_by_pipeline<bp::line::d14s2>, 32);
  no_line_keeps_a_sequence(laps_by_pipeline<bp::line::d60s4>, 32);
  for (const uint32_t threads : {50u, 71u, 64u, 35u, 32u, 6u, 4u, 3u}) {
    lines_are_stored_whole(threads, 2800);
    lines_are_stored_whole(threads, 8);
  }
  trailing_lines_come_first<bp::line::d12s4, bp::share::shared>(8);
  trailing_lines_come_first<bp::line::d12s4, bp::share::shared>(1001);
  trailing_lines_come_first<bp::line::d14s2, bp::share::shared>(100);
  trailing_lines_come_first<bp::line::d12s4, bp::share::exclusive>(8);
  trailing_lines_come_first<bp::line::d12s4, bp::share::exclusive>(1001);
  trailing_lines_come_first<bp::line::d14s2, bp::share::exclusive>(100);
  for (const uint32_t threads : {32u, 7u, 3u}) {
    trailing_lines_of_all_lanes_come_first<bp::line::d12s4, bp::share::exclusive>(threads);
    trailing_lines_of_all_lanes_come_first<bp::line::d14s2, bp::share::shared>(threads);
  }
}
