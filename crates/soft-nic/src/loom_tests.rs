//! The queues' two sides under loom, as they run: posters and pollers of `nic::queue` and
//! `nic::slots` against the engine, the CQ and the window of this module.
//!
//! One thread runs what the NIC does, the other what a program does; they share modelled memory alone
//! ([`bellpush_mem::model`]). Whoever reads what nothing ordered before its read fails the model.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::sync::atomic::AtomicU32;
use loom::thread;

use crate::objects::cq::Cq;
use crate::objects::events::Events;
use crate::objects::number::Number;
use crate::queue::inband::{Slot, Watch};
use crate::{InProcess, SoftConfig, SoftNic};
use bellpush_mem::model::{Shape, explore};
use bellpush_mem::{HostMem, View};
use bellpush_nic::queue::{HostCq, HostQp};
use bellpush_nic::slots::HostSlots;
use bellpush_nic::{Access, Inband, LineFormat, Nic, QpAttr, QueuePair};
use bellpush_wire::cqe::{CQE_BYTES, CQE_TAIL_OFFSET, Cqe};
use bellpush_wire::doorbell::{
    DBR_CQ_ARM_OFFSET, DBR_CQ_CI_OFFSET, DBR_RCV_OFFSET, DBR_SND_OFFSET, UAR_DOORBELL_OFFSETS,
};
use bellpush_wire::wqe::{Opcode, Piece, SendWr, Sge};
use bellpush_wire::{Iova, Qpn, Rkey};

fn modelled(bytes: usize, shape: Shape) -> View {
    let mem = HostMem::modelled(bytes, shape);
    View::new(&mem, 0, bytes).unwrap()
}

/// Makes 8-byte words of a view atomics before threads meet there.
fn words(view: &View, offsets: impl IntoIterator<Item = usize>) {
    for offset in offsets {
        view.load_u64(offset, Ordering::Relaxed).unwrap();
    }
}

/// The same for a CQ's entries' last words and its doorbell record's two.
fn cq_words(ring: &View, dbr: &View) {
    words(ring, (CQE_TAIL_OFFSET..ring.len()).step_by(CQE_BYTES));
    for word in [DBR_CQ_CI_OFFSET, DBR_CQ_ARM_OFFSET] {
        dbr.load_u32(word, Ordering::Relaxed).unwrap();
    }
}

/// Three entries in a ring of two: the third is written over the first, once it was taken.
#[test]
fn completions_are_read_whole_and_not_overwritten() {
    explore(3, || {
        let memory = modelled(4096, Shape::Guarded);
        let ring = memory.part(0, 2 * CQE_BYTES).unwrap();
        let dbr = memory.part(1024, 8).unwrap();
        let events = Arc::new(Events::default());
        let cq = Cq::private(Number::fixed(5), (ring.clone(), dbr.clone()), 2, events).unwrap();
        let mut host = HostCq::new(&ring, &dbr);
        cq_words(&ring, &dbr);
        let polling = thread::spawn(move || {
            for counter in 0..3 {
                let cqe = loop {
                    if let Some(cqe) = host.poll().unwrap() {
                        break cqe;
                    }
                    thread::yield_now();
                };
                assert_eq!(cqe, Cqe::requester(Qpn(0xabcdef), 8, counter, 100));
            }
        });
        for counter in 0..3 {
            while cq.push(&Cqe::requester(Qpn(0xabcdef), 8, counter, 100)).is_err() {
                thread::yield_now();
            }
        }
        polling.join().unwrap();
    });
}

fn write_of<'a>(pieces: &'a [Piece<'a>], raddr: Iova, rkey: Rkey) -> SendWr<'a> {
    SendWr::new(Opcode::RdmaWrite).to(raddr, rkey).payload(pieces)
}

/// Two streams through a window of one slot.
#[test]
fn slots_are_taken_whole_and_written_again_only_with_a_credit() {
    for line in [LineFormat::L12S4, LineFormat::L60S4] {
        explore(2, move || {
            let window = modelled(128, Shape::Halves);
            let cfg = Inband { window, slot_bytes: 128, slots: 1, line, seq0: u32::MAX };
            let mut watch = Watch::new(&cfg).unwrap();
            let mut slots = HostSlots::new(Qpn(7), &cfg);
            let taken = Arc::new(AtomicU32::new(0));
            let credit = taken.clone();
            let stream = |ticket: u64| {
                let mut bytes = vec![0; 256];
                let data = [ticket as u8 + 1; 8];
                let pieces = [Piece::Inline(&data)];
                let wr = write_of(&pieces, Iova(0x1000), Rkey(9));
                let n = wr.emit_stream(ticket, Qpn(7), &mut bytes).unwrap();
                bytes[..n].to_vec()
            };
            let posting = thread::spawn(move || {
                for ticket in 0..2 {
                    while credit.load(Ordering::Acquire) < ticket {
                        thread::yield_now();
                    }
                    let data = [ticket as u8 + 1; 8];
                    let pieces = [Piece::Inline(&data)];
                    slots
                        .post_as(ticket.into(), &write_of(&pieces, Iova(0x1000), Rkey(9)))
                        .unwrap();
                }
            });
            for ticket in 0..2 {
                let bytes = loop {
                    match watch.fetch() {
                        Slot::Whole(bytes) => break bytes,
                        Slot::Waiting => thread::yield_now(),
                        Slot::Bad(syndrome, _) => panic!("{syndrome:?}"),
                    }
                };
                assert_eq!(watch.stream(bytes), stream(ticket));
                watch.advance();
                taken.store(ticket as u32 + 1, Ordering::Release);
            }
            posting.join().unwrap();
        });
    }
}

/// WQEs from a ring of a few blocks, payload gathered from and written to modelled memory, and the
/// completion that says so: the engine as it runs.
#[test]
fn wqes_are_fetched_whole_and_completions_come_after_the_data() {
    explore(1, || {
        let link = InProcess::new();
        let config = SoftConfig { seed: Some(1), ..SoftConfig::new(&link) };
        let (nic, mut engines) = SoftNic::manual(&config).unwrap();
        let attr = QpAttr {
            sq_blocks: 2,
            rq_wqes: 1,
            rq_sges: 1,
            send_cqes: 2,
            recv_cqes: 2,
            rnr_retry: 7,
            ack_timeout: 14,
            inband: None,
            blueflame: false,
        };
        let qp = |memory: &View| nic.create(&attr, memory).unwrap();
        let queues = modelled(nic.queue_bytes(&attr), Shape::Guarded);
        let far =
            View::new(&HostMem::alloc(nic.queue_bytes(&attr)).unwrap(), 0, nic.queue_bytes(&attr));
        let (a, b) = (qp(&queues), qp(&far.unwrap()));
        a.connect(b.address()).unwrap();
        b.connect(a.address()).unwrap();
        let data = modelled(4096, Shape::Guarded);
        let mr = nic.register(Arc::new(data.clone()), Iova(0x10_0000), Access::ALL).unwrap();
        let mut host = HostQp::new(&*a);
        let shared = a.queues();
        cq_words(&shared.send_cq, &shared.send_cq_dbr);
        words(&shared.uar, UAR_DOORBELL_OFFSETS);
        for word in [DBR_SND_OFFSET, DBR_RCV_OFFSET] {
            shared.dbr.load_u32(word, Ordering::Relaxed).unwrap();
        }
        let over = Arc::new(AtomicU32::new(0));
        let done = over.clone();
        let posting = thread::spawn(move || {
            for message in 0..3u8 {
                // The engine gathers from the first line of a pair and writes to the second.
                let at = usize::from(message) * 128;
                data.mem().write(at, &[message + 1; 8]).unwrap();
                let at = at as u64;
                let sge = Sge { addr: Iova(mr.iova.0 + at), lkey: mr.lkey, bytes: 8 };
                let pieces = [Piece::Data(sge)];
                let to = Iova(mr.iova.0 + at + 64);
                let posted = host.sq.post(&write_of(&pieces, to, mr.rkey));
                posted.unwrap();
                host.sq.ring().unwrap();
                let cqe = loop {
                    if let Some(cqe) = host.poll_send().unwrap() {
                        break cqe;
                    }
                    thread::yield_now();
                };
                assert_eq!((cqe.wqe_counter, cqe.syndrome), (u16::from(message), 0));
                let mut got = [0; 8];
                data.mem().read(at as usize + 64, &mut got).unwrap();
                assert_eq!(got, [message + 1; 8]);
            }
            done.store(1, Ordering::Release);
        });
        let mut now = 0;
        while over.load(Ordering::Acquire) == 0 {
            now += 1_000;
            for engine in &mut engines {
                let _ = engine.step(now);
            }
            thread::yield_now();
        }
        posting.join().unwrap();
    });
}
