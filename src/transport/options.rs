//! How an endpoint is made.

use std::time::Duration;

use super::{Error, Kick, Path};
use crate::nic::LineFormat;

/// How an endpoint is made: `Options::default()`, and a method for each option that is to be another.
///
/// ```
/// use std::time::Duration;
/// use bellpush::transport::Options;
///
/// let options = Options::default().slot_bytes(1024).timeout(Duration::from_secs(1));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Bytes of the window (push, staged); 128 KiB is what a ConnectX's MEMIC holds.
    pub window_bytes: u64,
    /// Bytes of a slot, a multiple of 64.
    pub slot_bytes: u32,
    /// Line format of in-band slots.
    pub line: LineFormat,
    /// Depth of the send queue in 64-byte blocks, a power of two from 64 to 32768.
    pub sq_blocks: u32,
    /// Bound of every single wait, on the GPU and on the host. A call may make more than one: see
    /// [`Endpoint::quiet`](super::Endpoint::quiet).
    pub timeout: Duration,
    /// NUMA node for queues and window; `None` leaves it to the system.
    pub host_numa: Option<usize>,
    /// Whether a slot is written under a credit only.
    pub(super) credits: bool,
    /// Sequence of an in-band window's first lap.
    pub(super) inband_seq0: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window_bytes: 128 << 10,
            slot_bytes: 4096,
            line: LineFormat::L12S4,
            sq_blocks: 1024,
            timeout: Duration::from_secs(5),
            host_numa: None,
            credits: true,
            inband_seq0: 2, // the zero-filled window needs no scrubbing
        }
    }
}

impl Options {
    setters! {
        window_bytes: u64,
        slot_bytes: u32,
        line: LineFormat,
        sq_blocks: u32,
        timeout: Duration,
        host_numa: Option<usize>,
    }

    /// `false` is a negative control: slots are written without a credit, so messages are lost.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn credits(self, credits: bool) -> Self {
        Self { credits, ..self }
    }

    /// Sequence of an in-band window's first lap, for tests that begin near its end.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn inband_seq0(self, inband_seq0: u32) -> Self {
        Self { inband_seq0, ..self }
    }

    /// Refuses what no endpoint of this path can be made with.
    ///
    /// # Errors
    /// [`Error::Option`], naming the option.
    pub fn check(&self, path: Path) -> Result<(), Error> {
        let refuse = |what, value, must| Err(Error::Option { what, value, must });
        if !self.sq_blocks.is_power_of_two() || !(64..=32768).contains(&self.sq_blocks) {
            return refuse(
                "the send queue's depth",
                self.sq_blocks.into(),
                "a power of two from 64 to 32768",
            );
        }
        if self.timeout.is_zero() {
            return refuse("the timeout", 0, "more than 0");
        }
        if !path.has_window() {
            return Ok(());
        }
        let slot = u64::from(self.slot_bytes);
        if slot == 0 || slot % 64 != 0 {
            return refuse("the slot size", slot, "a multiple of 64 bytes");
        }
        if self.window_bytes < slot {
            return refuse("the window size", self.window_bytes, "at least one slot");
        }
        if self.window_bytes > 1 << 30 || self.window_bytes / slot > 32768 {
            return refuse("the window size", self.window_bytes, "at most 1 GiB and 32768 slots");
        }
        // An atomic's WQE has 64 bytes, and the sequences come on top, whatever the line.
        if path.kick() == Some(Kick::Inband) && slot < 128 {
            return refuse("the slot size", slot, "at least 128 bytes for in-band slots");
        }
        Ok(())
    }
}
