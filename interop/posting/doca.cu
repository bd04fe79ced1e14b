// Posts by DOCA GPUNetIO's device headers on queue pairs that are filled by hand. interop/posting.sh builds it.
#include "harness.cuh"
#include "doca_gpunetio_device.h"
using namespace posting;
typedef doca_gpu_dev_verbs_qp qp_t;
enum verb { put1, put_sys, inline8, signal8, batch_thread, batch_warp };
constexpr auto X = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE;
constexpr auto C = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_CTA;
constexpr auto G = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU;
constexpr auto DB = DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB;
constexpr auto ND = DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_NO_DBR;
struct d_args {
  common_args c;
  qp_t* qps;
  uint64_t src;
};

template <doca_gpu_dev_verbs_resource_sharing_mode S, doca_gpu_dev_verbs_nic_handler N, verb V>
__device__ __forceinline__ void call(qp_t* qp, uint32_t i, uint64_t src) {
  doca_gpu_dev_verbs_addr r{0x10000000 + (V == batch_thread ? 0 : (uint64_t)(i & 1023) * 64), 0x66000000},
      l{src + (i & 63) * 64, 0x55000000};
  doca_gpu_dev_verbs_addr sr{0x20000000, 0x66000000}, sl{src, 0x77000000};
  if constexpr (V == put1) {
    doca_gpu_dev_verbs_put<S, N>(qp, r, l, 64);
  } else if constexpr (V == put_sys) {
    uint64_t w = doca_gpu_dev_verbs_reserve_wq_slots<S>(qp, 1);
    auto* p = doca_gpu_dev_verbs_get_wqe_ptr(qp, w);
    doca_gpu_dev_verbs_wqe_prepare_write(qp, p, w, DOCA_GPUNETIO_IB_MLX5_OPCODE_RDMA_WRITE,
                                         DOCA_GPUNETIO_IB_MLX5_WQE_CTRL_CQ_UPDATE, 0, r.addr, r.key, l.addr, l.key,
                                         64);
    doca_gpu_dev_verbs_mark_wqes_ready<S>(qp, w, w);
    doca_gpu_dev_verbs_submit<S, DOCA_GPUNETIO_VERBS_SYNC_SCOPE_SYS, N>(qp, w + 1);
  } else if constexpr (V == inline8) {
    doca_gpu_dev_verbs_p<uint64_t, S, N>(qp, r, (uint64_t)i);
  } else if constexpr (V == signal8) {
    doca_gpu_dev_verbs_put_signal<DOCA_GPUNETIO_VERBS_SIGNAL_OP_ADD, S, N>(qp, r, l, 64, sr, sl, 1);
  } else if constexpr (V == batch_thread) {
    uint64_t w = doca_gpu_dev_verbs_reserve_wq_slots<S>(qp, 32);
#pragma unroll 1
    for (uint32_t k = 0; k < 32; k++) {
      auto* p = doca_gpu_dev_verbs_get_wqe_ptr(qp, w + k);
      doca_gpu_dev_verbs_wqe_prepare_write(
          qp, p, w + k, DOCA_GPUNETIO_IB_MLX5_OPCODE_RDMA_WRITE,
          k == 31 ? DOCA_GPUNETIO_IB_MLX5_WQE_CTRL_CQ_UPDATE : DOCA_GPUNETIO_IB_MLX5_WQE_CTRL_CQ_ERROR_UPDATE, 0,
          r.addr + ((uint64_t)((i * 32 + k) & 1023) * 64), r.key, src + (uint64_t)((i * 32 + k) & 63) * 64, l.key,
          64);
    }
    doca_gpu_dev_verbs_mark_wqes_ready<S>(qp, w, w + 31);
    constexpr auto sc = S == G ? DOCA_GPUNETIO_VERBS_SYNC_SCOPE_THREAD : DOCA_GPUNETIO_VERBS_SYNC_SCOPE_GPU;
    doca_gpu_dev_verbs_submit<S, sc, N>(qp, w + 32);
  } else {
    doca_gpu_dev_verbs_put<S, N, DOCA_GPUNETIO_VERBS_EXEC_SCOPE_WARP>(qp, r, l, 64);
  }
}
template <doca_gpu_dev_verbs_resource_sharing_mode S, doca_gpu_dev_verbs_nic_handler N, verb V>
__global__ void __launch_bounds__(128) post(const __grid_constant__ d_args a) {
  qp_t* qp = a.qps + qp_of(a.c);
  start(a.c);
#pragma unroll 1
  for (uint32_t i = 0; i < a.c.n; i++) call<S, N, V>(qp, i, a.src);
  stop(a.c, 0);
}
template <doca_gpu_dev_verbs_resource_sharing_mode S, doca_gpu_dev_verbs_nic_handler N, verb V>
void one(const char* impl, grid g, const place& p, int reps = 5) {
  static std::vector<qp_mem> qps;
  static qp_t* dev;
  static uint64_t src;
  const uint64_t wqes = g.per_qp() * (V == signal8 ? 2 : 1);
  const uint32_t ring = ring_for(wqes);
  if (ring > 32768) {
    printf("#ERR ring %u\n", ring);
    return;
  }
  auto prepare = [&] {
    qps = make_queues(p, g.qps(), ring);
    dev = (qp_t*)gpu.take(sizeof(qp_t) * g.qps());
    src = (uint64_t)gpu.take(1 << 16);
    char* cq = pinned.take(4096);
    std::vector<qp_t> v(g.qps());
    for (uint32_t i = 0; i < g.qps(); i++) {
      qp_t q;
      memset(&q, 0, sizeof q);
      const uint32_t n = 0x100 + i;
      q.sq_num = n, q.sq_num_shift8 = n << 8, q.sq_num_shift8_be = swap32(n << 8);
      q.sq_num_shift8_be_1ds = swap32(n << 8 | 1), q.sq_num_shift8_be_2ds = swap32(n << 8 | 2);
      q.sq_num_shift8_be_3ds = swap32(n << 8 | 3), q.sq_num_shift8_be_4ds = swap32(n << 8 | 4);
      q.sq_num_shift8_be_5ds = swap32(n << 8 | 5);
      q.sq_wqe_num = ring, q.sq_wqe_mask = ring - 1;
      q.sq_wqe_daddr = (uint8_t*)qps[i].sq;
      q.sq_dbrec = (__be32*)(qps[i].dbr + 4);
      q.sq_db = (uint64_t*)(qps[i].uar + 0x800);
      q.cq_sq.cqe_daddr = (uint8_t*)cq, q.cq_sq.cqe_num = 64, q.cq_sq.cqe_mask = 63, q.cq_sq.cqe_size = 64;
      q.nic_handler = N, q.mem_type = DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU;
      v[i] = q;
    }
    put_gpu(dev, v.data(), sizeof(qp_t) * g.qps());
  };
  auto launch = [&](const common_args& c) { post<S, N, V><<<g.blocks, g.threads>>>(d_args{c, dev, src}); };
  auto check = [&]() -> std::string { return check_queues(qps, wqes, ring, {N == DB, true}); };
  bench((std::string("doca ") + impl).c_str(), g, p.name, reps, prepare, launch, check);
}
int main() {
  init(128, 64);
  for (int k = 0; k < 2; k++) {
    one<X, ND, put1>("excl", c1(), ggh);
    one<X, DB, put1>("excl, record", c1(), ggh);
    one<X, DB, put_sys>("excl, record, fence.sys", c1(), hhh);
    one<X, ND, put_sys>("excl, fence.sys", c1(), hhh);
    one<X, ND, inline8>("excl p 8 B", c1(), ggh);
    one<X, DB, inline8>("excl p 8 B, record", c1(), ggh);
    one<X, ND, signal8>("excl put_signal", c1(), ggh);
    one<X, DB, signal8>("excl put_signal, record", c1(), ggh);
    one<X, ND, batch_thread>("excl batch", b32t(), ggh);
    one<X, ND, batch_warp>("excl batch", b32w(), ggh);
    one<X, DB, batch_thread>("excl batch, record", b32t(), ggh);
    one<X, DB, batch_warp>("excl batch, record", b32w(), ggh);
    one<X, ND, put1>("excl", c2(), ggh);
    one<X, DB, put1>("excl, record", c2(), ggh);
    one<X, DB, put_sys>("excl, record, fence.sys", c2(), hhh);
    one<X, ND, put_sys>("excl, fence.sys", c2(), hhh);
    one<X, ND, batch_warp>("excl batch", b32w132(), ggh);
    one<G, ND, put1>("shared", c1(), ggh);
    one<G, DB, put1>("shared, record", c1(), ggh);
    one<G, ND, batch_thread>("shared batch", b32t(), ggh);
    one<G, ND, batch_warp>("shared batch", b32w(), ggh);
    one<G, DB, batch_warp>("shared batch, record", b32w(), ggh);
    one<G, ND, put1>("shared", c3(), ggh);
    one<G, DB, put1>("shared, record", c3(), ggh);
    one<C, ND, put1>("shared by a block", c4(), ggh);
    one<G, ND, put1>("shared", c4(), ggh);
    one<G, ND, put1>("shared", c5(), ggh);
    one<G, ND, batch_warp>("shared by warps, a batch",
                           named(grid{"c5wb", sms, 128, true, 1, (uint32_t)sms * 4, 1, 32}, "c5wb"), ggh, 5);
  }
}
