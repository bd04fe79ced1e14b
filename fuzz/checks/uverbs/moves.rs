//! Queue pairs are moved, by verbs: what is accepted is legal, and is what a query answers.

use bytemuck::{Zeroable, bytes_of};

use super::command::{Cmd, Done, read};
use super::make::Made;
use super::model::{Kind, may_move};
use super::{Input, Picked, Session};
use crate::abi::ids::{UHW_OUT, attr, command};
use crate::abi::verbs::{ModifyQp, QpDest, QueryQp, QueryQpResp, access, qp_attr as mask};

const RC: u64 = 2;
const UC: u64 = 3;
const UD: u64 = 4;

/// What a move to a state needs, of a queue pair of a type.
fn needed(kind: u64, to: u8) -> u32 {
    use mask::*;
    let reliable = matches!(kind, RC | 9 | 10);
    let if_reliable = |bits| if reliable { bits } else { 0 };
    STATE
        | match (to, kind) {
            (1, UD) => PKEY_INDEX | PORT | QKEY,
            (1, _) => PKEY_INDEX | PORT | ACCESS_FLAGS,
            (2, UD) => 0,
            (2, _) => {
                let more = if kind == 9 { 0 } else { MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER };
                AV | PATH_MTU | DEST_QPN | RQ_PSN | if_reliable(more)
            }
            (3, _) => {
                let more = if kind == 10 { 0 } else { RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC };
                SQ_PSN | if_reliable(TIMEOUT | more)
            }
            _ => 0,
        }
}

/// A change of the input's choice: mostly the next state, with all that it needs.
fn change(input: &mut Input<'_>, handle: u64, (kind, now): (u64, u8)) -> ModifyQp {
    let how = input.u8();
    let to = match how {
        0..180 => [1, 2, 3, 4, 3, 0, 0][usize::from(now.min(6))],
        180..210 => 6,
        210..230 => 0,
        _ => how & 7,
    };
    let bits = match input.u8() {
        0..200 => needed(kind, to),
        200..230 => needed(kind, to) ^ 1 << (input.u8() % 26),
        _ => u32::from(input.u8()) << (input.u8() % 20) | mask::STATE,
    };
    let with = input.u8();
    let small = |most: u8| if with < 240 { with % (most + 1) } else { with };
    let mut dgid = [0; 16];
    (dgid[10], dgid[11], dgid[12], dgid[15]) = (0xff, 0xff, 127, 1);
    let is_global = u8::from(with != 251);
    ModifyQp {
        dest: QpDest { dgid, is_global, port_num: 1, hop_limit: 9, ..QpDest::zeroed() },
        qp_handle: handle as u32,
        attr_mask: bits,
        qkey: u32::from(with) << 20,
        rq_psn: u32::from(with) << 17,
        sq_psn: u32::from(with) << 15,
        dest_qp_num: u32::from(with) << 10 | 2,
        qp_access_flags: (access::REMOTE_WRITE | access::REMOTE_READ) & u32::from(with),
        pkey_index: u16::from(with == 252),
        qp_state: to,
        cur_qp_state: now,
        path_mtu: small(5),
        max_rd_atomic: small(16),
        max_dest_rd_atomic: small(16),
        min_rnr_timer: small(31),
        port_num: 1 + u8::from(with == 253),
        timeout: small(31),
        retry_cnt: small(7),
        rnr_retry: small(7),
        ..ModifyQp::zeroed()
    }
}

/// `IB_USER_VERBS_CMD_MODIFY_QP`.
pub fn verbs(input: &mut Input<'_>, s: &Session) -> Made {
    let picked = s.pick(input, &[Kind::Qp]);
    let live = s.live.iter().find(|live| live.handle == picked.handle);
    let is = live.filter(|_| picked.wrong.is_none()).map_or((RC, 0), |live| live.qp);
    let asked = change(input, picked.handle, is);
    let number = [command::MODIFY_QP, command::EX_MODIFY_QP][usize::from(input.u8() & 1)];
    let cmd = Cmd::written(number, bytes_of(&asked).to_vec()).out(UHW_OUT, 16);
    Made::then(cmd.wrong_if(picked.wrong), move |s, cmd, _| moved(s, cmd, &picked, &asked))
}

/// Checks a change that was carried out.
fn moved(s: &mut Session, cmd: &Cmd, picked: &Picked, asked: &ModifyQp) {
    let has = |bit| asked.attr_mask & bit != 0;
    let exact = s.exact;
    let Some(live) = s.live.iter_mut().find(|live| live.handle == picked.handle) else { return };
    let (kind, from) = live.qp;
    if has(mask::STATE) {
        let legal = !exact || may_move(from, asked.qp_state);
        assert!(legal, "{cmd:?}: from {from} to {}", asked.qp_state);
        live.qp.1 = asked.qp_state;
        s.outcome.moved += 1;
    }
    let to = live.qp.1;
    for (bit, value, most) in [
        (mask::TIMEOUT, u32::from(asked.timeout), 31),
        (mask::RETRY_CNT, asked.retry_cnt.into(), 7),
        (mask::RNR_RETRY, asked.rnr_retry.into(), 7),
        (mask::MIN_RNR_TIMER, asked.min_rnr_timer.into(), 31),
        (mask::MAX_QP_RD_ATOMIC, asked.max_rd_atomic.into(), 16),
        (mask::MAX_DEST_RD_ATOMIC, asked.max_dest_rd_atomic.into(), 16),
        (mask::PKEY_INDEX, asked.pkey_index.into(), 0),
        (mask::PORT, asked.port_num.into(), 1),
        (mask::PATH_MTU, asked.path_mtu.into(), 5),
        (mask::DEST_QPN, asked.dest_qp_num, (1 << 24) - 1),
    ] {
        assert!(!has(bit) || value <= most, "{cmd:?}: {value} is more than {most}");
    }
    if kind == 0xff || !exact {
        return;
    }
    let ask = query(picked);
    let done = ask.cmd.send(&s.device, &Default::default());
    let told: QueryQpResp = read(done.answer(attr::CORE_OUT)).expect("a whole answer");
    assert_eq!((told.qp_state, told.cur_qp_state), (to, to), "{cmd:?}");
    // What a queue pair had is gone with RESET.
    if to != 0 {
        is_told(cmd, asked, &told, kind);
    }
}

fn is_told(cmd: &Cmd, asked: &ModifyQp, told: &QueryQpResp, kind: u64) {
    let psn = |psn| psn & 0xff_ffff;
    for (bit, asked_for, is) in [
        (mask::TIMEOUT, u32::from(asked.timeout), u32::from(told.timeout)),
        (mask::RETRY_CNT, asked.retry_cnt.into(), told.retry_cnt.into()),
        (mask::RNR_RETRY, asked.rnr_retry.into(), told.rnr_retry.into()),
        (mask::MIN_RNR_TIMER, asked.min_rnr_timer.into(), told.min_rnr_timer.into()),
        (mask::MAX_QP_RD_ATOMIC, asked.max_rd_atomic.into(), told.max_rd_atomic.into()),
        (mask::MAX_DEST_RD_ATOMIC, asked.max_dest_rd_atomic.into(), told.max_dest_rd_atomic.into()),
        (mask::PATH_MTU, asked.path_mtu.into(), told.path_mtu.into()),
        (mask::DEST_QPN, asked.dest_qp_num, told.dest_qp_num),
        (mask::QKEY, asked.qkey, told.qkey),
        (mask::RQ_PSN, psn(asked.rq_psn), told.rq_psn),
        (mask::SQ_PSN, psn(asked.sq_psn), told.sq_psn),
        (mask::ACCESS_FLAGS, asked.qp_access_flags, told.qp_access_flags),
        (mask::PORT, asked.port_num.into(), told.port_num.into()),
    ] {
        let has = asked.attr_mask & bit != 0;
        assert!(!has || asked_for == is, "{cmd:?} of type {kind}: bit {bit:#x} is {is:#x}");
    }
}

/// `IB_USER_VERBS_CMD_QUERY_QP`.
pub fn query(picked: &Picked) -> Made {
    let core = QueryQp { response: 0, qp_handle: picked.handle as u32, attr_mask: u32::MAX };
    let cmd = Cmd::written(command::QUERY_QP, bytes_of(&core).to_vec())
        .out(attr::CORE_OUT, size_of::<QueryQpResp>() as u16)
        .wrong_if(picked.wrong);
    let handle = picked.handle;
    Made::then(cmd, move |s, cmd, done: &Done| {
        let told: QueryQpResp = read(done.answer(attr::CORE_OUT)).expect("a whole answer");
        let live = s.live.iter().find(|live| live.handle == handle);
        let is = live.filter(|live| s.exact && live.qp.0 != UC + 0xff).map(|live| live.qp.1);
        assert!(is.is_none_or(|is| is == told.qp_state), "{cmd:?}: {} of {is:?}", told.qp_state);
    })
}
