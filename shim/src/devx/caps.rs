//! `QUERY_HCA_CAP`: what the device can do, all of which its tests do with it.

use super::cq::LOG_MAX_CQ_SZ;
use super::general;
use super::prm::{Mailbox, cap, header};
use crate::commands::Command;
use crate::commands::device::{MAX_MESSAGE, MAX_RD_ATOMIC, MAX_RQ_DESC, MAX_SQ_DESC, MAX_WQES};
use crate::commands::odp;
use crate::error::Refusal;
use bellpush_wire::mmo::MAX_COPY_BYTES;

/// `query_hca_cap_out`.
const OUT_BYTES: usize = 0x1010;

/// `MLX5_CAP_*`, `op_mod`'s upper 15 bits. Its lowest says whether the largest or the current
/// values are asked for; nothing is configured, so that they are the same.
mod kind {
    pub const GENERAL: u64 = 0;
    pub const ODP: u64 = 2;
    pub const ATOMIC: u64 = 3;
    pub const FLOW_TABLE: u64 = 7;
    pub const QOS: u64 = 0xc;
    pub const DEVICE_MEMORY: u64 = 0xf;
    pub const GENERAL_2: u64 = 0x20;
}

fn general(out: &mut Mailbox) {
    for (field, value) in [
        (cap::LOG_MAX_SRQ_SZ, u64::from(MAX_WQES.ilog2())),
        (cap::LOG_MAX_QP_SZ, u64::from(MAX_WQES.ilog2())),
        (cap::LOG_MAX_QP, 16),
        (cap::LOG_MAX_SRQ, 24),
        (cap::LOG_MAX_CQ_SZ, LOG_MAX_CQ_SZ.into()),
        (cap::LOG_MAX_CQ, 24),
        (cap::LOG_MAX_MKEY, 24),
        (cap::FIXED_BUFFER_SIZE, 1),
        (cap::LOG_MAX_RA_REQ_QP, u64::from(MAX_RD_ATOMIC.ilog2())),
        (cap::LOG_MAX_RA_RES_QP, u64::from(MAX_RD_ATOMIC.ilog2())),
        (cap::LOG_MAX_RA_REQ_DC, u64::from(MAX_RD_ATOMIC.ilog2())),
        (cap::LOG_MAX_RA_RES_DC, u64::from(MAX_RD_ATOMIC.ilog2())),
        (cap::HCA_CAP_2, 1),
        (cap::QOS, 1),
        (cap::GENERAL_OBJ_TYPES, general::TYPES),
        (cap::QPC_EXTENSION, 1),
        (cap::RTS2RTS_QP_UDP_SPORT, 1),
        // RC and DCI, without being asked for.
        (cap::DMA_MMO_SQ, 1),
        (cap::LOG_DMA_MMO_MAX_SIZE, u64::from(MAX_COPY_BYTES.ilog2())),
        (cap::DCT, 1),
        (cap::MAX_WQE_SZ_SQ_DC, MAX_SQ_DESC.into()),
        (cap::PORT_TYPE, 1), // Ethernet
        (cap::NUM_PORTS, 1),
        (cap::LOG_MAX_MSG, u64::from(MAX_MESSAGE.ilog2())),
        (cap::CQE_VERSION, 1),
        (cap::ROCE, 1),
        (cap::ATOMIC, 1),
        (cap::CQ_OI, 1),
        (cap::RC, 1),
        (cap::UC, 1),
        (cap::UD, 1),
        (cap::UAR_4K, 1),
        (cap::LOG_PG_SZ, 12),
        // `bf` is 0: the register takes doorbells of 8 bytes, the whole of it 512 bytes.
        (cap::LOG_BF_REG_SIZE, 9),
        (cap::MAX_WQE_SZ_SQ, MAX_SQ_DESC.into()),
        (cap::MAX_WQE_SZ_RQ, MAX_RQ_DESC.into()),
        (cap::LOG_MAX_PD, 24),
        (cap::LOG_MAX_RMP, 24),
    ] {
        out.set(field, value);
    }
}

fn atomic(out: &mut Mailbox) {
    // Compare and swap, fetch and add, and both with masks.
    const OPERATIONS: u64 = 0b1111;
    // 4 and 8 bytes.
    const SIZES: u64 = 4 | 8;
    for (field, value) in [
        // Operands are numbers of the host's byte order.
        (cap::SUPPORTED_REQ_8B_ENDIANNESS_MODE_1, 1),
        (cap::REQ_8B_ENDIANNESS_MODE, 1),
        (cap::ATOMIC_OPERATIONS, OPERATIONS),
        (cap::ATOMIC_SIZE_QP, SIZES),
        (cap::ATOMIC_SIZE_DC, SIZES),
    ] {
        out.set(field, value);
    }
}

fn schedules(out: &mut Mailbox) {
    // TSARs and groups of queues.
    const ELEMENTS: u64 = 1 << 0 | 1 << 4;
    const DWRR: u64 = 1 << 0;
    for (field, value) in [
        // libmlx5 looks at what follows where this is set. There are no queues but of queue pairs.
        (cap::NIC_SQ_SCHEDULING, 1),
        (cap::NIC_BW_SHARE, 1),
        (cap::NIC_RATE_LIMIT, 1),
        (cap::NIC_QP_SCHEDULING, 1),
        (cap::NIC_ELEMENT_TYPE, ELEMENTS),
        (cap::NIC_TSAR_TYPE, DWRR),
    ] {
        out.set(field, value);
    }
}

fn paging(out: &mut Mailbox) {
    // The driver's bits count from the other end: SEND is the first of each word.
    let word = |caps: u32| u64::from(caps.reverse_bits());
    for (field, value) in [
        (cap::ODP_SIG, 1),
        (cap::ODP_RC, word(odp::RC_CAPS)),
        (cap::ODP_UC, word(odp::UC_CAPS)),
        (cap::ODP_UD, word(odp::UD_CAPS)),
        (cap::ODP_XRC, word(odp::XRC_CAPS)),
        (cap::ODP_DC, word(odp::XRC_CAPS)),
    ] {
        out.set(field, value);
    }
}

/// Answers with a struct of capabilities.
pub fn query(_: &Command<'_>, cmd: &Mailbox) -> Result<Mailbox, Refusal> {
    let mut out = Mailbox::zeroed(OUT_BYTES);
    match cmd.get(header::OP_MOD) >> 1 {
        kind::GENERAL => general(&mut out),
        kind::QOS => schedules(&mut out),
        kind::GENERAL_2 => {
            out.set(cap::LOG_RESERVED_QPN_GRANULARITY, general::LOG_QPNS.into());
        }
        kind::ATOMIC => atomic(&mut out),
        kind::ODP => paging(&mut out),
        // No flow tables, and device memory without operations: all zeros.
        kind::FLOW_TABLE | kind::DEVICE_MEMORY => {}
        value => {
            let must = "general, paging's, atomics', schedules', flow tables' or device memory's";
            return Err(Refusal::Value { what: "type of capability", value, must });
        }
    }
    Ok(out)
}
