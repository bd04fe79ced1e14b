//! Whoever polls drives the NIC: threads of the program step the engine where they poll and post.
//!
//! Where a program polls, the engine's own thread would take its core from it for every packet. So the hooks
//! of `verbs` step the engine in the program's thread, and the engine's own thread (`thread`) stays out for as
//! long as they do. A lock that nobody waits for keeps steps apart; a hook that does not get it goes on.
//!
//! On a program's thread a step leaves `errno` alone, is no point of cancellation, and panics in there end
//! what they would end on the engine's own. A signal handler that polls while its thread is inside of this
//! object steps nothing, nor does the child of a fork step its parent's engines.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use bellpush_mem::here::Here;
use bellpush_soft_nic::{Engine, Helper, Progress};

use crate::process::lock_until;
use crate::rings::{LINGER_NS, MOST_LINGER_NS, NEXT_NS, Rings};
use crate::trial::Trial;

/// Steps in a row that a thread has which rang, as other threads ring as well; the engine's thread has the next.
const TURNS: u32 = 8;
/// Polls in a row that found nothing, or found what had come, from which on a program counts as one that
/// polls for what it waits for.
const ENOUGH: u32 = 4;
/// Steps at most of one poll while a long message comes in: as many packets as the smallest window of credits asks for,
/// which one step does not take of long ones.
const POLL_STEPS: u32 = 8;
/// How long after its last poll a program counts as polling: longer than the scheduler's shortest turns.
const PATIENCE: Duration = Duration::from_micros(100);
/// How long a poll that has found the last acknowledgement looks on at most for what the peer answers, and whoever rang
/// and has the answer for the acknowledgement. A program that has it may look at its memory alone, where nothing but the
/// engine's thread would carry the rest to.
const SECOND_LOOK_NS: u64 = 10_000;
/// Steps that the engine's thread takes at most until a message is acknowledged of which the program has had the CQE: the
/// one that it is in, the one that has the acknowledgement wait for an answer, and the one that says it.
const LAST_STEPS: u64 = 3;
/// Nobody leaves: more steps than are ever taken.
const STAYS: u64 = u64::MAX;
/// How long a process that ends waits for them at most, and how often it looks. They take a few rests of the thread's.
const LAST_WORDS: Duration = Duration::from_millis(200);
const LAST_NAP: Duration = Duration::from_micros(50);
/// An answer that the thread found so long after such a poll would perhaps have come in time.
const SOON_NS: u64 = 100_000;

/// Who steps a device's engine. All of it but the helper are hints: nothing is ordered by them.
pub struct Driver {
    helper: Helper,
    start: Instant,
    stop: AtomicBool,
    /// The program's threads keep away.
    alone: AtomicBool,
    /// The program's polls in a row without anything to do.
    empty: AtomicU32,
    /// Polls with something to do, and steps that the engine's thread had to wait for, since that thread had
    /// something to do that nobody else was at.
    taken: AtomicU32,
    /// When the program polled last, in ns since the start.
    polled_ns: AtomicU64,
    /// Whether no message was outstanding after the last step.
    idle: AtomicBool,
    /// Whether the engine's thread stays out.
    out: AtomicBool,
    thread: OnceLock<Thread>,
    /// Steps that the engine's thread has done.
    steps: AtomicU64,
    /// Whether the link held packets after the last of them.
    holds: AtomicBool,
    /// The process ends, and nobody polls any more: how many steps are enough; [`STAYS`] before.
    leaves: AtomicU64,
    /// What counts as polling is a thread that has rung, and looks on for the answer.
    lingers: AtomicBool,
    /// Whether such a poll looks on, and when the last was, in ns since the start; 0 once something came.
    answers: Trial,
    acknowledged_ns: AtomicU64,
    /// Doorbells that the program rings by itself.
    pub rings: Rings,
}

impl Driver {
    /// For an engine that has a thread of its own besides.
    pub fn new(helper: Helper) -> Self {
        Self {
            helper,
            start: Instant::now(),
            stop: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            empty: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            polled_ns: AtomicU64::new(0),
            idle: AtomicBool::new(true),
            out: AtomicBool::new(false),
            thread: OnceLock::new(),
            steps: AtomicU64::new(0),
            holds: AtomicBool::new(false),
            leaves: AtomicU64::new(STAYS),
            lingers: AtomicBool::new(false),
            answers: Trial::default(),
            acknowledged_ns: AtomicU64::new(0),
            rings: Rings::default(),
        }
    }

    /// Has the engine's thread end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the engine's thread is to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Leaves the engine to its own thread from now on. What the driver of a GPU is asked for in the program's
    /// thread could become part of what the program records there.
    pub fn keep_to_thread(&self) {
        self.alone.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// The time that steps are given.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// A step in the program's thread, if nobody is in one.
    fn step(&self) -> Progress {
        if self.alone.load(Ordering::Relaxed) {
            return Progress::default();
        }
        let now_ns = self.now_ns();
        self.polled_ns.store(now_ns, Ordering::Relaxed);
        let Some(progress) = self.helper.step(now_ns) else { return Progress::default() };
        self.note(&progress, now_ns, false);
        progress
    }

    fn now_ns(&self) -> u64 {
        self.now().as_nanos() as u64
    }

    fn note(&self, progress: &Progress, now_ns: u64, in_thread: bool) {
        self.rings.saw(progress, now_ns, in_thread);
        if progress.arrivals > 0 {
            let since = now_ns.saturating_sub(self.acknowledged_ns.swap(0, Ordering::Relaxed));
            if in_thread && since < SOON_NS {
                self.answers.came_soon();
            }
        }
        // An unacknowledged message has a timer.
        self.idle.store(progress.next_ns.is_none(), Ordering::Relaxed);
    }

    /// What waits to be sent goes now, if nobody is in a step.
    pub fn send(&self) {
        self.step();
    }

    /// The program polls and has found nothing: whether it should look again.
    fn poll(&self) -> bool {
        self.lingers.store(false, Ordering::Relaxed);
        let (mut progress, empty) = (self.step(), self.empty.load(Ordering::Relaxed));
        let busy = progress.is_busy();
        // A program that polls now and then gets what has come of a long message.
        for _ in 1..POLL_STEPS {
            if !(progress.under_way && progress.more) {
                break;
            }
            progress = self.step();
        }
        if progress.acknowledgements > 0 && progress.arrivals == 0 && progress.next_ns.is_none() {
            self.look_on();
        }
        if busy {
            self.count_taken();
        }
        self.empty.store(if busy { 0 } else { (empty + 1).min(ENOUGH) }, Ordering::Relaxed);
        busy
    }

    /// The last acknowledgement has come to the program's poll: steps until an answer comes, if answers do.
    fn look_on(&self) {
        let start_ns = self.now_ns();
        self.acknowledged_ns.store(start_ns, Ordering::Relaxed);
        if !self.answers.is_due() {
            return;
        }
        while self.now_ns() < start_ns + SECOND_LOOK_NS {
            if self.step().arrivals > 0 {
                return self.answers.paid();
            }
        }
        self.answers.in_vain();
    }

    fn count_taken(&self) {
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken.store((taken + 1).min(ENOUGH), Ordering::Relaxed);
    }

    /// The program has posted. While messages are outstanding, more wait until it polls, and go together.
    fn post(&self) -> bool {
        self.rings.posted();
        self.idle.load(Ordering::Relaxed) && self.step().is_busy()
    }

    /// The program has armed a CQ: it is about to sleep.
    fn arm(&self) -> bool {
        let busy = self.step().is_busy();
        self.forget_polls();
        self.wake();
        busy
    }

    /// Whether doorbells are to be caught.
    pub fn is_to_catch(&self, now: Duration) -> bool {
        self.rings.are_to_be_caught(now.as_nanos() as u64) && !self.alone.load(Ordering::Relaxed)
    }

    /// A doorbell was caught, and lies in its register; whether it is one too many.
    pub fn catches(&self) -> bool {
        let now_ns = self.now_ns();
        self.rings.caught(now_ns);
        self.rings.are_too_many(now_ns) || self.alone.load(Ordering::Relaxed)
    }

    /// The program has rung by itself: a step in its thread, and more where an answer is to be expected.
    fn ring(&self, may_linger: bool) {
        if self.alone.load(Ordering::Relaxed) {
            return;
        }
        let now_ns = self.now_ns();
        let is_due = may_linger && self.rings.answers.is_due();
        let lingers = is_due && self.rings.turns.has_rung();
        if lingers {
            // Before the step, whose packets may wake the engine's thread at once.
            self.empty.store(ENOUGH, Ordering::Relaxed);
            self.polled_ns.store(now_ns, Ordering::Relaxed);
        } else if is_due {
            // Another doorbell is expected. Where it does not come, the engine's thread does not stay out once more.
            self.forget_polls();
        }
        self.lingers.store(lingers, Ordering::Relaxed);
        let Some(progress) = self.helper.step(now_ns) else {
            // Whoever is in a step looks again.
            return self.leave_to_thread();
        };
        self.note(&progress, now_ns, false);
        if lingers {
            self.linger();
        }
    }

    /// Steps until all of an answer has come, whoever took it, and the acknowledgement where that is waited for. The
    /// engine's thread stays out meanwhile, and a while longer if it has.
    fn linger(&self) {
        let Rings { answers, acknowledgements, turns, .. } = &self.rings;
        let start_ns = self.now_ns();
        let (mut until_ns, mut has_all) = (start_ns + LINGER_NS, false);
        loop {
            let progress = self.helper.step(self.now_ns());
            let now_ns = self.now_ns(); // to send a long READ's response takes a while
            self.polled_ns.store(now_ns, Ordering::Relaxed);
            if let Some(progress) = progress {
                self.note(&progress, now_ns, false);
                if progress.arrivals > 0 && !has_all {
                    // The program could have what has come whole: more of it follows soon, or is not waited for.
                    let is_whole = turns.has_any() && !progress.under_way;
                    let more_ns = if is_whole { NEXT_NS } else { LINGER_NS };
                    until_ns = (now_ns + more_ns).min(start_ns + MOST_LINGER_NS);
                }
            }
            if !has_all && turns.has_all() {
                (has_all, until_ns) = (true, now_ns + SECOND_LOOK_NS);
            }
            let is_over = now_ns >= until_ns;
            if has_all && !self.rings.is_outstanding() {
                if acknowledgements.is_due() {
                    acknowledgements.paid();
                    acknowledgements.renew();
                }
                return answers.paid();
            }
            if has_all && (is_over || !acknowledgements.is_due()) {
                if is_over {
                    acknowledgements.in_vain();
                }
                return answers.paid();
            }
            if is_over {
                match turns.has_any() {
                    true => answers.paid(),
                    false => answers.in_vain(),
                }
                return self.leave_to_thread();
            }
        }
    }

    /// What the calling thread does not look for is the engine's thread's.
    pub fn leave_to_thread(&self) {
        self.forget_polls();
        self.wake();
    }

    fn forget_polls(&self) {
        self.empty.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
    }

    /// Whether the program polls for what it waits for.
    pub fn is_polled(&self, now: Duration) -> bool {
        let enough = |count: &AtomicU32| count.load(Ordering::Relaxed) >= ENOUGH;
        let polled = Duration::from_nanos(self.polled_ns.load(Ordering::Relaxed));
        (enough(&self.empty) || enough(&self.taken))
            && now.saturating_sub(polled) < PATIENCE
            && !self.alone.load(Ordering::Relaxed)
            && self.leaves.load(Ordering::Relaxed) == STAYS
    }

    /// Whether the program polls by looking on after doorbells only: what is no answer it does not look for.
    pub fn only_lingers(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }

    /// A step in the engine's own thread, and whether nobody else was in one.
    pub fn step_for_thread(&self, engine: &mut Engine, now: Duration) -> (Progress, bool) {
        let now_ns = now.as_nanos() as u64;
        let at_once = engine.try_step(now_ns);
        let progress = at_once.unwrap_or_else(|| engine.step(now_ns));
        self.note(&progress, now_ns, true);
        self.holds.store(progress.link_holds, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::Release); // with `holds`, see `leave`
        match at_once {
            Some(progress) if progress.is_busy() => self.forget_polls(),
            Some(_) => {}
            None => self.count_taken(),
        }
        (progress, at_once.is_some())
    }

    /// The process ends: the engine's thread says what is owed. The calling thread steps nothing: it may have been
    /// interrupted anywhere, with any lock.
    fn begin_to_leave(&self) {
        let enough = self.steps.load(Ordering::Relaxed).wrapping_add(LAST_STEPS);
        self.leaves.store(enough, Ordering::Relaxed);
        self.wake();
    }

    /// Waits until it has, and until the packets have left a link that delays them, until then at most.
    fn leave(&self, until: Instant) {
        let enough = self.leaves.load(Ordering::Relaxed);
        let behind = || {
            let steps = self.steps.load(Ordering::Acquire); // `holds` is of the last of them, or a later one
            enough.wrapping_sub(steps) as i64 > 0 || self.holds.load(Ordering::Relaxed)
        };
        while behind() && !self.is_stopped() && Instant::now() < until {
            std::thread::sleep(LAST_NAP);
        }
    }

    /// The engine's thread stays out for so long, or until the program is about to sleep.
    pub fn stay_out(&self, most: Duration) {
        self.thread.get_or_init(std::thread::current);
        self.out.store(true, Ordering::Relaxed);
        // Orders `out` before the look at who drives, as `wake`'s does what it tells before the look
        // at `out`: of two that meet one sees the other.
        fence(Ordering::SeqCst);
        if self.is_polled(self.now()) && !self.is_stopped() {
            std::thread::park_timeout(most);
        }
        self.out.store(false, Ordering::Relaxed);
    }

    /// Ends the rest of the engine's thread.
    pub fn wake(&self) {
        fence(Ordering::SeqCst); // see `stay_out`
        if self.out.load(Ordering::Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

/// What a thread of the program does that gives an engine a turn.
#[derive(Clone, Copy)]
pub enum Turn {
    /// It has polled in vain.
    Poll,
    /// It has rung.
    Post,
    /// It has armed a CQ.
    Arm,
}

/// The drivers of a process's devices, by number.
pub struct Drivers {
    here: Here,
    all: Vec<Mutex<Option<Arc<Driver>>>>,
}

impl Drivers {
    /// For so many devices, none of which is open.
    pub fn new(devices: usize) -> Self {
        Self {
            here: Here::of_this_process(),
            all: (0..devices).map(|_| Mutex::default()).collect(),
        }
    }

    /// A device is open.
    pub fn add(&self, index: usize, driver: &Arc<Driver>) {
        if let Some(slot) = self.all.get(index) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(driver.clone());
        }
    }

    /// A device goes: no thread of the program is in a step of its engine's after this.
    pub fn remove(&self, index: usize, driver: &Arc<Driver>) {
        if let Some(slot) = self.all.get(index) {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            // It may have been opened anew already.
            slot.take_if(|other| Arc::ptr_eq(other, driver));
        }
    }

    /// Whether this is the process whose drivers they are.
    pub fn are_here(&self) -> bool {
        self.here.is_here()
    }

    /// A doorbell of a device's was caught in the calling thread of the program's.
    pub fn ring(&self, index: usize) {
        let (Some(slot), Some(_inside)) = (self.all.get(index), Inside::enter()) else { return };
        let _undisturbed = Undisturbed::new();
        for turn in 0..TURNS {
            // Who has it looks again, as here.
            let Ok(slot) = slot.try_lock() else { return };
            let Some(driver) = slot.as_ref() else { return };
            let seen = driver.rings.count();
            driver.ring(turn == 0);
            let driver = Arc::downgrade(driver);
            drop(slot);
            let Some(driver) = driver.upgrade() else { return };
            let is_last = driver.rings.count() == seen;
            if turn > 0 && (is_last || turn + 1 == TURNS) {
                driver.leave_to_thread(); // other threads' answers
            }
            if is_last {
                return;
            }
        }
    }

    /// The process ends. A card acknowledges what has come whatever becomes of the program; so does each engine now. Once
    /// more for what is said afterwards.
    pub fn take_leave(&self) {
        let until = Instant::now() + LAST_WORDS;
        let each = |what: &dyn Fn(&Driver)| {
            for slot in self.all.iter().filter(|_| self.here.is_here()) {
                // Another thread that polls has it for a moment; the interrupted thread itself keeps it.
                let until = if Inside::is_entered() { Instant::now() } else { until };
                let slot = lock_until(slot, until);
                if let Some(driver) = slot.as_deref().and_then(Option::as_deref) {
                    what(driver);
                }
            }
        };
        // Sleeping is a point of cancellation. The thread stays without: one that is to be cancelled at once would be here.
        std::mem::forget(Undisturbed::new());
        each(&Driver::begin_to_leave);
        each(&|driver| driver.leave(until));
    }

    /// Gives every engine a turn in the calling thread of the program's; whether there was anything to do.
    pub fn turn(&self, turn: Turn) -> bool {
        if !self.here.is_here() {
            return false;
        }
        let Some(_inside) = Inside::enter() else { return false };
        let _undisturbed = Undisturbed::new();
        let mut busy = false;
        for slot in &self.all {
            // Who has it gives the turn.
            let Ok(slot) = slot.try_lock() else { continue };
            busy |= slot.as_deref().is_some_and(|driver| match turn {
                Turn::Poll => driver.poll(),
                Turn::Post => driver.post(),
                Turn::Arm => driver.arm(),
            });
        }
        busy
    }
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The thread is inside of this object, and may hold its locks: a signal handler of the program's that comes
/// here from there must not wait for them.
pub struct Inside(());

impl Inside {
    /// `None` if it is there already.
    pub fn enter() -> Option<Self> {
        (!INSIDE.replace(true)).then(|| Self(()))
    }

    /// Whether the calling thread is there.
    pub fn is_entered() -> bool {
        INSIDE.get()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Keeps a step from what the program would notice of it: `errno`, and system calls at which a thread that
/// is to be cancelled would end.
pub struct Undisturbed {
    errno: c_int,
    cancel: c_int,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
/// `PTHREAD_CANCEL_DISABLE` (pthread.h).
const CANCEL_DISABLE: c_int = 1;

impl Undisturbed {
    /// Until it is dropped.
    pub fn new() -> Self {
        let mut cancel = 0;
        // SAFETY: the calling thread's own; the state is written to a variable of ours.
        unsafe {
            let errno = *libc::__errno_location();
            pthread_setcancelstate(CANCEL_DISABLE, &mut cancel);
            Self { errno, cancel }
        }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            pthread_setcancelstate(self.cancel, std::ptr::null_mut());
            *libc::__errno_location() = self.errno;
        }
    }
}

#[cfg(test)]
#[path = "drive_tests.rs"]
mod tests;
