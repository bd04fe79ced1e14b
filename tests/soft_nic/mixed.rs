//! A NIC without an adversary sends to one with it: with the kind `writes` a WRITE has landed before it is
//! acknowledged; and what brings WRITEs about that may land later still.

use std::sync::Arc;

use crate::queue_pairs::{self, Buf, attr, pattern};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::{Adversary, AdversaryKind, Engine, InProcess, Qp, SoftConfig, SoftNic};
use bellpush::nic::{Access, QueuePair};
use bellpush::wire::wqe::{Flags, Opcode, Operands, SendWr};

const SEEDS: std::ops::Range<u64> = 0..32;

/// The NIC without, the NIC with an adversary, and memory of both.
struct Mixed {
    a: Arc<SoftNic>,
    b: Arc<SoftNic>,
    engines: [Engine; 2],
    from: Buf,
    to: Buf,
    now: u64,
}

impl Mixed {
    fn new(seed: u64, kinds: &[AdversaryKind]) -> Self {
        let link = InProcess::new();
        let adversary = Some(Adversary::of(seed, kinds));
        let config = SoftConfig { adversary, ..SoftConfig::new(&link) };
        let (a, mut engines) = SoftNic::manual(&SoftConfig::new(&link)).unwrap();
        let (b, mut engines_of_b) = SoftNic::manual(&config).unwrap();
        let from = Buf::new(&a, 4096, 0, Access::ALL);
        let to = Buf::new(&b, 4096, 0, Access { relaxed_order: true, ..Access::ALL });
        from.put(0, &pattern(4096, 3));
        let engines = [engines.remove(0), engines_of_b.remove(0)];
        Self { a, b, engines, from, to, now: 0 }
    }

    /// A queue pair of A's, connected to one of B's, and its poster.
    fn connected(&self) -> (HostQp, [Arc<Qp>; 2]) {
        let qps = [&self.a, &self.b].map(|nic| queue_pairs::make_qp(nic, &attr()).0);
        qps[0].connect(qps[1].address()).unwrap();
        qps[1].connect(qps[0].address()).unwrap();
        (HostQp::new(&*qps[0]), qps)
    }

    /// A WRITE of bytes from `at` on to the same place.
    fn write(&self, host: &mut HostQp, (at, bytes): (u64, u32), flags: Flags) {
        let data = [self.from.data(at, bytes)];
        let wr = SendWr::new(Opcode::RdmaWrite).to(self.to.at(at), self.to.mr.rkey);
        host.sq.post(&SendWr { flags, ..wr.payload(&data) }).unwrap();
    }

    /// Rings for what was posted, and waits for a completion.
    fn complete(&mut self, host: &mut HostQp) {
        host.sq.ring().unwrap();
        let cqe = loop {
            self.now += 10;
            self.engines[0].step(self.now);
            if let Some(cqe) = host.poll_send().unwrap() {
                break cqe;
            }
            assert!(self.now < 1_000_000, "no CQE");
        };
        assert!(!cqe.opcode.is_error());
    }

    fn has_landed(&self) -> bool {
        self.to.get(0, 1024) == self.from.get(0, 1024)
    }
}

/// 1 KiB without a CQE, then `last` bytes with one; of how many seeds the CQE came before the 1 KiB.
fn early(last: u32) -> usize {
    let is_early = |&seed: &u64| {
        let mut nics = Mixed::new(seed, &[AdversaryKind::Writes]);
        let (mut host, _qps) = nics.connected();
        nics.write(&mut host, (0, 1024), Flags::default());
        nics.write(&mut host, (2048, last), Flags::SIGNALLED);
        nics.complete(&mut host);
        !nics.has_landed()
    };
    SEEDS.filter(is_early).count()
}

#[test]
fn what_has_landed_is_acknowledged() {
    for last in [8, 1024] {
        assert_eq!(early(last), 0, "{last} bytes last");
    }
}

/// Also where a WRITE may land after its completion.
#[test]
fn a_read_of_nothing_comes_behind_the_writes_before_it() {
    let late = |&seed: &u64| {
        let mut nics = Mixed::new(seed, &[AdversaryKind::AllWrites]);
        let (mut host, _qps) = nics.connected();
        nics.write(&mut host, (0, 1024), Flags::SIGNALLED);
        nics.complete(&mut host);
        let late = !nics.has_landed();
        let wr = SendWr::new(Opcode::RdmaRead).to(nics.to.at(0), nics.to.mr.rkey);
        host.sq.post(&wr).unwrap();
        nics.complete(&mut host);
        assert!(nics.has_landed(), "seed {seed}");
        late
    };
    let late = SEEDS.filter(late).count();
    assert!(late > 0, "nothing was late");
}

#[test]
fn an_atomic_comes_behind_what_is_on_its_way_to_its_word() {
    for seed in SEEDS {
        let mut nics = Mixed::new(seed, &[AdversaryKind::Writes, AdversaryKind::Atomics]);
        let (mut first, _first) = nics.connected();
        let (mut second, _second) = nics.connected();
        nics.write(&mut first, (0, 1024), Flags::default());
        first.sq.ring().unwrap();
        (1..5).for_each(|now| _ = nics.engines[0].step(now));
        let old = [nics.from.data(3000, 8)];
        let atomic = Some(Operands { swap_add: 1, compare: 0 });
        let wr = SendWr { atomic, ..SendWr::new(Opcode::AtomicFa) };
        second.sq.post(&wr.to(nics.to.at(8), nics.to.mr.rkey).payload(&old)).unwrap();
        nics.complete(&mut second);
        nics.engines[1].step(1_000_000);
        let word = |of: &Buf| u64::from_ne_bytes(of.get(8, 8).try_into().unwrap());
        assert_eq!(word(&nics.to), word(&nics.from).wrapping_add(1), "seed {seed}");
        assert!(nics.b.findings().is_empty(), "seed {seed}: {:?}", nics.b.findings());
    }
}
