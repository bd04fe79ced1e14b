//! Which stream an endpoint's calls are on: one at a time, because nothing orders two.
//!
//! All calls of an endpoint use the same queues, slots and counters, and only a stream orders them. A call on
//! another stream is refused until the earlier ones are known to be done: after [`Endpoint::quiet`], or after
//! [`Stream::synchronize`] on their stream. A stream that is dropped while it is busy may never be known to be
//! idle (a GPU's kernels go on); then the endpoint stays with it.
//!
//! [`Endpoint::quiet`]: super::Endpoint::quiet

use std::sync::{Arc, Weak};

use super::Error;
use crate::gpu::{Stream, Token};

#[derive(Default)]
pub(super) struct OneStream {
    /// The stream of the calls that were not waited for: its token.
    stream: Weak<Token>,
    /// Kept by that stream until it is found idle.
    busy: Weak<()>,
}

impl OneStream {
    /// Whether a call may be queued on this stream.
    ///
    /// # Errors
    /// [`Error::OtherStream`], [`Error::Recording`].
    pub fn admit(&self, stream: &Stream) -> Result<(), Error> {
        if stream.is_recording() {
            return Err(Error::Recording);
        }
        let same = std::ptr::eq(self.stream.as_ptr(), Arc::as_ptr(stream.token()));
        if self.is_busy() && !same { Err(Error::OtherStream) } else { Ok(()) }
    }

    /// Whether calls may be out that nobody has waited for.
    pub fn is_busy(&self) -> bool {
        self.busy.strong_count() > 0
    }

    /// A call was queued on this stream, which was admitted. Said after the call's work was queued: a thread
    /// that found the stream idle before that has let go of what it kept.
    pub fn queued(&mut self, stream: &Stream) {
        let busy = self.busy.upgrade().unwrap_or_default();
        self.busy = Arc::downgrade(&busy);
        self.stream = Arc::downgrade(stream.token());
        stream.keep(busy);
    }

    /// All calls are done.
    pub fn waited(&mut self) {
        *self = Self::default();
    }
}
