//! In-band reception: finds the next whole slot in a window.

use std::sync::atomic::Ordering;

use crate::vendor::{Vendor, of_parse};
use bellpush_mem::{Intent, LINE_BYTES, MemError};
use bellpush_nic::{Inband, LineFormat};
use bellpush_wire::PlainWrite;
use bellpush_wire::cqe::Syndrome;
use bellpush_wire::inband::{Need, Standing, slot_of, stream_need};

/// Most bytes of the next slot that are fetched while this one is carried out.
const NEXT_BYTES: usize = 1024;

/// Where a queue pair's in-band window stands.
pub(crate) struct Watch {
    cfg: Inband,
    /// The next slot to be sent.
    pub(crate) ticket: u64,
    lap: u64,
    place: Place,
    /// Data of the slot's lines that have come, one after the other.
    stream: Vec<u8>,
    /// How many lines those are. The line after them is the one to be waited for: a look at a slot
    /// of which a part has come costs one load, and no line is taken twice.
    have: usize,
    /// Length of the stream, when all of it is there.
    whole: Option<usize>,
}

/// Slots from the one whose beginning is looked at to those whose are fetched.
const LOOKS_AHEAD: [u64; 3] = [1, 2, 4];

/// A ticket's slot: where it starts in the window, and the sequence of its lines.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    base: usize,
    expected: u32,
}

/// What is in the next slot.
pub(crate) enum Slot {
    /// Not all lines carry the sequence yet.
    Waiting,
    /// A whole stream of so many bytes.
    Whole(usize),
    /// What cannot become a message.
    Bad(Syndrome, Vendor),
}

impl Watch {
    /// Clears the window and watches its first slot.
    ///
    /// Sequences that an earlier user of the memory left behind could pass for fresh ones.
    pub(crate) fn new(cfg: &Inband) -> Result<Self, MemError> {
        cfg.window.fill(0, cfg.slot_bytes as usize * cfg.slots as usize, 0)?;
        Ok(Self {
            ticket: 0,
            lap: 0,
            place: Place::of(cfg, 0),
            stream: vec![0; cfg.line.capacity(cfg.slot_bytes as usize)],
            have: 0,
            whole: None,
            cfg: cfg.clone(),
        })
    }

    pub(crate) fn advance(&mut self) {
        self.ticket += 1;
        self.place.base = self.next_base();
        if self.place.base == 0 {
            self.lap += 1;
            self.place.expected = self.cfg.line.seq(self.cfg.seq0, self.lap);
        }
        self.have = 0;
        self.whole = None;
    }

    /// Goes on at a ticket's slot.
    pub(crate) fn seek(&mut self, ticket: u64) {
        (self.ticket, self.lap) = (ticket, slot_of(ticket, self.cfg.slots).1);
        self.place = Place::of(&self.cfg, ticket);
        self.have = 0;
        self.whole = None;
    }

    fn next_base(&self) -> usize {
        let next = self.place.base + self.cfg.slot_bytes as usize;
        if next < self.cfg.slot_bytes as usize * self.cfg.slots as usize { next } else { 0 }
    }

    /// A cheap look: whether the line that was missing still is.
    pub(crate) fn is_waiting(&self) -> bool {
        if self.whole.is_some() || self.have == self.slot_lines() {
            return false;
        }
        let standing = self.standing();
        standing == Standing::Stale || (self.have > 0 && standing != Standing::Expected)
    }

    /// The stream of a whole slot.
    pub(crate) fn stream(&self, bytes: usize) -> &[u8] {
        &self.stream[..bytes]
    }

    /// Takes what has come of the next slot, and says whether that is all of it.
    pub(crate) fn fetch(&mut self) -> Slot {
        if let Some(bytes) = self.whole {
            return Slot::Whole(bytes);
        }
        if self.have == 0 {
            match self.standing() {
                Standing::Stale => return Slot::Waiting,
                Standing::Ahead => return Slot::Bad(Syndrome::LocalQpOp, Vendor::Overrun),
                Standing::Expected => {}
            }
        }
        let format = self.cfg.line;
        // Take lines until the stream says that it is complete. The first line of the processor's
        // cache holds most headers.
        let mut need = 64 / format.line_bytes() * format.data_bytes();
        let mut must = 16;
        loop {
            if format.lines(must) > self.slot_lines() {
                return Slot::Bad(Syndrome::LocalLength, Vendor::Length);
            }
            let lines = format.lines(need.max(must)).min(self.slot_lines());
            if lines > self.have && self.take(lines).is_err() {
                return Slot::Bad(Syndrome::LocalQpOp, Vendor::Dma);
            }
            if self.have < format.lines(must) {
                return Slot::Waiting;
            }
            match stream_need(&self.stream[..self.have * format.data_bytes()]) {
                Ok(Need::Total(total)) if format.lines(total) <= self.have => {
                    self.whole = Some(total);
                    // As much as this slot has: lines that are not needed would keep the payload's
                    // and the CQE's waiting for a fill buffer.
                    let ahead = (self.have * format.line_bytes()).min(NEXT_BYTES);
                    self.cfg.window.prefetch(self.next_base(), ahead, Intent::Read);
                    return Slot::Whole(total);
                }
                Ok(Need::Total(n) | Need::More(n)) => must = n,
                Err(error) => {
                    let (syndrome, vendor) = of_parse(error);
                    return Slot::Bad(syndrome, vendor);
                }
            }
            need = 0;
        }
    }

    /// Joins lines up to number `lines` to the stream, up to the first without the sequence.
    ///
    /// Each line's sequence is loaded, with acquire, before its data: what is joined is what its
    /// writer stored with, or before, that sequence. So one pass both verifies and copies, and no
    /// line that was joined is to be looked at again. A writer that has no credit can still
    /// overwrite a line between the two loads; that spoils its own message, of which only this
    /// copy is looked at from here on.
    fn take(&mut self, lines: usize) -> Result<(), MemError> {
        let data = self.cfg.line.data_bytes();
        let into = &mut self.stream[self.have * data..lines * data];
        self.have += self.place.join(&self.cfg, self.have, into)?;
        Ok(())
    }

    /// Whether nothing of the next slot has been taken yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.have == 0 && self.whole.is_none()
    }

    /// Whether the slot after the next one has begun.
    pub(crate) fn has_company(&self) -> bool {
        let place = Place::of(&self.cfg, self.ticket + 1);
        place.standing(&self.cfg, 0) == Standing::Expected
    }

    /// The slots, for who joins them elsewhere.
    pub(crate) fn cfg(&self) -> &Inband {
        &self.cfg
    }

    /// The WRITE in the slot of a ticket at or behind the next one, if its beginning has come, and all of its payload is
    /// inline and fits. Nothing of the next slot has been taken.
    pub(crate) fn peek(&mut self, ticket: u64) -> Option<PlainWrite> {
        let format = self.cfg.line;
        let lines = LINE_BYTES / format.line_bytes();
        // Each look is a miss in memory that a device has written: those behind it are on their way meanwhile. One that
        // was asked for too early is asked for again.
        for ahead in LOOKS_AHEAD {
            self.cfg.window.prefetch(
                Place::of(&self.cfg, ticket + ahead).base,
                LINE_BYTES,
                Intent::Read,
            );
        }
        let place = Place::of(&self.cfg, ticket);
        let begin = &mut self.stream[..lines * format.data_bytes()];
        if place.standing(&self.cfg, 0) != Standing::Expected
            || place.join(&self.cfg, 0, begin).ok()? != lines
        {
            return None;
        }
        let write = PlainWrite::parse_stream(begin.first_chunk()?)?;
        let end = PlainWrite::INLINE_AT.checked_add(write.bytes as usize)?;
        (end <= format.capacity(self.cfg.slot_bytes as usize)).then_some(write)
    }

    fn slot_lines(&self) -> usize {
        self.cfg.slot_bytes as usize / self.cfg.line.line_bytes()
    }

    /// How the sequence of the line to be waited for stands.
    fn standing(&self) -> Standing {
        self.place.standing(&self.cfg, self.have)
    }
}

impl Place {
    pub(crate) fn of(cfg: &Inband, ticket: u64) -> Self {
        let (slot, lap) = slot_of(ticket, cfg.slots);
        let base = slot as usize * cfg.slot_bytes as usize;
        Self { base, expected: cfg.line.seq(cfg.seq0, lap) }
    }

    /// How the sequence of a line stands.
    fn standing(self, cfg: &Inband, line: usize) -> Standing {
        // The word that ends with the sequence: the last 4 bytes of the line, aligned.
        let at = self.base + (line + 1) * cfg.line.line_bytes() - 4;
        let word = cfg.window.load_u32(at, Ordering::Acquire);
        let found = u32::from_le(word.unwrap_or(0)) >> shift(cfg.line);
        cfg.line.standing(self.expected, found)
    }

    /// Joins lines from number `from` on, up to the first without the sequence, as many as `into` holds; says how many
    /// were joined. A line's sequence is loaded, with acquire, before its data.
    pub(crate) fn join(
        self,
        cfg: &Inband,
        from: usize,
        into: &mut [u8],
    ) -> Result<usize, MemError> {
        let (window, format) = (&cfg.window, cfg.line);
        let at = self.base + from * format.line_bytes();
        let (mask, value) = (u32::MAX << shift(format), self.expected << shift(format));
        let (mask, value) = (mask.to_le(), value.to_le());
        match format {
            LineFormat::L12S4 => window.join_lines::<16, 12>(at, mask, value, into),
            LineFormat::L14S2 => window.join_lines::<16, 14>(at, mask, value, into),
            LineFormat::L60S4 => window.join_lines::<64, 60>(at, mask, value, into),
        }
    }
}

/// How far a line's last word is to be shifted for its sequence: a 2-byte one is its later half.
fn shift(format: LineFormat) -> usize {
    32 - 8 * format.seq_bytes()
}
