//! Rows of streams: how fast one queue pair pushes messages of 1 MiB through a window in host memory, to the software
//! NIC's engine on a CPU, and beside it the bare exchange, in the same run.

mod bare;
mod rate;
mod ring;
mod table;

use std::sync::Arc;
use std::time::Duration;

use bellpush::gpu::Gpu;
use bellpush::nic::soft::SoftConfig;

pub use self::bare::Bare;
use self::rate::Rate;
use self::ring::Ring;
pub use self::table::{json, render};
use crate::bench::BenchArgs;
use crate::bench::stream::Streams;
use crate::cli::CliError;

/// What is wrong with them where nothing else is: said below the table.
pub const NOTE: &str = "streams: a NIC in software reads these windows, by threads of its own; \
                        bare is the best of several slots, blocks and threads";

/// How a slot says that it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By what follows a fence: a doorbell, or a flag.
    Kernel,
    /// By lines of 60 + 4 bytes.
    Lines60,
    /// By lines of 12 + 4 bytes.
    Lines12,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Kernel, Self::Lines60, Self::Lines12];

    /// Name of the path.
    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "push/kernel",
            Self::Lines60 => "push/inband 60+4",
            Self::Lines12 => "push/inband 12+4",
        }
    }

    /// Values of `--kick` and `--line`.
    fn options(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Kernel => ("kernel", None),
            Self::Lines60 => ("inband", Some("60+4")),
            Self::Lines12 => ("inband", Some("12+4")),
        }
    }

    /// The kernel of the bare exchange.
    fn kernel(self) -> &'static str {
        match self {
            Self::Kernel => "bp_stream_kernel",
            Self::Lines60 => "bp_stream_inband_60_4",
            Self::Lines12 => "bp_stream_inband_12_4",
        }
    }

    /// Bytes of a slot that are not sequences.
    fn payload(self, slot_bytes: usize) -> usize {
        match self {
            Self::Kernel => slot_bytes,
            Self::Lines60 => slot_bytes / 64 * 60,
            Self::Lines12 => slot_bytes / 16 * 12,
        }
    }
}

/// A window and the slots that its rows have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    bytes: usize,
    name: &'static str,
    slot_bytes: usize,
    slot: &'static str,
}

/// The best slots of docs/results/long-messages.md: 32 a window, as many as an in-band pipeline takes.
const WINDOWS: [Window; 2] = [
    Window { bytes: 128 << 10, name: "128KiB", slot_bytes: 4 << 10, slot: "4KiB" },
    Window { bytes: 1 << 20, name: "1MiB", slot_bytes: 32 << 10, slot: "32KiB" },
];
const MESSAGE_BYTES: usize = 1 << 20;
/// Copy threads of rows, as far as the machine has processors.
const COPY_THREADS: [usize; 2] = [3, 7];
/// Messages of a run, and how long the next round of them begins.
const MESSAGES: u64 = 256;
const SECONDS: f64 = 0.5;
/// The same on the host executor, which shows that rows work and no more.
const HOST_MESSAGES: u64 = 1;

/// A row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    mode: Mode,
    window: Window,
    copy_threads: usize,
}

impl Row {
    /// Name in results.
    pub fn name(&self) -> String {
        format!(
            "streams {}, window {}, copy threads {}",
            self.mode.name(),
            self.window.name,
            self.copy_threads
        )
    }

    /// Name and place: what `--only` looks at.
    pub fn full_name(&self) -> String {
        format!("{} {}", self.name(), super::cases::Place::Window.name())
    }

    /// The command line that measures it.
    fn args(&self, of: &BenchArgs, gpu: &Gpu) -> BenchArgs {
        let (kick, line) = self.mode.options();
        BenchArgs {
            gpu: Some(gpu.ordinal().map_or("host".into(), |n| n.to_string())),
            host_numa: of.host_numa.clone(),
            data: Some("push".into()),
            kick: Some(kick.into()),
            line: line.map(str::to_owned),
            sizes: MESSAGE_BYTES.to_string(),
            window: self.window.bytes.to_string(),
            slot: self.window.slot_bytes.to_string(),
            copy_threads: Some(self.copy_threads as u32),
            messages: if gpu.is_host() { HOST_MESSAGES } else { MESSAGES },
            seconds: SECONDS,
            timeout_ms: of.timeout_ms,
            seed: of.seed,
            ..BenchArgs::default_of_the_command_line()
        }
    }
}

/// All rows, for a machine of so many cores.
pub fn rows(cores: usize) -> Vec<Row> {
    let most = SoftConfig::copy_threads_for(cores, 1);
    let mut counts: Vec<_> = COPY_THREADS.into_iter().filter(|&n| n <= most).collect();
    if counts.is_empty() {
        counts.push(most);
    }
    let mut all = Vec::new();
    for copy_threads in counts {
        for window in WINDOWS {
            all.extend(Mode::ALL.map(|mode| Row { mode, window, copy_threads }));
        }
    }
    all
}

/// A row as it was measured.
#[derive(Debug, Clone)]
pub struct Line {
    pub row: Row,
    pub rate: Rate,
    pub bare: Bare,
}

impl Line {
    pub fn verified(&self) -> bool {
        self.wrong().is_none()
    }

    /// The first thing that was wrong.
    pub fn wrong(&self) -> Option<&str> {
        let bare = [&self.bare.one_block, &self.bare.up_to_four, &self.bare.in_order];
        let all = [&self.rate].into_iter().chain(bare.map(|best| &best.rate));
        all.filter_map(|rate| rate.wrong.as_deref()).next()
    }

    /// How many times as fast the best bare exchange is.
    pub fn times_floor(&self) -> Option<f64> {
        (self.rate.median > 0.0).then(|| self.bare.up_to_four.rate.median / self.rate.median)
    }
}

/// Measures rows, after the bare exchange of each path and window, during which there is no NIC.
///
/// # Errors
/// One line when the GPU or the system refuses something.
pub fn measure(
    gpu: &Arc<Gpu>,
    args: &BenchArgs,
    numa: Option<usize>,
    rows: &[Row],
    runs: u32,
) -> Result<Vec<Line>, CliError> {
    let mut bares: Vec<(Mode, Window, Bare)> = Vec::new();
    if !rows.is_empty() {
        let most = WINDOWS.map(|window| window.bytes).into_iter().max().unwrap_or(0);
        let mut ring = Ring::new(gpu, numa, most, Duration::from_millis(args.timeout_ms))?;
        for row in rows {
            if !bares.iter().any(|(mode, window, _)| (*mode, *window) == (row.mode, row.window)) {
                let bare = bare::find(&mut ring, row.mode, row.window.bytes, gpu.is_host(), runs)?;
                bares.push((row.mode, row.window, bare));
            }
        }
    }
    let mut lines = Vec::new();
    // Rows of as many copy threads come together.
    for same in rows.chunk_by(|a, b| a.copy_threads == b.copy_threads) {
        let streams = Streams::open(gpu, &same[0].args(args, gpu))?;
        for row in same {
            let asked = row.args(args, gpu);
            let rate = Rate::of(runs, |_| streams.rate(&asked))?;
            let of_row = |(mode, window, bare): &(Mode, Window, Bare)| {
                ((*mode, *window) == (row.mode, row.window)).then(|| bare.clone())
            };
            let bare = bares.iter().find_map(of_row).ok_or_else(|| super::bug("no bare rate"))?;
            lines.push(Line { row: *row, rate, bare });
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_as_many_copy_threads_as_there_are_processors_for() {
        let counts = |cores| {
            let mut counts: Vec<_> = rows(cores).iter().map(|row| row.copy_threads).collect();
            counts.dedup();
            counts
        };
        assert_eq!((counts(1), counts(2), counts(5)), (vec![0], vec![0], vec![2]));
        assert_eq!((counts(6), counts(9), counts(10)), (vec![3], vec![3], vec![3, 7]));
        assert_eq!(rows(16).len(), 12);
        let names: Vec<_> = rows(16).iter().map(Row::full_name).collect();
        assert_eq!(names[1], "streams push/inband 60+4, window 128KiB, copy threads 3 window-h");
    }

    /// Slots are whole lines and whole rows of a warp's stores, and windows whole slots.
    #[test]
    fn windows_fit() {
        for window in WINDOWS {
            assert_eq!(window.bytes % window.slot_bytes, 0);
            assert_eq!(window.slot_bytes % bellpush::abi::bench::STREAM_UNIT_BYTES, 0);
        }
    }
}
