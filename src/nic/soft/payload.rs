//! Payload between the pieces of a WQE, or the entries of a receive, and packets.

use super::mr::{Regions, Right};
use super::vendor::Vendor;
use crate::wire::wqe::{Piece, Sge};

/// The regions that a queue pair may name.
#[derive(Clone, Copy)]
pub(super) struct Domain<'a> {
    pub(super) regions: &'a Regions,
    pub(super) pd: u32,
}

impl Domain<'_> {
    /// Checks that all of each entry may be accessed, before anything moves.
    pub(super) fn check(
        self,
        entries: impl Iterator<Item = Sge>,
        right: Right,
    ) -> Result<(), Vendor> {
        for e in entries {
            self.regions.resolve(self.pd, e.lkey.0, e.addr, e.bytes, right)?;
        }
        Ok(())
    }

    /// Copies `into.len()` bytes from byte `skip` of the pieces on.
    pub(super) fn gather<'p>(
        self,
        pieces: impl Iterator<Item = Piece<'p>>,
        skip: usize,
        into: &mut [u8],
    ) -> Result<(), Vendor> {
        let lengths = |piece: &Piece<'_>| match piece {
            Piece::Data(sge) => sge.bytes as usize,
            Piece::Inline(bytes) => bytes.len(),
        };
        for (piece, part, at) in parts(pieces, lengths, skip, into.len()) {
            let into = &mut into[at..at + part.len()];
            match piece {
                Piece::Inline(bytes) => into.copy_from_slice(&bytes[part]),
                Piece::Data(sge) => {
                    let span = self.place(&sge, &part, Right::Gather)?;
                    span.mem.read(span.offset, into).map_err(|_| Vendor::Dma)?;
                }
            }
        }
        Ok(())
    }

    /// Copies bytes to the entries, from byte `skip` of them on, as far as they go.
    pub(super) fn scatter(
        self,
        entries: impl Iterator<Item = Sge>,
        skip: usize,
        from: &[u8],
    ) -> Result<(), Vendor> {
        for (sge, part, at) in parts(entries, |sge| sge.bytes as usize, skip, from.len()) {
            let span = self.place(&sge, &part, Right::LocalWrite)?;
            span.mem.write(span.offset, &from[at..at + part.len()]).map_err(|_| Vendor::Dma)?;
        }
        Ok(())
    }

    fn place(
        &self,
        sge: &Sge,
        part: &std::ops::Range<usize>,
        right: Right,
    ) -> Result<super::mr::Span<'_>, Vendor> {
        let span = self.regions.resolve(self.pd, sge.lkey.0, sge.addr, sge.bytes, right)?;
        Ok(span.plus(part.start))
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
