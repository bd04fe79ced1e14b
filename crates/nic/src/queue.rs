//! Host-side posting: the CPU's way to write WQEs, receives and doorbells, and to read CQEs.
//!
//! Used by the `cpu` kick, for receives, and by tests. The `stream` kick builds WQEs here too, and
//! has a stream's memory operations store the [`Bell`]. Orders what it stores for an observer that
//! reads ordinary memory with acquire loads, which the software NIC does, and for a NIC that reads
//! host memory over PCIe; a UAR page must be mapped uncached for that, or write-combined by a
//! caller that flushes its own stores.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::{Order, QueuePair, Queues};
use bellpush_mem::{Dma, MemError, View, device_barrier};
use bellpush_wire::blueflame::{self, BF_BYTES};
use bellpush_wire::cqe::{CQE_BYTES, CQE_TAIL_OFFSET, Cqe, CqeOpcodeError, is_ready, owner_bit};
use bellpush_wire::doorbell::{
    DBR_CQ_CI_OFFSET, DBR_RCV_OFFSET, DBR_SND_OFFSET, UAR_BF1_OFFSET, UAR_DOORBELL_OFFSET,
    cq_ci_word, dbr_word, register_of,
};
use bellpush_wire::umr::Umr;
use bellpush_wire::wqe::{
    DS_BYTES, DataSeg, Flags, INVALID_LKEY, MAX_WQE_BYTES, SendWr, Sge, WQEBB_BYTES, WqeError,
};
use bellpush_wire::{Qpn, Rkey};

/// Why something was not posted or not read.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The ring has no room until completions are seen.
    #[error("{need} blocks do not fit into the {free} that are free")]
    Full {
        /// Blocks (or receives, or slots) to be posted.
        need: u32,
        /// Blocks that are free.
        free: u32,
    },
    /// The request cannot be emitted.
    #[error(transparent)]
    Wqe(#[from] WqeError),
    /// More scatter entries than a receive has.
    #[error("{have} scatter entries do not fit into a receive of {most}")]
    Entries {
        /// Entries given.
        have: usize,
        /// Entries of a receive WQE.
        most: usize,
    },
    /// A completion that makes no sense.
    #[error(transparent)]
    Cqe(#[from] CqeOpcodeError),
    /// No completion came in time.
    #[error("no completion within {0:?}")]
    Timeout(Duration),
    /// Memory trouble.
    #[error(transparent)]
    Memory(#[from] MemError),
}

/// What to store, and where, to ring: doorbell record first, then register.
///
/// The values are as a native store writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bell {
    /// Address of the doorbell record's send word.
    pub dbr_addr: u64,
    /// Its new value.
    pub dbr: u32,
    /// Address of the UAR doorbell register.
    pub uar_addr: u64,
    /// Its new value.
    pub uar: u64,
}

/// Send queue as its poster sees it.
pub struct HostSq {
    qpn: Qpn,
    ring: View,
    dbr: View,
    uar: View,
    order: Order,
    blocks: u32,
    /// Next basic block to post.
    pi: u64,
    /// Blocks below are complete.
    done: u64,
    /// Blocks of the WQE that starts at a ring position.
    lengths: Vec<u8>,
    /// First 8 bytes of the last control segment: what rings.
    register: u64,
    scratch: Box<[u8; MAX_WQE_BYTES.next_multiple_of(WQEBB_BYTES)]>,
}

impl HostSq {
    /// The poster of a fresh queue pair. There must be only one, CPU or GPU.
    pub fn new(qpn: Qpn, queues: &Queues) -> Self {
        let blocks = (queues.sq.len() / WQEBB_BYTES) as u32;
        Self {
            qpn,
            ring: queues.sq.clone(),
            dbr: queues.dbr.clone(),
            uar: queues.uar.clone(),
            order: queues.order,
            blocks,
            pi: 0,
            done: 0,
            lengths: vec![0; blocks as usize],
            register: 0,
            scratch: Box::new([0; MAX_WQE_BYTES.next_multiple_of(WQEBB_BYTES)]),
        }
    }

    /// Basic blocks that may be posted now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.blocks - (self.pi - self.done) as u32
    }

    /// Next basic block to be posted.
    #[inline]
    pub fn producer(&self) -> u64 {
        self.pi
    }

    /// Writes a WQE to the ring, unrung, and returns its index.
    ///
    /// # Errors
    /// [`QueueError::Full`] and [`QueueError::Wqe`]; nothing is posted then.
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<u64, QueueError> {
        let need = self.reserve(wr.blocks())?;
        wr.emit(self.pi as u16, self.qpn, &mut self.scratch[..])?;
        self.put(need)
    }

    /// Writes a UMR that changes a key, unrung, and returns its index.
    ///
    /// # Errors
    /// As [`HostSq::post`].
    pub fn post_umr(&mut self, key: Rkey, umr: &Umr, flags: Flags) -> Result<u64, QueueError> {
        let need = self.reserve((umr.wqe_bytes() / WQEBB_BYTES) as u32)?;
        umr.emit(key.0, flags, (self.pi as u16, self.qpn), &mut self.scratch[..])?;
        self.put(need)
    }

    #[inline]
    fn put(&mut self, need: u32) -> Result<u64, QueueError> {
        let bytes = need as usize * WQEBB_BYTES;
        let start = (self.pi % u64::from(self.blocks)) as usize * WQEBB_BYTES;
        let before_end = bytes.min(self.blocks as usize * WQEBB_BYTES - start);
        self.ring.write(start, &self.scratch[..before_end])?;
        self.ring.write(0, &self.scratch[before_end..bytes])?;
        Ok(self.advance(need))
    }

    #[inline]
    fn reserve(&self, need: u32) -> Result<u32, QueueError> {
        let free = self.free();
        if need > free { Err(QueueError::Full { need, free }) } else { Ok(need) }
    }

    #[inline]
    fn advance(&mut self, blocks: u32) -> u64 {
        let index = self.pi;
        self.lengths[(index % u64::from(self.blocks)) as usize] = blocks as u8;
        let ctrl = self.scratch.first_chunk().expect("a WQE begins with a control segment");
        self.register = register_of(ctrl);
        self.pi += u64::from(blocks);
        index
    }

    /// What to store to ring for everything posted.
    #[inline]
    pub fn bell(&self) -> Bell {
        Bell {
            dbr_addr: self.dbr.addr() + DBR_SND_OFFSET as u64,
            dbr: dbr_word(self.pi as u16),
            uar_addr: self.uar.addr() + UAR_DOORBELL_OFFSET as u64,
            uar: self.register,
        }
    }

    /// Rings for everything posted.
    ///
    /// # Errors
    /// [`QueueError::Memory`] when the queues' views are not what they should be.
    #[inline]
    pub fn ring(&mut self) -> Result<(), QueueError> {
        let bell = self.bell();
        // Release: the NIC, which reads the record before the WQEs, finds the WQEs written.
        self.dbr.store_u32(DBR_SND_OFFSET, bell.dbr, Ordering::Release)?;
        if self.order == Order::Strict {
            device_barrier(); // WQEs and record before the doorbell, for the NIC
        }
        // Release: the NIC, which sees the register change, finds record and WQEs written.
        self.uar.store_u64(UAR_DOORBELL_OFFSET, bell.uar, Ordering::Release)?;
        if self.order == Order::Strict {
            device_barrier(); // the doorbell now, and before the next one
        }
        Ok(())
    }

    /// Writes a WQE and leaves the ringing to someone else, a CUDA stream for instance.
    ///
    /// # Errors
    /// As [`HostSq::post`].
    pub fn prepare(&mut self, wr: &SendWr<'_>) -> Result<(u64, Bell), QueueError> {
        let index = self.post(wr)?;
        Ok((index, self.bell()))
    }

    /// Sends a WQE whole through the UAR's BlueFlame buffer; the ring is not written.
    ///
    /// Only for RDMA WRITE, on a queue pair with check words, with nothing else outstanding.
    ///
    /// # Errors
    /// [`QueueError::Full`] when something is outstanding, or the WQE exceeds the buffer.
    pub fn post_blueflame(&mut self, wr: &SendWr<'_>) -> Result<u64, QueueError> {
        let need = self.reserve(wr.blocks())?;
        let most = (BF_BYTES / WQEBB_BYTES) as u32;
        if self.pi != self.done || need > most {
            return Err(QueueError::Full { need, free: if need > most { most } else { 0 } });
        }
        wr.emit(self.pi as u16, self.qpn, &mut self.scratch[..])?;
        let bytes = need as usize * WQEBB_BYTES;
        blueflame::seal(&mut self.scratch[..bytes]);
        self.uar.write(UAR_BF1_OFFSET + 8, &self.scratch[8..bytes])?;
        let index = self.advance(need);
        // Release: not needed for safety, as the check word covers it all; saves the NIC a look at
        // half a WQE.
        self.uar.store_u64(UAR_BF1_OFFSET, self.register, Ordering::Release)?;
        Ok(index)
    }

    /// Frees the ring up to and with the WQE that a completion reports.
    #[inline]
    pub fn retire(&mut self, wqe_counter: u16) {
        let start = self.done + u64::from(wqe_counter.wrapping_sub(self.done as u16));
        let length = self.lengths[(start % u64::from(self.blocks)) as usize];
        // A counter from nowhere must not free what is in use.
        let end = start + u64::from(length);
        if start < self.pi && end <= self.pi {
            self.done = end;
        }
    }
}

/// Receive queue as its poster sees it.
pub struct HostRq {
    ring: View,
    dbr: View,
    stride_log: u32,
    wqes: u32,
    pi: u64,
    done: u64,
}

impl HostRq {
    /// The poster of a fresh queue pair's receives.
    pub fn new(queues: &Queues) -> Self {
        let wqes = (queues.rq.len() >> queues.rq_stride_log) as u32;
        let (ring, dbr) = (queues.rq.clone(), queues.dbr.clone());
        Self { ring, dbr, stride_log: queues.rq_stride_log, wqes, pi: 0, done: 0 }
    }

    /// Receives that may be posted now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.wqes - (self.pi - self.done) as u32
    }

    /// Posts a receive and publishes it. Empty entries are left out.
    ///
    /// # Errors
    /// [`QueueError::Full`] and [`QueueError::Entries`].
    pub fn post(&mut self, entries: &[Sge]) -> Result<u64, QueueError> {
        if self.free() == 0 {
            return Err(QueueError::Full { need: 1, free: 0 });
        }
        let most = (1usize << self.stride_log) / DS_BYTES;
        let used = entries.iter().filter(|e| e.bytes > 0);
        let have = used.clone().count();
        if have > most {
            return Err(QueueError::Entries { have, most });
        }
        let at = (self.pi % u64::from(self.wqes)) as usize * (1 << self.stride_log);
        let end = DataSeg { lkey: INVALID_LKEY.0.into(), ..DataSeg::default() };
        let segs = used.map(Sge::emit).chain((have < most).then_some(end));
        for (i, seg) in segs.enumerate() {
            self.ring.write(at + i * DS_BYTES, bytemuck::bytes_of(&seg))?;
        }
        let index = self.pi;
        self.pi += 1;
        // Release: the NIC, which reads the record first, finds the entries written.
        self.dbr.store_u32(DBR_RCV_OFFSET, dbr_word(self.pi as u16), Ordering::Release)?;
        Ok(index)
    }

    /// Frees the oldest receive: receives complete in order.
    #[inline]
    pub fn retire(&mut self) {
        self.done = (self.done + 1).min(self.pi);
    }
}

/// Completion queue as its consumer sees it.
pub struct HostCq {
    ring: View,
    dbr: View,
    entries: u32,
    ci: u64,
}

impl HostCq {
    /// The consumer of a fresh CQ.
    pub fn new(ring: &View, dbr: &View) -> Self {
        let entries = (ring.len() / CQE_BYTES) as u32;
        Self { ring: ring.clone(), dbr: dbr.clone(), entries, ci: 0 }
    }

    /// The consumer of a CQ of which all entries before `ci`, counted from 0, were taken.
    pub fn at(ring: &View, dbr: &View, ci: u64) -> Self {
        Self { ci, ..Self::new(ring, dbr) }
    }

    /// Index of the next entry, counted from 0.
    pub fn consumer(&self) -> u64 {
        self.ci
    }

    /// Reports to the NIC what was taken, as [`HostCq::poll`] does by itself.
    ///
    /// # Errors
    /// [`QueueError::Memory`] when the record's view is not what it should be.
    #[inline]
    pub fn report(&self) -> Result<(), QueueError> {
        // Release: the entries were read before the NIC may write them again.
        Ok(self.dbr.store_u32(DBR_CQ_CI_OFFSET, cq_ci_word(self.ci), Ordering::Release)?)
    }

    /// Takes the next completion, if there is one, and reports its entry free.
    ///
    /// # Errors
    /// [`QueueError::Cqe`] for an entry with an unknown opcode, which is passed over.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Cqe>, QueueError> {
        if self.entries == 0 {
            return Ok(None);
        }
        let at = (self.ci % u64::from(self.entries)) as usize * CQE_BYTES;
        // Acquire: the entry's body, and the payload that it reports, were written before.
        let tail = self.ring.load_u64(at + CQE_TAIL_OFFSET, Ordering::Acquire)?;
        if !is_ready(tail, owner_bit(self.ci, self.entries)) {
            return Ok(None);
        }
        let mut bytes = [0; CQE_BYTES];
        self.ring.read(at, &mut bytes)?;
        self.ci += 1;
        self.report()?;
        Ok(Some(Cqe::parse(&bytes)?))
    }
}

/// All of a queue pair's queues, posted to and polled by one thread.
pub struct HostQp {
    /// Send queue.
    pub sq: HostSq,
    /// Receive queue.
    pub rq: HostRq,
    send_cq: HostCq,
    recv_cq: HostCq,
}

impl HostQp {
    /// The poster of a fresh queue pair.
    pub fn new(qp: &dyn QueuePair) -> Self {
        let q = qp.queues();
        Self {
            sq: HostSq::new(qp.qpn(), q),
            rq: HostRq::new(q),
            send_cq: HostCq::new(&q.send_cq, &q.send_cq_dbr),
            recv_cq: HostCq::new(&q.recv_cq, &q.recv_cq_dbr),
        }
    }

    /// Begins again at WQE 0, as the queue pair does after [`QueuePair::reset`]; the CQs go on. Completions of WQEs
    /// before the reset are to be taken first.
    pub fn begin_again(&mut self, qp: &dyn QueuePair) {
        let q = qp.queues();
        (self.sq, self.rq) = (HostSq::new(qp.qpn(), q), HostRq::new(q));
    }

    /// Posts a WQE and rings.
    ///
    /// # Errors
    /// As [`HostSq::post`].
    pub fn send(&mut self, wr: &SendWr<'_>) -> Result<u64, QueueError> {
        let index = self.sq.post(wr)?;
        self.sq.ring()?;
        Ok(index)
    }

    /// The send CQ, to take what is left there of a queue pair that is reset.
    pub fn send_cq(&mut self) -> &mut HostCq {
        &mut self.send_cq
    }

    /// Takes the next send completion and frees what it reports.
    ///
    /// # Errors
    /// As [`HostCq::poll`].
    #[inline]
    pub fn poll_send(&mut self) -> Result<Option<Cqe>, QueueError> {
        let cqe = self.send_cq.poll()?;
        if let Some(cqe) = &cqe {
            self.sq.retire(cqe.wqe_counter);
        }
        Ok(cqe)
    }

    /// Takes the next receive completion and frees its receive.
    ///
    /// # Errors
    /// As [`HostCq::poll`].
    #[inline]
    pub fn poll_recv(&mut self) -> Result<Option<Cqe>, QueueError> {
        let cqe = self.recv_cq.poll()?;
        if cqe.is_some() {
            self.rq.retire();
        }
        Ok(cqe)
    }

    /// Waits for the next send completion, giving way to other threads.
    ///
    /// # Errors
    /// [`QueueError::Timeout`], and as [`HostCq::poll`].
    pub fn wait_send(&mut self, timeout: Duration) -> Result<Cqe, QueueError> {
        wait(timeout, || self.poll_send())
    }

    /// Waits for the next receive completion, giving way to other threads.
    ///
    /// # Errors
    /// As [`HostQp::wait_send`].
    pub fn wait_recv(&mut self, timeout: Duration) -> Result<Cqe, QueueError> {
        wait(timeout, || self.poll_recv())
    }
}

fn wait(
    timeout: Duration,
    mut poll: impl FnMut() -> Result<Option<Cqe>, QueueError>,
) -> Result<Cqe, QueueError> {
    let start = Instant::now();
    loop {
        if let Some(cqe) = poll()? {
            return Ok(cqe);
        }
        if start.elapsed() >= timeout {
            return Err(QueueError::Timeout(timeout));
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
