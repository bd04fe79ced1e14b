//! WQEs that continue each other, carried out as one copy.
//!
//! A message streamed through window slots is a series of RDMA WRITEs, each of which goes on where the
//! one before ended, at both ends. One long copy stores past the cache and runs faster than several
//! short ones. Nothing else changes: every WQE is copied out and checked by itself, and completes by
//! itself. WQEs are coalesced only where both ranges are allowed as a whole, so that none of them
//! can be refused for its keys or bounds, and lie apart, so that none reads what one before it wrote.

use crate::queue::sq::{Carried, Posted, Scratch, SendQueue, Source};
use bellpush_wire::wqe::{Remote, Sge, WQEBB_BYTES};
use bellpush_wire::{Iova, PlainWrite};

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

/// Takes along what continues `first`, whose WQE lies in the scratch buffer, if that is a WRITE that suits.
///
/// The WQEs behind it go to `coalesced`, and both `first` and its copy then speak of the bytes of all.
/// `allowed` says whether a range may be gathered from and written to, and whether the two lie apart.
pub(super) fn collect(
    sq: &SendQueue,
    first: &mut Posted,
    scratch: &mut Scratch,
    coalesced: &mut Vec<Carried>,
    allowed: impl Fn(Sge, Remote) -> bool,
) {
    let (Source::Ring, Ok(wqe)) = (first.source, &mut first.wqe) else { return };
    let Some(write) = scratch.first_chunk().and_then(PlainWrite::parse) else { return };
    let Some(mut sge) = write.from.filter(|sge| sge.bytes < LONG_BYTES) else { return };
    let remote = write.remote;
    let mut position = sq.position();
    while coalesced.len() < COALESCE_MAX_WQES - 1 {
        position += 1;
        let Some((next, _)) = sq.peek(position) else { break };
        let Some(part) = next.from else { break };
        let continues = part.lkey == sge.lkey
            && next.remote.rkey == remote.rkey
            && after(sge.addr, sge.bytes) == Some(part.addr)
            && after(remote.addr, sge.bytes) == Some(next.remote.addr);
        let bytes = sge.bytes.saturating_add(part.bytes);
        if !continues || bytes > COALESCE_MAX_BYTES {
            break;
        }
        sge.bytes = bytes;
        // Its bytes are counted with the first one's.
        coalesced.push(Carried { bytes: 0, ..Carried::plain(position, &next) });
    }
    if coalesced.is_empty() || !allowed(sge, remote) {
        coalesced.clear();
        return;
    }
    wqe.extend(&mut scratch[..WQEBB_BYTES], sge.bytes);
}

pub(super) fn after(at: Iova, bytes: u32) -> Option<Iova> {
    at.0.checked_add(bytes.into()).map(Iova)
}
