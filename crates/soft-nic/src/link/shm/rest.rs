//! How an engine that rests is woken by packets in shared memory.
//!
//! Each port has a word that says whether whoever drives its NIC rests:
//! 1. *rest*: store that it rests, then (full barrier) look at the rings; wait at the word if they are
//!    empty.
//! 2. *wake*: publish packets, then (full barrier) load the word; if it says so, take that back and end
//!    the wait.
//!
//! The two barriers order each side's store before its own look at what the other stores: either who
//! rests sees the packets, or who sends sees that it rests. Whoever takes the word back is one of all
//! that see it, so that a rest costs one system call, and packets for an engine that does not rest none.
//!
//! The word is hostile: whoever has the link open can write it. One that says too little costs who
//! rests the time that it rests at most, one that says too much costs who sends a system call for
//! each [`Link::send`](crate::link::Link::send). A wait may end for nothing, as often as somebody ends
//! it: who drives the NIC counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::net::Net;
use super::ring;
use super::table::PORTS;
use crate::link::LinkError;
use bellpush_mem::{Dma, MemError, View};
use bellpush_wire::roce::{Opcode, Operation};

/// Bytes of a port's word.
pub(super) const BELL_BYTES: usize = 8;
/// It rests. The same in both halves, of which the system looks at the first alone.
const RESTS: u64 = 1 << 32 | 1;

/// A port's word.
pub(super) struct Bell(View);

impl Bell {
    /// The word of [`BELL_BYTES`] bytes.
    pub(super) fn new(word: View) -> Self {
        Self(word)
    }

    /// Says that its NIC's engine rests; whoever looks at the rings after this sees what was published
    /// by all who saw it awake.
    fn rest(&self) -> Result<(), MemError> {
        // Relaxed: the barrier orders it.
        self.0.store_u64(0, RESTS, Ordering::Relaxed)?;
        self.0.full_barrier();
        Ok(())
    }

    /// The engine rests no more.
    pub(super) fn rise(&self) -> Result<(), MemError> {
        // Relaxed: who sees it rest for too long makes a system call for nothing.
        self.0.store_u64(0, 0, Ordering::Relaxed)
    }

    /// Waits to be woken, for so long; whether it was.
    fn wait(&self, most: Duration) -> Result<bool, MemError> {
        self.0.wait_u32(0, RESTS as u32, most)
    }

    /// Has packets that were published before [`Bell::publish`] be looked at; takes the word back, if
    /// it says that the engine rests, and says so.
    fn take(&self) -> Result<bool, MemError> {
        // Relaxed: the barrier orders it.
        Ok(self.0.load_u64(0, Ordering::Relaxed)? == RESTS
            && self.0.compare_swap(0, RESTS, 0)? == RESTS)
    }

    /// What this thread has published is seen by whoever says that it rests and is not seen to.
    pub(super) fn publish(&self) {
        self.0.full_barrier();
    }

    /// Wakes the engine if it rests; after [`Bell::publish`].
    pub(super) fn ring(&self) -> Result<(), MemError> {
        if self.take()? { self.0.wake_u32(0) } else { Ok(()) }
    }
}

/// Whether a packet is worth a wake. A bare acknowledgement is not: who waits for it polls, or finds
/// it when the rest ends, and a wake takes the core of a program that looks at its memory for the
/// answer. Neither is the middle of a message, whose first packet wakes: an engine that is faster than
/// the sender rests now and then, and takes many packets at a time.
pub(super) fn is_worth_it(packet: &[u8]) -> bool {
    use Operation::{Acknowledge, ReadResponseMiddle, SendMiddle, WriteMiddle};
    let opcode = packet.first().and_then(|&code| Opcode::from_code(code));
    opcode.is_none_or(|opcode| {
        let waits = [Acknowledge, SendMiddle, WriteMiddle, ReadResponseMiddle];
        !waits.contains(&opcode.operation())
    })
}

/// Where whoever drives a NIC waits for packets of a shared-memory link.
pub struct ShmRest {
    net: Arc<Net>,
    bell: Bell,
    /// From each port to this one; of those that nobody holds there may be no memory.
    rings: Vec<View>,
}

impl ShmRest {
    pub(super) fn new(net: Arc<Net>, port: usize) -> Result<Self, MemError> {
        let rings = (0..PORTS).map(|from| net.table.ring(from, port));
        Ok(Self { bell: net.table.bell(port)?, rings: rings.collect::<Result<_, _>>()?, net })
    }

    /// Waits until packets have come, for `most` at longest; returns whether some have, as far as is
    /// known. Between two steps of the NIC's engine, not during one.
    ///
    /// # Errors
    /// [`LinkError::Memory`].
    pub fn wait(&self, most: Duration) -> Result<bool, LinkError> {
        self.bell.rest()?;
        let came = self.have_come()? || self.bell.wait(most)?;
        self.bell.rise()?;
        Ok(came)
    }

    /// Whether there are packets in the rings, but in those of ports that nobody holds any more.
    fn have_come(&self) -> Result<bool, MemError> {
        for (from, ring) in self.rings.iter().enumerate() {
            if self.net.table.is_taken(from)? && ring::is_waiting(ring)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_mem::HostMem;
    use bellpush_mem::model::{Shape, explore};

    /// Two senders, who each publish a packet and look whether somebody rests, and one who says that
    /// it rests and looks for packets: it finds one, or is woken, and by one alone.
    #[test]
    fn under_loom_no_packet_leaves_an_engine_at_rest() {
        const WORDS: usize = 3 * BELL_BYTES;
        explore(3, || {
            let mem = HostMem::modelled(WORDS, Shape::Guarded);
            let words = View::new(&mem, 0, WORDS).unwrap();
            let bell = || Bell::new(words.part(0, BELL_BYTES).unwrap());
            (0..3).for_each(|i| words.store_u64(8 * i, 0, Ordering::Relaxed).unwrap());
            let send = |ring: usize| {
                let (words, bell) = (words.clone(), bell());
                move || {
                    words.store_u64(ring, 1, Ordering::Release).unwrap();
                    bell.publish();
                    bell.take().unwrap()
                }
            };
            let sender = loom::thread::spawn(send(8));
            let other = loom::thread::spawn(send(16));
            bell().rest().unwrap();
            let seen = |ring: usize| words.load_u64(ring, Ordering::Relaxed).unwrap();
            let came = seen(8) + seen(16);
            let woken = [sender.join().unwrap(), other.join().unwrap()];
            let wakes = woken.iter().filter(|&&woke| woke).count();
            assert!(wakes <= 1, "one wake a rest");
            assert!(came == 2 || wakes == 1, "a packet that was not seen, and nobody woke");
        });
    }

    #[test]
    fn a_word_that_says_what_is_not_so_costs_one_call() {
        let mem = HostMem::alloc(BELL_BYTES).unwrap();
        let word = View::new(&mem, 0, BELL_BYTES).unwrap();
        let bell = Bell::new(word.clone());
        let start = std::time::Instant::now();
        for written in [0, 1, 1 << 32, u64::MAX, RESTS] {
            word.store_u64(0, written, Ordering::Relaxed).unwrap();
            assert_eq!(bell.take().unwrap(), written == RESTS);
            assert!(!bell.take().unwrap(), "nobody has written it anew");
            bell.ring().unwrap();
            bell.wait(Duration::from_millis(2)).unwrap();
        }
        bell.rest().unwrap();
        assert!(!bell.wait(Duration::from_millis(2)).unwrap(), "nobody wakes");
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn acknowledgements_and_middles_wake_nobody() {
        let code = |operation| Opcode::new(bellpush_wire::roce::Service::Rc, operation).code();
        for operation in [Operation::Acknowledge, Operation::WriteMiddle] {
            assert!(!is_worth_it(&[code(operation), 0]));
        }
        for operation in [Operation::ReadResponseOnly, Operation::ReadRequest, Operation::WriteOnly]
        {
            assert!(is_worth_it(&[code(operation), 0]));
        }
        assert!(is_worth_it(&[0xff]) && is_worth_it(&[]));
    }
}
