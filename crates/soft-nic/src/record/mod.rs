//! Recordings of what a NIC was asked, saw and did, and the same decisions again.
//!
//! All that an engine on a packet link decides follows from: calls of the program, its memory, packets, and the time.
//! A recording NIC ([`Record`] in [`crate::SoftConfig::record`]) writes those down as they come, and beside them what it
//! did: what it wrote to the program's memory, packets, asynchronous events. [`replay`] makes the same calls of a NIC
//! that has nothing around it, steps its engine at the same times, answers its loads and packets from the recording,
//! and compares what it does: the first difference ends it. [`compare`] finds the first difference between two
//! recordings, whose addresses, numbers and times are others.
//!
//! | where | what |
//! |---|---|
//! | `event` | what stands in a recording |
//! | `log` | how it gets there: whose turn it is, and what need not be said |
//! | `tap` `calls` `link` | where: memory, calls of the program, packets |
//! | `reader` | a recording, read; none of its bytes is trusted |
//! | `replay` `stage` | the same calls and steps again; what answers and compares |
//! | `lines` `compare` | a recording in words; two beside each other |
//! | `formats` | what of a recording has a format of its own |
//!
//! A load that finds what it found before is not written down, nor is a step that loads nothing new, does nothing, and
//! leaves the engine as it was: an engine looks at its doorbells a million times a second. Payload is written down as a
//! hash, once, where it is read or written ([`Record::whole`] has it whole): it passes through the NIC, which decides
//! nothing by it.
//!
//! While a NIC records, its engine and the calls of the program take turns.

mod calls;
mod compare;
mod event;
mod formats;
mod lines;
mod link;
mod log;
mod reader;
mod replay;
mod stage;
mod tap;

use std::path::PathBuf;
use std::sync::Arc;

use crate::config::SoftConfig;
use crate::link::Link;
use crate::random::Random;
use bellpush_nic::NicError;

pub use compare::{FirstDifference, compare};
pub use formats::{Following, Format, Formatted, formats};
pub use lines::show;
pub use reader::RecordingError;
pub use replay::{Difference, End, Replayed, replay};

pub(crate) use calls::{hooked, outside, plainly};
pub(crate) use event::{Call, Outcome, SrqSort};
use link::Recorded;
pub(crate) use log::{Recorder, Turn};

/// A recording that a NIC writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The file. It is made anew, for its owner alone.
    pub path: PathBuf,
    /// Whether payload is written down whole, and compared byte by byte in a replay; else its hash is.
    pub whole: bool,
    /// The text of the script of [`crate::SoftConfig::faults`], and which of the process's devices this is.
    pub script: Option<(String, usize)>,
}

/// Reads of a region, and packets, that are no longer than this are written down whole. Messages that the NIC itself
/// understands are shorter: management datagrams (256 bytes).
const SHORT: usize = 384;
/// Of longer packets, what of the payload is whole: headers of tag matching (TMH and RVH, 32 bytes) begin messages.
const HEAD: usize = 32;
/// Queues' bytes that are written down whole: more at once are read and written when a CQ is made, and are marks.
const QUEUE: usize = 4096;

/// Link, configuration and recorder of a NIC that may record.
type Begun = (Box<dyn Link>, SoftConfig, Option<Arc<Recorder>>);

/// Begins the recording that a configuration asks for, if it does: a link whose packets are written down, and the
/// configuration that a replay has.
///
/// # Errors
/// [`NicError::Recording`].
pub(crate) fn begin(config: &SoftConfig, link: Box<dyn Link>) -> Result<Begun, NicError> {
    let mut config = config.clone();
    let Some(record) = &config.record else { return Ok((link, config, None)) };
    let seed = match config.seed {
        Some(seed) => seed,
        None => {
            let random = Random::system().map_err(NicError::Random)?;
            u64::from(random.number()) << 32 | u64::from(random.number())
        }
    };
    let header = event::Header {
        seed,
        whole: record.whole,
        address: link.address(),
        mtu: link.mtu(),
        src_port: link.src_port(),
        carries: link.carries(),
        has_icrc: link.has_icrc(),
        joins: link.joins(),
        share: link.share(),
        script: record.script.clone(),
        adversary: config.adversary.map(|adversary| adversary.to_string()),
    };
    let recorder = Arc::new(Recorder::new(record, &header).map_err(NicError::Recording)?);
    config.seed = Some(seed);
    let link = Box::new(Recorded::new(link, recorder.clone()));
    Ok((link, config, Some(recorder)))
}

/// What stands in a recording, an event a line.
#[cfg(test)]
fn event_names(path: &std::path::Path) -> Vec<String> {
    let mut shown = Vec::new();
    show(std::fs::read(path).unwrap(), &mut shown).unwrap();
    String::from_utf8(shown).unwrap().lines().skip(1).map(str::to_owned).collect()
}

/// Hash of bytes that are not there.
fn hash(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}
