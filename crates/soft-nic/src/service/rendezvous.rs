//! Messages to a shared receive queue that matches tags, and the rendezvous that they ask for.
//!
//! A rendezvous' message says where its payload lies. When it has matched, the NIC reads the payload by a READ of its
//! own, and tells the sender by a SEND; neither is in the send queue.

use std::collections::VecDeque;

use crate::objects::qp::Qp;
use crate::queue::recv::{Name, Receive};
use crate::service::outstanding::{MAX_PACKETS, Outstanding, Own};
use crate::service::payload::Domain;
use crate::service::reassembly::Refused;
use bellpush_nic::{Mtu, QpState, QueuePair};
use bellpush_wire::roce::Position;
use bellpush_wire::tm::{Kind, Rvh, TMH_BYTES, TagInfo, Tmh, Told};
use bellpush_wire::wqe::{
    Flags, INVALID_LKEY, MAX_MESSAGE_BYTES, Opcode, Piece, SendWr, Sge, WQEBB_BYTES,
};
use bellpush_wire::{Iova, Psn, Qpn};

/// A rendezvous that has matched and was not begun.
pub(crate) struct Rendezvous {
    /// Place of the entry, which the CQE says.
    pub(crate) index: u16,
    /// Where the payload goes.
    to: Sge,
    from: Rvh,
    /// The message that ends it.
    end: [u8; TMH_BYTES],
}

impl Rendezvous {
    /// The READ, as a WQE.
    fn read(&self, qpn: Qpn, into: &mut Vec<u8>) {
        let Rvh { addr, rkey, .. } = self.from;
        let wr = SendWr::new(Opcode::RdmaRead).to(addr, rkey);
        emit(&wr.payload(&[Piece::Data(self.to)]), qpn, into);
    }

    /// The SEND, as a WQE. The READ's responses come before it leaves: the sender may let the payload go.
    fn end(&self, qpn: Qpn, into: &mut Vec<u8>) {
        let flags = Flags { fence: true, ..Flags::default() };
        let wr = SendWr { flags, ..SendWr::new(Opcode::Send) };
        emit(&wr.payload(&[Piece::Inline(&self.end)]), qpn, into);
    }
}

/// Rendezvous that have matched, the first of which may have been begun.
#[derive(Default)]
pub(crate) struct Pending {
    queue: VecDeque<Rendezvous>,
    /// The READ of the first was sent, so that its end is next.
    ends: bool,
}

impl Pending {
    pub(crate) fn extend(&mut self, matched: impl Iterator<Item = Rendezvous>) {
        self.queue.extend(matched);
    }

    /// The next message, if there is one. `spare` is memory for WQEs.
    pub(crate) fn next(
        &mut self,
        qp: &Qp,
        domain: Domain<'_>,
        from: (Psn, Mtu),
        spare: &mut Vec<Vec<u8>>,
    ) -> Option<Outstanding> {
        let first = self.queue.front()?;
        let mut copy = spare.pop().unwrap_or_default();
        let own = match self.ends {
            false => {
                first.read(qp.qpn, &mut copy);
                Own::Read(first.index)
            }
            true => {
                first.end(qp.qpn, &mut copy);
                self.queue.pop_front();
                Own::End
            }
        };
        self.ends = !self.ends;
        Some(Outstanding::own(copy, own, domain, from))
    }

    /// The queue pair ends: those of which no READ was sent. One that was is told of for itself.
    pub(crate) fn cancel(&mut self) -> impl Iterator<Item = Name> {
        let sent = usize::from(std::mem::take(&mut self.ends));
        self.queue.drain(..).skip(sent).map(|rendezvous| Name::Entry(rendezvous.index))
    }
}

fn emit(wr: &SendWr<'_>, qpn: Qpn, into: &mut Vec<u8>) {
    into.resize(wr.blocks() as usize * WQEBB_BYTES, 0);
    wr.emit(0, qpn, into).expect("it is short");
}

/// Where the SEND that begins with these bytes goes.
#[expect(clippy::large_enum_variant, reason = "no packet allocates memory")]
pub(crate) enum Place {
    Receive(Receive),
    /// Nowhere: its payload is to be read.
    Rendezvous(Rendezvous),
}

/// Finds the place of a SEND at its first packet. `None`: the queue pair matches no tags.
pub(crate) fn place(
    qp: &Qp,
    (at, message): (Position, &[u8]),
    mtu: Mtu,
) -> Result<Option<Place>, Refused> {
    let Some(tags) = qp.srq.as_ref().and_then(|srq| srq.tags()) else { return Ok(None) };
    let tmh = Tmh::parse(message).filter(|tmh| tmh.kind != Kind::NoTag);
    // Its header is in one packet, or makes no sense.
    let rvh = Rvh::parse(message).filter(|_| at == Position::Only);
    let is_whole = |tmh: &&Tmh| tmh.kind == Kind::Eager || rvh.is_some();
    // Locked until a receive was taken: an entry that is appended meanwhile is not for this message.
    let mut list = tags.list();
    let entry = tmh.as_ref().filter(is_whole).and_then(|tmh| list.take(tmh).zip(Some(tmh)));
    let Some((entry, tmh)) = entry else {
        let mut receive = qp.receives().take(qp).cloned().ok_or(Refused::NotReady)?;
        let told = if tmh.is_some() { Told::Unexpected } else { Told::NoTag };
        if tmh.is_some() {
            list.count_unexpected();
        }
        receive.tag = Some(TagInfo::message(told, 0, [0; TMH_BYTES]));
        return Ok(Some(Place::Receive(receive)));
    };
    let told = match (tmh.kind, rvh, at) {
        (Kind::Rendezvous, Some(from), _) => match readable(qp, from, entry.buffer, mtu) {
            Some(to) => {
                let (index, end) = (entry.index, tmh.end_of_rendezvous());
                return Ok(Some(Place::Rendezvous(Rendezvous { index, to, from, end })));
            }
            None => Told::ConsumedForSoftware,
        },
        (_, _, Position::Only) => Told::ConsumedMessage,
        _ => Told::Expected,
    };
    let info = TagInfo::message(told, entry.index, tmh.bytes);
    Ok(Some(Place::Receive(Receive::of_tag(entry.buffer, info))))
}

/// The memory that a payload is read to; `None` if this queue pair cannot read it.
fn readable(qp: &Qp, from: Rvh, buffer: Option<Sge>, mtu: Mtu) -> Option<Sge> {
    let reads = QueuePair::state(qp) == QpState::Rts && qp.attributes().max_rd_atomic > 0;
    let none = Sge { bytes: 0, addr: Iova(0), lkey: INVALID_LKEY };
    let to = buffer.unwrap_or(none);
    let fits = from.bytes <= to.bytes.min(MAX_MESSAGE_BYTES);
    let packets = mtu.packets(from.bytes);
    let short = packets < MAX_PACKETS;
    (reads && fits && short).then_some(Sge { bytes: from.bytes, ..to })
}

/// Bytes of the message that are not payload of the entry: the header goes to the CQE.
pub(crate) fn header_bytes(tag: Option<&TagInfo>) -> usize {
    match tag.map(|tag| tag.told) {
        Some(Told::Expected | Told::ConsumedMessage) => TMH_BYTES,
        _ => 0,
    }
}
