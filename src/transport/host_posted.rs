//! Paths that the host posts: the CPU builds the WQE, and the CPU or the stream rings.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::order::OneStream;
use super::rdma::{Rdma, WindowMem};
use super::reset::Tally;
use super::{
    Address, CompareSwap, Error, FetchAdd, Get, Kick, Local, Memory, Options, Path, Progress, Put,
    Remote,
};
use crate::abi::wire::Code;
use crate::gpu::{Gpu, Mapped, Stream};
use crate::mem::PAGE_BYTES;
use crate::nic::queue::{Bell, HostQp};
use crate::nic::{Access, Mr, Nic};
use crate::wire::Iova;
use crate::wire::cqe::CqeOpcode;
use crate::wire::wqe::{self, Opcode, Operands, Piece, SendWr, Sge};

pub(super) struct HostPosted {
    pub rdma: Rdma,
    kick: Kick,
    timeout: Duration,
    credits: bool,
    /// Where results of atomics go that nobody asked for.
    sink: (Mapped, Mr),
    state: Mutex<State>,
}

struct State {
    qp: HostQp,
    order: OneStream,
    /// WQEs posted; one basic block each, so a WQE's ticket is its index.
    posted: u64,
    done: u64,
    max_in_use: u32,
    failure: Option<(u8, u8, u64)>,
}

impl HostPosted {
    pub fn new(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        path: Path,
        local: Memory,
        options: &Options,
    ) -> Result<Self, Error> {
        let rdma = Rdma::new(gpu, nic, path, local, options)?;
        let sink = gpu.alloc_mapped(PAGE_BYTES, options.host_numa)?;
        let access = Access { local_write: true, ..Access::NONE };
        let sink_mr = rdma.register(&Memory::Host(sink.clone()), access)?;
        let qp = HostQp::new(&*rdma.qp);
        let order = OneStream::default();
        let state = State { qp, order, posted: 0, done: 0, max_in_use: 0, failure: None };
        Ok(Self {
            rdma,
            kick: path.kick().unwrap_or(Kick::Cpu),
            timeout: options.timeout,
            credits: options.credits,
            sink: (sink, sink_mr),
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call may be queued on this stream, and whether all that was queued before did run: a stream
    /// that ended before its work leaves WQEs that nothing rang for, whose payload nobody copied.
    fn admit(&self, state: &State, stream: &Stream) -> Result<(), Error> {
        state.order.admit(stream)?;
        if self.kick == Kick::Stream && state.posted > 0 && !state.order.is_busy() {
            let Bell { dbr_addr, dbr, .. } = state.qp.sq.bell();
            let (queues, record) = self.rdma.mapping(dbr_addr);
            let host = queues.host();
            // Acquire: pairs with the stream's store, its last but the doorbell's.
            if host.load_u32(record as usize, Ordering::Acquire)? != dbr {
                return Err(Error::NotRun { verb: "a call" });
            }
        }
        Ok(())
    }

    /// One call. Callers on several threads come one after the other.
    fn call(
        &self,
        stream: &Stream,
        queue: impl FnOnce(&mut State) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut state = self.lock();
        self.admit(&state, stream)?;
        let queued = queue(&mut state);
        // With the CPU's kick a call has waited for its copies before it rang: nothing is left on the stream.
        if self.kick != Kick::Cpu || queued.is_err() {
            state.order.queued(stream);
        }
        queued
    }

    pub fn put(&self, stream: &Stream, peer: &Address, put: Put) -> Result<(), Error> {
        self.call(stream, |state| {
            self.write(state, stream, peer, &put)?;
            let Some(signal) = put.signal else { return Ok(()) };
            let operands = Operands { swap_add: signal.add, compare: 0 };
            let what = (Opcode::AtomicFa, operands);
            self.atomic(state, stream, peer, what, signal.word, None)
        })
    }

    fn write(
        &self,
        state: &mut State,
        stream: &Stream,
        peer: &Address,
        &Put { from, to, bytes, .. }: &Put,
    ) -> Result<(), Error> {
        let ring = u64::from(self.rdma.sq_blocks);
        let Some(window) = &self.rdma.window else {
            // pull
            let from = self.local_sge(from, bytes);
            self.room(state, 1, ring)?;
            return self.post(state, stream, Opcode::RdmaWrite, at(peer, to, 0), None, from);
        };
        let slot_bytes = u64::from(window.slot_bytes);
        // A WQE needs a block of the ring, and a credit for its slot.
        let limit = if self.credits { ring.min(window.slots.into()) } else { ring };
        // Half a window at a time: one half is filled while the NIC empties the other.
        let batch = (limit / 2).max(1);
        let mut done = 0;
        while done < bytes {
            let n = (bytes - done).div_ceil(slot_bytes).min(batch);
            self.room(state, n, limit)?;
            state.max_in_use = state.max_in_use.max((state.posted + n - state.done) as u32);
            let mut sges = Vec::with_capacity(n as usize);
            for ticket in state.posted..state.posted + n {
                let len = (bytes - done).min(slot_bytes);
                let slot = ticket % u64::from(window.slots) * slot_bytes;
                self.copy_to_slot(stream, from.0 + done, window, slot, len)?;
                let addr = Iova(window.mr.iova.0 + slot);
                sges.push((done, Sge { addr, lkey: window.mr.lkey, bytes: len as u32 }));
                done += len;
            }
            if self.kick == Kick::Cpu {
                stream.synchronize(self.timeout)?; // the copies, before the CPU rings
            }
            for (offset, sge) in sges {
                self.write_wqe(state, Opcode::RdmaWrite, at(peer, to, offset), None, sge)?;
            }
            self.ring(state, stream)?;
        }
        Ok(())
    }

    fn copy_to_slot(
        &self,
        stream: &Stream,
        local: u64,
        window: &WindowMem,
        slot: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        let (local, bytes) = (local as usize, bytes as usize);
        let (mapped, first) = window.on_host()?;
        let slot = first + slot as usize;
        match &self.rdma.local {
            Memory::Device(device) => Ok(stream.copy_to_host(device, local, mapped, slot, bytes)?),
            Memory::Host(mapped) => {
                stream.synchronize(self.timeout)?; // the work that wrote the payload
                Ok(mapped.host().copy_to(local, window.view.mem(), slot, bytes)?)
            }
        }
    }

    /// `bytes` are a message's that one WQE carries.
    fn local_sge(&self, place: Local, bytes: u64) -> Sge {
        let mr = &self.rdma.local_mr;
        let bytes = u32::try_from(bytes).expect("at most a GiB");
        Sge { addr: Iova(mr.iova.0 + place.0), lkey: mr.lkey, bytes }
    }

    pub fn get(&self, stream: &Stream, peer: &Address, get: Get) -> Result<(), Error> {
        let into = self.local_sge(get.to, get.bytes);
        self.call(stream, |state| {
            self.room(state, 1, u64::from(self.rdma.sq_blocks))?;
            self.post(state, stream, Opcode::RdmaRead, at(peer, get.from, 0), None, into)
        })
    }

    pub fn fetch_add(&self, stream: &Stream, peer: &Address, op: FetchAdd) -> Result<(), Error> {
        let operands = Operands { swap_add: op.add, compare: 0 };
        self.call(stream, |state| {
            self.atomic(state, stream, peer, (Opcode::AtomicFa, operands), op.word, Some(op.old))
        })
    }

    pub fn compare_swap(
        &self,
        stream: &Stream,
        peer: &Address,
        op: CompareSwap,
    ) -> Result<(), Error> {
        let operands = Operands { swap_add: op.swap, compare: op.compare };
        self.call(stream, |state| {
            self.atomic(state, stream, peer, (Opcode::AtomicCs, operands), op.word, Some(op.old))
        })
    }

    fn atomic(
        &self,
        state: &mut State,
        stream: &Stream,
        peer: &Address,
        (opcode, operands): (Opcode, Operands),
        word: Remote,
        old: Option<Local>,
    ) -> Result<(), Error> {
        self.room(state, 1, u64::from(self.rdma.sq_blocks))?;
        let into = match old {
            Some(place) => self.local_sge(place, 8),
            None => Sge { addr: self.sink.1.iova, lkey: self.sink.1.lkey, bytes: 8 },
        };
        self.post(state, stream, opcode, at(peer, word, 0), Some(operands), into)
    }

    /// One WQE, rung at once; with the CPU's kick after the stream's earlier work.
    fn post(
        &self,
        state: &mut State,
        stream: &Stream,
        opcode: Opcode,
        remote: wqe::Remote,
        atomic: Option<Operands>,
        sge: Sge,
    ) -> Result<(), Error> {
        if self.kick == Kick::Cpu {
            stream.synchronize(self.timeout)?;
        }
        self.write_wqe(state, opcode, remote, atomic, sge)?;
        self.ring(state, stream)
    }

    fn write_wqe(
        &self,
        state: &mut State,
        opcode: Opcode,
        remote: wqe::Remote,
        atomic: Option<Operands>,
        sge: Sge,
    ) -> Result<(), Error> {
        let payload = [Piece::Data(sge)];
        let wr = SendWr { remote: Some(remote), atomic, payload: &payload, ..SendWr::new(opcode) };
        state.qp.sq.post(&wr)?;
        state.posted += 1;
        Ok(())
    }

    fn ring(&self, state: &mut State, stream: &Stream) -> Result<(), Error> {
        if self.kick == Kick::Cpu {
            return Ok(state.qp.sq.ring()?);
        }
        // The stream's stores come after its copies. DBR before UAR: the stream is in order.
        let Bell { dbr_addr, dbr, uar_addr, uar } = state.qp.sq.bell();
        let ((queues, record), (page, register)) =
            (self.rdma.mapping(dbr_addr), self.rdma.mapping(uar_addr));
        stream.write_u32(queues, record as usize, dbr)?;
        Ok(stream.write_u64(page, register as usize, uar)?)
    }

    /// Waits until `n` more WQEs may be out beside those that are: `limit` at once.
    fn room(&self, state: &mut State, n: u64, limit: u64) -> Result<(), Error> {
        self.wait(state, "room in the queue", |state| state.posted + n <= state.done + limit)
    }

    fn wait(
        &self,
        state: &mut State,
        what: &'static str,
        done: impl Fn(&State) -> bool,
    ) -> Result<(), Error> {
        let since = Instant::now();
        loop {
            state.poll()?;
            if let Some(error) = state.error() {
                return Err(error);
            }
            if done(state) {
                return Ok(());
            }
            if since.elapsed() > self.timeout {
                return Err(Error::Timeout { what, ms: self.timeout.as_millis() });
            }
            if since.elapsed() < Duration::from_micros(50) {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    pub fn quiet(&self, stream: &Stream) -> Result<(), Error> {
        let mut state = self.lock();
        self.admit(&state, stream)?;
        stream.synchronize(self.timeout)?; // the copies and rings that are still to come
        state.order.waited();
        self.wait(&mut state, "completion", |state| state.done == state.posted)
    }

    /// Takes the queue pair back to its beginning.
    pub fn reset(&mut self) -> Result<Progress, Error> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.order.is_busy() {
            return Err(Error::Busy);
        }
        state.poll()?;
        let failed = state.failure.map(|(.., ticket)| ticket);
        let mut tally = Tally::new(state.posted, state.done, failed);
        self.rdma.reset(state.qp.send_cq(), &mut tally)?;
        state.qp.begin_again(&*self.rdma.qp);
        (state.posted, state.done, state.max_in_use, state.failure) = (0, 0, 0, None);
        Ok(tally.progress)
    }

    pub fn failure(&self) -> Option<Error> {
        let mut state = self.lock();
        state.poll().err().or_else(|| state.error())
    }

    pub fn max_credits_in_use(&self) -> u32 {
        self.lock().max_in_use
    }
}

/// A place in the peer's region as WQEs name it: `offset` bytes behind the start of a range that lies in it.
fn at(peer: &Address, place: Remote, offset: u64) -> wqe::Remote {
    wqe::Remote { addr: Iova(peer.iova + place.0 + offset), rkey: peer.rkey }
}

impl State {
    /// Takes all completions there are; the first error is kept.
    fn poll(&mut self) -> Result<(), Error> {
        while let Some(cqe) = self.qp.poll_send()? {
            let ticket = self.done + u64::from(cqe.wqe_counter.wrapping_sub(self.done as u16));
            if cqe.opcode == CqeOpcode::ReqErr {
                self.failure.get_or_insert((cqe.syndrome, cqe.vendor_err, ticket));
            } else if ticket < self.posted {
                self.done = ticket + 1;
            }
        }
        Ok(())
    }

    fn error(&self) -> Option<Error> {
        let (syndrome, vendor, ticket) = self.failure?;
        Some(Error::Completion { code: Code::CqeError, syndrome, vendor, ticket })
    }
}

impl Drop for HostPosted {
    fn drop(&mut self) {
        self.rdma.deregister(self.sink.1);
    }
}
