//! Numbers of protection domains, CQs and SRQs: 24 bits, of which no two live objects have the same.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::record::Recorder;
use bellpush_nic::NicError;

/// The numbers of a NIC. A number that becomes free comes again after all others.
pub(crate) struct Numbers {
    /// Numbers are below it; 0 is never handed out.
    end: u32,
    /// Who writes down which become free.
    recorder: Option<Arc<Recorder>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u32,
    used: HashSet<u32>,
}

/// An object's number, which nobody else has while the object lives.
#[derive(Debug)]
pub(crate) struct Number {
    value: u32,
    of: Option<Arc<Numbers>>,
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Numbers").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Numbers {
    pub(crate) fn new(recorder: Option<Arc<Recorder>>) -> Arc<Self> {
        Self::below(1 << 24, recorder)
    }

    fn below(end: u32, recorder: Option<Arc<Recorder>>) -> Arc<Self> {
        Arc::new(Self { end, recorder, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next number that is free.
    ///
    /// # Errors
    /// [`NicError::Full`] when all are in use.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Number, NicError> {
        let mut state = self.lock();
        let limit = self.end as usize - 1;
        if state.used.len() >= limit {
            return Err(NicError::Full { what: "protection domains, CQs and SRQs", limit });
        }
        loop {
            state.last = (state.last + 1) % self.end;
            let value = state.last;
            if value != 0 && state.used.insert(value) {
                return Ok(Number { value, of: Some(self.clone()) });
            }
        }
    }
}

impl Number {
    /// A number that is not the NIC's to give.
    pub(crate) fn fixed(value: u32) -> Self {
        Self { value, of: None }
    }

    pub(crate) fn get(&self) -> u32 {
        self.value
    }

    /// Who writes down what is asked of the object.
    pub(crate) fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.of.as_ref()?.recorder.as_ref()
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(of) = &self.of {
            of.lock().used.remove(&self.value);
            if let Some(recorder) = &of.recorder {
                recorder.gone(self.value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_again_when_it_is_free_and_all_others_have_come() {
        let numbers = Numbers::below(5, None);
        let take = || numbers.take().unwrap();
        let (kept, freed) = (take(), take());
        assert_eq!((kept.get(), freed.get()), (1, 2));
        drop(freed);
        let others = [take(), take()];
        assert_eq!(others.each_ref().map(Number::get), [3, 4]);
        let last = take();
        assert_eq!(last.get(), 2, "1 is in use, 0 is nobody's");
        assert!(matches!(numbers.take(), Err(NicError::Full { limit: 4, .. })));
        drop(kept);
        assert_eq!(take().get(), 1);
    }
}
