// What the host and an engine on a GPU share (crates/abi/src/engine.rs mirrors it). All fields are in the
// machine's own order.
//
// A queue pair's send side belongs to the host or to the engine, never to both. The host *grants* it:
// it writes the context's two parts, then an odd number into `asked`. The engine takes it when it
// sees that, and works until the host asks for it back (the next even number) or until it finds what
// it does not do itself; then it writes where it stands into the record and the grant's number behind
// it. So every error, state change and rare operation is the host's, in the code that it has anyway.
#ifndef BELLPUSH_ENGINE_H
#define BELLPUSH_ENGINE_H

#include <bellpush/wire.h>

enum {
  BP_ENGINE_BLOCK_QPS = 32,  // queue pairs of a block: context i belongs to block i % blocks
  BP_KEY_TABLE_KEYS = 4096,  // keys that an engine knows of a NIC; it returns what names others
  BP_ENGINE_WQE_BYTES = 2048,
  BP_ENGINE_CONTROL_BLOCK_BYTES = 128,
  BP_ENGINE_SHARED_BYTES = 24576,  // shared memory of a block, beside a slot's stream
};

// Why the engine returned a queue pair.
enum bp_return {
  BP_RETURN_ASKED = 0,      // the host asked for it
  BP_RETURN_WQE = 1,        // a WQE, a slot or a BlueFlame buffer that it does not carry out
  BP_RETURN_KEY = 2,        // a key, range or right that it does not find
  BP_RETURN_CQ_FULL = 3,
};

// Bits of bp_key.rights and bp_qpc.peer_rights.
enum bp_right {
  BP_RIGHT_GATHER = 1,
  BP_RIGHT_LOCAL_WRITE = 2,
  BP_RIGHT_REMOTE_WRITE = 4,
  BP_RIGHT_REMOTE_READ = 8,
  BP_RIGHT_REMOTE_ATOMIC = 16,
  BP_KEY_NEAR = 32,  // no right: the region is memory of the engine's own GPU
};

enum bp_qpc_line { BP_LINE_NONE = 0, BP_LINE_12_4 = 1, BP_LINE_14_2 = 2, BP_LINE_60_4 = 3 };

// A memory region, at the index of its key. `key` is 0 while there is none; it is written last.
struct bp_key {
  uint64_t va;      // where the engine's GPU reaches the first byte
  uint64_t iova;
  uint64_t bytes;
  uint32_t key;
  uint32_t pd;
  uint32_t rights;
  uint32_t reserved;
  uint64_t reserved2[3];
};
BP_ASSERT_SIZE(bp_key, 64);

// Where a send queue stands: what changes hands.
struct bp_qpc_state {
  uint64_t ci;            // basic blocks taken
  uint64_t producer;      // basic blocks known to be posted
  uint64_t registers[2];  // UAR registers as last seen
  uint64_t ticket;        // in-band: the next slot's
  uint64_t cq_pi;
  uint64_t cq_ci;         // the consumer index as last read
  // Done by the engine since the context was first granted.
  uint64_t wqes;
  uint64_t bytes;
  uint64_t inband;
  uint64_t blueflame;
  uint64_t doorbells;
  uint32_t dbr_seen;
  uint32_t why;           // enum bp_return
  uint64_t reserved[3];
};
BP_ASSERT_SIZE(bp_qpc_state, 128);

// What a queue pair is made of, as the engine's GPU addresses it.
struct bp_qpc_fixed {
  uint64_t sq, dbr, uar, cq, cq_dbr, window;
  uint64_t keys;          // struct bp_key[BP_KEY_TABLE_KEYS] of this end's NIC
  uint64_t peer_keys;     // and of the peer's
  uint32_t qpn, pd, uidx;
  uint32_t sq_blocks;     // a power of two
  uint32_t cqes;          // a power of two
  uint32_t peer_pd, peer_rights;
  uint32_t blueflame;     // 1: whole WQEs with check words come in the UAR's second buffer
  uint32_t line;          // enum bp_qpc_line
  uint32_t slot_bytes, slots, seq0;
  uint32_t reserved[4];
};
BP_ASSERT_SIZE(bp_qpc_fixed, 128);

// A queue pair's context, in the engine's memory.
struct bp_qpc {
  uint64_t asked;     // the host's
  uint64_t returned;  // the engine's: number of the last grant that it returned
  uint64_t reserved[14];
  struct bp_qpc_fixed fixed;
  struct bp_qpc_state state;
};
BP_ASSERT_SIZE(bp_qpc, 384);

// What the host sees of it, in host memory.
struct bp_qpc_record {
  uint64_t returned;  // written last
  uint64_t reserved[15];
  struct bp_qpc_state state;  // its counts also while the engine has the queue pair
};
BP_ASSERT_SIZE(bp_qpc_record, 256);

// A run: in-band slots that follow each other, whose WRITEs continue each other and have one length.
struct bp_engine_run {
  uint64_t window;
  uint64_t slot;        // where the first one lies
  uint32_t slots, slot_bytes;  // of the window
  uint32_t line;        // enum bp_qpc_line; BP_LINE_NONE: no slots
  uint32_t sequence;    // of the first one's lines
  uint32_t count;       // slots of the run
  uint32_t bytes;       // payload of each
  uint32_t piece;       // slots of a piece
  uint32_t part;        // room that a block has for a slot's stream
};
BP_ASSERT_SIZE(bp_engine_run, 48);

// A payload that the blocks share, piece by piece; one a block.
struct bp_engine_job {
  uint64_t next;      // pieces << 32 | next piece
  uint64_t done;      // pieces moved, or given up
  uint64_t to;
  uint64_t from, bytes;  // of payload in memory
  struct bp_engine_run run;  // or it is in these
  uint64_t missing;   // slots of the run from the first one on that lacked a line
  uint64_t reserved[4];
};
BP_ASSERT_SIZE(bp_engine_job, 128);

// In the engine's memory.
struct bp_engine_control_block {
  uint64_t epoch;     // the host's: every block answers a new one when it holds nothing
  uint64_t stop;      // the host's: not 0 ends the engine
  uint64_t open;      // jobs that have pieces left
  uint64_t reserved[13];
};
BP_ASSERT_SIZE(bp_engine_control_block, 128);

struct bp_engine_args {
  uint64_t control;       // struct bp_engine_control_block, and behind it a struct bp_engine_job a block
  uint64_t contexts;    // struct bp_qpc[BP_ENGINE_BLOCK_QPS * blocks]
  uint64_t records;     // struct bp_qpc_record, as many
  uint64_t answers;     // uint64_t a block, in host memory: the last epoch that it saw
  uint64_t run_ns;      // the engine ends after this time, when it holds no message
  uint32_t rounds;      // and after so many looks at everything; 0: any number
  uint32_t slot_bytes;  // longest in-band slot
};
BP_ASSERT_SIZE(bp_engine_args, 48);

#endif
