//! A message on its way in packets: what a connected queue pair keeps of a WQE that it took and has
//! not completed.
//!
//! The WQE's bytes stay in the ring, which is not the poster's again before the completion, and
//! are read again whenever packets are built from them; a WQE that says something else by then
//! fails. Bytes that came another way, by BlueFlame or in a slot, are kept here.

use crate::adversary::sends;
use crate::objects::events::Event;
use crate::objects::mr::Right;
use crate::objects::qp::Qp;
use crate::queue::recv::{self, Name};
use crate::queue::sq::{Scratch, SendQueue, Source};
use crate::service::payload::Domain;
use crate::service::requester::Tally;
use crate::trace::Kind;
use crate::vendor::{Vendor, of_parse};
use bellpush_nic::Mtu;
use bellpush_wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush_wire::roce::{Bth, Headers, Opcode as Wire, Operation, Position, Reth, Service, Tail};
use bellpush_wire::tm::{TMH_BYTES, TagInfo, Told};
use bellpush_wire::wqe::{Flags, Masks, Opcode, Piece, Sge, Wqe};
use bellpush_wire::{Psn, Qpn, Rkey};

/// Messages of a queue pair that may be on their way.
pub(crate) const MAX_OUTSTANDING: usize = 128;
/// A message takes fewer packets than half of all PSNs: its first must come before its last.
pub(crate) const MAX_PACKETS: u32 = 1 << 23;

/// A failure as a CQE reports it.
pub(crate) type Failure = (Syndrome, Vendor);

/// A message on its way.
pub(crate) struct Outstanding {
    source: Source,
    /// Where the WQE lies in the ring, and its length there.
    position: u64,
    blocks: u32,
    /// What a CQE says of it.
    pub(crate) counter: u16,
    pub(crate) opcode: Opcode,
    pub(crate) flags: Flags,
    pub(crate) bytes: u32,
    /// Its PSNs. Those of a READ are its responses'.
    pub(crate) first: Psn,
    pub(crate) packets: u32,
    /// Responses of a READ or an atomic that have come.
    pub(crate) got: u32,
    /// A WQE for the NIC itself whose turn has not come: what is behind it is not sent before.
    pub(crate) waits: bool,
    /// Why it cannot be sent (any further).
    pub(crate) failed: Option<Failure>,
    /// Its stream, as far as that was to be read.
    pub(crate) stream: Option<u16>,
    /// The WQE, where it does not lie in the ring.
    copy: Vec<u8>,
    /// What the NIC sends by itself, and for which entry of a list of tags.
    own: Option<Own>,
}

/// A message that the NIC sends by itself: a part of a rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Own {
    /// It reads the payload, for the entry at this place.
    Read(u16),
    /// It tells the sender.
    End,
}

impl Outstanding {
    /// Takes the next WQE that is posted, if there is one, and checks its local entries. What is
    /// wrong with it is to be reported after everything before it. `spare` is memory for WQEs that
    /// do not stay in a ring, see [`Outstanding::recycle`].
    pub(crate) fn take(
        sq: &mut SendQueue,
        scratch: &mut Scratch,
        domain: Domain<'_>,
        (first, mtu): (Psn, Mtu),
        spare: &mut Vec<Vec<u8>>,
    ) -> Option<(Self, Option<Wqe>)> {
        let posted = sq.fetch(scratch)?;
        let bytes = sq.bytes(&posted, scratch);
        let checked = posted.wqe.as_ref().map_err(|&failure| failure).and_then(|wqe| {
            check_local(wqe, bytes, domain)?;
            match mtu.packets(wqe.bytes) {
                _ if wqe.opcode.is_local() => Ok(0), // nothing leaves the NIC
                packets if packets < MAX_PACKETS => Ok(packets),
                _ => Err((Syndrome::LocalLength, Vendor::Length)),
            }
        });
        let mut copy = Vec::new();
        if posted.source != Source::Ring {
            copy = spare.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(bytes);
        }
        sq.trace_fetched(&posted);
        let position = sq.position();
        sq.consume(posted.source, posted.blocks);
        let wqe = posted.wqe.ok();
        let message = Self {
            source: posted.source,
            position,
            blocks: posted.blocks,
            counter: posted.counter,
            opcode: wqe.as_ref().map_or(Opcode::Nop, |wqe| wqe.opcode),
            flags: wqe.as_ref().map_or(Flags::default(), |wqe| wqe.flags),
            bytes: wqe.as_ref().map_or(0, |wqe| wqe.bytes),
            first,
            packets: checked.unwrap_or(0),
            got: 0,
            waits: checked.is_ok() && wqe.as_ref().is_some_and(|wqe| wqe.opcode.waits()),
            failed: checked.err(),
            stream: wqe.as_ref().map(|wqe| wqe.stream),
            copy,
            own: None,
        };
        Some((message, wqe))
    }

    /// A message that the NIC sends by itself.
    pub(crate) fn own(
        copy: Vec<u8>,
        own: Own,
        domain: Domain<'_>,
        (first, mtu): (Psn, Mtu),
    ) -> Self {
        let wqe = Wqe::parse(&copy).expect("it was just written");
        Self {
            source: Source::Nic,
            position: 0,
            blocks: 0,
            counter: 0,
            opcode: wqe.opcode,
            flags: Flags { cq_update: false, ..wqe.flags },
            bytes: wqe.bytes,
            first,
            packets: mtu.packets(wqe.bytes),
            got: 0,
            waits: false,
            failed: check_local(&wqe, &copy, domain).err(),
            stream: None,
            copy,
            own: Some(own),
        }
    }

    /// Has it in the trace that packets of it were built: so many, of which `at` was the first.
    #[inline]
    pub(crate) fn trace_sent(&self, qp: &Qp, dest: Qpn, (at, n): (u32, u32)) {
        if self.own.is_some() || qp.events.trace().is_none() {
            return;
        }
        if at == 0 {
            let b = u64::from(self.first.value()) | u64::from(self.bytes) << 32;
            qp.mark(Kind::Sent, self.counter, [dest.0.into(), b]);
        }
        if at > 0 && at + n >= self.packets {
            qp.mark(Kind::SentLast, self.counter, [0; 2]);
        }
    }

    /// Reads the WQE once more, into the scratch buffer unless it is kept here.
    pub(crate) fn load(&self, sq: &SendQueue, scratch: &mut Scratch) -> Result<Wqe, Failure> {
        let wqe = match self.source {
            Source::Ring => sq.fetch_again(self.position, self.blocks, scratch)?,
            Source::BlueFlame | Source::Nic => Wqe::parse(&self.copy).map_err(of_parse)?,
            Source::Slot => Wqe::parse_stream(&self.copy).map_err(of_parse)?,
        };
        let same = wqe.opcode == self.opcode && wqe.bytes == self.bytes;
        if same { Ok(wqe) } else { Err((Syndrome::LocalQpOp, Vendor::Changed)) }
    }

    /// The bytes that [`Outstanding::load`] parsed.
    pub(crate) fn wqe_bytes<'a>(&'a self, scratch: &'a Scratch) -> &'a [u8] {
        if self.source == Source::Ring { scratch } else { &self.copy }
    }

    /// The PSN after its last.
    pub(crate) fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// Headers of packet `index` of a SEND or WRITE, and the part of the payload that it carries.
    pub(crate) fn request(
        &self,
        wqe: &Wqe,
        index: u32,
        mtu: Mtu,
        (service, dest): (Service, Qpn),
    ) -> (Headers, std::ops::Range<usize>) {
        request(wqe, (self.first, self.packets), index, mtu, (service, dest))
    }

    /// An atomic's old value as it is scattered, and of how many bytes.
    pub(crate) fn scattered(&self, old: u64) -> ([u8; 8], usize) {
        match self.opcode.masked() {
            Some(_) => {
                let bytes = self.bytes.min(8);
                (Masks { bytes, change: 0, compare: 0 }.result(old), bytes as usize)
            }
            None => (old.to_ne_bytes(), 8),
        }
    }

    /// Reports it complete.
    pub(crate) fn complete(&self, qp: &Qp, tally: &mut Tally) {
        sends::complete(qp, self.source, self.position);
        if self.own.is_none() {
            qp.mark(Kind::Done, self.counter, [self.opcode as u64, self.bytes.into()]);
        }
        tally.wqes += 1;
        tally.bytes += u64::from(self.bytes);
        tally.inband += u64::from(self.source == Source::Slot);
        tally.blueflame += u64::from(self.source == Source::BlueFlame);
        if let Some(Own::Read(index)) = self.own {
            let tag = Some(TagInfo::message(Told::Expected, index, [0; TMH_BYTES]));
            let cqe = Cqe::requester(qp.qpn, 0, 0, self.bytes);
            qp.complete_receive(&Cqe { opcode: CqeOpcode::RespSend, tag, ..cqe });
        } else if self.flags.cq_update {
            let bytes = if self.opcode.scatters() { self.bytes } else { 0 };
            qp.complete(&Cqe::requester(qp.qpn, self.opcode as u8, self.counter, bytes));
        }
    }

    /// Reports it failed, and moves the queue pair to ERR.
    pub(crate) fn fail(&self, qp: &Qp, tally: &mut Tally, (syndrome, vendor): Failure) {
        sends::forget(qp, self.source, self.position);
        tally.errors += 1;
        // ERR first: whoever sees the CQE finds the queue pair in the state it implies.
        qp.set_error();
        if let Some(Own::Read(index)) = self.own {
            recv::fail(qp, Name::Entry(index), syndrome, vendor);
        }
        if self.own.is_some() {
            // No WQE of the send queue tells it.
            if syndrome != Syndrome::WrFlush {
                qp.events.push(Event::QpFatal(qp.qpn));
            }
            return;
        }
        let op = CqeOpcode::ReqErr;
        qp.complete(&Cqe::error(op, qp.qpn, self.counter, syndrome, vendor as u8));
    }

    /// The receive that it is for, if it is a READ of the NIC's own.
    pub(crate) fn entry(&self) -> Option<Name> {
        match self.own {
            Some(Own::Read(index)) => Some(Name::Entry(index)),
            Some(Own::End) | None => None,
        }
    }

    /// Reports it failed, of a queue pair that goes on.
    pub(crate) fn tell_failed(&self, qp: &Qp, tally: &mut Tally, (syndrome, vendor): Failure) {
        sends::forget(qp, self.source, self.position);
        tally.errors += 1;
        let op = CqeOpcode::ReqErr;
        qp.complete(&Cqe::error(op, qp.qpn, self.counter, syndrome, vendor as u8));
    }

    /// Gives back the memory that held its WQE, to be used again.
    pub(crate) fn recycle(self, spare: &mut Vec<Vec<u8>>) {
        if self.copy.capacity() > 0 {
            spare.push(self.copy);
        }
    }
}

/// The operation of a packet that asks for an atomic.
pub(crate) fn atomic_operation(opcode: Opcode) -> Operation {
    match opcode {
        Opcode::AtomicCs => Operation::CompareSwap,
        Opcode::AtomicMaskedCs => Operation::MaskedCompareSwap,
        Opcode::AtomicMaskedFa => Operation::MaskedFetchAdd,
        _ => Operation::FetchAdd,
    }
}

/// Headers of packet `index` of a SEND or WRITE that takes so many packets from a PSN on, and the part
/// of the payload that it carries.
pub(crate) fn request(
    wqe: &Wqe,
    (first, packets): (Psn, u32),
    index: u32,
    mtu: Mtu,
    (service, dest): (Service, Qpn),
) -> (Headers, std::ops::Range<usize>) {
    let at = Position::new(index == 0, index + 1 == packets);
    let imm = matches!(wqe.opcode, Opcode::SendImm | Opcode::RdmaWriteImm);
    let write = wqe.opcode.has_remote();
    let invalidates = wqe.opcode == Opcode::SendInval;
    let tail = match (imm, invalidates) {
        (true, _) => Tail::Imm,
        (false, true) => Tail::Invalidate,
        (false, false) => Tail::Plain,
    };
    let operation = if write { Operation::write(at, imm) } else { Operation::send(at, tail) };
    let mut bth = Bth::new(Wire::new(service, operation), dest, first.plus(index));
    bth.solicited = wqe.flags.solicited && at.ends();
    let mut headers = Headers::new(bth);
    headers.ext.imm = (imm && at.ends()).then_some(wqe.imm);
    headers.ext.srqn = wqe.srqn;
    headers.ext.ieth = (invalidates && at.ends()).then_some(Rkey(wqe.imm));
    headers.ext.reth = wqe.remote.filter(|_| write && at.starts()).map(|remote| Reth {
        addr: remote.addr,
        rkey: remote.rkey,
        bytes: wqe.bytes,
    });
    (headers, mtu.part(index, wqe.bytes))
}

/// Checks every local entry before anything moves: keys, ranges, and the right to be written to.
pub(crate) fn check_local(wqe: &Wqe, bytes: &[u8], domain: Domain<'_>) -> Result<(), Failure> {
    let right = if wqe.opcode.scatters() { Right::LocalWrite } else { Right::Gather };
    domain.check(entries(wqe, bytes), right).map_err(|vendor| (Syndrome::LocalProt, vendor))
}

/// The entries that name memory.
pub(crate) fn entries<'a>(wqe: &Wqe, bytes: &'a [u8]) -> impl Iterator<Item = Sge> + use<'a> {
    wqe.pieces(bytes).filter_map(|piece| match piece {
        Piece::Data(sge) => Some(sge),
        Piece::Inline(_) => None,
    })
}
