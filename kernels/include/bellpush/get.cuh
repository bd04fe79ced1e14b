// Reads from the peer's region.
#ifndef BELLPUSH_GET_CUH
#define BELLPUSH_GET_CUH

#include <bellpush/impl/post.cuh>

namespace bp {

// Reads `bytes` bytes of the peer's region at `remote_offset` into `dst`, in the local region.
template <class P, class Scope>
BP_DEV bp_status_code get(const located<bp_endpoint>& ep, Scope scope, void* dst, uint64_t remote_offset,
                          uint64_t bytes, uint32_t flags = none, uint64_t* end = nullptr) {
  if (!serves<P>(ep)) return BP_INVALID;
  wqe w = wqe_to_peer(ep, BP_OP_RDMA_READ, 3, ep.remote_iova + remote_offset);
  w.refused = detail::is_outside(ep, remote_offset, bytes) | detail::is_outside_local(ep, (uint64_t)dst, bytes);
  w.gather = detail::local_iova(ep, (uint64_t)dst);
  w.bytes = (uint32_t)bytes;
  w.lkey = ep.local_lkey;
  w.fetches = true;
  return detail::post<P, false>(ep.qp, scope, w, flags, end);
}

}  // namespace bp

#endif
