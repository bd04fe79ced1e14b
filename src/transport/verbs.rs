//! What an endpoint's calls take: places in the two regions, and what is done with them.

/// A place in the endpoint's own region, in bytes from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Local(pub u64);

/// A place in the peer's region, in bytes from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Remote(pub u64);

/// RDMA WRITE: `bytes` bytes of the endpoint's region go to the peer's.
///
/// ```
/// use bellpush::transport::{Local, Put, Remote, Signal};
///
/// let put = Put { from: Local(0), to: Remote(512), bytes: 64, signal: None };
/// let told = Put { signal: Some(Signal { word: Remote(1024), add: 1 }), ..put };
/// ```
///
/// The two kinds of place cannot be mistaken for each other:
///
/// ```compile_fail,E0308
/// use bellpush::transport::{Local, Put, Remote};
///
/// let put = Put { from: Remote(512), to: Local(0), bytes: 64, signal: None };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// First byte here.
    pub from: Local,
    /// First byte there.
    pub to: Remote,
    /// Length, at least 1.
    pub bytes: u64,
    /// What tells the peer that the bytes are there.
    pub signal: Option<Signal>,
}

/// An atomic addition behind the data of a [`Put`]: a peer that sees the sum sees the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// 8-byte word, at a multiple of 8.
    pub word: Remote,
    /// Added to it.
    pub add: u64,
}

/// RDMA READ: `bytes` bytes of the peer's region come to the endpoint's.
///
/// ```compile_fail,E0308
/// use bellpush::transport::{Get, Local, Remote};
///
/// let get = Get { from: Local(0), to: Remote(512), bytes: 64 };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Get {
    /// First byte there.
    pub from: Remote,
    /// First byte here.
    pub to: Local,
    /// Length, at least 1.
    pub bytes: u64,
}

/// Atomic fetch and add.
///
/// ```compile_fail,E0308
/// use bellpush::transport::{FetchAdd, Local, Remote};
///
/// let add = FetchAdd { word: Local(0), add: 1, old: Remote(64) };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchAdd {
    /// 8-byte word, at a multiple of 8.
    pub word: Remote,
    /// Added to it, modulo 2^64.
    pub add: u64,
    /// Where the word's old value goes, 8 bytes.
    pub old: Local,
}

/// Atomic compare and swap.
///
/// ```compile_fail,E0308
/// use bellpush::transport::{CompareSwap, Local, Remote};
///
/// let swap = CompareSwap { word: Local(0), compare: 0, swap: 1, old: Remote(64) };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompareSwap {
    /// 8-byte word, at a multiple of 8.
    pub word: Remote,
    /// The value at which it is swapped.
    pub compare: u64,
    /// Its new value then.
    pub swap: u64,
    /// Where the word's old value goes, 8 bytes.
    pub old: Local,
}
