//! The tree that transfers cross: sockets, root complexes, root ports, switches, GPUs and NICs.
//!
//! A [`Topology`] comes from a TOML file (`from_toml`, feature `toml`), from the running machine
//! ([`from_sysfs`]) or from the built-ins ([`builtin`]). Guarantees: ids are unique, every device
//! descends from a root complex without a loop, and the width, MPS and MRRS of every link are
//! legal.

mod builtin;
mod draw;
mod error;
#[cfg(feature = "toml")]
mod file;
mod model;
mod p2p;
mod profiles;
mod route;
mod sysfs;

pub use builtin::{BUILTIN_NAMES, builtin};
pub use draw::{to_svg, to_text};
pub use error::TopologyError;
#[cfg(feature = "toml")]
pub use file::from_toml;
pub use model::{Builder, Distance, Interconnect, Kind, Node, NodeId, PcieLink, RawLink, Topology};
pub use p2p::{Chip, Collapse, Iommu, P2p, PostedCollapse, Slot};
pub use profiles::{PROFILES, RootProfile};
pub use route::{Redirect, Route};
pub use sysfs::{SysfsError, from_sysfs};

#[cfg(all(test, feature = "toml"))]
mod route_tests;
#[cfg(all(test, feature = "toml"))]
mod tests;
