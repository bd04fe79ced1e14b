//! The model's parameters, each with its source, so that a sensitivity run can move every one.

/// Declares the parameters once: field, default, meaning.
macro_rules! params {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:expr;)+) => {
        /// What the topology does not say. Latencies in ns, bandwidths in GB/s.
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

            /// The parameter of a name.
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
    link_ns = 5.0;
    /// Forwarding by a switch; vendors state 100 to 150. Uncertain.
    switch_ns = 110.0;
    /// Passing a root complex, either way. Uncertain.
    root_complex_ns = 130.0;
    /// Passing the mesh of a socket. Uncertain.
    mesh_ns = 60.0;
    /// Crossing between sockets beside the two meshes: pcie-bench's +106 ns a round trip.
    socket_hop_ns = 53.0;
    /// Reading host memory (last-level cache). With the above: a host word polled in 1000 ns.
    memory_ns = 80.0;
    /// What a line of host memory that lies in no cache takes beyond that, on average. `bellpush
    /// link`: what 64 B take longer so than where the GPU has just written them.
    dram_ns = 107.0;
    /// SM to L2, one way; with `hbm_ns`: a local word polled in 146 ns.
    sm_ns = 53.0;
    /// L2 and memory of a GPU, one way.
    hbm_ns = 20.0;
    /// GPU's PCIe port, one way. Calibrated on the host word polled in 1000 ns.
    gpu_port_ns = 210.0;
    /// Least time between two writes of a GPU over PCIe. Measured: 0.8 G a second of 8 B.
    gpu_write_ns = 1.25;
    /// The same of its read requests. Measured: 0.8 G transactions a second.
    gpu_read_ns = 1.25;
    /// One SM's way to L2: 32 B a cycle, and one such slot for each line's address. H200, one block
    /// to a peer over NVLink: 45.6 GB/s of whole lines, five slots each.
    sm_port_gb_per_s = 57.0;
    /// From one store instruction of a warp to its next. H200, one warp that stores 512 B at a time:
    /// 26.7 GB/s, whatever the target.
    warp_store_ns = 19.2;
    /// What a block does around its loads: addresses, sum, barrier. `bellpush link`: 64 B of its own
    /// memory loaded by a block take 157 ns longer than a word.
    lap_ns = 157.0;
    /// SMs (blocks) that push or copy.
    blocks = 4.0;
    /// TLP that an SM's stores become: a GPU's write granule.
    store_tlp_bytes = 128.0;
    /// Data in an in-band line of 64 B.
    inband_data_bytes = 60.0;
    /// Lines of 128 B that 16 warps of one SM have outstanding. Calibrated on the two one-block
    /// load rows together (20.0 GB/s from the host, 27.0 from a peer). The host's lies in DRAM, so
    /// that this number has in it what DRAM costs a stream.
    sm_read_lines = 164.0;
    /// A system-scope fence beyond the acknowledgement of the last PCIe write; 0 takes the fence
    /// away, wait and all. Calibrated: 1480 ns with stores to the host outstanding.
    fence_pcie_ns = 637.0;
    /// The same over NVLink. Calibrated: 933 ns with stores to a peer outstanding.
    fence_nvlink_ns = 230.0;
    /// System-scope fence with nothing outstanding. Measured.
    fence_idle_ns = 581.0;
    /// GPU-scope fence after a store to local memory. Measured.
    fence_gpu_ns = 269.0;
    /// Building and ringing, beside the fences: 331 ns floor less the fence.
    post_ns = 62.0;
    /// NVLink hop, one way: a peer word polled in 849 ns.
    nvlink_ns = 351.0;
    /// NVLink, 18 links, each way. Published.
    nvlink_gb_per_s = 450.0;
    /// A block that sees a flag: barrier, broadcast, branch. Calibrated: doorbell and completion
    /// alone take 2801 ns.
    handoff_ns = 535.0;
    /// NIC's PCIe port, one way. Uncertain.
    nic_port_ns = 100.0;
    /// NIC's work on one WQE. Uncertain.
    nic_process_ns = 200.0;
    /// NIC's check of in-band lines. Uncertain.
    nic_scan_ns = 50.0;
    /// NIC's window memory. Uncertain.
    nic_memory_gb_per_s = 100.0;
    /// Read requests a NIC has outstanding. Uncertain.
    nic_tags = 128.0;
    /// Window of NIC memory that a GPU may use. MEMIC is 128 to 256 KiB.
    window_kib = 256.0;
    /// What push/kernel sends behind one doorbell at most; a window's half if that is less.
    segment_kib = 128.0;
    /// Wire, one way, with its switch. Uncertain.
    wire_ns = 600.0;
    /// Wire bandwidth: 400 Gb/s.
    wire_gb_per_s = 50.0;
    /// CPU's reaction to a flag and its post, for `staged`. Uncertain.
    cpu_post_ns = 300.0;
    /// DLLPs (Acks, UpdateFCs) that the far end of a PCIe link sends back for each TLP: one of 8 B.
    dllp_bytes = 8.0;
    /// TLPs of MPS that a link's receiver holds for each class. Uncertain.
    credit_tlps = 128.0;
}

/// A parameter that the model can do nothing with.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{name}={value}: must be from {least} to {most}")]
pub struct ParamError {
    name: &'static str,
    value: f64,
    least: f64,
    most: f64,
}

impl Params {
    /// Whether each parameter lies where the model holds: times up to a second, bandwidths above
    /// zero, at least one of what is counted, TLPs and windows of sizes that there are.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), ParamError> {
        let mut all = self.clone();
        for &name in Self::NAMES {
            let value = all.get_mut(name).map_or(f64::NAN, |value| *value);
            let (least, most) = match name {
                "store_tlp_bytes" => (4.0, 4096.0),
                "inband_data_bytes" => (1.0, 64.0),
                "dllp_bytes" => (0.0, 64.0),
                "window_kib" | "segment_kib" => (8.0, 1048576.0),
                "credit_tlps" => (2.0, 1e6),
                "blocks" | "nic_tags" | "sm_read_lines" => (1.0, 1e5),
                _ if name.ends_with("_gb_per_s") => (0.001, 1e6),
                "warp_store_ns" => (0.001, 1e9),
                _ => (0.0, 1e9),
            };
            if !(least..=most).contains(&value) {
                return Err(ParamError { name, value, least, most });
            }
        }
        Ok(())
    }

    /// A copy with one parameter scaled.
    pub fn scaled(&self, name: &str, factor: f64) -> Option<Self> {
        let mut scaled = self.clone();
        *scaled.get_mut(name)? *= factor;
        Some(scaled)
    }

    /// What one SM stores in whole lines, GB/s.
    pub fn sm_store_gb_per_s(&self) -> f64 {
        self.sm_port_gb_per_s * 128.0 / (128.0 + 32.0)
    }

    pub(super) fn ps(ns: f64) -> u64 {
        (ns.max(0.0) * 1000.0).round() as u64
    }
}
