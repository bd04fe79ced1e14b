//! WQEs that continue each other, carried out as one copy.
//!
//! A message streamed through window slots is a series of RDMA WRITEs, each of which goes on where the
//! one before ended, at both ends. One long copy stores past the cache and runs faster than several
//! short ones. Nothing else changes: every WQE is copied out and checked by itself, and completes by
//! itself. WQEs are coalesced only where both ranges are allowed as a whole, so that none of them
//! can be refused for its keys or bounds, and lie apart, so that none reads what one before it wrote.

use crate::queue::sq::{Posted, Scratch, SendQueue, Source};
use bellpush_wire::Iova;
use bellpush_wire::wqe::{Opcode, Piece, Remote, Sge, WQEBB_BYTES, Wqe};

/// Most bytes of one copy: half of a window of the usual size, so that credits return in time.
const COALESCE_MAX_BYTES: u32 = 64 << 10;
/// What a queue pair must have moved since it last had nothing to do. Less than this is likely to
/// find its destination in the cache, where short copies are quicker: on a Sapphire Rapids server
/// 64 KiB alone took 10 us in 4 KiB copies and 13 us coalesced, 1 MiB in a coalesced 8.8 and 12.6 GB/s.
pub(crate) const COALESCE_FROM_BYTES: u64 = 64 << 10;
/// Most WQEs of one copy. More would wait for their completion long.
pub(crate) const COALESCE_MAX_WQES: usize = 16;
/// A WQE of this size needs no company.
const LONG_BYTES: u32 = 16 << 10;

/// Takes along what continues `first`, whose WQE lies in the scratch buffer.
///
/// The WQEs behind it go to `coalesced`, and both `first` and its copy then speak of the bytes of all.
/// `allowed` says whether a range may be gathered from and written to, and whether the two lie apart.
pub(crate) fn collect(
    sq: &SendQueue,
    first: &mut Posted,
    scratch: &mut Scratch,
    coalesced: &mut Vec<Posted>,
    allowed: impl Fn(Sge, Remote) -> bool,
) {
    let Some((mut sge, remote)) = plain(first, scratch).filter(|p| p.0.bytes < LONG_BYTES) else {
        return;
    };
    let mut block = [0; WQEBB_BYTES];
    let mut position = sq.position() + u64::from(first.blocks);
    while coalesced.len() < COALESCE_MAX_WQES - 1 {
        let Some(mut next) = sq.peek(position, &mut block) else { break };
        let Some((part, to)) = plain(&next, &block) else { break };
        let continues = part.lkey == sge.lkey
            && to.rkey == remote.rkey
            && after(sge.addr, sge.bytes) == Some(part.addr)
            && after(remote.addr, sge.bytes) == Some(to.addr);
        let bytes = sge.bytes + part.bytes; // both are below COALESCE_MAX_BYTES
        if !continues || bytes > COALESCE_MAX_BYTES {
            break;
        }
        sge.bytes = bytes;
        position += u64::from(next.blocks);
        // Its bytes are counted with the first one's.
        next.wqe.as_mut().expect("a plain write was parsed").bytes = 0;
        coalesced.push(next);
    }
    if coalesced.is_empty() || !allowed(sge, remote) {
        coalesced.clear();
        return;
    }
    let wqe = first.wqe.as_mut().expect("a plain write was parsed");
    wqe.extend(&mut scratch[..first.bytes], sge.bytes);
}

/// The only entry and the target of a WRITE without immediate that came by the ring.
pub(super) fn plain(posted: &Posted, bytes: &[u8]) -> Option<(Sge, Remote)> {
    let wqe: &Wqe = posted.wqe.as_ref().ok()?;
    if posted.source != Source::Ring
        || wqe.opcode != Opcode::RdmaWrite
        || wqe.bytes > COALESCE_MAX_BYTES
    {
        return None;
    }
    let mut pieces = wqe.pieces(bytes);
    match (pieces.next()?, pieces.next()) {
        (Piece::Data(sge), None) => Some((sge, wqe.remote?)),
        _ => None,
    }
}

pub(super) fn after(at: Iova, bytes: u32) -> Option<Iova> {
    at.0.checked_add(bytes.into()).map(Iova)
}
