//! READs and atomics that a responder may have to answer again (InfiniBand vol. 1, 9.7.5.1.3 and
//! 9.4.5): as many as `max_dest_rd_atomic`, and the order in which responses are due. A request is
//! forgotten when others have taken its place, and when the connection has moved on by half the PSNs.

use std::collections::VecDeque;

use bellpush_wire::Psn;
use bellpush_wire::roce::Reth;

/// A request that is answered with data.
pub(super) struct Entry {
    pub(super) first: Psn,
    /// PSNs that its responses take.
    pub(super) packets: u32,
    /// MSN after it.
    pub(super) msn: u32,
    pub(super) what: What,
    queued: bool,
    /// Whether it was answered once in full. Then a requester that asks for more than the limit
    /// has had the answer, and whatever has it answered again is an old packet.
    pub(super) answered: bool,
}

/// What is answered.
pub(super) enum What {
    /// The bytes of a region; read when they are sent.
    Read {
        from: Reth,
        /// Protection domain of its key.
        pd: u32,
        /// The packet to be sent next, the first of this answer, and the one past its last.
        next: u32,
        begin: u32,
        end: u32,
    },
    /// The old value: the atomic is carried out once.
    Atomic { old: u64 },
}

/// More requests than the connection's limit are unanswered.
#[derive(Debug)]
pub(super) struct Full;

/// The requests that may be answered again, and those that are due.
pub(super) struct Replay {
    most: usize,
    entries: VecDeque<Entry>,
    /// Number of the first entry; entries are counted from 0 and wrap.
    front: u32,
    /// Numbers of the entries that are due, in the order of their responses.
    due: VecDeque<u32>,
}

impl Replay {
    pub(super) fn new(most: u8) -> Self {
        let most = most.into();
        Self { most, entries: VecDeque::new(), front: 0, due: VecDeque::new() }
    }

    pub(super) fn set_limit(&mut self, most: u8) {
        self.most = most.into();
    }

    /// Whether a request can be taken.
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() < self.most || self.entries.front().is_some_and(|e| e.answered)
    }

    /// Takes a request, whose response is due after all others. The oldest answered one goes.
    pub(super) fn push(
        &mut self,
        first: Psn,
        packets: u32,
        msn: u32,
        what: What,
    ) -> Result<(), Full> {
        if !self.has_room() || self.most == 0 {
            return Err(Full);
        }
        while self.entries.len() >= self.most {
            self.pop_oldest();
        }
        self.due.push_back(self.front.wrapping_add(self.entries.len() as u32));
        self.entries.push_back(Entry { first, packets, msn, what, queued: true, answered: false });
        Ok(())
    }

    /// Has a READ answered again from a PSN on. `from` must ask for a part of it that begins and
    /// ends with whole packets or its end; says whether it did.
    pub(super) fn repeat_read(&mut self, psn: Psn, from: &Reth, mtu: usize) -> bool {
        let Some((at, index)) = self.find(psn) else { return false };
        let entry = &mut self.entries[at];
        let What::Read { from: all, next, begin, end, .. } = &mut entry.what else { return false };
        let skip = (u64::from(index) * mtu as u64) as u32;
        let addr = all.addr.0.wrapping_add(skip.into());
        let ends = u64::from(skip) + u64::from(from.bytes);
        let whole = (from.bytes as usize).is_multiple_of(mtu) || ends == u64::from(all.bytes);
        let same = from.rkey == all.rkey && from.addr.0 == addr && ends <= u64::from(all.bytes);
        if !same || !whole {
            return false;
        }
        let packets = from.bytes.div_ceil(mtu as u32).max(1);
        // One that is due already is answered from the earlier of the two on.
        (*begin, *end) = match entry.queued {
            true => (index.min(*begin), (index + packets).max(*end)),
            false => (index, index + packets),
        };
        *next = *begin;
        self.make_due(at);
        true
    }

    /// Has an atomic answered again; says whether it is still known.
    pub(super) fn repeat_atomic(&mut self, psn: Psn) -> bool {
        let Some((at, _)) = self.find(psn) else { return false };
        let is_atomic = matches!(self.entries[at].what, What::Atomic { .. });
        if is_atomic {
            self.make_due(at);
        }
        is_atomic
    }

    /// Lets answered requests go whose packets all lie half the PSNs or more before the one that is
    /// expected: no duplicate names them any more, and their PSNs come round.
    pub(super) fn expire(&mut self, expected: Psn) {
        let is_old = |e: &Entry| {
            let last = e.first.plus(e.packets.saturating_sub(1));
            e.answered && expected.distance(last) < 0
        };
        while self.entries.front().is_some_and(is_old) {
            self.pop_oldest();
        }
    }

    fn pop_oldest(&mut self) {
        self.entries.pop_front();
        self.due.retain(|&number| number != self.front);
        self.front = self.front.wrapping_add(1);
    }

    /// The newest that a PSN belongs to: an older one with the same PSN was of a lap before.
    fn find(&self, psn: Psn) -> Option<(usize, u32)> {
        let offset = |e: &Entry| u32::try_from(psn.distance(e.first)).ok();
        self.entries
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, e)| offset(e).filter(|&n| n < e.packets).map(|index| (at, index)))
    }

    fn make_due(&mut self, at: usize) {
        if !self.entries[at].queued {
            self.entries[at].queued = true;
            self.due.push_back(self.front.wrapping_add(at as u32));
        }
    }

    /// The request whose response is due.
    pub(super) fn due(&mut self) -> Option<&mut Entry> {
        let number = *self.due.front()?;
        self.entries.get_mut(number.wrapping_sub(self.front) as usize)
    }

    /// That response is sent.
    pub(super) fn answered(&mut self) {
        if let Some(entry) = self.due() {
            (entry.queued, entry.answered) = (false, true);
        }
        self.due.pop_front();
    }

    /// Nothing is due any more.
    pub(super) fn forget(&mut self) {
        self.due.clear();
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_wire::{Iova, Rkey};

    fn reth(addr: u64, bytes: u32) -> Reth {
        Reth { addr: Iova(addr), rkey: Rkey(1), bytes }
    }

    fn read(replay: &mut Replay, psn: u32, bytes: u32) -> Result<(), Full> {
        let from = reth(0x1000, bytes);
        let packets = bytes.div_ceil(256);
        let what = What::Read { from, pd: 0, next: 0, begin: 0, end: packets };
        replay.push(Psn::new(psn), packets, 0, what)
    }

    fn due(replay: &mut Replay) -> Vec<(u32, u32, u32)> {
        let mut all = vec![];
        while let Some(entry) = replay.due() {
            let range = match entry.what {
                What::Read { next, end, .. } => (next, end),
                What::Atomic { .. } => (0, 1),
            };
            all.push((entry.first.value(), range.0, range.1));
            replay.answered();
        }
        all
    }

    #[test]
    fn an_unanswered_request_is_never_pushed_out() {
        let mut replay = Replay::new(2);
        read(&mut replay, 10, 256).unwrap();
        read(&mut replay, 11, 256).unwrap();
        assert!(read(&mut replay, 12, 256).is_err());
        assert_eq!(due(&mut replay).len(), 2);
        read(&mut replay, 12, 256).unwrap();
        assert!(!replay.repeat_read(Psn::new(10), &reth(0x1000, 256), 256), "it went");
        assert!(replay.repeat_read(Psn::new(11), &reth(0x1000, 256), 256));
        assert_eq!(due(&mut replay), [(12, 0, 1), (11, 0, 1)]);
        // An old packet asks for one again; the requester has moved on.
        assert!(replay.repeat_read(Psn::new(11), &reth(0x1000, 256), 256));
        read(&mut replay, 13, 256).unwrap();
        assert_eq!(due(&mut replay), [(13, 0, 1)]);
        assert!(Replay::new(0).push(Psn::new(0), 1, 0, What::Atomic { old: 1 }).is_err());
    }

    #[test]
    fn a_part_is_answered_again_and_nothing_outside() {
        let mut replay = Replay::new(4);
        read(&mut replay, 0xff_fffe, 1000).unwrap();
        due(&mut replay);
        let mut again = |psn, addr, bytes| {
            let known = replay.repeat_read(Psn::new(psn), &reth(addr, bytes), 256);
            (known, due(&mut replay))
        };
        assert_eq!(again(0, 0x1200, 488), (true, vec![(0xff_fffe, 2, 4)]));
        assert_eq!(again(0xff_ffff, 0x1100, 256), (true, vec![(0xff_fffe, 1, 2)]));
        for (psn, addr, bytes) in [
            (0, 0x1200, 489),
            (0, 0x1200, 100),
            (0, 0x1201, 256),
            (2, 0x1400, 0),
            (0xff_fffd, 0xf00, 256),
        ] {
            assert_eq!(again(psn, addr, bytes), (false, vec![]), "{psn:#x} {addr:#x} {bytes}");
        }
    }

    #[test]
    fn the_newest_of_two_laps_is_answered() {
        let mut replay = Replay::new(4);
        let atomic = |replay: &mut Replay, psn, old| {
            replay.push(Psn::new(psn), 1, 0, What::Atomic { old }).unwrap();
            replay.answered();
        };
        let word = |replay: &mut Replay| match replay.due() {
            Some(Entry { what: What::Atomic { old }, .. }) => Some(*old),
            _ => None,
        };
        atomic(&mut replay, 7, 1000);
        read(&mut replay, 8, 1024).unwrap();
        replay.answered();
        // The PSNs have come round.
        read(&mut replay, 5, 512).unwrap();
        replay.answered();
        atomic(&mut replay, 7, 7000);
        assert!(replay.repeat_atomic(Psn::new(7)));
        assert_eq!(word(&mut replay), Some(7000));
        replay.answered();
        // Another READ, where the one of the lap before began earlier and asked for other bytes.
        read(&mut replay, 9, 256).unwrap();
        replay.answered();
        assert!(replay.repeat_read(Psn::new(9), &reth(0x1000, 256), 256));
        assert_eq!(due(&mut replay), [(9, 0, 1)]);
    }

    #[test]
    fn answered_requests_expire_with_their_last_psn() {
        const HALF: u32 = Psn::MODULUS / 2;
        let mut replay = Replay::new(4);
        read(&mut replay, 0xff_fffe, 1024).unwrap(); // up to PSN 1
        replay.push(Psn::new(2), 1, 0, What::Atomic { old: 3 }).unwrap();
        replay.expire(Psn::new(HALF + 3));
        assert_eq!(replay.entries.len(), 2, "not while they are to be answered");
        assert_eq!(due(&mut replay).len(), 2);
        replay.expire(Psn::new(HALF));
        assert_eq!(replay.entries.len(), 2, "the last of its packets may be asked for yet");
        assert!(replay.repeat_read(Psn::new(1), &reth(0x1300, 256), 256));
        replay.expire(Psn::new(HALF + 1));
        assert!(!replay.repeat_read(Psn::new(1), &reth(0x1300, 256), 256));
        assert_eq!(due(&mut replay), [], "what went is not due");
        assert!(replay.repeat_atomic(Psn::new(2)));
        replay.expire(Psn::new(HALF + 2));
        assert!(!replay.repeat_atomic(Psn::new(2)));
    }

    #[test]
    fn two_parts_that_are_due_are_one() {
        let mut replay = Replay::new(1);
        read(&mut replay, 5, 1024).unwrap();
        due(&mut replay);
        assert!(replay.repeat_read(Psn::new(8), &reth(0x1300, 256), 256));
        assert!(replay.repeat_read(Psn::new(6), &reth(0x1100, 256), 256));
        assert_eq!(due(&mut replay), [(5, 1, 4)]);
        assert!(replay.repeat_read(Psn::new(6), &reth(0x1100, 256), 256));
        assert!(replay.repeat_read(Psn::new(8), &reth(0x1300, 256), 256));
        assert_eq!(due(&mut replay), [(5, 1, 4)]);
        assert!(!replay.repeat_read(Psn::new(9), &reth(0x1400, 0), 256), "behind its last packet");
        replay.set_limit(2);
        read(&mut replay, 9, 256).unwrap();
        assert!(replay.repeat_read(Psn::new(8), &reth(0x1300, 256), 256), "two are kept");
        replay.forget();
        assert_eq!(due(&mut replay), []);
        assert!(!replay.repeat_read(Psn::new(8), &reth(0x1300, 256), 256));
    }

    #[test]
    fn one_that_is_due_is_due_once() {
        let mut replay = Replay::new(4);
        read(&mut replay, 5, 1024).unwrap();
        replay.push(Psn::new(9), 1, 0, What::Atomic { old: 3 }).unwrap();
        assert!(replay.repeat_read(Psn::new(6), &reth(0x1100, 768), 256));
        assert!(replay.repeat_atomic(Psn::new(9)));
        assert!(!replay.repeat_atomic(Psn::new(5)));
        assert_eq!(due(&mut replay), [(5, 0, 4), (9, 0, 1)]);
    }
}
