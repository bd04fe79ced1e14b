//! Fits parameters of the model to rows that `bellpush link` measured: each parameter to one row,
//! or to the difference of two rows.

use super::h200::LINE_BYTES;
use super::probe::{Access, Held, Machine, Pattern, Probe, Target, predict_probe};
use super::{Params, SimError};

/// Least upper bound of the search for a parameter, which may start at zero.
const LEAST_SEARCHED: f64 = 1000.0;

/// A parameter and the row that calibrates it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Name, as in [`Params::NAMES`].
    pub parameter: &'static str,
    /// The row.
    pub probe: Probe,
    /// Row that is subtracted first: the fit is then to the difference.
    pub less: Option<Probe>,
    /// Whether only a machine with a peer GPU has the row.
    pub peer: bool,
}

impl Calibration {
    /// What the model says of its row, less the row that is subtracted first.
    ///
    /// # Errors
    /// As [`predict_probe`].
    pub fn predict(&self, params: &Params, machine: Machine) -> Result<f64, SimError> {
        let base = self.less.map_or(Ok(0.0), |less| predict_probe(params, machine, less))?;
        Ok(predict_probe(params, machine, self.probe)? - base)
    }
}

const fn fit(parameter: &'static str, probe: Probe, peer: bool) -> Calibration {
    Calibration { parameter, probe, less: None, peer }
}

/// 8 B in every line: the highest rate of small TLPs that a GPU sends.
const SMALL: Pattern = Pattern {
    blocks: 64,
    threads: 512,
    access_bytes: 8,
    stride_bytes: LINE_BYTES,
    offset_bytes: 0,
};

/// The rows to which [`calibrate`] fits, in the order of the fits. Every other row is a prediction.
pub const CALIBRATION: [Calibration; 13] = [
    fit("sm_ns", Probe::Latency(Target::Local), false),
    fit("gpu_port_ns", Probe::Latency(Target::Host), false),
    fit("nvlink_ns", Probe::Latency(Target::Peer), true),
    fit(
        "sm_port_gb_per_s",
        Probe::Stream(Target::Peer, Access::Store, Pattern::dense(1, 512)),
        true,
    ),
    fit("warp_store_ns", Probe::Stream(Target::Peer, Access::Store, Pattern::dense(1, 32)), true),
    fit("lap_ns", Probe::Burst(Target::Local, Access::Load, 64), false),
    // The difference removes an error that DRAM does not cause: one block's loads from any memory
    // but its own take longer than the model predicts.
    Calibration {
        parameter: "dram_ns",
        probe: Probe::Burst(Target::Host, Access::Load, 64),
        less: Some(Probe::Page(Held::Device, 64)),
        peer: false,
    },
    fit("sm_read_lines", Probe::Stream(Target::Host, Access::Load, Pattern::dense(1, 512)), false),
    fit("gpu_write_ns", Probe::Stream(Target::Host, Access::Store, SMALL), false),
    fit("fence_idle_ns", Probe::FenceSystem(None), false),
    fit("fence_gpu_ns", Probe::FenceGpu(Target::Local), false),
    fit("fence_pcie_ns", Probe::FenceSystem(Some(Target::Host)), false),
    fit("fence_nvlink_ns", Probe::FenceSystem(Some(Target::Peer)), true),
];

fn searched(now: f64) -> (f64, f64) {
    (now / 64.0, (now * 4.0).max(LEAST_SEARCHED))
}

/// A parameter of [`CALIBRATION`] and its value, where that is one which [`calibrate`] can find.
///
/// # Errors
/// The reason why it is none, in one line.
pub fn fitted(name: &str, value: f64) -> Result<(&'static str, f64), String> {
    let known = CALIBRATION.iter().find(|c| c.parameter == name);
    let parameter =
        known.ok_or_else(|| format!("{name:?} is no parameter that is fitted"))?.parameter;
    let (least, most) = searched(Params::default().get(parameter).unwrap_or_default());
    if (least..=most).contains(&value) {
        return Ok((parameter, value));
    }
    Err(format!(
        "{parameter}: {value} is not from {least:.3} to {most:.0}, where fits are searched"
    ))
}

/// Fits the parameters of [`CALIBRATION`] to the measured rows. A parameter without a measured row
/// keeps its value. The search for a parameter runs from a 64th of its start value to four times
/// that value, or to 1,000 if that is more.
///
/// # Errors
/// As [`predict_probe`].
pub fn calibrate(
    start: &Params,
    machine: Machine,
    measured: impl Fn(Probe) -> Option<f64>,
) -> Result<Params, SimError> {
    let mut params = start.clone();
    for calibration in CALIBRATION {
        let Calibration { parameter, probe, less, .. } = calibration;
        let Some(mut want) = measured(probe) else { continue };
        if let Some(less) = less {
            let Some(base) = measured(less) else { continue };
            want -= base;
        }
        let at = |value: f64| -> Result<f64, SimError> {
            let mut params = params.clone();
            if let Some(p) = params.get_mut(parameter) {
                *p = value;
            }
            calibration.predict(&params, machine)
        };
        let now = params.get(parameter).expect("CALIBRATION names parameters");
        let (mut low, mut high) = searched(now);
        let rises = at(high)? > at(low)?;
        for _ in 0..14 {
            let middle = f64::midpoint(low, high);
            if (at(middle)? < want) == rises {
                low = middle;
            } else {
                high = middle;
            }
        }
        if let Some(p) = params.get_mut(parameter) {
            *p = f64::midpoint(low, high);
        }
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_recovers_what_was_changed() {
        let machine = Machine::default();
        let start = Params::default();
        let mut truth = start.clone();
        for (name, factor) in [
            ("sm_ns", 1.2),
            ("gpu_port_ns", 0.7),
            ("nvlink_ns", 1.3),
            ("sm_port_gb_per_s", 0.8),
            ("sm_read_lines", 1.25),
            ("gpu_write_ns", 1.5),
            ("fence_pcie_ns", 1.4),
        ] {
            *truth.get_mut(name).unwrap() *= factor;
        }
        let measured = |probe| Some(predict_probe(&truth, machine, probe).unwrap());
        let found = calibrate(&start, machine, measured).unwrap();
        for row in CALIBRATION {
            let (got, want) = (
                predict_probe(&found, machine, row.probe).unwrap(),
                predict_probe(&truth, machine, row.probe).unwrap(),
            );
            assert!((got / want - 1.0).abs() < 0.01, "{}: {got} {want}", row.parameter);
        }
        // And so a row that was not fitted is right as well; before it was not.
        let row = Probe::Burst(Target::Host, Access::Store, 64 << 10);
        let [was, is, want] =
            [&start, &found, &truth].map(|p| predict_probe(p, machine, row).unwrap());
        assert!(
            (is / want - 1.0).abs() < 0.02 && (was / want - 1.0).abs() > 0.03,
            "{was} {is} {want}"
        );
    }

    #[test]
    fn a_machine_without_peer_leaves_its_parameters() {
        let start = Params::default();
        let found = calibrate(&start, Machine::default(), |_| None).unwrap();
        assert_eq!(found, start);
    }

    #[test]
    fn a_fit_is_searched_up_to_four_times_the_start() {
        assert_eq!(searched(640.0), (10.0, 2560.0));
        assert_eq!(searched(64.0), (1.0, LEAST_SEARCHED));
    }
}
