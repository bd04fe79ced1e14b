//! A queue pair's sends as they come in: from a doorbell, a BlueFlame buffer or an in-band slot to
//! a WQE that was copied out and checked by itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::adversary::bells::Bells;
use crate::adversary::{Kind, sends};
use crate::objects::layout::MAX_RING;
use crate::objects::qp::Qp;
use crate::queue::inband::{Slot, Watch};
use crate::queue::uar::Rung;
use crate::script::WqeAct;
use crate::service::requester::StepContext;
use crate::trace;
use crate::vendor::{Vendor, of_parse};
use bellpush_abi::engine::State;
use bellpush_mem::{Dma, MemError};
use bellpush_nic::{Inband, QpType};
use bellpush_wire::PlainWrite;
use bellpush_wire::blueflame::{self, BF_BYTES};
use bellpush_wire::cqe::Syndrome;
use bellpush_wire::doorbell::{DBR_SND_OFFSET, Doorbell, UAR_BF1_OFFSET, ahead, dbr_counter};
use bellpush_wire::wqe::{Ctrl, MAX_WQE_BYTES, Opcode, WQEBB_BYTES, Wqe, WqeError};

/// Room for the longest WQE of a ring, or of a BlueFlame buffer.
pub(crate) type Scratch = [u8; MAX_WQE_BYTES.next_multiple_of(WQEBB_BYTES)];

/// Where a WQE came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Ring,
    BlueFlame,
    Slot,
    /// The NIC's own, which was in no queue.
    Nic,
}

/// A WQE in the scratch buffer.
pub(crate) struct Posted {
    pub(crate) source: Source,
    /// What a CQE says of it.
    pub(crate) counter: u16,
    pub(crate) blocks: u32,
    pub(crate) bytes: usize,
    pub(crate) wqe: Result<Wqe, (Syndrome, Vendor)>,
}

/// What is left of a WQE that was carried out: to move past it, to count it, to complete it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carried {
    pub(crate) source: Source,
    pub(crate) counter: u16,
    pub(crate) blocks: u32,
    pub(crate) opcode: Opcode,
    /// Of its payload.
    pub(crate) bytes: u32,
    pub(crate) cq_update: bool,
}

impl Carried {
    /// A WQE of the ring, by its position.
    pub(crate) fn plain(position: u64, write: &PlainWrite) -> Self {
        Self {
            source: Source::Ring,
            counter: position as u16,
            blocks: 1,
            opcode: Opcode::RdmaWrite,
            bytes: write.bytes,
            cq_update: write.flags.cq_update,
        }
    }
}

impl Posted {
    /// What is left of it once it was carried out as `wqe`, which is its own.
    pub(crate) fn carried(&self, wqe: &Wqe) -> Carried {
        let &Self { source, counter, blocks, .. } = self;
        let (opcode, bytes, cq_update) = (wqe.opcode, wqe.bytes, wqe.flags.cq_update);
        Carried { source, counter, blocks, opcode, bytes, cq_update }
    }
}

/// What is posted on a queue pair and was not taken yet.
pub(crate) struct SendQueue {
    pub(crate) qp: Arc<Qp>,
    /// Basic blocks taken, and known to be posted.
    ci: u64,
    producer: u64,
    /// Doorbell record as last seen: only a changed one counts, because a record that a ringer
    /// does not keep would seem to lie ahead after a wrap of its 16 bits.
    dbr_seen: u32,
    watch: Option<Watch>,
    /// The WQE that a script was asked about last, by position or ticket, and what it said: one may
    /// be fetched several times until it is taken.
    struck: Option<(u64, Option<WqeAct>)>,
    /// What is posted is shown late.
    late: bool,
    /// The doorbell record is read when a doorbell comes, and at no other time.
    bells: Option<Bells>,
}

impl SendQueue {
    pub(crate) fn new(qp: Arc<Qp>) -> Result<Self, MemError> {
        let watch = qp.attr.inband.as_ref().map(Watch::new).transpose()?;
        let adversary = qp.adversary.as_deref().filter(|_| watch.is_none());
        let kinds = [Kind::Payload, Kind::Record];
        let late = adversary.is_some_and(|it| kinds.into_iter().any(|kind| it.state.has(kind)));
        adversary.inspect(|it| it.sends().reset());
        // A register that has its bytes again after two rings would be a doorbell that is not seen.
        let rings_often = u64::from(qp.attr.sq_blocks) < MAX_RING;
        let bells = (watch.is_none() && rings_often).then(|| Bells::of(&qp)).flatten();
        Ok(Self { qp, ci: 0, producer: 0, dbr_seen: 0, watch, struck: None, late, bells })
    }

    /// Looks at what is newly posted, where it is shown late; says when more will be.
    #[inline]
    pub(crate) fn look(&mut self, cx: &mut StepContext<'_>) -> Option<u64> {
        self.late.then(|| sends::look(self, cx)).flatten()
    }

    /// Shows what is posted up to a position.
    pub(crate) fn show(&mut self, position: u64) {
        if position > self.producer {
            self.qp.mark(trace::Kind::Doorbell, 0, [self.producer, position]);
            self.producer = position;
        }
    }

    /// Whether the doorbell record is looked at without a ring.
    pub(crate) fn watches_record(&self) -> bool {
        let early = || self.qp.adversary.as_ref().is_some_and(|it| it.state.has(Kind::Record));
        self.goes_by_record() || self.late && early() || self.bells.is_some()
    }

    /// Takes what the doorbell record says for what was posted before a reset: not every program
    /// clears it then, and silicon reads it on a doorbell. The same of what an adversary was told of
    /// last, by a doorbell that the reset has found.
    pub(crate) fn disregard_record(&mut self) {
        let record = self.qp.queues.dbr.load_u32(DBR_SND_OFFSET, Ordering::Acquire);
        self.dbr_seen = record.unwrap_or(0);
        self.qp.adversary.as_deref().filter(|_| self.late).inspect(|it| it.sends().reset());
    }

    /// The queue pair leaves RESET. Programs clear their records before that, as libmlx5 does when RESET is reached: what
    /// a record says then that was cleared is new, also where it comes round to what it said before.
    pub(crate) fn begin(&mut self) {
        if self.qp.queues.dbr.load_u32(DBR_SND_OFFSET, Ordering::Acquire).ok() == Some(0) {
            self.dbr_seen = 0;
        }
    }

    /// Where the queue stands, for an engine elsewhere; its UAR registers and CQ are not the queue's.
    pub(crate) fn stands(&self) -> State {
        State {
            ci: self.ci,
            producer: self.producer,
            dbr_seen: self.dbr_seen,
            ticket: self.watch.as_ref().map_or(0, |watch| watch.ticket),
            ..State::default()
        }
    }

    /// Goes on where an engine elsewhere has come to.
    pub(crate) fn go_on(&mut self, state: &State) {
        (self.ci, self.producer) = (state.ci, state.producer);
        self.dbr_seen = state.dbr_seen;
        if let Some(watch) = &mut self.watch {
            watch.seek(state.ticket);
        }
    }

    pub(crate) fn is_inband(&self) -> bool {
        self.watch.is_some()
    }

    /// Whether the doorbell record alone says what is posted, and is looked at without a ring: after
    /// 2^16 blocks, two rings, a register has its bytes again, which is no change to a NIC that has
    /// not seen it between (models/push.pml, `WAITS_FOR_REGISTER`).
    pub(crate) fn goes_by_record(&self) -> bool {
        !self.is_inband() && u64::from(self.qp.attr.sq_blocks) >= MAX_RING
    }

    /// Learns the producer index from UAR registers that changed, and from the doorbell record.
    ///
    /// The later of the two counts. Silicon reads the record on a doorbell and trusts it; that a
    /// register alone suffices is this NIC's reading, for ringers that keep no record. It does not
    /// suffice in a ring of 2^15 blocks: a register that is seen a whole ring late gives the index
    /// of a whole ring ahead (models/push.pml, `SHORT_COUNTERS`).
    pub(crate) fn ring(&mut self, registers: Rung) {
        let blocks = self.qp.attr.sq_blocks;
        let counts = !self.goes_by_record();
        let mut next = None;
        for register in registers.into_iter().flatten().filter(|_| counts) {
            let bell = Doorbell::parse(register);
            if bell.qpn == self.qp.qpn {
                next = Some(bell.next);
                if self.bells.is_none() {
                    self.learn(ahead(bell.next, self.ci, blocks));
                }
            }
        }
        // Acquire: the WQEs were written before the record. The register was loaded before it, so
        // a record written before the doorbell is seen here.
        let record = self.qp.queues.dbr.load_u32(DBR_SND_OFFSET, Ordering::Acquire);
        let record = record.unwrap_or(self.dbr_seen);
        let mut is_news = record != self.dbr_seen;
        if let Some(bells) = &mut self.bells {
            bells.rung(next, record, self.dbr_seen);
            // After a reset it may count as many as before.
            is_news |= next.is_some();
        }
        if is_news {
            self.dbr_seen = record;
            self.learn(ahead(dbr_counter(record), self.ci, blocks));
        }
    }

    /// Whether the doorbell record is read when a doorbell comes, and at no other time.
    pub(crate) fn goes_by_bell(&self) -> bool {
        self.bells.is_some()
    }

    /// Looks at the doorbell record where no doorbell has come.
    pub(crate) fn glance(&mut self) {
        match &mut self.bells {
            Some(bells) => bells.unrung(&self.qp, self.dbr_seen),
            None => self.ring(Rung::default()),
        }
    }

    fn learn(&mut self, distance: Option<u32>) {
        let Some(distance) = distance else { return };
        let known = self.ci + u64::from(distance);
        match self.qp.adversary.as_deref().filter(|_| self.late) {
            Some(it) => it.sends().learn(known),
            None => self.show(known),
        }
    }

    /// Whether a visit would find anything: for an in-band queue pair without news, one load.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        match &self.watch {
            Some(watch) => !watch.is_waiting(),
            None => self.ci < self.producer || self.qp.attr.blueflame || self.holds(),
        }
    }

    /// Whether something is posted that is not shown yet.
    fn holds(&self) -> bool {
        let of = self.qp.adversary.as_deref().filter(|_| self.late);
        of.is_some_and(|it| it.sends().holds(self.producer))
    }

    /// Position in the ring of the next WQE to be taken.
    pub(crate) fn position(&self) -> u64 {
        self.ci
    }

    /// The slots that WQEs come in, and the next one's ticket.
    pub(crate) fn slots(&self) -> Option<(&Inband, u64)> {
        self.watch.as_ref().map(|watch| (watch.cfg(), watch.ticket))
    }

    /// Whether the next slot is untouched and the one after it has begun.
    #[inline]
    pub(crate) fn has_slots_in_a_row(&self) -> bool {
        self.qp.faults.is_none()
            && self.watch.as_ref().is_some_and(|watch| watch.is_fresh() && watch.has_company())
    }

    /// Position after the last block that is known to be posted.
    pub(crate) fn producer(&self) -> u64 {
        self.producer
    }

    /// The bytes that a WQE was parsed from.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, posted: &Posted, scratch: &'a Scratch) -> &'a [u8] {
        match &self.watch {
            Some(watch) => watch.stream(posted.bytes),
            None => &scratch[..posted.bytes],
        }
    }

    /// Copies the next WQE to the scratch buffer and parses the copy.
    #[inline]
    pub(crate) fn fetch(&mut self, scratch: &mut Scratch) -> Option<Posted> {
        let posted = self.fetch_posted(scratch)?;
        Some(if self.qp.faults.is_none() { posted } else { self.strike(posted) })
    }

    /// What a script makes of a WQE.
    #[cold]
    fn strike(&mut self, posted: Posted) -> Posted {
        let Some(faults) = self.qp.faults.as_ref().filter(|_| !self.qp.is_in_error()) else {
            return posted; // flushed, which is fault enough
        };
        let place = self.watch.as_ref().map_or(self.ci, |watch| watch.ticket);
        let act = match (self.struck, &posted.wqe) {
            (Some((at, act)), _) if at == place => act,
            (_, Ok(wqe)) => faults.on_wqe(self.qp.qpn, wqe.opcode),
            (_, Err(_)) => return posted,
        };
        self.struck = Some((place, act));
        let failure = match act {
            None => return posted,
            Some(WqeAct::Fail(syndrome)) => (syndrome, Vendor::Script),
            // When its turn comes, the queue pair's event is pushed.
            Some(WqeAct::Fatal | WqeAct::QpError) => (Syndrome::WrFlush, Vendor::Script),
        };
        Posted { wqe: Err(failure), ..posted }
    }

    fn fetch_posted(&mut self, scratch: &mut Scratch) -> Option<Posted> {
        if let Some(watch) = &mut self.watch {
            return fetch_slot(watch, &self.qp);
        }
        if self.ci < self.producer {
            return Some(self.fetch_ring(scratch));
        }
        self.qp.attr.blueflame.then(|| self.fetch_blueflame(scratch)).flatten()
    }

    #[inline]
    fn fetch_ring(&self, scratch: &mut Scratch) -> Posted {
        let known = (self.producer - self.ci) as u32;
        let (blocks, wqe) = self.read_ring(self.ci, known, scratch);
        let bytes = blocks as usize * WQEBB_BYTES;
        Posted { source: Source::Ring, counter: self.ci as u16, blocks, bytes, wqe }
    }

    /// The plain WRITE at a position of the ring, and the block that it was read from, if one is posted there that is
    /// right by itself.
    #[inline]
    pub(crate) fn peek(&self, position: u64) -> Option<(PlainWrite, [u8; WQEBB_BYTES])> {
        // A script strikes whole WQEs.
        if position >= self.producer || self.is_inband() || self.qp.faults.is_some() {
            return None;
        }
        // Not for datagrams: these have another segment there, and are sent over packets alone.
        let start = self.place(position);
        let words = self.qp.queues.sq.read_words::<{ WQEBB_BYTES / 8 }>(start).ok()?;
        let block = bytemuck::cast(words);
        let write = PlainWrite::parse(&block)?;
        let is_ours = write.index == position as u16 && write.qpn == self.qp.qpn;
        is_ours.then_some((write, block))
    }

    /// Where a position of the ring lies. The number of blocks is a power of two.
    #[inline]
    fn place(&self, position: u64) -> usize {
        (position as usize & (self.qp.attr.sq_blocks as usize - 1)) * WQEBB_BYTES
    }

    /// The WRITE in the slot of a ticket at or behind the next one, if its header has come, it is right by itself and all
    /// of its payload is inline; lines of that may be missing. Nothing of the next slot has been taken.
    pub(crate) fn peek_slot(&mut self, ticket: u64) -> Option<PlainWrite> {
        let write = self.watch.as_mut()?.peek(ticket)?;
        (write.index == ticket as u16 && write.qpn == self.qp.qpn).then_some(write)
    }

    /// Copies a WQE that was taken from the ring before, and is not complete, once more. It may
    /// have been changed since: the program's memory is hostile.
    pub(crate) fn fetch_again(
        &self,
        position: u64,
        blocks: u32,
        scratch: &mut Scratch,
    ) -> Result<Wqe, (Syndrome, Vendor)> {
        self.read_ring(position, blocks, scratch).1
    }

    /// Copies the WQE at a position of the ring, of at most `known` blocks, and says how many it
    /// takes.
    #[inline]
    pub(crate) fn read_ring(
        &self,
        position: u64,
        known: u32,
        scratch: &mut [u8],
    ) -> (u32, Result<Wqe, (Syndrome, Vendor)>) {
        let ring = &self.qp.queues.sq;
        let size = self.qp.attr.sq_blocks as usize * WQEBB_BYTES;
        let start = self.place(position);
        let checked = "the ring was checked when the queue pair was created";
        ring.read(start, &mut scratch[..WQEBB_BYTES]).expect(checked);
        let ctrl = Ctrl::parse(&scratch[..WQEBB_BYTES]).expect("a block holds it");
        let blocks = ctrl.blocks().min(known);
        let bytes = blocks as usize * WQEBB_BYTES;
        if blocks > 1 {
            // The later blocks may begin again at the ring's start.
            let before_end = (size - start).min(bytes);
            let (head, tail) = scratch[..bytes].split_at_mut(before_end);
            ring.read(start + WQEBB_BYTES, &mut head[WQEBB_BYTES..]).expect(checked);
            ring.read(0, tail).expect(checked);
        }
        if ctrl.blocks() > known {
            return (blocks, Err((Syndrome::LocalQpOp, Vendor::Producer)));
        }
        let wqe = match self.qp.kind {
            QpType::Ud => Wqe::parse_datagram(&scratch[..bytes]),
            QpType::XrcSend => Wqe::parse_xrc(&scratch[..bytes]),
            QpType::Dci => Wqe::parse_dc(&scratch[..bytes]),
            _ => Wqe::parse(&scratch[..bytes]),
        };
        (blocks, check(wqe, position as u16, &self.qp))
    }

    /// A whole WQE in the UAR's second BlueFlame buffer. Its sender uses it only while nothing
    /// else is outstanding, so that it is next in order.
    fn fetch_blueflame(&self, scratch: &mut Scratch) -> Option<Posted> {
        let uar = &self.qp.queues.uar;
        let first = uar.load_u64(UAR_BF1_OFFSET, Ordering::Acquire).ok()?;
        if first == 0 {
            return None;
        }
        // A cheap look at the first 8 bytes; what counts is the copy that the check word covers.
        let blocks_of = |bytes: &[u8]| {
            let ctrl = Ctrl::parse(bytes).ok()?;
            let ours = ctrl.index == self.ci as u16 && ctrl.qpn == self.qp.qpn && ctrl.ds > 0;
            let bytes = ctrl.blocks() as usize * WQEBB_BYTES;
            (ours && bytes <= BF_BYTES).then_some(bytes)
        };
        let mut look = [0; 16];
        look[..8].copy_from_slice(&first.to_ne_bytes());
        let bytes = blocks_of(&look)?;
        let copy = &mut scratch[..bytes];
        uar.read(UAR_BF1_OFFSET, copy).ok()?;
        if blocks_of(copy) != Some(bytes) || !blueflame::is_whole(copy) {
            return None;
        }
        let wqe = check(Wqe::parse(copy), self.ci as u16, &self.qp).and_then(|wqe| {
            // The check word lies where other opcodes have their immediate.
            let plain = wqe.opcode == Opcode::RdmaWrite;
            if plain { Ok(wqe) } else { Err((Syndrome::LocalQpOp, Vendor::Opcode)) }
        });
        let (counter, blocks) = (self.ci as u16, (bytes / WQEBB_BYTES) as u32);
        Some(Posted { source: Source::BlueFlame, counter, blocks, bytes, wqe })
    }

    fn clear_blueflame(&self) {
        let cleared = self.qp.queues.uar.fill(UAR_BF1_OFFSET, WQEBB_BYTES, 0);
        cleared.expect("the page was checked when the queue pair was created");
    }

    /// Has it in the trace that a WQE was taken, before it is moved past.
    #[inline]
    pub(crate) fn trace_fetched(&self, posted: &Posted) {
        let Some(trace) = self.qp.events.trace() else { return };
        let wqe = posted.wqe.as_ref().ok();
        let opcode = wqe.map_or(Opcode::Nop, |wqe| wqe.opcode) as u8;
        let signaled = wqe.is_some_and(|wqe| wqe.flags.cq_update);
        let place = self.watch.as_ref().map_or(self.ci, |watch| watch.ticket);
        let b = trace::fetched(opcode, posted.source as u8, posted.blocks, signaled);
        trace.mark(trace::Kind::Fetched, self.qp.qpn.0, posted.counter, [place, b]);
    }

    /// Moves past a WQE, before its CQE tells anyone that its place is free.
    #[inline]
    pub(crate) fn consume(&mut self, source: Source, blocks: u32) {
        match source {
            Source::Slot => {
                self.watch.as_mut().expect("a slot has a window").advance();
                return;
            }
            // The buffer is the sender's again when it sees the CQE.
            Source::BlueFlame => self.clear_blueflame(),
            // A doorbell may overtake the look at the buffer, and then the WQE came by the ring. The
            // copy in the buffer must go: 2^16 blocks later its index would be the next one again.
            // A sender uses the buffer only while it is idle, so nothing newer can be in it.
            Source::Ring if self.qp.attr.blueflame => self.clear_blueflame(),
            Source::Ring | Source::Nic => {}
        }
        self.ci += u64::from(blocks);
        self.producer = self.producer.max(self.ci);
    }
}

fn check(wqe: Result<Wqe, WqeError>, index: u16, qp: &Qp) -> Result<Wqe, (Syndrome, Vendor)> {
    let wqe = wqe.map_err(of_parse)?;
    check_place(&wqe, index, qp)?;
    Ok(wqe)
}

fn check_place(wqe: &Wqe, index: u16, qp: &Qp) -> Result<(), (Syndrome, Vendor)> {
    let wrong = if wqe.index != index {
        Vendor::Index
    } else if wqe.qpn != qp.qpn {
        Vendor::Qpn
    } else {
        return Ok(());
    };
    Err((Syndrome::LocalQpOp, wrong))
}

fn fetch_slot(watch: &mut Watch, qp: &Qp) -> Option<Posted> {
    let counter = watch.ticket as u16;
    let (bytes, wqe) = match watch.fetch() {
        Slot::Waiting => return None,
        Slot::Bad(syndrome, vendor) => (0, Err((syndrome, vendor))),
        Slot::Whole(bytes) => {
            let wqe = Wqe::parse_stream(watch.stream(bytes)).map_err(of_parse);
            (bytes, wqe.and_then(|wqe| check_place(&wqe, counter, qp).map(|()| wqe)))
        }
    };
    Some(Posted { source: Source::Slot, counter, blocks: 0, bytes, wqe })
}
