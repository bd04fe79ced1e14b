// What programs of two ranks with a GPU each share: a bound for each step, and a line for what a step has come to.
#ifndef BELLPUSH_INTEROP_RANKS
#define BELLPUSH_INTEROP_RANKS

#include <cstdarg>
#include <cstdio>
#include <ctime>

#include <signal.h>
#include <unistd.h>

#include <cuda_runtime.h>

namespace {

// Seconds: when the program began, and how long a step may take.
double start_s, limit_s;
int rank, peer, failures;
// A directory that both ranks see.
const char *meeting;

double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

void say(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    printf("[%d %7.3f] %s\n", rank, now() - start_s, text);
    fflush(stdout);
}

[[noreturn]] void give_up(const char *what, const char *why)
{
    say("FAILED %s: %s", what, why);
    raise(SIGUSR2);
    sleep(2);
    _exit(2);
}

void must(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) give_up(what, cudaGetErrorString(e));
}

void wait(cudaStream_t stream, const char *what)
{
    for (double until = now() + limit_s;; usleep(20)) {
        cudaError_t e = cudaStreamQuery(stream);
        if (e == cudaSuccess) return;
        if (e != cudaErrorNotReady) must(e, what);
        if (now() > until) give_up(what, "not done in time");
    }
}

} // namespace

#endif
