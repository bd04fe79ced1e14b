//! Payload between the pieces of a WQE, or the entries of a receive, and packets.

use crate::link::Room;
use crate::link::place::Payload;
use crate::objects::mr::{Regions, Right, Span, User};
use crate::objects::qp::Qp;
use crate::vendor::Vendor;
use bellpush_mem::MemError;
use bellpush_wire::wqe::{Piece, Sge};
use bellpush_wire::{Iova, Rkey};

/// The regions that a queue pair may name.
#[derive(Clone, Copy)]
pub(crate) struct Domain<'a> {
    pub(crate) regions: &'a Regions,
    pub(crate) user: User,
}

/// A range that a peer names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) rkey: Rkey,
    pub(crate) addr: Iova,
    pub(crate) bytes: u32,
}

impl Remote {
    fn key(&self) -> (u32, Iova, u32) {
        (self.rkey.0, self.addr, self.bytes)
    }
}

impl<'a> Domain<'a> {
    pub(crate) fn of(qp: &Qp, regions: &'a Regions) -> Self {
        Self { regions, user: User { pd: qp.pd, qpn: qp.qpn } }
    }

    /// The same queue pair in another protection domain.
    pub(crate) fn in_domain(self, pd: u32) -> Self {
        Self { user: User { pd, ..self.user }, ..self }
    }

    /// Checks that all of a peer's range may be accessed.
    pub(crate) fn reach(self, at: Remote, right: Right) -> Result<(), Vendor> {
        let all = 0..at.bytes as usize;
        self.regions.walk(self.user, at.key(), all, right, &mut |_, _| Ok(()))
    }

    /// Writes to a peer's range, from byte `start` of it on. All of it must be allowed.
    pub(crate) fn put(self, to: Remote, start: usize, bytes: Payload<'_>) -> Result<(), Vendor> {
        if let (Some(adversary), Payload::Bytes(bytes)) = (&self.regions.adversary, bytes)
            && adversary.put(self, to, start, bytes)?
        {
            return Ok(());
        }
        let (part, mut at) = (start..start + bytes.len(), 0);
        self.regions.walk(self.user, to.key(), part, Right::RemoteWrite, &mut |span, n| {
            at += n;
            self.regions.land_under(span, n);
            bytes.part(at - n..at).write_to(span.mem, span.offset).map_err(|_| Vendor::Dma)
        })
    }

    /// Reads a peer's range, from byte `start` of it on. All of it must be allowed.
    pub(crate) fn get(self, from: Remote, start: usize, into: &mut Room<'_>) -> Result<(), Vendor> {
        if let Some(adversary) = &self.regions.adversary {
            adversary.land_of(self.user.qpn);
        }
        let (part, mut at) = (start..start + into.len(), 0);
        self.regions.walk(self.user, from.key(), part, Right::RemoteRead, &mut |span, n| {
            at += n;
            into.read((at - n, n), span.mem, span.offset).map_err(|_| Vendor::Dma)
        })
    }

    /// The 8 bytes of an atomic, which lie in one place.
    pub(crate) fn atomic<R>(
        self,
        (rkey, addr): (Rkey, Iova),
        change: impl FnOnce(Span<'_>) -> Result<R, MemError>,
    ) -> Result<Result<R, MemError>, Vendor> {
        if let Some(adversary) = &self.regions.adversary {
            adversary.land_before_atomic(self.user.qpn);
        }
        let (mut place, key) = (None, (rkey.0, addr, 8));
        self.regions.walk(self.user, key, 0..8, Right::RemoteAtomic, &mut |span, n| {
            place = Some(span);
            if n == 8 { Ok(()) } else { Err(Vendor::Range) }
        })?;
        let place = place.ok_or(Vendor::Range)?;
        self.regions.land_under(place, 8); // what an atomic passes lies beside its word
        Ok(change(place))
    }

    /// Checks that all of each entry may be accessed, before anything moves.
    pub(crate) fn check(
        self,
        entries: impl Iterator<Item = Sge>,
        right: Right,
    ) -> Result<(), Vendor> {
        for e in entries {
            let (key, all) = ((e.lkey.0, e.addr, e.bytes), 0..e.bytes as usize);
            self.regions.walk(self.user, key, all, right, &mut |_, _| Ok(()))?;
        }
        Ok(())
    }

    /// Visits the memory, and the bytes in the WQE, that hold bytes `skip..skip + want` of the pieces; `each` is told
    /// where they begin in what is wanted.
    pub(crate) fn sources<'p>(
        self,
        pieces: impl Iterator<Item = Piece<'p>>,
        (skip, want): (usize, usize),
        mut each: impl FnMut(Source<'_>, usize) -> Result<(), Vendor>,
    ) -> Result<(), Vendor> {
        let lengths = |piece: &Piece<'_>| match piece {
            Piece::Data(sge) => sge.bytes as usize,
            Piece::Inline(bytes) => bytes.len(),
        };
        for (piece, part, mut at) in parts(pieces, lengths, skip, want) {
            match piece {
                Piece::Inline(bytes) => each(Source::Bytes(&bytes[part]), at)?,
                Piece::Data(sge) => {
                    let key = (sge.lkey.0, sge.addr, sge.bytes);
                    self.regions.walk(self.user, key, part, Right::Gather, &mut |span, n| {
                        at += n;
                        each(Source::Memory(span, n), at - n)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Visits the memory that takes bytes `skip..skip + have` of the entries, as far as they go, with its length and
    /// where it begins in what there is.
    pub(crate) fn places(
        self,
        entries: impl Iterator<Item = Sge>,
        (skip, have): (usize, usize),
        mut each: impl FnMut(Span<'_>, usize, usize) -> Result<(), Vendor>,
    ) -> Result<(), Vendor> {
        for (sge, part, mut at) in parts(entries, |sge| sge.bytes as usize, skip, have) {
            // Of an entry only what is written must be allowed, as on the in-process link: Linux's Soft-RoCE looks at
            // no more of a receive that is longer than its message (rxe_mr.c, copy_data).
            let (addr, bytes) = (sge.addr.0.wrapping_add(part.start as u64), part.len());
            let key = (sge.lkey.0, Iova(addr), bytes as u32);
            self.regions.walk(self.user, key, 0..bytes, Right::LocalWrite, &mut |span, n| {
                at += n;
                self.regions.land_under(span, n);
                each(span, n, at - n)
            })?;
        }
        Ok(())
    }

    /// Copies `into.len()` bytes from byte `skip` of the pieces on.
    pub(crate) fn gather<'p>(
        self,
        pieces: impl Iterator<Item = Piece<'p>>,
        skip: usize,
        into: &mut Room<'_>,
    ) -> Result<(), Vendor> {
        self.sources(pieces, (skip, into.len()), |source, at| {
            let done = match source {
                Source::Bytes(bytes) => into.put(at, bytes),
                Source::Memory(span, n) => into.read((at, n), span.mem, span.offset),
            };
            done.map_err(|_| Vendor::Dma)
        })
    }

    /// Copies bytes to the entries, from byte `skip` of them on, as far as they go.
    pub(crate) fn scatter(
        self,
        entries: impl Iterator<Item = Sge>,
        skip: usize,
        from: Payload<'_>,
    ) -> Result<(), Vendor> {
        self.places(entries, (skip, from.len()), |span, n, at| {
            from.part(at..at + n).write_to(span.mem, span.offset).map_err(|_| Vendor::Dma)
        })
    }
}

/// Where a part of a message comes from.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Memory(Span<'a>, usize),
    /// Inline in the WQE.
    Bytes(&'a [u8]),
}

impl Source<'_> {
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Memory(_, n) => *n,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Copies `bytes` of them from byte `skip` on.
    pub(crate) fn copy_to(self, skip: usize, to: Span<'_>, bytes: usize) -> Result<(), MemError> {
        match self {
            Self::Memory(span, _) => span.plus(skip).copy_to(to, bytes),
            Self::Bytes(from) => to.mem.write(to.offset, &from[skip..skip + bytes]),
        }
    }
}

/// The parts of consecutive items that bytes `skip..skip + want` of all of them lie in, each with
/// its range in the item, and where that begins in what is wanted.
fn parts<T>(
    items: impl Iterator<Item = T>,
    length: impl Fn(&T) -> usize,
    mut skip: usize,
    want: usize,
) -> impl Iterator<Item = (T, std::ops::Range<usize>, usize)> {
    let mut at = 0;
    items.filter_map(move |item| {
        let bytes = length(&item);
        let start = skip.min(bytes);
        skip -= start;
        let n = (bytes - start).min(want - at);
        at += n;
        (n > 0).then(|| (item, start..start + n, at - n))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_the_bytes_that_were_asked_for(
            lengths in prop::collection::vec(0usize..9, 0..8),
            skip in 0usize..40,
            want in 0usize..40,
        ) {
            let starts: Vec<usize> = lengths
                .iter()
                .scan(0, |at, n| { *at += n; Some(*at - n) })
                .collect();
            let got: Vec<usize> = parts(0..lengths.len(), |&i| lengths[i], skip, want)
                .flat_map(|(i, part, at)| {
                    let first = starts[i] + part.start;
                    assert_eq!(first, skip + at);
                    first..first + part.len()
                })
                .collect();
            let total: usize = lengths.iter().sum();
            let end = (skip + want).min(total);
            prop_assert_eq!(got, (skip.min(end)..end).collect::<Vec<_>>());
        }
    }
}
