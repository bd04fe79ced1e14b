//! In-band reception: finds the next whole slot in a window.

use std::sync::atomic::Ordering;

use super::vendor::{Vendor, of_parse};
use crate::mem::{Dma, MemError};
use crate::nic::Inband;
use crate::wire::cqe::Syndrome;
use crate::wire::inband::{Need, Standing, slot_of, stream_need};

/// Where a queue pair's in-band window stands.
pub(super) struct Watch {
    cfg: Inband,
    /// The next slot to be sent.
    pub(super) ticket: u64,
    /// The line that was missing when last looked at: looked at first, so that waiting for a long
    /// slot costs one load.
    missing: usize,
}

/// What is in the next slot.
pub(super) enum Slot {
    /// Not all lines carry the sequence yet.
    Waiting,
    /// A whole stream of so many bytes.
    Whole(usize),
    /// What cannot become a message.
    Bad(Syndrome, Vendor),
}

/// Buffers that slots and WQEs are copied to before they are looked at.
#[derive(Default)]
pub(super) struct Scratch {
    /// Lines as they lay in the slot.
    lines: Vec<u8>,
    /// The bytes of a WQE.
    pub(super) wqe: Vec<u8>,
}

impl Scratch {
    /// Makes room for WQEs from a ring, and from slots of `slot_bytes`.
    pub(super) fn reserve(&mut self, slot_bytes: usize) {
        let wqe = slot_bytes.max(crate::wire::wqe::MAX_WQE_BYTES.next_multiple_of(64));
        self.lines.resize(self.lines.len().max(slot_bytes), 0);
        self.wqe.resize(self.wqe.len().max(wqe), 0);
    }
}

impl Watch {
    /// Clears the window and watches its first slot.
    ///
    /// Sequences that an earlier user of the memory left behind could pass for fresh ones.
    pub(super) fn new(cfg: &Inband) -> Result<Self, MemError> {
        cfg.window.fill(0, cfg.slot_bytes as usize * cfg.slots as usize, 0)?;
        Ok(Self { cfg: cfg.clone(), ticket: 0, missing: 0 })
    }

    pub(super) fn advance(&mut self) {
        self.ticket += 1;
        self.missing = 0;
    }

    /// Copies the next slot's stream to `scratch.wqe`, if all of it has arrived.
    pub(super) fn fetch(&mut self, scratch: &mut Scratch) -> Slot {
        let format = self.cfg.line;
        let (line_bytes, data) = (format.line_bytes(), format.data_bytes());
        let slot_lines = self.cfg.slot_bytes as usize / line_bytes;
        let (slot, lap) = slot_of(self.ticket, self.cfg.slots);
        let base = slot as usize * self.cfg.slot_bytes as usize;
        let expected = format.seq(self.cfg.seq0, lap);

        // 1. A cheap look: has anything happened since the last one?
        let first = self.seq(base, 0);
        match format.standing(expected, first) {
            Standing::Stale => return Slot::Waiting,
            Standing::Ahead => return Slot::Bad(Syndrome::LocalQpOp, Vendor::Overrun),
            Standing::Expected => {}
        }
        if self.missing > 0 && self.seq(base, self.missing) != expected {
            return Slot::Waiting;
        }

        // 2. Take lines until the stream says that it is complete.
        let (mut have, mut need) = (0, 16);
        loop {
            let lines = format.lines(need);
            if lines > slot_lines {
                return Slot::Bad(Syndrome::LocalLength, Vendor::Length);
            }
            if lines > have {
                // Each load of a sequence acquires, and all come before the copy: the copy holds
                // the data that the writer stored with, or before, these sequences.
                let found = self.equal(base, have, lines - have, expected);
                if found < lines - have {
                    self.missing = have + found;
                    return Slot::Waiting;
                }
                let copy = &mut scratch.lines[have * line_bytes..lines * line_bytes];
                if self.cfg.window.read(base + have * line_bytes, copy).is_err() {
                    return Slot::Bad(Syndrome::LocalQpOp, Vendor::Dma);
                }
                // 3. Verify again, in the copy: a writer without a credit may have come by.
                let into = &mut scratch.wqe[have * data..lines * data];
                if let Err(line) = format.gather(copy, expected, into) {
                    self.missing = have + line;
                    return Slot::Waiting;
                }
                have = lines;
            }
            match stream_need(&scratch.wqe[..have * data]) {
                Ok(Need::Total(total)) if format.lines(total) <= have => {
                    return Slot::Whole(total);
                }
                Ok(Need::Total(total)) => need = total,
                Ok(Need::More(more)) => need = more,
                Err(error) => {
                    let (syndrome, vendor) = of_parse(error);
                    return Slot::Bad(syndrome, vendor);
                }
            }
        }
    }

    /// Where the word that ends with a line's sequence lies: the last 4 bytes of the line, aligned.
    fn seq_at(&self, base: usize, line: usize) -> usize {
        base + (line + 1) * self.cfg.line.line_bytes() - 4
    }

    /// How far a word is to be shifted for its sequence: a 2-byte one is its later half.
    fn shift(&self) -> usize {
        32 - 8 * self.cfg.line.seq_bytes()
    }

    /// The sequence of a line, before anything else of it is read.
    fn seq(&self, base: usize, line: usize) -> u32 {
        let word = self.cfg.window.load_u32(self.seq_at(base, line), Ordering::Acquire);
        u32::from_le(word.unwrap_or(0)) >> self.shift()
    }

    /// How many lines from `first` on, at most `count`, have the sequence.
    fn equal(&self, base: usize, first: usize, count: usize, expected: u32) -> usize {
        let (mask, value) = (u32::MAX << self.shift(), expected << self.shift());
        let (at, stride) = (self.seq_at(base, first), self.cfg.line.line_bytes());
        let found = self.cfg.window.equal_u32(at, stride, count, mask.to_le(), value.to_le());
        found.unwrap_or(0)
    }
}
