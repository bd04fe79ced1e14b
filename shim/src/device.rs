//! A device: a software NIC on its link, and who drives its engine.
//!
//! All openings of a device in a process share it, as they would share a card.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use bellpush_mem::hidden::{self, Hidden};
use bellpush_nic::{Mtu, NicAddress};
use bellpush_preload::{MAX_DEVICES, Preload, Wire, of_device};
use bellpush_soft_nic::link::{
    Captured, Faults, FaultsError, Faulty, JointLink, Link, LinkError, ShmNet,
};
use bellpush_soft_nic::record::Record;
use bellpush_soft_nic::script::{Script, ScriptError, Scripted, ScriptedFaults};
use bellpush_soft_nic::{Adversary, AdversaryError, Event, Finding, SoftConfig, SoftNic, Xrcd};

use crate::abi::verbs::event;
use crate::devx::Subscriptions;
use crate::drive::Driver;
use crate::error::Refusal;
use crate::events::Reporter;
use crate::files::FileId;
use crate::guard::{Guarded, LOOK, LOOK_IN_MEMORY};
use crate::layout;
use crate::process::{process, say};
use crate::signals;
use crate::thread::{self, Arrivals};
use crate::waits;
use crate::watch::Watch;

/// Name of the shared-memory link that `--link-type shm` is on.
const SHM_NAME: &str = "preload";

/// Longest that an opening waits for the end of the device that was closed before: its threads come to an end first.
const CLOSING_PATIENCE: Duration = Duration::from_secs(5);

/// Where a device is to be that the options give no address.
#[derive(Debug, Clone, Copy)]
pub enum At {
    /// There, beside other processes of this user.
    Shared(IpAddr),
    /// The same; as [`At::Anywhere`], if that cannot be.
    Beside(IpAddr),
    /// There, if nobody else is; else as below.
    Alone(IpAddr),
    /// At the first free address.
    Anywhere,
}

/// An object of the NIC's, by its number: numbers of each kind are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Queue pair.
    Qp(u32),
    /// Completion queue.
    Cq(u32),
    /// Shared receive queue.
    Srq(u32),
}

/// Whom asynchronous events are told.
#[derive(Default)]
pub struct Listeners {
    objects: Mutex<HashMap<Source, Arc<Reporter>>>,
    ports: Mutex<Vec<Weak<Reporter>>>,
    /// What the port's last event said.
    is_port_down: AtomicBool,
    /// Whom DEVX has told.
    pub subscriptions: Subscriptions,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listeners {
    /// Objects whose events are told to somebody.
    #[cfg(any(test, fuzzing))]
    pub fn count(&self) -> usize {
        lock(&self.objects).len() + self.subscriptions.count()
    }

    /// Has an object's events told.
    pub fn add(&self, source: Source, reporter: Arc<Reporter>) {
        lock(&self.objects).insert(source, reporter);
    }

    /// Tells an object's events no more; what told them.
    pub fn remove(&self, source: Source) -> Option<Arc<Reporter>> {
        lock(&self.objects).remove(&source)
    }

    /// Has the port's events told for as long as there is someone to tell.
    pub fn add_port(&self, reporter: &Arc<Reporter>) {
        let mut ports = lock(&self.ports);
        ports.retain(|port| port.strong_count() > 0);
        ports.push(Arc::downgrade(reporter));
    }

    /// Whether the port carries packets, as far as its events have told.
    pub fn is_port_up(&self) -> bool {
        !self.is_port_down.load(Ordering::Acquire)
    }

    /// Tells an event.
    pub fn tell(&self, what: Event) {
        // Before: who hears of it may ask.
        match what {
            Event::PortUp => self.is_port_down.store(false, Ordering::Release),
            // After a panic the link is not used any more, and nobody looks at the port.
            Event::PortDown | Event::DeviceFatal => {
                self.is_port_down.store(true, Ordering::Release)
            }
            _ => {}
        }
        self.subscriptions.tell(what);
        let port = |code| {
            let ports = lock(&self.ports).clone();
            ports.iter().filter_map(Weak::upgrade).for_each(|port| port.event(code));
        };
        let (source, code) = match what {
            Event::QpFatal(qpn) => (Source::Qp(qpn.0), event::QP_FATAL),
            Event::QpRequest(qpn) => (Source::Qp(qpn.0), event::QP_REQ_ERR),
            Event::QpAccess(qpn) => (Source::Qp(qpn.0), event::QP_ACCESS_ERR),
            Event::Established(qpn) => (Source::Qp(qpn.0), event::COMM_EST),
            Event::SqDrained(qpn) => (Source::Qp(qpn.0), event::SQ_DRAINED),
            Event::LastWqe(qpn) => (Source::Qp(qpn.0), event::QP_LAST_WQE_REACHED),
            Event::CqOverrun(number) => (Source::Cq(number), event::CQ_ERR),
            Event::SrqLimit(number) => (Source::Srq(number), event::SRQ_LIMIT_REACHED),
            Event::DeviceFatal => return port(event::DEVICE_FATAL),
            Event::PortUp => return port(event::PORT_ACTIVE),
            Event::PortDown => return port(event::PORT_ERR),
        };
        let reporter = lock(&self.objects).get(&source).cloned();
        if let Some(reporter) = reporter {
            reporter.event(code);
        }
    }
}

/// A device that is open.
pub struct Device {
    /// Its number.
    pub index: usize,
    /// Device number of its character device.
    pub rdev: u64,
    /// The NIC.
    pub nic: Arc<SoftNic>,
    /// Its address on the link.
    pub address: IpAddr,
    /// Its largest path MTU.
    pub mtu: Mtu,
    /// Bytes of device memory that are not allocated.
    pub dm_left: Mutex<u64>,
    /// Whom its events are told.
    pub listeners: Arc<Listeners>,
    /// XRC domains that are open, by their files.
    xrcds: Mutex<HashMap<FileId, Weak<Xrcd>>>,
    /// The faults of its script, where what becomes of them is told.
    told_faults: Option<Arc<ScriptedFaults>>,
    /// Who steps its engine.
    pub driver: Arc<Driver>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Ends before the engine does.
    watch: Mutex<Option<Watch>>,
    /// Goes last: see [`Gone`].
    _here: Sender<Infallible>,
}

/// Hears when a device is gone, and its address with it.
pub struct Gone(Receiver<Infallible>);

impl Gone {
    /// Waits until it is, or no longer than a device that is closed takes.
    pub fn wait(&self) {
        let _ = self.0.recv_timeout(CLOSING_PATIENCE); // the sender goes and sends nothing
    }
}

impl Device {
    /// Opens a device: at the address that the options give it, which it may share; else where the
    /// caller wants it.
    pub fn open(options: &Preload, index: usize, at: At) -> Result<(Arc<Self>, Gone), Refusal> {
        signals::install();
        let (opened, marks) = hidden::gather(|| open_link(options, index, at));
        let (inner, arrivals, faults) = opened?;
        let description = inner.describe();
        let every = if arrivals.shm.is_some() { LOOK_IN_MEMORY } else { LOOK };
        let lost = arrivals.lost.clone();
        let link = Box::new(Guarded::new(inner, (marks, every), (index, lost)));
        let adversary = options.adversary.as_deref().map(adversary).transpose()?;
        let record = options.record.as_ref().map(|path| Record {
            path: again(named(path, index), index),
            whole: options.record_payload,
            script: options.fault.clone().map(|text| (text, index)),
        });
        let trace = waits::tracing(options).map(|tracing| (tracing, index));
        let told_faults = faults.clone().filter(|_| options.verbose);
        let config = SoftConfig { faults, adversary, record, trace, ..SoftConfig::default() };
        let (nic, engine) = SoftNic::manual_on(&config, link)?;
        waits::begin(&nic);
        nic.tell_findings(Box::new(move |finding, count| tell(index, finding, count)));
        let (address, most) = nic.address();
        let NicAddress::Ip(address) = address else {
            return Err(Refusal::Unsupported("a device without an address"));
        };
        let asked = options.mtu.and_then(Mtu::new).unwrap_or(Mtu::MAX);
        if options.verbose {
            say(&format!("mlx5_{index}: {description}"));
        }
        let listeners = Arc::new(Listeners::default());
        let told = listeners.clone();
        nic.tell_events(Box::new(move |event| told.tell(event)));
        let driver = Arc::new(Driver::new(engine.helper()));
        let thread = thread::start(index, engine, driver.clone(), arrivals)?;
        let watch = Watch::start(index, nic.clone(), options.verbose);
        let watch = watch.inspect_err(|_| driver.stop())?;
        let (here, gone) = mpsc::channel();
        let device = Arc::new(Self {
            index,
            rdev: layout::rdev(index),
            nic,
            address,
            mtu: asked.min(most),
            dm_left: Mutex::new(options.dm_bytes),
            listeners,
            xrcds: Mutex::default(),
            told_faults,
            driver,
            thread: Mutex::new(Some(thread)),
            watch: Mutex::new(Some(watch)),
            _here: here,
        });
        Ok((device, Gone(gone)))
    }
}

impl Device {
    /// XRC domains that are open, by their files.
    pub fn xrcds(&self) -> MutexGuard<'_, HashMap<FileId, Weak<Xrcd>>> {
        lock(&self.xrcds)
    }

    /// Says at its end how much its adversary has found, if anything, and which of its script's faults have not struck.
    pub fn tell_end(&self) {
        let index = self.index;
        let counts: Vec<_> =
            self.nic.finding_counts().iter().map(|(kind, n)| format!("{kind} {n}")).collect();
        if !counts.is_empty() {
            say(&format!("adversary: mlx5_{index}: found in all: {}", counts.join(", ")));
        }
        let faults = self.told_faults.iter().flat_map(|faults| faults.done());
        for (fault, _) in faults.filter(|&(_, strikes)| strikes == 0) {
            say(&format!("mlx5_{index}: fault {fault} of the script has not struck"));
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.tell_end();
        drop(lock(&self.watch).take());
        if let Some(process) = process() {
            process.drivers.remove(self.index, &self.driver);
        }
        self.driver.stop();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join(); // a panic was reported where it happened
        }
    }
}

type Opened = (Box<dyn Link>, Arrivals, Option<Arc<ScriptedFaults>>);

/// A device's link, and where packets that have come are announced.
fn open_link(options: &Preload, index: usize, at: At) -> Result<Opened, Refusal> {
    let given = options.addresses.get(index).copied();
    let mut arrivals = Arrivals::default();
    let mut link: Box<dyn Link> = match options.link_type {
        Wire::Udp => {
            let link = match given.map_or(at, At::Shared) {
                At::Shared(address) => JointLink::open(address, None)?,
                At::Beside(address) => match JointLink::open(address, None) {
                    Err(LinkError::InUse { .. }) => JointLink::open_free()?,
                    opened => opened?,
                },
                At::Alone(last) => match JointLink::open_alone(last, None) {
                    Err(LinkError::InUse { .. }) => JointLink::open_free()?,
                    opened => opened?,
                },
                At::Anywhere => JointLink::open_free()?,
            };
            // Copies of sockets that hold the address.
            let copies = || Ok::<_, LinkError>(link.descriptors()?.into_iter().map(Hidden::new));
            arrivals.sockets = hidden::undivided(|| copies().map(Iterator::collect))?;
            Box::new(link)
        }
        Wire::Shm => {
            // Faults may corrupt, and only an ICRC notices; all devices must agree on it.
            let corrupts =
                || Ok::<_, Refusal>(read_script(options)?.is_some_and(|it| it.corrupts()));
            let icrc = options.link.is_some() || corrupts()?;
            let net = ShmNet::named(SHM_NAME, icrc)?;
            let link = match given {
                Some(address) => net.attach(address)?,
                None => net.attach_free()?,
            };
            arrivals.shm = Some(link.rest()?);
            Box::new(link)
        }
    };
    if let Some(faults) = &options.link {
        let faults: Faults = faults.parse().map_err(|e: FaultsError| {
            say(&format!("the link's faults are not understood: {e}"));
            Refusal::Unsupported("a link with these faults")
        })?;
        link = Box::new(Faulty::new(link, faults)?);
    }
    let scripted = script(options, index, link.address())?;
    if let Some(scripted) = &scripted {
        link = Box::new(Scripted::new(link, scripted.clone())?);
    }
    // The capture sees what the NIC sees: faults come after it.
    let link = match &options.pcap {
        Some(path) => Box::new(Captured::new(link, &named(path, index))?),
        None => link,
    };
    Ok((link, arrivals, scripted))
}

fn read_script(options: &Preload) -> Result<Option<Script>, Refusal> {
    let script = options.fault.as_ref().map(|text| text.parse());
    script.transpose().map_err(|e: ScriptError| {
        say(&format!("the fault script is not understood: {e}"));
        Refusal::Unsupported("a device with this fault script")
    })
}

/// What a script has for a device at an address.
fn script(
    options: &Preload,
    index: usize,
    address: IpAddr,
) -> Result<Option<Arc<ScriptedFaults>>, Refusal> {
    let Some(script) = read_script(options)? else { return Ok(None) };
    let faults = ScriptedFaults::new(&script, index, Some(address));
    if options.verbose {
        let tell = move |fault| say(&format!("mlx5_{index}: fault {fault} of the script strikes"));
        faults.tell_first(Box::new(tell));
    }
    Ok(Some(faults))
}

fn adversary(text: &str) -> Result<Adversary, Refusal> {
    text.parse().map_err(|e: AdversaryError| {
        say(&format!("the adversary is not understood: {e}"));
        Refusal::Unsupported("an adversary of these kinds")
    })
}

fn tell(index: usize, finding: &Finding, count: u64) {
    say(&format!("adversary: mlx5_{index}: {finding} [{count}]"));
}

/// The name of a recording; of a device that the process opens again, with its count behind.
fn again(path: PathBuf, index: usize) -> PathBuf {
    static OPENED: [AtomicU32; MAX_DEVICES] = [const { AtomicU32::new(0) }; MAX_DEVICES];
    match OPENED[index % MAX_DEVICES].fetch_add(1, Ordering::Relaxed) {
        0 => path,
        before => {
            let mut name = path.into_os_string();
            name.push(format!(".{}", before + 1));
            name.into()
        }
    }
}

/// A capture's or recording's name, with the process's number for `%p` and the device's for `%d`.
fn named(path: &Path, index: usize) -> PathBuf {
    let name = of_device(path, index);
    name.to_string_lossy().replace("%p", &std::process::id().to_string()).into()
}
