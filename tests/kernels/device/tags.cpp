// A kernel that was compiled for another path than the endpoint's: every verb refuses, and the queue pair
// stays as it is.
#include <string.h>

#include <bellpush/bellpush.cuh>

#include "check.hpp"

template <bp::data D, bp::kick K, bp::line L = bp::line::d12s4, bp::reach R = bp::reach::system,
          bp::order O = bp::order::later>
using path = bp::path<D, K, bp::share::exclusive, R, O, L>;

constexpr bp::data push = bp::data::push, pull = bp::data::pull;
using push_kernel = path<push, bp::kick::kernel>;
using push_blueflame = path<push, bp::kick::blueflame>;
using pull_kernel = path<pull, bp::kick::kernel>;
using pull_blueflame = path<pull, bp::kick::blueflame>;
using inband_12_4 = path<push, bp::kick::inband>;
using inband_14_2 = path<push, bp::kick::inband, bp::line::d14s2>;
using inband_60_4 = path<push, bp::kick::inband, bp::line::d60s4>;
using near_kernel = path<push, bp::kick::kernel, bp::line::d12s4, bp::reach::gpu>;
using strict_kernel =
    path<push, bp::kick::kernel, bp::line::d12s4, bp::reach::system, bp::order::strict>;

template <class P, class Endpoint>
constexpr bool fits = P::data_v == Endpoint::data_v && P::kick_v == Endpoint::kick_v &&
                      (!P::inband || P::line_v == Endpoint::line_v) &&
                      (P::reach_v == bp::reach::system || Endpoint::reach_v == bp::reach::gpu) &&
                      (P::order_v == bp::order::strict || Endpoint::order_v == bp::order::later);

// A thread scope to the verbs, but for lines of four units, which do not compile with bp::thread_scope.
struct caller : bp::thread_scope {};

bp_qp_state state;
uint8_t local[64];
uint32_t refused, served;

template <class P, class Endpoint>
void call() {
  bp_endpoint ep = {};
  ep.tag = Endpoint::tag_v;
  CHECK((bp::serves<P>(ep) == fits<P, Endpoint>));
  if (fits<P, Endpoint>) {
    served++;
    return;
  }
  refused++;
  // A post or a ring would change the state; a kernel that went on would have no queue to write to.
  state = {};
  state.rung = 1;
  state.reserved = state.signalled = 2;
  const bp_qp_state before = state;
  ep.qp.state = (uint64_t)&state;
  ep.qp.slot_limit = ep.qp.credit_period = ep.qp.window.slots = 1;
  ep.qp.window.slot_bytes = 4096;
  ep.local_va = (uint64_t)local;
  ep.local_bytes = ep.remote_bytes = sizeof local;
  const caller one;
  CHECK(bp::put<P>(ep, one, 0, local, 8) == BP_INVALID);
  CHECK(bp::put_inline<P>(ep, one, 0, local, 8) == BP_INVALID);
  CHECK(bp::put_value<P>(ep, one, 0, 1u) == BP_INVALID);
  CHECK(bp::put_signal<P>(ep, one, 0, local, 8, 8, bp::signal_add{1}) == BP_INVALID);
  CHECK(bp::put_signal<P>(ep, one, 0, local, 8, 8, bp::signal_set{1}) == BP_INVALID);
  CHECK(bp::put_imm<P>(ep, one, 0, local, 8, 1) == BP_INVALID);
  CHECK(bp::signal<P>(ep, one, 8, bp::signal_add{1}) == BP_INVALID);
  CHECK(bp::signal<P>(ep, one, 8, bp::signal_imm{1}) == BP_INVALID);
  CHECK(bp::signal<P>(ep, one, 8, bp::signal_set{1}) == BP_INVALID);
  const bp::message list[] = {{0, local, 8}, {8, local, 8}};
  CHECK(bp::put_vector<P>(ep, one, 2, list) == BP_INVALID);
  CHECK(bp::put_strided<P>(ep, one, 2, 0, 8, local, 8, 8) == BP_INVALID);
  CHECK(bp::put_strided<P>(ep, one, 2, 0, (uint64_t)1 << 40, local, 8, 8) == BP_INVALID);
  if constexpr (P::line_v != bp::line::d60s4) {
    CHECK(bp::put<P>(ep, bp::lanes_scope{}, 0, local, 8) == BP_INVALID);
  }
  CHECK(bp::get<P>(ep, one, local, 0, 8) == BP_INVALID);
  CHECK(bp::fetch_add<P>(ep, one, 0, 1, local) == BP_INVALID);
  CHECK(bp::compare_swap<P>(ep, one, 0, 1, 2, local) == BP_INVALID);
  CHECK(bp::wait<P>(ep, one, 1) == BP_INVALID);
  CHECK(bp::quiet<P>(ep, one) == BP_INVALID);
  CHECK(bp::test<P>(ep, one, 1) == BP_INVALID);
  CHECK(bp::wait_local<P>(ep, one, 1) == BP_INVALID);
  CHECK(bp::fence<P>(one, ep, ep) == BP_INVALID);
  CHECK(bp::posted<P>(ep) == 0 && bp::completed<P>(ep, one) == 0);
  bp::ring<P>(ep, one);
  bp::reclaim<P>(ep, 1);
  CHECK(memcmp(&state, &before, sizeof state) == 0);
}

template <class P, class... Endpoints>
void call_each() {
  (call<P, Endpoints>(), ...);
  // No tag at all: an endpoint that this library did not make.
  const bp_endpoint none = {};
  CHECK(!bp::serves<P>(none));
}

template <class... Paths>
void each_by_each() {
  (call_each<Paths, Paths...>(), ...);
}

int main() {
  each_by_each<push_kernel, push_blueflame, pull_kernel, pull_blueflame, inband_12_4, inband_14_2,
               inband_60_4, near_kernel, strict_kernel>();
  // Its own each, and the stronger fences: system for gpu, strict for later, both.
  CHECK(served == 9 + 3 && refused == 81 - served);
}
