// A queue pair in this program's memory: rings, words and an endpoint, of a test that is the NIC.
#ifndef BED_HPP
#define BED_HPP

#include <string.h>

#include <bellpush/bellpush.cuh>

template <uint32_t sq_log, uint32_t cq_log>
struct bed {
  static constexpr uint32_t blocks = 1u << sq_log, entries = 1u << cq_log, qpn = 0x123;
  alignas(64) uint8_t sq[blocks * 64], uar[4096], local[4096];
  alignas(64) bp_cqe64 cqes[entries];
  uint32_t ready[blocks], dbr[16], cq_dbr[16];
  bp_qp_state state;
  bp_status status;
  uint64_t made;  // CQEs

  // As the host begins it, at ticket `first`; credits come each `credit_period` tickets.
  template <class P>
  bp_endpoint begin(uint64_t first, uint32_t credit_period) {
    memset(this, 0, sizeof *this);
    for (bp_cqe64& c : cqes) c.op_own = 0xf1;
    for (uint32_t i = 0; i < blocks; i++) ready[(first + i) % blocks] = (uint32_t)(first + i) - blocks;
    state.reserved = state.done = state.rung = state.signalled = first;
    state.ring = first << bp::ring_shift;
    dbr[BP_DBR_SND] = __builtin_bswap32((uint32_t)first & 0xffff);
    bp_endpoint ep = {};
    ep.tag = P::tag_v;
    ep.local_va = (uint64_t)local;
    ep.local_iova = 0x100000000;
    ep.local_bytes = sizeof local;
    ep.remote_iova = 0x200000000;
    ep.remote_bytes = 1 << 20;
    ep.qp.sq = (uint64_t)sq;
    ep.qp.uar = (uint64_t)uar;
    ep.qp.cq = (uint64_t)cqes;
    ep.qp.dbr = (uint64_t)dbr;
    ep.qp.cq_dbr = (uint64_t)cq_dbr;
    ep.qp.state = (uint64_t)&state;
    ep.qp.ready = (uint64_t)ready;
    ep.qp.status = (uint64_t)&status;
    ep.qp.sq_log = sq_log;
    ep.qp.cq_log = cq_log;
    ep.qp.qpn = qpn;
    ep.qp.slot_limit = blocks;
    ep.qp.credit_period = credit_period;
    ep.qp.timeout_ns = 1000000000;
    return ep;
  }

  // The next CQE, of the WQE that begins at `ticket`. Its last byte comes last.
  void cqe(uint32_t opcode, uint64_t ticket) {
    uint8_t* c = (uint8_t*)&cqes[made % entries];
    c[BP_CQE_SYNDROME_OFFSET] = opcode == BP_CQE_REQ_ERR ? 0x13 : 0;
    c[60] = (uint8_t)(ticket >> 8);
    c[61] = (uint8_t)ticket;
    __atomic_store_n(&c[63], (uint8_t)(opcode << 4 | (made >> cq_log & 1)), __ATOMIC_RELEASE);
    made++;
  }
};

#endif
