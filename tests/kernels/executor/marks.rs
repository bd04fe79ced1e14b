//! Marks of kernels, on every executor.

use bellpush::abi::wire::DeviceMarks;
use bellpush::gpu::{Marks, MarksRead};
use bellpush::mem::clock::monotonic_ns;

use super::*;

/// `struct bp_selftest_marks_args`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct MarksArgs {
    marks: DeviceMarks,
    count: u64,
    what: u64,
}
// SAFETY: selftest.cu's struct of that name.
unsafe impl KernelArgs for MarksArgs {}

/// Marks by a kernel of two blocks of 64 threads, `count` each.
fn write(gpu: &Arc<Gpu>, stream: &Stream, marks: DeviceMarks, count: u64) {
    let kernel = kernel(gpu, "bp_selftest_marks");
    launch(stream, &kernel, Dims::new(2, 64), &MarksArgs { marks, count, what: 9 }).unwrap();
}

#[test]
fn marks_are_read_with_their_times_and_places() {
    let _alone = alone();
    for (name, gpu) in executors() {
        let (marks, stream) = (Marks::new(&gpu, 1024).unwrap(), gpu.stream().unwrap());
        let before = monotonic_ns();
        write(&gpu, &stream, marks.device(), 4);
        stream.synchronize(LIMIT).unwrap();
        let after = monotonic_ns();
        let MarksRead { marks, lost, within_ns } = marks.read().unwrap();
        assert_eq!((marks.len(), lost), (512, 0), "{name}");
        println!("{name}: times within {within_ns} ns");
        assert!(within_ns < 100_000 && (gpu.ordinal().is_some() || within_ns == 0), "{name}");
        let mut next = [[0; 64]; 2];
        for mark in &marks {
            let (block, thread) = (mark.block as usize, mark.thread as usize);
            let place = (block * 64 + thread) as u64;
            assert_eq!((mark.what, mark.value), (9, place << 32 | next[block][thread]), "{name}");
            next[block][thread] += 1;
            let times = before - within_ns..=after + within_ns;
            assert!(times.contains(&mark.ns), "{name}: {mark:?} in {times:?}");
        }
        // A thread's marks are in the order of their times.
        for thread in 0..64 {
            let own = marks.iter().filter(|mark| (mark.block, mark.thread) == (1, thread));
            assert!(own.map(|mark| mark.ns).is_sorted(), "{name}");
        }
    }
}

/// A thread that others overtake by a whole lap spoils a mark of theirs: of fibres on one thread none does.
#[test]
fn a_ring_of_many_laps_has_the_newest_marks_and_counts_the_others() {
    let _alone = alone();
    for (name, gpu) in executors() {
        let (marks, stream) = (Marks::new(&gpu, 256).unwrap(), gpu.stream().unwrap());
        for launches in 1..4 {
            write(&gpu, &stream, marks.device(), 10);
            stream.synchronize(LIMIT).unwrap();
            let read = marks.read().unwrap();
            let whole = read.marks.len() as u64;
            assert_eq!(whole + read.lost, launches * 1280, "{name}");
            let least = if name == "fibres" { 256 } else { 192 };
            assert!((least..=256).contains(&whole), "{name}: {whole}");
            // Every thread has written ten.
            assert!(read.marks.iter().any(|mark| mark.value & 0xff == 9), "{name}");
        }
    }
}

/// What is read meanwhile is whole, and nothing is counted twice.
#[test]
fn marks_are_read_while_a_kernel_writes_more() {
    let _alone = alone();
    for (name, gpu) in executors() {
        let (marks, stream) = (Marks::new(&gpu, 64).unwrap(), gpu.stream().unwrap());
        write(&gpu, &stream, marks.device(), 2000);
        let mut begun = 0;
        while begun < 128 * 2000 {
            let read = marks.read().unwrap();
            let now = read.marks.len() as u64 + read.lost;
            assert!(now >= begun && read.marks.len() <= 64, "{name}");
            begun = now;
            for mark in &read.marks {
                let thread = u64::from(mark.block * 64 + mark.thread);
                assert_eq!((mark.what, mark.value >> 32), (9, thread), "{name}: {mark:?}");
                assert!(mark.value & 0xffff_ffff < 2000, "{name}: {mark:?}");
            }
        }
        stream.synchronize(LIMIT).unwrap();
    }
}

#[test]
fn where_no_ring_is_given_nothing_is_written() {
    let _alone = alone();
    for (name, gpu) in executors() {
        let (marks, stream) = (Marks::new(&gpu, 64).unwrap(), gpu.stream().unwrap());
        let off = DeviceMarks { ring: 0, ..marks.device() };
        write(&gpu, &stream, off, 3);
        write(&gpu, &stream, DeviceMarks::default(), 3);
        stream.synchronize(LIMIT).unwrap();
        let read = marks.read().unwrap();
        assert_eq!((read.marks.len(), read.lost), (0, 0), "{name}");
    }
}
