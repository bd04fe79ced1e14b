//! Doorbells and records as silicon takes them: kind `doorbell`.
//!
//! Otherwise this NIC takes the later of record and register, looks at the record of a page's queue pairs whenever one of
//! them is rung, and with kind `record` at any time: a program that forgets to ring, or rings before it writes the
//! record, gets on. Silicon reads the record when the doorbell comes, and starts no WQE that it does not count.

use std::sync::atomic::Ordering;

use super::{Finding, Kind, OfQp, State};
use crate::link::Rng;
use crate::objects::qp::Qp;
use bellpush_nic::{Order, QpState, QueuePair};
use bellpush_wire::doorbell::{DBR_SND_OFFSET, dbr_counter};

/// How long a record may count WQEs that no doorbell told of, in nanoseconds: far longer than any program means to wait
/// between the two, and shorter than most wait for a completion.
const UNRUNG_NS: u64 = 1_000_000_000;

const EARLY_BELL: &str =
    "a doorbell came before the doorbell record counted its WQE, and none since for a second";
const EARLY_REMEDY: &str = "write the record, then (after a write barrier) ring";
const UNRUNG: &str =
    "the doorbell record has counted WQEs for a second, and no doorbell was rung for them";
const UNRUNG_REMEDY: &str = "ring after the record was written";
const RULE: &str = "mlx5 PRM, \"Posting a Work Request to a Work Queue\"";

/// Whether a new queue pair is one of this kind. With `record`, which reads as early as this reads late, one of two is.
pub(super) fn draws(state: &State, rng: &Rng) -> bool {
    // A generator of its own: what the queue pair's decides does not depend on this.
    let one_of_two = || Rng(rng.0 ^ 0x9e6c_63d0_876a_68ee).below(2) == 0;
    state.has(Kind::Doorbell) && (!state.has(Kind::Record) || one_of_two())
}

/// What a queue pair's record says that no doorbell has told of.
#[derive(Default)]
pub(crate) struct Bells {
    /// The last doorbell was ahead of the record. Some ring so, write the record and ring once more: they break no rule.
    early: bool,
    /// Something is posted and does not begin: since when, and whether that was told.
    stuck: Option<(u64, bool)>,
}

impl Bells {
    /// Of a queue pair whose record is read when a doorbell comes alone.
    pub(crate) fn of(qp: &Qp) -> Option<Self> {
        let by_bell = qp.adversary.as_deref().is_some_and(|it| it.by_bell);
        (by_bell && qp.queues.order == Order::Strict).then(Self::default)
    }

    /// A doorbell has come, for the WQEs before `next`, and the record counts `record`. Without `next` it is another queue
    /// pair's of the page, which may have written over this one's: if the record counts more than was `seen`, it has.
    pub(crate) fn rung(&mut self, next: Option<u16>, record: u32, seen: u32) {
        let Some(next) = next else {
            if record != seen {
                *self = Self::default();
            }
            return;
        };
        let missing = next.wrapping_sub(dbr_counter(record));
        *self = Self { early: (1..0x8000).contains(&missing), stuck: None };
    }

    /// No doorbell has come; `seen` is what the record said at the last.
    pub(crate) fn unrung(&mut self, qp: &Qp, seen: u32) {
        let Some(of) = qp.adversary.as_deref() else { return };
        let record = qp.queues.dbr.load_u32(DBR_SND_OFFSET, Ordering::Acquire).unwrap_or(seen);
        if record == seen && !self.early || qp.state() != QpState::Rts {
            self.stuck = None;
            return;
        }
        let now_ns = of.state.now_ns();
        let (since, told) = self.stuck.get_or_insert((now_ns, false));
        if !*told && now_ns.saturating_sub(*since) >= UNRUNG_NS {
            *told = true;
            let early = (EARLY_BELL, EARLY_REMEDY);
            let why = if self.early { early } else { (UNRUNG, UNRUNG_REMEDY) };
            report(of, qp, dbr_counter(seen), why);
        }
    }
}

/// `wqe` is the first that is not carried out.
fn report(of: &OfQp, qp: &Qp, wqe: u16, (seen, remedy): (&'static str, &'static str)) {
    of.state.report(Finding {
        kind: Kind::Doorbell,
        qpn: qp.qpn,
        wqe: Some(wqe),
        behind: None,
        posted_at: None,
        address: qp.queues.dbr.addr() + DBR_SND_OFFSET as u64,
        bytes: 4,
        seen,
        remedy,
        rule: RULE,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_wire::doorbell::dbr_word;

    #[test]
    fn a_doorbell_that_came_early_is_not_forgotten_for_anothers() {
        let (two, three) = (dbr_word(2), dbr_word(3));
        let mut bells = Bells::default();
        bells.rung(Some(3), two, two);
        assert!(bells.early);
        bells.rung(None, two, two);
        assert!(bells.early, "a neighbour's");
        bells.rung(None, three, two);
        assert!(!bells.early, "its own, written over");
    }
}
