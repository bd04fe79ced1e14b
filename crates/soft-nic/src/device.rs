//! What the engines, the queue pairs and the user of a software NIC share.

mod moves;

pub use self::moves::Extra;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use crossbeam_utils::CachePadded;

use crate::adversary;
use crate::config::SoftConfig;
use crate::contain;
use crate::counters::Live;
use crate::engine::Seat;
use crate::link::port::Port;
use crate::link::{Carries, Link};
use crate::objects::cq::{Cq, CqAttr, CqLayout};
use crate::objects::events::Events;
use crate::objects::layout;
use crate::objects::mr::{MrTable, Pd};
use crate::objects::number::{Number, Numbers};
use crate::objects::qp::{Objects, Qp};
use crate::objects::qpns::{FIRST_QPN, Reserved, ReservedQpns};
use crate::objects::srq::{Srq, SrqAttr};
use crate::objects::tags::TagAttr;
use crate::objects::xrc::{Target, XrcSrq, Xrcd};
use crate::offload::Offload;
use crate::random::Random;
use crate::record::Recorder;
use crate::script::ScriptedFaults;
use crate::service::gsi::Gsi;
use crate::service::local::InProcess;
use crate::service::local::capture::InprocCapture;
use crate::service::requester::Timers;
use crate::trace::Kind;
use bellpush_mem::{HostMem, View};
use bellpush_nic::{Mtu, NicAddress, NicError, Order, QpAttr, QpType, Queues};
use bellpush_wire::Qpn;
use bellpush_wire::roce::{MAX_PACKET_BYTES, MAX_PATH_MTU};

/// Most queue pairs of a NIC.
const MAX_QPS: usize = 1 << 16;

/// Where the NIC is.
pub(crate) enum Place {
    /// On the in-process link, by number.
    InProcess(Arc<InProcess>, u64),
    /// On a packet link.
    Packets {
        address: IpAddr,
        /// Largest path MTU.
        mtu: Mtu,
        carries: Carries,
        /// The link, in words.
        description: String,
    },
}

pub(crate) struct Device {
    pub(crate) place: Place,
    /// Whether the owner wants the port up.
    pub(crate) enabled: Arc<AtomicBool>,
    pub(crate) myself: Weak<Device>,
    pub(crate) mrs: Arc<MrTable>,
    /// The protection domain of whoever does not ask for one.
    pub(crate) pd: Arc<Pd>,
    qps: RwLock<HashMap<u32, Arc<Qp>>>,
    /// CQs that a WQE may name.
    cqs: RwLock<HashMap<u32, Weak<Cq>>>,
    next_qpn: AtomicU32,
    /// Numbers that no queue pair is to have. Locked within `qps`.
    pub(crate) reserved: Arc<Reserved>,
    /// Of protection domains, CQs and SRQs.
    numbers: Arc<Numbers>,
    /// What keys, first PSNs and queue pair numbers are drawn from.
    random: Arc<Random>,
    /// Queue pairs created so far.
    dealt: AtomicUsize,
    pub(crate) engines: Vec<CachePadded<Seat>>,
    pub(crate) counters: Arc<Live>,
    pub(crate) events: Arc<Events>,
    /// Queue pair 1.
    pub(crate) gsi: Gsi,
    pub(crate) timers: Timers,
    /// An engine elsewhere that carries out what is plain and correct.
    pub(crate) offload: Option<Arc<Offload>>,
    /// A script of faults.
    pub(crate) faults: Option<Arc<ScriptedFaults>>,
    /// The script has ended the device.
    pub(crate) ended: AtomicBool,
    /// What takes every freedom that the rules give.
    pub(crate) adversary: Option<Arc<adversary::State>>,
    /// What whoever posts to the NIC's own queue pairs sees to.
    pub(crate) order: Order,
    /// Who writes down what the NIC is asked, sees and does.
    pub(crate) recorder: Option<Arc<Recorder>>,
}

impl Device {
    /// A device on the in-process link.
    ///
    /// # Errors
    /// [`NicError::Random`].
    pub(crate) fn in_process(config: &SoftConfig) -> Result<Arc<Self>, NicError> {
        let (link, (timers, random)) = (&config.link, config.fixed()?);
        // A capture shows each WQE's message, a script strikes each, and an adversary has its way with each: another
        // engine does neither.
        let own = link.inproc_capture().is_some();
        let own = own || config.faults.is_some() || config.adversary.is_some();
        let offload = config.offload.clone().filter(|_| !own);
        let place = |id| Place::InProcess(link.clone(), id);
        let events = Events::new(None, config.tracer("in process")?);
        Ok(link
            .attach(|id| Self::new(place(id), config, (timers, random), (offload, None), events)))
    }

    /// A device on a packet link, which its one engine owns.
    ///
    /// # Errors
    /// [`NicError::Attribute`] when the link's packets are too short for any path MTU.
    pub(crate) fn on_packets(
        link: Box<dyn Link>,
        config: &SoftConfig,
        recorder: Option<Arc<Recorder>>,
    ) -> Result<Arc<Self>, NicError> {
        let most = link.mtu();
        let must = "at least 312 bytes: headers and a payload of 256";
        let short = NicError::Attribute { what: "link's longest packet", value: most as u64, must };
        let headers = MAX_PACKET_BYTES - MAX_PATH_MTU;
        let mtu = most.checked_sub(headers).and_then(Mtu::within).ok_or(short)?;
        let (address, carries, description) = (link.address(), link.carries(), link.describe());
        let place = Place::Packets { address, mtu, carries, description };
        let config = SoftConfig { engines: 1, ..config.clone() };
        let events = Events::new(recorder.clone(), config.tracer(&address.to_string())?);
        let device = Self::new(place, &config, config.fixed()?, (None, recorder), events);
        link.share().into_iter().for_each(|share| device.reserved.confine(share));
        let (counters, events) = (device.counters.clone(), device.events.clone());
        let faults = device.faults.clone();
        // An adversary keeps payload back.
        let whole = device.adversary.is_some();
        let port = Port::new((link, whole), device.enabled.clone(), counters, events, faults);
        device.engines[0].control().attach(port);
        // Ranges that are set aside begin there.
        let first = FIRST_QPN + device.random() % (Qpn::MAX / 2);
        device.next_qpn.store(first, Ordering::Relaxed);
        Ok(device)
    }

    fn new(
        place: Place,
        config: &SoftConfig,
        (timers, random): (Timers, Arc<Random>),
        (offload, recorder): (Option<Arc<Offload>>, Option<Arc<Recorder>>),
        events: Events,
    ) -> Arc<Self> {
        let events = Arc::new(events);
        if let Some(faults) = &config.faults {
            faults.trace_to(&events);
        }
        let scattered = matches!(place, Place::Packets { .. });
        let adversary = config.adversary.map(adversary::State::new);
        let engines = config.engines;
        Arc::new_cyclic(|myself| Self {
            place,
            enabled: Arc::new(AtomicBool::new(true)),
            myself: myself.clone(),
            mrs: Arc::new(MrTable::new(random.clone(), scattered).under(adversary.clone())),
            pd: Arc::new(Pd::new(Number::fixed(0))),
            qps: RwLock::default(),
            cqs: RwLock::default(),
            next_qpn: AtomicU32::new(FIRST_QPN),
            reserved: Arc::default(),
            numbers: Numbers::new(recorder.clone()),
            random,
            dealt: AtomicUsize::new(0),
            engines: (0..engines).map(|_| CachePadded::default()).collect(),
            counters: Arc::default(),
            events,
            gsi: Gsi::default(),
            timers,
            offload,
            faults: config.faults.clone(),
            ended: AtomicBool::new(false),
            adversary,
            order: config.order,
            recorder,
        })
    }

    /// The NIC's address, and the largest path MTU there.
    pub(crate) fn here(&self) -> (NicAddress, Mtu) {
        match &self.place {
            Place::InProcess(_, id) => (NicAddress::InProcess(*id), Mtu::MAX),
            Place::Packets { address, mtu, .. } => (NicAddress::Ip(*address), *mtu),
        }
    }

    /// The NIC's number on the in-process link; 0 on others.
    pub(crate) fn id(&self) -> u64 {
        match self.place {
            Place::InProcess(_, id) => id,
            Place::Packets { .. } => 0,
        }
    }

    /// The link, in words.
    pub(crate) fn describe(&self) -> String {
        match &self.place {
            Place::InProcess(_, id) if self.offload.is_some() => {
                let engine = self.offload.as_ref().map_or_else(String::new, |it| it.describe());
                format!("in-process link, NIC {id}; engine on {engine}")
            }
            Place::InProcess(link, id) => {
                match link.inproc_capture().map(InprocCapture::is_whole) {
                    None => format!("in-process link, NIC {id}"),
                    Some(true) => format!("in-process link, NIC {id}; captured as packets"),
                    Some(false) => format!("in-process link, NIC {id}; capture failed"),
                }
            }
            Place::Packets { description, .. } => description.clone(),
        }
    }

    /// A number that nobody can guess.
    pub(crate) fn random(&self) -> u32 {
        self.random.number()
    }

    /// Who records what goes over the in-process link.
    pub(crate) fn inproc_capture(&self) -> Option<&InprocCapture> {
        match &self.place {
            Place::InProcess(link, _) => link.inproc_capture(),
            Place::Packets { .. } => None,
        }
    }

    pub(crate) fn create_pd(&self) -> Result<Arc<Pd>, NicError> {
        Ok(Arc::new(Pd::new(self.numbers.take()?)))
    }

    pub(crate) fn create_cq(&self, attr: &CqAttr, layout: CqLayout) -> Result<Arc<Cq>, NicError> {
        let cq = Cq::shared(self.numbers.take()?, attr, layout, self.events.clone())?;
        let cq = cq.struck_by(&self.faults).under(self.adversary.as_ref());
        cq.trace_made();
        if attr.notify.is_some() {
            self.engines[0].control().watch_arming(&attr.uar, &cq);
        }
        let mut cqs = self.cqs.write().unwrap_or_else(PoisonError::into_inner);
        if cqs.len() == cqs.capacity() {
            cqs.retain(|_, cq| cq.strong_count() > 0);
        }
        cqs.insert(cq.number(), Arc::downgrade(&cq));
        drop(cqs);
        Ok(cq)
    }

    /// A CQ by its number.
    pub(crate) fn cq(&self, number: u32) -> Option<Arc<Cq>> {
        self.cqs.read().unwrap_or_else(PoisonError::into_inner).get(&number)?.upgrade()
    }

    pub(crate) fn create_srq(
        &self,
        attr: &SrqAttr,
        xrc: Option<XrcSrq>,
    ) -> Result<Arc<Srq>, NicError> {
        Ok(Arc::new(Srq::new(self.numbers.take()?, attr, xrc, self.events.clone())?))
    }

    pub(crate) fn create_cyclic_srq(&self, attr: &SrqAttr) -> Result<Arc<Srq>, NicError> {
        let srq = Srq::new(self.numbers.take()?, attr, None, self.events.clone())?;
        Ok(Arc::new(srq.cyclic()))
    }

    pub(crate) fn create_tag_srq(
        &self,
        attr: &SrqAttr,
        tags: TagAttr,
    ) -> Result<Arc<Srq>, NicError> {
        let srq = Srq::new(self.numbers.take()?, attr, None, self.events.clone())?;
        Ok(Arc::new(srq.matching(tags)?))
    }

    /// The receiving end of an XRC connection. What it has of queues nobody writes to.
    pub(crate) fn create_xrc_recv(&self, xrcd: &Arc<Xrcd>) -> Result<Arc<Qp>, NicError> {
        let attr = QpAttr {
            sq_blocks: 0,
            rq_wqes: 0,
            rq_sges: 0,
            send_cqes: 1,
            recv_cqes: 0,
            rnr_retry: 0,
            ack_timeout: 0,
            inband: None,
            blueflame: false,
        };
        let memory = HostMem::alloc(layout::queue_bytes(&attr))?;
        let queues = layout::place(&attr, &View::new(&memory, 0, memory.len())?)?;
        let views = (queues.send_cq.clone(), queues.send_cq_dbr.clone());
        let cq = Cq::private(self.numbers.take()?, views, attr.send_cqes, self.events.clone())?;
        // No script counts it: the program has not made it.
        let send_cq = cq.under(self.adversary.as_ref());
        send_cq.trace_made();
        let (kind, pd) = (QpType::XrcRecv, self.pd.clone());
        let objects = Objects { kind, pd, send_cq, recv_cq: None, srq: None, uidx: 0 };
        self.create(&attr, queues, objects, Some(Target::new(xrcd.clone())))
    }

    /// CQs that a reliable connection has for itself, over queues that were checked.
    pub(crate) fn private(&self, attr: &QpAttr, q: &Queues) -> Result<Objects, NicError> {
        let make = |ring: &_, dbr: &_, entries| {
            let views = (View::clone(ring), View::clone(dbr));
            let cq = Cq::private(self.numbers.take()?, views, entries, self.events.clone())?;
            let cq = cq.struck_by(&self.faults).under(self.adversary.as_ref());
            cq.trace_made();
            Ok::<_, NicError>(cq)
        };
        let recv = attr.recv_cqes > 0;
        Ok(Objects {
            kind: QpType::Rc,
            pd: self.pd.clone(),
            send_cq: make(&q.send_cq, &q.send_cq_dbr, attr.send_cqes)?,
            recv_cq: recv.then(|| make(&q.recv_cq, &q.recv_cq_dbr, attr.recv_cqes)).transpose()?,
            srq: None,
            uidx: 0,
        })
    }

    /// Refuses queues and in-band windows in a GPU's memory that no engine of this NIC looks into: a CPU thread would
    /// look by a copy of the driver's each time, which takes longer than any message.
    pub(crate) fn reaches(&self, attr: &QpAttr, q: &Queues) -> Result<(), NicError> {
        let window = attr.inband.as_ref().map(|inband| &inband.window);
        let views = [&q.sq, &q.dbr, &q.uar, &q.send_cq, &q.send_cq_dbr].into_iter().chain(window);
        let mut far = views.filter(|view| view.mem().is_far());
        let what = match &self.offload {
            None if far.next().is_some() => {
                "queues or an in-band window in a GPU's memory (Options::sq_place, dbr_place, cq_place, window_place): \
                 its engine is a CPU thread. Take host memory, or an engine on a GPU"
            }
            Some(offload) if far.any(|view| offload.reach(view).is_none()) => {
                "queues or an in-band window in the memory of a GPU that its engine does not reach: take host memory, \
                 or name that GPU among the peers of gpu_engine::open"
            }
            _ => return Ok(()),
        };
        Err(NicError::Unsupported { nic: "soft".into(), what })
    }

    pub(crate) fn qp(&self, qpn: u32) -> Option<Arc<Qp>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(&qpn).cloned()
    }

    pub(crate) fn qps_of_all(&self) -> Vec<Arc<Qp>> {
        let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = qps.values().cloned().collect();
        // What is done to them is done in the same order again.
        all.sort_unstable_by_key(|qp| qp.qpn.0);
        all
    }

    /// What `of` says of each queue pair, whose queues stay meanwhile: one that is destroyed leaves
    /// the table first. `of` waits for no lock under which somebody waits for the table: an engine's,
    /// for one. The error that a queue pair remembers has a lock that nobody holds any longer than
    /// that takes.
    pub(crate) fn look_at_all<T>(&self, of: impl FnMut(&Arc<Qp>) -> T) -> Vec<T> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).values().map(of).collect()
    }

    /// Whether an engine's thread panicked.
    pub(crate) fn has_failed(&self) -> bool {
        self.engines.iter().any(|seat| seat.failed.load(Ordering::Acquire))
    }

    /// Why it takes no queue pairs any more, if it does not.
    pub(crate) fn gone(&self) -> Option<NicError> {
        self.has_failed().then(|| contain::refusal(self.ended.load(Ordering::Relaxed)))
    }

    fn seat(&self, qp: &Qp) -> &Seat {
        &self.engines[qp.engine]
    }

    pub(crate) fn create_qp(
        &self,
        attr: &QpAttr,
        queues: Queues,
        objects: Objects,
    ) -> Result<Arc<Qp>, NicError> {
        if objects.kind == QpType::XrcRecv {
            let must = "made with its XRC domain";
            return Err(NicError::Attribute { what: "receiving end of XRC", value: 1, must });
        }
        self.create(attr, queues, objects, None)
    }

    fn create(
        &self,
        attr: &QpAttr,
        queues: Queues,
        objects: Objects,
        xrc: Option<Target>,
    ) -> Result<Arc<Qp>, NicError> {
        if let Some(gone) = self.gone() {
            return Err(gone);
        }
        layout::uses(attr, &queues, &objects)?;
        let matches = objects.srq.as_ref().is_some_and(|srq| srq.tags().is_some());
        if matches && objects.kind != QpType::Rc {
            let (what, must) = ("service of a queue pair that matches tags", "RC");
            return Err(NicError::Attribute { what, value: objects.kind as u64, must });
        }
        let simple = matches!(objects.kind, QpType::Rc | QpType::Uc);
        if !simple && matches!(self.place, Place::InProcess(..)) {
            let must = "on a packet link: the in-process link carries plain connections";
            return Err(NicError::Attribute {
                what: "datagram, XRC or DC queue pair",
                value: 1,
                must,
            });
        }
        let qp = {
            let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
            if qps.len() >= MAX_QPS {
                return Err(NicError::Full { what: "queue pairs", limit: MAX_QPS });
            }
            let taken = |qpn| qps.contains_key(&qpn);
            let qpn = match &self.place {
                Place::InProcess(..) => self.reserved.deal(&self.next_qpn, taken),
                // Peers may still send to one that is gone, of this process or one before it.
                Place::Packets { .. } => self.reserved.draw(&self.random, taken),
            };
            let full = NicError::Full { what: "queue pairs", limit: qps.len() };
            let qpn = qpn.ok_or(full)?;
            let engine = self.deal_to(&qps, &queues);
            let qp = Arc::new(Qp::new(Qpn(qpn), engine, self, attr, queues, (objects, xrc)));
            qp.trace_made();
            qps.insert(qpn, qp.clone());
            self.faults.iter().for_each(|faults| faults.made_qp(qp.qpn));
            qp
        };
        // Not under the lock of the queue pairs: an engine's comes first, since a queue pair that is
        // connected looks its peer up while it holds the engine.
        let added = self.seat(&qp).control().add(qp.clone());
        if let Err(refused) = added {
            self.qps.write().unwrap_or_else(PoisonError::into_inner).remove(&qp.qpn.0);
            return Err(refused.into());
        }
        if let Some(offload) = &self.offload {
            self.seat(&qp).control().enlist(qp.qpn.0, offload);
        }
        Ok(qp)
    }

    /// Sets numbers aside. They are dealt as those of queue pairs are: what becomes free comes again
    /// after all others.
    pub(crate) fn reserve_qpns(&self, log: u8) -> Result<ReservedQpns, NicError> {
        let qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        let from = self.next_qpn.load(Ordering::Relaxed) & Qpn::MAX;
        let used = |first, count| (first..first + count).any(|qpn| qps.contains_key(&qpn));
        let range = self.reserved.take(log, from.max(FIRST_QPN), used)?;
        self.next_qpn.store(range.first().0 + range.count(), Ordering::Relaxed);
        Ok(range)
    }

    /// The engine of a new queue pair. Those that share a UAR page share an engine: two that watched
    /// it would hide doorbells from each other when one clears it.
    fn deal_to(&self, qps: &HashMap<u32, Arc<Qp>>, queues: &Queues) -> usize {
        let count = self.engines.len();
        let same = |qp: &&Arc<Qp>| count > 1 && qp.queues.uar.addr() == queues.uar.addr();
        let beside = qps.values().find(same).map(|qp| qp.engine);
        beside.unwrap_or_else(|| deal(self.dealt.fetch_add(1, Ordering::Relaxed), count))
    }

    pub(crate) fn destroy_qp(&self, qpn: u32) -> Result<(), NicError> {
        let removed = self.qps.write().unwrap_or_else(PoisonError::into_inner).remove(&qpn);
        let qp = removed.ok_or(NicError::NoSuchQp(qpn))?;
        self.reserved.rest(qpn);
        qp.mark(Kind::Gone, 0, [0; 2]);
        {
            let mut core = self.seat(&qp).control();
            core.remove(qpn);
            core.leave_port(qp.attributes().src_port);
        }
        // The lock waits for a peer's engine that is in there; later ones get no answer.
        qp.set_error();
        qp.part_from_senders();
        qp.receives().kill();
        qp.bring_about();
        self.wait_for_peers(&qp);
        Ok(())
    }

    /// Ends everything: queue pairs answer nobody, and no region is held any more.
    pub(crate) fn shut_down(&self) {
        if let Place::InProcess(link, id) = &self.place {
            link.detach(*id);
        }
        let qpns: Vec<u32> = {
            let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
            qps.keys().copied().collect()
        };
        for qpn in qpns {
            let _ = self.destroy_qp(qpn); // gone already is as good
        }
        self.mrs.clear();
    }
}

/// The engine of the `n`th queue pair. Each round of the deal begins one engine later: ends that
/// are made in turn, one to send and one to receive, would else put all the work on every other
/// engine.
fn deal(n: usize, engines: usize) -> usize {
    (n + n / engines) % engines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SoftNic;

    #[test]
    fn numbers_that_are_set_aside_are_dealt_to_nobody() {
        let (nic, _engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
        let attr = QpAttr {
            sq_blocks: 1,
            rq_wqes: 0,
            rq_sges: 0,
            send_cqes: 1,
            recv_cqes: 0,
            rnr_retry: 0,
            ack_timeout: 0,
            inband: None,
            blueflame: false,
        };
        let memory = HostMem::alloc(layout::queue_bytes(&attr)).unwrap();
        let view = View::new(&memory, 0, memory.len()).unwrap();
        let dealt = || nic.create(&attr, &view).unwrap().qpn.0;
        nic.device.next_qpn.store(0x1234, Ordering::Relaxed);
        let range = nic.reserve_qpns(6).unwrap();
        let first = range.first().0;
        assert!(first.is_multiple_of(64) && range.count() == 64);
        // As after all others.
        nic.device.next_qpn.store(first - 1, Ordering::Relaxed);
        assert_eq!([dealt(), dealt()], [first - 1, first + 64]);
        drop(range);
        nic.device.next_qpn.store(first, Ordering::Relaxed);
        assert_eq!(dealt(), first, "given back");
        assert_eq!(nic.reserve_qpns(0).unwrap().first().0, first + 1);
        assert_eq!(nic.reserve_qpns(1).unwrap().first().0, first + 2, "behind what was");
    }

    #[test]
    fn senders_are_spread_however_pairs_are_made() {
        for engines in 1..=8 {
            let most = |senders: &[usize]| {
                let mut load = vec![0; engines];
                senders.iter().for_each(|&n| load[deal(n, engines)] += 1);
                load.iter().max().unwrap() - load.iter().min().unwrap()
            };
            let all: Vec<usize> = (0..2 * engines * engines).collect();
            let every_other: Vec<usize> = all.iter().copied().step_by(2).collect();
            assert_eq!(most(&all), 0, "{engines} engines, all send");
            assert_eq!(most(&every_other), 0, "{engines} engines, every other one sends");
            assert_eq!(most(&all[..engines * engines]), 0, "{engines} engines, the first half");
        }
    }
}
