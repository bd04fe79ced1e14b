//! The PCIe model: TLP arithmetic, topology, event simulation and path cost. The crate depends on
//! no other crate of bellpush, reads no clock and does no I/O, except for the sysfs reader in
//! [`topology`], which takes the root of the tree that it reads.
//!
//! Times are picoseconds in the simulation (`_ps`) and nanoseconds in parameters and results
//! (`_ns`). Bandwidth is Gb/s (10⁹ bits) in the TLP arithmetic and GB/s (10⁹ bytes) elsewhere.
//! `docs/pcie-model.md` describes the model and its validation.

#![forbid(unsafe_code)]

mod origin;
pub mod scale;
pub mod sim;
pub mod text;
pub mod tlp;
pub mod topology;

pub use origin::Origin;
