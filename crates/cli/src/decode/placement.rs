//! Packets of the memory placement extensions (InfiniBand vol. 1, release 1.7, annex A19), as Linux' rxe has them: RC
//! FLUSH and ATOMIC WRITE. Both are answered by an RDMA READ response Only without payload. The software NIC has
//! neither.

use std::ops::Range;

use bellpush::wire::fields::{BTH, FETH, RETH};
use bellpush::wire::roce::{BTH_BYTES, ICRC_BYTES};

use super::item::Item;
use super::packet::header;

const FLUSH: u8 = 0x1c;
const ATOMIC_WRITE: u8 = 0x1d;
/// What an ATOMIC WRITE writes, and what its address is a multiple of.
const WORD_BYTES: u64 = 8;

/// Name of an opcode, if it is one of these.
pub(super) fn name(code: u8) -> Option<&'static str> {
    match code {
        FLUSH => Some("RC FLUSH"),
        ATOMIC_WRITE => Some("RC ATOMIC WRITE"),
        _ => None,
    }
}

/// What a field of the FLUSH extended transport header means.
pub(super) fn meaning(field: &str, value: u64) -> Option<&'static str> {
    Some(match (field, value) {
        ("SEL", 0) => "the range of the RETH",
        ("SEL", 1) => "the whole memory region",
        ("PLT", 1) => "global visibility",
        ("PLT", 2) => "persistence",
        ("PLT", 3) => "global visibility and persistence",
        _ => return None,
    })
}

/// A packet from its BTH to its ICRC, of which the bytes up to `have` are there; whether it is one of these.
pub(super) fn request(
    item: &mut Item,
    all: &[u8],
    Range { start: at, end }: Range<usize>,
    have: usize,
    cut: bool,
) -> bool {
    let before_icrc = end.saturating_sub(ICRC_BYTES).max(at + BTH_BYTES);
    let (bytes, there) = (&all[at..end], &all[..have.min(before_icrc)]);
    let code = bytes[0];
    let Some(name) = name(code) else { return false };
    let number = |field| BTH.number(field, bytes).unwrap_or(0);
    item.summary = format!("{name} to QP {:#x}, PSN {}", number("DestQP"), number("PSN"));
    if let version @ 1.. = number("TVer") {
        item.wrong(at + 1, format!("transport version {version} is not 0"));
    }
    if number("P_Key") & 0x7fff == 0 {
        item.wrong(None, "P_Key 0 is no partition");
    }
    let mut next = at + BTH_BYTES;
    let mut whole_region = false;
    if code == FLUSH {
        if !header(item, &FETH, there, next, cut) {
            return true;
        }
        whole_region = flush(item, &there[next..], next);
        next += FETH.bytes;
    }
    if !header(item, &RETH, there, next, cut) {
        return true;
    }
    let reth = |field| RETH.number(field, &there[next..]).unwrap_or(0);
    let (addr, length) = (reth("VA"), reth("DMALen"));
    let place = next;
    next += RETH.bytes;
    let room = end.saturating_sub(ICRC_BYTES).max(next);
    let payload = room - next.min(room);
    if code == FLUSH {
        item.summary += &match whole_region {
            true => ", the whole region".into(),
            false => format!(", {length} bytes"),
        };
        if length > 1 << 31 && !whole_region {
            item.wrong(place + 12, format!("DMALen is {length}, and a message has at most 2^31"));
        }
        if payload > 0 || number("PadCnt") > 0 {
            item.wrong(next, format!("{payload} bytes of payload, and a FLUSH has none"));
        }
        return true;
    }
    if !addr.is_multiple_of(WORD_BYTES) {
        let what = format!("an ATOMIC WRITE at {addr:#x}, which is not a multiple of 8");
        item.wrong(place, what);
    }
    if length != WORD_BYTES {
        item.wrong(place + 12, format!("DMALen is {length}, and an ATOMIC WRITE has 8 bytes"));
    }
    if payload as u64 != WORD_BYTES || number("PadCnt") > 0 {
        item.wrong(next, format!("{payload} bytes of payload, and an ATOMIC WRITE has 8"));
    }
    item.summary += &format!(", {payload} bytes");
    if let Some(word) = there.get(next..next + payload).filter(|word| !cut && !word.is_empty()) {
        item.bytes("payload", next, word);
    }
    true
}

/// Whether it is a whole region that is flushed.
fn flush(item: &mut Item, feth: &[u8], at: usize) -> bool {
    let number = |field| FETH.number(field, feth).unwrap_or(0);
    let (select, placement) = (number("SEL"), number("PLT"));
    if select > 1 {
        item.wrong(at + 3, format!("SEL {select} is not known"));
    }
    if placement == 0 || placement > 3 {
        let what = "a FLUSH for visibility, persistence or both";
        item.wrong(at + 3, format!("PLT is {placement:#x}, where {what} has 1, 2 or 3"));
    }
    select == 1
}
