//! The first difference between two recordings of the same program.
//!
//! Two runs have other addresses, keys, numbers and times. So what is compared is what each queue pair did, counted in
//! the order in which they were made: its states, the requests that it sent and the NAKs, with PSNs counted from its
//! first, its completions, its asynchronous events. Acknowledgements are not: how many messages one answers is a matter
//! of time.

use std::collections::HashMap;
use std::net::IpAddr;

use super::event::{Call, Event, Outcome};
use super::reader::{Recording, RecordingError};
use crate::objects::events::Event as Async;
use bellpush_nic::NicAddress;
use bellpush_wire::cqe::{CQE_BYTES, CQE_TAIL_OFFSET, Cqe};
use bellpush_wire::roce::{Operation, Packet, Syndrome};

/// Where two recordings part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstDifference {
    /// Which queue pair: so many were made before it.
    pub qp: usize,
    /// So many things did it do before that both have.
    pub after: usize,
    /// What it did then in each, and when, in ns of that engine's clock; `None`: nothing more.
    pub did: [Option<(String, u64)>; 2],
}

/// What a recording's queue pairs did.
#[derive(Default)]
struct Reading {
    qps: Vec<Life>,
    by_qpn: HashMap<u32, usize>,
    /// Queue pairs by their peers: address and number.
    by_peer: HashMap<(IpAddr, u32), usize>,
    /// Rings of CQs by memory, and the first part of an entry that is being written.
    rings: HashMap<u32, Option<[u8; CQE_TAIL_OFFSET]>>,
    now_ns: u64,
}

#[derive(Default)]
struct Life {
    first_psn: u32,
    did: Vec<(String, u64)>,
}

impl Reading {
    fn of(recording: Vec<u8>) -> Result<Self, RecordingError> {
        let recording = Recording::of(recording)?;
        let (mut reading, mut calls) = (Self::default(), Vec::new());
        for event in recording.events() {
            reading.take(&event?, &mut calls);
        }
        Ok(reading)
    }

    fn note(&mut self, qp: Option<usize>, what: String) {
        if let Some(life) = qp.and_then(|qp| self.qps.get_mut(qp)) {
            life.did.push((what, self.now_ns));
        }
    }

    fn take(&mut self, event: &Event<'_>, calls: &mut Vec<Call>) {
        match event {
            Event::Step { now_ns } => self.now_ns = *now_ns,
            // It has no end.
            Event::Call(Call::Gone { .. }) => {}
            Event::Call(call) => calls.push(call.clone()),
            Event::Done(outcome) => {
                if let Some(call) = calls.pop() {
                    self.called(&call, *outcome);
                }
            }
            Event::Wrote { region, bytes, .. } => self.wrote(*region, bytes),
            Event::Went { to, bytes, payload, .. } => {
                let len = payload.map_or(0, |len| len.min(u16::MAX.into()));
                self.went(*to, bytes, len as usize);
            }
            Event::Told(event) => {
                let qpn = match event {
                    Async::QpFatal(qpn) | Async::QpRequest(qpn) | Async::QpAccess(qpn) => qpn,
                    Async::SqDrained(qpn) | Async::LastWqe(qpn) => qpn,
                    _ => return,
                };
                let name = format!("{event:?}");
                let name = name.split('(').next().unwrap_or_default().to_owned();
                self.note(self.by_qpn.get(&qpn.0).copied(), format!("tells {name}"));
            }
            _ => {}
        }
    }

    fn called(&mut self, call: &Call, outcome: Outcome) {
        match (call, outcome) {
            (Call::Cq(cq), Outcome::Number(_)) => drop(self.rings.insert(cq.ring.region, None)),
            (Call::ResizeCq { ring, .. }, Outcome::Done) => {
                self.rings.insert(ring.region, None);
            }
            (Call::Qp(_) | Call::XrcRecv { .. }, Outcome::Number(qpn)) => {
                self.by_qpn.insert(qpn, self.qps.len());
                self.qps.push(Life::default());
            }
            (Call::Modify { qpn, to, change }, outcome) => {
                let qp = self.by_qpn.get(qpn).copied();
                if let Some(at) = qp {
                    if let Some(psn) = change.sq_psn {
                        self.qps[at].first_psn = psn.value();
                    }
                    let peer = change.av.zip(change.dest_qpn);
                    if let Some((av, dest)) = peer
                        && let NicAddress::Ip(ip) = av.nic
                    {
                        self.by_peer.insert((ip, dest.0), at);
                    }
                }
                let refused = if outcome == Outcome::Refused { ", refused" } else { "" };
                self.note(qp, format!("goes to {to:?}{refused}"));
            }
            _ => {}
        }
    }

    fn wrote(&mut self, region: u32, bytes: &[u8]) {
        let Some(begun) = self.rings.get_mut(&region) else { return };
        if let Ok(body) = bytes.try_into() {
            *begun = Some(body);
            return;
        }
        let (Some(body), Ok(tail)) =
            (begun.take(), <[u8; CQE_BYTES - CQE_TAIL_OFFSET]>::try_from(bytes))
        else {
            return;
        };
        let mut entry = [0; CQE_BYTES];
        entry[..CQE_TAIL_OFFSET].copy_from_slice(&body);
        entry[CQE_TAIL_OFFSET..].copy_from_slice(&tail);
        let Ok(cqe) = Cqe::parse(&entry) else { return };
        let mut line = format!("completes WQE {}: {:?}", cqe.wqe_counter, cqe.opcode);
        match cqe.opcode.is_error() {
            true => {
                line += &format!(", syndrome {:#x}, vendor {:#x}", cqe.syndrome, cqe.vendor_err)
            }
            false => line += &format!(", {} bytes", cqe.byte_cnt),
        }
        self.note(self.by_qpn.get(&cqe.qpn.0).copied(), line);
    }

    fn went(&mut self, to: IpAddr, bytes: &[u8], payload: usize) {
        let mut whole = bytes.to_vec();
        if payload > 0 {
            whole.resize(bytes.len() + payload.next_multiple_of(4) + 4, 0);
        }
        let Ok(packet) = Packet::parse(&whole) else { return };
        let (bth, ext) = (&packet.headers.bth, &packet.headers.ext);
        // Who has no peer of its own names itself.
        let source = ext.deth.map(|deth| deth.source).or(ext.dc.map(|dc| dc.source));
        let qp = match source {
            Some(source) => self.by_qpn.get(&source.0),
            None => self.by_peer.get(&(to, bth.dest.0)),
        };
        let Some(&qp) = qp else { return };
        let operation = packet.opcode().operation();
        let line = match (operation, ext.aeth.map(|aeth| aeth.syndrome)) {
            (_, Some(Syndrome::Ack { .. })) => return,
            // A response of several packets: those in the middle have no AETH.
            (Operation::ReadResponseMiddle, _) => return,
            (_, Some(nak)) => format!("answers {nak:?}"),
            (request, None) => {
                let psn = bth.psn.value().wrapping_sub(self.qps[qp].first_psn) & 0xff_ffff;
                format!("sends {request:?}, PSN +{psn}, {} bytes", packet.payload.len())
            }
        };
        self.note(Some(qp), line);
    }
}

/// The first difference between what the queue pairs of two recordings did: of those of each queue pair, the earliest
/// in the first recording. `None` when they did the same.
///
/// # Errors
/// [`RecordingError`], of the first or the second.
pub fn compare(
    recordings: [Vec<u8>; 2],
) -> Result<Option<FirstDifference>, (usize, RecordingError)> {
    let [one, other] = recordings;
    let one = Reading::of(one).map_err(|error| (0, error))?;
    let other = Reading::of(other).map_err(|error| (1, error))?;
    let none = Life::default();
    let differences = (0..one.qps.len().max(other.qps.len())).filter_map(|qp| {
        let lives = [&one, &other].map(|reading| reading.qps.get(qp).unwrap_or(&none));
        let longest = lives[0].did.len().max(lives[1].did.len());
        let did = |at: usize| lives.map(|life| life.did.get(at));
        let after = (0..longest).find(|&at| {
            let [a, b] = did(at);
            a.map(|(what, _)| what) != b.map(|(what, _)| what)
        })?;
        Some(FirstDifference { qp, after, did: did(after).map(Option::<&_>::cloned) })
    });
    let when = |difference: &FirstDifference| {
        let [a, b] = &difference.did;
        a.as_ref().or(b.as_ref()).map(|(_, at)| *at)
    };
    Ok(differences.min_by_key(when))
}
