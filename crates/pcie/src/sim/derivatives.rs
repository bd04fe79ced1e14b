//! What a row hangs on: the elasticity of every row that the model is compared with to latency,
//! outstanding reads and MPS. A row with none of a parameter that its hardware must have is hidden
//! behind something that was fitted.

use super::h200::curve_on;
use super::{CurveRow, HOST_ROWS, Metric, NfpDevice, NfpHost, Params, SimError, simulate_nfp};
use crate::topology::RawLink;

/// Relative change of a row for a relative change of a parameter: 1 is proportional, 0 is none.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Derivative {
    /// Table and row.
    pub row: String,
    /// Whether a number is calibrated on the row.
    pub fitted: bool,
    /// To the latency between requester and completer.
    pub latency: f64,
    /// To the reads that the requester has outstanding.
    pub tags: f64,
    /// To MPS, from 128 to 512 B.
    pub mps: f64,
}

/// Elasticity between two values of a parameter.
fn elasticity(at: [f64; 2], of: impl Fn(f64) -> Result<f64, SimError>) -> Result<f64, SimError> {
    let rows = [of(at[0])?, of(at[1])?];
    Ok((rows[1] / rows[0]).ln() / (at[1] / at[0]).ln())
}

/// A tenth down and up.
fn around(value: f64) -> [f64; 2] {
    [value * 0.9, value * 1.1]
}

/// Derivatives of pcie-bench's rows on Ivy Bridge and of some rows of the H200 curves.
///
/// # Errors
/// As the simulation's.
pub fn derivatives(params: &Params, curves: &[CurveRow]) -> Result<Vec<Derivative>, SimError> {
    let mut rows = Vec::new();
    let (device, host) = (NfpDevice::NFP6000, NfpHost::IVY_BRIDGE);
    for r in HOST_ROWS {
        let run = |d: &NfpDevice, h: &NfpHost| simulate_nfp(d, h, r.metric, r.bytes);
        let unit = match r.metric {
            Metric::ReadGbps => "read",
            Metric::WriteGbps => "write",
            Metric::ReadNs => "read latency",
            Metric::WriteReadNs => "write then read",
        };
        rows.push(Derivative {
            row: format!("{}, {unit}, {} B", host.name, r.bytes),
            fitted: r.of(&host).1,
            latency: elasticity(around(host.completer_ns), |completer_ns| {
                run(&device, &NfpHost { completer_ns, ..host })
            })?,
            tags: elasticity([19.0, 23.0], |tags| {
                run(&NfpDevice { tags: tags as u32, ..device }, &host)
            })?,
            mps: elasticity([128.0, 512.0], |mps| {
                run(&NfpDevice { mps_bytes: mps as u32, ..device }, &host)
            })?,
        });
    }
    for r in curves {
        let run = |p: &Params, mps| {
            let link = RawLink { mps, ..RawLink::new(5, 16) };
            curve_on(p, link, r.curve, r.blocks, 512)
        };
        rows.push(Derivative {
            row: format!("H200, {:?}, {} blocks", r.curve, r.blocks),
            fitted: r.fitted,
            latency: elasticity([0.9, 1.1], |factor| run(&farther(params, factor), 256))?,
            tags: elasticity([0.9, 1.1], |factor| {
                let lines = params.sm_read_lines * factor;
                run(&Params { sm_read_lines: lines, ..params.clone() }, 256)
            })?,
            mps: elasticity([128.0, 512.0], |mps| run(params, mps as u32))?,
        });
    }
    Ok(rows)
}

/// Parameters with all latencies between a GPU and host or peer memory scaled.
fn farther(p: &Params, factor: f64) -> Params {
    Params {
        gpu_port_ns: p.gpu_port_ns * factor,
        root_complex_ns: p.root_complex_ns * factor,
        mesh_ns: p.mesh_ns * factor,
        memory_ns: p.memory_ns * factor,
        sm_ns: p.sm_ns * factor,
        hbm_ns: p.hbm_ns * factor,
        nvlink_ns: p.nvlink_ns * factor,
        link_ns: p.link_ns * factor,
        ..p.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::H200_CURVES;

    #[test]
    fn rows_hang_on_what_their_hardware_has() {
        let few: Vec<CurveRow> = H200_CURVES.into_iter().filter(|r| r.blocks <= 4).collect();
        let rows = derivatives(&Params::default(), &few).unwrap();
        let row = |name: &str| {
            rows.iter().find(|r| r.row.ends_with(name)).unwrap_or_else(|| panic!("{name}"))
        };
        for r in &rows {
            println!("{:40} {:6.2} {:6.2} {:6.2} {}", r.row, r.latency, r.tags, r.mps, r.fitted);
        }
        // Small reads: outstanding reads over latency.
        for small in ["read, 64 B", "HostLoad, 1 blocks", "PeerLoad, 1 blocks"] {
            let r = row(small);
            assert!(r.fitted && r.latency < -0.6 && r.tags > 0.6, "{r:?}");
        }
        // Large ones: the link, so MPS; neither latency nor tags.
        for large in ["read, 512 B", "HostLoad, 4 blocks"] {
            let r = row(large);
            assert!(r.latency.abs() < 0.03 && r.tags.abs() < 0.03, "{r:?}");
        }
        assert!(row("read, 512 B").mps > 0.03, "{:?}", row("read, 512 B"));
        // Posted writes do not wait for their distance.
        for write in ["write, 64 B", "write, 512 B", "HostStore, 1 blocks", "HostStore, 4 blocks"] {
            let r = row(write);
            assert!(r.latency.abs() < 0.01 && r.tags.abs() < 0.01, "{r:?}");
        }
        assert!(row("write, 512 B").mps > 0.05 && row("write, 64 B").mps.abs() < 0.01);
        let latency = row("read latency, 64 B");
        assert!(latency.latency > 0.5 && latency.tags.abs() < 0.01, "{latency:?}");
    }
}
