//! Events of devices as a timeline: tracks, slices, instants, counters.

use std::collections::{BTreeMap, HashMap};

use bellpush::nic::soft::trace::{DeviceTrace, Kind, Mark};
use serde_json::json;

use super::chrome::{Event, Trace};
use super::ends::{CqEnd, Ends, ProgramEnd, WaitEnd};
use super::flows;
use super::queue::{Message, Queue, cqe, said};
use crate::decode::names;

/// Numbers of processes lie below (`pid_max`).
pub(super) const DEVICES: u32 = 1 << 22;
/// Tracks that slices of one queue pair are spread over, which would hide each other on one.
const LANES: usize = 512;

/// A timeline of devices whose times are of one clock.
pub fn timeline(devices: &[DeviceTrace]) -> Trace {
    let (mut events, mut ends) = (Vec::new(), Ends::new());
    let within = devices.iter().map(|device| device.within_ns).max().unwrap_or(0);
    ends.clock = format!("CLOCK_MONOTONIC, within {within} ns");
    let mut seen: HashMap<u32, u32> = HashMap::new();
    for device in devices {
        let nth = seen.entry(device.pid).or_default();
        let pid = (device.pid % DEVICES) + (*nth % 512) * DEVICES;
        *nth += 1;
        Drawing::new(device, pid).draw(&mut events, &mut ends);
    }
    Trace::new(events, ends)
}

/// What is drawn on a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Track {
    Device,
    Thread(u32),
    Queue(u32, usize),
    Inbound(u32),
    Cq(u32),
}

struct Drawing<'a> {
    device: &'a DeviceTrace,
    pid: u32,
    end_ns: u64,
    tracks: BTreeMap<Track, u32>,
    queues: BTreeMap<u32, Queue>,
    cqs: BTreeMap<u32, CqEnd>,
    waits: BTreeMap<u32, WaitEnd>,
    faults: BTreeMap<u32, u64>,
    events: Vec<Event>,
}

impl<'a> Drawing<'a> {
    fn new(device: &'a DeviceTrace, pid: u32) -> Self {
        let last = device.marks.last().map_or(0, |mark| mark.ts_ns);
        let end_ns = last.max(device.closed_ns).max(device.looked_ns).max(device.opened_ns);
        Self {
            device,
            pid,
            end_ns,
            tracks: BTreeMap::new(),
            queues: BTreeMap::new(),
            cqs: BTreeMap::new(),
            waits: BTreeMap::new(),
            faults: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    /// The track's number, in the order in which they come to be.
    fn track(&mut self, track: Track) -> (u32, u32) {
        let next = self.tracks.len() as u32 + 1;
        (self.pid, *self.tracks.entry(track).or_insert(next))
    }

    fn queue(&mut self, qpn: u32) -> &mut Queue {
        let pid = self.pid;
        self.queues.entry(qpn).or_insert_with(|| Queue::new(pid, qpn))
    }

    fn cq(&mut self, number: u32) -> &mut CqEnd {
        let new = CqEnd { pid: self.pid, number, ..CqEnd::default() };
        self.cqs.entry(number).or_insert(new)
    }

    fn draw(mut self, events: &mut Vec<Event>, ends: &mut Ends) {
        let device = self.device;
        for mark in &device.marks {
            self.take(mark);
        }
        let mut queues = std::mem::take(&mut self.queues);
        for queue in queues.values_mut().filter(|queue| queue.known) {
            self.draw_messages(queue);
            self.draw_inbound(queue);
            ends.queues.push(queue.ends());
        }
        for (thread, wait) in std::mem::take(&mut self.waits) {
            self.draw_wait(thread, &wait, self.end_ns, true);
            self.waits.insert(thread, wait);
        }
        self.name_tracks();
        ends.cqs.extend(std::mem::take(&mut self.cqs).into_values());
        ends.programs.push(ProgramEnd {
            pid: self.pid,
            name: self.name(),
            closed: self.device.closed_ns != 0,
            end_ns: self.end_ns,
            lost: self.device.lost,
            waits: self.waits.into_values().collect(),
            faults: self.faults.into_iter().collect(),
        });
        events.append(&mut self.events);
    }

    fn name(&self) -> String {
        let DeviceTrace { program, pid, index, place, .. } = self.device;
        format!("{program} {pid}, mlx5_{index} ({place})")
    }

    fn name_tracks(&mut self) {
        let named = |what: &str, id: (u32, u32), name: String| {
            Event::new('M', what, id, 0).with("name", name)
        };
        self.events.push(named("process_name", (self.pid, 0), self.name()));
        for (&track, &tid) in &self.tracks {
            let name = match track {
                Track::Device => "device".into(),
                Track::Thread(thread) => format!("thread {thread} waits"),
                Track::Queue(qpn, 0) => format!("QP {qpn:#x}"),
                Track::Queue(qpn, lane) => format!("QP {qpn:#x} +{lane}"),
                Track::Inbound(qpn) => format!("QP {qpn:#x} in"),
                Track::Cq(number) => format!("CQ {number:#x}"),
            };
            self.events.push(named("thread_name", (self.pid, tid), name));
        }
        for (order, (_, &tid)) in self.tracks.iter().enumerate() {
            let event = Event::new('M', "thread_sort_index", (self.pid, tid), 0);
            self.events.push(event.with("sort_index", order));
        }
    }

    fn instant(&mut self, track: Track, name: String, mark: &Mark) {
        let track = self.track(track);
        let event = Event { s: Some("t".into()), ..Event::new('i', name, track, mark.ts_ns) };
        self.events.push(event.of("mark"));
    }

    fn take(&mut self, mark: &Mark) {
        let Mark { kind, number, words: [a, b], .. } = *mark;
        if kind.is_of_qp() {
            self.queue(number).take(mark);
        }
        match kind {
            Kind::Doorbell => {
                let track = self.track(Track::Queue(number, 0));
                let event = Event::new('i', "doorbell", track, mark.ts_ns).of("mark");
                let event = Event { s: Some("t".into()), ..event };
                self.events.push(event.with("producer", b).with("blocks", b.saturating_sub(a)));
            }
            Kind::Fetched | Kind::Done => {
                let (wqes, bytes) = self.queue(number).in_flight();
                let event =
                    Event::new('C', format!("QP {number:#x} in flight"), (self.pid, 0), mark.ts_ns);
                self.events.push(event.with("wqes", wqes).with("bytes", bytes));
            }
            Kind::Cqe => {
                let cq = a as u32 & 0xff_ffff;
                let end = self.cq(cq);
                end.written += 1;
                // How many were not taken is known of the last look alone.
                end.taken = end.taken.map(|taken| taken.saturating_add(1));
                let track = self.track(Track::Cq(cq));
                let event = Event::new('i', cqe(a), track, mark.ts_ns).of("cqe");
                let event = Event { s: Some("t".into()), ..event };
                let event = event.with("qp", format!("{number:#x}")).with("wqe_index", mark.aux);
                let event = event.with("bytes", b);
                let syndrome = a >> 32 & 0xff;
                self.events.push(match syndrome {
                    0 => event,
                    _ => event.with("syndrome", syndrome).with("vendor", a >> 40 & 0xff),
                });
            }
            Kind::Resent | Kind::Timeout | Kind::RnrGot | Kind::NakGot | Kind::State => {
                self.instant(Track::Queue(number, 0), said(mark), mark);
            }
            Kind::RnrSent | Kind::NakSent => self.instant(Track::Inbound(number), said(mark), mark),
            Kind::Async => self.instant(Track::Device, format!("event {a} of {number:#x}"), mark),
            Kind::Fault => {
                *self.faults.entry(number).or_default() += 1;
                self.instant(Track::Device, format!("fault {number} strikes"), mark);
            }
            Kind::WaitBegins => {
                let (since_ns, armed) = (mark.ts_ns, a != 0);
                self.waits.insert(number, WaitEnd { thread: number, since_ns, armed });
            }
            Kind::WaitEnds => {
                if let Some(wait) = self.waits.remove(&number) {
                    self.draw_wait(number, &wait, mark.ts_ns, false);
                }
            }
            Kind::CqMade => self.cq(number).entries = a,
            Kind::LookCq => {
                let cq = self.cq(number);
                cq.written = cq.written.max(a);
                cq.overran |= b >> 24 & 1 != 0;
                // 24 bits of the consumer index: how many are not taken.
                let waiting = a.wrapping_sub(b) & 0xff_ffff;
                cq.taken = (b >> 63 == 0).then(|| a.saturating_sub(waiting));
            }
            _ => {}
        }
    }

    fn draw_wait(&mut self, thread: u32, wait: &WaitEnd, to: u64, unfinished: bool) {
        let track = self.track(Track::Thread(thread));
        let name = if wait.armed { "waits for an event" } else { "polls" };
        let event = Event::slice(name, track, (wait.since_ns, to)).of("wait");
        self.events.push(if unfinished { event.with("unfinished", true) } else { event });
    }

    fn draw_messages(&mut self, queue: &Queue) {
        let mut all: Vec<&Message> = queue.closed.iter().chain(queue.open.iter()).collect();
        all.sort_by_key(|message| message.start());
        let mut lanes: Vec<u64> = Vec::new();
        for message in all {
            let last = [message.cqe, message.done].into_iter().max().filter(|&at| at != 0);
            let unfinished = last.is_none() || message.signaled && message.cqe == 0;
            let ended = Some(message.given_up).filter(|&at| at != 0).unwrap_or(self.end_ns);
            let to = last.filter(|_| !unfinished).unwrap_or(ended).max(message.start());
            let mut from = message.start();
            let free = lanes.iter().position(|&end| end <= from);
            let lane = free.unwrap_or(lanes.len().min(LANES - 1));
            if lane == lanes.len() {
                lanes.push(0);
            } else if free.is_none() {
                // Its beginning is cut off where another's end is, and its argument tells when that was.
                let (first, end) =
                    lanes.iter().enumerate().min_by_key(|(_, end)| **end).expect("there are lanes");
                (from, lanes[first]) = (*end, to.max(*end));
                self.draw_message(queue.end.qpn, first, message, (from, to.max(from)), unfinished);
                continue;
            }
            lanes[lane] = to;
            self.draw_message(queue.end.qpn, lane, message, (from, to), unfinished);
        }
    }

    fn draw_message(
        &mut self,
        qpn: u32,
        lane: usize,
        message: &Message,
        (from, to): (u64, u64),
        unfinished: bool,
    ) {
        let track = self.track(Track::Queue(qpn, lane));
        let opcode = names::wqe_opcode_or_code(message.opcode);
        let mut event = Event::slice(opcode.clone(), track, (from, to)).of(flows::WQE);
        event = event.with(flows::FLOW, flows::posted(qpn, message.end));
        event = event.with("opcode", opcode).with("wqe_index", message.index);
        event = event.with("bytes", message.bytes).with("signaled", message.signaled);
        if let Some(peer) = message.peer {
            event = event.with("peer", format!("{peer:#x}"));
        }
        for (key, value, is) in [
            ("resent", json!(message.resent), message.resent > 0),
            ("syndrome", json!(message.syndrome), message.syndrome > 0),
            ("unfinished", json!(true), unfinished && message.given_up == 0),
            ("given_up", json!(true), unfinished && message.given_up != 0),
            ("begun_us", json!(super::chrome::micros(message.start())), from != message.start()),
        ] {
            if is {
                event = event.with(key, value);
            }
        }
        self.events.push(event);
        let stages = [
            ("doorbell", "doorbell", message.rung),
            ("fetched", "fetched", message.fetched),
            ("sends", "sends", if message.sent_last == 0 { 0 } else { message.sent }),
            (
                "sent",
                flows::FROM,
                if message.sent_last == 0 { message.sent } else { message.sent_last },
            ),
            ("done", "done", message.done),
        ];
        for (nth, &(name, cat, at)) in stages.iter().enumerate() {
            if at == 0 {
                continue;
            }
            let next = stages[nth + 1..].iter().map(|stage| stage.2).find(|&next| next != 0);
            let next = next.unwrap_or(if message.cqe == 0 { to } else { message.cqe });
            let (begins, ends) = (at.max(from), next.min(to).max(from));
            if begins > ends {
                continue;
            }
            let mut stage = Event::slice(name, track, (begins, ends)).of(cat);
            if cat == flows::FROM
                && let Some(peer) = message.peer
            {
                stage = stage.with(flows::FLOW, flows::name(peer, message.psn));
            }
            self.events.push(stage);
        }
    }

    fn draw_inbound(&mut self, queue: &Queue) {
        for came in &queue.came {
            let track = self.track(Track::Inbound(queue.end.qpn));
            let name = if came.answers { "answers" } else { "placed" };
            // A packet alone is an instant, and an arrow ends at no slice that has no length.
            let event =
                Event::slice(name, track, (came.from, came.to.max(came.from.saturating_add(1))))
                    .of(flows::TO);
            let flow = flows::name(queue.end.qpn, came.psn);
            self.events.push(event.with("bytes", came.bytes).with(flows::FLOW, flow));
        }
    }
}
