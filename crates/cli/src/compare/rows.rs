//! Rows of saved results: what a row is about, and what it measured.

use std::collections::{BTreeMap, BTreeSet};

use bellpush_cli::report::human::printable;
use serde_json::{Map, Value};

use super::asked;

/// Which of two values is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Less,
    More,
}

/// Fields that hold a measured or modelled value, of every command that writes results.
const MEASURES: [(&str, Better); 11] = [
    ("latency_ns_p50", Better::Less),
    ("latency_ns_p99", Better::Less),
    ("one_way_ns_p50", Better::Less),
    ("one_way_ns_p99", Better::Less),
    ("bandwidth_gb_s", Better::More),
    ("completed_ns", Better::Less),
    ("delivered_ns", Better::Less),
    ("gb_per_s", Better::More),
    ("messages_per_us", Better::More),
    ("all_reduce_us", Better::Less),
    // Of `sim --losses`: how many times as long push takes.
    ("ratio", Better::Less),
];
/// Fields whose row says their unit, which says what is better.
const BY_UNIT: [&str; 2] = ["median", "measured"];
/// The ends of what was measured several times.
const ENDS: [&str; 3] = ["min", "max", "spread_percent"];
/// Fields that are outcomes or remarks, and say nothing of what a row is about. Numbers with a
/// fraction do not either.
const OUTCOMES: [&str; 33] = [
    "messages",
    "verified",
    "dropped",
    "overwritten",
    "corrupted",
    "max_credits_in_use",
    "messages_per_s",
    "executor",
    "artefact",
    "wrong",
    "why_not",
    "note",
    "way",
    "spread_percent",
    "source",
    "model",
    "error_percent",
    "min",
    "max",
    "drained",
    "floor",
    "times_floor",
    "bare",
    "alone",
    "share",
    "against",
    "causes",
    "explanation",
    // Of `sim --validate`, what was known of a row, which rules move; of `link`, what its row says in words.
    "kind",
    "first_asked",
    "one_queue",
    // A tool may write those of 1.0 as whole numbers.
    "time_ratio",
    "rate_ratio",
];

/// Fields that hold whole numbers, beside those of bytes.
const COUNTS: [&str; 6] = ["qps", "engines", "blocks", "threads", "in_flight", "flows"];

/// One measure of one row: a value, and the least and greatest of its repetitions where there are
/// any.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub values: Vec<f64>,
    /// How many times it was measured.
    pub runs: usize,
    pub low: f64,
    pub high: f64,
}

impl Sample {
    pub fn value(&self) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            return sorted[half];
        }
        // The sum of two values may be more than a number holds.
        sorted[half - 1] + (sorted[half] - sorted[half - 1]) / 2.0
    }

    /// Whether repetitions say how far it varies.
    pub fn is_repeated(&self) -> bool {
        self.low < self.high || self.values.len() > 1
    }

    /// Half of the way from least to greatest, as a share of the value.
    pub fn noise(&self) -> f64 {
        ((self.high - self.low) / 2.0 / self.value()).min(f64::MAX / 100.0)
    }

    fn add(&mut self, other: Self) {
        self.values.extend(other.values);
        self.runs += other.runs;
        (self.low, self.high) = (self.low.min(other.low), self.high.max(other.high));
    }
}

/// What stands for the measure of a row that was not verified, and of which nothing was measured.
const NOTHING: &str = "nothing measured";

/// Fields whose values name a row by themselves.
const NAMES: [&str; 5] = ["row", "place", "topology", "path", "together"];
/// Those of a path and a size, which stand before all.
const PATH: [&str; 3] = ["data", "kick", "size_bytes"];

/// What a row is about, and which of its values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub row: Vec<(String, String)>,
    pub measure: String,
}

impl Key {
    /// In words, what names it first, without the fields that all rows have alike.
    pub fn text(&self, common: &[(String, String)]) -> String {
        let own = || self.row.iter().filter(|field| !common.contains(field));
        let of = |name: &str| own().find(|field| field.0 == name).map(|field| field.1.as_str());
        let path = of("data").into_iter().chain(of("kick")).collect::<Vec<_>>().join("/");
        let bytes = of("size_bytes").map(|n| format!("{n} B"));
        let named = NAMES.into_iter().filter_map(of).map(str::to_owned);
        let is_said = |name: &str| NAMES.contains(&name) || PATH.contains(&name);
        let rest = own().filter(|(name, _)| !is_said(name));
        let words = named.chain(rest.map(|(name, value)| format!("{name}={value}")));
        let path = Some(path).filter(|path| !path.is_empty());
        printable(&path.into_iter().chain(bytes).chain(words).collect::<Vec<_>>().join(" "))
    }
}

/// The rows of one side: one result, or several of the same measurement.
#[derive(Debug, Default)]
pub struct Side {
    /// In the order of the first result.
    pub order: Vec<Key>,
    pub samples: BTreeMap<Key, (Sample, Better)>,
    /// Rows that were not verified, which are compared with nothing.
    pub unverified: Vec<Key>,
    /// Runs of all results: of each, as many as the row has that is in it most often.
    runs: usize,
}

impl Side {
    /// Whether its results have rows at all.
    pub fn has_rows(&self) -> bool {
        self.runs > 0
    }

    /// Whether none of its rows has a measure.
    pub fn has_no_measure(&self) -> bool {
        self.order.is_empty() && self.unverified.is_empty()
    }

    /// Whether some of the runs lack a measure that others have, be it that they lack its row.
    pub fn lacks_some(&self, key: &Key) -> bool {
        // Those that were not verified are told of by themselves.
        let unverified = self.unverified.iter().filter(|own| *own == key).count();
        let sample = self.samples.get(key).map(|(sample, _)| sample.values.len() + unverified);
        sample.is_some_and(|some| some < self.runs)
    }

    /// Adds a result's rows, those with a least and a greatest value of so many runs.
    ///
    /// # Errors
    /// What is wrong with them, in one line.
    pub fn add(&mut self, results: &Value, runs: usize) -> Result<(), String> {
        let rows = results.as_array().ok_or("no list of results")?;
        let mut counts: BTreeMap<Vec<(String, String)>, usize> = BTreeMap::new();
        for (i, row) in rows.iter().enumerate() {
            let row = row.as_object().ok_or_else(|| format!("result {} is no row", i + 1))?;
            let is_verified = match row.get("verified") {
                None | Some(Value::Null) => true,
                Some(Value::Bool(verified)) => *verified,
                Some(other) => return Err(format!("result {}: verified is {other}", i + 1)),
            };
            *counts.entry(about(row)).or_default() += 1;
            let found =
                samples(row, runs, !is_verified).map_err(|e| format!("result {}: {e}", i + 1))?;
            if !is_verified && found.is_empty() {
                self.unverified.push(Key { row: about(row), measure: NOTHING.to_owned() });
            }
            for (key, sample, better) in found {
                if !is_verified {
                    self.unverified.push(key);
                    continue;
                }
                match self.samples.get_mut(&key) {
                    Some((own, _)) => own.add(sample),
                    None => {
                        self.order.push(key.clone());
                        self.samples.insert(key, (sample, better));
                    }
                }
            }
        }
        self.runs += counts.into_values().max().unwrap_or(0);
        Ok(())
    }
}

type Found = Vec<(Key, Sample, Better)>;

/// Of a unit, which of two values is the better one.
fn better(unit: &str) -> Result<Better, String> {
    match unit {
        "ns" => Ok(Better::Less),
        _ if unit.ends_with("/s") => Ok(Better::More),
        _ => Err(format!("unit {unit:?}: which of two values is better is not known")),
    }
}

/// What a row measured; zeros, which are no measure of anything, if that is wanted: a row of which nothing arrived has
/// them.
fn samples(row: &Map<String, Value>, runs: usize, with_zeros: bool) -> Result<Found, String> {
    let about = about(row);
    for field in MEASURES.iter().map(|measure| measure.0).chain(BY_UNIT).chain(ENDS) {
        let is_good = |value: &Value| value.as_f64().is_some_and(|v| v >= 0.0);
        if let Some(value) = row.get(field).filter(|value| !value.is_null() && !is_good(value)) {
            return Err(format!("{field} is {value}: a number of 0 or more belongs there"));
        }
    }
    let number = |field: &str| row.get(field).and_then(Value::as_f64);
    let mut found = Vec::new();
    let mut put = |measure: String, value: f64, ends: Option<[f64; 2]>, better| {
        if value.is_finite() && (value > 0.0 || with_zeros) {
            let runs = if ends.is_some() { runs } else { 1 };
            let ends = ends.unwrap_or([value; 2]);
            let [low, high] = [ends[0].min(value).max(0.0), ends[1].max(value)];
            let key = Key { row: about.clone(), measure };
            found.push((key, Sample { values: vec![value], runs, low, high }, better));
        }
    };
    for (field, better) in MEASURES {
        if let Some(value) = number(field) {
            put(field.to_owned(), value, None, better);
        }
    }
    // Of `sim --validate`: by what factor the model is off. Its rows have no unit of their own.
    if let (Some(model), Some(measured)) = (number("model"), number("measured"))
        && row.contains_key("table")
        && model > 0.0
        && measured > 0.0
    {
        let off = (model / measured).max(measured / model);
        put("times_off".to_owned(), off, None, Better::Less);
    }
    for field in BY_UNIT {
        let (Some(value), Some(unit)) = (number(field), row.get("unit").and_then(Value::as_str))
        else {
            continue;
        };
        let better = better(unit)?;
        // Where between its ends the median lies is not saved: each is as far from it as both are apart at most.
        let spread = number("spread_percent").map(|percent| percent / 100.0);
        let spread = spread.map(|share| [value * (1.0 - share), value * (1.0 + share)]);
        let ends = number("min").zip(number("max")).map(|(min, max)| [min, max]).or(spread);
        if let Some([min, max]) = ends.filter(|[min, max]| !(*min..=*max).contains(&value)) {
            return Err(format!("{field} is {value}, min {min}, and max {max}"));
        }
        put(printable(unit), value, ends, better);
    }
    Ok(found)
}

/// The fields that say what a row is about.
fn about(row: &Map<String, Value>) -> Vec<(String, String)> {
    let is_measure = |name: &str| MEASURES.iter().any(|m| m.0 == name) || BY_UNIT.contains(&name);
    let own = row.iter().filter(|(name, value)| {
        let is_outcome = is_measure(name) || OUTCOMES.contains(&name.as_str()) || *name == "unit";
        !(is_outcome || value.is_null() || value.is_f64() && whole(name, value).is_none())
    });
    let text = |name: &str, value: &Value| match (value.as_str(), whole(name, value)) {
        (Some(text), _) if name == "topology" => asked::topology(text),
        (Some(text), _) => text.to_owned(),
        (_, Some(number)) => number.to_string(),
        _ => value.to_string(),
    };
    own.map(|(name, value)| (name.clone(), text(name, value))).collect()
}

/// A count that a tool has written with a fraction of zeros: data frames do so with columns that have gaps.
fn whole(name: &str, value: &Value) -> Option<u64> {
    let is_count = name.ends_with("bytes") || COUNTS.contains(&name);
    let number = value.as_f64().filter(|n| is_count && value.is_f64() && n.fract() == 0.0);
    number.filter(|n| (0.0..=9e15).contains(n)).map(|n| n as u64)
}

/// Fields that say nothing of which row one is: all rows that have them have them alike, and without them no two rows
/// are the same. What names a lone row stays.
pub fn common(sides: [&Side; 2]) -> Vec<(String, String)> {
    let keys = sides.into_iter().flat_map(|side| side.order.iter().chain(&side.unverified));
    let rows: BTreeSet<&Vec<(String, String)>> = keys.map(|key| &key.row).collect();
    let fields: BTreeSet<&(String, String)> = rows.iter().copied().flatten().collect();
    let mut values: BTreeMap<&str, usize> = BTreeMap::new();
    fields.iter().for_each(|field| *values.entry(&field.0).or_default() += 1);
    let names = |field: &(String, String)| {
        NAMES.contains(&field.0.as_str()) || PATH.contains(&field.0.as_str())
    };
    let is_alike = |field: &(String, String)| {
        values[field.0.as_str()] == 1 && (rows.len() > 1 || !names(field))
    };
    let alike: BTreeSet<_> = fields.iter().copied().filter(|f| is_alike(f)).cloned().collect();
    let own = |row: &&Vec<(String, String)>| -> Vec<(String, String)> {
        row.iter().filter(|field| !alike.contains(field)).cloned().collect()
    };
    let is_enough = rows.iter().map(own).collect::<BTreeSet<_>>().len() == rows.len();
    let all_have = |field: &(String, String)| rows.iter().all(|row| row.contains(field));
    alike.iter().filter(|field| is_enough || all_have(field)).cloned().collect()
}
