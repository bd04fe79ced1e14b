//! A part of a run of WRITEs, and how a thread copies it.
//!
//! Of memory the engine has checked every byte. Of slots it has checked where their payload may go, and has looked at
//! the first two: what each of the others asks for, the thread that joins it checks, for the engine would miss its cache
//! at each. Threads join slots as they come, and then take turns in the slots' order ([`Turn`]): each says that its own
//! are what the run expects, or closes the run. Only behind that does it write. So nothing of a slot is written before
//! all slots that precede it were seen, as if the engine had looked at them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::copy::pause;
use crate::copy::turn::Turn;
use crate::queue::inband;
use bellpush_mem::{Dma, MemError};
use bellpush_nic::Inband;
use bellpush_wire::{Iova, PlainWrite, Qpn, Rkey};

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
    Slots(Arc<Slots>),
}

/// A run of in-band slots, each of which is a WRITE of the same length that continues the one before it.
pub(crate) struct Slots {
    pub(crate) window: Inband,
    pub(crate) to: Arc<dyn Dma>,
    pub(crate) qpn: Qpn,
    pub(crate) rkey: Rkey,
    /// Address of the run's first byte, and its place in `to`.
    pub(crate) addr: Iova,
    pub(crate) at: u64,
    /// Whose slots are next.
    pub(crate) turn: Turn,
}

/// Most slots of a piece.
pub(crate) const MOST_SLOTS: u32 = 16;

/// Bytes to be copied, whose places the engine has checked.
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
    /// Of slots: so many were copied, and a bit for each of these says whether it asks for a CQE. Where some of the piece
    /// are missing, the run has ended before them.
    Slots {
        copied: u8,
        asked: u16,
    },
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
            Ok(outcome) => outcome,
            Err(_) => {
                self.close();
                Outcome::Panicked
            }
        }
    }

    /// Has nobody write any more who has not had its turn.
    pub(crate) fn close(&self) {
        if let Self::Slots(slots) = self {
            slots.turn.close();
        }
    }

    /// Whether a piece's copy would begin now: nobody has to be waited for.
    pub(crate) fn is_free(&self, piece: &Piece) -> bool {
        match self {
            Self::Memory { .. } => true,
            Self::Slots(slots) => slots.turn.is_at(piece.from),
        }
    }

    fn copy(&self, piece: Piece, room: &mut Vec<u8>) -> Outcome {
        match self {
            Self::Memory { from, to: memory } => {
                let (at, n) = (piece.from as usize, piece.bytes as usize);
                match bellpush_mem::copy(&**from, at, &**memory, piece.to as usize, n) {
                    Ok(()) => Outcome::Done,
                    Err(_) => Outcome::Undone,
                }
            }
            Self::Slots(slots) => slots.copy(piece, room),
        }
    }
}

impl Slots {
    fn copy(&self, piece: Piece, room: &mut Vec<u8>) -> Outcome {
        let each = piece.each as usize;
        let count = (piece.bytes / piece.each) as usize;
        let format = self.window.line;
        let stride = format.lines(PAYLOAD_AT + each) * format.data_bytes();
        room.resize(room.len().max(count * stride), 0);
        let (mut copied, mut asked) = (0, 0);
        while copied < count {
            let stream = &mut room[copied * stride..][..stride];
            let ticket = piece.from + copied as u64;
            let joined = join(&self.window, ticket, stream);
            let expected = joined.ok().filter(|&all| all).and_then(|_| {
                let addr = (piece.to - self.at + (copied * each) as u64).wrapping_add(self.addr.0);
                self.expects(stream, ticket, Iova(addr), piece.each)
            });
            let Some(write) = expected else { break };
            asked |= u16::from(write.flags.cq_update) << copied;
            copied += 1;
        }
        let next = (copied == count).then(|| piece.from + count as u64);
        if !self.turn.pass(piece.from, next) {
            return Outcome::Undone;
        }
        for i in 0..copied {
            let payload = &room[i * stride + PAYLOAD_AT..][..each];
            if self.to.write(piece.to as usize + i * each, payload).is_err() {
                return Outcome::Undone;
            }
        }
        Outcome::Slots { copied: copied as u8, asked }
    }

    /// The WRITE that a joined stream begins with, if it is the run's next one.
    fn expects(&self, stream: &[u8], ticket: u64, addr: Iova, bytes: u32) -> Option<PlainWrite> {
        let write = PlainWrite::parse_stream(stream.first_chunk()?)?;
        let is_ours = write.index == ticket as u16 && write.qpn == self.qpn;
        let continues = (write.remote.rkey, write.remote.addr) == (self.rkey, addr);
        (is_ours && continues && write.bytes == bytes).then_some(write)
    }
}

/// Joins as much of a slot's stream as `room` holds, whole lines; says whether all of it has come. Each line's sequence
/// is seen before its data, as in [`inband`]. What counts from here on is this copy.
fn join(window: &Inband, ticket: u64, room: &mut [u8]) -> Result<bool, MemError> {
    let place = inband::Place::of(window, ticket);
    let data = window.line.data_bytes();
    let (mut have, mut looks) = (0, 0);
    for _ in 0..LOOKS {
        have += place.join(window, have, &mut room[have * data..])?;
        if have * data == room.len() {
            return Ok(true);
        }
        pause(&mut looks);
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_mem::{HostMem, View};
    use bellpush_nic::LineFormat;
    use bellpush_nic::slots::HostSlots;
    use bellpush_wire::wqe::{Flags, Opcode, Piece as Part, SendWr};

    const QUIET: Flags = Flags { cq_update: false, solicited: false, fence: false };

    fn view(bytes: usize) -> View {
        View::new(&HostMem::alloc(bytes).unwrap(), 0, bytes).unwrap()
    }

    const EACH: usize = 700;

    /// A run of slots of a line format in four of 2 KiB, from ticket 4 on, and its destination.
    fn run(line: LineFormat) -> (Slots, View) {
        let window = Inband { window: view(8192), slot_bytes: 2048, slots: 4, line, seq0: 3 };
        let (to, turn) = (view(4096), Turn::new(view(64)));
        turn.begin(4);
        let (qpn, rkey) = (Qpn(9), Rkey(1));
        let slots =
            Slots { window, to: Arc::new(to.clone()), qpn, rkey, addr: Iova(500), at: 10, turn };
        (slots, to)
    }

    /// Writes slots 4 to 6, each `what(i)`: (queue pair, key, address, length).
    fn post(slots: &Slots, what: impl Fn(u64) -> (u32, u32, u64, usize)) {
        for i in 0..3 {
            let (qpn, rkey, addr, bytes) = what(i);
            let data = [6; EACH];
            let payload = [Part::Inline(&data[..bytes])];
            let flags = if i == 1 { Flags::SIGNALLED } else { QUIET };
            let wr = SendWr::new(Opcode::RdmaWrite).to(Iova(addr), Rkey(rkey)).payload(&payload);
            let mut to = HostSlots::new(Qpn(qpn), &slots.window);
            to.post_as(4 + i, &SendWr { flags, ..wr }).unwrap();
        }
    }

    fn right(i: u64) -> (u32, u32, u64, usize) {
        (9, 1, 500 + i * EACH as u64, EACH)
    }

    /// A piece of `count` slots from ticket `4 + first` on.
    fn piece(first: u64, count: usize) -> Piece {
        let bytes = (count * EACH) as u32;
        Piece { from: 4 + first, to: 10 + first * EACH as u64, bytes, each: EACH as u32 }
    }

    /// How many bytes were written from the run's first on; all others are as before.
    fn written(to: &View) -> usize {
        let mut all = vec![0; 4096];
        to.read(0, &mut all).unwrap();
        let bytes = all.iter().filter(|&&b| b != 0).count();
        assert!(all[10..10 + bytes].iter().all(|&b| b == 6), "in one place");
        bytes
    }

    #[test]
    fn a_slot_that_lacks_a_line_is_not_copied() {
        for line in LineFormat::ALL {
            let (slots, to) = run(line);
            post(&slots, right);
            let window = slots.window.window.clone();
            let at = 2 * 2048 + 5 * line.line_bytes();
            let mut held = vec![0; line.line_bytes()];
            window.read(at, &mut held).unwrap();
            let turn = slots.turn.clone();
            let ends = Ends::Slots(Arc::new(slots));
            let mut room = Vec::new();
            // A line of no lap, of the lap before, and of the next one.
            for seq in [0, 3, 5u32] {
                let mut other = held.clone();
                let from = line.data_bytes();
                other[from..].copy_from_slice(&seq.to_le_bytes()[..line.seq_bytes()]);
                window.write(at, &other).unwrap();
                turn.begin(6);
                let none = Outcome::Slots { copied: 0, asked: 0 };
                assert_eq!(ends.contained(piece(2, 1), &mut room), none);
                assert_eq!(written(&to), 0, "{line}: nothing is written");
                assert!(!ends.is_free(&piece(3, 1)), "the run has ended");
            }
            window.write(at, &held).unwrap();
            turn.begin(4);
            let all = Outcome::Slots { copied: 3, asked: 0b010 };
            assert_eq!(ends.contained(piece(0, 3), &mut room), all);
            assert_eq!(written(&to), 3 * EACH);
            assert!(ends.is_free(&piece(3, 1)));
        }
    }

    /// What the run does not expect ends it before its slot.
    #[test]
    fn a_slot_that_is_something_else_ends_the_run() {
        type Change = fn((u32, u32, u64, usize)) -> (u32, u32, u64, usize);
        let changes: [(&str, Change); 4] = [
            ("another queue pair", |(_, key, addr, bytes)| (8, key, addr, bytes)),
            ("another key", |(qpn, _, addr, bytes)| (qpn, 2, addr, bytes)),
            ("elsewhere", |(qpn, key, addr, bytes)| (qpn, key, addr + 1, bytes)),
            ("shorter", |(qpn, key, addr, bytes)| (qpn, key, addr, bytes - 1)),
        ];
        for (what, change) in changes {
            let (slots, to) = run(LineFormat::L12S4);
            post(&slots, |i| if i == 1 { change(right(i)) } else { right(i) });
            let ends = Ends::Slots(Arc::new(slots));
            let mut room = Vec::new();
            let one = Outcome::Slots { copied: 1, asked: 0 };
            assert_eq!(ends.contained(piece(0, 2), &mut room), one, "{what}");
            // What comes behind would be right again.
            assert_eq!(ends.contained(piece(2, 1), &mut room), Outcome::Undone, "{what}");
            assert_eq!(written(&to), EACH, "{what}");
        }
    }
}
