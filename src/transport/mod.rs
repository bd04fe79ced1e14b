//! Endpoints: one `put` for every path.
//!
//! The application says what to send; the endpoint's [`Path`] says who moves it and what tells the
//! NIC. On paths whose posts a kernel makes ([`Path::posted_by_gpu`]) device code can call the same
//! verbs itself (`kernels/include/bellpush/bellpush.cuh`) with [`Endpoint::device`].

#![deny(missing_docs)]

mod address;
mod auto_posted;
mod endpoint;
mod host_posted;
mod kernel_posted;
mod memory;
mod options;
mod order;
mod path;
mod peers;
mod place;
mod rdma;
mod receives;
mod reset;
mod tcp;
mod tuning;
mod tuning_file;
mod verbs;

pub use endpoint::{Address, Endpoint, Link};
pub use memory::Memory;
pub use options::Options;
pub use path::{Data, Kick, Path, PathError};
pub use peers::{Peers, PeersAddress};
pub use place::{MemoryPlace, Reach};
pub use reset::Progress;
pub use tuning::{Choice, MAX_RANGES, Range, Ranges, Tuning};
pub use tuning_file::{EngineSide, Machine, Origin, TuningError};
pub use verbs::{CompareSwap, FetchAdd, Get, Local, Put, Remote, Signal};

use crate::abi::wire::Code;
use crate::gpu::GpuError;
use crate::mem::MemError;
use crate::nic::NicError;
use crate::nic::queue::QueueError;

/// Why an endpoint refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path that does not exist.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The GPU refused something.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The NIC refused something.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The host-side queue refused something.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// Memory trouble.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// The table of an auto endpoint.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// An option out of range.
    #[error("{what} is {value}, but must be {must}")]
    Option {
        /// The option.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is accepted.
        must: &'static str,
    },
    /// A range that leaves a region.
    #[error("{bytes} bytes at offset {offset} leave the {which} region of {len} bytes")]
    Range {
        /// `local` or `remote`.
        which: &'static str,
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
        /// Length of the region.
        len: u64,
    },
    /// A message of 0 bytes.
    #[error("a message has at least one byte")]
    Empty,
    /// A message that one WQE must carry, and cannot.
    #[error(
        "{bytes} bytes are more than the {most} that one WQE carries: send the message in parts"
    )]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The longest.
        most: u64,
    },
    /// A word for an atomic, at a place where none can be.
    #[error(
        "the 8-byte word at offset {offset} of the peer's region is not at an address that is a multiple of 8"
    )]
    Misaligned {
        /// Its place.
        offset: u64,
    },
    /// Calls on two streams, which nothing orders.
    #[error(
        "calls of this endpoint were queued on another stream and have not been waited for: call quiet there first"
    )]
    OtherStream,
    /// A call on a stream that records: what is recorded may run at any time, and more than once.
    #[error("an endpoint's calls cannot be recorded: launch a kernel that calls the device verbs")]
    Recording,
    /// A call was queued, and its stream ended before it ran.
    #[error("{verb} did not run: its stream ended before; reset both ends and connect them again")]
    NotRun {
        /// The call.
        verb: &'static str,
    },
    /// The endpoint has no peer.
    #[error("the endpoint is not connected: call connect with the peer's address first")]
    NotConnected,
    /// The endpoint has a peer, and what was sent there was perhaps not waited for.
    #[error("the endpoint is connected already: make another one for another peer")]
    AlreadyConnected,
    /// A reset while calls may run.
    #[error(
        "calls of this endpoint are queued and were not waited for: synchronize their stream first"
    )]
    Busy,
    /// The peer's address is that of the connection before the reset.
    #[error(
        "the peer's address is that of the connection before the reset: reset the peer too, and exchange addresses \
         before either connects"
    )]
    PeerNotReset,
    /// The peer's address is of another kind than this path's.
    #[error("{path} cannot connect to {theirs}: make both ends with one path")]
    OtherLink {
        /// This end's path.
        path: Path,
        /// The peer's link.
        theirs: &'static str,
    },
    /// The peer's region ends behind the last address.
    #[error(
        "the peer's region of {bytes} bytes at {iova:#x} leaves the 64-bit address space: the address is not what \
         the peer's endpoint said"
    )]
    PeerRegion {
        /// Address of its first byte.
        iova: u64,
        /// Its length.
        bytes: u64,
    },
    /// What this path cannot do.
    #[error("{path} cannot {what}: {why}")]
    Unsupported {
        /// The path.
        path: Path,
        /// What was asked for.
        what: &'static str,
        /// Why not, and what to take instead.
        why: &'static str,
    },
    /// A verb on the GPU returned a status.
    #[error("{verb} on the GPU: {code}")]
    Verb {
        /// The verb.
        verb: &'static str,
        /// What it returned.
        code: Code,
    },
    /// The queue pair ended in error.
    #[error(
        "the queue pair ended at WQE {ticket}: {code}, syndrome {syndrome:#04x} (vendor {vendor:#04x})"
    )]
    Completion {
        /// What ended it.
        code: Code,
        /// InfiniBand syndrome of the error CQE.
        syndrome: u8,
        /// Vendor's error code.
        vendor: u8,
        /// The WQE's ticket.
        ticket: u64,
    },
    /// A bounded wait on the host ended.
    #[error("{what} took longer than {ms} ms")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// The bound.
        ms: u128,
    },
    /// A rank's address in a table of peers does not go with this rank's.
    #[error(
        "rank {rank}'s address has {what} {theirs}, and this rank {ours}: make all tables alike"
    )]
    Differs {
        /// The rank.
        rank: u32,
        /// What differs.
        what: &'static str,
        /// Its value there.
        theirs: String,
        /// Its value here.
        ours: String,
    },
    /// A call on a table of peers returned a status.
    #[error("{what} of rank {rank}'s, waiting for rank {whom}: {code}")]
    Peers {
        /// The call.
        what: &'static str,
        /// This rank.
        rank: u32,
        /// The rank that it concerns, as far as this one knows.
        whom: u32,
        /// What it returned.
        code: Code,
    },
    /// The TCP connection failed.
    #[error("tcp: {what}: {source}")]
    Tcp {
        /// The failing step.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}
