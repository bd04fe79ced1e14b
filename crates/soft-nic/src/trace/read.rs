//! What stands in a trace's memory. The programs that write it can write anything there.

use std::sync::atomic::{Ordering, fence};

use super::{
    AREA_BYTES, AREAS, CLAIMED_AT, DEFINED, EVENT_BYTES, HEAD_BYTES, IN_TICKS, Kind, OTHERS,
    QP_BYTES, QP_ERRORS, QP_WORDS, QPS, QPS_AT, Ring, STEPS, Tracing, WANTED_AT, head,
};
use crate::counters::Counters;
use bellpush_mem::clock::Pair;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Nanoseconds of the host's monotonic clock.
    pub ts_ns: u64,
    /// What happened.
    pub kind: Kind,
    /// To which queue pair, or what [`Kind`] says; 24 bits.
    pub number: u32,
    /// See [`Kind`].
    pub aux: u16,
    /// See [`Kind`].
    pub words: [u64; 2],
}

/// What was counted of a queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QpCounts {
    /// Its number.
    pub qpn: u32,
    counts: [u64; Kind::ALL.len()],
    /// Error CQEs.
    pub errors: u64,
    /// Bytes of WQEs that are done.
    pub bytes: u64,
}

impl QpCounts {
    /// Events of a kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }
}

/// The trace of one device.
#[derive(Debug, Clone)]
pub struct DeviceTrace {
    /// Its process, and which of its devices it is.
    pub pid: u32,
    /// As `pid`.
    pub index: u32,
    /// The program's name, at most 15 characters.
    pub program: String,
    /// Where it is on its link.
    pub place: String,
    /// When it was opened, closed, and looked at last, in nanoseconds of the host's clock; 0: never.
    pub opened_ns: u64,
    /// As `opened_ns`.
    pub closed_ns: u64,
    /// As `opened_ns`.
    pub looked_ns: u64,
    /// Events that others took the place of, definitions without room, and events that no counter counted.
    pub lost: [u64; 3],
    /// How far its events' times may be from the host's clock, in nanoseconds.
    pub within_ns: u64,
    /// Definitions and events by their time.
    pub marks: Vec<Mark>,
    /// What the NIC counted when it was looked at last.
    pub counters: Vec<(&'static str, u64)>,
    /// Queue pairs by number.
    pub qps: Vec<QpCounts>,
}

impl Tracing {
    /// What devices have written so far, of those that claimed an area. `with_events`: not the counters alone.
    pub fn devices(&self, with_events: bool) -> Vec<DeviceTrace> {
        let now = Pair::sample();
        let claimed = self.word(CLAIMED_AT).min(AREAS as u64) as usize;
        let all = (0..claimed)
            .filter_map(|area| self.device(HEAD_BYTES + area * AREA_BYTES, with_events, &now));
        all.collect()
    }

    fn word(&self, at: usize) -> u64 {
        // Acquire: pairs with the writer's release of what an event or a head says last.
        self.memory.load_u64(at, Ordering::Acquire).unwrap_or(0)
    }

    fn text(&self, at: usize, bytes: usize) -> String {
        let mut text = vec![0; bytes];
        if self.memory.read(at, &mut text).is_err() {
            return String::new();
        }
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(bytes);
        let text = String::from_utf8_lossy(&text[..end]);
        text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
    }

    fn device(&self, base: usize, with_events: bool, now: &Pair) -> Option<DeviceTrace> {
        let of = |word| self.word(base + word);
        let pid = u32::try_from(of(head::PID)).ok().filter(|&pid| pid != 0)?; // else it has just been claimed
        let lost = |ring: &Ring| of(ring.count).saturating_sub(ring.entries as u64);
        let rate = self.begun.ns_per_tick(now);
        let in_ticks = self.word(WANTED_AT) & IN_TICKS != 0;
        let to_ns = |at| if in_ticks { self.begun.ns_at(at, rate) } else { at };
        let apart = (self.begun.apart + now.apart) as f64 * rate / 2.0;
        let mut marks = Vec::new();
        if with_events {
            self.marks(base, &DEFINED, of(DEFINED.count).min(DEFINED.entries as u64), &mut marks);
            [STEPS, OTHERS].iter().for_each(|it| self.marks(base, it, of(it.count), &mut marks));
            marks.iter_mut().for_each(|mark| mark.ts_ns = to_ns(mark.ts_ns));
            marks.sort_by_key(|mark| mark.ts_ns);
        }
        let names = Counters::default().named();
        let counters = names.into_iter().enumerate();
        Some(DeviceTrace {
            pid,
            index: of(head::INDEX) as u32,
            program: self.text(base + head::NAME, head::NAME_BYTES),
            place: self.text(base + head::PLACE, head::PLACE_BYTES),
            opened_ns: of(head::OPENED),
            closed_ns: of(head::CLOSED),
            looked_ns: of(head::LOOKED),
            lost: [lost(&STEPS).saturating_add(lost(&OTHERS)), lost(&DEFINED), of(head::UNCOUNTED)],
            within_ns: if in_ticks { apart.ceil() as u64 } else { 0 },
            marks,
            counters: counters
                .map(|(nth, (name, _))| (name, of(head::COUNTERS + 8 * nth)))
                .collect(),
            qps: self.counts(base + QPS_AT),
        })
    }

    /// The last `entries` of `count` events of a ring.
    pub(super) fn marks(&self, base: usize, ring: &Ring, count: u64, into: &mut Vec<Mark>) {
        let entries = ring.entries as u64;
        for nth in count.saturating_sub(entries)..count {
            let at = base + ring.at + (nth & (entries - 1)) as usize * EVENT_BYTES;
            let last = self.word(at + 24);
            let [ts_ns, a, b] = [0, 8, 16].map(|word| self.word(at + word));
            // Acquire: who has read a word of the event that takes the place next finds that its place was taken.
            fence(Ordering::Acquire);
            let is_kept = self.word(base + ring.count) <= nth.saturating_add(entries);
            let whole = is_kept && last >> 40 & 0xff == (nth / entries) & 0xff;
            let code = (last >> 56) as u8;
            let Some(kind) = code.checked_sub(1).and_then(Kind::from_code).filter(|_| whole) else {
                continue; // its process was killed in the middle of it, or is about to write another there
            };
            let (number, aux) = (last as u32 & 0xff_ffff, (last >> 24) as u16);
            into.push(Mark { ts_ns, kind, number, aux, words: [a, b] });
        }
    }

    fn counts(&self, at: usize) -> Vec<QpCounts> {
        let counts = |nth: usize| {
            let at = at + nth * QP_WORDS * 8;
            let named = self.word(at);
            (named != 0).then(|| QpCounts {
                qpn: named as u32,
                counts: std::array::from_fn(|kind| self.word(at + 8 * (1 + kind))),
                errors: self.word(at + 8 * QP_ERRORS),
                bytes: self.word(at + 8 * QP_BYTES),
            })
        };
        let mut all: Vec<_> = (0..QPS).filter_map(counts).collect();
        all.sort_by_key(|qp| qp.qpn);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::EVENTS;
    use super::*;

    #[test]
    fn the_newest_events_are_kept_and_the_others_counted() {
        let tracing = Tracing::new(true, true).unwrap();
        let tracer = tracing.claim(3, "127.0.0.9").unwrap().unwrap();
        let more = 10;
        for nth in 0..EVENTS as u64 + more {
            tracer.mark(Kind::Done, 7, nth as u16, [8, 100]);
        }
        tracer.mark(Kind::QpMade, 7, 0, [1, 2]);
        tracer.mark(Kind::Cqe, 7, 0, [super::super::cqe(1, 13, 0x15, 0), 0]);
        let [device] = &tracing.devices(true)[..] else { panic!("one claimed") };
        assert_eq!((device.index, &*device.place), (3, "127.0.0.9"));
        assert_eq!(device.pid, std::process::id());
        assert_eq!(device.lost, [more + 1, 0, 0]);
        assert_eq!(device.marks.len(), EVENTS + 1, "a definition is not lost");
        let first = device.marks.iter().find(|mark| mark.kind == Kind::Done).unwrap();
        assert_eq!(u64::from(first.aux), more + 1);
        assert!(device.marks.is_sorted_by_key(|mark| mark.ts_ns));
        let [qp] = &device.qps[..] else { panic!("one queue pair") };
        assert_eq!(
            (qp.of(Kind::Done), qp.bytes),
            (EVENTS as u64 + more, 100 * (EVENTS as u64 + more))
        );
        assert_eq!((qp.of(Kind::Cqe), qp.errors), (1, 1));
        // Killed between taking a place and writing there: what stands there is of the lap before.
        tracer.memory.fetch_add_u64(tracer.base + head::EVENTS, 1).unwrap();
        assert_eq!(tracing.devices(true)[0].marks.len(), EVENTS);
    }

    #[test]
    fn who_finds_no_area_is_counted_and_others_open_the_memory() {
        let tracing = Tracing::new(false, true).unwrap();
        let other = Tracing::open(tracing.file().unwrap()).unwrap();
        let all: Vec<_> =
            (0..AREAS).map(|index| other.claim(index, "").unwrap().unwrap()).collect();
        assert!(other.claim(AREAS, "").unwrap().is_none());
        assert_eq!((tracing.refused(), tracing.devices(true).len()), (1, AREAS));
        all[5].mark(Kind::Timeout, 9, 0, [1, 1]);
        let device = &tracing.devices(true)[5];
        assert_eq!((device.marks.len(), device.qps[0].of(Kind::Timeout)), (0, 1), "counters alone");
        assert!(Tracing::open(&tempfile::tempfile().unwrap()).is_err());
    }
}
