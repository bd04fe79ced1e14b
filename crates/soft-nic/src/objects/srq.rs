//! Shared receive queues: a linked list of receive WQEs (mlx5 PRM, "SRQ WQE Format").
//!
//! Each WQE begins with a next segment whose bytes 2 and 3 are the index of the WQE that comes
//! after it. The poster links WQEs as they become free, so the NIC follows the links and does not
//! count positions. A cyclic one's WQEs come one after the other, and its CQEs count them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::objects::cq::{Cq, Overrun};
use crate::objects::events::{Event, Events};
use crate::objects::mr::Pd;
use crate::objects::number::Number;
use crate::objects::tags::{TagAttr, Tags};
use crate::objects::xrc::XrcSrq;
use crate::queue::recv::Receive;
use crate::record::{Call, Outcome, outside, plainly};
use bellpush_mem::{Dma, View};
use bellpush_nic::NicError;
use bellpush_wire::cqe::Cqe;
use bellpush_wire::doorbell::{DBR_RCV_OFFSET, ahead, dbr_counter};
use bellpush_wire::wqe::DS_BYTES;

/// Most WQEs: their counter has 16 bits, and one too far ahead must be recognisable as stale.
const MAX_WQES: u64 = 1 << 15;
/// Largest stride of a WQE: next segment and [`crate::queue::recv::MAX_RQ_SGES`] entries fit.
const MAX_STRIDE_LOG: u32 = 10;

/// What an SRQ is made of.
#[derive(Clone)]
pub struct SrqAttr {
    /// Its protection domain.
    pub pd: Arc<Pd>,
    /// Its WQEs, a power of two of them.
    pub ring: View,
    /// log2 of a WQE's stride in bytes.
    pub stride_log: u32,
    /// Its doorbell record: the number of WQEs posted, big-endian.
    pub dbr: View,
    /// Limit to be armed; 0 for none.
    pub limit: u32,
}

/// A shared receive queue. It lives as long as anyone holds it; queue pairs do.
pub struct Srq {
    number: Number,
    pd: Arc<Pd>,
    ring: View,
    stride: usize,
    wqes: u32,
    /// Whether WQEs come in the order of the ring.
    cyclic: bool,
    dbr: View,
    state: Mutex<State>,
    /// Where receives complete, of an SRQ of an XRC domain.
    xrc: Option<XrcSrq>,
    /// What it has besides, if it matches tags.
    tags: Option<Tags>,
    events: Arc<Events>,
}

struct State {
    /// The WQE to be taken next, and how many were.
    head: u32,
    taken: u64,
    limit: u32,
    /// Its memory is not touched any more.
    closed: bool,
}

impl Srq {
    pub(crate) fn new(
        number: Number,
        attr: &SrqAttr,
        xrc: Option<XrcSrq>,
        events: Arc<Events>,
    ) -> Result<Self, NicError> {
        let refuse = |what, value: u64, must| Err(NicError::Attribute { what, value, must });
        if !(5..=MAX_STRIDE_LOG).contains(&attr.stride_log) {
            return refuse("log2 of SRQ WQE's stride", attr.stride_log.into(), "5..=10");
        }
        let wqes = (attr.ring.len() >> attr.stride_log) as u64;
        if !wqes.is_power_of_two() || wqes > MAX_WQES {
            return refuse("SRQ's WQEs", wqes, "a power of two up to 32768");
        }
        if attr.dbr.len() < 4 || !attr.dbr.offset().is_multiple_of(4) {
            return refuse("SRQ's doorbell record's bytes", attr.dbr.len() as u64, "4, aligned");
        }
        let srq = Self {
            number,
            pd: attr.pd.clone(),
            ring: attr.ring.clone(),
            stride: 1 << attr.stride_log,
            wqes: wqes as u32,
            cyclic: false,
            dbr: attr.dbr.clone(),
            state: Mutex::new(State { head: 0, taken: 0, limit: 0, closed: false }),
            xrc,
            tags: None,
            events,
        };
        srq.arm_limit(attr.limit)?;
        Ok(srq)
    }

    /// The same, whose WQEs come in the order of the ring.
    pub(crate) fn cyclic(self) -> Self {
        Self { cyclic: true, ..self }
    }

    /// The same, which matches tags.
    pub(crate) fn matching(self, tags: TagAttr) -> Result<Self, NicError> {
        let cyclic = tags.cyclic;
        Ok(Self { tags: Some(Tags::new(tags)?), cyclic, ..self })
    }

    /// Its number on the NIC.
    pub fn number(&self) -> u32 {
        self.number.get()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Its XRC domain, CQ and user index, if it has them.
    pub fn xrc(&self) -> Option<&XrcSrq> {
        self.xrc.as_ref()
    }

    /// Whether it matches tags.
    pub fn matches_tags(&self) -> bool {
        self.tags.is_some()
    }

    /// What it has besides, if it matches tags.
    pub(crate) fn tags(&self) -> Option<&Tags> {
        self.tags.as_ref()
    }

    /// Ends it: no receive is taken from it any more, and where it has a CQ itself, none completes
    /// there. Its memory is not touched after this returns.
    pub fn close(&self) {
        let srq = self.number();
        plainly(self.number.recorder(), Call::CloseSrq { srq }, || self.end());
    }

    fn end(&self) {
        if let Some(tags) = &self.tags {
            tags.list().close();
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.bring_about();
    }

    /// Writes the entries of its own CQ that an adversary has put off.
    pub(crate) fn bring_about(&self) {
        if let Some((cq, _)) = self.cq() {
            cq.release_late(u64::MAX);
        }
    }

    /// The CQ that it has itself, and its user index there.
    fn cq(&self) -> Option<(&Cq, u32)> {
        let xrc = self.xrc.as_ref().map(|xrc| (&*xrc.cq, xrc.uidx));
        xrc.or(self.tags.as_ref().map(|tags| (&*tags.cq, tags.uidx)))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed
    }

    /// Completes one of its receives at its own CQ, unless it is closed.
    ///
    /// # Errors
    /// [`Overrun`].
    pub(crate) fn complete(&self, cqe: &Cqe) -> Result<(), Overrun> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.cq() {
            Some((cq, uidx)) if !state.closed => cq.push(&Cqe { uidx, ..*cqe }),
            _ => Ok(()),
        }
    }

    /// Asks for one [`Event::SrqLimit`] when fewer than `limit` receives are left; 0 takes it back.
    ///
    /// # Errors
    /// [`NicError::Attribute`] for a limit above the number of WQEs.
    pub fn arm_limit(&self, limit: u32) -> Result<(), NicError> {
        let call = || Call::ArmLimit { srq: self.number(), limit };
        outside(self.number.recorder(), call, || self.arm(limit), |&()| Outcome::Done)
    }

    fn arm(&self, limit: u32) -> Result<(), NicError> {
        if limit > self.wqes {
            let must = "at most its number of WQEs";
            return Err(NicError::Attribute { what: "SRQ limit", value: limit.into(), must });
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.limit = limit;
        if limit > 0 && !state.closed {
            self.watch(&mut state);
        }
        Ok(())
    }

    /// The limit that is armed, 0 for none.
    pub fn limit(&self) -> u32 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).limit
    }

    /// Takes the next receive, if one is posted; says whether.
    pub(crate) fn take(&self, into: &mut Receive) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed || self.posted(&state) == 0 {
            return false;
        }
        let mut bytes = [0; 1 << MAX_STRIDE_LOG];
        let bytes = &mut bytes[..self.stride];
        let checked = "the ring was checked when the SRQ was created";
        self.ring.read(state.head as usize * self.stride, bytes).expect(checked);
        // CQEs name a WQE by its place, or count, of which only 16 bits are said.
        let index = if self.cyclic { state.taken as u16 } else { state.head as u16 };
        state.taken += 1;
        // A link that leaves the ring is the program's mistake; it finds its WQEs in odd order.
        let next = match self.cyclic {
            true => state.taken as u32,
            false => u16::from_be_bytes([bytes[2], bytes[3]]).into(),
        };
        state.head = next & (self.wqes - 1);
        self.watch(&mut state);
        into.read(index, &bytes[DS_BYTES..]);
        true
    }

    fn posted(&self, state: &State) -> u32 {
        // Acquire: the WQEs were written before the record.
        let word = self.dbr.load_u32(DBR_RCV_OFFSET, Ordering::Acquire).unwrap_or(0);
        ahead(dbr_counter(word), state.taken, self.wqes).unwrap_or(0)
    }

    fn watch(&self, state: &mut State) {
        if state.limit > 0 && self.posted(state) < state.limit {
            state.limit = 0;
            self.events.push(Event::SrqLimit(self.number.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_mem::HostMem;
    use bellpush_wire::doorbell::dbr_word;
    use bellpush_wire::wqe::{DataSeg, INVALID_LKEY};

    struct Poster {
        srq: Srq,
        ring: View,
        dbr: View,
        events: Arc<Events>,
    }

    impl Poster {
        fn new() -> Self {
            let mem = HostMem::alloc(4096).unwrap();
            let (ring, dbr) = (View::new(&mem, 0, 256).unwrap(), View::new(&mem, 1024, 8).unwrap());
            let pd = Arc::new(Pd::new(Number::fixed(0)));
            let attr =
                SrqAttr { pd, ring: ring.clone(), stride_log: 6, dbr: dbr.clone(), limit: 0 };
            let events = Arc::new(Events::default());
            Self {
                srq: Srq::new(Number::fixed(7), &attr, None, events.clone()).unwrap(),
                ring,
                dbr,
                events,
            }
        }

        fn write(&self, index: u16, next: u16, addr: u64) {
            let mut wqe = [0; 64];
            wqe[2..4].copy_from_slice(&next.to_be_bytes());
            let seg = DataSeg { byte_count: 8.into(), lkey: 0x300.into(), addr: addr.into() };
            let end = DataSeg { lkey: INVALID_LKEY.0.into(), ..DataSeg::default() };
            wqe[16..32].copy_from_slice(bytemuck::bytes_of(&seg));
            wqe[32..48].copy_from_slice(bytemuck::bytes_of(&end));
            self.ring.write(usize::from(index) * 64, &wqe).unwrap();
        }

        fn post(&self, count: u16) {
            self.dbr.store_u32(0, dbr_word(count), Ordering::Release).unwrap();
        }

        fn take(&self) -> Option<(u16, u64)> {
            let mut receive = Receive::default();
            let there = self.srq.take(&mut receive);
            there.then(|| (receive.counter, receive.entries()[0].addr.0))
        }
    }

    #[test]
    fn links_are_followed_not_positions() {
        let p = Poster::new();
        assert_eq!(p.take(), None);
        for (index, next) in [(0, 2), (2, 1), (1, 3), (3, 0)] {
            p.write(index, next, 0x1000 + u64::from(index));
        }
        p.post(3);
        assert_eq!(p.take(), Some((0, 0x1000)));
        assert_eq!(p.take(), Some((2, 0x1002)));
        // The poster uses 2 again before 1 is taken, as a free list does.
        p.write(3, 2, 0x1003);
        p.post(5);
        assert_eq!([1, 3, 2].map(|_| p.take().unwrap().0), [1, 3, 2]);
        assert_eq!(p.take(), None);
        p.post(1000);
        assert_eq!(p.take(), None, "a count from nowhere posts nothing");
    }

    #[test]
    fn a_cyclic_queue_goes_round_its_ring_and_counts_on() {
        let p = Poster::new();
        let p = Poster { srq: p.srq.cyclic(), ..p };
        // Links lead nowhere.
        (0..4).for_each(|index| p.write(index, 0, 0x1000 + u64::from(index)));
        for count in 0..10 {
            p.post(count + 1);
            assert_eq!(p.take(), Some((count, 0x1000 + u64::from(count) % 4)));
            assert_eq!(p.take(), None);
        }
    }

    #[test]
    fn a_wild_link_stays_in_the_ring() {
        let p = Poster::new();
        p.write(0, 0xffff, 1);
        p.write(3, 0, 2);
        p.post(2);
        assert_eq!(p.take(), Some((0, 1)));
        assert_eq!(p.take(), Some((3, 2)));
    }

    #[test]
    fn the_limit_is_reported_once() {
        let p = Poster::new();
        assert!(p.srq.arm_limit(5).is_err());
        (0..4).for_each(|i| p.write(i, i + 1, 0));
        p.post(4);
        p.srq.arm_limit(3).unwrap();
        p.take();
        assert_eq!(p.events.pop(), None);
        p.take();
        p.take();
        assert_eq!(p.events.pop(), Some(Event::SrqLimit(7)));
        assert_eq!((p.events.pop(), p.srq.limit()), (None, 0));
        p.srq.arm_limit(2).unwrap();
        assert_eq!(p.events.pop(), Some(Event::SrqLimit(7)), "it is low already");
    }
}
