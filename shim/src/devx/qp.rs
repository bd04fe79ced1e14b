//! `CREATE_QP`, the commands that move a queue pair from state to state, `QUERY_QP`.

use std::sync::Arc;

use bellpush_mem::{HostMem, PAGE_BYTES, View};
use bellpush_nic::{Access, Change, Nic, Order, QpAttr, QpState, QpType, QueuePair, Queues};
use bellpush_soft_nic::{Cq, Extra, Objects as Used, Qp, Srq};
use bellpush_wire::Qpn;

use super::cq::DevxCq;
use super::prm::{Mailbox, dct, header, op, qp};
use super::rmp::DevxRmp;
use super::{Umem, at_least, named};
use super::{general, moves};
use crate::commands::Command;
use crate::commands::cq::CqObj;
use crate::commands::dct::no_queues;
use crate::commands::device::MAX_WQES;
use crate::commands::memory::{PdObj, path};
use crate::commands::srq::SrqObj;
use crate::context::{Object, Objects};
use crate::error::Refusal;
use crate::layout;
use crate::trap::Trap;

const WQEBB_BYTES: usize = 64;
const DS_BYTES: usize = 16;
const DBR_BYTES: usize = 8;

/// A CQ, whoever made it.
pub enum AnyCq {
    Verbs(Arc<CqObj>),
    Devx(Arc<DevxCq>),
}

impl AnyCq {
    pub fn find(objects: &Objects, number: u32) -> Result<Self, Refusal> {
        named(objects, "completion queue", number, |object| match object {
            Object::Cq(cq) if cq.cq.number() == number => Some(Self::Verbs(cq.clone())),
            Object::DevxCq(cq) if cq.cq.number() == number => Some(Self::Devx(cq.clone())),
            _ => None,
        })
    }

    pub fn cq(&self) -> Arc<Cq> {
        match self {
            Self::Verbs(cq) => cq.cq.clone(),
            Self::Devx(cq) => cq.cq.clone(),
        }
    }
}

/// An SRQ, whoever made it.
enum AnySrq {
    Verbs(Arc<SrqObj>),
    Devx(Arc<DevxRmp>),
}

impl AnySrq {
    fn find(objects: &Objects, number: u32) -> Result<Self, Refusal> {
        named(objects, "SRQ or RMP", number, |object| match object {
            Object::Srq(srq) if srq.srq.number() == number => Some(Self::Verbs(srq.clone())),
            Object::DevxRmp(rmp) if rmp.srq.number() == number => Some(Self::Devx(rmp.clone())),
            _ => None,
        })
    }

    fn srq(&self) -> Arc<Srq> {
        match self {
            Self::Verbs(srq) => srq.srq.clone(),
            Self::Devx(rmp) => rmp.srq.clone(),
        }
    }
}

/// A queue pair in umems.
pub struct DevxQp {
    /// The NIC's.
    pub qp: Arc<Qp>,
    _uses: Uses,
}

/// What a queue pair keeps: protection domain, CQs, SRQ, the umems of its queues and of its record.
type Uses =
    (Arc<PdObj>, [Option<AnyCq>; 2], Option<AnySrq>, [Option<Arc<Umem>>; 2], Option<Arc<Trap>>);

/// Where receives come from: `rq_type`.
enum Receives {
    Queue { wqes: u32, sges: u32 },
    Shared(AnySrq),
    None,
}

fn receives(objects: &Objects, cmd: &Mailbox) -> Result<Receives, Refusal> {
    Ok(match cmd.get(qp::RQ_TYPE) {
        0 => Receives::Queue {
            wqes: 1 << cmd.word(qp::LOG_RQ_SIZE),
            sges: 1 << cmd.word(qp::LOG_RQ_STRIDE),
        },
        1 => Receives::Shared(AnySrq::find(objects, cmd.word(qp::SRQN))?),
        3 => Receives::None,
        _ => return Err(Refusal::Unsupported("a receive queue of that type")),
    })
}

/// Memory for a ring without entries.
fn none() -> Result<View, Refusal> {
    Ok(View::new(&HostMem::alloc(PAGE_BYTES)?, 0, WQEBB_BYTES)?)
}

/// Creates a queue pair: its receive queue comes first in the umem, then its send queue.
pub fn create(c: &mut Command<'_>, cmd: &Mailbox) -> Result<(Object, u32), Refusal> {
    at_least(cmd, qp::IN_BYTES)?;
    let kind = match cmd.get(qp::ST) {
        0 => QpType::Rc,
        1 => QpType::Uc,
        2 => QpType::Ud,
        5 => QpType::Dci,
        6 => return Err(Refusal::Unsupported("a DC target")),
        _ => return Err(Refusal::Unsupported("a queue pair of a type other than RC, UC, UD, DCI")),
    };
    if cmd.get(qp::PAGE_OFFSET) != 0 {
        let value = cmd.get(qp::PAGE_OFFSET);
        return Err(Refusal::Value { what: "queue pair's page_offset", value, must: "0" });
    }
    if cmd.get(qp::SEND_DBR_MODE) != 0 {
        // The register of such doorbells is one for a page, whose queue pairs would overwrite each other's: a card sees
        // each store, and the engine the last.
        let (value, must) = (cmd.get(qp::SEND_DBR_MODE), "0: with a doorbell record");
        return Err(Refusal::Value { what: "send_dbr_mode", value, must });
    }
    let pdn = cmd.word(qp::PD);
    let pd = named(c.objects, "protection domain", pdn, |object| match object {
        Object::Pd(pd) if pd.pd.number() == pdn => Some(pd.clone()),
        _ => None,
    })?;
    let from = match kind {
        QpType::Dci => Receives::None,
        _ => receives(c.objects, cmd)?,
    };
    let has_sq = !cmd.flag(qp::NO_SQ);
    let blocks = if has_sq { 1 << cmd.word(qp::LOG_SQ_SIZE) } else { 0u32 };
    let (wqes, sges, srq) = match from {
        Receives::Queue { wqes, sges } => (wqes, sges, None),
        Receives::Shared(srq) => (0, 1, Some(srq)),
        Receives::None => (0, 1, None),
    };
    if blocks.max(wqes) > MAX_WQES {
        let must = "within log_max_qp_sz";
        return Err(Refusal::Value { what: "ring's size", value: blocks.max(wqes).into(), must });
    }
    let send_cq = has_sq.then(|| AnyCq::find(c.objects, cmd.word(qp::CQN_SND))).transpose()?;
    let receives = wqes > 0 || srq.is_some();
    let recv_cq = receives.then(|| AnyCq::find(c.objects, cmd.word(qp::CQN_RCV))).transpose()?;
    // One that does not send never looks at its send CQ.
    let send = send_cq.as_ref().or(recv_cq.as_ref());
    let send = send.ok_or(Refusal::Unsupported("a queue pair without queues"))?.cq();

    let uar = cmd.word(qp::UAR_PAGE);
    let page = c.objects.uars.get(&uar);
    let page = page.ok_or(Refusal::Number { what: "UAR page", number: uar })?.clone();
    let record = super::umem(c.objects, cmd.word(qp::DBR_UMEM_ID))?;
    let dbr = record.queue(cmd.get(qp::DBR_ADDR), DBR_BYTES)?;
    let (rq_bytes, sq_bytes) =
        (wqes as usize * sges as usize * DS_BYTES, blocks as usize * WQEBB_BYTES);
    let mut buffer = None;
    let (mut rq, mut sq) = (none()?, none()?);
    if rq_bytes + sq_bytes > 0 {
        let umem = super::umem(c.objects, cmd.word(qp::WQ_UMEM_ID))?;
        let all = umem.queue(cmd.get(qp::WQ_UMEM_OFFSET), rq_bytes + sq_bytes)?;
        if rq_bytes > 0 {
            rq = all.part(0, rq_bytes)?;
        }
        if sq_bytes > 0 {
            sq = all.part(rq_bytes, sq_bytes)?;
        }
        buffer = Some(umem);
    }
    let attr = QpAttr {
        sq_blocks: blocks,
        rq_wqes: wqes,
        rq_sges: sges,
        // Those of the objects hold.
        send_cqes: 1,
        recv_cqes: 1,
        rnr_retry: 0,
        ack_timeout: 0, // modify_qp says
        inband: None,
        blueflame: false,
    };
    if record.is_gpu() {
        // Programs leave there what cudaMalloc has, and this engine looks at the record with each doorbell.
        dbr.fill(0, DBR_BYTES, 0)?;
    }
    let queues = Queues {
        sq,
        rq,
        rq_stride_log: (sges * DS_BYTES as u32).ilog2(),
        uar: page,
        order: Order::Strict,
        // The CQs are objects of their own.
        send_cq: dbr.clone(),
        send_cq_dbr: dbr.clone(),
        recv_cq: dbr.clone(),
        recv_cq_dbr: dbr.clone(),
        dbr,
    };
    let objects = Used {
        kind,
        pd: pd.pd.clone(),
        send_cq: send,
        recv_cq: recv_cq.as_ref().map(AnyCq::cq),
        srq: srq.as_ref().map(AnySrq::srq),
        uidx: cmd.word(qp::USER_INDEX),
    };
    let made = c.context.device.nic.create_with(&attr, queues, objects)?;
    let number = made.qpn().0;
    let trap = c.objects.trap(c.fd, uar, &c.context.device);
    let uses = (pd, [send_cq, recv_cq], srq, [buffer, Some(record)], trap);
    Ok((Object::DevxQp(DevxQp { qp: made, _uses: uses }), number))
}

/// Creates a DC target, in RTR.
pub fn create_target(c: &mut Command<'_>, cmd: &Mailbox) -> Result<(Object, u32), Refusal> {
    at_least(cmd, dct::IN_BYTES)?;
    let pdn = cmd.word(dct::PD);
    let pd = named(c.objects, "protection domain", pdn, |object| match object {
        Object::Pd(pd) if pd.pd.number() == pdn => Some(pd.clone()),
        _ => None,
    })?;
    let cq = AnyCq::find(c.objects, cmd.word(dct::CQN))?;
    let srq = AnySrq::find(c.objects, cmd.word(dct::SRQN))?;
    let class = cmd.word(dct::TCLASS) as u8 | (cmd.word(dct::DSCP) as u8) << 2;
    let route = (cmd.word(dct::FLOW_LABEL), cmd.word(dct::HOP_LIMIT) as u8, class);
    let (port, device) = (cmd.word(dct::PORT) as u8, &c.context.device);
    let gid = layout::gid(device.address);
    let init = Change {
        access: Some(Access {
            local_write: true,
            remote_read: cmd.flag(dct::RRE),
            remote_write: cmd.flag(dct::RWE),
            remote_atomic: cmd.flag(dct::RAE),
            ..Access::NONE
        }),
        pkey_index: Some(cmd.word(dct::PKEY_INDEX) as u16),
        port: Some(port),
        ..Change::default()
    };
    let rtr = Change {
        av: Some(path(gid, route, (1, cmd.word(dct::MY_ADDR_INDEX) as u8, port))?),
        path_mtu: Some(moves::mtu(cmd.word(dct::MTU))?),
        min_rnr_timer: Some(cmd.word(dct::MIN_RNR_NAK) as u8),
        ..Change::default()
    };
    let (attr, queues) = no_queues()?;
    let objects = Used {
        kind: QpType::Dct,
        pd: pd.pd.clone(),
        send_cq: cq.cq(),
        recv_cq: Some(cq.cq()),
        srq: Some(srq.srq()),
        uidx: cmd.word(dct::USER_INDEX),
    };
    let made = device.nic.create_with(&attr, queues, objects)?;
    made.set_dc_key(cmd.get(dct::DC_ACCESS_KEY));
    let up = made.modify(QpState::Init, &init).and_then(|()| made.modify(QpState::Rtr, &rtr));
    if let Err(why) = up {
        let _ = device.nic.destroy_qp(made.qpn()); // nobody knows it
        return Err(why.into());
    }
    let number = made.qpn().0;
    let uses = (pd, [Some(cq), None], Some(srq), [None, None], None);
    Ok((Object::DevxQp(DevxQp { qp: made, _uses: uses }), number))
}

fn of_handle(objects: &Objects, handle: u32, cmd: &Mailbox) -> Result<Arc<Qp>, Refusal> {
    let qp = match objects.get(handle) {
        Some(Object::DevxQp(object)) => &object.qp,
        Some(Object::Qp(object)) => &object.qp,
        _ => return Err(Refusal::Handle { what: "queue pair", handle }),
    };
    let number = cmd.word(header::NUMBER);
    if qp.qpn() != Qpn(number) {
        return Err(Refusal::Number { what: "queue pair of that handle", number });
    }
    Ok(qp.clone())
}

/// Carries out a command that moves a queue pair.
pub fn modify(c: &mut Command<'_>, handle: u32, cmd: &Mailbox) -> Result<(), Refusal> {
    let qp = of_handle(c.objects, handle, cmd)?;
    let code = cmd.get(header::OPCODE) as u16;
    let (from, to) = moves::ends(code).ok_or(Refusal::Command(code.into()))?;
    if from.is_some() {
        at_least(cmd, qp::QPC + qp::QPC_BYTES)?;
    }
    let now = qp.state();
    in_state(from, now)?;
    let (change, stream) = (moves::change(cmd, code, &qp)?, moves::stream(cmd, code)?);
    let groups = match moves::groups(cmd, code)? {
        Some([asks, answers]) => {
            let group = |id| general::group(c.objects, id);
            Some([group(asks)?, group(answers)?])
        }
        None => None,
    };
    Ok(qp.modify_with(to, &change, Extra { groups, stream })?)
}

fn in_state(wanted: Option<QpState>, now: QpState) -> Result<(), Refusal> {
    match wanted {
        Some(from) if from != now => {
            let must = "the one that the command moves from";
            let value = moves::code(now).into();
            Err(Refusal::Value { what: "queue pair's state", value, must })
        }
        _ => Ok(()),
    }
}

/// Answers with a queue pair's context.
pub fn query(c: &Command<'_>, handle: u32, cmd: &Mailbox) -> Result<Mailbox, Refusal> {
    debug_assert_eq!(cmd.get(header::OPCODE) as u16, op::QUERY_QP);
    let qp = of_handle(c.objects, handle, cmd)?;
    let mut out = Mailbox::zeroed(qp::IN_BYTES);
    moves::describe(&qp, c.context.device.mtu, &mut out);
    Ok(out)
}
