// Arguments of the kernels that measure, shared with Rust (crates/abi/src/bench.rs mirrors them).
#ifndef BELLPUSH_BENCH_ARGS_H
#define BELLPUSH_BENCH_ARGS_H

#include <bellpush/wire.h>
#include "entry/args.h"

enum {
  BP_BENCH_MAX_ENDPOINTS = 8,
  BP_BENCH_MAX_AUTO_ENDPOINTS = 6,  // a kernel's arguments have 4 KiB
};

// Messages of one size, in sequence, by one block.
struct bp_bench_rows {
  uint32_t endpoints;      // message m uses endpoint m % endpoints
  uint32_t messages;
  uint32_t each_quiet;     // latency: messages per batch, each followed by a quiet; 0: streaming
  uint32_t ring_every;     // streaming: messages per doorbell
  uint64_t src;            // message m: src + m * stride
  uint64_t remote_offset;  // message m: remote_offset + m * stride
  uint64_t stride;
  uint64_t bytes;
  uint64_t ticks;          // one uint64_t per batch: its clock ticks (latency only)
  uint64_t result;         // struct bp_bench_result
  struct bp_marks marks;   // of kernels that write marks (marked.cu)
  uint64_t round;          // value of the marks of its beginning and end
};
BP_ASSERT_SIZE(bp_bench_rows, 96);

// Marks of a round. Those of a message have message | queue pair << 32 | bp_status_code << 56 as value.
enum bp_bench_mark {
  BP_MARK_ROUND_BEGINS = 1,
  BP_MARK_PUT = 2,           // put is called
  BP_MARK_PUT_RETURNED = 3,  // | ticket behind its last WQE << 8, as many bits as there is room for
  BP_MARK_COMPLETE = 4,      // of all messages of the endpoint up to this one
  BP_MARK_ROUND_ENDS = 5,
  BP_MARK_OF_AUTO = 0x80,    // beside PUT, COMPLETE: the queue pair is that of an auto endpoint's two with a doorbell
};

struct bp_bench_args {
  struct bp_endpoint ep[BP_BENCH_MAX_ENDPOINTS];
  struct bp_bench_rows rows;
};
BP_ASSERT_SIZE(bp_bench_args, 192 * 8 + 96);

// The same on auto endpoints.
struct bp_auto_bench_args {
  struct bp_auto_endpoint ep[BP_BENCH_MAX_AUTO_ENDPOINTS];
  struct bp_bench_rows rows;
};
BP_ASSERT_SIZE(bp_auto_bench_args, 584 * 6 + 96);

// Each message by all blocks of the grid together, on one endpoint of a path that several callers share.
struct bp_blocks_bench_args {
  struct bp_endpoint ep;
  struct bp_bench_rows rows;
  uint64_t state;          // bp::blocks_state, zeroed, in this GPU's memory
};
BP_ASSERT_SIZE(bp_blocks_bench_args, 192 + 96 + 8);

// A message to the peer and one back, in turns: the side that begins times each round trip. A message's signal adds 1 to
// the peer's word, which the peer waits for.
struct bp_turns {
  uint32_t messages;       // round trips
  uint32_t begins;         // 1: puts, then waits; 0: waits, then puts
  uint64_t src;            // message m: src + m % places * stride
  uint64_t bytes;
  uint64_t stride;         // at both ends: the peer's region begins with place 0
  uint64_t places;
  uint64_t signal_offset;  // of the peer's word
  uint64_t word;           // this side's word, 0 at the begin
  uint64_t ticks;          // uint64_t[messages]: clock ticks of each round trip
  uint64_t result;         // struct bp_bench_result
};
BP_ASSERT_SIZE(bp_turns, 72);

struct bp_turns_args {
  struct bp_endpoint ep;
  struct bp_turns turns;
};
BP_ASSERT_SIZE(bp_turns_args, 192 + 72);

struct bp_auto_turns_args {
  struct bp_auto_endpoint ep;
  struct bp_turns turns;
};
BP_ASSERT_SIZE(bp_auto_turns_args, 584 + 72);

// One verb of an auto endpoint, as bp_op_args calls one of others; its endpoint is not used. `test` puts, and waits for
// the put's own ticket; `fence` puts, fences, and puts the first byte once more, with the signal. `compare` of a put by
// threads: bytes that each lane puts more than the lane before it.
struct bp_auto_op_args {
  struct bp_auto_endpoint ep;
  struct bp_op_args op;
};
BP_ASSERT_SIZE(bp_auto_op_args, 584 + 296);

struct bp_bench_result {
  uint32_t status;         // first status other than BP_OK
  uint32_t posted;         // messages whose put returned BP_OK
  uint64_t start_ns, end_ns;
  uint64_t start_ticks, end_ticks;
};
BP_ASSERT_SIZE(bp_bench_result, 40);

// Plain stores into a window, repeatedly: the highest rate at which this GPU can push.
struct bp_store_args {
  uint64_t window;
  uint64_t window_bytes;   // multiple of 16 * threads
  uint64_t src;            // window_bytes of it
  uint64_t total_bytes;
  uint64_t result;         // struct bp_bench_result
};
BP_ASSERT_SIZE(bp_store_args, 40);

// Lines that are rewritten continuously, each with one store of a warp (16 bytes per lane).
struct bp_tear_args {
  uint64_t lines;          // `count` lines of `line_bytes`
  uint32_t line_bytes;     // 16, 32, 64 or 128
  uint32_t count;
  uint64_t duration_ns;    // bound of the run
  uint64_t stop;           // uint32_t that the host sets
};
BP_ASSERT_SIZE(bp_tear_args, 32);

// End of each lap of bp_link_store and bp_link_load.
enum bp_link_lap {
  BP_LINK_RUN_ON = 0,        // no operation: laps overlap
  BP_LINK_FENCE_GPU = 1,     // barrier, the leader's gpu-scope fence, barrier
  BP_LINK_FENCE_SYSTEM = 2,  // barrier, the leader's system-scope fence, barrier
  BP_LINK_BARRIER = 3,       // barrier (loads: all values have arrived)
};

// The same accesses in every lap: access i of lap n is at target + n * lap_bytes + i * stride_bytes. The grid's
// threads take them in turn.
struct bp_link_move_args {
  uint64_t target;
  uint64_t accesses;       // accesses of the whole grid per lap
  uint64_t results;        // one struct bp_link_result per block, in this GPU's memory, zeroed
  uint64_t limit_ns;       // no lap begins later
  uint32_t access_bytes;   // 4, 8 or 16
  uint32_t stride_bytes;   // a multiple of access_bytes
  uint32_t laps;
  uint32_t each_lap;       // enum bp_link_lap
  uint32_t value;          // value of every stored word
  uint32_t lap_bytes;      // from one lap to the next; a multiple of access_bytes
};
BP_ASSERT_SIZE(bp_link_move_args, 56);

struct bp_link_result {
  uint32_t status;         // BP_OK, BP_TIMEOUT, BP_INVALID
  uint32_t laps;           // laps (rounds, loads) that were completed
  uint64_t start_ns, end_ns;
  uint64_t sum;            // sum of the loaded 4-byte words
};
BP_ASSERT_SIZE(bp_link_result, 32);

// Dependent loads, by one thread.
struct bp_link_chase_args {
  uint64_t target;         // span_bytes of zeros
  uint64_t span_bytes;     // a power of two
  uint64_t results;        // struct bp_link_result
  uint64_t limit_ns;
  uint32_t count;
  uint32_t stride_bytes;   // a multiple of 8
};
BP_ASSERT_SIZE(bp_link_chase_args, 40);

// Round trips of a flag, by one thread: it stores n, then waits for n elsewhere; or the reverse.
struct bp_link_flag_args {
  uint64_t store_at;       // uint64_t
  uint64_t watch_at;       // uint64_t
  uint64_t results;        // struct bp_link_result
  uint64_t limit_ns;       // bound of each wait
  uint32_t rounds;
  uint32_t answers;        // 1: waits first
};
BP_ASSERT_SIZE(bp_link_flag_args, 40);

// One all-reduce (f32, sum) by plain stores. Each rank stores its elements as units of 16 bytes, three words and
// the call's number + 1. Another party copies the units to the other ranks.
struct bp_link_exchange_args {
  uint64_t in, out;        // float[count]
  uint64_t send;           // [2][most] units in host memory, which calls use alternately
  uint64_t receive;        // [ranks][2][most] units in host memory; this rank's are not used
  uint64_t state;          // struct bp_link_exchange_state
  uint64_t limit_ns;       // bound of each wait
  uint32_t count;
  uint32_t most;           // most units of a call
  uint32_t rank, ranks;
};
BP_ASSERT_SIZE(bp_link_exchange_args, 64);

// State of this rank, in its GPU's memory; initially zero.
struct bp_link_exchange_state {
  uint64_t calls;          // calls made
  uint64_t ended;          // blocks of this call that have ended
  uint64_t status;         // BP_TIMEOUT, for good, once a wait has timed out
};
BP_ASSERT_SIZE(bp_link_exchange_state, 24);

enum {
  BP_POST_REMOTE_BYTES = 1 << 16,  // of the peer's region, which nobody reaches
  BP_POST_SRC_BYTES = 1 << 12,     // of the local region
  BP_POST_WORDS = 32,              // signal words that are waited for together
};

// What `bellpush bench --post` measures: posts on queue pairs that were filled by hand and that no NIC reads. Message m
// of a queue pair is 64 or 8 bytes at m * 64 of its peer's region, from m * 64 of its own, each modulo its length.
// Caller c's call i has message c * calls + i (of a batch, as many from that times the batch on).
struct bp_post_args {
  struct bp_endpoint ep;   // queue pair 0, for kernels with their endpoint among their arguments
  uint64_t endpoints;      // struct bp_endpoint of each queue pair, in this GPU's memory
  uint64_t src;            // start of the local region
  uint64_t results;        // one struct bp_post_result per block, zeroed
  uint64_t arrived;        // uint64_t, zeroed: blocks that are there
  uint64_t list;           // bp::message of each message that differs; behind them room for BP_POST_WORDS uint32_t
  uint64_t limit_ns;       // bound of the wait for the other blocks
  uint32_t calls;          // calls by each caller
  uint32_t one_qp;         // 1: all blocks post on queue pair 0; 0: block b posts on queue pair b
};
BP_ASSERT_SIZE(bp_post_args, 248);

struct bp_post_result {
  uint32_t status;         // BP_OK, or the highest status of any call of the block
  uint32_t reserved;
  uint64_t start_ns;       // all blocks were there
  uint64_t end_ns;         // this block's last call had returned
  uint64_t drained_ns;     // and its stores had arrived
};
BP_ASSERT_SIZE(bp_post_result, 32);

enum {
  BP_STREAM_WORD_BYTES = 64,  // from one slot's word to the next: a cache line each
  BP_STREAM_UNIT_BYTES = 512, // slots are whole rows of a warp's stores
};

// A stream through a window with no protocol around it, beside which `bellpush bench --post` shows those of queue pairs.
// Slot s has in lap n, from 1, what lies at place ((n - 1) * slots + s) % places. Threads of the host copy it out, and
// say so by the slot's credit.
struct bp_stream_args {
  uint64_t window;         // slots * slot_bytes, zeroed, in host memory
  uint64_t flags;          // likewise, zeroed: uint32_t each BP_STREAM_WORD_BYTES, laps in which the slot was stored
  uint64_t credits;        // the same of those in which it was copied out, which the host writes
  uint64_t src;            // places * place_bytes, and a line behind them
  uint64_t results;        // one struct bp_link_result per block, zeroed: laps and sum stay 0
  uint64_t limit_ns;       // bound of each wait; the first that reaches it ends its warp
  uint32_t slots;
  uint32_t slot_bytes;     // a multiple of BP_STREAM_UNIT_BYTES
  uint32_t laps;
  uint32_t places;
  uint32_t place_bytes;    // a multiple of 16, at least a slot's payload
  uint32_t reserved;
};
BP_ASSERT_SIZE(bp_stream_args, 72);

#endif
