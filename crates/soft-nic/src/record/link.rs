//! Packets, as they go into a recording.

use std::sync::Arc;

use super::event::Event;
use super::log::Recorder;
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

/// What of a packet is written down: all of it, or its headers, [`HEAD`] bytes of its payload, and how many follow.
pub(super) fn split(packet: &[u8], whole: bool) -> (&[u8], Option<u32>) {
    if whole || packet.len() <= SHORT {
        return (packet, None);
    }
    let Ok(parsed) = Packet::parse(packet) else { return (packet, None) };
    // Behind the payload there are its pad and the ICRC alone.
    let rest = packet.len() - parsed.payload.len();
    let pad = usize::from(parsed.headers.bth.pad);
    match rest.checked_sub(pad + ICRC_BYTES) {
        Some(headers) if parsed.payload.len() >= HEAD => {
            (&packet[..headers + HEAD], Some((parsed.payload.len() - HEAD) as u32))
        }
        _ => (packet, None),
    }
}

impl<L: Link> Link for Recorded<L> {
    crate::link::forward_shape_to_inner!();

    fn take_port(&mut self, port: u16) -> Result<(), LinkError> {
        let taken = self.inner.take_port(port);
        self.recorder.say(&Event::Port { port, granted: taken.is_ok() });
        taken
    }

    fn is_up(&mut self) -> bool {
        let up = self.inner.is_up();
        self.recorder.with(|log| {
            if log.up.replace(up) != Some(up) {
                log.say(&Event::Up(up));
            }
        });
        up
    }

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        let sent = self.inner.send(now_ns, batch);
        // A NIC that ends sends its farewells when nobody writes any more: then nobody has the turn.
        self.recorder.with(|log| {
            for packet in batch.taken(*sent.as_ref().unwrap_or(&0)) {
                let (bytes, payload) = split(packet.bytes, self.recorder.whole);
                log.say(&Event::Went { to: packet.to, fields: packet.fields, bytes, payload });
            }
            if !batch.is_empty() {
                log.say(&Event::Full { left: batch.len() as u32 });
            }
        });
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
            let envelope = received.envelope;
            let is_looked_at = payload.is_some() && has_icrc && !received.checked;
            let is_right = is_looked_at && Packet::check(received.bytes, &envelope).is_ok();
            let sound = is_right || !is_looked_at;
            recorder.say(&Event::Came { envelope, bytes, payload, sound });
            // Once is enough.
            let checked = received.checked || is_right;
            each(&Received { envelope, bytes: received.bytes, checked });
        })
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

    fn faults(&self) -> Option<crate::link::FaultCounters> {
        self.inner.faults()
    }

    fn describe(&self) -> String {
        format!("{}; recorded", self.inner.describe())
    }
}
