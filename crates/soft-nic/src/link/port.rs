//! The port: what an engine owns of a packet link, and the packets on their way to it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::counters::{DropReason, Live};
use crate::link::place::Payload;
use crate::link::{Apart, Built, Carries, InPlace, Link, Notice, Room, TxBatch};
use crate::objects::events::{Event, Events};
use crate::script::ScriptedFaults;
use bellpush_nic::NicError;
use bellpush_wire::roce::{
    Addresses, Envelope, Fields, Headers, ICRC_BYTES, MAX_HEADER_BYTES, MAX_PACKET_BYTES, Opcode,
    Packet, PacketError,
};

/// Packets that wait for the link at most.
const TX_PACKETS: usize = 256;
/// Packets taken from the link in a step, so that the send side gets its turn.
const RX_PACKETS: usize = 256;
/// Between two looks at whether the link is up.
const UP_NS: u64 = 5_000_000;

/// Payload of so many bytes is worth a place of its own ([`Link::build`]).
const IN_PLACE_FROM: usize = 512;

/// A checked packet that came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming<'a> {
    pub(crate) headers: &'a Headers,
    /// A private copy, but of WRITEs, responses, and what follows the first packet of a SEND: nobody looks into
    /// that.
    pub(crate) payload: Payload<'a>,
}

impl Incoming<'_> {
    /// Service and operation of the packet.
    #[inline]
    pub(crate) fn opcode(&self) -> Opcode {
        self.headers.bth.opcode
    }
}

/// A packet that came, and how.
pub(crate) struct Arrived<'a> {
    pub(crate) envelope: &'a Envelope,
    /// BTH to ICRC; no more than the headers where the payload is not private.
    pub(crate) bytes: &'a [u8],
    pub(crate) packet: &'a Incoming<'a>,
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
    /// Packets may be built, and payload taken, where the link has them.
    in_place: bool,
    /// A private copy of a packet.
    copy: Box<[u8; MAX_PACKET_BYTES]>,
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
    /// `whole`: somebody wants to see packets whole.
    pub(crate) fn new(
        (link, whole): (Box<dyn Link>, bool),
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
            in_place: !whole && link.is_in_place(),
            copy: Box::new([0; MAX_PACKET_BYTES]),
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
        fill: impl FnOnce(&mut Room<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(addresses) = Addresses::new(self.address, route.to) else { return Ok(()) };
        let fields = match self.taken {
            0 => self.carries.of(&route.fields, self.src_port),
            _ => self.link.fields(&route.fields),
        };
        let (mut failed, mut fill) = (None, Some(fill));
        let mut filled = |mut room: Room<'_>| {
            let Some(fill) = fill.take() else { return false };
            failed = fill(&mut room).err();
            failed.is_none()
        };
        let to = Route { to: route.to, fields };
        let bytes = match self.build(&to, headers, payload_bytes, &mut filled) {
            Some(bytes) => bytes,
            None => {
                let envelope = Envelope::new(addresses, self.src_port).with(&fields);
                let (icrc, mut bytes) = (self.icrc, 0);
                self.tx.push_with(route.to, fields, |buf| {
                    let mut frame = headers.emit(payload_bytes, buf);
                    if !filled(Room::Bytes(frame.payload_mut())) {
                        return None;
                    }
                    bytes = frame.finish(icrc.then_some(&envelope));
                    Some(bytes)
                });
                bytes
            }
        };
        self.built.0 += u64::from(bytes > 0);
        self.built.1 += bytes as u64;
        failed.map_or(Ok(()), Err)
    }

    /// Builds a packet where the link has its next one, if it has. Its length, 0 without a packet.
    fn build(
        &mut self,
        to: &Route,
        headers: &Headers,
        payload: usize,
        fill: &mut dyn FnMut(Room<'_>) -> bool,
    ) -> Option<usize> {
        if !self.in_place || payload < IN_PLACE_FROM || !self.up {
            return None;
        }
        if !self.tx.is_empty() {
            self.pass_on(); // what was built before goes before
        }
        if !self.tx.is_empty() {
            return None;
        }
        let mut head = [0; MAX_HEADER_BYTES];
        let (start, pad) = headers.emit_apart(payload, &mut head);
        let tail = [0; 3 + ICRC_BYTES];
        let packet = Apart { head: &head[..start], payload, tail: &tail[..pad + ICRC_BYTES] };
        match self.link.build(to.to, &to.fields, packet, fill) {
            Ok(Built::Yes) => Some(start + payload + pad + ICRC_BYTES),
            Ok(Built::Failed) => Some(0),
            Ok(Built::Elsewhere) => None,
            Err(_) => {
                Live::add(&self.counters.link_errors, 1);
                None // one that was filled is lost: `filled` does it once
            }
        }
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
        self.pass_on();
        if packets > 0 && self.in_place && self.link.wake().is_err() {
            Live::add(&self.counters.link_errors, 1);
        }
    }

    /// Gives the link what it takes of the batch.
    fn pass_on(&mut self) {
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

    /// Whether what was sent has not left yet: the link has not taken it, or holds it.
    pub(crate) fn holds(&self) -> bool {
        !self.stopped && (self.is_full() || self.link.holds())
    }

    /// Hands out packets that have arrived and are well-formed; returns how many came.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(&Arrived<'_>)) -> usize {
        if self.stopped {
            return 0;
        }
        let Self { up, icrc, in_place, counters, copy, .. } = self;
        // Those that the link had for another process came as well, and are counted there.
        let (mut packets, mut bytes) = (0, 0);
        let mut take = |it: &InPlace<'_>| {
            packets += 1;
            bytes += it.bytes() as u64;
            if !*up {
                return counters.dropped(DropReason::PortDown);
            }
            if *icrc
                && !it.checked
                && let Err(error) = Packet::check(it.head, it.envelope)
            {
                return counters.dropped(reason(&error));
            }
            let parsed = Headers::parse(it.head, it.bytes());
            let (headers, payload) = match &parsed {
                Ok((headers, at)) => (headers, at.clone()),
                Err(error) => return counters.dropped(reason(error)),
            };
            let (whole, payload) = match it.shared {
                None => (it.head, Payload::Bytes(&it.head[payload])),
                Some(shared) if goes_unseen(headers.bth.opcode) => {
                    (it.head, Payload::Shared(shared.part(payload)))
                }
                Some(shared) => {
                    // The headers stay what was checked.
                    let (head, rest) = copy[..shared.len()].split_at_mut(it.head.len());
                    head.copy_from_slice(it.head);
                    if shared.part(it.head.len()..shared.len()).read(rest).is_err() {
                        return Live::add(&counters.link_errors, 1);
                    }
                    let whole = &copy[..shared.len()];
                    (whole, Payload::Bytes(&whole[payload]))
                }
            };
            let packet = Incoming { headers, payload };
            each(&Arrived { envelope: it.envelope, bytes: whole, packet: &packet });
        };
        let came = match *in_place {
            true => self.link.recv_in_place(self.now_ns, RX_PACKETS, &mut take),
            false => self.link.recv(self.now_ns, RX_PACKETS, &mut |received| {
                let (envelope, head) = (&received.envelope, received.bytes);
                take(&InPlace { envelope, head, shared: None, checked: received.checked });
            }),
        };
        let came = came.unwrap_or_else(|_| {
            Live::add(&self.counters.link_errors, 1);
            0
        });
        Live::add(&self.counters.rx_packets, packets);
        Live::add(&self.counters.rx_bytes, bytes);
        came
    }
}

/// Whether the payload goes to its place without anybody's look at it. A SEND's first packet may begin with a header
/// of tag matching, and of a datagram, which is one packet, a receive has the UDP header's checksum.
fn goes_unseen(opcode: Opcode) -> bool {
    let operation = opcode.operation();
    let follows = operation.is_send() && !operation.position().starts();
    operation.is_write() || operation.is_read_response() || follows
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

#[cfg(test)]
#[path = "port_tests.rs"]
mod tests;
