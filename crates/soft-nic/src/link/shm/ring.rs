//! A ring of packets from one NIC to another, in memory that both map.
//!
//! Slots of a fixed size, each with a sequence that publishes it:
//! 1. *push*, or *build*: when fewer than all slots are in use, write packet and lengths, then the
//!    sequence (release). Whether slots are in use the producer knows from the consumer's head, which
//!    it loads (acquire) only when all that it knew to be free are used up.
//! 2. *next*: load the next slot's sequence (acquire); if it is the expected one, copy lengths and
//!    headers out, and the rest as well or from there to its place; then *pass* on.
//! 3. *release*: store the head (release), so that the copies come before the slots' reuse.
//!
//! A short packet is one cache line from one core to the other. One producer and one consumer own
//! a ring at a time; who takes it over from a process that died goes on where that one stopped.
//! What the other side wrote is hostile: lengths are checked before copying, a head that makes no
//! sense leaves the ring full. `tests/links/loom_shm.rs` models the ring.

use std::sync::atomic::Ordering;

use bellpush_mem::{Dma, Intent, MemError, View};
use bellpush_wire::roce::{Fields, MAX_HEADER_BYTES, MAX_PACKET_BYTES};

use crate::link::{Apart, Built, Room, Shared};

/// Slots of a ring: in flight to one NIC at most.
pub(super) const SLOTS: u64 = 128;
/// Sequence, length, the two ends' epochs, and IP and UDP header fields. With them a WRITE of 8
/// bytes still fits into the first line.
const HEADER_BYTES: usize = 24;
const LINE_BYTES: usize = 64;
const SLOT_BYTES: usize = (HEADER_BYTES + MAX_PACKET_BYTES).next_multiple_of(LINE_BYTES);
/// Slots that the producer has filled; for whoever takes the ring over.
const TAIL: usize = 0;
/// Slots that the consumer has emptied. Two lines apart, because lines are prefetched in pairs.
const HEAD: usize = 2 * LINE_BYTES;
const FIRST_SLOT: usize = 4 * LINE_BYTES;
/// Bytes of a ring.
pub(super) const RING_BYTES: usize = FIRST_SLOT + SLOTS as usize * SLOT_BYTES;

/// Offsets in a slot.
const SEQUENCE: usize = 0;
const LENGTH: usize = 4;
const FROM: usize = 8;
const TO: usize = 12;
/// Traffic class 31:24, flow label 19:0; then hop limit 23:16, source port 15:0.
const CLASS_LABEL: usize = 16;
const HOPS_PORT: usize = 20;

/// Who sends to whom: the epochs of both ends, so that nobody gets what was meant for one that
/// held the port before. And what stands for the IP and UDP headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) fields: Fields,
}

impl Ends {
    fn words(&self) -> [(usize, u32); 4] {
        let Fields { traffic_class, hop_limit, src_port, flow_label } = self.fields;
        [
            (FROM, self.from),
            (TO, self.to),
            (CLASS_LABEL, u32::from(traffic_class) << 24 | flow_label & 0xf_ffff),
            (HOPS_PORT, u32::from(hop_limit) << 16 | u32::from(src_port)),
        ]
    }

    /// As they lie in a slot, two words in each.
    pub(super) fn of(lying: [u64; 2]) -> Self {
        let lying: [u32; 4] = bytemuck::cast(lying);
        let word = |at: usize| lying[(at - FROM) / 4];
        let (class_label, hops_port) = (word(CLASS_LABEL), word(HOPS_PORT));
        let fields = Fields {
            traffic_class: (class_label >> 24) as u8,
            hop_limit: (hops_port >> 16) as u8,
            src_port: hops_port as u16,
            flow_label: class_label & 0xf_ffff,
        };
        Self { from: word(FROM), to: word(TO), fields }
    }
}

fn slot(index: u64) -> usize {
    FIRST_SLOT + (index % SLOTS) as usize * SLOT_BYTES
}

/// The sequence that publishes a slot at this index; memory that was never written has none.
fn sequence(index: u64) -> u32 {
    (index as u32).wrapping_add(1)
}

/// Whether a packet is waiting that the consumer has not taken, between two of its calls. The order is
/// the caller's.
pub(super) fn is_waiting(ring: &View) -> Result<bool, MemError> {
    let head = ring.load_u64(HEAD, Ordering::Relaxed)?;
    Ok(ring.load_u32(slot(head) + SEQUENCE, Ordering::Relaxed)? == sequence(head))
}

/// What a slot says of its packet, from [`LENGTH`] on.
#[inline]
fn header(bytes: usize, ends: Ends) -> [u8; HEADER_BYTES - LENGTH] {
    let mut header = [0; HEADER_BYTES - LENGTH];
    header[..4].copy_from_slice(&(bytes as u32).to_ne_bytes());
    for (at, word) in ends.words() {
        header[at - LENGTH..][..4].copy_from_slice(&word.to_ne_bytes());
    }
    header
}

/// The sending end.
pub(super) struct Producer {
    ring: View,
    tail: u64,
    /// The consumer's head as last seen.
    head: u64,
}

impl Producer {
    /// Takes the sending end, from a producer that is gone or has never been.
    pub(super) fn new(ring: View) -> Result<Self, MemError> {
        let mut tail = ring.load_u64(TAIL, Ordering::Acquire)?;
        // The one before may have died between a slot and the tail.
        for _ in 0..SLOTS {
            if ring.load_u32(slot(tail) + SEQUENCE, Ordering::Acquire)? != sequence(tail) {
                break;
            }
            tail = tail.wrapping_add(1);
        }
        let head = ring.load_u64(HEAD, Ordering::Acquire)?;
        Ok(Self { ring, tail, head })
    }

    fn is_full(&mut self) -> Result<bool, MemError> {
        if self.tail.wrapping_sub(self.head) < SLOTS {
            return Ok(false);
        }
        // Acquire: the consumer's copies out of a slot come before our stores to it.
        self.head = self.ring.load_u64(HEAD, Ordering::Acquire)?;
        Ok(self.tail.wrapping_sub(self.head) >= SLOTS)
    }

    /// Sends a packet of at most [`MAX_PACKET_BYTES`]; false when the ring is full.
    pub(super) fn push(&mut self, bytes: &[u8], ends: Ends) -> Result<bool, MemError> {
        if self.is_full()? {
            return Ok(false);
        }
        debug_assert!(bytes.len() <= MAX_PACKET_BYTES);
        let at = slot(self.tail);
        self.ring.write(at + LENGTH, &header(bytes.len(), ends))?;
        self.ring.write(at + HEADER_BYTES, bytes)?;
        self.publish()?;
        Ok(true)
    }

    /// Sends a packet of at most [`MAX_PACKET_BYTES`] whose payload `fill` writes into the slot.
    pub(super) fn build(
        &mut self,
        packet: Apart<'_>,
        ends: Ends,
        fill: &mut dyn FnMut(Room<'_>) -> bool,
    ) -> Result<Built, MemError> {
        let Apart { head, payload, tail } = packet;
        let bytes = head.len() + payload + tail.len();
        if head.len() > MAX_HEADER_BYTES || bytes > MAX_PACKET_BYTES || self.is_full()? {
            return Ok(Built::Elsewhere);
        }
        // Put together before the payload is copied: behind a long copy it would wait for the lines that the copy goes
        // to, which are the other core's. Written behind it: the consumer looks at this line all the time.
        const OWN: usize = HEADER_BYTES - LENGTH;
        let mut front = [0; OWN + MAX_HEADER_BYTES];
        front[..OWN].copy_from_slice(&header(bytes, ends));
        front[OWN..OWN + head.len()].copy_from_slice(head);
        let at = slot(self.tail);
        self.ring.prefetch(at, LINE_BYTES, Intent::Write);
        let start = at + HEADER_BYTES + head.len();
        if !fill(Room::Shared(Shared::new(&self.ring, start, payload))) {
            return Ok(Built::Failed); // what it wrote is in a slot that nobody looks at
        }
        self.ring.write(at + LENGTH, &front[..OWN + head.len()])?;
        self.ring.write(start + payload, tail)?;
        self.publish()?;
        Ok(Built::Yes)
    }

    /// Has the consumer see the packet in the next slot.
    #[inline]
    fn publish(&mut self) -> Result<(), MemError> {
        let at = slot(self.tail);
        // Release: the packet before its sequence, for the consumer.
        self.ring.store_u32(at + SEQUENCE, sequence(self.tail), Ordering::Release)?;
        self.tail = self.tail.wrapping_add(1);
        self.ring.store_u64(TAIL, self.tail, Ordering::Release)
    }
}

/// A packet that waits in the consumer's next slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    /// Its length, or `None` when the producer wrote one that cannot be.
    pub(super) bytes: Option<usize>,
    /// See [`Ends::of`].
    pub(super) ends: [u64; 2],
}

/// The receiving end.
pub(super) struct Consumer {
    ring: View,
    head: u64,
    /// The head as the producer can see it.
    released: u64,
}

impl Consumer {
    /// Takes the receiving end, from a consumer that is gone or has never been.
    pub(super) fn new(ring: View) -> Result<Self, MemError> {
        let head = ring.load_u64(HEAD, Ordering::Acquire)?;
        Ok(Self { ring, head, released: head })
    }

    /// The next packet, if there is one, until [`Consumer::pass`].
    #[inline]
    pub(super) fn next(&self) -> Result<Option<Next>, MemError> {
        let at = slot(self.head);
        // Acquire: the packet was stored before its sequence.
        if self.ring.load_u32(at + SEQUENCE, Ordering::Acquire)? != sequence(self.head) {
            return Ok(None);
        }
        let [first, ends @ ..]: [u64; HEADER_BYTES / 8] = self.ring.read_words(at)?;
        let [_, bytes]: [u32; 2] = bytemuck::cast(first);
        let bytes = Some(bytes as usize).filter(|&n| n <= MAX_PACKET_BYTES);
        Ok(Some(Next { bytes, ends }))
    }

    /// The first `bytes` bytes of the next packet, in its slot.
    #[inline]
    pub(super) fn lying(&self, bytes: usize) -> Shared<'_> {
        Shared::new(&self.ring, slot(self.head) + HEADER_BYTES, bytes)
    }

    /// Asks for the beginning of the packet behind the next one.
    #[inline]
    pub(super) fn prefetch(&self) {
        let behind = slot(self.head.wrapping_add(1));
        self.ring.prefetch(behind, 2 * LINE_BYTES, Intent::Read);
    }

    /// Goes on behind the next packet.
    #[inline]
    pub(super) fn pass(&mut self) -> Result<(), MemError> {
        self.head = self.head.wrapping_add(1);
        if self.head.wrapping_sub(self.released) >= SLOTS / 4 {
            self.release()?;
        }
        Ok(())
    }

    /// Gives the slots back that were passed.
    pub(super) fn release(&mut self) -> Result<(), MemError> {
        if self.released != self.head {
            self.released = self.head;
            // Release: our copies out of the slots, before the producer's stores to them.
            self.ring.store_u64(HEAD, self.head, Ordering::Release)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_mem::HostMem;
    use bellpush_mem::model::{Shape, explore};

    impl Consumer {
        /// Copies the next packet out, if there is one.
        fn pop(&mut self, into: &mut [u8; MAX_PACKET_BYTES]) -> Result<Option<Next>, MemError> {
            let Some(next) = self.next()? else { return Ok(None) };
            let bytes = next.bytes.unwrap_or(0);
            self.lying(bytes).read(&mut into[..bytes])?;
            self.pass()?;
            Ok(Some(next))
        }
    }

    const ENDS: Ends = Ends {
        from: 3,
        to: 4,
        fields: Fields {
            traffic_class: 0xa5,
            hop_limit: 7,
            src_port: 0xc123,
            flow_label: 0xf_1234,
        },
    };

    /// What the consumer sees of a packet with these ends.
    fn next_of(bytes: usize) -> Next {
        let words = ENDS.words().map(|(_, word)| word);
        let ends = bytemuck::cast(words);
        assert_eq!(Ends::of(ends), ENDS);
        Next { bytes: Some(bytes), ends }
    }

    fn ring() -> View {
        let mem = HostMem::alloc(RING_BYTES).unwrap();
        View::new(&mem, 0, RING_BYTES).unwrap()
    }

    fn ends_of(ring: &View) -> (Producer, Consumer, Box<[u8; MAX_PACKET_BYTES]>) {
        let buf = Box::new([0; MAX_PACKET_BYTES]);
        (Producer::new(ring.clone()).unwrap(), Consumer::new(ring.clone()).unwrap(), buf)
    }

    #[test]
    fn packets_of_every_length_come_out_as_they_went_in() {
        let ring = ring();
        let (mut tx, mut rx, mut buf) = ends_of(&ring);
        for bytes in (0..=MAX_PACKET_BYTES).step_by(13).chain([MAX_PACKET_BYTES]) {
            let packet: Vec<u8> = (0..bytes).map(|i| (i * 7 + bytes) as u8).collect();
            assert!(tx.push(&packet, ENDS).unwrap());
            let popped = rx.pop(&mut buf).unwrap().unwrap();
            assert_eq!(popped, next_of(bytes));
            assert_eq!(buf[..bytes], packet);
            assert_eq!(rx.pop(&mut buf).unwrap(), None);
        }
    }

    /// A packet of so many bytes, built from parts.
    fn build(tx: &mut Producer, bytes: &[u8], (head, tail): (usize, usize)) -> Built {
        let payload = bytes.len() - head - tail;
        let (head, tail) = (&bytes[..head], &bytes[bytes.len() - tail..]);
        let mut fill = |mut room: Room<'_>| {
            assert_eq!(room.len(), payload);
            room.put(0, &bytes[head.len()..][..payload]).is_ok()
        };
        tx.build(Apart { head, payload, tail }, ENDS, &mut fill).unwrap()
    }

    #[test]
    fn packets_that_are_built_in_their_slots_come_out_as_those_that_are_pushed() {
        let ring = ring();
        let (mut tx, mut rx, mut buf) = ends_of(&ring);
        for bytes in (19..=MAX_PACKET_BYTES).step_by(13).chain([MAX_PACKET_BYTES]) {
            let packet: Vec<u8> = (0..bytes).map(|i| (i * 7 + bytes) as u8).collect();
            assert_eq!(build(&mut tx, &packet, (12 + bytes % 3, 4 + bytes % 2)), Built::Yes);
            assert!(tx.push(&packet, ENDS).unwrap());
            let next = rx.next().unwrap().unwrap();
            assert_eq!((next, rx.next().unwrap()), (next_of(bytes), Some(next)));
            let mut part = vec![0; bytes - 19];
            rx.lying(bytes).part(19..bytes).read(&mut part).unwrap();
            assert_eq!(part, packet[19..]);
            for _ in 0..2 {
                assert_eq!(rx.pop(&mut buf).unwrap(), Some(next));
                assert_eq!(buf[..bytes], packet);
            }
            assert_eq!(rx.pop(&mut buf).unwrap(), None);
        }
    }

    #[test]
    fn a_payload_that_cannot_be_had_makes_no_packet() {
        let ring = ring();
        let (mut tx, mut rx, mut buf) = ends_of(&ring);
        let packet = Apart { head: &[1; 12], payload: 512, tail: &[0; 4] };
        let mut fails = |mut room: Room<'_>| {
            room.put(0, &[9; 100]).unwrap();
            false
        };
        assert_eq!(tx.build(packet, ENDS, &mut fails).unwrap(), Built::Failed);
        assert_eq!(rx.pop(&mut buf).unwrap(), None);
        assert!(tx.push(&[2; 9], ENDS).unwrap());
        assert_eq!(rx.pop(&mut buf).unwrap().unwrap().bytes, Some(9));
        assert_eq!(buf[..9], [2; 9]);
        // Nor does one that has no place, whose payload is not asked for.
        let mut asked = |_: Room<'_>| panic!("asked for its payload");
        let long = Apart { payload: MAX_PACKET_BYTES - 15, ..packet };
        assert_eq!(tx.build(long, ENDS, &mut asked).unwrap(), Built::Elsewhere);
        while tx.push(&[3], ENDS).unwrap() {}
        assert_eq!(tx.build(packet, ENDS, &mut asked).unwrap(), Built::Elsewhere);
    }

    #[test]
    fn a_full_ring_takes_nothing_until_slots_are_released() {
        let ring = ring();
        let (mut tx, mut rx, mut buf) = ends_of(&ring);
        for round in 0..3u8 {
            for _ in 0..SLOTS {
                assert!(tx.push(&[round; 9], ENDS).unwrap());
            }
            assert!(!tx.push(&[round; 9], ENDS).unwrap());
            rx.pop(&mut buf).unwrap().unwrap();
            assert!(!tx.push(&[9], ENDS).unwrap(), "not released yet");
            rx.release().unwrap();
            assert!(tx.push(&[round; 9], ENDS).unwrap());
            for _ in 0..SLOTS {
                assert_eq!(rx.pop(&mut buf).unwrap().unwrap().bytes, Some(9));
                assert_eq!(buf[..9], [round; 9]);
            }
            rx.release().unwrap();
        }
    }

    #[test]
    fn who_takes_over_goes_on_where_the_dead_one_stopped() {
        let ring = ring();
        let (mut tx, mut rx, mut buf) = ends_of(&ring);
        for i in 0..100u8 {
            assert!(tx.push(&[i], ENDS).unwrap());
        }
        // Died after publishing a slot, before saying so.
        ring.store_u64(TAIL, 99, Ordering::Relaxed).unwrap();
        let mut tx = Producer::new(ring.clone()).unwrap();
        assert!(tx.push(&[100], ENDS).unwrap());
        for i in 0..50u8 {
            rx.pop(&mut buf).unwrap().unwrap();
            assert_eq!(buf[0], i);
        }
        rx.release().unwrap();
        let mut rx = Consumer::new(ring.clone()).unwrap();
        for i in 50..=100u8 {
            rx.pop(&mut buf).unwrap().unwrap();
            assert_eq!(buf[0], i);
        }
        assert_eq!(rx.pop(&mut buf).unwrap(), None);
    }

    #[test]
    fn what_a_hostile_end_writes_is_bounded() {
        let ring = ring();
        let (mut tx, mut rx, mut buf) = ends_of(&ring);
        for bytes in [MAX_PACKET_BYTES as u32 + 1, u32::MAX] {
            assert!(tx.push(&[1; 8], ENDS).unwrap());
            let at = slot(tx.tail - 1) + LENGTH;
            ring.store_u32(at, bytes, Ordering::Relaxed).unwrap();
            assert_eq!(rx.pop(&mut buf).unwrap().unwrap().bytes, None);
        }
        // A head that was never reached leaves the ring full, and the right one opens it again.
        for head in [u64::MAX, 1000, 1 << 40] {
            let (mut tx, mut rx, _) = ends_of(&ring);
            while tx.push(&[1], ENDS).unwrap() {}
            ring.store_u64(HEAD, head, Ordering::Relaxed).unwrap();
            assert!(!tx.push(&[1], ENDS).unwrap());
            while rx.pop(&mut buf).unwrap().is_some() {}
            assert!(tx.push(&[1], ENDS).unwrap());
            while rx.pop(&mut buf).unwrap().is_some() {}
            rx.release().unwrap();
        }
        // A tail that makes no sense: the consumer never sees what is pushed, and nothing else.
        ring.store_u64(TAIL, u64::MAX - 3, Ordering::Relaxed).unwrap();
        let (mut tx, mut rx, _) = ends_of(&ring);
        for _ in 0..2 * SLOTS {
            let _ = tx.push(&[1], ENDS).unwrap();
            let _ = rx.pop(&mut buf).unwrap();
        }
    }

    /// This code under loom. A packet is taken out of the very slot that the next one is written to,
    /// as soon as the consumer says so.
    #[test]
    fn under_loom_packets_come_out_whole_and_no_slot_is_written_too_early() {
        explore(3, || {
            let mem = HostMem::modelled(RING_BYTES, Shape::Guarded);
            let (mut producer, mut consumer, mut into) =
                ends_of(&View::new(&mem, 0, RING_BYTES).unwrap());
            assert!(producer.push(b"first", ENDS).unwrap());
            producer.tail = SLOTS; // all slots are in use
            let producing = loom::thread::spawn(move || {
                while build(&mut producer, b"again", (1, 1)) != Built::Yes {
                    loom::thread::yield_now();
                }
            });
            let mut pop = |consumer: &mut Consumer| loop {
                if let Some(popped) = consumer.pop(&mut into).unwrap() {
                    assert_eq!(popped, next_of(5));
                    return into[..5].to_vec();
                }
                loom::thread::yield_now();
            };
            assert_eq!(pop(&mut consumer), b"first");
            consumer.release().unwrap();
            consumer.head = SLOTS;
            assert_eq!(pop(&mut consumer), b"again");
            producing.join().unwrap();
        });
    }
}
