// Two processes with a GPU each talk through NVSHMEM's device API, which its IBGDA transport turns into
// WQEs that kernels write. Each step is verified, and bounded: one that is not done in time asks for
// the NIC's queue pairs (SIGUSR2, see docs/preload.md) and ends the program.
//
// Environment: RANK 0 or 1; MEET, a directory that both share and that is empty; LIMIT, the seconds that
// a step may take (15); SPLIT=1 does not queue the kernel that waits for a signal behind the one that
// sends it. interop/nvshmem.sh runs it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include "ranks.cuh"

namespace {

constexpr int WARPS = 32, ROUNDS = 200, BARRIERS = 50;
constexpr size_t INTS = 1 << 18;

bool split;

#define CUDA(call) must((call), #call)

void meet(const char *what)
{
    std::string mine = std::string(meeting) + "/" + what + "." + std::to_string(rank);
    std::string other = std::string(meeting) + "/" + what + "." + std::to_string(peer);
    if (FILE *f = fopen(mine.c_str(), "w")) fclose(f);
    double until = now() + 2 * limit_s;
    while (access(other.c_str(), F_OK)) {
        if (now() > until) give_up(what, "the other rank does not come");
        usleep(200);
    }
}

__host__ __device__ int value(int pe, size_t i, int step)
{
    return (int)((i + 1) * 2654435761u) ^ (pe << 28) ^ step * 40503;
}

// ---- Kernels -----------------------------------------------------------------------------------

__global__ void put_one(int *dst, int what, int pe)
{
    nvshmem_int_p(dst, what, pe);
    nvshmem_quiet();
}

__global__ void put_thread(int *dst, const int *src, size_t n, int pe)
{
    nvshmem_int_put(dst, src, n, pe);
    nvshmem_quiet();
}

__global__ void put_block(int *dst, const int *src, size_t n, int pe)
{
    nvshmemx_int_put_block(dst, src, n, pe);
    if (!threadIdx.x) nvshmem_quiet();
}

enum Scope { THREAD, WARP, BLOCK };

__global__ void put_signal(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t n, int op, int scope, int pe)
{
    if (scope == THREAD && !threadIdx.x) nvshmem_putmem_signal(dst, src, bytes, sig, n, op, pe);
    if (scope == WARP && threadIdx.x < 32) nvshmemx_putmem_signal_warp(dst, src, bytes, sig, n, op, pe);
    if (scope == BLOCK) nvshmemx_putmem_signal_block(dst, src, bytes, sig, n, op, pe);
}

// What the signal says must be there when it is seen.
__global__ void wait_signal(uint64_t *sig, uint64_t n, const int *data, size_t ints, int step, int from, unsigned *wrong)
{
    if (!threadIdx.x) nvshmem_signal_wait_until(sig, NVSHMEM_CMP_GE, n);
    __syncthreads();
    for (size_t i = threadIdx.x; i < ints; i += blockDim.x)
        if (((volatile const int *)data)[i] != value(from, i, step)) atomicAdd(wrong, 1u);
}

__global__ void get_each(const int *src, int step, int from, unsigned *wrong)
{
    if (nvshmem_int_g(src + threadIdx.x, from) != value(from, threadIdx.x, step)) atomicAdd(wrong, 1u);
}

__global__ void get_block(int *dst, const int *src, size_t n, int pe) { nvshmemx_int_get_block(dst, src, n, pe); }

__global__ void atomics(unsigned *word, uint64_t *wide, unsigned *got, uint64_t *got_wide, int pe)
{
    got[0] = nvshmem_uint_atomic_fetch_add(word, 5, pe);
    got[1] = nvshmem_uint_atomic_compare_swap(word, 105, 42, pe);
    got[2] = nvshmem_uint_atomic_compare_swap(word, 7, 1, pe);
    got[3] = nvshmem_uint_atomic_swap(word, 43, pe);
    nvshmem_uint_atomic_inc(word, pe);
    got[4] = nvshmem_uint_atomic_fetch_xor(word, 0xff, pe);
    got[5] = nvshmem_uint_atomic_fetch_and(word, 0xf0, pe);
    got[6] = nvshmem_uint_atomic_fetch(word, pe);
    got_wide[0] = nvshmem_uint64_atomic_fetch_add(wide, 7, pe);
    got_wide[1] = nvshmem_uint64_atomic_fetch_or(wide, 0xf0000, pe);
    got_wide[2] = nvshmem_uint64_atomic_compare_swap(wide, 1007 | 0xf0000, 1ull << 40, pe);
    got_wide[3] = nvshmem_uint64_atomic_swap(wide, ~0ull, pe);
    nvshmem_uint64_atomic_inc(wide, pe);
    got_wide[4] = nvshmem_uint64_atomic_fetch(wide, pe);
    nvshmem_uint64_atomic_set(wide, 11, pe);
    got_wide[5] = nvshmem_uint64_atomic_fetch_inc(wide, pe);
    got_wide[6] = nvshmem_uint64_atomic_fetch(wide, pe);
    nvshmem_quiet();
}

// Every warp puts its part, and every thread draws a number of the other's counter.
__global__ void many(int *dst, const int *src, size_t each, uint64_t *counter, uint64_t *drawn, int pe)
{
    int thread = blockIdx.x * blockDim.x + threadIdx.x, warp = thread / 32;
    nvshmemx_int_put_nbi_warp(dst + warp * each, src + warp * each, each, pe);
    drawn[thread] = nvshmem_uint64_atomic_fetch_add(counter, 1, pe);
    if (!(threadIdx.x % 32)) nvshmem_quiet();
}

// A flag behind a fence must not overtake the data before it.
__global__ void put_fence_flag(int *dst, const int *src, size_t n, int *flag, int what, int pe)
{
    nvshmem_int_put_nbi(dst, src, n, pe);
    nvshmem_fence();
    nvshmem_int_p(flag, what, pe);
    nvshmem_quiet();
}

__global__ void wait_flag(int *flag, int what, const int *data, size_t ints, int step, int from, unsigned *wrong)
{
    if (!threadIdx.x) nvshmem_int_wait_until(flag, NVSHMEM_CMP_EQ, what);
    __syncthreads();
    for (size_t i = threadIdx.x; i < ints; i += blockDim.x)
        if (((volatile const int *)data)[i] != value(from, i, step)) atomicAdd(wrong, 1u);
}

__global__ void ping_pong(int *dst, const int *src, uint64_t *sig, int n, int pe)
{
    for (int i = 1; i <= n; i++) {
        if (nvshmem_my_pe()) nvshmem_signal_wait_until(sig, NVSHMEM_CMP_GE, i);
        nvshmem_putmem_signal(dst, src, 8, sig, i, NVSHMEM_SIGNAL_SET, pe);
        if (!nvshmem_my_pe()) nvshmem_signal_wait_until(sig, NVSHMEM_CMP_GE, i);
    }
}

__global__ void barriers(int n)
{
    for (int i = 0; i < n; i++) nvshmemx_barrier_all_block();
}

// ---- The test ----------------------------------------------------------------------------------

struct Test {
    cudaStream_t stream;
    int *src, *dst, *flag;
    uint64_t *sig, *wide;
    unsigned *word, *wrong, *got;
    uint64_t *got_wide, *drawn;
    std::vector<int> host = std::vector<int>(INTS);
    int step = 0;

    void fill(size_t ints)
    {
        step++;
        for (size_t i = 0; i < ints; i++) host[i] = value(rank, i, step);
        CUDA(cudaMemcpy(src, host.data(), ints * 4, cudaMemcpyHostToDevice));
        CUDA(cudaMemset(dst, 0, INTS * 4));
        CUDA(cudaMemset(wrong, 0, 4));
        CUDA(cudaDeviceSynchronize());
        meet(("fill" + std::to_string(step)).c_str());
    }

    void done(const char *what)
    {
        wait(stream, what);
        meet(("done" + std::to_string(step)).c_str());
    }

    void check(const char *what, size_t ints)
    {
        unsigned seen = 0;
        CUDA(cudaMemcpy(&seen, wrong, 4, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(host.data(), dst, (ints + 1) * 4 <= INTS * 4 ? (ints + 1) * 4 : ints * 4, cudaMemcpyDeviceToHost));
        size_t bad = 0;
        for (size_t i = 0; i < ints; i++) bad += host[i] != value(peer, i, step);
        bool beyond = ints < INTS && host[ints] != 0;
        if (bad || seen || beyond) {
            say("FAILED %s: %zu of %zu wrong, %u when the signal came%s", what, bad, ints, seen, beyond ? ", and written past the end" : "");
            failures++;
        } else {
            say("ok %s: %zu bytes verified", what, ints * 4);
        }
    }

    void puts()
    {
        fill(1);
        put_one<<<1, 1, 0, stream>>>(dst, value(rank, 0, step), peer);
        done("int_p"), check("int_p", 1);
        fill(1000);
        put_thread<<<1, 1, 0, stream>>>(dst, src, 1000, peer);
        done("int_put"), check("int_put", 1000);
        fill(INTS);
        put_block<<<1, 128, 0, stream>>>(dst, src, INTS, peer);
        done("int_put_block"), check("int_put_block", INTS);
    }

    void signals()
    {
        uint64_t n = 0;
        static const char *const names[] = {"putmem_signal", "putmem_signal_warp", "putmem_signal_block"};
        for (int scope : {BLOCK, WARP, THREAD})
            for (size_t bytes : {8, 64, 1024, 4096, 65536, 1 << 20}) {
                fill(bytes / 4);
                bool add = n & 1;
                put_signal<<<1, 128, 0, stream>>>(dst, src, bytes, sig, add ? 1 : n + 1, add ? NVSHMEM_SIGNAL_ADD : NVSHMEM_SIGNAL_SET, scope, peer);
                if (split) wait(stream, names[scope]);
                n++;
                wait_signal<<<1, 128, 0, stream>>>(sig, n, dst, bytes / 4, step, peer, wrong);
                done(names[scope]), check(names[scope], bytes / 4);
            }
        CUDA(cudaMemset(sig, 0, 8));
    }

    void gets()
    {
        fill(INTS);
        get_each<<<1, 128, 0, stream>>>(src, step, peer, wrong);
        get_block<<<1, 128, 0, stream>>>(dst, src, INTS, peer);
        done("int_g of 128 threads, int_get_block"), check("int_g of 128 threads, int_get_block", INTS);
    }

    void words()
    {
        unsigned hundred = 100, g[7], w;
        uint64_t thousand = 1000, gw[7], ww;
        CUDA(cudaMemcpy(word, &hundred, 4, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(wide, &thousand, 8, cudaMemcpyHostToDevice));
        fill(1);
        atomics<<<1, 1, 0, stream>>>(word, wide, got, got_wide, peer);
        done("atomics");
        CUDA(cudaMemcpy(g, got, sizeof(g), cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(gw, got_wide, sizeof(gw), cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(&w, word, 4, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(&ww, wide, 8, cudaMemcpyDeviceToHost));
        const unsigned want[] = {100, 105, 42, 42, 44, 44 ^ 0xff, (44 ^ 0xff) & 0xf0};
        const uint64_t want_wide[] = {1000, 1007, 1007 | 0xf0000, 1ull << 40, 0, 11, 12};
        bool right = !memcmp(g, want, sizeof(g)) && w == want[6] && !memcmp(gw, want_wide, sizeof(gw)) && ww == 12;
        say("%s atomics of 4 bytes: %u %u %u %u %u %u %u", right ? "ok" : "FAILED", g[0], g[1], g[2], g[3], g[4], g[5], g[6]);
        say("%s atomics of 8 bytes: %lu %lu %lu %#lx %lu %lu %lu", right ? "ok" : "FAILED", gw[0], gw[1], gw[2], gw[3], gw[4], gw[5], gw[6]);
        failures += !right;
    }

    void crowd()
    {
        const size_t each = INTS / WARPS;
        const int threads = WARPS * 32;
        CUDA(cudaMemset(wide, 0, 8));
        fill(INTS);
        many<<<WARPS / 4, 128, 0, stream>>>(dst, src, each, wide, drawn, peer);
        done("32 warps at once"), check("32 warps at once", INTS);
        std::vector<uint64_t> numbers(threads);
        CUDA(cudaMemcpy(numbers.data(), drawn, threads * 8, cudaMemcpyDeviceToHost));
        std::vector<int> seen(threads);
        int bad = 0;
        for (uint64_t n : numbers) bad += n >= (uint64_t)threads || seen[n]++;
        say("%s fetch_add of %d threads: every number drawn once", bad ? "FAILED" : "ok", threads);
        failures += bad != 0;
    }

    void order()
    {
        CUDA(cudaMemset(flag, 0, 4));
        fill(INTS);
        wait_flag<<<1, 128, 0, stream>>>(flag, 7, dst, INTS, step, peer, wrong);
        cudaStream_t other;
        CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        put_fence_flag<<<1, 1, 0, other>>>(dst, src, INTS, flag, 7, peer);
        wait(other, "put, fence, int_p");
        done("put, fence, int_p"), check("put, fence, int_p", INTS);
    }

    void loops()
    {
        fill(2);
        double t = now();
        ping_pong<<<1, 1, 0, stream>>>(dst, src, sig, ROUNDS, peer);
        wait(stream, "ping-pong");
        say("ok %d rounds of put and signal, %.1f us a round trip (a CPU engine that copies: not a NIC's)", ROUNDS, (now() - t) / ROUNDS * 1e6);
        done("ping-pong");
        t = now();
        barriers<<<1, 128, 0, stream>>>(BARRIERS);
        wait(stream, "barrier_all_block");
        say("ok %d nvshmemx_barrier_all_block, %.1f us each", BARRIERS, (now() - t) / BARRIERS * 1e6);
        t = now();
        for (int i = 0; i < BARRIERS; i++) nvshmemx_barrier_all_on_stream(stream);
        wait(stream, "barrier_all_on_stream");
        say("ok %d nvshmemx_barrier_all_on_stream, %.1f us each", BARRIERS, (now() - t) / BARRIERS * 1e6);
    }
};

template <typename T> T *symmetric(size_t n)
{
    T *at = (T *)nvshmem_malloc(n * sizeof(T));
    if (!at) give_up("nvshmem_malloc", "no memory");
    return at;
}

template <typename T> T *local(size_t n)
{
    T *at;
    CUDA(cudaMalloc(&at, n * sizeof(T)));
    CUDA(cudaMemset(at, 0, n * sizeof(T)));
    return at;
}

void initialise()
{
    int gpus = 0;
    CUDA(cudaGetDeviceCount(&gpus));
    if (!gpus) give_up("GPUs", "none");
    CUDA(cudaSetDevice(rank % gpus));
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    std::string path = std::string(meeting) + "/uid";
    if (!rank) {
        if (nvshmemx_get_uniqueid(&id)) give_up("nvshmemx_get_uniqueid", "refused");
        FILE *f = fopen((path + ".new").c_str(), "wb");
        if (!f || fwrite(&id, sizeof(id), 1, f) != 1 || fclose(f)) give_up("unique id", "cannot be written");
        rename((path + ".new").c_str(), path.c_str());
    }
    FILE *f = nullptr;
    for (double until = now() + limit_s; !(f = fopen(path.c_str(), "rb")) && now() < until;) usleep(1000);
    if (!f || fread(&id, sizeof(id), 1, f) != 1) give_up("unique id", "did not come");
    fclose(f);
    nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
    nvshmemx_set_attr_uniqueid_args(rank, 2, &id, &attr);
    if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr)) give_up("nvshmemx_init_attr", "refused");
    say("initialised: PE %d of %d on GPU %d of %d", nvshmem_my_pe(), nvshmem_n_pes(), rank % gpus, gpus);
}

} // namespace

int main()
{
    start_s = now(), limit_s = 15;
    const char *number = getenv("RANK");
    meeting = getenv("MEET");
    split = getenv("SPLIT") != nullptr;
    if (const char *limit = getenv("LIMIT")) limit_s = atof(limit);
    if (!number || !meeting) return fprintf(stderr, "RANK and MEET: see the head of this file\n"), 2;
    rank = atoi(number), peer = 1 - rank;
    initialise();
    Test t;
    CUDA(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking));
    t.src = symmetric<int>(INTS), t.dst = symmetric<int>(INTS), t.flag = symmetric<int>(16);
    t.sig = symmetric<uint64_t>(8), t.wide = symmetric<uint64_t>(8), t.word = symmetric<unsigned>(16);
    t.wrong = local<unsigned>(1), t.got = local<unsigned>(8), t.got_wide = local<uint64_t>(8);
    t.drawn = local<uint64_t>(WARPS * 32);
    CUDA(cudaMemset(t.sig, 0, 64));
    if (nvshmem_ptr(t.dst, peer)) give_up("P2P", "is on: nothing would go over the NIC");
    t.puts();
    t.signals();
    t.gets();
    t.words();
    t.crowd();
    t.order();
    t.loops();
    meet("end");
    nvshmem_finalize();
    say("%s", failures ? "FAILED in all" : "PASSED");
    return failures ? 1 : 0;
}
