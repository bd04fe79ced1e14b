//! Doorbells and doorbell records.

use bellpush::wire::doorbell::{DBR_BYTES, Doorbell, dbr_counter};
use bellpush::wire::fields::{CQ_DBR, CQ_DOORBELL, DBR, DOORBELL};
use bellpush::wire::wqe::{Ctrl, WQEBB_BYTES};

use super::Options;
use super::item::Item;
use super::names::{wqe_opcode, wqe_opcode_or_code};
use super::wqe::starts;

/// A register of 8 bytes, as they lie in memory.
pub(super) fn register(at: String, bytes: &[u8; 8], options: &Options) -> Item {
    let mut item = Item::new("doorbell", at);
    if options.cq {
        item.part(&CQ_DOORBELL, bytes, 0);
        let number = |name| CQ_DOORBELL.number(name, bytes).unwrap_or(0);
        item.summary = format!("arms CQ {:#x} from consumer index {}", number("cqn"), number("ci"));
        if let Some(record) = &options.record {
            armed(&mut item, bytes, record);
        }
        return item;
    }
    item.part(&DOORBELL, bytes, 0);
    let rung = Doorbell::parse(u64::from_le_bytes(*bytes));
    let number = |name| DOORBELL.number(name, bytes).unwrap_or(0);
    let (code, ds) = (number("opmod_idx_opcode.opcode"), number("qpn_ds.ds"));
    item.summary = format!(
        "rings QP {:#x} up to wqe_index {} ({}, ds {ds})",
        rung.qpn.0,
        rung.next,
        wqe_opcode_or_code(code as u8)
    );
    if ds == 0 {
        item.note(4, "ds is 0: the index is the next one itself, as NVSHMEM rings");
    }
    if wqe_opcode(code).is_none() {
        item.wrong(0, format!("opcode {code:#04x} is not known"));
    }
    if let Some(sq) = &options.sq {
        in_queue(&mut item, bytes, rung, ds == 0, sq);
    }
    if let Some(record) = &options.record {
        let word = u32::from_ne_bytes([record[4], record[5], record[6], record[7]]);
        compared(&mut item, rung.next, dbr_counter(word));
    }
    item
}

/// Is the doorbell what the record says?
pub(super) fn compared(item: &mut Item, rung: u16, record: u16) {
    match record.wrapping_sub(rung) {
        0 => item.note(None, "the doorbell record is at the same index"),
        n if n < 0x8000 => item.note(
            None,
            format!("the doorbell record is {n} basic blocks ahead, at {record}: more was posted since"),
        ),
        n => item.wrong(
            None,
            format!(
                "the doorbell record is {} basic blocks behind the doorbell, at {record}: it must be visible before the \
                 doorbell (PRM, \"Posting a Work Request\")",
                n.wrapping_neg()
            ),
        ),
    }
}

/// Is the word that arms a CQ in its record what the register got (libmlx5, `mlx5_arm_cq`)?
fn armed(item: &mut Item, register: &[u8; 8], record: &[u8; DBR_BYTES]) {
    let rung = CQ_DOORBELL.number("ci", register).unwrap_or(0);
    let ci = CQ_DBR.number("arm.ci", record).unwrap_or(0);
    match ci.wrapping_sub(rung) & 0xff_ffff {
        0 if record[4..] == register[..4] => item.note(None, "the record has the same word"),
        n @ 1..0x80_0000 => item.note(None, format!("the record is {n} entries ahead: it was armed since")),
        _ => item.wrong(
            None,
            format!(
                "the record's word is {}, and the register's {}: the record must be written before the register",
                super::item::hex(&record[4..]),
                super::item::hex(&register[..4]),
            ),
        ),
    }
}

/// Is the doorbell a WQE of its queue?
fn in_queue(item: &mut Item, bytes: &[u8; 8], rung: Doorbell, next: bool, sq: &[u8]) {
    let blocks = sq.len() / WQEBB_BYTES;
    let found = starts(sq);
    if next {
        return ends(item, rung.next, &found, blocks);
    }
    let index = DOORBELL.number("opmod_idx_opcode.wqe_index", bytes).unwrap_or(0);
    let block = index as usize % blocks;
    if !found.iter().any(|(start, _)| *start == block) {
        item.wrong(0, format!("wqe_index {index}: no WQE begins at block {block} of the queue"));
        return;
    }
    let there = &sq[block * WQEBB_BYTES..][..8];
    if there != bytes {
        let there = super::item::hex(there);
        item.wrong(0, format!("the WQE at block {block} begins otherwise, with {there}"));
    }
}

/// Does a WQE end where an index says?
fn ends(item: &mut Item, index: u16, found: &[(usize, Ctrl)], blocks: usize) {
    let at = usize::from(index) % blocks;
    let last = |(_, ctrl): &&(usize, Ctrl)| {
        usize::from(ctrl.index.wrapping_add(ctrl.blocks() as u16)) % blocks == at
    };
    let end =
        found.iter().find(last).map(|(_, ctrl)| ctrl.index.wrapping_add(ctrl.blocks() as u16));
    let next = found.iter().find(|(start, _)| *start == at).map(|(_, ctrl)| ctrl.index);
    match (end, next) {
        _ if found.is_empty() => {}
        (None, None) => {
            item.wrong(0, format!("index {index}: no WQE of the queue ends before block {at}"));
        }
        (end, next) if end != Some(index) && next != Some(index) => {
            let there = end.or(next).unwrap_or(index);
            item.wrong(0, format!("index {index}: at block {at} the queue is at index {there}"));
        }
        _ => {}
    }
}

/// A doorbell record.
pub(super) fn record(at: String, bytes: &[u8; DBR_BYTES], options: &Options) -> Item {
    let mut item = Item::new("dbr", at);
    if options.cq {
        item.part(&CQ_DBR, bytes, 0);
        let number = |name| CQ_DBR.number(name, bytes).unwrap_or(0);
        let sort = if number("arm.cmd") != 0 { "a solicited CQE" } else { "any CQE" };
        item.summary = format!(
            "consumer index {}, armed for {sort} from {} (sequence {})",
            number("update_ci"),
            number("arm.ci"),
            number("arm.cmd_sn")
        );
        return item;
    }
    item.part(&DBR, bytes, 0);
    let number = |name| DBR.number(name, bytes).unwrap_or(0);
    let (rcv, snd) = (number("rcv.wqe_counter"), number("snd.wqe_counter"));
    item.summary = format!("receive counter {rcv}, send counter {snd}");
    if let Some(sq) = &options.sq {
        ends(&mut item, snd as u16, &starts(sq), sq.len() / WQEBB_BYTES);
    }
    item
}

/// Whether the bytes are writes of 64 bytes to a BlueFlame register, of which the first 8 ring. The next 8 of a WQE have
/// its flags and immediate: queue pair 0 has no doorbell.
fn is_blue_flame(bytes: &[u8], options: &Options) -> bool {
    let second = bytes.get(8..16).unwrap_or_default();
    !options.cq
        && bytes.len().is_multiple_of(WQEBB_BYTES)
        && DOORBELL.number("qpn_ds.ds", bytes).is_some_and(|ds| ds > 0)
        && DOORBELL.number("qpn_ds.qpn", second) == Some(0)
}

/// BlueFlame writes.
pub(super) fn blue_flame(
    bytes: &[u8],
    options: &Options,
    each: &mut dyn FnMut(Item) -> bool,
) -> Option<bool> {
    if !is_blue_flame(bytes, options) {
        return None;
    }
    let writes = bytes.chunks_exact(WQEBB_BYTES).enumerate();
    let mut items = writes.filter_map(|(i, write)| {
        let mut item = register(format!("{:#x}", i * WQEBB_BYTES), write.first_chunk()?, options);
        item.note(8, "taken for a BlueFlame write of 64 bytes: the rest is the WQE (decode wqe)");
        Some(item)
    });
    Some(items.all(each))
}

/// Registers or records, one behind the other.
pub(super) fn dump(
    kind: &'static str,
    bytes: &[u8],
    options: &Options,
    of: fn(String, &[u8; 8], &Options) -> Item,
    each: &mut dyn FnMut(Item) -> bool,
) -> bool {
    for (i, slot) in bytes.chunks(8).enumerate() {
        let at = format!("{:#x}", i * 8);
        let item = match slot.try_into() {
            Ok(slot) => of(at, slot, options),
            Err(_) => {
                let mut item = Item::new(kind, at);
                item.summary = format!("{} bytes", slot.len());
                item.wrong(None, format!("{} bytes are not 8", slot.len()));
                item
            }
        };
        if !each(item) {
            return false;
        }
    }
    true
}
