//! What can go wrong with a GPU, real or not.

use std::time::Duration;

use crate::mem::MemError;

/// An error of the GPU layer. Each prints as one line.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no libcuda on this machine.
    #[error("no CUDA driver: libcuda.so was not found")]
    NoDriver,
    /// The driver is there and finds no GPU.
    #[error("the CUDA driver finds no GPU")]
    NoDevice,
    /// The ordinal is past the last GPU.
    #[error("there is no CUDA GPU {ordinal}: this machine has {count}, counted from 0")]
    NoSuchDevice {
        /// Ordinal asked for.
        ordinal: usize,
        /// GPUs that the driver sees.
        count: usize,
    },
    /// The program contains no CUDA kernels.
    #[error("this program cannot use CUDA: {reason}")]
    NotBuilt {
        /// What was missing at build time.
        reason: &'static str,
    },
    /// The GPU is older than the oldest that the kernels are compiled for.
    #[error("{name} has compute capability {major}.{minor}; 8.0 is the least supported")]
    UnsupportedArch {
        /// The GPU's name.
        name: String,
        /// Compute capability.
        major: i32,
        /// Compute capability.
        minor: i32,
    },
    /// The driver lacks calls that are needed.
    #[error("the CUDA driver supports CUDA {}.{}; 12.4 is the least supported", .version / 1000, .version % 1000 / 10)]
    OldDriver {
        /// `cuDriverGetVersion`'s number: 1000 major + 10 minor.
        version: i32,
    },
    /// Host memory could not be pinned and mapped for the GPU.
    #[error(
        "cannot pin {bytes} bytes of host memory for the GPU: cuMemHostRegister: {error} (see ulimit -l)"
    )]
    Pin {
        /// Size of the memory.
        bytes: usize,
        /// CUDA's name of the error.
        error: String,
    },
    /// NCCL was not found, or lacks a call.
    #[error("no NCCL: {error} (LD_LIBRARY_PATH says where libnccl.so.2 is)")]
    NoNccl {
        /// The loader's message.
        error: String,
    },
    /// A call of NCCL failed.
    #[error("{call}: {error}")]
    Nccl {
        /// NCCL's function.
        call: &'static str,
        /// Its text for the error.
        error: String,
    },
    /// An address that another library gave is not of this GPU's memory.
    #[error("{bytes} bytes at {addr:#x} are no memory of CUDA GPU {gpu}")]
    NotGpuMemory {
        /// The GPU's ordinal.
        gpu: usize,
        /// Begin of the range.
        addr: u64,
        /// Its length.
        bytes: usize,
    },
    /// A module's image does not suit this GPU or driver.
    #[error("cannot load the kernels on {name}: {error}")]
    Load {
        /// The GPU's name.
        name: String,
        /// CUDA's name of the error.
        error: String,
    },
    /// Two GPUs do not reach each other's memory.
    #[error("CUDA GPU {from} cannot access the memory of GPU {to}")]
    NoPeer {
        /// Whose kernels would.
        from: usize,
        /// Whose memory it is.
        to: usize,
    },
    /// A call of the CUDA driver failed.
    #[error("{call}: {error}")]
    Cuda {
        /// The driver's function.
        call: &'static str,
        /// CUDA's name of the error.
        error: String,
    },
    /// A call of the operating system failed, for the host executor.
    #[error("host executor: {call}: {source}")]
    System {
        /// What was tried.
        call: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Host memory could not be had, or an access left it.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// The module has no kernel of that name.
    #[error("there is no kernel {name}; known are: {}", .known.join(", "))]
    NoKernel {
        /// Name asked for.
        name: String,
        /// The module's kernels.
        known: Vec<String>,
    },
    /// The argument struct is not the one that the kernel takes.
    #[error("kernel {kernel} takes an argument of {takes} bytes, not {given}")]
    ArgsSize {
        /// The kernel's name.
        kernel: String,
        /// Bytes of its argument.
        takes: usize,
        /// Bytes given.
        given: usize,
    },
    /// A launch needs at least one block and one thread.
    #[error("a launch of {grid} blocks of {block} threads does nothing")]
    EmptyLaunch {
        /// Blocks asked for.
        grid: u32,
        /// Threads a block asked for.
        block: u32,
    },
    /// A block is larger than the hardware allows.
    #[error("a block of {threads} threads; {limit} is the most")]
    BlockTooLarge {
        /// Threads asked for.
        threads: u32,
        /// The limit.
        limit: u32,
    },
    /// More shared memory than a block can have.
    #[error("{bytes} bytes of shared memory a block; {limit} is the most")]
    SharedTooLarge {
        /// Bytes asked for.
        bytes: u32,
        /// The limit.
        limit: u32,
    },
    /// More lanes than the host executor may run at once.
    #[error("a launch of {lanes} lanes; the host executor is set to at most {limit}")]
    TooManyLanes {
        /// Blocks times threads.
        lanes: u64,
        /// `HostOptions::max_lanes`.
        limit: usize,
    },
    /// A kernel of the host executor trapped, or its lanes could not meet in a collective.
    #[error("kernel {kernel} faulted: {why}")]
    Fault {
        /// The kernel's name.
        kernel: String,
        /// What happened.
        why: String,
    },
    /// A kernel, stream, event or memory of one GPU was used with another.
    #[error("the {what} belongs to another GPU")]
    OtherGpu {
        /// The object.
        what: &'static str,
    },
    /// Registers of a device have no bulk copies; only words can be written to them.
    #[error("mapped registers cannot be copied from or to")]
    Registers,
    /// A bounded wait ended; the work goes on.
    #[error("{what} did not finish within {after:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// The bound.
        after: Duration,
    },
    /// Work was to be recorded that cannot be.
    #[error("{why}: no work was recorded")]
    NoGraph {
        /// Why not.
        why: &'static str,
    },
    /// Work of a stream is being recorded: it cannot be waited for, and only what the recording thread
    /// queues belongs to it.
    #[error("work of the stream is being recorded")]
    Recording,
    /// An event was asked for its time before it was reached.
    #[error("the event was not recorded yet")]
    NotRecorded,
}
