//! What a recording costs a short message, on one thread: docs/replay.md has it.

use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use crate::queue_pairs::{Pair, attr, inline};
use bellpush::nic::Change;
use bellpush::nic::soft::link::{
    Carries, Link, LinkCounters, LinkError, Received, ShmLink, ShmNet, TxBatch,
};
use bellpush::nic::soft::record::Record;
use bellpush::nic::soft::{SoftConfig, SoftNic};
use bellpush::wire::wqe::{Opcode, SendWr};

/// What is between a NIC and its link.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Between {
    Nothing,
    /// A link that does nothing, and has packets handed over, as the one that records.
    Link,
    Recording,
}

struct Through(ShmLink);

impl Link for Through {
    fn address(&self) -> IpAddr {
        self.0.address()
    }
    fn mtu(&self) -> usize {
        self.0.mtu()
    }
    fn src_port(&self) -> u16 {
        self.0.src_port()
    }
    fn carries(&self) -> Carries {
        self.0.carries()
    }
    fn has_icrc(&self) -> bool {
        self.0.has_icrc()
    }
    fn send(&mut self, now: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        self.0.send(now, batch)
    }
    fn recv(
        &mut self,
        now: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        self.0.recv(now, most, each)
    }
    fn counters(&self) -> LinkCounters {
        self.0.counters()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

fn pair(between: Between, folder: &Path) -> Pair {
    let net = ShmNet::anonymous(false).unwrap();
    let mut engines = Vec::new();
    let nics = [1u8, 2].map(|host| {
        let link = net.attach(IpAddr::from([127, 0, 0, host])).unwrap();
        let link: Box<dyn Link> = match between {
            Between::Link => Box::new(Through(link)),
            _ => Box::new(link),
        };
        let path = folder.join(host.to_string());
        let record = Record { path, whole: false, script: None };
        let record = (between == Between::Recording).then_some(record);
        let config = SoftConfig { seed: Some(host.into()), record, ..SoftConfig::default() };
        let (nic, engine) = SoftNic::manual_on(&config, link).unwrap();
        engines.push(engine);
        nic
    });
    Pair::of((nics, engines), &attr(), &attr(), &Change::default())
}

/// A step of each engine.
fn step(p: &mut Pair) {
    p.now_ns += 500;
    for engine in &mut p.engines {
        engine.step(p.now_ns);
    }
}

/// The shortest time of a message and its acknowledgement, and of an engine's step without anything to do, in ns. Both
/// ends take turns, so that the machine's other load makes rounds longer, and none shorter.
fn least(between: Between) -> [f64; 2] {
    const COUNT: u32 = 500;
    let folder = tempfile::tempdir().unwrap();
    let mut p = pair(between, folder.path());
    let payload = inline(&[7; 8]);
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    let mut least = [f64::MAX; 2];
    for _ in 0..200 {
        let begun = Instant::now();
        for _ in 0..COUNT {
            p.a.host.send(&wr).unwrap();
            let sent = (0..10).any(|_| {
                step(&mut p);
                p.a.host.poll_send().unwrap().is_some()
            });
            assert!(sent);
        }
        let messages = begun.elapsed();
        (0..COUNT).for_each(|_| step(&mut p));
        let steps = (begun.elapsed() - messages) / 2;
        for (least, of) in least.iter_mut().zip([messages, steps]) {
            *least = least.min(of.as_secs_f64() * 1e9 / f64::from(COUNT));
        }
    }
    least
}

#[test]
#[ignore = "measures: docs/replay.md"]
fn what_a_recording_costs_a_short_message() {
    let all = [Between::Nothing, Between::Link, Between::Recording].map(|between| {
        let [message, step] = least(between);
        println!("{between:?}: {message:.0} ns a message, {step:.0} ns a step without one");
        message
    });
    assert!(all[2] < 2.0 * all[0], "{all:?}");
}
