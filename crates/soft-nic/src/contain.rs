//! A panic in an engine's thread, contained.
//!
//! A panic is a defect of ours, or of a region's memory or a link that the NIC was given. The process
//! is the program's and goes on: the engine's queue pairs end in ERR, what is posted to them is
//! flushed as far as possible, an event says so for each and for the device, and from then on the
//! engine takes no queue pair and brings none up. A panic of whoever steps an engine by hand is
//! their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::device::Device;
use crate::engine::{Core, Engine, Helper, NOBODY, Progress};
use crate::objects::events::Event;
use crate::objects::qp::Qp;
use bellpush_nic::{NicError, QpState, QueuePair};

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
            self.fail();
        }
    }

    /// Each part by itself: it may panic as well, a sink for events for example, and the others must
    /// not go without.
    fn fail(&self) {
        let seat = &self.device.engines[self.index];
        // Before the lock: whoever holds it later sees the mark, and what was done under it before is
        // undone by what follows.
        let first = !seat.failed.swap(true, Ordering::AcqRel);
        alone(|| seat.control().give_up_visited(first));
        if !first {
            return;
        }
        let mut mine = self.device.qps_of_all();
        mine.retain(|qp| qp.engine == self.index);
        let news: Vec<_> =
            mine.iter().filter(|qp| QueuePair::state(&***qp) != QpState::Err).collect();
        mine.iter().for_each(|qp| alone(|| qp.set_error()));
        for qp in news {
            alone(|| self.device.events.push(Event::QpFatal(qp.qpn)));
        }
        alone(|| self.device.events.push(Event::DeviceFatal));
    }
}

impl Engine {
    /// Ends the device if a script says so: as a panic would, but for the link, by which a keeper
    /// of an address hands others' packets on.
    pub(crate) fn end_by_script(&self) {
        let device = &self.device;
        if !device.faults.as_ref().is_some_and(|faults| faults.ends_device()) {
            return;
        }
        device.ended.store(true, Ordering::Relaxed);
        device.enabled.store(false, Ordering::Relaxed);
        // Before the lock, as in a panic.
        device.engines.iter().for_each(|seat| seat.failed.store(true, Ordering::Release));
        device.engines.iter().for_each(|seat| drop(seat.control()));
        device.end_qps(device.qps_of_all());
        device.events.push(Event::DeviceFatal);
    }
}

impl Device {
    /// Moves queue pairs to ERR that have done nothing wrong.
    pub(crate) fn end_qps(&self, qps: Vec<Arc<Qp>>) {
        for qp in qps.into_iter().filter(|qp| !qp.is_in_error()) {
            qp.set_error();
            self.events.push(Event::QpFatal(qp.qpn));
        }
    }
}

impl Helper {
    /// A step, unless somebody is in one or the engine has panicked. `now_ns` is of the clock of who drives
    /// the engine. A panic is contained as in [`Engine::contain`].
    pub fn step(&self, now_ns: u64) -> Option<Progress> {
        let Engine { device, index } = &self.0;
        if device.engines[*index].failed.load(Ordering::Acquire) {
            return None; // who drives it flushes what is left
        }
        catch_unwind(AssertUnwindSafe(|| self.0.try_step(now_ns))).unwrap_or_else(|_| {
            self.0.fail();
            None
        })
    }
}

/// Does a part of what a panic leads to, whatever becomes of it.
pub(crate) fn alone(part: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(part)); // the panic's hook has said where it happened
}

impl Core {
    /// What was visited when the engine panicked is given a second chance, to be flushed. The packet
    /// link gets none: the panic may be its own.
    fn give_up_visited(&mut self, first: bool) {
        if let Some(port) = &mut self.port {
            port.stop();
        }
        // Lists may lack what was taken out of them for a moment.
        for (slot, requester) in self.queues.slots.iter_mut().enumerate() {
            if let Some(requester) = requester {
                requester.listed = self.queues.active.contains(&slot);
            }
        }
        let visited = std::mem::replace(&mut self.queues.visited, NOBODY);
        let visited = self.queues.slots.get(visited).and_then(Option::as_deref);
        if let Some(qpn) = visited.map(|requester| requester.qp().qpn.0).filter(|_| !first) {
            self.let_go(qpn);
        }
    }
}

/// What an engine that panicked, or that a script has ended, says to whoever wants something of it.
pub(crate) fn refusal(by_script: bool) -> NicError {
    let why = if by_script { "a fault script has ended the device" } else { "its thread panicked" };
    NicError::Engine(format!("{why}, and its queue pairs are in error"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::link::{Carries, Link, LinkCounters, LinkError, Received, ShmNet};
    use crate::link::{ShmLink, TxBatch};
    use crate::{CqAttr, InProcess, Nap, Objects, Qp, SoftConfig, SoftNic, SrqAttr};
    use bellpush_broken_mem::Broken;
    use bellpush_mem::{HostMem, View};
    use bellpush_nic::queue::HostQp;
    use bellpush_nic::{Access, Mr, Nic, QpAttr, QpType};
    use bellpush_wire::Iova;
    use bellpush_wire::cqe::Syndrome;
    use bellpush_wire::wqe::{Opcode, Piece, SendWr, Sge};

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
    fn a_sink_that_panics_while_a_panic_unwinds_does_not_end_the_process() {
        let link = InProcess::new();
        let nic = SoftNic::open(SoftConfig::new(&link)).unwrap();
        let [mut a, mut b] = End::pair(&nic, &nic);
        let (told, tells) = std::sync::mpsc::channel();
        let sink = move |event| {
            told.send(event).unwrap();
            panic!("planted in a sink");
        };
        assert!(nic.tell_events(Box::new(sink)));
        let planted =
            nic.register(Arc::new(Broken { panics: true }), Iova(0), Access::ALL).unwrap();
        b.receive();
        a.send(&planted);
        b.is_flushed(Side::Recv);
        a.is_flushed(Side::Send);
        while tells.recv_timeout(PATIENCE).unwrap() != Event::DeviceFatal {}
    }

    #[test]
    fn a_panic_in_anothers_step_ends_what_one_of_the_engines_thread_would() {
        let mined = Arc::new(AtomicBool::new(true));
        let link = ShmNet::anonymous(false).unwrap().attach([127, 0, 0, 1].into()).unwrap();
        let link = Box::new(Mined(link, mined));
        let (nic, mut engine) = SoftNic::manual_on(&SoftConfig::default(), link).unwrap();
        let mut end = End::new(&nic);
        end.qp.connect(end.qp.address()).unwrap();
        end.receive();
        let helper = engine.helper();
        assert_eq!(helper.step(1), None);
        assert_eq!(QueuePair::state(&*end.qp), QpState::Err);
        assert_eq!(nic.next_event(), Some(Event::QpFatal(end.qp.qpn)));
        assert_eq!(nic.next_event(), Some(Event::DeviceFatal));
        assert_eq!(helper.step(2), None, "what is left is for who drives the engine");
        engine.step(3);
        end.is_flushed(Side::Recv);
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

    #[test]
    fn a_panic_while_queue_pairs_are_ended_leaves_none_of_them_out() {
        let (nic, mut engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
        // One of them has an SRQ, whose last receive is an event too.
        let memory = HostMem::alloc(nic.queue_bytes(&attr()) + 64).unwrap();
        let (bytes, pd) = (nic.queue_bytes(&attr()), nic.default_pd().clone());
        let queues = SoftNic::place(&attr(), &View::new(&memory, 0, bytes).unwrap()).unwrap();
        let ring = View::new(&HostMem::alloc(64).unwrap(), 0, 64).unwrap();
        let dbr = View::new(&memory, bytes, 64).unwrap();
        let srq = SrqAttr { pd: pd.clone(), ring, stride_log: 5, dbr, limit: 0 };
        let srq = Some(nic.create_srq(&srq).unwrap());
        let cq = CqAttr {
            ring: queues.send_cq.clone(),
            dbr: queues.send_cq_dbr.clone(),
            uar: queues.uar.clone(),
            notify: None,
        };
        let send_cq = nic.create_cq(&cq).unwrap();
        let recv_cq = Some(send_cq.clone());
        let objects = Objects { kind: QpType::Rc, pd, send_cq, recv_cq, srq, uidx: 0 };
        let attr = QpAttr { rq_wqes: 0, ..attr() };
        let with_srq = nic.create_with(&attr, queues, objects).unwrap();
        let ends = [End::new(&nic), End::new(&nic), End::new(&nic)];
        let (told, tells) = std::sync::mpsc::channel();
        let sink = move |event| {
            told.send(event).unwrap();
            panic!("planted in a sink");
        };
        assert!(nic.tell_events(Box::new(sink)));
        let mut turns = 0;
        engines.remove(0).contain(|_| {
            turns += 1;
            assert!(turns > 1, "planted in an engine");
        });
        let qps = ends.iter().map(|end| &end.qp).chain([&with_srq]);
        let mut events: Vec<_> = tells.try_iter().collect();
        assert_eq!(events.pop(), Some(Event::DeviceFatal), "{events:?}");
        assert!(events.contains(&Event::LastWqe(with_srq.qpn)), "{events:?}");
        for qp in qps {
            assert_eq!(qp.state(), QpState::Err);
            assert!(events.contains(&Event::QpFatal(qp.qpn)), "{events:?}");
        }
    }

    #[test]
    fn a_panic_behind_a_visit_does_not_cost_the_queue_pair_that_was_visited() {
        let (nic, mut engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
        let mut ends = End::pair(&nic, &nic);
        let mut turns = 0;
        engines.remove(0).contain(|engine| {
            turns += 1;
            if turns > 2 {
                for end in &mut ends {
                    let mr = end.mr;
                    end.send(&mr);
                }
            }
            engine.step(turns);
            assert!(turns > 2, "planted behind a step");
        });
        ends.iter_mut().for_each(|end| end.is_flushed(Side::Send));
    }

    #[test]
    fn a_move_that_waited_for_an_engine_that_panicked_is_refused() {
        let (nic, engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
        let (end, seat) = (End::new(&nic), &nic.device.engines[0]);
        std::thread::scope(|s| {
            let in_a_step = seat.control();
            let mover = s.spawn(|| end.qp.connect(end.qp.address()));
            let start = Instant::now();
            while !seat.is_waited_for() {
                assert!(start.elapsed() < PATIENCE);
                std::thread::yield_now();
            }
            seat.failed.store(true, Ordering::Release);
            drop(in_a_step);
            assert!(matches!(mover.join().unwrap(), Err(NicError::Engine(_))));
        });
        drop(engines);
        assert_eq!(end.qp.state(), QpState::Reset);
    }
}
