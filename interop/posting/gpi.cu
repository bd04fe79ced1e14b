// Posts by NCCL's GPI: descriptors of 64 bytes into a queue in host memory. interop/posting.sh builds it.
#include <cuda/atomic>
#include "harness.cuh"
#include "nccl.h"
#include "nccl_device/coop.h"
#include "nccl_device/gin/gpi/gin_gpi.h"
using namespace posting;
enum verb { value, value_release, put_plain, put_release };
struct g_args {
  common_args c;
  void* chans;
};
template <gpi_resource_sharing_mode S, verb V>
__global__ void __launch_bounds__(128) post(const __grid_constant__ g_args a) {
  ncclGinCtx ctx;
  memset(&ctx, 0, sizeof ctx);
  ctx.handle = a.chans, ctx.contextId = qp_of(a.c), ctx.nRanks = 2;
  ncclGinSignalDescriptor sig;
  sig.type = NCCL_GIN_SIGNAL_TYPE_NONE;
  ncclCoopThread coop;
  start(a.c);
#pragma unroll 1
  for (uint32_t i = 0; i < a.c.n; i++) {
    constexpr auto req =
        (V == value_release || V == put_release) ? cuda::thread_scope_system : cuda::thread_scope_thread;
    if constexpr (V == value || V == value_release)
      nccl::gin::gpi::putValueImplMode<S>(ctx, coop, 1, (ncclGinWindow_t)5, (size_t)(i & 1023) * 64,
                                          (uint64_t)i * 0x9e3779b97f4a7c15, sig, ncclGinSignalInc, 0, false, nullptr,
                                          req, cuda::thread_scope_thread, 0);
    else
      nccl::gin::gpi::putImplMode<S>(ctx, coop, 1, true, (ncclGinWindow_t)5, (size_t)(i & 1023) * 64,
                                     (ncclGinWindow_t)6, (size_t)(i & 63) * 64, 64, sig, ncclGinSignalInc, 0, false,
                                     0, false, nullptr, req,
                                     V == put_plain ? cuda::thread_scope_device : cuda::thread_scope_thread, 0);
  }
  stop(a.c, 0);
}
template <gpi_resource_sharing_mode S, verb V>
void one(const char* impl, grid g, bool host, int reps = 5) {
  static char* q;
  static char* ch;
  const uint64_t n = g.per_qp();
  const uint32_t ring = ring_for(n);
  const size_t each = sizeof(gpi_gpu_channel_t) + 2 * 8;
  auto prepare = [&] {
    q = in(host).take((size_t)g.qps() * ring * 64);
    ch = gpu.take(each * g.qps());
    char* ci = pinned.take(4096);
    std::vector<char> v(each * g.qps());
    for (uint32_t i = 0; i < g.qps(); i++) {
      gpi_gpu_channel_t c;
      memset(&c, 0, sizeof c);
      c.queue_.gpu_memic_ptr = (uintptr_t*)(q + (size_t)i * ring * 64);
      c.queue_.pi_ = ring;  // so that a descriptor that is there has its owner bit set
      c.queue_.ci_value_ = ring;
      c.queue_.ci_ = (gpi_ci_t*)ci;
      c.queue_.log_depth = __builtin_ctz(ring);
      memcpy(v.data() + i * each, &c, sizeof c);
    }
    put_gpu(ch, v.data(), v.size());
  };
  auto launch = [&](const common_args& c) { post<S, V><<<g.blocks, g.threads>>>(g_args{c, ch}); };
  auto check = [&]() -> std::string {
    char text[80];
    for (uint32_t k : {0u, g.qps() - 1}) {
      auto v = fetch(q + (size_t)k * ring * 64, (size_t)ring * 64);
      uint64_t found = 0;
      for (uint32_t i = 0; i < ring; i++) {
        bool all = true;
        for (int s = 0; s < 8; s++) all &= v[i * 64 + s * 8] & 1;
        found += all;
      }
      if (found != n) {
        snprintf(text, sizeof text, "%llu of %llu", (unsigned long long)found, (unsigned long long)n);
        return text;
      }
    }
    return "";
  };
  bench((std::string("gpi ") + impl).c_str(), g, host ? "window-h" : "gpu", reps, prepare, launch, check);
}
int main() {
  init(128, 128);
  constexpr auto X = GPI_RESOURCE_SHARING_MODE_EXCLUSIVE;
  constexpr auto G = GPI_RESOURCE_SHARING_MODE_GPU;
  for (int k = 0; k < 2; k++) {
    one<X, value>("excl value", c1(), true);
    one<X, value_release>("excl value, release", c1(), true);
    one<X, put_plain>("excl put", c1(), true);
    one<X, put_release>("excl put, release", c1(), true);
    one<G, value>("shared value", c1(), true);
    one<G, value_release>("shared value, release", c1(), true);
    one<G, put_release>("shared put, release", c1(), true);
    one<G, value>("shared value", c3(), true);
    one<G, value_release>("shared value, release", c3(), true);
    one<G, put_release>("shared put, release", c3(), true);
    one<G, value>("shared value", c4(), true);
    one<G, value>("shared value", c5(), true);
    one<G, value_release>("shared value, release", c5(), true);
  }
}
