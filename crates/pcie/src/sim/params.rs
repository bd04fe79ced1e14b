//! The model's parameters with their sources. A sensitivity run can scale every one.

use crate::Origin;

/// Declares each parameter once: meaning, name, where the default comes from, default.
macro_rules! params {
    ($($(#[doc = $doc:literal])+ $name:ident: $origin:ident = $value:expr;)+) => {
        /// The numbers that a topology does not give. Latencies are in ns, bandwidths in GB/s.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Params {
            $($(#[doc = $doc])+ pub $name: f64,)+
        }

        impl Default for Params {
            fn default() -> Self {
                Self { $($name: $value,)+ }
            }
        }

        impl Params {
            /// Names of all parameters.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// Where the default of a parameter comes from; [`Origin::Unknown`] for an unknown
            /// name.
            pub fn origin(name: &str) -> Origin {
                match name {
                    $(stringify!($name) => Origin::$origin,)+
                    _ => Origin::Unknown,
                }
            }

            /// What a parameter is, in one sentence without its full stop; empty for an unknown
            /// name.
            pub fn meaning(name: &str) -> &'static str {
                let text = match name {
                    $(stringify!($name) => concat!($($doc),+),)+
                    _ => "",
                };
                text.trim().split_once(". ").map_or(text, |first| first.0).trim().trim_end_matches('.')
            }

            /// The parameter with this name.
            pub fn get(&self, name: &str) -> Option<f64> {
                match name {
                    $(stringify!($name) => Some(self.$name),)+
                    _ => None,
                }
            }

            /// The parameter with this name.
            pub fn get_mut(&mut self, name: &str) -> Option<&mut f64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)+
                    _ => None,
                }
            }
        }
    };
}

params! {
    /// Propagation and PHYs of one PCIe link. Assumed.
    link_ns: Assumed = 5.0;
    /// Forwarding by a switch; vendors state 100 to 150. Uncertain.
    switch_ns: Assumed = 110.0;
    /// Crossing between two switches of one chip, beside the forwarding by both. Assumed: none.
    chip_ns: Assumed = 0.0;
    /// Transit of a root complex, either way. Uncertain.
    root_complex_ns: Assumed = 130.0;
    /// Transit of a socket's mesh. Uncertain.
    mesh_ns: Assumed = 60.0;
    /// Crossing between NUMA nodes of one socket, beside the mesh. Assumed.
    numa_ns: Assumed = 20.0;
    /// Crossing between sockets, beside the two meshes: pcie-bench's +106 ns per round trip.
    socket_hop_ns: Fitted = 53.0;
    /// Read of host memory in the last-level cache. With the above: a host word polled in 1000 ns.
    memory_ns: Fitted = 80.0;
    /// Mean time that a line of host memory in no cache takes beyond `memory_ns`. Calibrated on
    /// `bellpush link`: 64 B in no cache against 64 B that the GPU has just written.
    dram_ns: Fitted = 107.0;
    /// SM to L2, one way; with `hbm_ns`: a local word polled in 146 ns.
    sm_ns: Fitted = 53.0;
    /// L2 and memory of a GPU, one way.
    hbm_ns: Fitted = 20.0;
    /// GPU's PCIe port, one way. Calibrated on the host word polled in 1000 ns.
    gpu_port_ns: Fitted = 210.0;
    /// Least time between two writes of a GPU over PCIe. Measured: 0.8 G writes of 8 B per second.
    gpu_write_ns: Fitted = 1.25;
    /// Least time between two read requests of a GPU. Measured: 0.8 G transactions per second.
    gpu_read_ns: Fitted = 1.25;
    /// Bandwidth from one SM to L2: 32 B per cycle, and one such slot for the address of each line.
    /// H200, one block to a peer over NVLink: 45.6 GB/s of whole lines, five slots each.
    sm_port_gb_per_s: Fitted = 57.0;
    /// Time between two store instructions of a warp. H200, one warp that stores 512 B at a time:
    /// 26.7 GB/s, independent of the target.
    warp_store_ns: Fitted = 19.2;
    /// Time that a block spends around its loads: addresses, sum, barrier. `bellpush link`: a block
    /// loads 64 B of its own memory in 157 ns more than a word.
    lap_ns: Fitted = 157.0;
    /// SMs (blocks) that push or copy.
    blocks: Assumed = 4.0;
    /// TLP size of an SM's stores: a GPU's write granule.
    store_tlp_bytes: Assumed = 128.0;
    /// Data in an in-band line of 64 B.
    inband_data_bytes: Read = 60.0;
    /// Lines of 128 B that 16 warps of one SM have outstanding. Calibrated on the two one-block
    /// load rows together (20.0 GB/s from the host, 27.0 from a peer). The host's row is from DRAM,
    /// so the number includes the effect of DRAM on a stream.
    sm_read_lines: Fitted = 164.0;
    /// Time of a system-scope fence beyond the acknowledgement of the last PCIe write; 0 removes
    /// the fence and its wait. Calibrated: 1480 ns with stores to the host outstanding.
    fence_pcie_ns: Fitted = 637.0;
    /// Time of the same fence over NVLink. Calibrated: 933 ns with stores to a peer outstanding.
    fence_nvlink_ns: Fitted = 230.0;
    /// Time of a system-scope fence with nothing outstanding. Measured.
    fence_idle_ns: Fitted = 581.0;
    /// Time of a GPU-scope fence after a store to local memory. Measured.
    fence_gpu_ns: Fitted = 269.0;
    /// Time to build a WQE and ring, beside the fences: 331 ns floor less the fence.
    post_ns: Fitted = 62.0;
    /// NVLink hop, one way: a peer word polled in 849 ns.
    nvlink_ns: Fitted = 351.0;
    /// NVLink bandwidth, 18 links, each way. Published.
    nvlink_gb_per_s: Read = 450.0;
    /// Time of a block to act on a flag: barrier, broadcast, branch. Calibrated: doorbell and
    /// completion alone take 2801 ns.
    handoff_ns: Fitted = 535.0;
    /// NIC's PCIe port, one way. Uncertain.
    nic_port_ns: Assumed = 100.0;
    /// NIC's processing of one WQE. Uncertain.
    nic_process_ns: Assumed = 200.0;
    /// Least time from one message to the next at a NIC, of all its queue pairs together. NVIDIA
    /// states 330 to 370 million a second for a ConnectX-7.
    nic_message_ns: Assumed = 3.0;
    /// NIC's check of in-band lines. Uncertain.
    nic_scan_ns: Assumed = 50.0;
    /// Bandwidth of the NIC's window memory. Uncertain.
    nic_memory_gb_per_s: Assumed = 100.0;
    /// Read requests that a NIC has outstanding. Uncertain.
    nic_tags: Assumed = 128.0;
    /// Read requests that a GPU's copy engine has outstanding. Uncertain.
    copy_tags: Assumed = 256.0;
    /// Whether the engines of a device take turns at its link (1) or share one queue (0). Intel and AMD
    /// state turns of their DMA engines; what a GPU does nobody states.
    engines_in_turn: Assumed = 1.0;
    /// Window of NIC memory for one GPU. MEMIC has 128 to 256 KiB.
    window_kib: Assumed = 256.0;
    /// Most bytes that push/kernel sends with one doorbell; half the window if that is less.
    segment_kib: Assumed = 128.0;
    /// Wire, one way, with its switch. Uncertain.
    wire_ns: Assumed = 600.0;
    /// Wire bandwidth: 400 Gb/s.
    wire_gb_per_s: Assumed = 50.0;
    /// CPU's reaction to a flag and its post, for `staged`. Uncertain.
    cpu_post_ns: Assumed = 300.0;
    /// Ends at which `staged` copies through host memory: 1 (the sender's; the NIC of the other end
    /// writes into its GPU) or 2.
    staged_ends: Read = 1.0;
    /// Bytes of DLLPs (Acks, UpdateFCs) that the far end of a PCIe link returns per TLP: one of 8
    /// B.
    dllp_bytes: Read = 8.0;
    /// TLPs of MPS that a link's receiver buffers for each class. Uncertain.
    credit_tlps: Assumed = 128.0;
    /// Writes to host memory that a root port holds until they are in memory, where they are in
    /// order: the time in which its link fills that buffer. Assumed: as many lines as Cascade
    /// Lake's 92 at Gen3 x16.
    write_buffer_ns: Assumed = 374.0;
    /// Entries of an IOMMU's translation cache. Published: Neugebauer et al., SIGCOMM 2018, section
    /// 6.5, on Intel hosts.
    iotlb_entries: Assumed = 64.0;
    /// Time of a miss in it. Published there: 64 B reads take 330 ns longer.
    iotlb_walk_ns: Assumed = 330.0;
    /// Misses that are served at once. So many that 64 B reads lose the 70 % in large windows that
    /// the same paper states.
    iotlb_walkers: Fitted = 6.0;
    /// Pages over which a translated device's accesses are spread. Assumed: they fit.
    iommu_pages: Assumed = 64.0;
}

/// A parameter outside the model's range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{name}={}: must be from {least} to {most}", short(*.value))]
pub struct ParamError {
    name: &'static str,
    value: f64,
    least: f64,
    most: f64,
}

/// A number in so few digits that a line has room for it.
pub(super) fn short(value: f64) -> String {
    let text = value.to_string();
    if text.len() > 16 { format!("{value:e}") } else { text }
}

impl Params {
    /// Checks that each parameter lies in the model's range: times up to a second, bandwidths above
    /// zero, counts of at least one, sizes of TLPs and windows that exist.
    ///
    /// # Errors
    /// The first parameter that does not.
    pub fn check(&self) -> Result<(), ParamError> {
        let mut all = self.clone();
        for &name in Self::NAMES {
            let value = all.get_mut(name).map_or(f64::NAN, |value| *value);
            let (least, most) = Self::range(name);
            if !(least..=most).contains(&value) {
                return Err(ParamError { name, value, least, most });
            }
        }
        Ok(())
    }

    /// Whether a parameter counts things: then it is a whole number.
    pub fn is_count(name: &str) -> bool {
        matches!(
            name,
            "blocks"
                | "nic_tags"
                | "copy_tags"
                | "iotlb_entries"
                | "iotlb_walkers"
                | "staged_ends"
                | "engines_in_turn"
        )
    }

    /// Least and greatest value of a parameter.
    pub fn range(name: &str) -> (f64, f64) {
        match name {
            "store_tlp_bytes" => (4.0, 4096.0),
            "inband_data_bytes" => (1.0, 64.0),
            "dllp_bytes" => (0.0, 64.0),
            "window_kib" | "segment_kib" => (8.0, 1048576.0),
            "staged_ends" => (1.0, 2.0),
            "engines_in_turn" => (0.0, 1.0),
            "credit_tlps" => (2.0, 1e6),
            "iotlb_entries" | "iommu_pages" => (1.0, 1e6),
            "iotlb_walkers" => (1.0, 4096.0),
            "blocks" | "nic_tags" | "copy_tags" | "sm_read_lines" => (1.0, 1e5),
            _ if name.ends_with("_gb_per_s") => (0.001, 1e6),
            "warp_store_ns" => (0.001, 1e9),
            _ => (0.0, 1e9),
        }
    }

    /// A copy with one parameter scaled; `None` for an unknown name.
    pub fn scaled(&self, name: &str, factor: f64) -> Option<Self> {
        let mut scaled = self.clone();
        *scaled.get_mut(name)? *= factor;
        Some(scaled)
    }

    /// Store rate of one SM in whole lines, GB/s.
    pub fn sm_store_gb_per_s(&self) -> f64 {
        self.sm_port_gb_per_s * 128.0 / (128.0 + 32.0)
    }

    pub(super) fn ps(ns: f64) -> u64 {
        (ns.max(0.0) * 1000.0).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_are_shortened() {
        assert_eq!(short(12_345_678.125_012), "12345678.125012");
        assert_eq!(short(12_345_678.125_012_3), "12345678.1250123");
        assert_eq!(short(123_456_789.125_012_3), "1.234567891250123e8");
    }

    #[test]
    fn parameters_have_ranges() {
        assert_eq!(Params::default().check(), Ok(()));
        let error = Params { wire_gb_per_s: 0.0, ..Params::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "wire_gb_per_s=0: must be from 0.001 to 1000000");
        assert!(Params { staged_ends: 3.0, ..Params::default() }.check().is_err());
        assert!(Params { lap_ns: f64::NAN, ..Params::default() }.check().is_err());
    }

    #[test]
    fn counts_are_whole_and_times_are_not() {
        let counts = Params::NAMES.iter().copied().filter(|name| Params::is_count(name));
        let counts: Vec<&str> = counts.collect();
        let names = ["blocks", "nic_tags", "copy_tags", "engines_in_turn", "staged_ends"];
        assert_eq!(counts, [&names[..], &["iotlb_entries", "iotlb_walkers"]].concat());
    }
}
