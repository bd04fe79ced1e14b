use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use super::*;
use crate::link::Carries;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// What arrived, and when.
type Log = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// Records what it is given; takes as many packets a call as it is told.
struct Recorder {
    log: Log,
    takes: VecDeque<usize>,
    icrc: bool,
}

impl Link for Recorder {
    fn address(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }
    fn mtu(&self) -> usize {
        MAX_PACKET_BYTES
    }
    fn src_port(&self) -> u16 {
        1
    }
    fn carries(&self) -> Carries {
        Carries::ALL
    }
    fn has_icrc(&self) -> bool {
        self.icrc
    }
    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        let n = batch.len().min(self.takes.pop_front().unwrap_or(usize::MAX));
        for packet in batch.iter().take(n) {
            assert_eq!(packet.to, PEER);
            self.log.lock().unwrap().push((now_ns, packet.bytes.to_vec()));
        }
        batch.take(n);
        Ok(n)
    }
    fn recv(
        &mut self,
        _: u64,
        _: usize,
        _: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        Ok(0)
    }
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
    fn describe(&self) -> String {
        "recorder".into()
    }
}

fn faulty(text: &str) -> (Faulty<Recorder>, Log) {
    let log = Log::default();
    let recorder = Recorder { log: log.clone(), takes: VecDeque::new(), icrc: true };
    (Faulty::new(recorder, text.parse().unwrap()).unwrap(), log)
}

/// Sends packets 0 to `n`, of 64 bytes that say their number, a microsecond apart.
fn run(link: &mut Faulty<Recorder>, n: u64) {
    let mut batch = TxBatch::new(1);
    for i in 0..n {
        batch.push(PEER, |buf| {
            buf[..64].fill(0);
            buf[..8].copy_from_slice(&i.to_le_bytes());
            Some(64)
        });
        assert_eq!(link.send(i * 1000, &mut batch).unwrap(), 1);
    }
    link.recv(n * 1000 + OVERTAKE_NS, 1, &mut |_| {}).unwrap();
}

fn numbers(log: &Log) -> Vec<u64> {
    let number = |bytes: &Vec<u8>| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    log.lock().unwrap().iter().map(|(_, bytes)| number(bytes)).collect()
}

#[test]
fn without_faults_packets_go_through_in_order_at_once() {
    let (mut link, log) = faulty("seed=3");
    run(&mut link, 2000);
    assert_eq!(numbers(&log), (0..2000).collect::<Vec<_>>());
    assert!(
        log.lock()
            .unwrap()
            .iter()
            .all(|(at, b)| at / 1000 == u64::from(b[0]) + 256 * u64::from(b[1]))
    );
    assert_eq!(link.faults(), Some(FaultCounters { packets: 2000, ..FaultCounters::default() }));
}

#[test]
fn shares_are_what_was_asked_for() {
    const N: u64 = 100_000;
    let (mut link, log) = faulty("loss=5%,dup=2%,reorder=3%,corrupt=1%,seed=42");
    run(&mut link, N);
    let c = link.faults().unwrap();
    assert_eq!(c.packets, N);
    // Five standard deviations of a binomial distribution.
    let near = |count: u64, of: u64, p: f64| {
        let (mean, sigma) = (of as f64 * p, (of as f64 * p * (1.0 - p)).sqrt());
        assert!((count as f64 - mean).abs() < 5.0 * sigma, "{count} of {of}, {p} expected");
    };
    near(c.lost, N, 0.05);
    near(c.duplicated, N - c.lost, 0.02);
    let copies = N - c.lost + c.duplicated;
    near(c.corrupted, copies, 0.01);
    near(c.reordered, copies, 0.03);
    assert_eq!(log.lock().unwrap().len() as u64, copies);
    // Each corrupted copy differs from what was sent in one bit.
    let zeros = |bytes: &[u8]| bytes[8..].iter().map(|b| b.count_ones()).sum::<u32>();
    let flipped = log.lock().unwrap().iter().map(|(_, bytes)| zeros(bytes)).sum::<u32>();
    near(u64::from(flipped), c.corrupted, 56.0 / 64.0);
}

#[test]
fn the_same_seed_does_the_same_and_another_does_not() {
    let text = "loss=5%,dup=5%,reorder=5%,corrupt=5%,delay=3us";
    let of = |seed: u64| {
        let (mut link, log) = faulty(&format!("{text},seed={seed}"));
        run(&mut link, 5000);
        let log = log.lock().unwrap().clone();
        (log, link.faults())
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1).0, of(2).0);
}

#[test]
fn a_reordered_packet_is_overtaken_by_few_and_never_lost() {
    let (mut link, log) = faulty("reorder=10%,seed=5");
    run(&mut link, 10_000);
    let got = numbers(&log);
    let late = got.windows(2).filter(|w| w[1] < w[0]).count() as u64;
    assert!(late > 500 && late <= link.faults().unwrap().reordered);
    let displaced = got.iter().enumerate().map(|(i, &n)| (i as u64).abs_diff(n)).max().unwrap();
    assert!((1..=2 * MAX_OVERTAKEN).contains(&displaced), "{displaced}");
    let mut sorted = got;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..10_000).collect::<Vec<_>>());
}

#[test]
fn a_packet_that_nothing_follows_still_arrives() {
    let (mut link, log) = faulty("reorder=100%,seed=1");
    let mut batch = TxBatch::new(1);
    batch.push(PEER, |buf| {
        buf[..64].fill(0);
        Some(64)
    });
    link.send(1000, &mut batch).unwrap();
    assert_eq!(link.poll_at(), Some(1000 + OVERTAKE_NS));
    link.recv(OVERTAKE_NS, 1, &mut |_| {}).unwrap();
    assert!(log.lock().unwrap().is_empty());
    link.recv(1000 + OVERTAKE_NS, 1, &mut |_| {}).unwrap();
    assert_eq!(log.lock().unwrap().len(), 1);
    assert_eq!(link.poll_at(), None);
}

#[test]
fn delay_and_rate_move_packets_in_time() {
    let (mut link, log) = faulty("delay=10us,rate=64MB/s,seed=1");
    let mut batch = TxBatch::new(8);
    for _ in 0..3 {
        batch.push(PEER, |_| Some(64));
    }
    assert_eq!(link.send(0, &mut batch).unwrap(), 3);
    // 64 bytes take 1 us each, and 10 us more to arrive.
    assert_eq!(link.poll_at(), Some(11_000));
    for now in (0..20_000).step_by(500) {
        link.recv(now, 1, &mut |_| {}).unwrap();
    }
    let at: Vec<u64> = log.lock().unwrap().iter().map(|(at, _)| *at).collect();
    assert_eq!(at, [11_000, 12_000, 13_000]);
}

#[test]
fn a_bounded_rate_pushes_back() {
    let (mut link, log) = faulty("rate=1MB/s,seed=1");
    let mut batch = TxBatch::new(64);
    let mut sent = 0;
    for now in (0..100_000_000u64).step_by(10_000) {
        while batch.push(PEER, |_| Some(1000)) {}
        sent += link.send(now, &mut batch).unwrap();
    }
    // 100 ms at 1 MB/s, and the queue of 1 ms.
    let arrived = log.lock().unwrap().len();
    assert!((98..=100).contains(&arrived), "{arrived}");
    assert!(sent - arrived <= 3, "{sent} {arrived}");
    assert!(link.counters().tx_full > 0);
}

#[test]
fn what_the_link_below_does_not_take_goes_later_in_order() {
    let (mut link, log) = faulty("seed=1");
    link.inner.takes = [0, 1, 0, 0, 2, 0, 1].into();
    let mut batch = TxBatch::new(300);
    for i in 0..300u64 {
        batch.push(PEER, |buf| {
            buf[..8].copy_from_slice(&i.to_le_bytes());
            Some(8)
        });
    }
    assert_eq!(link.send(5, &mut batch).unwrap(), 300);
    assert_eq!(link.poll_at(), Some(5), "at once");
    for now in 6..20 {
        link.recv(now, 1, &mut |_| {}).unwrap();
    }
    assert_eq!(numbers(&log), (0..300).collect::<Vec<_>>());
    assert_eq!(link.poll_at(), None);
}

#[test]
fn held_packets_are_bounded() {
    let (mut link, log) = faulty("delay=1s,dup=100%,seed=1");
    let mut batch = TxBatch::new(2000);
    while batch.push(PEER, |_| Some(8)) {}
    assert_eq!(link.send(0, &mut batch).unwrap(), HELD / 2);
    assert_eq!(link.send(1, &mut batch).unwrap(), 0);
    assert!(log.lock().unwrap().is_empty());
    link.recv(1_000_000_000, 1, &mut |_| {}).unwrap();
    assert_eq!(log.lock().unwrap().len(), HELD);
}

#[test]
fn corruption_that_nobody_would_notice_is_refused() {
    let recorder = || Recorder { log: Log::default(), takes: VecDeque::new(), icrc: false };
    let corrupt: Faults = "corrupt=1%".parse().unwrap();
    assert!(matches!(Faulty::new(recorder(), corrupt), Err(LinkError::NeedsIcrc)));
    assert!(Faulty::new(recorder(), Faults::default()).is_ok());
}
