//! The responder of a reliable connection (InfiniBand vol. 1, 9.7.4 to 9.7.7 and 9.9.3).
//!
//! Packets change its state; what it has to say is built later, when the link has room: responses
//! of READs and atomics in the order of their requests, then one acknowledgement or refusal that
//! covers everything up to its PSN. So acknowledgements of one visit's packets are one. On a
//! link where that is cheaper, an acknowledgement alone waits for one visit more: the requests may
//! bring an answer about, and then both leave together.

use super::replay::{Replay, What};
use crate::counters::DropReason;
use crate::link::Room;
use crate::link::port::{Incoming, Port};
use crate::objects::mr::Right;
use crate::objects::qp::Qp;
use crate::objects::state::Attributes;
use crate::service::PeerPath;
use crate::service::local::responder::nak;
use crate::service::masked;
use crate::service::payload::{Domain, Remote};
use crate::service::reassembly::{Reassembly, Refused, reach};
use crate::service::rendezvous::Rendezvous;
use crate::trace::Kind as Mark;
use crate::vendor::Vendor;
use bellpush_mem::MemError;
use bellpush_wire::Psn;
use bellpush_wire::cqe::Syndrome as Cause;
use bellpush_wire::roce::{Aeth, AtomicEth, NakCode, Operation, Position, Reth, Service, Syndrome};
use bellpush_wire::wqe::{Kind, MAX_MESSAGE_BYTES, Operands};

/// Packets that nobody asked an acknowledgement for, after which there is one.
const ACK_EVERY: u32 = 32;

pub(super) struct Responder {
    path: PeerPath,
    rnr_timer: u8,
    /// PSN expected next.
    expected: Psn,
    /// Requests completed, modulo 2^24.
    msn: u32,
    reassembly: Reassembly,
    replay: Replay,
    /// What is to be said when no response is due.
    reply: Option<(Psn, Syndrome)>,
    /// The acknowledgement that is due was held back for a visit.
    held: bool,
    /// A NAK or RNR NAK was said for the PSN expected; there is no other before it comes.
    refused: bool,
    /// Packets taken since the last acknowledgement.
    silent: u32,
    /// A request was refused for good: after the NAK nothing is said any more.
    dead: bool,
    /// The same of a session of a dynamic connection: which request, and what is said whenever it comes again.
    verdict: Option<(Psn, Syndrome)>,
    /// For the trace: the first PSN of the message that is coming in, and its bytes so far.
    begun: (u32, u64),
}

/// A packet that is not carried out: what the requester is to be told.
enum No {
    NotReady,
    Nak(Cause, Vendor),
    /// The same, and a receive's CQE has told the owner (InfiniBand 9.9.3.1, class C).
    Receive(Cause),
}

impl From<Refused> for No {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NotReady => Self::NotReady,
            Refused::Request(cause, vendor) => Self::Nak(cause, vendor),
            Refused::Receive(cause, _) => Self::Receive(cause),
        }
    }
}

fn invalid(vendor: Vendor) -> No {
    No::Nak(Cause::RemoteInvalReq, vendor)
}

impl Responder {
    pub(super) fn new(path: PeerPath, attributes: &Attributes) -> Self {
        Self {
            path,
            rnr_timer: attributes.min_rnr_timer,
            expected: attributes.rq_psn,
            msn: 0,
            reassembly: Reassembly::default(),
            replay: Replay::new(attributes.max_dest_rd_atomic),
            reply: None,
            held: false,
            refused: false,
            silent: 0,
            dead: false,
            verdict: None,
            begun: (0, 0),
        }
    }

    pub(super) fn apply(&mut self, path: PeerPath, attributes: &Attributes) {
        self.path = path;
        self.rnr_timer = attributes.min_rnr_timer;
        self.replay.set_limit(attributes.max_dest_rd_atomic);
    }

    /// A session after another that ended in the middle of a message: the receive that was taken for
    /// that is this one's.
    pub(super) fn inherit(&mut self, before: &mut Self) {
        self.reassembly.inherit(&mut before.reassembly);
    }

    /// Whether a receive was taken and is not complete.
    pub(super) fn holds_receive(&self) -> bool {
        self.reassembly.holds_receive()
    }

    /// The rendezvous that have matched since it was asked last.
    pub(super) fn rendezvous(&mut self) -> impl Iterator<Item = Rendezvous> {
        self.reassembly.rendezvous()
    }

    /// Takes a request.
    pub(super) fn on_request(&mut self, qp: &Qp, domain: Domain<'_>, packet: &Incoming<'_>) {
        let bth = &packet.headers.bth;
        if let Some(verdict) = self.verdict.filter(|it| bth.psn.distance(it.0) >= 0) {
            // What came behind it, in its message too, is neither carried out nor answered.
            qp.counters.dropped(DropReason::Refused);
            if bth.psn == verdict.0 {
                self.reply = Some(verdict);
            }
            return;
        }
        match bth.psn.distance(self.expected) {
            0 => self.on_expected(qp, domain, packet),
            1.. => {
                qp.counters.dropped(DropReason::Gap);
                if !self.refused {
                    self.refused = true;
                    let words = [NakCode::PsnSequence as u64, self.expected.value().into()];
                    qp.mark(Mark::NakSent, 0, words);
                    self.reply = Some((self.expected, Syndrome::Nak(NakCode::PsnSequence)));
                }
            }
            _ => self.on_duplicate(qp, packet),
        }
    }

    fn on_expected(&mut self, qp: &Qp, domain: Domain<'_>, packet: &Incoming<'_>) {
        let done = self.execute(qp, domain, packet);
        match done {
            Ok(()) => self.refused = false,
            Err(No::NotReady) => {
                qp.counters.dropped(DropReason::NoReceive);
                // What comes behind it until it comes again is not answered (9.7.5.2.8).
                self.refused = true;
                qp.mark(Mark::RnrSent, 0, [self.expected.value().into(), 0]);
                let timer = Syndrome::RnrNak { timer: self.rnr_timer };
                self.reply = Some((self.expected, timer));
            }
            Err(No::Nak(cause, vendor)) => self.refuse(qp, self.expected, cause, Some(vendor)),
            Err(No::Receive(cause)) => self.refuse(qp, self.expected, cause, None),
        }
    }

    fn execute(&mut self, qp: &Qp, domain: Domain<'_>, packet: &Incoming<'_>) -> Result<(), No> {
        let ext = &packet.headers.ext;
        // The keys of XRC's requests are those of their SRQ's protection domain.
        let domain = match &qp.xrc {
            None => domain,
            Some(xrc) => {
                let begins = !self.reassembly.is_under_way();
                let srq = xrc.enter(ext.srqn, begins);
                let srq = srq.map_err(|vendor| No::Nak(Cause::RemoteAccess, vendor))?;
                domain.in_domain(srq.pd().number())
            }
        };
        match (packet.opcode().operation(), ext.reth, ext.atomic) {
            (Operation::ReadRequest, Some(from), _) => self.read(qp, domain, from),
            (_, _, Some(atomic)) => self.atomic(qp, domain, packet, atomic),
            _ => self.message(qp, domain, packet),
        }
    }

    fn message(&mut self, qp: &Qp, domain: Domain<'_>, packet: &Incoming<'_>) -> Result<(), No> {
        let ended = self.reassembly.accept(qp, domain, packet, self.path.mtu)?;
        let bth = &packet.headers.bth;
        self.trace_message(qp, packet, ended);
        self.expect(bth.psn.plus(1));
        self.msn += u32::from(ended);
        self.silent += 1;
        if bth.ack_req || ended || self.silent >= ACK_EVERY {
            self.reply = Some((bth.psn, Syndrome::ACK));
        } else {
            // A refusal that was not said yet is out of date.
            self.reply = self.reply.filter(|(_, s)| matches!(s, Syndrome::Ack { .. }));
        }
        Ok(())
    }

    /// Has it in the trace how a message comes.
    #[inline]
    fn trace_message(&mut self, qp: &Qp, packet: &Incoming<'_>, ended: bool) {
        let Some(trace) = qp.events.trace() else { return };
        let psn = packet.headers.bth.psn.value();
        if packet.opcode().operation().position().starts() {
            self.begun = (psn, 0);
            if !ended {
                trace.mark(Mark::Arrived, qp.qpn.0, 0, [psn.into(), 0]);
            }
        }
        self.begun.1 += packet.payload.len() as u64;
        if ended {
            trace.mark(Mark::Placed, qp.qpn.0, 0, [self.begun.0.into(), self.begun.1]);
        }
    }

    fn read(&mut self, qp: &Qp, domain: Domain<'_>, from: Reth) -> Result<(), No> {
        if from.bytes > MAX_MESSAGE_BYTES || self.reassembly.is_under_way() {
            return Err(invalid(Vendor::Sequence));
        }
        let packets = self.path.mtu.packets(from.bytes);
        if !self.replay.has_room() || packets >= Psn::MODULUS / 2 {
            return Err(invalid(Vendor::Length));
        }
        reach(qp, domain, (from.rkey, from.addr), from.bytes, Right::RemoteRead)?;
        // The response acknowledges the WRITEs before it, also one without data.
        qp.land();
        qp.mark(Mark::Placed, 1, [self.expected.value().into(), from.bytes.into()]);
        self.respond(
            packets,
            What::Read { from, pd: domain.user.pd, next: 0, begin: 0, end: packets },
        )
    }

    fn atomic(
        &mut self,
        qp: &Qp,
        domain: Domain<'_>,
        packet: &Incoming<'_>,
        atomic: AtomicEth,
    ) -> Result<(), No> {
        if self.reassembly.is_under_way() || !self.replay.has_room() {
            return Err(invalid(Vendor::Sequence));
        }
        let kind = match packet.opcode().operation() {
            Operation::MaskedCompareSwap => Some(Kind::CompareSwap),
            Operation::MaskedFetchAdd => Some(Kind::FetchAdd),
            _ => None,
        };
        let masked = kind.zip(packet.headers.ext.masks);
        let word = masked.map_or(Some(atomic.addr), |(_, masks)| masked::word(atomic.addr, &masks));
        let word = word.filter(|word| word.0.is_multiple_of(8));
        let (rkey, addr) = (atomic.rkey, word.ok_or_else(|| invalid(Vendor::Misaligned))?);
        reach(qp, domain, (rkey, addr), 8, Right::RemoteAtomic)?;
        let old = domain.atomic((rkey, addr), |at| match (masked, packet.opcode().operation()) {
            (Some((kind, masks)), _) => {
                let operands = Operands { swap_add: atomic.swap_add, compare: atomic.compare };
                masked::execute(at.mem, at.offset, atomic.addr, kind, (operands, &masks))
            }
            (None, Operation::FetchAdd) => at.mem.fetch_add(at.offset, atomic.swap_add),
            (None, _) => at.mem.compare_swap(at.offset, atomic.compare, atomic.swap_add),
        });
        let old =
            old.map_err(|vendor| No::Nak(Cause::RemoteAccess, vendor))?.map_err(
                |error| match error {
                    MemError::Misaligned { .. } => invalid(Vendor::Misaligned),
                    _ => No::Nak(Cause::RemoteOp, Vendor::Dma),
                },
            )?;
        qp.mark(Mark::Placed, 1, [self.expected.value().into(), 8]);
        self.respond(1, What::Atomic { old })
    }

    /// Moves on. Requests whose PSNs come round are not answered again.
    fn expect(&mut self, psn: Psn) {
        self.expected = psn;
        self.replay.expire(psn);
    }

    /// A response is due; it acknowledges all before it as well.
    fn respond(&mut self, packets: u32, what: What) -> Result<(), No> {
        self.msn += 1;
        self.replay
            .push(self.expected, packets, self.msn, what)
            .map_err(|_| invalid(Vendor::Sequence))?;
        self.expect(self.expected.plus(packets));
        (self.reply, self.held) = (None, false);
        Ok(())
    }

    /// A request that was carried out before (9.7.5.1.3): it is said again, and an atomic's result
    /// comes from the replay resources. What is not known any more is dropped.
    fn on_duplicate(&mut self, qp: &Qp, packet: &Incoming<'_>) {
        let psn = packet.headers.bth.psn;
        let ext = &packet.headers.ext;
        let known = match (packet.opcode().operation(), ext.reth, ext.atomic) {
            (Operation::ReadRequest, Some(from), _) => {
                self.replay.repeat_read(psn, &from, self.path.mtu.bytes())
            }
            (_, _, Some(_)) => self.replay.repeat_atomic(psn),
            _ => {
                // A refusal that is to be said acknowledges what is before it as well.
                let last = self.expected.plus(Psn::MODULUS - 1);
                self.reply = self.reply.or(Some((last, Syndrome::ACK)));
                true
            }
        };
        if !known {
            qp.counters.dropped(DropReason::Duplicate);
        }
    }

    /// `untold`: what an event tells the owner of the queue pair, whom no CQE has told.
    fn refuse(&mut self, qp: &Qp, psn: Psn, cause: Cause, untold: Option<Vendor>) {
        let code = match cause {
            Cause::RemoteAccess => NakCode::RemoteAccess,
            Cause::RemoteInvalReq => NakCode::InvalidRequest,
            _ => NakCode::RemoteOperational,
        };
        qp.mark(Mark::NakSent, 0, [code as u64, psn.value().into()]);
        self.reply = Some((psn, Syndrome::Nak(code)));
        if self.path.service == Service::Dc {
            self.verdict = self.reply; // the target goes on for others
            return;
        }
        self.dead = true;
        match untold {
            Some(vendor) => _ = nak(qp, cause, vendor),
            None => qp.set_error(),
        }
    }

    /// Whether a response with data is due.
    pub(super) fn owes(&mut self) -> bool {
        self.replay.due().is_some()
    }

    /// Whether what it says would be of WRITEs that have not landed: who sent them may take them for there then.
    pub(super) fn waits_for(&self, qp: &Qp) -> bool {
        self.reply.is_some() && qp.is_landing()
    }

    /// Builds the responses and the refusal that are due, at most `most` packets. Says whether some
    /// are left.
    pub(super) fn transmit(
        &mut self,
        qp: &Qp,
        domain: Domain<'_>,
        port: &mut Port,
        mut most: usize,
    ) -> bool {
        while let Some(entry) = self.replay.due() {
            if most == 0 || port.room() == 0 {
                return true;
            }
            most -= 1;
            let (first, msn) = (entry.first, entry.msn);
            let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn });
            match &mut entry.what {
                What::Atomic { old } => {
                    let mut headers = self.path.headers(Operation::AtomicAcknowledge, first);
                    (headers.ext.aeth, headers.ext.atomic_ack) = (aeth, Some(*old));
                    port.send(&self.path.route, &headers, 0, |_| Ok::<_, Vendor>(()))
                        .expect("an empty payload does not fail");
                    self.replay.answered();
                }
                What::Read { from, pd, next, begin, end } => {
                    let domain = domain.in_domain(*pd);
                    let at = Position::new(*next == *begin, *next + 1 == *end);
                    let psn = first.plus(*next);
                    let mut headers = self.path.headers(Operation::read_response(at), psn);
                    headers.ext.aeth = aeth.filter(|_| at != Position::Middle);
                    let part = self.path.mtu.part(*next, from.bytes);
                    let from = *from;
                    *next += 1;
                    let again = entry.answered;
                    if let Err(vendor) = port.send(&self.path.route, &headers, part.len(), |into| {
                        read_part(domain, &from, part.start, into)
                    }) {
                        if again {
                            // The requester may have had the answer, and the region's owner have
                            // let it go for that reason: what asked for it again is an old packet.
                            qp.counters.dropped(DropReason::Duplicate);
                            self.replay.answered();
                            continue;
                        }
                        // The region went while its bytes were on their way.
                        self.replay.forget();
                        self.refuse(qp, psn, Cause::RemoteAccess, Some(vendor));
                    } else if at.ends() {
                        self.replay.answered();
                    }
                }
            }
        }
        match self.reply {
            Some((_, Syndrome::Ack { .. })) | None => false,
            Some(_) => !self.say(port),
        }
    }

    /// Builds the acknowledgement that is due, behind what the requester sent in this visit; when it
    /// sent nothing, in the next visit. Says whether it is left.
    pub(super) fn acknowledge(&mut self, port: &mut Port, alone: bool) -> bool {
        if self.reply.is_none() {
            return false;
        }
        if alone && port.joins && !self.held {
            self.held = true;
            return true;
        }
        !self.say(port)
    }

    /// Builds the acknowledgement or refusal that is due, if there is room.
    fn say(&mut self, port: &mut Port) -> bool {
        if port.room() == 0 {
            return false;
        }
        if let Some((psn, syndrome)) = self.reply.take() {
            (self.silent, self.held) = (0, false);
            let mut headers = self.path.headers(Operation::Acknowledge, psn);
            headers.ext.aeth = Some(Aeth { syndrome, msn: self.msn });
            port.send(&self.path.route, &headers, 0, |_| Ok::<_, Vendor>(()))
                .expect("an empty payload does not fail");
        }
        true
    }

    /// The queue pair goes, or to ERR: what it has received, and reported to its owner, it still
    /// acknowledges, or the peer would take it for lost.
    pub(super) fn farewell(&mut self, port: &mut Port) {
        self.say(port);
    }

    /// The queue pair goes, or to RESET.
    pub(super) fn lose(&mut self, qp: &Qp) {
        self.reassembly.lose(qp);
    }

    /// Whether a refusal of its own making is the last that is said, by [`Self::transmit`]: behind
    /// the responses that are due, for a requester that misses one takes no refusal of what is
    /// behind it, and asks again whom nobody answers any more.
    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    /// The queue pair is in ERR: only a refusal of its own making is still said.
    pub(super) fn flush(&mut self, qp: &Qp) {
        self.reassembly.flush(qp);
        if !self.dead {
            self.replay.forget();
            self.reply = None;
        }
    }
}

fn read_part(
    domain: Domain<'_>,
    from: &Reth,
    start: usize,
    into: &mut Room<'_>,
) -> Result<(), Vendor> {
    if into.len() == 0 {
        return Ok(());
    }
    let Reth { rkey, addr, bytes } = *from;
    domain.get(Remote { rkey, addr, bytes }, start, into)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::link::port::Route;
    use bellpush_nic::Mtu;
    use bellpush_wire::roce::Fields;
    use bellpush_wire::{Iova, Qpn, Rkey};

    #[test]
    fn an_answer_is_forgotten_when_its_psn_comes_round() {
        let route = Route { to: IpAddr::from([127, 0, 0, 1]), fields: Fields::default() };
        let mtu = Mtu::new(256).unwrap();
        let path = PeerPath { route, dest: Qpn(1), mtu, service: Service::Rc };
        let attributes = Attributes { max_dest_rd_atomic: 4, ..Attributes::default() };
        let mut responder = Responder::new(path, &attributes);
        let answer = |responder: &mut Responder, packets, what| {
            assert!(responder.respond(packets, what).is_ok());
            responder.replay.answered();
        };
        answer(&mut responder, 1, What::Atomic { old: 1000 });
        let read = |packets| {
            let from = Reth { addr: Iova(0), rkey: Rkey(1), bytes: packets * 256 };
            What::Read { from, pd: 0, next: 0, begin: 0, end: packets }
        };
        answer(&mut responder, 1 << 22, read(1 << 22));
        assert!(responder.replay.repeat_atomic(Psn::new(0)), "it is the atomic's still");
        responder.replay.answered();
        answer(&mut responder, 1 << 22, read(1 << 22));
        assert!(!responder.replay.repeat_atomic(Psn::new(0)), "half the PSNs ahead");
    }
}
