//! What a communicator knows of its calls: which are not waited for, on which stream, and what ended it.

use std::sync::Arc;

use super::Error;
use crate::gpu::{Stream, Token};

#[derive(Default)]
pub(super) struct Calls {
    /// Messages that calls since the last synchronisation may wait for, each up to the timeout.
    pub waits: u64,
    /// Calls that were queued, ever.
    queued: u64,
    /// What ended the communicator.
    ended: Option<String>,
    /// The stream of the calls since the last synchronisation.
    stream: Option<Arc<Token>>,
}

impl Calls {
    /// [`Error::Ended`] once the communicator has.
    pub fn check(&self) -> Result<(), Error> {
        match &self.ended {
            Some(why) => Err(Error::Ended { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Whether one may be queued here. Calls use the same slots and counters, and only a stream orders them.
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

    /// Whether calls that are not waited for are on this stream.
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

    /// All calls are done, if none was queued since there were so many.
    pub fn done(&mut self, queued: u64) {
        if self.queued == queued {
            (self.waits, self.stream) = (0, None);
        }
    }

    /// For good.
    pub fn end(&mut self, why: &Error) {
        self.ended.get_or_insert_with(|| why.to_string());
    }

    /// As if of a communicator that waits for nothing and is used on this stream; returns what to put back.
    pub fn set_aside(&mut self, stream: &Stream) -> Self {
        let ended = self.ended.clone();
        let stream = Some(stream.token().clone());
        std::mem::replace(self, Self { stream, ended, ..Self::default() })
    }

    /// Puts it back; returns what the calls meanwhile may wait for.
    pub fn put_back(&mut self, aside: Self) -> u64 {
        let meanwhile = std::mem::replace(self, aside);
        self.ended = meanwhile.ended;
        meanwhile.waits
    }
}
