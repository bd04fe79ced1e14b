//! What of a recording has a format of its own: WQEs, CQEs, doorbells, doorbell records, packets.

use std::collections::{BTreeMap, BTreeSet};

use super::event::MAGIC;
use super::event::{Call, Event, Header, Outcome, Place, SrqSort};
use super::reader::{RecordingError, behind_the_end, broken, cut, event_at, not_ours, plain};
use bellpush_nic::QpType;
use bellpush_wire::cqe::{CQE_BYTES, CQE_TAIL_OFFSET};
use bellpush_wire::doorbell::{DBR_RCV_OFFSET, DBR_SND_OFFSET, UAR_CQ_DOORBELL_OFFSET};
use bellpush_wire::doorbell::{Doorbell, UAR_DOORBELL_OFFSETS};
use bellpush_wire::roce::{Addresses, Envelope};
use bellpush_wire::wqe::{Ctrl, DS_BYTES, MAX_WQE_BYTES, WQEBB_BYTES};

/// A thing with a format, as the NIC read it, wrote it, sent it or got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formatted {
    /// Time of the engine's clock, in ns.
    pub at_ns: u64,
    /// Which event of the recording it ends with, from 0.
    pub event: u64,
    /// What it is.
    pub what: Format,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What bytes of a recording are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// A WQE of a send queue.
    Wqe {
        /// The queue pair's number.
        qpn: u32,
        /// Its kind.
        kind: QpType,
        /// The WQE's place, in basic blocks from the ring's beginning.
        block: u64,
        /// Basic blocks of the ring.
        blocks: u64,
    },
    /// A WQE of a receive queue.
    Receive {
        /// Number of the queue pair or of the shared receive queue.
        number: u32,
        /// Whether the queue is shared.
        shared: bool,
    },
    /// A CQE.
    Cqe {
        /// The CQ, as the recording counts it.
        cq: u32,
        /// The entry's place in its ring.
        entry: u64,
        /// Entries of the ring.
        entries: u64,
        /// Whether all CQEs go to the first entry, without owner bits.
        collapsed: bool,
    },
    /// A doorbell register of a send queue.
    Doorbell {
        /// Whether the queue pair that is named is there.
        known: bool,
    },
    /// A word of a queue pair's doorbell record.
    Record {
        /// The queue pair's number.
        qpn: u32,
        /// Whether it is the send queue's word.
        send: bool,
    },
    /// A word of a CQ's doorbell record.
    CqRecord {
        /// The CQ, as the recording counts it.
        cq: u32,
        /// Whether it is the word that arms.
        arm: bool,
    },
    /// A register that arms a CQ.
    CqDoorbell,
    /// A packet, BTH to ICRC.
    Packet {
        /// Whether the NIC sent it.
        sent: bool,
        /// IP and UDP headers; `None` for a packet between addresses of two families.
        envelope: Option<Envelope>,
        /// Bytes of payload that the recording does not have: a hash stands for them. Then payload, pad and ICRC are
        /// zeros.
        left_out: Option<u32>,
        /// Whether packets of this link have an ICRC.
        has_icrc: bool,
    },
}

/// Objects of a kind that are known at a time; each access looks through them.
const MOST: usize = 1 << 12;
/// Views of register pages that are known.
const MOST_PAGES: usize = 1 << 20;

struct Queue {
    kind: QpType,
    sq: Place,
    rq: Place,
    stride: u64,
    dbr: Place,
    uar: Place,
    /// A WQE of which the NIC has read a part: where it begins, and that part.
    begun: Option<(u64, Vec<u8>)>,
}

struct Shared {
    number: u32,
    ring: Place,
    linked: bool,
    stride: u64,
}

struct Completions {
    ring: Place,
    dbr: Place,
    /// Its page as it was made, and where its consumer rings since it is told.
    uars: [Place; 2],
    entry_bytes: u64,
    collapsed: bool,
    begun: Option<(u64, [u8; CQE_TAIL_OFFSET])>,
}

struct Reading {
    header: Header,
    calls: Vec<Call>,
    qps: BTreeMap<u32, Queue>,
    srqs: Vec<Shared>,
    cqs: BTreeMap<u32, Completions>,
    /// Views of register pages, by region.
    uars: BTreeMap<u32, Place>,
    /// As many of them are looked through for pages that nobody has any more.
    most_uars: usize,
    now_ns: u64,
    event: u64,
}

/// Offset in a place of an access of its region; `None` for one outside.
fn within(place: &Place, region: u32, offset: u64) -> Option<u64> {
    let inner = offset.checked_sub(place.offset)?;
    (place.region == region && inner < place.len).then_some(inner)
}

/// Address of a place: views of one page have the same.
fn address(place: &Place) -> u64 {
    place.addr.wrapping_add(place.offset)
}

impl Reading {
    fn new(header: Header) -> Self {
        Self {
            header,
            calls: Vec::new(),
            qps: BTreeMap::new(),
            srqs: Vec::new(),
            cqs: BTreeMap::new(),
            uars: BTreeMap::new(),
            most_uars: MOST,
            now_ns: 0,
            event: 0,
        }
    }

    fn called(&mut self, call: Call, outcome: Outcome) {
        match (call, outcome) {
            (Call::Qp(qp), Outcome::Number(qpn)) => {
                if self.qps.len() >= MOST {
                    return;
                }
                let stride = 1 << qp.rq_stride_log.min(16);
                let (kind, dbr, uar, begun) = (qp.kind, qp.dbr, qp.uar, None);
                let queue = Queue { kind, sq: qp.sq, rq: qp.rq, stride, dbr, uar, begun };
                self.qps.insert(qpn, queue);
                self.rings_at(uar);
            }
            (Call::Cq(cq), Outcome::Number(number)) => {
                if self.cqs.len() >= MOST {
                    return;
                }
                let (ring, dbr, uars) = (cq.ring, cq.dbr, [cq.uar; 2]);
                let (entry_bytes, collapsed, begun) = (cq.entry_bytes, cq.collapsed, None);
                let it = Completions { ring, dbr, uars, entry_bytes, collapsed, begun };
                self.cqs.insert(number, it);
                self.rings_at(cq.uar);
            }
            (Call::ResizeCq { cq, ring, entry_bytes }, Outcome::Done) => {
                if let Some(cq) = self.cqs.get_mut(&cq) {
                    (cq.ring, cq.entry_bytes, cq.begun) = (ring, entry_bytes, None);
                }
            }
            (Call::Notify { cq, uar }, Outcome::Done) => {
                if let Some(cq) = self.cqs.get_mut(&cq) {
                    cq.uars[1] = uar;
                    self.rings_at(uar);
                }
            }
            (Call::Srq(srq), Outcome::Number(number)) => {
                if self.srqs.len() >= MOST {
                    return;
                }
                let linked =
                    !matches!(srq.sort, SrqSort::Cyclic | SrqSort::Tags { cyclic: true, .. });
                let stride = 1 << srq.stride_log.min(16);
                self.srqs.push(Shared { number, ring: srq.ring, linked, stride });
            }
            (Call::DestroyQp { qpn }, _) => drop(self.qps.remove(&qpn)),
            _ => {}
        }
    }

    /// Somebody rings at a page. The NIC looks at it by the view of one who was there first, and who may be gone while
    /// others ring there: a view is known as long as anybody has its page.
    fn rings_at(&mut self, uar: Place) {
        if self.uars.len() >= self.most_uars {
            let of_qps = self.qps.values().map(|qp| &qp.uar);
            let of_cqs = self.cqs.values().flat_map(|cq| &cq.uars);
            let used: BTreeSet<u64> = of_qps.chain(of_cqs).map(address).collect();
            self.uars.retain(|_, uar| used.contains(&address(uar)));
            self.most_uars = MOST.max(2 * self.uars.len());
        }
        // The first views of a page are those that the NIC looks by.
        if self.uars.len() < MOST_PAGES {
            self.uars.insert(uar.region, uar);
        }
    }

    /// A protection domain, CQ or SRQ is gone: no two have one number.
    fn gone(&mut self, number: u32) {
        self.cqs.remove(&number);
        self.srqs.retain(|srq| srq.number != number);
    }

    fn word(
        &mut self,
        region: u32,
        offset: u64,
        value: u64,
        bytes: u8,
    ) -> Option<(Format, Vec<u8>)> {
        let memory = match bytes {
            4 => (value as u32).to_ne_bytes().to_vec(),
            _ => value.to_ne_bytes().to_vec(),
        };
        for (&qpn, qp) in &self.qps {
            let Some(at) = within(&qp.dbr, region, offset) else { continue };
            let send = at == DBR_SND_OFFSET as u64;
            if bytes != 4 || !(send || at == DBR_RCV_OFFSET as u64) {
                return None;
            }
            return Some((Format::Record { qpn, send }, memory));
        }
        for (&cq, it) in &self.cqs {
            if let Some(at) = within(&it.dbr, region, offset) {
                return (bytes == 4).then_some((Format::CqRecord { cq, arm: at != 0 }, memory));
            }
        }
        let at = self.uars.get(&region).and_then(|uar| within(uar, region, offset))?;
        if bytes != 8 || value == 0 {
            return None; // nobody has rung yet
        }
        if at == UAR_CQ_DOORBELL_OFFSET as u64 {
            return Some((Format::CqDoorbell, memory));
        }
        UAR_DOORBELL_OFFSETS.contains(&(at as usize)).then(|| {
            let known = self.qps.contains_key(&Doorbell::parse(u64::from_le(value)).qpn.0);
            (Format::Doorbell { known }, memory)
        })
    }

    fn read(&mut self, region: u32, offset: u64, bytes: &[u8]) -> Option<(Format, Vec<u8>)> {
        for (&qpn, qp) in &mut self.qps {
            if let Some(at) = within(&qp.sq, region, offset) {
                let (blocks, kind) = (qp.sq.len / WQEBB_BYTES as u64, qp.kind);
                let (block, bytes) = qp.sent(at, bytes)?;
                return Some((Format::Wqe { qpn, kind, block, blocks }, bytes));
            }
            let whole = (bytes.len() as u64).is_multiple_of(qp.stride);
            if within(&qp.rq, region, offset).is_some() && whole {
                return Some((Format::Receive { number: qpn, shared: false }, bytes.to_vec()));
            }
        }
        let srq = self.srqs.iter().find(|srq| within(&srq.ring, region, offset).is_some())?;
        let whole = bytes.len() as u64 == srq.stride;
        let what = Format::Receive { number: srq.number, shared: srq.linked };
        whole.then(|| (what, bytes.to_vec()))
    }

    fn wrote(&mut self, region: u32, offset: u64, bytes: &[u8]) -> Option<(Format, Vec<u8>)> {
        let of = |(&number, cq): (&u32, &mut Completions)| {
            Some((number, within(&cq.ring, region, offset)?))
        };
        let (number, at) = self.cqs.iter_mut().find_map(of)?;
        let cq = self.cqs.get_mut(&number)?;
        if let Ok(body) = bytes.try_into() {
            cq.begun = Some((at, body));
            return None;
        }
        let (first, body) = cq.begun.take()?;
        if bytes.len() != CQE_BYTES - CQE_TAIL_OFFSET || at != first + CQE_TAIL_OFFSET as u64 {
            return None;
        }
        let entry_bytes = cq.entry_bytes.max(CQE_BYTES as u64);
        let (entry, entries) = (at / entry_bytes, cq.ring.len / entry_bytes);
        let what = Format::Cqe { cq: number, entry, entries, collapsed: cq.collapsed };
        Some((what, [&body[..], bytes].concat()))
    }

    fn packet(
        &self,
        sent: bool,
        envelope: Option<Envelope>,
        bytes: &[u8],
        payload: Option<u32>,
    ) -> (Format, Vec<u8>) {
        let mut whole = bytes.to_vec();
        let left_out = payload.map(|len| len.min(u32::from(u16::MAX)));
        if let Some(len) = left_out {
            // Headers and perhaps the payload's first bytes are there; what is not is zero.
            whole.resize(bytes.len() + (len as usize).next_multiple_of(4) + 4, 0);
        }
        let has_icrc = self.header.has_icrc;
        (Format::Packet { sent, envelope, left_out, has_icrc }, whole)
    }

    fn take(&mut self, event: &Event<'_>) -> Option<(Format, Vec<u8>)> {
        match *event {
            Event::Step { now_ns } => {
                self.now_ns = now_ns;
                None
            }
            Event::Call(Call::Gone { number }) => {
                self.gone(number);
                None
            }
            Event::Call(ref call) => {
                self.calls.push(call.clone());
                None
            }
            Event::Done(outcome) => {
                if let Some(call) = self.calls.pop() {
                    self.called(call, outcome);
                }
                None
            }
            Event::Word { region, offset, bytes, value, .. } => {
                self.word(region, offset, value, bytes)
            }
            Event::Read { region, offset, bytes } => self.read(region, offset, bytes),
            Event::Wrote { region, offset, bytes } => self.wrote(region, offset, bytes),
            Event::Came { envelope, bytes, payload, .. } => {
                Some(self.packet(false, Some(envelope), bytes, payload))
            }
            Event::Went { to, fields, bytes, payload } => {
                let envelope = Addresses::new(self.header.address, to)
                    .map(|addresses| Envelope::new(addresses, fields.src_port).with(&fields));
                Some(self.packet(true, envelope, bytes, payload))
            }
            _ => None,
        }
    }
}

impl Queue {
    /// A part of the send queue was read: the WQE that is whole with it, and its basic block.
    fn sent(&mut self, at: u64, bytes: &[u8]) -> Option<(u64, Vec<u8>)> {
        let (first, mut wqe) = match self.begun.take() {
            Some((first, mut begun)) if (first + begun.len() as u64) % self.sq.len.max(1) == at => {
                begun.extend_from_slice(bytes);
                (first, begun)
            }
            _ => (at, bytes.to_vec()),
        };
        let need = usize::from(Ctrl::parse(&wqe).ok()?.ds) * DS_BYTES;
        if wqe.len() < need && wqe.len() < MAX_WQE_BYTES {
            self.begun = Some((first, wqe));
            return None;
        }
        wqe.truncate(need.max(DS_BYTES));
        Some((first / WQEBB_BYTES as u64, wqe))
    }
}

/// A recording that may still be written, as far as it has come.
#[derive(Default)]
pub struct Following {
    /// What begins with an event that is not whole yet, and where in the recording that is.
    rest: Vec<u8>,
    at: usize,
    reading: Option<Reading>,
    closed: bool,
}

impl Following {
    /// Takes the bytes that follow those before, and hands over everything in them that has a format of its own, in
    /// order, until `each` says that it is enough. Whether it did not.
    ///
    /// # Errors
    /// [`RecordingError`] for bytes that are no recording, or that are damaged; what comes before was handed over.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        each: &mut dyn FnMut(Formatted) -> bool,
    ) -> Result<bool, RecordingError> {
        if self.closed && !bytes.is_empty() {
            return Err(behind_the_end(self.at));
        }
        self.rest.extend_from_slice(bytes);
        self.take(each)
    }

    /// Whether the device was closed: nothing follows.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    fn take(&mut self, each: &mut dyn FnMut(Formatted) -> bool) -> Result<bool, RecordingError> {
        let mut used = 0;
        if self.reading.is_none() {
            let magic = self.rest.len().min(MAGIC.len());
            if self.rest[..magic] != MAGIC[..magic] {
                return Err(not_ours(&self.rest));
            }
            match postcard::take_from_bytes(&self.rest[magic..]) {
                Ok((header, rest)) => {
                    used = self.rest.len() - rest.len();
                    self.reading = Some(Reading::new(header));
                }
                Err(postcard::Error::DeserializeUnexpectedEnd) => {
                    return cut(&self.rest, magic).map(|()| true);
                }
                Err(error) => return Err(broken(magic, plain(error))),
            }
        }
        let Some(reading) = &mut self.reading else { return Ok(true) };
        let mut more = true;
        while more
            && let Some((event, next)) =
                event_at(&self.rest, used).map_err(|error| error.behind(self.at))?
        {
            self.closed |= matches!(event, Event::Closed);
            let found = reading.take(&event);
            let (at_ns, nth) = (reading.now_ns, reading.event);
            (reading.event, used) = (nth + 1, next);
            if let Some((what, bytes)) = found {
                more = each(Formatted { at_ns, event: nth, what, bytes });
            }
        }
        self.rest.drain(..used);
        self.at += used;
        Ok(more)
    }
}

/// Hands over everything in a recording that has a format of its own, in order, until `each` says that it is enough.
/// Whether the device was closed by then: else its program was killed, or the recording is cut.
///
/// # Errors
/// [`RecordingError`] for bytes that are no recording, or that are damaged; what comes before was handed over.
pub fn formats(
    bytes: Vec<u8>,
    each: &mut dyn FnMut(Formatted) -> bool,
) -> Result<bool, RecordingError> {
    let mut all = Following { rest: bytes, ..Following::default() };
    all.take(each)?;
    match all.reading {
        Some(_) => Ok(all.closed),
        None if all.rest.len() < MAGIC.len() => Err(RecordingError::NotOne),
        None => Err(broken(MAGIC.len(), plain(postcard::Error::DeserializeUnexpectedEnd))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{CqCall, SrqCall};
    use super::*;

    fn place(region: u32, len: u64) -> Place {
        Place { region, addr: u64::from(region) << 12, bytes: len, offset: 0, len }
    }

    /// Makes a CQ of 16 entries, whose views have regions from three times its number on, and whose page is there.
    fn make_cq(reading: &mut Reading, number: u32, page: u64) {
        let call = CqCall {
            ring: place(3 * number, 16 * CQE_BYTES as u64),
            dbr: place(3 * number + 1, 8),
            uar: Place { addr: page, ..place(3 * number + 2, 4096) },
            notify: true,
            entry_bytes: CQE_BYTES as u64,
            collapsed: false,
            overrun_ignored: false,
            timestamp: false,
        };
        reading.take(&Event::Call(Call::Cq(call)));
        reading.take(&Event::Done(Outcome::Number(number)));
    }

    fn make_srq(reading: &mut Reading, number: u32) {
        let (ring, dbr) = (place(3 * number, 1024), place(3 * number + 1, 8));
        let sort = SrqSort::Plain;
        let call = SrqCall { pd: 1, ring, stride_log: 5, dbr, limit: 0, sort };
        reading.take(&Event::Call(Call::Srq(call)));
        reading.take(&Event::Done(Outcome::Number(number)));
    }

    /// The NIC finds a word at a CQ's page.
    fn arm(reading: &mut Reading, number: u32) -> Option<Format> {
        let (region, offset) = (3 * number + 2, UAR_CQ_DOORBELL_OFFSET as u64);
        let event = Event::Word { region, offset, bytes: 8, nth: 0, value: 1 };
        reading.take(&event).map(|(what, _)| what)
    }

    #[test]
    fn what_is_gone_leaves_room() {
        let mut reading = Reading::new(Header::of_tests());
        let last = MOST as u32 + 1;
        for number in 1..=last {
            make_cq(&mut reading, number, u64::from(number) << 12);
            if number < last {
                reading.take(&Event::Call(Call::Gone { number }));
            }
        }
        let (body, tail) = ([0_u8; CQE_TAIL_OFFSET], [0_u8; CQE_BYTES - CQE_TAIL_OFFSET]);
        let region = 3 * last;
        assert_eq!(reading.take(&Event::Wrote { region, offset: 0, bytes: &body }), None);
        let offset = CQE_TAIL_OFFSET as u64;
        let written = reading.take(&Event::Wrote { region, offset, bytes: &tail });
        let entry = Format::Cqe { cq: last, entry: 0, entries: 16, collapsed: false };
        assert_eq!(written.map(|(what, _)| what), Some(entry));
        assert_eq!(arm(&mut reading, last), Some(Format::CqDoorbell));
        assert!(reading.uars.len() <= MOST, "{}", reading.uars.len());
        for number in last + 1..=2 * last {
            make_srq(&mut reading, number);
            if number < 2 * last {
                reading.take(&Event::Call(Call::Gone { number }));
            }
        }
        let read = Event::Read { region: 6 * last, offset: 0, bytes: &[0; 32] };
        let receive = Format::Receive { number: 2 * last, shared: true };
        assert_eq!(reading.take(&read).map(|(what, _)| what), Some(receive));
    }

    #[test]
    fn a_page_is_known_while_anybody_has_it() {
        let mut reading = Reading::new(Header::of_tests());
        make_cq(&mut reading, 1, 0);
        make_cq(&mut reading, 2, 0);
        reading.take(&Event::Call(Call::Gone { number: 1 }));
        for number in 3..=MOST as u32 + 3 {
            make_cq(&mut reading, number, u64::from(number) << 12);
            reading.take(&Event::Call(Call::Gone { number }));
        }
        assert_eq!(arm(&mut reading, 1), Some(Format::CqDoorbell));
        assert_eq!(arm(&mut reading, 3), None, "nobody has its page");
    }
}
