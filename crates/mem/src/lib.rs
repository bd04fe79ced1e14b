//! The raw-memory boundary: memory that a GPU, a NIC or a peer may write at any moment.
//!
//! Rules (after vm-memory's volatile memory, stated once and kept here):
//! 1. No `&` or `&mut` to the bytes is ever formed; everything goes through raw copies and
//!    atomics. What is read is a copy, and only the copy is checked and parsed.
//! 2. Every access is bounds-checked against the mapping.
//! 3. Bulk copies carry no ordering; [`HostMem::load_u64`] and its kin do, and each caller says
//!    what its ordering orders and for whom.

mod cache;
pub mod clock;
mod copies;
pub mod datagrams;
pub mod dcb;
mod dma;
pub mod ethtool;
pub mod guarded;
#[doc(hidden)]
pub mod here;
pub mod hidden;
mod hooked;
mod host;
mod lines;
#[cfg(feature = "model")]
pub mod model;
mod numa;
mod order;
pub mod own_thread;
mod rewrite;
mod shared;
pub mod stores;
mod user;
mod view;
mod wait;

pub use cache::{Intent, LINE_BYTES};
pub use dma::{Dma, Exported, copy};
pub use hooked::{Hook, Hooked};
pub use host::{HostMem, View};
pub use numa::{node_count, node_of_pci};
pub use order::device_barrier;
pub use rewrite::rewrite;
pub use user::UserMem;

/// Bytes of a page; queues and windows are multiples of it.
pub const PAGE_BYTES: usize = 4096;

/// What can go wrong with mapped memory.
#[derive(Debug, thiserror::Error)]
pub enum MemError {
    /// The operating system refused a mapping.
    #[error("cannot map {bytes} bytes of host memory: {source}")]
    Map {
        /// Size asked for.
        bytes: usize,
        /// The failing call's error.
        source: std::io::Error,
    },
    /// A file is too short for the mapping asked for.
    #[error("cannot map {bytes} bytes of a file of {len}")]
    File {
        /// Size asked for.
        bytes: usize,
        /// Length of the file.
        len: u64,
    },
    /// A file that another process could make shorter, which would end whoever has it mapped.
    #[error("the file is not sealed against being made shorter (F_SEAL_SHRINK)")]
    Unsealed,
    /// The memory could not be bound to a NUMA node.
    #[error("cannot place host memory on NUMA node {node}: {source}")]
    Bind {
        /// Node asked for.
        node: usize,
        /// The failing call's error.
        source: std::io::Error,
    },
    /// An access outside the mapping.
    #[error("{bytes} bytes at offset {offset} lie outside a mapping of {len} bytes")]
    OutOfBounds {
        /// First byte of the access.
        offset: usize,
        /// Length of the access.
        bytes: usize,
        /// Length of the mapping.
        len: usize,
    },
    /// Others changed the word each time that an atomic access had read it.
    #[error("the word at offset {offset} is changed all the time")]
    Contended {
        /// Offset of the access.
        offset: usize,
    },
    /// Memory of a device where the processor's own loads and stores do not reach.
    #[error("the memory is a device's, and the processor does not reach it")]
    Far,
    /// An atomic access that is not naturally aligned.
    #[error("offset {offset} is not aligned to {align} bytes")]
    Misaligned {
        /// Offset of the access.
        offset: usize,
        /// Alignment it needs.
        align: usize,
    },
    /// A device gives no handle by which others reach its memory.
    #[error("the device exports no dma-buf of it: {0}")]
    Export(String),
    /// Memory of the program that is not mapped, or not for this access.
    #[error("{bytes} bytes at {addr:#x} are not mapped for this access")]
    Fault {
        /// First byte of the access.
        addr: u64,
        /// Length of the access.
        bytes: usize,
    },
    /// A device's copy engine failed.
    #[error("copy to or from device memory failed: {0}")]
    Device(String),
}
