//! Packets, as they go into a recording.

use std::sync::Arc;

use super::event::{Event, Tail};
use super::log::Recorder;
use super::tap::tail;
use super::{HEAD, SHORT};
use crate::link::{Link, LinkCounters, LinkError, Received, TxBatch};
use bellpush_wire::roce::{ICRC_BYTES, Packet};

/// A link whose packets are written down.
pub(crate) struct Recorded<L> {
    inner: L,
    recorder: Arc<Recorder>,
}

impl<L: Link> Recorded<L> {
    pub(crate) fn new(inner: L, recorder: Arc<Recorder>) -> Self {
        Self { inner, recorder }
    }
}

/// What of a packet is written down: all of it, or its headers, [`HEAD`] bytes of its payload, and the hash of the rest.
pub(super) fn split(packet: &[u8], whole: bool) -> (&[u8], Option<Tail>) {
    if whole || packet.len() <= SHORT {
        return (packet, None);
    }
    let Ok(parsed) = Packet::parse(packet) else { return (packet, None) };
    // Behind the payload there are its pad and the ICRC alone.
    let rest = packet.len() - parsed.payload.len();
    let pad = usize::from(parsed.headers.bth.pad);
    match rest.checked_sub(pad + ICRC_BYTES) {
        Some(headers) if parsed.payload.len() >= HEAD => {
            (&packet[..headers + HEAD], Some(tail(&parsed.payload[HEAD..])))
        }
        _ => (packet, None),
    }
}

impl<L: Link> Link for Recorded<L> {
    crate::link::forward_shape_to_inner!();

    fn take_port(&mut self, port: u16) -> Result<(), LinkError> {
        let taken = self.inner.take_port(port);
        if self.recorder.is_ours() {
            self.recorder.log().say(&Event::Port { port, granted: taken.is_ok() });
        }
        taken
    }

    fn is_up(&mut self) -> bool {
        let up = self.inner.is_up();
        let mut log = self.recorder.log();
        if log.up != Some(up) && self.recorder.is_ours() {
            log.up = Some(up);
            log.say(&Event::Up(up));
        }
        up
    }

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        let sent = self.inner.send(now_ns, batch);
        // A NIC that ends sends its farewells when nobody writes any more.
        if !self.recorder.is_ours() {
            return sent;
        }
        let mut log = self.recorder.log();
        for packet in batch.taken(*sent.as_ref().unwrap_or(&0)) {
            let (bytes, payload) = split(packet.bytes, self.recorder.whole);
            log.say(&Event::Went { to: packet.to, fields: packet.fields, bytes, payload });
        }
        if !batch.is_empty() {
            log.say(&Event::Full { left: batch.len() as u32 });
        }
        sent
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        let (recorder, has_icrc) = (&self.recorder, self.inner.has_icrc());
        self.inner.recv(now_ns, most, &mut |received| {
            let (bytes, payload) = split(received.bytes, recorder.whole);
            let sound = payload.is_none()
                || !has_icrc
                || Packet::check(received.bytes, &received.envelope).is_ok();
            let envelope = received.envelope;
            recorder.log().say(&Event::Came { envelope, bytes, payload, sound });
            each(received);
        })
    }

    fn poll_at(&self) -> Option<u64> {
        self.inner.poll_at()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }

    fn faults(&self) -> Option<crate::link::FaultCounters> {
        self.inner.faults()
    }

    fn describe(&self) -> String {
        format!("{}; recorded", self.inner.describe())
    }
}
