//! Inbound WRITEs on their way to memory: kinds `writes`, `writes=all` and `atomics`.
//!
//! A WRITE that was accepted is cut to pieces, each of which lands when its time has come: in any order, those of
//! other queue pairs among them. What orders them brings all of a queue pair's about: a receive that completes, a READ
//! or an atomic that the queue pair is asked for, its end, and that of a region. (PCIe's writes with relaxed ordering
//! pass each other likewise; a completion, which has it not, passes none.)
//!
//! The specification promises no more. But one-sided libraries (MPI, OpenSHMEM, UCX) take a WRITE whose completion the
//! requester has for there, when it says so by other ways: with `writes` it has landed before it is acknowledged, with
//! `writes=all` not even that.
//!
//! When a piece lands there must be what was there before it was accepted. Else the program has written to a place
//! whose WRITE had not arrived for it, and which the WRITE now overwrites.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Finding, Kind, State, lock, wait_ns};
use crate::link::Rng;
use crate::objects::mr::Right;
use crate::service::payload::{Domain, Remote};
use crate::vendor::Vendor;
use bellpush_mem::Dma;
use bellpush_wire::Qpn;

/// Bytes of a piece at most, and what it is aligned to: a line of the cache.
const PIECE_BYTES: usize = 64;
/// Pieces on their way at most: beyond it, the oldest land.
const MOST_PIECES: usize = 1 << 12;

/// Places that are remembered in which the NIC wrote.
const LOGGED: usize = 1 << 12;

const SEEN: &str =
    "the program wrote there before the WRITE had arrived for it, which overwrites that now";
const REMEDY: &str = "take a WRITE's bytes for there when a receive that follows it on the queue pair has completed \
                      (SEND, or WRITE with immediate)";
const RULE: &str = "InfiniBand vol. 1, 9.5 (o9-20); PCIe 2.4.1, relaxed ordering: ibv_reg_mr(3)";

/// What is on its way.
pub(super) struct Writes {
    pieces: Vec<Piece>,
    rng: Rng,
    /// Where the NIC wrote last, oldest first: begin and end.
    log: VecDeque<(u64, u64)>,
    /// Places that have left the log.
    gone: u64,
}

struct Piece {
    qpn: Qpn,
    memory: Arc<dyn Dma>,
    offset: usize,
    /// Address of the first byte in the region.
    address: u64,
    bytes: Vec<u8>,
    before: Vec<u8>,
    due_ns: u64,
}

impl Piece {
    /// Where it lies, comparable between regions.
    fn place(&self) -> u64 {
        place(&*self.memory, self.offset)
    }

    fn meets(&self, at: u64, bytes: usize) -> bool {
        let own = self.place();
        own < at.saturating_add(bytes as u64) && at < own.saturating_add(self.bytes.len() as u64)
    }

    fn land(self, state: &State) {
        let mut now = vec![0; self.bytes.len()];
        if self.memory.read(self.offset, &mut now).is_ok() && now != self.before {
            state.report(Finding {
                kind: Kind::Writes,
                qpn: self.qpn,
                wqe: None,
                behind: None,
                posted_at: None,
                address: self.address,
                bytes: self.bytes.len() as u32,
                seen: SEEN,
                remedy: REMEDY,
                rule: RULE,
            });
        }
        let _ = self.memory.write(self.offset, &self.bytes); // it could be read when it was accepted
    }
}

pub(super) fn place(memory: &dyn Dma, offset: usize) -> u64 {
    // What names no place is told from others by its own.
    let own = || std::ptr::from_ref(memory).cast::<()>() as u64;
    memory.place().unwrap_or_else(own).wrapping_add(offset as u64)
}

impl Writes {
    pub(super) fn new(rng: Rng) -> Self {
        Self { pieces: Vec::new(), rng, log: VecDeque::with_capacity(LOGGED), gone: 0 }
    }

    fn note(&mut self, at: u64, bytes: usize) {
        if self.log.len() == LOGGED {
            self.log.pop_front();
            self.gone += 1;
        }
        self.log.push_back((at, at.saturating_add(bytes as u64)));
    }

    fn land(&mut self, state: &State, mut which: impl FnMut(&Piece) -> bool) {
        let due: Vec<_> = self.pieces.extract_if(.., |piece| which(piece)).collect();
        // In their order: of two that meet, the older one has landed before the other is there.
        for piece in due {
            self.note(piece.place(), piece.bytes.len());
            piece.land(state);
        }
    }
}

/// Pieces of so many bytes at an address: each within a line.
fn cut(address: u64, bytes: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let first = PIECE_BYTES - (address as usize & (PIECE_BYTES - 1));
    let mut start = 0;
    std::iter::from_fn(move || {
        let end = if start == 0 { first } else { start + PIECE_BYTES }.min(bytes);
        let piece = (start < end).then_some(start..end);
        start = end;
        piece
    })
}

impl State {
    /// Accepts a WRITE's bytes from byte `start` of a peer's range on, if they may come late, and are not too many;
    /// false: they must not, and are written by the caller, over what is on its way there ([`State::land_under`]).
    pub(crate) fn put(
        &self,
        domain: Domain<'_>,
        to: Remote,
        start: usize,
        bytes: &[u8],
    ) -> Result<bool, Vendor> {
        let late = |relaxed| self.has(Kind::AllWrites) || relaxed && self.has(Kind::Writes);
        let region = domain.regions.region(to.rkey.0)?;
        let memory = match domain.regions.memory(to.rkey.0) {
            Some(memory) if late(region.access.relaxed_order) => memory,
            _ => return Ok(false),
        };
        let (key, part) = ((to.rkey.0, to.addr, to.bytes), start..start + bytes.len());
        let mut offset = 0;
        domain.regions.walk(domain.user, key, part, Right::RemoteWrite, &mut |span, _| {
            offset = span.offset;
            Ok(())
        })?;
        if bytes.len() > MOST_PIECES / 4 * PIECE_BYTES {
            return Ok(false);
        }
        let address = to.addr.0.wrapping_add(start as u64);
        self.post((domain.user.qpn, memory), (offset, address), bytes)?;
        Ok(true)
    }

    fn post(
        &self,
        (qpn, memory): (Qpn, &Arc<dyn Dma>),
        (offset, address): (usize, u64),
        bytes: &[u8],
    ) -> Result<(), Vendor> {
        let at = place(&**memory, offset);
        let mut writes = lock(&self.writes);
        // The later of two WRITEs to one place is to stay, and the digest is to be of what stood there.
        writes.land(self, |piece| piece.meets(at, bytes.len()));
        let excess =
            (writes.pieces.len() + bytes.len() / PIECE_BYTES + 2).saturating_sub(MOST_PIECES);
        let mut landed = 0;
        writes.land(self, |_| {
            landed += 1;
            landed <= excess
        });
        for range in cut(at, bytes.len()) {
            let (piece, offset) = (&bytes[range.clone()], offset + range.start);
            let wait = wait_ns(&mut writes.rng);
            if wait == 0 {
                writes.note(at + range.start as u64, piece.len());
                memory.write(offset, piece).map_err(|_| Vendor::Dma)?;
                continue;
            }
            let mut before = vec![0; piece.len()];
            memory.read(offset, &mut before).map_err(|_| Vendor::Dma)?;
            writes.pieces.push(Piece {
                qpn,
                memory: memory.clone(),
                offset,
                address: address.wrapping_add(range.start as u64),
                bytes: piece.to_vec(),
                before,
                due_ns: self.now_ns() + wait,
            });
        }
        self.afloat.store(!writes.pieces.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Lands what `which` says.
    fn land(&self, which: impl FnMut(&Piece) -> bool) {
        if self.afloat.load(Ordering::Acquire) {
            let mut writes = lock(&self.writes);
            writes.land(self, which);
            self.afloat.store(!writes.pieces.is_empty(), Ordering::Release);
        }
    }

    /// Lands what is due; says when more is.
    pub(super) fn land_due(&self, now_ns: u64) -> Option<u64> {
        self.land(|piece| piece.due_ns <= now_ns);
        let more = self.afloat.load(Ordering::Acquire);
        more.then(|| lock(&self.writes).pieces.iter().map(|piece| piece.due_ns).min()).flatten()
    }

    /// Lands all that came for a queue pair: something comes that is ordered behind it.
    pub(crate) fn land_of(&self, qpn: Qpn) {
        self.land(|piece| piece.qpn == qpn);
    }

    /// Whether something that came for a queue pair has not landed and is not to be acknowledged before.
    pub(crate) fn is_landing(&self, qpn: Qpn) -> bool {
        !self.has(Kind::AllWrites)
            && self.afloat.load(Ordering::Acquire)
            && lock(&self.writes).pieces.iter().any(|piece| piece.qpn == qpn)
    }

    /// Whether something that came for any queue pair has not landed there.
    pub(super) fn is_landing_at(&self, (at, bytes): (u64, usize)) -> bool {
        self.afloat.load(Ordering::Acquire)
            && lock(&self.writes).pieces.iter().any(|piece| piece.meets(at, bytes))
    }

    /// An atomic is carried out for a queue pair: behind its own WRITEs, and perhaps before others' to other places.
    pub(crate) fn land_before_atomic(&self, qpn: Qpn) {
        let passes = self.has(Kind::Atomics);
        self.land(|piece| !passes || piece.qpn == qpn);
    }

    /// Lands what the NIC itself is about to write over, and notes that it writes there.
    pub(crate) fn land_under(&self, memory: &dyn Dma, offset: usize, bytes: usize) {
        let at = place(memory, offset);
        self.land(|piece| piece.meets(at, bytes));
        if self.has(Kind::Payload) {
            lock(&self.writes).note(at, bytes);
        }
    }

    /// How many places the NIC has written to.
    pub(super) fn written(&self) -> u64 {
        let writes = lock(&self.writes);
        writes.gone + writes.log.len() as u64
    }

    /// Whether the NIC itself may have written there since then.
    pub(super) fn has_written(&self, since: u64, (at, bytes): (u64, usize)) -> bool {
        let writes = lock(&self.writes);
        let Some(skip) = since.checked_sub(writes.gone) else { return true };
        let end = at.saturating_add(bytes as u64);
        writes.log.iter().skip(skip as usize).any(|&(from, to)| from < end && at < to)
    }

    /// Lands everything: memory or a key goes.
    pub(crate) fn land_all(&self) {
        self.land(|_| true);
    }
}

/// Whether anything is on its way; changed under the lock of the pieces.
pub(super) type Afloat = AtomicBool;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_and_within_lines() {
        for (address, bytes) in [(0, 1), (63, 130), (0x1001, 64), (64, 128), (5, 0)] {
            let pieces: Vec<_> = cut(address, bytes).collect();
            assert_eq!(pieces.iter().map(|p| p.len()).sum::<usize>(), bytes);
            for piece in pieces {
                let line = |at: usize| (address as usize + at) / PIECE_BYTES;
                assert_eq!(line(piece.start), line(piece.end - 1), "{address} {piece:?}");
            }
        }
    }
}
