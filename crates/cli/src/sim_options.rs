//! What `bellpush sim` is asked, and which of its options have a part in that.

use std::error::Error;

use bellpush::pcie::sim::{
    Axis, Cause, Compared, MOST_TRANSMISSIONS, Params, PathModel, Question, TestBedSpec,
    check_steps, has_part_in_flows, has_part_in_operation, has_part_in_rows, transmissions,
};
use bellpush::pcie::topology::{Kind, Knob, Topology};

use crate::cli::CliError;
use crate::flows;
use crate::sim::{SimArgs, params_of, pick};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The table of operations, which is the default.
    Sweep,
    Report,
    What,
    Losses,
    Sensitivity,
    Scale,
    Flows,
    Validate,
    LeaveOneOut,
    Derivatives,
}

/// Most steps of ranks of `--scale`: a minute of one core.
const MOST_STEPS: f64 = 4e10;
/// Most GPUs of `--scale`: one size on one topology takes that minute.
const MOST_GPUS: u32 = 1 << 16;
/// What `--scale` takes of each path: bytes, and operations in flight (`Cost::from_model`).
const SCALED: [(u32, u32); 2] = [(8, 16), (1 << 20, 8)];
const SCALED_PATHS: [PathModel; 4] =
    [PathModel::PushKernel, PathModel::PushInband, PathModel::Pull, PathModel::Staged];
/// What the window under the table of a sweep is found by.
const WINDOW: (PathModel, u32) = (PathModel::PushInband, 4096);

impl Mode {
    /// The option that asks it.
    const fn name(self) -> &'static str {
        match self {
            Self::Sweep => "the table of operations",
            Self::Report => "--report",
            Self::What => "--what",
            Self::Losses => "--losses",
            Self::Sensitivity => "--sensitivity",
            Self::Scale => "--scale",
            Self::Flows => "--flows",
            Self::Validate => "--validate",
            Self::LeaveOneOut => "--validate --leave-one-out",
            Self::Derivatives => "--derivatives",
        }
    }

    /// Whether it simulates operations between a GPU and a NIC.
    const fn has_operations(self) -> bool {
        matches!(
            self,
            Self::Sweep
                | Self::Report
                | Self::What
                | Self::Losses
                | Self::Sensitivity
                | Self::Scale
        )
    }

    /// What it simulates of each size that is asked for: paths, operations in flight, how often.
    fn simulates(self, paths: &[PathModel], in_flight: u32) -> Vec<(PathModel, u32, u32)> {
        use PathModel::{PushInband, PushKernel};
        let all = |of: &[PathModel], n, times| -> Vec<(PathModel, u32, u32)> {
            of.iter().map(|&path| (path, n, times)).collect()
        };
        match self {
            Self::Sweep | Self::Report => all(paths, in_flight, 1),
            // Alone and in flight. About a third loses, and is simulated without each cause.
            Self::Losses => {
                let times = 1 + Cause::ALL.len() as u32 / 3;
                [all(&PathModel::ALL, in_flight, times), all(&PathModel::ALL, 1, times)].concat()
            }
            // Two paths against pull, with each parameter down and up.
            Self::Sensitivity => {
                let times = 1 + 2 * Params::NAMES.len() as u32;
                [PushKernel, PushInband]
                    .into_iter()
                    .flat_map(|push| [(push, 1, times), (PathModel::Pull, 1, times)])
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    const fn rows(self) -> Option<Compared> {
        match self {
            Self::Validate => Some(Compared::All),
            Self::LeaveOneOut => Some(Compared::Fitted),
            Self::Derivatives => Some(Compared::Derivatives),
            _ => None,
        }
    }
}

impl SimArgs {
    /// What is asked.
    ///
    /// # Errors
    /// Two questions at once.
    pub fn mode(&self) -> std::result::Result<Mode, CliError> {
        let validate = if self.leave_one_out { Mode::LeaveOneOut } else { Mode::Validate };
        let all = [
            (self.report.is_some(), Mode::Report),
            // Beside --flows it asks of these.
            (self.what.is_some() && self.flows.is_empty(), Mode::What),
            (self.losses, Mode::Losses),
            (self.sensitivity, Mode::Sensitivity),
            (!self.scale.is_empty(), Mode::Scale),
            (!self.flows.is_empty(), Mode::Flows),
            (self.validate, validate),
            (self.derivatives, Mode::Derivatives),
        ];
        let mut asked = all.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, mode)| mode);
        let first = asked.next().unwrap_or(Mode::Sweep);
        match asked.next() {
            None => Ok(first),
            Some(second) => Err(CliError::new(
                format!("{} and {} are two questions", first.name(), second.name()),
                "ask one at a time",
            )),
        }
    }

    /// Refuses options that would change nothing: who gives one expects something of it.
    ///
    /// # Errors
    /// One line that names the option and what it is for.
    pub fn check_options(&self, mode: Mode) -> std::result::Result<(), CliError> {
        let operations = mode.has_operations();
        let by_path = matches!(mode, Mode::Sweep | Mode::Report | Mode::What);
        let in_flight = by_path || mode == Mode::Losses || self.message.is_some();
        let used = [
            (
                "--topology",
                !self.topology.is_empty(),
                mode.rows().is_none(),
                "operations and flows",
            ),
            ("--gpu", self.gpu.is_some(), operations, "operations"),
            ("--nic", self.nic.is_some(), operations, "operations"),
            (
                "--path",
                !self.path.is_empty(),
                by_path,
                "the table of operations, --what and --report",
            ),
            ("--sizes", !self.sizes.is_empty(), operations, "operations"),
            (
                "--in-flight",
                self.in_flight.is_some(),
                in_flight,
                "the table of operations, --what, --losses, --report and --flows with --message",
            ),
            ("--seed", self.seed.is_some(), operations, "operations"),
            ("--svg", self.svg.is_some(), mode == Mode::What, "the table of --what"),
        ];
        match used.iter().find(|(_, is_given, takes, _)| *is_given && !takes) {
            None => Ok(()),
            Some((name, .., of)) => {
                let what = format!("{name} is for {of} only");
                Err(CliError::new(what, format!("leave it out of {}", mode.name())))
            }
        }
    }

    /// Refuses more operations, or GPUs of --scale, than are simulated in a few minutes, and
    /// operations of too many steps.
    ///
    /// # Errors
    /// One line with both numbers; a device that a topology does not have.
    pub fn check_work(
        &self,
        mode: Mode,
        topologies: &[Topology],
        paths: &[PathModel],
        sizes: &[u32],
    ) -> Result<()> {
        if mode == Mode::Scale {
            let legal = |&&gpus: &&u32| {
                (2..=MOST_GPUS).contains(&gpus) && (gpus <= 8 || gpus.is_multiple_of(8))
            };
            if let Some(gpus) = self.scale.iter().find(|gpus| !legal(gpus)) {
                return Err(format!("--scale {gpus}: 2 to {MOST_GPUS}, in nodes of 8").into());
            }
            // A ring has twice as many steps as ranks, each of all ranks.
            let of_one = |&gpus: &u32| 2.0 * f64::from(gpus) * f64::from(gpus);
            let rings: f64 = self.scale.iter().map(of_one).sum();
            let times = topologies.len() * sizes.len() * SCALED_PATHS.len();
            let steps = rings * times as f64;
            if steps > MOST_STEPS {
                let what = format!("--scale: {steps:.1e} steps of ranks: at most {MOST_STEPS:e}");
                return Err(format!("{what}; fewer GPUs, sizes or topologies").into());
            }
        }
        let simulates = mode.simulates(paths, self.in_flight());
        let cases: Vec<(PathModel, u32)> = match mode {
            Mode::Scale => {
                let of = |path: PathModel| SCALED.map(|(bytes, _)| (path, bytes));
                SCALED_PATHS.into_iter().flat_map(of).collect()
            }
            _ => simulates
                .iter()
                .flat_map(|&(path, ..)| sizes.iter().map(move |&bytes| (path, bytes)))
                .collect(),
        };
        if cases.is_empty() {
            return Ok(());
        }
        let mut tlps = 0.0;
        for topology in topologies {
            let params = params_of(&self.parameters(), topology)?;
            let gpu = pick(topology, self.gpu.as_ref(), Kind::Gpu)?;
            let nic = pick(topology, self.nic.as_ref(), Kind::Nic)?;
            let spec = TestBedSpec { topology, gpu, nic, params: &params, seed: self.seed() };
            for &(path, bytes) in &cases {
                let checked = check_steps(spec, path, bytes);
                checked.map_err(|e| format!("{} of {bytes} B: {e}", path.name()))?;
            }
            for &(path, in_flight, times) in &simulates {
                let of = |&bytes: &u32| transmissions(spec, path, bytes, in_flight);
                tlps += f64::from(times) * sizes.iter().map(of).sum::<f64>();
            }
        }
        // Studies of all built-in topologies take some minutes, and may.
        let is_study = matches!(mode, Mode::Losses | Mode::Sensitivity);
        let most = if is_study { 4.0 * MOST_TRANSMISSIONS } else { MOST_TRANSMISSIONS };
        if tlps > most {
            return Err(format!(
                "{tlps:.1e} TLP transmissions to simulate: at most {most:e}; fewer \
                 topologies, paths, sizes or operations in flight, or larger TLPs"
            )
            .into());
        }
        Ok(())
    }

    /// Names of all that the command sets.
    fn set_names(&self) -> impl Iterator<Item = &str> {
        self.set.iter().filter_map(|set| set.split_once('=')).map(|set| set.0)
    }

    /// The `--set` of parameters.
    pub fn parameters(&self) -> Vec<String> {
        self.set.iter().filter(|set| knob_of(set).is_none()).cloned().collect()
    }

    /// The `--set` of numbers of the whole topology, as a question with one combination.
    ///
    /// # Errors
    /// One line that names the value and what is allowed.
    pub fn knobs(&self) -> Result<Option<Question>> {
        let sets: Vec<&str> =
            self.set.iter().filter(|set| knob_of(set).is_some()).map(String::as_str).collect();
        if sets.is_empty() {
            return Ok(None);
        }
        let question: Question = sets.join(",").parse().map_err(|e| format!("--set {e}"))?;
        match question.axes.iter().find(|axis| axis.values.len() > 1) {
            None => Ok(Some(question)),
            Some(axis) => {
                let what = format!("--set {}: one value at a time", axis.name);
                Err(CliError::new(what, "ask for several with --what").into())
            }
        }
    }

    /// A topology as `--set` has it, which its name says.
    ///
    /// # Errors
    /// A value that no topology can have.
    pub fn with(&self, knobs: &Question, topology: &Topology, params: &Params) -> Result<Topology> {
        let mut beds = knobs.beds(topology, params).map_err(|e| format!("--set {e}"))?;
        let mut set = beds.pop().map_or_else(|| topology.clone(), |(set, _)| set);
        let sets = self.set.iter().filter(|set| knob_of(set).is_some());
        let sets: Vec<&str> = sets.map(String::as_str).collect();
        set.name = format!("{} with {}", topology.name, sets.join(", "));
        Ok(set)
    }

    /// Refuses a `--set` of what has no part in the rows that the model is compared with.
    ///
    /// # Errors
    /// As [`SimArgs::check_options`].
    pub fn check_rows(&self, mode: Mode, params: &Params) -> Result<()> {
        let Some(rows) = mode.rows() else { return Ok(()) };
        for name in self.set_names() {
            if !has_part_in_rows(params, rows, name)? {
                let of = format!("the rows of {}", mode.name());
                return Err(Asked::Set(name).without_part(&of).into());
            }
        }
        Ok(())
    }

    /// Refuses a `--set`, or a parameter of `--what`, that has no part in anything that is
    /// simulated of these topologies.
    ///
    /// It is refused, and not told beside the results: the result says `set`, and who reads it
    /// there takes the numbers for those of that value. A value that has a part and moves nothing
    /// yet, such as a segment larger than the window, is let through: that is an answer. So is one
    /// that has a part in one of several topologies only.
    ///
    /// `--report` takes all: its page lists every parameter.
    ///
    /// # Errors
    /// As [`SimArgs::check_options`].
    pub fn check_sets(
        &self,
        mode: Mode,
        topologies: &[Topology],
        (paths, sizes): (&[PathModel], &[u32]),
        message_bytes: Option<u32>,
    ) -> Result<()> {
        if mode == Mode::Report {
            return Ok(());
        }
        let question: Option<Question> = match &self.what {
            Some(text) => Some(text.parse().map_err(|e| format!("--what {e}"))?),
            None => None,
        };
        let knobs = self.knobs()?;
        let has_part = |topology: &Topology, asked: Asked<'_>| -> Result<bool> {
            let params = params_of(&self.parameters(), topology)?;
            if mode == Mode::Flows {
                let (_, flows) = flows::parsed(topology, &self.flows)?;
                if flows.len() > flows::SIMULATED {
                    return Ok(match asked {
                        // Rates that are computed have no parameter.
                        Asked::Set(_) => false,
                        Asked::Knob(axis) | Asked::What(axis) => {
                            axis.has_part_in_computed(topology, &flows)
                        }
                    });
                }
                let beds = match &question {
                    Some(q) => q.beds(topology, &params).map_err(|e| format!("--what {e}"))?,
                    None => vec![(topology.clone(), params)],
                };
                return Ok(beds.iter().any(|(t, p)| match asked {
                    Asked::Set(name) => has_part_in_flows(t, p, &flows, message_bytes, name),
                    Asked::Knob(axis) | Asked::What(axis) => {
                        axis.has_part_in_flows((t, p), &flows, message_bytes)
                    }
                }));
            }
            let gpu = pick(topology, self.gpu.as_ref(), Kind::Gpu)?;
            let nic = pick(topology, self.nic.as_ref(), Kind::Nic)?;
            let spec = TestBedSpec { topology, gpu, nic, params: &params, seed: self.seed() };
            let operations = operations(mode, paths, sizes);
            let asks_knob = matches!(asked, Asked::Knob(_));
            let of_knobs = knobs.as_ref().filter(|_| question.is_none() && asks_knob);
            if let Some(question) = question.as_ref().or(of_knobs) {
                let all: Vec<(PathModel, u32)> =
                    operations.iter().map(|&(path, (bytes, _))| (path, bytes)).collect();
                let has_part = match asked {
                    Asked::Set(name) => question.has_part(spec, &all, self.in_flight(), name),
                    Asked::Knob(axis) | Asked::What(axis) => {
                        question.axis_has_part(spec, &all, self.in_flight(), axis)
                    }
                };
                return Ok(has_part.map_err(|e| format!("--what {e}"))?);
            }
            let has_part = |&(path, (bytes, in_flight)): &(PathModel, (u32, Option<u32>))| {
                let in_flight = in_flight.unwrap_or(self.in_flight());
                has_part_in_operation(spec, path, (bytes, in_flight), asked.name())
            };
            Ok(operations.iter().any(has_part))
        };
        let axes = question.iter().flat_map(|q| &q.axes).map(Asked::What);
        let parameters = self.parameters();
        let names = parameters.iter().filter_map(|set| set.split_once('='));
        let names = names.map(|(name, _)| Asked::Set(name));
        let set = knobs.iter().flat_map(|q| &q.axes).map(Asked::Knob);
        for asked in names.chain(set).chain(axes) {
            let mut in_any = false;
            for topology in topologies {
                in_any = in_any || has_part(topology, asked)?;
            }
            if !in_any {
                let of = match mode {
                    Mode::Flows => "these flows",
                    Mode::Scale => "the costs of --scale on these topologies",
                    _ => "these operations",
                };
                let has_switch = |t: &Topology| !t.of_kind(Kind::Switch).is_empty();
                if asked.name() == Knob::Acs.name() && !topologies.iter().any(has_switch) {
                    let why = "; a switch's ports redirect, and there is no switch";
                    return Err(asked.without_part_since(of, why).into());
                }
                return Err(asked.without_part(of).into());
            }
        }
        Ok(())
    }
}

/// A number that the command gives.
#[derive(Clone, Copy)]
pub enum Asked<'a> {
    /// A parameter of `--set`, by name.
    Set(&'a str),
    /// A number of the whole topology of `--set`.
    Knob(&'a Axis),
    /// A number of `--what`.
    What(&'a Axis),
}

/// The number of the whole topology that a `--set` is of.
fn knob_of(set: &str) -> Option<Knob> {
    let (name, _) = set.split_once('=')?;
    Knob::ALL.into_iter().find(|knob| knob.name() == name)
}

impl Asked<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Set(name) => name,
            Self::Knob(axis) | Self::What(axis) => &axis.name,
        }
    }

    /// Refuses a number that has no part in what is simulated.
    pub fn without_part(&self, of: &str) -> CliError {
        self.without_part_since(of, "")
    }

    /// The same, with a reason.
    fn without_part_since(&self, of: &str, why: &str) -> CliError {
        let (option, meaning) = match self {
            Self::Set(name) => {
                let knob = Knob::ALL.into_iter().find(|knob| knob.name() == *name);
                ("--set", knob.map_or_else(|| Params::meaning(name), Knob::meaning))
            }
            Self::Knob(axis) => ("--set", axis.meaning()),
            Self::What(axis) => ("--what", axis.meaning()),
        };
        let name = self.name();
        let what = format!("{option} {name}: no part in {of} ({name}: {meaning}{why})");
        CliError::new(what, "leave it out")
    }
}

/// Operations whose imprints tell: path, bytes, and in flight where the mode says how many.
fn operations(
    mode: Mode,
    paths: &[PathModel],
    sizes: &[u32],
) -> Vec<(PathModel, (u32, Option<u32>))> {
    let all = |paths: &[PathModel], sizes: &[(u32, Option<u32>)]| {
        let of = |&path: &PathModel| sizes.iter().map(move |&size| (path, size));
        paths.iter().flat_map(of).collect::<Vec<_>>()
    };
    let as_asked: Vec<_> = sizes.iter().map(|&bytes| (bytes, None)).collect();
    match mode {
        Mode::Scale => all(&SCALED_PATHS, &SCALED.map(|(bytes, n)| (bytes, Some(n)))),
        Mode::Sweep => [all(paths, &as_asked), vec![(WINDOW.0, (WINDOW.1, Some(1)))]].concat(),
        Mode::What => all(paths, &as_asked),
        _ => all(&PathModel::ALL, &as_asked),
    }
}
