//! The tree that transfers cross: sockets, root complexes, root ports, switches, GPUs and NICs.
//!
//! A [`Topology`] comes from a TOML file (`from_toml`, feature `toml`), from a machine
//! ([`from_sysfs`]), from the built-ins ([`builtin`]), or from a [`Capture`] of a machine: its
//! sysfs ([`capture_sysfs`]) or output of `lspci` ([`from_lspci`]). [`Matrix`] is the output of
//! `nvidia-smi topo -m`. Guarantees: ids are unique, every device
//! descends from a root complex without a loop, and the width, MPS and MRRS of every link are
//! legal.

mod assign;
mod between;
mod builtin;
mod capture;
mod check;
mod draw;
mod error;
mod fair;
#[cfg(feature = "toml")]
mod file;
mod identity;
mod knob;
mod load;
mod lspci;
mod measured;
mod model;
mod nics;
mod nvidia_smi;
mod p2p;
mod packets;
mod part;
mod profiles;
mod route;
#[cfg(feature = "toml")]
mod save;
mod survey;
mod svg;
mod sysfs;
mod tree;

pub use assign::{Assigned, assign, assign_matrix, assign_to, assign_topology, candidates};
pub use between::Interconnect;
pub use builtin::{BUILTIN_NAMES, builtin};
pub use capture::{Address, Capture, CaptureError, Function, MAX_FUNCTIONS, NoAddress, Port, Rate};
pub use check::{Comparison, Difference, WriteFan, compare, unknowns, write_fans};
pub use draw::{to_text, to_tree};
pub use error::TopologyError;
pub(crate) use fair::{Cap, crossed, fair_rates_within};
pub use fair::{Full, Narrowest, Share, fair_rates, port_shares};
#[cfg(feature = "toml")]
pub use file::from_toml;
pub use knob::Knob;
pub use load::{LinkLoad, LoadError, Workload, loads};
pub use lspci::from_lspci;
pub use model::{Builder, Distance, Kind, LinkOrigin, Node, NodeId, PcieLink, RawLink, Topology};
#[cfg(test)]
pub(crate) use nics::two_ports;
pub use nics::{NIC_FAMILIES, NicFamily, nic_family};
pub use nvidia_smi::{Cell, MAX_MATRIX, Matrix, Row};
pub use p2p::{
    Chip, Collapse, Iommu, KNOWN_COLLAPSES, KnownCollapse, LOOKED_FOR, P2p, PostedCollapse, Slot,
};
#[cfg(test)]
pub(crate) use packets::gpu_bytes;
pub(crate) use packets::{GPU_BYTES, peer_bytes};
pub use part::Guess;
pub(crate) use profiles::known_of;
pub use profiles::{Limit, PROFILES, Peer, RootProfile, SeenRate};
pub use route::{Redirect, Route};
#[cfg(feature = "toml")]
pub use save::to_toml;
pub use survey::{matrix_text, survey_text};
pub use svg::{to_svg, to_svg_loaded};
pub use sysfs::{SysfsError, capture_sysfs, from_sysfs};
pub use tree::{Class, Top, Tree};

#[cfg(all(test, feature = "toml"))]
mod route_tests;
#[cfg(all(test, feature = "toml"))]
mod tests;
