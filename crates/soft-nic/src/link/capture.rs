//! A link whose packets are recorded in a file.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{FaultCounters, Link, LinkCounters, LinkError, Received, TxBatch, forward_to_inner};
use crate::link::pcap::Pcap;
use bellpush_wire::roce::{Addresses, Envelope};

/// A link that records what goes over it: what the link below took, and what it handed out.
pub struct Captured<L> {
    inner: L,
    /// Nothing after it could not be written: the link goes on without.
    pcap: Option<Pcap>,
    /// Nanoseconds since 1970 at the engine's time 0.
    epoch_ns: Option<u64>,
}

impl<L: Link> Captured<L> {
    /// Records what goes over `inner` in a file.
    ///
    /// # Errors
    /// [`LinkError::System`] when the file cannot be made.
    pub fn new(inner: L, path: &Path) -> Result<Self, LinkError> {
        let pcap = Pcap::create(path).map_err(failed)?;
        Ok(Self { inner, pcap: Some(pcap), epoch_ns: None })
    }

    fn at(&mut self, now_ns: u64) -> u64 {
        let epoch = self.epoch_ns.get_or_insert_with(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_nanos()).unwrap_or(0).saturating_sub(now_ns)
        });
        epoch.saturating_add(now_ns)
    }

    fn write(
        &mut self,
        what: impl FnOnce(&L, &mut Pcap) -> io::Result<()>,
    ) -> Result<(), LinkError> {
        let result = self.pcap.as_mut().map_or(Ok(()), |pcap| what(&self.inner, pcap));
        if result.is_err() {
            self.pcap = None;
        }
        result.map_err(failed)
    }
}

fn failed(source: io::Error) -> LinkError {
    LinkError::System { call: "write of the capture file", source }
}

impl<L: Link> Link for Captured<L> {
    forward_to_inner!();

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        let taken = self.inner.send(now_ns, batch)?;
        let (at_ns, fill) = (self.at(now_ns), !self.inner.has_icrc());
        let (me, port) = (self.inner.address(), self.inner.src_port());
        self.write(|inner, pcap| {
            for packet in batch.taken(taken) {
                let Some(addresses) = Addresses::new(me, packet.to) else { continue };
                let fields = inner.fields(&packet.fields);
                let envelope = Envelope::new(addresses, port).with(&fields);
                pcap.record(at_ns, &envelope, packet.bytes, fill)?;
            }
            pcap.pass(at_ns)
        })?;
        Ok(taken)
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        let (at_ns, fill) = (self.at(now_ns), !self.inner.has_icrc());
        let (inner, mut pcap) = (&mut self.inner, self.pcap.as_mut());
        let mut written = Ok(());
        let count = inner.recv(now_ns, most, &mut |packet| {
            if let (Some(pcap), Ok(())) = (&mut pcap, &written) {
                written = pcap.record(at_ns, &packet.envelope, packet.bytes, fill);
            }
            each(packet);
        })?;
        self.write(|_, pcap| written.and_then(|()| pcap.pass(at_ns)))?;
        Ok(count)
    }

    fn poll_at(&self) -> Option<u64> {
        self.inner.poll_at()
    }

    fn holds(&self) -> bool {
        self.inner.holds()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }

    fn faults(&self) -> Option<FaultCounters> {
        self.inner.faults()
    }

    fn describe(&self) -> String {
        let state = if self.pcap.is_some() { "captured" } else { "capture failed" };
        format!("{}; {state}", self.inner.describe())
    }
}
