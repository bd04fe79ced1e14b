//! Model of the shared-memory link's ring (`crates/soft-nic/src/link/shm/ring.rs`): loom tries every
//! interleaving and every value that a load may see under the C++ memory model.
//!
//! 1. *push*: unless all slots are in use, write the packet, then the slot's sequence (release).
//!    The head is loaded (acquire) only when all slots known to be free are used up.
//! 2. *pop*: load the slot's sequence (acquire); if it is the expected one, copy the packet out.
//! 3. *release*: store the head (release).
//!
//! A packet is two words, copied without order as memcpy copies them, and a cell of loom's that
//! only notes who accesses it when: loom finds accesses of which neither comes before the other.
//! The negative controls take away each release and each acquire.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const SLOTS: u32 = 2;
const PACKETS: u32 = 3;

/// The orders of the protocol, each of which a negative control takes away.
#[derive(Clone, Copy)]
struct Orders {
    publish: Ordering,
    see: Ordering,
    give_back: Ordering,
    take_back: Ordering,
}

const WHOLE: Orders = Orders {
    publish: Ordering::Release,
    see: Ordering::Acquire,
    give_back: Ordering::Release,
    take_back: Ordering::Acquire,
};

#[derive(Default)]
struct Slot {
    sequence: AtomicU32,
    packet: [AtomicU32; 2],
    access: UnsafeCell<()>,
}

#[derive(Default)]
struct Ring {
    slots: [Slot; SLOTS as usize],
    head: AtomicU32,
}

fn sequence(index: u32) -> u32 {
    index + 1
}

fn produce(ring: &Ring, orders: Orders) {
    let mut head = 0;
    for tail in 0..PACKETS {
        while tail - head >= SLOTS {
            head = ring.head.load(orders.take_back);
            thread::yield_now();
        }
        let slot = &ring.slots[(tail % SLOTS) as usize];
        slot.access.with_mut(|_| ());
        slot.packet.iter().for_each(|word| word.store(sequence(tail), Ordering::Relaxed));
        slot.sequence.store(sequence(tail), orders.publish);
    }
}

fn consume(ring: &Ring, orders: Orders) {
    for head in 0..PACKETS {
        let slot = &ring.slots[(head % SLOTS) as usize];
        while slot.sequence.load(orders.see) != sequence(head) {
            thread::yield_now();
        }
        slot.access.with(|_| ());
        let packet = slot.packet.each_ref().map(|word| word.load(Ordering::Relaxed));
        assert_eq!(packet, [sequence(head); 2], "torn or stale packet");
        ring.head.store(head + 1, orders.give_back);
    }
}

fn explore(orders: Orders) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let ring = Arc::new(Ring::default());
        let producer = ring.clone();
        let producer = thread::spawn(move || produce(&producer, orders));
        consume(&ring, orders);
        producer.join().unwrap();
    });
}

/// Whether loom finds something.
fn fails(orders: Orders) -> bool {
    catch_unwind(AssertUnwindSafe(|| explore(orders))).is_err()
}

#[test]
fn packets_come_out_whole_and_in_order() {
    explore(WHOLE);
}

#[test]
fn without_release_or_acquire_of_the_sequence_a_packet_is_read_too_early() {
    assert!(fails(Orders { publish: Ordering::Relaxed, ..WHOLE }));
    assert!(fails(Orders { see: Ordering::Relaxed, ..WHOLE }));
}

#[test]
fn without_release_or_acquire_of_the_head_a_slot_is_written_too_early() {
    assert!(fails(Orders { give_back: Ordering::Relaxed, ..WHOLE }));
    assert!(fails(Orders { take_back: Ordering::Relaxed, ..WHOLE }));
}
