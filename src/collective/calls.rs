//! A communicator's record of its calls: the outstanding ones, their stream, and the failure that
//! ended it.

use std::sync::Arc;

use super::Error;
use crate::gpu::{Stream, Token};

#[derive(Default)]
pub(super) struct Calls {
    /// Messages that calls since the last synchronisation may wait for, each for up to the timeout.
    pub waits: u64,
    /// Total number of calls queued.
    queued: u64,
    /// The failure that ended the communicator.
    ended: Option<String>,
    /// Stream of the calls since the last synchronisation.
    stream: Option<Arc<Token>>,
}

impl Calls {
    /// [`Error::Ended`] if the communicator has ended.
    pub fn check(&self) -> Result<(), Error> {
        match &self.ended {
            Some(why) => Err(Error::Ended { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Whether a call may be queued on this stream. Calls share slots and counters, and only a
    /// stream orders them.
    pub fn same(&self, stream: &Stream) -> Result<(), Error> {
        match &self.stream {
            Some(other) if !Arc::ptr_eq(other, stream.token()) => match other.dropped_idle() {
                None => Err(Error::OtherStream),
                Some(false) => Err(Error::Abandoned),
                Some(true) => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Whether outstanding calls are on this stream.
    pub fn are_on(&self, stream: &Stream) -> bool {
        self.stream.as_ref().is_some_and(|on| Arc::ptr_eq(on, stream.token()))
    }

    pub fn queue(&mut self, stream: &Stream, waits: u64) {
        self.stream = Some(stream.token().clone());
        self.waits += waits;
        self.queued += 1;
    }

    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Marks all calls as done, unless more than `queued` have been queued.
    pub fn done(&mut self, queued: u64) {
        if self.queued == queued {
            (self.waits, self.stream) = (0, None);
        }
    }

    /// Ends the communicator for good.
    pub fn end(&mut self, why: &Error) {
        self.ended.get_or_insert_with(|| why.to_string());
    }

    /// Sets the record aside, as if nothing were outstanding and the communicator used this stream;
    /// returns it.
    pub fn set_aside(&mut self, stream: &Stream) -> Self {
        let ended = self.ended.clone();
        let stream = Some(stream.token().clone());
        std::mem::replace(self, Self { stream, ended, ..Self::default() })
    }

    /// Restores the record; returns the number of messages that the calls in between may wait for.
    pub fn put_back(&mut self, aside: Self) -> u64 {
        let meanwhile = std::mem::replace(self, aside);
        self.ended = meanwhile.ended;
        meanwhile.waits
    }
}
