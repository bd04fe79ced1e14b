// Arguments of our own kernels, shared with Rust (src/gpu/args.rs mirrors them).
#ifndef BELLPUSH_ARGS_H
#define BELLPUSH_ARGS_H

#include "wire.h"

enum bp_op {
  BP_VERB_PUT = 0,
  BP_VERB_PUT_INLINE = 1,
  BP_VERB_PUT_SIGNAL = 2,
  BP_VERB_GET = 3,
  BP_VERB_FETCH_ADD = 4,
  BP_VERB_COMPARE_SWAP = 5,
  BP_VERB_QUIET = 6,
  BP_VERB_TEST = 7,
  BP_VERB_WAIT_SIGNAL = 8,
};
enum bp_scope { BP_SCOPE_THREAD = 0, BP_SCOPE_WARP = 1, BP_SCOPE_BLOCK = 2 };

// One verb, called `count` times by every caller (thread, warp or block of the grid). Caller k's
// n-th call works at offset + (k * count + n) * stride.
struct bp_op_args {
  struct bp_endpoint ep;
  uint32_t op;
  uint32_t scope;
  uint32_t count;
  uint32_t flags;
  uint64_t remote_offset;
  uint64_t remote_stride;
  uint64_t local;          // address of source, destination or result; 0: none
  uint64_t local_stride;
  uint64_t bytes;
  uint64_t value;          // atomics, signal; test: ticket
  uint64_t compare;
  uint64_t signal_offset;
  uint64_t status;         // uint32_t a caller: first status that was not BP_OK
  uint32_t quiet_after;    // each caller calls quiet at its end
  uint32_t reserved;
};
BP_ASSERT_SIZE(bp_op_args, 192 + 16 + 72 + 8);

enum { BP_BENCH_MAX_ENDPOINTS = 8 };

// Messages of one size, in a row. One block.
struct bp_bench_args {
  struct bp_endpoint ep[BP_BENCH_MAX_ENDPOINTS];
  uint32_t endpoints;      // message m goes by endpoint m % endpoints
  uint32_t messages;
  uint32_t each_quiet;     // 1: latency, a quiet after each message; 0: streaming
  uint32_t ring_every;     // streaming: messages a doorbell
  uint64_t src;            // message m: src + m * stride
  uint64_t remote_offset;  // message m: remote_offset + m * stride
  uint64_t stride;
  uint64_t bytes;
  uint64_t ticks;          // uint64_t[messages]: clock ticks of each (latency only)
  uint64_t result;         // struct bp_bench_result
};
BP_ASSERT_SIZE(bp_bench_args, 192 * 8 + 64);

struct bp_bench_result {
  uint32_t status;         // first status that was not BP_OK
  uint32_t posted;         // messages whose put returned BP_OK
  uint64_t start_ns, end_ns;
  uint64_t start_ticks, end_ticks;
};
BP_ASSERT_SIZE(bp_bench_result, 40);

// Plain stores into a window, over and over: what this GPU can push at most.
struct bp_store_args {
  uint64_t window;
  uint64_t window_bytes;   // multiple of 16 * threads
  uint64_t src;            // window_bytes of it
  uint64_t total_bytes;
  uint64_t result;         // struct bp_bench_result
};
BP_ASSERT_SIZE(bp_store_args, 40);

// Lines rewritten for a while, each by one store of a warp (16 bytes a lane).
struct bp_tear_args {
  uint64_t lines;          // `count` lines of `line_bytes`
  uint32_t line_bytes;     // 16, 32, 64 or 128
  uint32_t count;
  uint64_t duration_ns;    // bound of the run
  uint64_t stop;           // uint32_t that the host sets
};
BP_ASSERT_SIZE(bp_tear_args, 32);

#endif
