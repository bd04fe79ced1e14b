// Entry points that build WQEs into a ring and do nothing else: no ticket, no fence, no doorbell.
// benches/wqe.rs times them and compares their bytes with those that Rust emits.
#define BP_MAX_THREADS 512
#include <bellpush/impl/wqe.cuh>
#include <bellpush/path.cuh>
#include "entry/args.h"

namespace {

// `count` RDMA WRITEs of `bytes` bytes from `local`, one after the other, by one block.
template <bool inline_v>
BP_DEV void build(const bp_op_args& a, uint32_t ds) {
  const bp::block_scope scope;
  bp::wqe w{};
  w.opcode = BP_OP_RDMA_WRITE;
  w.ds = ds;
  w.fm_ce_se = BP_CTRL_CQ_UPDATE;
  w.rkey = a.ep.remote_rkey;
  w.bytes = (uint32_t)a.bytes;
  w.gather = a.local;
  w.lkey = a.ep.local_lkey;
  uint64_t index = 0;
  for (uint32_t n = 0; n < a.count; n++) {
    w.raddr = a.ep.remote_iova + a.remote_offset + n * a.remote_stride;
    for (uint32_t u = scope.rank(); u < bp::wqe_blocks(w) * 4; u += scope.size()) {
      *bp::sq_unit(a.ep.qp, index, u) = bp::wqe_unit<inline_v>(w, u, index, a.ep.qp.qpn);
    }
    index += bp::wqe_blocks(w);
  }
}

}  // namespace

BP_KERNEL(bp_build_gather, bp_op_args) { build<false>(args, 3); }
BP_KERNEL(bp_build_inline, bp_op_args) {
  build<true>(args, 2 + (4 + (uint32_t)args.bytes + BP_DS_BYTES - 1) / BP_DS_BYTES);
}
