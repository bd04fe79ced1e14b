//! A part of a run of WRITEs, and how a thread copies it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::queue::inband;
use bellpush_mem::{Dma, MemError};
use bellpush_nic::Inband;

/// Where a payload lies in a slot's stream: behind the two segments of an RDMA WRITE and an inline count.
pub(crate) const PAYLOAD_AT: usize = 36;
/// Looks at a line that is missing in a slot whose header has come, some 20 us of them. What is still
/// missing then is left to the engine, which waits for it by single looks.
const LOOKS: usize = 2000;

/// Memory that a run is copied from and to.
#[derive(Clone)]
pub(crate) enum Ends {
    /// Between two regions.
    Memory { from: Arc<dyn Dma>, to: Arc<dyn Dma> },
    /// From in-band slots.
    Slots { window: Inband, to: Arc<dyn Dma> },
}

/// Bytes to be copied, all of which the engine has checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First byte in the region, or the first slot's ticket.
    pub(crate) from: u64,
    /// First byte in the region that is written to.
    pub(crate) to: u64,
    pub(crate) bytes: u32,
    /// Payload of each slot; 0 for memory.
    pub(crate) each: u32,
}

/// What has become of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The memory failed, or a line is missing: whether any of it was copied is not known.
    Undone,
    Panicked,
}

impl Piece {
    pub(crate) fn words(self) -> [u64; 3] {
        [self.from, self.to, u64::from(self.bytes) << 32 | u64::from(self.each)]
    }

    pub(crate) fn of([from, to, lengths]: [u64; 3]) -> Self {
        Self { from, to, bytes: (lengths >> 32) as u32, each: lengths as u32 }
    }
}

impl Ends {
    /// Copies a piece; a panic in it ends here. `room` is for a slot's stream.
    pub(crate) fn contained(&self, piece: Piece, room: &mut Vec<u8>) -> Outcome {
        // Where it happened, the panic's hook has said. What the copy uses is read by nobody after a panic.
        match catch_unwind(AssertUnwindSafe(|| self.copy(piece, room))) {
            Ok(true) => Outcome::Done,
            Ok(false) => Outcome::Undone,
            Err(_) => Outcome::Panicked,
        }
    }

    /// Copies a piece; says whether all of it was.
    pub(crate) fn copy(&self, piece: Piece, room: &mut Vec<u8>) -> bool {
        let to = piece.to as usize;
        match self {
            Self::Memory { from, to: memory } => {
                let (at, n) = (piece.from as usize, piece.bytes as usize);
                bellpush_mem::copy(&**from, at, &**memory, to, n).is_ok()
            }
            Self::Slots { window, to: memory } => {
                let each = piece.each as usize;
                (0..piece.bytes as usize).step_by(each).zip(piece.from..).all(|(done, ticket)| {
                    let joined = join(window, ticket, PAYLOAD_AT + each, room);
                    joined.is_ok_and(|all| {
                        all && memory.write(to + done, &room[PAYLOAD_AT..][..each]).is_ok()
                    })
                })
            }
        }
    }
}

/// Joins a slot's stream of so many bytes; says whether all of it has come. Each line's sequence is seen before its
/// data, as in [`inband`]; the header is joined with the rest and not looked at again: what counts is the engine's
/// copy, which was checked.
fn join(window: &Inband, ticket: u64, bytes: usize, room: &mut Vec<u8>) -> Result<bool, MemError> {
    let place = inband::Place::of(window, ticket);
    let data = window.line.data_bytes();
    let lines = window.line.lines(bytes);
    room.resize(room.len().max(lines * data), 0);
    let mut have = 0;
    for _ in 0..LOOKS {
        have += place.join(window, have, &mut room[have * data..lines * data])?;
        if have == lines {
            return Ok(true);
        }
        std::hint::spin_loop();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_mem::{HostMem, View};
    use bellpush_nic::LineFormat;
    use bellpush_nic::slots::HostSlots;
    use bellpush_wire::wqe::{Opcode, Piece as Part, SendWr};
    use bellpush_wire::{Iova, Qpn, Rkey};

    fn view(bytes: usize) -> View {
        View::new(&HostMem::alloc(bytes).unwrap(), 0, bytes).unwrap()
    }

    #[test]
    fn a_slot_that_lacks_a_line_is_not_copied() {
        const EACH: usize = 700;
        for line in LineFormat::ALL {
            let window = Inband { window: view(8192), slot_bytes: 2048, slots: 4, line, seq0: 3 };
            let (to, data) = (view(4096), [6; EACH]);
            let mut slots = HostSlots::new(Qpn(9), &window);
            let payload = [Part::Inline(&data)];
            let wr = SendWr::new(Opcode::RdmaWrite).to(Iova(0), Rkey(1)).payload(&payload);
            for ticket in 4..7 {
                slots.post_as(ticket, &wr).unwrap();
            }
            let at = 2 * 2048 + 5 * line.line_bytes();
            let mut held = vec![0; line.line_bytes()];
            window.window.read(at, &mut held).unwrap();
            let ends = Ends::Slots { window: window.clone(), to: Arc::new(to.clone()) };
            let piece =
                |from, bytes| Piece { from, to: 10, bytes: bytes as u32, each: EACH as u32 };
            let got = |n: usize| {
                let mut all = vec![0; n + 20];
                to.read(0, &mut all).unwrap();
                let inside = all[10..10 + n].iter().all(|&b| b == 6);
                (inside, all[..10].iter().chain(&all[10 + n..]).all(|&b| b == 0))
            };
            let mut room = Vec::new();
            // A line of no lap, of the lap before, and of the next one.
            for seq in [0, 3, 5u32] {
                let mut other = held.clone();
                let from = line.data_bytes();
                other[from..].copy_from_slice(&seq.to_le_bytes()[..line.seq_bytes()]);
                window.window.write(at, &other).unwrap();
                assert_eq!(ends.contained(piece(6, EACH), &mut room), Outcome::Undone);
                assert_eq!(got(0), (true, true), "{line}: nothing is written");
            }
            window.window.write(at, &held).unwrap();
            assert_eq!(ends.contained(piece(4, 3 * EACH), &mut room), Outcome::Done);
            assert_eq!(got(3 * EACH), (true, true));
        }
    }
}
