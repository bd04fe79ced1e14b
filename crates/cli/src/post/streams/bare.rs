//! The best of the bare exchange: slots, blocks and threads are tried, and the best are measured again.

use super::Mode;
use super::rate::Rate;
use super::ring::{Ring, Shape, processors};
use crate::cli::CliError;
use crate::post::bug;

const KIB: usize = 1 << 10;
/// What is tried on a GPU.
const SLOTS: [usize; 5] = [KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB];
const BLOCKS: [u32; 3] = [1, 2, 4];
const THREADS: [usize; 5] = [2, 4, 7, 8, 12];
/// On the host executor, where the exchange shows that it works and no more.
const HOST_SLOT: usize = 4 * KIB;
/// Of those tried once, as many are measured again.
const AGAIN: usize = 3;

/// The best that was found.
#[derive(Debug, Clone)]
pub struct Best {
    pub shape: Shape,
    pub rate: Rate,
}

/// What the exchange moves through a window.
#[derive(Debug, Clone)]
pub struct Bare {
    pub one_block: Best,
    /// Of one block too, if that is better.
    pub up_to_four: Best,
    /// Of up to four blocks, where slots are given back in their order.
    pub in_order: Best,
}

/// Threads that are tried: beside each there is a processor for this one and one for others.
pub fn threads(processors: usize) -> Vec<usize> {
    let fitting: Vec<_> = THREADS.into_iter().filter(|n| n + 2 <= processors).collect();
    if fitting.is_empty() { vec![1] } else { fitting }
}

/// All that is tried, those of one block first; in order and not.
fn shapes(mode: Mode, window_bytes: usize, is_host: bool, threads: &[usize]) -> Vec<Shape> {
    let (slots, blocks) =
        if is_host { (&[HOST_SLOT][..], &BLOCKS[..2]) } else { (&SLOTS[..], &BLOCKS[..]) };
    let mut all = Vec::new();
    for &blocks in blocks {
        for &slot_bytes in slots {
            for &threads in threads {
                for in_order in [false, true] {
                    let shape = Shape { mode, window_bytes, slot_bytes, blocks, threads, in_order };
                    // Two slots a thread: one is stored while the other is copied.
                    if shape.slots() >= 2 * threads {
                        all.push(shape);
                    }
                }
            }
        }
    }
    all
}

/// Finds the best of one block, and of all.
///
/// # Errors
/// As [`Ring::run`].
pub fn find(ring: &mut Ring, mode: Mode, window: usize, is_host: bool, runs: u32) -> Found {
    let threads = if is_host { vec![1] } else { threads(processors().len()) };
    let shapes = shapes(mode, window, is_host, &threads);
    let mut tried = Vec::new();
    for shape in shapes {
        let (rate, wrong) = ring.run(&shape)?;
        if let Some(wrong) = wrong {
            // What does not work is not tried again and again, up to a timeout each.
            let best = Best { shape, rate: Rate::new(vec![rate], Some(wrong.to_string())) };
            return Ok(Bare { one_block: best.clone(), in_order: best.clone(), up_to_four: best });
        }
        tried.push((rate, shape));
    }
    let mut measured: Vec<Best> = Vec::new();
    for shape in chosen(tried) {
        let rate = Rate::of(runs, |_| {
            let (rate, wrong) = ring.run(&shape)?;
            Ok((rate, wrong.map(|wrong| wrong.to_string())))
        })?;
        measured.push(Best { shape, rate });
    }
    let best = |blocks, in_order| {
        best_of(&measured, blocks, in_order).ok_or_else(|| bug("no window is so short"))
    };
    Ok(Bare { one_block: best(1, false)?, up_to_four: best(4, false)?, in_order: best(4, true)? })
}

type Found = Result<Bare, CliError>;

/// What is measured again: the fastest of one block, of all, and of those in order.
fn chosen(mut tried: Vec<(f64, Shape)>) -> Vec<Shape> {
    tried.sort_by(|a, b| b.0.total_cmp(&a.0));
    let all = |in_order| tried.iter().map(|(_, s)| *s).filter(move |s| s.in_order == in_order);
    let mut chosen: Vec<Shape> = all(false).filter(|s| s.blocks == 1).take(AGAIN).collect();
    chosen.extend(all(false).take(AGAIN).chain(all(true).take(AGAIN)));
    let mut seen = Vec::new();
    chosen.retain(|shape| {
        let is_new = !seen.contains(shape);
        seen.push(*shape);
        is_new
    });
    chosen
}

/// The best median of up to so many blocks; one that was wrong before all others.
fn best_of(measured: &[Best], blocks: u32, in_order: bool) -> Option<Best> {
    let key = |best: &Best| (best.rate.wrong.is_some(), best.rate.median);
    let fits = |shape: &Shape| shape.blocks <= blocks && shape.in_order == in_order;
    let of = measured.iter().filter(|best| fits(&best.shape));
    of.max_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    })
    .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_processors_of_their_own() {
        assert_eq!(threads(1), [1]);
        assert_eq!(threads(2), [1]);
        assert_eq!(threads(4), [2]);
        assert_eq!(threads(9), [2, 4, 7]);
        assert_eq!(threads(16), THREADS);
    }

    #[test]
    fn one_block_comes_first_and_each_thread_has_two_slots() {
        for (window, is_host) in [(128 * KIB, false), (1024 * KIB, false), (128 * KIB, true)] {
            let threads = if is_host { vec![1] } else { THREADS.to_vec() };
            let all = shapes(Mode::Kernel, window, is_host, &threads);
            assert!(all[0].blocks == 1 && all.is_sorted_by_key(|shape| shape.blocks));
            assert!(all.iter().all(|shape| shape.slots() >= 2 * shape.threads));
            assert!(all.iter().any(|shape| shape.blocks == 2));
        }
        // 8 slots of 16 KiB are for four threads and fewer.
        let all = shapes(Mode::Lines12, 128 * KIB, false, &THREADS);
        let long = all.iter().filter(|shape| shape.slot_bytes == 16 * KIB);
        assert_eq!(long.map(|shape| shape.threads).max(), Some(4));
    }
    #[test]
    fn the_fastest_are_measured_again_and_the_best_median_is_shown() {
        let all = shapes(Mode::Kernel, 128 * KIB, false, &[2]);
        let first = |blocks| all.iter().position(|shape| shape.blocks == blocks).unwrap();
        let (one, two, four) = (first(1), first(2), first(4));
        assert!(!all[one].in_order && all[one + 1].in_order && !all[one + 2].in_order);
        let rate = |n: usize| match n {
            _ if n == four => 9.0,
            _ if n == one || n == two => 8.0,
            _ if n == one + 2 => 7.0,
            _ if n == two + 1 => 1.5,
            _ => 1.0,
        };
        let again = chosen(all.iter().enumerate().map(|(n, s)| (rate(n), *s)).collect());
        assert!([one, one + 2, two, four, two + 1].iter().all(|&n| again.contains(&all[n])));
        assert_eq!(again.len(), 8, "none of them twice");
        assert_eq!(again.iter().filter(|shape| shape.in_order).count(), 3);
        let best = |n: usize, rate: f64, wrong: Option<&str>| {
            let rate = Rate::new(vec![rate], wrong.map(str::to_owned));
            Best { shape: all[n], rate }
        };
        let medians =
            |measured: &[Best]| [1, 4].map(|n| best_of(measured, n, false).unwrap().rate.median);
        assert_eq!(medians(&[best(one, 5.0, None), best(four, 6.0, None)]), [5.0, 6.0]);
        assert_eq!(medians(&[best(one, 7.0, None), best(four, 6.0, None)]), [7.0, 7.0]);
        let one_wrong = [best(one, 7.0, None), best(four, 6.0, Some("lost"))];
        assert_eq!(medians(&one_wrong), [7.0, 6.0]);
        assert!(best_of(&[best(four, 6.0, None)], 1, false).is_none());
        let mixed = [best(two, 6.0, None), best(two + 1, 5.0, None)];
        assert_eq!(best_of(&mixed, 4, true).unwrap().rate.median, 5.0);
    }
}
