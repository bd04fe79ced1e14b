// Atomics on 8-byte words of the peer's region: fetch_add, compare_swap.
#ifndef BELLPUSH_ATOMICS_CUH
#define BELLPUSH_ATOMICS_CUH

#include <bellpush/impl/post.cuh>

namespace bp {

// Adds `value` to the 8-byte word at `remote_offset`. When the verb is complete, the old value is at `result` (8
// aligned bytes in the local region; null: discarded).
template <class P, class Scope>
BP_DEV bp_status_code fetch_add(const located<bp_endpoint>& ep, Scope scope, uint64_t remote_offset,
                                uint64_t value, void* result, uint32_t flags = none,
                                uint64_t* end = nullptr) {
  if (!serves<P>(ep)) return BP_INVALID;
  wqe w = wqe_to_peer(ep, BP_OP_ATOMIC_FA, 4, ep.remote_iova + remote_offset);
  w.refused = detail::is_outside(ep, remote_offset, 8);
  w.bytes = 8;
  w.swap_add = value;
  w.gather = ep.sink_iova;
  w.lkey = ep.sink_lkey;
  if (result != nullptr) {
    w.refused |= detail::is_outside_local(ep, (uint64_t)result, 8);
    w.gather = detail::local_iova(ep, (uint64_t)result);
    w.lkey = ep.local_lkey;
    w.fetches = true;
  }
  return detail::post<P, false>(ep.qp, scope, w, flags, end);
}

// Writes `swap` to the 8-byte word at `remote_offset` if it equals `compare`; `result` as in fetch_add.
template <class P, class Scope>
BP_DEV bp_status_code compare_swap(const located<bp_endpoint>& ep, Scope scope, uint64_t remote_offset,
                                   uint64_t compare, uint64_t swap, void* result,
                                   uint32_t flags = none, uint64_t* end = nullptr) {
  if (!serves<P>(ep)) return BP_INVALID;
  wqe w = wqe_to_peer(ep, BP_OP_ATOMIC_CS, 4, ep.remote_iova + remote_offset);
  w.refused = detail::is_outside(ep, remote_offset, 8);
  w.bytes = 8;
  w.swap_add = swap;
  w.compare = compare;
  w.gather = ep.sink_iova;
  w.lkey = ep.sink_lkey;
  if (result != nullptr) {
    w.refused |= detail::is_outside_local(ep, (uint64_t)result, 8);
    w.gather = detail::local_iova(ep, (uint64_t)result);
    w.lkey = ep.local_lkey;
    w.fetches = true;
  }
  return detail::post<P, false>(ep.qp, scope, w, flags, end);
}

}  // namespace bp

#endif
