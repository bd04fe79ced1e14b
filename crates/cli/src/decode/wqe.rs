//! WQEs of send and receive queues.

use bellpush::wire::fields::{
    Body, CTRL, DATA, INLINE, KLM, KSM, MTT, RADDR, Segment, Sends, Walk, receives, walk,
};
use bellpush::wire::mmo::{Copy, MMO_BYTES};
use bellpush::wire::tm::ListWqe;
use bellpush::wire::umr::{UMR_HEADER_BYTES, Umr};
use bellpush::wire::wait::{Wait, dumped};
use bellpush::wire::wqe::{
    Ctrl, DS_BYTES, INLINE_FLAG, INVALID_LKEY, MAX_WQE_BYTES, Opcode, WQEBB_BYTES, Wqe, WqeError,
};

use super::item::Item;
use super::names::{wqe_opcode, wqe_opcode_or_code};
use super::{DecodeError, Options, QueueType};

/// What is known of a WQE from elsewhere.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// Its index in its queue.
    pub index: Option<u16>,
    /// Log of the queue's basic blocks.
    pub queue_log: Option<u32>,
    /// Its queue pair.
    pub qpn: Option<u32>,
    /// Whether the bytes are all that there is of it.
    pub whole: bool,
}

fn parse(bytes: &[u8], sends: Sends) -> Result<Wqe, WqeError> {
    match sends {
        Sends::Connected => Wqe::parse(bytes),
        Sends::Datagrams => Wqe::parse_datagram(bytes),
        Sends::Xrc => Wqe::parse_xrc(bytes),
        Sends::Dynamic => Wqe::parse_dc(bytes),
    }
}

/// What the queue pair seems to send, by what lies behind the control segment: an address vector says that it is whole,
/// and no lkey or rkey is 0.
fn guessed(wqe: &[u8], opcode: Opcode) -> Sends {
    let zeros = |from: usize, to: usize| {
        wqe.get(from..to).is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0))
    };
    if opcode.is_local() {
        return Sends::Connected;
    }
    let extended = wqe.get(24).is_some_and(|byte| *byte == 0x80) && zeros(32, 36);
    if extended && parse(wqe, Sends::Dynamic).is_ok() {
        return match zeros(20, 24) && parse(wqe, Sends::Datagrams).is_ok() {
            true => Sends::Datagrams,
            false => Sends::Dynamic,
        };
    }
    let link = wqe.get(16) == Some(&0) && !zeros(16, 20) && zeros(20, 32);
    match link && parse(wqe, Sends::Xrc).is_ok() {
        true => Sends::Xrc,
        false => Sends::Connected,
    }
}

/// Parses what only some opcodes have.
fn checked(wqe: &[u8], ctrl: &Ctrl, sends: Sends) -> Result<(), WqeError> {
    let parsed = parse(wqe, sends)?;
    match parsed.opcode {
        // What lies behind its header is told by the walk, and what it asks of the software NIC by `umr`.
        Opcode::Umr => Ok(()),
        Opcode::TagMatching => ListWqe::parse(wqe).map(drop),
        Opcode::Mmo if usize::from(ctrl.ds) * DS_BYTES != MMO_BYTES => {
            Err(WqeError::Ds(ctrl.ds.into()))
        }
        Opcode::Mmo => Copy::parse(wqe).map(drop),
        Opcode::Wait => Wait::parse(wqe).map(drop),
        Opcode::Dump => dumped(wqe).map(drop),
        _ => Ok(()),
    }
}

/// `op_mod` of an MMO that copies memory, the one whose segments are known (libmlx5, `MLX5_OPC_MOD_MMO_DMA`).
const MMO_COPY: u8 = 1;
/// `op_mod` of a WAIT for an entry of a CQ. Others wait for a word in memory or for a time (DPDK,
/// `MLX5_OPC_MOD_WAIT_TIME`), by a segment of 32 bytes.
const WAIT_FOR_CQ: u8 = 0;

/// Names a WQE whose opcode is known, and whose segments are not.
fn undecoded(ctrl: &Ctrl, opcode: Option<Opcode>) -> Option<String> {
    match opcode {
        Some(Opcode::Mmo) if ctrl.op_mod != MMO_COPY => {
            Some(format!("MMO with opmod {:#04x}", ctrl.op_mod))
        }
        Some(Opcode::Wait) if ctrl.op_mod != WAIT_FOR_CQ => {
            Some(format!("WAIT with opmod {:#04x}", ctrl.op_mod))
        }
        Some(_) => None,
        None => wqe_opcode(ctrl.opcode.into()).map(str::to_owned),
    }
}

/// Whether a data segment is the one that ends a receive's list.
fn ends_list(segment: &Segment, wqe: &[u8]) -> bool {
    segment.layout == &DATA
        && DATA.number("lkey", &wqe[segment.at..]) == Some(INVALID_LKEY.0.into())
}

/// Shows the segments of a walk.
fn show(item: &mut Item, wqe: &[u8], walked: &Walk) {
    for segment in &walked.segments {
        item.part(segment.layout, wqe, segment.at);
        // Zeros fill a list of ranges up to whole basic blocks.
        let fills = segment.layout == &KLM && is_zero(&wqe[segment.at..][..KLM.bytes]);
        if fills || ends_list(segment, wqe) {
            item.unmeant("byte_count");
        }
        if let Body::Inline(at, len) = segment.body {
            item.bytes("inline data", at, &wqe[at..at + len]);
        }
    }
}

fn names(sends: Sends) -> &'static str {
    match sends {
        Sends::Connected => "a connection (RC, UC)",
        Sends::Datagrams => "datagrams (UD)",
        Sends::Xrc => "an XRC initiator",
        Sends::Dynamic => "a DC initiator",
    }
}

/// A send WQE. `bytes` may be more than it takes.
pub(super) fn send(
    place: String,
    bytes: &[u8],
    queue: QueueType,
    known: &Known,
    signed: bool,
) -> Item {
    let mut item = Item::new("wqe", place);
    let Ok(ctrl) = Ctrl::parse(bytes) else {
        item.summary = format!("{} bytes", bytes.len());
        item.wrong(None, format!("{} bytes hold no control segment of 16", bytes.len()));
        return item;
    };
    let need = usize::from(ctrl.ds) * DS_BYTES;
    let wqe = &bytes[..need.clamp(DS_BYTES, bytes.len())];
    let opcode = Opcode::from_code(ctrl.opcode);
    item.summary = format!(
        "{}, wqe_index {}, QP {:#x}, ds {} ({need} bytes)",
        wqe_opcode_or_code(ctrl.opcode),
        ctrl.index,
        ctrl.qpn.0,
        ctrl.ds,
    );
    let sends = match (queue.sends(), opcode) {
        (Some(sends), _) => sends,
        (None, Some(opcode)) if queue != QueueType::Eth => guessed(wqe, opcode),
        (None, _) => Sends::Connected,
    };
    if queue.sends().is_none() && sends != Sends::Connected {
        item.note(16, format!("taken for a WQE of {}; --qp says otherwise", names(sends)));
    }
    let ethernet = queue == QueueType::Eth;
    let undecoded = undecoded(&ctrl, opcode);
    let alone = ethernet || undecoded.is_some();
    let walked = if alone { control(wqe) } else { walk(wqe, sends) };
    show(&mut item, wqe, &walked);
    if let Some(rest) = wqe.get(DS_BYTES..).filter(|rest| ethernet && !rest.is_empty()) {
        item.bytes("segments of Ethernet", DS_BYTES, rest);
        item.note(DS_BYTES, "a WQE of an Ethernet queue: its segments are not decoded");
    }
    place_in_queue(&mut item, &ctrl, bytes.len(), known);
    code(&mut item, &ctrl, opcode);
    if let Some(what) = &undecoded {
        item.note(0, format!("the segments of {what} are not decoded"));
    }
    if alone {
        // Segments that are not those of a queue pair's opcode, or that nobody knows here.
    } else if need <= bytes.len() && ctrl.ds > 0 {
        segments(&mut item, wqe, &ctrl, sends, &walked);
    } else if let Some(at) = walked.beyond.filter(|_| ctrl.ds > 0) {
        beyond(&mut item, wqe, at, bytes.len());
    }
    signature(&mut item, wqe, CTRL.number("signature", wqe).unwrap_or(0), signed);
    item
}

/// The control segment alone.
fn control(wqe: &[u8]) -> Walk {
    let ctrl = Segment { layout: &CTRL, at: 0, body: Body::None };
    Walk { segments: vec![ctrl], beyond: None, end: wqe.len() }
}

/// Is the WQE where it says that it is, and does it fit there?
fn place_in_queue(item: &mut Item, ctrl: &Ctrl, have: usize, known: &Known) {
    let need = usize::from(ctrl.ds) * DS_BYTES;
    if ctrl.ds == 0 {
        item.wrong(4, "ds is 0: a WQE has at least its control segment");
    }
    if let Some(log) = known.queue_log
        && u64::from(ctrl.blocks()) > 1 << log
    {
        let blocks = ctrl.blocks();
        item.wrong(
            4,
            format!("ds {}: {blocks} basic blocks, and the queue has {}", ctrl.ds, 1_u64 << log),
        );
    } else if need > have {
        let end = if known.whole { "the WQE's bytes" } else { "the queue's end" };
        item.wrong(4, format!("ds {} passes {end}: {need} bytes, and {have} are there", ctrl.ds));
    }
    if let Some(index) = known.index
        && index != ctrl.index
    {
        let said = ctrl.index;
        item.wrong(
            0,
            format!("wqe_index is {said} ({said:#x}), where the queue is at {index} ({index:#x})"),
        );
    }
    if let Some(qpn) = known.qpn
        && qpn != ctrl.qpn.0
    {
        item.wrong(4, format!("qpn is {:#x}, and the queue is that of {qpn:#x}", ctrl.qpn.0));
    }
}

/// Opcode, its modifier, the fence.
fn code(item: &mut Item, ctrl: &Ctrl, opcode: Option<Opcode>) {
    if wqe_opcode(ctrl.opcode.into()).is_none() {
        item.wrong(0, format!("opcode {:#04x} is not known", ctrl.opcode));
    }
    let takes = |opcode: Opcode| {
        opcode.masked().is_some()
            || matches!(opcode, Opcode::Mmo | Opcode::Umr | Opcode::TagMatching | Opcode::Wait)
    };
    if ctrl.op_mod != 0 && opcode.is_some_and(|opcode| !takes(opcode)) {
        item.wrong(0, format!("opmod is {:#04x}, and the opcode has none", ctrl.op_mod));
    }
    let shown = |part: &super::item::Part, name: &str| {
        part.fields.iter().find(|field| field.name == name).map(|field| field.value.clone())
    };
    let fence = item.parts.first().and_then(|ctrl| shown(ctrl, "fm_ce_se.fm"));
    if let Some(fence) = fence.filter(|fence| matches!(fence.as_str(), "0x5" | "0x6" | "0x7")) {
        item.wrong(0xb, format!("fm {fence} is reserved"));
    }
}

/// Do the segments agree with opcode and ds?
fn segments(item: &mut Item, wqe: &[u8], ctrl: &Ctrl, sends: Sends, walked: &Walk) {
    let known = Opcode::from_code(ctrl.opcode);
    if let Some(at) = walked.beyond {
        beyond(item, wqe, at, wqe.len());
    } else if known.is_some()
        && let Err(error) = checked(wqe, ctrl, sends)
    {
        let (at, what) = malformed(&error, wqe, ctrl, walked);
        item.wrong(at, what);
    } else if let Some(opcode) = known {
        let padded = opcode == Opcode::Umr;
        let rest = wqe.get(walked.end..).unwrap_or_default();
        let set = rest.iter().any(|&byte| byte != 0);
        if opcode != Opcode::Nop && !rest.is_empty() && (set || !padded) {
            let end = walked.end;
            item.wrong(
                4,
                format!("ds {} passes the opcode's segments, which end at {end:#x}", ctrl.ds),
            );
        }
    }
    if let Some(opcode) = known.filter(|_| walked.beyond.is_none()) {
        aligned(item, wqe, opcode, ctrl.op_mod, walked);
        if opcode == Opcode::Umr {
            umr(item, wqe, walked);
        }
    }
    for segment in walked.segments.iter().filter(|segment| segment.layout == &DATA) {
        if ends_list(segment, wqe) {
            item.note(segment.at + 4, "lkey 0x100 is the invalid key that ends receives' lists");
        } else if DATA.number("byte_count", &wqe[segment.at..]) == Some(0) {
            item.note(segment.at, "byte_count 0 means 2^31 bytes");
        }
    }
}

/// Why a WQE cannot be, and the offset that it is about.
fn malformed(error: &WqeError, wqe: &[u8], ctrl: &Ctrl, walked: &Walk) -> (usize, String) {
    let opcode = Opcode::from_code(ctrl.opcode);
    let name = wqe_opcode_or_code(ctrl.opcode);
    match error {
        WqeError::Opcode(_) if opcode.is_some_and(|it| it.masked().is_some()) => {
            (0, format!("opmod {:#04x} is none of {name}'s", ctrl.op_mod))
        }
        WqeError::Opcode(_) => (0, format!("{name} is no operation of such a queue pair")),
        WqeError::AtomicLength(_) => {
            let data = walked.segments.iter().find(|it| it.layout == &DATA);
            (data.map_or(0, |it| it.at), error.to_string())
        }
        WqeError::Segment(at) => {
            let returns = opcode.is_some_and(|it| it == Opcode::RdmaRead || it.is_atomic());
            let inline = wqe.get(*at).is_some_and(|byte| byte & 0x80 != 0);
            let what = format!("{name} scatters what comes back, and not to inline data");
            (*at, if returns && inline { what } else { error.to_string() })
        }
        _ => (0, error.to_string()),
    }
}

/// What a UMR asks for that the software NIC does not carry out, or that is malformed.
fn umr(item: &mut Item, wqe: &[u8], walked: &Walk) {
    // What a list of ranges may not be says nothing of other entries.
    let ranges = !walked.segments.iter().any(|it| [&MTT, &KSM].contains(&it.layout));
    match Umr::parse(wqe) {
        Err(WqeError::Segment(at)) if at >= UMR_HEADER_BYTES && ranges => {
            item.wrong(at, WqeError::Segment(at).to_string());
        }
        Err(_) => {
            let what = "bellpush's software NIC carries out inline UMRs of ranges and rights alone: \
                        it would refuse this one";
            item.note(0x10, what);
        }
        Ok(_) => {}
    }
}

/// An atomic at an address that no responder takes (InfiniBand vol. 1, 9.4.5.1).
fn aligned(item: &mut Item, wqe: &[u8], opcode: Opcode, op_mod: u8, walked: &Walk) {
    let remote = walked.segments.iter().find(|it| it.layout == &RADDR);
    let Some(at) = remote.map(|it| it.at).filter(|_| opcode.is_atomic()) else { return };
    let bytes = if opcode.masked().is_some() && op_mod & 1 == 0 { 4 } else { 8 };
    let addr = RADDR.number("raddr", &wqe[at..]).unwrap_or(0);
    if !addr.is_multiple_of(bytes) {
        item.wrong(at, format!("an atomic at {addr:#x}, which is not a multiple of {bytes}"));
    }
}

/// A segment reaches behind the end.
fn beyond(item: &mut Item, wqe: &[u8], at: usize, have: usize) {
    let head = wqe.get(at..at + 4).and_then(|word| word.try_into().ok());
    let count = head.map_or(0, u32::from_be_bytes);
    let room = have.saturating_sub(at);
    match count & INLINE_FLAG != 0 {
        true => {
            let bytes = count & !INLINE_FLAG;
            item.part(&INLINE, wqe, at);
            let room = room.saturating_sub(INLINE.bytes);
            item.wrong(
                at,
                format!("inline data of {bytes} bytes pass the WQE's end: {room} are there"),
            );
        }
        false => item.wrong(
            at,
            format!(
                "ds does not fit the opcode: a segment begins at {at:#x}, with {room} bytes left"
            ),
        ),
    }
}

/// A signature is the complement of the XOR of all other bytes (libmlx5, `calc_sig`).
fn signature(item: &mut Item, wqe: &[u8], stored: u64, signed: bool) {
    let all = wqe.iter().fold(0, |sum, byte| sum ^ byte);
    if (stored != 0 || signed) && all != 0xff {
        let right = !(all ^ stored as u8);
        item.wrong(8, format!("signature is {stored:#04x}, computed {right:#04x}"));
    }
}

/// A receive WQE.
pub(super) fn receive(place: String, bytes: &[u8], shared: bool) -> Item {
    let mut item = Item::new("receive", place);
    let walked = receives(bytes, shared);
    show(&mut item, bytes, &walked);
    let entries: Vec<_> = walked.segments.iter().filter(|s| s.layout == &DATA).collect();
    let (mut used, mut room) = (0, 0_u64);
    for entry in &entries {
        let number = |name| DATA.number(name, &bytes[entry.at..]).unwrap_or(0);
        if number("lkey") == u64::from(INVALID_LKEY.0) {
            break;
        }
        if number("byte_count.inline") != 0 {
            item.wrong(entry.at, "a receive has no inline data");
        }
        (used, room) = (used + 1, room + number("byte_count"));
    }
    item.summary = format!("receive WQE, {used} of {} entries, {room} bytes", entries.len());
    if let Some(at) = walked.beyond {
        item.wrong(at, "the bytes end within an entry of 16");
    }
    item
}

/// The WQEs of a dump of a receive queue, of `stride` bytes each; without it, all bytes are one.
fn posted(
    bytes: &[u8],
    shared: bool,
    stride: Option<usize>,
    each: &mut dyn FnMut(Item) -> bool,
) -> bool {
    let stride = stride.unwrap_or(bytes.len()).max(1);
    bytes.chunks(stride).enumerate().all(|(i, wqe)| {
        let mut item = receive(format!("{:#x}", i * stride), wqe, shared);
        if wqe.len() < stride {
            item.wrong(None, format!("{} bytes hold no WQE of {stride}", wqe.len()));
        }
        each(item)
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// The WQEs of a dump of a send queue, or of a part of one.
///
/// # Errors
/// [`DecodeError`] for more bytes than the queue has.
pub(super) fn dump(
    bytes: &[u8],
    options: &Options,
    each: &mut dyn FnMut(Item) -> bool,
) -> Result<bool, DecodeError> {
    if let Some(shared) = options.queue.receives() {
        return Ok(posted(bytes, shared, options.stride, each));
    }
    let queue = options.queue_log.map(|log| (WQEBB_BYTES as u64) << log);
    if let Some(queue) = queue.filter(|queue| bytes.len() as u64 > *queue) {
        let have = bytes.len();
        return Err(DecodeError(format!("{have} bytes are more than a queue of {queue} has")));
    }
    let ring = queue == Some(bytes.len() as u64);
    let blocks = (bytes.len() / WQEBB_BYTES).max(1);
    let first = options.index.map_or(0, |index| index as usize % blocks);
    let first = if ring { first } else { 0 };
    let mut walked = Walked { bytes, options, ring, blocks, first, qpn: None, behind: false };
    let mut at = 0; // from `first`
    while at < bytes.len() {
        let (item, taken) = walked.step(at);
        at += taken;
        if !each(item) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A walk through a send queue.
struct Walked<'a> {
    bytes: &'a [u8],
    options: &'a Options,
    /// Whether the bytes are all of the queue, so that WQEs go on around its end.
    ring: bool,
    blocks: usize,
    /// Block of the first WQE.
    first: usize,
    qpn: Option<u32>,
    /// The last WQE that was posted is behind: what follows is of the lap before, and some of it is overwritten.
    behind: bool,
}

impl Walked<'_> {
    /// Place of what lies so many bytes from the first WQE. The index wraps at 16 bits, the place at the ring's end.
    fn place(&self, at: usize) -> usize {
        if self.ring { (self.first * WQEBB_BYTES + at) % self.bytes.len() } else { at }
    }

    fn due(&self, at: usize) -> Option<u16> {
        self.options.index.map(|index| index.wrapping_add((at / WQEBB_BYTES) as u32) as u16)
    }

    /// What lies so many bytes from the first WQE, and how many bytes that is.
    fn step(&mut self, at: usize) -> (Item, usize) {
        let place = self.place(at);
        let most = if self.ring { self.bytes.len() } else { self.bytes.len() - place };
        let rest = around(self.bytes, place, most);
        if is_zero(&rest[..rest.len().min(WQEBB_BYTES)]) && self.bytes.len() > WQEBB_BYTES {
            let unused = zeros(self.bytes, place);
            let mut item = Item::new("wqe", format!("{place:#x}"));
            item.summary = format!("{unused} bytes of zeros: no WQE was written here");
            return (item, unused.max(1));
        }
        if let Some(skipped) = self.overwritten(at) {
            self.behind = true;
            let mut item = Item::new("wqe", format!("{place:#x}"));
            item.summary =
                format!("{skipped} basic blocks of a WQE of the lap before, which is overwritten");
            return (item, skipped * WQEBB_BYTES);
        }
        self.wqe(at, place, &rest)
    }

    fn wqe(&mut self, at: usize, place: usize, rest: &[u8]) -> (Item, usize) {
        let ctrl = Ctrl::parse(rest).ok();
        let begins = !self.behind && self.is_before(at);
        self.behind |= begins;
        let options = self.options;
        let index = self.due(at).filter(|_| !self.behind);
        let known = Known { index, queue_log: options.queue_log, qpn: self.qpn, whole: !self.ring };
        let mut item = send(format!("{place:#x}"), rest, options.queue, &known, options.signed);
        let Some(ctrl) = ctrl else { return (item, WQEBB_BYTES) };
        if let Some(due) = self.due(at).filter(|_| begins) {
            let (index, blocks) = (ctrl.index, self.blocks);
            let what = format!(
                "wqe_index {index} is {blocks} basic blocks before {due}: a WQE of the lap before; the queue is posted \
                 up to here"
            );
            item.note(0, what);
        }
        let here = place / WQEBB_BYTES;
        if self.ring && index.is_none() && usize::from(ctrl.index) % self.blocks != here {
            let index = ctrl.index;
            let what = format!("wqe_index {index} is not that of block {here}: no WQE begins here");
            item.wrong(0, what);
        }
        self.qpn = self.qpn.or(Some(ctrl.qpn.0));
        let blocks = ctrl.blocks() as usize;
        let taken = if item.wrong.is_empty() { blocks } else { blocks.clamp(1, 16) };
        (item, taken * WQEBB_BYTES)
    }

    /// The control segment of a block of a ring whose index is known, and the index that is due there.
    fn block(&self, at: usize) -> Option<(Ctrl, u16)> {
        let due =
            self.due(at).filter(|_| self.ring && (WQEBB_BYTES..self.bytes.len()).contains(&at))?;
        Some((Ctrl::parse(&self.bytes[self.place(at)..]).ok()?, due))
    }

    /// Whether a WQE of the lap before begins there.
    fn is_before(&self, at: usize) -> bool {
        self.block(at).is_some_and(|(ctrl, due)| {
            let same = self.qpn.is_none_or(|qpn| qpn == ctrl.qpn.0);
            same && usize::from(due.wrapping_sub(ctrl.index)) == self.blocks
        })
    }

    /// Blocks up to the next WQE of the lap before, where one begins before the next of this lap does.
    fn overwritten(&self, at: usize) -> Option<usize> {
        // What names the queue pair is a WQE, if a wrong one.
        self.block(at).filter(|(ctrl, _)| self.qpn.is_some_and(|qpn| qpn != ctrl.qpn.0))?;
        let follows = |at| self.block(at).is_some_and(|(ctrl, due)| ctrl.index == due);
        let places = (0..16).map(|i| (i, at + i * WQEBB_BYTES));
        let mut found = places.take_while(|(_, at)| !follows(*at));
        found.find(|(_, at)| self.is_before(*at)).map(|(i, _)| i).filter(|i| *i > 0)
    }
}

/// Bytes of whole basic blocks of zeros that begin at an offset.
fn zeros(bytes: &[u8], at: usize) -> usize {
    bytes[at..].chunks(WQEBB_BYTES).take_while(|block| is_zero(block)).map(<[u8]>::len).sum()
}

/// Blocks at which WQEs of a ring begin, with their first 8 bytes, and blocks behind them.
pub(super) fn starts(ring: &[u8]) -> Vec<(usize, Ctrl)> {
    let blocks = ring.len() / WQEBB_BYTES;
    let ctrl = |block: usize| Ctrl::parse(&ring[block * WQEBB_BYTES..]).ok();
    let begins = |block: &usize| {
        let bytes = &ring[block * WQEBB_BYTES..][..WQEBB_BYTES];
        ctrl(*block).is_some_and(|ctrl| usize::from(ctrl.index) % blocks == *block)
            && !is_zero(bytes)
    };
    // A block in the middle of a WQE may look like one's beginning: it is not when it lies within the one before.
    let mut covered = 0;
    let mut found = Vec::new();
    for block in (0..blocks).filter(begins) {
        let Some(ctrl) = ctrl(block) else { continue };
        if block >= covered {
            covered = block + ctrl.blocks() as usize;
            found.push((block, ctrl));
        }
    }
    found
}

/// Bytes of a ring from a place on, as many as a WQE may need.
fn around(bytes: &[u8], place: usize, most: usize) -> Vec<u8> {
    bytes[place..].iter().chain(&bytes[..place]).take(most.min(MAX_WQE_BYTES)).copied().collect()
}
