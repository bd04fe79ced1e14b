//! Keys that stand for parts of regions: memory windows, and what UMRs make of others (InfiniBand
//! vol. 1, 10.6.7; mlx5 PRM, "Memory Key Context" and "UMR WQE").
//!
//! Such a key is made free, and a UMR of a queue pair of its protection domain gives it its meaning:
//! a translation, an address, a length, rights, a low byte, and the queue pair that it is for. UMRs
//! change it under the table's lock, when nobody uses it; a peer's invalidation comes while others
//! may, and only marks it free. What a key stands for are registered regions, not other such keys.
//! They are looked up in every access, so that one which has gone is not reached through a window.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::objects::mr::{Entry, Region, Regions, Right, Span, Target, User};
use crate::vendor::Vendor;
use bellpush_nic::Access;
use bellpush_wire::umr::{ANY_QPN, Part, Translation, Umr, mask};
use bellpush_wire::{Iova, Qpn, Rkey};

/// Type of a memory window (InfiniBand vol. 1, 10.6.7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MwType {
    /// For every queue pair of its protection domain; peers cannot invalidate it.
    One,
    /// For the queue pair that binds it (2B).
    Two,
}

/// What a key of [`create_mkey`](crate::SoftNic::create_mkey) is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MkeyAttr {
    /// Most units of 16 bytes that its translation takes.
    pub octowords: usize,
    /// Whether peers may invalidate it.
    pub remote_invalidate: bool,
    /// Low byte of the key; `None` for one that was not there before.
    pub tag: Option<u8>,
}

/// A key that is made with its meaning: regions' parts, one after the other (mlx5 PRM, "Memory Key Context", KSM).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartsAttr {
    /// Address of the first byte.
    pub iova: Iova,
    /// What may be done with it, of what the regions allow.
    pub access: Access,
    /// Low byte of the key; `None` for one that was not there before.
    pub tag: Option<u8>,
    /// The parts. Whether they lie in regions, and which rights those have, is seen at each access.
    pub parts: Vec<Part>,
}

/// What a key stands for, and for whom.
pub(crate) struct Indirect {
    /// Most parts that it stands for; none of one that no UMR changes.
    most: usize,
    /// Whether a peer may invalidate it.
    remote_invalidate: bool,
    qpn: Qpn,
    /// Without a meaning: not used before it is bound.
    free: AtomicBool,
    translation: Translation,
}

impl Indirect {
    pub(crate) fn new(most: usize, remote_invalidate: bool) -> Self {
        Self {
            most,
            remote_invalidate,
            qpn: ANY_QPN,
            free: AtomicBool::new(true),
            translation: Translation::default(),
        }
    }

    /// One whose meaning is given when it is made, and which no UMR changes.
    pub(crate) fn of(parts: Vec<Part>) -> Self {
        let (free, translation) = (AtomicBool::new(false), Translation { repeat: 1, parts });
        Self { most: 0, remote_invalidate: false, qpn: ANY_QPN, free, translation }
    }

    fn is_for(&self, qpn: Qpn) -> bool {
        self.qpn == ANY_QPN || self.qpn == qpn
    }

    fn is_free(&self) -> bool {
        // Relaxed: what it stands for changes under the table's lock alone.
        self.free.load(Ordering::Relaxed)
    }

    /// Hands out the places of `bytes` bytes from `at` on, which were found to be within its length.
    pub(crate) fn walk<'a>(
        &self,
        regions: &'a Regions,
        user: User,
        (at, bytes): (u64, usize),
        right: Right,
        each: &mut dyn FnMut(Span<'a>, usize) -> Result<(), Vendor>,
    ) -> Result<(), Vendor> {
        if self.is_free() || !self.is_for(user.qpn) {
            return Err(Vendor::Mkey);
        }
        let row = self.translation.row_bytes();
        if bytes == 0 || row == 0 {
            return if bytes == 0 { Ok(()) } else { Err(Vendor::Range) };
        }
        let (mut repetition, mut skip, mut left) = (at / row, at % row, bytes as u64);
        while left > 0 {
            for part in &self.translation.parts {
                let part_bytes = u64::from(part.bytes);
                if skip >= part_bytes {
                    skip -= part_bytes;
                    continue;
                }
                let n = (part_bytes - skip).min(left);
                let addr = repetition * u64::from(part.stride) + skip;
                let addr = Iova(part.addr.0.checked_add(addr).ok_or(Vendor::Range)?);
                let span = regions.resolve(user.pd, part.lkey.0, addr, n as u32, beneath(right))?;
                each(span, n as usize)?;
                (skip, left) = (0, left - n);
                if left == 0 {
                    return Ok(());
                }
            }
            repetition += 1;
        }
        Ok(())
    }
}

/// What an access through a key needs of the region beneath it: it is local there.
fn beneath(right: Right) -> Right {
    match right {
        Right::Gather | Right::RemoteRead => Right::Gather,
        Right::LocalWrite | Right::RemoteWrite | Right::RemoteAtomic => Right::LocalWrite,
    }
}

impl Regions {
    /// Carries out a UMR. Where it is refused, nothing has changed.
    pub(crate) fn update(&mut self, user: User, key: u32, umr: &Umr) -> Result<(), Vendor> {
        let (tag, region) = match self.entry(key) {
            Some(Entry { region: Some(region), variant, .. }) => (*variant, region),
            _ => return Err(Vendor::Key),
        };
        let Target::Parts(old) = &region.target else { return Err(Vendor::Key) };
        if old.most == 0 {
            return Err(Vendor::Mkey);
        }
        if region.pd != user.pd {
            return Err(Vendor::Domain);
        }
        let free = umr.free.unwrap_or(old.is_free());
        let qpn = umr.qpn.unwrap_or(old.qpn);
        let refused = umr.check_free && !old.is_free()
            || umr.check_qpn && !old.is_for(user.qpn)
            || ![ANY_QPN, user.qpn, old.qpn].contains(&qpn)
            // What is taken back is the key as it is now; what is bound may have had another.
            || umr.free == Some(true) && tag != key as u8;
        if refused {
            return Err(Vendor::Mkey);
        }
        let iova = umr.start.map_or(region.iova, |start| start.0);
        let bytes = umr.bytes.unwrap_or(region.bytes);
        let access = rights(region.access, umr.rights);
        if !free {
            let translation = umr.translation.as_ref().unwrap_or(&old.translation);
            self.check_bound(user.pd, old.most, translation, access)?;
            if bytes == 0 || bytes > translation.bytes() || iova.checked_add(bytes).is_none() {
                return Err(Vendor::Range);
            }
        }
        let Some(entry) = self.entry_mut(key) else { return Err(Vendor::Key) };
        entry.variant = umr.tag.unwrap_or(entry.variant);
        let Some(Region {
            target: Target::Parts(indirect),
            iova: to,
            bytes: length,
            access: may,
            ..
        }) = &mut entry.region
        else {
            return Err(Vendor::Key);
        };
        (*to, *length, *may, indirect.qpn) = (iova, bytes, access, qpn);
        *indirect.free.get_mut() = free;
        if free {
            indirect.translation = Translation::default();
        } else if let Some(translation) = &umr.translation {
            indirect.translation = translation.clone();
        }
        Ok(())
    }

    /// Checks all that a key is to stand for, against what is to be allowed through it.
    fn check_bound(
        &self,
        pd: u32,
        most: usize,
        translation: &Translation,
        access: Access,
    ) -> Result<(), Vendor> {
        if translation.parts.len() > most {
            return Err(Vendor::Length);
        }
        let writes = access.local_write || access.remote_write || access.remote_atomic;
        let right = if writes { Right::LocalWrite } else { Right::Gather };
        for part in &translation.parts {
            // The first and the last repetition; those between lie between.
            let last = u64::from(translation.repeat - 1) * u64::from(part.stride);
            let last = Iova(part.addr.0.checked_add(last).ok_or(Vendor::Range)?);
            for addr in [part.addr, last] {
                self.resolve(pd, part.lkey.0, addr, part.bytes, right)?;
            }
        }
        Ok(())
    }

    /// Whether a peer may have a key invalidated through a queue pair.
    pub(crate) fn may_invalidate(&self, user: User, key: Rkey) -> Result<(), Vendor> {
        self.invalidated_by(user, key).map(|_| ())
    }

    /// Invalidates a key for a peer.
    pub(crate) fn invalidate(&self, user: User, key: Rkey) -> Result<(), Vendor> {
        self.invalidated_by(user, key)?.free.store(true, Ordering::Relaxed);
        self.land_all();
        Ok(())
    }

    fn invalidated_by(&self, user: User, key: Rkey) -> Result<&Indirect, Vendor> {
        let region = self.region(key.0)?;
        if region.pd != user.pd {
            return Err(Vendor::Domain);
        }
        match &region.target {
            Target::Parts(key)
                if key.remote_invalidate && !key.is_free() && key.is_for(user.qpn) =>
            {
                Ok(key)
            }
            _ => Err(Vendor::Mkey),
        }
    }
}

fn rights(old: Access, (changed, given): (u64, u64)) -> Access {
    let right = |bit: u64, old: bool| if changed & bit != 0 { given & bit != 0 } else { old };
    Access {
        local_write: right(mask::LOCAL_WRITE, old.local_write),
        remote_write: right(mask::REMOTE_WRITE, old.remote_write),
        remote_read: right(mask::REMOTE_READ, old.remote_read),
        remote_atomic: right(mask::ATOMIC, old.remote_atomic),
        ..old
    }
}

#[cfg(test)]
#[path = "mkey_tests.rs"]
mod tests;
