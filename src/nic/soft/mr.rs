//! Memory regions: keys, bounds and rights.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::vendor::Vendor;
use crate::mem::{Dma, MemError};
use crate::nic::{Access, Mr, NicError};
use crate::wire::{Iova, Lkey, Rkey};

/// Most regions of a NIC: the index part of a key has 24 bits.
const MAX_REGIONS: usize = 1 << 24;
/// Keys 0x000..0x200 are never handed out: 0 looks like an unset field, and 0x100 ends a receive
/// scatter list.
const RESERVED: usize = 2;

/// A protection domain: queue pairs, SRQs and regions of one may be used together (InfiniBand
/// vol. 1, 10.2.3). It lives as long as anyone holds it.
#[derive(Debug)]
pub struct Pd(u32);

impl Pd {
    pub(super) fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number on the NIC.
    pub fn number(&self) -> u32 {
        self.0
    }
}

/// What an access needs a region to allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Gather,
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
}

impl Right {
    /// Its bit in [`Right::bits`].
    pub(super) fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The rights that an access allows.
    pub(super) fn bits(access: Access) -> u8 {
        [Self::Gather, Self::LocalWrite, Self::RemoteWrite, Self::RemoteRead, Self::RemoteAtomic]
            .into_iter()
            .filter(|right| right.allowed(access))
            .fold(0, |bits, right| bits | right.bit())
    }

    fn allowed(self, access: Access) -> bool {
        match self {
            Self::Gather => true,
            Self::LocalWrite => access.local_write,
            Self::RemoteWrite => access.remote_write,
            Self::RemoteRead => access.remote_read,
            Self::RemoteAtomic => access.remote_atomic,
        }
    }
}

struct Region {
    /// Number of its protection domain, which it keeps.
    pd: u32,
    _pd: Arc<Pd>,
    mem: Arc<dyn Dma>,
    iova: u64,
    bytes: u64,
    access: Access,
}

struct Entry {
    region: Option<Region>,
    /// Low byte of the entry's key; moves on with every registration, so that a stale key fails.
    variant: u8,
}

/// Bytes of a region that an access was found to be allowed on.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    pub(super) mem: &'a dyn Dma,
    pub(super) offset: usize,
}

/// The regions of a NIC, under the table's lock.
#[derive(Default)]
pub(super) struct Regions {
    entries: Vec<Entry>,
    /// Freed indices, oldest first: the longer a key rests, the more stale uses it catches.
    free: VecDeque<usize>,
}

impl Regions {
    /// The place of `bytes` bytes at `addr` of the region that `key` names in a protection domain.
    pub(super) fn resolve(
        &self,
        pd: u32,
        key: u32,
        addr: Iova,
        bytes: u32,
        right: Right,
    ) -> Result<Span<'_>, Vendor> {
        let entry = self.entries.get((key >> 8) as usize).ok_or(Vendor::Key)?;
        let region = entry.region.as_ref().filter(|_| entry.variant == key as u8);
        let region = region.ok_or(Vendor::Key)?;
        if region.pd != pd {
            return Err(Vendor::Domain);
        }
        if !right.allowed(region.access) {
            return Err(Vendor::Right);
        }
        let offset = addr.0.checked_sub(region.iova).ok_or(Vendor::Range)?;
        match offset.checked_add(bytes.into()) {
            Some(end) if end <= region.bytes => {
                Ok(Span { mem: &*region.mem, offset: offset as usize })
            }
            _ => Err(Vendor::Range),
        }
    }
}

/// The memory regions of a NIC.
///
/// Engines hold the lock shared while they visit a queue pair, so that deregistration returns only
/// when no copy uses the region any more.
pub(super) struct MrTable {
    /// Orders the locks of two tables.
    id: u64,
    regions: RwLock<Regions>,
}

impl MrTable {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), regions: RwLock::default() }
    }

    /// Takes a region on. Its key's low byte is `low`, or the one after the index's last.
    pub(super) fn register(
        &self,
        pd: &Arc<Pd>,
        mem: Arc<dyn Dma>,
        iova: Iova,
        access: Access,
        low: Option<u8>,
    ) -> Result<Mr, NicError> {
        let bytes = mem.bytes() as u64;
        if bytes == 0 || iova.0.checked_add(bytes).is_none() {
            let must = "at least 1, and end below 2^64 from its address";
            return Err(NicError::Attribute { what: "region's length", value: bytes, must });
        }
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let region =
            Some(Region { pd: pd.number(), _pd: pd.clone(), mem, iova: iova.0, bytes, access });
        let index = match regions.free.pop_front() {
            Some(index) => index,
            None if regions.entries.len() >= MAX_REGIONS => {
                return Err(NicError::Full { what: "memory regions", limit: MAX_REGIONS });
            }
            None => {
                let index = regions.entries.len().max(RESERVED);
                regions.entries.resize_with(index + 1, || Entry { region: None, variant: 0 });
                index
            }
        };
        let entry = &mut regions.entries[index];
        entry.region = region;
        entry.variant = low.unwrap_or(entry.variant.wrapping_add(1));
        let key = (index as u32) << 8 | u32::from(entry.variant);
        Ok(Mr { lkey: Lkey(key), rkey: Rkey(key), iova, bytes })
    }

    pub(super) fn deregister(&self, mr: Mr) -> Result<(), NicError> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let (index, variant) = ((mr.lkey.0 >> 8) as usize, mr.lkey.0 as u8);
        let entry = regions.entries.get_mut(index).filter(|e| e.variant == variant);
        let region = entry.and_then(|e| e.region.take());
        let region = region.ok_or(NicError::NoSuchRegion(mr.lkey.0))?;
        regions.free.push_back(index);
        drop(regions);
        drop(region); // may unmap memory: not under the lock
        Ok(())
    }

    /// Forgets all regions.
    pub(super) fn clear(&self) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::take(&mut *regions);
        drop(regions);
        drop(old);
    }

    /// The regions, which stay registered while the lock is held.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Regions> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `f` with the regions of both ends, which stay registered meanwhile.
pub(super) fn with_both<R>(
    local: &MrTable,
    remote: &MrTable,
    f: impl FnOnce(&Regions, &Regions) -> R,
) -> R {
    if std::ptr::eq(local, remote) {
        // Shared twice by one thread would deadlock with a writer that waits in between.
        let both = local.read();
        return f(&both, &both);
    }
    // Always the older table first, so that two engines and two waiting writers cannot close a
    // circle.
    if local.id < remote.id {
        let (l, r) = (local.read(), remote.read());
        f(&l, &r)
    } else {
        let (r, l) = (remote.read(), local.read());
        f(&l, &r)
    }
}

impl Span<'_> {
    pub(super) fn plus(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }

    pub(super) fn copy_to(self, to: Span<'_>, bytes: usize) -> Result<(), MemError> {
        crate::mem::copy(self.mem, self.offset, to.mem, to.offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{HostMem, View};

    fn pd() -> Arc<Pd> {
        Arc::new(Pd::new(0))
    }

    fn table() -> (MrTable, Arc<dyn Dma>) {
        let mem = HostMem::alloc(4096).unwrap();
        (MrTable::new(), Arc::new(View::new(&mem, 0, 100).unwrap()))
    }

    fn refusal(t: &MrTable, key: u32, addr: u64, bytes: u32, right: Right) -> Option<Vendor> {
        t.read().resolve(0, key, Iova(addr), bytes, right).err()
    }

    #[test]
    fn bounds_are_checked_without_overflow() {
        let (t, mem) = table();
        let mr = t.register(&pd(), mem, Iova(u64::MAX - 100), Access::ALL).unwrap();
        let key = mr.lkey.0;
        let base = u64::MAX - 100;
        for (addr, bytes, expected) in [
            (base, 100, None),
            (base + 99, 1, None),
            (base + 100, 0, None),
            (base, 101, Some(Vendor::Range)),
            (base + 99, u32::MAX, Some(Vendor::Range)),
            (base - 1, 1, Some(Vendor::Range)),
            (0, 1, Some(Vendor::Range)),
        ] {
            assert_eq!(refusal(&t, key, addr, bytes, Right::RemoteWrite), expected, "{addr:#x}");
        }
    }

    #[test]
    fn a_stale_key_fails_after_its_index_is_used_again() {
        let (t, mem) = table();
        let first = t.register(&pd(), mem.clone(), Iova(0), Access::ALL).unwrap();
        assert_ne!(first.lkey.0 & !0xff, 0x100, "the list end's index is not used");
        t.deregister(first).unwrap();
        assert!(matches!(t.deregister(first), Err(NicError::NoSuchRegion(_))));
        let second = t.register(&pd(), mem, Iova(0), Access::ALL).unwrap();
        assert_eq!(first.lkey.0 >> 8, second.lkey.0 >> 8);
        assert_eq!(refusal(&t, first.lkey.0, 0, 1, Right::Gather), Some(Vendor::Key));
        assert_eq!(refusal(&t, second.lkey.0, 0, 1, Right::Gather), None);
    }

    #[test]
    fn rights_are_told_apart() {
        use Right::*;
        let (t, mem) = table();
        let mr = t.register(&pd(), mem, Iova(0), Access::NONE).unwrap();
        assert_eq!(refusal(&t, mr.lkey.0, 0, 1, Gather), None);
        for right in [LocalWrite, RemoteWrite, RemoteRead, RemoteAtomic] {
            assert_eq!(refusal(&t, mr.lkey.0, 0, 1, right), Some(Vendor::Right), "{right:?}");
        }
    }

    #[test]
    fn a_region_of_another_protection_domain_is_refused() {
        let (t, mem) = table();
        let mr = t.register(&Arc::new(Pd::new(3)), mem, Iova(0), Access::ALL).unwrap();
        assert_eq!(refusal(&t, mr.lkey.0, 0, 1, Right::Gather), Some(Vendor::Domain));
        assert!(t.read().resolve(3, mr.lkey.0, Iova(0), 1, Right::Gather).is_ok(), "control");
    }

    #[test]
    fn empty_and_wrapping_regions_are_refused() {
        let (t, mem) = table();
        assert!(t.register(&pd(), mem.clone(), Iova(u64::MAX - 50), Access::ALL).is_err());
        let none = HostMem::alloc(1).unwrap();
        let none = View::new(&none, 0, 0).unwrap();
        assert!(t.register(&pd(), Arc::new(none), Iova(0), Access::ALL).is_err());
    }
}
