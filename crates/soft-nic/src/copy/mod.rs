//! Copy threads: what lies between an engine and the threads that copy for it.
//!
//! One thread moves some 6 to 11 GB/s. So the engine that owns a queue pair checks WQEs in order and completes them in
//! order, and the bytes between are dealt out in pieces ([`piece`]), through a mailbox for each engine and thread
//! ([`mailbox`]). The engine copies what no thread has room for, what is more than several threads have begun soon, and
//! beside one thread alone half of it. A [`Run`] ends only when no thread uses its memory any more, so that the locks
//! that its engine holds meanwhile cover the threads too.

pub(crate) mod mailbox;
pub(crate) mod piece;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Instant;

use crossbeam_utils::CachePadded;

use crate::config::Nap;
use crate::queue::sq::Carried;
use bellpush_mem::MemError;
use mailbox::{DEPTH, Mailbox};
use piece::{Ends, Outcome, Piece};

/// Most copy threads of a NIC.
pub(crate) const MAX_COPY_THREADS: usize = 64;
/// Looks between two at the clock, and before a thread that waits gives way.
const LOOKS: u32 = 256;

/// Who of the copy threads sleeps.
pub(crate) struct Pool(Vec<CachePadded<Sleeper>>);

#[derive(Default)]
struct Sleeper {
    /// It parks, or is about to. A hint: a piece that it does not see is taken back.
    parked: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Pool {
    fn awake(&self) -> usize {
        self.0.iter().filter(|it| !it.parked.load(Ordering::Relaxed)).count()
    }

    /// Wakes one thread for what is to come.
    fn wake_one(&self) {
        let asleep = |it: &&CachePadded<Sleeper>| it.parked.swap(false, Ordering::Relaxed);
        let parked = self.0.iter().filter(|it| it.parked.load(Ordering::Relaxed));
        if let Some(thread) = parked.filter(asleep).find_map(|it| it.thread.get()) {
            thread.unpark();
        }
    }

    /// Wakes all, so that they see that they are to stop.
    pub(crate) fn wake_all(&self) {
        self.0.iter().filter_map(|it| it.thread.get()).for_each(Thread::unpark);
    }
}

/// Copy threads that have not been started, and what each engine has of them.
pub(crate) struct Opened {
    pub(crate) pool: Arc<Pool>,
    pub(crate) copiers: Vec<Copiers>,
    pub(crate) threads: Vec<CopyThread>,
}

/// Makes copy threads for so many engines.
pub(crate) fn open(threads: usize, engines: usize) -> Result<Opened, MemError> {
    let pool = Arc::new(Pool((0..threads).map(|_| CachePadded::default()).collect()));
    let mut theirs: Vec<_> = (0..threads)
        .map(|index| CopyThread { index, pool: pool.clone(), boxes: Vec::new(), room: Vec::new() })
        .collect();
    let mut words = mailbox::words(threads * engines)?.into_iter();
    let mut of_engine = || {
        let boxes = theirs.iter_mut().zip(&mut words).map(|(thread, words)| {
            let mailbox = Mailbox::new(words);
            thread.boxes.push((mailbox.clone(), 0));
            Outbox { mailbox, posted: 0, open: 0, given: false }
        });
        Copiers {
            pool: pool.clone(),
            boxes: boxes.collect(),
            pieces: VecDeque::new(),
            taken: VecDeque::new(),
            room: Vec::new(),
            panicked: false,
        }
    };
    let copiers = (0..engines).map(|_| of_engine()).collect();
    Ok(Opened { pool, copiers, threads: theirs })
}

/// One copy thread.
pub(crate) struct CopyThread {
    index: usize,
    pool: Arc<Pool>,
    /// A mailbox of each engine, with the number of the next piece there.
    boxes: Vec<(Mailbox, u64)>,
    room: Vec<u8>,
}

impl CopyThread {
    /// Copies until it is told to stop. Parks when it has had nothing to do for long: unlike an engine, whose doorbells
    /// lie in plain memory, it can be woken.
    pub(crate) fn run(mut self, stop: &AtomicBool, nap: Nap) {
        let pool = self.pool.clone();
        let sleeper = &pool.0[self.index];
        sleeper.thread.get_or_init(std::thread::current);
        let (mut looks, mut worked, mut last_work) = (0, true, Instant::now());
        while !stop.load(Ordering::Acquire) {
            worked |= self.turn();
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
                continue;
            }
            looks = 0;
            let now = Instant::now();
            if worked {
                (last_work, worked) = (now, false);
                continue;
            }
            let idle = now - last_work;
            if idle < nap.spin {
                continue;
            }
            if idle < nap.spin.saturating_add(nap.give_way) {
                std::thread::yield_now();
            } else {
                sleeper.parked.store(true, Ordering::Relaxed);
                // Whoever stops the threads wakes them after that: parking returns at once then.
                if !stop.load(Ordering::Acquire) {
                    std::thread::park();
                }
                sleeper.parked.store(false, Ordering::Relaxed);
                worked = true;
            }
            // One look between two rests.
            looks = LOOKS - 1;
        }
    }

    /// Copies the oldest piece of each engine; says whether there was any.
    fn turn(&mut self) -> bool {
        let mut any = false;
        for (mailbox, next) in &mut self.boxes {
            if mailbox.carry_out(*next, &mut self.room) {
                *next += 1;
                any = true;
            }
        }
        any
    }
}

/// An engine's mailbox at a thread.
struct Outbox {
    mailbox: Mailbox,
    /// Number of the next piece, and how many before it are out.
    posted: u64,
    open: usize,
    /// It has the ends of the run.
    given: bool,
}

impl Outbox {
    /// Takes the newest piece back.
    fn take_back(&mut self) -> bool {
        let taken = self.open > 0 && self.mailbox.take_back(self.posted - 1);
        if taken {
            self.posted -= 1;
            self.open -= 1;
        }
        taken
    }

    /// What has become of the oldest piece.
    fn outcome(&mut self, number: u64) -> Option<Outcome> {
        let outcome = self.mailbox.outcome(number)?;
        self.open -= 1;
        Some(outcome)
    }
}

/// A piece of a run, and who has it: a thread, with its number there.
struct Handed {
    piece: Piece,
    at: Result<(usize, u64), Outcome>,
}

/// A WQE of a run, and the number in the run of the piece that its last byte lies in.
pub(crate) struct Taken {
    pub(crate) carried: Carried,
    pub(crate) last: u64,
}

/// What an engine has of the copy threads.
pub(crate) struct Copiers {
    pool: Arc<Pool>,
    boxes: Vec<Outbox>,
    /// Of the run, oldest first.
    pieces: VecDeque<Handed>,
    /// WQEs of the run that are not complete.
    pub(crate) taken: VecDeque<Taken>,
    room: Vec<u8>,
    panicked: bool,
}

impl Copiers {
    /// How many threads would see a piece soon.
    pub(crate) fn awake(&self) -> u64 {
        self.pool.awake() as u64
    }

    /// How many threads there are.
    pub(crate) fn count(&self) -> u64 {
        self.boxes.len() as u64
    }

    /// Has one more thread ready for what comes next.
    pub(crate) fn wake_one(&self) {
        self.pool.wake_one();
    }

    /// Passes a copy's panic on, after its run: it ends what the engine's own would have ended.
    pub(crate) fn pass_panic_on(&mut self) {
        assert!(!std::mem::take(&mut self.panicked), "a copy panicked");
    }
}

/// Pieces that are copied in any order.
pub(crate) struct Run<'a> {
    copiers: &'a mut Copiers,
    ends: Ends,
    /// Thread that is asked first for room.
    next: usize,
    /// Pieces so far.
    pub(crate) count: u64,
}

impl<'a> Run<'a> {
    pub(crate) fn begin(copiers: &'a mut Copiers, ends: Ends) -> Self {
        Self { copiers, ends, next: 0, count: 0 }
    }

    /// The WQEs of the run.
    pub(crate) fn taken(&mut self) -> &mut VecDeque<Taken> {
        &mut self.copiers.taken
    }

    /// How many pieces are not known to be copied.
    pub(crate) fn open(&self) -> usize {
        self.copiers.pieces.len()
    }

    /// Has a piece copied: by a thread that has room for it, else here.
    pub(crate) fn add(&mut self, piece: Piece) {
        let threads = self.copiers.boxes.len();
        let room = (0..threads).map(|i| (self.next + i) % threads).find(|&thread| {
            let asleep = self.copiers.pool.0[thread].parked.load(Ordering::Relaxed);
            !asleep && self.copiers.boxes[thread].open < DEPTH
        });
        let Some(thread) = room else { return self.copy(piece) };
        self.next = (thread + 1) % threads;
        self.count += 1;
        let outbox = &mut self.copiers.boxes[thread];
        if !outbox.given {
            outbox.mailbox.give(Some(self.ends.clone()));
            outbox.given = true;
        }
        let number = outbox.posted;
        outbox.mailbox.post(number, piece);
        outbox.posted += 1;
        outbox.open += 1;
        self.copiers.pieces.push_back(Handed { piece, at: Ok((thread, number)) });
    }

    /// Copies a piece here.
    pub(crate) fn copy(&mut self, piece: Piece) {
        self.count += 1;
        let outcome = self.ends.contained(piece, &mut self.copiers.room);
        self.copiers.pieces.push_back(Handed { piece, at: Err(outcome) });
    }

    /// Copies a piece here that nobody has begun; false when there is none.
    pub(crate) fn help(&mut self) -> bool {
        let boxes = self.copiers.boxes.iter_mut().enumerate();
        let back = boxes.filter_map(|(i, it)| it.take_back().then_some((i, it.posted))).next();
        let Some(back) = back else { return false };
        let handed = self.copiers.pieces.iter_mut().rev().find(|handed| handed.at == Ok(back));
        let handed = handed.expect("every piece that is out is listed");
        handed.at = Err(self.ends.contained(handed.piece, &mut self.copiers.room));
        true
    }

    /// What has become of the oldest piece, which is forgotten then; `None` while that is open, or without any.
    pub(crate) fn oldest(&mut self) -> Option<Outcome> {
        let Copiers { boxes, pieces, panicked, .. } = &mut *self.copiers;
        let outcome = match pieces.front()?.at {
            Ok((thread, number)) => boxes[thread].outcome(number)?,
            Err(outcome) => outcome,
        };
        pieces.pop_front();
        *panicked |= outcome == Outcome::Panicked;
        Some(outcome)
    }
}

impl Drop for Run<'_> {
    /// Waits for the copies that are under way; what nobody has begun is not copied.
    fn drop(&mut self) {
        let Copiers { boxes, pieces, taken, panicked, .. } = &mut *self.copiers;
        // The newest first: it is the one that may come back.
        while let Some(handed) = pieces.pop_back() {
            let Ok((thread, number)) = handed.at else { continue };
            let mut looks = 0;
            while !boxes[thread].take_back() {
                // Bounded by the copy itself.
                let Some(outcome) = boxes[thread].mailbox.outcome(number) else {
                    pause(&mut looks);
                    continue;
                };
                boxes[thread].open -= 1;
                *panicked |= outcome == Outcome::Panicked;
                break;
            }
        }
        taken.clear();
        for outbox in boxes.iter_mut().filter(|outbox| outbox.given) {
            outbox.mailbox.give(None);
            outbox.given = false;
        }
    }
}

/// Waits a moment, as somebody whose turn may have to come on this core.
pub(crate) fn pause(looks: &mut u32) {
    *looks += 1;
    if looks.is_multiple_of(LOOKS) { std::thread::yield_now() } else { std::hint::spin_loop() }
}
