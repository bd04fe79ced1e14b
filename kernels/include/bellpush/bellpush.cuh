// bellpush's device verbs. Include this in a kernel of your own.
//
//   using P = bp::path<bp::data::push, bp::kick::inband>;
//   bp::put<P>(endpoint, bp::block_scope{}, remote_offset, source, bytes);
//   bp::quiet<P>(endpoint, bp::block_scope{});
//
// A verb is called by all threads of a scope (thread_scope, warp_scope, block_scope) with the same
// arguments, and returns the same bp_status_code to all of them. The endpoint's path, a template
// argument, must be the one that the host made the endpoint for: verbs of another return BP_INVALID. Remote
// addresses are offsets into the peer's region, local ones addresses of this GPU (in the local region where
// the NIC reads or writes them). Every wait is bounded by the endpoint's timeout; after an error CQE verbs post nothing
// (docs/device-api.md, "Statuses": which verb returns what, and what was posted then).
#ifndef BELLPUSH_CUH
#define BELLPUSH_CUH

#include <bellpush/atomics.cuh>
#include <bellpush/auto.cuh>
#include <bellpush/blocks.cuh>
#include <bellpush/get.cuh>
#include <bellpush/mark.cuh>
#include <bellpush/path.cuh>
#include <bellpush/peers.cuh>
#include <bellpush/put.cuh>
#include <bellpush/signal.cuh>
#include <bellpush/wait.cuh>
#include <bellpush/where.cuh>

#endif
