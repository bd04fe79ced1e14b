/* Sends that GPU kernels post, for C and for languages that load C libraries: endpoints, a
 * bench, and all-reduce.
 *
 * A function returns 0, or a negative value of enum bellpush_code; bellpush_error then returns one line about the
 * error. Pointers are what their functions say, or NULL; every other argument is checked. Link with -lbellpush_c. */
#ifndef BELLPUSH_H
#define BELLPUSH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Codes ---- */

enum bellpush_code {
  BELLPUSH_OK = 0,
  BELLPUSH_REFUSED = -1,  /* an argument is invalid, or a device or file is missing; nothing was done */
  BELLPUSH_DIFFERS = -2,  /* the ranks made different calls; nothing was reduced, and the job continues */
  BELLPUSH_FAILED = -3,   /* a peer or its link failed. A communicator has ended, and every later call returns this; an
                           * endpoint's message says whether its queue pair has ended, or a wait was too short */
  BELLPUSH_IN_USE = -4,   /* as BELLPUSH_FAILED, but kernels that could not be ended within 11 s continue (a CPU thread
                           * without a processor). They may still read and write the memory of all calls since the last
                           * synchronisation: it must stay allocated and unused until the process ends */
};

/* The last error of this thread, as one line; valid until the thread's next call. Never NULL. */
const char *bellpush_error(void);

/* A code as it stands above, such as "BELLPUSH_REFUSED". Never NULL. */
const char *bellpush_code_name(int code);

/* ---- Endpoints ----
 *
 * A context is a GPU with a NIC. An endpoint is one end of a connection: a path (README.md), a region of the program's
 * memory, and a peer's region. Both ends are made with one path; each gives the other its address, by any means that
 * the program has. Any thread may call; calls of one endpoint take turns. A
 * close comes once, after all other calls have returned, and the handle is then gone. The child of a fork has neither: its
 * calls are refused, and its close does nothing. */

typedef struct bellpush_context bellpush_context;
typedef struct bellpush_endpoint bellpush_endpoint;
struct bp_endpoint; /* <bellpush/wire.h> */

/* Opens a GPU and a NIC. `options` is JSON or NULL; names and defaults:
 *   {"executor": "cuda",   or "host": kernels on CPU threads, regions in host memory
 *    "gpu": 0,             CUDA ordinal
 *    "nic": "soft",        the software NIC, or a device: "mlx5_0", "mlx5_0:1:3" with port and GID's index
 *    "link": "process",    of the NIC soft: how far it reaches. "shm": the processes of one user that give the same
 *                          "name"; "udp": RoCEv2
 *    "address": first free} IP address of the NIC soft on udp; by itself it is one of 127.0.0.0/16 */
int bellpush_open(const char *options, bellpush_context **opened);

/* Endpoints that were made with it go on. NULL is allowed. */
void bellpush_close(bellpush_context *context);

/* An endpoint on `bytes` bytes at `region`, which stay the program's until it is closed: memory of the context's GPU,
 * or with the host executor of this process. `path` is such as "push/inband" or "pull/kernel"; `options` is JSON or
 * NULL; names and defaults:
 *   {"window_bytes": 131072, "slot_bytes": 4096,  of the window: push and staged paths
 *    "line": "12+4",       line format of in-band paths
 *    "sq_blocks": 1024,    depth of the send queue in blocks of 64 bytes
 *    "receives": 0,        immediates that may have come and not been taken
 *    "timeout_s": 5}       of each single wait */
int bellpush_endpoint_new(const bellpush_context *context, const char *path, const char *options, void *region,
                          uint64_t bytes, bellpush_endpoint **made);

/* Writes what the peer needs to connect, as one line of JSON with a NUL behind it; returns its length. Refused where
 * `room` bytes are too few, with their number in the message: 512 are enough. Of path "tcp" it has a key, with which
 * anybody can connect. */
int bellpush_endpoint_address(const bellpush_endpoint *endpoint, char *address, size_t room);

/* Connects to the peer whose address this is, once. */
int bellpush_endpoint_connect(bellpush_endpoint *endpoint, const char *address);

/* Queues a write of `bytes` bytes at offset `from` of this region to offset `to` of the peer's; put_signal then adds
 * `add` to the 8-byte word at `word` of the peer's region, whose address is a multiple of 8: who sees the sum sees the
 * bytes. get reads from the peer's.
 * CUDA: it begins after the work that `stream` (a cudaStream_t, NULL for the default stream) has queued so far, and
 * later work of `stream` begins after it was posted. Host: `stream` is NULL. The bytes stay until bellpush_quiet. */
int bellpush_put(bellpush_endpoint *endpoint, uint64_t to, uint64_t from, uint64_t bytes, void *stream);
int bellpush_put_signal(bellpush_endpoint *endpoint, uint64_t to, uint64_t from, uint64_t bytes, uint64_t word,
                        uint64_t add, void *stream);
int bellpush_get(bellpush_endpoint *endpoint, uint64_t to, uint64_t from, uint64_t bytes, void *stream);

/* Waits until all calls are complete: written bytes are in the peer's memory, fetched ones here. Returns the first
 * failure since the last one. */
int bellpush_quiet(bellpush_endpoint *endpoint);

/* Takes the oldest immediate that the peer's kernels sent: returns 1 with it in *value, or 0. Needs "receives". */
int bellpush_poll_immediate(bellpush_endpoint *endpoint, uint32_t *value);

/* Copies out what kernels call the device verbs with (docs/device-api.md), of a connected endpoint that a GPU posts on;
 * valid until it is closed. `bytes` is sizeof(struct bp_endpoint). */
int bellpush_endpoint_device(const bellpush_endpoint *endpoint, struct bp_endpoint *device, size_t bytes);

/* What such kernels have to be compiled for: 0 bp::reach::gpu or 1 bp::reach::system; and for the context's NIC,
 * 0 bp::order::later or 1 bp::order::strict. */
int bellpush_endpoint_reach(const bellpush_endpoint *endpoint);
int bellpush_order(const bellpush_context *context);

/* Ends and frees the endpoint. BELLPUSH_IN_USE: its region has to stay. NULL is allowed. Kernels of the program's own
 * have ended before. */
int bellpush_endpoint_close(bellpush_endpoint *endpoint);

/* ---- Bench ---- */

/* Times puts between two endpoints of its own in this process, on the context's GPU and NIC, from the GPU's memory into
 * mapped host memory, and compares every byte.
 * `options` is JSON or NULL; names and defaults:
 *   {"paths": [],          such as ["push/inband", "pull/kernel"]; all of them if it is empty
 *    "sizes": [8, 4096],   bytes of a put, at most 64 MiB
 *    "messages": 1000,     puts of each path and size that are timed one by one, and again with more in flight
 *    "timeout_s": 5}       of each single wait; more than 0, at most a year
 * Writes one line of JSON with a NUL behind it and returns its length:
 *   {"on": "host, soft",   the executor and the NIC
 *    "rows": [{"path": "push/inband", "bytes": 8, "messages": 1000,
 *              "p50_ns": 900, "p99_ns": 1500,   from the call of a put to its completion seen, one at a time
 *              "gb_per_s": 0.03,                with up to 16 puts, and up to 1 MiB, before a wait
 *              "error": null}]}                 or why this path cannot be taken; the numbers are then null
 * Refused where `room` is less than 256 bytes and 384 for each row, of which there are at most 256. Such times have the
 * launch of what posts in them: what a kernel sees that posts by itself is measured by 'bellpush bench'. On the host
 * executor they show what works, and rank no path. */
int bellpush_bench(const bellpush_context *context, const char *options, char *rows, size_t room);

/* ---- All-reduce ----
 *
 * Each process of a job (started by torchrun, mpirun or Slurm) calls bellpush_join. Afterwards all processes make the
 * same calls in the same order. One thread at a time uses a communicator. The child of a fork has no communicator: its
 * calls are refused, and its bellpush_leave does nothing. */

typedef struct bellpush bellpush;

enum bellpush_dtype { BELLPUSH_F32 = 0, BELLPUSH_F16 = 1, BELLPUSH_BF16 = 2, BELLPUSH_I32 = 3 };
enum bellpush_op { BELLPUSH_SUM = 0, BELLPUSH_MAX = 1, BELLPUSH_MIN = 2, BELLPUSH_MEAN = 3 };

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
 * BELLPUSH_FAILED: this call or an earlier one has failed, and so do all that follow; what is in `out` is undefined. A
 * rank's calls return it within the timeout and a second after the failure.
 * BELLPUSH_DIFFERS concerns this call or an earlier one; all of them were made. With CUDA possibly only
 * bellpush_synchronize returns it. */
int bellpush_all_reduce(bellpush *comm, const void *in, void *out, uint64_t count, int dtype,
                        int op, void *stream);

/* Waits for all calls so far, or until one of them has failed; returns their result. */
int bellpush_synchronize(bellpush *comm);

/* Waits until all ranks leave, up to twice the timeout, and frees the communicator. After a failure it waits for no
 * rank. NULL is allowed. */
void bellpush_leave(bellpush *comm);

#ifdef __cplusplus
}
#endif

#endif
