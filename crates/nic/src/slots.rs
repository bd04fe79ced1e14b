//! Host-side posting to an in-band window: what `kernels/include/bellpush/impl/inband.cuh` does, on the CPU.

use std::sync::atomic::Ordering;

use crate::Inband;
use crate::queue::QueueError;
use bellpush_mem::{Dma, View};
use bellpush_wire::Qpn;
use bellpush_wire::inband::slot_of;
use bellpush_wire::wqe::SendWr;

/// In-band window as its poster sees it.
pub struct HostSlots {
    qpn: Qpn,
    cfg: Inband,
    window: View,
    /// Next ticket.
    ticket: u64,
    /// Tickets below are complete: their slots' credits are back.
    done: u64,
    stream: Vec<u8>,
    slot: Vec<u8>,
}

impl HostSlots {
    /// The poster of a fresh in-band queue pair. There must be only one, CPU or GPU.
    pub fn new(qpn: Qpn, cfg: &Inband) -> Self {
        let slot = cfg.slot_bytes as usize;
        Self {
            qpn,
            cfg: cfg.clone(),
            window: cfg.window.clone(),
            ticket: 0,
            done: 0,
            stream: vec![0; cfg.line.capacity(slot)],
            slot: vec![0; slot],
        }
    }

    /// Slots that may be written now.
    #[inline]
    pub fn credits(&self) -> u32 {
        self.cfg.slots - (self.ticket - self.done) as u32
    }

    /// Writes a request to the next slot, and returns its ticket. The NIC needs no doorbell.
    ///
    /// # Errors
    /// [`QueueError::Full`] without a credit, [`QueueError::Wqe`] when it does not fit.
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<u64, QueueError> {
        if self.credits() == 0 {
            return Err(QueueError::Full { need: 1, free: 0 });
        }
        let ticket = self.ticket;
        self.post_as(ticket, wr)?;
        self.ticket += 1;
        Ok(ticket)
    }

    /// Writes a request as any ticket, with or without a credit: for tests of the NIC.
    ///
    /// # Errors
    /// [`QueueError::Wqe`] when it does not fit.
    pub fn post_as(&mut self, ticket: u64, wr: &SendWr<'_>) -> Result<(), QueueError> {
        let format = self.cfg.line;
        let n = wr.emit_stream(ticket, self.qpn, &mut self.stream)?;
        let (slot, lap) = slot_of(ticket, self.cfg.slots);
        let seq = format.seq(self.cfg.seq0, lap);
        let lines = format.scatter(&self.stream[..n], seq, &mut self.slot);
        let base = slot as usize * self.cfg.slot_bytes as usize;
        // A scrub lap's lines behind the stream first: they are there when the stream's are.
        let own = format.lines(n);
        for i in (own..lines).chain(0..own) {
            let line = &self.slot[i * format.line_bytes()..][..format.line_bytes()];
            let at = base + i * format.line_bytes();
            let (data, last) = line.split_at(line.len() - 4);
            self.window.write(at, data)?;
            let word = u32::from_ne_bytes(last.try_into().expect("4 bytes are left"));
            // Release: the NIC, which reads the sequence first, finds the line's data written. A
            // 2-byte sequence goes in one store with the 2 data bytes before it.
            self.window.store_u32(at + data.len(), word, Ordering::Release)?;
        }
        Ok(())
    }

    /// Takes back the credits up to the ticket that a completion reports.
    #[inline]
    pub fn retire(&mut self, wqe_counter: u16) {
        let ticket = self.done + u64::from(wqe_counter.wrapping_sub(self.done as u16));
        if ticket < self.ticket {
            self.done = ticket + 1;
        }
    }
}
