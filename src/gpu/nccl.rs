//! NCCL, NVIDIA's collective library, on the same GPUs and streams, for comparison.

use std::sync::Arc;
use std::time::Duration;

use super::{DeviceMem, Gpu, GpuError, Stream};
use crate::mem::{Dma, MemError};

/// Bytes of `ncclUniqueId`.
pub const UNIQUE_ID_BYTES: usize = 128;

/// NCCL's `ncclDataType_t`: the types that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum NcclType {
    /// `ncclInt32`
    I32 = 2,
    /// `ncclFloat16`
    F16 = 6,
    /// `ncclFloat32`
    F32 = 7,
    /// `ncclBfloat16`
    Bf16 = 9,
}

/// NCCL's `ncclRedOp_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum NcclOp {
    /// `ncclSum`
    Sum = 0,
    /// `ncclMax`
    Max = 2,
    /// `ncclMin`
    Min = 3,
    /// `ncclAvg`
    Mean = 4,
}

impl NcclType {
    const fn bytes(self) -> u64 {
        match self {
            Self::I32 | Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// A rank of a NCCL communicator. NCCL chooses its transports from its environment, once per
/// process (`NCCL_P2P_DISABLE=1` for host memory).
pub struct Nccl {
    gpu: Arc<Gpu>,
    #[cfg(feature = "cuda")]
    comm: Arc<super::cuda::Comm>,
}

#[cfg(not(feature = "cuda"))]
const WITHOUT: GpuError = GpuError::NotBuilt { reason: "it was built without the feature `cuda`" };

impl Nccl {
    /// The library's version, 10000 major + 100 minor + patch.
    ///
    /// # Errors
    /// [`GpuError::NoNccl`] where the loader does not find the library.
    pub fn version() -> Result<i32, GpuError> {
        #[cfg(feature = "cuda")]
        return super::cuda::nccl_version();
        #[cfg(not(feature = "cuda"))]
        Err(WITHOUT)
    }

    /// Identifier of a communicator, which one rank creates and all ranks join with.
    ///
    /// # Errors
    /// As [`Nccl::version`], and NCCL's errors.
    pub fn unique_id() -> Result<[u8; UNIQUE_ID_BYTES], GpuError> {
        #[cfg(feature = "cuda")]
        return super::cuda::nccl_unique_id();
        #[cfg(not(feature = "cuda"))]
        Err(WITHOUT)
    }

    /// Joins as rank `rank` of `ranks`, each on a GPU of its own; waits for all of them.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`] on the host executor, [`GpuError::Timeout`], and NCCL's errors.
    pub fn join(
        gpu: &Arc<Gpu>,
        id: [u8; UNIQUE_ID_BYTES],
        rank: u32,
        ranks: u32,
        timeout: Duration,
    ) -> Result<Self, GpuError> {
        #[cfg(feature = "cuda")]
        if let super::Backend::Cuda(device) = &gpu.backend {
            let comm = super::cuda::Comm::join(device, id, (rank, ranks), timeout)?;
            return Ok(Self { gpu: gpu.clone(), comm: Arc::new(comm) });
        }
        let _ = (gpu, id, rank, ranks, timeout);
        Err(GpuError::NoDevice)
    }

    /// Queues an all-reduce of `count` elements; `output` may be `input`.
    ///
    /// # Errors
    /// [`GpuError`] for a memory that is too short or belongs to another GPU, and NCCL's errors.
    pub fn all_reduce(
        &self,
        stream: &Stream,
        input: &Arc<DeviceMem>,
        output: &Arc<DeviceMem>,
        count: u64,
        dtype: NcclType,
        op: NcclOp,
    ) -> Result<(), GpuError> {
        let bytes = count.saturating_mul(dtype.bytes());
        for memory in [input, output] {
            if !Arc::ptr_eq(memory.gpu(), &self.gpu) {
                return Err(GpuError::OtherGpu { what: "memory" });
            }
            if bytes > memory.bytes() as u64 {
                let (bytes, len) = (usize::try_from(bytes).unwrap_or(usize::MAX), memory.bytes());
                return Err(MemError::OutOfBounds { offset: 0, bytes, len }.into());
            }
        }
        if !Arc::ptr_eq(stream.gpu(), &self.gpu) {
            return Err(GpuError::OtherGpu { what: "stream" });
        }
        #[cfg(feature = "cuda")]
        if let Some(queue) = stream.queue() {
            let mut state = stream.queueing()?;
            state.keep(input.clone());
            state.keep(output.clone());
            if state.is_recording() {
                // The graph refers to the communicator's memory. A queued call needs no such guard:
                // the drop of the communicator ends it.
                state.keep(self.comm.clone());
            }
            let ends = (input.addr(), output.addr());
            // SAFETY: both hold `count` elements and are kept until the stream is idle.
            return unsafe { self.comm.all_reduce(queue, ends, count, (dtype, op)) };
        }
        let _ = op;
        Err(GpuError::NoDevice)
    }
}
