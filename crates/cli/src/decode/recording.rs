//! Recordings of `bellpush run --record`: all that has a format of its own, with what is known around it.

use std::collections::BTreeMap;

use bellpush::nic::QpType;
use bellpush::nic::soft::record::{Following, Format, Formatted, formats};
use bellpush::wire::cqe::CQE_BYTES;
use bellpush::wire::doorbell::{Doorbell, cq_ci};
use bellpush::wire::fields::{CQ_DBR, CQE, DBR};
use bellpush::wire::wqe::Ctrl;

use super::item::Item;
use super::packet::{Around, Link, packet};
use super::stream::Streams;
use super::wqe::{Known, receive, send};
use super::{DecodeError, Options, QueueType, cqe, doorbell};

/// Doorbells of a queue pair whose WQEs the NIC has not read yet.
const MOST_RUNG: usize = 64;

#[derive(Default)]
struct Queue {
    /// Index of the next WQE, once one was read.
    next: Option<u16>,
    /// Indices that were rung.
    rung: Vec<u16>,
    /// The last of them.
    last: Option<u16>,
}

#[derive(Default)]
struct Reading {
    queues: BTreeMap<u32, Queue>,
    /// Entries that were written to each CQ, for the lap of its owner bit, and its ring's entries.
    written: BTreeMap<u32, (u64, u64)>,
    streams: Streams,
}

fn queue_type(kind: QpType) -> QueueType {
    match kind {
        QpType::Rc | QpType::Uc => QueueType::Rc,
        QpType::Ud => QueueType::Ud,
        QpType::XrcSend | QpType::XrcRecv => QueueType::Xrc,
        QpType::Dci | QpType::Dct => QueueType::Dci,
    }
}

impl Reading {
    fn item(&mut self, it: Formatted, options: &Options) -> Option<Item> {
        let at = format!(
            "event {}, {}.{:09} s",
            it.event,
            it.at_ns / 1_000_000_000,
            it.at_ns % 1_000_000_000
        );
        let bytes = &it.bytes[..];
        Some(match it.what {
            Format::Wqe { qpn, kind, block, blocks } => {
                self.wqe(at, bytes, (qpn, kind, block, blocks), options)
            }
            Format::Receive { number, shared } => {
                let mut item = receive(at, bytes, shared);
                item.summary += &format!(" of queue {number:#x}");
                item
            }
            Format::Cqe { cq, entry, entries, collapsed } => {
                let (count, ring) = self.written.entry(cq).or_insert((0, entries));
                let index = *count;
                *count += 1;
                // A ring that was resized begins a lap of its own.
                let known = !collapsed && entries == *ring && entries > 0;
                let place = (known && index % entries == entry).then_some((index, entries));
                let entry: &[u8; CQE_BYTES] = bytes.try_into().ok()?;
                let mut item = cqe::entry(at, entry, place, options.signed);
                item.summary += &format!(", CQ {cq}");
                item
            }
            Format::Doorbell { known } => {
                let register: &[u8; 8] = bytes.try_into().ok()?;
                let mut item = doorbell::register(at, register, &Options::default());
                let rung = Doorbell::parse(u64::from_le_bytes(*register));
                if !known {
                    item.wrong(4, format!("there is no queue pair {:#x}", rung.qpn.0));
                }
                self.rung(&mut item, rung);
                item
            }
            Format::Record { qpn, send } => {
                let (mut item, counter) = record(at, bytes, qpn, send);
                let queue = self.queues.entry(qpn).or_default();
                if let Some(rung) = queue.last.filter(|_| send) {
                    behind(&mut item, rung, counter);
                }
                item
            }
            Format::CqRecord { cq, arm } => cq_record(at, bytes, cq, arm)?,
            Format::CqDoorbell => {
                let options = Options { cq: true, ..Options::default() };
                doorbell::register(at, bytes.try_into().ok()?, &options)
            }
            Format::Packet { sent, envelope, left_out, has_icrc } => {
                let (cut, without_icrc) = (left_out.is_some(), !has_icrc);
                let around = Around { envelope, cut, without_icrc, ..Around::default() };
                let (mut item, seen) = packet(at, bytes, Link::Bth, &around);
                item.summary = format!("{} {}", if sent { "sent" } else { "got" }, item.summary);
                if cut {
                    item.summary += ", payload not recorded";
                }
                if let Some(seen) = seen {
                    self.streams.take(&mut item, &seen);
                }
                item
            }
        })
    }

    fn wqe(
        &mut self,
        at: String,
        bytes: &[u8],
        (qpn, kind, block, blocks): (u32, QpType, u64, u64),
        options: &Options,
    ) -> Item {
        let queue = self.queues.entry(qpn).or_default();
        let known = Known {
            index: None, // the NIC may read a WQE again
            queue_log: blocks.is_power_of_two().then(|| blocks.trailing_zeros()),
            qpn: Some(qpn),
            whole: true,
        };
        let mut item = send(at, bytes, queue_type(kind), &known, options.signed);
        let Ok(ctrl) = Ctrl::parse(bytes) else { return item };
        if blocks > 0 && u64::from(ctrl.index) % blocks != block {
            let index = ctrl.index;
            item.wrong(0, format!("wqe_index {index} is not that of block {block}, where it lies"));
        }
        let blocks = ctrl.blocks() as u16;
        for rung in queue.rung.drain(..) {
            let into = rung.wrapping_sub(ctrl.index);
            if (1..blocks).contains(&into) {
                item.wrong(0, format!("the doorbell before rang up to {rung}, within this WQE"));
            }
        }
        queue.next = Some(ctrl.index.wrapping_add(blocks));
        item
    }

    fn rung(&mut self, item: &mut Item, rung: Doorbell) {
        let queue = self.queues.entry(rung.qpn.0).or_default();
        if let Some(next) = queue.next {
            let ahead = rung.next.wrapping_sub(next);
            if ahead >= 0x8000 {
                item.note(0, format!("the NIC has read up to {next} already"));
            }
        }
        queue.last = Some(rung.next);
        if queue.rung.len() < MOST_RUNG {
            queue.rung.push(rung.next);
        }
    }
}

/// A word of a queue pair's record.
fn record(at: String, bytes: &[u8], qpn: u32, send: bool) -> (Item, u16) {
    let mut item = Item::new("dbr", at);
    let mut whole = [0; 8];
    let (from, name) = if send { (4, "snd.wqe_counter") } else { (0, "rcv.wqe_counter") };
    whole[from..from + bytes.len().min(4)].copy_from_slice(&bytes[..bytes.len().min(4)]);
    let fields = DBR.fields.iter().filter(|field| field.at == from);
    item.fields(DBR.name, fields, &whole, 0);
    let counter = DBR.number(name, &whole).unwrap_or(0);
    let sort = if send { "send" } else { "receive" };
    item.summary = format!("QP {qpn:#x}, {sort} counter {counter}");
    (item, counter as u16)
}

/// Is the record that the NIC read after a doorbell behind it? Some ring before they write the record, and once more
/// behind it.
fn behind(item: &mut Item, rung: u16, record: u16) {
    let missing = rung.wrapping_sub(record);
    if missing == 0 || missing >= 0x8000 {
        return;
    }
    let what = format!(
        "{missing} basic blocks behind the doorbell that the NIC read before, {rung}: on a card they wait for another"
    );
    item.note(4, what);
}

fn cq_record(at: String, bytes: &[u8], cq: u32, arm: bool) -> Option<Item> {
    let word: [u8; 4] = bytes.try_into().ok()?;
    let mut item = Item::new("dbr", at);
    let mut whole = [0; 8];
    let from = if arm { 4 } else { 0 };
    whole[from..from + 4].copy_from_slice(&word);
    let fields = CQ_DBR.fields.iter().filter(|field| field.at == from);
    item.fields(CQ_DBR.name, fields, &whole, 0);
    item.summary = match arm {
        true => {
            let number = |name| CQ_DBR.number(name, &whole).unwrap_or(0);
            format!("CQ {cq}, armed from {} (sequence {})", number("arm.ci"), number("arm.cmd_sn"))
        }
        false => format!("CQ {cq}, consumer index {}", cq_ci(u32::from_ne_bytes(word))),
    };
    Some(item)
}

/// All of a recording.
pub(super) fn all(
    bytes: &[u8],
    options: &Options,
    each: &mut dyn FnMut(Item) -> bool,
) -> Result<(), DecodeError> {
    let (mut reading, mut more) = (Reading::default(), true);
    let mut take = |it| {
        more = reading.item(it, options).is_none_or(&mut *each);
        more
    };
    let closed = formats(bytes.to_vec(), &mut take).map_err(|it| DecodeError(it.to_string()))?;
    if more && !closed {
        let mut item = Item::new("end", "end");
        item.summary = "the recording stops here, and its device was not closed".into();
        item.note(None, "its program was killed or runs on, or the file is cut");
        each(item);
    }
    Ok(())
}

/// A recording that a running program's device writes, as far as it has come.
pub struct Live {
    options: Options,
    /// The queue pair that is looked at; `None`: everything.
    qpn: Option<u32>,
    following: Following,
    reading: Reading,
}

impl Live {
    /// Of a queue pair alone, if one is given: its WQEs, receives, CQEs, doorbells and records.
    pub fn new(options: &Options, qpn: Option<u32>) -> Self {
        let (following, reading) = (Following::default(), Reading::default());
        Self { options: options.clone(), qpn, following, reading }
    }

    /// Takes the bytes that follow those before, and hands over what is whole with them, until `each` says that it is
    /// enough. Whether it did not.
    ///
    /// # Errors
    /// [`DecodeError`] for bytes that are no recording, or that are damaged.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        each: &mut dyn FnMut(Item) -> bool,
    ) -> Result<bool, DecodeError> {
        let Self { options, qpn, following, reading } = self;
        let mut take = |it: Formatted| {
            let wanted = qpn.is_none_or(|qpn| qpn_of(&it) == Some(qpn));
            // What is not shown is known of afterwards.
            let item = reading.item(it, options).filter(|_| wanted);
            item.is_none_or(&mut *each)
        };
        following.feed(bytes, &mut take).map_err(|error| DecodeError(error.to_string()))
    }

    /// Whether the device was closed: nothing follows.
    pub fn is_closed(&self) -> bool {
        self.following.is_closed()
    }
}

/// The queue pair that something of a recording is of; packets name the peer's.
fn qpn_of(it: &Formatted) -> Option<u32> {
    match it.what {
        Format::Wqe { qpn, .. } | Format::Record { qpn, .. } => Some(qpn),
        Format::Receive { number, shared } => (!shared).then_some(number),
        Format::Doorbell { .. } => {
            let register = it.bytes[..].try_into().ok()?;
            Some(Doorbell::parse(u64::from_le_bytes(register)).qpn.0)
        }
        Format::Cqe { .. } => CQE.number("sop_drop_qpn.qpn", &it.bytes).map(|qpn| qpn as u32),
        Format::CqRecord { .. } | Format::CqDoorbell | Format::Packet { .. } => None,
    }
}
