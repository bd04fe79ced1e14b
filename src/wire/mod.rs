//! Wire formats as typed values: bytes in, values out; no I/O, nothing of ours imported.

/// Local key of a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lkey(pub u32);
/// Remote key of a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);
/// Queue pair number, 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Qpn(pub u32);
/// Address as WQEs and packets name it inside a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Iova(pub u64);
