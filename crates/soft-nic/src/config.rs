//! What a software NIC is made of.

use std::sync::Arc;
use std::time::Duration;

use crate::adversary::Adversary;
use crate::offload::Offload;
use crate::random::Random;
use crate::record::Record;
use crate::script::ScriptedFaults;
use crate::service::local::InProcess;
use crate::service::requester::Timers;
use crate::trace::{Tracer, Tracing};
use bellpush_nic::{NicError, Order};

/// How an engine's thread waits for work.
///
/// Doorbells in plain memory cannot wake a sleeper, so naps are bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nap {
    /// How long to go on looking after the last work.
    pub spin: Duration,
    /// How long to go on looking, but giving way to other threads, after that.
    pub give_way: Duration,
    /// Length of a nap after that.
    pub nap: Duration,
}

impl Default for Nap {
    fn default() -> Self {
        let us = Duration::from_micros;
        Self { spin: us(50), give_way: us(200), nap: us(50) }
    }
}

impl Nap {
    /// Never naps: for a machine with a core to spare for each engine.
    pub const NEVER: Self =
        Self { spin: Duration::MAX, give_way: Duration::MAX, nap: Duration::ZERO };

    /// For so many threads, other busy ones among them, on so many cores. A thread that has given way or naps comes
    /// late to the next message, all the later the longer messages take: they stay long then.
    pub fn for_threads(threads: usize, cores: usize) -> Self {
        if threads < cores { Self::NEVER } else { Self::default() }
    }
}

/// What a software NIC is made of.
#[derive(Clone)]
pub struct SoftConfig {
    /// Number of engines. Queue pairs are dealt to them in the order of creation, each round
    /// beginning one engine later, so that pairs made together do not put all senders on one.
    pub engines: usize,
    /// In-process: threads that help the engines to copy, 0 to 64. Many bytes in WRITEs that continue each other are
    /// copied by several of them: one queue pair is not bound to one core then. They wait as the engines do, and park
    /// at last. A NIC whose engines are driven by hand, or on a packet link, has none.
    pub copy_threads: usize,
    /// The in-process link that the NIC is on, unless it is opened on a packet link.
    pub link: Arc<InProcess>,
    /// How the engines' threads wait.
    pub nap: Nap,
    /// In-process: pause between two tries of a SEND to an empty receive queue. (On a packet link
    /// this and the next are attributes of the queue pair.)
    pub rnr_timer: Duration,
    /// In-process: how long a peer that does not answer is tried.
    pub answer_timer: Duration,
    /// Where random numbers (keys, first PSNs, queue pair numbers on packet links) begin; `None` takes
    /// what the system gives. A number is for simulations that must repeat: whoever has a key or a PSN
    /// can compute the others.
    pub seed: Option<u64>,
    /// In-process: an engine elsewhere that carries out what is plain and correct. NICs that send to
    /// each other through it must share it.
    pub offload: Option<Arc<Offload>>,
    /// A script of faults that happen on the device. No engine elsewhere carries anything out then.
    pub faults: Option<Arc<ScriptedFaults>>,
    /// What takes every freedom that the rules give ([`crate::SoftNic::findings`]). The NIC has no copy threads and no
    /// engine elsewhere then.
    pub adversary: Option<Adversary>,
    /// What whoever posts to queue pairs on memory of [`Nic::queue_bytes`](bellpush_nic::Nic::queue_bytes) has to see
    /// to. [`Order::Strict`] is silicon's, for programs that will post to a card: without an adversary of the kind
    /// `doorbell` the NIC takes [`Order::Later`] as well, but no BlueFlame buffers with check words and no in-band slots
    /// are on offer.
    pub order: Order,
    /// On a packet link: a recording of what the NIC is asked, sees and does ([`crate::record`]). Its random numbers
    /// begin with a number that stands in the recording.
    pub record: Option<Record>,
    /// Where the NIC writes down what it does and when ([`crate::trace`]), and which of its process's devices it is.
    pub trace: Option<(Arc<Tracing>, usize)>,
}

impl SoftConfig {
    /// Engine threads that so many cores have room for: three quarters of them, since as many as there are cores would
    /// leave none for who calls; 1 to 12.
    pub fn engines_for(cores: usize) -> usize {
        (cores * 3 / 4).clamp(1, 12)
    }

    /// Copy threads that so many cores have room for beside so many engines, when two cores are left to who calls; 0 to
    /// 7: eight threads that copy are as fast as memory is, or nearly.
    pub fn copy_threads_for(cores: usize, engines: usize) -> usize {
        cores.saturating_sub(engines + 2).min(7)
    }

    /// One engine on a link, without copy threads, with default timers.
    pub fn new(link: &Arc<InProcess>) -> Self {
        Self {
            engines: 1,
            copy_threads: 0,
            link: link.clone(),
            nap: Nap::default(),
            rnr_timer: Duration::from_micros(20),
            answer_timer: Duration::from_millis(200),
            seed: None,
            offload: None,
            faults: None,
            adversary: None,
            order: Order::Later,
            record: None,
            trace: None,
        }
    }
}

impl SoftConfig {
    /// What does not change while the NIC lives.
    pub(crate) fn fixed(&self) -> Result<(Timers, Arc<Random>), NicError> {
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 4);
        let timers = Timers { rnr_ns: ns(self.rnr_timer), answer_ns: ns(self.answer_timer) };
        let random = match self.seed {
            Some(seed) => Random::seeded(seed),
            None => Random::system().map_err(NicError::Random)?,
        };
        Ok((timers, Arc::new(random)))
    }

    /// What the NIC writes its trace with, if it has one; also none when too many NICs have.
    pub(crate) fn tracer(&self, place: &str) -> Result<Option<Tracer>, NicError> {
        let Some((tracing, index)) = &self.trace else { return Ok(None) };
        Ok(tracing.claim(*index, place)?)
    }

    /// Copy threads that the NIC has.
    pub(crate) fn copiers(&self) -> usize {
        if self.adversary.is_some() { 0 } else { self.copy_threads }
    }
}

impl Default for SoftConfig {
    /// As [`SoftConfig::new`] on an in-process link of its own.
    fn default() -> Self {
        Self::new(&InProcess::new())
    }
}
