//! Whether the queues hold what was posted, and nothing else.

use bellpush::abi::bench::{POST_REMOTE_BYTES, POST_SRC_BYTES};
use bellpush::abi::wire::Code;
use bellpush::wire::doorbell::{Doorbell, dbr_counter};
use bellpush::wire::inband::LineFormat;
use bellpush::wire::wqe::{Opcode, Operands, Piece, SendWr, Sge, WQEBB_BYTES, Wqe};
use bellpush::wire::{Iova, Lkey, Qpn, Rkey};

use super::cases::{Case, Size, What};
use super::queues::{
    FIRST_QPN, FIRST_SEQUENCE, Found, LOCAL_LKEY, REMOTE_IOVA, REMOTE_RKEY, SINK_IOVA, SINK_LKEY,
    SLOT_BYTES, WINDOW_IOVA, WINDOW_LKEY, source,
};

const MESSAGE_BYTES: u64 = 64;
/// Bytes whose payload travels (`small_bytes` in `kernels/bench/post.cuh`).
const SMALL_BYTES: usize = 8;
/// Messages that differ.
const MESSAGES: u32 = POST_REMOTE_BYTES as u32 / 64;
/// In the control segment: whether the WQE asks for a CQE, which is the verb's own business.
const FLAGS_AT: usize = 11;
/// Bytes of the streams that slots may hold: 8 bytes, and an addition.
const STREAM_BYTES: usize = 36 + SMALL_BYTES;
const MOST_STREAM_BYTES: usize = 64;

/// What is wrong with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error("a call returned: {0}")]
    Call(Code),
    #[error("a queue pair ended: {0}")]
    Ended(Code),
    #[error("queue pair {qp}: {found} WQEs or slots were stored, not {wanted}")]
    Count { qp: u32, found: u32, wanted: u32 },
    #[error("queue pair {qp}: line {line} of slot {slot} has sequence {found}")]
    Sequence { qp: u32, slot: u32, line: u32, found: u32 },
    #[error("queue pair {qp}: number {at} is not the WQE that was posted there")]
    Content { qp: u32, at: u32 },
    #[error("queue pair {qp}: message {message} was not posted as often as its callers said")]
    Message { qp: u32, message: u32 },
    #[error("queue pair {qp}: the doorbell record counts {found}, not {wanted}")]
    Record { qp: u32, found: u16, wanted: u16 },
    #[error("queue pair {qp}: the last doorbell is of index {found} on {on:#x}, not {wanted}")]
    Bell { qp: u32, found: u16, on: u32, wanted: u16 },
}

/// Checks statuses, contents and order of all queues, and the last doorbells.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(case: &Case, size: Size, local_iova: u64, found: &Found) -> Result<(), Wrong> {
    let worst = found.results.iter().map(|r| r.status).max().unwrap_or(0);
    Code::check(worst).map_err(Wrong::Call)?;
    Code::check(found.status.code).map_err(Wrong::Ended)?;
    let posted = Posted { case, ring: size.ring, local_iova, source: source() };
    for qp in 0..size.qps {
        let ring = size.ring as usize;
        if case.what.is_inband() {
            let bytes = ring * SLOT_BYTES;
            posted.slots(qp, size, &found.window[qp as usize * bytes..][..bytes])?;
            continue; // nothing rings
        }
        let bytes = ring * WQEBB_BYTES;
        let window = found.window.chunks_exact(SLOT_BYTES).skip(qp as usize * ring).take(ring);
        posted.wqes(qp, size, &found.sq[qp as usize * bytes..][..bytes], window)?;
        if case.rings_in_order() {
            rung(qp, size, found)?;
        }
    }
    Ok(())
}

fn rung(qp: u32, size: Size, found: &Found) -> Result<(), Wrong> {
    let wanted = size.wqes as u16; // a doorbell counts modulo 2^16
    let record = dbr_counter(found.records[qp as usize]);
    if record != wanted {
        return Err(Wrong::Record { qp, found: record, wanted });
    }
    let stored = found.doorbells[qp as usize];
    if wanted == 0 && stored == 0 {
        return Ok(()); // nothing was posted, and nobody rang
    }
    let bell = Doorbell::parse(stored);
    if (bell.qpn.0, bell.next) != (FIRST_QPN + qp, wanted) {
        return Err(Wrong::Bell { qp, found: bell.next, on: bell.qpn.0, wanted });
    }
    Ok(())
}

struct Posted<'a> {
    case: &'a Case,
    /// Slots of each window.
    ring: u32,
    local_iova: u64,
    source: Vec<u8>,
}

impl Posted<'_> {
    /// What stands in a send queue and, of pushes, in the window's slots beside it.
    fn wqes<'a>(
        &self,
        qp: u32,
        size: Size,
        sq: &[u8],
        mut window: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Wrong> {
        let mut tally = Tally::new(qp, size);
        let stored = sq.chunks_exact(WQEBB_BYTES);
        tally.count(stored.clone())?;
        for (at, block) in (0..size.wqes).zip(stored) {
            let in_order = at / self.case.what.wqes();
            let message = match self.case.shape.in_order {
                true => in_order,
                false => tally.add(at, remote_of(block).ok_or(Wrong::Content { qp, at })?)?,
            };
            let mut wanted = [0; WQEBB_BYTES];
            self.emit(message, at, qp, &mut wanted).ok_or(Wrong::Content { qp, at })?;
            let slot = window.next().unwrap_or_default();
            if !alike(block, &wanted) || !self.is_slot_of(message, slot) {
                return Err(Wrong::Content { qp, at });
            }
        }
        let at = size.wqes;
        match window.all(|slot| slot.iter().all(|b| *b == 0)) {
            true => tally.verdict(self.case),
            false => Err(Wrong::Content { qp, at }),
        }
    }

    /// Whether a slot holds a message's bytes and nothing else; where nothing is pushed there is none.
    fn is_slot_of(&self, message: u32, slot: &[u8]) -> bool {
        if slot.is_empty() {
            return self.case.what != What::Pushed;
        }
        let at = u64::from(message) * MESSAGE_BYTES % POST_SRC_BYTES as u64;
        let (bytes, behind) = slot.split_at(MESSAGE_BYTES as usize);
        *bytes == self.source[at as usize..][..bytes.len()] && behind.iter().all(|b| *b == 0)
    }

    fn slots(&self, qp: u32, size: Size, window: &[u8]) -> Result<(), Wrong> {
        let mut tally = Tally::new(qp, size);
        let stored = window.chunks_exact(SLOT_BYTES);
        tally.count(stored.clone())?;
        let format = LineFormat::L12S4;
        for (slot, bytes) in (0..size.wqes).zip(stored) {
            let gather = |stream: &mut [u8]| {
                let lines = format.lines(stream.len());
                let lines = &bytes[..lines * format.line_bytes()];
                format.gather(lines, FIRST_SEQUENCE, stream).map_err(|line| {
                    let found = format.seq_of(&lines[line * format.line_bytes()..]);
                    Wrong::Sequence { qp, slot, line: line as u32, found }
                })?;
                Ok(lines.len())
            };
            let wrong = Wrong::Content { qp, at: slot };
            let mut stream = [0; MOST_STREAM_BYTES];
            let message = match self.case.shape.in_order {
                true => slot / self.case.what.wqes(),
                false => {
                    let short = &mut stream[..STREAM_BYTES];
                    gather(short)?;
                    tally.add(slot, remote_of(short).ok_or(wrong)?)?
                }
            };
            let mut wanted = [0; MOST_STREAM_BYTES];
            let end = self.emit(message, slot, qp, &mut wanted).ok_or(wrong)?;
            let lines = gather(&mut stream[..end])?;
            let behind = &bytes[lines..];
            if !alike(&stream[..end], &wanted[..end]) || behind.iter().any(|b| *b != 0) {
                return Err(wrong);
            }
        }
        tally.verdict(self.case)
    }

    /// Builds the WQE of a message, number `at` of its queue, or its stream; returns a stream's length.
    fn emit(&self, message: u32, at: u32, qp: u32, into: &mut [u8]) -> Option<usize> {
        let offset = |region: usize| u64::from(message) * MESSAGE_BYTES % region as u64;
        let (remote, local) = (offset(POST_REMOTE_BYTES), offset(POST_SRC_BYTES));
        let (index, qpn) = (at as u16, Qpn(FIRST_QPN + qp));
        let write =
            SendWr::new(Opcode::RdmaWrite).to(Iova(REMOTE_IOVA + remote), Rkey(REMOTE_RKEY));
        let data =
            |addr, lkey, bytes| Piece::Data(Sge { addr: Iova(addr), lkey: Lkey(lkey), bytes });
        let small = [Piece::Inline(&self.source[local as usize..][..SMALL_BYTES])];
        let large = [data(self.local_iova + local, LOCAL_LKEY, MESSAGE_BYTES as u32)];
        let of_slot = u64::from(at) + u64::from(qp) * u64::from(self.ring);
        let slot = WINDOW_IOVA + of_slot * SLOT_BYTES as u64;
        let pushed = [data(slot, WINDOW_LKEY, MESSAGE_BYTES as u32)];
        let sink = [data(SINK_IOVA, SINK_LKEY, 8)];
        let add = SendWr::new(Opcode::AtomicFa).to(Iova(REMOTE_IOVA), Rkey(REMOTE_RKEY));
        let add = SendWr { atomic: Some(Operands { swap_add: 1, compare: 0 }), ..add };
        let set = SendWr::new(Opcode::RdmaWrite).to(Iova(REMOTE_IOVA), Rkey(REMOTE_RKEY));
        let number = (u64::from(message) + 1).to_le_bytes();
        let number = [Piece::Inline(&number)];
        let is_signal = at % 2 == 1;
        let with = |opcode| SendWr { opcode, ..write };
        let result = [data(self.local_iova + local, LOCAL_LKEY, 8)];
        let atomic = |opcode, swap_add, compare| SendWr {
            atomic: Some(Operands { swap_add, compare }),
            payload: &result,
            ..with(opcode)
        };
        let imm = SendWr { imm: message, ..with(Opcode::RdmaWriteImm) };
        let number_imm = SendWr { imm: message, opcode: Opcode::RdmaWriteImm, ..set };
        let compare = u64::from(message);
        let emitted = match self.case.what {
            What::InbandAdd => return add.payload(&sink).emit_stream(at.into(), qpn, into).ok(),
            What::InbandSignal if is_signal => {
                return add.payload(&sink).emit_stream(at.into(), qpn, into).ok();
            }
            What::InbandImm if is_signal => return imm.emit_stream(at.into(), qpn, into).ok(),
            What::InbandGet => {
                return with(Opcode::RdmaRead)
                    .payload(&large)
                    .emit_stream(at.into(), qpn, into)
                    .ok();
            }
            What::InbandFetchAdd => {
                return atomic(Opcode::AtomicFa, 1, 0).emit_stream(at.into(), qpn, into).ok();
            }
            What::InbandSet => return set.payload(&number).emit_stream(at.into(), qpn, into).ok(),
            What::Inband | What::InbandSignal | What::InbandImm => {
                return write.payload(&small).emit_stream(at.into(), qpn, into).ok();
            }
            What::Inline => write.payload(&small).emit(index, qpn, into),
            What::AddAlone => add.payload(&sink).emit(index, qpn, into),
            What::Signal if is_signal => add.payload(&sink).emit(index, qpn, into),
            What::Imm => imm.payload(&large).emit(index, qpn, into),
            What::ImmAlone => number_imm.emit(index, qpn, into),
            What::Get => with(Opcode::RdmaRead).payload(&large).emit(index, qpn, into),
            What::FetchAdd => atomic(Opcode::AtomicFa, 1, 0).emit(index, qpn, into),
            What::CompareSwap => {
                atomic(Opcode::AtomicCs, compare + 1, compare).emit(index, qpn, into)
            }
            What::SetAlone => set.payload(&number).emit(index, qpn, into),
            What::PutSet if is_signal => set.payload(&number).emit(index, qpn, into),
            What::Nothing => return None,
            What::Pushed => write.payload(&pushed).emit(index, qpn, into),
            What::Put | What::Signal | What::PutSet => write.payload(&large).emit(index, qpn, into),
        };
        emitted.ok().map(|_| 0)
    }
}

/// Offset in the peer's region of a WQE that could be one of ours.
fn remote_of(wqe: &[u8]) -> Option<u64> {
    let parsed = if wqe.len() == STREAM_BYTES { Wqe::parse_stream(wqe) } else { Wqe::parse(wqe) };
    parsed.ok()?.remote?.addr.0.checked_sub(REMOTE_IOVA)
}

fn alike(found: &[u8], wanted: &[u8]) -> bool {
    found[..FLAGS_AT] == wanted[..FLAGS_AT] && found[FLAGS_AT + 1..] == wanted[FLAGS_AT + 1..]
}

/// How often each message was posted on a queue pair.
struct Tally {
    qp: u32,
    size: Size,
    messages: Vec<u32>,
}

impl Tally {
    fn new(qp: u32, size: Size) -> Self {
        Self { qp, size, messages: vec![0; MESSAGES as usize] }
    }

    /// Whether as many places of a queue were written as were posted.
    fn count<'a>(&self, places: impl Iterator<Item = &'a [u8]>) -> Result<(), Wrong> {
        let found = places.filter(|place| place.iter().any(|b| *b != 0)).count() as u32;
        let (qp, wanted) = (self.qp, self.size.wqes);
        if found == wanted { Ok(()) } else { Err(Wrong::Count { qp, found, wanted }) }
    }

    fn add(&mut self, at: u32, remote: u64) -> Result<u32, Wrong> {
        let message = (remote / MESSAGE_BYTES) as usize;
        let seen = self.messages.get_mut(message).ok_or(Wrong::Content { qp: self.qp, at })?;
        *seen += 1;
        Ok(message as u32)
    }

    /// Callers have different messages, and each all of its own.
    fn verdict(&self, case: &Case) -> Result<(), Wrong> {
        if case.shape.in_order {
            return Ok(()); // each was compared in its place
        }
        let times =
            |message| self.size.puts / MESSAGES + u32::from(message < self.size.puts % MESSAGES);
        let wrong = (0..MESSAGES).find(|&m| self.messages[m as usize] != times(m));
        wrong.map_or(Ok(()), |message| Err(Wrong::Message { qp: self.qp, message }))
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
