//! What a row hangs on: the elasticity of every row that the model is compared with to latency,
//! outstanding reads and MPS. A row with none of a parameter that its hardware must have is hidden
//! behind something that was fitted.

use super::h200::curve_on;
use super::hosts::simulate_translated;
use super::{
    CurveRow, HOST_ROWS, IOMMU_ROWS, IOMMU_WINDOWS_KIB, IotlbSpec, Metric, NfpDevice, NfpHost,
    Params, Ps, SimError, iommu_row_is_fitted,
};
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

/// Derivatives of every row of pcie-bench on Ivy Bridge, of those on Broadwell and behind an IOMMU
/// to which a number was fitted, and of some rows of the H200 curves.
///
/// # Errors
/// As the simulation's.
pub fn derivatives(params: &Params, curves: &[CurveRow]) -> Result<Vec<Derivative>, SimError> {
    let mut rows = Vec::new();
    for host in [NfpHost::IVY_BRIDGE, NfpHost::BROADWELL] {
        for r in HOST_ROWS {
            let fitted = r.of(&host).1;
            if fitted || host.name == NfpHost::IVY_BRIDGE.name {
                rows.push(nfp_row(&host, (r.metric, r.bytes), fitted, None)?);
            }
        }
    }
    for (host, table) in IOMMU_ROWS {
        for &(metric, bytes, _) in table {
            for window in IOMMU_WINDOWS_KIB {
                if iommu_row_is_fitted((metric, bytes), window) {
                    let spec = IotlbSpec { pages: window / 4, ..IotlbSpec::of(params) };
                    rows.push(nfp_row(&host, (metric, bytes), true, Some(spec))?);
                }
            }
        }
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

/// A row of pcie-bench's device, behind an IOMMU if one is given.
fn nfp_row(
    host: &NfpHost,
    (metric, bytes): (Metric, u32),
    fitted: bool,
    iommu: Option<IotlbSpec>,
) -> Result<Derivative, SimError> {
    let device = NfpDevice::NFP6000;
    let run = |d: &NfpDevice, h: &NfpHost| simulate_translated(d, h, metric, bytes, iommu);
    // A translation that is not cached is part of the way.
    let farther = |factor: f64| {
        let host = NfpHost { completer_ns: host.completer_ns * factor, ..*host };
        let iommu = iommu.map(|spec| {
            let walk_ps = (spec.walk_ps as f64 * factor) as Ps;
            IotlbSpec { walk_ps, ..spec }
        });
        simulate_translated(&device, &host, metric, bytes, iommu)
    };
    let unit = match metric {
        Metric::ReadGbps => "read",
        Metric::WriteGbps => "write",
        Metric::ReadNs => "read latency",
        Metric::WriteReadNs => "write then read",
    };
    let window =
        iommu.map_or(String::new(), |spec| format!(" in {} MiB behind an IOMMU", spec.pages / 256));
    Ok(Derivative {
        row: format!("{}, {unit}, {bytes} B{window}", host.name),
        fitted,
        latency: elasticity([0.9, 1.1], farther)?,
        tags: elasticity([19.0, 23.0], |tags| {
            run(&NfpDevice { tags: tags as u32, ..device }, host)
        })?,
        mps: elasticity([128.0, 512.0], |mps| {
            run(&NfpDevice { mps_bytes: mps as u32, ..device }, host)
        })?,
    })
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
        let of = |host: &NfpHost| {
            let own = |r: &&Derivative| r.row.starts_with(host.name) && !r.row.contains("IOMMU");
            rows.iter().filter(own).count()
        };
        assert_eq!(of(&NfpHost::IVY_BRIDGE), HOST_ROWS.len());
        assert!(of(&NfpHost::BROADWELL) < HOST_ROWS.len());
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
        // Every row to which a number was fitted is there: four of the device, one of each host, one an IOMMU's
        // walkers on three hosts, and those of the H200.
        let fitted = rows.iter().filter(|r| r.fitted && !r.row.starts_with("H200")).count();
        assert_eq!(fitted, 9);
        // What an IOMMU misses waits for a walker, and not for a tag.
        let walks = row("Broadwell, read, 64 B in 64 MiB behind an IOMMU");
        assert!(walks.latency < -0.9 && walks.tags.abs() < 0.1, "{walks:?}");
        let latency = row("read latency, 64 B");
        assert!(latency.latency > 0.5 && latency.tags.abs() < 0.01, "{latency:?}");
    }

    /// Every latency between a GPU and the memories, and nothing else.
    #[test]
    fn farther_is_farther_on_each_way() {
        let near = Params::default();
        let far = farther(&near, 3.0);
        let ways = [
            "gpu_port_ns",
            "root_complex_ns",
            "mesh_ns",
            "memory_ns",
            "sm_ns",
            "hbm_ns",
            "nvlink_ns",
            "link_ns",
        ];
        for &name in Params::NAMES {
            let factor = if ways.contains(&name) { 3.0 } else { 1.0 };
            assert_eq!(far.get(name).unwrap(), near.get(name).unwrap() * factor, "{name}");
        }
    }
}
