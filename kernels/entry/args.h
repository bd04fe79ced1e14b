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
  // Of the kernels in extra.cu:
  BP_VERB_PUT_SET = 11,
  BP_VERB_SIGNAL_ADD = 12,
  BP_VERB_SIGNAL_SET = 13,
  BP_VERB_PUT_VALUE = 14,
  BP_VERB_PUT_WITHIN = 15,
  BP_VERB_WAIT_WITHIN = 16,
  BP_VERB_WAIT_LOCAL = 17,
  BP_VERB_FENCE = 18,
  BP_VERB_COUNT_TICKETS = 19,
  BP_VERB_PUT_IMM = 20,
  BP_VERB_SIGNAL_IMM = 21,
  BP_VERB_PUT_BLOCKS = 22,
  BP_VERB_PUT_SIGNAL_BLOCKS = 23,
  BP_VERB_PUT_VECTOR = 24,
};
enum bp_scope { BP_SCOPE_THREAD = 0, BP_SCOPE_WARP = 1, BP_SCOPE_BLOCK = 2 };

// One verb, which every caller (thread, warp or block of the grid) calls `count` times. Caller k's n-th call uses
// offset + (k * count + n) * stride. Of put_lanes every thread is a caller, whatever the scope; of put_batch each call
// has `value` messages, and the k-th call's first one comes behind the calls' before; of put_blocks all blocks make
// the n-th call together, with offset + n * stride.
struct bp_op_args {
  struct bp_endpoint ep;
  uint32_t op;
  uint32_t scope;          // enum bp_scope; put_blocks: the first block's rank
  uint32_t count;
  uint32_t flags;
  uint64_t remote_offset;
  uint64_t remote_stride;
  uint64_t local;          // address of source, destination or result, 0: none; fence: of a second endpoint;
                           // count_tickets: of two words, for what was posted and what is complete
  uint64_t local_stride;
  uint64_t bytes;
  uint64_t value;          // atomics, signal; test: ticket; put_lanes: a warp's active lanes; put_batch: messages;
                           // put_value: the first 8 bytes; wait_within, wait_local: ticket
  uint64_t compare;        // put_lanes: bytes that each lane puts more than the lane before it; put_value: the last 8;
                           // put_within, wait_within: the bound in ns; put_blocks: address of the blocks' state;
                           // put_vector: address of the list
  uint64_t signal_offset;
  uint64_t status;         // uint32_t a caller: first status that was not BP_OK
  uint32_t quiet_after;    // each caller calls quiet at its end
  uint32_t others;         // put_blocks: blocks that are not of this grid
  uint64_t failed;         // a block's calls: uint32_t that says whether one of the stream has failed, or 0
};
BP_ASSERT_SIZE(bp_op_args, 192 + 16 + 72 + 16);

enum bp_watch { BP_WATCH_TEST = 0, BP_WATCH_WAIT = 1, BP_WATCH_ALL = 2, BP_WATCH_ANY = 3, BP_WATCH_SOME = 4 };
enum bp_cmp { BP_CMP_EQ = 0, BP_CMP_NE = 1, BP_CMP_GT = 2, BP_CMP_GE = 3, BP_CMP_LT = 4, BP_CMP_LE = 5 };

// One look at signal words, or wait for them, by every caller of the grid.
struct bp_watch_args {
  struct bp_endpoint ep;
  uint32_t watch;          // enum bp_watch
  uint32_t scope;
  uint32_t cmp;            // enum bp_cmp
  uint32_t n;              // words
  uint64_t words;          // uint64_t[n]; test, wait: one
  uint64_t skip;           // uint32_t[n], or 0
  uint64_t value;
  uint64_t found;          // any: the index; some: their number, behind it the indices. n + 1 uint32_t a caller
  uint64_t status;         // uint32_t a caller
};
BP_ASSERT_SIZE(bp_watch_args, 192 + 16 + 40);

#endif
