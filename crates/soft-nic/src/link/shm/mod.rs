//! The shared-memory link: rings of packets between NICs of one machine.
//!
//! NICs share anonymous memory, which nobody can cut off; those of several processes find it by a
//! file in `/dev/shm` that belongs to the user (`members`). The rest is the same. There is a ring
//! for each ordered pair of ports, and a port is found by its holder's address. A process that dies
//! leaves its rings as they are: its port can be taken by the next, and the packets that were meant
//! for it are dropped by their epoch.
//!
//! The link loses packets only to who is gone or stands still: a ring that stays full for
//! [`STALL_NS`] takes packets and loses them until there is room again, so that one receiver
//! cannot hold up a sender that has others.
//!
//! Whoever drives a NIC may rest between two steps ([`ShmRest`]); packets wake it.

mod lock;
mod members;
mod net;
mod rest;
mod ring;
mod table;

use std::fs::File;
use std::net::IpAddr;
use std::sync::Arc;

pub use net::ShmNet;
pub use rest::ShmRest;

use self::lock::TableLock;
use self::net::Net;
use self::rest::Bell;
use self::ring::{Consumer, Ends, Next, Producer, SLOTS};
use self::table::{PORTS, Port};
use super::{
    Apart, Built, Carries, IN_PLACE, InPlace, Link, LinkCounters, LinkError, Received, Room,
    TxBatch,
};
use bellpush_mem::MemError;
use bellpush_mem::hidden::Hidden;
use bellpush_wire::roce::{
    Addresses, Envelope, Fields, MAX_HEADER_BYTES, MAX_PACKET_BYTES, ROCE_PORT,
};

/// How long a full ring holds up what is sent to it: longer than a process waits for a core on a
/// busy machine, because what is lost costs more time than that.
pub const STALL_NS: u64 = 100_000_000;
/// What is copied out of a packet that is handed out where it lies. One that is no longer is copied out whole.
const HEAD_BYTES: usize = 104;
const _: () = assert!(HEAD_BYTES >= MAX_HEADER_BYTES);

/// A NIC's end of a shared-memory link.
pub struct ShmLink {
    net: Arc<Net>,
    /// Holds the port.
    file: Hidden<File>,
    port: usize,
    me: Port,
    generation: u64,
    peers: Vec<Option<Peer>>,
    /// The port that is looked at first in the next receive.
    turn: usize,
    packet: Box<[u8; MAX_PACKET_BYTES]>,
    counters: LinkCounters,
}

/// Another port (or this NIC's own), once somebody has held it.
struct Peer {
    /// Who holds it, or held it last.
    holder: Port,
    is_there: bool,
    /// Who held it before: packets of one that has left are still delivered.
    previous: Option<Port>,
    tx: Producer,
    rx: Consumer,
    /// How packets come that say so of their ends ([`Ends::of`]), as the last ones did.
    known: Option<([u64; 2], Envelope)>,
    /// Since when its ring has been full.
    full_since: Option<u64>,
    bell: Bell,
    /// Packets were published that its engine is to be woken for.
    is_to_wake: bool,
}

impl ShmLink {
    fn new(net: Arc<Net>, file: Hidden<File>, port: usize, me: Port) -> Result<Self, LinkError> {
        let mut link = Self {
            net,
            file,
            port,
            me,
            generation: 0,
            peers: (0..PORTS).map(|_| None).collect(),
            turn: 0,
            packet: Box::new([0; MAX_PACKET_BYTES]),
            counters: LinkCounters::default(),
        };
        link.look()?;
        Ok(link)
    }

    /// Where whoever drives the NIC waits for packets when it rests.
    ///
    /// # Errors
    /// [`LinkError::Memory`].
    pub fn rest(&self) -> Result<ShmRest, LinkError> {
        Ok(ShmRest::new(self.net.clone(), self.port)?)
    }

    /// Who is there with an address.
    #[inline]
    fn peer(&mut self, addr: IpAddr) -> Option<&mut Peer> {
        let is_it = |peer: &&mut Peer| peer.is_there && peer.holder.addr == addr;
        self.peers.iter_mut().flatten().find(is_it)
    }

    /// Ends the rest of the engines that packets were published for.
    fn wake_all(&mut self) -> Result<(), LinkError> {
        let mut published = false;
        for peer in self.peers.iter_mut().flatten().filter(|peer| peer.is_to_wake) {
            if !published {
                peer.bell.publish();
                published = true;
            }
            peer.is_to_wake = false;
            peer.bell.ring()?;
        }
        Ok(())
    }

    /// Hands packets out: whole copies of those that are no longer than `whole`, the others where they lie. Each of
    /// these counts as [`IN_PLACE`] of `most`.
    fn take(
        &mut self,
        most: usize,
        whole: usize,
        each: &mut dyn FnMut(&InPlace<'_>),
    ) -> Result<usize, LinkError> {
        self.look()?;
        // Those that are dropped count as well: a peer that writes all the time must not keep the
        // engine here.
        let (mut looked_at, mut count) = (0, 0);
        // From where the last call stopped, so that a busy peer does not starve the others.
        for port in (0..PORTS).map(|i| (self.turn + i) % PORTS) {
            let Some(peer) = &mut self.peers[port] else { continue };
            while looked_at < most {
                let Some(Next { bytes, ends }) = peer.rx.next()? else { break };
                let lies = bytes.is_some_and(|bytes| bytes > whole);
                looked_at += if lies { IN_PLACE } else { 1 };
                if peer.known.is_none_or(|(known, _)| known != ends) {
                    let (table, me) = (&self.net.table, &self.me);
                    peer.known = peer.envelope(ends, me, || table.port(port))?;
                }
                let (Some(bytes), Some((_, envelope))) = (bytes, &peer.known) else {
                    self.counters.rx_dropped += 1;
                    peer.rx.pass()?;
                    continue;
                };
                self.counters.rx_packets += 1;
                self.counters.rx_bytes += bytes as u64;
                count += 1;
                // The length is ours from here on, the bytes are what they are when they are copied.
                let all = peer.rx.lying(bytes);
                if !lies {
                    let head = &mut self.packet[..bytes];
                    all.read(head)?;
                    each(&InPlace { envelope, head, shared: None, checked: false });
                } else {
                    let head: [u64; HEAD_BYTES / 8] = all.words()?;
                    peer.rx.prefetch(); // a stream of packets, and this one takes a while
                    let head = bytemuck::bytes_of(&head);
                    each(&InPlace { envelope, head, shared: Some(all), checked: false });
                }
                peer.rx.pass()?;
            }
            peer.rx.release()?;
            if looked_at >= most {
                self.turn = (port + 1) % PORTS;
                return Ok(count.max(most.min(1))); // what is dropped hides nobody's
            }
        }
        Ok(count)
    }

    /// Copies the table out if it has changed.
    #[inline]
    fn look(&mut self) -> Result<(), LinkError> {
        let generation = self.net.table.generation()?;
        if generation != self.generation {
            self.read_table()?;
            // Only what was loaded before the entries: a change in between is seen next time.
            self.generation = generation;
        }
        Ok(())
    }

    #[cold]
    fn read_table(&mut self) -> Result<(), LinkError> {
        for port in 0..PORTS {
            match (self.net.table.port(port)?, &mut self.peers[port]) {
                (None, None) => {}
                (None, Some(peer)) => peer.is_there = false,
                (Some(now), Some(peer)) => peer.is_now(now),
                (Some(holder), peer @ None) => {
                    let tx = Producer::new(self.net.table.ring(self.port, port)?)?;
                    let rx = Consumer::new(self.net.table.ring(port, self.port)?)?;
                    *peer = Some(Peer {
                        holder,
                        is_there: true,
                        previous: None,
                        known: None,
                        tx,
                        rx,
                        full_since: None,
                        bell: self.net.table.bell(port)?,
                        is_to_wake: false,
                    });
                }
            }
        }
        Ok(())
    }
}

/// What became of a packet.
enum Sent {
    Yes,
    Lost,
    Full,
}

impl Peer {
    fn is_now(&mut self, holder: Port) {
        self.is_there = true;
        if self.holder != holder {
            self.previous = Some(self.holder);
            (self.holder, self.full_since, self.known) = (holder, None, None);
        }
    }

    /// How a packet comes that says so of its ends; `None` if it is not for whom it reaches, or nobody sent it. `now`
    /// says who has the port by now.
    #[inline(never)]
    fn envelope(
        &mut self,
        lying: [u64; 2],
        me: &Port,
        now: impl FnOnce() -> Result<Option<Port>, MemError>,
    ) -> Result<Option<([u64; 2], Envelope)>, LinkError> {
        let ends = Ends::of(lying);
        let mut from = self.source(ends.from);
        if from.is_none()
            && let Some(now) = now()?
        {
            self.is_now(now); // it came after we had looked at the table
            from = self.source(ends.from);
        }
        let addresses = from.and_then(|from| Addresses::new(from, me.addr));
        let addresses = addresses.filter(|_| ends.to == me.epoch);
        let envelope = |it| Envelope::new(it, ROCE_PORT).with(&ends.fields);
        Ok(addresses.map(|it| (lying, envelope(it))))
    }

    /// The address of who sent a packet.
    fn source(&self, epoch: u32) -> Option<IpAddr> {
        if self.holder.epoch == epoch {
            return Some(self.holder.addr);
        }
        self.previous.filter(|port| port.epoch == epoch).map(|port| port.addr)
    }

    fn send(&mut self, now_ns: u64, bytes: &[u8], ends: Ends) -> Result<Sent, LinkError> {
        if self.tx.push(bytes, ends)? {
            self.full_since = None;
            self.is_to_wake |= rest::is_worth_it(bytes);
            return Ok(Sent::Yes);
        }
        let since = *self.full_since.get_or_insert(now_ns);
        Ok(if now_ns.saturating_sub(since) < STALL_NS { Sent::Full } else { Sent::Lost })
    }
}

impl Link for ShmLink {
    fn address(&self) -> IpAddr {
        self.me.addr
    }

    fn mtu(&self) -> usize {
        MAX_PACKET_BYTES
    }

    fn src_port(&self) -> u16 {
        ROCE_PORT
    }

    fn carries(&self) -> Carries {
        Carries::ALL
    }

    fn has_icrc(&self) -> bool {
        self.net.icrc
    }

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        self.look()?;
        let mut taken = 0;
        for packet in batch.iter() {
            let from = self.me.epoch;
            let sent = match self.peer(packet.to) {
                Some(peer) => {
                    let to = peer.holder.epoch;
                    let ends = Ends { from, to, fields: packet.fields };
                    peer.send(now_ns, packet.bytes, ends)?
                }
                None => Sent::Lost,
            };
            match sent {
                Sent::Yes => {
                    self.counters.tx_packets += 1;
                    self.counters.tx_bytes += packet.bytes.len() as u64;
                }
                Sent::Lost => self.counters.tx_lost += 1,
                Sent::Full => {
                    self.counters.tx_full += 1;
                    break;
                }
            }
            taken += 1;
        }
        batch.take(taken);
        self.wake_all()?;
        Ok(taken)
    }

    fn is_in_place(&self) -> bool {
        !self.net.icrc // which is of bytes that nobody changes after it
    }

    fn build(
        &mut self,
        to: IpAddr,
        fields: &Fields,
        packet: Apart<'_>,
        fill: &mut dyn FnMut(Room<'_>) -> bool,
    ) -> Result<Built, LinkError> {
        self.look()?;
        let from = self.me.epoch;
        let is_in_place = self.is_in_place();
        // One that is full, or gone, is for `send` to judge.
        let Some(peer) = self.peer(to).filter(|_| is_in_place) else {
            return Ok(Built::Elsewhere);
        };
        let ends = Ends { from, to: peer.holder.epoch, fields: *fields };
        let built = peer.tx.build(packet, ends, fill)?;
        if built == Built::Yes {
            peer.full_since = None;
            peer.is_to_wake |= rest::is_worth_it(packet.head);
            self.counters.tx_packets += 1;
            let bytes = packet.head.len() + packet.payload + packet.tail.len();
            self.counters.tx_bytes += bytes as u64;
        }
        Ok(built)
    }

    fn wake(&mut self) -> Result<(), LinkError> {
        self.wake_all()
    }

    fn recv(
        &mut self,
        _now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        self.take(most, MAX_PACKET_BYTES, &mut |&InPlace { envelope, head, .. }| {
            each(&Received { envelope: *envelope, bytes: head, checked: false });
        })
    }

    fn recv_in_place(
        &mut self,
        _now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&InPlace<'_>),
    ) -> Result<usize, LinkError> {
        self.take(most, HEAD_BYTES, each)
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }

    fn describe(&self) -> String {
        let name = self.net.path.as_ref().map_or("anonymous".into(), |p| p.display().to_string());
        format!(
            "shared memory {name}, address {}, port {} of {PORTS}, {SLOTS} packets to each peer, \
             ICRC {}",
            self.me.addr,
            self.port,
            if self.net.icrc { "on" } else { "not needed" },
        )
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        if !self.net.is_here() {
            return; // the child of a fork: the port is its parent's
        }
        // Without the lock (someone holds it for long) the table keeps an entry that nobody
        // answers to, which the next to attach strikes out.
        if let Ok(_lock) = TableLock::take(&self.file) {
            let _ = self.net.table.strike(self.port);
        }
        lock::leave_port(&self.file, self.port);
    }
}
