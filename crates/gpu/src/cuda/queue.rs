//! A stream's operations with CUDA, and events with timestamps.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaEvent, CudaGraph, CudaStream, result};

use super::{Current, Device, Function, Memory, Ours, check, failed, safe};
use crate::host::Word;
use crate::{Dims, GpuError};

/// A non-blocking stream: it waits for no other stream, not even the default one.
pub(crate) struct Queue {
    device: Arc<Device>,
    stream: Ours<Arc<CudaStream>>,
}

/// An event with a timestamp.
pub(crate) struct Mark {
    event: Ours<CudaEvent>,
    recorded: AtomicBool,
}

/// Recorded work of a stream.
pub(crate) struct Graph {
    device: Arc<Device>,
    graph: Ours<CudaGraph>,
}

impl Graph {
    /// # Safety
    /// All memory that the recorded kernels access stays valid until the stream is idle.
    pub(crate) unsafe fn launch(&self) -> Result<(), GpuError> {
        let _current = self.device.make_current()?;
        safe("cuGraphLaunch", self.graph.launch())
    }
}

impl Device {
    pub(crate) fn queue(self: &Arc<Self>) -> Result<Queue, GpuError> {
        let _current = self.make_current()?;
        let stream = safe("cuStreamCreate", self.ctx.new_stream())?;
        Ok(Queue { device: self.clone(), stream: Ours::new(stream) })
    }

    /// A stream whose blocks have priority over those of other streams that wait for a
    /// multiprocessor.
    pub(crate) fn urgent_queue(self: &Arc<Self>) -> Result<Queue, GpuError> {
        let _current = self.make_current()?;
        let range = safe("cuCtxGetStreamPriorityRange", result::stream::get_priority_range());
        let (_, greatest) = range?;
        let stream = self.ctx.new_stream_with_priority(greatest);
        let stream = safe("cuStreamCreateWithPriority", stream)?;
        Ok(Queue { device: self.clone(), stream: Ours::new(stream) })
    }

    pub(crate) fn mark(&self) -> Result<Mark, GpuError> {
        let _current = self.make_current()?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let event = safe("cuEventCreate", self.ctx.new_event(Some(flags)))?;
        Ok(Mark { event: Ours::new(event), recorded: AtomicBool::new(false) })
    }
}

impl Queue {
    /// The stream's handle, for another library of this process.
    pub(crate) fn raw(&self) -> *mut c_void {
        self.stream.cu_stream().cast()
    }

    /// # Safety
    /// The argument is the kernel's struct (its size was checked), and its addresses stay valid.
    pub(crate) unsafe fn launch(
        &self,
        function: &Function,
        dims: Dims,
        args: &[u8],
    ) -> Result<(), GpuError> {
        let _current = self.device.make_current()?;
        function.allow_shared(dims.shared_bytes)?;
        // CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: dims.grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: dims.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: dims.shared_bytes,
            hStream: self.stream.cu_stream(),
            attrs: &raw mut early,
            numAttrs: (dims.early && function.waits_itself()).into(),
        };
        let mut parameters: [*mut c_void; 1] = [args.as_ptr().cast_mut().cast()];
        let raw = function.raw();
        // SAFETY: one parameter, which the driver copies before it returns, as it does the attribute.
        let code = unsafe {
            sys::cuLaunchKernelEx(&config, raw, parameters.as_mut_ptr(), std::ptr::null_mut())
        };
        check("cuLaunchKernelEx", code)
    }

    /// Records this thread's later operations instead of executing them.
    pub(crate) fn begin_capture(&self) -> Result<(), GpuError> {
        let _current = self.device.make_current()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        safe("cuStreamBeginCapture", self.stream.begin_capture(mode))
    }

    /// Ends the recording.
    pub(crate) fn end_capture(&self) -> Result<Graph, GpuError> {
        let _current = self.device.make_current()?;
        let flags = sys::CUgraphInstantiate_flags(0);
        let graph = safe("cuStreamEndCapture", self.stream.end_capture(flags))?;
        graph
            .map(|graph| Graph { device: self.device.clone(), graph: Ours::new(graph) })
            .ok_or(GpuError::NoGraph { why: "the driver made no graph" })
    }

    /// # Safety
    /// Both ranges are valid, the host's is pinned, and both stay so until the stream is idle.
    pub(crate) unsafe fn copy_in(
        &self,
        host: u64,
        host_offset: usize,
        to: &Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<(), GpuError> {
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.device.make_current()?;
        let from = (host as usize + host_offset) as *const c_void;
        let to = to.addr() + to_offset as u64;
        // SAFETY: the caller's promise.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, self.stream.cu_stream()) };
        check("cuMemcpyHtoDAsync", code)
    }

    /// # Safety
    /// As for `copy_in`.
    pub(crate) unsafe fn copy_out(
        &self,
        from: &Memory,
        from_offset: usize,
        host: u64,
        host_offset: usize,
        bytes: usize,
    ) -> Result<(), GpuError> {
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.device.make_current()?;
        let from = from.addr() + from_offset as u64;
        let to = (host as usize + host_offset) as *mut c_void;
        // SAFETY: the caller's promise.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes, self.stream.cu_stream()) };
        check("cuMemcpyDtoHAsync", code)
    }

    /// # Safety
    /// The word is mapped for the GPU and aligned, and stays so until the stream is idle.
    pub(crate) unsafe fn write(&self, addr: u64, word: Word) -> Result<(), GpuError> {
        let _current = self.device.make_current()?;
        // The default flag: a memory barrier of system scope precedes the write (driver API,
        // "Stream Memory Operations"), which is what orders earlier work before the word.
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        let stream = self.stream.cu_stream();
        match word {
            // SAFETY: the caller's promise.
            Word::U64(value) => check("cuStreamWriteValue64", unsafe {
                sys::cuStreamWriteValue64_v2(stream, addr, value, flags)
            }),
            // SAFETY: the caller's promise.
            Word::U32(value) => check("cuStreamWriteValue32", unsafe {
                sys::cuStreamWriteValue32_v2(stream, addr, value, flags)
            }),
        }
    }

    pub(crate) fn record(&self, mark: &Mark) -> Result<(), GpuError> {
        let _current = self.device.make_current()?;
        safe("cuEventRecord", mark.event.record(&self.stream))?;
        mark.recorded.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes this stream's later work wait for the work that `foreign` has queued so far, or the
    /// reverse.
    ///
    /// # Safety
    /// `foreign` is a stream of this GPU's primary context.
    pub(crate) unsafe fn order(
        &self,
        foreign: *mut c_void,
        foreign_first: bool,
        mark: &Mark,
    ) -> Result<(), GpuError> {
        let _current = self.device.make_current()?;
        let (ours, event) = (self.stream.cu_stream(), mark.event.cu_event());
        let foreign: sys::CUstream = foreign.cast();
        let (first, second) = if foreign_first { (foreign, ours) } else { (ours, foreign) };
        // A recorded graph is launched again later, when nothing keeps the memory that our part of
        // it accesses.
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: writes one word; the stream is the caller's.
        let code = unsafe { sys::cuStreamIsCapturing(foreign, &raw mut status) };
        check("cuStreamIsCapturing", code)?;
        if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return Err(GpuError::Recording);
        }
        // SAFETY: the event is the mark's; the streams are ours and the caller's.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event, first) })?;
        mark.recorded.store(true, Ordering::Relaxed);
        // SAFETY: as above.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(second, event, 0) })
    }

    /// For pollers: see [`Current`].
    pub(crate) fn current(&self) -> Result<Current, GpuError> {
        self.device.make_current()
    }

    pub(crate) fn query(&self) -> Result<bool, GpuError> {
        let _current = self.current()?;
        // SAFETY: the stream is ours and alive.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(failed("cuStreamQuery", code)),
        }
    }
}

impl Mark {
    /// For pollers: see [`Current`].
    pub(crate) fn current(&self) -> Result<Current, GpuError> {
        super::make_current(self.event.context())
    }

    pub(crate) fn query(&self) -> Result<bool, GpuError> {
        let _current = self.current()?;
        safe("cuEventQuery", self.event.try_is_complete())
    }

    pub(crate) fn elapsed_ns(&self, end: &Self) -> Result<u64, GpuError> {
        for mark in [self, end] {
            if !mark.recorded.load(Ordering::Relaxed) || !mark.query()? {
                return Err(GpuError::NotRecorded);
            }
        }
        let _current = super::make_current(self.event.context())?;
        // Both events have been reached, so this does not wait.
        let ms = safe("cuEventElapsedTime", self.event.elapsed_ms(&end.event))?;
        Ok((f64::from(ms) * 1e6).round().max(0.0) as u64)
    }
}
