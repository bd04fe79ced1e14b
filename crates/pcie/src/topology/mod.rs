//! The tree that transfers cross: sockets, root complexes, root ports, switches, GPUs and NICs.
//!
//! A [`Topology`] comes from a TOML file (`from_toml`, feature `toml`), from the running machine
//! ([`from_sysfs`]) or from the built-ins ([`builtin`]). Guarantees: ids are unique, every device
//! descends from a root complex without a loop, and the width, MPS and MRRS of every link are
//! legal.

mod assign;
mod builtin;
mod capture;
mod check;
mod draw;
mod error;
#[cfg(feature = "toml")]
mod file;
mod identity;
mod lspci;
mod model;
mod nvidia_smi;
mod survey;
mod sysfs;
mod tree;

pub use assign::{Assigned, assign, assign_matrix, candidates};
pub use builtin::{BUILTIN_NAMES, builtin};
pub use capture::{Address, Capture, CaptureError, Function, MAX_FUNCTIONS, NoAddress, Port, Rate};
pub use check::{Collapse, Comparison, Difference, collapses, compare, unknowns};
pub use draw::{to_svg, to_text};
pub use error::TopologyError;
#[cfg(feature = "toml")]
pub use file::from_toml;
pub use lspci::from_lspci;
pub use model::{
    Builder, Distance, Interconnect, Kind, Node, NodeId, P2p, PcieLink, RawLink, Topology,
};
pub use nvidia_smi::{Cell, MAX_MATRIX, Matrix, Row};
pub use survey::{matrix_text, survey_text};
pub use sysfs::{SysfsError, capture_sysfs, from_sysfs};
pub use tree::{Class, Top, Tree};

#[cfg(all(test, feature = "toml"))]
mod tests;
