//! `bellpush decode`: WQEs, CQEs, doorbells, doorbell records and packets, field by field, and what is wrong with them.
//!
//! Bytes come from whoever was asked for a dump: none of them is trusted, and nothing here panics, whatever they are.
//! Formats are those of `bellpush::wire`; this module names what it finds there and compares it with what else is known.
//!
//! | file | what |
//! |---|---|
//! | `text`, `literal`, `log` | hex in the ways in which people have it, of programs, of logs |
//! | `capture`, `recording` | files with many things in them |
//! | `wqe`, `cqe`, `doorbell`, `packet`, `placement` | one of each |
//! | `options` | IPv4 options of a packet |
//! | `stream` | packets of a connection, one after the other |
//! | `names`, `syndrome` | what codes mean |
//! | `item` | what is told of one thing |

mod capture;
mod cqe;
mod doorbell;
mod item;
mod literal;
mod log;
pub(crate) mod names;
mod options;
mod packet;
mod placement;
mod recording;
mod stream;
pub(crate) mod syndrome;
#[cfg(test)]
mod tests;
mod text;
mod wqe;

use std::fmt;

use bellpush::wire::cqe::CQE_BYTES;
use bellpush::wire::fields::Sends;
use bellpush::wire::wqe::WQEBB_BYTES;

pub use item::{Item, Part, Remark, Shown};
pub use packet::Link;
pub use recording::Live;

use packet::Around;
use stream::Streams;

/// What there is to decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// WQEs of a queue, or of a part of one.
    Wqe,
    /// CQEs, also as the kernel's log and libmlx5 print them.
    Cqe,
    /// Doorbell registers: 8 bytes, the first of a control segment.
    Doorbell,
    /// Doorbell records: 8 bytes.
    Dbr,
    /// Packets: from Ethernet, IP or the BTH on.
    Packet,
    /// A pcap or pcapng file.
    Pcap,
    /// A recording of `bellpush run --record`.
    Record,
    /// A recording that a running program's device writes: what comes now.
    Live,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Wqe,
        Self::Cqe,
        Self::Doorbell,
        Self::Dbr,
        Self::Packet,
        Self::Pcap,
        Self::Record,
        Self::Live,
    ];
}

/// How bytes are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Hex if they are text, else as they are.
    #[default]
    Guess,
    /// Hex.
    Hex,
    /// As they are.
    Binary,
}

/// Which queue a WQE is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum QueueType {
    /// A send queue; which one, its segments tell.
    #[default]
    #[value(skip)]
    Guess,
    /// Send queue of RC or UC.
    Rc,
    /// Send queue of UD.
    Ud,
    /// Send queue of an XRC initiator.
    Xrc,
    /// Send queue of a DC initiator.
    Dci,
    /// Send queue of Ethernet: of its WQEs the control segment is decoded.
    Eth,
    /// A receive queue.
    Recv,
    /// A shared receive queue.
    Srq,
}

impl QueueType {
    fn sends(self) -> Option<Sends> {
        match self {
            Self::Rc => Some(Sends::Connected),
            Self::Ud => Some(Sends::Datagrams),
            Self::Xrc => Some(Sends::Xrc),
            Self::Dci => Some(Sends::Dynamic),
            Self::Guess | Self::Eth | Self::Recv | Self::Srq => None,
        }
    }

    /// Whether it is a receive queue, and then whether a shared one.
    fn receives(self) -> Option<bool> {
        match self {
            Self::Recv => Some(false),
            Self::Srq => Some(true),
            _ => None,
        }
    }
}

/// What is known beside the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How they are given.
    pub form: Form,
    /// Words of hex are those of a little-endian host, as gdb and plain `hexdump` print them.
    pub host_words: bool,
    /// Index of the first WQE or CQE.
    pub index: Option<u32>,
    /// Log of the queue's basic blocks, or of the CQ's entries.
    pub queue_log: Option<u32>,
    /// Which queue WQEs are of.
    pub queue: QueueType,
    /// Bytes of a WQE of a receive queue; `None`: all bytes are one.
    pub stride: Option<usize>,
    /// Bytes of a CQE in its ring: 64 or 128.
    pub cqe_bytes: usize,
    /// WQEs or CQEs have signatures.
    pub signed: bool,
    /// Doorbells and records are those of a CQ.
    pub cq: bool,
    /// The send queue, whole, that doorbells and records are about: a power of two of basic blocks.
    pub sq: Option<Vec<u8>>,
    /// The doorbell record that doorbells go with.
    pub record: Option<[u8; 8]>,
    /// What packets begin with.
    pub link: Link,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            form: Form::Guess,
            host_words: false,
            index: None,
            queue_log: None,
            queue: QueueType::Guess,
            stride: None,
            cqe_bytes: CQE_BYTES,
            signed: false,
            cq: false,
            sq: None,
            record: None,
            link: Link::Guess,
        }
    }
}

/// Why bytes cannot be decoded at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError(pub String);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DecodeError {}

/// A dump.
struct Dump {
    bytes: Vec<u8>,
    doubtful: bool,
    /// What a log says that it is.
    said: Option<log::Said>,
}

fn dumps(bytes: &[u8], options: &Options, blank: bool) -> Result<Vec<Dump>, DecodeError> {
    let plain = text::without_escapes(bytes);
    let hex = match options.form {
        Form::Guess => text::is_text(&plain)?,
        Form::Hex => true,
        Form::Binary => false,
    };
    if !hex && options.host_words && options.form == Form::Guess {
        return Err(DecodeError("it is no text: --host-words is for words of hex".into()));
    }
    if !hex {
        return Ok(vec![Dump { bytes: bytes.to_vec(), doubtful: false, said: None }]);
    }
    let text = std::str::from_utf8(&plain)
        .map_err(|e| DecodeError(format!("byte {}: not text, and so no hex", e.valid_up_to())))?;
    let chunks = text::parse(text, options.host_words, blank)?;
    let dump = |text::Chunk { said, bytes, doubtful }| Dump { bytes, doubtful, said };
    Ok(chunks.into_iter().map(dump).collect())
}

/// The bytes of a dump that is an option's value: all its parts together.
///
/// # Errors
/// [`DecodeError`].
pub fn bytes_of(bytes: &[u8], options: &Options) -> Result<Vec<u8>, DecodeError> {
    Ok(dumps(bytes, options, false)?.into_iter().flat_map(|dump| dump.bytes).collect())
}

/// Checks what was said of a send queue.
///
/// # Errors
/// [`DecodeError`] for bytes that are no whole queue.
pub fn is_queue(bytes: &[u8]) -> Result<(), DecodeError> {
    let blocks = bytes.len() / WQEBB_BYTES;
    match bytes.len().is_multiple_of(WQEBB_BYTES) && blocks.is_power_of_two() {
        true => Ok(()),
        false => {
            let what = "a send queue is a power of two of basic blocks of 64";
            Err(DecodeError(format!("{} bytes are no send queue: {what}", bytes.len())))
        }
    }
}

/// Decodes bytes, thing by thing, until `each` says that it is enough.
///
/// # Errors
/// [`DecodeError`] for bytes that are not what they should be at all: no hex, no capture, no recording. What could be
/// decoded before has been handed over.
pub fn decode(
    kind: Kind,
    bytes: &[u8],
    options: &Options,
    each: &mut dyn FnMut(Item) -> bool,
) -> Result<(), DecodeError> {
    match kind {
        Kind::Pcap => return captured(bytes, each),
        Kind::Record | Kind::Live => return recording::all(bytes, options, each),
        _ => {}
    }
    if let Some(sq) = &options.sq {
        is_queue(sq)?;
    }
    let dumps = dumps(bytes, options, kind == Kind::Packet)?;
    if dumps.iter().all(|dump| dump.bytes.is_empty()) {
        return Err(nothing(bytes));
    }
    let mut streams = Streams::default();
    // Options are about what was asked for, and not about what a log has beside it.
    let plain = Options::default();
    // mlx5_core and DPDK dump WQEs of Ethernet.
    let ethernet = Options { queue: QueueType::Eth, ..Options::default() };
    for (number, dump) in dumps.iter().enumerate() {
        let mut doubtful = dump.doubtful && !options.host_words;
        let mut each = |mut item: Item| {
            if dumps.len() > 1 {
                item.place = format!("dump {}, {}", number + 1, item.place);
            }
            if std::mem::take(&mut doubtful) {
                item.note(None, DOUBTFUL);
            }
            each(item)
        };
        let bytes = &dump.bytes;
        let of_ethernet;
        let (kind, options) = match (kind, dump.said) {
            (Kind::Cqe, Some(log::Said::Ethernet)) => (Kind::Wqe, &ethernet),
            (Kind::Wqe, Some(log::Said::Ethernet)) if options.queue == QueueType::Guess => {
                let queue = QueueType::Eth;
                of_ethernet = Options { queue, ..options.clone() };
                (Kind::Wqe, &of_ethernet)
            }
            (Kind::Cqe, Some(log::Said::Wqe)) => (Kind::Wqe, &plain),
            (Kind::Wqe, Some(log::Said::Cqe)) => (Kind::Cqe, &plain),
            _ => (kind, options),
        };
        let more = match kind {
            Kind::Wqe => wqe::dump(bytes, options, &mut each)?,
            Kind::Cqe => cqe::dump(bytes, options, &mut each),
            Kind::Doorbell => match doorbell::blue_flame(bytes, options, &mut each) {
                Some(more) => more,
                None => doorbell::dump("doorbell", bytes, options, doorbell::register, &mut each),
            },
            Kind::Dbr => doorbell::dump("dbr", bytes, options, doorbell::record, &mut each),
            _ => {
                let (mut item, seen) =
                    packet::packet("0x0".into(), bytes, options.link, &Around::default());
                if let Some(seen) = seen {
                    streams.take(&mut item, &seen);
                }
                each(item)
            }
        };
        if !more {
            break;
        }
    }
    Ok(())
}

/// Why nothing is decoded of an input in which there are no bytes.
fn nothing(bytes: &[u8]) -> DecodeError {
    let text = text::without_escapes(bytes);
    let text = String::from_utf8_lossy(&text);
    if !text.lines().any(log::is_log) {
        return DecodeError("there are no bytes in it".into());
    }
    let lines = text.lines().count();
    DecodeError(format!(
        "no dump in these {lines} lines of a log: one follows a line with \"dump error cqe\" (the kernel) or \"got \
         completion with error\" (libmlx5)"
    ))
}

const DOUBTFUL: &str = "words were taken as big-endian, as the device has them; gdb and plain hexdump print words of \
                        the host: --host-words";

fn captured(bytes: &[u8], each: &mut dyn FnMut(Item) -> bool) -> Result<(), DecodeError> {
    let mut streams = Streams::default();
    let mut more = true;
    let cut = capture::packets(bytes, &mut |it| {
        let time =
            it.at_ns.map(|ns| format!(", {}.{:09} s", ns / 1_000_000_000, ns % 1_000_000_000));
        let place = format!("packet {}{}", it.number, time.unwrap_or_default());
        let link = match it.link {
            Ok(link) => link,
            Err(foreign) => {
                let mut item = Item::new("packet", place);
                item.summary = format!("of {foreign}, which is not decoded");
                more = each(item);
                return more;
            }
        };
        let around = Around { cut: it.cut, ..Around::default() };
        let (mut item, seen) = packet::packet(place, it.bytes, link, &around);
        if let Some(seen) = seen {
            streams.take(&mut item, &seen);
        }
        more = each(item);
        more
    })?;
    if let Some(cut) = cut {
        let mut item = Item::new("end", "end");
        item.summary = cut;
        item.note(None, "what comes before is whole: who captured was killed, or was not done");
        more = each(item);
    }
    let unfinished = streams.unfinished();
    if more && !unfinished.is_empty() {
        let mut item = Item::new("end", "end");
        item.summary = format!("the capture ends within {} messages", unfinished.len());
        for line in unfinished {
            item.note(None, line);
        }
        each(item);
    }
    Ok(())
}
