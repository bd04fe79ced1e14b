//! Packets on their way to a link.

use std::net::IpAddr;
use std::ops::Range;

use bellpush_wire::roce::{Fields, MAX_PACKET_BYTES};

/// Packets that an engine has built and the link has not taken yet, in their order. They lie back
/// to back, so that a run of them to one address can be sent as one.
#[derive(Debug)]
pub struct TxBatch {
    bytes: Box<[u8]>,
    packets: Vec<Place>,
    /// The first that the link has not taken.
    next: usize,
    /// Where the next packet is built.
    end: usize,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    to: IpAddr,
    fields: Fields,
    start: usize,
    len: usize,
}

/// A packet of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing<'a> {
    /// Destination.
    pub to: IpAddr,
    /// What its IP and UDP headers are to say, as far as the link can have them say it.
    pub fields: Fields,
    /// BTH to ICRC.
    pub bytes: &'a [u8],
}

impl TxBatch {
    /// An empty batch with room for `packets` packets of any length; all that it ever allocates.
    pub fn new(packets: usize) -> Self {
        Self {
            bytes: vec![0; packets * MAX_PACKET_BYTES].into(),
            packets: Vec::with_capacity(packets),
            next: 0,
            end: 0,
        }
    }

    /// Packets that can still be built before the link has to take some.
    pub fn room(&self) -> usize {
        if self.next == self.packets.len() {
            return self.packets.capacity(); // the next packet starts over
        }
        let places = self.packets.capacity() - self.packets.len();
        places.min((self.bytes.len() - self.end) / MAX_PACKET_BYTES)
    }

    /// Packets that the link has not taken.
    pub fn len(&self) -> usize {
        self.packets.len() - self.next
    }

    /// Whether the link has taken everything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Builds a packet with header fields as usual; see [`TxBatch::push_with`].
    ///
    /// # Panics
    /// As [`TxBatch::push_with`].
    pub fn push(&mut self, to: IpAddr, build: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        self.push_with(to, Fields::default(), build)
    }

    /// Builds a packet: `build` writes it to the start of [`MAX_PACKET_BYTES`] bytes and returns
    /// its length, or `None` to leave the batch as it is. Returns whether there was room and a
    /// packet.
    ///
    /// # Panics
    /// When the length is more than the room.
    pub fn push_with(
        &mut self,
        to: IpAddr,
        fields: Fields,
        build: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        if self.room() == 0 {
            return false;
        }
        if self.is_empty() {
            self.packets.clear();
            (self.next, self.end) = (0, 0);
        }
        let start = self.end;
        let Some(len) = build(&mut self.bytes[start..start + MAX_PACKET_BYTES]) else {
            return false;
        };
        assert!(len <= MAX_PACKET_BYTES, "a packet of {len} bytes");
        self.packets.push(Place { to, fields, start, len });
        self.end = start + len;
        true
    }

    /// The packets that the link has not taken, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Outgoing<'_>> + Clone {
        self.outgoing(self.next..self.packets.len())
    }

    /// The `n` packets that the link took last, in order. They are there until the next is built.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn taken(&self, n: usize) -> impl ExactSizeIterator<Item = Outgoing<'_>> + Clone {
        self.outgoing(self.next - n..self.next)
    }

    fn outgoing(&self, range: Range<usize>) -> impl ExactSizeIterator<Item = Outgoing<'_>> + Clone {
        let outgoing = |p: &Place| {
            let bytes = &self.bytes[p.start..][..p.len];
            Outgoing { to: p.to, fields: p.fields, bytes }
        };
        self.packets[range].iter().map(outgoing)
    }

    /// The longest run of packets from the front that can be sent as one: to one address, with the same header fields,
    /// all of the same length, of which the last may be shorter; at most `most`, and at most `bytes` bytes if more than
    /// one. Returns how many, and their bytes; `None` of an empty batch.
    pub fn run(&self, skip: usize, most: usize, bytes: usize) -> Option<Run<'_>> {
        let places = self.packets.get(self.next + skip..)?;
        let first = places.first()?;
        let (mut count, mut len) = (1, first.len);
        for place in places.iter().take(most).skip(1) {
            let same = (place.to, place.fields) == (first.to, first.fields);
            if !same || place.len > first.len || len + place.len > bytes {
                break;
            }
            count += 1;
            len += place.len;
            if place.len < first.len {
                break;
            }
        }
        let bytes = &self.bytes[first.start..][..len];
        Some(Run { to: first.to, fields: first.fields, count, segment: first.len, bytes })
    }

    /// Takes `n` packets out, from the front.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn take(&mut self, n: usize) {
        assert!(n <= self.len(), "{n} packets taken of {}", self.len());
        self.next += n;
    }
}

/// Packets of a batch that lie back to back; see [`TxBatch::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run<'a> {
    /// Destination.
    pub to: IpAddr,
    /// Header fields.
    pub fields: Fields,
    /// How many.
    pub count: usize,
    /// Length of each but the last, which may be shorter.
    pub segment: usize,
    /// All of them.
    pub bytes: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn to(last: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, last).into()
    }

    fn push(batch: &mut TxBatch, last: u8, len: usize) -> bool {
        batch.push(to(last), |buf| {
            buf[..len].fill(len as u8);
            Some(len)
        })
    }

    #[test]
    fn packets_come_out_in_order_and_make_room_when_all_are_taken() {
        let mut batch = TxBatch::new(3);
        assert_eq!((batch.room(), batch.len()), (3, 0));
        for len in [10, 20, 30] {
            assert!(push(&mut batch, 1, len));
        }
        assert!(!push(&mut batch, 1, 40), "full");
        let lengths = |batch: &TxBatch| batch.iter().map(|p| p.bytes.len()).collect::<Vec<_>>();
        assert_eq!(lengths(&batch), [10, 20, 30]);
        batch.take(2);
        assert_eq!((lengths(&batch), batch.room()), (vec![30], 0));
        assert!(batch.iter().all(|p| p.bytes == [30; 30]));
        assert!(batch.taken(2).map(|p| p.bytes.len()).eq([10, 20]));
        batch.take(1);
        assert_eq!(batch.room(), 3);
        assert!(push(&mut batch, 1, MAX_PACKET_BYTES));
        assert_eq!(lengths(&batch), [MAX_PACKET_BYTES]);
    }

    #[test]
    fn a_packet_that_is_not_built_leaves_nothing() {
        let mut batch = TxBatch::new(2);
        assert!(!batch.push(to(1), |_| None));
        assert!(batch.is_empty());
        assert!(push(&mut batch, 1, 8));
        assert!(!batch.push(to(1), |_| None));
        assert_eq!(batch.len(), 1);
    }

    #[test]
    fn a_run_has_the_same_header_fields() {
        let mut batch = TxBatch::new(4);
        for class in [0, 0, 8, 8] {
            let fields = Fields { traffic_class: class, ..Fields::default() };
            batch.push_with(to(1), fields, |_| Some(8));
        }
        let run = batch.run(0, 9, 99).unwrap();
        assert_eq!((run.count, run.fields.traffic_class), (2, 0));
        let run = batch.run(2, 9, 99).unwrap();
        assert_eq!((run.count, run.fields.traffic_class), (2, 8));
    }

    #[test]
    fn runs_end_with_the_address_the_length_or_the_limit() {
        let mut batch = TxBatch::new(8);
        for (last, len) in [(1, 8), (1, 8), (1, 4), (1, 4), (2, 4), (2, 6), (2, 6)] {
            push(&mut batch, last, len);
        }
        let runs = |most, bytes| {
            let (mut skip, mut runs) = (0, vec![]);
            while let Some(run) = batch.run(skip, most, bytes) {
                runs.push((run.count, run.segment, run.bytes.len()));
                skip += run.count;
            }
            runs
        };
        assert_eq!(runs(9, 99), [(3, 8, 20), (1, 4, 4), (1, 4, 4), (2, 6, 12)]);
        assert_eq!(runs(2, 99), [(2, 8, 16), (2, 4, 8), (1, 4, 4), (2, 6, 12)]);
        assert_eq!(runs(9, 11)[..2], [(1, 8, 8), (1, 8, 8)]);
        assert_eq!(batch.run(7, 9, 99), None);
    }
}
