// What Rust hands to the collective kernels, and what ranks say to each other
// (crates/abi/src/collective.rs mirrors it).
#ifndef BELLPUSH_COLLECTIVE_H
#define BELLPUSH_COLLECTIVE_H

#include <bellpush/wire.h>

enum bp_coll_algorithm {
  BP_COLL_ONE_SHOT = 0,
  BP_COLL_TWO_SHOT = 1,
  BP_COLL_RING = 2,
  BP_COLL_LL = 3,  // shares are at most BP_COLL_LL_BYTES, those of all ranks BP_COLL_LL_ALL_BYTES
};
enum bp_coll_dtype { BP_COLL_F32 = 0, BP_COLL_F16 = 1, BP_COLL_BF16 = 2, BP_COLL_I32 = 3 };
enum bp_coll_op { BP_COLL_SUM = 0, BP_COLL_MAX = 1, BP_COLL_MIN = 2, BP_COLL_MEAN = 3 };

enum bp_coll_code {
  BP_COLL_OK = 0,
  BP_COLL_SILENT = 1,    // a rank did not send what was waited for, and did not say why
  BP_COLL_LINK = 2,      // the queue pair to a rank ended, or took nothing for the timeout
  BP_COLL_MISMATCH = 3,  // a rank calls something else; nothing was reduced
  BP_COLL_LATE = 4,      // the others gave up waiting for this rank
  BP_COLL_CORRUPT = 5,   // a message is not the one that its signal announced
};

enum {
  BP_COLL_HEADER_BYTES = 64,  // before a message's payload
  BP_COLL_DEPTH = 4,          // messages of a stream on their way to a rank
  // An LL message (ll.cuh): bytes of payload at most, of one and of all ranks together, in units of 12; slots of
  // a stream, and bytes of a slot, which holds struct bp_coll_call and payload, three words beside a flag.
  BP_COLL_LL_BYTES = 8192,
  BP_COLL_LL_ALL_BYTES = 8 * 4104,
  BP_COLL_LL_SLOTS = 2,
  BP_COLL_LL_SLOT_BYTES = 11008,
  // Shared memory of a block: a few words, endpoints of the first ranks that it sends to, what LL
  // messages of all ranks bring, and one to send.
  BP_COLL_NEAR_ENDPOINTS = 8,
  BP_COLL_BLOCK_BYTES = 64 + BP_COLL_NEAR_ENDPOINTS * 192 + BP_COLL_LL_ALL_BYTES + BP_COLL_LL_SLOT_BYTES,
};

// What a rank calls, as its messages say.
struct bp_coll_call {
  uint64_t call;  // calls of the communicator before this one
  uint64_t count;
  uint32_t dtype, op, algorithm, channels;
};
BP_ASSERT_SIZE(bp_coll_call, 32);

// Before the payload of a message of the other streams. `message` counts a stream's messages from 0
// over all calls.
struct bp_coll_header {
  uint64_t message;
  struct bp_coll_call said;
  uint64_t reserved[3];
};
BP_ASSERT_SIZE(bp_coll_header, BP_COLL_HEADER_BYTES);

// Why a call ended, in memory that the host reads. What is there stays until the host takes it.
struct bp_coll_status {
  uint32_t code;    // bp_coll_code, written last
  uint32_t rank;    // whom it is about
  struct bp_coll_call own;   // the call
  struct bp_coll_call said;  // BP_COLL_MISMATCH: what that rank calls
};
BP_ASSERT_SIZE(bp_coll_status, 72);

// How far a channel's streams are: messages of earlier calls. GPU memory, a channel's blocks alone; below, what
// the two blocks of an all-to-all tell each other (all_to_all.cuh).
struct bp_coll_channel {
  uint64_t ll;
  uint64_t all_to_all;
  uint64_t ring;
  uint64_t sent;      // messages of the all-to-all stream that were sent, over all calls
  uint64_t consumed;  // and that were consumed
  uint64_t stopped;   // call + 1: the one that receives has ended before its time
  uint64_t left;      // call + 1: the one that sends has ended
  uint64_t failed;    // why, if it failed: bp_coll_code << 32 | rank
  uint64_t pad[8];
};
BP_ASSERT_SIZE(bp_coll_channel, 128);

// What the blocks of a rank tell each other. GPU memory.
struct bp_coll_shared {
  uint64_t verdict;   // 2 * call + 1: go; 2 * call + 2: what the ranks call differs
  uint64_t report;    // what this rank tells the others when it gives up
  uint32_t dead;      // 1 once it has; for good
  uint32_t status;    // 1 while the first bp_coll_status is being, or was, written
  uint64_t call;      // number of the next call; counted here, so that a recorded call can be replayed
  uint64_t begun;     // blocks of this call that have read it
  uint64_t settles;   // where ranks differ: channels that take an LL message << 32 | all-to-all messages
  uint64_t pad[10];
};
BP_ASSERT_SIZE(bp_coll_shared, 128);

// One all-reduce of one rank.
struct bp_coll_args {
  uint64_t in, out;            // count elements each; the same address, or apart
  uint64_t share;              // elements of a channel, but the last ones': whole 16 bytes
  uint64_t count;              // from here on as in bp_coll_call
  uint32_t dtype, op, algorithm;
  uint32_t channels;           // of this call
  uint32_t rank, ranks;
  uint32_t chunk_bytes;        // payload that a slot holds; multiple of 64
  uint8_t unwaited;            // negative control: 1 reads slots without waiting for them
  uint8_t early;               // 1: the kernel behind may begin beside this one
  uint16_t all_channels;       // channels that the communicator has
  uint64_t endpoints;          // bp_endpoint[][ranks], by channel; the own rank's is not used
  uint64_t channel_state;      // bp_coll_channel[]
  uint64_t shared;             // bp_coll_shared
  uint64_t status;             // bp_coll_status[2], host memory: ranks that differ; what ended the communicator
  // This rank's region; offsets in it are the same at every rank.
  uint64_t region;
  uint64_t reports;            // uint64_t[ranks]: rank r gave up waiting for rank (word - 1)
  uint64_t ll_slots;        // [][ranks][BP_COLL_LL_SLOTS]
  uint64_t all_to_all_signals;   // uint64_t[][ranks]: messages that rank r has sent
  uint64_t ring_signals;       // uint64_t[]
  uint64_t all_to_all_slots;     // [][ranks][2 * BP_COLL_DEPTH]
  uint64_t ring_slots;         // [][ranks * BP_COLL_DEPTH]
  uint64_t ll_stage;        // address: [][BP_COLL_LL_SLOTS], where the NIC pulls
  uint64_t stage;              // address: [][3 * BP_COLL_DEPTH * ranks] slots to send from
  uint64_t piece_bytes;        // payload of a message of this call at most; multiple of 64
  uint64_t timeout_ns;         // bound of each wait
  uint64_t grace_ns;           // how long a rank that gives up listens for the others' reasons
};
BP_ASSERT_SIZE(bp_coll_args, 32 + 32 + 16 * 8);

#endif
