//! Points in a stream's work, and bounded waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Backend, Gpu, GpuError, host};

/// A point in a stream's work, with the time at which it was reached.
pub struct Event {
    pub(crate) kind: EventKind,
}

pub(crate) enum EventKind {
    Host(Arc<host::Mark>),
    #[cfg(feature = "cuda")]
    Cuda(crate::cuda::Mark),
}

impl Gpu {
    /// A new event, not yet recorded.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn event(self: &Arc<Self>) -> Result<Event, GpuError> {
        let kind = match &self.backend {
            Backend::Host(_) => EventKind::Host(Arc::default()),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => EventKind::Cuda(device.mark()?),
        };
        Ok(Event { kind })
    }
}

impl Event {
    /// Whether the work before the last recording has ended; true for an event that was never
    /// recorded.
    ///
    /// # Errors
    /// The failure of the work.
    pub fn query(&self) -> Result<bool, GpuError> {
        match &self.kind {
            EventKind::Host(mark) => mark.reached(),
            #[cfg(feature = "cuda")]
            EventKind::Cuda(mark) => mark.query(),
        }
    }

    /// Waits for [`Event::query`].
    ///
    /// # Errors
    /// [`GpuError::Timeout`], or the failure of the work.
    pub fn wait(&self, timeout: Duration) -> Result<(), GpuError> {
        #[cfg(feature = "cuda")]
        let _current = match &self.kind {
            EventKind::Cuda(mark) => Some(mark.current()?),
            EventKind::Host(_) => None,
        };
        poll("the event", timeout, || self.query())
    }
}

/// Polls until `done`: it first spins, then yields the processor, and never sleeps for long.
pub(crate) fn poll(
    what: &'static str,
    timeout: Duration,
    mut done: impl FnMut() -> Result<bool, GpuError>,
) -> Result<(), GpuError> {
    let since = Instant::now();
    let mut spins = 0u32;
    while !done()? {
        let waited = since.elapsed();
        if waited >= timeout {
            return Err(GpuError::Timeout { what, after: timeout });
        }
        spins += 1;
        if spins < 64 {
            std::hint::spin_loop();
        } else if waited < Duration::from_millis(2) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(())
}
