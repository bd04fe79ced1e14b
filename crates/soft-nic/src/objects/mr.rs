//! Memory regions: keys, bounds and rights. Keys that stand for parts of other regions are in `mkey`.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, TryLockError, Weak};

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};

use crate::adversary;
use crate::objects::lows::Used;
use crate::objects::mkey::{Indirect, PartsAttr};
use crate::objects::number::Number;
use crate::offload::{Mirror, Offload};
use crate::random::Random;
use crate::vendor::Vendor;
use bellpush_mem::{Dma, MemError};
use bellpush_nic::{Access, Mr, NicError};
use bellpush_wire::{Iova, Lkey, Qpn, Rkey};

/// Most regions of a NIC: the index part of a key has 24 bits.
const MAX_REGIONS: usize = 1 << 24;
/// Keys 0x000..0x500 are never handed out: 0 looks like an unset field, 0x100 ends a receive scatter
/// list, and 0x400 in the place of a key says that entries are repeated ([`bellpush_wire::umr`]).
const RESERVED: u32 = 5;
/// Free indices that are waited for before one comes again. With the [`LOWS`] low bytes, a key
/// returns after more than 2^16 registrations.
const RESTING: usize = 512;
/// Low bytes that an index has before one comes again: half of all, so that the next is always drawn.
const LOWS: u32 = 128;
/// Indices that are made at once.
const BLOCK: usize = 2 * RESTING;
/// Bits of an index.
const INDEX: u32 = MAX_REGIONS as u32 - 1;

/// A protection domain: queue pairs, SRQs and regions of one may be used together (InfiniBand
/// vol. 1, 10.2.3). It lives as long as anyone holds it.
#[derive(Debug)]
pub struct Pd(Number);

impl Pd {
    pub(crate) fn new(number: Number) -> Self {
        Self(number)
    }

    /// Its number on the NIC.
    pub fn number(&self) -> u32 {
        self.0.get()
    }
}

/// What an access needs a region to allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    Gather,
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
}

impl Right {
    /// Its bit in [`Right::bits`].
    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The rights that an access allows.
    pub(crate) fn bits(access: Access) -> u8 {
        [Self::Gather, Self::LocalWrite, Self::RemoteWrite, Self::RemoteRead, Self::RemoteAtomic]
            .into_iter()
            .filter(|right| right.allowed(access))
            .fold(0, |bits, right| bits | right.bit())
    }

    pub(crate) fn allowed(self, access: Access) -> bool {
        match self {
            Self::Gather => true,
            Self::LocalWrite => access.local_write,
            Self::RemoteWrite => access.remote_write,
            Self::RemoteRead => access.remote_read,
            Self::RemoteAtomic => access.remote_atomic,
        }
    }
}

pub(crate) struct Region {
    /// Number of its protection domain, which it keeps.
    pub(crate) pd: u32,
    _pd: Arc<Pd>,
    pub(crate) target: Target,
    pub(crate) iova: u64,
    pub(crate) bytes: u64,
    pub(crate) access: Access,
}

/// What a key stands for.
pub(crate) enum Target {
    Memory(Arc<dyn Dma>),
    /// Parts of regions.
    Parts(Indirect),
}

pub(crate) struct Entry {
    pub(crate) region: Option<Region>,
    /// Low byte of the entry's key; another with every registration, so that a stale key fails.
    pub(crate) variant: u8,
    /// The last ones, fewer than [`LOWS`], and so many before these.
    recent: Used,
    before: Used,
}

impl Entry {
    /// Notes its low byte as one of the last ones. Of both halves together one byte at least is free afterwards.
    fn note(&mut self) {
        self.recent.insert(self.variant);
        if self.recent.len() >= LOWS {
            self.before = std::mem::take(&mut self.recent);
        }
    }

    /// Gives it the low byte that a registrant chose, or one that the last registrations had not.
    fn renew(&mut self, chosen: Option<u8>, any: impl FnOnce() -> u32) {
        self.variant = chosen.unwrap_or_else(|| self.turn(any()));
        self.note();
    }

    /// A low byte for the next registration, which the last ones had not.
    fn turn(&mut self, any: u32) -> u8 {
        if self.recent != Used::default() || self.before != Used::default() {
            self.note(); // the registrant may have chosen it, or a UMR
        }
        let free = |byte: &u8| !self.recent.has(*byte) && !self.before.has(*byte);
        let count = (0..=255).filter(free).count();
        (0..=255).filter(free).nth(any as usize % count).expect("fewer than two halves are used")
    }
}

/// Who uses a key: queue pair and protection domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) pd: u32,
    pub(crate) qpn: Qpn,
}

/// Bytes of a region that an access was found to be allowed on.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) mem: &'a dyn Dma,
    pub(crate) offset: usize,
}

/// The regions of a NIC, under the table's lock.
pub(crate) struct Regions {
    /// What keys are drawn from: a peer that was told one can only guess the others.
    random: Arc<Random>,
    /// Whether indices are drawn too. Where not, they count from 0: an engine elsewhere has a table
    /// of so many, and keeps the keys of neighbouring indices beside each other.
    scattered: bool,
    /// Index of the first entry; the others follow it.
    base: u32,
    entries: Vec<Entry>,
    /// Places of freed entries, oldest first: the longer a key rests, the more stale uses it catches.
    free: VecDeque<usize>,
    /// Copies of the keys that engines elsewhere have.
    pub(crate) mirrors: Vec<Weak<Mirror>>,
    /// What may keep WRITEs from memory for a while.
    pub(crate) adversary: Option<Arc<adversary::State>>,
}

impl Regions {
    /// The place of `bytes` bytes at `addr` of the region that `key` names in a protection domain.
    pub(crate) fn resolve(
        &self,
        pd: u32,
        key: u32,
        addr: Iova,
        bytes: u32,
        right: Right,
    ) -> Result<Span<'_>, Vendor> {
        let region = self.region(key)?;
        let offset = region.allow(pd, addr, bytes, right)?;
        match &region.target {
            Target::Memory(mem) => Ok(Span { mem: &**mem, offset: offset as usize }),
            Target::Parts(_) => Err(Vendor::Key),
        }
    }

    /// As [`Regions::resolve`], also of keys that stand for parts of regions: hands out the places
    /// of bytes `part` of the range, in their order, with their lengths. All of the range must be
    /// allowed; nothing is handed out otherwise.
    #[inline]
    pub(crate) fn walk<'a>(
        &'a self,
        user: User,
        (key, addr, bytes): (u32, Iova, u32),
        part: Range<usize>,
        right: Right,
        each: &mut dyn FnMut(Span<'a>, usize) -> Result<(), Vendor>,
    ) -> Result<(), Vendor> {
        let region = self.region(key)?;
        let offset = region.allow(user.pd, addr, bytes, right)?;
        match &region.target {
            Target::Memory(mem) => {
                each(Span { mem: &**mem, offset: offset as usize + part.start }, part.len())
            }
            Target::Parts(parts) => {
                let at = offset + part.start as u64;
                parts.walk(self, user, (at, part.len()), right, each)
            }
        }
    }

    /// Lands all WRITEs that an adversary still keeps from memory.
    pub(crate) fn land_all(&self) {
        if let Some(adversary) = &self.adversary {
            adversary.land_all();
        }
    }

    /// Lands those that meet what the NIC itself is about to write over.
    pub(crate) fn land_under(&self, span: Span<'_>, bytes: usize) {
        if let Some(adversary) = &self.adversary {
            adversary.land_under(span.mem, span.offset, bytes);
        }
    }

    /// The memory of a key that stands for a region.
    pub(crate) fn memory(&self, key: u32) -> Option<&Arc<dyn Dma>> {
        match &self.region(key).ok()?.target {
            Target::Memory(mem) => Some(mem),
            Target::Parts(_) => None,
        }
    }

    pub(crate) fn region(&self, key: u32) -> Result<&Region, Vendor> {
        let entry = self.entries.get(self.place(key)).ok_or(Vendor::Key)?;
        entry.region.as_ref().filter(|_| entry.variant == key as u8).ok_or(Vendor::Key)
    }

    fn new(random: Arc<Random>, scattered: bool) -> Self {
        let base = if scattered { random.number() & INDEX } else { 0 };
        let (entries, free, mirrors) = Default::default();
        Self { random, scattered, base, entries, free, mirrors, adversary: None }
    }

    /// Where a key's entry is, if there is one.
    fn place(&self, key: u32) -> usize {
        ((key >> 8).wrapping_sub(self.base) & INDEX) as usize
    }

    /// The index of an entry's keys.
    fn index(&self, place: usize) -> u32 {
        (place as u32).wrapping_add(self.base) & INDEX
    }

    /// The entry of a key, whatever its low byte.
    pub(crate) fn entry(&self, key: u32) -> Option<&Entry> {
        self.entries.get(self.place(key))
    }

    pub(crate) fn entry_mut(&mut self, key: u32) -> Option<&mut Entry> {
        let place = self.place(key);
        self.entries.get_mut(place)
    }

    /// All keys, with what they stand for.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.entries.iter().enumerate().filter_map(|(place, entry)| {
            Some((self.index(place) << 8 | u32::from(entry.variant), entry.region.as_ref()?))
        })
    }

    fn add(&mut self, region: Region, tag: Option<u8>) -> Result<u32, NicError> {
        if self.free.len() <= RESTING {
            self.add_block();
        }
        let full = NicError::Full { what: "memory regions", limit: MAX_REGIONS };
        let place = self.free.pop_front().ok_or(full)?;
        let index = self.index(place);
        let entry = &mut self.entries[place];
        entry.renew(tag, || self.random.number());
        let key = index << 8 | u32::from(entry.variant);
        let region = entry.region.insert(region);
        self.mirrors.iter().filter_map(Weak::upgrade).for_each(|mirror| mirror.set(key, region));
        Ok(key)
    }

    fn add_block(&mut self) {
        let first = self.entries.len();
        let end = (first + BLOCK).min(MAX_REGIONS);
        let none =
            || Entry { region: None, variant: 0, recent: Used::default(), before: Used::default() };
        self.entries.resize_with(end, none);
        let mut new: Vec<_> = (first..end).filter(|&at| self.index(at) >= RESERVED).collect();
        if self.scattered {
            self.random.shuffle(&mut new);
        }
        self.free.extend(new);
    }

    /// Takes a key away from engines elsewhere. The caller lets the lock go, and quiesces.
    fn recall(&self, place: usize) -> Recalled {
        let index = self.index(place) as usize;
        let mirrors: Vec<_> = self.mirrors.iter().filter_map(Weak::upgrade).collect();
        mirrors.iter().for_each(|mirror| mirror.clear(index));
        Recalled { mirrors, index }
    }
}

/// A key that engines elsewhere may still be using.
struct Recalled {
    mirrors: Vec<Arc<Mirror>>,
    index: usize,
}

impl Recalled {
    /// Waits until none does, and drops what its memory is; or keeps that for ever, when an engine
    /// does not answer.
    fn quiesce<T>(self, what: T) {
        let mut all = true;
        for mirror in &self.mirrors {
            all &= mirror.quiesce(self.index);
        }
        if all {
            drop(what);
        } else {
            std::mem::forget(what);
        }
    }
}

impl Region {
    /// Checks an access; returns its offset.
    #[inline]
    fn allow(&self, pd: u32, addr: Iova, bytes: u32, right: Right) -> Result<u64, Vendor> {
        if self.pd != pd {
            return Err(Vendor::Domain);
        }
        if !right.allowed(self.access) {
            return Err(Vendor::Right);
        }
        let offset = addr.0.checked_sub(self.iova).ok_or(Vendor::Range)?;
        match offset.checked_add(bytes.into()) {
            Some(end) if end <= self.bytes => Ok(offset),
            _ => Err(Vendor::Range),
        }
    }
}

/// What [`SoftNic::reregister`](crate::SoftNic::reregister) changes; what is `None` stays.
#[derive(Clone, Default)]
pub struct Reregister {
    /// Protection domain.
    pub pd: Option<Arc<Pd>>,
    /// Memory, and the address of its first byte in WQEs.
    pub memory: Option<(Arc<dyn Dma>, Iova)>,
    /// Rights.
    pub access: Option<Access>,
}

/// The memory regions of a NIC.
///
/// Engines hold the lock shared while they visit a queue pair, so that deregistration returns only
/// when no copy uses the region any more. It is a lock in shards, one of which a reader takes: with a
/// plain one two engines took three times as long for a WQE as one (`benches/engines.rs`).
pub(crate) struct MrTable {
    /// Orders the locks of two tables.
    id: u64,
    regions: ShardedLock<Regions>,
}

impl MrTable {
    /// A table whose keys are drawn; `scattered`: their indices too.
    pub(crate) fn new(random: Arc<Random>, scattered: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let regions = ShardedLock::new(Regions::new(random, scattered));
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), regions }
    }

    /// The table of a NIC that may have an adversary.
    pub(crate) fn under(self, adversary: Option<Arc<adversary::State>>) -> Self {
        self.write().adversary = adversary;
        self
    }

    /// Takes a region on. Its key's low byte is `tag`, or one that the index has not had for long.
    pub(crate) fn register(
        &self,
        pd: &Arc<Pd>,
        mem: Arc<dyn Dma>,
        (iova, access): (Iova, Access),
        tag: Option<u8>,
    ) -> Result<Mr, NicError> {
        let bytes = length(&*mem, iova)?;
        let (number, target, iova0) = (pd.number(), Target::Memory(mem), iova.0);
        let region = Region { pd: number, _pd: pd.clone(), target, iova: iova0, bytes, access };
        let key = self.write().add(region, tag)?;
        Ok(Mr { lkey: Lkey(key), rkey: Rkey(key), iova, bytes })
    }

    /// Changes a registration; its keys stay.
    pub(crate) fn reregister(&self, mr: Mr, change: Reregister) -> Result<Mr, NicError> {
        let none = NicError::NoSuchRegion(mr.lkey.0);
        let memory = match change.memory {
            Some((mem, iova)) => Some((length(&*mem, iova)?, mem, iova)),
            None => None,
        };
        let mut regions = self.write();
        let entry = regions.entry_mut(mr.lkey.0);
        let region = entry.filter(|e| e.variant == mr.lkey.0 as u8).and_then(|e| e.region.as_mut());
        let Some(region @ Region { target: Target::Memory(_), .. }) = region else {
            return Err(none);
        };
        if let Some(pd) = change.pd {
            (region.pd, region._pd) = (pd.number(), pd);
        }
        region.access = change.access.unwrap_or(region.access);
        let old = memory.map(|(bytes, mem, iova)| {
            (region.bytes, region.iova) = (bytes, iova.0);
            std::mem::replace(&mut region.target, Target::Memory(mem))
        });
        let (iova, bytes) = (Iova(region.iova), region.bytes);
        let recalled = regions.recall(regions.place(mr.lkey.0));
        regions.land_all();
        drop(regions);
        let mirrors = recalled.mirrors.clone();
        recalled.quiesce(old); // may unmap memory: not under the lock
        if let Some(entry) = self.read().entry(mr.lkey.0)
            && let Some(region) = &entry.region
            && entry.variant == mr.lkey.0 as u8
        {
            mirrors.iter().for_each(|mirror| mirror.set(mr.lkey.0, region));
        }
        Ok(Mr { iova, bytes, ..mr })
    }

    /// Makes a key that stands for nothing yet.
    pub(crate) fn create_indirect(
        &self,
        pd: &Arc<Pd>,
        indirect: Indirect,
        tag: Option<u8>,
    ) -> Result<Rkey, NicError> {
        let (target, access) = (Target::Parts(indirect), Access::NONE);
        let region = Region { pd: pd.number(), _pd: pd.clone(), target, iova: 0, bytes: 0, access };
        Ok(Rkey(self.write().add(region, tag)?))
    }

    /// Makes a key that stands for parts of regions from the start.
    pub(crate) fn create_parts(&self, pd: &Arc<Pd>, attr: PartsAttr) -> Result<Rkey, NicError> {
        let iova = attr.iova.0;
        let bytes: u64 = attr.parts.iter().map(|part| u64::from(part.bytes)).sum();
        if bytes == 0 || iova.checked_add(bytes).is_none() {
            let must = "1 or more, within the address space";
            return Err(NicError::Attribute { what: "key's length", value: bytes, must });
        }
        let (target, access) = (Target::Parts(Indirect::of(attr.parts)), attr.access);
        let region = Region { pd: pd.number(), _pd: pd.clone(), target, iova, bytes, access };
        Ok(Rkey(self.write().add(region, attr.tag)?))
    }

    /// Ends a key that stands for parts of regions, whatever its low byte is by now.
    pub(crate) fn destroy_indirect(&self, key: Rkey) -> Result<(), NicError> {
        let mut regions = self.write();
        let (place, entry) = (regions.place(key.0), regions.entry_mut(key.0));
        let is_one = |r: &mut Region| matches!(r.target, Target::Parts(_));
        let region = entry.and_then(|entry| entry.region.take_if(is_one));
        region.ok_or(NicError::NoSuchRegion(key.0))?;
        regions.free.push_back(place);
        Ok(())
    }

    pub(crate) fn deregister(&self, mr: Mr) -> Result<(), NicError> {
        let mut regions = self.write();
        let (place, variant) = (regions.place(mr.lkey.0), mr.lkey.0 as u8);
        let entry = regions.entry_mut(mr.lkey.0).filter(|e| e.variant == variant);
        let is_one = |r: &mut Region| matches!(r.target, Target::Memory(_));
        let region = entry.and_then(|e| e.region.take_if(is_one));
        let region = region.ok_or(NicError::NoSuchRegion(mr.lkey.0))?;
        regions.free.push_back(place);
        let recalled = regions.recall(place);
        regions.land_all();
        drop(regions);
        recalled.quiesce(region); // may unmap memory: not under the lock
        Ok(())
    }

    /// Forgets all regions.
    pub(crate) fn clear(&self) {
        let mut regions = self.write();
        let recalled: Vec<_> = (0..regions.entries.len())
            .filter(|&place| regions.entries[place].region.is_some())
            .map(|place| regions.recall(place))
            .collect();
        regions.land_all();
        let adversary = regions.adversary.clone();
        let none = Regions { adversary, ..Regions::new(regions.random.clone(), regions.scattered) };
        let old = std::mem::replace(&mut *regions, none);
        drop(regions);
        for (recalled, entry) in
            recalled.into_iter().zip(old.entries.into_iter().filter(|entry| entry.region.is_some()))
        {
            recalled.quiesce(entry);
        }
    }

    /// An engine's copy of the keys, which follows them from now on.
    pub(crate) fn mirror(&self, offload: &Arc<Offload>) -> Result<Arc<Mirror>, NicError> {
        offload.mirror(self.id, &mut self.write())
    }

    /// The regions, to be changed: nobody uses any meanwhile.
    pub(crate) fn write(&self) -> ShardedLockWriteGuard<'_, Regions> {
        self.regions.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`MrTable::read`], unless somebody waits to change them.
    pub(crate) fn try_read(&self) -> Option<ShardedLockReadGuard<'_, Regions>> {
        match self.regions.try_read() {
            Ok(regions) => Some(regions),
            Err(TryLockError::Poisoned(regions)) => Some(regions.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The regions, which stay registered while the lock is held.
    pub(crate) fn read(&self) -> ShardedLockReadGuard<'_, Regions> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of memory that can be registered at an address.
fn length(mem: &dyn Dma, iova: Iova) -> Result<u64, NicError> {
    let bytes = mem.bytes() as u64;
    if iova.0.checked_add(bytes).is_none() {
        let must = "one that ends below 2^64 from its address";
        return Err(NicError::Attribute { what: "region's length", value: bytes, must });
    }
    Ok(bytes)
}

/// Runs `f` with the regions of both ends, which stay registered meanwhile.
pub(crate) fn with_both<R>(
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
    /// Whether so many bytes there share one with as many of the other.
    pub(crate) fn meets(self, other: Span<'_>, bytes: usize) -> bool {
        let place = |span: Span<'_>| match span.mem.as_host() {
            Some(view) => Some(view.addr()),
            None => span.mem.device_addr(),
        };
        let base = |span| place(span).unwrap_or_default();
        let [a, b] = [self, other].map(|span| base(span).wrapping_add(span.offset as u64));
        a.abs_diff(b) < bytes as u64
    }

    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }

    pub(crate) fn copy_to(self, to: Span<'_>, bytes: usize) -> Result<(), MemError> {
        bellpush_mem::copy(self.mem, self.offset, to.mem, to.offset, bytes)
    }
}

#[cfg(test)]
#[path = "mr_tests.rs"]
mod tests;
