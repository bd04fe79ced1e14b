//! Commands as programs send them, with values of the input; and what must have come of them.

use bytemuck::{Zeroable, bytes_of};

use super::command::{Cmd, Done, What, read};
use super::devx;
use super::model::{Kind, Live};
use super::{Input, MOST_LIVE, Picked, Session, memory, moves};
use crate::abi::ids::{UHW_OUT, attr, command, method, object};
use crate::abi::mlx5::{self, AllocUcontextReq, CreateCq, CreateQp, CreateSrq};
use crate::abi::verbs::{GidEntry, ModifyCq, ModifySrq, OpenXrcd, QpCap, QuerySrq, ResizeCq};
use crate::fuzzed::QUEUES;

pub type Check = Box<dyn FnOnce(&mut Session, &Cmd, &Done, (usize, usize))>;

/// A command, and what is looked at when it has been sent.
pub struct Made {
    pub cmd: Cmd,
    pub after: Check,
    pub destroys: bool,
}

impl Made {
    /// One that makes and destroys nothing, as long as it means what it was made to.
    pub fn of(cmd: Cmd) -> Self {
        Self::then(cmd, |_, _, _| {})
    }

    /// The same, with a look at its answer if it was carried out as it is.
    pub fn then(cmd: Cmd, look: impl FnOnce(&mut Session, &Cmd, &Done) + 'static) -> Self {
        let after =
            move |s: &mut Session, cmd: &Cmd, done: &Done, (before, now): (usize, usize)| {
                // As in the kernel, what cannot be told has happened: a queue pair is moved before the answer is written.
                let untold = done.errno == Err(libc::EFAULT);
                if cmd.vague || untold {
                    s.exact &= !(done.is_ok() || untold);
                } else if done.is_ok() {
                    assert_eq!(before, now, "{cmd:?}");
                    look(s, cmd, done);
                }
            };
        Self { cmd, after: Box::new(after), destroys: false }
    }

    /// One that makes an object, whose number the answer tells.
    pub fn makes(
        cmd: Cmd,
        new: Live,
        tells: impl FnOnce(&mut Live, &Cmd, &Done) + 'static,
    ) -> Self {
        let after =
            move |s: &mut Session, cmd: &Cmd, done: &Done, (before, now): (usize, usize)| {
                if !done.is_ok() || now == before {
                    assert!(!done.is_ok() || cmd.vague, "{cmd:?} makes nothing");
                    return;
                }
                assert_eq!(now, before + 1, "{cmd:?}");
                let mut new = new;
                tells(&mut new, cmd, done);
                s.take_on(cmd, done, new);
            };
        Self { cmd, after: Box::new(after), destroys: false }
    }
}

/// Somewhere in the memory for queues, or (now and then) where it cannot be; and whether that must be refused.
pub fn place(input: &mut Input<'_>, s: &Session, bytes: usize) -> (u64, Option<&'static str>) {
    let (at, memory) = (input.u8(), &s.device.memory);
    let room = QUEUES.saturating_sub(bytes) as u64;
    let inside = (u64::from(at) * 1024).min(room & !63);
    let addr = match at {
        0..236 => memory.queues + inside,
        236..240 => memory.hole,
        240..244 => memory.queues + QUEUES as u64 - 4,
        244..248 => 0,
        248..252 => 0xffff_8000_0000_0000,
        _ => memory.constant,
    };
    let end = memory.queues + QUEUES as u64;
    let fits = addr >= memory.queues && addr < end && addr + bytes as u64 <= end;
    (addr, (!fits).then_some("memory cannot be accessed"))
}

pub fn context() -> Made {
    let request = AllocUcontextReq {
        max_cqe_version: 1,
        lib_caps: mlx5::LIB_CAP_DYN_UAR,
        ..AllocUcontextReq::zeroed()
    };
    let cmd = Cmd::new(object::DEVICE, method::GET_CONTEXT)
        .input(crate::abi::ids::UHW_IN, bytes_of(&request).to_vec())
        .out(attr::GET_CONTEXT_NUM_COMP_VECTORS, 4)
        .out(attr::GET_CONTEXT_CORE_SUPPORT, 8)
        .out(UHW_OUT, 72);
    Made::of(cmd)
}

pub fn uar(kind: u8) -> Made {
    let cmd = Cmd::new(object::UAR, method::UAR_ALLOC)
        .value(attr::UAR_ALLOC_TYPE, kind.into())
        .handle(attr::UAR_ALLOC_HANDLE)
        .out(attr::UAR_ALLOC_MMAP_OFFSET, 8)
        .out(attr::UAR_ALLOC_MMAP_LENGTH, 4)
        .out(attr::UAR_ALLOC_PAGE_ID, 4)
        .wrong_if((kind > 1).then_some("a UAR is of no type that there is"));
    Made::makes(cmd, Live::new(Kind::Uar), |new, _, done| {
        new.number = done.word(attr::UAR_ALLOC_PAGE_ID, 0);
    })
}

pub fn pd() -> Made {
    let cmd = Cmd::written(command::ALLOC_PD, vec![0; 8]).out(attr::CORE_OUT, 4).out(UHW_OUT, 4);
    Made::makes(cmd, Live::new(Kind::Pd), |new, _, done| new.number = done.word(UHW_OUT, 0))
}

/// The command that destroys an object.
pub fn destroy(live: &Live) -> Made {
    destroying(live.kind, &Picked { handle: live.handle, number: live.number, wrong: None })
}

fn destroying(kind: Kind, picked: &Picked) -> Made {
    use Kind::*;
    let devx = (object::DEVX_OBJ, method::DEVX_OBJ_DESTROY, attr::DEVX_OBJ_HANDLE, 0);
    let plain = attr::DESTROY_HANDLE;
    let (of, how, id, answer) = match kind {
        Pd => (object::PD, method::PD_DESTROY, plain, 0),
        Mr => (object::MR, method::MR_DESTROY, plain, 0),
        Mw => (object::MW, method::MW_DESTROY, plain, 0),
        Cq => (object::CQ, method::DESTROY, plain, 8),
        Qp => (object::QP, method::DESTROY, plain, 4),
        Srq => (object::SRQ, method::DESTROY, plain, 4),
        Xrcd => (object::XRCD, method::XRCD_DESTROY, plain, 0),
        Ah => (object::AH, method::AH_DESTROY, plain, 0),
        Dm => (object::DM, method::DM_FREE, plain, 0),
        Uar => (object::UAR, method::UAR_DESTROY, attr::UAR_DESTROY_HANDLE, 0),
        Umem => (object::DEVX_UMEM, method::DEVX_UMEM_DEREG, attr::DEVX_UMEM_DEREG_HANDLE, 0),
        DevxCq | DevxQp | DevxRmp | DevxMkey | DevxGeneral => devx,
    };
    let mut cmd = Cmd::new(of, how).value(id, picked.handle).wrong_if(picked.wrong);
    if answer > 0 {
        cmd = cmd.out(attr::DESTROY_RESP, answer);
    }
    let handle = picked.handle;
    let after = move |s: &mut Session, cmd: &Cmd, done: &Done, (before, now): (usize, usize)| {
        if cmd.vague {
            // Whatever went, what is left is found at the end.
            s.exact &= now == before;
        } else if done.is_ok() || now < before {
            assert_eq!(now + 1, before, "{cmd:?}");
            let used = s.exact && kind.is_kept() && s.is_used(handle);
            assert!(!used, "{cmd:?} destroys what is used");
            s.live.retain(|live| live.handle != handle);
            s.dead.push(handle);
            s.outcome.destroyed += 1;
        } else if !s.exact && done.errno != Err(libc::EBUSY) {
            s.live.retain(|live| live.handle != handle);
        } else if cmd.wrong.is_none() {
            let general = kind == DevxGeneral || !s.exact;
            let busy = done.errno == Err(libc::EBUSY) && (general || s.is_used(handle));
            assert!(busy, "{:?}: {cmd:?} is not carried out", done.errno);
            s.outcome.busy += 1;
        }
    };
    Made { cmd, after: Box::new(after), destroys: true }
}

/// A command of the input's choice; `None` where there are objects enough.
pub fn one(what: u8, input: &mut Input<'_>, s: &Session) -> Option<Made> {
    let full = s.live.len() >= MOST_LIVE;
    Some(match what % 32 {
        0..=15 if full => return None,
        0 => pd(),
        1 => memory::region(input, s),
        2 | 3 => cq(input, s),
        4 | 5 => qp(input, s),
        6 => srq(input, s),
        7 => memory::window(input, s),
        8 => memory::address(input, s),
        9 => memory::device_memory(input, s),
        10 => uar(input.u8() >> 6),
        11 => xrcd(input),
        12 => devx::umem(input, s),
        13 | 14 => devx::object(input, s),
        15 => channel(input),
        16..=18 => moves::verbs(input, s),
        19 => moves::query(&s.pick(input, &[Kind::Qp])),
        20 | 21 => devx::modify(input, s),
        22 => devx::query(&s.pick(input, &[Kind::DevxQp, Kind::Qp])),
        23..=25 => {
            let kinds: Vec<_> = s.live.iter().map(|live| live.kind).collect();
            let at = usize::from(input.u8());
            let kind = kinds.get(at % kinds.len().max(1)).copied().unwrap_or(Kind::Pd);
            let picked = s.pick(input, kind.of_one_type());
            let right = s.live.iter().find(|live| live.handle == picked.handle);
            let right = right.filter(|_| picked.wrong.is_none());
            destroying(right.map_or(kind, |live| live.kind), &picked)
        }
        26 => memory::again(input, s),
        27 => change(input, s),
        28 => look(input, s),
        29 => memory::device_region(input, s),
        30 => memory::advice(input, s),
        _ => devx::subscribe(input, s),
    })
}

fn cq(input: &mut Input<'_>, s: &Session) -> Made {
    let uar = s.pick(input, &[Kind::Uar]);
    let asked = u32::from(input.u8()) % 70;
    let how = input.u8();
    let bytes = [64, 128, 64, 0][usize::from(how >> 6)];
    let entries = (asked + 1).next_power_of_two();
    let (buf_addr, wrong) = place(input, s, entries as usize * bytes);
    let (db_addr, record) = place(input, s, 8);
    let driver = CreateCq {
        buf_addr,
        db_addr,
        cqe_size: bytes as u32,
        flags: mlx5::CREATE_CQ_UAR_PAGE_INDEX,
        uar_page_index: uar.number as u16,
        ..CreateCq::zeroed()
    };
    let mut cmd = Cmd::new(object::CQ, method::CREATE)
        .handle(attr::CREATE_CQ_HANDLE)
        .value(attr::CREATE_CQ_CQE, asked.into())
        .value(attr::CREATE_CQ_USER_HANDLE, how.into())
        .driver(bytes_of(&driver))
        .out(attr::CREATE_CQ_RESP_CQE, 4)
        .out(UHW_OUT, 8)
        .wrong_if(uar.wrong)
        .wrong_if(wrong.or(record))
        .wrong_if((asked == 0 || bytes == 0).then_some("a CQ of no entries or bytes"));
    if let Some(&fd) = s.descriptors.get(usize::from(how & 7)).filter(|_| how & 8 != 0) {
        cmd = cmd.value(attr::CREATE_CQ_COMP_CHANNEL, fd as u64);
    }
    Made::makes(cmd, Live::new(Kind::Cq), move |new, cmd, done| {
        new.number = done.word(UHW_OUT, 0);
        let entries = done.word(attr::CREATE_CQ_RESP_CQE, 0);
        assert!(cmd.vague || entries >= asked, "{cmd:?}: {entries} entries");
    })
}

fn qp(input: &mut Input<'_>, s: &Session) -> Made {
    let kind = [2, 3, 4, 2, 9, 10, 0xff, 7][usize::from(input.u8() % 8)];
    let how = input.u8();
    let [pd, send, recv] = [Kind::Pd, Kind::Cq, Kind::Cq].map(|kind| s.pick(input, &[kind]));
    let (srq, uar) = (s.pick(input, &[Kind::Srq]), s.pick(input, &[Kind::Uar]));
    let xrcd = s.pick(input, &[Kind::Xrcd]);
    let sends = [8, 16, 0, 3][usize::from(how & 3)];
    let receives = [8, 0, 4, 1 << 20][usize::from(how >> 2 & 3)];
    let (buf_addr, wrong) = place(input, s, 64 * sends as usize + 64 * receives as usize);
    let (db_addr, record) = place(input, s, 8);
    let dct = if kind == 0xff { mlx5::QP_FLAG_TYPE_DCT } else { 0 };
    let driver = CreateQp {
        buf_addr,
        db_addr,
        sq_wqe_count: sends,
        rq_wqe_count: receives,
        rq_wqe_shift: 6,
        flags: mlx5::QP_FLAG_UAR_PAGE_INDEX | dct,
        bfreg_index: uar.number,
        ..CreateQp::zeroed()
    };
    let mut cmd = Cmd::new(object::QP, method::CREATE)
        .handle(attr::CREATE_QP_HANDLE)
        .value(attr::CREATE_QP_TYPE, kind)
        .value(attr::CREATE_QP_USER_HANDLE, 1)
        .input(attr::CREATE_QP_CAP, bytes_of(&QpCap::default()).to_vec())
        .out(attr::CREATE_QP_RESP_CAP, 20)
        .out(attr::CREATE_QP_RESP_QP_NUM, 4)
        .out(UHW_OUT, 40);
    let mut new = Live::new(Kind::Qp);
    if kind == 10 {
        cmd = cmd.value(attr::CREATE_QP_XRCD_HANDLE, xrcd.handle).wrong_if(xrcd.wrong);
        new = new.uses(&[xrcd.handle]);
    } else {
        cmd = cmd
            .driver(bytes_of(&driver))
            .value(attr::CREATE_QP_PD_HANDLE, pd.handle)
            .value(attr::CREATE_QP_SEND_CQ_HANDLE, send.handle)
            .wrong_if(pd.wrong.or(send.wrong));
        new = new.uses(&[pd.handle, send.handle]);
        if kind != 9 {
            cmd = cmd.value(attr::CREATE_QP_RECV_CQ_HANDLE, recv.handle).wrong_if(recv.wrong);
            new = new.uses(&[recv.handle]);
        }
        if how & 16 != 0 || kind == 0xff {
            cmd = cmd.value(attr::CREATE_QP_SRQ_HANDLE, srq.handle).wrong_if(srq.wrong);
            new = new.uses(&[srq.handle]);
        }
        if kind != 0xff {
            let none = sends == 0 && receives == 0;
            cmd = cmd
                .wrong_if(uar.wrong)
                .wrong_if(wrong.filter(|_| !none).or(record))
                .wrong_if((sends == 3 || receives > 1 << 15).then_some("a ring of no size"));
        }
    }
    let cmd = cmd.wrong_if((kind == 7).then_some("a queue pair of no type that there is"));
    new.qp = (kind, 0);
    Made::makes(cmd, new, move |new, cmd, done| {
        new.number = done.word(attr::CREATE_QP_RESP_QP_NUM, 0);
        assert!(cmd.vague || kind == 0xff || new.number > 1, "{cmd:?}: number {}", new.number);
    })
}

fn srq(input: &mut Input<'_>, s: &Session) -> Made {
    let kind = u64::from(input.u8() % 4);
    let [pd, cq, xrcd] = [Kind::Pd, Kind::Cq, Kind::Xrcd].map(|kind| s.pick(input, &[kind]));
    let (wr, sge) = (u32::from(input.u8()) % 60, u32::from(input.u8()) % 80);
    let wqes = (wr + 1).next_power_of_two() as usize;
    let stride = ((sge + 1).max(2) * 16).next_power_of_two() as usize;
    let (buf_addr, wrong) = place(input, s, wqes * stride);
    let (db_addr, record) = place(input, s, 4);
    let driver = CreateSrq { buf_addr, db_addr, ..CreateSrq::zeroed() };
    let mut cmd = Cmd::new(object::SRQ, method::CREATE)
        .handle(attr::CREATE_SRQ_HANDLE)
        .value(attr::CREATE_SRQ_TYPE, kind)
        .value(attr::CREATE_SRQ_PD_HANDLE, pd.handle)
        .value(attr::CREATE_SRQ_USER_HANDLE, 2)
        .value(attr::CREATE_SRQ_MAX_WR, wr.into())
        .value(attr::CREATE_SRQ_MAX_SGE, sge.into())
        .value(attr::CREATE_SRQ_LIMIT, u64::from(input.u8() & 3))
        .value(attr::CREATE_SRQ_MAX_NUM_TAGS, u64::from(input.u8()))
        .driver(bytes_of(&driver))
        .out(attr::CREATE_SRQ_RESP_SRQ_NUM, 4)
        .out(attr::CREATE_SRQ_RESP_MAX_WR, 4)
        .wrong_if(pd.wrong)
        .wrong_if((kind == 3).then_some("an SRQ of no type that there is"))
        .wrong_if((sge > 63).then_some("more scatter entries than there can be"))
        .wrong_if(wrong.or(record));
    let mut new = Live::new(Kind::Srq).uses(&[pd.handle]);
    if kind > 0 {
        cmd = cmd.value(attr::CREATE_SRQ_CQ_HANDLE, cq.handle).wrong_if(cq.wrong);
        new = new.uses(&[cq.handle]);
    }
    if kind == 1 {
        cmd = cmd.value(attr::CREATE_SRQ_XRCD_HANDLE, xrcd.handle).wrong_if(xrcd.wrong);
        new = new.uses(&[xrcd.handle]);
    }
    Made::makes(cmd, new, move |new, cmd, done| {
        new.number = done.word(attr::CREATE_SRQ_RESP_SRQ_NUM, 0);
        let most = done.word(attr::CREATE_SRQ_RESP_MAX_WR, 0);
        assert!(cmd.vague || most >= wr, "{cmd:?}: {most} WQEs");
    })
}

fn xrcd(input: &mut Input<'_>) -> Made {
    let how = input.u8();
    let (fd, oflags) = (-1, i32::from(how & 3) << 6 | i32::from(how & 4));
    let core = OpenXrcd { response: 0, fd, oflags };
    let cmd = Cmd::written(command::OPEN_XRCD, bytes_of(&core).to_vec())
        .fixed(16)
        .out(attr::CORE_OUT, 4)
        .wrong_if((how & 4 != 0).then_some("a flag that there is not"));
    Made::makes(cmd, Live::new(Kind::Xrcd), |_, _, _| {})
}

/// A descriptor for events.
fn channel(input: &mut Input<'_>) -> Made {
    let how = input.u8();
    let cmd = match how % 3 {
        0 => Cmd::written(command::CREATE_COMP_CHANNEL, vec![0; 8]).out(attr::CORE_OUT, 4),
        1 => Cmd::new(object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC)
            .handle(attr::ASYNC_EVENT_FD_HANDLE),
        _ => Cmd::new(object::DEVX_EVENTS, method::DEVX_EVENTS_ALLOC)
            .handle(attr::DEVX_EVENT_FD_HANDLE)
            .value(attr::DEVX_EVENT_FD_FLAGS, u64::from(how >> 7)),
    };
    let after = |s: &mut Session, cmd: &Cmd, done: &Done, _: (usize, usize)| {
        // One whose answer was changed is not known; `Session::end` would miss it.
        if done.is_ok() {
            let fd = done.handle() as i32;
            assert!(cmd.vague || !s.descriptors.contains(&fd), "{cmd:?}: {fd} again");
            s.descriptors.push(fd);
        }
    };
    // Its bytes stay as they are.
    Made { cmd: cmd.whole(), after: Box::new(after), destroys: false }
}

fn change(input: &mut Input<'_>, s: &Session) -> Made {
    let which = input.u8() % 4;
    let picked = s.pick(input, &[if which < 3 { Kind::Cq } else { Kind::Srq }]);
    let with = input.u8();
    match which {
        0 => {
            let cqe = u32::from(with % 64);
            let entries = (cqe + 1).next_power_of_two() as usize;
            let (buf_addr, wrong) = place(input, s, entries * 64);
            let core = ResizeCq { response: 0, cq_handle: picked.handle as u32, cqe };
            let driver = mlx5::ResizeCq { buf_addr, cqe_size: 64, ..mlx5::ResizeCq::zeroed() };
            let cmd = Cmd::written(command::RESIZE_CQ, bytes_of(&core).to_vec())
                .driver(bytes_of(&driver))
                .out(attr::CORE_OUT, 8)
                .wrong_if(picked.wrong.or(wrong))
                .wrong_if((cqe == 0).then_some("a CQ of no entries"));
            Made::then(cmd, move |_, cmd, done| {
                let entries = done.word(attr::CORE_OUT, 0);
                assert!(entries >= cqe, "{cmd:?}: {entries} entries");
            })
        }
        1 | 2 => {
            let cq_period = u16::from(with) << 8;
            let core = ModifyCq {
                cq_handle: picked.handle as u32,
                attr_mask: 1 + u32::from(with == 3),
                cq_count: with.into(),
                cq_period,
                reserved: 0,
            };
            let bad = cq_period > 4095 || with == 3;
            let cmd = Cmd::written(command::EX_MODIFY_CQ, bytes_of(&core).to_vec());
            let bad = bad.then_some("what is not to be changed, or so");
            Made::of(cmd.wrong_if(picked.wrong).wrong_if(bad))
        }
        _ => {
            let limit = u32::from(with);
            let srq_handle = picked.handle as u32;
            let core = ModifySrq { srq_handle, attr_mask: 2, max_wr: 0, srq_limit: limit };
            let cmd = Cmd::written(command::MODIFY_SRQ, bytes_of(&core).to_vec());
            Made::then(cmd.wrong_if(picked.wrong), move |s, _, _| {
                let ask = query_srq(&picked).send(&s.device, &Default::default());
                let told = ask.word(attr::CORE_OUT, 2);
                // 0 once it was told of: nobody posts receives.
                assert!([limit, 0].contains(&told), "the limit is {told} and not {limit}");
            })
        }
    }
}

fn query_srq(picked: &Picked) -> Cmd {
    let core = QuerySrq { response: 0, srq_handle: picked.handle as u32, reserved: 0 };
    let cmd = Cmd::written(command::QUERY_SRQ, bytes_of(&core).to_vec());
    cmd.out(attr::CORE_OUT, 16).wrong_if(picked.wrong)
}

/// A query, whose answer is what was made.
fn look(input: &mut Input<'_>, s: &Session) -> Made {
    match input.u8() % 10 {
        0..=2 => {
            let mr = s.pick(input, &[Kind::Mr]);
            let cmd = Cmd::new(object::MR, method::QUERY_MR)
                .value(attr::QUERY_MR_HANDLE, mr.handle)
                .out(attr::QUERY_MR_RESP_LKEY, 4)
                .out(attr::QUERY_MR_RESP_RKEY, 4)
                .out(attr::QUERY_MR_RESP_LENGTH, 8)
                .out(attr::QUERY_MR_RESP_IOVA, 8)
                .wrong_if(mr.wrong);
            Made::then(cmd, move |s, cmd, done| {
                let long = |id| read::<u64>(done.answer(id)).unwrap_or(0);
                let word = |id| u64::from(done.word(id, 0));
                let told = [
                    long(attr::QUERY_MR_RESP_IOVA),
                    long(attr::QUERY_MR_RESP_LENGTH),
                    word(attr::QUERY_MR_RESP_LKEY),
                    word(attr::QUERY_MR_RESP_RKEY),
                ];
                let live = s.live.iter().find(|live| live.handle == mr.handle);
                let made = live.map(|live| live.region).filter(|_| s.exact);
                assert!(made.is_none_or(|made| made == told), "{cmd:?}: {told:x?}, {made:x?}");
            })
        }
        3 => {
            let pd = s.pick(input, &[Kind::Pd]);
            let cmd = Cmd::new(object::PD, method::PD_QUERY)
                .value(attr::PD_QUERY_HANDLE, pd.handle)
                .out(attr::PD_QUERY_RESP_PDN, 4)
                .wrong_if(pd.wrong);
            Made::then(cmd, move |s, cmd, done| {
                let told = done.word(attr::PD_QUERY_RESP_PDN, 0);
                assert!(!s.exact || told == pd.number, "{cmd:?}: {told}, {}", pd.number);
            })
        }
        4 => Made::of(query_srq(&s.pick(input, &[Kind::Srq]))),
        5 => {
            let index = u64::from(input.u8() >> 6);
            let port = u64::from(input.u8() >> 5 != 0);
            let cmd = Cmd::new(object::DEVICE, method::QUERY_GID_ENTRY)
                .value(attr::GID_ENTRY_PORT, port)
                .value(attr::GID_ENTRY_GID_INDEX, index)
                .out(attr::GID_ENTRY_RESP_ENTRY, size_of::<GidEntry>() as u16)
                .wrong_if((index > 0 || port != 1).then_some("no such entry"));
            Made::of(cmd)
        }
        6 => {
            let (room, size) = (u16::from(input.u8()), u64::from(input.u8()));
            let cmd = Cmd::new(object::DEVICE, method::QUERY_GID_TABLE)
                .value(attr::GID_TABLE_ENTRY_SIZE, size)
                .out(attr::GID_TABLE_RESP_ENTRIES, room)
                .out(attr::GID_TABLE_RESP_NUM_ENTRIES, 8)
                .wrong_if((size == 0 || u64::from(room) < size).then_some("room for no entry"));
            Made::of(cmd)
        }
        7 => {
            let number = [command::QUERY_DEVICE, command::EX_QUERY_DEVICE];
            let number = number[usize::from(input.u8() & 1)];
            let room = u16::from(input.u8()) * 2;
            let cmd = Cmd::written(number, vec![0; 8]).out(attr::CORE_OUT, room);
            let is_extended = number == command::EX_QUERY_DEVICE;
            Made::of(if is_extended { cmd.out(UHW_OUT, 104) } else { cmd })
        }
        8 => {
            let cmd = Cmd::new(object::DEVICE, method::QUERY_PORT)
                .with(attr::QUERY_PORT_PORT_NUM, What::Value(u64::from(input.u8() >> 6), 1))
                .out(attr::QUERY_PORT_RESP, u16::from(input.u8()));
            Made::of(cmd)
        }
        _ => devx::capabilities(input),
    }
}
