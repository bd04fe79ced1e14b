//! A round's connections after faults, and resets under way: what memory may hold then, and the way back.

use bellpush::nic::{NicError, QpState};
use bellpush::transport::Error;

use super::super::calls::Trouble;
use super::super::faults::Kind;
use super::super::model::Who;
use super::{Finding, Found, Round, finding};

impl Round<'_> {
    /// Takes both ends of a connection back to their beginning. What was under way was carried out in whole, in part or
    /// not at all.
    pub(super) fn recover(&mut self, connection: usize, failed: bool) -> Found {
        self.tally.resets += 1;
        let limit = self.longest(connection);
        self.bed.idle(connection, limit).map_err(Finding)?;
        let kind = self.config.trouble.as_ref().map(|trouble| trouble.kind);
        let lost = self.config.may_lose_cqes() && self.bed.struck() > 0;
        if failed && matches!(kind, Some(Kind::Wqe | Kind::Time)) || lost {
            // The other end may know more: only its own waits tell.
            for side in 0..2 {
                let who = Who { connection, side };
                if let Err(Trouble::Ended { syndrome, what, .. }) = self.bed.quiet(who) {
                    self.note(who, syndrome, what);
                }
            }
            self.bed.idle(connection, limit).map_err(Finding)?;
        }
        loop {
            let struck = self.bed.struck();
            if kind == Some(Kind::Device) && struck > 0 {
                return self.end_all();
            }
            match self.begin_anew(connection)? {
                // A fault that struck meanwhile: once more, or it is the device's end. A script of these kinds
                // strikes once, so this is not done for ever.
                Err(error) if ended_by(kind, &error) && self.bed.struck() > struck => {
                    self.tally.resets += 1;
                }
                done => return done.map_err(|e| Finding(format!("behind a reset: {e}"))),
            }
        }
    }

    /// Resets both ends and connects them; why they did not connect.
    fn begin_anew(&mut self, connection: usize) -> Found<Result<(), Error>> {
        let [a, b] = &mut self.bed.connections[connection].ends;
        for end in [&mut *a, &mut *b] {
            let progress = end.reset().map_err(|e| Finding(format!("the reset failed: {e}")))?;
            if progress.complete > progress.posted {
                return finding(format!("more is complete than was posted: {progress:?}"));
            }
        }
        self.compare_ended(connection)?;
        let [a, b] = &mut self.bed.connections[connection].ends;
        let (to_a, to_b) = (a.address(), b.address());
        Ok(a.connect(to_b).and_then(|()| b.connect(to_a)))
    }

    /// A device is gone, and with it all of its queue pairs: none of them changes memory any more.
    fn end_all(&mut self) -> Found {
        self.over = true;
        self.bed.connections.clear();
        (0..self.config.connections.len()).try_for_each(|connection| self.compare_ended(connection))
    }

    fn compare_ended(&mut self, connection: usize) -> Found {
        let (at, bytes) = (self.config.part_of(connection), self.config.part);
        let config = &self.config.connections[connection];
        let tells = config.in_order() && !config.shared;
        let in_order = [0, 1].map(|side| tells && !self.gave_up.contains(&(connection, side)));
        for memory in 0..2 {
            let seen = self.bed.read(memory, at, bytes).map_err(Finding)?;
            self.tally.compared += bytes as u64;
            if let Some(found) = self.model.compare_ended(connection, (memory, at), &seen, in_order)
            {
                self.tally.mismatches += 1;
                return finding(format!(
                    "behind the end of connection {connection}'s queue pair: {found}"
                ));
            }
        }
        for side in 0..2 {
            self.model.settle(Who { connection, side });
            self.last.remove(&(connection, side));
            self.gave_up.remove(&(connection, side));
            let lost = self.bed.lost_receives(Who { connection, side: 1 - side });
            self.immediates.entry((connection, side)).or_default().begin_anew(lost);
        }
        Ok(())
    }
}

/// Whether a fault that takes queue pairs to ERR, at its time or with their device, explains that one did not connect.
fn ended_by(kind: Option<Kind>, error: &Error) -> bool {
    match error {
        Error::Nic(NicError::State { from: QpState::Err, .. }) => {
            matches!(kind, Some(Kind::Time | Kind::Device))
        }
        Error::Nic(NicError::Engine(_)) => kind == Some(Kind::Device),
        _ => false,
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
