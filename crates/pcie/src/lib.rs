//! The PCIe model: TLP arithmetic, topology, event simulation and path cost. Pure: it uses no other
//! crate of bellpush, reads no clock and does no I/O (the sysfs reader in [`topology`] takes the
//! root of the tree that it reads).
//!
//! Times are picoseconds in the simulation (`_ps`) and nanoseconds in parameters and results
//! (`_ns`); bandwidth is Gb/s (10⁹ bits) in the arithmetic, GB/s (10⁹ bytes) elsewhere.

#![forbid(unsafe_code)]

pub mod scale;
pub mod sim;
pub mod tlp;
pub mod topology;
