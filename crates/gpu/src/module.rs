//! Kernels by name: modules, their loading, launch dimensions and arguments.

use std::ffi::c_void;
use std::sync::Arc;

use super::{Backend, Gpu, GpuError};

/// A kernel compiled for the host executor, as `BP_KERNEL` in `kernels/include/bellpush/exec.cuh` defines it. A call
/// runs one lane; a call with null only returns the size of the argument.
pub type HostKernel = unsafe extern "C" fn(args: *const c_void) -> usize;

/// Kernels of one library, for CUDA and for the host executor.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only CUDA loads images"))]
    pub(super) fatbins: &'static [&'static [u8]],
    host: &'static [(&'static str, HostKernel)],
}

/// Declares kernels of the host executor by name and builds the table for [`Module::new`].
///
/// The program must link the objects that define them with `BP_KERNEL`.
#[macro_export]
macro_rules! host_kernels {
    ($($name:ident),* $(,)?) => {{
        unsafe extern "C" {
            $(fn $name(args: *const ::core::ffi::c_void) -> usize;)*
        }
        const TABLE: &[(&str, $crate::HostKernel)] = &[$((stringify!($name), $name)),*];
        TABLE
    }};
}

mod generated {
    use super::HostKernel;

    include!(concat!(env!("OUT_DIR"), "/builtin.rs"));

    pub(super) static BUILTIN: super::Module = super::Module { fatbins: FATBINS, host: HOST };
}
#[cfg(feature = "cuda")]
pub(super) use generated::WHY_NO_FATBINS;

impl Module {
    /// A module of a program's own kernels. `fatbins`: CUDA images (fatbin, cubin, or PTX with a
    /// final 0); empty where nvcc was absent. `host`: the same kernels for the host executor, a
    /// table that [`host_kernels!`](crate::host_kernels) builds.
    ///
    /// # Safety
    /// The images come from a CUDA compiler, and the functions of the table from `BP_KERNEL`:
    /// loading the module parses the images and calls the functions.
    ///
    /// ```compile_fail,E0133
    /// # use bellpush_gpu::{HostKernel, Module};
    /// fn calls_anything(host: &'static [(&'static str, HostKernel)]) -> Module {
    ///     Module::new(&[], host)
    /// }
    /// ```
    pub const unsafe fn new(
        fatbins: &'static [&'static [u8]],
        host: &'static [(&'static str, HostKernel)],
    ) -> Self {
        Self { fatbins, host }
    }

    /// The library's own kernels; with the feature `bench-kernels` also those that measure and test.
    pub fn builtin() -> Module {
        generated::BUILTIN
    }

    /// Names of the kernels for the host executor.
    pub fn host_names(&self) -> impl Iterator<Item = &'static str> {
        self.host.iter().map(|(name, _)| *name)
    }
}

/// Dimensions of a launch, which are one-dimensional.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Number of blocks.
    pub grid: u32,
    /// Threads per block, at most [`MAX_BLOCK`].
    pub block: u32,
    /// Dynamic shared memory per block in bytes, at most [`MAX_SHARED_BYTES`].
    pub shared_bytes: u32,
    /// Whether the kernel may begin before the preceding work of the stream has ended.
    pub early: bool,
}

/// Most threads per block.
pub const MAX_BLOCK: u32 = 1024;
/// Most dynamic shared memory per block, in bytes (compute capability 9.0).
pub const MAX_SHARED_BYTES: u32 = 227 << 10;

impl Dims {
    /// `grid` blocks of `block` threads without shared memory.
    pub fn new(grid: u32, block: u32) -> Self {
        Self { grid, block, shared_bytes: 0, early: false }
    }

    /// The same launch with `bytes` of dynamic shared memory per block.
    pub fn shared(self, bytes: u32) -> Self {
        Self { shared_bytes: bytes, ..self }
    }

    /// The same launch, which may begin while the preceding kernel ends (programmatic dependent
    /// launch). The kernel itself then waits for the preceding one, with `bp::await_kernel_before`.
    /// If the compute capability of the GPU or of the kernel's image is below 9.0, and on the host
    /// executor, the launch begins after the preceding kernel.
    pub fn early(self) -> Self {
        Self { early: true, ..self }
    }

    /// Threads of the whole launch.
    pub fn lanes(&self) -> u64 {
        u64::from(self.grid) * u64::from(self.block)
    }

    pub(super) fn check(&self) -> Result<(), GpuError> {
        let Self { grid, block, shared_bytes, .. } = *self;
        if grid == 0 || block == 0 {
            return Err(GpuError::EmptyLaunch { grid, block });
        }
        if block > MAX_BLOCK {
            return Err(GpuError::BlockTooLarge { threads: block, limit: MAX_BLOCK });
        }
        if shared_bytes > MAX_SHARED_BYTES {
            return Err(GpuError::SharedTooLarge { bytes: shared_bytes, limit: MAX_SHARED_BYTES });
        }
        Ok(())
    }
}

/// A module on one GPU.
#[derive(Clone)]
pub struct Loaded {
    gpu: Arc<Gpu>,
    code: LoadedCode,
}

#[derive(Clone)]
enum LoadedCode {
    Host(&'static [(&'static str, HostKernel)]),
    #[cfg(feature = "cuda")]
    Cuda(Arc<super::cuda::LoadedModule>),
}

/// A kernel, ready to launch on the GPU on which it was loaded.
#[derive(Clone)]
pub struct Kernel {
    pub(super) gpu: Arc<Gpu>,
    pub(super) name: Arc<str>,
    pub(super) args_bytes: usize,
    pub(super) code: Code,
}

#[derive(Clone)]
pub(super) enum Code {
    Host(HostKernel),
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::Function),
}

impl Gpu {
    /// Loads a whole module. Later launches load nothing.
    ///
    /// # Errors
    /// [`GpuError::Load`] when the images do not fit the GPU; [`GpuError::NotBuilt`] when there are
    /// no images.
    pub fn load(self: &Arc<Self>, module: &Module) -> Result<Loaded, GpuError> {
        let code = match &self.backend {
            Backend::Host(_) => LoadedCode::Host(module.host),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => LoadedCode::Cuda(device.load(module)?),
        };
        Ok(Loaded { gpu: self.clone(), code })
    }
}

impl Loaded {
    /// The kernel with this name.
    ///
    /// # Errors
    /// [`GpuError::NoKernel`], which lists the known names.
    pub fn kernel(&self, name: &str) -> Result<Kernel, GpuError> {
        let found = match &self.code {
            LoadedCode::Host(table) => {
                table.iter().find(|(known, _)| *known == name).map(|&(_, kernel)| {
                    // SAFETY: called with null, an entry point only returns a size (exec.cuh).
                    let bytes = unsafe { kernel(std::ptr::null()) };
                    (Code::Host(kernel), bytes)
                })
            }
            #[cfg(feature = "cuda")]
            LoadedCode::Cuda(module) => {
                module.function(name).map(|(function, bytes)| (Code::Cuda(function), bytes))
            }
        };
        let (code, args_bytes) = found
            .ok_or_else(|| GpuError::NoKernel { name: name.to_string(), known: self.names() })?;
        Ok(Kernel { gpu: self.gpu.clone(), name: name.into(), args_bytes, code })
    }

    /// Names of the module's kernels.
    pub fn names(&self) -> Vec<String> {
        match &self.code {
            LoadedCode::Host(table) => table.iter().map(|(name, _)| name.to_string()).collect(),
            #[cfg(feature = "cuda")]
            LoadedCode::Cuda(module) => module.names(),
        }
    }
}

impl Kernel {
    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the argument struct.
    pub fn args_bytes(&self) -> usize {
        self.args_bytes
    }
}
