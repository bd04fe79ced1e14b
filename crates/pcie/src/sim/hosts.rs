//! The two hosts of pcie-bench (Neugebauer et al., SIGCOMM 2018), whose NFP6000 (Gen3 x8, MPS 256)
//! reads and writes host memory.
//!
//! Four numbers of the device are calibrated, each on one row of Ivy Bridge. One number of each
//! host is calibrated on its 64 B read latency. Every other row is a prediction; on Broadwell these
//! are all rows but one. No rule depends on a request's size. The structure has no fitted part:
//! link bandwidth with the DLLP tax of pcie-bench's model; RCB 64; completions that join while they
//! wait for the link ([`ChannelSpec::joins`]); a device that stages a whole operation in internal
//! memory, at the link's raw rate, before it reports completion (pcie-bench, section 6: the NFP's
//! DMA engines work on internal memory, from which data are copied on).

use super::{
    ChannelSpec, Completer, EndpointSpec, IotlbSpec, Load, Program, Ps, Sim, SimError, Step, Until,
};
use crate::tlp::{Config, Tax};

/// Operations that the benchmark keeps in flight.
const WINDOW: u32 = 64;
/// Operations that are simulated for a rate.
const RATE_RUNS: u64 = 20_000;

/// The device of pcie-bench: numbers calibrated on rows of Ivy Bridge, and its configured MPS.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NfpDevice {
    /// Reads that its DMA engines have outstanding: calibrated on the 64 B read bandwidth.
    pub tags: u32,
    /// Time to stage one operation beside its data, ns: calibrated on the 128 B read bandwidth.
    pub staging_ns: f64,
    /// Time between two write operations, ns: calibrated on the 64 B write bandwidth.
    pub write_issue_ns: f64,
    /// Enqueueing a DMA operation, ns: calibrated on the 64 B write-then-read latency.
    pub enqueue_ns: f64,
    /// Configured MPS.
    pub mps_bytes: u32,
}

impl NfpDevice {
    /// The NFP6000.
    pub const NFP6000: Self =
        Self { tags: 21, staging_ns: 7.4, write_issue_ns: 21.1, enqueue_ns: 204.9, mps_bytes: 256 };
}

/// A host and the number that is calibrated for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NfpHost {
    /// Name.
    pub name: &'static str,
    /// Configured MRRS.
    pub mrrs_bytes: u32,
    /// Time from a request to its first completion inside the host, ns: calibrated on the 64 B read
    /// latency.
    pub completer_ns: f64,
}

impl NfpHost {
    /// Ivy Bridge E5-2620v2.
    pub const IVY_BRIDGE: Self = Self { name: "Ivy Bridge", mrrs_bytes: 512, completer_ns: 316.0 };
    /// Broadwell E5-2630v4.
    pub const BROADWELL: Self = Self { name: "Broadwell", mrrs_bytes: 4096, completer_ns: 302.0 };
}

/// The measured quantity.
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
    /// The quantity.
    pub metric: Metric,
    /// Transfer size, bytes.
    pub bytes: u32,
    /// Ivy Bridge.
    pub ivy_bridge: f64,
    /// Broadwell.
    pub broadwell: f64,
    /// Whether a number is calibrated on the row: on Ivy Bridge, on Broadwell.
    fitted: [bool; 2],
}

impl HostRow {
    /// The host's measured value, and whether a number is calibrated on it.
    pub fn of(&self, host: &NfpHost) -> (f64, bool) {
        if host.name == NfpHost::IVY_BRIDGE.name {
            (self.ivy_bridge, self.fitted[0])
        } else {
            (self.broadwell, self.fitted[1])
        }
    }
}

/// Neither host's row calibrates a number.
const NO: [bool; 2] = [false, false];
const DEVICE: [bool; 2] = [true, false];
const HOST: [bool; 2] = [true, true];

const fn row(
    metric: Metric,
    bytes: u32,
    ivy_bridge: f64,
    broadwell: f64,
    fitted: [bool; 2],
) -> HostRow {
    HostRow { metric, bytes, ivy_bridge, broadwell, fitted }
}

/// pcie-bench/data, NFP6000, host-warm 8 KiB, memory on the device's own socket.
pub const HOST_ROWS: [HostRow; 11] = [
    row(Metric::ReadGbps, 64, 31.93, 31.91, DEVICE),
    row(Metric::ReadGbps, 128, 43.32, 43.77, DEVICE),
    row(Metric::ReadGbps, 256, 47.49, 47.67, NO),
    row(Metric::ReadGbps, 512, 55.36, 55.03, NO),
    row(Metric::WriteGbps, 64, 24.27, 24.27, DEVICE),
    row(Metric::WriteGbps, 256, 50.55, 50.49, NO),
    row(Metric::WriteGbps, 512, 54.45, 53.01, NO),
    row(Metric::ReadNs, 64, 560.0, 546.0, HOST),
    row(Metric::ReadNs, 512, 706.0, 706.0, NO),
    row(Metric::ReadNs, 2048, 1146.0, 1133.0, NO),
    row(Metric::WriteReadNs, 64, 786.0, 773.0, DEVICE),
];

fn ps(ns: f64) -> Ps {
    (ns * 1000.0).round() as Ps
}

/// Simulates one row.
pub fn simulate_host_row(host: &NfpHost, metric: Metric, bytes: u32) -> Result<f64, SimError> {
    simulate_nfp(&NfpDevice::NFP6000, host, metric, bytes)
}

/// Simulates one row of another device.
pub fn simulate_nfp(
    device: &NfpDevice,
    host: &NfpHost,
    metric: Metric,
    bytes: u32,
) -> Result<f64, SimError> {
    simulate_translated(device, host, metric, bytes, None)
}

/// The same behind an IOMMU.
pub(super) fn simulate_translated(
    device: &NfpDevice,
    host: &NfpHost,
    metric: Metric,
    bytes: u32,
    iotlb: Option<IotlbSpec>,
) -> Result<f64, SimError> {
    simulate_some(device, host, (metric, bytes), iotlb, RATE_RUNS)
}

/// The same with so many operations for a rate.
pub(super) fn simulate_some(
    device: &NfpDevice,
    host: &NfpHost,
    (metric, bytes): (Metric, u32),
    iotlb: Option<IotlbSpec>,
    rate_runs: u64,
) -> Result<f64, SimError> {
    let config = Config::pcie_bench();
    let overhead = config.overhead();
    let raw_gbps = config.link.raw_gbps();
    let gbps = config.tlp_gbps(Tax::PcieBench).unwrap_or(raw_gbps);
    let mut sim = Sim::new(1);
    let (own, host_node) = (sim.add_node(), sim.add_node());
    let link = ChannelSpec {
        overhead_bytes: [overhead.mwr_bytes, overhead.mrd_bytes, overhead.cpld_bytes],
        unit_bytes: 4,
        mps_bytes: device.mps_bytes,
        // The published tax stands for all DLLPs.
        ..ChannelSpec::internal(gbps / 8.0, 0)
    };
    sim.add_channel(own, host_node, link);
    sim.add_channel(host_node, own, ChannelSpec { joins: true, ..link });
    let completer = Completer {
        latency_ps: ps(host.completer_ns),
        // The memory side delivers lines no faster than the link's raw rate.
        piece_ps: ps(64.0 * 8.0 / raw_gbps),
        rcb_bytes: config.rcb.bytes(),
        merges: false,
        // The simulated rows were measured on a warm cache.
        wait_ps: 0,
    };
    let endpoint = EndpointSpec { tags: device.tags, completer, host_side: true };
    let nfp = sim.add_endpoint(own, endpoint);
    let memory = sim.add_endpoint(host_node, endpoint);
    if let Some(spec) = iotlb {
        let iotlb = sim.add_iotlb(spec);
        sim.translate(nfp, iotlb);
    }
    let (staging, issue) = (sim.add_server(), sim.add_server());

    let mut p = Program::new(u64::from(bytes));
    let mut after = p.task(Step::Delay { ps: ps(device.enqueue_ns) }, &[]);
    if matches!(metric, Metric::WriteGbps | Metric::WriteReadNs) {
        after = p.task(Step::Serve { server: issue, ps: ps(device.write_issue_ns) }, &[after]);
        let write = Step::Write {
            from: nfp,
            to: memory,
            bytes,
            addr: 0,
            tlp_bytes: device.mps_bytes,
            until: if metric == Metric::WriteGbps { Until::Visible } else { Until::Sent },
        };
        after = p.task(write, &[after]);
    }
    if metric == Metric::WriteReadNs {
        after = p.task(Step::Delay { ps: ps(device.enqueue_ns) }, &[after]);
    }
    if metric != Metric::WriteGbps {
        let request_bytes = host.mrrs_bytes;
        let read = Step::Read { by: nfp, at: memory, bytes, addr: 0, request_bytes };
        after = p.task(read, &[after]);
        let data_ns = f64::from(bytes) * 8.0 / raw_gbps;
        p.task(Step::Serve { server: staging, ps: ps(device.staging_ns + data_ns) }, &[after]);
    }
    let latency = matches!(metric, Metric::ReadNs | Metric::WriteReadNs);
    let (window, count) = if latency { (1, 16) } else { (WINDOW, rate_runs) };
    let results = sim.run(vec![Load { program: p, window, count }])?;
    Ok(if latency { results[0].median_ns() } else { results[0].gb_per_s() * 8.0 })
}

/// A host on none of whose rates anything was fitted. Its completer's latency is that of its 64 B
/// read latency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostCheck {
    /// The host.
    pub host: NfpHost,
    /// Its rows: quantity, bytes, measured.
    pub rows: &'static [(Metric, u32, f64)],
}

impl HostCheck {
    /// Whether a row was known: how far 64 B reads from the other socket were missed by, for which the
    /// number of open reads was chosen; and what pcie-bench states beside the +106 ns of `socket_hop_ns`,
    /// that 512 B take 120 ns longer there (of Ivy Bridge) and that writes are as fast as on the own
    /// socket, of which [`HOST_ROWS`] has 64 and 512 B.
    pub fn is_known(&self, metric: Metric, bytes: u32) -> bool {
        let far = self.host.name.ends_with("other socket");
        let is_ivy_bridge = self.host.name.starts_with(NfpHost::IVY_BRIDGE.name);
        far && match (metric, bytes) {
            (Metric::ReadGbps, 64) | (Metric::WriteGbps, 64 | 512) => true,
            (Metric::ReadNs, 512) => is_ivy_bridge,
            _ => false,
        }
    }

    /// Why the error of a row exceeds 5 %, if it does.
    pub fn residual(&self, metric: Metric, bytes: u32) -> Option<&'static str> {
        let far = self.host.name.ends_with("other socket");
        match (metric, bytes) {
            (Metric::ReadGbps, 64 | 128 | 256) if self.host.name == CLIENT => Some(
                "The latency of single reads (1227 ns for 64 B) is not that under load: the rate would \
                 need 46 reads of that latency. Hypothesis: a client CPU that saves power between them.",
            ),
            (Metric::ReadGbps, 256) => Some(HOST_RESIDUALS[0].2),
            (Metric::ReadGbps, 128) if far => Some(
                "Tags and staging limit nearly alike here; both are regular in the model, so the slower \
                 one hides the other.",
            ),
            (Metric::WriteGbps, 128) => Some(
                "The device takes 3 ns longer for 128 B than for 64: one number stands for its issue of \
                 writes, fitted at 64 B.",
            ),
            _ => None,
        }
    }
}

const CLIENT: &str = "Haswell E3-1226 v3";

const fn host(name: &'static str, mrrs_bytes: u32, completer_ns: f64) -> NfpHost {
    NfpHost { name, mrrs_bytes, completer_ns }
}

/// pcie-bench/data, host-warm 8 KiB: hosts beside the two of [`HOST_ROWS`], and these with memory
/// on the other socket. Predicted before they were read: that the other socket's 64 B reads fall to
/// 24.2 and 24.9 Gb/s.
pub const HOST_CHECKS: [HostCheck; 6] = [
    HostCheck {
        host: host("Ivy Bridge, other socket", 512, 423.0),
        rows: &[
            (Metric::ReadGbps, 64, 24.72),
            (Metric::ReadGbps, 128, 40.78),
            (Metric::ReadGbps, 256, 45.18),
            (Metric::ReadGbps, 512, 55.34),
            (Metric::WriteGbps, 64, 24.27),
            (Metric::WriteGbps, 128, 42.40),
            (Metric::WriteGbps, 512, 54.45),
            (Metric::ReadNs, 512, 827.0),
            (Metric::ReadNs, 2048, 1253.0),
        ],
    },
    HostCheck {
        host: host("Broadwell, other socket", 4096, 408.0),
        rows: &[
            (Metric::ReadGbps, 64, 24.38),
            (Metric::ReadGbps, 128, 40.30),
            (Metric::ReadGbps, 256, 45.03),
            (Metric::ReadGbps, 512, 54.83),
            (Metric::WriteGbps, 64, 24.27),
            (Metric::WriteGbps, 128, 42.36),
            (Metric::WriteGbps, 512, 53.01),
            (Metric::ReadNs, 512, 800.0),
            (Metric::ReadNs, 2048, 1240.0),
        ],
    },
    HostCheck {
        host: host("Sandy Bridge E5-2630", 512, 316.0),
        rows: &[
            (Metric::ReadGbps, 64, 32.09),
            (Metric::ReadGbps, 128, 43.51),
            (Metric::ReadGbps, 256, 47.80),
            (Metric::ReadGbps, 512, 55.72),
            (Metric::ReadNs, 512, 707.0),
            (Metric::ReadNs, 2048, 1133.0),
        ],
    },
    HostCheck {
        host: host("Haswell E5-2620 v3", 512, 302.0),
        rows: &[
            (Metric::ReadGbps, 64, 32.02),
            (Metric::ReadGbps, 128, 43.73),
            (Metric::ReadGbps, 256, 47.78),
            (Metric::ReadGbps, 512, 55.04),
            (Metric::ReadNs, 512, 707.0),
            (Metric::ReadNs, 2048, 1133.0),
        ],
    },
    HostCheck {
        host: host("Haswell E5-2637 v3", 512, 356.0),
        rows: &[
            (Metric::ReadGbps, 64, 28.65),
            (Metric::ReadGbps, 128, 42.96),
            (Metric::ReadGbps, 256, 46.89),
            (Metric::ReadGbps, 512, 55.11),
            (Metric::ReadNs, 512, 747.0),
            (Metric::ReadNs, 2048, 1173.0),
        ],
    },
    HostCheck {
        host: host(CLIENT, 512, 983.0),
        rows: &[
            (Metric::ReadGbps, 64, 22.99),
            (Metric::ReadGbps, 128, 42.41),
            (Metric::ReadGbps, 256, 29.04),
            (Metric::ReadGbps, 512, 51.30),
            (Metric::ReadNs, 512, 1307.0),
            (Metric::ReadNs, 2048, 1733.0),
        ],
    },
];

/// Rows whose error exceeds 5 %, and the presumed reason.
pub const HOST_RESIDUALS: [(Metric, u32, &str); 1] = [(
    Metric::ReadGbps,
    256,
    "Hypothesis: at this size the lines of a read are not joined. 43.1 and 43.0 ns an operation are \
     four completions of 64 B at the link's raw rate (42.7), on Sandy Bridge and Haswell too (42.8, \
     43.7); reads of 512 B take 74.0, two completions and 5.6 %. Whether hosts join does not go with \
     the size: in the same data 257 B are faster than 256 on Broadwell (41.2 ns), and 1024 B slower \
     than two reads of 512 on Ivy Bridge (164.7). Tried, and no help: lines that come up to 60 ns \
     late, a lower tax, lines of several requests in turns (the device asks too slowly for two to be \
     open). What would decide: a count of completions, by an analyser or the root port's counters.",
)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_within_five_percent_except_the_named_residuals() {
        for host in [NfpHost::IVY_BRIDGE, NfpHost::BROADWELL] {
            for r in HOST_ROWS {
                let (want, fitted) = r.of(&host);
                let got = simulate_host_row(&host, r.metric, r.bytes).unwrap();
                let error = got / want - 1.0;
                let kind = if fitted { "fitted" } else { "predicted" };
                println!(
                    "{} {:?} {} B: {want} measured, {got:.2} {kind}, {:+.1} %",
                    host.name,
                    r.metric,
                    r.bytes,
                    error * 100.0
                );
                let residual =
                    HOST_RESIDUALS.iter().any(|(m, b, _)| *m == r.metric && *b == r.bytes);
                let limit = match (fitted, residual) {
                    // Tags are a whole number.
                    (true, _) if r.metric == Metric::ReadGbps => 0.01,
                    (true, _) => 0.005,
                    (false, true) => 0.085,
                    (false, false) => 0.05,
                };
                assert!(error.abs() <= limit, "{} {:?} {}: {error}", host.name, r.metric, r.bytes);
                // A residual that shrank must leave the list.
                assert!(!residual || error.abs() > 0.05);
            }
        }
    }

    #[test]
    fn reads_of_other_hosts_are_predicted() {
        let (mut near, mut all) = (0, 0);
        for check in HOST_CHECKS {
            for (metric, bytes, want) in check.rows {
                let got = simulate_host_row(&check.host, *metric, *bytes).unwrap();
                let error = got / want - 1.0;
                println!(
                    "{} {metric:?} {bytes}: {want}, {got:.2}, {:+.1} %",
                    check.host.name,
                    error * 100.0
                );
                let residual = check.residual(*metric, *bytes).is_some();
                all += 1;
                near += usize::from(error.abs() <= 0.05);
                // A residual that shrank must leave the list.
                let range = if residual { 0.05..0.55 } else { 0.0..0.05 };
                assert!(
                    range.contains(&error.abs()),
                    "{} {metric:?} {bytes}: {error}",
                    check.host.name
                );
            }
        }
        let results = include_str!("../../../../docs/results/pcie.md");
        let said = format!("| {all} rows, {near} within 5 %;");
        assert!(results.contains(&said), "docs/results/pcie.md does not say: {said}");
    }

    #[test]
    fn small_reads_slow_down_with_distance_as_little_says() {
        let far = NfpHost {
            completer_ns: NfpHost::IVY_BRIDGE.completer_ns + 106.0,
            ..NfpHost::IVY_BRIDGE
        };
        let rate = |host, bytes| simulate_host_row(host, Metric::ReadGbps, bytes).unwrap();
        let (near, gone) = (rate(&NfpHost::IVY_BRIDGE, 64), rate(&far, 64));
        // Tags are held for the completer's latency and 23 ns of wire.
        let want = (316.0 + 23.0) / (316.0 + 23.0 + 106.0);
        assert!((gone / near / want - 1.0).abs() < 0.01, "{near} {gone}");
        assert!((rate(&far, 512) / rate(&NfpHost::IVY_BRIDGE, 512) - 1.0).abs() < 0.005);
    }

    #[test]
    fn without_joining_large_reads_miss() {
        // Negative control: completions always cut at 64 B cannot reach the measured 512 B row.
        let config = Config::pcie_bench();
        let cut = config.effective(0, 512, Tax::None).unwrap().read_rcb;
        assert!(cut < 0.95 * 53.01);
    }

    /// Where the link is the limit, a part of a DW takes as long as a whole one.
    #[test]
    fn data_travel_in_dws() {
        let per_byte = |bytes: u32| {
            let (device, host) = (NfpDevice::NFP6000, NfpHost::IVY_BRIDGE);
            let what = (Metric::WriteGbps, bytes);
            simulate_some(&device, &host, what, None, 1000).unwrap() / f64::from(bytes)
        };
        assert!((per_byte(1021) / per_byte(1024) - 1.0).abs() < 1e-3);
    }

    /// What pcie-bench states of the other socket beside the 106 ns that the model has from it was known too.
    #[test]
    fn what_is_stated_of_the_other_socket_was_known() {
        let known = |host: &str| -> Vec<(Metric, u32)> {
            let check = HOST_CHECKS.iter().find(|check| check.host.name == host).unwrap();
            let rows = check.rows.iter().map(|&(metric, bytes, _)| (metric, bytes));
            rows.filter(|&(metric, bytes)| check.is_known(metric, bytes)).collect()
        };
        let rates = [(Metric::ReadGbps, 64), (Metric::WriteGbps, 64), (Metric::WriteGbps, 512)];
        assert_eq!(known("Broadwell, other socket"), rates);
        let [a, b, c] = rates;
        assert_eq!(known("Ivy Bridge, other socket"), [a, b, c, (Metric::ReadNs, 512)]);
        assert!(known("Haswell E5-2637 v3").is_empty());
    }
}
