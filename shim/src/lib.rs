//! Preloaded object: unmodified rdma-core programs on bellpush's software NIC.
//!
//! `LD_PRELOAD` puts this object's `open`, `ioctl` and a few others before libc's. libibverbs then
//! finds a device `mlx5_0` in what it takes for sysfs, and libmlx5 drives it as it would drive a
//! ConnectX: it allocates queues in the program's memory, says in `ioctl` where they are, writes
//! WQEs, doorbell records and UAR registers. The engine of the software NIC is a thread of the
//! program that reads and writes the same memory. No file of rdma-core is changed.
//!
//! | file | what |
//! |---|---|
//! | `hooks` `closing` `lookups` | what is interposed: functions called, and functions looked up by name |
//! | `real` `symbols` | what lies behind it |
//! | `process` `files` | options, open descriptors, forks |
//! | `tree` `layout` `dir` | the devices' sysfs files, what they say, and where they may be written |
//! | `cuda` | GPU memory that programs register |
//! | `device` `guard` | a software NIC, its limits; its own descriptors |
//! | `drive` `thread` `verbs` | who steps its engine: threads of the program that poll, and one of its own |
//! | `rings` `trap` | doorbells that programs ring past libibverbs: when they are caught, and how |
//! | `signals` `marked` `masks` `cancel` | what the program does with its faults; its handlers; threads that block faults, and that end at once |
//! | `request` `abi` | commands: copied out, then checked; the kernel's structs |
//! | `context` | an open device: its objects, and which command does what |
//! | `commands` `names` | the commands, and what people know them by |
//! | `devx` | commands of the device that programs word themselves |
//! | `rdma_cm` | connections by librdmacm |
//! | `events` | completion channels and asynchronous events |
//! | `watch` | says which queue pairs stand still |
//! | `fuzzed` | the device opened without `LD_PRELOAD`, for checks of commands |
//!
//! **Safety of the whole.** The program's memory is reached through `bellpush_mem`: commands and
//! registered ranges by copies whose faults are caught, or by system calls that answer `EFAULT`, queues as borrowed memory, which
//! libmlx5 keeps until the object is destroyed, and which nothing touches after that. No panic
//! leaves a hook; a command that panics answers `EIO`.

mod abi;
mod cancel;
mod clock;
mod closing;
mod commands;
mod context;
mod counters;
mod cuda;
mod device;
mod devx;
mod dir;
mod drive;
mod error;
mod events;
mod files;
#[cfg(any(test, fuzzing))]
mod fuzzed;
mod guard;
mod hooks;
mod layout;
mod lookups;
mod marked;
mod masks;
mod names;
mod process;
mod rdma_cm;
mod real;
mod request;
mod rings;
mod signals;
mod status;
mod symbols;
mod thread;
mod trap;
mod tree;
mod trial;
mod turns;
mod verbs;
mod waits;
mod watch;

#[cfg(any(test, fuzzing))]
#[path = "../../fuzz/checks/uverbs/mod.rs"]
pub mod uverbs;
