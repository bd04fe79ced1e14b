// Posts by NVSHMEM's IBGDA on queue pairs and a device state that are filled by hand. interop/posting.sh builds it.
//
// The calls are those below nvshmem_putmem_nbi, nvshmem_p and nvshmem_putmem_signal_nbi. An application has them in the
// device library; here they are inlined, without asserts. IBGDA always writes the record before the doorbell, each
// behind a fence: of GPU scope where state.nic_buf_on_gpumem says that the queues are in this GPU's memory (ggh), else
// of system scope (hhh).
//
//   put          nvshmemi_ibgda_rma_nbi<thread, put>. 32 lanes of a warp reserve, submit and ring once for all.
//   p 8 B        nvshmemi_ibgda_rma_p<uint64_t>, inline
//   put_signal   nvshmemi_ibgda_put_signal<thread>, nbi, signal add: two WQEs, one doorbell
//   batch        ibgda_reserve_wqe_slots, ibgda_write_rdma_write_wqe 32 times, ibgda_submit_requests, which the library
//                has below its API; the keys are looked up once for all 32
//
//   rc           a reliable connection, which IBGDA takes as shared among blocks (ibgda_submit_requests<true>): the
//                default QP of a peer, of which there is one here (IBGDA_NUM_RC_PER_PE=1), or for a QP a block the
//                QP's handle
//   dc           a DCI of the block alone (IBGDA_NUM_RC_PER_PE=0, IBGDA_DCI_MAP_BY=cta): ibgda_submit_requests<false>,
//                atomics of block scope. A WQE has half an address vector more, and is one block of 64 B as well.
#include <assert.h>

#include "harness.cuh"
#include "device/nvshmem_device_macros.h"
#include "non_abi/device/pt-to-pt/ibgda_device.cuh"
using namespace posting;
// The headers declare both; the library defines them.
__constant__ nvshmemi_device_host_state_t nvshmemi_device_state_d;
__constant__ nvshmemi_ibgda_device_state_t nvshmemi_ibgda_device_state_d;

enum verb { put, value8, signal8, batch };
enum mode { rc, rc_handle, dc };
constexpr int PE = 1, NPES = 2;
constexpr uint64_t HEAP = 1 << 20, TO = 1 << 16, SIGNAL = 1 << 19;
struct n_args {
  common_args c;
  int handle, step;  // of the QP of block 0, and between those of two blocks
  uint64_t heap;     // of this PE: the same offsets are the peer's
};

#ifdef __CUDA_ARCH__
template <verb V>
__device__ __forceinline__ void call(int handle, uint32_t i, uint64_t heap) {
  const uint64_t r = heap + TO + (uint64_t)(i & 1023) * 64, l = heap + (i & 63) * 64;
  if constexpr (V == put) {
    nvshmemi_ibgda_rma_nbi<NVSHMEMI_THREADGROUP_THREAD, NVSHMEMI_OP_PUT>((void*)r, (void*)l, 64, PE, handle);
  } else if constexpr (V == value8) {
    nvshmemi_ibgda_rma_p<uint64_t>((void*)r, (uint64_t)i, PE, handle);
  } else if constexpr (V == signal8) {
    nvshmemi_ibgda_put_signal<NVSHMEMI_THREADGROUP_THREAD>((void*)r, (void*)l, 64, (void*)(heap + SIGNAL), 1,
                                                           NVSHMEMI_AMO_SIGNAL_ADD, PE, true, handle);
  } else {
    bool shared, sys;
    nvshmemi_ibgda_device_qp_t* qp = ibgda_get_qp(PE, &shared, handle);
    __be32 lkey, rkey;
    size_t lsize, rsize;
    uint64_t raddr;
    ibgda_get_lkey(heap, &lkey, &lsize, &sys, qp->dev_idx);
    ibgda_get_raddr_rkey(heap + TO, PE, PE, &raddr, &rkey, &rsize, qp->dev_idx);
    const uint64_t w = ibgda_reserve_wqe_slots(qp, 32, true);
#pragma unroll 1
    for (uint32_t k = 0; k < 32; k++) {
      void* wqe[2] = {ibgda_get_wqe_ptr(qp, w + k), nullptr};
      ibgda_write_rdma_write_wqe<true>(qp, ibgda_get_dct_id(PE, qp->dev_idx),
                                       heap + (uint64_t)((i * 32 + k) & 63) * 64, lkey,
                                       raddr + (uint64_t)((i * 32 + k) & 1023) * 64, rkey, 64, w + k,
                                       k == 31 ? MLX5_WQE_CTRL_CQ_UPDATE : 0, wqe);
    }
    ibgda_submit_requests<true>(qp, w, 32);
  }
}
#endif
template <verb V>
__global__ void __launch_bounds__(128) post(const __grid_constant__ n_args a) {
#ifdef __CUDA_ARCH__
  const int handle = a.handle + a.step * (int)blockIdx.x;
  start(a.c);
#pragma unroll 1
  for (uint32_t i = 0; i < a.c.n; i++) call<V>(handle, i, a.heap);
  stop(a.c, 0);
#endif
}

template <verb V>
void one(const char* impl, mode m, grid g, const place& p, int reps = 5) {
  static std::vector<qp_mem> qps;
  static uint64_t heap;
  const uint64_t wqes = g.per_qp() * (V == signal8 ? 2 : 1);
  const uint32_t ring = ring_for(wqes);
  if (ring > NVSHMEMI_IBGDA_MAX_QP_DEPTH) {
    printf("#ERR ring %u\n", ring);
    return;
  }
  // A QP's place in the array of RCs: the default is the peer's first, and a handle counts from there in steps of PEs.
  // Handles 0 and 1 have meanings of their own.
  const int handle = m == rc_handle ? NPES : NVSHMEMX_QP_DEFAULT, step = m == rc_handle ? NPES : 0;
  const auto slot = [&](uint32_t i) { return m == dc ? i : m == rc ? i * NPES + PE : NPES + i * NPES + PE; };
  const auto prepare = [&] {
    const uint32_t slots = slot(g.qps() - 1) + 1;
    qps = make_queues(p, g.qps(), ring);
    auto* dev = (nvshmemi_ibgda_device_qp_t*)gpu.take(sizeof(nvshmemi_ibgda_device_qp_t) * slots);
    auto* cqs = (nvshmemi_ibgda_device_cq_t*)gpu.take(sizeof(nvshmemi_ibgda_device_cq_t) * slots);
    auto* switches = (uint8_t*)gpu.take(256);
    auto* bases = (void**)gpu.take(sizeof(void*) * NPES);
    auto* done = (uint64_t*)gpu.take(8);
    char* cqe = pinned.take(64);
    char* fetched = gpu.take(64 * NVSHMEMI_IBGDA_IBUF_SLOT_SIZE);
    heap = (uint64_t)gpu.take(HEAP);
    const uint64_t all_done = 1ull << 62;  // consumer index: whoever looks for room has it, without a CQE
    put_gpu(done, &all_done, 8);
    memset(cqe, 0xff, 64);
    void* const remote[NPES] = {(void*)heap, (void*)0x10000000ull};
    put_gpu(bases, remote, sizeof remote);

    const auto type = m == dc ? NVSHMEMI_IBGDA_DEVICE_QP_TYPE_DCI : NVSHMEMI_IBGDA_DEVICE_QP_TYPE_RC;
    std::vector<nvshmemi_ibgda_device_qp_t> v(slots);
    std::vector<nvshmemi_ibgda_device_cq_t> w(slots);
    memset(v.data(), 0, sizeof v[0] * slots);
    memset(w.data(), 0, sizeof w[0] * slots);
    for (uint32_t i = 0; i < g.qps(); i++) {
      const uint32_t k = slot(i);
      auto& q = v[k];
      auto& c = w[k];
      q.version = (1 << 16) + sizeof q, q.qp_type = type, q.qpn = 0x100 + i;
      q.ibuf.nslots = 32, q.ibuf.buf = fetched, q.ibuf.lkey = swap32(0x77);
      q.tx_wq.nwqes = (uint16_t)ring, q.tx_wq.wqe = qps[i].sq;
      q.tx_wq.dbrec = (__be32*)(qps[i].dbr + 4), q.tx_wq.bf = qps[i].uar + 0x800;
      q.tx_wq.cq = cqs + k, q.tx_wq.prod_idx = &dev[k].mvars.tx_wq.prod_idx;
      q.mvars.version = (1 << 16) + sizeof q.mvars;  // lock and indices 0
      c.version = (1 << 16) + sizeof c, c.qp_type = type, c.cqe = cqe, c.ncqes = ring, c.qpn = q.qpn, c.cqn = i;
      c.prod_idx = &dev[k].mvars.tx_wq.prod_idx, c.cons_idx = done;
      c.resv_head = &dev[k].mvars.tx_wq.resv_head, c.ready_head = &dev[k].mvars.tx_wq.ready_head;
    }
    put_gpu(dev, v.data(), sizeof v[0] * slots);
    put_gpu(cqs, w.data(), sizeof w[0] * slots);

    static nvshmemi_ibgda_device_state_t s;
    memset(&s, 0, sizeof s);
    s.version = (1 << 16) + sizeof s;
    s.dci_map_type = NVSHMEMI_IBGDA_DEVICE_QP_MAP_TYPE_CTA, s.rc_map_type = NVSHMEMI_IBGDA_DEVICE_QP_MAP_TYPE_CTA;
    s.num_exclusive_dcis = m == dc ? g.qps() : 0, s.num_shared_dcis = 1;
    s.ndcts_per_pe = 2, s.num_qp_groups = 128, s.num_dct_groups = 1;
    s.num_rc_per_pe = m == dc ? 0 : 1, s.num_default_rc_per_pe = 1;
    s.num_requests_in_batch = 32;  // the default
    s.log2_cumem_granularity = 29, s.num_devices_initialized = 1;
    s.nic_buf_on_gpumem = !p.sq_host;
    s.support_half_av_seg = true, s.may_skip_cst = true, s.use_async_postsend = false;
    s.constmem.lkeys[0].key = swap32(0x55), s.constmem.lkeys[0].next_addr = heap + HEAP;  // an address
    for (int pe = 0; pe < NPES; pe++)
      s.constmem.rkeys[pe].key = swap32(0x66), s.constmem.rkeys[pe].next_addr = HEAP;  // an offset
    s.globalmem.qp_group_switches = switches, s.globalmem.cqs = cqs;
    (m == dc ? s.globalmem.dcis : s.globalmem.rcs) = dev;
    CK(cudaMemcpyToSymbol(nvshmemi_ibgda_device_state_d, &s, sizeof s));

    static nvshmemi_device_host_state_t h;
    memset(&h, 0, sizeof h);
    h.version = (1 << 16) + sizeof h;
    h.mype = 0, h.npes = NPES, h.node_mype = 0, h.node_npes = 1;
    h.heap_base = (void*)heap, h.heap_size = HEAP, h.peer_heap_base_remote = bases;
    h.symmetric_heap_kind = false, h.enable_rail_opt = false, h.ibgda_is_initialized = true;
    CK(cudaMemcpyToSymbol(nvshmemi_device_state_d, &h, sizeof h));
  };
  const auto launch = [&](const common_args& c) { post<V><<<g.blocks, g.threads>>>(n_args{c, handle, step, heap}); };
  const auto check = [&]() -> std::string { return check_queues(qps, wqes, ring); };
  bench((std::string("nvshmem ") + impl).c_str(), g, p.name, reps, prepare, launch, check);
}
int main() {
  init(128, 64);
  for (int k = 0; k < 2; k++) {
    for (const place& p : {ggh, hhh}) {
      one<put>("rc put", rc, c1(), p);
      one<put>("rc put, by handle", rc_handle, c1(), p);
      one<value8>("rc p 8 B", rc, c1(), p);
      one<signal8>("rc put_signal", rc, c1(), p);
      one<batch>("rc batch by lower calls", rc, b32t(), p);
      one<put>("rc put a lane", rc, b32w(), p);
      one<put>("rc put a lane, by handle", rc_handle, b32w132(), p);
      one<put>("rc put, by handle", rc_handle, c2(), p);
      one<put>("rc put a lane", rc, c3(), p);
      one<put>("rc put a lane, by handle", rc_handle, c4(), p);
      one<put>("rc put a lane", rc, c5(), p);
      one<put>("dc put", dc, c1(), p);
      one<put>("dc put a lane", dc, b32w(), p);
      one<put>("dc put a lane", dc, b32w132(), p);
      one<put>("dc put", dc, c2(), p);
      one<put>("dc put a lane", dc, c4(), p);
    }
  }
}
