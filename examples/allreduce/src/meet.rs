//! How ranks tell each other what they measured: threads through memory, processes through the
//! job's bootstrap. The elements themselves never go this way.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use bellpush::collective::{Bootstrap, BootstrapError};

/// One rank's way to the others.
pub enum Meeting {
    Threads { rank: usize, table: Arc<Table> },
    Processes(Box<Bootstrap>),
}

/// Where threads leave what they say.
pub struct Table {
    said: Mutex<Said>,
    changed: Condvar,
    timeout: Duration,
}

#[derive(Default)]
struct Said {
    round: u64,
    /// By rank, of this round.
    now: Vec<Option<Vec<u8>>>,
    /// All of the round before.
    last: Vec<Vec<u8>>,
}

impl Meeting {
    /// A way for each of `ranks` threads.
    pub fn threads(ranks: u32, timeout: Duration) -> Vec<Self> {
        let now = vec![None; ranks as usize];
        let said = Mutex::new(Said { now, ..Said::default() });
        let table = Arc::new(Table { said, changed: Condvar::new(), timeout });
        (0..ranks as usize).map(|rank| Self::Threads { rank, table: table.clone() }).collect()
    }

    /// Tells the other processes why this one leaves. Threads end together.
    pub fn fail(&mut self, why: &str) {
        if let Self::Processes(bootstrap) = self {
            bootstrap.fail(why);
        }
    }

    /// Everyone's bytes, in the order of ranks.
    ///
    /// # Errors
    /// A rank that does not come in time, by name.
    pub fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        match self {
            Self::Processes(bootstrap) => bootstrap.all_gather(mine),
            Self::Threads { rank, table } => table.all_gather(*rank, mine),
        }
    }
}

impl Table {
    fn all_gather(&self, rank: usize, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let round = said.round;
        said.now[rank] = Some(mine.to_vec());
        if said.now.iter().all(Option::is_some) {
            said.last = said.now.iter_mut().filter_map(Option::take).collect();
            said.round += 1;
            self.changed.notify_all();
            return Ok(said.last.clone());
        }
        let (said, waited) = self
            .changed
            .wait_timeout_while(said, self.timeout, |said| said.round == round)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let absent = (0u32..).zip(&said.now).filter(|(_, s)| s.is_none()).map(|(r, _)| r);
            let ms = self.timeout.as_millis();
            return Err(BootstrapError::Absent { ranks: absent.collect(), ms });
        }
        Ok(said.last.clone())
    }
}
