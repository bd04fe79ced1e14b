//! The software NIC: consumes real mlx5 work queues.
//!
//! It watches UAR pages and in-band windows, learns producer indices, copies WQEs out of the send
//! queue, checks them against keys, bounds, rights and states, moves the payload, and writes real
//! CQEs. Every byte that a program wrote is hostile: it is copied out before it is checked, a bad
//! WQE gives an error CQE and moves the queue pair to ERR, and nothing outside a region is
//! touched.
//!
//! | where | what |
//! |---|---|
//! | `device` `config` `counters` | what everything shares; what it is made of; what it has done |
//! | `copy` | threads that copy for the engines |
//! | `adversary` | every freedom that the rules give, and reports of programs that rely on more |
//! | `engine` `contain` | who is to be visited, and when; a panic meanwhile |
//! | `objects` | what a program holds: regions, keys, CQs, SRQs, lists of tags, queue pairs, XRC domains; numbers, states, events |
//! | `queue` | from a doorbell or a slot to a checked WQE; receive WQEs; WQEs for the NIC itself |
//! | `service` | from WQEs to CQEs: the visit of a queue pair, messages that are sent and that come in, their bytes |
//! | `service::local` | messages between NICs of one process, without packets |
//! | `service::rc` `uc` `ud` `gsi` | services over packets; queue pair 1 |
//! | `link` | packet links: to other processes and hosts; what an engine keeps of one; captures |
//! | `offload` | an engine on a GPU: queue pairs that are leased to it, keys that it knows |
//! | `report` `vendor` | what queue pairs are at, in words; error codes |

#![forbid(unsafe_code)]

mod adversary;
mod config;
mod contain;
mod copy;
mod counters;
mod device;
mod engine;
mod keys;
pub mod link;
#[cfg(test)]
mod loom_tests;
mod objects;
pub mod offload;
mod queue;
mod random;
mod report;
pub mod script;
mod service;
mod vendor;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use adversary::{Adversary, AdversaryError, Finding, FindingSink, Kind as AdversaryKind};
pub use config::{Nap, SoftConfig};
pub use counters::{Counters, DropReason};
pub use device::Extra;
pub use engine::{Engine, Helper, Progress};
pub use link::pcap;
pub use objects::cq::{Cq, CqAttr, CqLayout, CqReport, Notify};
pub use objects::events::{Event, EventSink};
pub use objects::mkey::{MkeyAttr, MwType, PartsAttr};
pub use objects::moderation::Moderation;
pub use objects::mr::{Pd, Reregister};
pub use objects::pace::{Bandwidth, SchedElement};
pub use objects::qp::{Groups, Objects, Qp};
pub use objects::qpns::ReservedQpns;
pub use objects::srq::{Srq, SrqAttr};
pub use objects::tags::{MAX_TAGS, TagAttr};
pub use objects::xrc::{XrcSrq, Xrcd};
pub use random::Random;
pub use report::{QpReport, SendReport};
pub use service::gsi::MadSink;
pub use service::local::InProcess;
pub use vendor::Vendor;

use bellpush_mem::{Dma, View, own_thread};
use bellpush_nic::{
    Access, Dm, Mr, Mtu, Nic, NicAddress, NicError, Order, QpAttr, QueueMemory, QueuePair, Queues,
};
use bellpush_wire::cm::MAD_BYTES;
use bellpush_wire::{Iova, Qpn};

use copy::{MAX_COPY_THREADS, Opened, Pool};
use device::Device;
use link::{Carries, Link};
use objects::layout;

/// A software NIC. Dropping it ends its threads, its queue pairs and its registrations.
pub struct SoftNic {
    device: Arc<Device>,
    stop: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The copy threads, to be woken for their end.
    pool: OnceLock<Arc<Pool>>,
}

impl SoftNic {
    /// A NIC whose engines run on threads of their own.
    ///
    /// # Errors
    /// [`NicError::Attribute`] for no or too many engines, or too many copy threads;
    /// [`NicError::Thread`] when the system gives no thread.
    pub fn open(config: SoftConfig) -> Result<Arc<Self>, NicError> {
        let (nic, engines) = Self::manual(&config)?;
        nic.start_copying(&config)?;
        nic.start(engines, config.nap)
    }

    fn start_copying(&self, config: &SoftConfig) -> Result<(), NicError> {
        let (count, nap) = (config.copiers(), config.nap);
        if count > MAX_COPY_THREADS {
            let (what, must) = ("number of copy threads", "at most 64");
            return Err(NicError::Attribute { what, value: count as u64, must });
        }
        if count == 0 {
            return Ok(());
        }
        let Opened { pool, copiers, threads } = copy::open(count, self.device.engines.len())?;
        self.pool.get_or_init(|| pool);
        for (seat, copiers) in self.device.engines.iter().zip(copiers) {
            seat.control().workspace.copiers = Some(copiers);
        }
        for (index, thread) in threads.into_iter().enumerate() {
            let stop = self.stop.clone();
            self.spawn(format!("bellpush-copy-{index}"), move || thread.run(&stop, nap))?;
        }
        Ok(())
    }

    fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) -> Result<(), NicError> {
        let marked = move || {
            own_thread::mark();
            work();
        };
        let thread = std::thread::Builder::new().name(name).spawn(marked);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread.map_err(NicError::Thread)?);
        Ok(())
    }

    /// A NIC on a packet link, whose one engine has a thread of its own and owns the link: what it
    /// sends and what it receives.
    ///
    /// # Errors
    /// As [`SoftNic::manual_on`] and [`SoftNic::open`].
    pub fn open_on(config: SoftConfig, link: Box<dyn Link>) -> Result<Arc<Self>, NicError> {
        let (nic, engine) = Self::manual_on(&config, link)?;
        nic.start(vec![engine], config.nap)
    }

    fn start(self: Arc<Self>, engines: Vec<Engine>, nap: Nap) -> Result<Arc<Self>, NicError> {
        for engine in engines {
            let stop = self.stop.clone();
            self.spawn(format!("bellpush-nic-{}", engine.index), move || {
                engine.contain(|engine| run(engine, &stop, nap));
            })?;
        }
        Ok(self)
    }

    /// A NIC without threads: whoever holds the engines drives them.
    ///
    /// # Errors
    /// [`NicError::Attribute`] for no or too many engines; [`NicError::Random`].
    pub fn manual(config: &SoftConfig) -> Result<(Arc<Self>, Vec<Engine>), NicError> {
        if !(1..=256).contains(&config.engines) {
            let (value, must) = (config.engines as u64, "1..=256");
            return Err(NicError::Attribute { what: "number of engines", value, must });
        }
        let device = Device::in_process(config)?;
        let engine = |index| Engine { device: device.clone(), index };
        let engines = (0..config.engines).map(engine).collect();
        Ok((Self::of(device), engines))
    }

    /// A NIC on a packet link, without a thread: whoever holds the engine drives it.
    ///
    /// # Errors
    /// [`NicError::Attribute`] when the link's packets are too short; [`NicError::Random`].
    pub fn manual_on(
        config: &SoftConfig,
        link: Box<dyn Link>,
    ) -> Result<(Arc<Self>, Engine), NicError> {
        let device = Device::on_packets(adversary::wrap(link, config.adversary), config)?;
        Ok((Self::of(device.clone()), Engine { device, index: 0 }))
    }

    fn of(device: Arc<Device>) -> Arc<Self> {
        Arc::new(Self {
            device,
            stop: Arc::default(),
            threads: Mutex::default(),
            pool: OnceLock::new(),
        })
    }

    /// The NIC's address, and the largest path MTU there.
    pub fn address(&self) -> (NicAddress, Mtu) {
        self.device.here()
    }

    /// Which fields of an address vector packets are sent with; `None` on the in-process link, which
    /// has no packets.
    pub fn carries(&self) -> Option<Carries> {
        match &self.device.place {
            device::Place::Packets { carries, .. } => Some(*carries),
            device::Place::InProcess(..) => None,
        }
    }

    /// One line for people: the link, and which of its modes are in force.
    pub fn describe(&self) -> String {
        self.device.describe()
    }

    /// Takes a packet link's port up or down: down, it drops what comes and what goes.
    pub fn set_port(&self, up: bool) {
        self.device.enabled.store(up, Ordering::Relaxed);
    }

    /// What the NIC has done so far.
    pub fn counters(&self) -> Counters {
        let mut all = self.device.counters.read();
        self.device.engines.iter().for_each(|seat| all += seat.counters.read());
        all
    }

    /// Creates a queue pair, as [`Nic::create_qp`], with its own type.
    ///
    /// # Errors
    /// [`NicError::Attribute`], [`NicError::Full`], [`NicError::Memory`].
    pub fn create(&self, attr: &QpAttr, memory: &View) -> Result<Arc<Qp>, NicError> {
        self.create_on(attr, Self::place(attr, memory)?)
    }

    /// Creates a queue pair over queues that lie anywhere; several may share a UAR page.
    ///
    /// # Errors
    /// As [`SoftNic::create`].
    pub fn create_on(&self, attr: &QpAttr, queues: Queues) -> Result<Arc<Qp>, NicError> {
        layout::check(attr)?;
        layout::cqs_fit(attr, &queues)?;
        self.device.create_qp(attr, queues.clone(), self.device.private(attr, &queues)?)
    }

    /// Creates a queue pair of any type that uses objects which others may use as well. The CQs'
    /// parts of attributes and queues are not looked at.
    ///
    /// # Errors
    /// As [`SoftNic::create`].
    pub fn create_with(
        &self,
        attr: &QpAttr,
        queues: Queues,
        objects: Objects,
    ) -> Result<Arc<Qp>, NicError> {
        let recv_cqes = objects.recv_cq.as_ref().map_or(0, |cq| cq.entries());
        let attr = QpAttr { send_cqes: objects.send_cq.entries(), recv_cqes, ..attr.clone() };
        layout::check(&attr)?;
        self.device.create_qp(&attr, queues, objects)
    }

    /// Lays out queues in memory as [`SoftNic::create`] does.
    ///
    /// # Errors
    /// [`NicError::Memory`] when `memory` is shorter than [`Nic::queue_bytes`].
    pub fn place(attr: &QpAttr, memory: &View) -> Result<Queues, NicError> {
        layout::check(attr)?;
        layout::place(attr, memory)
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`NicError::Full`].
    pub fn create_pd(&self) -> Result<Arc<Pd>, NicError> {
        self.device.create_pd()
    }

    /// The protection domain of [`Nic::register`] and [`Nic::create_qp`].
    pub fn default_pd(&self) -> &Arc<Pd> {
        &self.device.pd
    }

    /// Creates a CQ that several queue pairs may share.
    ///
    /// # Errors
    /// [`NicError::Attribute`] for rings of the wrong size, [`NicError::Memory`].
    pub fn create_cq(&self, attr: &CqAttr) -> Result<Arc<Cq>, NicError> {
        self.create_cq_with(attr, CqLayout::default())
    }

    /// Creates a CQ whose entries lie otherwise than [`SoftNic::create_cq`]'s.
    ///
    /// # Errors
    /// As [`SoftNic::create_cq`].
    pub fn create_cq_with(&self, attr: &CqAttr, layout: CqLayout) -> Result<Arc<Cq>, NicError> {
        self.device.create_cq(attr, layout)
    }

    /// Has the consumer of a CQ that was created without `notify` told when it has armed it, from now on. `uar` is the
    /// page that it rings then. A CQ has one way of being told.
    pub fn notify(&self, cq: &Arc<Cq>, uar: &View, notify: Notify) {
        if cq.notify_with(notify) {
            self.device.engines[0].control().watch_arming(uar, cq);
            cq.armed();
        }
    }

    /// Has the consumer of a CQ that several queue pairs may share told of several entries together
    /// (`ibv_modify_cq`), from now on.
    pub fn moderate(&self, cq: &Arc<Cq>, moderation: Moderation) {
        cq.moderate(moderation);
        self.device.engines[0].control().watch_moderated(cq);
    }

    /// Creates a shared receive queue whose WQEs come in the order of its ring. Completions count them:
    /// `wqe_counter` is not the place in the ring, but goes on.
    ///
    /// # Errors
    /// As [`SoftNic::create_srq`].
    pub fn create_cyclic_srq(&self, attr: &SrqAttr) -> Result<Arc<Srq>, NicError> {
        self.device.create_cyclic_srq(attr)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// As [`SoftNic::create_cq`].
    pub fn create_srq(&self, attr: &SrqAttr) -> Result<Arc<Srq>, NicError> {
        self.device.create_srq(attr, None)
    }

    /// Creates an XRC domain.
    pub fn create_xrcd(&self) -> Arc<Xrcd> {
        Arc::default()
    }

    /// Creates a shared receive queue of an XRC domain.
    ///
    /// # Errors
    /// As [`SoftNic::create_cq`].
    pub fn create_xrc_srq(&self, attr: &SrqAttr, xrc: XrcSrq) -> Result<Arc<Srq>, NicError> {
        if xrc.uidx > Qpn::MAX {
            let (value, must) = (xrc.uidx.into(), "24 bits");
            return Err(NicError::Attribute { what: "user index", value, must });
        }
        let xrcd = xrc.xrcd.clone();
        let srq = self.device.create_srq(attr, Some(xrc))?;
        xrcd.add(&srq);
        Ok(srq)
    }

    /// Creates a shared receive queue that matches tags.
    ///
    /// # Errors
    /// As [`SoftNic::create_cq`]; [`NicError::Attribute`] also on the in-process link, and for a list that is too long.
    pub fn create_tag_srq(&self, attr: &SrqAttr, tags: TagAttr) -> Result<Arc<Srq>, NicError> {
        let refuse = |what, value, must| Err(NicError::Attribute { what, value, must });
        if self.carries().is_none() {
            return refuse("shared receive queue that matches tags", 1, "on a packet link");
        }
        if tags.uidx > Qpn::MAX {
            return refuse("user index", tags.uidx.into(), "24 bits");
        }
        self.device.create_tag_srq(attr, tags)
    }

    /// Creates the receiving end of an XRC connection, which has no queues of its own. The sending
    /// end is made by [`SoftNic::create_with`], without receives.
    ///
    /// # Errors
    /// [`NicError::Attribute`] on the in-process link, [`NicError::Full`], [`NicError::Memory`].
    pub fn create_xrc_recv(&self, xrcd: &Arc<Xrcd>) -> Result<Arc<Qp>, NicError> {
        self.device.create_xrc_recv(xrcd)
    }

    /// Registers memory in a protection domain.
    ///
    /// # Errors
    /// As [`Nic::register`].
    pub fn register_in(
        &self,
        pd: &Arc<Pd>,
        mem: Arc<dyn Dma>,
        iova: Iova,
        access: Access,
    ) -> Result<Mr, NicError> {
        self.device.mrs.register(pd, mem, (iova, access), None)
    }

    /// Registers memory under a key whose low byte the caller chooses, as a DEVX program does.
    ///
    /// # Errors
    /// As [`Nic::register`].
    pub fn register_with_tag(
        &self,
        pd: &Arc<Pd>,
        mem: Arc<dyn Dma>,
        (iova, access): (Iova, Access),
        tag: u8,
    ) -> Result<Mr, NicError> {
        self.device.mrs.register(pd, mem, (iova, access), Some(tag))
    }

    /// Returns when no engine is in a step that began before, and forgets armings of CQs that are
    /// gone: what the caller has let go is not touched any more.
    pub fn quiesce(&self) {
        for seat in &self.device.engines {
            seat.control().forget_arming();
        }
    }

    /// Has asynchronous events told from now on, instead of kept for [`SoftNic::next_event`]. The
    /// first who asks for it has them; says whether that is the caller.
    pub fn tell_events(&self, sink: EventSink) -> bool {
        self.device.events.tell(sink)
    }

    /// Has management datagrams to queue pair 1 told from now on, which are dropped before. The first
    /// who asks for it has them; says whether that is the caller.
    pub fn tell_mads(&self, sink: MadSink) -> bool {
        self.device.gsi.tell(sink)
    }

    /// Sends a management datagram from queue pair 1 to that of another NIC, like any datagram: it may
    /// be lost.
    ///
    /// # Errors
    /// [`NicError::Full`] when too many wait for the engine; [`NicError::Unsupported`] on the
    /// in-process link.
    pub fn send_mad(&self, to: IpAddr, mad: [u8; MAD_BYTES]) -> Result<(), NicError> {
        if let NicAddress::InProcess(_) = self.device.here().0 {
            let what = "management datagrams without packets: take a packet link";
            return Err(NicError::Unsupported { nic: "soft".into(), what });
        }
        self.device.gsi.post(to, mad)
    }

    /// Whether the engine has given all management datagrams to the link.
    pub fn has_sent_mads(&self) -> bool {
        self.device.gsi.is_empty()
    }

    /// Changes a registration, whose keys stay as they are (`ibv_rereg_mr`). Accesses that are under
    /// way come before, later ones find what it is then.
    ///
    /// # Errors
    /// [`NicError::NoSuchRegion`], and as [`Nic::register`]; nothing has changed then.
    pub fn reregister(&self, mr: Mr, change: Reregister) -> Result<Mr, NicError> {
        self.device.mrs.reregister(mr, change)
    }

    /// The oldest asynchronous event that was not taken yet.
    pub fn next_event(&self) -> Option<Event> {
        self.device.events.pop()
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(pool) = self.pool.get() {
            pool.wake_all();
        }
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join(); // a panic was reported where it happened
        }
        self.device.shut_down();
    }
}

impl Nic for SoftNic {
    fn name(&self) -> &str {
        "soft"
    }

    fn is_software(&self) -> bool {
        true
    }

    fn order(&self) -> Order {
        Order::Later
    }

    fn trouble(&self) -> Option<NicError> {
        let failed = || self.device.gone();
        self.device.offload.as_ref().and_then(|it| it.failure()).or_else(failed)
    }

    fn register(&self, mem: Arc<dyn Dma>, iova: Iova, access: Access) -> Result<Mr, NicError> {
        self.device.mrs.register(&self.device.pd, mem, (iova, access), None)
    }

    fn deregister(&self, mr: Mr) -> Result<(), NicError> {
        self.device.mrs.deregister(mr)
    }

    /// Memory of the engine's GPU. Without such an engine it has none: a window is memory of the host.
    fn alloc_dm(&self, bytes: usize) -> Result<Option<Dm>, NicError> {
        let Some(offload) = &self.device.offload else { return Ok(None) };
        let view = offload.alloc(bytes)?;
        let mr = self.register(Arc::new(view.clone()), Iova(0), Access::NONE)?;
        Ok(Some(Dm { view, mr }))
    }

    fn alloc_queues(&self, bytes: usize) -> Result<Option<View>, NicError> {
        self.device.offload.as_ref().map(|offload| offload.alloc(bytes)).transpose()
    }

    fn queue_bytes(&self, attr: &QpAttr) -> usize {
        layout::queue_bytes(attr)
    }

    fn create_qp(
        &self,
        attr: &QpAttr,
        memory: QueueMemory,
    ) -> Result<Arc<dyn QueuePair>, NicError> {
        let queues = layout::place_apart(attr, memory)?;
        self.device.reaches(attr, &queues)?;
        Ok(self.create_on(attr, queues)?)
    }

    fn destroy_qp(&self, qpn: Qpn) -> Result<(), NicError> {
        self.device.destroy_qp(qpn.0)
    }
}

/// Steps, and WQEs carried out in them, between two looks at the clock while an engine spins: a
/// look costs as much as a step that finds nothing.
const CLOCK_STEPS: u64 = 64;

/// An engine's thread.
fn run(engine: &mut Engine, stop: &AtomicBool, nap: Nap) {
    let start = Instant::now();
    let (mut now, mut last_work) = (Duration::ZERO, Duration::ZERO);
    let (mut steps, mut worked) = (0, false);
    while !stop.load(Ordering::Acquire) {
        let progress = engine.step(now.as_nanos() as u64);
        steps += 1 + progress.wqes;
        worked |= progress.is_busy();
        if steps < CLOCK_STEPS {
            // No pause instruction: it takes longer than the rest of an idle step.
            continue;
        }
        steps = 0;
        now = start.elapsed();
        if worked {
            (last_work, worked) = (now, false);
        }
        let idle = now - last_work;
        if idle < nap.spin {
            continue;
        }
        if idle < nap.spin.saturating_add(nap.give_way) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(nap.nap);
        }
        // One step between two rests.
        steps = CLOCK_STEPS;
    }
}
