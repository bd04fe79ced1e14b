//! What a NIC that takes every freedom owes at ends: of an SRQ's queue pair, and of what a key stands for.

use std::sync::atomic::Ordering;

use crate::adversary::{LONG_NS, nics, pair, silent};
use crate::queue_pairs::{Pair, attr, connect, make_typed, pattern};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::{Event, MkeyAttr, SrqAttr};
use bellpush::nic::{Change, QpAttr, QpState, QpType, QueuePair};
use bellpush::wire::doorbell::{DBR_RCV_OFFSET, dbr_word};
use bellpush::wire::umr::{Part, Translation, Umr, mask};
use bellpush::wire::wqe::{Flags, Opcode, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Lkey};

const RECEIVES: u16 = 6;

#[test]
fn the_last_wqe_comes_behind_all_that_was_received() {
    let mut late = 0;
    for seed in 1..=20 {
        let mut p = Pair::of(nics(&format!("{seed},cqe")), &attr(), &attr(), &Change::default());
        let mem = HostMem::alloc(8192).unwrap();
        let (ring, dbr) = (View::new(&mem, 0, 512).unwrap(), View::new(&mem, 4096, 8).unwrap());
        let pd = p.nics[1].default_pd().clone();
        let srq = SrqAttr { pd, ring: ring.clone(), stride_log: 6, dbr: dbr.clone(), limit: 0 };
        let srq = p.nics[1].create_srq(&srq).unwrap();
        for i in 0..8u16 {
            ring.write(usize::from(i) * 64 + 2, &((i + 1) % 8).to_be_bytes()).unwrap();
        }
        dbr.store_u32(DBR_RCV_OFFSET, dbr_word(RECEIVES), Ordering::Release).unwrap();
        let (a, _a) = make_typed(&p.nics[0], QpType::Rc, &attr(), None);
        let none = QpAttr { rq_wqes: 0, ..attr() };
        let (b, _b) = make_typed(&p.nics[1], QpType::Rc, &none, Some(srq));
        connect(&a, &b, &Change::default());
        let (mut sender, mut receiver) = (HostQp::new(&*a), HostQp::new(&*b));
        for _ in 0..RECEIVES {
            sender.send(&SendWr::new(Opcode::Send)).unwrap();
        }
        // Received, and acknowledged.
        assert!(p.run_until(LONG_NS, |p| p.nics[0].counters().wqes == u64::from(RECEIVES)));
        let mut got = 0;
        while receiver.poll_recv().unwrap().is_some() {
            got += 1;
        }
        late += RECEIVES - got;
        b.modify(QpState::Err, &Change::default()).unwrap();
        let events: Vec<_> = std::iter::from_fn(|| p.nics[1].next_event()).collect();
        assert!(events.contains(&Event::LastWqe(b.qpn())), "{events:?}");
        while receiver.poll_recv().unwrap().is_some() {
            got += 1;
        }
        assert_eq!(got, RECEIVES, "seed {seed}");
    }
    assert!(late > 0, "nothing was put off");
}

#[test]
fn a_key_that_comes_to_stand_for_other_parts_is_nobodys_finding() {
    for seed in 1..=5 {
        let mut p = pair(seed, ",payload");
        let nic = p.nics[0].clone();
        let new = MkeyAttr { octowords: 4, remote_invalidate: false, tag: Some(0) };
        let list = nic.create_mkey(nic.default_pd(), new).unwrap();
        let (addr, lkey) = (p.a.buf.at(0), p.a.buf.mr.lkey);
        let umr = |at: u64| Umr {
            tag: Some(0),
            free: Some(false),
            bytes: Some(1000),
            rights: (mask::RIGHTS, mask::LOCAL_WRITE),
            translation: Some(Translation {
                repeat: 1,
                parts: vec![Part { addr: Iova(addr.0 + at), lkey, bytes: 1000, stride: 0 }],
            }),
            ..Umr::default()
        };
        for round in 0..30 {
            let data = [pattern(1000, round), pattern(1000, round + 100)];
            for (i, data) in data.iter().enumerate() {
                p.a.buf.put(i * 4000, data);
            }
            for i in 0..2u64 {
                p.a.host.sq.post_umr(list, &umr(i * 4000), Flags::default()).unwrap();
                let payload = [Piece::Data(Sge { addr: Iova(0), lkey: Lkey(list.0), bytes: 1000 })];
                let to = (p.b.buf.at(i * 2000), p.b.buf.mr.rkey);
                let wr = SendWr::new(Opcode::RdmaWrite).to(to.0, to.1).payload(&payload);
                let flags = Flags { fence: true, cq_update: i == 1, ..Flags::default() };
                p.a.host.send(&SendWr { flags, ..wr }).unwrap();
            }
            assert!(p.run_until(LONG_NS, |p| p.a.host.poll_send().unwrap().is_some()));
            for (i, data) in data.iter().enumerate() {
                assert_eq!(p.b.buf.get(i * 2000, 1000), *data, "seed {seed}, round {round}");
            }
        }
        silent(&p);
    }
}
