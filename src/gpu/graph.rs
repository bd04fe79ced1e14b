//! Work of a stream that is recorded once and queued again at the cost of one launch: a CUDA graph.

#[cfg(feature = "cuda")]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::stream::Kept;
use super::{GpuError, Stream};

/// Recorded kernels, with the arguments that they had; what they reach is kept as long as this.
pub struct Graph<'a> {
    stream: &'a Stream,
    /// Dropped before what is kept, whose modules its nodes name.
    #[cfg(feature = "cuda")]
    graph: super::cuda::Graph,
    kept: Vec<Kept>,
}

/// Records, and ends the recording in any case, a panic of `queue` included: the stream would else record
/// for ever.
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
    /// Records what `queue` queues on this stream from this thread, instead of executing it. Until it
    /// returns, other threads' use of the stream is refused with [`GpuError::Recording`].
    ///
    /// # Errors
    /// [`GpuError::NoGraph`] on the host executor; [`GpuError::Recording`] within another recording;
    /// what `queue` or the driver reports. Nothing is queued then.
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
    /// Queues all that was recorded, on the stream that it was recorded from.
    ///
    /// # Errors
    /// What the driver reports.
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
        let refused = recorded(|| Err(GpuError::Registers), &mut end).unwrap_err();
        assert!(matches!(refused, GpuError::Registers));
        let panics = || -> Result<(), GpuError> { panic!("planted") };
        assert!(catch_unwind(AssertUnwindSafe(|| recorded(panics, &mut end))).is_err());
        assert_eq!(ended, 3);
    }
}
