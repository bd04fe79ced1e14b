use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::link::{Link, UdpLink};
use crate::objects::mr::Right;
use crate::objects::state::ladder;
use crate::queue::uar::{Kind, Uar};
use crate::{Engine, InProcess, SoftConfig, SoftNic};
use bellpush_broken_mem::Telling;
use bellpush_mem::{HostMem, View};
use bellpush_nic::queue::HostQp;
use bellpush_nic::{Access, AddressVector, Connection, Nic, QpAttr};
use bellpush_wire::wqe::{Opcode, Piece, SendWr};
use bellpush_wire::{Iova, Rkey};

const PORT: u16 = 51_234;

struct Bed {
    nic: Arc<SoftNic>,
    engines: Vec<Engine>,
    qp: Arc<Qp>,
    host: HostQp,
}

impl Bed {
    /// A queue pair that is its own peer, in INIT.
    fn new(nic: Arc<SoftNic>, engines: Vec<Engine>, sq_blocks: u32) -> Self {
        let attr = QpAttr {
            sq_blocks,
            rq_wqes: 0,
            rq_sges: 0,
            send_cqes: 2 * sq_blocks,
            recv_cqes: 0,
            rnr_retry: 7,
            ack_timeout: 14,
            inband: None,
            blueflame: false,
        };
        let memory = HostMem::alloc(nic.queue_bytes(&attr)).unwrap();
        let qp = nic.create(&attr, &View::new(&memory, 0, memory.len()).unwrap()).unwrap();
        let bed = Self { host: HostQp::new(&*qp), nic, engines, qp };
        bed.up_to(QpState::Init);
        bed
    }

    fn in_process(sq_blocks: u32) -> Self {
        let (nic, engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
        Self::new(nic, engines, sq_blocks)
    }

    /// What is needed for that state.
    fn change(&self, to: QpState) -> Change {
        let here = self.qp.address();
        Connection::new(here, here).change(QpType::Rc, to)
    }

    fn up_to(&self, last: QpState) {
        let here = self.qp.address();
        for (to, change) in ladder(QpType::Rc, &Connection::new(here, here)) {
            if to as u8 > self.qp.state() as u8 && to as u8 <= last as u8 {
                self.qp.modify(to, &change).unwrap();
            }
        }
        assert_eq!(self.qp.state(), last);
    }

    fn post(&mut self) {
        self.host.send(&SendWr::new(Opcode::RdmaWrite).to(Iova(0), Rkey(1))).unwrap();
    }

    fn is_sent(&mut self) -> bool {
        (0..4).for_each(|now| _ = self.engines[0].step(now));
        self.host.poll_send().unwrap().is_some_and(|cqe| !cqe.opcode.is_error())
    }

    /// A move is refused, and all is as it was.
    #[track_caller]
    fn is_refused(&self, to: QpState, change: &Change, extra: Extra) {
        let before = (self.qp.state(), self.qp.query(), self.qp.permits(Right::RemoteWrite));
        let refused = self.qp.modify_with(to, change, extra);
        assert!(refused.is_err(), "{to:?}");
        let after = (self.qp.state(), self.qp.query(), self.qp.permits(Right::RemoteWrite));
        assert_eq!(before, after, "{to:?}: {refused:?}");
    }
}

#[test]
fn a_peer_that_is_not_there_leaves_the_queue_pair_as_it_was() {
    let mut bed = Bed::in_process(4);
    let none = Change { access: Some(Access::NONE), ..Change::default() };
    bed.qp.modify(QpState::Init, &none).unwrap();
    let av = Some(AddressVector::to(NicAddress::InProcess(999)));
    let rtr = Change { access: Some(Access::ALL), av, ..bed.change(QpState::Rtr) };
    bed.is_refused(QpState::Rtr, &rtr, Extra::default());
    bed.up_to(QpState::Rts);
    let all = Change { access: Some(Access::ALL), ..Change::default() };
    bed.qp.modify(QpState::Rts, &all).unwrap();
    bed.post();
    assert!(bed.is_sent());
}

#[test]
fn a_reset_that_fails_leaves_what_was_posted() {
    let mut bed = Bed::in_process(4);
    bed.up_to(QpState::Rts);
    bed.post();
    let number = bed.qp.qpn().0;
    {
        let mut core = bed.nic.device.engines[0].control();
        // Too short for all registers: it cannot be cleared.
        let short = View::new(&HostMem::alloc(4096).unwrap(), 0, 0x808).unwrap();
        let slot = core.queues.by_qpn[&number];
        core.queues.uars.push(Uar::new(short, Kind::Own, slot));
    }
    bed.is_refused(QpState::Reset, &Change::default(), Extra::default());
    bed.nic.device.engines[0].control().queues.uars.pop();
    assert!(bed.is_sent(), "it is posted still");
    bed.qp.modify(QpState::Reset, &Change::default()).unwrap();
    assert_eq!(bed.qp.state(), QpState::Reset);
}

#[test]
fn of_a_move_with_more_than_attributes_all_is_done_or_nothing() {
    let mut link = UdpLink::open_free().unwrap();
    assert!(link.is_up());
    let address = link.address();
    let (nic, engine) = SoftNic::manual_on(&SoftConfig::default(), Box::new(link)).unwrap();
    let bed = Bed::new(nic, vec![engine], 4);
    bed.up_to(QpState::Rts);
    let (rts, change) = (QpState::Rts, |port| Change {
        src_port: Some(port),
        min_rnr_timer: Some(7),
        ..Change::default()
    });
    let is_free = |port| UdpSocket::bind((address, port)).is_ok();
    // It has no streams.
    bed.is_refused(rts, &change(PORT), Extra { stream: Some(1), ..Extra::default() });
    assert!(is_free(PORT));
    bed.qp.modify(rts, &change(PORT)).unwrap();
    bed.is_refused(rts, &change(PORT + 1), Extra { stream: Some(1), ..Extra::default() });
    assert!(!is_free(PORT) && is_free(PORT + 1));
    let groups = Extra { groups: Some([None, None]), ..Extra::default() };
    bed.qp.modify_with(rts, &Change::default(), groups.clone()).unwrap();
    // Nor is one of the in-process link paced.
    let within = Bed::in_process(4);
    let rights = Change { access: Some(Access::NONE), ..Change::default() };
    within.is_refused(QpState::Init, &rights, groups);
}

/// In the largest rings the record alone says what is posted.
#[test]
fn a_record_that_comes_round_after_a_reset_is_new() {
    let mut bed = Bed::in_process(1 << 15);
    bed.up_to(QpState::Rts);
    bed.post();
    assert!(bed.is_sent());
    bed.qp.reset().unwrap();
    bed.host.begin_again(&*bed.qp);
    bed.up_to(QpState::Init);
    bed.post();
    bed.up_to(QpState::Rts);
    assert!(bed.is_sent(), "as many blocks as before the reset");
}

/// A peer's engine looks at the queue pair's state once, and then carries a WRITE out, however long that takes.
#[test]
fn a_write_that_a_peers_engine_has_begun_ends_before_a_reset_and_a_destruction_do() {
    for destroys in [false, true] {
        let link = InProcess::new();
        let nic = || SoftNic::manual(&SoftConfig::new(&link)).unwrap();
        let ((from, mut engines), (to, _idle)) = (nic(), nic());
        let (sender, receiver) =
            (Bed::new(from, Vec::new(), 4), Bed::new(to.clone(), Vec::new(), 4));
        for (here, there) in [(&sender, &receiver), (&receiver, &sender)] {
            here.qp.reset().unwrap();
            here.qp.connect(there.qp.address()).unwrap();
        }
        let (begun, within) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let tell = {
            let (begun, within) = (begun.clone(), within.clone());
            move || {
                within.store(true, Ordering::SeqCst);
                begun.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(200));
                within.store(false, Ordering::SeqCst);
            }
        };
        let memory = HostMem::alloc(64).unwrap();
        let region = Telling::new(View::new(&memory, 0, 64).unwrap(), Box::new(tell));
        let mr = to.register(Arc::new(region), Iova(0), Access::ALL).unwrap();
        let payload = [Piece::Inline(&[7; 8])];
        let mut host = sender.host;
        host.send(&SendWr::new(Opcode::RdmaWrite).to(Iova(0), mr.rkey).payload(&payload)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || (0..4).for_each(|now| _ = engines[0].step(now)));
            let since = Instant::now();
            while !begun.load(Ordering::SeqCst) {
                assert!(since.elapsed() < Duration::from_secs(20), "no WRITE");
                std::thread::yield_now();
            }
            match destroys {
                true => to.destroy_qp(receiver.qp.qpn()).unwrap(),
                false => receiver.qp.reset().unwrap(),
            }
            assert!(!within.load(Ordering::SeqCst), "it goes on behind the end: {destroys}");
        });
    }
}
