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

#[cfg(test)]
mod tests {
    use super::super::{CALIBRATION, Pattern};
    use super::*;

    #[test]
    fn rows_have_the_names_by_which_they_are_read_again() {
        use Access::{Load, Store};
        use Target::{Host, Local, Peer};
        let dense = Pattern::dense(2, 64);
        let shifted = Pattern { stride_bytes: 32, offset_bytes: 16, ..dense };
        for (probe, name) in [
            (
                Probe::Stream(Peer, Store, dense),
                "stores to the peer's memory, 2 x 64 threads, 16 B",
            ),
            (
                Probe::Stream(Host, Load, shifted),
                "loads from host memory, 2 x 64 threads, 16 B every 32 B from 16 B on",
            ),
            (Probe::Burst(Local, Store, 64), "64 B stored to this GPU's memory, then a fence.sys"),
            (Probe::Burst(Host, Load, 64), "64 B loaded from host memory"),
            (Probe::Page(Held::Core, 64), "64 B that a core wrote loaded from the host"),
            (Probe::Page(Held::Device, 64), "64 B that this GPU wrote loaded from the host"),
            (Probe::Page(Held::Another, 64), "64 B of another page each time loaded from the host"),
            (Probe::Latency(Host), "a word of host memory loaded"),
            (Probe::FenceSystem(None), "fence.sys, nothing outstanding"),
            (Probe::FenceSystem(Some(Peer)), "64 B to the peer's memory, then fence.sys"),
            (Probe::FenceGpu(Local), "64 B to this GPU's memory, then fence.gpu"),
            (Probe::RoundTrip(Peer), "flag to the peer GPU and back"),
            (Probe::RoundTrip(Host), "flag to the CPU and back"),
        ] {
            assert_eq!(probe.to_string(), name);
        }
        let row = |parameter| CALIBRATION.iter().find(|c| c.parameter == parameter).unwrap().row();
        assert_eq!(row("sm_ns"), "a word of this GPU's memory loaded");
        let less =
            "64 B loaded from host memory, less 64 B that this GPU wrote loaded from the host";
        assert_eq!(row("dram_ns"), less);
    }
}
