//! What the commands that move a queue pair say, and what its context says of it.

use std::net::IpAddr;

use bellpush_nic::{Access, AddressVector, Change, Mtu, NicAddress, QpState, QpType, QueuePair};
use bellpush_soft_nic::Qp;
use bellpush_wire::{Psn, Qpn};

use super::prm::{Mailbox, op, qp};
use crate::commands::device::{MAX_RD_ATOMIC, mtu_code};
use crate::commands::memory::path;
use crate::error::Refusal;

/// `enum mlx5_qp_optpar`: what a command changes beside what it must.
mod optional {
    pub const RRE: u32 = 1 << 1;
    pub const RAE: u32 = 1 << 2;
    pub const RWE: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const Q_KEY: u32 = 1 << 5;
    pub const RNR_TIMEOUT: u32 = 1 << 6;
    pub const PM_STATE: u32 = 1 << 10;
    pub const PRI_PORT: u32 = 1 << 16;
    pub const COUNTER_SET_ID: u32 = 1 << 25;
    /// Bits of the mask that goes on from bit 32.
    pub mod wide {
        pub const DCI_STREAM_CHANNEL_ID: u64 = 1 << 0;
        pub const QOS_QUEUE_GROUP_ID: u64 = 1 << 1;
        pub const INIT2INIT_MMO: u64 = 1 << 3;
        pub const UDP_SPORT: u64 = 1 << 2;
    }
    pub const RIGHTS: u32 = RRE | RAE | RWE;
    /// What there is but one of.
    pub const IGNORED: u32 = PM_STATE | COUNTER_SET_ID;
}

/// The states that a command moves from and to.
pub fn ends(code: u16) -> Option<(Option<QpState>, QpState)> {
    use QpState::*;
    Some(match code {
        op::RST2INIT_QP => (Some(Reset), Init),
        op::INIT2INIT_QP => (Some(Init), Init),
        op::INIT2RTR_QP => (Some(Init), Rtr),
        op::RTR2RTS_QP => (Some(Rtr), Rts),
        op::RTS2RTS_QP => (Some(Rts), Rts),
        op::QP_2ERR => (None, Err),
        op::QP_2RST => (None, Reset),
        _ => return None,
    })
}

/// `enum mlx5_qp_state`.
pub fn code(state: QpState) -> u8 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 5,
        QpState::Err => 6,
    }
}

/// The path MTU of a code.
pub fn mtu(code: u32) -> Result<Mtu, Refusal> {
    let mtu = 1usize.checked_shl(code + 7).filter(|_| code > 0).and_then(Mtu::new);
    let must = "256 to 4096 (1 to 5)";
    mtu.ok_or(Refusal::Value { what: "path MTU", value: code.into(), must })
}

fn av(cmd: &Mailbox) -> Result<AddressVector, Refusal> {
    // On Ethernet the class is the IP header's, of which `dscp` is the upper part.
    let class = cmd.word(qp::TCLASS) as u8 | (cmd.word(qp::DSCP) as u8) << 2;
    let route = (cmd.word(qp::FLOW_LABEL), cmd.word(qp::HOP_LIMIT) as u8, class);
    path(cmd.gid(qp::RGID), route, (1, cmd.word(qp::SRC_ADDR_INDEX) as u8, 1))
}

/// READs and atomics outstanding, of their logarithm in a queue pair's context, and what its field and its limit are
/// called (PRM, "QP Context Fields" and HCA capabilities): this end is the requester, or the responder.
fn depth(log: u32, (what, must): (&'static str, &'static str)) -> Result<u8, Refusal> {
    let depth = 1u8.checked_shl(log).filter(|&n| u32::from(n) <= MAX_RD_ATOMIC);
    depth.ok_or(Refusal::Value { what, value: log.into(), must })
}
const REQUESTER: (&str, &str) = (
    "log_sra_max (log2 of max_rd_atomic)",
    "at most log_max_ra_req_qp, which is 4: 16 READs and atomics at a time",
);
const RESPONDER: (&str, &str) = (
    "log_rra_max (log2 of max_dest_rd_atomic)",
    "at most log_max_ra_res_qp, which is 4: 16 READs and atomics at a time",
);

/// The mask of optional parameters from bit 32 on.
fn more(cmd: &Mailbox, code: u16) -> u64 {
    match code {
        op::INIT2INIT_QP | op::RTS2RTS_QP => cmd.get(qp::OPT_PARAM_MASK_95_32),
        _ => 0,
    }
}

/// The stream of an initiator that a command takes out of error.
pub fn stream(cmd: &Mailbox, code: u16) -> Result<Option<u16>, Refusal> {
    let is_there = extended(cmd, code, optional::wide::DCI_STREAM_CHANNEL_ID)?;
    Ok(is_there.then(|| cmd.word(qp::DCI_STREAM_CHANNEL_ID) as u16))
}

/// The groups that a command has requests and responses go by; 0 for none.
pub fn groups(cmd: &Mailbox, code: u16) -> Result<Option<[u32; 2]>, Refusal> {
    let is_there = extended(cmd, code, optional::wide::QOS_QUEUE_GROUP_ID)?;
    let fields = [qp::QUEUE_GROUP_REQUESTER, qp::QUEUE_GROUP_RESPONDER];
    Ok(is_there.then(|| fields.map(|field| cmd.word(field))))
}

/// Whether a command has a parameter of the context's extension.
fn extended(cmd: &Mailbox, code: u16, bit: u64) -> Result<bool, Refusal> {
    if more(cmd, code) & bit == 0 {
        return Ok(false);
    }
    super::at_least(cmd, qp::EXT_END)?;
    if !cmd.flag(qp::QPC_EXT) {
        let must = "1, with a parameter of the context's extension";
        return Err(Refusal::Value { what: "qpc_ext", value: 0, must });
    }
    Ok(true)
}

/// What a command changes.
pub fn change(cmd: &Mailbox, code: u16, of: &Qp) -> Result<Change, Refusal> {
    use optional::*;
    let mut change = Change::default();
    let (kind, now) = (of.kind(), of.query());
    if matches!(code, op::QP_2ERR | op::QP_2RST) {
        return Ok(change);
    }
    let mask = cmd.word(qp::OPT_PARAM_MASK);
    let first = code == op::RST2INIT_QP;
    let has = |bits: u32| first || mask & bits != 0;
    let known = RIGHTS | PKEY_INDEX | Q_KEY | RNR_TIMEOUT | PRI_PORT | IGNORED;
    if mask & !known != 0 {
        return Err(Refusal::Unsupported("an optional parameter (alternate path, retries in RTS)"));
    }
    let more = more(cmd, code);
    let known = match code {
        // Copies by the NIC need not be asked for.
        op::INIT2INIT_QP => wide::QOS_QUEUE_GROUP_ID | wide::INIT2INIT_MMO,
        _ => wide::UDP_SPORT | wide::DCI_STREAM_CHANNEL_ID | wide::QOS_QUEUE_GROUP_ID,
    };
    if more & !known != 0 {
        return Err(Refusal::Unsupported("an optional parameter from bit 32 on"));
    }
    if more & wide::UDP_SPORT != 0 {
        change.src_port = Some(cmd.word(qp::UDP_SPORT) as u16);
    }
    if has(RIGHTS) && !matches!(kind, QpType::Ud | QpType::Dci) {
        let old = now.access.unwrap_or(Access::NONE);
        let right = |bit, field, old| if has(bit) { cmd.flag(field) } else { old };
        change.access = Some(Access {
            local_write: true,
            remote_read: right(RRE, qp::RRE, old.remote_read),
            remote_write: right(RWE, qp::RWE, old.remote_write),
            remote_atomic: right(RAE, qp::RAE, old.remote_atomic),
            ..Access::NONE
        });
    }
    if has(PKEY_INDEX) {
        change.pkey_index = Some(cmd.word(qp::PKEY_INDEX) as u16);
    }
    if has(Q_KEY) && kind == QpType::Ud {
        change.qkey = Some(cmd.word(qp::Q_KEY));
    }
    if has(PRI_PORT) {
        change.port = Some(cmd.word(qp::VHCA_PORT_NUM) as u8);
    }
    if !first && has(RNR_TIMEOUT) {
        change.min_rnr_timer = Some(cmd.word(qp::MIN_RNR_NAK) as u8);
    }
    let connected = !matches!(kind, QpType::Ud | QpType::Dci);
    match code {
        op::INIT2RTR_QP if kind == QpType::Dci => change.path_mtu = Some(mtu(cmd.word(qp::MTU))?),
        op::INIT2RTR_QP if connected => {
            change.av = Some(av(cmd)?);
            change.path_mtu = Some(mtu(cmd.word(qp::MTU))?);
            change.dest_qpn = Some(Qpn(cmd.word(qp::REMOTE_QPN)));
            change.rq_psn = Some(Psn::new(cmd.word(qp::NEXT_RCV_PSN)));
            if kind == QpType::Rc {
                change.max_dest_rd_atomic = Some(depth(cmd.word(qp::LOG_RRA_MAX), RESPONDER)?);
                change.min_rnr_timer = Some(cmd.word(qp::MIN_RNR_NAK) as u8);
            }
        }
        op::RTR2RTS_QP => {
            change.sq_psn = Some(Psn::new(cmd.word(qp::NEXT_SEND_PSN)));
            if kind.is_reliable_requester() {
                change.max_rd_atomic = Some(depth(cmd.word(qp::LOG_SRA_MAX), REQUESTER)?);
                change.retry_cnt = Some(cmd.word(qp::RETRY_COUNT) as u8);
                change.rnr_retry = Some(cmd.word(qp::RNR_RETRY) as u8);
                change.timeout = Some(cmd.word(qp::ACK_TIMEOUT) as u8);
            }
        }
        _ => {}
    }
    Ok(change)
}

/// Fills a context in with what is in force. Before a path says its MTU it is the device's: libraries take 0 for an
/// error.
pub fn describe(of: &Qp, most: Mtu, out: &mut Mailbox) {
    let now = of.query();
    let kind = match of.kind() {
        QpType::Rc => 0,
        QpType::Uc => 1,
        QpType::Ud => 2,
        QpType::XrcSend | QpType::XrcRecv => 3,
        QpType::Dci => 5,
        QpType::Dct => 6,
    };
    let log = |depth: Option<u8>| depth.map_or(0, |n| u64::from(n.max(1).ilog2()));
    let access = now.access.unwrap_or(Access::NONE);
    for (field, value) in [
        (qp::STATE, code(of.state()).into()),
        (qp::ST, kind),
        (qp::PM_STATE, 3), // migrated: there is one path
        (qp::MTU, mtu_code(now.path_mtu.map_or(most, |own| own.min(most)).bytes()).into()),
        (qp::LOG_MSG_MAX, 30),
        (qp::REMOTE_QPN, now.dest_qpn.map_or(0, |qpn| qpn.0.into())),
        (qp::NEXT_RCV_PSN, now.rq_psn.map_or(0, |psn| psn.value().into())),
        (qp::NEXT_SEND_PSN, now.sq_psn.map_or(0, |psn| psn.value().into())),
        (qp::LOG_RRA_MAX, log(now.max_dest_rd_atomic)),
        (qp::LOG_SRA_MAX, log(now.max_rd_atomic)),
        (qp::MIN_RNR_NAK, now.min_rnr_timer.unwrap_or(0).into()),
        (qp::RETRY_COUNT, now.retry_cnt.unwrap_or(0).into()),
        (qp::RNR_RETRY, now.rnr_retry.unwrap_or(0).into()),
        (qp::ACK_TIMEOUT, now.timeout.unwrap_or(0).into()),
        (qp::PKEY_INDEX, now.pkey_index.unwrap_or(0).into()),
        (qp::UDP_SPORT, now.src_port.unwrap_or(0).into()),
        (qp::VHCA_PORT_NUM, now.port.unwrap_or(0).into()),
        (qp::Q_KEY, now.qkey.unwrap_or(0).into()),
        (qp::RRE, access.remote_read.into()),
        (qp::RWE, access.remote_write.into()),
        (qp::RAE, access.remote_atomic.into()),
    ] {
        out.set(field, value);
    }
    if let Some(av) = now.av {
        let gid = match av.nic {
            NicAddress::Ip(IpAddr::V4(v4)) => v4.to_ipv6_mapped().octets(),
            NicAddress::Ip(IpAddr::V6(v6)) => v6.octets(),
            NicAddress::InProcess(_) | NicAddress::Lid { .. } => [0; 16],
        };
        out.set_gid(qp::RGID, gid);
        out.set(qp::HOP_LIMIT, av.hop_limit.into());
        out.set(qp::FLOW_LABEL, av.flow_label.into());
        out.set(qp::TCLASS, av.traffic_class.into());
        out.set(qp::DSCP, u64::from(av.traffic_class) >> 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_logarithms_and_a_refusal_names_its_own_field_and_limit() {
        for of in [REQUESTER, RESPONDER] {
            let depths: Vec<_> = (0..5).map(|log| depth(log, of).ok()).collect();
            assert_eq!(depths, [Some(1), Some(2), Some(4), Some(8), Some(16)]);
        }
        assert_eq!(
            REQUESTER.1.replace("16", ""),
            RESPONDER.1.replace("res", "req").replace("16", "")
        );
        assert!(REQUESTER.1.contains(&format!("is {}: {MAX_RD_ATOMIC} ", MAX_RD_ATOMIC.ilog2())));
        // The number itself in the place of its logarithm, as a program may have it.
        let said = depth(16, RESPONDER).unwrap_err().to_string();
        let must = "must be at most log_max_ra_res_qp, which is 4: 16 READs and atomics at a time";
        assert_eq!(said, format!("log_rra_max (log2 of max_dest_rd_atomic) is 0x10, but {must}"));
        let said = depth(5, REQUESTER).unwrap_err().to_string();
        assert!(
            said.starts_with("log_sra_max (log2 of max_rd_atomic) is 0x5, but must be at most")
        );
    }
}
