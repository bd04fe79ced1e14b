//! Errors of GPUs and of the host executor.

use std::time::Duration;

use bellpush_mem::MemError;

/// An error of the GPU layer. Each prints as one line.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no libcuda on this machine.
    #[error("no CUDA driver: libcuda.so was not found")]
    NoDriver,
    /// The driver is installed but finds no GPU.
    #[error("the CUDA driver finds no GPU")]
    NoDevice,
    /// The ordinal is not below the number of GPUs.
    #[error("there is no CUDA GPU {ordinal}: this machine has {count}, counted from 0")]
    NoSuchDevice {
        /// The requested ordinal.
        ordinal: usize,
        /// Number of GPUs that the driver sees.
        count: usize,
    },
    /// The program was built without CUDA kernels.
    #[error("this program cannot use CUDA: {reason}")]
    NotBuilt {
        /// The missing part of the build.
        reason: &'static str,
    },
    /// The GPU is older than the oldest compute capability for which the kernels are compiled.
    #[error("{name} has compute capability {major}.{minor}; 8.0 is the least supported")]
    UnsupportedArch {
        /// The GPU's name.
        name: String,
        /// Compute capability, major.
        major: i32,
        /// Compute capability, minor.
        minor: i32,
    },
    /// The driver is older than the calls that bellpush needs.
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
        /// Bytes of the memory.
        bytes: usize,
        /// CUDA's name of the error.
        error: String,
    },
    /// An address from another library is not memory of this GPU.
    #[error("{bytes} bytes at {addr:#x} are no memory of CUDA GPU {gpu}")]
    NotGpuMemory {
        /// The GPU's ordinal.
        gpu: usize,
        /// Start of the range.
        addr: u64,
        /// Length of the range.
        bytes: usize,
    },
    /// A module's image does not fit this GPU or driver.
    #[error("cannot load the kernels on {name}: {error}")]
    Load {
        /// The GPU's name.
        name: String,
        /// CUDA's name of the error.
        error: String,
    },
    /// A GPU cannot access another GPU's memory.
    #[error("CUDA GPU {from} cannot access the memory of GPU {to}")]
    NoPeer {
        /// GPU whose kernels would access the memory.
        from: usize,
        /// GPU that owns the memory.
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
    /// A system call of the host executor failed.
    #[error("host executor: {call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Host memory could not be allocated, or an access was out of bounds.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// The module has no kernel with this name.
    #[error("there is no kernel {name}; known are: {}", .known.join(", "))]
    NoKernel {
        /// The requested name.
        name: String,
        /// Names of the module's kernels.
        known: Vec<String>,
    },
    /// The argument struct is not the one of the kernel.
    #[error("kernel {kernel} takes an argument of {takes} bytes, not {given}")]
    ArgsSize {
        /// The kernel's name.
        kernel: String,
        /// Bytes of its argument.
        takes: usize,
        /// Bytes given.
        given: usize,
    },
    /// A launch with zero blocks or threads.
    #[error("a launch of {grid} blocks of {block} threads does nothing")]
    EmptyLaunch {
        /// Requested blocks.
        grid: u32,
        /// Requested threads per block.
        block: u32,
    },
    /// A block is larger than the hardware supports.
    #[error("a block of {threads} threads; {limit} is the most")]
    BlockTooLarge {
        /// Requested threads.
        threads: u32,
        /// The limit.
        limit: u32,
    },
    /// A block would have more shared memory than the hardware supports.
    #[error("{bytes} bytes of shared memory a block; {limit} is the most")]
    SharedTooLarge {
        /// Requested bytes.
        bytes: u32,
        /// The limit.
        limit: u32,
    },
    /// A launch has more lanes than the host executor accepts.
    #[error("a launch of {lanes} lanes; the host executor is set to at most {limit}")]
    TooManyLanes {
        /// Blocks times threads.
        lanes: u64,
        /// `HostOptions::max_lanes`.
        limit: usize,
    },
    /// A ring of marks would be too long.
    #[error("a ring of {marks} marks; {most} is the most")]
    TooManyMarks {
        /// Requested marks.
        marks: usize,
        /// The limit.
        most: usize,
    },
    /// A kernel on the host executor trapped, or its lanes did not meet in a collective.
    #[error("kernel {kernel} faulted: {why}")]
    Fault {
        /// The kernel's name.
        kernel: String,
        /// The cause.
        why: String,
    },
    /// A kernel, stream, event or memory of one GPU was used with another GPU.
    #[error("the {what} belongs to another GPU")]
    OtherGpu {
        /// The object.
        what: &'static str,
    },
    /// A bounded wait ended; the work continues.
    #[error("{what} did not finish within {after:?}")]
    Timeout {
        /// The awaited work.
        what: &'static str,
        /// The bound.
        after: Duration,
    },
    /// The work cannot be recorded as a graph.
    #[error("{why}: no work was recorded")]
    NoGraph {
        /// The reason.
        why: &'static str,
    },
    /// A thread is recording the stream's work. No thread can wait for the stream, and only the
    /// recording thread can queue work on it.
    #[error("work of the stream is being recorded")]
    Recording,
    /// The time of an event was requested before the event was reached.
    #[error("the event was not recorded yet")]
    NotRecorded,
}
