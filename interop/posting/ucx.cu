// Posts by UCX's device API (rc_gda, src/uct/ib/mlx5/gdaki) on an endpoint that is filled by hand. interop/posting.sh
// builds it.
//
// A QP is a channel of one endpoint, whose counters, record, CQE and WQEs lie in this GPU's memory; all of it is for
// many callers. UCX rings before and behind its record, each doorbell behind a fence of GPU scope, so that only ggh is
// right. It has no call for many WQEs. The kernels have the code of UCX's other transports too and choose by the
// endpoint's kind, as an application's have.
//
//   put              ucp_device_put<thread>, UCP_DEVICE_FLAG_NODELAY: a doorbell a put
//   put, ring by 128 the same without the flag: the caller whose index passes a multiple of 128 rings for all, so that
//                    the last WQEs may stay without a doorbell
//   uct put          uct_device_ep_put<thread>, NODELAY: what ucp_device_put calls, without its lists of memory
//   put + inc        ucp_device_put and ucp_device_counter_inc<thread>, a fetch and add: both with NODELAY, or
//                    (one ring) only the second
#include "harness.cuh"
#include <ucp/api/device/ucp_device_impl.h>
using namespace posting;
enum verb { put, put_by_128, put_uct, put_inc, put_inc_once };
constexpr uint64_t NODELAY = UCP_DEVICE_FLAG_NODELAY;
constexpr auto THREAD = UCS_DEVICE_LEVEL_THREAD;
struct u_args {
  common_args c;
  ucp_device_local_mem_list_t* from;
  ucp_device_remote_mem_list_t* to;
};

template <verb V>
__device__ __forceinline__ bool call(const u_args& a, unsigned channel, uint32_t i) {
  const size_t l = (i & 63) * 64, r = (size_t)(i & 1023) * 64;
  if constexpr (V == put_uct) {
    const auto& from = a.from->mem_elements[0];
    const auto& to = a.to->mem_elements[0];
    return uct_device_ep_put<THREAD>(to.tl[0].ep, &from.tl[0], &to.tl[0].uct, (const char*)from.addr + l, to.addr + r,
                                     64, channel, NODELAY, nullptr) == UCS_INPROGRESS;
  } else {
    constexpr uint64_t flags = V == put || V == put_inc ? NODELAY : 0;
    bool ok = ucp_device_put<THREAD>(a.from, 0, l, a.to, 0, r, 64, channel, flags, nullptr) == UCS_INPROGRESS;
    if constexpr (V == put_inc || V == put_inc_once)
      ok &= ucp_device_counter_inc<THREAD>(1, a.to, 0, 1 << 20, channel, NODELAY, nullptr) == UCS_INPROGRESS;
    return ok;
  }
}
template <verb V>
__global__ void __launch_bounds__(128) post(const __grid_constant__ u_args a) {
  const unsigned channel = qp_of(a.c);
  uint32_t bad = 0;
  start(a.c);
#pragma unroll 1
  for (uint32_t i = 0; i < a.c.n; i++) bad |= !call<V>(a, channel, i);
  stop(a.c, bad);
}

template <verb V>
void one(const char* impl, grid g, int reps = 5) {
  static std::vector<qp_mem> qps;
  static u_args args;
  const uint64_t wqes = g.per_qp() * (V == put_inc || V == put_inc_once ? 2 : 1);
  const uint32_t ring = ring_for(wqes);
  if (ring > 32768) {  // sq_wqe_num has 16 bits
    printf("#ERR ring %u\n", ring);
    return;
  }
  const auto prepare = [&] {
    uint32_t channels = 1;
    while (channels < g.qps()) channels *= 2;
    qps = make_queues(ggh, g.qps(), ring);  // one behind the other, as the channels' WQEs are
    std::vector<char> e(sizeof(uct_rc_gdaki_dev_ep_t) + sizeof(uct_rc_gdaki_dev_qp_t) * channels);
    auto* dev = (uct_rc_gdaki_dev_ep_t*)gpu.take(e.size());
    auto* ep = (uct_rc_gdaki_dev_ep_t*)e.data();
    ep->super.uct_tl_id = UCT_DEVICE_TL_RC_MLX5_GDA;
    ep->atomic_va = gpu.take(64), ep->atomic_lkey = swap32(0x77);
    ep->sq_wqe_daddr = (uint8_t*)qps[0].sq;
    ep->sq_wqe_num = (uint16_t)ring, ep->sq_fc_mask = (uint16_t)(ring / 2 - 1);
    ep->channel_mask = (uint8_t)(channels - 1);
    for (uint32_t i = 0; i < g.qps(); i++) {
      auto& q = ep->qps[i];  // record and indices 0
      memset(q.cq_buff, 0xff, sizeof q.cq_buff);  // as UCX does: the CQE's index is that before 0
      q.sq_num = 0x100 + i, q.qpn_ds = swap32((0x100 + i) << 8);
      q.sq_db = (uint64_t*)(qps[i].uar + 0x800);
      qps[i].dbr = (char*)dev->qps[i].qp_dbrec;
    }
    put_gpu(dev, e.data(), e.size());

    alignas(8) char from[64] = {}, to[64] = {};
    args.from = (ucp_device_local_mem_list_t*)gpu.take(sizeof from);
    args.to = (ucp_device_remote_mem_list_t*)gpu.take(sizeof to);
    auto* f = (ucp_device_local_mem_list_t*)from;
    f->version = UCP_DEVICE_MEM_LIST_VERSION_V1, f->num_lanes = 1, f->length = 1;
    f->mem_elements[0].addr = gpu.take(1 << 16);
    f->mem_elements[0].tl[0].ib_md_mem_element = {swap32(0x55), swap32(0x55)};
    auto* t = (ucp_device_remote_mem_list_t*)to;
    t->version = UCP_DEVICE_MEM_LIST_VERSION_V1, t->num_lanes = 1, t->length = 1;
    t->mem_elements[0].addr = 0x10000000;
    t->mem_elements[0].tl[0].ep = &dev->super;
    t->mem_elements[0].tl[0].uct.ib_md_mem_element = {swap32(0x66), swap32(0x66)};
    put_gpu(args.from, from, sizeof from);
    put_gpu(args.to, to, sizeof to);
  };
  const auto launch = [&](const common_args& c) {
    args.c = c;
    post<V><<<g.blocks, g.threads>>>(args);
  };
  const auto check = [&]() -> std::string {
    expect x;
    if (V == put_by_128) x.rung = wqes / 128 * 128;
    return check_queues(qps, wqes, ring, x);
  };
  bench((std::string("ucx ") + impl).c_str(), g, "ggh", reps, prepare, launch, check);
}
int main() {
  init(128, 64);
  for (int k = 0; k < 2; k++) {
    one<put>("put", c1());
    one<put_by_128>("put, ring by 128", c1());
    one<put_uct>("uct put", c1());
    one<put_inc>("put + inc", c1());
    one<put_inc_once>("put + inc, one ring", c1());
    one<put>("put", c2());
    one<put_by_128>("put, ring by 128", c2());
    one<put>("put", c3());
    one<put_by_128>("put, ring by 128", c3());
    one<put>("put", c4());
    one<put_by_128>("put, ring by 128", c4());
    one<put>("put", c5());
    one<put_by_128>("put, ring by 128", c5());
  }
}
