//! Questions "what if": operations under every combination of some values of some numbers.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;

use thiserror::Error;

use super::ops::Operation;
use super::parallel::{in_order, in_parallel};
use super::params::short;
use super::part::{knob_has_part_in_computed, knob_has_part_in_flows};
use super::{
    Flow, Layout, MOST_TRANSMISSIONS, Params, PathModel, Prediction, SimError, SweepRow,
    TestBedSpec, has_part_in_flows, has_part_in_operation, knob_has_part_in_operation, sweep,
    transmissions,
};
use crate::topology::{Knob, Topology};

/// Most combinations of one question.
pub const MOST_COMBINATIONS: usize = 64;
/// Shorter names of parameters.
const SHORT: [(&str, &str); 2] = [("tags", "nic_tags"), ("window", "window_kib")];

/// Reason why a question was refused.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum WhatError {
    /// Not `name=values`.
    #[error("{0:?} is not name=values, such as mrrs=512..4096, acs=on|off or tags=64|128")]
    Form(String),
    /// A name that nothing has.
    #[error("{name:?}: no such number; there are {names}")]
    Unknown {
        /// The name.
        name: String,
        /// All that there are.
        names: String,
    },
    /// A name that stands twice.
    #[error("{0:?} stands twice")]
    Twice(String),
    /// A value that the number cannot have.
    #[error("{name}={value}: {reason}")]
    Value {
        /// The number's name.
        name: String,
        /// The value, as given.
        value: String,
        /// Why not.
        reason: String,
    },
    /// More combinations than one question may have.
    #[error("more than {MOST_COMBINATIONS} combinations")]
    TooMany,
    /// An operation that is not simulated.
    #[error("{} of {bytes} B: {source}", .path.name())]
    Operation {
        /// Its path.
        path: PathModel,
        /// Its size.
        bytes: u32,
        /// Why not.
        source: SimError,
    },
    /// More simulated transfers than one question may have.
    #[error(
        "{tlps:.1e} TLP transmissions to simulate: at most {MOST_TRANSMISSIONS:.0e}; fewer combinations, paths, sizes or operations in flight"
    )]
    TooLong {
        /// TLP transmissions under all combinations.
        tlps: f64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Knob(Knob),
    Param(&'static str),
}

/// A number and the values that it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Its name, as given.
    pub name: String,
    what: What,
    /// Its values; of a switch 1 (on) and 0 (off).
    pub values: Vec<f64>,
}

impl Axis {
    /// Whether it is on or off.
    pub fn is_switch(&self) -> bool {
        matches!(self.what, What::Knob(knob) if knob.is_switch())
    }

    /// What it is, in one sentence without its full stop.
    pub fn meaning(&self) -> &'static str {
        match self.what {
            What::Param(name) => Params::meaning(name),
            What::Knob(knob) => knob.meaning(),
        }
    }

    /// Whether it has a part in flows: streams, or messages of so many bytes.
    pub fn has_part_in_flows(
        &self,
        (topology, params): (&Topology, &Params),
        flows: &[Flow],
        message_bytes: Option<u32>,
    ) -> bool {
        match self.what {
            What::Param(name) => has_part_in_flows(topology, params, flows, message_bytes, name),
            What::Knob(knob) => knob_has_part_in_flows((topology, params), flows, knob),
        }
    }

    /// The same of streams of writes whose rates are computed
    /// ([`fair_streams`](super::fair_streams)), in which no parameter has one.
    pub fn has_part_in_computed(&self, topology: &Topology, flows: &[Flow]) -> bool {
        match self.what {
            What::Param(_) => false,
            What::Knob(knob) => knob_has_part_in_computed(topology, flows, knob),
        }
    }

    /// A value as it is written.
    pub fn text(&self, value: f64) -> String {
        match (self.is_switch(), value != 0.0) {
            (true, true) => "on".into(),
            (true, false) => "off".into(),
            _ => short(value),
        }
    }
}

/// A question.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Its numbers.
    pub axes: Vec<Axis>,
}

fn find(name: &str) -> Result<What, WhatError> {
    let long = SHORT.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
    let knob = Knob::ALL.into_iter().find(|k| k.name() == long).map(What::Knob);
    let param = || Params::NAMES.iter().find(|n| **n == long).map(|n| What::Param(n));
    knob.or_else(param).ok_or_else(|| {
        let knobs = Knob::ALL.iter().map(|k| k.name());
        let short = SHORT.iter().map(|s| s.0);
        let names: Vec<&str> = knobs.chain(short).chain(Params::NAMES.iter().copied()).collect();
        WhatError::Unknown { name: name.to_owned(), names: names.join(", ") }
    })
}

fn values(name: &str, is_switch: bool, text: &str) -> Result<Vec<f64>, WhatError> {
    let wrong = |value: &str, reason: &str| WhatError::Value {
        name: name.to_owned(),
        value: value.to_owned(),
        reason: reason.to_owned(),
    };
    let mut all: Vec<f64> = Vec::new();
    for part in text.split('|').map(str::trim) {
        if is_switch {
            all.push(match part {
                "on" => 1.0,
                "off" => 0.0,
                _ => return Err(wrong(part, "on or off")),
            });
            continue;
        }
        let number = |text: &str| {
            let value: Option<f64> = text.trim().parse().ok();
            value.filter(|v| v.is_finite()).ok_or_else(|| wrong(part, "not a number"))
        };
        let Some((from, to)) = part.split_once("..") else {
            all.push(number(part)?);
            continue;
        };
        let (mut at, to) = (number(from)?, number(to)?);
        if !(at > 0.0 && to >= at) {
            return Err(wrong(part, "a range doubles from more than 0 up"));
        }
        while at <= to {
            all.push(at);
            at *= 2.0;
            if all.len() > MOST_COMBINATIONS {
                return Err(WhatError::TooMany);
            }
        }
    }
    match (0..all.len()).find(|&i| all[..i].contains(&all[i])) {
        Some(again) => Err(wrong(&short(all[again]), "stands twice")),
        None => Ok(all),
    }
}

impl FromStr for Question {
    type Err = WhatError;

    fn from_str(text: &str) -> Result<Self, WhatError> {
        let mut axes: Vec<Axis> = Vec::new();
        for part in text.split(',') {
            let (name, list) =
                part.split_once('=').ok_or_else(|| WhatError::Form(part.trim().to_owned()))?;
            let name = name.trim().to_owned();
            let what = find(&name)?;
            if axes.iter().any(|a| a.what == what) {
                return Err(WhatError::Twice(name));
            }
            let is_switch = matches!(what, What::Knob(knob) if knob.is_switch());
            let values = values(&name, is_switch, list)?;
            axes.push(Axis { name, what, values });
        }
        let count = axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.values.len()));
        match count {
            Some(count) if count <= MOST_COMBINATIONS => Ok(Self { axes }),
            _ => Err(WhatError::TooMany),
        }
    }
}

impl Question {
    /// Every combination: a value for each axis, the last axis turning fastest.
    pub fn combinations(&self) -> Vec<Vec<f64>> {
        let mut all: Vec<Vec<f64>> = vec![Vec::new()];
        for axis in &self.axes {
            let with = |c: &Vec<f64>, v: f64| [&c[..], &[v]].concat();
            all = all.iter().flat_map(|c| axis.values.iter().map(move |&v| with(c, v))).collect();
        }
        all
    }

    /// Topology and parameters of one combination.
    fn apply(
        &self,
        topology: &Topology,
        params: &Params,
        values: &[f64],
    ) -> Result<(Topology, Params), WhatError> {
        let (mut topology, mut params) = (topology.clone(), params.clone());
        for (axis, &value) in self.axes.iter().zip(values) {
            let wrong = |reason: String| WhatError::Value {
                name: axis.name.clone(),
                value: axis.text(value),
                reason,
            };
            match axis.what {
                What::Knob(knob) => {
                    let none = || wrong(format!("no topology has it: {}", knob.takes()));
                    topology = topology.with(knob, value).ok_or_else(none)?;
                }
                What::Param(name) => {
                    let (least, most) = Params::range(name);
                    if !(least..=most).contains(&value) {
                        return Err(wrong(format!("must be from {least} to {most}")));
                    }
                    if Params::is_count(name) && value.fract() != 0.0 {
                        return Err(wrong("must be a whole number".into()));
                    }
                    params.get_mut(name).into_iter().for_each(|own| *own = value);
                }
            }
        }
        Ok((topology, params))
    }

    /// Topology and parameters as they are, then those of every combination.
    ///
    /// # Errors
    /// A value that a number cannot have.
    pub fn beds(
        &self,
        topology: &Topology,
        params: &Params,
    ) -> Result<Vec<(Topology, Params)>, WhatError> {
        let mut beds = vec![(topology.clone(), params.clone())];
        for values in self.combinations() {
            beds.push(self.apply(topology, params, &values)?);
        }
        Ok(beds)
    }

    /// Whether a parameter has a part in any of these operations, as they are or under any
    /// combination.
    ///
    /// # Errors
    /// A value that the number cannot have.
    pub fn has_part(
        &self,
        spec: TestBedSpec<'_>,
        operations: &[(PathModel, u32)],
        in_flight: u32,
        name: &str,
    ) -> Result<bool, WhatError> {
        self.any(spec, operations, |spec, path, bytes| {
            has_part_in_operation(spec, path, (bytes, in_flight), name)
        })
    }

    /// The same of one of its own numbers.
    ///
    /// # Errors
    /// As [`Question::has_part`].
    pub fn axis_has_part(
        &self,
        spec: TestBedSpec<'_>,
        operations: &[(PathModel, u32)],
        in_flight: u32,
        axis: &Axis,
    ) -> Result<bool, WhatError> {
        self.any(spec, operations, |spec, path, bytes| match axis.what {
            What::Param(name) => has_part_in_operation(spec, path, (bytes, in_flight), name),
            What::Knob(knob) => knob_has_part_in_operation(spec, path, (bytes, in_flight), knob),
        })
    }

    fn any(
        &self,
        spec: TestBedSpec<'_>,
        operations: &[(PathModel, u32)],
        of: impl Fn(TestBedSpec<'_>, PathModel, u32) -> bool,
    ) -> Result<bool, WhatError> {
        Ok(self.beds(spec.topology, spec.params)?.iter().any(|(topology, params)| {
            let spec = TestBedSpec { topology, params, ..spec };
            operations.iter().any(|&(path, bytes)| of(spec, path, bytes))
        }))
    }

    /// Predicts paths and sizes as they are, then under every combination, in its order. `each` is
    /// told the rows of each as soon as they are there, while later ones are simulated on the other
    /// cores. Operations whose imprints are equal are simulated once: a combination that changes
    /// nothing of a path costs nothing, nor does a topology that differs elsewhere from one in
    /// `known`.
    ///
    /// # Errors
    /// A value that the number cannot have; an operation of too many steps; more to simulate than a
    /// question may have, whatever is known.
    pub fn answer(
        &self,
        spec: TestBedSpec<'_>,
        (paths, sizes, in_flight): (&[PathModel], &[u32], u32),
        known: &mut Known,
        each: &mut dyn FnMut(usize, &[SweepRow]),
    ) -> Result<Vec<Vec<SweepRow>>, WhatError> {
        let beds = self.beds(spec.topology, spec.params)?;
        let cases: Vec<(PathModel, u32)> =
            paths.iter().flat_map(|&path| sizes.iter().map(move |&bytes| (path, bytes))).collect();
        let bed = |job: usize| {
            let (topology, params) = &beds[job / cases.len()];
            (TestBedSpec { topology, params, ..spec }, cases[job % cases.len()])
        };
        let jobs = beds.len() * cases.len();
        let keys = in_parallel(jobs, |job| {
            let (spec, (path, bytes)) = bed(job);
            key(spec, path, bytes, in_flight)
        });
        let keys = keys.into_iter().collect::<Result<Vec<u128>, WhatError>>()?;
        // The first job of each key is simulated.
        let mut seen: HashSet<u128> = HashSet::new();
        let firsts: Vec<usize> = (0..jobs).filter(|&job| seen.insert(keys[job])).collect();
        let of_job = |&job: &usize| {
            let (spec, (path, bytes)) = bed(job);
            transmissions(spec, path, bytes, in_flight)
        };
        let tlps: f64 = firsts.iter().map(of_job).sum();
        if tlps > MOST_TRANSMISSIONS {
            return Err(WhatError::TooLong { tlps });
        }
        let is_new = |job: &usize| !known.predictions.contains_key(&keys[*job]);
        let new: Vec<usize> = firsts.into_iter().filter(is_new).collect();
        let mut rows: HashMap<u128, SweepRow> = HashMap::new();
        let mut all: Vec<Vec<SweepRow>> = Vec::new();
        // Tells the rows of which all that comes before a job has been simulated.
        let mut tell = |until: usize, rows: &HashMap<u128, SweepRow>, known: &Known| {
            while (all.len() + 1) * cases.len() <= until {
                let first = all.len() * cases.len();
                let row = |job| {
                    let (spec, (path, bytes)) = bed(job);
                    let topology = spec.topology.name.clone();
                    let distance = spec.topology.distance(spec.gpu, spec.nic);
                    let (prediction, why_not) = match rows.get(&keys[job]) {
                        Some(row) => (row.prediction, row.why_not.clone()),
                        None => (known.predictions.get(&keys[job]).copied(), None),
                    };
                    SweepRow { topology, distance, path, bytes, prediction, why_not }
                };
                let bed_rows: Vec<SweepRow> = (first..first + cases.len()).map(row).collect();
                each(all.len(), &bed_rows);
                all.push(bed_rows);
            }
        };
        tell(new.first().copied().unwrap_or(jobs), &rows, known);
        let simulate = |k: usize| {
            let (spec, (path, bytes)) = bed(new[k]);
            sweep(spec, &[path], &[bytes], in_flight).remove(0)
        };
        in_order(new.len(), simulate, |k, row| {
            rows.insert(keys[new[k]], row);
            tell(new.get(k + 1).copied().unwrap_or(jobs), &rows, known);
        });
        let predictions = rows.iter().filter_map(|(&key, row)| Some((key, row.prediction?)));
        known.predictions.extend(predictions);
        Ok(all)
    }
}

/// What questions have simulated, for later ones, of other topologies too.
#[derive(Debug, Default)]
pub struct Known {
    /// By what they depend on. What is refused is not kept: the reason names what refuses.
    predictions: HashMap<u128, Prediction>,
}

/// What an operation's row depends on, alone and with others in flight.
fn key(
    spec: TestBedSpec<'_>,
    path: PathModel,
    bytes: u32,
    in_flight: u32,
) -> Result<u128, WhatError> {
    let mut imprint = String::new();
    if path.carries(bytes) {
        let operation = Operation::new(spec, Layout::Best, path, bytes, in_flight);
        let checked = operation.program.check();
        checked.map_err(|source| WhatError::Operation { path, bytes, source })?;
        imprint = operation.imprint_at_once();
    }
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, path, bytes, spec.seed, &imprint).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    Ok(hash(0) << 64 | hash(1))
}

#[cfg(test)]
#[path = "what_tests.rs"]
mod tests;
