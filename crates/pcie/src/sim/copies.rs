//! Copies on machines that others measured: what the model is asked of each row, and the machine as
//! the row's source states it. The machines are in `copy_machines.rs`, the rows in `copy_rows.rs`;
//! those of a second collection, which was asked after two rules of `first.rs` were written, in
//! `second_machines.rs` and `second_rows.rs`; those of a third, after all of them, in `third_rows.rs`;
//! those of the machine whose writes collapse, which were seen before they were asked, in
//! `collapse_rows.rs`.
//!
//! # Which rows
//! A row is taken if the model can be asked for it without a choice:
//!
//! 1. It is a stream of a copy engine, of an FPGA's DMA, of an SSD or of a NIC, or how much longer
//!    one way takes than another: the model has both. Copies by kernels are not taken (the shape of
//!    their stores is the kernel's), nor copies of pageable memory or through host memory.
//! 2. Generation and lanes of every link on the way are stated; or no slower or narrower link that
//!    the device can train to carries the rate.
//! 3. Where two devices copy, the source states where they stand to each other.
//! 4. The source can be found by a name: an address, an issue, a title.
//!
//! Rows that ask the same of one machine on one page enter once, by their median; wirings that the
//! source finds alike are one. A rate that the one link on its way cannot carry raw is not taken.
//! Whether the model agrees was not looked at: the rows were committed before it was asked.
//!
//! An MB of CUDA's `bandwidthTest` is 1,024,000 B: it printed `((float)(1<<10) * memSize * N) /
//! (elapsedTimeInMs * (float)(1<<20))` from about 2011 (before that `1e3f`, so 2²⁰ B) until it printed
//! GB of 10⁹ B (NVIDIA/cuda-samples). Eighteen rows are of that time.
//!
//! # Assumed for all
//! MPS 256 and MRRS 512 where the source has no `lspci`, and packets of the sizes of
//! `topology/packets.rs`; tags as in [`Params`]; memory of the device's own socket; an interconnect of
//! sockets and a root complex's way to memory that limit nothing, since nobody states their rates; of
//! root complexes what machines of other sources with a CPU of that family were seen to limit, between
//! sockets too (`topology/profiles.rs`).

use super::Move;
use crate::topology::{Kind, RawLink};

/// What a switch or a device hangs from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// A root port of its own below the root complex of this number.
    Root(u8),
    /// The switch of this number.
    Switch(u8),
}

/// A switch of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchAt {
    /// Where its uplink goes.
    pub at: At,
    /// Generation of the uplink.
    pub generation: u32,
    /// The chip that it is a part of; empty: one of its own.
    pub chip: &'static str,
}

/// A device of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceAt {
    /// GPU, or NIC for every other device with a DMA engine.
    pub kind: Kind,
    /// Where it hangs.
    pub at: At,
    /// Its lanes.
    pub lanes: u32,
    /// Most bytes of a packet that it sends, and of one in which what it reads comes, as a source states
    /// it of its kind; 0: MPS. 128 of NVIDIA's GPUs of a compute capability below 9 that copy
    /// (docs/results/pcie-packets.md).
    pub packet_bytes: u32,
}

/// A machine as a source states it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyMachine {
    /// Machine.
    pub name: &'static str,
    /// Who published its rows.
    pub source: &'static str,
    /// Its CPU, whose root complexes' limits are those that other machines of its family have; empty:
    /// not named, or nobody reported of it.
    pub cpu: &'static str,
    /// Words of the source that show link and numbers.
    pub said: &'static str,
    /// What the source leaves open, beside what is assumed for all; empty: nothing.
    pub assumed: &'static str,
    /// Generation and x16 lanes of its links, MPS and MRRS.
    pub link: RawLink,
    /// Socket of each root complex.
    pub roots: &'static [u8],
    /// Switches.
    pub switches: &'static [SwitchAt],
    /// Devices.
    pub devices: &'static [DeviceAt],
    /// What one device's own rate is at most, as the source states it, GB/s.
    pub device_gb_per_s: f64,
    /// Rounds of a source that copies with PyTorch, whose copies wait for each other; 0: it does not.
    pub torch_rounds: u32,
    /// Whether its posted writes are known to collapse, as the first of `KNOWN_COLLAPSES` has it.
    pub collapses: bool,
    /// Whether rows of it were read before the rules that they ask about were written, or told its link.
    pub known_before: bool,
    /// How many of the rules of `first.rs` had been written when its rows were read.
    pub rules_before: u8,
}

impl CopyMachine {
    /// Whether the source leaves generation or lanes of a link open: then the second rule of *Which rows*
    /// chose them, and that looks at the rate.
    pub fn assumes_a_link(&self) -> bool {
        self.assumed.contains("Gen") || self.assumed.contains("x8") || self.assumed.contains("x4")
    }
}

/// An end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The memory of the device of this number.
    Device(u8),
    /// Host memory of the first socket.
    Near,
    /// Host memory of the second socket.
    Far,
}

/// A stream from one end to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Where the data come from.
    pub from: End,
    /// Where they go.
    pub to: End,
    /// Who moves them.
    pub by: Move,
}

/// Device `a` writes into device `b`.
pub(super) const fn write(a: u8, b: u8) -> Copied {
    Copied { from: End::Device(a), to: End::Device(b), by: Move::Write }
}

/// Device `b` reads from device `a`.
pub(super) const fn read(a: u8, b: u8) -> Copied {
    Copied { from: End::Device(a), to: End::Device(b), by: Move::Read }
}

/// Device `a` reads host memory.
pub(super) const fn down(a: u8) -> Copied {
    Copied { from: End::Near, to: End::Device(a), by: Move::Read }
}

/// Device `a` writes host memory.
pub(super) const fn up(a: u8) -> Copied {
    Copied { from: End::Device(a), to: End::Near, by: Move::Write }
}

/// What a row asks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CopyQuestion {
    /// Rate of a stream, GB/s.
    Alone(Copied),
    /// Rate of the first while the second runs, GB/s.
    Beside(Copied, Copied),
    /// Streams that move as much each: all their bytes over the time of the last, GB/s.
    Together(&'static [Copied]),
    /// The same of a stream from each device to each other one, and who moves them.
    EachToEach(&'static [u8], &'static [u8], Move),
    /// How much longer the first takes than the second, of so many bytes, ns.
    Longer(Copied, Copied, u32),
}

impl CopyQuestion {
    /// Who moves the data, and between which ends, whichever way they go: two rows of one machine
    /// with equal ends differ in who moves the data alone. `None` where both do, and of times.
    pub fn mover(&self) -> Option<(Move, String)> {
        let between = |c: &Copied| {
            let mut ends = [c.from, c.to].map(|end| format!("{end:?}"));
            ends.sort_unstable();
            ends.join("-")
        };
        match self {
            Self::Alone(c) => Some((c.by, between(c))),
            Self::Beside(a, b) => Some((a.by, format!("{} beside {}", between(a), between(b)))),
            Self::Together(all) => {
                let by = all.first()?.by;
                let ends: Vec<String> = all.iter().map(between).collect();
                all.iter().all(|c| c.by == by).then(|| (by, ends.join(", ")))
            }
            Self::EachToEach(from, to, by) => Some((*by, format!("each {from:?} {to:?}"))),
            Self::Longer(..) => None,
        }
    }
}

/// One published number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyRow {
    /// Machine.
    pub machine: &'static CopyMachine,
    /// What was measured, in words.
    pub what: &'static str,
    /// The same for the model.
    pub question: CopyQuestion,
    /// Measured: GB/s, or ns of [`CopyQuestion::Longer`].
    pub measured: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_moves_the_data_is_told_where_it_is_one() {
        const MIXED: &[Copied] = &[write(0, 1), read(1, 0)];
        const ALIKE: &[Copied] = &[write(0, 1), write(1, 0)];
        let by = |question: CopyQuestion| question.mover().map(|mover| mover.0);
        assert_eq!(by(CopyQuestion::Together(MIXED)), None);
        assert_eq!(by(CopyQuestion::Together(ALIKE)), Some(Move::Write));
        assert_eq!(by(CopyQuestion::Longer(write(0, 1), write(1, 0), 4)), None);
        // The same ends, whichever way.
        let [wrote, was_read] =
            [write(0, 1), read(1, 0)].map(|c| CopyQuestion::Alone(c).mover().unwrap());
        assert_eq!((wrote.0, was_read.0), (Move::Write, Move::Read));
        assert_eq!(wrote.1, was_read.1);
    }
}
