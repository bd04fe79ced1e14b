//! Names of codes, and what values mean.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bellpush::wire::cm::MessageKind;
use bellpush::wire::cqe::{CqeOpcode, Syndrome};
use bellpush::wire::roce::{self, NakCode, Opcode, Operation, Service};
use bellpush::wire::wqe;

use super::syndrome;

/// Opcodes of WQEs (mlx5 PRM, "Send WQE Opcodes"; libmlx5's `MLX5_OPCODE_*`), also those that the software NIC does
/// not carry out.
const WQE_OPCODES: [(u8, &str); 31] = [
    (0x00, "NOP"),
    (0x01, "SEND_INVAL"),
    (0x08, "RDMA_WRITE"),
    (0x09, "RDMA_WRITE_IMM"),
    (0x0a, "SEND"),
    (0x0b, "SEND_IMM"),
    (0x0e, "TSO"),
    (0x0f, "WAIT"),
    (0x10, "RDMA_READ"),
    (0x11, "ATOMIC_CS"),
    (0x12, "ATOMIC_FA"),
    (0x14, "ATOMIC_MASKED_CS"),
    (0x15, "ATOMIC_MASKED_FA"),
    (0x16, "RECEIVE_EN"),
    (0x17, "SEND_EN"),
    (0x18, "BIND_MW"),
    (0x19, "FMR"),
    (0x1b, "LOCAL_INVAL"),
    (0x1f, "CONFIG_CMD"),
    (0x20, "SET_PSV"),
    (0x21, "GET_PSV"),
    (0x22, "CHECK_PSV"),
    (0x23, "DUMP"),
    (0x25, "UMR"),
    (0x26, "RGET_PSV"),
    (0x27, "RCHECK_PSV"),
    (0x28, "TAG_MATCHING"),
    (0x29, "ENHANCED_MPSW"),
    (0x2c, "FLOW_TBL_ACCESS"),
    (0x2d, "ACCESS_ASO"),
    (0x2f, "MMO"),
];

/// Name of a WQE's opcode; `None` for one that the PRM does not have.
pub(super) fn wqe_opcode(code: u64) -> Option<&'static str> {
    WQE_OPCODES.iter().find(|(known, _)| u64::from(*known) == code).map(|(_, name)| *name)
}

/// The same, or its number.
pub(crate) fn wqe_opcode_or_code(code: u8) -> String {
    wqe_opcode(code.into()).map_or(format!("opcode {code:#04x}"), str::to_owned)
}

/// Name of a CQE's opcode.
pub(crate) fn cqe_opcode(opcode: CqeOpcode) -> &'static str {
    match opcode {
        CqeOpcode::Req => "REQ",
        CqeOpcode::RespWrImm => "RESP_WR_IMM",
        CqeOpcode::RespSend => "RESP_SEND",
        CqeOpcode::RespSendImm => "RESP_SEND_IMM",
        CqeOpcode::RespSendInv => "RESP_SEND_INV",
        CqeOpcode::Resize => "RESIZE_CQ",
        CqeOpcode::NoPacket => "NO_PACKET",
        CqeOpcode::ReqErr => "REQ_ERR",
        CqeOpcode::RespErr => "RESP_ERR",
        CqeOpcode::Invalid => "INVALID",
    }
}

/// Name of a packet's opcode, as `RC SEND Only`.
pub(super) fn packet_opcode(opcode: Opcode) -> String {
    use Operation as Op;
    let service = match opcode.service() {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        Service::Xrc => "XRC",
        Service::Dc => "DC",
        Service::Cnp => return "CNP".into(),
    };
    let own = if opcode.service() == Service::Dc { " (bellpush's own code)" } else { "" };
    let operation = match opcode.operation() {
        Op::SendFirst => "SEND First",
        Op::SendMiddle => "SEND Middle",
        Op::SendLast => "SEND Last",
        Op::SendLastImm => "SEND Last with Immediate",
        Op::SendOnly => "SEND Only",
        Op::SendOnlyImm => "SEND Only with Immediate",
        Op::WriteFirst => "RDMA WRITE First",
        Op::WriteMiddle => "RDMA WRITE Middle",
        Op::WriteLast => "RDMA WRITE Last",
        Op::WriteLastImm => "RDMA WRITE Last with Immediate",
        Op::WriteOnly => "RDMA WRITE Only",
        Op::WriteOnlyImm => "RDMA WRITE Only with Immediate",
        Op::ReadRequest => "RDMA READ Request",
        Op::ReadResponseFirst => "RDMA READ response First",
        Op::ReadResponseMiddle => "RDMA READ response Middle",
        Op::ReadResponseLast => "RDMA READ response Last",
        Op::ReadResponseOnly => "RDMA READ response Only",
        Op::Acknowledge => "Acknowledge",
        Op::AtomicAcknowledge => "ATOMIC Acknowledge",
        Op::CompareSwap => "CmpSwap",
        Op::FetchAdd => "FetchAdd",
        Op::SendLastInvalidate => "SEND Last with Invalidate",
        Op::SendOnlyInvalidate => "SEND Only with Invalidate",
        Op::MaskedCompareSwap => "masked CmpSwap (bellpush's own code)",
        Op::MaskedFetchAdd => "masked FetchAdd (bellpush's own code)",
        Op::Cnp => "CNP",
    };
    // Masked atomics of a dynamic connection say it already.
    let own = if operation.ends_with(')') { "" } else { own };
    format!("{service} {operation}{own}")
}

/// What there is to say of a packet's opcode that is not decoded and that InfiniBand does not reserve (vol. 1, 9.2.1,
/// table "OpCode field").
pub(super) fn foreign_opcode(code: u8) -> Option<&'static str> {
    match code {
        // Up to RESYNC; FLUSH and ATOMIC WRITE.
        0x40..=0x55 | 0x5c | 0x5d => Some("of RD, whose packets are not decoded"),
        0xc0.. => Some("manufacturer-specific: what it is is not published"),
        _ => None,
    }
}

/// An AETH syndrome in words.
pub(super) fn aeth(code: u8) -> String {
    match roce::Syndrome::from_code(code) {
        Some(roce::Syndrome::Ack { credits }) => match roce::credits(credits) {
            Some(credits) => format!("ACK, {credits} credits"),
            None => "ACK, without credits".into(),
        },
        Some(roce::Syndrome::RnrNak { timer }) => {
            let ns = roce::rnr_timer_ns(timer);
            format!("RNR NAK: no receive is posted; again after {} us", ns / 1000)
        }
        Some(roce::Syndrome::Nak(code)) => match code {
            NakCode::PsnSequence => "NAK: PSN sequence error, packets before are missing",
            NakCode::InvalidRequest => "NAK: invalid request",
            NakCode::RemoteAccess => "NAK: remote access error: key, bounds or rights",
            NakCode::RemoteOperational => "NAK: remote operational error",
            NakCode::InvalidRdRequest => "NAK: invalid RD request",
        }
        .into(),
        None => "reserved".into(),
    }
}

/// Addresses among bytes: of Ethernet, and IPv6's or GIDs.
pub(super) fn address(field: &str, bytes: &[u8]) -> Option<String> {
    if !["gid", "address", "rmac", "source", "destination"].iter().any(|n| field.contains(n)) {
        return None;
    }
    if let Ok(bytes) = <[u8; 16]>::try_from(bytes) {
        let six = Ipv6Addr::from(bytes);
        return Some(match six.to_ipv4_mapped() {
            Some(four) => format!("IPv4 {four}"),
            None => six.to_string(),
        });
    }
    let words: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    (bytes.len() == 6).then(|| words.join(":"))
}

/// Reasons of a REJ (InfiniBand vol. 1, table 109).
const REASONS: [(u64, &str); 34] = [
    (1, "no queue pair available"),
    (2, "no end-to-end context available"),
    (3, "no resources available"),
    (4, "timeout"),
    (5, "unsupported request"),
    (6, "invalid communication ID"),
    (7, "invalid communication instance"),
    (8, "invalid service ID: nobody listens there"),
    (9, "invalid transport service type"),
    (10, "stale connection"),
    (11, "RDC does not exist"),
    (12, "primary remote port GID rejected"),
    (13, "primary remote port LID rejected"),
    (14, "invalid primary SL"),
    (15, "invalid primary traffic class"),
    (16, "invalid primary hop limit"),
    (17, "invalid primary packet rate"),
    (18, "alternate remote port GID rejected"),
    (19, "alternate remote port LID rejected"),
    (20, "invalid alternate SL"),
    (21, "invalid alternate traffic class"),
    (22, "invalid alternate hop limit"),
    (23, "invalid alternate packet rate"),
    (24, "port and CM redirection"),
    (25, "port redirection"),
    (26, "invalid path MTU"),
    (27, "insufficient responder resources"),
    (28, "consumer reject: see the private data"),
    (29, "RNR retry count rejected"),
    (30, "duplicate local communication ID"),
    (31, "invalid class version"),
    (32, "invalid flow label"),
    (33, "invalid alternate flow label"),
    (35, "vendor option not supported"),
];

fn ctrl(field: &str, value: u64) -> Option<String> {
    let text = match (field, value) {
        ("opmod_idx_opcode.opcode", code) => wqe_opcode(code).unwrap_or("unknown"),
        ("opmod_idx_opcode.wqe_index", index) => return Some(index.to_string()),
        ("qpn_ds.ds", ds) => return Some(format!("{} bytes", ds * 16)),
        ("fm_ce_se.fm", 0) => "no fence",
        ("fm_ce_se.fm", 1) => "initiator small fence",
        ("fm_ce_se.fm", 2) => "fence: waits for earlier READs and atomics",
        ("fm_ce_se.fm", 3) => "strong ordering",
        ("fm_ce_se.fm", 4) => "small fence and fence",
        ("fm_ce_se.ce", 0) => "a CQE on error only",
        ("fm_ce_se.ce", 1) => "a CQE on the first error only",
        ("fm_ce_se.ce", 2) => "a CQE in every case",
        ("fm_ce_se.ce", 3) => "a CQE in every case, and an event",
        ("fm_ce_se.se", 1) => "solicited",
        _ => return None,
    };
    Some(text.into())
}

fn cqe(field: &str, value: u64) -> Option<String> {
    let text = match (field, value) {
        ("op_own.cqe_format", 0) => "no data in the entry",
        ("op_own.cqe_format", 1) => "up to 32 bytes of data in the entry",
        ("op_own.cqe_format", 2) => "up to 64 bytes of data in the entry before",
        ("op_own.cqe_format", 3) => "compressed: an array of mini-CQEs follows",
        ("syndrome", code) => return Syndrome::from_code(code as u8).map(syndrome::name),
        ("sop_drop_qpn.sop" | "s_wqe_opcode_qpn.opcode", code) => wqe_opcode(code)?,
        ("byte_cnt" | "wqe_counter", n) => return Some(n.to_string()),
        ("op_own.opcode", 0xc) => "SIG_ERR",
        ("op_own.opcode", code) => {
            let mut entry = [0; 64];
            entry[63] = (code as u8) << 4;
            cqe_opcode(bellpush::wire::cqe::Cqe::parse(&entry).ok()?.opcode)
        }
        ("app", 1) => "tag matching",
        _ => return None,
    };
    Some(text.into())
}

/// What a protection tuple differs in (Linux, `get_sig_err_item`).
pub(super) fn signature_error(syndrome: u64) -> &'static str {
    match syndrome {
        _ if syndrome & 1 << 13 != 0 => "guard tag",
        _ if syndrome & 1 << 11 != 0 => "reference tag",
        _ if syndrome & 1 << 12 != 0 => "application tag",
        _ => "unknown",
    }
}

fn mad(field: &str, value: u64) -> Option<String> {
    Some(match (field, value) {
        ("MgmtClass", 7) => "communication management".into(),
        ("MgmtClass", 3) => "subnet administration".into(),
        ("MgmtClass", 4) => "performance management".into(),
        ("AttributeID", id) => format!("{:?}", MessageKind::from_attribute(id as u16)?),
        ("reason", code) => REASONS.iter().find(|(known, _)| *known == code)?.1.into(),
        ("mtu", code @ 1..=5) => format!("{} bytes", 128 << code),
        ("transport", 0) => "RC".into(),
        ("transport", 1) => "UC".into(),
        ("ack_timeout", code) => {
            format!("{} us", roce::ack_timeout_ns(code as u8).unwrap_or(0) / 1000)
        }
        _ => return None,
    })
}

/// Ethernet types that are seen beside RoCEv2 (IEEE's and IANA's registries).
pub(super) fn ethertype(code: u64) -> Option<&'static str> {
    Some(match code {
        0x0800 => "IPv4",
        0x0806 => "ARP",
        0x8100 => "802.1Q",
        0x86dd => "IPv6",
        0x8808 => "MAC control: pause, PFC",
        0x8809 => "slow protocols: LACP",
        0x8847 => "MPLS",
        0x88a8 => "802.1ad",
        0x88cc => "LLDP: DCBX",
        0x88f7 => "PTP",
        0x8915 => "RoCEv1",
        _ => return None,
    })
}

/// What a number means in the field of a format.
pub(super) fn meaning(format: &str, field: &str, value: u64) -> Option<String> {
    if field == "reserved" {
        return None;
    }
    let decimal = || Some(value.to_string());
    match (format, field) {
        ("ctrl" | "doorbell", _) => ctrl(field, value),
        ("cqe64" | "err_cqe", _) => cqe(field, value),
        ("sig_err_cqe", "op_own.opcode") => cqe(field, value),
        ("sig_err_cqe", "syndrome") => Some(signature_error(value).into()),
        ("data" | "klm", "byte_count") if value == 0 => Some("2^31 bytes".into()),
        ("data", "lkey") if value == u64::from(wqe::INVALID_LKEY.0) => Some("ends a list".into()),
        ("data" | "inline" | "klm" | "reth", "byte_count" | "DMALen") => decimal(),
        ("bth", "OpCode") => match Opcode::from_code(value as u8) {
            Some(opcode) => Some(packet_opcode(opcode)),
            None => super::placement::name(value as u8).map(str::to_owned),
        },
        ("feth", _) => super::placement::meaning(field, value).map(str::to_owned),
        ("mini_cqe8", "s_wqe_opcode") => wqe_opcode(value).map(str::to_owned),
        ("mini_cqe8", "wqe_counter" | "byte_cnt") => decimal(),
        ("bth", "PSN") | ("aeth", "MSN") => decimal(),
        ("aeth", "Syndrome") => Some(aeth(value as u8)),
        ("ethernet" | "vlan", "ethertype") | ("linux_sll" | "linux_sll2", "protocol") => {
            ethertype(value).map(str::to_owned)
        }
        ("ipv4", "source_address" | "destination_address") => {
            Some(IpAddr::from(Ipv4Addr::from_bits(value as u32)).to_string())
        }
        ("ipv4", "protocol") | ("ipv6", "next_header") if value == 17 => Some("UDP".into()),
        ("ipv4", "total_length") | ("ipv6", "payload_length") | ("udp", "length") => decimal(),
        ("udp", "destination_port") if value == u64::from(roce::ROCE_PORT) => Some("RoCEv2".into()),
        ("udp", _) if field != "checksum" => decimal(),
        ("doorbell_record", "rcv.wqe_counter" | "snd.wqe_counter") => decimal(),
        ("tm", "opcode") => Some(
            match value {
                0 => "NOOP",
                1 => "APPEND",
                2 => "REMOVE",
                _ => "unknown",
            }
            .into(),
        ),
        _ if format.starts_with("mad") || format.starts_with("MAD data") => mad(field, value),
        _ => None,
    }
}
