//! A NIC that takes every freedom that the rules give, and silicon almost never does; and that says where a program
//! relied on what they do not give.
//!
//! Programs for RDMA NICs are tested on NICs that read a WQE and its payload within microseconds, place the bytes of a
//! WRITE from the first to the last, and complete at once. None of that is promised. What is, `docs/adversary.md` says
//! with the rules' places.
//!
//! | where | kinds |
//! |---|---|
//! | `sends` | `record`, `payload`: WQEs and their payloads are looked at early, and used late |
//! | `bells` | `doorbell`: the doorbell record is read when a doorbell comes, and at no other time |
//! | `edges` | `payload`: what is sent before it has been fetched, or has arrived |
//! | `writes` | `writes`, `atomics`: the bytes of WRITEs land late, in pieces and in any order |
//! | `cqes` | `cqe`: completions come late, CQ by CQ |
//! | `packets` | `packets`, `acks`, `routing`: a link that keeps no more order than a network does |
//! | `spec` `findings` `lines` | what is asked for; what was found; which line of a kernel posted it |
//!
//! Decisions follow from the seed and from what happens, in its order: the same events meet the same decisions.

pub(crate) mod bells;
pub(crate) mod cqes;
mod edges;
mod findings;
mod lines;
mod packets;
pub(crate) mod sends;
mod spec;
mod writes;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub use findings::{Finding, FindingSink};
pub use lines::SourceLine;
pub use spec::{Adversary, AdversaryError, Kind};

pub(crate) use packets::Unruly;

use crate::SoftNic;
use crate::link::{Link, Rng};
use crate::objects::cq::Cq;
use findings::Findings;
use sends::Sends;
use writes::Writes;

/// How long something waits at most, in nanoseconds: far longer than silicon takes, far shorter than any timer of a
/// transport.
const LONGEST_NS: u64 = 100_000;

/// How long something waits: not at all, or mostly not for long.
fn wait_ns(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0..=2 => 0,
        3..=5 => rng.below(LONGEST_NS / 50),
        6 => rng.below(LONGEST_NS / 5),
        _ => rng.below(LONGEST_NS),
    }
}

/// The adversary's share of a device.
pub(crate) struct State {
    adversary: Adversary,
    /// Time of the newest step of any engine.
    now_ns: AtomicU64,
    findings: Findings,
    files: lines::Files,
    writes: Mutex<Writes>,
    afloat: writes::Afloat,
    cqs: Mutex<Vec<Weak<Cq>>>,
    /// Generators handed out so far.
    streams: AtomicU64,
}

/// The adversary's share of a queue pair.
pub(crate) struct OfQp {
    pub(crate) state: Arc<State>,
    sends: Mutex<Sends>,
    /// Its record is read when a doorbell comes alone, if it is posted to as silicon asks for it.
    pub(crate) by_bell: bool,
}

impl OfQp {
    pub(crate) fn sends(&self) -> MutexGuard<'_, Sends> {
        lock(&self.sends)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn new(adversary: Adversary) -> Arc<Self> {
        Arc::new(Self {
            adversary,
            now_ns: AtomicU64::new(0),
            findings: Findings::default(),
            files: lines::Files::default(),
            writes: Mutex::new(Writes::new(Rng(adversary.seed))),
            afloat: writes::Afloat::default(),
            cqs: Mutex::default(),
            streams: AtomicU64::new(1),
        })
    }

    pub(crate) fn has(&self, kind: Kind) -> bool {
        self.adversary.has(kind)
    }

    /// A generator of its own for what is created next.
    fn stream(&self) -> Rng {
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        Rng(self.adversary.seed ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// Its share of a new queue pair.
    pub(crate) fn of_qp(self: &Arc<Self>) -> Box<OfQp> {
        let rng = self.stream();
        let by_bell = bells::draws(self, &rng);
        Box::new(OfQp { state: self.clone(), sends: Mutex::new(Sends::new(rng)), by_bell })
    }

    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    /// A step of an engine begins.
    pub(crate) fn begin(&self, now_ns: u64) {
        self.now_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// Brings about what is due; says when more is.
    pub(crate) fn step(&self, now_ns: u64) -> Option<u64> {
        let landing = self.land_due(now_ns);
        let cqs: Vec<_> = {
            let mut cqs = lock(&self.cqs);
            cqs.retain(|cq| cq.strong_count() > 0);
            cqs.iter().filter_map(Weak::upgrade).collect()
        };
        let completing = cqs.iter().filter_map(|cq| cq.release_late(now_ns)).min();
        landing.into_iter().chain(completing).min()
    }

    /// A new CQ whose entries may come late.
    pub(crate) fn watch(&self, cq: &Arc<Cq>) {
        lock(&self.cqs).push(Arc::downgrade(cq));
    }

    fn report(&self, finding: Finding) {
        self.findings.add(finding);
    }
}

/// The link as a NIC with an adversary sees it.
pub(crate) fn wrap(link: Box<dyn Link>, adversary: Option<Adversary>) -> Box<dyn Link> {
    match adversary {
        Some(it) if Unruly::suits(it) => Box::new(Unruly::new(link, it)),
        _ => link,
    }
}

impl SoftNic {
    /// What the adversary has found so far, oldest first; the first thousand. Empty without one.
    pub fn findings(&self) -> Vec<Finding> {
        self.device.adversary.as_ref().map_or_else(Vec::new, |it| it.findings.all())
    }

    /// How much the adversary has found so far, by kind; kinds that found nothing are left out.
    pub fn finding_counts(&self) -> Vec<(Kind, u64)> {
        self.device.adversary.as_ref().map_or_else(Vec::new, |it| it.findings.counts())
    }

    /// Has the adversary's findings told from now on, those among them that are worth a line: the first twenty, then
    /// one at each power of ten. The first who asks for it has them; says whether that is the caller. The sink runs
    /// within a step, as [`crate::EventSink`] does.
    pub fn tell_findings(&self, sink: FindingSink) -> bool {
        self.device.adversary.as_ref().is_some_and(|it| it.findings.tell(sink))
    }

    /// Has findings from now on name lines of these files ([`Finding::posted_at`]): sources of kernels that were
    /// compiled with `BELLPUSH_WHERE`, and their headers. Of two files whose names are the same behind the last slash no
    /// line is told. Without an adversary nothing happens.
    pub fn name_kernels<'a>(&self, files: impl IntoIterator<Item = &'a str>) {
        if let Some(adversary) = &self.device.adversary {
            files.into_iter().for_each(|file| adversary.files.add(file));
        }
    }
}
