//! NICs as the program's root wants them (`ENGINE`): plain, or with an adversary, on the in-process link or on packets.
//!
//! Each adversary has another seed. `BELLPUSH_TEST_ADVERSARY=SEED[,KIND…]` says where seeds begin, and which freedoms are
//! taken; without it the usual ones are, from seed 1 on.

#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bellpush::mem::{Dma, View};
use bellpush::nic::soft::link::{Link, ShmNet};
use bellpush::nic::soft::{Adversary, AdversaryKind, InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Access, Dm, Mr, Nic, NicError, Order, QpAttr, QueueMemory, QueuePair};
use bellpush::wire::{Iova, Qpn};

/// An adversary on a packet link; a NIC that is stepped by hand has one on the in-process link.
const BY_PACKETS: &str = "adversary by packets";

/// What takes every freedom that the rules give, where the program wants it.
pub fn adversary() -> Option<Adversary> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let asked = || match std::env::var("BELLPUSH_TEST_ADVERSARY") {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("BELLPUSH_TEST_ADVERSARY: {e}")),
        Err(_) => Adversary::new(1),
    };
    let wants = crate::ENGINE.starts_with("adversary");
    wants.then(asked).map(|mut it| {
        it.seed = it.seed.wrapping_add(NUMBER.fetch_add(1, Ordering::Relaxed));
        it
    })
}

/// NICs that reach each other.
pub enum Fabric {
    InProcess(Arc<InProcess>),
    Packets(ShmNet),
}

impl Fabric {
    pub fn new() -> Self {
        match crate::ENGINE {
            BY_PACKETS => Self::Packets(ShmNet::anonymous(false).expect("memory for packets")),
            _ => Self::InProcess(InProcess::new()),
        }
    }

    /// A NIC with an engine on a thread.
    pub fn open(&self) -> Arc<dyn Nic> {
        self.open_with(|config| config)
    }

    /// One whose program uses payloads again when their receivers have answered: with packets their completion may come
    /// later, and nothing is made of what changes there.
    pub fn open_for_answers(&self) -> Arc<dyn Nic> {
        let without = |it: Adversary| {
            let kept = |&kind: &AdversaryKind| kind != AdversaryKind::Payload && it.has(kind);
            let kinds: Vec<_> = AdversaryKind::ALL.into_iter().filter(kept).collect();
            Adversary::of(it.seed, &kinds)
        };
        match self {
            Self::InProcess(_) => self.open(),
            Self::Packets(_) => self.open_under(adversary().map(without), |config| config),
        }
    }

    /// The same as `open`, where the test has something to say about it.
    pub fn open_with(&self, change: impl FnOnce(SoftConfig) -> SoftConfig) -> Arc<dyn Nic> {
        self.open_under(adversary(), change)
    }

    fn open_under(
        &self,
        adversary: Option<Adversary>,
        change: impl FnOnce(SoftConfig) -> SoftConfig,
    ) -> Arc<dyn Nic> {
        let nic = match self {
            Self::InProcess(link) => {
                SoftNic::open(change(SoftConfig { adversary, ..SoftConfig::new(link) }))
            }
            Self::Packets(net) => {
                let link: Box<dyn Link> = Box::new(net.attach_free().expect("an address"));
                SoftNic::open_on(change(SoftConfig { adversary, ..SoftConfig::default() }), link)
            }
        };
        watched(nic.expect("a NIC"), adversary)
    }
}

/// NICs with adversaries, and the address that their users know them by.
static WATCHED: Mutex<Vec<(usize, Weak<SoftNic>)>> = Mutex::new(Vec::new());

fn address(nic: &Arc<dyn Nic>) -> usize {
    Arc::as_ptr(nic).cast::<()>() as usize
}

/// A NIC whose adversary must find nothing: what it finds ends the engine, and [`Silent`] tells.
pub fn watched(nic: Arc<SoftNic>, adversary: Option<Adversary>) -> Arc<dyn Nic> {
    let Some(adversary) = adversary else { return nic };
    assert!(nic.tell_findings(Box::new(|finding, _| panic!("{finding}"))));
    let passes =
        [AdversaryKind::Writes, AdversaryKind::Atomics].iter().any(|&it| adversary.has(it));
    let users: Arc<dyn Nic> = match passes {
        true => relaxed(nic.clone()),
        false => nic.clone(),
    };
    let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, nic)| nic.strong_count() > 0);
    all.push((address(&users), Arc::downgrade(&nic)));
    users
}

/// Whoever has one says at its end that no adversary of these NICs has found anything.
pub struct Silent(Vec<Arc<SoftNic>>);

impl Silent {
    pub fn of<'a>(nics: impl IntoIterator<Item = &'a Arc<dyn Nic>>) -> Self {
        let all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |nic: &Arc<dyn Nic>| {
            let found = all.iter().rev().find(|(at, _)| *at == address(nic));
            found.and_then(|(_, nic)| nic.upgrade())
        };
        Self(nics.into_iter().filter_map(known).collect())
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let found = self.0.iter().flat_map(|nic| nic.findings());
        let found: Vec<_> = found.map(|finding| finding.to_string()).collect();
        assert!(found.is_empty() || std::thread::panicking(), "{}", found.join("\n"));
    }
}

/// A NIC whose regions' WRITEs may land in any order, all before they are acknowledged: what its adversary does to
/// them, it does to those of programs that ask for it.
struct Relaxed(Arc<SoftNic>);

pub fn relaxed(nic: Arc<SoftNic>) -> Arc<dyn Nic> {
    Arc::new(Relaxed(nic))
}

impl Nic for Relaxed {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn is_software(&self) -> bool {
        true
    }
    fn order(&self) -> Order {
        self.0.order()
    }
    fn trouble(&self) -> Option<NicError> {
        self.0.trouble()
    }
    fn register(&self, mem: Arc<dyn Dma>, iova: Iova, access: Access) -> Result<Mr, NicError> {
        self.0.register(mem, iova, Access { relaxed_order: true, ..access })
    }
    fn deregister(&self, mr: Mr) -> Result<(), NicError> {
        self.0.deregister(mr)
    }
    fn alloc_dm(&self, bytes: usize) -> Result<Option<Dm>, NicError> {
        self.0.alloc_dm(bytes)
    }
    fn dm_bytes(&self) -> u64 {
        self.0.dm_bytes()
    }
    fn alloc_queues(&self, bytes: usize) -> Result<Option<View>, NicError> {
        self.0.alloc_queues(bytes)
    }
    fn queue_bytes(&self, attr: &QpAttr) -> usize {
        self.0.queue_bytes(attr)
    }
    fn create_qp(
        &self,
        attr: &QpAttr,
        memory: QueueMemory,
    ) -> Result<Arc<dyn QueuePair>, NicError> {
        self.0.create_qp(attr, memory)
    }
    fn destroy_qp(&self, qpn: Qpn) -> Result<(), NicError> {
        self.0.destroy_qp(qpn)
    }
}
