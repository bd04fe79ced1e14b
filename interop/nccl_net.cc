// NCCL's own network code without a GPU: net_ib, and net_socket beside it, compiled from NCCL's source, carry memory of
// the host as the proxies of a communicator have them do. Every byte is compared.
//
// Environment: RANK 0 or 1, MEET, a directory that both share and that is empty; without RANK one process talks to
// itself. Arguments: IB or Socket; then `check`, `time`, `gin` (NCCL 2.28 and 2.29), `pair` (two devices as one).
// interop/nccl_net.sh builds and runs it.
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "core.h"
#include "net.h"

#define GIN (NCCL_VERSION_CODE < NCCL_VERSION(2, 30, 0))

// What is asked of the rest of NCCL, and of CUDA.
void ncclInitEnv() {}
bool ncclEnvPluginInitialized() { return false; }
const char *ncclEnvPluginGetEnv(const char *name) { return getenv(name); }
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }

namespace {

using Clock = std::chrono::steady_clock;
constexpr double LIMIT_S = 30;

int rank, ranks = 1;
std::string meeting;
Clock::time_point last = Clock::now();

[[noreturn]] void fail(int line, const char *what)
{
    fprintf(stderr, "rank %d, line %d: not so: %s\n", rank, line, what);
    _exit(1);
}
#define CHECK(is) ((is) ? (void)0 : fail(__LINE__, #is))
#define OK(call) CHECK((call) == ncclSuccess)

double seconds(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

// Ends the program where nothing has come to an end for too long.
void moved() { last = Clock::now(); }
void waiting(int line)
{
    if (seconds(last) > LIMIT_S) fail(line, "done in time");
}

void put(const std::string &name, const std::string &bytes)
{
    std::string to = meeting + "/" + name + "." + std::to_string(rank);
    std::ofstream(to + ".new", std::ios::binary) << bytes;
    CHECK(rename((to + ".new").c_str(), to.c_str()) == 0);
}

// What a rank has put under a name.
std::string got(const std::string &name, int from)
{
    for (moved();; waiting(__LINE__)) {
        std::ifstream file(meeting + "/" + name + "." + std::to_string(from), std::ios::binary);
        if (file) return std::string(std::istreambuf_iterator<char>(file), {});
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void barrier(const std::string &name)
{
    put(name, "");
    for (int other = 0; other < ranks; other++) got(name, other);
}

// ---- Connections -------------------------------------------------------------------------------------------------

ncclNet_t *net;
void *context;

struct Link {
    void *listener, *send, *recv;
};

std::string listen_at(int device, void **listener)
{
    std::string handle(NCCL_NET_HANDLE_MAXSIZE, 0);
    OK(net->listen(context, device, handle.data(), listener));
    return handle;
}

// A connection to the next rank and one from the one before.
Link connected(int device, const std::string &name)
{
    Link link{};
    put(name, listen_at(device, &link.listener));
    std::string handle = got(name, (rank + 1) % ranks);
    for (moved(); !link.send || !link.recv; waiting(__LINE__)) {
        if (!link.send) OK(net->connect(context, device, handle.data(), &link.send, nullptr));
        if (!link.recv) OK(net->accept(link.listener, &link.recv, nullptr));
    }
    return link;
}

void close(Link &link)
{
    OK(net->closeSend(link.send));
    OK(net->closeRecv(link.recv));
    OK(net->closeListen(link.listener));
}

// ---- Memory ------------------------------------------------------------------------------------------------------

struct Memory {
    unsigned char *at;
    size_t bytes;
    void *handle = nullptr;

    // Of the heap, or shared, as what NCCL has of cuMemCreate.
    Memory(size_t bytes, bool shared) : bytes(bytes)
    {
        int flags = shared ? MAP_SHARED | MAP_ANONYMOUS : MAP_PRIVATE | MAP_ANONYMOUS;
        void *map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        CHECK(map != MAP_FAILED);
        at = static_cast<unsigned char *>(map);
    }
    ~Memory() { munmap(at, bytes); }
    Memory(const Memory &) = delete;
};

unsigned char value(int from, size_t number, size_t at)
{
    return (unsigned char)(at * 7 + (at >> 8) * 3 + (at >> 16) + from * 101 + number * 13 + 1);
}

void fill(unsigned char *to, size_t bytes, int from, size_t number)
{
    for (size_t i = 0; i < bytes; i++) to[i] = value(from, number, i);
}

bool is(const unsigned char *got, size_t bytes, int from, size_t number)
{
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != value(from, number, i)) return false;
    return true;
}

// ---- Messages ----------------------------------------------------------------------------------------------------

void *start_send(Link &link, void *data, size_t bytes, int tag, void *handle)
{
    void *request = nullptr;
    OK(net->isend(link.send, data, bytes, tag, handle, nullptr, &request));
    if (request) moved();
    return request;
}

bool done(void *&request, int *sizes)
{
    int is = 0;
    OK(net->test(request, &is, sizes));
    if (is) moved(), request = nullptr;
    return is;
}

// Some messages at once, each to a slot of its own: received by groups of `together`, and flushed.
void exchange(Link &link, size_t bytes, int count, int together, Memory &out, Memory &in, size_t number)
{
    int before = (rank + ranks - 1) % ranks;
    size_t slot = (bytes + 63) / 64 * 64 + 64;
    CHECK(slot * count <= out.bytes);
    memset(in.at, 0, slot * count);
    for (int i = 0; i < count; i++) fill(out.at + i * slot, bytes, rank, number + i);
    std::vector<void *> sends(count), recvs(count / together);
    int posted = 0, sent = 0, received = 0, to_send = 0;
    for (moved(); sent < count || received < count / together; waiting(__LINE__)) {
        if (posted < count / together) {
            std::vector<void *> data, handles(together, in.handle), none(together);
            std::vector<size_t> sizes(together, bytes + 32);
            std::vector<int> tags;
            for (int i = 0; i < together; i++) {
                data.push_back(in.at + (posted * together + i) * slot);
                tags.push_back(100 + i);
            }
            void *request = nullptr;
            OK(net->irecv(link.recv, together, data.data(), sizes.data(), tags.data(), handles.data(), none.data(),
                          &request));
            if (request) recvs[posted++] = request, moved();
        }
        if (to_send < count) {
            unsigned char *data = out.at + to_send * slot;
            if (void *request = start_send(link, data, bytes, 100 + to_send % together, out.handle))
                sends[to_send++] = request;
        }
        for (int i = 0; i < to_send; i++) {
            int size = -1;
            if (sends[i] && done(sends[i], &size)) CHECK(size == (int)bytes), sent++;
        }
        for (int i = 0; i < posted; i++) {
            std::vector<int> sizes(together, -1);
            if (!recvs[i] || !done(recvs[i], sizes.data())) continue;
            received++;
            for (int k = 0; k < together; k++) {
                unsigned char *data = in.at + (i * together + k) * slot;
                CHECK(sizes[k] == (int)bytes);
                CHECK(is(data, bytes, before, number + i * together + k));
                CHECK(!data[bytes]);
            }
        }
    }
    // A flush reads from the memory of the last receive.
    int size = (int)bytes;
    void *data = in.at, *handle = in.handle, *request = nullptr;
    if (net->iflush) OK(net->iflush(link.recv, 1, &data, &size, &handle, &request));
    for (moved(); request && !done(request, nullptr);) waiting(__LINE__);
}

void check(Link &link, int most)
{
    size_t bytes = 40 << 20;
    for (bool shared : {false, true}) {
        Memory out(bytes, shared), in(bytes, shared);
        OK(net->regMr(link.send, out.at, bytes, NCCL_PTR_HOST, &out.handle));
        OK(net->regMr(link.recv, in.at, bytes, NCCL_PTR_HOST, &in.handle));
        size_t number = 0;
        for (size_t size : {0, 1, 8, 127, 128, 4096, 4097, 65536, 524288, 1 << 20, (4 << 20) + 3}) {
            for (int count : {1, 8, NCCL_NET_MAX_REQUESTS}) {
                for (int together = 1; together <= most && together <= count; together += most - 1 ? most - 1 : 1) {
                    if (size * count > (size_t)32 << 20) continue;
                    exchange(link, size, count, together, out, in, number += 7);
                }
            }
        }
        OK(net->deregMr(link.send, out.handle));
        OK(net->deregMr(link.recv, in.handle));
    }
}

// Microseconds of a message there and back, halved, and GB/s of many.
void time(Link &link, const char *name)
{
    size_t bytes = 16 << 20, piece = 512 << 10;
    Memory out(bytes, true), in(bytes, true);
    OK(net->regMr(link.send, out.at, bytes, NCCL_PTR_HOST, &out.handle));
    OK(net->regMr(link.recv, in.at, bytes, NCCL_PTR_HOST, &in.handle));
    auto receive = [&](size_t at, size_t size) {
        void *data = in.at + at, *request = nullptr, *none = nullptr;
        int tag = 1;
        for (; !request; waiting(__LINE__))
            OK(net->irecv(link.recv, 1, &data, &size, &tag, &in.handle, &none, &request));
        return request;
    };
    auto send = [&](size_t at, size_t size) {
        void *request;
        while (!(request = start_send(link, out.at + at, size, 1, out.handle))) waiting(__LINE__);
        return request;
    };
    auto ended = [&](void *request) {
        while (!done(request, nullptr)) waiting(__LINE__);
    };
    moved();
    for (int round = 0, rounds = 1000; round < 2; round++) {
        auto from = Clock::now();
        for (int i = 0; i < rounds; i++) {
            void *received = receive(0, 8);
            if (rank) ended(received), ended(send(0, 8));
            else ended(send(0, 8)), ended(received);
        }
        if (round && !rank) printf("%s: 8 B %.1f us", name, seconds(from) / rounds / 2 * 1e6);
    }
    // One way, eight pieces on their way, as of a channel.
    constexpr int WAY = 8;
    std::vector<void *> flight(WAY);
    barrier(std::string(name) + "-rate");
    auto from = Clock::now();
    int pieces = 400;
    for (int i = 0; i < pieces + WAY; i++) {
        if (flight[i % WAY]) ended(flight[i % WAY]), flight[i % WAY] = nullptr;
        if (i < pieces) {
            size_t at = i % WAY * piece;
            flight[i % WAY] = rank ? receive(at, piece) : send(at, piece);
        }
    }
    if (!rank) printf(", 512 KiB %.2f GB/s\n", pieces * piece / seconds(from) / 1e9);
    OK(net->deregMr(link.send, out.handle));
    OK(net->deregMr(link.recv, in.handle));
}

// ---- What kernels ask of the network (GIN), carried out by a thread of the host ------------------------------------

#if GIN
void gin()
{
    ncclGin_t &gin = ncclGinIbProxy;
    void *context, *listener, *all;
    OK(gin.init(&context, 1, ncclDebugLog));
    std::string handle(NCCL_NET_HANDLE_MAXSIZE, 0);
    OK(gin.listen(context, 0, handle.data(), &listener));
    put("gin", handle);
    std::vector<std::string> handles;
    for (int i = 0; i < ranks; i++) handles.push_back(got("gin", i));
    std::vector<void *> named;
    for (auto &each : handles) named.push_back(each.data());
    OK(gin.connect(context, named.data(), ranks, rank, listener, &all));
    size_t bytes = 1 << 20;
    Memory out(bytes, true), in(bytes, true), signals(4096, true);
    void *handle_out, *handle_in, *handle_signals, *unused;
    OK(gin.regMrSym(all, out.at, bytes, NCCL_PTR_HOST, 0, &handle_out, &unused));
    OK(gin.regMrSym(all, in.at, bytes, NCCL_PTR_HOST, 0, &handle_in, &unused));
    OK(gin.regMrSym(all, signals.at, 4096, NCCL_PTR_HOST, NCCL_NET_MR_FLAG_FORCE_SO, &handle_signals, &unused));
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    auto *signal = reinterpret_cast<volatile uint64_t *>(signals.at);
    uint64_t want = 0;
    auto ended = [&](void *request) {
        int is = 0;
        for (moved(); !is; waiting(__LINE__)) OK(gin.test(all, request, &is));
    };
    for (size_t size : {8, 100, 4096, 65536, 1 << 20}) {
        for (int way = 0; way < 3; way++) {
            std::string step = std::to_string(size) + "-" + std::to_string(way);
            fill(out.at, size, rank, size + way);
            memset(in.at, 0, size);
            barrier("gin-" + step);
            void *request;
            if (way == 0) {
                // The put, and then a signal by itself.
                OK(gin.iput(all, 0, handle_out, size, 0, handle_in, next, &request));
                ended(request);
                OK(gin.iputSignal(all, 0, handle_out, 0, 0, handle_in, next, 8, handle_signals, 0,
                                  NCCL_NET_SIGNAL_OP_INC, &request));
                want += 1;
            } else {
                int op = way == 1 ? NCCL_NET_SIGNAL_OP_INC : NCCL_NET_SIGNAL_OP_ADD;
                OK(gin.iputSignal(all, 0, handle_out, size, 0, handle_in, next, 8, handle_signals, 1000, op, &request));
                want += way == 1 ? 1 : 1000;
            }
            for (moved(); signal[1] != want; waiting(__LINE__)) CHECK(signal[1] < want);
            // The data are there when the signal is.
            CHECK(is(in.at, size, before, size + way));
            ended(request);
            barrier("gin-done-" + step);
        }
    }
    OK(gin.deregMrSym(all, handle_signals));
    OK(gin.deregMrSym(all, handle_in));
    OK(gin.deregMrSym(all, handle_out));
    OK(gin.closeColl(all));
    OK(gin.closeListen(listener));
    OK(gin.finalize(context));
}
#endif

} // namespace

int main(int argc, char **argv)
{
    meeting = getenv("MEET");
    if (const char *text = getenv("RANK")) rank = atoi(text), ranks = 2;
    CHECK(argc >= 2);
    std::string name = argv[1];
    net = name == "IB" ? &ncclNetIb : &ncclNetSocket;
    ncclNetCommConfig_t config{};
    config.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF;
    OK(net->init(&context, 1, &config, ncclDebugLog, nullptr));
    int devices = 0;
    OK(net->devices(&devices));
    CHECK(devices > 0);
    ncclNetProperties_t properties{};
    OK(net->getProperties(0, &properties));
    printf("%s: %s at %s, %d Mbit/s, memory %d, %d receives at once\n", name.c_str(), properties.name,
           properties.pciPath ? properties.pciPath : "no path", properties.speed, properties.ptrSupport,
           properties.maxRecvs);
    int device = 0;
    for (int i = 2; i < argc; i++) {
        std::string what = argv[i];
        if (what == "pair") {
            ncclNetVDeviceProps_t both{};
            both.ndevs = 2, both.devs[0] = 0, both.devs[1] = 1;
            OK(net->makeVDevice(&device, &both));
            continue;
        }
#if GIN
        if (what == "gin") {
            gin();
            continue;
        }
#endif
        Link link = connected(device, what);
        // Eight receives are announced in 512 bytes, and NCCL has its queue pairs made for 64 inline.
        const char *is_inline = getenv("NCCL_IB_USE_INLINE");
        if (what == "check") check(link, is_inline && atoi(is_inline) ? 1 : properties.maxRecvs);
        else if (what == "time") time(link, name.c_str());
        else fail(__LINE__, what.c_str());
        barrier(what + "-closing");
        close(link);
    }
    OK(net->finalize(context));
    printf("rank %d: all as it should be\n", rank);
}
