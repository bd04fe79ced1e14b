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
use self::ring::{Consumer, Ends, Popped, Producer, SLOTS};
use self::table::{PORTS, Port};
use super::{Carries, Link, LinkCounters, LinkError, Received, TxBatch};
use bellpush_mem::hidden::Hidden;
use bellpush_wire::roce::{Addresses, Envelope, MAX_PACKET_BYTES, ROCE_PORT};

/// How long a full ring holds up what is sent to it: longer than a process waits for a core on a
/// busy machine, because what is lost costs more time than that.
pub const STALL_NS: u64 = 100_000_000;
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

    /// Ends the rest of the engines that packets were published for.
    fn wake(&mut self) -> Result<(), LinkError> {
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
            (self.holder, self.full_since) = (holder, None);
        }
    }

    /// The address of who sent a packet.
    fn source(&self, epoch: u32) -> Option<IpAddr> {
        let all = [Some(self.holder), self.previous];
        all.into_iter().flatten().find(|port| port.epoch == epoch).map(|port| port.addr)
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
            let is_it = |peer: &&mut Peer| peer.is_there && peer.holder.addr == packet.to;
            let peer = self.peers.iter_mut().flatten().find(is_it);
            let sent = match peer {
                Some(peer) => {
                    let (from, to) = (self.me.epoch, peer.holder.epoch);
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
        self.wake()?;
        Ok(taken)
    }

    fn recv(
        &mut self,
        _now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        self.look()?;
        // Those that are dropped count as well: a peer that writes all the time must not keep the
        // engine here.
        let (mut looked_at, mut count) = (0, 0);
        // From where the last call stopped, so that a busy peer does not starve the others.
        for port in (0..PORTS).map(|i| (self.turn + i) % PORTS) {
            let Some(peer) = &mut self.peers[port] else { continue };
            while looked_at < most {
                let Some(Popped { bytes, ends }) = peer.rx.pop(&mut self.packet)? else { break };
                looked_at += 1;
                let mut from = peer.source(ends.from);
                if let (None, Some(now)) = (from, self.net.table.port(port)?) {
                    peer.is_now(now); // it came after we had looked at the table
                    from = peer.source(ends.from);
                }
                let addresses = from.and_then(|from| Addresses::new(from, self.me.addr));
                let (Some(bytes), Some(addresses), true) =
                    (bytes, addresses, ends.to == self.me.epoch)
                else {
                    self.counters.rx_dropped += 1;
                    continue;
                };
                let envelope = Envelope::new(addresses, ROCE_PORT).with(&ends.fields);
                self.counters.rx_packets += 1;
                self.counters.rx_bytes += bytes as u64;
                count += 1;
                each(&Received { envelope, bytes: &self.packet[..bytes] });
            }
            peer.rx.release()?;
            if looked_at == most {
                self.turn = (port + 1) % PORTS;
                break;
            }
        }
        Ok(count)
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
