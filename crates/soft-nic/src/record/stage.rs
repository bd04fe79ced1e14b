//! What a NIC finds around it in a replay: memory and a link that answer from the recording, and compare.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::event::{Call, Event, Header, Outcome};
use super::link::split;
use super::reader::{Recording, RecordingError, event_at};
use super::replay::Difference;
use super::tap::{Words, is_word, put_word};
use super::{HEAD, lines};
use crate::link::{Carries, Link, LinkCounters, LinkError, Received, Share, TxBatch};
use bellpush_mem::{Hook, MemError};
use bellpush_wire::cqe::{CQE_TAIL_OFFSET, CQE_TIMESTAMP};
use bellpush_wire::roce::{Fields, ICRC_BYTES, icrc};

/// The recording, as far as it was played.
pub(super) struct Stage {
    state: Mutex<State>,
    /// Payload is there.
    whole: bool,
}

pub(super) struct State {
    bytes: Arc<[u8]>,
    at: usize,
    words: Words,
    /// Queues so far.
    queues: u32,
    /// Rings of CQs whose entries have the time.
    stamped: HashSet<u32>,
    pub(super) difference: Option<Difference>,
    pub(super) broken: Option<RecordingError>,
    /// The recording stops here, within a step or call.
    pub(super) cut: bool,
    /// Objects that went within a step or call.
    pub(super) gone: Vec<u32>,
    up: bool,
    /// Time of the step, and how many steps and events there were.
    pub(super) now_ns: u64,
    pub(super) steps: u64,
    pub(super) events: u64,
}

impl State {
    /// The next event, if something is made of it.
    pub(super) fn take<T>(&mut self, of: impl FnOnce(&Event<'_>) -> Option<T>) -> Option<T> {
        self.skip_gone();
        self.take_any(of)
    }

    fn take_any<T>(&mut self, of: impl FnOnce(&Event<'_>) -> Option<T>) -> Option<T> {
        if self.difference.is_some() || self.broken.is_some() || self.cut {
            return None;
        }
        match event_at(&self.bytes, self.at) {
            Ok(Some((event, next))) => {
                let taken = of(&event)?;
                (self.at, self.events) = (next, self.events + 1);
                Some(taken)
            }
            Ok(None) => None,
            Err(error) => {
                self.broken = Some(error);
                None
            }
        }
    }

    fn skip_gone(&mut self) {
        let is_gone = |event: &Event<'_>| match event {
            Event::Call(Call::Gone { number }) => Some(*number),
            _ => None,
        };
        while let Some(number) = self.take_any(is_gone) {
            self.gone.push(number);
        }
    }

    /// Where the next event stands.
    pub(super) fn place(&self) -> usize {
        self.at
    }

    /// Bytes that were not read.
    pub(super) fn unread(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The NIC did something else than was recorded.
    pub(super) fn differ(&mut self, did: String) {
        if self.difference.is_some() || self.broken.is_some() || self.cut {
            return;
        }
        match event_at(&self.bytes, self.at) {
            Ok(Some((event, _))) => {
                let recorded = Some(lines::event(&event));
                let (now_ns, step, event) = (self.now_ns, self.steps, self.events);
                self.difference = Some(Difference { step, event, now_ns, recorded, did });
            }
            Ok(None) => self.cut = true,
            Err(error) => self.broken = Some(error),
        }
    }

    /// A step or call begins.
    pub(super) fn begin(&mut self) {
        self.words.begin();
    }

    /// A queue's place among those whose words are known.
    pub(super) fn number_queue(&mut self) -> u32 {
        let number = self.queues;
        self.queues += 1;
        number
    }

    /// Entries of this ring have the time in them, which is another.
    pub(super) fn stamp(&mut self, region: u32) {
        self.stamped.insert(region);
    }
}

impl Stage {
    pub(super) fn new(recording: &Recording) -> Arc<Self> {
        let state = State {
            bytes: recording.bytes.clone(),
            at: recording.first,
            words: Words::default(),
            queues: 0,
            stamped: HashSet::new(),
            difference: None,
            broken: None,
            cut: false,
            gone: Vec::new(),
            up: true,
            now_ns: 0,
            steps: 0,
            events: 0,
        };
        Arc::new(Self { state: Mutex::new(state), whole: recording.header.whole })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a call came to.
    pub(super) fn done(&self, outcome: Outcome) {
        let mut state = self.state();
        let same = |event: &Event<'_>| (*event == Event::Done(outcome)).then_some(());
        if state.take(same).is_none() {
            state.differ(lines::event(&Event::Done(outcome)));
        }
    }

    /// The NIC told of something.
    pub(super) fn told(&self, event: crate::objects::events::Event) {
        let mut state = self.state();
        let told = Event::Told(event);
        if state.take(|event| (*event == told).then_some(())).is_none() {
            state.differ(lines::event(&told));
        }
    }
}

/// Memory that answers from the recording.
pub(super) struct Prop {
    pub(super) stage: Arc<Stage>,
    pub(super) region: u32,
    /// A queue's place among queues.
    pub(super) queue: Option<u32>,
}

impl Prop {
    fn fault(&self, offset: usize, bytes: usize) -> MemError {
        MemError::Fault { addr: offset as u64, bytes }
    }

    /// Whether the access is one that was refused.
    fn faults(&self, state: &mut State, offset: usize, bytes: usize) -> bool {
        let (region, offset, len) = (self.region, offset as u64, bytes as u64);
        let fault = Event::Faulted { region, offset, len };
        state.take(|event| (*event == fault).then_some(())).is_some()
    }

    /// The NIC goes on, to the end of its step, with zeros: memory that faults is not what it expects of queues.
    fn differ(&self, state: &mut State, offset: usize, bytes: usize, did: &str) {
        let region = self.region;
        state.differ(format!("{did} {bytes} bytes at {offset:#x} of memory {region}"));
    }
}

impl Hook for Prop {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        let (mut state, region, at) = (self.stage.state(), self.region, offset as u64);
        if self.faults(&mut state, offset, into.len()) {
            return Err(self.fault(offset, into.len()));
        }
        if let Some(queue) = self.queue.filter(|_| is_word(offset, into.len())) {
            let bytes = into.len() as u8;
            let known = state.words.load(queue, at, bytes).map(|(nth, last)| (nth, *last));
            if let Some((nth, last)) = known {
                let changed = state.take(|event| match *event {
                    Event::Word { region: r, offset: o, bytes: b, nth: n, value } => {
                        ((r, o, b, n) == (region, at, bytes, nth)).then_some(value)
                    }
                    _ => None,
                });
                if changed.is_some() {
                    state.words.set(queue, at, bytes, changed);
                }
                let value = changed.or(last);
                if value.is_none() {
                    self.differ(&mut state, offset, into.len(), "loads");
                }
                put_word(value.unwrap_or(0), into);
                return Ok(());
            }
        }
        let len = into.len();
        let read = state.take(|event| match *event {
            Event::Read { region: r, offset: o, bytes } => {
                ((r, o, bytes.len()) == (region, at, len)).then(|| into.copy_from_slice(bytes))
            }
            Event::ReadHashed { region: r, offset: o, tail } => {
                ((r, o, tail.len as usize) == (region, at, len)).then(|| into.fill(0))
            }
            _ => None,
        });
        if read.is_none() {
            self.differ(&mut state, offset, len, "reads");
            into.fill(0);
        }
        Ok(())
    }

    fn poll(&self, offset: usize, seen: u64) -> Result<u64, MemError> {
        let (mut state, region, at) = (self.stage.state(), self.region, offset as u64);
        if self.faults(&mut state, offset, 8) {
            return Err(self.fault(offset, 8));
        }
        let changed = state.take(|event| match *event {
            Event::Word { region: r, offset: o, bytes: 8, value, .. } => {
                ((r, o) == (region, at)).then_some(value)
            }
            _ => None,
        });
        if let Some(queue) = self.queue.filter(|_| changed.is_some())
            && state.words.load(queue, at, 8).is_some()
        {
            state.words.set(queue, at, 8, changed);
        }
        Ok(changed.unwrap_or(seen))
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        let (mut state, region, at) = (self.stage.state(), self.region, offset as u64);
        if self.faults(&mut state, offset, from.len()) {
            return Err(self.fault(offset, from.len()));
        }
        // The clock of a replay stands at 0. An error has its syndrome in the time's place.
        let stamped = from.len() == CQE_TAIL_OFFSET
            && state.stamped.contains(&region)
            && from[CQE_TIMESTAMP].iter().all(|&byte| byte == 0);
        // Of payload that is not there, where it goes is all that can be compared.
        let compared = self.queue.is_some() || self.stage.whole;
        let same = |bytes: &[u8]| {
            let alike = match stamped {
                true => bytes.get(..CQE_TIMESTAMP.start) == from.get(..CQE_TIMESTAMP.start),
                false => bytes == from,
            };
            bytes.len() == from.len() && (alike || !compared)
        };
        let wrote = state.take(|event| match *event {
            Event::Wrote { region: r, offset: o, bytes } => {
                ((r, o) == (region, at) && same(bytes)).then_some(())
            }
            Event::WroteHashed { region: r, offset: o, tail } => {
                ((r, o, tail.len as usize) == (region, at, from.len())).then_some(())
            }
            _ => None,
        });
        if wrote.is_none() {
            state.differ(lines::event(&Event::Wrote { region, offset: at, bytes: from }));
        }
        Ok(())
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        self.change(offset, true, [add, 0])
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        self.change(offset, false, [compare, swap])
    }
}

impl Prop {
    fn change(&self, offset: usize, adds: bool, with: [u64; 2]) -> Result<u64, MemError> {
        let (mut state, region, at) = (self.stage.state(), self.region, offset as u64);
        if self.faults(&mut state, offset, 8) {
            return Err(self.fault(offset, 8));
        }
        let changed = state.take(|event| match *event {
            Event::Changed { region: r, offset: o, add, operands, old } => {
                ((r, o, add, operands) == (region, at, adds, with)).then_some(old)
            }
            _ => None,
        });
        if changed.is_none() {
            self.differ(&mut state, offset, 8, "changes");
        }
        Ok(changed.unwrap_or(0))
    }
}

/// The link of a replay.
pub(super) struct PropLink {
    stage: Arc<Stage>,
    header: Header,
    /// Source ports that were granted.
    ports: Vec<u16>,
    built: Vec<u8>,
}

impl PropLink {
    pub(super) fn new(stage: Arc<Stage>, header: Header) -> Self {
        Self { stage, header, ports: Vec::new(), built: Vec::new() }
    }
}

impl Link for PropLink {
    fn address(&self) -> IpAddr {
        self.header.address
    }

    fn mtu(&self) -> usize {
        self.header.mtu
    }

    fn src_port(&self) -> u16 {
        self.header.src_port
    }

    fn carries(&self) -> Carries {
        self.header.carries
    }

    fn fields(&self, wanted: &Fields) -> Fields {
        let fields = self.carries().of(wanted, self.src_port());
        let own = self.ports.contains(&wanted.src_port);
        if own { Fields { src_port: wanted.src_port, ..fields } } else { fields }
    }

    fn take_port(&mut self, port: u16) -> Result<(), LinkError> {
        let mut state = self.stage.state();
        let granted = state.take(|event| match *event {
            Event::Port { port: p, granted } => (p == port).then_some(granted),
            _ => None,
        });
        match granted {
            Some(true) => self.ports.push(port),
            Some(false) => return Err(LinkError::Port { port }),
            None => state.differ(format!("asks to send from UDP port {port}")),
        }
        Ok(())
    }

    fn leave_port(&mut self, port: u16) {
        if let Some(at) = self.ports.iter().position(|&p| p == port) {
            self.ports.swap_remove(at);
        }
    }

    fn has_icrc(&self) -> bool {
        self.header.has_icrc
    }

    fn joins(&self) -> bool {
        self.header.joins
    }

    fn share(&self) -> Option<Share> {
        self.header.share
    }

    fn is_up(&mut self) -> bool {
        let mut state = self.stage.state();
        let up = state.take(|event| match event {
            Event::Up(up) => Some(*up),
            _ => None,
        });
        state.up = up.unwrap_or(state.up);
        state.up
    }

    fn send(&mut self, _: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        let (mut state, all) = (self.stage.state(), batch.len());
        let mut sent = 0;
        for packet in batch.iter() {
            let left = (all - sent) as u32;
            if state.take(|event| (*event == Event::Full { left }).then_some(())).is_some() {
                break;
            }
            let (bytes, payload) = split(packet.bytes, self.stage.whole);
            let (to, fields) = (packet.to, packet.fields);
            let went = state.take(|event| match *event {
                Event::Went { to: t, fields: f, bytes: b, payload: p } => {
                    // Payload that is there in part comes from memory that is not.
                    let compared = bytes.len() - if payload.is_some() { HEAD } else { 0 };
                    let alike = b.len() == bytes.len() && b[..compared] == bytes[..compared];
                    ((t, f) == (to, fields) && alike && p == payload).then_some(())
                }
                _ => None,
            });
            if went.is_none() {
                state.differ(lines::event(&Event::Went { to, fields, bytes, payload }));
                sent = all;
                break;
            }
            sent += 1;
        }
        batch.take(sent);
        Ok(sent)
    }

    fn recv(
        &mut self,
        _: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        while count < most {
            let (built, has_icrc) = (&mut self.built, self.header.has_icrc);
            let came = self.stage.state().take(|event| match *event {
                Event::Came { envelope, bytes, payload, sound } => {
                    built.clear();
                    built.extend_from_slice(bytes);
                    if let Some(len) = payload {
                        // The lengths of packets that were written down have 16 bits.
                        let len = len.min(u16::MAX.into()) as usize;
                        built.resize(bytes.len() + len.next_multiple_of(4), 0);
                        let icrc = if has_icrc { icrc(&envelope, built) } else { 0 };
                        let icrc = if sound { icrc } else { !icrc };
                        built.extend_from_slice(&icrc.to_le_bytes());
                    }
                    Some(envelope)
                }
                _ => None,
            });
            // Not under the lock: what comes is read and written.
            let Some(envelope) = came else { break };
            each(&Received { envelope, bytes: &self.built, checked: false });
            count += 1;
        }
        Ok(count)
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    fn describe(&self) -> String {
        "a recording".into()
    }
}

const _: () = assert!(ICRC_BYTES == 4, "what is put behind payload");
