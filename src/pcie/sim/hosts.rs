//! pcie-bench's two hosts: an NFP6000 (Gen3 x8, MPS 256) reading and writing host memory.
//!
//! Four numbers a host are calibrated, each on one stated row; every other row is predicted. No
//! rule looks at a request's size. Structure, none of it fitted: link bandwidth with the DLLP tax
//! of pcie-bench's model; RCB 64; a completer whose pieces join while they wait for the link
//! ([`ChannelSpec::joins`]); a device that stages a whole operation in internal memory before it
//! reports it done, at the link's raw rate (pcie-bench, section 6: the NFP's DMA engines work
//! on internal memory, from which data are copied on).

use super::{ChannelSpec, Completer, EndpointSpec, Load, Program, Ps, Sim, SimError, Step, Until};
use crate::pcie::tlp::Config;

/// Read requests that the device may have outstanding: PCIe's default of 5 tag bits.
const TAGS: u32 = 32;
/// Operations that the benchmark keeps in flight.
const WINDOW: u32 = 64;

/// The numbers calibrated for a host, and what is configured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NfpHost {
    /// Name.
    pub name: &'static str,
    /// MRRS, configured.
    pub mrrs_bytes: u32,
    /// Calibrated on the 64 B read latency: request to first completion inside the host, ns.
    pub completer_ns: f64,
    /// Calibrated on the 64 B read bandwidth: staging of one operation beside its data, ns.
    pub staging_ns: f64,
    /// Calibrated on the 64 B write bandwidth: time between two write operations, ns.
    pub write_issue_ns: f64,
    /// Calibrated on the 64 B write-then-read latency: enqueueing a DMA operation, ns.
    pub enqueue_ns: f64,
}

impl NfpHost {
    /// Ivy Bridge E5-2620v2.
    pub const IVY_BRIDGE: Self = Self {
        name: "Ivy Bridge",
        mrrs_bytes: 512,
        completer_ns: 316.0,
        staging_ns: 7.9,
        write_issue_ns: 21.1,
        enqueue_ns: 204.9,
    };
    /// Broadwell E5-2630v4.
    pub const BROADWELL: Self = Self {
        name: "Broadwell",
        mrrs_bytes: 4096,
        completer_ns: 301.0,
        staging_ns: 7.9,
        write_issue_ns: 21.1,
        enqueue_ns: 205.9,
    };
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Read bandwidth, Gb/s.
    ReadGbps,
    /// Write bandwidth, Gb/s.
    WriteGbps,
    /// Median read latency, ns.
    ReadNs,
    /// Write, then read of the same address, ns.
    WriteReadNs,
}

/// One published row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostRow {
    /// What.
    pub metric: Metric,
    /// Size.
    pub bytes: u32,
    /// Ivy Bridge.
    pub ivy_bridge: f64,
    /// Broadwell.
    pub broadwell: f64,
    /// Calibrated on, so no prediction.
    pub fitted: bool,
}

const fn row(metric: Metric, bytes: u32, ivy_bridge: f64, broadwell: f64, fitted: bool) -> HostRow {
    HostRow { metric, bytes, ivy_bridge, broadwell, fitted }
}

/// pcie-bench/data, NFP6000, host-warm 8 KiB, memory on the device's own socket.
pub const HOST_ROWS: [HostRow; 11] = [
    row(Metric::ReadGbps, 64, 31.93, 31.91, true),
    row(Metric::ReadGbps, 128, 43.32, 43.77, false),
    row(Metric::ReadGbps, 256, 47.49, 47.67, false),
    row(Metric::ReadGbps, 512, 55.36, 55.03, false),
    row(Metric::WriteGbps, 64, 24.27, 24.27, true),
    row(Metric::WriteGbps, 256, 50.55, 50.49, false),
    row(Metric::WriteGbps, 512, 54.45, 53.01, false),
    row(Metric::ReadNs, 64, 560.0, 546.0, true),
    row(Metric::ReadNs, 512, 706.0, 706.0, false),
    row(Metric::ReadNs, 2048, 1146.0, 1133.0, false),
    row(Metric::WriteReadNs, 64, 786.0, 773.0, true),
];

fn ps(ns: f64) -> Ps {
    (ns * 1000.0).round() as Ps
}

/// Simulates one row.
pub fn simulate_host_row(host: &NfpHost, metric: Metric, bytes: u32) -> Result<f64, SimError> {
    let config = Config::pcie_bench();
    let overhead = config.overhead();
    let raw_gbps = config.link.raw_gbps();
    let gbps = config.tlp_gbps(true).unwrap_or(raw_gbps);
    let mut sim = Sim::new(1);
    let (device, host_node) = (sim.add_node(), sim.add_node());
    let link = ChannelSpec {
        overhead_bytes: [overhead.mwr_bytes, overhead.mrd_bytes, overhead.cpld_bytes],
        unit_bytes: 4,
        mps_bytes: config.mps.bytes(),
        // The published tax stands for all DLLPs here.
        ..ChannelSpec::internal(gbps / 8.0, 0)
    };
    sim.add_channel(device, host_node, link);
    sim.add_channel(host_node, device, ChannelSpec { joins: true, ..link });
    let completer = Completer {
        latency_ps: ps(host.completer_ns),
        // Lines leave the memory side no faster than the link's raw rate takes them.
        piece_ps: ps(64.0 * 8.0 / raw_gbps),
        rcb_bytes: config.rcb.bytes(),
    };
    let endpoint = EndpointSpec { tags: TAGS, completer, relaxed: false, host_side: true };
    let nfp = sim.add_endpoint(device, endpoint);
    let memory = sim.add_endpoint(host_node, endpoint);
    let (staging, issue) = (sim.add_server(), sim.add_server());

    let mut p = Program::new(u64::from(bytes));
    let mut after = p.task(Step::Delay { ps: ps(host.enqueue_ns) }, &[]);
    if matches!(metric, Metric::WriteGbps | Metric::WriteReadNs) {
        after = p.task(Step::Serve { server: issue, ps: ps(host.write_issue_ns) }, &[after]);
        let write = Step::Write {
            from: nfp,
            to: memory,
            bytes,
            addr: 0,
            tlp_bytes: config.mps.bytes(),
            until: if metric == Metric::WriteGbps { Until::Visible } else { Until::Sent },
        };
        after = p.task(write, &[after]);
    }
    if metric == Metric::WriteReadNs {
        after = p.task(Step::Delay { ps: ps(host.enqueue_ns) }, &[after]);
    }
    if metric != Metric::WriteGbps {
        let request_bytes = host.mrrs_bytes;
        let read = Step::Read { by: nfp, at: memory, bytes, addr: 0, request_bytes };
        after = p.task(read, &[after]);
        let data_ns = f64::from(bytes) * 8.0 / raw_gbps;
        p.task(Step::Serve { server: staging, ps: ps(host.staging_ns + data_ns) }, &[after]);
    }
    let latency = matches!(metric, Metric::ReadNs | Metric::WriteReadNs);
    let (window, count) = if latency { (1, 16) } else { (WINDOW, 20_000) };
    let results = sim.run(vec![Load { program: p, window, count }])?;
    Ok(if latency { results[0].median_ns() } else { results[0].gb_per_s() * 8.0 })
}

/// Rows that stay outside 5 %, and why we think they do.
pub const HOST_RESIDUALS: [(Metric, u32, &str); 1] = [(
    Metric::ReadGbps,
    256,
    "Both hosts give 47.5 to 47.7 Gb/s, which is what completions cut at 64 B allow (48.0 before \
     any tax); the model joins waiting pieces and reaches the staging limit. Tried: lines that come \
     up to 60 ns late, so that fewer wait together (nothing changes at 256 B), and a lower tax \
     (right at 512 B, nothing changes at 256 B). Writes of 256 B fall short as well, by 4.7 %, and \
     on the link two of them are one of 512 B: so part of the cause lies in the device, between \
     operations. Not modelled.",
)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_within_five_percent_except_the_named_residuals() {
        for host in [NfpHost::IVY_BRIDGE, NfpHost::BROADWELL] {
            for r in HOST_ROWS {
                let ivy = host.name == "Ivy Bridge";
                let want = if ivy { r.ivy_bridge } else { r.broadwell };
                let got = simulate_host_row(&host, r.metric, r.bytes).unwrap();
                let error = got / want - 1.0;
                let kind = if r.fitted { "fitted" } else { "predicted" };
                println!(
                    "{} {:?} {} B: {want} measured, {got:.2} {kind}, {:+.1} %",
                    host.name,
                    r.metric,
                    r.bytes,
                    error * 100.0
                );
                let residual =
                    HOST_RESIDUALS.iter().any(|(m, b, _)| *m == r.metric && *b == r.bytes);
                let limit = match (r.fitted, residual) {
                    (true, _) => 0.005,
                    (false, true) => 0.08,
                    (false, false) => 0.05,
                };
                assert!(error.abs() <= limit, "{} {:?} {}: {error}", host.name, r.metric, r.bytes);
                // A residual that shrank must leave the list.
                assert!(!residual || error.abs() > 0.05);
            }
        }
    }

    #[test]
    fn without_joining_large_reads_miss() {
        // Negative control: completions always cut at 64 B cannot reach the measured 512 B row.
        let config = Config::pcie_bench();
        let cut = config.effective(0, 512, false).unwrap().read_rcb;
        assert!(cut < 0.95 * 53.01);
    }
}
