//! The only place from which the commands launch arbitrary kernels.

use bellpush::gpu::{Dims, GpuError, Kernel, KernelArgs, Stream};

/// Queues a kernel. Rule for the commands: an argument names only memory that the command holds
/// until it has found the stream idle, or that the stream keeps.
pub fn launch<A: KernelArgs>(
    stream: &Stream,
    kernel: &Kernel,
    dims: Dims,
    args: &A,
) -> Result<(), GpuError> {
    // SAFETY: the rule above; a command that gives up before its stream is idle ends the program.
    unsafe { stream.launch(kernel, dims, args) }
}
