//! The tree that transfers cross: sockets, root complexes, root ports, switches, GPUs and NICs.
//!
//! Three sources give the same [`Topology`]: a TOML file (`from_toml`, feature `toml`), the running machine
//! ([`from_sysfs`]) and the built-ins ([`builtin`]). What they guarantee: ids are unique, every
//! device hangs from a root complex without a loop, every link's width, MPS and MRRS is legal.

mod builtin;
mod draw;
mod error;
#[cfg(feature = "toml")]
mod file;
mod model;
mod sysfs;

pub use builtin::{BUILTIN_NAMES, builtin};
pub use draw::{to_svg, to_text};
pub use error::TopologyError;
#[cfg(feature = "toml")]
pub use file::from_toml;
pub use model::{
    Builder, Distance, Interconnect, Kind, Node, NodeId, P2p, PcieLink, RawLink, Topology,
};
pub use sysfs::{SysfsError, from_sysfs};

#[cfg(all(test, feature = "toml"))]
mod tests;
