//! Requests carried out at the peer, and their payload between regions.

use bellpush_mem::MemError;
use bellpush_wire::cqe::Syndrome;
use bellpush_wire::wqe::{Opcode, Remote, Wqe};

use crate::objects::mr::{Regions, Span};
use crate::objects::qp::Qp;
use crate::service::local::responder::{self, Refusal};
use crate::service::outstanding::entries;
use crate::service::payload::Domain;
use crate::vendor::Vendor;

/// A checked request with its payload's bytes and regions.
pub(crate) struct Message<'a> {
    pub(crate) wqe: &'a Wqe,
    /// What the WQE was parsed from.
    pub(crate) bytes: &'a [u8],
    /// Regions of the requester, as its queue pair may use them.
    pub(crate) domain: Domain<'a>,
    /// The requester's NIC and queue pair.
    pub(crate) from: (u64, u32),
}

/// Carries a request out at the peer.
pub(crate) fn execute(msg: &Message<'_>, peer: &Qp, remote: &Regions) -> Result<(), Refusal> {
    if msg.wqe.opcode.waits() || msg.wqe.opcode == Opcode::SendInval {
        // There are no keys that these could change, see `SoftNic::create_mkey`, and no lists of tags; copies and
        // waits are for packet links as well.
        return Err(Refusal::Nak(Syndrome::LocalQpOp, Vendor::Opcode));
    }
    if msg.wqe.opcode != Opcode::Nop && !responder::answers(peer, msg.from) {
        return Err(Refusal::NoAnswer);
    }
    match msg.wqe.opcode {
        // Nothing leaves the NIC.
        Opcode::Nop
        | Opcode::Wait
        | Opcode::Dump
        | Opcode::Umr
        | Opcode::TagMatching
        | Opcode::Mmo
        | Opcode::SendInval => Ok(()),
        Opcode::RdmaWrite => responder::write(peer, remote, msg),
        Opcode::RdmaRead => responder::read(peer, remote, msg),
        Opcode::AtomicCs | Opcode::AtomicFa | Opcode::AtomicMaskedCs | Opcode::AtomicMaskedFa => {
            responder::atomic(peer, remote, msg)
        }
        Opcode::Send | Opcode::SendImm | Opcode::RdmaWriteImm => {
            responder::receive(peer, remote, msg)
        }
    }
}

impl Message<'_> {
    pub(crate) fn remote(&self) -> Remote {
        self.wqe.remote.expect("the opcode was parsed with a remote address")
    }

    /// Copies the payload to one place.
    pub(crate) fn gather(&self, to: Span<'_>) -> Result<(), MemError> {
        let (pieces, all) = (self.wqe.pieces(self.bytes), (0, usize::MAX));
        let mut moves = Moves::default();
        let visited = self.domain.sources(pieces, all, |source, at| {
            moves.note(source.copy_to(0, to.plus(at), source.bytes()))
        });
        moves.end(visited)
    }

    /// Copies the payload to several places, one after the other, as far as it goes.
    pub(crate) fn gather_into<'s>(
        &self,
        mut to: impl Iterator<Item = (Span<'s>, usize)>,
    ) -> Result<(), MemError> {
        let (pieces, all) = (self.wqe.pieces(self.bytes), (0, usize::MAX));
        let mut room: Option<(Span<'s>, usize)> = None;
        let mut moves = Moves::default();
        let visited = self.domain.sources(pieces, all, |source, _| {
            let mut done = 0;
            while done < source.bytes() {
                let Some((span, left)) = room.take().filter(|r| r.1 > 0).or_else(|| to.next())
                else {
                    return Ok(()); // lengths were compared before
                };
                let n = (source.bytes() - done).min(left);
                moves.note(source.copy_to(done, span, n))?;
                done += n;
                room = Some((span.plus(n), left - n));
            }
            Ok(())
        });
        moves.end(visited)
    }

    /// Copies from one place to the local entries.
    pub(crate) fn scatter(&self, from: Span<'_>) -> Result<(), MemError> {
        let (entries, all) = (entries(self.wqe, self.bytes), (0, usize::MAX));
        let mut moves = Moves::default();
        let visited = self
            .domain
            .places(entries, all, |span, n, at| moves.note(from.plus(at).copy_to(span, n)));
        moves.end(visited)
    }

    /// Copies bytes to the local entries.
    pub(crate) fn scatter_bytes(&self, from: &[u8]) -> Result<(), MemError> {
        let (entries, all) = (entries(self.wqe, self.bytes), (0, from.len()));
        let mut moves = Moves::default();
        let visited = self.domain.places(entries, all, |span, n, at| {
            moves.note(span.mem.write(span.offset, &from[at..at + n]))
        });
        moves.end(visited)
    }
}

/// Keeps the memory's own error of a move between entries that were checked, under the same lock.
#[derive(Default)]
struct Moves {
    failed: Option<MemError>,
}

impl Moves {
    #[inline]
    fn note(&mut self, moved: Result<(), MemError>) -> Result<(), Vendor> {
        moved.map_err(|error| {
            self.failed = Some(error);
            Vendor::Dma
        })
    }

    fn end(self, visited: Result<(), Vendor>) -> Result<(), MemError> {
        visited.map_err(|_| self.failed.expect("local entries were checked under the same lock"))
    }
}
