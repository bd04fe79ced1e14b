//! Marks: what kernels write down by `bp::mark` (`kernels/include/bellpush/mark.cuh`), and when that was.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bellpush_abi::wire::{DeviceMarks, MarkEntry};
use bellpush_mem::Dma;

use super::clock::{Clock, Conversion};
use super::{DeviceMem, Gpu, GpuError, Kept, Mapped};

const ENTRY_BYTES: usize = size_of::<MarkEntry>();
/// Most marks of a ring.
const MOST: usize = 1 << 22;

/// A ring of marks, in which the newest take the place of the oldest. The host reads it while kernels run.
///
/// Kernels write where they like: what is read is copied first, and an entry that is not whole is not taken.
pub struct Marks {
    memory: Arc<Memory>,
    ring_log: u32,
    /// `None` on the host executor, whose clock is the host's.
    clock: Option<Clock>,
}

/// What kernels write to.
struct Memory {
    ring: Mapped,
    begun: Arc<DeviceMem>,
}

/// A mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// When it was written, in nanoseconds of `CLOCK_MONOTONIC`.
    pub ns: u64,
    /// The kernel's number of what it did.
    pub what: u32,
    /// The kernel's own.
    pub value: u64,
    /// Who wrote it.
    pub block: u32,
    /// Its thread of the block.
    pub thread: u32,
}

/// Marks that were read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MarksRead {
    /// In the order in which they were begun. Those of one thread are in the order in which it wrote them.
    pub marks: Vec<Mark>,
    /// Marks that were begun and are not among them: newer ones took their places, or they were not whole yet.
    pub lost: u64,
    /// How far times may be off the host's clock, in nanoseconds.
    pub within_ns: u64,
}

impl Marks {
    /// A ring of so many marks, rounded up to a power of two, 32 bytes of pinned memory each; and a first look at the
    /// GPU's clock. A thread that others overtake by a whole ring spoils a mark of theirs, which is lost then: let it be
    /// longer than there are threads that write at once. Do not call it while a kernel waits for the caller.
    ///
    /// # Errors
    /// As [`Gpu::alloc_mapped`], [`Gpu::alloc`] and [`Gpu::load`]; [`GpuError::TooManyMarks`];
    /// [`GpuError::Timeout`] where running kernels leave no room for the one that reads the clock.
    pub fn new(gpu: &Arc<Gpu>, marks: usize) -> Result<Self, GpuError> {
        if marks > MOST {
            return Err(GpuError::TooManyMarks { marks, most: MOST });
        }
        let marks = marks.max(1).next_power_of_two();
        let memory = Memory {
            ring: gpu.alloc_mapped(marks * ENTRY_BYTES, None)?,
            begun: gpu.alloc(size_of::<u64>())?,
        };
        let clock = (!gpu.is_host()).then(|| Clock::new(gpu)).transpose()?;
        Ok(Self { memory: Arc::new(memory), ring_log: marks.ilog2(), clock })
    }

    /// What a kernel takes. Its memory is this value's, and [`Marks::keep`]'s.
    pub fn device(&self) -> DeviceMarks {
        DeviceMarks {
            ring: self.memory.ring.addr(),
            begun: self.memory.begun.addr(),
            ring_log: self.ring_log,
            reserved: 0,
        }
    }

    /// What keeps the memory, for [`Stream::launch_keeping`](super::Stream::launch_keeping).
    pub fn keep(&self) -> Kept {
        self.memory.clone()
    }

    /// The marks that are in the ring, also while kernels write more; and a look at the GPU's clock, by a kernel of one
    /// thread. Where that finds no room within a second, [`MarksRead::within_ns`] grows with the time since the first
    /// look, by 100 ppm.
    ///
    /// # Errors
    /// As [`Dma::read`].
    pub fn read(&self) -> Result<MarksRead, GpuError> {
        let clock = self.clock.as_ref().map(Clock::until_now);
        let begun = self.begun()?;
        let places = 1 << self.ring_log;
        let first = begun.saturating_sub(places);
        let entries: Result<Vec<MarkEntry>, GpuError> =
            (first..begun).map(|number| self.entry(number & (places - 1))).collect();
        // Each copy was taken before this: a mark that was begun later may have spoiled it.
        let later = self.begun()?;
        let whole = (first..begun).zip(entries?).filter(|(number, entry)| {
            let lap = ((number >> self.ring_log) as u32).wrapping_add(1);
            let taken = later > number.saturating_add(places);
            // No lap is 0: what was never written is no mark.
            !taken && lap != 0 && entry.lap == lap && entry.lap_low == lap as u16
        });
        let marks: Vec<Mark> = whole.map(|(_, entry)| mark(&entry, clock.as_ref())).collect();
        let lost = begun - marks.len() as u64;
        Ok(MarksRead { marks, lost, within_ns: clock.map_or(0, |clock| clock.within_ns) })
    }

    fn begun(&self) -> Result<u64, GpuError> {
        let begun = &self.memory.begun;
        if let Some(view) = begun.as_host() {
            return Ok(view.load_u64(0, Ordering::Acquire)?);
        }
        let mut raw = [0; size_of::<u64>()];
        begun.read(0, &mut raw)?;
        Ok(u64::from_ne_bytes(raw))
    }

    /// A copy. The word that says the lap comes first: on the host executor its unit is stored in two words, that one
    /// last.
    fn entry(&self, place: u64) -> Result<MarkEntry, GpuError> {
        let ring = self.memory.ring.host();
        let at = place as usize * ENTRY_BYTES;
        let mut words = [0; 4];
        for word in [1, 0, 3, 2] {
            words[word] = ring.load_u64(at + 8 * word, Ordering::Acquire)?;
        }
        Ok(bytemuck::cast(words))
    }
}

fn mark(entry: &MarkEntry, clock: Option<&Conversion>) -> Mark {
    let MarkEntry { what, value, block, .. } = *entry;
    let ns = clock.map_or(entry.ns, |clock| clock.host_ns(entry.ns));
    Mark { ns, what, value, block, thread: entry.thread.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Executor, HostOptions};

    fn marks(places: usize) -> Marks {
        Marks::new(&Gpu::open(Executor::Host(HostOptions::default())).unwrap(), places).unwrap()
    }

    /// Writes an entry as a kernel would.
    fn put(marks: &Marks, place: usize, lap: u32, lap_low: u16) {
        let (ns, what, value) = (1000 + place as u64, 5, 6);
        let (block, thread) = (7, 3);
        let entry = MarkEntry { ns, what, lap, value, block, thread, lap_low };
        marks.memory.ring.host().write(place * ENTRY_BYTES, bytemuck::bytes_of(&entry)).unwrap();
    }

    fn begin(marks: &Marks, count: u64) {
        marks.memory.begun.write(0, &count.to_ne_bytes()).unwrap();
    }

    #[test]
    fn a_mark_is_what_its_kernel_wrote() {
        let marks = marks(4);
        assert_eq!(marks.read().unwrap(), MarksRead::default());
        put(&marks, 0, 1, 1);
        begin(&marks, 1);
        let mark = Mark { ns: 1000, what: 5, value: 6, block: 7, thread: 3 };
        assert_eq!(marks.read().unwrap(), MarksRead { marks: vec![mark], lost: 0, within_ns: 0 });
    }

    #[test]
    fn a_mark_that_is_not_whole_is_lost() {
        let marks = marks(4);
        begin(&marks, 6); // places 0 and 1 are of the second lap
        for place in 0..4 {
            let lap = if place < 2 { 2 } else { 1 };
            put(&marks, place, lap, lap as u16);
        }
        let read = marks.read().unwrap();
        assert_eq!((read.marks.len(), read.lost), (4, 2));
        let in_order: Vec<u64> = read.marks.iter().map(|mark| mark.ns).collect();
        assert_eq!(in_order, [1002, 1003, 1000, 1001]);
        // Of one the first unit is of the lap before, of one the second.
        put(&marks, 0, 1, 2);
        put(&marks, 1, 2, 1);
        let read = marks.read().unwrap();
        assert_eq!((read.marks.len(), read.lost), (2, 4));
        assert!(read.marks.iter().all(|mark| mark.ns >= 1002));
    }

    #[test]
    fn no_count_makes_a_reader_leave_its_ring() {
        let marks = marks(4);
        for count in [u64::MAX, u64::MAX - 1, 1 << 63, 5] {
            begin(&marks, count);
            let read = marks.read().unwrap();
            assert_eq!((read.marks.len(), read.lost), (0, count));
        }
    }

    #[test]
    fn a_ring_has_a_bound() {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let refused = Marks::new(&gpu, MOST + 1).err().expect("too many");
        assert_eq!(refused.to_string(), "a ring of 4194305 marks; 4194304 is the most");
        assert_eq!(marks(0).device().ring_log, 0);
        assert_eq!(marks(5).device().ring_log, 3);
    }
}
