//! UAR pages as an engine watches them.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use crate::objects::cq::Cq;
use bellpush_mem::{Dma, MemError, View};
use bellpush_wire::Qpn;
use bellpush_wire::doorbell::{Doorbell, UAR_CQ_DOORBELL_OFFSET, UAR_DOORBELL_OFFSETS};

/// The doorbell registers of a page that changed, with what they say now.
pub(crate) type Rung = [Option<u64>; UAR_DOORBELL_OFFSETS.len()];

/// A UAR page and the queue pairs that ring there.
pub(crate) struct Uar {
    page: View,
    /// The registers as last seen.
    seen: [u64; UAR_DOORBELL_OFFSETS.len()],
    kind: Kind,
    /// Doorbells are taken out of their registers: see [`Uar::take_doorbells`].
    takes: bool,
    /// A doorbell without a queue pair's number was seen: ringers store it in two halves. Where several queue pairs ring, a
    /// word may have one's index and another's number. Until that is seen, such a word passes for a doorbell.
    in_parts: bool,
    /// What was taken last of each.
    taken: Rung,
    /// Slots of the queue pairs in the engine.
    pub(crate) qps: Vec<usize>,
    /// A round of looks at all of them, after a ring: what rang, where the round is, how many are left.
    rung: Rung,
    at: usize,
    left: usize,
}

/// Queue pairs of a page that are looked at in a step. A doorbell that another's has written over, which is in the
/// record alone, is found by the end of the round.
const ROUND: usize = 32;

/// Which of a page's registers are in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first two, as our own posters ring: each look costs them, when nobody does.
    Own,
    /// The first, and a BlueFlame buffer with check words.
    BlueFlame,
    /// All: those of a library that deals them out.
    Foreign,
}

impl Uar {
    pub(crate) fn new(page: View, kind: Kind, slot: usize) -> Self {
        let seen = Default::default();
        Self {
            page,
            seen,
            kind,
            takes: false,
            in_parts: false,
            taken: Rung::default(),
            qps: vec![slot],
            rung: Rung::default(),
            at: 0,
            left: 0,
        }
    }

    /// Whether this is the page of that view, for plain doorbells.
    pub(crate) fn is(&self, page: &View) -> bool {
        self.page.addr() == page.addr()
    }

    /// Whether a round takes several steps.
    pub(crate) fn is_crowded(&self) -> bool {
        self.qps.len() > ROUND
    }

    /// Another queue pair rings here. Each rings over the other's doorbell, which leaves its record alone to be found.
    ///
    /// A program may also ring before its records are written, and again with the same bytes behind them
    /// (`submit_db_multi_qps` of doca-gpunetio). A register that is only compared with what was seen misses that: A rings,
    /// B rings and is seen, A's record is looked at, A and then B write their records and ring, and the register says what
    /// was seen. Such doorbells are taken.
    ///
    /// # Errors
    /// [`MemError`]; then it is none of the page's.
    pub(crate) fn add(&mut self, slot: usize) -> Result<(), MemError> {
        if self.kind == Kind::Foreign {
            self.take_doorbells()?;
        }
        self.qps.push(slot);
        self.start_round_over();
        Ok(())
    }

    /// A queue pair goes.
    pub(crate) fn remove(&mut self, slot: usize) {
        self.qps.retain(|&other| other != slot);
        self.start_round_over();
    }

    /// A round under way counts in a list that has changed: it would leave one out.
    fn start_round_over(&mut self) {
        if self.has_more() {
            self.sweep(Rung::default());
        }
    }

    /// From now on doorbells are taken out of their registers as they are seen, and before any record is looked at: each
    /// that comes is news, also with the bytes of the one before. It costs ringers and engine an atomic operation.
    ///
    /// # Errors
    /// [`MemError`]; then they are left where they are.
    pub(crate) fn take_doorbells(&mut self) -> Result<(), MemError> {
        if self.takes {
            return Ok(());
        }
        for (offset, seen) in UAR_DOORBELL_OFFSETS.into_iter().zip(&mut self.seen) {
            // What was seen already is no doorbell any more.
            self.page.compare_swap(offset, *seen, 0)?;
            *seen = 0;
        }
        self.takes = true;
        Ok(())
    }

    /// Begins a round of looks at all queue pairs, since the page was rung.
    pub(crate) fn sweep(&mut self, rung: Rung) {
        // In a crowd, those that it names have had their look.
        self.rung = if self.is_crowded() { Rung::default() } else { rung };
        self.left = self.qps.len();
    }

    /// Those that are to be looked at now, with what to look for.
    pub(crate) fn swept(&mut self) -> impl Iterator<Item = (usize, Rung)> {
        let (count, start, all) = (self.left.min(ROUND), self.at, self.qps.len());
        self.left -= count;
        self.at = (start + count) % all.max(1);
        let (qps, rung) = (&self.qps, self.rung);
        (0..count.min(all)).map(move |i| (qps[(start + i) % all], rung))
    }

    /// Whether the round goes on with the next step.
    pub(crate) fn has_more(&self) -> bool {
        self.left > 0
    }

    /// The first two registers as last seen: on the in-process link there are no others.
    pub(crate) fn seen(&self) -> [u64; 2] {
        [self.seen[0], self.seen[1]]
    }

    /// Takes over what an engine elsewhere has seen.
    pub(crate) fn go_on(&mut self, seen: [u64; 2]) {
        self.seen[..2].copy_from_slice(&seen);
    }

    /// Empties the registers: a queue pair that starts over rings with the same bytes again, which
    /// would look like no change. What others rang meanwhile, the caller must look for. Where doorbells are taken, those
    /// of others stay, and a round begins for those that this one rang over.
    pub(crate) fn clear(&mut self, qpn: Qpn) -> Result<(), MemError> {
        if self.takes {
            for (register, offset) in UAR_DOORBELL_OFFSETS.into_iter().enumerate() {
                let word = self.load(register);
                if Doorbell::parse(word).qpn == qpn {
                    self.page.compare_swap(offset, word, 0)?;
                    self.sweep(Rung::default());
                }
            }
            return Ok(());
        }
        for (offset, seen) in UAR_DOORBELL_OFFSETS.into_iter().zip(&mut self.seen) {
            self.page.store_u64(offset, 0, Ordering::Release)?;
            *seen = 0;
        }
        Ok(())
    }

    /// Looks at the registers; an idle queue pair costs this and nothing else.
    pub(crate) fn poll(&mut self) -> Option<Rung> {
        let mut rung = Rung::default();
        let mut any = self.look(0, &mut rung);
        match self.kind {
            Kind::Own => any |= self.look(1, &mut rung),
            // The engine clears the buffer itself; while anything is in it, it is worth a look.
            Kind::BlueFlame => any |= self.load(1) != 0,
            Kind::Foreign => {
                for register in 1..UAR_DOORBELL_OFFSETS.len() {
                    any |= self.look(register, &mut rung);
                }
            }
        }
        any.then_some(rung)
    }

    #[inline]
    fn look(&mut self, register: usize, rung: &mut Rung) -> bool {
        if self.takes {
            return self.take(register, rung);
        }
        let (offset, seen) = (UAR_DOORBELL_OFFSETS[register], self.seen[register]);
        // Acquire, as of `load`.
        let word = self.page.poll_u64(offset, seen).unwrap_or(0);
        let changed = word != seen;
        if changed {
            self.seen[register] = word;
            rung[register] = Some(word);
        }
        changed
    }

    #[inline]
    fn take(&mut self, register: usize, rung: &mut Rung) -> bool {
        let word = self.load(register);
        // Half of a register that is written in two parts names nobody yet. Where several ring, the records may tell.
        if Doorbell::parse(word).qpn == Qpn(0) {
            let came = word != 0 && word != self.seen[register] && self.qps.len() > 1;
            self.seen[register] = word;
            self.in_parts |= word != 0;
            return came;
        }
        // One that comes meanwhile stays for the next look.
        let _ = self.page.compare_swap(UAR_DOORBELL_OFFSETS[register], word, 0);
        self.seen[register] = 0;
        self.taken[register] = Some(word);
        // The records alone say whose index it is then.
        if !self.in_parts || self.qps.len() < 2 {
            rung[register] = Some(word);
        }
        true
    }

    /// What was last rung at each register, of those that are taken: for people.
    pub(crate) fn taken(&self) -> Rung {
        self.taken
    }

    /// Whether doorbells are taken.
    pub(crate) fn takes(&self) -> bool {
        self.takes
    }

    #[inline]
    fn load(&self, register: usize) -> u64 {
        // Acquire: what the ringer stored before the register (WQE, doorbell record) is visible to
        // the loads that follow a changed register.
        self.page.load_u64(UAR_DOORBELL_OFFSETS[register], Ordering::Acquire).unwrap_or(0)
    }
}

/// A UAR page as the consumers of CQs ring there to arm them.
pub(crate) struct ArmPage {
    page: View,
    cqs: Vec<Weak<Cq>>,
}

impl ArmPage {
    pub(crate) fn new(page: View) -> Self {
        Self { page, cqs: Vec::new() }
    }

    pub(crate) fn is(&self, page: &View) -> bool {
        self.page.addr() == page.addr()
    }

    /// Whether any of its CQs is still there.
    pub(crate) fn is_needed(&self) -> bool {
        self.cqs.iter().any(|cq| cq.strong_count() > 0)
    }

    pub(crate) fn add(&mut self, cq: Weak<Cq>) {
        self.cqs.retain(|cq| cq.strong_count() > 0);
        self.cqs.push(cq);
    }

    /// Has the page's CQs answer when somebody has rung: one of several rings survives there, the records tell the rest.
    /// The word is taken, as another ring of the same bytes may stand over another CQ's: who arms again before an event has
    /// come does so with the same sequence number.
    pub(crate) fn poll(&mut self) {
        // Acquire: the arm record was written before.
        let word = self.page.poll_u64(UAR_CQ_DOORBELL_OFFSET, 0).unwrap_or(0);
        if word != 0 {
            // One that comes meanwhile stays for the next look. Before the records are read.
            let _ = self.page.compare_swap(UAR_CQ_DOORBELL_OFFSET, word, 0);
            self.cqs.iter().filter_map(Weak::upgrade).for_each(|cq| cq.armed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_mem::HostMem;

    fn page(kind: Kind, qps: usize) -> (View, Uar) {
        let page = View::new(&HostMem::alloc(4096).unwrap(), 0, 4096).unwrap();
        let mut uar = Uar::new(page.clone(), kind, 0);
        (1..qps).for_each(|slot| uar.add(slot).unwrap());
        (page, uar)
    }

    fn ring(page: &View, word: u64) {
        page.store_u64(UAR_DOORBELL_OFFSETS[0], word, Ordering::Release).unwrap();
    }

    /// A kernel rings for two queue pairs at one register, writes their records, and rings again. The engine looks in
    /// between: at the first's record before that is written, at the second's after.
    #[test]
    fn a_register_that_comes_to_say_the_same_again_has_rung() {
        let (page, mut uar) = page(Kind::Foreign, 2);
        for _ in 0..2 {
            for qpn in [7, 8] {
                ring(&page, bell(qpn));
            }
            let rung = uar.poll().map(|rung| rung[0]);
            assert_eq!(rung, Some(Some(bell(8))), "whoever else rang is looked for as well");
        }
        assert!(uar.poll().is_none());
    }

    #[test]
    fn a_doorbell_that_is_taken_may_come_again_at_once() {
        let (page, mut uar) = page(Kind::Own, 1);
        ring(&page, bell(1));
        uar.poll().unwrap();
        uar.take_doorbells().unwrap();
        assert!(uar.poll().is_none(), "it was seen");
        for _ in 0..3 {
            ring(&page, bell(2));
            assert_eq!(uar.poll().map(|rung| rung[0]), Some(Some(bell(2))));
        }
        assert!(uar.poll().is_none());
    }

    /// As on machines that store 32 bits at a time.
    #[test]
    fn a_doorbell_in_two_parts_is_taken_when_it_is_whole() {
        let (page, mut uar) = page(Kind::Foreign, 1);
        uar.take_doorbells().unwrap();
        let word = bell(7);
        let (first, second) = (word as u32, (word >> 32) as u32);
        let at = UAR_DOORBELL_OFFSETS[0];
        page.store_u32(at, first, Ordering::Release).unwrap();
        assert!(uar.poll().is_none());
        page.store_u32(at + 4, second, Ordering::Release).unwrap();
        assert_eq!(uar.poll().map(|rung| rung[0]), Some(Some(word)));
    }

    fn bell(qpn: u64) -> u64 {
        (0x0100_0000_0000 | qpn << 8).to_be()
    }

    /// Whoever waits for an answer waits at the first part as well, and rings no second one meanwhile.
    #[test]
    fn the_first_part_of_a_doorbell_has_records_looked_at_once() {
        let (page, mut uar) = page(Kind::Foreign, 2);
        let at = UAR_DOORBELL_OFFSETS[0];
        for _ in 0..2 {
            page.store_u32(at, bell(7) as u32, Ordering::Release).unwrap();
            assert_eq!(uar.poll(), Some(Rung::default()));
            assert!(uar.poll().is_none());
            page.store_u32(at + 4, (bell(7) >> 32) as u32, Ordering::Release).unwrap();
            assert_eq!(uar.poll(), Some(Rung::default()));
            assert_eq!(uar.taken()[0], Some(bell(7)));
        }
    }

    /// One rings between the parts of another's doorbell: the word has its index, and the other's number.
    #[test]
    fn an_index_beside_anothers_number_is_nobodys() {
        let (page, mut uar) = page(Kind::Foreign, 2);
        let at = UAR_DOORBELL_OFFSETS[0];
        let (mine, others) = (bell(7), 0x0900_0000_0000u64.to_be());
        page.store_u32(at, mine as u32, Ordering::Release).unwrap();
        assert_eq!(uar.poll(), Some(Rung::default()), "control: a part");
        page.store_u32(at, others as u32, Ordering::Release).unwrap();
        page.store_u32(at + 4, (mine >> 32) as u32, Ordering::Release).unwrap();
        assert_eq!(uar.poll(), Some(Rung::default()));
    }

    #[test]
    fn who_starts_over_takes_its_own_doorbell_along() {
        let (page, mut uar) = page(Kind::Foreign, 2);
        uar.take_doorbells().unwrap();
        for (register, qpn) in [(0, 7), (1, 8)] {
            let at = UAR_DOORBELL_OFFSETS[register];
            page.store_u64(at, bell(qpn), Ordering::Release).unwrap();
        }
        uar.clear(Qpn(7)).unwrap();
        assert_eq!(uar.swept().count(), 2, "it may have rung over another's");
        let rung = uar.poll().unwrap();
        assert_eq!((rung[0], rung[1]), (None, Some(bell(8))));
    }

    /// What the first 32 rang over is found by the round, whoever comes and goes meanwhile.
    #[test]
    fn a_round_leaves_nobody_out_when_queue_pairs_come_and_go() {
        let changes: [fn(&mut Uar); 3] = [
            |uar| uar.remove(0),
            |uar| uar.add(40).unwrap(),
            |uar| (0..8).for_each(|slot| uar.remove(slot)),
        ];
        for (started_at, change) in changes.into_iter().flat_map(|it| [(0, it), (32, it)]) {
            let (page, mut uar) = page(Kind::Foreign, 40);
            uar.at = started_at;
            ring(&page, bell(7));
            let rung = uar.poll().unwrap();
            uar.sweep(rung);
            let mut seen: Vec<_> = uar.swept().map(|(slot, _)| slot).collect();
            assert_eq!(seen.len(), ROUND);
            change(&mut uar);
            while uar.has_more() {
                seen.extend(uar.swept().map(|(slot, _)| slot));
            }
            let unseen: Vec<_> = uar.qps.iter().filter(|slot| !seen.contains(slot)).collect();
            assert!(unseen.is_empty(), "{unseen:?} from {started_at}");
        }
    }

    #[test]
    fn what_was_taken_is_told() {
        let (page, mut uar) = page(Kind::Foreign, 2);
        ring(&page, bell(7));
        uar.poll().unwrap();
        assert!(uar.poll().is_none());
        assert_eq!(uar.taken()[0], Some(bell(7)));
    }

    #[test]
    fn doorbells_that_nobody_rings_over_unseen_are_left_alone() {
        for (kind, qps) in [(Kind::Foreign, 1), (Kind::Own, 2)] {
            let (page, mut uar) = page(kind, qps);
            ring(&page, bell(1));
            assert!(uar.poll().is_some());
            assert!(uar.poll().is_none());
            assert_eq!(page.load_u64(UAR_DOORBELL_OFFSETS[0], Ordering::Acquire).unwrap(), bell(1));
        }
    }
}
