//! Recorded work of a stream, which is queued again at the cost of one launch: a CUDA graph.

#[cfg(feature = "cuda")]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::stream::Kept;
use super::{GpuError, Stream};

/// Recorded kernels with their arguments. The graph keeps the memory that they access.
pub struct Graph<'a> {
    stream: &'a Stream,
    /// Dropped before the kept objects: its nodes refer to their modules.
    #[cfg(feature = "cuda")]
    graph: super::cuda::Graph,
    kept: Vec<Kept>,
}

/// Records the work of `queue` and always ends the recording, even after a panic; the stream would
/// otherwise stay in recording mode.
#[cfg(feature = "cuda")]
fn recorded<T, E: From<GpuError>>(
    queue: impl FnOnce() -> Result<(), E>,
    end: impl FnOnce() -> Result<T, GpuError>,
) -> Result<T, E> {
    let queued = catch_unwind(AssertUnwindSafe(queue));
    let ended = end();
    match queued {
        Ok(queued) => queued.and_then(|()| Ok(ended?)),
        Err(panic) => resume_unwind(panic),
    }
}

impl Stream {
    /// Records the work that `queue` queues on this stream from this thread, instead of executing
    /// it. Until the call returns, other threads that use the stream get [`GpuError::Recording`].
    ///
    /// # Errors
    /// [`GpuError::NoGraph`] on the host executor; [`GpuError::Recording`] within another
    /// recording; errors of `queue` and of the driver. After an error nothing is queued.
    pub fn capture<E: From<GpuError>>(
        &self,
        queue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph<'_>, E> {
        #[cfg(feature = "cuda")]
        if let Some(cuda) = self.queue() {
            let mut state = self.lock();
            state.begin_recording()?;
            if let Err(refused) = cuda.begin_capture() {
                state.end_recording();
                return Err(refused.into());
            }
            drop(state);
            let (graph, kept) = recorded(queue, || {
                let mut state = self.lock();
                let graph = cuda.end_capture();
                state.end_recording();
                Ok((graph?, state.kept()))
            })?;
            return Ok(Graph { stream: self, graph, kept });
        }
        drop(queue);
        Err(GpuError::NoGraph { why: "the host executor has no graphs" }.into())
    }
}

impl Graph<'_> {
    /// Queues the recorded work on the stream from which it was recorded.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn launch(&self) -> Result<(), GpuError> {
        let mut state = self.stream.queueing()?;
        for what in &self.kept {
            state.keep(what.clone());
        }
        #[cfg(feature = "cuda")]
        {
            // SAFETY: the stream keeps what was recorded with the kernels until it is idle.
            unsafe { self.graph.launch() }
        }
        #[cfg(not(feature = "cuda"))]
        Ok(())
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_ended_however_it_went() {
        let mut ended = 0;
        let mut end = || {
            ended += 1;
            Ok(7)
        };
        assert_eq!(recorded(|| Ok::<_, GpuError>(()), &mut end).unwrap(), 7);
        let refused = recorded(|| Err(GpuError::NotRecorded), &mut end).unwrap_err();
        assert!(matches!(refused, GpuError::NotRecorded));
        let panics = || -> Result<(), GpuError> { panic!("planted") };
        assert!(catch_unwind(AssertUnwindSafe(|| recorded(panics, &mut end))).is_err());
        assert_eq!(ended, 3);
    }
}
