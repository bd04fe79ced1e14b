//! A NIC without an adversary sends to one with it: with the kind `writes` a WRITE has landed before it is
//! acknowledged.

use crate::queue_pairs::{self, Buf, attr, pattern};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::{Adversary, AdversaryKind, InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Access, QueuePair};
use bellpush::wire::cqe::Cqe;
use bellpush::wire::wqe::{Flags, Opcode, SendWr};

/// 1 KiB without a CQE, then `last` bytes with one; of how many seeds the CQE came before the 1 KiB.
fn early(last: u32) -> u32 {
    let mut early = 0;
    for seed in 0..32 {
        let link = InProcess::new();
        let (a, mut engines) = SoftNic::manual(&SoftConfig::new(&link)).unwrap();
        let adversary = Some(Adversary::of(seed, &[AdversaryKind::Writes]));
        let config = SoftConfig { adversary, ..SoftConfig::new(&link) };
        let (b, _engines_of_b) = SoftNic::manual(&config).unwrap();
        let (qp, _memory) = queue_pairs::make_qp(&a, &attr());
        let (peer, _memory_of_b) = queue_pairs::make_qp(&b, &attr());
        qp.connect(peer.address()).unwrap();
        peer.connect(qp.address()).unwrap();
        let from = Buf::new(&a, 4096, 0, Access::ALL);
        let to = Buf::new(&b, 4096, 0, Access { relaxed_order: true, ..Access::ALL });
        from.put(0, &pattern(4096, 3));
        let mut host = HostQp::new(&*qp);
        let quiet = Flags { cq_update: false, solicited: false, fence: false };
        let data = [from.data(0, 1024)];
        let wr = SendWr::new(Opcode::RdmaWrite).to(to.at(0), to.mr.rkey).payload(&data);
        host.sq.post(&SendWr { flags: quiet, ..wr }).unwrap();
        let flag = [from.data(2048, last)];
        let wr = SendWr::new(Opcode::RdmaWrite).to(to.at(2048), to.mr.rkey).payload(&flag);
        host.sq.post(&wr).unwrap();
        host.sq.ring().unwrap();
        let mut now = 0;
        let cqe: Cqe = loop {
            now += 10;
            engines[0].step(now);
            if let Some(cqe) = host.poll_send().unwrap() {
                break cqe;
            }
            assert!(now < 1_000_000, "no CQE");
        };
        assert!(!cqe.opcode.is_error());
        early += u32::from(to.get(0, 1024) != from.get(0, 1024));
    }
    early
}

#[test]
fn what_has_landed_is_acknowledged() {
    for last in [8, 1024] {
        assert_eq!(early(last), 0, "{last} bytes last");
    }
}
