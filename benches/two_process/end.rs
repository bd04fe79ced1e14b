//! One process's NIC, memory and queue pair, and the lines it exchanges with the other process.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use bellpush::mem::{HostMem, PAGE_BYTES, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::link::{Link, ShmNet, UdpLink};
use bellpush::nic::soft::{Engine, Nap, Qp, SoftConfig, SoftNic};
use bellpush::nic::{Access, Mr, Mtu, Nic, NicAddress, QpAddress, QpAttr, QueuePair};
use bellpush::wire::wqe::{Opcode, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Psn, Qpn, Rkey};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// Turns between two looks at the clock.
const TURNS: u32 = 4096;
/// Send queue in basic blocks.
const DEPTH: u32 = 64;
/// Where the peer's ping arrives.
pub const PING: usize = 0;
/// Bytes of a bandwidth message.
pub const SLOT: usize = 1 << 20;
/// Messages of distinct memory.
pub const SLOTS: usize = 16;
const OUT: usize = PAGE_BYTES;
const IN: usize = OUT + SLOTS * SLOT;
const REGION: usize = IN + SLOTS * SLOT;

/// Who drives the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Drive {
    /// A thread of the NIC's own.
    Thread,
    /// Whoever waits, as UCX has it.
    Caller,
}

/// One way to be measured, as words of the command line.
#[derive(Clone, Copy)]
pub struct Way {
    pub link: &'static str,
    pub drive: Drive,
}

impl Way {
    pub const ALL: [Self; 4] = [
        Self { link: "udp", drive: Drive::Thread },
        Self { link: "udp", drive: Drive::Caller },
        Self { link: "shm", drive: Drive::Thread },
        Self { link: "shm", drive: Drive::Caller },
    ];

    pub fn drive(self) -> &'static str {
        if self.drive == Drive::Thread { "thread" } else { "caller" }
    }

    /// The link; a shared-memory one has a name that both processes know.
    fn open(self, name: &str) -> Box<dyn Link> {
        match self.link {
            "udp" => Box::new(UdpLink::open_free().expect("a UDP link")),
            _ => {
                let net = ShmNet::named(name, false).expect("a shared link");
                Box::new(net.attach_free().expect("a port of it"))
            }
        }
    }
}

/// Where the other process's memory is.
struct Peer {
    addr: u64,
    rkey: u32,
}

/// NIC, memory and queue pair.
pub struct End {
    engine: Option<(Engine, Instant)>,
    /// Whether a waiting thread takes a core that others need.
    crowded: bool,
    pub memory: View,
    mr: Mr,
    qp: Arc<Qp>,
    pub queues: HostQp,
    peer: Option<Peer>,
    // Last: its threads use what is above.
    nic: Arc<SoftNic>,
}

impl End {
    pub fn open(way: Way, name: &str) -> Self {
        // Two processes of two threads each.
        let crowded = available_parallelism().map_or(1, usize::from) < 4;
        let nap = if crowded {
            Nap { spin: Duration::ZERO, give_way: PATIENCE, ..Nap::default() }
        } else {
            Nap::NEVER
        };
        let (config, link) = (SoftConfig { nap, ..SoftConfig::default() }, way.open(name));
        let (nic, engine) = match way.drive {
            Drive::Thread => (SoftNic::open_on(config, link).expect("a NIC"), None),
            Drive::Caller => {
                let (nic, engine) = SoftNic::manual_on(&config, link).expect("a NIC");
                (nic, Some((engine, Instant::now())))
            }
        };
        let memory = view(REGION);
        memory.fill(0, REGION, 0).expect("the region");
        let registered = Arc::new(memory.clone());
        let mr = nic.register(registered, Iova(memory.addr()), Access::ALL).expect("a region");
        let attr = QpAttr {
            sq_blocks: DEPTH,
            rq_wqes: 0,
            rq_sges: 1,
            send_cqes: DEPTH,
            recv_cqes: 0,
            rnr_retry: 7,
            ack_timeout: 14,
            inband: None,
            blueflame: false,
        };
        let qp = nic.create(&attr, &view(nic.queue_bytes(&attr))).expect("a queue pair");
        let queues = HostQp::new(&*qp);
        Self { engine, crowded, memory, mr, qp, queues, peer: None, nic }
    }

    pub fn describe(&self) -> String {
        self.nic.describe()
    }

    /// What the other process needs to know.
    pub fn introduce(&self) -> String {
        let QpAddress { nic, qpn, psn, mtu, rd_atomic } = self.qp.address();
        let NicAddress::Ip(ip) = nic else { unreachable!("on a packet link") };
        let (psn, mtu, addr) = (psn.value(), mtu.bytes(), self.memory.addr());
        format!("{ip} {} {psn} {mtu} {rd_atomic} {addr} {}", qpn.0, self.mr.rkey.0)
    }

    /// Connects to whom that line introduces.
    pub fn meet(&mut self, line: &str) {
        let mut words = line.split(' ');
        let nic = NicAddress::Ip(word::<IpAddr>(&mut words));
        let (qpn, psn) = (Qpn(word(&mut words)), Psn::new(word(&mut words)));
        let mtu = Mtu::new(word(&mut words)).expect("a path MTU");
        let rd_atomic = word(&mut words);
        self.qp.connect(QpAddress { nic, qpn, psn, mtu, rd_atomic }).expect("a connection");
        self.peer = Some(Peer { addr: word(&mut words), rkey: word(&mut words) });
    }

    fn write(&mut self, to: usize, piece: Piece<'_>) {
        let peer = self.peer.as_ref().expect("a peer");
        let payload = [piece];
        let wr = SendWr::new(Opcode::RdmaWrite)
            .to(Iova(peer.addr + to as u64), Rkey(peer.rkey))
            .payload(&payload);
        self.queues.send(&wr).expect("a post");
    }

    /// WRITEs 8 B, inline, to where the peer looks.
    pub fn ping(&mut self, value: u64) {
        self.write(PING, Piece::Inline(&value.to_ne_bytes()));
    }

    /// WRITEs a slot to the same slot of the peer.
    pub fn send_slot(&mut self, slot: usize) {
        let addr = Iova(self.memory.addr() + (OUT + slot * SLOT) as u64);
        let entry = Sge { addr, lkey: self.mr.lkey, bytes: SLOT as u32 };
        self.write(IN + slot * SLOT, Piece::Data(entry));
    }

    /// Takes a completion, which must be a good one, if there is any.
    pub fn completed(&mut self) -> bool {
        let Some(cqe) = self.queues.poll_send().expect("a CQE") else { return false };
        assert!(!cqe.opcode.is_error(), "syndrome {:#04x}", cqe.syndrome);
        true
    }

    /// The last ping that arrived.
    pub fn pinged(&self) -> u64 {
        self.memory.load_u64(PING, Ordering::Acquire).expect("the ping")
    }

    /// The slots to be sent, and those that arrive.
    pub fn slots(&self) -> (View, View) {
        let part = |at| self.memory.part(at, SLOTS * SLOT).expect("the slots");
        (part(OUT), part(IN))
    }

    fn turn(&mut self) {
        match &mut self.engine {
            Some((engine, start)) => {
                let busy = engine.step(start.elapsed().as_nanos() as u64).is_busy();
                if !busy && self.crowded {
                    thread::yield_now();
                }
            }
            None if self.crowded => thread::yield_now(),
            None => std::hint::spin_loop(),
        }
    }

    /// Waits, driving the engine where that is the caller's.
    pub fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let mut start = None;
        loop {
            for _ in 0..TURNS {
                if let Some(found) = look(self) {
                    return found;
                }
                self.turn();
            }
            assert!(start.get_or_insert_with(Instant::now).elapsed() < PATIENCE, "no {what}");
        }
    }
}

fn view(bytes: usize) -> View {
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    View::new(&HostMem::alloc(bytes).expect("memory"), 0, bytes).expect("all of it")
}

/// The next word of a line.
pub fn word<T: FromStr>(words: &mut dyn Iterator<Item = &str>) -> T {
    words.next().and_then(|word| word.parse().ok()).expect("a word of the other process")
}

/// Lines to and from the other process.
pub struct Lines {
    come: Receiver<String>,
    go: Box<dyn Write>,
}

impl Lines {
    pub fn new(come: impl Read + Send + 'static, go: impl Write + 'static) -> Self {
        let (tx, rx) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(come).lines().map_while(Result::ok);
            lines.map(|line| tx.send(line)).take_while(Result::is_ok).count()
        });
        Self { come: rx, go: Box::new(go) }
    }

    pub fn say(&mut self, line: impl Display) {
        writeln!(self.go, "{line}").and_then(|()| self.go.flush()).expect("the other process");
    }

    /// The next line, while the engine goes on; `None` when the other process has ended.
    pub fn hear(&mut self, end: &mut End) -> Option<String> {
        if end.engine.is_none() {
            return match self.come.recv_timeout(PATIENCE) {
                Err(RecvTimeoutError::Timeout) => panic!("no line"),
                heard => heard.ok(),
            };
        }
        end.until("line", |_| match self.come.try_recv() {
            Ok(line) => Some(Some(line)),
            Err(TryRecvError::Disconnected) => Some(None),
            Err(TryRecvError::Empty) => None,
        })
    }
}
