/* All-reduce with sends that GPU kernels post, for C and for languages that load C libraries.
 *
 * Each process of a job (started by torchrun, mpirun or Slurm) calls bellpush_join. Afterwards all processes make the
 * same calls in the same order. A function returns 0, or a negative value of enum bellpush_code; bellpush_error then
 * returns one line about the error. One thread at a time uses a communicator. The child of a fork has no communicator:
 * its calls are refused, and its bellpush_leave does nothing. Link with -lbellpush_c. */
#ifndef BELLPUSH_H
#define BELLPUSH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bellpush bellpush;

enum bellpush_dtype { BELLPUSH_F32 = 0, BELLPUSH_F16 = 1, BELLPUSH_BF16 = 2, BELLPUSH_I32 = 3 };
enum bellpush_op { BELLPUSH_SUM = 0, BELLPUSH_MAX = 1, BELLPUSH_MIN = 2, BELLPUSH_MEAN = 3 };

enum bellpush_code {
  BELLPUSH_OK = 0,
  BELLPUSH_REFUSED = -1,  /* an argument is invalid, or a device or file is missing; nothing was done */
  BELLPUSH_DIFFERS = -2,  /* the ranks made different calls; nothing was reduced, and the job continues */
  BELLPUSH_FAILED = -3,   /* a rank or its link failed; the communicator has ended, and every later call returns this */
  BELLPUSH_IN_USE = -4,   /* as BELLPUSH_FAILED, but kernels that could not be ended within 11 s continue (a CPU thread
                           * without a processor). They may still read `in` and write `out` of all calls since the last
                           * synchronisation: this memory must stay allocated and unused until the process ends */
};

/* Joins the job that the environment describes, and creates a communicator in *joined. The function reads the
 * launcher's variables, MASTER_ADDR or BELLPUSH_ROOT, and BELLPUSH_JOB_SECRET (without it the ranks derive a secret,
 * if they are on one host or share a home). It waits for all ranks, up to join_timeout_s. A process left over from an
 * earlier start of the job is refused: the launcher's name of the job and its count of restarts distinguish starts
 * (under Slurm, and under torchrun if all ranks are on one host), or BELLPUSH_JOB_START if it is set. Ranks that are
 * started by hand need a new BELLPUSH_JOB_START each time. Communicators that are joined at the same time need
 * different names. `options` is JSON or NULL; names and defaults:
 *   {"executor": "cuda",       or "host": kernels on CPU threads, elements in host memory
 *    "gpu": local rank,        CUDA ordinal; the default is taken modulo the number of GPUs
 *    "path": "push/inband",    push/kernel, push/blueflame, pull/kernel, pull/blueflame
 *    "line": "12+4",           line format of push/inband; or 14+2; or 60+4 where `bellpush bench --tearing` finds no
 *                              torn line
 *    "link": "shm",            at most 16 processes, all on one host; or "udp" (RoCEv2)
 *    "address": first free,    IP address of this process's NIC for udp; or a list, one for each NIC
 *    "nics": by cores,         NICs of this process, one thread each (host: 1; with a list of addresses, its length);
 *                              all ranks use as many as the rank with the fewest
 *    "algorithm": by size,     ll, one-shot, two-shot, ring
 *    "channels": 24 (host: 1), "chunk_bytes": by the number of ranks,
 *    "name": "",               name of the communicator, equal at all ranks
 *    "join_timeout_s": 300,    time for which the first rank waits for the last
 *    "timeout_s": 300}         time for which a call waits for a rank; it must exceed the longest pause between two
 *                              calls, such as a checkpoint */
int bellpush_join(const char *options, bellpush **joined);

/* This process's rank, from 0; the number of ranks. */
int bellpush_rank(const bellpush *comm);
int bellpush_ranks(const bellpush *comm);

/* Reduces `count` elements over all ranks; every rank gets the same bits. `out` may equal `in`.
 * CUDA: both are addresses of this process's GPU, and the call is queued. It begins after the work that `stream` (a
 * cudaStream_t, NULL for the default stream) has queued so far, and later work of `stream` begins after it.
 * Host: both are addresses of host memory, `stream` is NULL, and the call returns when it is done.
 * BELLPUSH_FAILED: nothing was queued. A rank's calls return it within the timeout and a second after the failure.
 * BELLPUSH_DIFFERS concerns this call or an earlier one; all of them were made. With CUDA possibly only
 * bellpush_synchronize returns it. */
int bellpush_all_reduce(bellpush *comm, const void *in, void *out, uint64_t count, int dtype,
                        int op, void *stream);

/* Waits for all calls so far, or until one of them has failed; returns their result. */
int bellpush_synchronize(bellpush *comm);

/* Waits until all ranks leave, up to twice the timeout, and frees the communicator. After a failure it waits for no
 * rank. NULL is allowed. */
void bellpush_leave(bellpush *comm);

/* The last error of this thread, as one line; valid until the thread's next call. Never NULL. */
const char *bellpush_error(void);

#ifdef __cplusplus
}
#endif

#endif
