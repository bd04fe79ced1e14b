//! CQEs.

use bellpush::wire::cqe::{CQE_BYTES, Cqe, CqeOpcode, Syndrome, owner_bit};
use bellpush::wire::fields::{CQE, CQE_ERROR, CQE_SIG_ERR, Layout, MINI_CQE_REQ, MINI_CQE_RESP};
use bellpush::wire::tm::Told;
use bellpush::wire::wqe::Opcode;

use super::Options;
use super::item::Item;
use super::names::{cqe_opcode, signature_error, wqe_opcode, wqe_opcode_or_code};
use super::syndrome;

/// Where an entry is in its ring: its index, and the ring's entries.
pub(super) type Place = Option<(u64, u64)>;

/// Opcode of a signature error, which the software NIC does not report.
const SIG_ERR: u8 = 0xc;

/// An entry of 64 bytes.
pub(super) fn entry(at: String, bytes: &[u8; CQE_BYTES], place: Place, signed: bool) -> Item {
    let mut item = Item::new("cqe", at);
    let parsed = Cqe::parse(bytes).ok();
    match &parsed {
        None if bytes[63] >> 4 == SIG_ERR => sig_err(&mut item, bytes),
        None => {
            let code = bytes[63] >> 4;
            item.summary = format!("CQE opcode {code:#x}");
            item.part(&CQE, bytes, 0);
            item.wrong(0x3f, format!("CQE opcode {code:#x} is not known"));
            return item;
        }
        Some(cqe) if cqe.opcode == CqeOpcode::Invalid => {
            item.summary = "INVALID: no CQE has been written here".into();
            return item;
        }
        Some(cqe) => {
            match cqe.opcode.is_error() {
                true => item.part(&CQE_ERROR, bytes, 0),
                false => fields(&mut item, cqe, bytes),
            }
            // The opcode is a requester's: a responder's CQE has nothing there (libmlx5, `handle_good_req`).
            if !matches!(cqe.opcode, CqeOpcode::Req | CqeOpcode::ReqErr) {
                SEND_OPCODES.iter().for_each(|name| item.unmeant(name));
            }
            item.summary = summary(cqe, format(bytes));
        }
    }
    owner(&mut item, bytes[63] & 1, place);
    match &parsed {
        Some(cqe) if cqe.opcode.is_error() => error(&mut item, cqe),
        Some(cqe) => success(&mut item, cqe, bytes),
        None => {}
    }
    let all = bytes.iter().fold(0, |sum, byte| sum ^ byte);
    if signed && all != 0xff {
        let right = !(all ^ bytes[62]);
        item.wrong(0x3e, format!("signature is {:#04x}, computed {right:#04x}", bytes[62]));
    }
    item
}

/// Formats of what an entry carries beside its fields (PRM, "Completion Queue Entry Format").
const DATA_32: u8 = 1;
const DATA_64: u8 = 2;
const COMPRESSED: u8 = 3;
/// Most CQEs that a compressed one stands for (PRM, `cqe_compression_max_num`: 16 bits).
const MOST_COMPRESSED: usize = 0xffff;

/// Mini-CQEs of an entry.
const MINIS: usize = 8;

/// Fields that have the opcode of a requester's WQE.
const SEND_OPCODES: [&str; 2] = ["sop_drop_qpn.sop", "s_wqe_opcode_qpn.opcode"];

/// Whether `byte_cnt` counts: a requester's does for a READ alone (libmlx5, `handle_good_req`).
fn counts(cqe: &Cqe) -> bool {
    cqe.opcode != CqeOpcode::Req || cqe.send_opcode == Opcode::RdmaRead as u8
}

fn format(bytes: &[u8; CQE_BYTES]) -> u8 {
    bytes[63] >> 2 & 3
}

/// Where data take the place of fields, they are data.
fn fields(item: &mut Item, cqe: &Cqe, bytes: &[u8; CQE_BYTES]) {
    if format(bytes) != DATA_32 {
        return item.part(&CQE, bytes, 0);
    }
    item.bytes("data", 0, &bytes[..cqe.byte_cnt.min(32) as usize]);
    let behind = CQE.fields.iter().filter(|field| field.at >= 32);
    item.fields(CQE.name, behind, bytes, 0);
}

/// Is the owner bit that of the entry's lap?
fn owner(item: &mut Item, owner: u8, place: Place) {
    let Some((index, entries)) = place.filter(|(_, entries)| *entries > 0) else { return };
    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
    let due = owner_bit(index, entries);
    if owner != due {
        item.wrong(
            0x3f,
            format!(
                "owner is {owner}, where entry {index} of a ring of {entries} has {due} in this lap: the NIC has \
                 not written it yet, and a poller must not take it"
            ),
        );
    }
}

/// Data and their protection do not agree (Linux, `mlx5_sig_err_cqe`).
fn sig_err(item: &mut Item, bytes: &[u8; CQE_BYTES]) {
    item.part(&CQE_SIG_ERR, bytes, 0);
    let number = |name| CQE_SIG_ERR.number(name, bytes).unwrap_or(0);
    let (mkey, at) = (number("mkey"), number("err_offset"));
    let what = signature_error(number("syndrome"));
    item.summary = format!("SIG_ERR, {what}, mkey {mkey:#x}, at byte {at} of the transfer");
    item.note(
        0x20,
        "a signature error: the protection of a block (T10-DIF, CRC) is not what its data have; it says no more of \
         a WQE, whose own CQE comes, too",
    );
}

fn summary(cqe: &Cqe, format: u8) -> String {
    let name = cqe_opcode(cqe.opcode);
    let (qpn, counter) = (cqe.qpn.0, cqe.wqe_counter);
    if cqe.opcode.is_error() {
        let what = Syndrome::from_code(cqe.syndrome)
            .map_or_else(|| format!("syndrome {:#04x}", cqe.syndrome), syndrome::name);
        let of = match cqe.opcode {
            CqeOpcode::ReqErr => format!(" of {}", wqe_opcode_or_code(cqe.send_opcode)),
            _ => " of a receive".into(),
        };
        return format!("{name}, {what}{of}, QP {qpn:#x}, wqe_counter {counter}");
    }
    let of = match cqe.opcode {
        CqeOpcode::Req => format!(" of {}", wqe_opcode_or_code(cqe.send_opcode)),
        _ => String::new(),
    };
    let told = match format {
        COMPRESSED => format!(", {} CQEs, compressed", cqe.byte_cnt),
        _ if counts(cqe) => format!(", {} bytes", cqe.byte_cnt),
        _ => String::new(),
    };
    format!("{name}{of}, QP {qpn:#x}, wqe_counter {counter}{told}")
}

fn error(item: &mut Item, cqe: &Cqe) {
    let syndrome = Syndrome::from_code(cqe.syndrome);
    match syndrome {
        Some(known) => {
            for line in syndrome::explained(known) {
                item.note(0x37, line);
            }
        }
        None => item.wrong(0x37, format!("syndrome {:#04x} is not known", cqe.syndrome)),
    }
    item.note(0x36, syndrome::vendor(cqe.vendor_err, syndrome));
    if cqe.opcode == CqeOpcode::ReqErr && wqe_opcode(cqe.send_opcode.into()).is_none() {
        item.wrong(0x38, format!("opcode {:#04x} is not known", cqe.send_opcode));
    }
}

fn success(item: &mut Item, cqe: &Cqe, bytes: &[u8; CQE_BYTES]) {
    let format = format(bytes);
    let room = match format {
        DATA_32 => Some(32),
        DATA_64 => Some(64),
        _ => None,
    };
    if let Some(room) = room.filter(|room| cqe.byte_cnt > *room) {
        let have = cqe.byte_cnt;
        item.wrong(0x2c, format!("byte_cnt is {have}, and data in the entry are at most {room}"));
    }
    if format == COMPRESSED && cqe.byte_cnt as usize > MOST_COMPRESSED {
        let count = cqe.byte_cnt;
        item.wrong(0x2c, format!("{count} CQEs in a compressed one, which has at most 65535"));
    }
    if format == COMPRESSED {
        item.note(
            0x3f,
            "a compressed CQE: it stands for byte_cnt of them, and their mini-CQEs follow: byte_cnt, and what else \
             differs",
        );
        return;
    }
    if cqe.opcode == CqeOpcode::Req && wqe_opcode(cqe.send_opcode.into()).is_none() {
        item.wrong(0x38, format!("opcode {:#04x} is not known", cqe.send_opcode));
    }
    if counts(cqe) && cqe.byte_cnt > 1 << 31 {
        item.wrong(0x2c, format!("byte_cnt is {}, and a message has at most 2^31", cqe.byte_cnt));
    }
    if let Some(tag) = &cqe.tag {
        item.note(0x28, format!("tag matching: {}, entry {}", told(tag.told), tag.index));
    }
    if cqe.network.is_some() && format != DATA_32 {
        item.note(0x18, format!("a datagram of queue pair {:#x}, with its GRH", cqe.source.0));
    }
}

fn told(told: Told) -> &'static str {
    match told {
        Told::Consumed => "a message has matched; its payload is on its way",
        Told::Expected => "the payload of a message that has matched is there",
        Told::Unexpected => "a message that did not match is in a receive",
        Told::NoTag => "a message that takes no part in matching is in a receive",
        Told::Append => "an entry was appended",
        Told::Remove => "an entry was removed, or was not there any more",
        Told::Noop => "an operation without an entry is done",
        Told::ConsumedMessage => "a message has matched, and its payload is there",
        Told::ConsumedForSoftware => "a rendezvous has matched that is the program's to carry out",
        Told::Cancelled => "a message has matched, and its payload will not come",
    }
}

/// The entries of a dump of a CQ, or of a part of one.
pub(super) fn dump(bytes: &[u8], options: &Options, each: &mut dyn FnMut(Item) -> bool) -> bool {
    let size = options.cqe_bytes;
    let entries = options.queue_log.map(|log| 1_u64 << log);
    let slots = bytes.len().div_ceil(size);
    let mut i = 0;
    while i < slots {
        let slot = &bytes[i * size..bytes.len().min((i + 1) * size)];
        // Of 128 bytes the last 64 are the entry.
        let at = format!("{:#x}", i * size + size - CQE_BYTES);
        let Some(last) = slot.last_chunk::<CQE_BYTES>().filter(|_| slot.len() == size) else {
            let mut item = Item::new("cqe", format!("{:#x}", i * size));
            item.summary = format!("{} bytes", slot.len());
            item.wrong(None, format!("{} bytes hold no CQE of {size}", slot.len()));
            return each(item);
        };
        let unused = zeros(&bytes[i * size..], size);
        if unused > 0 {
            let mut item = Item::new("cqe", format!("{:#x}", i * size));
            item.summary = format!("{} bytes of zeros: no CQE was written here", unused * size);
            i += unused;
            if !each(item) {
                return false;
            }
            continue;
        }
        let place = options.index.zip(entries);
        let place = place.map(|(first, entries)| (u64::from(first) + i as u64, entries));
        let mut item = entry(at, last, place, options.signed);
        if format(last) == DATA_64 && is_success(last) {
            let before = "its data lie in the 64 bytes before it";
            if size == CQE_BYTES {
                item.note(0x3f, format!("{before}: an entry of 128 bytes (--cqe-bytes 128)"));
            } else {
                let count = CQE.number("byte_cnt", last).unwrap_or(0).min(CQE_BYTES as u64);
                item.bytes("data", 0, &slot[..count as usize]);
                item.note(0x3f, format!("{before}, at {:#x}", i * size));
            }
        }
        i += 1;
        if !each(item) {
            return false;
        }
        let mini = if is_success(last) { compressed(last).min(slots - i) } else { 0 };
        for j in 1..=mini {
            // Of 128 bytes the last 64, as of CQEs.
            let at = (i + j) * size - CQE_BYTES;
            let Some(array) = bytes.get(at..at + CQE_BYTES) else { break };
            let item = minis(at, array, last, j);
            if item.is_some_and(|item| !each(item)) {
                return false;
            }
        }
        i += mini;
    }
    true
}

/// The mini-CQEs in the entry that is `nth` behind a compressed one: eight of them behind it, and in the places of
/// those that are the ninth, seventeenth and so on of those that it stands for. The others are not written (Linux,
/// `mlx5e_read_mini_arr_slot`).
fn minis(at: usize, array: &[u8], title: &[u8; CQE_BYTES], nth: usize) -> Option<Item> {
    let first = if nth == 1 { 0 } else { nth };
    let count = CQE.number("byte_cnt", title).unwrap_or(0) as usize;
    if !first.is_multiple_of(MINIS) || first >= count {
        return None;
    }
    let is_send = Cqe::parse(title).ok()?.opcode == CqeOpcode::Req;
    let layout: &Layout = if is_send { &MINI_CQE_REQ } else { &MINI_CQE_RESP };
    let mut item = Item::new("cqe", format!("{at:#x}"));
    let here = MINIS.min(count - first);
    item.summary = format!("mini-CQEs {first} to {} of {count}", first + here - 1);
    for mini in 0..here {
        let place = mini * layout.bytes;
        item.part(layout, array, place);
        let number = |name| layout.number(name, &array[place..]);
        let bytes = number("byte_cnt").unwrap_or(0);
        if bytes > 1 << 31 {
            item.wrong(place + 4, format!("byte_cnt is {bytes}, and a message has at most 2^31"));
        }
        if let Some(code) = number("s_wqe_opcode").filter(|code| wqe_opcode(*code).is_none()) {
            item.wrong(place + 2, format!("opcode {code:#04x} is not known"));
        }
    }
    if !is_send {
        let what =
            "rx_hash_result: or a checksum (31:16) and a stride index (15:0), as the CQ was made";
        item.note(0, what);
    }
    Some(item)
}

/// Entries of zeros.
fn zeros(bytes: &[u8], size: usize) -> usize {
    let all = |entry: &&[u8]| entry.iter().all(|&byte| byte == 0);
    bytes.chunks_exact(size).take_while(all).count()
}

fn is_success(bytes: &[u8; CQE_BYTES]) -> bool {
    Cqe::parse(bytes).is_ok_and(|cqe| !cqe.opcode.is_error() && cqe.opcode != CqeOpcode::Invalid)
}

/// Entries behind a compressed one that hold its mini-CQEs: it stands for `byte_cnt` entries, itself among them
/// (Linux, `mlx5e_decompress_cqes_start`). A count that is wrong hides none.
fn compressed(bytes: &[u8; CQE_BYTES]) -> usize {
    let count = CQE.number("byte_cnt", bytes).unwrap_or(0) as usize;
    let right = format(bytes) == COMPRESSED && count <= MOST_COMPRESSED;
    if right { count.saturating_sub(1) } else { 0 }
}
