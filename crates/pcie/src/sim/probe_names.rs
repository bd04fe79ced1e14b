//! The rows of `bellpush link` in words: by these names saved results are read again.

use std::fmt;

use super::{Access, Calibration, Held, Probe, Target};

fn place(target: Target) -> &'static str {
    match target {
        Target::Local => "this GPU's memory",
        Target::Host => "host memory",
        Target::Peer => "the peer's memory",
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Probe::Stream(target, access, p) => {
                let what = if access == Access::Store { "stores to" } else { "loads from" };
                let mut name = format!(
                    "{what} {}, {} x {} threads, {} B",
                    place(target),
                    p.blocks,
                    p.threads,
                    p.access_bytes
                );
                if p.stride_bytes != p.access_bytes {
                    name += &format!(" every {} B", p.stride_bytes);
                }
                if p.offset_bytes > 0 {
                    name += &format!(" from {} B on", p.offset_bytes);
                }
                name
            }
            Probe::Burst(target, Access::Store, bytes) => {
                format!("{bytes} B stored to {}, then a fence.sys", place(target))
            }
            Probe::Burst(target, Access::Load, bytes) => {
                format!("{bytes} B loaded from {}", place(target))
            }
            Probe::Page(Held::Core, bytes) => {
                format!("{bytes} B that a core wrote loaded from the host")
            }
            Probe::Page(Held::Device, bytes) => {
                format!("{bytes} B that this GPU wrote loaded from the host")
            }
            Probe::Page(Held::Another, bytes) => {
                format!("{bytes} B of another page each time loaded from the host")
            }
            Probe::Latency(target) => format!("a word of {} loaded", place(target)),
            Probe::FenceSystem(None) => "fence.sys, nothing outstanding".into(),
            Probe::FenceSystem(Some(target)) => {
                format!("64 B to {}, then fence.sys", place(target))
            }
            Probe::FenceGpu(target) => format!("64 B to {}, then fence.gpu", place(target)),
            Probe::RoundTrip(Target::Peer) => "flag to the peer GPU and back".into(),
            Probe::RoundTrip(_) => "flag to the CPU and back".into(),
        };
        f.pad(&name)
    }
}

impl Calibration {
    /// The row to which the parameter is fitted, in words.
    pub fn row(&self) -> String {
        let less = self.less.map_or(String::new(), |less| format!(", less {less}"));
        format!("{}{less}", self.probe)
    }
}
