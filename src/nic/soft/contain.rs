//! A panic in an engine's thread, contained.
//!
//! A panic is a defect of ours, or of a region's memory or a link that the NIC was given. The process
//! is the program's and goes on: the engine's queue pairs end in ERR, what is posted to them is
//! flushed as far as possible, an event says so for each and for the device, and from then on the
//! engine takes no queue pair and brings none up. A panic of whoever steps an engine by hand is
//! their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use super::engine::{Core, Engine};
use super::events::Event;
use crate::nic::{NicError, QpState, QueuePair};

/// Panics after which an engine is not driven any more: the first ends what the queue pairs are at,
/// those behind it come of flushing them.
const MOST_PANICS: usize = 16;

impl Engine {
    /// Has `drive` step the engine until it returns, and again after a panic in it.
    pub fn contain(mut self, mut drive: impl FnMut(&mut Self)) {
        for _ in 0..MOST_PANICS {
            let driven = catch_unwind(AssertUnwindSafe(|| drive(&mut self)));
            // Where it happened, the panic's hook has said.
            if driven.is_ok() {
                return;
            }
            // One in here, of a sink for events for example, is as good as the last.
            let _ = catch_unwind(AssertUnwindSafe(|| self.fail()));
        }
    }

    fn fail(&self) {
        let seat = &self.device.engines[self.index];
        let first = !seat.failed.swap(true, Ordering::AcqRel);
        seat.control().give_up_visited(first);
        if !first {
            return;
        }
        let mine = self.device.qps_of_all().into_iter().filter(|qp| qp.engine == self.index);
        for qp in mine {
            if QueuePair::state(&*qp) != QpState::Err {
                self.device.events.push(Event::QpFatal(qp.qpn));
            }
            qp.set_error();
        }
        self.device.events.push(Event::DeviceFatal);
    }
}

impl Core {
    /// What was visited when the engine panicked is given a second chance, to be flushed. The packet
    /// link gets none: the panic may be its own.
    fn give_up_visited(&mut self, first: bool) {
        if let Some(port) = &mut self.port {
            port.stop();
        }
        // Lists may lack what was taken out of them for a moment.
        for (slot, requester) in self.slots.iter_mut().enumerate() {
            if let Some(requester) = requester {
                requester.listed = self.active.contains(&slot);
            }
        }
        let visited = self.slots.get(self.visited).and_then(Option::as_deref);
        if let Some(qpn) = visited.map(|requester| requester.qp().qpn.0).filter(|_| !first) {
            self.let_go(qpn);
        }
    }
}

/// What an engine that panicked says to whoever wants something of it.
pub(super) fn refusal() -> NicError {
    NicError::Engine("its thread panicked, and its queue pairs are in error".into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::mem::broken::Broken;
    use crate::mem::{HostMem, View};
    use crate::nic::queue::HostQp;
    use crate::nic::soft::link::{Carries, Link, LinkCounters, LinkError, Received, ShmNet};
    use crate::nic::soft::link::{ShmLink, TxBatch};
    use crate::nic::soft::{InProcess, Nap, Qp, SoftConfig, SoftNic};
    use crate::nic::{Access, Mr, Nic, QpAttr};
    use crate::wire::Iova;
    use crate::wire::cqe::Syndrome;
    use crate::wire::wqe::{Opcode, Piece, SendWr, Sge};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A link that works until it is told otherwise.
    struct Mined(ShmLink, Arc<AtomicBool>);

    impl Link for Mined {
        fn address(&self) -> std::net::IpAddr {
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
            assert!(!self.1.load(Ordering::Relaxed), "planted in a link");
            self.0.recv(now, most, each)
        }
        fn counters(&self) -> LinkCounters {
            self.0.counters()
        }
        fn describe(&self) -> String {
            self.0.describe()
        }
    }

    fn attr() -> QpAttr {
        QpAttr {
            sq_blocks: 64,
            rq_wqes: 16,
            rq_sges: 1,
            send_cqes: 64,
            recv_cqes: 16,
            rnr_retry: 7,
            ack_timeout: 14,
            inband: None,
            blueflame: false,
        }
    }

    enum Side {
        Send,
        Recv,
    }

    struct End {
        qp: Arc<Qp>,
        host: HostQp,
        mr: Mr,
    }

    impl End {
        fn new(nic: &SoftNic) -> Self {
            let view = |bytes| View::new(&HostMem::alloc(bytes).unwrap(), 0, bytes).unwrap();
            let qp = nic.create(&attr(), &view(nic.queue_bytes(&attr()))).unwrap();
            let mr = nic.register(Arc::new(view(4096)), Iova(0), Access::ALL).unwrap();
            Self { host: HostQp::new(&*qp), qp, mr }
        }

        fn pair(a: &SoftNic, b: &SoftNic) -> [Self; 2] {
            let ends = [Self::new(a), Self::new(b)];
            ends[0].qp.connect(ends[1].qp.address()).unwrap();
            ends[1].qp.connect(ends[0].qp.address()).unwrap();
            ends
        }

        fn sge(&self) -> Sge {
            Sge { addr: Iova(0), lkey: self.mr.lkey, bytes: 8 }
        }

        fn receive(&mut self) {
            let entry = self.sge();
            self.host.rq.post(&[entry]).unwrap();
        }

        fn send(&mut self, from: &Mr) {
            let piece = Piece::Data(Sge { addr: Iova(0), lkey: from.lkey, bytes: 8 });
            self.host.send(&SendWr::new(Opcode::Send).payload(&[piece])).unwrap();
        }

        fn is_flushed(&mut self, side: Side) {
            let cqe = match side {
                Side::Send => self.host.wait_send(PATIENCE).unwrap(),
                Side::Recv => self.host.wait_recv(PATIENCE).unwrap(),
            };
            assert_eq!(Syndrome::from_code(cqe.syndrome), Some(Syndrome::WrFlush));
            assert_eq!(self.qp.state(), QpState::Err);
        }
    }

    fn told(nic: &SoftNic) -> Vec<Event> {
        let (start, mut events) = (Instant::now(), Vec::new());
        while events.last() != Some(&Event::DeviceFatal) {
            assert!(start.elapsed() < PATIENCE, "{events:?}");
            events.extend(nic.next_event());
        }
        events
    }

    fn is_refused(nic: &SoftNic, qp: &Qp) {
        assert!(matches!(nic.trouble(), Some(NicError::Engine(_))));
        let memory = HostMem::alloc(nic.queue_bytes(&attr())).unwrap();
        let view = View::new(&memory, 0, memory.len()).unwrap();
        assert!(matches!(nic.create(&attr(), &view), Err(NicError::Engine(_))));
        qp.modify(QpState::Reset, &Default::default()).unwrap();
        assert!(matches!(qp.connect(qp.address()), Err(NicError::Engine(_))));
        nic.destroy_qp(qp.qpn).unwrap();
    }

    #[test]
    fn a_panic_while_a_message_moves_ends_the_engines_queue_pairs_and_no_others() {
        let link = InProcess::new();
        let config = SoftConfig { nap: Nap::default(), ..SoftConfig::new(&link) };
        let (nic, other) = (SoftNic::open(config.clone()).unwrap(), SoftNic::open(config).unwrap());
        let [mut a, mut b] = End::pair(&nic, &nic);
        let [mut c, _d] = End::pair(&nic, &other);
        let [mut e, mut f] = End::pair(&other, &other);
        let planted =
            nic.register(Arc::new(Broken { panics: true }), Iova(0), Access::ALL).unwrap();
        b.receive();
        c.receive();
        f.receive();
        a.send(&planted);
        a.is_flushed(Side::Send);
        b.is_flushed(Side::Recv);
        c.is_flushed(Side::Recv);
        let events = told(&nic);
        for end in [&a, &b, &c] {
            assert!(events.contains(&Event::QpFatal(end.qp.qpn)), "{events:?}");
        }
        is_refused(&nic, &a.qp);
        // The NIC beside it works.
        let mr = e.mr;
        e.send(&mr);
        assert!(!e.host.wait_send(PATIENCE).unwrap().opcode.is_error());
        assert!(!f.host.wait_recv(PATIENCE).unwrap().opcode.is_error());
        assert_eq!((other.next_event(), other.trouble().is_none()), (None, true));
    }

    #[test]
    fn a_panic_of_a_link_flushes_what_is_posted() {
        let net = ShmNet::anonymous(false).unwrap();
        let mined = Arc::new(AtomicBool::new(false));
        let [nic, peer] = [1u8, 2].map(|host| {
            let link = net.attach([127, 0, 0, host].into()).unwrap();
            let mined = if host == 1 { mined.clone() } else { Arc::default() };
            SoftNic::open_on(SoftConfig::default(), Box::new(Mined(link, mined))).unwrap()
        });
        let [mut a, _b] = End::pair(&nic, &peer);
        a.receive();
        mined.store(true, Ordering::Relaxed);
        told(&nic);
        let mr = a.mr;
        a.send(&mr); // nobody has told the poster yet
        a.is_flushed(Side::Recv);
        a.is_flushed(Side::Send);
        is_refused(&nic, &a.qp);
    }
}
