//! Which segments a WQE consists of.
//!
//! A walk goes as far as the bytes carry: where a parser refuses a WQE, a walk still says which byte is which up to
//! the place that is wrong.

use super::{
    ATOMIC, AV, AV_DC, BSF, CTRL, DATA, INLINE, KLM, KSM, LIST, Layout, MASKED_CS_4, MASKED_CS_8,
    MASKED_FA_4, MASKED_FA_8, MKEY, MMO, MTT, NEXT, RADDR, REPEAT, REPEAT_ENTRY, UMR, UMR_BSF,
    WAIT, XRC,
};
use crate::masked::Kind;
use crate::umr;
use crate::wqe::{Ctrl, DS_BYTES, INLINE_FLAG, Opcode};

/// What a queue pair sends, which says what follows the control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sends {
    /// Messages of a connection (RC, UC): nothing does.
    Connected,
    /// Datagrams: an address vector does.
    Datagrams,
    /// Messages to shared receive queues: an XRC segment does.
    Xrc,
    /// Messages of dynamic connections: the target's address vector does.
    Dynamic,
}

/// What a segment holds behind the fields of its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// Nothing.
    None,
    /// Inline data: offset and bytes.
    Inline(usize, usize),
}

/// A segment of a WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its format.
    pub layout: &'static Layout,
    /// Its offset.
    pub at: usize,
    /// What lies behind the layout's fields.
    pub body: Body,
}

/// The segments of a WQE, as far as they could be told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Walk {
    /// The segments in order.
    pub segments: Vec<Segment>,
    /// Offset of a segment that does not fit between the one before it and the WQE's end.
    pub beyond: Option<usize>,
    /// Offset behind the last segment that the opcode has; what lies between it and the WQE's end is not used.
    pub end: usize,
}

/// Access modes of keys whose entries have no length (Linux, `MLX5_MKC_ACCESS_MODE_MTT` and `_KSM`). Keys of libmlx5's
/// memory windows have none, and entries with a length.
const MTTS: u64 = 1;
const KSMS: u64 = 3;

struct Walker<'a> {
    bytes: &'a [u8],
    walk: Walk,
}

impl Walker<'_> {
    /// Whether the segment fits.
    fn take(&mut self, layout: &'static Layout) -> bool {
        let at = self.walk.end;
        if self.walk.beyond.is_some() {
            return false;
        }
        if self.bytes.len() < at + layout.bytes {
            self.walk.beyond = Some(at);
            return false;
        }
        self.walk.segments.push(Segment { layout, at, body: Body::None });
        self.walk.end += layout.bytes;
        true
    }

    fn word(&self, at: usize) -> Option<u32> {
        let word = self.bytes.get(at..at + 4)?;
        Some(u32::from_be_bytes(word.try_into().expect("4 bytes")))
    }

    /// Data segments and inline data up to the WQE's end.
    fn payload(&mut self) {
        while self.walk.end < self.bytes.len() && self.walk.beyond.is_none() {
            let at = self.walk.end;
            match self.word(at) {
                Some(count) if count & INLINE_FLAG != 0 => {
                    self.inline((count & !INLINE_FLAG) as usize);
                }
                _ => {
                    self.take(&DATA);
                }
            }
        }
    }

    fn inline(&mut self, bytes: usize) {
        let at = self.walk.end;
        let data = at + INLINE.bytes;
        if self.bytes.len() < data + bytes {
            self.walk.beyond = Some(at);
            return;
        }
        let body = Body::Inline(data, bytes);
        self.walk.segments.push(Segment { layout: &INLINE, at, body });
        self.walk.end = (data + bytes).next_multiple_of(DS_BYTES);
    }

    /// A UMR's segments behind its control segment.
    fn umr(&mut self) {
        let bytes = self.bytes.get(DS_BYTES..).unwrap_or_default();
        let of = |name| UMR.number(name, bytes).unwrap_or(0) as usize;
        let inline = of("flags.inline") != 0;
        let octowords = of("klm_octowords");
        // What is no place in the translation is the length of a BSF (Linux, `set_sig_umr_segment`).
        let has_bsf = inline && of("flags.translation_offset") == 0;
        let bsf = if has_bsf { of("translation_offset") } else { 0 };
        let ctrl = if bsf > 0 { &UMR_BSF } else { &UMR };
        if !(self.take(ctrl) && self.take(&MKEY)) {
            return;
        }
        if inline {
            self.translation(octowords);
        } else if octowords > 0 {
            self.take(&DATA);
        }
        for _ in 0..bsf {
            if !self.take(&BSF) {
                return;
            }
        }
    }

    /// The entries of a translation that is inline, behind the key's context.
    fn translation(&mut self, octowords: usize) {
        let first = self.walk.end;
        let key = &self.bytes[first - MKEY.bytes..];
        let mode = |name| MKEY.number(name, key).unwrap_or(0);
        let (entry, ranges) = match (mode("access_mode_4_2"), mode("access_mode_1_0")) {
            (0, MTTS) => (&MTT, false),
            (0, KSMS) => (&KSM, false),
            _ => (&KLM, true),
        };
        let repeats = ranges && octowords > 0 && self.word(first + 4) == Some(umr::REPEAT);
        let end = first + octowords * DS_BYTES;
        while self.walk.end < end {
            let layout = match (repeats, self.walk.end == first) {
                (true, true) => &REPEAT,
                (true, false) => &REPEAT_ENTRY,
                (false, _) => entry,
            };
            if !self.take(layout) {
                return;
            }
        }
    }

    fn atomic(&mut self, opcode: Opcode, op_mod: u8) {
        let layout = match (opcode.masked(), op_mod & 1 != 0) {
            (None, _) => &ATOMIC,
            (Some(Kind::CompareSwap), false) => &MASKED_CS_4,
            (Some(Kind::CompareSwap), true) => &MASKED_CS_8,
            (Some(Kind::FetchAdd), false) => &MASKED_FA_4,
            (Some(Kind::FetchAdd), true) => &MASKED_FA_8,
        };
        self.take(layout);
    }

    fn opcode(&mut self, opcode: Opcode, op_mod: u8, sends: Sends) {
        match opcode {
            Opcode::Nop => return,
            Opcode::Umr => return self.umr(),
            Opcode::TagMatching => {
                self.take(&LIST);
                return self.payload();
            }
            Opcode::Mmo => {
                self.take(&MMO);
                return self.payload();
            }
            Opcode::Wait => {
                self.take(&WAIT);
                return;
            }
            Opcode::Dump => return self.payload(),
            _ => {}
        }
        match sends {
            Sends::Connected => true,
            Sends::Datagrams => self.take(&AV),
            Sends::Xrc => self.take(&XRC),
            Sends::Dynamic => self.take(&AV_DC),
        };
        if opcode.has_remote() {
            self.take(&RADDR);
        }
        if opcode.is_atomic() {
            self.atomic(opcode, op_mod);
        }
        self.payload();
    }
}

/// The segments of a send WQE of `bytes`, which end where its ds does. Of an opcode that is not known there is the
/// control segment alone.
pub fn walk(bytes: &[u8], sends: Sends) -> Walk {
    let mut walker = Walker { bytes, walk: Walk::default() };
    if walker.take(&CTRL)
        && let Ok(ctrl) = Ctrl::parse(bytes)
        && let Some(opcode) = Opcode::from_code(ctrl.opcode)
    {
        walker.opcode(opcode, ctrl.op_mod, sends);
    }
    walker.walk
}

/// The segments of a receive WQE; one of a shared receive queue begins with a link to the next.
pub fn receives(bytes: &[u8], shared: bool) -> Walk {
    let mut walker = Walker { bytes, walk: Walk::default() };
    if !shared || walker.take(&NEXT) {
        while walker.walk.end < bytes.len() && walker.take(&DATA) {}
    }
    walker.walk
}
