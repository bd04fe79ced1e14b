//! A device: a software NIC on its link, and the thread of its engine.
//!
//! All openings of a device in a process share it, as they would share a card.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bellpush_mem::hidden::{self, Hidden};
use bellpush_nic::{Mtu, NicAddress};
use bellpush_preload::{Preload, Wire};
use bellpush_soft_nic::link::{
    Captured, Faults, FaultsError, Faulty, Link, LinkError, ShmNet, UdpLink,
};
use bellpush_soft_nic::{Engine, Event, SoftConfig, SoftNic, Xrcd};

use crate::abi::verbs::event;
use crate::devx::Subscriptions;
use crate::error::Refusal;
use crate::events::Reporter;
use crate::files::FileId;
use crate::guard::Guarded;
use crate::layout;
use crate::process::say;
use crate::watch::Watch;

/// Name of the shared-memory link that `--link-type shm` is on.
const SHM_NAME: &str = "preload";

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
    /// Whom DEVX has told.
    pub subscriptions: Subscriptions,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listeners {
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

    fn tell(&self, what: Event) {
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
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Ends before the engine does.
    watch: Mutex<Option<Watch>>,
}

impl Device {
    /// Opens a device: at the address that the options give it, else where it was before, else at
    /// the first free one.
    pub fn open(
        options: &Preload,
        index: usize,
        last: Option<IpAddr>,
    ) -> Result<Arc<Self>, Refusal> {
        let (opened, marks) = hidden::gather(|| open_link(options, index, last));
        let (inner, arrivals) = opened?;
        let description = inner.describe();
        let lost = Arc::new(AtomicBool::new(false));
        let link = Box::new(Guarded { inner, marks, lost: lost.clone(), index, look_ns: 0 });
        let arrivals = Arrivals { sockets: arrivals, lost };
        // The engine is driven by a thread of this object's, which knows how long to be idle.
        let (nic, engine) = SoftNic::manual_on(&SoftConfig::default(), link)?;
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
        let stop = Arc::new(AtomicBool::new(false));
        let thread = start(index, engine, arrivals, stop.clone())?;
        let watch = Watch::start(index, nic.clone(), options.verbose);
        let watch = watch.inspect_err(|_| stop.store(true, Ordering::Release))?;
        Ok(Arc::new(Self {
            index,
            rdev: layout::rdev(index),
            nic,
            address,
            mtu: asked.min(most),
            dm_left: Mutex::new(options.dm_bytes),
            listeners,
            xrcds: Mutex::default(),
            stop,
            thread: Mutex::new(Some(thread)),
            watch: Mutex::new(Some(watch)),
        }))
    }
}

impl Device {
    /// XRC domains that are open, by their files.
    pub fn xrcds(&self) -> MutexGuard<'_, HashMap<FileId, Weak<Xrcd>>> {
        lock(&self.xrcds)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        drop(lock(&self.watch).take());
        self.stop.store(true, Ordering::Release);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join(); // a panic was reported where it happened
        }
    }
}

/// A link's sockets, doubled.
type Sockets = Vec<Hidden<OwnedFd>>;

/// Where an engine that rests waits for packets.
struct Arrivals {
    /// One of them is readable when a packet has come.
    sockets: Sockets,
    /// Whether the program has closed them.
    lost: Arc<AtomicBool>,
}

/// A device's link, and descriptors of which one is readable when a packet has come.
fn open_link(
    options: &Preload,
    index: usize,
    last: Option<IpAddr>,
) -> Result<(Box<dyn Link>, Sockets), Refusal> {
    let given = options.addresses.get(index).copied();
    let mut arrivals = Vec::new();
    let mut link: Box<dyn Link> = match options.link_type {
        Wire::Udp => {
            let link = match (given, last) {
                (Some(address), _) => UdpLink::open(address, None)?,
                (None, Some(last)) => match UdpLink::open(last, None) {
                    Err(LinkError::InUse { .. }) => UdpLink::open_free()?,
                    opened => opened?,
                },
                (None, None) => UdpLink::open_free()?,
            };
            arrivals = link.descriptors()?.into_iter().map(Hidden::new).collect();
            Box::new(link)
        }
        Wire::Shm => {
            // Faults may corrupt, and only an ICRC notices; all devices must agree on it.
            let icrc = options.link.is_some();
            let net = ShmNet::named(SHM_NAME, icrc)?;
            Box::new(match given {
                Some(address) => net.attach(address)?,
                None => net.attach_free()?,
            })
        }
    };
    if let Some(faults) = &options.link {
        let faults: Faults = faults.parse().map_err(|e: FaultsError| {
            say(&format!("the link's faults are not understood: {e}"));
            Refusal::Unsupported("a link with these faults")
        })?;
        link = Box::new(Faulty::new(link, faults)?);
    }
    // The capture sees what the NIC sees: faults come after it.
    let link = match &options.pcap {
        Some(path) => Box::new(Captured::new(link, &capture(path, index))?),
        None => link,
    };
    Ok((link, arrivals))
}

/// A capture's name, with the process's number for `%p` and the device's for `%d`.
fn capture(path: &Path, index: usize) -> PathBuf {
    let name = path.to_string_lossy();
    name.replace("%p", &std::process::id().to_string()).replace("%d", &index.to_string()).into()
}

/// How long an engine looks for work before it rests, and how long it rests then. Packets from
/// sockets wake it; doorbells in plain memory wake nobody.
struct Idle {
    spin: Duration,
    give_way: Duration,
    rests: [(Duration, Duration); 3],
}

impl Idle {
    /// Where there are cores to spare, the engine keeps one while it has work; where programs poll
    /// on the few that there are, it must not: it would cost them a time slice at every turn.
    fn of_this_machine() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let us = Duration::from_micros;
        let (spin, give_way) = if cores >= 4 { (us(50), us(200)) } else { (us(0), us(0)) };
        let rests = [(us(20_000), us(20)), (us(1_000_000), us(200)), (Duration::MAX, us(1000))];
        Self { spin, give_way, rests }
    }

    /// The rest of an engine that has been idle for so long.
    fn rest(&self, idle: Duration) -> Duration {
        let found = self.rests.iter().find(|(until, _)| idle < *until);
        found.map_or(Duration::from_millis(1), |&(_, rest)| rest)
    }
}

/// Starts an engine's thread. The program's signals are not for it.
fn start(
    index: usize,
    engine: Engine,
    arrivals: Arrivals,
    stop: Arc<AtomicBool>,
) -> Result<JoinHandle<()>, Refusal> {
    let quiet = Quiet::new();
    let spawned = std::thread::Builder::new()
        .name(format!("bellpush-mlx5_{index}"))
        .spawn(move || engine.contain(|engine| run(engine, &arrivals, &stop)));
    drop(quiet);
    spawned.map_err(|source| Refusal::System { call: "an engine's thread", source })
}

/// All signals blocked, and the timer slack at its least, for threads that are made meanwhile:
/// they inherit both.
pub struct Quiet {
    mask: libc::sigset_t,
    slack: libc::c_int,
}

impl Quiet {
    /// Until it is dropped.
    pub fn new() -> Self {
        // SAFETY: the sets are ours; all zeros are a signal set; prctl takes and gives numbers.
        unsafe {
            let (mut all, mut mask): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut mask);
            let slack = libc::prctl(libc::PR_GET_TIMERSLACK);
            libc::prctl(libc::PR_SET_TIMERSLACK, 1);
            Self { mask, slack }
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: what `new` found.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, self.slack);
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
    }
}

/// Asks the scheduler for short turns (Linux 6.12 on): whoever has those gets a core from a program
/// that polls as soon as it wakes, and not at the end of the program's time slice. Without it, a
/// program that polls waits the longer for what the engine has to do.
fn take_short_turns() {
    const TURN_NS: u64 = 100_000;
    // SAFETY: the struct is as long as it says; what the system does not know it refuses.
    unsafe {
        let mut attr: libc::sched_attr = std::mem::zeroed();
        let size = size_of::<libc::sched_attr>() as u32;
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) == 0
            && attr.sched_policy == libc::SCHED_OTHER as u32
        {
            attr.sched_runtime = TURN_NS;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        }
    }
}

/// Sockets of a link at most.
const MOST_ARRIVALS: usize = 2;
/// Steps between two looks at the clock while the engine spins.
const CLOCK_STEPS: u32 = 32;

/// Waits for so long, or until one of the descriptors is readable.
fn rest(arrivals: &Arrivals, most: Duration) {
    const NONE: libc::pollfd = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
    let mut fds = [NONE; MOST_ARRIVALS];
    // What the program has closed is not ours to wait for.
    let sockets = if arrivals.lost.load(Ordering::Relaxed) { &[][..] } else { &arrivals.sockets };
    for (fd, socket) in fds.iter_mut().zip(sockets) {
        fd.fd = socket.as_raw_fd();
    }
    let (secs, nanos) = (most.as_secs() as libc::time_t, most.subsec_nanos().into());
    let timeout = libc::timespec { tv_sec: secs, tv_nsec: nanos };
    let count = fds.len() as libc::nfds_t;
    // SAFETY: as many entries as are said; the timeout and they outlive the call.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), count, &timeout, std::ptr::null()) };
    if ready > 0 && fds.iter().all(|fd| fd.revents & libc::POLLIN == 0) {
        // A socket's error is nothing to be received: it would be reported at once for ever.
        std::thread::sleep(most);
    }
}

fn run(engine: &mut Engine, arrivals: &Arrivals, stop: &AtomicBool) {
    take_short_turns();
    let idle = Idle::of_this_machine();
    let start = Instant::now();
    let (mut now, mut last_work) = (Duration::ZERO, Duration::ZERO);
    let mut steps = 0;
    while !stop.load(Ordering::Acquire) {
        let progress = engine.step(now.as_nanos() as u64);
        steps += 1;
        if progress.is_busy() {
            if steps >= CLOCK_STEPS {
                now = start.elapsed();
                steps = 0;
            }
            last_work = now;
            continue;
        }
        now = start.elapsed();
        let since = now.saturating_sub(last_work);
        if since < idle.spin {
            continue;
        }
        if since < idle.spin + idle.give_way {
            std::thread::yield_now();
            continue;
        }
        // Not past a timer of the NIC's own.
        let due = progress
            .next_ns
            .map_or(Duration::MAX, |at| Duration::from_nanos(at).saturating_sub(now));
        rest(arrivals, idle.rest(since).min(due));
        now = start.elapsed();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use bellpush_soft_nic::link::{Carries, LinkCounters, Received, ShmLink, TxBatch};

    use super::*;
    use crate::events::EventPipe;

    /// A link that fails in the worst way.
    struct Mined(ShmLink);

    impl Link for Mined {
        fn address(&self) -> IpAddr {
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
            _: u64,
            _: usize,
            _: &mut dyn FnMut(&Received<'_>),
        ) -> Result<usize, LinkError> {
            panic!("planted in a link");
        }
        fn counters(&self) -> LinkCounters {
            self.0.counters()
        }
        fn describe(&self) -> String {
            self.0.describe()
        }
    }

    #[test]
    fn a_panic_of_the_engine_is_told_the_program_which_goes_on() {
        const EVENT_BYTES: usize = size_of::<crate::abi::verbs::AsyncEventDesc>();
        let link = ShmNet::anonymous(false).unwrap().attach_free().unwrap();
        let (nic, engine) =
            SoftNic::manual_on(&SoftConfig::default(), Box::new(Mined(link))).unwrap();
        let (pipe, reader) = EventPipe::new(EVENT_BYTES).unwrap();
        let (listeners, reporter) =
            (Arc::new(Listeners::default()), Reporter::new(Arc::new(pipe), 1));
        listeners.add_port(&reporter);
        nic.tell_events(Box::new(move |event| listeners.tell(event)));
        let stop = Arc::new(AtomicBool::new(false));
        let arrivals = Arrivals { sockets: Vec::new(), lost: Arc::default() };
        let thread = start(0, engine, arrivals, stop.clone()).unwrap();
        let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 20_000) }, 1, "nobody is told");
        let mut event = [0; EVENT_BYTES];
        std::fs::File::from(reader).read_exact(&mut event).unwrap();
        assert_eq!(event[8..12], event::DEVICE_FATAL.to_ne_bytes());
        stop.store(true, Ordering::Release);
        thread.join().expect("the panic stays in there");
    }
}
