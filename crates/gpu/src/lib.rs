//! GPUs: memory, registration, kernels and streams. The host executor runs the same kernels on CPU
//! threads behind the same interface.
//!
//! All operations are bounded: waits take a timeout, launches are checked against limits. With
//! CUDA, calls that allocate, free, register or load may wait for running kernels, as the driver
//! documents. A thread that a running kernel waits for must not make these calls. [`Stream`]'s
//! operations and [`DeviceMem`]'s copies never wait for kernels of other streams.

mod clock;
#[cfg(feature = "cuda")]
mod cuda;
pub mod environment;
mod error;
mod event;
mod foreign;
mod graph;
mod host;
mod marks;
mod memory;
mod module;
mod stream;

use std::fmt;
use std::sync::Arc;

pub use bellpush_abi::KernelArgs;
pub use error::GpuError;
pub use event::Event;
pub use graph::Graph;
pub use host::{HostOptions, Lanes};
pub use marks::{Mark, Marks, MarksRead};
pub use memory::{DeviceMem, Mapped};
pub use module::{Dims, HostKernel, Kernel, Loaded, MAX_BLOCK, MAX_SHARED_BYTES, Module};
pub use stream::{Kept, Stream, Token};

/// Executor of the kernels.
#[derive(Debug, Clone)]
pub enum Executor {
    /// CPU threads of this process.
    Host(HostOptions),
    /// The CUDA GPU of this ordinal.
    Cuda(usize),
}

/// A GPU, or the host executor in its place.
pub struct Gpu {
    about: About,
    backend: Backend,
}

enum Backend {
    Host(HostOptions),
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Device>),
}

/// Description of a GPU. It displays as `cuda:NVIDIA H200` or `host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The GPU's name; `None` for the host executor.
    pub name: Option<String>,
    /// PCI address such as `0000:17:00.0`.
    pub pci: Option<String>,
    /// Number of streaming multiprocessors; for the host executor, OS threads per launch.
    pub sms: u32,
    /// SM clock in kHz, if known.
    pub clock_khz: Option<u32>,
    /// Bytes of the GPU's memory.
    pub memory_bytes: Option<u64>,
    /// Compute capability.
    pub capability: Option<(i32, i32)>,
    /// Highest CUDA version that the driver supports.
    pub driver: Option<(i32, i32)>,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "cuda:{name}"),
            None => f.write_str("host"),
        }
    }
}

impl Gpu {
    /// Opens a GPU or a host executor.
    ///
    /// # Errors
    /// [`GpuError`], which names the missing part: the driver, the GPU, or kernels in this program.
    pub fn open(executor: Executor) -> Result<Arc<Self>, GpuError> {
        match executor {
            Executor::Host(options) => {
                let sms = u32::try_from(options.workers.max(1)).unwrap_or(u32::MAX);
                let about = About {
                    name: None,
                    pci: None,
                    sms,
                    clock_khz: None,
                    memory_bytes: None,
                    capability: None,
                    driver: None,
                };
                Ok(Arc::new(Self { about, backend: Backend::Host(options) }))
            }
            #[cfg(feature = "cuda")]
            Executor::Cuda(ordinal) => {
                let (device, about) = cuda::Device::open(ordinal)?;
                Ok(Arc::new(Self { about, backend: Backend::Cuda(device) }))
            }
            #[cfg(not(feature = "cuda"))]
            Executor::Cuda(_) => {
                Err(GpuError::NotBuilt { reason: "it was built without the feature `cuda`" })
            }
        }
    }

    /// Why this program has no kernels for CUDA GPUs; `None` if it has.
    pub const fn why_not_built() -> Option<&'static str> {
        #[cfg(not(feature = "cuda"))]
        return Some("it was built without the feature `cuda`");
        #[cfg(feature = "cuda")]
        if cfg!(bellpush_cubin) { None } else { Some(module::WHY_NO_FATBINS) }
    }

    /// Number of CUDA GPUs of this machine.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`] without a driver, [`GpuError::NotBuilt`] without the feature `cuda`.
    pub fn cuda_count() -> Result<usize, GpuError> {
        #[cfg(feature = "cuda")]
        return cuda::count();
        #[cfg(not(feature = "cuda"))]
        Err(GpuError::NotBuilt { reason: "it was built without the feature `cuda`" })
    }

    /// The GPU's description.
    pub fn describe(&self) -> &About {
        &self.about
    }

    /// Whether kernels run on CPU threads.
    pub fn is_host(&self) -> bool {
        matches!(self.backend, Backend::Host(_))
    }

    /// Lets this GPU's kernels access memory that the other GPU has allocated or will allocate.
    /// Host executors reach each other's memory anyway, and a GPU reaches its own.
    ///
    /// # Errors
    /// [`GpuError::NoPeer`] when the hardware does not support it; [`GpuError::OtherGpu`] between a
    /// GPU and a host executor.
    pub fn enable_peer(&self, other: &Self) -> Result<(), GpuError> {
        match (&self.backend, &other.backend) {
            (Backend::Host(_), Backend::Host(_)) => Ok(()),
            #[cfg(feature = "cuda")]
            (Backend::Cuda(a), Backend::Cuda(b)) if a.ordinal() == b.ordinal() => Ok(()),
            #[cfg(feature = "cuda")]
            (Backend::Cuda(a), Backend::Cuda(b)) => a.enable_peer(b),
            #[cfg(feature = "cuda")]
            _ => Err(GpuError::OtherGpu { what: "peer's memory" }),
        }
    }

    /// The CUDA ordinal; `None` for the host executor.
    pub fn ordinal(&self) -> Option<usize> {
        match &self.backend {
            Backend::Host(_) => None,
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => Some(device.ordinal()),
        }
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("about", &self.about).finish_non_exhaustive()
    }
}
