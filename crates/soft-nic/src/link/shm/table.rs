//! Who is on a shared link: a table of ports at the start of its memory.
//!
//! Changes are made under a lock; readers look at a generation that every change moves on, and copy
//! the table out when it has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;

use super::rest::{BELL_BYTES, Bell};
use super::ring::RING_BYTES;
use bellpush_mem::{Dma, MemError, PAGE_BYTES, View};

/// NICs that can be on a link at a time.
pub(super) const PORTS: usize = 16;
/// Bytes of the link's memory.
pub(super) const LINK_BYTES: usize = PAGE_BYTES + PORTS * PORTS * RING_SPACE;
const RING_SPACE: usize = RING_BYTES.next_multiple_of(PAGE_BYTES);

/// "bellpush", and the version of this layout.
const MAGIC: u64 = u64::from_ne_bytes(*b"bellpsh2");

/// Offsets in the table.
const MAGIC_AT: usize = 0;
const ICRC_AT: usize = 8;
const GENERATION_AT: usize = 16;
const FIRST_PORT: usize = 64;
const PORT_BYTES: usize = 64;

/// Offsets in a port.
const EPOCH: usize = 0;
const TAKEN: usize = 4;
const FAMILY: usize = 8;
const ADDRESS: usize = 16;
/// Changed by whoever rests, and by who wakes it; nobody else of this version writes there.
const BELL: usize = 32;

/// A NIC on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) addr: IpAddr,
    /// Differs between all who have ever held the port.
    pub(super) epoch: u32,
}

/// The table, as a reader or the holder of the lock sees it.
#[derive(Clone)]
pub(super) struct Table {
    /// All of the link's memory.
    memory: View,
}

impl Table {
    /// The table of memory of [`LINK_BYTES`].
    pub(super) fn new(memory: View) -> Self {
        Self { memory }
    }

    /// Writes an empty table; under the lock.
    pub(super) fn format(&self, icrc: bool) -> Result<(), MemError> {
        self.memory.store_u32(ICRC_AT, icrc.into(), Ordering::Relaxed)?;
        self.memory.store_u64(MAGIC_AT, MAGIC, Ordering::Release)
    }

    /// Whether there is a table of this version, and whether its packets have an ICRC.
    pub(super) fn icrc(&self) -> Result<Option<bool>, MemError> {
        if self.memory.load_u64(MAGIC_AT, Ordering::Acquire)? != MAGIC {
            return Ok(None);
        }
        Ok(Some(self.memory.load_u32(ICRC_AT, Ordering::Relaxed)? != 0))
    }

    /// Moves on with every change.
    #[inline]
    pub(super) fn generation(&self) -> Result<u64, MemError> {
        // Acquire: the entries that the generation speaks of.
        self.memory.load_u64(GENERATION_AT, Ordering::Acquire)
    }

    /// The port's holder, if it has one. May be torn while the table changes; the generation
    /// moves on after that.
    pub(super) fn port(&self, port: usize) -> Result<Option<Port>, MemError> {
        let at = FIRST_PORT + port * PORT_BYTES;
        if !self.is_taken(port)? {
            return Ok(None);
        }
        let epoch = self.memory.load_u32(at + EPOCH, Ordering::Relaxed)?;
        let mut octets = [0; 16];
        self.memory.read(at + ADDRESS, &mut octets)?;
        let addr = match self.memory.load_u32(at + FAMILY, Ordering::Relaxed)? {
            4 => Ipv4Addr::from([octets[0], octets[1], octets[2], octets[3]]).into(),
            _ => Ipv6Addr::from(octets).into(),
        };
        Ok(Some(Port { addr, epoch }))
    }

    /// Enters a holder; under the lock.
    pub(super) fn enter(&self, port: usize, addr: IpAddr) -> Result<Port, MemError> {
        let at = FIRST_PORT + port * PORT_BYTES;
        let epoch = self.memory.load_u32(at + EPOCH, Ordering::Relaxed)?.wrapping_add(1);
        let mut octets = [0; 16];
        let family = match addr {
            IpAddr::V4(addr) => {
                octets[..4].copy_from_slice(&addr.octets());
                4
            }
            IpAddr::V6(addr) => {
                octets = addr.octets();
                6
            }
        };
        self.memory.store_u32(at + TAKEN, 0, Ordering::Release)?;
        self.memory.store_u32(at + EPOCH, epoch, Ordering::Relaxed)?;
        self.memory.store_u32(at + FAMILY, family, Ordering::Relaxed)?;
        self.memory.write(at + ADDRESS, &octets)?;
        self.bell(port)?.rise()?; // whoever held it before may have ended in its sleep
        self.memory.store_u32(at + TAKEN, 1, Ordering::Release)?;
        self.changed()?;
        Ok(Port { addr, epoch })
    }

    /// Strikes a holder out; under the lock.
    pub(super) fn strike(&self, port: usize) -> Result<(), MemError> {
        self.memory.store_u32(FIRST_PORT + port * PORT_BYTES + TAKEN, 0, Ordering::Release)?;
        self.changed()
    }

    /// Whether the port has a holder: its rings have memory then.
    pub(super) fn is_taken(&self, port: usize) -> Result<bool, MemError> {
        // Acquire: who enters a port reserves its rings before.
        let taken = self.memory.load_u32(FIRST_PORT + port * PORT_BYTES + TAKEN, Ordering::Acquire);
        Ok(taken? != 0)
    }

    /// The word that says whether a port's engine rests.
    pub(super) fn bell(&self, port: usize) -> Result<Bell, MemError> {
        Ok(Bell::new(self.memory.part(FIRST_PORT + port * PORT_BYTES + BELL, BELL_BYTES)?))
    }

    fn changed(&self) -> Result<(), MemError> {
        self.memory.fetch_add(GENERATION_AT, 1).map(drop)
    }

    /// Where the ring from one port to another lies in the file.
    pub(super) fn ring_at(from: usize, to: usize) -> usize {
        PAGE_BYTES + (from * PORTS + to) * RING_SPACE
    }

    /// The ring from one port to another.
    pub(super) fn ring(&self, from: usize, to: usize) -> Result<View, MemError> {
        self.memory.part(Self::ring_at(from, to), RING_BYTES)
    }
}
