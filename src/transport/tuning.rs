//! Which path a message of an auto endpoint takes: a table of lengths for each scope of callers.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::MemoryPlace;
use super::tuning_file::{EngineSide, Machine, Origin, TuningError};
use crate::abi::entry::Scope;
use crate::abi::wire::{CHOICE_BITS, CHOICE_BY_RANGE, CHOICE_CLASSES, CHOICE_RANGES, Choices};

/// Most ranges of a table.
pub const MAX_RANGES: usize = CHOICE_RANGES;

/// How a put of an auto endpoint goes: `enum bp_choice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Choice {
    /// Through slots of the window, by doorbell.
    #[serde(rename = "push/kernel")]
    Push = 0,
    /// Through in-band slots: no doorbell. The software NIC's own.
    #[serde(rename = "push/inband")]
    Inband = 1,
    /// In the WQE, by doorbell: up to 220 bytes; what is longer is pushed.
    #[serde(rename = "push/inline")]
    Inline = 2,
    /// The same by BlueFlame where the queue pair is idle.
    #[serde(rename = "push/blueflame")]
    Blueflame = 3,
    /// The NIC reads it, by doorbell. What lies outside the local region is pushed.
    #[serde(rename = "pull/kernel")]
    Pull = 4,
    /// The same by BlueFlame where the queue pair is idle.
    #[serde(rename = "pull/blueflame")]
    PullBlueflame = 5,
}

impl Choice {
    /// Every choice, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Push, Self::Inband, Self::Inline, Self::Blueflame, Self::Pull, Self::PullBlueflame];

    /// The name in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push/kernel",
            Self::Inband => "push/inband",
            Self::Inline => "push/inline",
            Self::Blueflame => "push/blueflame",
            Self::Pull => "pull/kernel",
            Self::PullBlueflame => "pull/blueflame",
        }
    }

    /// Whether it is told by BlueFlame.
    pub const fn is_blueflame(self) -> bool {
        matches!(self, Self::Blueflame | Self::PullBlueflame)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Lengths that take one choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The longest, in bytes; `None` for the last range, which has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<u32>,
    /// What they take.
    pub path: Choice,
}

/// The ranges of one scope: 1 to [`MAX_RANGES`], ascending, without a gap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Range>", into = "Vec<Range>")]
pub struct Ranges(Vec<Range>);

impl Ranges {
    /// Ranges from the shortest messages on.
    ///
    /// # Errors
    /// [`TuningError::Ranges`] for none or too many, for lengths that do not ascend from 1 byte on, and for a last
    /// range that ends or another one that does not.
    pub fn new(ranges: Vec<Range>) -> Result<Self, TuningError> {
        let refuse = |why| Err(TuningError::Ranges { why });
        let Some((last, others)) = ranges.split_last() else { return refuse("it has none") };
        if ranges.len() > MAX_RANGES {
            return refuse("it has more than 8");
        }
        if last.up_to.is_some() {
            return refuse("the last one has an end: leave its up_to out");
        }
        let mut before = 0;
        for range in others {
            match range.up_to {
                None => return refuse("one before the last has no up_to"),
                Some(u32::MAX) => return refuse("an up_to is not below 4 GiB - 1"),
                Some(up_to) if up_to <= before => return refuse("their up_to do not ascend"),
                Some(up_to) => before = up_to,
            }
        }
        Ok(Self(ranges))
    }

    /// One choice for every length.
    pub fn always(path: Choice) -> Self {
        Self(vec![Range { up_to: None, path }])
    }

    /// The ranges.
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// The choice for a message of `bytes` bytes.
    pub fn choice(&self, bytes: u64) -> Choice {
        let fits = |range: &&Range| range.up_to.is_none_or(|up_to| bytes <= u64::from(up_to));
        self.0.iter().find(fits).expect("the last range has no end").path
    }

    fn of(ends: &[(u32, Choice)], last: Choice) -> Self {
        let ranges = ends.iter().map(|&(up_to, path)| Range { up_to: Some(up_to), path });
        Self(ranges.chain([Range { up_to: None, path: last }]).collect())
    }

    /// As kernels see them.
    fn device(&self) -> Choices {
        let mut up_to = [u32::MAX; CHOICE_RANGES - 1];
        let mut choice = 0;
        for i in 0..CHOICE_RANGES {
            let range = self.0.get(i).or(self.0.last()).expect("there is a range");
            choice |= (range.path as u32) << (i as u32 * CHOICE_BITS);
            if let (Some(end), Some(slot)) = (range.up_to, up_to.get_mut(i)) {
                *slot = end;
            }
        }
        let mut by_class = [0; 8];
        for class in 0..CHOICE_CLASSES {
            let choice = self.choice_of_class(class).map_or(CHOICE_BY_RANGE, |path| path as u32);
            by_class[class as usize / 8] |= choice << (class % 8 * CHOICE_BITS);
        }
        Choices { up_to, choice, by_class }
    }

    /// The choice that all lengths of a class have ([`Choices::by_class`]).
    fn choice_of_class(&self, class: u32) -> Option<Choice> {
        // The longest of the class before: 2^n, or 1.5 times that.
        let before = |class: u32| u64::from(2 + class % 2) << (class / 2);
        let first = if class == 0 { 1 } else { before(class) + 1 };
        let last = if class + 1 == CHOICE_CLASSES { u64::MAX } else { before(class + 1) };
        let starts = self.0.iter().filter_map(|range| range.up_to).map(|end| u64::from(end) + 1);
        let mut all = starts.filter(|start| (first..=last).contains(start)).chain([first, last]);
        let choice = self.choice(first);
        all.all(|bytes| self.choice(bytes) == choice).then_some(choice)
    }

    fn replace(&mut self, with: impl Fn(Choice) -> Choice) {
        for range in &mut self.0 {
            range.path = with(range.path);
        }
    }
}

impl TryFrom<Vec<Range>> for Ranges {
    type Error = TuningError;
    fn try_from(ranges: Vec<Range>) -> Result<Self, TuningError> {
        Self::new(ranges)
    }
}

impl From<Ranges> for Vec<Range> {
    fn from(ranges: Ranges) -> Self {
        ranges.0
    }
}

/// Which path a message takes on an endpoint of [`Path::AUTO`](super::Path::AUTO), by its length and by who posts it.
///
/// `bellpush bench --tune` measures one; docs/auto.md says how it is kept.
///
/// ```
/// use bellpush::transport::{Choice, Options, Range, Ranges, Tuning};
///
/// let short = Range { up_to: Some(2048), path: Choice::Inband };
/// let ranges = Ranges::new(vec![short, Range { up_to: None, path: Choice::Pull }])?;
/// let options = Options::default().tuning(Some(Tuning::for_all(ranges)));
/// # Ok::<(), bellpush::transport::TuningError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// Of one thread that posts by itself, and of a block of one.
    pub thread: Ranges,
    /// Of a warp, and of a block of one warp.
    pub warp: Ranges,
    /// Of a longer block.
    pub block: Ranges,
    /// Where it comes from.
    pub origin: Origin,
}

impl Tuning {
    /// A table of one's own.
    pub fn new(thread: Ranges, warp: Ranges, block: Ranges) -> Self {
        Self { thread, warp, block, origin: Origin::Given }
    }

    /// The same ranges for all scopes.
    pub fn for_all(ranges: Ranges) -> Self {
        Self::new(ranges.clone(), ranges.clone(), ranges)
    }

    /// The table for machines on which none was measured: from this project's runs on H200s (docs/results), and for
    /// verbs devices from the PCIe model. A single thread's ranges follow from what it copies; they were not measured.
    pub fn built_in(machine: &Machine) -> Self {
        use Choice::{Inband, Pull, PullBlueflame, Push};
        let (thread, others) = match machine.engine {
            EngineSide::None => return Self::for_all(Ranges::always(Pull)),
            // The engine reads what lies there by itself; a push has the GPU read it first.
            EngineSide::Host if machine.region == MemoryPlace::Host => {
                return Self::for_all(Ranges::of(&[(96 << 10, PullBlueflame)], Pull));
            }
            EngineSide::Host => (
                Ranges::of(&[(256, Inband), (1024, Push)], Pull),
                Ranges::of(&[(2048, Inband), (64 << 10, Push)], Pull),
            ),
            EngineSide::Gpu | EngineSide::SameGpu => (
                Ranges::of(&[(256, Inband)], Pull),
                Ranges::of(&[(2048, Inband), (8192, Push)], Pull),
            ),
        };
        Self::new(thread, others.clone(), others)
    }

    /// The ranges of a scope.
    pub fn ranges(&self, scope: Scope) -> &Ranges {
        match scope {
            Scope::Thread => &self.thread,
            Scope::Warp => &self.warp,
            Scope::Block => &self.block,
        }
    }

    /// Whether some length takes a choice that is so.
    pub(super) fn has(&self, so: impl Fn(Choice) -> bool) -> bool {
        let all = [&self.thread, &self.warp, &self.block];
        all.into_iter().flat_map(|ranges| &ranges.0).any(|range| so(range.path))
    }

    pub(super) fn replace(&mut self, with: impl Fn(Choice) -> Choice) {
        for ranges in [&mut self.thread, &mut self.warp, &mut self.block] {
            ranges.replace(&with);
        }
    }

    /// As kernels see it: a thread's table, a warp's, a block's.
    pub(super) fn device(&self) -> [Choices; 3] {
        [&self.thread, &self.warp, &self.block].map(Ranges::device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `class_of` in auto.cuh.
    fn class_of(length: u32) -> u32 {
        let before = length.max(3) - 1;
        let highest = before.ilog2();
        2 * highest + (before >> (highest - 1) & 1) - 2
    }

    #[test]
    fn classes_end_at_powers_of_two_and_halfway_between() {
        let first = |class| (1..=100).find(|&length| class_of(length) == class).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(first), [1, 4, 5, 7, 9, 13, 17, 25]);
        assert_eq!(class_of(u32::MAX) + 1, CHOICE_CLASSES);
        // What `bench --tune` finds ends with classes, and then one look is enough.
        let tuned = Ranges::of(&[(48, Choice::Inband), (64 << 10, Choice::Push)], Choice::Pull);
        assert!((0..CHOICE_CLASSES).all(|class| tuned.choice_of_class(class).is_some()));
        let odd = Ranges::of(&[(50, Choice::Inband)], Choice::Pull);
        let several = (0..CHOICE_CLASSES).filter(|&class| odd.choice_of_class(class).is_none());
        assert_eq!(several.collect::<Vec<_>>(), [class_of(50)]);
        let same = Ranges::of(&[(50, Choice::Pull)], Choice::Pull);
        assert_eq!(same.choice_of_class(class_of(50)), Some(Choice::Pull));
    }

    /// What a kernel makes of the table (`choice_of` in auto.cuh).
    fn choice_on_the_device(choices: &Choices, bytes: u64) -> u32 {
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        let class = class_of(length);
        let choice = choices.by_class[class as usize / 8] >> (class % 8 * CHOICE_BITS) & 15;
        if choice != CHOICE_BY_RANGE {
            return choice;
        }
        let range = choices.up_to.iter().filter(|&&up_to| length > up_to).count() as u32;
        choices.choice >> (range * CHOICE_BITS) & 15
    }

    #[test]
    fn a_length_takes_its_ranges_choice_on_both_sides() {
        let eight: Vec<Range> = (0..8)
            .map(|i| Range {
                // 10, 32, 160, 512 and so on: inside of a class, and at its end.
                up_to: (i < 7).then_some(if i % 2 == 0 { 10 << (2 * i) } else { 8 << (2 * i) }),
                path: Choice::ALL[i % Choice::ALL.len()],
            })
            .collect();
        for n in 1..=8 {
            let ranges = Ranges::new(eight[8 - n..].to_vec()).unwrap();
            let device = ranges.device();
            let ends = ranges.ranges().iter().filter_map(|range| range.up_to);
            let around =
                ends.flat_map(|end| [-1, 0, 1].map(|by| u64::from(end).wrapping_add_signed(by)));
            for bytes in around.chain([1, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, u64::MAX]) {
                let choice = ranges.choice(bytes);
                assert_eq!(choice_on_the_device(&device, bytes), choice as u32, "{n}: {bytes}");
            }
        }
        let two = Ranges::of(&[(64, Choice::Inband)], Choice::Pull);
        let choices = [1, 64, 65, 1 << 40].map(|bytes| two.choice(bytes));
        assert_eq!(choices, [Choice::Inband, Choice::Inband, Choice::Pull, Choice::Pull]);
    }

    #[test]
    fn tables_that_leave_lengths_open_are_refused() {
        let range = |up_to, path| Range { up_to, path };
        let last = range(None, Choice::Pull);
        let at = |up_to| range(Some(up_to), Choice::Push);
        for (ranges, why) in [
            (vec![], "none"),
            (vec![at(8)], "the last one has an end"),
            (vec![last, last], "no up_to"),
            (vec![at(8), at(8), last], "ascend"),
            (vec![at(9), at(8), last], "ascend"),
            (vec![at(0), last], "ascend"),
            (vec![at(u32::MAX), last], "4 GiB"),
            ((1..=8).map(at).chain([last]).collect(), "more than 8"),
        ] {
            let told = Ranges::new(ranges).unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
        }
        assert!(Ranges::new((1..=7).map(at).chain([last]).collect()).is_ok());
    }

    #[test]
    fn names_are_the_paths_names() {
        for choice in Choice::ALL {
            assert_eq!(serde_json::to_string(&choice).unwrap(), format!("\"{choice}\""));
            assert_eq!(choice as usize, Choice::ALL.iter().position(|&c| c == choice).unwrap());
        }
    }
}
