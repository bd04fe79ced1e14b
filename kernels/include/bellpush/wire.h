// mlx5 work-queue formats and the structures that Rust hands to a kernel. Plain C: included by
// device code, by the host executor and by tests that compare it with the installed mlx5dv.h.
//
// Multi-byte fields of the mlx5 structures are big-endian (mlx5 PRM, "Work Queue Structures");
// fields of the bp_ structures after them are in the machine's own order.
#ifndef BELLPUSH_WIRE_H
#define BELLPUSH_WIRE_H

#include <stdint.h>

#ifdef __cplusplus
#define BP_ASSERT_SIZE(T, n) static_assert(sizeof(struct T) == (n), #T " must be " #n " bytes")
#else
#define BP_ASSERT_SIZE(T, n) _Static_assert(sizeof(struct T) == (n), #T " must be " #n " bytes")
#endif

// ---- mlx5: send work queue -------------------------------------------------------------------

enum {
  BP_WQEBB_BYTES = 64,       // a work-queue basic block
  BP_DS_BYTES = 16,          // the unit of ctrl.ds
  BP_MAX_DS = 63,            // ctrl.ds has 6 bits
  BP_INLINE_FLAG = 0x80000000u,
  BP_INVALID_LKEY = 0x100,   // ends a receive scatter list
};

enum bp_opcode {
  BP_OP_NOP = 0x00,
  BP_OP_RDMA_WRITE = 0x08,
  BP_OP_RDMA_WRITE_IMM = 0x09,
  BP_OP_SEND = 0x0a,
  BP_OP_SEND_IMM = 0x0b,
  BP_OP_RDMA_READ = 0x10,
  BP_OP_ATOMIC_CS = 0x11,
  BP_OP_ATOMIC_FA = 0x12,
};

enum {
  BP_CTRL_SOLICITED = 0x02,      // fm_ce_se, bit 1
  BP_CTRL_CQ_UPDATE = 0x08,      // fm_ce_se, bits 3:2 = 2: a CQE always
  BP_CTRL_FENCE_SMALL = 0x20,    // fm_ce_se, bits 7:5 = 1: initiator small fence
};

struct bp_wqe_ctrl {
  uint32_t opmod_idx_opcode;  // opmod 31:24, wqe_index 23:8, opcode 7:0
  uint32_t qpn_ds;            // qpn 31:8, ds 5:0
  uint8_t signature;
  uint8_t dci_stream[2];
  uint8_t fm_ce_se;
  uint32_t imm;
};
struct bp_wqe_raddr {
  uint64_t raddr;
  uint32_t rkey;
  uint32_t reserved;
};
struct bp_wqe_data {
  uint32_t byte_count;
  uint32_t lkey;
  uint64_t addr;
};
struct bp_wqe_inline {
  uint32_t byte_count;  // BP_INLINE_FLAG | bytes; the bytes follow
};
struct bp_wqe_atomic {
  uint64_t swap_add;
  uint64_t compare;
};
BP_ASSERT_SIZE(bp_wqe_ctrl, 16);
BP_ASSERT_SIZE(bp_wqe_raddr, 16);
BP_ASSERT_SIZE(bp_wqe_data, 16);
BP_ASSERT_SIZE(bp_wqe_inline, 4);
BP_ASSERT_SIZE(bp_wqe_atomic, 16);

// ---- mlx5: completion queue ------------------------------------------------------------------

enum {
  BP_CQE_REQ = 0x0,
  BP_CQE_RESP_WR_IMM = 0x1,
  BP_CQE_RESP_SEND = 0x2,
  BP_CQE_RESP_SEND_IMM = 0x3,
  BP_CQE_REQ_ERR = 0xd,
  BP_CQE_RESP_ERR = 0xe,
  BP_CQE_INVALID = 0xf,
  BP_CQE_OWNER_MASK = 0x1,
};

struct bp_cqe64 {
  uint8_t reserved0[32];
  uint32_t srqn_uidx;
  uint32_t imm_inval_pkey;
  uint8_t reserved1[4];
  uint32_t byte_cnt;
  uint64_t timestamp;         // an error CQE: bytes 54 and 55 are vendor error and syndrome
  uint32_t sop_drop_qpn;      // send opcode 31:24, qpn 23:0
  uint16_t wqe_counter;
  uint8_t signature;
  uint8_t op_own;             // opcode 7:4, format 3:2, solicited 1, owner 0
};
BP_ASSERT_SIZE(bp_cqe64, 64);

enum {
  BP_CQE_VENDOR_ERR_OFFSET = 54,
  BP_CQE_SYNDROME_OFFSET = 55,
};

// ---- mlx5: doorbell record and UAR page ------------------------------------------------------

enum {
  BP_DBR_RCV = 0,                 // words of a QP's doorbell record
  BP_DBR_SND = 1,
  BP_DBR_CQ_CI = 0,               // words of a CQ's doorbell record
  BP_DBR_CQ_ARM = 1,
  BP_UAR_BYTES = 4096,
  BP_UAR_DOORBELL_OFFSET = 0x800, // 8-byte doorbell register
  BP_UAR_BF_OFFSET = 0x900,       // BlueFlame buffer
  BP_UAR_BF_BYTES = 256,
};

// ---- What Rust hands to a kernel -------------------------------------------------------------

// Ring of NIC-side (push) or host-side (staged) slots. WQE index i owns slot i % slots.
struct bp_window {
  uint64_t va;           // where the GPU writes
  uint64_t gather_base;  // what a WQE's gather entry calls that place: 0 for a zero-based DM
  uint32_t lkey;
  uint32_t slot_bytes;   // multiple of 64
  uint32_t slots;        // a power of two (place_of() in impl/state.cuh)
  uint32_t inband_seq0;  // in-band: sequence of lap 0 (see inband.cuh)
};
BP_ASSERT_SIZE(bp_window, 32);

// Counters that the GPU alone touches, in its own memory. What a post reads comes first, in one sector of 32 bytes; words
// of shared queue pairs over which callers contend have lines of their own.
struct bp_qp_state {
  uint64_t reserved;       // next ticket: basic blocks (in-band: slots) handed out so far
  uint64_t done;           // tickets below are complete
  uint64_t marked;         // exclusive: WQEs that begin below this ticket get ready words
  uint32_t error;          // bp_status_code that ended the QP, 0 while it lives
  uint32_t max_credits;    // high-water mark of credits in use
  uint64_t rung;           // exclusive: tickets below are known to the NIC
  uint64_t signalled;      // tickets below are covered by a requested CQE
  uint64_t fetched;        // exclusive: end of the last WQE that brings data here; 0 for none
  uint32_t look_after;     // exclusive: clock ticks from a wait's beginning to its first look
  uint32_t pad[17];
  uint64_t ring;           // shared: tickets below are known to the NIC, and who rings (doorbell.cuh)
  uint64_t ring_pad[15];
  uint64_t cq_ci;          // next CQE to read
  uint64_t cq_ci_reported;
  uint32_t cq_lock;        // shared: a caller looks at the CQ
  uint32_t cq_pad[27];
};
BP_ASSERT_SIZE(bp_qp_state, 384);

enum bp_status_code {
  BP_OK = 0,
  BP_TIMEOUT = 1,    // a bounded wait ended; the QP goes on (docs/device-api.md)
  BP_CQE_ERROR = 2,  // the NIC completed a WQE in error
  BP_DEAD = 3,       // the QP is in error, and this call posted no more
  BP_INVALID = 4,    // the call's arguments, or its path for this endpoint, are refused; nothing was posted
  BP_PENDING = 5,    // test(): not complete yet
  BP_FLUSHED = 6,    // of the host's calls: one before it failed, and this one was not carried out
};

// First error of a QP, in memory that the host can read while kernels run.
struct bp_status {
  uint32_t code;         // bp_status_code, written last
  uint32_t syndrome;     // vendor error << 8 | syndrome
  uint64_t ticket;       // the WQE that failed, or the ticket that was waited for
};
BP_ASSERT_SIZE(bp_status, 16);

struct bp_qp {
  uint64_t sq;             // 1 << sq_log blocks of 64 bytes
  uint64_t cq;             // 1 << cq_log CQEs
  uint64_t dbr;            // QP doorbell record, two words
  uint64_t cq_dbr;         // CQ doorbell record, two words
  uint64_t uar;            // UAR page
  uint64_t state;          // struct bp_qp_state
  uint64_t ready;          // uint32_t[1 << sq_log]: end ticket of the WQE that starts here
  uint64_t status;         // struct bp_status
  struct bp_window window;
  uint64_t timeout_ns;     // bound of every wait; of a copy that within() made, of waits that may be given up
  uint32_t qpn;
  uint32_t slot_limit;     // tickets out at once of callers that write slots: the credits
  uint32_t sq_log;
  uint32_t cq_log;
  uint32_t credit_period;  // power of two: how often a row of WQEs asks for a CQE
  uint32_t own_timeout_us; // of a copy that within() made: what timeout_ns was, rounded up; otherwise 0
};
BP_ASSERT_SIZE(bp_qp, 128);

// What a kernel must be compiled for to use an endpoint, or'ed: the data path, the kick (in-band with its
// line format), and the fences. A kernel's path names the same in its template arguments (path.cuh).
enum bp_tag {
  BP_TAG_PUSH = 1 << 0,         // data: push or staged
  BP_TAG_PULL = 1 << 1,
  BP_TAG_KERNEL = 1 << 2,       // kick
  BP_TAG_BLUEFLAME = 1 << 3,
  BP_TAG_INBAND_12_4 = 1 << 4,
  BP_TAG_INBAND_14_2 = 1 << 5,
  BP_TAG_INBAND_60_4 = 1 << 6,
  BP_TAG_SYSTEM = 1 << 7,       // window, SQ or DBR lies outside this GPU's memory: reach::system
  BP_TAG_STRICT = 1 << 8,       // the NIC reads the DBR when the doorbell comes: order::strict
  BP_TAG_AUTO = 1 << 9,         // an auto endpoint: with fences and, if it has the queue pair, the line format
};

// One end of a connection as device code sees it: queue pair, local and remote memory.
struct bp_endpoint {
  struct bp_qp qp;
  uint64_t local_va;       // local MR, as the GPU addresses it
  uint64_t local_iova;     // the same place in the MR's address space
  uint64_t local_bytes;
  uint64_t remote_iova;
  uint64_t remote_bytes;
  uint32_t local_lkey;
  uint32_t remote_rkey;
  uint64_t sink_iova;      // 8 bytes where results of atomics go that nobody asked for
  uint32_t sink_lkey;
  uint32_t tag;            // enum bp_tag
};
BP_ASSERT_SIZE(bp_endpoint, 192);

// How a put of an auto endpoint goes (auto.cuh).
enum bp_choice {
  BP_CHOICE_PUSH = 0,           // through slots, by doorbell
  BP_CHOICE_INBAND = 1,         // through slots of the in-band queue pair
  BP_CHOICE_INLINE = 2,         // in the WQE, by doorbell; what is longer: push
  BP_CHOICE_BLUEFLAME = 3,      // inline, by BlueFlame where the queue pair is idle
  BP_CHOICE_PULL = 4,           // the NIC reads it, by doorbell; what lies outside the local region: push
  BP_CHOICE_PULL_BLUEFLAME = 5, // the same by BlueFlame
};
enum { BP_CHOICE_RANGES = 8, BP_CHOICE_BITS = 4, BP_CHOICE_BY_RANGE = 15 };

// Which choice a message of a length takes. Range i is of the messages that are longer than i of the lengths here; its
// choice is in bits 4 i to 4 i + 3 of `choice`.
//
// The same in one look: lengths fall into classes that end at the powers of two and halfway between them. Class 0 ends
// with 3 bytes, those behind it with 4, 6, 8, 12, 16, 24 and so on, and the last, class 61, has no end. The choice of
// class c is in bits 4 (c % 8) to 4 (c % 8) + 3 of word c / 8; where its lengths have several, BP_CHOICE_BY_RANGE.
struct bp_choices {
  uint32_t up_to[BP_CHOICE_RANGES - 1];  // bytes, ascending; UINT32_MAX where there are fewer ranges
  uint32_t choice;
  uint32_t by_class[8];
};
BP_ASSERT_SIZE(bp_choices, 64);

// Two queue pairs to one peer, and a table of choices for each scope.
struct bp_auto_endpoint {
  struct bp_endpoint bell;    // by doorbell; as an endpoint of push/kernel
  struct bp_endpoint inband;  // as an endpoint of push/inband; zeros where there is none
  struct bp_choices by_thread, by_warp, by_block;
  uint32_t tag;               // enum bp_tag
  uint32_t reserved;
};
BP_ASSERT_SIZE(bp_auto_endpoint, 584);

enum {
  BP_PEERS_WORDS = 32,  // words of a rank's barriers, one for each round
};

// Where a peer's words of barriers lie.
struct bp_remote {
  uint64_t iova;
  uint32_t rkey;
  uint32_t reserved;
};
BP_ASSERT_SIZE(bp_remote, 16);

// A table of peers (peers.cuh). Every address is this GPU's.
struct bp_peers {
  uint64_t endpoints;  // struct bp_endpoint[n * rails], a rank's rails beside each other
  uint64_t remotes;    // struct bp_remote[n], on rail 0
  uint64_t words;      // uint64_t[BP_PEERS_WORDS], to which peers add
  uint64_t progress;   // uint64_t, this rank's own: how far its barriers have come
  uint32_t rank;
  uint32_t n;          // ranks
  uint32_t rails;      // at least 1
  uint32_t rounds;     // of a barrier: log2 of n, rounded up
};
BP_ASSERT_SIZE(bp_peers, 48);

// Where bp::mark() writes (mark.cuh). Addresses are the GPU's.
struct bp_marks {
  uint64_t ring;       // struct bp_mark[1 << ring_log], in memory that the host reads; 0: nothing is written
  uint64_t begun;      // uint64_t in this GPU's memory: marks begun so far
  uint32_t ring_log;
  uint32_t reserved;
};
BP_ASSERT_SIZE(bp_marks, 24);

// A mark: two units of 16 bytes, each of which says in which lap of the ring it was written, the first of which is 1.
struct bp_mark {
  uint64_t ns;         // of the GPU's clock
  uint32_t what;       // the caller's own number
  uint32_t lap;
  uint64_t value;      // the caller's own
  uint32_t block;
  uint16_t thread;
  uint16_t lap_low;    // low 16 bits of lap
};
BP_ASSERT_SIZE(bp_mark, 32);

#endif
