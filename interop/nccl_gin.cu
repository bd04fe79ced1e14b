// Two processes with a GPU each talk through NCCL's device API for the network (GIN): kernels put, signal, count and
// get, by whichever of NCCL's types of it NCCL_GIN_TYPE names. Each step is verified, byte by byte, and bounded: one
// that is not done in time asks for the NIC's queue pairs (SIGUSR2, see docs/preload.md) and ends the program.
//
// Environment: RANK 0 or 1; MEET, a directory that both share and that is empty; LIMIT, the seconds that a step may
// take (20). interop/nccl_gin.sh builds and runs it, with NCCL 2.30 or later.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include "ranks.cuh"

namespace {

constexpr size_t BYTES = 4 << 20;
constexpr int ROUNDS = 100, WARPS = 8, EACH = 16, BLOCKS = 4;

void must(ncclResult_t e, const char *what)
{
    if (e != ncclSuccess) give_up(what, ncclGetErrorString(e));
}
#define MUST(call) must((call), #call)

std::string file(const std::string &name, int of) { return std::string(meeting) + "/" + name + "." + std::to_string(of); }

void put(const std::string &name, const std::string &bytes)
{
    std::ofstream(file(name, rank) + ".new", std::ios::binary) << bytes;
    rename((file(name, rank) + ".new").c_str(), file(name, rank).c_str());
}

std::string got(const std::string &name)
{
    for (double until = now() + 2 * limit_s;; usleep(200)) {
        if (std::ifstream from{file(name, peer), std::ios::binary})
            return std::string(std::istreambuf_iterator<char>(from), {});
        if (now() > until) give_up(name.c_str(), "the other rank does not come");
    }
}

void meet(const std::string &what)
{
    put(what, "");
    got(what);
}

__host__ __device__ uint8_t value(int pe, size_t i, int step)
{
    return (uint8_t)(((uint32_t)(i + 1) * 2654435761u ^ (uint32_t)pe << 28 ^ (uint32_t)step * 40503u) >> 21);
}

// ---- Kernels -----------------------------------------------------------------------------------

__global__ void fill(uint8_t *at, size_t bytes, int pe, int step)
{
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < bytes; i += blockDim.x * gridDim.x)
        at[i] = value(pe, i, step);
}

// The data are there when the signal is: what the waiter finds wrong then it counts.
__global__ void put_signal(ncclDevComm comm, ncclWindow_t to, ncclWindow_t from, size_t bytes, int peer, uint64_t least,
                           const uint8_t *mine, int step, unsigned *wrong)
{
    ncclGin gin{comm, 0};
    ncclCoopCta cta;
    if (threadIdx.x == 0)
        gin.put(ncclTeamWorld(comm), peer, to, 0, from, 0, bytes, ncclGin_StrongSignalInc{0});
    gin.waitSignal(cta, 0, least);
    unsigned bad = 0;
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x)
        bad += ((const volatile uint8_t *)mine)[i] != value(peer, i, step);
    if (bad) atomicAdd(wrong, bad);
    gin.flush(cta);
}

// The counter says that the source may be used again, and so it is.
__global__ void put_counter(ncclDevComm comm, ncclWindow_t to, ncclWindow_t from, size_t bytes, int peer,
                            uint64_t least, uint8_t *source)
{
    ncclGin gin{comm, 0};
    ncclCoopCta cta;
    if (threadIdx.x == 0)
        gin.put(ncclTeamWorld(comm), peer, to, 0, from, 0, bytes, ncclGin_None{}, ncclGin_WeakCounterInc{0});
    gin.waitCounter(cta, 0, least);
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) source[i] = 0xee;
    cta.sync();
    if (threadIdx.x == 0) gin.signal(ncclTeamWorld(comm), peer, ncclGin_StrongSignalInc{1});
    gin.waitSignal(cta, 1, least);
    gin.flush(cta);
}

__global__ void put_values(ncclDevComm comm, ncclWindow_t to, int count, int peer, uint64_t least)
{
    ncclGin gin{comm, 0};
    ncclCoopCta cta;
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        gin.putValue(ncclTeamWorld(comm), peer, to, i * 8, (uint64_t)i * 0x9e3779b97f4a7c15 + peer,
                     ncclGin_StrongSignalAdd{2, 1});
    gin.waitSignal(cta, 2, least);
    gin.flush(cta);
}

__global__ void get(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to, size_t bytes, int peer, const uint8_t *mine,
                    int step, unsigned *wrong)
{
    ncclGin gin{comm, 0};
    ncclCoopCta cta;
    if (threadIdx.x == 0) gin.get(ncclTeamWorld(comm), peer, from, 0, to, 0, bytes);
    cta.sync();
    gin.flush(cta);
    cta.sync();
    unsigned bad = 0;
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x)
        bad += ((const volatile uint8_t *)mine)[i] != value(peer, i, step);
    if (bad) atomicAdd(wrong, bad);
}

// More requests than a queue holds, of many warps at once.
__global__ void many(ncclDevComm comm, ncclWindow_t to, ncclWindow_t from, size_t each, int peer, uint64_t least)
{
    ncclGin gin{comm, 0};
    ncclCoopCta cta;
    int warp = threadIdx.x / 32;
    for (int i = 0; i < EACH; i++) {
        size_t at = (warp * EACH + i) * each;
        gin.put(ncclTeamWorld(comm), peer, to, at, from, at, each, ncclGin_StrongSignalAdd{3, 5}, ncclGin_None{},
                ncclCoopWarp());
    }
    gin.waitSignal(cta, 3, least);
    gin.flush(cta);
}

// To and fro.
__global__ void rounds(ncclDevComm comm, ncclWindow_t to, ncclWindow_t from, int peer, int n, uint64_t before)
{
    ncclGin gin{comm, 0};
    ncclCoopCta cta;
    for (int i = 1; i <= n; i++) {
        if (threadIdx.x == 0) gin.put(ncclTeamWorld(comm), peer, to, 0, from, 0, 8, ncclGin_StrongSignalInc{4});
        gin.waitSignal(cta, 4, before + i);
    }
    gin.flush(cta);
}

__global__ void barriers(ncclDevComm comm, int n)
{
    ncclGin gin{comm, 0};
    ncclCoopCta cta;
    ncclGinBarrierSession<ncclCoopCta> bar{cta, gin, ncclTeamTagWorld(), blockIdx.x};
    for (int i = 0; i < n; i++) bar.sync(cta, cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
}

// ---- Steps -------------------------------------------------------------------------------------

struct World {
    ncclComm_t comm;
    ncclDevComm dev;
    cudaStream_t stream;
    uint8_t *from, *to;
    ncclWindow_t source, target;
    unsigned *wrong;
    int step;
} w;

void judged(const char *what, size_t bytes)
{
    unsigned wrong;
    MUST(cudaMemcpy(&wrong, w.wrong, sizeof(wrong), cudaMemcpyDeviceToHost));
    MUST(cudaMemset(w.wrong, 0, sizeof(wrong)));
    if (wrong) failures++;
    say("%s %s, %zu bytes, %u wrong", wrong ? "FAILED" : "ok", what, bytes, wrong);
}

// Both have their source filled and their target cleared.
void begin(const std::string &what, size_t bytes)
{
    w.step++;
    fill<<<64, 256, 0, w.stream>>>(w.from, bytes, rank, w.step);
    MUST(cudaMemsetAsync(w.to, 0, bytes, w.stream));
    wait(w.stream, "fill");
    meet(what + std::to_string(w.step));
}

// What the peer has put is compared on the host as well.
void compare(const char *what, size_t bytes, int of)
{
    std::vector<uint8_t> found(bytes);
    MUST(cudaMemcpy(found.data(), w.to, bytes, cudaMemcpyDeviceToHost));
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++) wrong += found[i] != value(of, i, w.step);
    if (wrong) failures++, say("FAILED %s, %zu bytes: %zu wrong on the host", what, bytes, wrong);
}

void setup()
{
    ncclUniqueId id;
    if (rank == 0) {
        MUST(ncclGetUniqueId(&id));
        put("id", std::string(id.internal, sizeof(id.internal)));
        meet("has id");
    } else {
        memcpy(id.internal, got("id").data(), sizeof(id.internal));
        meet("has id");
    }
    MUST(cudaSetDevice(0));
    MUST(ncclCommInitRank(&w.comm, 2, id, rank));
    ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
    MUST(ncclCommQueryProperties(w.comm, &props));
    say("device API %d, GIN type %d", (int)props.deviceApiSupport, (int)props.ginType);
    if (!props.deviceApiSupport || props.ginType == NCCL_GIN_TYPE_NONE) give_up("setup", "there is no GIN");
    MUST(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
    MUST(ncclMemAlloc((void **)&w.from, BYTES));
    MUST(ncclMemAlloc((void **)&w.to, BYTES));
    MUST(cudaMalloc(&w.wrong, sizeof(unsigned)));
    MUST(cudaMemset(w.wrong, 0, sizeof(unsigned)));
    MUST(ncclCommWindowRegister(w.comm, w.from, BYTES, &w.source, NCCL_WIN_COLL_SYMMETRIC));
    MUST(ncclCommWindowRegister(w.comm, w.to, BYTES, &w.target, NCCL_WIN_COLL_SYMMETRIC));
    say("windows");
    ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    needs.worldGinBarrierCount = BLOCKS;
    needs.ginSignalCount = 8;
    needs.ginCounterCount = 2;
    needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    MUST(ncclDevCommCreate(w.comm, &needs, &w.dev));
    say("device communicator, %d contexts", (int)w.dev.ginContextCount);
}

bool asked(int argc, char **argv, const char *what)
{
    return argc < 2 || std::any_of(argv + 1, argv + argc, [&](char *word) { return !strcmp(word, what); });
}

} // namespace

int main(int argc, char **argv)
{
    start_s = now(), limit_s = 20;
    rank = atoi(getenv("RANK")), peer = 1 - rank, meeting = getenv("MEET");
    if (const char *limit = getenv("LIMIT")) limit_s = atof(limit);
    setup();

    uint64_t signals = 0, counted = 0, values = 0, added = 0, turns = 0;
    if (asked(argc, argv, "put"))
        for (size_t bytes : {4, 4000, 65536, 1 << 20, 4 << 20}) {
            begin("put", bytes);
            put_signal<<<1, 256, 0, w.stream>>>(w.dev, w.target, w.source, bytes, peer, ++signals, w.to, w.step, w.wrong);
            wait(w.stream, "put with signal");
            compare("put with signal", bytes, peer);
            judged("put with signal", bytes);
        }
    if (asked(argc, argv, "counter"))
        for (size_t bytes : {8, 65536, 1 << 20}) {
            begin("counter", bytes);
            put_counter<<<1, 256, 0, w.stream>>>(w.dev, w.target, w.source, bytes, peer, ++counted, w.from);
            wait(w.stream, "put with counter");
            compare("put with counter", bytes, peer);
            judged("put with counter", bytes);
        }
    if (asked(argc, argv, "value")) {
        constexpr int COUNT = 512;
        begin("value", COUNT * 8);
        put_values<<<1, 64, 0, w.stream>>>(w.dev, w.target, COUNT, peer, values += COUNT);
        wait(w.stream, "put values");
        std::vector<uint64_t> found(COUNT);
        MUST(cudaMemcpy(found.data(), w.to, COUNT * 8, cudaMemcpyDeviceToHost));
        int wrong = 0;
        for (int i = 0; i < COUNT; i++) wrong += found[i] != (uint64_t)i * 0x9e3779b97f4a7c15 + rank;
        if (wrong) failures++;
        say("%s put values, %d wrong", wrong ? "FAILED" : "ok", wrong);
    }
    if (asked(argc, argv, "get"))
        for (size_t bytes : {4, 65536, 1 << 20}) {
            begin("get", bytes);
            get<<<1, 256, 0, w.stream>>>(w.dev, w.source, w.target, bytes, peer, w.to, w.step, w.wrong);
            wait(w.stream, "get");
            compare("get", bytes, peer);
            judged("get", bytes);
            meet("got" + std::to_string(w.step));
        }
    if (asked(argc, argv, "many")) {
        constexpr size_t EACH_BYTES = 1024, ALL = EACH_BYTES * WARPS * EACH;
        begin("many", ALL);
        many<<<1, WARPS * 32, 0, w.stream>>>(w.dev, w.target, w.source, EACH_BYTES, peer, added += 5 * WARPS * EACH);
        wait(w.stream, "many puts");
        compare("many puts", ALL, peer);
        judged("many puts", ALL);
    }
    if (asked(argc, argv, "rounds")) {
        begin("rounds", 8);
        for (int n : {5, ROUNDS}) {
            double began = now();
            rounds<<<1, 32, 0, w.stream>>>(w.dev, w.target, w.source, peer, n, turns);
            wait(w.stream, "rounds");
            turns += n;
            say("ok %d rounds of put with signal: %.1f us each", n, (now() - began) / n * 1e6);
        }
    }
    if (asked(argc, argv, "barriers")) {
        meet("barriers");
        double began = now();
        barriers<<<BLOCKS, 32, 0, w.stream>>>(w.dev, 20);
        wait(w.stream, "barriers");
        say("ok 20 barriers of %d blocks: %.1f us each", BLOCKS, (now() - began) / 20 * 1e6);
    }
    meet("end");
    MUST(ncclDevCommDestroy(w.comm, &w.dev));
    MUST(ncclCommWindowDeregister(w.comm, w.source));
    MUST(ncclCommWindowDeregister(w.comm, w.target));
    MUST(ncclCommDestroy(w.comm));
    say(failures ? "FAILED: %d" : "all right", failures);
    return failures != 0;
}
