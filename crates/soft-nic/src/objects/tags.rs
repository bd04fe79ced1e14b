//! The list of a shared receive queue that matches tags (TM-SRQ, `IBV_SRQT_TM`; mlx5 PRM, "Tag Matching"; rdma-core's
//! `Documentation/tag_matching.md`).
//!
//! The program appends entries by list operations in a send queue, and a SEND that begins with a TMH takes the first
//! entry that matches. What matches none is unexpected: it takes a receive, and the program looks for its own entry.
//! Meanwhile that could have posted an entry for it, which a later message would match: so an entry matches only once
//! the program has said that it has handled as many unexpected messages as there were.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::objects::cq::Cq;
use bellpush_nic::NicError;
use bellpush_wire::tm::{ListOp, ListWqe, TagInfo, Tmh, Told};
use bellpush_wire::wqe::Sge;

/// Most entries of a list: each message is compared with one after the other.
pub const MAX_TAGS: u32 = 127;

/// What a shared receive queue that matches tags has besides.
#[derive(Clone)]
pub struct TagAttr {
    /// Where its receives and list operations complete.
    pub cq: Arc<Cq>,
    /// User index that CQEs carry (CQE version 1), 24 bits.
    pub uidx: u32,
    /// Entries that its list must hold, up to [`MAX_TAGS`].
    pub tags: u32,
    /// Whether its WQEs come in the order of its ring.
    pub cyclic: bool,
}

/// The same, at work.
pub(crate) struct Tags {
    pub(crate) cq: Arc<Cq>,
    pub(crate) uidx: u32,
    list: Mutex<TagList>,
}

impl Tags {
    pub(crate) fn new(attr: TagAttr) -> Result<Self, NicError> {
        if !(1..=MAX_TAGS).contains(&attr.tags) {
            let (what, value) = ("entries of a list of tags", attr.tags.into());
            return Err(NicError::Attribute { what, value, must: "1..=127" });
        }
        Ok(Self { cq: attr.cq, uidx: attr.uidx, list: Mutex::new(TagList::new(attr.tags)) })
    }

    pub(crate) fn list(&self) -> MutexGuard<'_, TagList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry that was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its place.
    pub(crate) index: u16,
    tag: u64,
    mask: u64,
    /// Where the message goes.
    pub(crate) buffer: Option<Sge>,
    /// Whether messages may match it.
    live: bool,
}

/// The entries, in the order in which they were appended.
pub(crate) struct TagList {
    entries: Vec<Entry>,
    places: u16,
    /// The empty place that the next entry fills.
    tail: u16,
    /// Unexpected messages, and how many of them the program has handled, modulo 2^16.
    unexpected: u16,
    handled: u16,
    /// It takes no entry any more.
    closed: bool,
}

/// A list operation that cannot be carried out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoPlace;

impl TagList {
    fn new(tags: u32) -> Self {
        // One place is always empty.
        let places = (tags + 1).next_power_of_two() as u16;
        let entries = Vec::with_capacity(places.into());
        Self { entries, places, tail: 0, unexpected: 0, handled: 0, closed: false }
    }

    /// Carries out an operation, and says what its CQE tells.
    pub(crate) fn change(&mut self, wqe: &ListWqe) -> Result<TagInfo, NoPlace> {
        if let Some(handled) = wqe.handled {
            self.handled = handled;
            self.look_again();
        }
        let (told, success) = match wqe.op {
            ListOp::Noop => (Told::Noop, true),
            ListOp::Remove { index } => {
                let at = self.entries.iter().position(|entry| entry.index == index);
                (Told::Remove, at.map(|at| self.entries.remove(at)).is_some())
            }
            ListOp::Append { next, tag, mask, buffer } => {
                let taken = self.entries.iter().any(|entry| entry.index == next);
                if self.closed || next >= self.places || next == self.tail || taken {
                    return Err(NoPlace);
                }
                let (index, live) = (self.tail, self.is_level());
                self.entries.push(Entry { index, tag, mask, buffer, live });
                self.tail = next;
                (Told::Append, true)
            }
        };
        Ok(TagInfo::list(told, success, self.unexpected))
    }

    fn is_level(&self) -> bool {
        self.handled == self.unexpected
    }

    /// What waited for the program waits no longer, if it has handled all there was.
    fn look_again(&mut self) {
        if self.is_level() {
            self.entries.iter_mut().for_each(|entry| entry.live = true);
        }
    }

    /// Takes the first entry that matches.
    pub(crate) fn take(&mut self, tmh: &Tmh) -> Option<Entry> {
        let fits = |e: &Entry| e.live && (e.tag ^ tmh.tag) & e.mask == 0;
        self.entries.iter().position(fits).map(|at| self.entries.remove(at))
    }

    /// A message matched none.
    pub(crate) fn count_unexpected(&mut self) {
        self.unexpected = self.unexpected.wrapping_add(1);
    }

    /// A message that matched none was given up before the program heard of it, which so will never
    /// count it.
    pub(crate) fn discount_unexpected(&mut self) {
        self.unexpected = self.unexpected.wrapping_sub(1);
        self.look_again();
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn append(next: u16, tag: u64, handled: u16) -> ListWqe {
        let op = ListOp::Append { next, tag, mask: 0xff, buffer: None };
        ListWqe { op, report: true, handled: Some(handled) }
    }

    fn tmh(tag: u64) -> Tmh {
        let mut bytes = [3; 16];
        bytes[8..].copy_from_slice(&tag.to_be_bytes());
        Tmh::parse(&bytes).unwrap()
    }

    fn took(list: &mut TagList, tag: u64) -> Option<u16> {
        list.take(&tmh(tag)).map(|entry| entry.index)
    }

    #[test]
    fn the_oldest_entry_that_matches_is_taken_once() {
        let mut list = TagList::new(7);
        for (next, tag) in [(3, 0x11), (1, 0x22), (2, 0x11)] {
            list.change(&append(next, tag, 0)).unwrap();
        }
        // Places 0, 3 and 1; bits beyond the mask do not count.
        assert_eq!(
            [0x911, 0x11, 0x11, 0x22].map(|tag| took(&mut list, tag)),
            [Some(0), Some(1), None, Some(3)]
        );
    }

    #[test]
    fn an_entry_waits_until_unexpected_messages_are_handled() {
        let mut list = TagList::new(7);
        list.change(&append(1, 1, 0)).unwrap();
        list.count_unexpected();
        let told = list.change(&append(2, 2, 0)).unwrap();
        assert_eq!(told, TagInfo::list(Told::Append, true, 1));
        assert_eq!(took(&mut list, 2), None, "an older message may be for it");
        assert_eq!(took(&mut list, 1), Some(0), "older than the message");
        let noop = ListWqe { op: ListOp::Noop, report: true, handled: Some(1) };
        list.change(&noop).unwrap();
        assert_eq!(took(&mut list, 2), Some(1));
    }

    #[test]
    fn what_was_taken_is_not_removed_and_places_are_checked() {
        let mut list = TagList::new(3);
        list.change(&append(1, 1, 0)).unwrap();
        list.change(&append(2, 2, 0)).unwrap();
        assert_eq!(list.change(&append(2, 3, 0)), Err(NoPlace), "the empty place itself");
        assert_eq!(list.change(&append(1, 3, 0)), Err(NoPlace), "a place with an entry");
        assert_eq!(list.change(&append(4, 3, 0)), Err(NoPlace), "no place");
        assert_eq!(took(&mut list, 1), Some(0));
        let remove = |index| ListWqe { op: ListOp::Remove { index }, report: true, handled: None };
        assert_eq!(list.change(&remove(0)), Ok(TagInfo::list(Told::Remove, false, 0)));
        assert_eq!(list.change(&remove(1)), Ok(TagInfo::list(Told::Remove, true, 0)));
        assert_eq!(took(&mut list, 2), None);
    }

    proptest! {
        #[test]
        fn no_operation_makes_a_list_grow_or_have_a_place_twice(
            ops in prop::collection::vec((0u8..3, 0u16..20, 0u64..4, 0u16..3), 0..200),
        ) {
            let mut list = TagList::new(7);
            for (kind, index, tag, handled) in ops {
                let op = match kind {
                    0 => ListOp::Noop,
                    1 => ListOp::Remove { index },
                    _ => ListOp::Append { next: index, tag, mask: 3, buffer: None },
                };
                let _ = list.change(&ListWqe { op, report: true, handled: Some(handled) });
                if list.take(&tmh(tag)).is_none() {
                    list.count_unexpected();
                }
                let mut places: Vec<_> = list.entries.iter().map(|entry| entry.index).collect();
                places.push(list.tail);
                places.sort_unstable();
                places.dedup();
                prop_assert_eq!(places.len(), list.entries.len() + 1);
                prop_assert!(places.iter().all(|&place| place < 8));
            }
        }
    }
}
