//! Elements of a schedule: how fast groups of queue pairs may send, and how they share what is above them.
//!
//! An element with a rate lets a packet go when the time of those before it is up. Among the elements below one, whose
//! packets wait for its rate, goes first who has had least for its share (start-time fair queueing).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bellpush_nic::NicError;

/// How much of a rate that was not used may be made up for, in time: an engine comes round when it comes round.
const CREDIT_NS: u64 = 1_000_000;
/// For how long one counts as waiting after the time that it was told to come at.
const WAITING_NS: u64 = 1_000_000;
/// When to ask again while others are first.
const SOON_NS: u64 = 10_000;
/// Bits behind the point of what an element has had over its share: a share has 32, and no byte counts as nothing.
const SHARE_BITS: u32 = 32;
/// Elements above one another at most.
const MAX_DEPTH: usize = 8;

/// What an element of a schedule gets (mlx5 PRM, "Scheduling Context").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bandwidth {
    /// Rate in Mbit/s; 0 for no limit.
    pub max_mbps: u32,
    /// Its share beside the others below the same element; 0 counts as 1.
    pub share: u32,
}

/// An element: a node, below which others are, or a group of queue pairs.
#[derive(Debug)]
pub struct SchedElement {
    parent: Option<Arc<SchedElement>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bandwidth: Bandwidth,
    /// When the packets that went are through.
    due_ns: u64,
    /// Bytes that it has had over its share, in units of `2^-SHARE_BITS`, and what who went last below it had had.
    had: u128,
    clock: u128,
    /// Until when it counts as waiting for what is above it.
    waits_until: u64,
    below: Vec<Weak<SchedElement>>,
}

impl SchedElement {
    /// An element below another.
    ///
    /// # Errors
    /// [`NicError::Attribute`] where too many are above one another.
    pub fn new(parent: Option<&Arc<Self>>, bandwidth: Bandwidth) -> Result<Arc<Self>, NicError> {
        let depth = parent.map_or(0, |parent| parent.up().count());
        if depth >= MAX_DEPTH {
            let (what, must) = ("depth of a schedule", "at most 8");
            return Err(NicError::Attribute { what, value: depth as u64, must });
        }
        Ok(Self::below(parent, bandwidth))
    }

    /// The place of one user of a group, whose users share it alike: what a queue pair asks for, or what it answers.
    pub(crate) fn user_of(group: &Arc<Self>) -> Arc<Self> {
        Self::below(Some(group), Bandwidth::default())
    }

    fn below(parent: Option<&Arc<Self>>, bandwidth: Bandwidth) -> Arc<Self> {
        let had = parent.map_or(0, |parent| parent.lock().clock);
        let state = Mutex::new(State { bandwidth, had, ..State::default() });
        let made = Arc::new(Self { parent: parent.cloned(), state });
        if let Some(parent) = parent {
            let mut parent = parent.lock();
            parent.below.retain(|other| other.strong_count() > 0);
            parent.below.push(Arc::downgrade(&made));
        }
        made
    }

    /// Whether elements are below it, or queue pairs in it.
    pub fn is_used(&self) -> bool {
        self.lock().below.iter().any(|it| it.strong_count() > 0)
    }

    /// When the packets that went, of all that it shares a rate with, are through.
    pub(crate) fn due_ns(&self) -> u64 {
        self.up().map(|element| element.lock().due_ns).max().unwrap_or(0)
    }

    /// What it gets.
    pub fn bandwidth(&self) -> Bandwidth {
        self.lock().bandwidth
    }

    /// Changes what it gets, from its next packet on.
    pub fn set(&self, bandwidth: Bandwidth) {
        let mut state = self.lock();
        state.bandwidth = bandwidth;
        state.due_ns = 0;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It and those above it.
    fn up(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |element| element.parent.as_deref())
    }

    /// Whether a packet of the group may go now; else when to ask again. Asked only with one at hand.
    pub(crate) fn admit(&self, now_ns: u64) -> Result<(), u64> {
        let (mut due, mut free) = (0, 0);
        for element in self.up() {
            due = due.max(element.lock().due_ns);
            free += usize::from(due <= now_ns);
        }
        let may = if due > now_ns { Err(due) } else { self.is_first(now_ns) };
        if let Err(at) = may {
            // Those that a rate above keeps, and none of their own or below.
            for element in self.up().take(free) {
                element.lock().waits_until = at + WAITING_NS;
            }
        }
        may
    }

    /// Whether none that waits beside it, or beside those above it, had less.
    fn is_first(&self, now_ns: u64) -> Result<(), u64> {
        for element in self.up() {
            let Some(parent) = &element.parent else { break };
            let (below, clock) = {
                let parent = parent.lock();
                (parent.below.clone(), parent.clock)
            };
            let had = element.lock().had.max(clock);
            let others = below.iter().filter_map(Weak::upgrade);
            let less = others.filter(|other| !std::ptr::eq(&**other, element)).any(|other| {
                let other = other.lock();
                other.waits_until > now_ns && other.had.max(clock) < had
            });
            if less {
                return Err(now_ns + SOON_NS);
            }
        }
        Ok(())
    }

    /// A packet of the group goes, or none of 0 bytes: it had nothing to send after all.
    pub(crate) fn charge(&self, bytes: u64, now_ns: u64) {
        if bytes == 0 {
            return self.up().for_each(|element| element.lock().waits_until = 0);
        }
        for element in self.up() {
            let clock = element.parent.as_ref().map(|parent| parent.lock().clock);
            let mut state = element.lock();
            let Bandwidth { max_mbps, share } = state.bandwidth;
            if max_mbps > 0 {
                let ns = bytes * 8000 / u64::from(max_mbps);
                state.due_ns = state.due_ns.max(now_ns.saturating_sub(CREDIT_NS)) + ns;
            }
            let start = state.had.max(clock.unwrap_or(0));
            state.had = start + (u128::from(bytes) << SHARE_BITS) / u128::from(share.max(1));
            state.waits_until = 0;
            drop(state);
            if let Some(parent) = &element.parent {
                parent.lock().clock = start;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who gets how many of `total` packets of 1000 bytes that all want to send all the time, and how long that takes.
    fn compete(groups: &[Arc<SchedElement>], total: u64) -> (Vec<u64>, u64) {
        compete_from(groups, total, 0)
    }

    fn compete_from(groups: &[Arc<SchedElement>], total: u64, start: u64) -> (Vec<u64>, u64) {
        let mut got = vec![0; groups.len()];
        let mut now = start;
        while got.iter().sum::<u64>() < total {
            now += 3_000;
            for (group, got) in groups.iter().zip(&mut got) {
                if group.admit(now).is_ok() {
                    group.charge(1000, now);
                    *got += 1;
                }
            }
        }
        (got, now - start)
    }

    fn element(parent: &Arc<SchedElement>, max_mbps: u32, share: u32) -> Arc<SchedElement> {
        SchedElement::new(Some(parent), Bandwidth { max_mbps, share }).unwrap()
    }

    fn near(is: u64, wanted: u64) -> bool {
        is * 20 > wanted * 19 && is * 20 < wanted * 21
    }

    #[test]
    fn rates_hold_whoever_asks_and_shares_are_of_what_is_above() {
        let top = || SchedElement::new(None, Bandwidth { max_mbps: 100, share: 0 }).unwrap();
        // 8 Mbit at 100 Mbit/s.
        let root = top();
        let (_, ns) = compete(&[element(&root, 0, 0)], 1000);
        assert!(near(ns, 80_000_000), "{ns}");
        let root = top();
        let (got, ns) = compete(&[element(&root, 0, 3), element(&root, 0, 1)], 1000);
        assert!(near(got[0], 750) && near(got[1], 250), "{got:?}");
        assert!(near(ns, 80_000_000), "{ns}");
        // However large the shares are.
        for unit in [1 << 20, u32::MAX / 3] {
            let root = top();
            let groups = [element(&root, 0, 3 * unit), element(&root, 0, unit)];
            let (got, _) = compete(&groups, 1000);
            assert!(near(got[0], 750) && near(got[1], 250), "{unit}: {got:?}");
        }
        // What one has no use for is the others'.
        let root = top();
        let (got, _) = compete(&[element(&root, 10, 3), element(&root, 0, 1)], 1000);
        assert!(near(got[0], 100) && near(got[1], 900), "{got:?}");
        // Two groups below a node with half of it are one beside the third.
        let root = top();
        let node = element(&root, 0, 2);
        let groups = [element(&node, 0, 1), element(&node, 0, 4), element(&root, 0, 2)];
        let (got, _) = compete(&groups, 1000);
        assert!(near(got[0], 100) && near(got[1], 400) && near(got[2], 500), "{got:?}");
    }

    #[test]
    fn who_stops_asking_holds_nobody_up_and_saves_nothing() {
        let root = SchedElement::new(None, Bandwidth { max_mbps: 100, share: 0 }).unwrap();
        let (a, b) = (element(&root, 0, 1), element(&root, 0, 1));
        let both = [a.clone(), b];
        let (_, first) = compete(&both, 100);
        let (_, ns) = compete_from(&[a], 1000, first);
        assert!(near(ns, 80_000_000), "{ns}");
        let (got, _) = compete_from(&both, 200, first + ns);
        assert!(got[1] < 110, "what it did not ask for is not made up for: {got:?}");
    }

    #[test]
    fn users_of_a_group_take_turns_whoever_asks_first() {
        // A packet takes 80 us, and both ask every 3 us, the one always before the other.
        let group = SchedElement::new(None, Bandwidth { max_mbps: 100, share: 0 }).unwrap();
        let users = [(); 2].map(|()| SchedElement::user_of(&group));
        assert!(group.is_used());
        let (got, ns) = compete(&users, 1000);
        assert!(near(got[0], 500) && near(got[1], 500), "{got:?}");
        assert!(near(ns, 80_000_000), "{ns}");
        drop(users);
        assert!(!group.is_used());
    }

    #[test]
    fn who_was_let_go_and_had_nothing_changes_no_shares() {
        let root = SchedElement::new(None, Bandwidth { max_mbps: 100, share: 0 }).unwrap();
        let groups = [element(&root, 0, 1), element(&root, 0, 3)];
        let (mut got, mut now) = ([0; 2], 0);
        while got[0] + got[1] < 1000 {
            now += 3_000;
            for (group, got) in groups.iter().zip(&mut got) {
                group.charge(0, now);
                if group.admit(now).is_ok() {
                    group.charge(1000, now);
                    *got += 1;
                }
            }
        }
        assert!(near(got[0], 250) && near(got[1], 750), "{got:?}");
    }

    #[test]
    fn there_is_an_end_to_what_is_above_one_another() {
        let mut top = SchedElement::new(None, Bandwidth::default()).unwrap();
        for _ in 1..MAX_DEPTH {
            top = element(&top, 0, 0);
        }
        assert!(SchedElement::new(Some(&top), Bandwidth::default()).is_err());
        assert!(SchedElement::user_of(&top).admit(0).is_ok());
    }
}
