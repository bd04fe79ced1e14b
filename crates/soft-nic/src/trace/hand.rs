//! What a step of a NIC's first engine writes events with.
//!
//! Events of several threads take their places in a ring by a locked addition, which on a processor of x86-64 waits for
//! all stores before it. An engine is in one step at a time, and its events are most of a trace's: they have a ring of
//! their own, in which the thread that is in the step takes places by itself. The NIC's other engines, which there are
//! without packets alone, and everyone else share the other ring.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{Kind, Tracer, is_of_send};

/// Of the next thread that asks for one.
static NEXT: AtomicUsize = AtomicUsize::new(1);

thread_local! {
    /// Tells threads of a process from each other; 0 until it is asked for. No number is given twice, so that no thread
    /// of a process that was forked off passes for the one that was in a step then.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

#[inline]
fn this_thread() -> usize {
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// Which thread is in the step, and what it wrote last.
#[derive(Default)]
pub(super) struct Hand {
    /// 0: none.
    thread: AtomicUsize,
    /// What [`Kind::Cqe`] would be of the step's last event, if that is [`Kind::Done`]; else 0. And that event's time.
    told: [AtomicU64; 2],
}

impl Hand {
    /// Whether the calling thread is in the step.
    #[inline]
    pub(super) fn is_callers(&self) -> bool {
        // Relaxed: it is this thread's own store that it looks for, and finds until it takes it back.
        self.thread.load(Ordering::Relaxed) == this_thread()
    }

    /// The time of the step's next event, which `what` is the last word of but for its lap, and `a` the first behind its
    /// time.
    ///
    /// A CQE at once behind the completion that it tells of has its time: what lies between is the writing of 64 bytes,
    /// and a look at the clock takes as long. A receive's may have the same number.
    #[inline]
    pub(super) fn time(&self, kind: Kind, what: u64, a: u64, now: impl FnOnce() -> u64) -> u64 {
        let [told, at] = &self.told;
        let is_told = told.load(Ordering::Relaxed) == what && is_of_send(a);
        let of_cqe = if kind == Kind::Done { what + TO_CQE } else { 0 };
        told.store(of_cqe, Ordering::Relaxed);
        if is_told {
            return at.load(Ordering::Relaxed);
        }
        let now = now();
        at.store(now, Ordering::Relaxed);
        now
    }
}

/// From the last word of [`Kind::Done`] to that of the [`Kind::Cqe`] of the same WQE.
const TO_CQE: u64 = (Kind::Cqe as u64 - Kind::Done as u64) << 56;

/// A step of the first engine.
pub(crate) struct Step<'a>(&'a Hand);

impl Tracer {
    /// Has the calling thread's events, until this is dropped, be those of the step. It holds the first engine.
    pub(crate) fn step(&self) -> Step<'_> {
        self.hand.told[0].store(0, Ordering::Relaxed);
        self.hand.thread.store(this_thread(), Ordering::Relaxed);
        Step(&self.hand)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceTrace, EVENTS, STEPS, Tracing, cqe};
    use super::*;
    use bellpush_mem::clock::monotonic_ns;
    use bellpush_wire::cqe::CqeOpcode;

    fn traced() -> (std::sync::Arc<Tracing>, Tracer) {
        let tracing = Tracing::new(true, false).unwrap();
        let tracer = tracing.claim(0, "").unwrap().unwrap();
        (tracing, tracer)
    }

    fn read(tracing: &Tracing) -> DeviceTrace {
        tracing.devices(true).pop().unwrap()
    }

    #[test]
    fn a_step_and_other_threads_write_at_once_and_nothing_is_lost() {
        let (tracing, tracer) = traced();
        let each = EVENTS / 4;
        let mark = |kind| (0..each).for_each(|nth| tracer.mark(kind, 7, nth as u16, [0; 2]));
        let step = tracer.step();
        std::thread::scope(|threads| {
            for kind in [Kind::WaitBegins, Kind::WaitEnds] {
                threads.spawn(move || mark(kind));
            }
            mark(Kind::Fetched);
        });
        drop(step);
        mark(Kind::Gone);
        let of_steps = tracer.memory.load_u64(tracer.base + STEPS.count, Ordering::Relaxed);
        assert_eq!(of_steps.unwrap(), each as u64, "nobody else's");
        let device = read(&tracing);
        assert_eq!((device.lost, device.marks.len()), ([0; 3], 4 * each));
        for kind in [Kind::WaitBegins, Kind::WaitEnds, Kind::Fetched, Kind::Gone] {
            let of_kind = device.marks.iter().filter(|mark| mark.kind == kind);
            assert!(of_kind.map(|mark| mark.aux).eq((0..each).map(|nth| nth as u16)), "{kind:?}");
        }
    }

    #[test]
    fn a_steps_newest_events_are_kept_and_those_that_are_not_whole_are_none() {
        let (tracing, tracer) = traced();
        let step = tracer.step();
        (0..=EVENTS).for_each(|nth| tracer.mark(Kind::Fetched, 7, nth as u16, [0; 2]));
        let device = read(&tracing);
        assert_eq!((device.lost, device.marks.len()), ([1, 0, 0], EVENTS));
        assert_eq!(device.marks[0].aux, 1);
        drop(step);
        // Killed between taking a place and writing there.
        tracer.next_of_step().unwrap();
        assert_eq!(read(&tracing).marks.len(), EVENTS - 1);
        // Who looks meanwhile may have the number from before: the event that is about to be written over is none.
        let mut found = Vec::new();
        let count = tracer.memory.load_u64(tracer.base + STEPS.count, Ordering::Relaxed).unwrap();
        tracing.marks(tracer.base, &STEPS, count - 1, &mut found);
        assert_eq!(found.len(), EVENTS - 1);
    }

    #[test]
    fn a_cqe_at_once_behind_what_it_tells_of_has_its_time() {
        let (tracing, tracer) = traced();
        let mark = |kind, wqe| {
            let before = monotonic_ns();
            while monotonic_ns() < before + 1000 {}
            tracer.mark(kind, 7, wqe, [0; 2]);
        };
        let step = tracer.step();
        [(Kind::Done, 1), (Kind::Cqe, 1), (Kind::Done, 2), (Kind::Done, 3), (Kind::Cqe, 2)]
            .into_iter()
            .for_each(|(kind, wqe)| mark(kind, wqe));
        [Kind::Fetched, Kind::Sent].into_iter().for_each(|kind| mark(kind, 3));
        mark(Kind::Done, 4);
        drop(step);
        let step = tracer.step();
        mark(Kind::Cqe, 4);
        drop(step);
        [(Kind::Done, 5), (Kind::Cqe, 5)].into_iter().for_each(|(kind, wqe)| mark(kind, wqe));
        // A receive's, of the number of a send that asked for none.
        let step = tracer.step();
        mark(Kind::Done, 6);
        let received = cqe(0, CqeOpcode::RespSend as u8, 0, 0);
        tracer.mark(Kind::Cqe, 7, 6, [received, 0]);
        drop(step);
        let times: Vec<_> = read(&tracing).marks.iter().map(|mark| mark.ts_ns).collect();
        let same: Vec<_> = times.windows(2).map(|two| two[0] == two[1]).collect();
        let others = [false; 11];
        assert_eq!((same[0], &same[1..]), (true, &others[..]), "{times:?}");
    }
}
