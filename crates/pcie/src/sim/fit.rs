//! What the fits are worth: every row's error when it is left out of them, and when its whole
//! machine is.
//!
//! The numbers in use were fitted by hand, each to one row. Here a group's numbers are fitted to
//! all rows of the group together, by the least sum of squared logarithms of model over measured;
//! then to all but one row, and to all but one machine's. A row that is left out is predicted by
//! the others. What no other row determines has no such error, and is said so.

use std::collections::HashMap;
use std::sync::Mutex;

use super::copy_sim::simulate_with_own_limits;
use super::hosts::simulate_some;
use super::parallel::in_parallel;
use super::peers::simulate_peer_with_own_limits;
use super::{
    Curve, H200_CURVES, H200_HOPS, H200_THREADS, HOST_ROWS, HopPath, IOMMU_ROWS, IOMMU_WINDOWS_KIB,
    IotlbSpec, Metric, NfpDevice, NfpHost, PEER_ROWS, Params, SimError, Standing, Traffic,
    copy_rows, iommu_row_is_fitted, simulate_copy_row, simulate_curve, simulate_hop,
    simulate_peer_row,
};

/// Passes over a group's numbers.
const PASSES: usize = 2;
/// Steps of the search for one number, from half of its present value to twice that.
const STEPS: usize = 12;
/// A number is determined where moving it changes the sum of squares by this or more.
const DETERMINED: f64 = 1e-6;
/// Operations for a rate: a twentieth of what rows are published with.
const RATE_RUNS: u64 = 1_000;

/// Numbers that are fitted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Group {
    /// The NFP6000's four numbers, and the completer's latency of each host.
    Nfp,
    /// An SM's port and outstanding lines.
    H200,
    /// Walks at once behind an IOMMU.
    Iommu,
    /// Limits of root complexes by the family of their CPU.
    Roots,
}

/// A row, and what the model says of it without having seen it.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LeftOut {
    /// The numbers that were fitted.
    pub group: Group,
    /// Machine.
    pub machine: String,
    /// Row.
    pub row: String,
    /// Measured, in the row's unit.
    pub measured: f64,
    /// The model with the numbers in use.
    pub in_use: f64,
    /// Fitted to all rows of the group.
    pub with_all: f64,
    /// Fitted to all rows but this one; `None` where no other row determines a number of this one.
    pub without_row: Option<f64>,
    /// Fitted to the rows of other machines; `None` where there are none.
    pub without_machine: Option<f64>,
}

#[derive(Debug, Clone)]
struct Row {
    machine: &'static str,
    name: String,
    measured: f64,
    /// Places of the numbers that it hangs on.
    knobs: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Number {
    value: f64,
    whole: bool,
    /// The machine whose number it is; empty: of all. Of a machine that is left out it is that of
    /// the next machine.
    machine: &'static str,
}

type Model<'a> = &'a (dyn Fn(&[f64], usize) -> Result<f64, SimError> + Sync);

struct Fits<'a> {
    group: Group,
    numbers: Vec<Number>,
    rows: Vec<Row>,
    model: Model<'a>,
    known: Mutex<HashMap<(usize, Vec<u64>), f64>>,
}

impl<'a> Fits<'a> {
    fn new(group: Group, numbers: Vec<Number>, rows: Vec<Row>, model: Model<'a>) -> Self {
        Self { group, numbers, rows, model, known: Mutex::default() }
    }

    fn start(&self) -> Vec<f64> {
        self.numbers.iter().map(|n| n.value).collect()
    }

    fn model(&self, at: &[f64], row: usize) -> Result<f64, SimError> {
        let key = (row, self.rows[row].knobs.iter().map(|&k| at[k].to_bits()).collect());
        let lock = || self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(&known) = lock().get(&key) {
            return Ok(known);
        }
        let value = (self.model)(at, row)?;
        lock().insert(key, value);
        Ok(value)
    }

    /// Sum of squares over the rows that hang on a number.
    fn squares(&self, at: &[f64], knob: usize, rows: &[usize]) -> Result<f64, SimError> {
        let mut sum = 0.0;
        for &row in rows.iter().filter(|&&r| self.rows[r].knobs.contains(&knob)) {
            sum += (self.model(at, row)? / self.rows[row].measured).ln().powi(2);
        }
        Ok(sum)
    }

    /// Moves one number to where the sum is least; `false` where the rows do not determine it.
    fn search(&self, at: &mut [f64], knob: usize, rows: &[usize]) -> Result<bool, SimError> {
        let start = at[knob];
        let mut try_at = |value: f64| {
            at[knob] = value;
            self.squares(at, knob, rows)
        };
        let (mut low, mut high) = (start / 2.0, start * 2.0);
        let (mut best, mut least) = (start, try_at(start)?);
        let edges = [try_at(low.round().max(1.0))?, try_at(high.round())?];
        let determined = edges.iter().any(|e| (e - least).abs() > DETERMINED);
        let mut take = |value: f64, sum: f64| {
            if sum < least {
                (best, least) = (value, sum);
            }
        };
        if determined && self.numbers[knob].whole {
            for value in (low as u32).max(1)..=high as u32 {
                take(f64::from(value), try_at(f64::from(value))?);
            }
        } else if determined {
            // Golden section.
            let golden = (5f64.sqrt() - 1.0) / 2.0;
            for _ in 0..STEPS {
                let (a, b) = (high - golden * (high - low), low + golden * (high - low));
                let sums = [try_at(a)?, try_at(b)?];
                take(a, sums[0]);
                take(b, sums[1]);
                if sums[0] < sums[1] { high = b } else { low = a }
            }
        }
        at[knob] = best;
        Ok(determined)
    }

    /// The numbers that fit these rows best, and whether they determine each.
    fn fit(&self, rows: &[usize]) -> Result<(Vec<f64>, Vec<bool>), SimError> {
        let mut at = self.start();
        let mut determined = vec![false; at.len()];
        for _ in 0..PASSES {
            for (knob, known) in determined.iter_mut().enumerate() {
                *known = self.search(&mut at, knob, rows)?;
            }
        }
        Ok((at, determined))
    }

    /// Numbers of one machine taken for another's.
    fn lend(&self, at: &mut [f64], to: &str, determined: &[bool]) -> bool {
        let own = self.numbers.iter().position(|n| n.machine == to);
        let Some(own) = own else { return true };
        let other =
            |(k, n): &(usize, &Number)| !n.machine.is_empty() && n.machine != to && determined[*k];
        let Some((other, _)) = self.numbers.iter().enumerate().find(other) else { return false };
        at[own] = at[other];
        true
    }

    fn left_out(&self, row: usize, all: &[f64]) -> Result<LeftOut, SimError> {
        let r = &self.rows[row];
        let others = |keep: &dyn Fn(usize) -> bool| -> Vec<usize> {
            (0..self.rows.len()).filter(|&i| keep(i)).collect()
        };
        let (at, determined) = self.fit(&others(&|i| i != row))?;
        let known = r.knobs.iter().all(|&k| determined[k]);
        let without_row = known.then(|| self.model(&at, row)).transpose()?;
        let others = others(&|i| self.rows[i].machine != r.machine);
        let mut without_machine = None;
        if !others.is_empty() {
            let (mut at, determined) = self.fit(&others)?;
            let shared = |k: &&usize| self.numbers[**k].machine.is_empty();
            let known = r.knobs.iter().filter(shared).all(|&k| determined[k]);
            if known && self.lend(&mut at, r.machine, &determined) {
                without_machine = Some(self.model(&at, row)?);
            }
        }
        Ok(LeftOut {
            group: self.group,
            machine: r.machine.to_owned(),
            row: r.name.clone(),
            measured: r.measured,
            in_use: self.model(&self.start(), row)?,
            with_all: self.model(all, row)?,
            without_row,
            without_machine,
        })
    }

    fn run(&self) -> Result<Vec<LeftOut>, SimError> {
        let all: Vec<usize> = (0..self.rows.len()).collect();
        let (with_all, _) = self.fit(&all)?;
        let rows = in_parallel(self.rows.len(), |row| self.left_out(row, &with_all));
        rows.into_iter().collect()
    }
}

const fn number(value: f64, whole: bool, machine: &'static str) -> Number {
    Number { value, whole, machine }
}

fn nfp() -> Result<Vec<LeftOut>, SimError> {
    const HOSTS: [NfpHost; 2] = [NfpHost::IVY_BRIDGE, NfpHost::BROADWELL];
    const DEVICE: NfpDevice = NfpDevice::NFP6000;
    // tags, staging, issue of writes, enqueueing; completers.
    let mut numbers = vec![
        number(f64::from(DEVICE.tags), true, ""),
        number(DEVICE.staging_ns, false, ""),
        number(DEVICE.write_issue_ns, false, ""),
        number(DEVICE.enqueue_ns, false, ""),
    ];
    numbers.extend(HOSTS.map(|h| number(h.completer_ns, false, h.name)));
    let (mut rows, mut keys) = (Vec::new(), Vec::new());
    for (h, host) in HOSTS.iter().enumerate() {
        for r in HOST_ROWS {
            let (knobs, unit) = match r.metric {
                Metric::ReadGbps => (vec![0, 1, 4 + h], "read, Gb/s"),
                Metric::WriteGbps => (vec![2], "write, Gb/s"),
                Metric::ReadNs => (vec![1, 3, 4 + h], "read latency, ns"),
                Metric::WriteReadNs => (vec![1, 2, 3, 4 + h], "write then read, ns"),
            };
            let name = format!("{unit}, {} B", r.bytes);
            rows.push(Row { machine: host.name, name, measured: r.of(host).0, knobs });
            keys.push((h, (r.metric, r.bytes)));
        }
    }
    let model = |at: &[f64], row: usize| {
        let (h, what) = keys[row];
        let device = NfpDevice {
            tags: at[0] as u32,
            staging_ns: at[1],
            write_issue_ns: at[2],
            enqueue_ns: at[3],
            ..DEVICE
        };
        let host = NfpHost { completer_ns: at[4 + h], ..HOSTS[h] };
        simulate_some(&device, &host, what, None, RATE_RUNS)
    };
    Fits::new(Group::Nfp, numbers, rows, &model).run()
}

/// What `bellpush link` fitted to two other H200s (docs/results/link-h200.json): the first ones,
/// left out.
pub(super) const OTHER_H200: [(&str, f64); 13] = [
    ("sm_ns", 85.566),
    ("gpu_port_ns", 236.188),
    ("nvlink_ns", 333.048),
    ("sm_port_gb_per_s", 63.061),
    ("warp_store_ns", 19.185),
    ("lap_ns", 156.706),
    ("dram_ns", 107.787),
    ("sm_read_lines", 186.021),
    ("gpu_write_ns", 2.125),
    ("fence_idle_ns", 725.073),
    ("fence_gpu_ns", 428.794),
    ("fence_pcie_ns", 627.502),
    ("fence_nvlink_ns", 223.838),
];

/// The parameters without the H200s of the tables.
fn other_h200(params: &Params) -> Params {
    let mut other = params.clone();
    for (name, value) in OTHER_H200 {
        other.get_mut(name).into_iter().for_each(|own| *own = value);
    }
    other
}

/// Rows on which nothing was fitted, and what they are without their machine.
fn h200_predicted(params: &Params) -> Result<Vec<LeftOut>, SimError> {
    type Job = (String, f64, Box<dyn Fn(&Params) -> Result<f64, SimError> + Sync>);
    let mut jobs: Vec<Job> = Vec::new();
    for (curve, threads, measured) in H200_THREADS {
        let name = format!("{curve:?}, 1 block of {threads} threads, GB/s");
        jobs.push((name, measured, Box::new(move |p| simulate_curve(p, curve, 1, threads))));
    }
    for r in H200_HOPS {
        for (path, measured) in [
            (HopPath::Push, Some(r.push_ns)),
            (HopPath::Pull, Some(r.pull_ns)),
            (HopPath::Inband, r.inband_ns),
        ] {
            let Some(measured) = measured else { continue };
            let hop = if r.pcie { "PCIe" } else { "NVLink" };
            let name = format!("{hop}, {path:?}, {} B, ns", r.bytes);
            let run = move |p: &Params| simulate_hop(p, path, r.bytes, r.pcie);
            jobs.push((name, measured, Box::new(run)));
        }
    }
    let other = other_h200(params);
    let rows = in_parallel(jobs.len(), |i| {
        let (row, measured, run) = &jobs[i];
        let in_use = run(params)?;
        Ok(LeftOut {
            group: Group::H200,
            machine: "H200".to_owned(),
            row: row.clone(),
            measured: *measured,
            in_use,
            with_all: in_use,
            without_row: Some(in_use),
            without_machine: Some(run(&other)?),
        })
    });
    rows.into_iter().collect()
}

/// Rows of one block and of four: those of more blocks are the links' and hang on neither number.
fn h200(params: &Params) -> Result<Vec<LeftOut>, SimError> {
    let numbers =
        vec![number(params.sm_port_gb_per_s, false, ""), number(params.sm_read_lines, false, "")];
    let few: Vec<_> = H200_CURVES.into_iter().filter(|r| r.blocks <= 4).collect();
    let row = |r: &super::CurveRow| {
        let (knob, what) = match r.curve {
            Curve::HostStore => (0, "stores to host"),
            Curve::PeerStore => (0, "stores to peer"),
            Curve::HostLoad => (1, "loads from host"),
            Curve::PeerLoad => (1, "loads from peer"),
        };
        let name = format!("{what}, {} blocks, GB/s", r.blocks);
        Row { machine: "H200", name, measured: r.gb_per_s, knobs: vec![knob] }
    };
    let rows = few.iter().map(row).collect();
    let model = |at: &[f64], row: usize| {
        let p = Params { sm_port_gb_per_s: at[0], sm_read_lines: at[1], ..params.clone() };
        simulate_curve(&p, few[row].curve, few[row].blocks, 512)
    };
    let mut left = Fits::new(Group::H200, numbers, rows, &model).run()?;
    let other = other_h200(params);
    for (r, row) in left.iter_mut().zip(&few) {
        r.without_machine = Some(simulate_curve(&other, row.curve, row.blocks, 512)?);
    }
    left.extend(h200_predicted(params)?);
    Ok(left)
}

fn iommu(params: &Params) -> Result<Vec<LeftOut>, SimError> {
    let numbers = vec![number(params.iotlb_walkers, true, "")];
    let (mut rows, mut keys) = (Vec::new(), Vec::new());
    for (host, of_host) in IOMMU_ROWS {
        for &((metric, bytes, measured), window) in of_host
            .iter()
            .flat_map(|&(m, b, all)| {
                all.into_iter().zip(IOMMU_WINDOWS_KIB).map(move |(v, w)| ((m, b, v), w))
            })
            .filter(|&((m, b, _), w)| iommu_row_is_fitted((m, b), w))
            .collect::<Vec<_>>()
            .iter()
        {
            let name = format!("read, Gb/s, {bytes} B, window of {window} KiB");
            rows.push(Row { machine: host.name, name, measured, knobs: vec![0] });
            keys.push((host, (metric, bytes), window));
        }
    }
    let model = |at: &[f64], row: usize| {
        let (host, what, window) = keys[row];
        let p = Params { iotlb_walkers: at[0], ..params.clone() };
        let spec = IotlbSpec { pages: window / 4, ..IotlbSpec::of(&p) };
        simulate_some(&NfpDevice::NFP6000, &host, what, Some(spec), RATE_RUNS)
    };
    Fits::new(Group::Iommu, numbers, rows, &model).run()
}

/// Every row of the fitted groups with itself left out, and with its machine left out.
///
/// # Errors
/// As the simulation's.
pub fn leave_one_out(params: &Params) -> Result<Vec<LeftOut>, SimError> {
    Ok([nfp()?, h200(params)?, iommu(params)?, roots(params)?].concat())
}

/// Rows of machines whose root complexes were seen to limit peer traffic: with the limit of the CPU's
/// family, and with that of its other machines alone, without which there is none.
fn roots(params: &Params) -> Result<Vec<LeftOut>, SimError> {
    let mut all = Vec::new();
    for row in copy_rows() {
        let Some(in_use) = simulate_with_own_limits(params, row)? else { continue };
        all.push(LeftOut {
            group: Group::Roots,
            machine: row.machine.name.to_owned(),
            row: format!("{}, GB/s", row.what),
            measured: row.measured,
            in_use,
            with_all: in_use,
            without_row: None,
            without_machine: Some(simulate_copy_row(params, row)?),
        });
    }
    for row in &PEER_ROWS {
        let Some(in_use) = simulate_peer_with_own_limits(params, row)? else { continue };
        let what = match row.traffic {
            Traffic::Write => "one writes",
            Traffic::Read => "one reads",
            Traffic::BothWrite => "both write",
        };
        let is_far = row.standing == Standing::TwoSockets;
        let sockets = if is_far { "two sockets" } else { "one socket" };
        all.push(LeftOut {
            group: Group::Roots,
            machine: row.machine.to_owned(),
            row: format!("{what}, {sockets}, GB/s"),
            measured: row.gb_per_s,
            in_use,
            with_all: in_use,
            without_row: None,
            without_machine: Some(simulate_peer_row(params, row)?),
        });
    }
    Ok(all)
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
