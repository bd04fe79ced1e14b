//! What a model was asked, in one form: what was asked twice is one question, however it was written.

use std::collections::{BTreeMap, BTreeSet};

use bellpush::pcie::topology::{Kind, builtin};
use bellpush_cli::report::human::printable;
use serde_json::Value;

use super::{LEAST_ORDERS, orders};
use crate::amount;

/// What is asked beside rows and seed.
const FIELDS: [&str; 5] = ["in_flight", "set", "gpu", "nic", "message"];

/// The questions of several results, each with the seeds that it was asked with.
#[derive(Debug, Default)]
pub struct Asked(BTreeMap<String, BTreeSet<String>>);

impl Asked {
    /// Adds what a result was asked.
    pub fn add(&mut self, meta: &Value, results: &Value) {
        let said = FIELDS.iter().filter_map(|field| {
            let value = &meta[*field];
            let text = match *field {
                "set" => set(value),
                "gpu" => device(Kind::Gpu, value, meta, results),
                "nic" => device(Kind::Nic, value, meta, results),
                "message" => message(value),
                _ => plain(value),
            };
            text.map(|text| format!("{field} {text}"))
        });
        let question = printable(&said.collect::<Vec<_>>().join(", "));
        let seeds = match &meta["seed"] {
            Value::Array(all) => &all[..],
            one => std::slice::from_ref(one),
        };
        let seeds = seeds.iter().filter_map(plain).map(|seed| printable(&seed));
        self.0.entry(question).or_default().extend(seeds);
    }

    /// Whether both are the same questions. Another seed moves a value by a little: of so many seeds that a row of as
    /// many runs is judged, each result is one of the model's repetitions.
    pub fn is_like(&self, other: &Self) -> bool {
        let is_alike = |own: &BTreeSet<String>, its: &BTreeSet<String>| {
            own == its || orders(own.len(), its.len()) >= LEAST_ORDERS
        };
        self.0.len() == other.0.len()
            && self.0.iter().all(|(question, seeds)| {
                other.0.get(question).is_some_and(|its| is_alike(seeds, its))
            })
    }

    /// In words.
    pub fn text(&self) -> String {
        let one = |(question, seeds): (&String, &BTreeSet<String>)| {
            let mut seeds: Vec<&str> = seeds.iter().map(String::as_str).collect();
            seeds.sort_by_key(|seed| (seed.len(), *seed));
            let word = if seeds.len() > 1 { "seeds" } else { "seed" };
            let seeds = (!seeds.is_empty()).then(|| format!("{word} {}", seeds.join(" ")));
            let question = Some(question.clone()).filter(|question| !question.is_empty());
            seeds.into_iter().chain(question).collect::<Vec<_>>().join(", ")
        };
        match self.0.is_empty() {
            true => "no model".to_owned(),
            false => self.0.iter().map(one).collect::<Vec<_>>().join(" and "),
        }
    }
}

/// A number as it is written here: a tool may write 8 as 8.0. `None` for a text that is none.
fn number(text: &str) -> Option<String> {
    if let Ok(whole) = text.parse::<u64>() {
        return Some(whole.to_string());
    }
    text.parse().ok().filter(|number: &f64| number.is_finite()).map(|number| number.to_string())
}

/// A value; `None` where nothing was given.
fn plain(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Some(number(&text).unwrap_or(text))
}

/// `--message`: a size, with or without its unit.
fn message(value: &Value) -> Option<String> {
    let bytes = value.as_str().and_then(|text| amount::bytes(text).ok());
    bytes.map(|bytes| bytes.to_string()).or_else(|| plain(value))
}

/// One `--set`.
fn one_set(text: &str) -> String {
    let Some((name, value)) = text.split_once('=') else { return text.to_owned() };
    let value = value.trim();
    format!("{}={}", name.trim(), number(value).unwrap_or_else(|| value.to_owned()))
}

/// All of them, whose order says nothing.
fn set(value: &Value) -> Option<String> {
    let all = match value {
        Value::Array(all) => &all[..],
        one => std::slice::from_ref(one),
    };
    let mut all: Vec<String> = all.iter().filter_map(plain).map(|text| one_set(&text)).collect();
    all.sort_unstable();
    (!all.is_empty()).then(|| all.join(" "))
}

/// The GPU or NIC. Where none was named it was the first, which rows of built-in topologies tell.
fn device(kind: Kind, value: &Value, meta: &Value, results: &Value) -> Option<String> {
    if !value.is_null() {
        return Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    // Flows have names of their own.
    if meta["command"].as_str().is_some_and(|command| command.contains("--flows")) {
        return None;
    }
    let rows = results.as_array().into_iter().flatten();
    let names: BTreeSet<&str> = rows.filter_map(|row| row["topology"].as_str()).collect();
    let first = |name: &&str| {
        let topology = builtin(with(name).map_or(*name, |(name, _)| name))?;
        let node = topology.of_kind(kind).first().copied()?;
        Some(topology.node(node).id.clone())
    };
    let ids: BTreeSet<String> = names.iter().map(first).collect::<Option<_>>()?;
    ids.into_iter().reduce(|_, _| String::new()).filter(|id| !id.is_empty())
}

/// A topology's name, and what `--set` has set of the whole topology, which stands behind it.
fn with(name: &str) -> Option<(&str, Vec<&str>)> {
    let (name, sets) = name.rsplit_once(" with ")?;
    let sets: Vec<&str> = sets.split(", ").collect();
    sets.iter().all(|set| set.contains('=')).then_some((name, sets))
}

/// A topology's name, with what is set in one order.
pub fn topology(name: &str) -> String {
    let Some((name, sets)) = with(name) else { return name.to_owned() };
    let mut sets: Vec<String> = sets.into_iter().map(one_set).collect();
    sets.sort_unstable();
    format!("{name} with {}", sets.join(", "))
}
