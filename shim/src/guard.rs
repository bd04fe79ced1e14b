//! A link whose descriptors are the device's no more: the program has closed them.
//!
//! libc's functions that close are hooked; a system call of the program's own is not seen, nor is
//! what libc closes inside of itself. What has the numbers then is the program's own: a device that
//! went on would take its datagrams. Such a device's port goes down instead, as if the cable had
//! been pulled.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bellpush_mem::hidden::Mark;
use bellpush_soft_nic::link::{
    Carries, FaultCounters, Link, LinkCounters, LinkError, Notice, Received, Share, TxBatch,
};
use bellpush_wire::roce::Fields;

use crate::process::say;

/// How often a busy engine looks: each time would cost as much as the packets do.
const LOOK_NS: u64 = 10_000;

/// A link that looks after its descriptors.
pub struct Guarded {
    pub inner: Box<dyn Link>,
    /// Descriptors of the link.
    pub marks: Vec<Mark>,
    /// Whether one was closed.
    pub lost: Arc<AtomicBool>,
    /// The device's number.
    pub index: usize,
    /// When they are to be looked at.
    pub look_ns: u64,
}

impl Guarded {
    /// Before anything is sent or received: an engine that rests looks after every rest.
    fn look(&mut self, now_ns: u64) -> Result<(), LinkError> {
        if now_ns >= self.look_ns && !self.lost.load(Ordering::Relaxed) {
            self.look_ns = now_ns + LOOK_NS;
            if !self.marks.iter().all(|mark| mark.is_there()) {
                self.lost.store(true, Ordering::Relaxed);
                let index = self.index;
                say(&format!(
                    "mlx5_{index}: the program has closed a descriptor of the device's: its port is down"
                ));
            }
        }
        match self.lost.load(Ordering::Relaxed) {
            true => {
                let source = io::Error::from_raw_os_error(libc::EBADF);
                Err(LinkError::System { call: "a descriptor that was closed", source })
            }
            false => Ok(()),
        }
    }
}

impl Link for Guarded {
    fn address(&self) -> IpAddr {
        self.inner.address()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn src_port(&self) -> u16 {
        self.inner.src_port()
    }

    fn carries(&self) -> Carries {
        self.inner.carries()
    }

    fn fields(&self, wanted: &Fields) -> Fields {
        self.inner.fields(wanted)
    }

    fn take_port(&mut self, port: u16) -> Result<(), LinkError> {
        self.inner.take_port(port)
    }

    fn leave_port(&mut self, port: u16) {
        self.inner.leave_port(port);
    }

    fn has_icrc(&self) -> bool {
        self.inner.has_icrc()
    }

    fn joins(&self) -> bool {
        self.inner.joins()
    }

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        self.look(now_ns)?;
        self.inner.send(now_ns, batch)
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        self.look(now_ns)?;
        self.inner.recv(now_ns, most, each)
    }

    fn share(&self) -> Option<Share> {
        self.inner.share()
    }

    fn tell(&mut self, notice: Notice) {
        self.inner.tell(notice);
    }

    fn poll_at(&self) -> Option<u64> {
        self.inner.poll_at()
    }

    fn is_up(&mut self) -> bool {
        !self.lost.load(Ordering::Relaxed) && self.inner.is_up()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }

    fn faults(&self) -> Option<FaultCounters> {
        self.inner.faults()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
