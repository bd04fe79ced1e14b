//! How processes at one address share its numbers.

use serde::{Deserialize, Serialize};

/// Logarithm of how many shares there are. Of a share's numbers, half may be set aside
/// ([`crate::SoftNic::reserve_qpns`]): as many as of all numbers.
const BITS: u32 = 3;
const QPN_BITS: u32 = 24 - BITS;
const ID_BITS: u32 = 32 - BITS;

/// The part that one process has of an address's queue pair numbers and communication IDs: both say
/// to which process a packet goes. Queue pair numbers 0 and 1 are all of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8")]
pub struct Share(u8);

impl TryFrom<u8> for Share {
    type Error = &'static str;

    fn try_from(number: u8) -> Result<Self, Self::Error> {
        Self::new(number).ok_or("there are fewer shares of an address")
    }
}

impl Share {
    /// Processes that can be at an address at a time.
    pub const MOST: u8 = 1 << BITS;

    pub(super) fn new(number: u8) -> Option<Self> {
        (number < Self::MOST).then_some(Self(number))
    }

    /// The one of a number, which begins anew behind the last.
    pub(super) fn wrapping(number: u8) -> Self {
        Self(number % Self::MOST)
    }

    pub(super) fn number(self) -> u8 {
        self.0
    }

    /// Whose a queue pair number is.
    pub(super) fn of_qpn(qpn: u32) -> Self {
        Self((qpn >> QPN_BITS) as u8 % Self::MOST)
    }

    /// Whose a communication ID is.
    pub(super) fn of_id(id: u32) -> Self {
        Self((id >> ID_BITS) as u8)
    }

    /// Its queue pair numbers: the first, and how many.
    pub fn qpns(self) -> (u32, u32) {
        (u32::from(self.0) << QPN_BITS, 1 << QPN_BITS)
    }

    /// Its communication IDs: the first, and how many.
    pub fn ids(self) -> (u32, u32) {
        (u32::from(self.0) << ID_BITS, 1 << ID_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_of_one_share() {
        assert_eq!(Share::new(Share::MOST), None);
        let all: Vec<Share> = (0..Share::MOST).filter_map(Share::new).collect();
        let (mut qpn, mut id) = (0, 0u64);
        for share in all {
            let ((first, count), (first_id, ids)) = (share.qpns(), share.ids());
            assert_eq!((first, u64::from(first_id)), (qpn, id));
            assert_eq!([first, first + count - 1].map(Share::of_qpn), [share; 2]);
            assert_eq!([first_id, first_id + (ids - 1)].map(Share::of_id), [share; 2]);
            (qpn, id) = (qpn + count, id + u64::from(ids));
        }
        assert_eq!((qpn, id), (1 << 24, 1 << 32));
    }
}
