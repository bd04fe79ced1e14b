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
//! | `make` `keys` | how they are made, and keys that stand for parts of others |
//! | `objects` | what a program holds: regions, keys, CQs, SRQs, lists of tags, queue pairs, XRC domains; numbers, states, events |
//! | `queue` | from a doorbell or a slot to a checked WQE; receive WQEs; WQEs for the NIC itself |
//! | `service` | from WQEs to CQEs: the visit of a queue pair, messages that are sent and that come in, their bytes |
//! | `service::local` | messages between NICs of one process, without packets |
//! | `service::rc` `uc` `ud` `gsi` | services over packets; queue pair 1 |
//! | `link` | packet links: to other processes and hosts; what an engine keeps of one; captures |
//! | `offload` | an engine on a GPU: queue pairs that are leased to it, keys that it knows |
//! | `record` | recordings, and the same again |
//! | `trace` | what happened when, for who looks on |
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
pub mod log;
#[cfg(test)]
mod loom_tests;
mod make;
mod objects;
pub mod offload;
mod queue;
mod random;
pub mod record;
mod report;
pub mod script;
mod service;
pub mod trace;
mod vendor;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use adversary::{
    Adversary, AdversaryError, Finding, FindingSink, Kind as AdversaryKind, SourceLine,
};
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
use record::{Call, Outcome, outside, plainly};

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
        if config.record.is_some() {
            let what = "a recording without packets: take a packet link";
            return Err(NicError::Unsupported { nic: "soft".into(), what });
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
        let (link, config, recorder) = record::begin(config, link)?;
        let link = adversary::wrap(link, config.adversary);
        let device = Device::on_packets(link, &config, recorder)?;
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
        plainly(self.device.recorder.as_ref(), Call::Port { up }, || {
            self.device.enabled.store(up, Ordering::Relaxed);
        });
    }

    /// What the NIC has done so far. An engine counts what it does in a step at the step's end, when CQEs of it may have
    /// been seen already.
    pub fn counters(&self) -> Counters {
        let mut all = self.device.counters.read();
        self.device.engines.iter().for_each(|seat| all += seat.counters.read());
        all
    }

    /// Has everything in the file that a recording of [`SoftConfig::record`] has so far. Whoever steps the engine does
    /// so now and then.
    pub fn flush_recording(&self) {
        if let Some(recorder) = &self.device.recorder {
            recorder.flush();
        }
    }

    /// What the NIC writes its trace with, for what is not the NIC's own doing.
    pub fn tracer(&self) -> Option<Arc<trace::Tracer>> {
        self.device.events.trace().cloned()
    }

    /// Returns when no engine is in a step that began before, and forgets armings of CQs that are
    /// gone: what the caller has let go is not touched any more.
    pub fn quiesce(&self) {
        plainly(self.device.recorder.as_ref(), Call::Quiesce, || {
            for seat in &self.device.engines {
                seat.control().forget_arming();
            }
        });
    }

    /// Has asynchronous events told from now on, instead of kept for [`SoftNic::next_event`]. The
    /// first who asks for it has them; says whether that is the caller.
    pub fn tell_events(&self, sink: EventSink) -> bool {
        self.device.events.tell(sink)
    }

    /// Has management datagrams to queue pair 1 told from now on, which are dropped before. The first
    /// who asks for it has them; says whether that is the caller.
    pub fn tell_mads(&self, sink: MadSink) -> bool {
        let mut told = false;
        plainly(self.device.recorder.as_ref(), Call::TellMads, || {
            told = self.device.gsi.tell(sink);
        });
        told
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
        let call = || Call::Mad { to, bytes: mad.to_vec() };
        let post = || self.device.gsi.post(to, mad);
        outside(self.device.recorder.as_ref(), call, post, |&()| Outcome::Done)
    }

    /// Whether the engine has given all management datagrams to the link.
    pub fn has_sent_mads(&self) -> bool {
        self.device.gsi.is_empty()
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
        self.look_for_trace(Duration::ZERO);
        self.device.shut_down();
        if let Some(trace) = self.device.events.trace() {
            trace.close();
        }
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
        self.device.order
    }

    fn trouble(&self) -> Option<NicError> {
        let failed = || self.device.gone();
        self.device.offload.as_ref().and_then(|it| it.failure()).or_else(failed)
    }

    fn register(&self, mem: Arc<dyn Dma>, iova: Iova, access: Access) -> Result<Mr, NicError> {
        self.register_as(&self.device.pd, mem, (iova, access), None)
    }

    fn deregister(&self, mr: Mr) -> Result<(), NicError> {
        let (recorder, call) = (self.device.recorder.as_ref(), || Call::Deregister(mr.into()));
        outside(recorder, call, || self.device.mrs.deregister(mr), |&()| Outcome::Done)
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
        let queues = Queues { order: self.order(), ..layout::place_apart(attr, memory)? };
        self.device.reaches(attr, &queues)?;
        Ok(self.create_on(attr, queues)?)
    }

    fn destroy_qp(&self, qpn: Qpn) -> Result<(), NicError> {
        let (recorder, call) = (self.device.recorder.as_ref(), || Call::DestroyQp { qpn: qpn.0 });
        outside(recorder, call, || self.device.destroy_qp(qpn.0), |&()| Outcome::Done)
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
