//! The thread of a device's engine: it drives the engine wherever no thread of the program does (`drive`).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bellpush_mem::guarded;
use bellpush_mem::hidden::Hidden;
use bellpush_soft_nic::Engine;
use bellpush_soft_nic::link::ShmRest;

use crate::drive::Driver;
use crate::error::Refusal;
use crate::guard::LET_GO;
use crate::{real, trap};

/// Where an engine that rests waits for packets.
#[derive(Default)]
pub struct Arrivals {
    /// A link's sockets, doubled: one of them is readable when a packet has come.
    pub sockets: Vec<Hidden<OwnedFd>>,
    /// Where packets in shared memory are announced.
    pub shm: Option<ShmRest>,
    /// Whether the program has closed the sockets.
    pub lost: Arc<AtomicBool>,
    /// When that was first seen.
    pub lost_at: Option<Instant>,
}

/// How long an engine looks for work before it rests, and how long it rests then. Packets wake it;
/// doorbells in plain memory wake nobody.
struct Idle {
    spin: Duration,
    give_way: Duration,
    /// How long it looks for the rest of a message ([`looks_on`]).
    under_way: Duration,
    rests: [(Duration, Duration); 3],
}

impl Idle {
    /// Where there are cores to spare, the engine keeps one while it has work; where programs poll
    /// on the few that there are, it must not: it would cost them a time slice at every turn.
    fn of_this_machine() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, |n| n.get()))
    }

    /// On so many cores that the thread may run on. On one, whoever sends the rest of a message runs when it rests.
    fn of(cores: usize) -> Self {
        let us = Duration::from_micros;
        let (spin, give_way) = if cores >= 4 { (us(50), us(200)) } else { (us(0), us(0)) };
        let rests = [(us(20_000), us(20)), (us(1_000_000), us(200)), (Duration::MAX, us(1000))];
        let under_way = if cores > 1 { UNDER_WAY } else { us(0) };
        Self { spin, give_way, under_way, rests }
    }

    /// The rest of an engine that has been idle for so long.
    fn rest(&self, idle: Duration) -> Duration {
        let found = self.rests.iter().find(|(until, _)| idle < *until);
        found.map_or(Duration::from_millis(1), |&(_, rest)| rest)
    }
}

/// How long the thread stays out at a time while the program polls: longer and longer. The last is what a
/// program waits at most, beyond [`Driver::is_polled`]'s patience, that polled and then looks at its memory alone.
const OUT: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(500)];
/// The last while the program only looks on after its doorbells: what is no answer waits so long. The second where it has
/// had its answer then for a while: each time the thread looks costs the program some 20 us of its core.
const OUT_FOR_ANSWERS: [Duration; 2] = [Duration::from_micros(80), Duration::from_micros(500)];
/// How long the thread looks for the next packet of a message that is coming in over shared memory. Nothing wakes it for
/// that, and a rest is as long as a sender takes for all that may be on its way. Sockets wake it.
const UNDER_WAY: Duration = Duration::from_micros(20);
/// Pauses of the processor between two such looks: each takes the line from the sender that it is about to write.
const PAUSES: u32 = 50;
/// Packets in a row for which the thread wakes and finds that the program has taken them, until it does not
/// wait for packets any more while the program polls. As many for which it wakes and finds nothing, until it
/// rests for the whole time again: a peer could wake it all the time.
const MOST_IN_VAIN: u32 = 8;

/// Starts an engine's thread. The program's signals are not for it, but those of its own faults.
pub fn start(
    index: usize,
    engine: Engine,
    driver: Arc<Driver>,
    mut arrivals: Arrivals,
) -> Result<JoinHandle<()>, Refusal> {
    let quiet = Quiet::new();
    let spawned = std::thread::Builder::new()
        .name(format!("bellpush-mlx5_{index}"))
        .spawn(move || engine.contain(|engine| run(engine, &driver, &mut arrivals)));
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
            real::pthread_sigmask(libc::SIG_SETMASK, &all, &mut mask);
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
            real::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
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

/// How often the thread looks whether faults still come to the object.
const CHECK: Duration = Duration::from_millis(10);

/// Rests between two steps that find something.
#[derive(Default)]
struct Rests {
    /// Those that ended for packets of which a step found none.
    in_vain: u32,
}

impl Rests {
    /// Waits for so long, or until packets have come; not for these where they were announced in vain too often.
    fn rest(&mut self, arrivals: &mut Arrivals, most: Duration) {
        match self.in_vain < MOST_IN_VAIN {
            true => self.in_vain += u32::from(rest(arrivals, most)),
            false => {
                std::thread::sleep(most);
                self.in_vain -= 1; // it is tried once more: a wake a rest is no load
            }
        }
    }
}

/// Waits for so long, or until packets have come; whether some have.
fn rest(arrivals: &mut Arrivals, most: Duration) -> bool {
    match &arrivals.shm {
        Some(link) => link.wait(most).unwrap_or_else(|_| {
            std::thread::sleep(most); // it has told nothing, and would be asked again at once
            false
        }),
        None => rest_at_sockets(arrivals, most),
    }
}

/// Waits for so long, or until one of the descriptors is readable; whether one is.
fn rest_at_sockets(arrivals: &mut Arrivals, most: Duration) -> bool {
    const NONE: libc::pollfd = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
    let mut fds = [NONE; MOST_ARRIVALS];
    // What the program has closed is not ours to wait for, and what is left of it holds the address.
    let lost = arrivals.lost.load(Ordering::Relaxed);
    if lost && arrivals.lost_at.get_or_insert_with(Instant::now).elapsed() > LET_GO {
        arrivals.sockets.clear();
    }
    let sockets = if lost { &[][..] } else { &arrivals.sockets };
    for (fd, socket) in fds.iter_mut().zip(sockets) {
        fd.fd = socket.as_raw_fd();
    }
    let (secs, nanos) = (most.as_secs() as libc::time_t, most.subsec_nanos().into());
    let timeout = libc::timespec { tv_sec: secs, tv_nsec: nanos };
    let count = fds.len() as libc::nfds_t;
    // SAFETY: as many entries as are said; the timeout and they outlive the call.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), count, &timeout, std::ptr::null()) };
    let came = fds.iter().any(|fd| fd.revents & libc::POLLIN != 0);
    if ready > 0 && !came {
        // A socket's error is nothing to be received: it would be reported at once for ever.
        std::thread::sleep(most);
    }
    came
}

fn run(engine: &mut Engine, driver: &Driver, arrivals: &mut Arrivals) {
    take_short_turns();
    guarded::unblock();
    let mut check_at = Duration::ZERO;
    let idle = Idle::of_this_machine();
    let (mut now, mut last_work) = (driver.now(), driver.now());
    let (mut steps, mut in_vain, mut out) = (0, 0, OUT[0]);
    let mut rests = Rests::default();
    let (mut under_way, mut is_idle) = (false, true);
    while !driver.is_stopped() {
        if now >= check_at {
            guarded::check();
            if !guarded::is_armed() {
                trap::open_surely(driver);
            }
            check_at = now + CHECK;
        }
        if driver.is_polled(now) {
            // What comes while somebody looks on is theirs, and would take the core from them here.
            let looks = in_vain < MOST_IN_VAIN && !driver.only_lingers();
            if looks && !arrivals.sockets.is_empty() {
                in_vain += u32::from(rest(arrivals, out));
            } else {
                driver.stay_out(out);
            }
            let is_steady = usize::from(driver.rings.answers.is_steady());
            let most = if driver.only_lingers() { OUT_FOR_ANSWERS[is_steady] } else { OUT[1] };
            out = (2 * out).min(most);
            now = driver.now();
            continue;
        }
        let rung = driver.rings.count();
        let (progress, undivided) = driver.step_for_thread(engine, now);
        steps += 1;
        if progress.arrivals > 0 {
            under_way = progress.under_way;
        }
        if progress.is_busy() {
            rests = Rests::default();
            if undivided {
                (in_vain, out) = (0, OUT[0]);
                if idle.spin > Duration::ZERO {
                    // It looks at the registers itself.
                    trap::open(driver);
                }
            }
            if steps >= CLOCK_STEPS {
                now = driver.now();
                steps = 0;
            }
            is_idle = false;
            continue;
        }
        now = driver.now();
        if !std::mem::replace(&mut is_idle, true) {
            last_work = now; // its last step may have been long
        }
        last_work = last_work.max(driver.rings.last());
        let since = now.saturating_sub(last_work);
        if since < idle.spin {
            continue;
        }
        if under_way && looks_on(arrivals, since, &idle) {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            continue;
        }
        under_way = false;
        if since < idle.spin + idle.give_way {
            std::thread::yield_now();
            continue;
        }
        // A doorbell from before its page was closed, and one that was caught while this was in a step, are
        // found by another look.
        if driver.rings.count() != rung || driver.is_to_catch(now) && trap::close(driver) {
            continue;
        }
        // Not past a timer of the NIC's own.
        let due = progress
            .next_ns
            .map_or(Duration::MAX, |at| Duration::from_nanos(at).saturating_sub(now));
        rests.rest(arrivals, idle.rest(since).min(due));
        now = driver.now();
    }
}

/// Whether the thread looks on for the rest of a message instead of resting.
fn looks_on(arrivals: &Arrivals, since: Duration, idle: &Idle) -> bool {
    arrivals.shm.is_some() && since < idle.under_way
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::IpAddr;
    use std::time::Instant;

    use bellpush_soft_nic::link::{
        Carries, Link, LinkCounters, LinkError, Received, ShmLink, ShmNet, TxBatch,
    };
    use bellpush_soft_nic::{SoftConfig, SoftNic};

    use super::*;
    use crate::abi::verbs::event;
    use crate::device::Listeners;
    use crate::events::{EventPipe, Reporter};

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

    /// What a peer writes may say for ever that there are packets, and wake for them.
    #[test]
    fn packets_that_are_announced_in_vain_end_no_rest_any_more() {
        const REST: Duration = Duration::from_millis(2);
        let net = ShmNet::anonymous(false).unwrap();
        let (mut from, to) = (net.attach_free().unwrap(), net.attach_free().unwrap());
        let mut batch = TxBatch::new(1);
        batch.push(to.address(), |buf| {
            buf[..16].fill(0);
            Some(16)
        });
        assert_eq!(from.send(0, &mut batch).unwrap(), 1); // nobody takes it
        let mut arrivals = Arrivals { shm: Some(to.rest().unwrap()), ..Arrivals::default() };
        let (mut rests, start) = (Rests::default(), Instant::now());
        (0..MOST_IN_VAIN).for_each(|_| rests.rest(&mut arrivals, Duration::from_secs(60)));
        assert!(start.elapsed() < Duration::from_secs(60), "it is not seen");
        let start = Instant::now();
        // One more is tried after each that was slept through.
        (0..20).for_each(|_| rests.rest(&mut arrivals, REST));
        assert!(start.elapsed() >= 10 * REST);
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
        let told = listeners.clone();
        nic.tell_events(Box::new(move |event| told.tell(event)));
        let driver = Arc::new(Driver::new(engine.helper()));
        let thread = start(0, engine, driver.clone(), Arrivals::default()).unwrap();
        let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 20_000) }, 1, "nobody is told");
        let mut event = [0; EVENT_BYTES];
        std::fs::File::from(reader).read_exact(&mut event).unwrap();
        assert_eq!(event[8..12], event::DEVICE_FATAL.to_ne_bytes());
        assert!(!listeners.is_port_up(), "nothing is sent or received any more");
        driver.stop();
        thread.join().expect("the panic stays in there");
    }

    #[test]
    fn a_message_that_comes_over_sockets_keeps_no_core() {
        let net = ShmNet::anonymous(false).unwrap();
        let link = net.attach_free().unwrap();
        let shm = Arrivals { shm: Some(link.rest().unwrap()), ..Arrivals::default() };
        let idle = Idle::of(2);
        assert!(looks_on(&shm, Duration::ZERO, &idle) && !looks_on(&shm, UNDER_WAY, &idle));
        assert!(!looks_on(&Arrivals::default(), Duration::ZERO, &idle));
    }

    /// The sender of a message's rest runs on the one core while this thread does not.
    #[test]
    fn on_one_core_nobody_looks_on() {
        let link = ShmNet::anonymous(false).unwrap().attach_free().unwrap();
        let shm = Arrivals { shm: Some(link.rest().unwrap()), ..Arrivals::default() };
        assert!(!looks_on(&shm, Duration::ZERO, &Idle::of(1)));
    }
}
