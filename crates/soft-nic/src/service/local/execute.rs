//! Requests carried out at the peer, and their payload between regions.

use bellpush_mem::MemError;
use bellpush_wire::cqe::Syndrome;
use bellpush_wire::wqe::{Opcode, Piece, Remote, Sge, Wqe};

use crate::objects::mr::{Regions, Right, Span};
use crate::objects::qp::Qp;
use crate::service::local::responder::{self, Refusal};
use crate::vendor::Vendor;

/// A checked request with its payload's bytes and regions.
pub(crate) struct Message<'a> {
    pub(crate) wqe: &'a Wqe,
    /// What the WQE was parsed from.
    pub(crate) bytes: &'a [u8],
    /// Regions of the requester.
    pub(crate) local: &'a Regions,
    /// The requester's NIC and queue pair, and its protection domain.
    pub(crate) from: (u64, u32),
    pub(crate) pd: u32,
}

/// Carries a request out at the peer.
pub(crate) fn execute(msg: &Message<'_>, peer: &Qp, remote: &Regions) -> Result<(), Refusal> {
    if matches!(msg.wqe.opcode, Opcode::Umr | Opcode::SendInval) {
        // There are no keys that these could change, see `SoftNic::create_mkey`.
        return Err(Refusal::Nak(Syndrome::LocalQpOp, Vendor::Opcode));
    }
    if msg.wqe.opcode != Opcode::Nop && !responder::answers(peer, msg.from) {
        return Err(Refusal::NoAnswer);
    }
    match msg.wqe.opcode {
        Opcode::Nop | Opcode::Umr | Opcode::SendInval => Ok(()), // nothing leaves the NIC
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

impl<'a> Message<'a> {
    pub(crate) fn remote(&self) -> Remote {
        self.wqe.remote.expect("the opcode was parsed with a remote address")
    }

    /// The place of an entry; it was checked, and stays registered under the table's lock.
    fn span(&self, sge: &Sge) -> Span<'a> {
        let span = self.local.resolve(self.pd, sge.lkey.0, sge.addr, sge.bytes, Right::Gather);
        span.expect("local entries were checked under the same lock")
    }

    /// Copies the payload to one place.
    pub(crate) fn gather(&self, to: Span<'_>) -> Result<(), MemError> {
        let mut at = 0;
        for piece in self.wqe.pieces(self.bytes) {
            at += move_piece(&self.source(piece), 0, to.plus(at), usize::MAX)?;
        }
        Ok(())
    }

    /// Copies the payload to several places, one after the other, as far as it goes.
    pub(crate) fn gather_into<'s>(
        &self,
        mut to: impl Iterator<Item = (Span<'s>, usize)>,
    ) -> Result<(), MemError> {
        let mut room: Option<(Span<'s>, usize)> = None;
        for piece in self.wqe.pieces(self.bytes) {
            let source = self.source(piece);
            let mut done = 0;
            while done < source.bytes() {
                let Some((span, left)) = room.take().filter(|r| r.1 > 0).or_else(|| to.next())
                else {
                    return Ok(()); // lengths were compared before
                };
                let n = move_piece(&source, done, span, left)?;
                done += n;
                room = Some((span.plus(n), left - n));
            }
        }
        Ok(())
    }

    /// Copies from one place to the local entries.
    pub(crate) fn scatter(&self, from: Span<'_>) -> Result<(), MemError> {
        let mut at = 0;
        for piece in self.wqe.pieces(self.bytes) {
            let Piece::Data(sge) = piece else { continue };
            let n = sge.bytes as usize;
            from.plus(at).copy_to(self.span(&sge), n)?;
            at += n;
        }
        Ok(())
    }

    /// Copies bytes to the local entries.
    pub(crate) fn scatter_bytes(&self, mut from: &[u8]) -> Result<(), MemError> {
        for piece in self.wqe.pieces(self.bytes) {
            let Piece::Data(sge) = piece else { continue };
            let to = self.span(&sge);
            let (now, later) = from.split_at(from.len().min(sge.bytes as usize));
            to.mem.write(to.offset, now)?;
            from = later;
        }
        Ok(())
    }

    fn source(&self, piece: Piece<'a>) -> Source<'a> {
        match piece {
            Piece::Data(sge) => Source::Memory(self.span(&sge), sge.bytes as usize),
            Piece::Inline(bytes) => Source::Bytes(bytes),
        }
    }
}

enum Source<'a> {
    Memory(Span<'a>, usize),
    Bytes(&'a [u8]),
}

impl Source<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::Memory(_, n) => *n,
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// Copies a piece from byte `skip` on, at most `most` bytes; returns how many.
fn move_piece(
    from: &Source<'_>,
    skip: usize,
    to: Span<'_>,
    most: usize,
) -> Result<usize, MemError> {
    let n = (from.bytes() - skip).min(most);
    match from {
        Source::Memory(span, _) => span.plus(skip).copy_to(to, n)?,
        Source::Bytes(bytes) => to.mem.write(to.offset, &bytes[skip..skip + n])?,
    }
    Ok(n)
}
