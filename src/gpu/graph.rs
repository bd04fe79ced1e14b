//! Work of a stream that is recorded once and queued again at the cost of one launch: a CUDA graph.

use std::any::Any;
use std::sync::Arc;

use super::{GpuError, Stream};

/// Recorded kernels, with the arguments that they had; what they reach is kept as long as this.
pub struct Graph<'a> {
    stream: &'a Stream,
    kept: Vec<Arc<dyn Any + Send + Sync>>,
    #[cfg(feature = "cuda")]
    graph: super::cuda::Graph,
}

impl Stream {
    /// Records what `queue` queues on this stream from this thread, instead of executing it.
    ///
    /// # Errors
    /// [`GpuError::NoGraph`] on the host executor; what `queue` or the driver reports. Nothing is queued
    /// then.
    pub fn capture<E: From<GpuError>>(
        &self,
        queue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph<'_>, E> {
        #[cfg(feature = "cuda")]
        if let Some(cuda) = self.queue() {
            cuda.begin_capture()?;
            let queued = queue();
            // Ended in any case: else the stream records for ever.
            let graph = cuda.end_capture();
            queued?;
            return Ok(Graph { stream: self, kept: self.kept(), graph: graph? });
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
        for what in &self.kept {
            self.stream.keep(what.clone());
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
