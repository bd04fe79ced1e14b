//! `QUERY_HCA_CAP`: what the device can do, all of which its tests do with it.

use super::cq::LOG_MAX_CQ_SZ;
use super::general;
use super::prm::{Mailbox, cap, header, roce_address};
use crate::commands::Command;
use crate::commands::device::{MAX_MESSAGE, MAX_RD_ATOMIC, MAX_RQ_DESC, MAX_SQ_DESC, MAX_WQES};
use crate::commands::odp;
use crate::error::Refusal;
use crate::layout;
use bellpush_wire::mmo::MAX_COPY_BYTES;
use bellpush_wire::roce::ROCE_PORT;

/// `query_hca_cap_out`.
const OUT_BYTES: usize = 0x1010;

/// `MLX5_CAP_*`, `op_mod`'s upper 15 bits. Its lowest says whether the largest or the current
/// values are asked for; nothing is configured, so that they are the same.
mod kind {
    pub const GENERAL: u64 = 0;
    pub const ODP: u64 = 2;
    pub const ATOMIC: u64 = 3;
    pub const ROCE: u64 = 4;
    pub const FLOW_TABLE: u64 = 7;
    pub const QOS: u64 = 0xc;
    pub const DEVICE_MEMORY: u64 = 0xf;
    pub const GENERAL_2: u64 = 0x20;
}

/// Least source port of a packet: that of flow label 0 (annex A17.4.5.2).
const LEAST_SRC_PORT: u16 = 0xc000;

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

fn roce(out: &mut Mailbox) {
    // RoCEv2 over IPv4 and IPv6.
    const L3_TYPES: u64 = 1 << 1 | 1 << 2;
    const VERSION_2: u64 = 1 << 2;
    for (field, value) in [
        (cap::ROCE_L3_TYPE, L3_TYPES),
        (cap::ROCE_VERSION, VERSION_2),
        (cap::R_ROCE_DEST_UDP_PORT, ROCE_PORT.into()),
        (cap::R_ROCE_MAX_SRC_UDP_PORT, u16::MAX.into()),
        (cap::R_ROCE_MIN_SRC_UDP_PORT, LEAST_SRC_PORT.into()),
        (cap::ROCE_ADDRESS_TABLE_SIZE, 1),
    ] {
        out.set(field, value);
    }
}

/// `QUERY_ROCE_ADDRESS`: the one address.
pub fn query_roce_address(c: &Command<'_>, cmd: &Mailbox) -> Result<Mailbox, Refusal> {
    const ROCE_V2: u64 = 2;
    const IPV4: u64 = 0;
    const IPV6: u64 = 1;
    for (what, field, most, must) in [
        ("roce_address_index", roce_address::ROCE_ADDRESS_INDEX, 0, "0: there is one address"),
        ("vhca_port_num", roce_address::VHCA_PORT_NUM, 1, "0 or 1: there is one port"),
    ] {
        let value = cmd.get(field);
        if value > most {
            return Err(Refusal::Value { what, value, must });
        }
    }
    let address = c.context.device.address;
    let mut out = Mailbox::zeroed(roce_address::OUT_BYTES);
    out.set_gid(roce_address::SOURCE_L3_ADDRESS, layout::gid(address));
    out.set(roce_address::ROCE_L3_TYPE, if address.is_ipv4() { IPV4 } else { IPV6 });
    out.set(roce_address::ROCE_VERSION, ROCE_V2);
    Ok(out)
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
        kind::ROCE => roce(&mut out),
        kind::ODP => paging(&mut out),
        // No flow tables, and device memory without operations: all zeros.
        kind::FLOW_TABLE | kind::DEVICE_MEMORY => {}
        value => {
            let must =
                "general, paging's, atomics', RoCE's, schedules', flow tables' or device memory's";
            return Err(Refusal::Value { what: "type of capability", value, must });
        }
    }
    Ok(out)
}
