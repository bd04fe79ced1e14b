//! Queue pair 1, the general service interface (InfiniBand vol. 1, 13.5.1): management datagrams, which
//! a manager outside of the NIC reads and writes. It has no queues: what comes is handed out at once,
//! and what is to be sent waits in a list until the engine comes by.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::counters::{DropReason, Live};
use crate::link::Notice;
use crate::link::place::Payload;
use crate::link::port::{Arrived, Port, Route};
use bellpush_nic::NicError;
use bellpush_wire::cm::{GSI_QKEY, GSI_QPN, MAD_BYTES};
use bellpush_wire::roce::{Bth, Deth, Fields, Headers, Opcode, Operation, Service};
use bellpush_wire::{Psn, Qpn};

/// Datagrams that wait at most.
const MOST: usize = 1024;

/// Called with each management datagram that comes, and who sent it.
///
/// It runs on the engine's thread, which holds locks of the NIC: it must only pass the datagram on.
pub type MadSink = Box<dyn Fn(IpAddr, &[u8; MAD_BYTES]) + Send + Sync>;

type Waiting = VecDeque<(IpAddr, [u8; MAD_BYTES])>;

/// Queue pair 1.
#[derive(Default)]
pub(crate) struct Gsi {
    sink: OnceLock<MadSink>,
    waiting: Mutex<Waiting>,
    /// What the link is to be told. Locked before `waiting`.
    notices: Mutex<VecDeque<Notice>>,
    /// Whether something may be waiting: an engine without looks no further.
    has: AtomicBool,
}

impl Gsi {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notices(&self) -> MutexGuard<'_, VecDeque<Notice>> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has what comes told; says whether that was not asked for before.
    pub(crate) fn tell(&self, sink: MadSink) -> bool {
        let is_first = self.sink.set(sink).is_ok();
        if is_first {
            self.notice(Notice::Manages);
        }
        is_first
    }

    /// Has the link told what the manager wants, where others at the NIC's address want something.
    pub(crate) fn notice(&self, notice: Notice) {
        let mut notices = self.notices();
        notices.push_back(notice);
        self.has.store(true, Ordering::Relaxed); // under the lock, as below
    }

    /// Takes a datagram that is to be sent.
    pub(crate) fn post(&self, to: IpAddr, mad: [u8; MAD_BYTES]) -> Result<(), NicError> {
        let mut waiting = self.waiting();
        if waiting.len() == MOST {
            return Err(NicError::Full { what: "management datagrams", limit: MOST });
        }
        waiting.push_back((to, mad));
        // Under the lock, so that the engine which clears it has the datagram.
        self.has.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether everything was given to the link.
    pub(crate) fn is_empty(&self) -> bool {
        self.notices().is_empty() && self.waiting().is_empty()
    }

    /// Whether anything may wait to be sent.
    #[inline]
    pub(crate) fn has_something(&self) -> bool {
        self.has.load(Ordering::Relaxed)
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn send(&self, port: &mut Port) {
        let mut notices = self.notices();
        notices.drain(..).for_each(|notice| port.tell(notice));
        let mut waiting = self.waiting();
        while port.room() > 0 {
            let Some((to, mad)) = waiting.pop_front() else { break };
            let opcode = Opcode::new(Service::Ud, Operation::SendOnly);
            let mut headers = Headers::new(Bth::new(opcode, Qpn(GSI_QPN), Psn::new(0)));
            headers.ext.deth = Some(Deth { qkey: GSI_QKEY, source: Qpn(GSI_QPN) });
            let route = Route { to, fields: Fields::default() };
            // Private memory takes it, and nothing else is asked for so few bytes.
            let _ = port.send(&route, &headers, MAD_BYTES, |into| into.put(0, &mad));
        }
        self.has.store(!waiting.is_empty(), Ordering::Relaxed);
    }

    /// Takes a packet that is addressed to queue pair 1.
    pub(crate) fn on_packet(&self, arrived: &Arrived<'_>, counters: &Live) {
        let packet = arrived.packet;
        let Some(sink) = self.sink.get() else {
            return counters.dropped(DropReason::NoSuchQp);
        };
        if packet.opcode() != Opcode::new(Service::Ud, Operation::SendOnly) {
            return counters.dropped(DropReason::Opcode);
        }
        if packet.headers.ext.deth.is_none_or(|deth| deth.qkey != GSI_QKEY) {
            return counters.dropped(DropReason::Qkey);
        }
        let mad = match packet.payload {
            Payload::Bytes(bytes) => bytes.try_into().ok(),
            Payload::Shared(_) => None,
        };
        match mad {
            Some(mad) => sink(arrived.envelope.addresses.src(), mad),
            None => counters.dropped(DropReason::Length),
        }
    }
}
