// Arguments of the kernels that call one verb, shared with Rust (crates/abi/src/entry.rs mirrors them).
#ifndef BELLPUSH_ARGS_H
#define BELLPUSH_ARGS_H

#include <bellpush/wire.h>

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
  BP_VERB_PUT_LANES = 9,
  BP_VERB_PUT_BATCH = 10,
  BP_VERB_FENCE = 11,  // of auto endpoints only
};
enum bp_scope { BP_SCOPE_THREAD = 0, BP_SCOPE_WARP = 1, BP_SCOPE_BLOCK = 2 };

// One verb, which every caller (thread, warp or block of the grid) calls `count` times. Caller k's n-th call uses
// offset + (k * count + n) * stride. Of put_lanes every thread is a caller, whatever the scope; of put_batch each call
// has `value` messages, and the k-th call's first one comes behind the calls' before.
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
  uint64_t value;          // atomics, signal; test: ticket; put_lanes: a warp's active lanes; put_batch: messages
  uint64_t compare;        // put_lanes: bytes that each lane puts more than the lane before it
  uint64_t signal_offset;
  uint64_t status;         // uint32_t a caller: first status that was not BP_OK
  uint32_t quiet_after;    // each caller calls quiet at its end
  uint32_t reserved;
};
BP_ASSERT_SIZE(bp_op_args, 192 + 16 + 72 + 8);

#endif
