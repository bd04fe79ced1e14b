//! A queue pair as its events tell of it: its messages, from the doorbell to the CQE.

use std::collections::VecDeque;

use bellpush::nic::QpState;
use bellpush::nic::soft::trace::{Kind, Mark, SendLook};
use bellpush::wire::cqe::Syndrome;

use super::ends::{Oldest, QueueEnd};
use super::open::Open;
use crate::decode::names;

pub(super) const STATES: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];
const KINDS: [&str; 7] = ["RC", "UC", "UD", "XRC INI", "XRC TGT", "DCI", "DCT"];
/// Doorbells whose WQEs were not taken yet that are kept.
const MOST_RUNG: usize = 1 << 16;

/// State of a queue pair that was destroyed.
pub(super) const GONE: &str = "destroyed";

/// What a CQE says of a WQE of the send queue.
const REQ: u8 = 0;
const REQ_ERR: u8 = 13;
const RESP_ERR: u8 = 14;

/// A WQE and its message.
#[derive(Debug, Clone, Default)]
pub(super) struct Message {
    pub index: u16,
    pub opcode: u8,
    pub bytes: u64,
    pub blocks: u64,
    pub signaled: bool,
    pub peer: Option<u32>,
    pub psn: u64,
    /// The position behind it, in its ring or among its window's slots.
    pub end: u64,
    /// Its stages, in nanoseconds; 0: not reached.
    pub rung: u64,
    pub fetched: u64,
    pub sent: u64,
    pub sent_last: u64,
    pub done: u64,
    pub cqe: u64,
    /// Its queue pair was reset or destroyed, or its index used again: nothing comes of it any more.
    pub given_up: u64,
    /// Of an error.
    pub syndrome: u8,
    pub resent: u64,
}

impl Message {
    /// When it was first seen.
    pub(super) fn start(&self) -> u64 {
        let stages = [self.rung, self.fetched, self.sent, self.done, self.cqe];
        stages.into_iter().find(|&at| at != 0).unwrap_or(0)
    }
}

/// A message that came in.
pub(super) struct Came {
    pub psn: u64,
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
    pub answers: bool,
}

#[derive(Default)]
pub(super) struct Queue {
    pub end: QueueEnd,
    pub known: bool,
    /// Doorbells with blocks that were not taken: from, to, when.
    rung: VecDeque<(u64, u64, u64)>,
    /// Position after the last block that a doorbell told of, and that was taken.
    producer: u64,
    taken: u64,
    /// Not complete.
    pub open: Open,
    pub closed: Vec<Message>,
    pub came: Vec<Came>,
    arrived: Option<(u64, u64)>,
    /// It was destroyed: what follows is its undoing.
    gone: bool,
}

impl Queue {
    pub(super) fn new(pid: u32, qpn: u32) -> Self {
        let end = QueueEnd { pid, qpn, answered: true, ..QueueEnd::default() };
        Self { end, ..Self::default() }
    }

    /// In flight: messages that were taken and are not done, and their bytes.
    pub(super) fn in_flight(&self) -> (u64, u64) {
        self.open.in_flight()
    }

    /// Takes an event of it.
    pub(super) fn take(&mut self, mark: &Mark) {
        let Mark { ts_ns, kind, aux, words: [a, b], .. } = *mark;
        if self.gone && kind != Kind::QpMade {
            return;
        }
        self.known |= !matches!(kind, Kind::LookSend | Kind::LookReceives);
        match kind {
            Kind::Gone => {
                self.give_up(ts_ns);
                (self.gone, self.end.state) = (true, GONE.into());
                return;
            }
            Kind::QpMade => {
                // A number may be used again: nothing of the queue pair before is this one's.
                self.moved(QpState::Reset as u64, ts_ns);
                self.gone = false;
                let kind = KINDS.get(usize::from(aux)).copied().unwrap_or("?");
                self.end.kind = kind.into();
                self.end.cqs = [a as u32 & 0xff_ffff, (a >> 32) as u32 & 0xff_ffff];
                self.end.blocks = b as u32;
            }
            Kind::Connected => self.end.peer = Some(a as u32 & 0xff_ffff),
            Kind::State => self.moved(b, ts_ns),
            Kind::Doorbell => {
                self.producer = self.producer.max(b);
                // What an earlier look found unannounced may be what this one tells of.
                (self.end.announced, self.end.written) = (0, 0);
                if self.rung.len() == MOST_RUNG {
                    self.rung.pop_front();
                }
                self.rung.push_back((a, b, ts_ns));
            }
            Kind::Fetched => self.fetched(ts_ns, aux, [a, b]),
            Kind::Sent => {
                self.end.sent += 1;
                self.open.change(aux, |it| {
                    if it.sent == 0 && it.done == 0 {
                        (it.sent, it.peer) = (ts_ns, Some(a as u32 & 0xff_ffff));
                        (it.psn, it.bytes) = (b & 0xff_ffff, b >> 32);
                    }
                });
            }
            Kind::SentLast => {
                self.open.change(aux, |it| {
                    if it.sent != 0 && it.sent_last == 0 {
                        it.sent_last = ts_ns;
                    }
                });
            }
            Kind::Done => self.done(ts_ns, aux, [a, b]),
            Kind::Cqe => self.completed(ts_ns, aux, a),
            Kind::Resent => {
                self.end.resent += 1;
                self.open.change(aux, |it| it.resent += u64::from(it.sent != 0));
            }
            // A peer that says that it is not ready is not silent.
            Kind::Timeout => (self.end.timeouts, self.end.rnr) = (self.end.timeouts + 1, 0),
            Kind::RnrGot => (self.end.rnr, self.end.rnr_ns) = (self.end.rnr + 1, ts_ns),
            Kind::NakGot => self.end.nak = Some(a),
            Kind::RnrSent => {
                (self.end.refused, self.end.refused_ns) = (self.end.refused + 1, ts_ns);
            }
            Kind::Arrived => self.arrived = Some((a, ts_ns)),
            Kind::Placed => {
                let begun = self.arrived.take().filter(|(psn, _)| *psn == a);
                let from = begun.map_or(ts_ns, |(_, at)| at);
                self.came.push(Came { psn: a, from, to: ts_ns, bytes: b, answers: aux != 0 });
                (self.end.placed, self.end.placed_psn) = (self.end.placed + 1, Some(a));
                self.end.refused = 0;
            }
            Kind::LookSend => self.looked(&SendLook::parse(aux, [a, b])),
            Kind::LookReceives => self.end.receives = Some(a.saturating_sub(b)),
            _ => {}
        }
        let tells = !matches!(
            kind,
            Kind::LookSend | Kind::LookReceives | Kind::QpMade | Kind::Connected | Kind::SentLast
        );
        if tells {
            (self.end.last, self.end.last_ns) = (said(mark), ts_ns);
        }
    }

    /// What is open comes to nothing.
    fn give_up(&mut self, ts_ns: u64) {
        let open = std::mem::take(&mut self.open);
        let given_up = open.iter().map(|it| Message { given_up: ts_ns, ..it.clone() });
        self.closed.extend(given_up);
    }

    fn moved(&mut self, to: u64, ts_ns: u64) {
        self.end.state = state(to);
        if to == QpState::Reset as u64 {
            self.rung.clear();
            (self.producer, self.taken) = (0, 0);
            self.give_up(ts_ns);
            // It begins anew, under its number.
            let QueueEnd { pid, qpn, kind, cqs, blocks, state, .. } = std::mem::take(&mut self.end);
            let (answered, new) = (true, QueueEnd::default());
            self.end = QueueEnd { pid, qpn, kind, cqs, blocks, state, answered, ..new };
        }
    }

    /// When the doorbell came that told of a position.
    fn rung_at(&mut self, position: u64) -> u64 {
        while self.rung.front().is_some_and(|&(_, to, _)| to <= position) {
            self.rung.pop_front();
        }
        self.rung.front().filter(|(from, ..)| *from <= position).map_or(0, |&(_, _, at)| at)
    }

    fn fetched(&mut self, ts_ns: u64, index: u16, [position, b]: [u64; 2]) {
        let (source, blocks) = ((b >> 8 & 0x7f) as u8, b >> 16 & 0xffff);
        // Of the ring; others have no doorbell that tells of them alone.
        let rung = if source == 0 { self.rung_at(position) } else { 0 };
        let end = position.saturating_add(blocks.max(1)); // a slot has no blocks
        self.taken = self.taken.max(end);
        self.end.fetched += 1;
        self.end.unreported += blocks;
        let (opcode, signaled) = (b as u8, b >> 15 & 1 != 0);
        let fetched = ts_ns;
        let message =
            Message { index, opcode, signaled, blocks, end, rung, fetched, ..Message::default() };
        self.push(message, ts_ns);
    }

    fn push(&mut self, message: Message, ts_ns: u64) {
        let before = self.open.push(message);
        self.closed.extend(before.map(|it| Message { given_up: ts_ns, ..it }));
    }

    fn done(&mut self, ts_ns: u64, index: u16, [opcode, bytes]: [u64; 2]) {
        self.end.done += 1;
        self.end.done_ns = ts_ns;
        (self.end.timeouts, self.end.rnr, self.end.resent, self.end.nak) = (0, 0, 0, None);
        if self.open.get(index).is_none_or(|it| it.done != 0) {
            // Carried out without being taken one by one.
            let ahead = u64::from(index.wrapping_sub(self.taken as u16));
            let position = self.taken.saturating_add(ahead);
            let rung = self.rung_at(position);
            self.taken = position.saturating_add(1);
            self.end.fetched += 1;
            self.end.unreported += 1;
            let (signaled, blocks, end) = (true, 1, self.taken);
            self.push(Message { index, rung, blocks, end, signaled, ..Message::default() }, ts_ns);
        }
        self.open.change(index, |it| {
            (it.done, it.opcode, it.bytes) = (ts_ns, opcode as u8, bytes);
        });
        if self.open.get(index).is_some_and(|it| !it.signaled) {
            self.closed.extend(self.open.remove(index));
        }
    }

    fn completed(&mut self, ts_ns: u64, index: u16, a: u64) {
        let (opcode, syndrome, vendor) = ((a >> 24) as u8, (a >> 32) as u8, (a >> 40) as u8);
        let failed = matches!(opcode, REQ_ERR | RESP_ERR);
        if failed && self.end.error.is_none() && syndrome != Syndrome::WrFlush as u8 {
            self.end.error = Some((index, syndrome, vendor));
        }
        if !matches!(opcode, REQ | REQ_ERR) {
            return;
        }
        self.end.completed += 1;
        self.end.unreported = 0;
        if self.open.get(index).is_none() {
            return;
        }
        // What is before it is complete as well; those that no CQE is written of have told so.
        for mut message in self.open.through(index) {
            (message.cqe, message.syndrome) = (ts_ns, if failed { syndrome } else { 0 });
            self.closed.push(message);
        }
        self.end.unreported = self.open.blocks();
    }

    fn looked(&mut self, look: &SendLook) {
        self.end.answered = look.answered;
        self.end.state = state(look.state.into());
        if look.answered {
            // 32 bits of them, which is enough for a difference.
            self.end.posted = look.posted.wrapping_sub(look.taken).into();
            (self.end.announced, self.end.written) = (look.announced.into(), look.written.into());
            self.end.next = look.posted.into();
        }
    }

    /// Where it stood at the end.
    pub(super) fn ends(&mut self) -> QueueEnd {
        let mut end = self.end.clone();
        // Events come after looks.
        end.posted = end.posted.max(self.producer.saturating_sub(self.taken));
        let on_way = self.open.iter().filter(|it| it.done == 0);
        end.on_way = on_way.clone().count() as u64;
        end.oldest = on_way.clone().next().map(|it| Oldest {
            index: it.index,
            opcode: names::wqe_opcode_or_code(it.opcode),
            bytes: it.bytes,
            sent_ns: it.sent,
            psn: it.psn,
        });
        end
    }
}

pub(super) fn state(code: u64) -> String {
    let state = STATES.get(code as usize);
    state.map_or_else(|| format!("state {code}"), |state| format!("{state:?}").to_uppercase())
}

/// Names of NAK codes (InfiniBand vol. 1, "NAK Codes").
pub(super) fn nak(code: u64) -> &'static str {
    const NAMES: [&str; 5] = [
        "PSN sequence error",
        "invalid request",
        "remote access error",
        "remote operational error",
        "invalid RD request",
    ];
    NAMES.get(code as usize).copied().unwrap_or("reserved code")
}

/// An event in words.
pub(super) fn said(mark: &Mark) -> String {
    let Mark { kind, aux, words: [a, b], .. } = *mark;
    let opcode = |code: u64| names::wqe_opcode_or_code(code as u8);
    match kind {
        Kind::Doorbell => format!("doorbell for blocks {a} to {}", b.saturating_sub(1)),
        Kind::Fetched => format!("WQE {aux} ({}) fetched", opcode(b)),
        Kind::Sent => format!("WQE {aux} sent"),
        Kind::Done => format!("WQE {aux} ({}) complete", opcode(a)),
        Kind::Cqe => format!("CQE {} written, WQE {aux}", cqe(a)),
        Kind::Resent => format!("packet of WQE {aux} sent again"),
        Kind::Timeout => format!("timeout {a}"),
        Kind::RnrGot => format!("RNR NAK {a}"),
        Kind::NakGot => format!("NAK: {}", nak(a)),
        Kind::RnrSent => "RNR NAK sent".into(),
        Kind::NakSent => format!("NAK sent: {}", nak(a)),
        Kind::Placed if aux != 0 => format!("request for {b} bytes answered"),
        Kind::Placed => format!("message of {b} bytes placed"),
        Kind::State => format!("{} to {}", state(a), state(b)),
        other => other.name().into(),
    }
}

/// A CQE's opcode and syndrome in words.
pub(super) fn cqe(a: u64) -> String {
    let (opcode, syndrome) = ((a >> 24) as u8, (a >> 32) as u8);
    let name = match opcode {
        0 => "REQ",
        1 => "RESP_WR_IMM",
        2 => "RESP_SEND",
        3 => "RESP_SEND_IMM",
        4 => "RESP_SEND_INV",
        REQ_ERR => "REQ_ERR",
        RESP_ERR => "RESP_ERR",
        _ => "CQE",
    };
    match (syndrome, Syndrome::from_code(syndrome)) {
        (0, _) => name.into(),
        (_, Some(known)) => format!("{name} {}", crate::decode::syndrome::name(known)),
        (code, None) => format!("{name} syndrome {code:#04x}"),
    }
}
