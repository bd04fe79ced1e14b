//! How an endpoint is made.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::{Data, Error, Kick, MemoryPlace, Path, Tuning};
use crate::nic::LineFormat;
use crate::wire::inband::SCRUB_LAPS;

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
    /// Bytes of the window (push, staged), of which the largest power of two of slots is used; 128 KiB is what a
    /// ConnectX's MEMIC holds.
    pub window_bytes: u64,
    /// Bytes of a slot, a multiple of 64.
    pub slot_bytes: u32,
    /// Line format of in-band slots.
    pub line: LineFormat,
    /// Depth of the send queue in 64-byte blocks, a power of two from 64 to 16384.
    pub sq_blocks: u32,
    /// Immediates that may have come and not been taken, a power of two from 4 to 32768; 0 for none. A peer that sends
    /// one more waits ([`Endpoint::poll_immediate`](super::Endpoint::poll_immediate)).
    pub receives: u32,
    /// Bound of every single wait, on the GPU and on the host. A call may make more than one: see
    /// [`Endpoint::quiet`](super::Endpoint::quiet).
    pub timeout: Duration,
    /// NUMA node for queues and window; `None` leaves it to the system.
    pub host_numa: Option<usize>,
    /// Where the send queue lies: best near whoever reads it, which is the NIC, unless that it is in the posting GPU's
    /// memory makes the fence before a doorbell cheaper.
    pub sq_place: MemoryPlace,
    /// Where the doorbell record of the send queue lies: best beside the send queue.
    pub dbr_place: MemoryPlace,
    /// Where the completion queue lies: best in the memory of the GPU that polls it. A look in host memory takes about
    /// 1 µs.
    pub cq_place: MemoryPlace,
    /// Where the window lies (push, staged). In the posting GPU's memory a push is a local copy, which the NIC fetches:
    /// with [`MemoryPlace::Gpu`] for send queue and doorbell record as well, one fence of GPU scope is enough. A staged
    /// window is host memory.
    pub window_place: MemoryPlace,
    /// Which path a message takes by its length ([`Path::AUTO`]); `None` looks for the table that was measured on this
    /// machine ([`Tuning::of`]).
    pub tuning: Option<Tuning>,
    /// Address of this host on which tcp's endpoints listen, for peers that reach it there. Its connections are neither
    /// encrypted nor authenticated beyond the key with which each begins: another than the default, the loopback
    /// address, is for networks whose hosts are trusted.
    pub tcp_listen: IpAddr,
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
            receives: 0,
            timeout: Duration::from_secs(5),
            host_numa: None,
            sq_place: MemoryPlace::Auto,
            dbr_place: MemoryPlace::Auto,
            cq_place: MemoryPlace::Auto,
            window_place: MemoryPlace::Auto,
            tuning: None,
            tcp_listen: Ipv4Addr::LOCALHOST.into(),
            credits: true,
            inband_seq0: SCRUB_LAPS + 1, // the zero-filled window needs no scrubbing
        }
    }
}

impl Options {
    /// Slots of the window: the largest power of two that `window_bytes` holds. 0 of a window
    /// without any, which no endpoint takes.
    pub fn slots(&self) -> u32 {
        let whole = self.window_bytes.checked_div(self.slot_bytes.into()).unwrap_or(0);
        whole.checked_ilog2().map_or(0, |log| 1 << log.min(31))
    }

    setters! {
        window_bytes: u64,
        slot_bytes: u32,
        line: LineFormat,
        sq_blocks: u32,
        receives: u32,
        timeout: Duration,
        host_numa: Option<usize>,
        sq_place: MemoryPlace,
        dbr_place: MemoryPlace,
        cq_place: MemoryPlace,
        window_place: MemoryPlace,
        tuning: Option<Tuning>,
        tcp_listen: IpAddr,
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
    /// [`Error::Option`], naming the option; [`Error::Unsupported`] for a place that the path cannot have.
    pub fn check(&self, path: Path) -> Result<(), Error> {
        let refuse = |what, value, must| Err(Error::Option { what, value, must });
        if !self.sq_blocks.is_power_of_two() || !(64..=16384).contains(&self.sq_blocks) {
            return refuse(
                "the send queue's depth",
                self.sq_blocks.into(),
                "a power of two from 64 to 16384",
            );
        }
        // libmlx5 makes no shorter receive queue than one of 64 bytes.
        let allowed = self.receives.is_power_of_two() && (4..=32768).contains(&self.receives);
        if self.receives != 0 && !allowed {
            return refuse(
                "the number of receives",
                self.receives.into(),
                "0, or a power of two from 4 to 32768",
            );
        }
        if self.receives != 0 && path.kick().is_none() {
            let why = match path {
                Path::AUTO => "it has two queue pairs; take one RDMA path for immediates",
                _ => "tcp carries puts only; take an RDMA path",
            };
            let what = "have receives";
            return Err(Error::Unsupported { path, what, why });
        }
        if self.timeout.is_zero() {
            return refuse("the timeout", 0, "more than 0");
        }
        if !path.has_window() {
            return Ok(());
        }
        if path.data() == Data::Staged && self.window_place == MemoryPlace::Gpu {
            let (what, why) =
                ("have its window in GPU memory", "staged means host memory; take a push path");
            return Err(Error::Unsupported { path, what, why });
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
        let inband = path == Path::AUTO || path.kick() == Some(Kick::Inband);
        if inband && slot < 128 {
            return refuse("the slot size", slot, "at least 128 bytes for in-band slots");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_a_power_of_two_of_slots() {
        let slots = |window, slot| Options::default().window_bytes(window).slot_bytes(slot).slots();
        for (window, slot, want) in [(128, 128, 1), (9 * 128, 128, 8), (1 << 20, 192, 4096)] {
            assert_eq!(slots(window, slot), want, "{window} of {slot}");
        }
        assert_eq!((slots(64, 128), slots(64, 0)), (0, 0));
    }
}
