// The host's side of NCCL's GIN by GDAKI (2.30), compiled from NCCL's source, without a GPU: memory of the host stands
// for a GPU's, and this program for the kernels. It posts, rings and polls as gin_gdaki.h does, through the structs that
// NCCL has made for kernels: puts with signals and counters, and gets with their flush. Every byte is compared.
//
// Environment: RANK 0 or 1, and MEET, a directory that both share and that is empty. interop/nccl_net.sh builds and runs
// it, as `gdaki`.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include <endian.h>
#include <unistd.h>

#include "core.h"
#include "cudawrap.h"
#include "plugin/nccl_gin.h"
#include "nccl_device/gin/gdaki/gin_gdaki_device_host_common.h"
#include "common/doca_gpunetio_verbs_def.h"
#include "common/doca_gpunetio_verbs_dev.h"

extern ncclGin_t ncclGinIbGdaki;

// ---- What is asked of the rest of NCCL, and of CUDA ----------------------------------------------------------------

void ncclInitEnv() {}
bool ncclEnvPluginInitialized() { return false; }
const char *ncclEnvPluginGetEnv(const char *name) { return getenv(name); }
int ncclCuMemEnable() { return 0; }
int64_t ncclParamDmaBufEnable() { return 0; }
CUmemAllocationHandleType ncclCuMemHandleType = CU_MEM_HANDLE_TYPE_NONE;
// The driver's functions, as far as NCCL allocates a GPU's memory by them: in pieces of one size, as the host's.
constexpr size_t PIECE = 65536;
PFN_cuGetErrorString_v6000 pfn_cuGetErrorString = [](CUresult, const char **text) { return *text = "", CUDA_SUCCESS; };
PFN_cuDeviceGet_v2000 pfn_cuDeviceGet = [](CUdevice *device, int) { return *device = 0, CUDA_SUCCESS; };
PFN_cuDeviceGetAttribute_v2000 pfn_cuDeviceGetAttribute = [](int *value, CUdevice_attribute, CUdevice) {
    return *value = 1, CUDA_SUCCESS;
};
PFN_cuMemGetAllocationGranularity_v10020 pfn_cuMemGetAllocationGranularity =
    [](size_t *bytes, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
        return *bytes = PIECE, CUDA_SUCCESS;
    };
PFN_cuMemCreate_v10020 pfn_cuMemCreate = [](CUmemGenericAllocationHandle *handle, size_t, const CUmemAllocationProp *,
                                            unsigned long long) { return *handle = 1, CUDA_SUCCESS; };
PFN_cuMemAddressReserve_v10020 pfn_cuMemAddressReserve = [](CUdeviceptr *at, size_t bytes, size_t, CUdeviceptr,
                                                            unsigned long long) {
    return *at = (CUdeviceptr)memset(aligned_alloc(PIECE, bytes), 0, bytes), CUDA_SUCCESS;
};
PFN_cuMemMap_v10020 pfn_cuMemMap = [](CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
    return CUDA_SUCCESS;
};
PFN_cuMemSetAccess_v10020 pfn_cuMemSetAccess = [](CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) {
    return CUDA_SUCCESS;
};
PFN_cuMemRetainAllocationHandle_v11000 pfn_cuMemRetainAllocationHandle =
    [](CUmemGenericAllocationHandle *handle, void *) { return *handle = 1, CUDA_SUCCESS; };
PFN_cuMemRelease_v10020 pfn_cuMemRelease = [](CUmemGenericAllocationHandle) { return CUDA_SUCCESS; };
PFN_cuMemGetAddressRange_v3020 pfn_cuMemGetAddressRange = [](CUdeviceptr *, size_t *bytes, CUdeviceptr) {
    return *bytes = PIECE, CUDA_SUCCESS;
};
PFN_cuMemUnmap_v10020 pfn_cuMemUnmap = [](CUdeviceptr, size_t) { return CUDA_SUCCESS; };
PFN_cuMemAddressFree_v10020 pfn_cuMemAddressFree = [](CUdeviceptr at, size_t) { return free((void *)at), CUDA_SUCCESS; };

extern "C" {
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int) { return snprintf(id, bytes, "0000:01:00.0"), cudaSuccess; }
cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) { return *value = 9, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaMalloc(void **at, size_t bytes)
{
    *at = aligned_alloc(PIECE, (bytes + PIECE - 1) / PIECE * PIECE);
    return *at ? memset(*at, 0, bytes), cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *at) { return free(at), cudaSuccess; }
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind) { return memcpy(to, from, n), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t)
{
    return memcpy(to, from, n), cudaSuccess;
}
cudaError_t cudaMemset(void *at, int value, size_t n) { return memset(at, value, n), cudaSuccess; }
cudaError_t cudaMemsetAsync(void *at, int value, size_t n, cudaStream_t) { return memset(at, value, n), cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) { return *stream = nullptr, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaHostRegister(void *, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void *) { return cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void **there, void *here, unsigned) { return *there = here, cudaSuccess; }
CUresult doca_verbs_wrapper_cuDeviceGetAttribute(int *value, CUdevice_attribute, CUdevice)
{
    return *value = 0, CUDA_SUCCESS; // no dma-buf
}
CUresult doca_verbs_wrapper_cuPointerSetAttribute(const void *, CUpointer_attribute, CUdeviceptr) { return CUDA_SUCCESS; }
CUresult doca_verbs_wrapper_cuMemGetHandleForAddressRange(int *, CUdeviceptr, size_t, CUmemRangeHandleType,
                                                          unsigned long long)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}
}

namespace {

using Clock = std::chrono::steady_clock;
using Gin = ncclGinGdakiGPUContext;
using Handle = ncclGinGdakiMemHandle;
using Qp = doca_gpu_dev_verbs_qp;
constexpr double LIMIT_S = 30;
constexpr int RANKS = 2, SIGNALS = 4, COUNTERS = 4;
constexpr size_t BYTES = 1 << 20;
// Of the structs for kernels, as this program knows them (NCCL_GIN_GDAKI_GPU_CONTEXT_VERSION).
constexpr int STRUCTS = 2;

int rank, peer;
std::string meeting;

[[noreturn]] void fail(int line, const char *what)
{
    fprintf(stderr, "rank %d, line %d: not so: %s\n", rank, line, what);
    _exit(1);
}
#define CHECK(is) ((is) ? (void)0 : fail(__LINE__, #is))
#define OK(call) CHECK((call) == ncclSuccess)

template <typename Done> void until(int line, Done done)
{
    for (auto start = Clock::now(); !done(); std::this_thread::yield())
        if (std::chrono::duration<double>(Clock::now() - start).count() > LIMIT_S) fail(line, "done in time");
}

void put(const std::string &name, const std::string &bytes)
{
    std::string to = meeting + "/" + name + "." + std::to_string(rank);
    std::ofstream(to + ".new", std::ios::binary) << bytes;
    CHECK(rename((to + ".new").c_str(), to.c_str()) == 0);
}

std::string got(const std::string &name, int from)
{
    std::string bytes, at = meeting + "/" + name + "." + std::to_string(from);
    until(__LINE__, [&] {
        std::ifstream file(at, std::ios::binary);
        return file && (bytes.assign(std::istreambuf_iterator<char>(file), {}), true);
    });
    return bytes;
}

void meet(const std::string &name)
{
    put(name, "");
    got(name, peer);
}

// ---- What kernels do (gin_gdaki.h, doca_gpunetio_dev_verbs_*.cuh) -------------------------------------------------

uint32_t be(uint32_t value) { return htobe32(value); }

int poll_at(Qp &qp, uint64_t index)
{
    auto &cq = qp.cq_sq;
    auto *cqe = cq.cqe_daddr + (index & cq.cqe_mask) * 64;
    uint8_t own = 0;
    until(__LINE__, [&] {
        own = __atomic_load_n(cqe + 63, __ATOMIC_ACQUIRE);
        return (own & 1) == !!(index & cq.cqe_num) && own >> 4 != 0xf;
    });
    CHECK((cqe[60] << 8 | cqe[61]) == (int)(index & 0xffff));
    cq.cqe_ci = index + 1;
    return own >> 4;
}

struct Wqe {
    uint32_t *at;

    Wqe(Qp &qp, uint8_t opcode, uint32_t ds)
    {
        uint64_t index = qp.sq_rsvd_index++;
        if (index >= qp.sq_wqe_num) CHECK(poll_at(qp, index - qp.sq_wqe_num) == 0);
        at = (uint32_t *)(qp.sq_wqe_daddr + (index & qp.sq_wqe_mask) * 64);
        at[0] = be((uint32_t)(index & 0xffff) << 8 | opcode);
        at[1] = be(qp.sq_num_shift8 | ds);
        at[2] = be(8);
    }
    void put64(int word, uint64_t value)
    {
        value = htobe64(value);
        memcpy(at + word, &value, 8);
    }
    void remote(uint64_t addr, __be32 key) { put64(4, addr), at[6] = key; }
    void data(int word, uint64_t addr, __be32 key, uint32_t bytes)
    {
        at[word] = be(bytes), at[word + 1] = key;
        put64(word + 2, addr);
    }
};

void moves(Qp &qp, uint8_t opcode, uint64_t there, __be32 rkey, uint64_t here, __be32 lkey, uint32_t bytes)
{
    Wqe wqe(qp, opcode, 3);
    wqe.remote(there, rkey), wqe.data(8, here, lkey, bytes);
}

void add(Qp &qp, uint64_t there, __be32 rkey, __be32 sink, uint64_t value)
{
    Wqe wqe(qp, 0x12, 4);
    wqe.remote(there, rkey), wqe.put64(8, value), wqe.put64(10, 0), wqe.data(12, 0, sink, 8);
}

void store_doorbell(Qp &qp)
{
    uint64_t bell = (uint64_t)be((uint32_t)qp.sq_rsvd_index << 8) | (uint64_t)qp.sq_num_shift8_be << 32;
    __atomic_store_n(qp.sq_db, bell, __ATOMIC_RELEASE);
}

void submit(Qp **qps, int n)
{
    if (qps[0]->nic_handler == DOCA_GPUNETIO_VERBS_NIC_HANDLER_CPU_PROXY) {
        for (int i = 0; i < n; i++) __atomic_store_n(qps[i]->sq_db, qps[i]->sq_rsvd_index, __ATOMIC_RELEASE);
        return;
    }
    CHECK(qps[0]->nic_handler == DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB);
    for (int i = 0; i < n; i++) store_doorbell(*qps[i]);
    for (int i = 0; i < n; i++) {
        __atomic_store_n(qps[i]->sq_dbrec, be(qps[i]->sq_rsvd_index & 0xffff), __ATOMIC_RELAXED);
        store_doorbell(*qps[i]);
    }
}

uint8_t value(int of, size_t i, int step) { return (uint32_t)(i + 1) * 2654435761u * (step + 7) >> 23 ^ of << 6; }

} // namespace

int main()
{
    rank = atoi(getenv("RANK")), peer = 1 - rank, meeting = getenv("MEET");
    auto &gin = ncclGinIbGdaki;
    void *ctx = nullptr, *listener = nullptr, *coll = nullptr, *made = nullptr;
    int n = 0;
    OK(gin.init(&ctx, 1, ncclDebugLog));
    OK(gin.devices(&n));
    CHECK(n > 0);
    std::string handles[RANKS] = {std::string(NCCL_NET_HANDLE_MAXSIZE, 0), std::string(NCCL_NET_HANDLE_MAXSIZE, 0)};
    OK(gin.listen(ctx, 0, handles[rank].data(), &listener));
    put("handle", handles[rank]);
    handles[peer] = got("handle", peer);
    void *all[RANKS] = {handles[0].data(), handles[1].data()};
    OK(gin.connect(ctx, all, RANKS, rank, listener, &coll));
    ncclGinConfig_t config{};
    config.nSignals = SIGNALS, config.nCounters = COUNTERS, config.nContexts = 1;
    config.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF, config.backendVersion = STRUCTS;
    ncclNetDeviceHandle_t *device = nullptr;
    OK(gin.createContext(coll, &config, &made, &device));
    CHECK(device->netDeviceType == NCCL_NET_DEVICE_GIN_GDAKI);
    std::atomic<bool> ends{false};
    std::thread rings([&] {
        while (device->needsProxyProgress && !ends) OK(gin.ginProgress(made)), std::this_thread::yield();
    });

    uint8_t *from, *to;
    cudaMalloc((void **)&from, BYTES), cudaMalloc((void **)&to, BYTES);
    void *handle[2], *seen[2];
    OK(gin.regMrSym(coll, from, BYTES, NCCL_PTR_CUDA, 0, &handle[0], &seen[0]));
    OK(gin.regMrSym(coll, to, BYTES, NCCL_PTR_CUDA, 0, &handle[1], &seen[1]));
    auto *source = (Handle *)seen[0], *target = (Handle *)seen[1];
    auto *kernel = (Gin *)device->handle;
    auto signal = [&](int i) { return __atomic_load_n(kernel->signals_table.buffer + i, __ATOMIC_ACQUIRE); };
    auto counter = [&](int i) { return __atomic_load_n(kernel->counters_table.buffer + i, __ATOMIC_ACQUIRE); };
    __be32 sink = kernel->sink_buffer_lkey;
    meet("made");

    // put with signal and counter, to the peer and to itself, as doca_gpu_dev_verbs_put_signal_counter.
    for (int step = 1; step <= 400; step++) {
        int dest = step % 4 ? peer : rank, waits = step % 4 ? peer : rank;
        uint32_t bytes = 1 + step * 997 % (BYTES / 4);
        for (size_t i = 0; i < bytes; i++) from[i] = value(rank, i, step);
        Qp &qp = kernel->gdqp[dest], &companion = kernel->companion_gdqp[dest];
        moves(qp, 0x08, 0, target->rkeys[dest], 0, source->lkey, bytes);
        add(qp, 8, kernel->signals_table.rkeys[dest], sink, 1);
        Wqe wait(companion, 0x0f, 2);
        wait.at[6] = be(qp.sq_rsvd_index - 1), wait.at[7] = be(qp.cq_sq.cq_num);
        add(companion, 8, kernel->counters_table.rkeys[rank], sink, 1);
        Qp *both[] = {&qp, &companion};
        submit(both, 2);
        until(__LINE__, [&] { return counter(1) >= (uint64_t)step; });
        until(__LINE__, [&] { return signal(1) >= (uint64_t)step; });
        for (size_t i = 0; i < bytes; i++) CHECK(to[i] == value(waits, i, step));
        meet("put" + std::to_string(step));
    }
    // get, and what flush puts behind it.
    for (int step = 1; step <= 50; step++) {
        uint32_t bytes = 1 + step * 9973 % (BYTES / 4);
        for (size_t i = 0; i < bytes; i++) from[i] = value(rank, i, step);
        meet("get" + std::to_string(step));
        Qp *qp = &kernel->gdqp[peer];
        moves(*qp, 0x10, 0, source->rkeys[peer], 0, target->lkey, bytes);
        Wqe(*qp, 0x23, 2).data(4, 0, sink, 1);
        submit(&qp, 1);
        CHECK(poll_at(*qp, qp->sq_rsvd_index - 1) == 0);
        for (size_t i = 0; i < bytes; i++) CHECK(to[i] == value(peer, i, step));
        meet("got" + std::to_string(step));
    }
    bool failed = true;
    OK(gin.queryLastError(made, &failed));
    CHECK(!failed);
    ends = true;
    rings.join();
    for (void *each : handle) OK(gin.deregMrSym(coll, each));
    OK(gin.destroyContext(made));
    OK(gin.closeColl(coll));
    OK(gin.closeListen(listener));
    OK(gin.finalize(ctx));
    printf("rank %d: all as it should be\n", rank);
}
