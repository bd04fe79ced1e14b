//! The port: what an engine owns of a packet link, and the packets on their way to it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::counters::{DropReason, Live};
use crate::link::{Carries, Link, Notice, TxBatch};
use crate::objects::events::{Event, Events};
use crate::script::ScriptedFaults;
use bellpush_nic::NicError;
use bellpush_wire::roce::{Addresses, Envelope, Fields, Headers, Packet, PacketError};

/// Packets that wait for the link at most.
const TX_PACKETS: usize = 256;
/// Packets taken from the link in a step, so that the send side gets its turn.
const RX_PACKETS: usize = 256;
/// Between two looks at whether the link is up.
const UP_NS: u64 = 5_000_000;

/// A packet that came, and how.
pub(crate) struct Arrived<'a> {
    pub(crate) envelope: &'a Envelope,
    /// BTH to ICRC.
    pub(crate) bytes: &'a [u8],
    pub(crate) packet: &'a Packet<'a>,
}

/// Where packets go, and what their IP and UDP headers are to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: IpAddr,
    pub(crate) fields: Fields,
}

/// A packet link with what its engine keeps beside it.
pub(crate) struct Port {
    link: Box<dyn Link>,
    tx: TxBatch,
    address: IpAddr,
    src_port: u16,
    carries: Carries,
    /// Source ports that were taken, which only the link knows.
    taken: usize,
    icrc: bool,
    /// Packets that leave together cost less.
    pub(crate) joins: bool,
    now_ns: u64,
    /// Whether the owner wants the port up.
    enabled: Arc<AtomicBool>,
    up: bool,
    /// The link is not called any more.
    stopped: bool,
    look_at: u64,
    /// Packets built since they were last counted, and their bytes.
    built: (u64, u64),
    counters: Arc<Live>,
    events: Arc<Events>,
    /// A script, and whether it held the port down when it was looked at last.
    faults: Option<Arc<ScriptedFaults>>,
    held: bool,
}

impl Port {
    pub(crate) fn new(
        link: Box<dyn Link>,
        enabled: Arc<AtomicBool>,
        counters: Arc<Live>,
        events: Arc<Events>,
        faults: Option<Arc<ScriptedFaults>>,
    ) -> Self {
        Self {
            tx: TxBatch::new(TX_PACKETS),
            address: link.address(),
            src_port: link.src_port(),
            carries: link.carries(),
            taken: 0,
            icrc: link.has_icrc(),
            joins: link.joins(),
            link,
            now_ns: 0,
            enabled,
            up: true,
            stopped: false,
            look_at: 0,
            built: (0, 0),
            counters,
            events,
            faults,
            held: false,
        }
    }

    /// Begins a step: looks at the port's state now and then.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if self.stopped {
            return;
        }
        let held = self.faults.as_ref().is_some_and(|faults| faults.holds_port_down());
        let changed = std::mem::replace(&mut self.held, held) != held;
        let enabled = self.enabled.load(Ordering::Relaxed) && !held;
        if now_ns < self.look_at && !changed && (enabled || !self.up) {
            return;
        }
        self.look_at = now_ns + UP_NS;
        let up = enabled && self.link.is_up();
        if up != self.up {
            self.up = up;
            self.events.push(if up { Event::PortUp } else { Event::PortDown });
        }
    }

    /// Ends what goes on between engine and link: what is built is dropped, and nothing comes.
    pub(crate) fn stop(&mut self) {
        (self.stopped, self.up) = (true, false);
    }

    /// Packets that can be built before the link has to take some.
    pub(crate) fn room(&self) -> usize {
        self.tx.room()
    }

    /// Whether packets to that address can be sent at all.
    pub(crate) fn reaches(&self, to: IpAddr) -> bool {
        Addresses::new(self.address, to).is_some()
    }

    /// Builds a packet whose payload `fill` writes; there must be room. When `fill` fails there is
    /// no packet.
    pub(crate) fn send<E>(
        &mut self,
        route: &Route,
        headers: &Headers,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(addresses) = Addresses::new(self.address, route.to) else { return Ok(()) };
        let fields = match self.taken {
            0 => self.carries.of(&route.fields, self.src_port),
            _ => self.link.fields(&route.fields),
        };
        let envelope = Envelope::new(addresses, self.src_port).with(&fields);
        let (mut failed, mut bytes) = (None, 0);
        self.tx.push_with(route.to, fields, |buf| {
            let mut frame = headers.emit(payload_bytes, buf);
            if let Err(error) = fill(frame.payload_mut()) {
                failed = Some(error);
                return None;
            }
            bytes = frame.finish(self.icrc.then_some(&envelope));
            Some(bytes)
        });
        self.built.0 += u64::from(failed.is_none());
        self.built.1 += bytes as u64;
        failed.map_or(Ok(()), Err)
    }

    /// Has packets that ask for a source port leave from it.
    pub(crate) fn take_port(&mut self, port: u16) -> Result<(), NicError> {
        self.link.take_port(port).map_err(|_| {
            let must =
                "one that packets can leave from: no other program's, none that needs a right";
            NicError::Attribute { what: "UDP source port", value: port.into(), must }
        })?;
        self.taken += 1;
        Ok(())
    }

    /// Takes [`Port::take_port`] back, once what has this port is on its way.
    pub(crate) fn leave_port(&mut self, port: u16) {
        self.flush();
        self.link.leave_port(port);
        self.taken -= 1;
    }

    /// Bytes of the packets built since they were last counted.
    pub(crate) fn built_bytes(&self) -> u64 {
        self.built.1
    }

    /// Gives the link what it takes now.
    pub(crate) fn flush(&mut self) {
        let (packets, bytes) = std::mem::take(&mut self.built);
        Live::add(&self.counters.tx_packets, packets);
        Live::add(&self.counters.tx_bytes, bytes);
        while !self.tx.is_empty() {
            if !self.up {
                self.tx.take(self.tx.len());
                return;
            }
            match self.link.send(self.now_ns, &mut self.tx) {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => {
                    Live::add(&self.counters.link_errors, 1);
                    return;
                }
            }
        }
    }

    /// Whether the link has not taken everything.
    pub(crate) fn is_full(&self) -> bool {
        !self.tx.is_empty()
    }

    /// Says which messages to queue pair 1 the NIC wants.
    pub(crate) fn tell(&mut self, notice: Notice) {
        if !self.stopped {
            self.link.tell(notice);
        }
    }

    /// When the link wants to be looked at again.
    pub(crate) fn poll_at(&self) -> Option<u64> {
        if self.stopped { None } else { self.link.poll_at() }
    }

    /// Hands out packets that have arrived and are well-formed; returns how many came.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(&Arrived<'_>)) -> usize {
        if self.stopped {
            return 0;
        }
        let (up, icrc, counters) = (self.up, self.icrc, &self.counters);
        // Those that the link had for another process came as well, and are counted there.
        let (mut packets, mut bytes) = (0, 0);
        let came = self.link.recv(self.now_ns, RX_PACKETS, &mut |received| {
            packets += 1;
            bytes += received.bytes.len() as u64;
            if !up {
                return counters.dropped(DropReason::PortDown);
            }
            let checked = match icrc {
                true => Packet::check(received.bytes, &received.envelope),
                false => Ok(()),
            };
            match checked.and_then(|()| Packet::parse(received.bytes)) {
                Ok(packet) => each(&Arrived {
                    envelope: &received.envelope,
                    bytes: received.bytes,
                    packet: &packet,
                }),
                Err(error) => counters.dropped(reason(&error)),
            }
        });
        let came = came.unwrap_or_else(|_| {
            Live::add(&counters.link_errors, 1);
            0
        });
        Live::add(&counters.rx_packets, packets);
        Live::add(&counters.rx_bytes, bytes);
        came
    }
}

fn reason(error: &PacketError) -> DropReason {
    match error {
        PacketError::Short { .. } | PacketError::Payload { .. } => DropReason::Length,
        PacketError::Version(_) => DropReason::Version,
        PacketError::Opcode(_) => DropReason::Opcode,
        PacketError::Syndrome(_) => DropReason::Syndrome,
        PacketError::Pad { .. } => DropReason::Pad,
        PacketError::Icrc { .. } => DropReason::Icrc,
    }
}
