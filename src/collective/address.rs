//! A rank's description of itself for the other ranks. It is text, since it crosses processes and
//! hosts.

use serde::{Deserialize, Serialize};

use crate::transport::Address;

/// The options of a rank that all ranks must share, and its endpoints. Opaque; serialised as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankAddress {
    pub(super) rank: u32,
    /// PCI address of its GPU, if the GPU has one. Ranks with the same address share the GPU or are
    /// on different hosts.
    pub(super) gpu: Option<String>,
    /// Names and values, in the same order at every rank.
    pub(super) options: Vec<(String, String)>,
    /// By channel and peer; `None` for the rank itself.
    pub(super) endpoints: Vec<Option<Address>>,
}
