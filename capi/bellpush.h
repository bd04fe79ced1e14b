/* All-reduce with sends that GPU kernels post, for C and whatever loads C libraries.
 *
 * A job's processes, started by torchrun, mpirun or Slurm, each call bellpush_join; then all of them
 * make the same calls in the same order. Functions return 0, or a negative number of enum
 * bellpush_code; bellpush_error then has one line about it. A communicator is used by one thread at
 * a time. The child of a fork has none: its calls are refused, and bellpush_leave does nothing there. Link with -lbellpush_c. */
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
  BELLPUSH_REFUSED = -1,  /* an argument is wrong, or something is missing; nothing was done */
  BELLPUSH_DIFFERS = -2,  /* ranks call different things; nothing was reduced, the job goes on */
  BELLPUSH_FAILED = -3,   /* a rank or the link to it failed; the communicator has ended, and every call says so */
  BELLPUSH_IN_USE = -4,   /* as BELLPUSH_FAILED, but kernels go on that could not be ended within 11 s (a CPU thread
                           * that gets no processor): they may still read `in` and write `out` of all calls since the
                           * last synchronisation, which must stay allocated, and unused, until the process ends */
};

/* Joins the job that the environment describes: the launcher's variables, MASTER_ADDR or
 * BELLPUSH_ROOT, BELLPUSH_JOB_SECRET (without it the ranks make a secret, if they are on one host or
 * share a home). Waits for all ranks, up to join_timeout_s. A process that an earlier start of the job has left
 * behind is kept out by the launcher's name of the job and its number of restarts (Slurm's; torchrun's where all ranks
 * are on one host), or by BELLPUSH_JOB_START where that is set; start ranks by hand with another one each time. Communicators that are joined at once need
 * different names. `options` is JSON or NULL; names and defaults:
 *   {"executor": "cuda",       or "host": kernels on CPU threads, elements in host memory
 *    "gpu": local rank,        CUDA ordinal, modulo the number of GPUs by default
 *    "path": "push/inband",    push/kernel, push/blueflame, pull/kernel, pull/blueflame
 *    "line": "12+4",           of push/inband: 14+2 or 60+4 where `bellpush bench --tearing` finds none torn
 *    "link": "shm",            at most 16 processes, all on one host; or "udp" (RoCEv2)
 *    "address": first free,    of this process's NIC on udp; or a list, of each NIC
 *    "nics": by cores,         NICs of this process, a thread each (host: 1), or of as many addresses; the least of all ranks'
 *    "algorithm": by size,     quick, one-shot, two-shot, ring
 *    "channels": 24 (host: 1), "chunk_bytes": by the number of ranks,
 *    "name": "",               of the communicator, alike at all ranks
 *    "join_timeout_s": 300,    how long the first rank waits for the last
 *    "timeout_s": 300}         how long a call waits for a rank: longer than a checkpoint, or what else ranks do between calls */
int bellpush_join(const char *options, bellpush **joined);

int bellpush_rank(const bellpush *comm);
int bellpush_ranks(const bellpush *comm);

/* Reduces `count` elements over all ranks; the same bits arrive at each. `out` may be `in`.
 * CUDA: addresses of this process's GPU; the call is queued: it begins after what `stream` (a
 * cudaStream_t, NULL for the default stream) has queued by now, and what `stream` queues later begins
 * after it. Host: addresses of host memory, `stream` is NULL, and the call returns when it is done.
 * BELLPUSH_FAILED: nothing was queued. As a rule a rank's calls begin to return it within the timeout and a second of
 * the failure, or within twice the timeout where rank 0 goes between two calls; the bound that each wait inside a call
 * keeps at the worst is four timeouts and a second. BELLPUSH_DIFFERS is about this or an earlier call, and all were made; on CUDA it may show in
 * bellpush_synchronize alone. */
int bellpush_all_reduce(bellpush *comm, const void *in, void *out, uint64_t count, int dtype,
                        int op, void *stream);

/* Waits for all calls so far, and says what became of them; no longer than until one has failed. */
int bellpush_synchronize(bellpush *comm);

/* Waits, up to twice the timeout, until all ranks leave, and frees everything. After a failure it waits for no rank.
 * NULL is fine. */
void bellpush_leave(bellpush *comm);

/* The last error of this thread; valid until its next call. Never NULL. */
const char *bellpush_error(void);

#ifdef __cplusplus
}
#endif

#endif
