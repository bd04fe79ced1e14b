// Writes into the peer's region: put, put_inline, put_signal.
#ifndef BELLPUSH_PUT_CUH
#define BELLPUSH_PUT_CUH

#include <bellpush/atomics.cuh>
#include <bellpush/impl/slots.cuh>

namespace bp {

constexpr uint32_t max_inline_bytes = BP_UAR_BF_BYTES - inband_header_bytes;  // 220

// Writes up to 220 bytes that travel in the WQE itself. `src` may be reused after the return.
template <class P, class Scope>
BP_DEV bp_status_code put_inline(const bp_endpoint& ep, Scope scope, uint64_t remote_offset,
                                 const void* src, uint64_t bytes, uint32_t flags = none,
                                 uint64_t* end = nullptr) {
  if (bytes > max_inline_bytes || detail::refuses<P>(ep, remote_offset, bytes)) return BP_INVALID;
  if constexpr (P::inband) {
    // A slot of 64 bytes holds 12 bytes of payload or none: a larger payload takes several slots.
    return detail::put_window<P>(ep, scope, ep.remote_iova + remote_offset, (uint64_t)src, bytes,
                                 flags, end);
  } else {
    const uint32_t ds = 2 + (4 + (uint32_t)bytes + BP_DS_BYTES - 1) / BP_DS_BYTES;
    wqe w = make_wqe(BP_OP_RDMA_WRITE, ds, ep.remote_iova + remote_offset, ep.remote_rkey);
    w.bytes = (uint32_t)bytes;
    w.gather = (uint64_t)src;
    return detail::post<P, true>(ep.qp, scope, w, flags, end);
  }
}

// Writes `bytes` bytes from `src` to the peer's region at `remote_offset`. push: `src` may be any
// memory this GPU can read, and may be reused at once. pull: `src` lies in the local region and
// stays untouched until the put is complete. `end` (may be null) receives the ticket for wait() and
// test(). Refuses 0 bytes and ranges outside the regions with BP_INVALID; BP_TIMEOUT when no room
// came (a message of several slots may then be posted in part).
template <class P, class Scope>
BP_DEV bp_status_code put(const bp_endpoint& ep, Scope scope, uint64_t remote_offset,
                          const void* src, uint64_t bytes, uint32_t flags = none,
                          uint64_t* end = nullptr) {
  if (detail::refuses<P>(ep, remote_offset, bytes)) return BP_INVALID;
  if constexpr (P::data_v == data::push && P::kick_v == kick::blueflame) {
    if (bytes <= max_inline_bytes) {
      return put_inline<P>(ep, scope, remote_offset, src, bytes, flags, end);
    }
  }
  if constexpr (P::data_v == data::push) {
    return detail::put_window<P>(ep, scope, ep.remote_iova + remote_offset, (uint64_t)src, bytes,
                                 flags, end);
  } else {
    wqe w = make_wqe(BP_OP_RDMA_WRITE, 3, ep.remote_iova + remote_offset, ep.remote_rkey);
    if (bytes > max_message_bytes || !detail::local_iova(ep, (uint64_t)src, bytes, &w.gather)) {
      return BP_INVALID;
    }
    w.bytes = (uint32_t)bytes;
    w.lkey = ep.local_lkey;
    return detail::post<P, false>(ep.qp, scope, w, flags, end);
  }
}

// Puts, then adds `value` to the peer's 8-byte signal word. A reliable queue pair executes in order: an observer of
// the signal (wait_signal) also sees the data. After an error the signal is not posted, but the data may be, and
// possibly only the next verb rings for them. After BP_TIMEOUT the same call may be repeated while `src` is
// unchanged.
template <class P, class Scope>
BP_DEV bp_status_code put_signal(const bp_endpoint& ep, Scope scope, uint64_t remote_offset,
                                 const void* src, uint64_t bytes, uint64_t signal_offset,
                                 uint64_t value, uint32_t flags = none, uint64_t* end = nullptr) {
  if (!detail::in_range(signal_offset, 8, ep.remote_bytes)) return BP_INVALID;
  bp_status_code s =
      put<P>(ep, scope, remote_offset, src, bytes, flags | defer_ring | unsignalled, end);
  if (s != BP_OK) return s;
  // The signal's ticket follows all of the data's, also where other callers share the QP.
  scope.sync();
  return fetch_add<P>(ep, scope, signal_offset, value, nullptr, flags, end);
}

}  // namespace bp

#endif
