//! Other libraries on a GPU and its streams, such as NCCL.

use std::ffi::c_void;

use crate::{Backend, Gpu, GpuError, Kept, Stream};

impl Gpu {
    /// Calls `call` with this GPU's primary context current in the calling thread. Afterwards the context that was
    /// current before is so again.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`] on the host executor; errors of the driver.
    pub fn with_context<R>(&self, call: impl FnOnce() -> R) -> Result<R, GpuError> {
        match &self.backend {
            Backend::Host(_) => {
                let _ = call;
                Err(GpuError::NoDevice)
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => {
                let _current = device.make_current()?;
                Ok(call())
            }
        }
    }
}

impl Stream {
    /// Lets another library queue work on this stream: `call` is given the `CUstream`, with the GPU's context current.
    /// The stream keeps `kept` until it is found idle; a graph that is being recorded keeps it as long as it lives.
    ///
    /// The stream is locked meanwhile, against threads that queue on it too: a method of this stream that queues or
    /// waits, called in `call`, would wait for itself.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`] on the host executor, [`GpuError::Recording`] while another thread records; errors of
    /// the driver.
    pub fn queue_foreign<R>(
        &self,
        kept: impl IntoIterator<Item = Kept>,
        call: impl FnOnce(*mut c_void) -> R,
    ) -> Result<R, GpuError> {
        #[cfg(feature = "cuda")]
        if let Some(queue) = self.queue() {
            let mut state = self.queueing()?;
            kept.into_iter().for_each(|what| state.keep(what));
            return self.gpu().with_context(|| call(queue.raw()));
        }
        let _ = (kept, call);
        Err(GpuError::NoDevice)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Executor, Gpu, GpuError, HostOptions};

    #[test]
    fn the_host_executor_has_neither_context_nor_stream() {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let stream = gpu.stream().unwrap();
        assert!(matches!(gpu.with_context(|| ()), Err(GpuError::NoDevice)));
        assert!(matches!(stream.queue_foreign([], |_| ()), Err(GpuError::NoDevice)));
    }
}
