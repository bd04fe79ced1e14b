// Arguments of the kernels on a table of peers, shared with Rust (crates/abi/src/peers.rs mirrors them).
#ifndef BELLPUSH_ENTRY_PEERS_H
#define BELLPUSH_ENTRY_PEERS_H

#include <bellpush/wire.h>

enum bp_peers_op {
  BP_PEERS_QUIET = 0,
  BP_PEERS_SYNC = 1,
  BP_PEERS_BARRIER = 2,
  // Regions have n chunks of `bytes`, of which each rank has filled its own: afterwards every rank has all. In n - 1
  // steps each rank puts the chunk that came last to the next one, by all rails, and calls the barrier.
  BP_PEERS_ALL_GATHER = 3,
};

// What became of it: the first failure, and the rank that it concerns, which is written first.
struct bp_peers_status {
  uint32_t code;
  uint32_t whom;
};
BP_ASSERT_SIZE(bp_peers_status, 8);

// One call by the first thread, warp or block of the grid (`scope` as in args.h), `count` times.
struct bp_peers_args {
  struct bp_peers peers;
  uint32_t op;
  uint32_t scope;
  uint64_t local;   // all_gather: this rank's region
  uint64_t bytes;   // all_gather: a chunk
  uint64_t status;  // struct bp_peers_status
  uint32_t count;
  uint32_t reserved;
};
BP_ASSERT_SIZE(bp_peers_args, 48 + 40);

#endif
