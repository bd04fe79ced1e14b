//! Streams of WQEs on a live queue pair: what the bytes of an input say, posted by a program that
//! means harm. Any input is a stream; a fuzzer and property tests make them up.
//!
//! A WQE that is right is carried out. One of which something is wrong (`Wrong`) has to be refused:
//! it completes with an error, or what it asks of the peer comes to nothing, and no byte changes.
//! Bytes, records and registers at random may do anything but touch memory outside the regions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::queue_pairs::{Pair, attr, connect, packet_nics};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::soft::{InProcess, SoftNic};
use bellpush::nic::{Access, Change, Mr, Nic, QpAttr, QpState, QueuePair};
use bellpush::wire::cqe::{Cqe, Syndrome};
use bellpush::wire::doorbell::{Doorbell, UAR_DOORBELL_OFFSET};
use bellpush::wire::wqe::{Flags, Opcode, Operands, Piece, SendWr, Sge, WQEBB_BYTES};
use bellpush::wire::{Iova, Lkey, Rkey};

const GUARD: usize = 4096;
const BODY: usize = 8192;
const IOVA: u64 = 0x1_0000;
/// The same bytes, of which nobody may change any.
const READ_ONLY: u64 = 0x9_0000;
/// Operations of a stream at most.
const MOST: usize = 120;
/// Longest that anything takes, in nanoseconds of the engines' time.
const PATIENCE: u64 = 10_000_000_000;

/// What a stream led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// WQEs that were right, and were carried out.
    pub carried: u64,
    /// WQEs that had to be refused, and were.
    pub refused: u64,
    /// Operations that anything may come of.
    pub random: u64,
    /// Times that the queue pairs began again.
    pub resets: u64,
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn u64(&mut self) -> u64 {
        (0..4).fold(0, |all, _| all << 16 | u64::from(self.u16()))
    }
}

/// What is wrong with a WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// Its index is not the ring's position.
    Index,
    /// It names another queue pair.
    Qpn,
    /// Its opcode is none.
    Opcode,
    /// ds covers less than its segments.
    Short,
    /// Its local key is none.
    LocalKey,
    /// Its local entry leaves the region.
    LocalRange,
    /// Its result goes where nothing may be written.
    LocalRight,
    /// Its remote key is none.
    RemoteKey,
    /// It leaves the peer's region.
    RemoteRange,
    /// The peer's region does not allow it.
    RemoteRight,
    /// An atomic's operand does not lie at a multiple of 8.
    Misaligned,
}

const WRONG: [Wrong; 11] = [
    Wrong::Index,
    Wrong::Qpn,
    Wrong::Opcode,
    Wrong::Short,
    Wrong::LocalKey,
    Wrong::LocalRange,
    Wrong::LocalRight,
    Wrong::RemoteKey,
    Wrong::RemoteRange,
    Wrong::RemoteRight,
    Wrong::Misaligned,
];

const OPCODES: [Opcode; 7] = [
    Opcode::RdmaWrite,
    Opcode::RdmaRead,
    Opcode::AtomicFa,
    Opcode::AtomicCs,
    Opcode::Send,
    Opcode::RdmaWriteImm,
    Opcode::Nop,
];

impl Wrong {
    /// Whether a WQE of that opcode can have it.
    fn suits(self, opcode: Opcode) -> bool {
        let sends = opcode == Opcode::Send;
        match self {
            Self::Index | Self::Qpn | Self::Opcode => true,
            // A SEND of no segment is one of no bytes.
            Self::Short => opcode != Opcode::Nop && !sends,
            Self::LocalKey | Self::LocalRange => opcode != Opcode::Nop,
            Self::LocalRight => opcode.scatters(),
            Self::RemoteKey | Self::RemoteRange => opcode != Opcode::Nop && !sends,
            Self::RemoteRight => opcode != Opcode::Nop && !sends && opcode != Opcode::RdmaRead,
            Self::Misaligned => opcode.is_atomic(),
        }
    }

    /// Whether the peer alone can tell.
    fn is_the_peers(self) -> bool {
        use Wrong::{Misaligned, RemoteKey, RemoteRange, RemoteRight};
        matches!(self, RemoteKey | RemoteRange | RemoteRight | Misaligned)
    }
}

/// Memory of one end: a region in the middle of memory that nobody may touch, registered twice.
struct Ground {
    mem: Arc<HostMem>,
    all: Mr,
    fixed: Mr,
}

impl Ground {
    fn new(nic: &SoftNic) -> Self {
        let mem = HostMem::alloc(BODY + 2 * GUARD).unwrap();
        mem.fill(0, mem.len(), 0xa5).unwrap();
        let body = || Arc::new(View::new(&mem, GUARD, BODY).unwrap());
        let all = nic.register(body(), Iova(IOVA), Access::ALL).unwrap();
        let readable = Access { remote_read: true, ..Access::NONE };
        let fixed = nic.register(body(), Iova(READ_ONLY), readable).unwrap();
        Self { mem, all, fixed }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.mem.len()];
        self.mem.read(0, &mut bytes).unwrap();
        bytes
    }

    fn is_intact(&self) -> bool {
        let bytes = self.bytes();
        bytes[..GUARD].iter().chain(&bytes[GUARD + BODY..]).all(|&byte| byte == 0xa5)
    }
}

struct Stream {
    p: Pair,
    ends: [Ground; 2],
    connected: bool,
    packets: bool,
    outcome: Outcome,
}

fn shape() -> QpAttr {
    QpAttr { sq_blocks: 16, rq_wqes: 8, send_cqes: 64, recv_cqes: 64, ..attr() }
}

fn change() -> Change {
    // 4 µs times 2^4: a peer that hears nothing is given up soon.
    Change { timeout: Some(4), ..Change::default() }
}

impl Stream {
    fn new(packets: bool) -> Self {
        let p = match packets {
            true => Pair::of(packet_nics("", true), &shape(), &shape(), &change()),
            false => Pair::on(&InProcess::new(), &shape(), &shape()),
        };
        let ends = [Ground::new(&p.nics[0]), Ground::new(&p.nics[1])];
        Self { p, ends, connected: true, packets, outcome: Outcome::default() }
    }

    /// Begins again after an error, or after bytes that may lead to one.
    fn begin_again(&mut self) {
        self.settle();
        for end in [&self.p.a, &self.p.b] {
            end.qp.reset().unwrap();
        }
        for host in [&mut self.p.a.host, &mut self.p.b.host] {
            while host.poll_send().unwrap().is_some() || host.poll_recv().unwrap().is_some() {}
        }
        let ends = [&mut self.p.a, &mut self.p.b];
        for end in ends {
            // Records and registers as a program leaves them.
            end.qp.queues().dbr.write(0, &[0; 8]).unwrap();
            end.host.begin_again(&*end.qp);
        }
        match self.packets {
            true => connect(&self.p.a.qp, &self.p.b.qp, &change()),
            false => {
                self.p.a.qp.connect(self.p.b.qp.address()).unwrap();
                self.p.b.qp.connect(self.p.a.qp.address()).unwrap();
            }
        }
        self.connected = true;
        self.outcome.resets += 1;
    }

    /// Runs until nothing moves any more, or an engine waits for what does not come.
    fn settle(&mut self) {
        self.p.run_for(300_000);
    }

    /// One WQE: right, or wrong in one way.
    fn post(&mut self, input: &mut Input<'_>) {
        let opcode = OPCODES[usize::from(input.u8()) % OPCODES.len()];
        let wrong = match input.u8() {
            0..=127 => None,
            n => Some(WRONG[usize::from(n) % WRONG.len()]).filter(|wrong| wrong.suits(opcode)),
        };
        let long = u64::from(input.u16()) % 4096 + 1;
        let bytes = if opcode.is_atomic() { 8 } else { long as u32 };
        let at = (u64::from(input.u16()) % (BODY as u64 - 4096)) & !7;
        let to = (u64::from(input.u16()) % (BODY as u64 - 4096)) & !7;
        if matches!(opcode, Opcode::Send | Opcode::RdmaWriteImm) {
            let sge = Sge { addr: Iova(IOVA + to), lkey: self.ends[1].all.lkey, bytes: 4096 };
            if self.p.b.host.rq.post(&[sge]).is_err() {
                return self.begin_again();
            }
        }
        let before = [self.ends[0].bytes(), self.ends[1].bytes()];
        let sge = self.local(wrong, at, bytes);
        let (addr, rkey) = self.remote(wrong, to);
        let payload = [Piece::Data(sge)];
        let atomic = Some(Operands { swap_add: input.u64(), compare: input.u64() });
        let wr = SendWr { atomic, flags: Flags::SIGNALLED, ..SendWr::new(opcode) };
        let wr = wr.to(addr, rkey).payload(if opcode == Opcode::Nop { &[] } else { &payload });
        let Ok(position) = self.p.a.host.sq.post(&wr) else { return self.begin_again() };
        self.spoil(wrong, position);
        self.p.a.host.sq.ring().unwrap();
        let cqe = self.completion();
        self.judge(opcode, wrong, (bytes, at, to), &before, cqe);
    }

    fn local(&self, wrong: Option<Wrong>, at: u64, bytes: u32) -> Sge {
        let mr = &self.ends[0].all;
        let sge = Sge { addr: Iova(IOVA + at), lkey: mr.lkey, bytes };
        match wrong {
            Some(Wrong::LocalKey) => Sge { lkey: Lkey(mr.lkey.0 ^ 0x5500), ..sge },
            // By its last byte.
            Some(Wrong::LocalRange) => {
                Sge { addr: Iova(IOVA + BODY as u64 + 1 - u64::from(bytes)), ..sge }
            }
            Some(Wrong::LocalRight) => {
                Sge { addr: Iova(READ_ONLY + at), lkey: self.ends[0].fixed.lkey, ..sge }
            }
            _ => sge,
        }
    }

    fn remote(&self, wrong: Option<Wrong>, to: u64) -> (Iova, Rkey) {
        let mr = &self.ends[1].all;
        match wrong {
            Some(Wrong::RemoteKey) => (Iova(IOVA + to), Rkey(mr.rkey.0 ^ 0x5500)),
            Some(Wrong::RemoteRange) => (Iova(IOVA - 8), mr.rkey),
            Some(Wrong::RemoteRight) => (Iova(READ_ONLY + to), self.ends[1].fixed.rkey),
            Some(Wrong::Misaligned) => (Iova(IOVA + to + 4), mr.rkey),
            _ => (Iova(IOVA + to), mr.rkey),
        }
    }

    /// Changes what is wrong in the control segment of a WQE that was posted.
    fn spoil(&self, wrong: Option<Wrong>, position: u64) {
        let place = (position as usize % 16) * WQEBB_BYTES;
        let sq = &self.p.a.qp.queues().sq;
        let mut ctrl = [0; 8];
        sq.read(place, &mut ctrl).unwrap();
        match wrong {
            Some(Wrong::Opcode) => ctrl[3] = 0x3f,
            Some(Wrong::Index) => ctrl[2] ^= 1,
            Some(Wrong::Qpn) => ctrl[6] ^= 1,
            Some(Wrong::Short) => ctrl[7] = 1,
            _ => return,
        }
        sq.write(place, &ctrl).unwrap();
    }

    fn completion(&mut self) -> Option<Cqe> {
        let mut cqe = None;
        self.p.run_until(PATIENCE, |p| {
            cqe = p.sent().first().copied();
            cqe.is_some()
        });
        self.settle(); // the peer's receive
        cqe
    }

    /// Whether what became of a WQE is what had to.
    fn judge(
        &mut self,
        opcode: Opcode,
        wrong: Option<Wrong>,
        (bytes, at, to): (u32, u64, u64),
        before: &[Vec<u8>; 2],
        cqe: Option<Cqe>,
    ) {
        let now = [self.ends[0].bytes(), self.ends[1].bytes()];
        let cqe = cqe.unwrap_or_else(|| panic!("{opcode:?}, {wrong:?}: no completion"));
        let syndrome = Syndrome::from_code(cqe.syndrome).filter(|_| cqe.opcode.is_error());
        let state = self.p.a.qp.state();
        let Some(wrong) = wrong else {
            assert!(syndrome.is_none(), "{opcode:?} is right: {syndrome:?}");
            let (from, into) = (GUARD + at as usize, GUARD + to as usize);
            let n = bytes as usize;
            match opcode {
                Opcode::RdmaWrite | Opcode::RdmaWriteImm | Opcode::Send => {
                    assert_eq!(now[1][into..into + n], before[0][from..from + n], "{opcode:?}");
                }
                Opcode::RdmaRead | Opcode::AtomicFa | Opcode::AtomicCs => {
                    assert_eq!(now[0][from..from + n], before[1][into..into + n], "{opcode:?}");
                }
                _ => assert_eq!(&now, before, "{opcode:?} changes nothing"),
            }
            self.outcome.carried += 1;
            return;
        };
        let is_told = syndrome.is_some() && state == QpState::Err;
        assert!(is_told, "{opcode:?}, {wrong:?}: {cqe:?}, {state:?}");
        assert_ne!(syndrome, Some(Syndrome::WrFlush), "{opcode:?}, {wrong:?}");
        let by_peer = matches!(
            syndrome,
            Some(Syndrome::RemoteAccess | Syndrome::RemoteInvalReq | Syndrome::RemoteOp)
        );
        assert_eq!(by_peer, wrong.is_the_peers(), "{opcode:?}, {wrong:?}: {syndrome:?}");
        assert!(&now == before, "{opcode:?}, {wrong:?}: memory changed");
        self.outcome.refused += 1;
        self.connected = false;
    }

    /// Random bytes in the ring, in a record, in a register or in receives.
    fn disturb(&mut self, input: &mut Input<'_>) {
        self.outcome.random += 1;
        self.connected = false;
        let queues = self.p.a.qp.queues().clone();
        match input.u8() % 4 {
            0 => {
                let blocks = u64::from(input.u8() % 4 + 1);
                let begin = self.p.a.host.sq.producer();
                for n in 0..blocks * WQEBB_BYTES as u64 / 8 {
                    let place = ((begin * 64 + n * 8) % (16 * 64)) as usize;
                    queues.sq.write(place, &input.u64().to_ne_bytes()).unwrap();
                }
                let next = (begin + blocks) as u16;
                queues.dbr.write(4, &u32::from(next).to_be_bytes()).unwrap();
            }
            1 => queues.dbr.write(0, &input.u64().to_ne_bytes()).unwrap(),
            2 => {
                let bell = Doorbell { qpn: self.p.a.qp.qpn(), next: input.u16() };
                let word = if input.u8() < 128 { bell.emit(8) } else { input.u64() };
                queues.uar.store_u64(UAR_DOORBELL_OFFSET, word, Ordering::Release).unwrap();
            }
            _ => {
                let receives = self.p.b.qp.queues().clone();
                for n in 0..16 {
                    receives.rq.write(n * 8, &input.u64().to_ne_bytes()).unwrap();
                }
                receives.dbr.write(0, &u32::from(input.u16()).to_be_bytes()).unwrap();
            }
        }
        queues.uar.store_u64(UAR_DOORBELL_OFFSET, input.u64() | 1, Ordering::Release).unwrap();
        self.settle();
    }
}

/// Posts what an input says, and checks what must hold.
pub fn stream(data: &[u8]) -> Outcome {
    let mut input = Input(data);
    let mut it = Stream::new(input.u8() & 1 == 1);
    for _ in 0..MOST {
        if input.0.is_empty() {
            break;
        }
        match input.u8() {
            0..=199 => it.post(&mut input),
            _ => it.disturb(&mut input),
        }
        assert!(it.ends.iter().all(Ground::is_intact), "memory outside the regions was touched");
        if !it.connected {
            it.begin_again();
        }
    }
    it.outcome
}
