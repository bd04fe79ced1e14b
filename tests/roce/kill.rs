//! Peers that are killed with SIGKILL in the middle of a transfer, and peers that come back.
//!
//! The peer is a process of its own: this test program again, told by its environment to open a
//! NIC, and by lines on its standard input what to do with it.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::queue_pairs::{self, Buf, attr, make_qp, syndromes};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::link::{Link, ShmNet, UdpLink};
use bellpush::nic::soft::{DropReason, Qp, SoftConfig, SoftNic};
use bellpush::nic::{Access, Connection, Mtu, NicAddress, QpAddress, QpState, QueuePair};
use bellpush::wire::cqe::Syndrome;
use bellpush::wire::roce::ack_timeout_ns;
use bellpush::wire::wqe::{Opcode, Operands, SendWr};
use bellpush::wire::{Iova, Psn, Qpn, Rkey};

/// What the peer's process is told: the name of a link and the address on it.
const CHILD: &str = "BELLPUSH_TEST_KILL";
/// What the peer's process says begins with this; the test harness says other things.
const SAYS: &str = "peer:";
/// After this the peer's process ends by itself, and with it all that waits for it.
const LIFE: Duration = Duration::from_secs(30);

/// A local ACK timeout of 134 ms, seven times again: 1.07 s.
const TIMEOUT: u8 = 15;
const RETRY_CNT: u8 = 7;
/// What a loaded machine may add.
const SLACK: Duration = Duration::from_secs(1);
const MTU: usize = 1024;
/// Requests on their way.
const DEEP: u64 = 32;

/// The peer's memory: the first part is for the connection under test, the rest for another one.
const OLD_BYTES: usize = 64 << 10;
const BYTES: usize = OLD_BYTES + 4096;

fn given_up() -> Duration {
    Duration::from_nanos(ack_timeout_ns(TIMEOUT).unwrap()) * (u32::from(RETRY_CNT) + 1)
}

/// A link of a name: `udp`, or `shm-` and what the file is called.
fn open(name: &str, addr: IpAddr, seed: Option<u64>) -> Arc<SoftNic> {
    let link: Box<dyn Link> = match name.strip_prefix("shm-") {
        Some(file) => Box::new(ShmNet::named(file, false).unwrap().attach(addr).unwrap()),
        None => Box::new(UdpLink::open(addr, None).unwrap()),
    };
    SoftNic::open_on(SoftConfig { seed, ..SoftConfig::default() }, link).unwrap()
}

/// Connects an end that sends from `sq_psn` to a peer that sends from its address's PSN.
fn connect(qp: &Qp, sq_psn: Psn, peer: QpAddress) {
    let mut connection = Connection::new(qp.address(), peer);
    let with = &mut connection.with;
    with.sq_psn = Some(sq_psn);
    with.path_mtu = Mtu::new(MTU);
    (with.timeout, with.retry_cnt) = (Some(TIMEOUT), Some(RETRY_CNT));
    qp.connect_with(&connection).unwrap();
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// Not a test of its own: the peer's process. It opens its NIC at the first line, connects at the
/// second, which has its peer's number and PSN, and reports at every other.
#[test]
fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    std::thread::spawn(|| {
        std::thread::sleep(LIFE);
        std::process::exit(1);
    });
    let words: Vec<&str> = told.split(' ').collect();
    let [name, ours, theirs] = words[..] else { panic!("{told}") };
    let mut lines = std::io::stdin().lines();
    let mut next = || lines.next().map(Result::unwrap);
    if next().is_none() {
        return;
    }
    // The same seed each time: a restarted peer has the same number, and the same key.
    let nic = open(name, ours.parse().unwrap(), Some(7));
    let (qp, _memory) = make_qp(&nic, &attr());
    let buf = Buf::new(&nic, BYTES, queue_pairs::B_IOVA, Access::ALL);
    let at = qp.address();
    println!("\n{SAYS}{} {} {}", at.qpn.0, at.psn.value(), buf.mr.rkey.0);
    let Some(line) = next() else { return };
    let [qpn, psn] = numbers(&line)[..] else { panic!("{line}") };
    let peer = NicAddress::Ip(theirs.parse().unwrap());
    let (qpn, psn) = (Qpn(qpn as u32), Psn::new(psn as u32));
    let peer = QpAddress { nic: peer, qpn, psn, ..at };
    connect(&qp, at.psn, peer);
    println!("{SAYS}");
    while next().is_some() {
        let counters = nic.counters();
        let dropped = [DropReason::Gap, DropReason::Duplicate].map(|why| counters.dropped(why));
        let written = buf.get(0, OLD_BYTES).iter().filter(|&&byte| byte != 0).count();
        println!("{SAYS}{written} {} {}", dropped[0], dropped[1]);
    }
}

/// The peer's process.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn spawn(net: &Net) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::child", "--nocapture"])
            .env(CHILD, format!("{} {} {}", net.name, net.theirs, net.ours))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdin, stdout }
    }

    /// Tells it a line, and returns what it says.
    fn ask(&mut self, line: &str) -> Vec<u64> {
        writeln!(self.stdin, "{line}").unwrap();
        let mut said = self.stdout.by_ref().map(Result::unwrap);
        numbers(&said.find_map(|l| Some(l.strip_prefix(SAYS)?.to_owned())).expect("it lives"))
    }

    /// Has it open its NIC: its queue pair's address, and its region's key.
    fn open(&mut self, net: &Net, like: QpAddress) -> (QpAddress, Rkey) {
        let [qpn, psn, rkey] = self.ask("open")[..] else { panic!("three numbers") };
        let nic = NicAddress::Ip(net.theirs);
        let (qpn, psn) = (Qpn(qpn as u32), Psn::new(psn as u32));
        (QpAddress { nic, qpn, psn, ..like }, Rkey(rkey as u32))
    }

    fn connect(&mut self, qpn: Qpn, psn: Psn) {
        self.ask(&format!("{} {}", qpn.0, psn.value()));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // SIGKILL
        let _ = self.child.wait();
    }
}

/// A link between this process and its peer's.
struct Net {
    name: String,
    ours: IpAddr,
    theirs: IpAddr,
}

impl Net {
    /// `test` keeps those of one process apart, the process's number those of several.
    fn new(kind: &str, test: u8) -> Self {
        let pid = std::process::id();
        let name = match kind {
            "shm" => format!("shm-kill-{pid}-{test}"),
            _ => kind.to_owned(),
        };
        let addr = |host| IpAddr::from([127, (pid >> 8) as u8, pid as u8, 2 * test + host]);
        Self { name, ours: addr(1), theirs: addr(2) }
    }
}

/// Our end of the connection whose peer is killed.
struct Survivor {
    qp: Arc<Qp>,
    host: HostQp,
    buf: Buf,
    /// The peer's queue pair, and its region's key.
    peer: (QpAddress, Rkey),
    bytes: u32,
    posted: u64,
    /// Syndromes of what is complete.
    ended: Vec<Option<Syndrome>>,
}

impl Survivor {
    /// Connects to a peer, for messages of a length.
    fn new(nic: &SoftNic, net: &Net, peer: &mut Peer, bytes: u32) -> Self {
        let (qp, _) = make_qp(nic, &attr());
        let (host, ours) = (HostQp::new(&*qp), qp.address());
        let (theirs, rkey) = peer.open(net, ours);
        connect(&qp, ours.psn, theirs);
        peer.connect(ours.qpn, ours.psn);
        let buf = Buf::new(nic, OLD_BYTES, queue_pairs::A_IOVA, Access::ALL);
        buf.put(0, &[0xa5; OLD_BYTES]);
        Self { qp, host, buf, peer: (theirs, rkey), bytes, posted: 0, ended: Vec::new() }
    }

    fn poll(&mut self) {
        let cqes: Vec<_> = std::iter::from_fn(|| self.host.poll_send().unwrap()).collect();
        self.ended.extend(syndromes(&cqes));
    }

    /// Fills the queue, every fourth request an atomic, and takes what is complete.
    fn pump(&mut self) {
        while self.posted - (self.ended.len() as u64) < DEEP {
            let is_atomic = self.posted % 4 == 3;
            let opcode = if is_atomic { Opcode::AtomicFa } else { Opcode::RdmaWrite };
            let payload = [self.buf.data(0, if is_atomic { 8 } else { self.bytes })];
            let atomic = is_atomic.then_some(Operands { swap_add: 1, compare: 0 });
            let wr = SendWr { atomic, ..SendWr::new(opcode) };
            let wr = wr.to(Iova(queue_pairs::B_IOVA), self.peer.1).payload(&payload);
            self.host.sq.post(&wr).unwrap();
            self.posted += 1;
        }
        self.host.sq.ring().unwrap();
        std::thread::yield_now();
        self.poll();
    }

    /// Streams until so many are complete, kills the peer, and goes on until nothing more is
    /// acknowledged. Returns when it was killed.
    fn stream_and_kill(&mut self, mut peer: Peer, count: usize) -> Instant {
        let until = Instant::now() + Duration::from_secs(10);
        while self.ended.len() < count {
            assert!(Instant::now() < until, "{} of {count} complete", self.ended.len());
            self.pump();
        }
        peer.child.kill().unwrap(); // SIGKILL
        let killed = Instant::now();
        while peer.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it does not die");
            self.pump();
        }
        let dead = Instant::now();
        while dead.elapsed() < Duration::from_millis(50) {
            self.pump();
        }
        assert_eq!(self.ended, vec![None; self.ended.len()]);
        killed
    }

    /// All that was posted is complete.
    fn is_over(&mut self) -> bool {
        self.poll();
        self.ended.len() as u64 == self.posted
    }

    /// Checks how it ended: retries exceeded, in time, everything behind it flushed.
    #[track_caller]
    fn check(&self, killed: Instant) {
        let waited = killed.elapsed();
        let good = self.ended.iter().take_while(|e| e.is_none()).count();
        let bad = &self.ended[good..];
        assert_eq!(bad.first(), Some(&Some(Syndrome::TransportRetryExc)), "{good} were good");
        assert!(bad.len() > 1, "nothing was on its way");
        assert!(bad[1..].iter().all(|&e| e == Some(Syndrome::WrFlush)), "{bad:?}");
        assert_eq!(self.qp.state(), QpState::Err);
        let most = given_up();
        assert!((most / 2..most + SLACK).contains(&waited), "{waited:?} of {most:?}");
    }
}

/// Waits for something for as long as a queue pair may take to give up.
fn within(mut done: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + given_up() + 2 * SLACK;
    while !done() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

fn killed(kind: &str, test: u8) {
    let net = Net::new(kind, test);
    let nic = open(&net.name, net.ours, None);
    let mut peer = Peer::spawn(&net);
    let mut survivor = Survivor::new(&nic, &net, &mut peer, OLD_BYTES as u32);
    let at = survivor.stream_and_kill(peer, 100);
    assert!(within(|| survivor.is_over()), "{} of {}", survivor.ended.len(), survivor.posted);
    survivor.check(at);
    assert!(nic.counters().timeouts > u64::from(RETRY_CNT));
    // What is posted now is flushed at once, and the NIC's threads end.
    let before = Instant::now();
    survivor.posted += 1;
    survivor.host.send(&SendWr::new(Opcode::RdmaWrite)).unwrap();
    assert!(within(|| survivor.is_over()));
    assert_eq!(survivor.ended.last(), Some(&Some(Syndrome::WrFlush)));
    drop((survivor, nic));
    assert!(before.elapsed() < SLACK);
}

#[test]
fn a_peer_killed_over_shared_memory_is_given_up_in_time() {
    killed("shm", 0);
}

#[test]
fn a_peer_killed_over_udp_is_given_up_in_time() {
    killed("udp", 1);
}

/// Where a restarted peer's PSN lies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum New {
    /// Before what the old connection sends, which leaves a gap.
    Before,
    /// After it: what the old connection sends looks like a duplicate.
    After,
    /// At it, which no new connection's is: then, and only then, the old one gets in.
    Same,
}

/// A peer is killed, and comes back on the same address with the same number and the same key.
fn restarted(kind: &str, test: u8, new: New) {
    let net = Net::new(kind, test);
    let nic = open(&net.name, net.ours, None);
    // The second one is started, but has no NIC yet.
    let (mut first, mut second) = (Peer::spawn(&net), Peer::spawn(&net));
    // Messages of one packet, so that completions count PSNs.
    let mut old = Survivor::new(&nic, &net, &mut first, MTU as u32);
    let at = old.stream_and_kill(first, 200);
    let (fresh, _) = make_qp(&nic, &attr());
    let (peer, rkey) = second.open(&net, fresh.address());
    assert_eq!(
        (peer.qpn, rkey),
        (old.peer.0.qpn, old.peer.1),
        "another one's packets would not fit"
    );
    let next = old.qp.address().psn.plus(old.ended.len() as u32);
    let psn = match new {
        New::Before => next.plus(Psn::MODULUS - 0x20_0000),
        New::After => next.plus(0x20_0000),
        New::Same => next,
    };
    connect(&fresh, psn, peer);
    second.connect(fresh.qpn(), psn);
    // The new connection works, while the old one is still trying.
    let mut host = HostQp::new(&*fresh);
    let mut rounds = 0u64;
    let buf = Buf::new(&nic, 16, 0, Access::ALL);
    let to = Iova(queue_pairs::B_IOVA + OLD_BYTES as u64);
    let over = within(|| {
        if new != New::Same {
            rounds += 1;
            buf.put(0, &rounds.to_ne_bytes());
            for (opcode, at) in [(Opcode::RdmaWrite, 0), (Opcode::RdmaRead, 8)] {
                let payload = [buf.data(at, 8)];
                host.send(&SendWr::new(opcode).to(to, rkey).payload(&payload)).unwrap();
                let mut cqe = None;
                assert!(within(|| {
                    cqe = host.poll_send().unwrap();
                    cqe.is_some()
                }));
                assert!(!cqe.unwrap().opcode.is_error(), "{cqe:?} in round {rounds}");
            }
            assert_eq!(buf.get(8, 8), rounds.to_ne_bytes());
        }
        old.is_over()
    });
    assert!(over, "{} of {}", old.ended.len(), old.posted);
    old.check(at);
    let [written, gaps, duplicates] = second.ask("report")[..] else { panic!("three numbers") };
    let seen = format!("{kind} {new:?}: {written} bytes, {gaps} {duplicates}, {rounds} rounds");
    match new {
        New::Before => assert!(written == 0 && gaps > 0, "{seen}"),
        New::After => assert!(written == 0 && duplicates > 0, "{seen}"),
        New::Same => assert!(written > 0, "{seen}"),
    }
    assert!(rounds > 10 || new == New::Same, "{seen}");
    if new != New::Same {
        assert_eq!(fresh.state(), QpState::Rts);
    }
}

#[test]
fn a_peer_restarted_over_shared_memory_is_not_mistaken_for_the_old_one() {
    for (test, new) in [(2, New::Before), (3, New::After), (4, New::Same)] {
        restarted("shm", test, new);
    }
}

#[test]
fn a_peer_restarted_over_udp_is_not_mistaken_for_the_old_one() {
    for (test, new) in [(5, New::Before), (6, New::After), (7, New::Same)] {
        restarted("udp", test, new);
    }
}
