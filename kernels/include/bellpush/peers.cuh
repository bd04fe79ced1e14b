// Many peers: a table of endpoints, one for each rank and rail; barriers of all ranks.
//
// The verbs are the ordinary ones, on the endpoint that peer() gives:
//
//   const bp_endpoint ep = bp::peer(args.peers, rank, bp::rail_of(args.peers, bp::bid()));
//   bp::put<P>(ep, bp::block_scope{}, remote_offset, source, bytes);
//   bp::barrier_all<P>(args.peers, bp::block_scope{});
//
// A rail is a NIC, or one of several queue pairs of a NIC. Nothing orders two rails of a rank.
#ifndef BELLPUSH_PEERS_CUH
#define BELLPUSH_PEERS_CUH

#include <bellpush/atomics.cuh>
#include <bellpush/wait.cuh>

namespace bp {

// The endpoint of a rank on a rail, copied into a variable of the caller's by loads of 16 bytes: verbs on a reference
// to the table would load its words again behind each fence. A rank that is this one, or not there, and a rail that is
// not there, give an endpoint that every verb refuses with BP_INVALID.
BP_DEV bp_endpoint peer(const bp_peers& peers, uint32_t rank, uint32_t rail = 0) {
  struct alignas(16) units {
    u128 unit[sizeof(bp_endpoint) / 16];
  };
  const bool is_there = rank < peers.n && rail < peers.rails;
  const uint64_t index = (uint64_t)(is_there ? rank : peers.rank) * peers.rails + (is_there ? rail : 0);
  const units from = reinterpret_cast<const units*>(peers.endpoints)[index];
  bp_endpoint ep;
  __builtin_memcpy(&ep, &from, sizeof(ep));
  return ep;
}

// A rail for a caller, by its number among all callers: neighbours have different ones.
BP_DEV uint32_t rail_of(const bp_peers& peers, uint32_t caller) { return caller % peers.rails; }

namespace detail {

// A status and the rank that it concerns, in one word for a broadcast; 0 is BP_OK.
BP_DEV uint64_t said_of(bp_status_code s, uint32_t rank) { return s == BP_OK ? 0 : (uint64_t)rank << 32 | s; }
BP_DEV bp_status_code tell(uint64_t said, uint32_t* whom) {
  if (said != 0 && whom != nullptr) *whom = (uint32_t)(said >> 32);
  return (bp_status_code)(uint32_t)said;
}

// The first failure that a warp of the block has; for other scopes the caller's own, which is everybody's.
template <class Scope>
BP_DEV uint64_t first_of_all(Scope, uint64_t said) {
  return said;
}
BP_DEV uint64_t first_of_all(block_scope scope, uint64_t said) {
  uint64_t first = 0;
  for (uint32_t warp = 0; warp * 32 < block_threads(); warp++) {
    const uint64_t its = block_threads() <= 32 ? scope.broadcast(said) : block_broadcast_u64(said, warp * 32);
    if (first == 0) first = its;
  }
  return first;
}

// Adds 1 to a rank's word of a round of its barrier.
template <class P, class Scope>
BP_DEV bp_status_code signal_round(const located<bp_peers>& peers, Scope scope, uint32_t rank, uint32_t round) {
  bp_endpoint ep = peer(peers, rank);
  const bp_remote word = reinterpret_cast<const bp_remote*>(peers.remotes)[rank];
  ep.remote_iova = word.iova;
  ep.remote_rkey = word.rkey;
  ep.remote_bytes = BP_PEERS_WORDS * sizeof(uint64_t);
  return fetch_add<P>(detail::part_of(peers, ep), scope, round * sizeof(uint64_t), 1, nullptr);
}

}  // namespace detail

// quiet() of every endpoint of the table: all that was posted there before the call, by any caller, is complete. The
// warps of a block share the endpoints out. Each is waited for, whatever another says; returns the first failure, and
// in `whom` (may be null) a rank that it concerns.
template <class P, class Scope>
BP_DEV bp_status_code quiet_all(const bp_peers& peers, Scope scope, uint32_t* whom = nullptr) {
  scope.sync();  // what this scope posted, before another warp of it takes the queue pair over
  uint64_t said = 0;
  for_each_part(scope, peers.n * peers.rails, [&](auto part, uint32_t i) {
    const uint32_t rank = i / peers.rails;
    if (rank == peers.rank) return;
    const uint64_t its = detail::said_of(quiet<P>(peer(peers, rank, i % peers.rails), part), rank);
    if (said == 0) said = its;
  });
  said = detail::first_of_all(scope, said);
  scope.sync();  // and the way back
  return detail::tell(said, whom);
}

// Waits until all ranks have called it as often as this one: a barrier that waits for no put. One caller a rank at a
// time (a thread, a warp or a block; others of the grid are its own to synchronise with), on all ranks with the same
// path. What the scope stored in its own regions before the call, a rank that has returned BP_OK finds there by get.
//
// Dissemination (Hensgen, Finkel, Manber 1988): in round k of ceil(log2 n), rank r adds 1 to a word of rank r + 2^k and
// waits for its own word of that round. One rank alone adds to a word, once a barrier, so that words are never reset:
// the b-th barrier waits for b. A rank can be one barrier ahead at most, which `at least b` allows.
//
// BP_TIMEOUT: a rank did not come, which `whom` (may be null) names as far as this one knows: it waits for one rank a
// round, and that one may wait for another. Call it again to go on where it stopped; nothing is said twice. Another
// error ends the barrier for good (docs/peers.md). Each round waits for room and for a word, each at most the
// endpoints' timeout.
template <class P, class Scope>
BP_DEV bp_status_code sync_all(const located<bp_peers>& peers, Scope scope, uint32_t* whom = nullptr) {
  uint64_t* const progress = reinterpret_cast<uint64_t*>(peers.progress);
  scope.sync();  // all threads' stores, before the leader's fence
  uint64_t step = 0;
  if (scope.rank() == 0) {
    // This scope's stores before the signals, for NICs that read them for a peer. In-band no doorbell's fence does it.
    fence_sys();
    step = ld_relaxed_gpu(progress);
  }
  // Twice the rounds that were passed in all barriers, and 1 if the next one's signal is out.
  step = scope.broadcast(step);
  const uint64_t number = peers.rounds == 0 ? 0 : step / 2 / peers.rounds;
  uint64_t said = 0;
  for (uint32_t round = peers.rounds == 0 ? 0 : (uint32_t)(step / 2 % peers.rounds); round < peers.rounds; round++) {
    const uint32_t away = 1u << round;  // less than n
    if ((step & 1) == 0) {
      const uint32_t to = (peers.rank + away) % peers.n;
      said = detail::said_of(detail::signal_round<P>(peers, scope, to, round), to);
      if (said != 0) break;
      step++;
    }
    const uint32_t from = (peers.rank + peers.n - away) % peers.n;
    const uint64_t* word = reinterpret_cast<const uint64_t*>(peers.words) + round;
    said = detail::said_of(wait_signal(peer(peers, from), scope, word, number + 1), from);
    if (said != 0) break;
    step++;
  }
  if (scope.rank() == 0) st_relaxed_gpu(progress, step);
  scope.sync();  // the leader's acquire in wait_signal before this scope's loads, and `progress` before its next call
  return detail::tell(said, whom);
}

// quiet_all(), then sync_all(): after BP_OK, what any rank put before its call is in this rank's region, and what this
// rank put is in theirs. Of rails on several NICs that holds for those of rail 0's NIC (docs/peers.md); on software NICs
// for all. After BP_TIMEOUT call it again.
template <class P, class Scope>
BP_DEV bp_status_code barrier_all(const located<bp_peers>& peers, Scope scope, uint32_t* whom = nullptr) {
  const bp_status_code s = quiet_all<P>(peers, scope, whom);
  return s != BP_OK ? s : sync_all<P>(peers, scope, whom);
}

}  // namespace bp

#endif
