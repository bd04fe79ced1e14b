//! Extended reliable connections (InfiniBand vol. 1, annex A14): domains, and what a receiving end
//! keeps of them.
//!
//! A receiving end has no receives, CQ or protection domain of its own. Each request names an SRQ of
//! its XRC domain, which has all three. The SRQ of a message is looked up where the message begins;
//! one that is closed takes no more, and nothing more is written to its CQ.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use crate::objects::cq::Cq;
use crate::objects::srq::Srq;
use crate::vendor::Vendor;

/// An XRC domain: receiving ends and SRQs of one go together. It lives as long as anyone holds it.
#[derive(Default)]
pub struct Xrcd {
    srqs: RwLock<HashMap<u32, Weak<Srq>>>,
    /// Its number in a recording.
    pub(crate) number: u32,
}

impl Xrcd {
    pub(crate) fn numbered(number: u32) -> Arc<Self> {
        Arc::new(Self { number, ..Self::default() })
    }

    pub(crate) fn add(&self, srq: &Arc<Srq>) {
        let mut srqs = self.srqs.write().unwrap_or_else(PoisonError::into_inner);
        srqs.retain(|_, srq| srq.strong_count() > 0);
        srqs.insert(srq.number(), Arc::downgrade(srq));
    }

    fn find(&self, srqn: u32) -> Option<Arc<Srq>> {
        let srqs = self.srqs.read().unwrap_or_else(PoisonError::into_inner);
        srqs.get(&srqn).and_then(Weak::upgrade).filter(|srq| !srq.is_closed())
    }
}

/// What an SRQ of an XRC domain has that other SRQs' queue pairs have.
#[derive(Clone)]
pub struct XrcSrq {
    /// Its domain.
    pub xrcd: Arc<Xrcd>,
    /// Where its receives complete.
    pub cq: Arc<Cq>,
    /// User index that CQEs carry (CQE version 1), 24 bits.
    pub uidx: u32,
}

/// What a receiving end keeps: its domain, and the SRQ of the message that it takes.
pub(crate) struct Target {
    xrcd: Arc<Xrcd>,
    current: Mutex<Option<Arc<Srq>>>,
}

impl Target {
    pub(crate) fn new(xrcd: Arc<Xrcd>) -> Self {
        Self { xrcd, current: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Srq>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The SRQ of the message under way.
    pub(crate) fn srq(&self) -> Option<Arc<Srq>> {
        self.lock().clone()
    }

    /// The SRQ that a request is for. All packets of a message name the same.
    pub(crate) fn enter(&self, srqn: Option<u32>, begins: bool) -> Result<Arc<Srq>, Vendor> {
        let srqn = srqn.ok_or(Vendor::Srq)?;
        let mut current = self.lock();
        if begins {
            *current = self.xrcd.find(srqn);
        }
        current.clone().filter(|srq| srq.number() == srqn).ok_or(Vendor::Srq)
    }
}
