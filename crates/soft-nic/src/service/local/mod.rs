//! The in-process link: NICs of one process, and messages between their queue pairs.
//!
//! A message moves as a whole and directly: the requester's engine resolves the peer's keys and
//! copies from the local regions to the remote ones, without packets in between.

pub(crate) mod capture;
pub(crate) mod coalesce;
pub(crate) mod execute;
pub(crate) mod requester;
pub(crate) mod responder;
mod spread;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use crate::device::Device;
use crate::objects::qp::Qp;
use crate::service::local::capture::InprocCapture;
use bellpush_wire::Qpn;

/// The NICs of this process that can reach each other.
#[derive(Default)]
pub struct InProcess {
    nics: RwLock<(u64, HashMap<u64, Weak<Device>>)>,
    inproc_capture: Option<InprocCapture>,
}

impl InProcess {
    /// A link without NICs.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A link without NICs, whose messages are recorded in a file as the packets that RoCEv2 would
    /// send for them. Their number and times say nothing about this link: it carries no packets.
    ///
    /// # Errors
    /// The system's, when the file cannot be made.
    pub fn captured(path: &Path) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { inproc_capture: Some(InprocCapture::create(path)?), ..Self::default() }))
    }

    /// Who records what goes over the link.
    pub(crate) fn inproc_capture(&self) -> Option<&InprocCapture> {
        self.inproc_capture.as_ref()
    }

    /// Puts a NIC on the link, which `make` builds for its number.
    pub(crate) fn attach(&self, make: impl FnOnce(u64) -> Arc<Device>) -> Arc<Device> {
        let mut nics = self.nics.write().unwrap_or_else(PoisonError::into_inner);
        nics.0 += 1;
        let id = nics.0;
        let device = make(id);
        nics.1.insert(id, Arc::downgrade(&device));
        device
    }

    pub(crate) fn detach(&self, id: u64) {
        self.nics.write().unwrap_or_else(PoisonError::into_inner).1.remove(&id);
    }

    pub(crate) fn find(&self, nic: u64, qpn: Qpn) -> Option<Arc<Qp>> {
        let nics = self.nics.read().unwrap_or_else(PoisonError::into_inner);
        let device = nics.1.get(&nic)?.upgrade();
        drop(nics); // dropping the last reference to a NIC takes this lock
        device?.qp(qpn.0)
    }
}
