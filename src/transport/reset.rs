//! What an endpoint says of a queue pair that it takes back to its beginning.

use crate::wire::cqe::{Cqe, CqeOpcode};

/// How far a queue pair had come when it was reset, in tickets ([`Endpoint::reset`](super::Endpoint::reset)).
///
/// A ticket is a position in the queue, as the verbs' `end` names it; on paths that the host posts, a WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Tickets that were handed out.
    pub posted: u64,
    /// Tickets below are complete: their bytes are in the peer's memory, or here. Of those from here to
    /// [`Progress::posted`] nobody knows: each was carried out in whole, in part or not at all.
    pub complete: u64,
}

impl Progress {
    /// Tickets of which nobody knows whether they were carried out.
    pub fn lost(&self) -> u64 {
        self.posted.saturating_sub(self.complete)
    }
}

/// Learns from what nobody had taken of a CQ.
pub(super) struct Tally {
    pub progress: Progress,
    /// An error CQE was there: those behind it are flushes.
    ended: bool,
}

impl Tally {
    /// Of a queue pair of which so much is known; `failed` is the ticket of an error CQE that was taken before.
    pub fn new(posted: u64, complete: u64, failed: Option<u64>) -> Self {
        let complete = complete.max(failed.unwrap_or(0)); // sends complete in order
        Self { progress: Progress { posted, complete }, ended: failed.is_some() }
    }

    /// A CQE names its WQE's first ticket by 16 bits.
    pub fn take(&mut self, cqe: &Cqe) {
        let Progress { posted, complete } = self.progress;
        let ticket = complete + u64::from(cqe.wqe_counter.wrapping_sub(complete as u16));
        if self.ended || ticket >= posted {
            return; // nothing is said by a flush, or by a ticket from nowhere
        }
        self.ended = cqe.opcode == CqeOpcode::ReqErr;
        self.progress.complete = if self.ended { ticket } else { ticket + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Qpn;
    use crate::wire::cqe::Syndrome;

    #[test]
    fn complete_is_all_before_the_first_error() {
        let cqe =
            |opcode, ticket: u64| Cqe::error(opcode, Qpn(1), ticket as u16, Syndrome::WrFlush, 0);
        let (good, bad) = (CqeOpcode::Req, CqeOpcode::ReqErr);
        let first = (1 << 32) - 3;
        let told = |failed, cqes: &[(CqeOpcode, u64)]| {
            let mut tally = Tally::new(first + 10, first, failed);
            cqes.iter().for_each(|&(opcode, n)| tally.take(&cqe(opcode, first + n)));
            (tally.progress.complete - first, tally.progress.lost())
        };
        assert_eq!(told(None, &[]), (0, 10));
        assert_eq!(told(None, &[(good, 0), (good, 5)]), (6, 4));
        assert_eq!(told(None, &[(good, 1), (bad, 4), (bad, 5), (bad, 9)]), (4, 6));
        assert_eq!(told(Some(first + 7), &[(bad, 8), (bad, 9)]), (7, 3));
        assert_eq!(told(None, &[(good, 10), (bad, 11)]), (0, 10), "behind what was posted");
    }
}
