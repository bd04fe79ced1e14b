//! Commands of the device that programs word themselves (DEVX; mlx5 PRM, "Command Reference").

use super::command::{Cmd, Done};
use super::make::{Made, place};
use super::model::{Kind, Live, may_move};
use super::{Input, Picked, Session};
use crate::abi::ids::{attr, method, object as obj};
use crate::abi::verbs::access;
use crate::fuzzed::QUEUES;

/// Bytes of an answer that is none but a header.
const OUT: u16 = 16;
/// Opcodes (`MLX5_CMD_OP_*`).
const QUERY_HCA_CAP: u64 = 0x100;
const CREATE_MKEY: u64 = 0x200;
const CREATE_CQ: u64 = 0x400;
const CREATE_QP: u64 = 0x500;
const QUERY_QP: u64 = 0x50b;
const CREATE_RMP: u64 = 0x90c;
const CREATE_GENERAL_OBJECT: u64 = 0xa00;
/// RST2INIT to RTS2RTS, 2ERR, 2RST, INIT2INIT: with the states that they move from and to.
const MOVES: [(u64, Option<u8>, u8); 7] = [
    (0x502, Some(0), 1),
    (0x503, Some(1), 2),
    (0x504, Some(2), 3),
    (0x505, Some(3), 3),
    (0x507, None, 6),
    (0x50a, None, 0),
    (0x50e, Some(1), 1),
];

/// A mailbox: big-endian, with fields by byte, bit within it, and bits.
struct Mail(Vec<u8>);

impl Mail {
    fn new(bytes: usize, opcode: u64) -> Self {
        Self(vec![0; bytes]).with(0, 0, 16, opcode)
    }

    fn with(mut self, byte: usize, bit: usize, bits: usize, value: u64) -> Self {
        for n in 0..bits {
            let at = byte * 8 + bit + n;
            let mask = 0x80 >> (at % 8);
            match value >> (bits - 1 - n) & 1 {
                1 => self.0[at / 8] |= mask,
                _ => self.0[at / 8] &= !mask,
            }
        }
        self
    }
}

fn bits(bytes: &[u8], byte: usize, bit: usize, count: usize) -> u64 {
    let one = |at: usize| bytes.get(at / 8).map_or(0, |it| u64::from(it >> (7 - at % 8) & 1));
    (0..count).fold(0, |all, n| all << 1 | one(byte * 8 + bit + n))
}

/// What is carried out says so in its answer, and what firmware refuses says why.
fn is_answered(cmd: &Cmd, done: &Done, id: u16) {
    let answer = done.answer(id);
    if let (false, Some(&status)) = (cmd.vague, answer.first()) {
        match done.errno {
            Ok(()) => assert_eq!(status, 0, "{cmd:?}"),
            Err(libc::EREMOTEIO) => assert_ne!(status, 0, "{cmd:?} is refused, and fine"),
            Err(_) => {}
        }
    }
}

pub fn umem(input: &mut Input<'_>, s: &Session) -> Made {
    let bytes = (u64::from(input.u8()) + 1) * 256;
    let (addr, mut wrong) = place(input, s, bytes as usize);
    let how = input.u8();
    let flags = if how < 200 { access::LOCAL_WRITE } else { u32::from(how & 7) & !1 };
    if flags & access::LOCAL_WRITE == 0 {
        wrong = wrong.filter(|_| addr != s.device.memory.constant || bytes > 4096);
    }
    let cmd = Cmd::new(obj::DEVX_UMEM, method::DEVX_UMEM_REG)
        .handle(attr::DEVX_UMEM_REG_HANDLE)
        .value(attr::DEVX_UMEM_REG_ADDR, addr)
        .value(attr::DEVX_UMEM_REG_LEN, bytes)
        .value(attr::DEVX_UMEM_REG_ACCESS, flags.into())
        .out(attr::DEVX_UMEM_REG_OUT_ID, 4)
        .wrong_if(wrong)
        // Its addresses stay as they are.
        .whole();
    Made::makes(cmd, Live::new(Kind::Umem), move |new, _, done| {
        new.number = done.word(attr::DEVX_UMEM_REG_OUT_ID, 0);
        new.region = [addr, bytes, 0, flags.into()];
    })
}

/// An object of a device's command.
pub fn object(input: &mut Input<'_>, s: &Session) -> Made {
    let which = input.u8() % 6;
    let [pd, uar, ring, record] =
        [Kind::Pd, Kind::Uar, Kind::Umem, Kind::Umem].map(|kind| s.pick(input, &[kind]));
    let (log, offset) = (u64::from(input.u8() % 7), u64::from(input.u8() & 0xf0));
    let room = |picked: &Picked| {
        let live = s.live.iter().find(|live| live.handle == picked.handle);
        live.filter(|_| picked.wrong.is_none()).map_or(QUEUES as u64, |live| live.region[1])
    };
    let fits = |bytes| {
        let end = offset + bytes > room(&ring) || offset + 8 > room(&record);
        end.then_some("past the end of a umem")
    };
    let umems = [ring.handle, record.handle];
    let missing = uar.wrong.or(ring.wrong).or(record.wrong);
    match which {
        0 | 1 => {
            let mail = Mail::new(0x60, CREATE_CQ)
                .with(0x1c, 3, 5, log)
                .with(0x1d, 0, 24, uar.number.into())
                .with(0x50, 0, 64, offset)
                .with(0x58, 0, 32, ring.number.into())
                .with(0x14, 0, 32, record.number.into())
                .with(0x48, 0, 64, offset);
            create(mail, Live::new(Kind::DevxCq).uses(&umems), missing.or(fits(64 << log)))
        }
        2 => {
            let cq = s.pick(input, &[Kind::Cq, Kind::DevxCq]);
            let mail = Mail::new(0x110, CREATE_QP)
                .with(0x19, 0, 8, u64::from(input.u8() % 3))
                .with(0x1d, 0, 24, pd.number.into())
                .with(0x21, 1, 4, log % 4)
                .with(0x21, 5, 3, 2)
                .with(0x22, 1, 4, log)
                .with(0x25, 0, 24, uar.number.into())
                .with(0x95, 0, 24, cq.number.into())
                .with(0xb5, 0, 24, cq.number.into())
                .with(0xb8, 0, 64, offset)
                .with(0xfc, 0, 32, record.number.into())
                .with(0x100, 0, 64, offset)
                .with(0x108, 0, 32, ring.number.into());
            let new = Live::new(Kind::DevxQp).uses(&umems).uses(&[pd.handle, cq.handle]);
            let wrong = pd.wrong.or(cq.wrong).or(missing);
            create(mail, new, wrong.or(fits((64 << log) + (64 << (log % 4)))))
        }
        3 => {
            let bytes = room(&ring);
            let mail = Mail::new(0x110, CREATE_MKEY)
                .with(0x12, 6, 2, 1)
                .with(0x12, 4, 1, u64::from(input.u8() & 1))
                .with(0x12, 5, 1, 1)
                .with(0x14, 0, 24, 0xff_ffff)
                .with(0x17, 0, 8, input.u8().into())
                .with(0x1d, 0, 24, pd.number.into())
                .with(0x20, 0, 64, offset << 12)
                .with(0x28, 0, 64, bytes + u64::from(log == 6))
                .with(0x64, 0, 32, ring.number.into());
            let new = Live::new(Kind::DevxMkey).uses(&[pd.handle, ring.handle]);
            let longer = (log == 6).then_some("longer than the umem");
            create(mail, new, pd.wrong.or(ring.wrong).or(longer))
        }
        4 => {
            let stride = 5 + u64::from(input.u8() & 1);
            let mail = Mail::new(0x110, CREATE_RMP)
                .with(0x59, 0, 24, pd.number.into())
                .with(0x60, 0, 64, offset)
                .with(0x71, 4, 4, stride)
                .with(0x73, 3, 5, log)
                .with(0x78, 0, 32, record.number.into())
                .with(0x7c, 0, 32, ring.number.into())
                .with(0x80, 0, 64, offset);
            let new = Live::new(Kind::DevxRmp).uses(&umems).uses(&[pd.handle]);
            let wrong = pd.wrong.or(ring.wrong).or(record.wrong);
            create(mail, new, wrong.or(fits(1 << (log + stride))))
        }
        _ => general(input),
    }
}

/// Numbers that are set aside, or an element of a schedule.
fn general(input: &mut Input<'_>) -> Made {
    let with = u64::from(input.u8());
    let mail = Mail::new(0x90, CREATE_GENERAL_OBJECT);
    let (mail, wrong) = match with & 1 {
        0 => {
            let log = with >> 3;
            let small = (log < 6).then_some("fewer numbers than can be set aside");
            (mail.with(6, 0, 16, 0x2c).with(0xc, 3, 5, log), small)
        }
        _ => (mail.with(6, 0, 16, 0x26).with(0x18, 0, 8, with >> 1), None),
    };
    create(mail, Live::new(Kind::DevxGeneral), wrong)
}

fn create(mail: Mail, new: Live, wrong: Option<&'static str>) -> Made {
    let kind = new.kind;
    let cmd = Cmd::new(obj::DEVX_OBJ, method::DEVX_OBJ_CREATE)
        .handle(attr::DEVX_OBJ_CREATE_HANDLE)
        .input(attr::DEVX_OBJ_CREATE_CMD_IN, mail.0)
        .out(attr::DEVX_OBJ_CREATE_CMD_OUT, OUT)
        .wrong_if(wrong);
    let Made { cmd, after, destroys } = Made::makes(cmd, new, move |new, _, done| {
        let answer = done.answer(attr::DEVX_OBJ_CREATE_CMD_OUT);
        // Of others than these, numbers are keys, ranges or their type's own.
        let named = matches!(kind, Kind::DevxCq | Kind::DevxQp | Kind::DevxRmp | Kind::DevxMkey);
        new.number = if named { bits(answer, 9, 0, 24) as u32 } else { 0 };
    });
    Made {
        cmd,
        after: Box::new(move |s, cmd, done, objects| {
            is_answered(cmd, done, attr::DEVX_OBJ_CREATE_CMD_OUT);
            after(s, cmd, done, objects);
        }),
        destroys,
    }
}

/// A move of a queue pair, made by DEVX or by verbs.
pub fn modify(input: &mut Input<'_>, s: &Session) -> Made {
    let picked = s.pick(input, &[Kind::DevxQp, Kind::Qp]);
    let live = s.live.iter().find(|live| live.handle == picked.handle);
    let (kind, now) = live.map_or((0, 0), |live| live.qp);
    let (which, with) = (usize::from(input.u8()), u64::from(input.u8()));
    let next = MOVES.iter().position(|(_, from, _)| *from == Some(now)).unwrap_or(5);
    let (opcode, from, to) = MOVES[if which < 160 { next } else { which % 7 }];
    let mut mail = Mail::new(0x120, opcode)
        .with(9, 0, 24, picked.number.into())
        .with(0x20, 0, 3, 1 + with % 5)
        .with(0x2d, 0, 24, with << 8)
        .with(0x3b, 0, 8, 9)
        .with(0x55, 0, 8, 1 + u64::from(with == 255));
    mail.0[0x4a..0x4d].copy_from_slice(&[0xff, 0xff, 127]);
    mail.0[0x4f] = 1;
    let wrong = from.filter(|&from| from != now && s.exact).map(|_| "from another state");
    // A DC target's handle is of no queue pair here.
    let cmd = Cmd::new(obj::DEVX_OBJ, method::DEVX_OBJ_MODIFY)
        .value(attr::DEVX_OBJ_HANDLE, picked.handle)
        .input(attr::DEVX_OBJ_MODIFY_CMD_IN, mail.0)
        .out(attr::DEVX_OBJ_MODIFY_CMD_OUT, OUT)
        .wrong_if(picked.wrong)
        .wrong_if(wrong.filter(|_| picked.wrong.is_none()))
        .wrong_if((kind == 0xff).then_some("a DC target is moved"));
    Made::then(cmd, move |s, cmd, done| {
        is_answered(cmd, done, attr::DEVX_OBJ_MODIFY_CMD_OUT);
        let exact = s.exact;
        let Some(live) = s.live.iter_mut().find(|live| live.handle == picked.handle) else {
            return;
        };
        assert!(!exact || may_move(live.qp.1, to), "{cmd:?}: from {} to {to}", live.qp.1);
        live.qp.1 = to;
        s.outcome.moved += 1;
        let told = query(&picked).cmd.send(&s.device, &Default::default());
        let state = bits(told.answer(attr::DEVX_OBJ_QUERY_CMD_OUT), 0x18, 0, 4);
        assert!(!exact || state == u64::from(to), "{cmd:?}: {state} and not {to}");
    })
}

/// What a queue pair's context says.
pub fn query(picked: &Picked) -> Made {
    let mail = Mail::new(0x10, QUERY_QP).with(9, 0, 24, picked.number.into());
    let cmd = Cmd::new(obj::DEVX_OBJ, method::DEVX_OBJ_QUERY)
        .value(attr::DEVX_OBJ_HANDLE, picked.handle)
        .input(attr::DEVX_OBJ_QUERY_CMD_IN, mail.0)
        .out(attr::DEVX_OBJ_QUERY_CMD_OUT, 0x110)
        .wrong_if(picked.wrong);
    Made::then(cmd, |_, cmd, done| is_answered(cmd, done, attr::DEVX_OBJ_QUERY_CMD_OUT))
}

pub fn capabilities(input: &mut Input<'_>) -> Made {
    let (kind, room) = (u64::from(input.u8()), u16::from(input.u8()) * 8);
    let cmd = Cmd::new(obj::DEVX, method::DEVX_OTHER)
        .input(attr::DEVX_OTHER_CMD_IN, Mail::new(0x10, QUERY_HCA_CAP).with(6, 0, 16, kind).0)
        .out(attr::DEVX_OTHER_CMD_OUT, room);
    Made::then(cmd, |_, cmd, done| is_answered(cmd, done, attr::DEVX_OTHER_CMD_OUT))
}

/// Events of an object for a channel.
pub fn subscribe(input: &mut Input<'_>, s: &Session) -> Made {
    let picked = s.pick(input, &[Kind::DevxCq, Kind::DevxQp, Kind::DevxRmp]);
    let (at, of) = (usize::from(input.u8()), input.u8());
    let fd = s.descriptors.get(at % s.descriptors.len().max(1)).map_or(-1, |&fd| i64::from(fd));
    let types: Vec<u8> = (0..of % 4).flat_map(|n| [of >> 3 ^ n, u8::from(of > 250)]).collect();
    let none = types.is_empty().then_some("events of no type");
    let cmd = Cmd::new(obj::DEVX, method::DEVX_SUBSCRIBE)
        .value(attr::DEVX_SUBSCRIBE_FD_HANDLE, fd as u64)
        .value(attr::DEVX_SUBSCRIBE_OBJ_HANDLE, picked.handle)
        .input(attr::DEVX_SUBSCRIBE_TYPES, types)
        .value(attr::DEVX_SUBSCRIBE_COOKIE, 5)
        .wrong_if(picked.wrong.or(none))
        .wrong_if((fd < 0).then_some("no channel"));
    Made::of(cmd)
}
