//! `bellpush compare`: two saved results, row by row.

mod asked;
mod plot;
mod rows;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use bellpush_cli::report::human::printable;
use clap::Args;
use serde_json::{Value, json};

use self::asked::Asked;
use self::rows::{Better, Key, Sample, Side, common};
use crate::cli::CliError;
use crate::values;

/// Exit status where rows are worse than `--fail-above` allows.
const WORSE: u8 = 1;
/// A row is judged if two sides of one build would come apart by chance, one above the other, in at most one of so many
/// orders of their runs (the one-sided rank-sum test at 5 %): from three runs of each side on.
const LEAST_ORDERS: u64 = 20;
/// Most runs of a row that are believed.
const MOST_RUNS: u64 = 1000;
/// The columns of `--csv`.
const COLUMNS: [&str; 8] = ["row", "measure", "before", "after", "ratio", "low", "high", "verdict"];

/// Arguments of `bellpush compare`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0; with --fail-above 1 where a row is worse than that, is \
                        missing in the other result or was not verified; 2 the files cannot be \
                        compared, or with --fail-above no row can be judged, of which the \
                        table and what --json, --csv and --svg name are written all the same.")]
pub struct CompareArgs {
    /// Result that --json wrote of bench, link or sim; several of the same, apart by commas, show how
    /// far its rows vary
    #[arg(value_name = "BEFORE.json,...", required = true, value_delimiter = ',', num_args = 1)]
    before: Vec<PathBuf>,
    /// The other result, or several
    #[arg(value_name = "AFTER.json,...", required = true, value_delimiter = ',', num_args = 1)]
    after: Vec<PathBuf>,
    /// Fail where a row is worse by more, beyond what its repetitions vary, such as 5%
    #[arg(long, value_name = "PERCENT")]
    fail_above: Option<String>,
    /// Print the rows alone that are better or worse
    #[arg(long)]
    brief: bool,
    /// Save the comparison as JSON; `-` prints it on stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Save it as CSV; `-` prints it on stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the ratios over the message size, or a row below the other where rows have none; `-`
    /// prints the drawing
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// One line for files that cannot be compared.
pub fn run(args: &CompareArgs) -> Result<ExitCode, CliError> {
    let limit = args.fail_above.as_deref().map(percent).transpose()?;
    let places = [("--json", &args.json), ("--csv", &args.csv), ("--svg", &args.svg)];
    let quiet = values::check_places(&places)?;
    values::keep_inputs(args.before.iter().chain(&args.after), &places)?;
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let all = compared(before, after)?;
    let mut out = std::io::stdout().lock();
    if let Some(path) = &args.svg {
        values::put(path, &(all.svg()? + "\n"), &mut out)?;
    }
    if let Some(path) = &args.csv {
        values::put(path, &values::to_csv_of(&COLUMNS, &all.json()), &mut out)?;
    }
    if let Some(path) = &args.json {
        let json = json!({
            "meta": { "command": "compare", "of": all.command, "noise": all.noise,
                "notes": all.notes, "missing": all.names(&all.missing),
                "unverified": all.names(&all.unverified) },
            "results": all.json(),
        });
        let text = serde_json::to_string_pretty(&json)
            .map_err(|e| CliError::new(e, "this is a bug: please report it"))?;
        values::put(path, &(text + "\n"), &mut out)?;
    }
    let failed = limit.map_or(Vec::new(), |limit| all.beyond(limit));
    if !quiet {
        let text = all.text(args.brief, limit.map(|limit| (limit, &failed[..])));
        values::put(std::path::Path::new("-"), &text, &mut out)?;
    }
    // What was asked for is written by then.
    if limit.is_some() && !all.rows.is_empty() && all.rows.iter().all(|row| row.verdict() == "?") {
        return Err(match all.is_asked_alike {
            true => CliError::new(
                "--fail-above: no row was measured often enough to be judged",
                "give three results of a side, or run 'bench --runs 3'",
            ),
            false => CliError::new(
                "--fail-above: no row can be judged: the model was asked otherwise",
                "give results of the same seed, or of three seeds on each side, and of the same \
                 operations in flight, GPU, NIC and --set",
            ),
        });
    }
    let is_whole = all.missing.is_empty() && all.unverified.is_empty();
    let bad = limit.is_some() && !(failed.is_empty() && is_whole);
    if bad && quiet {
        let [missing, unverified] = [&all.missing, &all.unverified].map(Vec::len);
        let failed = failed.len();
        eprintln!("bellpush: {failed} worse, {missing} missing, {unverified} not verified");
    }
    Ok(if bad { ExitCode::from(WORSE) } else { ExitCode::SUCCESS })
}

fn percent(text: &str) -> Result<f64, CliError> {
    let own = text.trim();
    let number: Option<f64> = own.strip_suffix('%').unwrap_or(own).trim().parse().ok();
    number.filter(|n| n.is_finite() && *n >= 0.0).map(|n| n / 100.0).ok_or_else(|| {
        let what = format!("--fail-above {text}: no share");
        CliError::new(what, "give percent of 0 or more, such as 5%")
    })
}

/// One side as it was read.
struct Read {
    /// Its results by name.
    names: Vec<String>,
    command: String,
    machine: String,
    /// Whether a model says it all: then a value is what it is, and repeating it changes nothing.
    exact: bool,
    /// Whether its results are of several machines.
    mixed: bool,
    /// How a model was asked for its values, of the results that are one's.
    asked: Asked,
    /// Whether kernels ran on CPU threads.
    on_host: bool,
    rows: Side,
}

fn read(paths: &[PathBuf]) -> Result<Read, CliError> {
    let (mut side, mut known) = (Read::new(), Vec::new());
    for path in paths {
        let text = values::read_text(path).map_err(|e| CliError::new(e, "check the name"))?;
        side.add(&path.display().to_string(), &text, &mut known)?;
    }
    Ok(side)
}

impl Read {
    fn new() -> Self {
        let (command, machine, rows) = (String::new(), String::new(), Side::default());
        let (names, asked) = (Vec::new(), Asked::default());
        Self { names, command, machine, exact: true, mixed: false, asked, on_host: false, rows }
    }

    /// Adds the text of a result to those that are `known`.
    fn add(&mut self, name: &str, text: &str, known: &mut Vec<Value>) -> Result<(), CliError> {
        let bad = |what: String| {
            let what = format!("{name}: {what}");
            CliError::new(what, "give results that --json of bench, link or sim wrote")
        };
        let mut json: Value =
            serde_json::from_str(text).map_err(|e| bad(format!("no JSON ({e})")))?;
        let results = json.get_mut("results").map(Value::take).unwrap_or_default();
        // However it is written: a tool may have laid it out anew.
        if known.contains(&results) && results != json!([]) {
            return Err(bad("the same result a second time is no repetition".into()));
        }
        let meta = &json["meta"];
        let command = command_of(meta).map_err(bad)?;
        let is_first = known.is_empty();
        if !is_first && command != self.command {
            return Err(bad(format!("a result of {command} among those of {}", self.command)));
        }
        self.command = command;
        self.exact &= meta["source"] == "model";
        if meta["source"] == "model" {
            self.asked.add(meta, &results);
        }
        self.on_host |= meta["executor"] == "host";
        let machine = ["executor", "driver"]
            .iter()
            .filter_map(|field| meta[field].as_str())
            .chain(meta["machine"]["cpu"].as_str())
            .map(str::to_owned)
            .chain(meta["machine"]["cores"].as_u64().map(|cores| format!("{cores} cores")))
            .collect::<Vec<_>>()
            .join(", ");
        let machine = printable(&machine);
        self.mixed |= !is_first && machine != self.machine;
        self.machine = machine;
        let runs = runs_of(meta, &self.command).map_err(bad)?;
        self.rows.add(&results, runs).map_err(bad)?;
        known.push(results);
        self.names.push(printable(name));
        Ok(())
    }
}

/// Both sides beside each other.
fn compared(before: Read, after: Read) -> Result<Comparison, CliError> {
    let see = "see 'bellpush compare --help'";
    if before.command != after.command {
        let what = format!("{} beside {}: not the same measurement", before.command, after.command);
        return Err(CliError::new(what, see));
    }
    let is_empty = |side: &Read| side.rows.has_rows() && side.rows.has_no_measure();
    if is_empty(&before) || is_empty(&after) {
        let what =
            format!("rows of {} have no value of which more or less is better", before.command);
        return Err(CliError::new(what, see));
    }
    let all = Comparison::new(before, after);
    if all.rows.is_empty() && all.unverified.is_empty() {
        return Err(CliError::new("the files have no row in common", see));
    }
    Ok(all)
}

/// What is told of the texts of two results: the table, CSV, the drawing.
///
/// # Errors
/// One line for texts that cannot be compared.
#[allow(dead_code, reason = "what any text is answered with, for its checks")]
pub fn told(before: &str, after: &str) -> Result<[String; 3], CliError> {
    let side = |name: &str, text: &str| {
        let mut side = Read::new();
        side.add(name, text, &mut Vec::new()).map(|()| side)
    };
    let all = compared(side("before", before)?, side("after", after)?)?;
    let failed = all.beyond(0.0);
    let csv = values::to_csv_of(&COLUMNS, &all.json());
    Ok([all.text(false, Some((0.0, &failed))), csv, all.svg()?])
}

/// The command that wrote a result.
fn command_of(meta: &Value) -> Result<String, String> {
    match &meta["command"] {
        // A result of `bench` names no command.
        Value::Null => Ok("bench".into()),
        // Others have fields of the same names, and mean something else by them.
        Value::String(it)
            if ["bench --post", "link", "link --together", "sim"].contains(&&**it)
                || it.starts_with("sim --") =>
        {
            Ok(it.clone())
        }
        Value::String(it) => Err(format!("a result of {it}")),
        other => Err(format!("meta.command is {other}")),
    }
}

/// Runs behind a value that is saved with its least and greatest.
fn runs_of(meta: &Value, command: &str) -> Result<usize, String> {
    match &meta["runs"] {
        // Results of `link` did not say it, and had so many.
        Value::Null => Ok(if command == "link --together" { 3 } else { 5 }),
        runs => {
            let number = runs.as_u64().filter(|runs| (1..=MOST_RUNS).contains(runs));
            let number = number.ok_or_else(|| format!("meta.runs is {runs}: 1 to {MOST_RUNS}"))?;
            Ok(number as usize)
        }
    }
}

/// A measure of a row on both sides.
struct Row {
    key: Key,
    better: Better,
    before: f64,
    after: f64,
    /// After by before.
    ratio: f64,
    /// Least and greatest ratio of any two repetitions, of rows that were measured often enough.
    interval: Option<Interval>,
}

/// Least and greatest ratio of any two repetitions.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Interval {
    low: f64,
    /// None where a repetition of before has 0: the ratio to that has no bound.
    high: Option<f64>,
}

/// A ratio as far as numbers go: values come from others' files. `of` is above 0.
fn ratio(value: f64, of: f64) -> f64 {
    (value / of).clamp(f64::MIN_POSITIVE, f64::MAX)
}

impl Interval {
    fn new(before: &Sample, after: &Sample) -> Self {
        let low = if after.low > 0.0 { ratio(after.low, before.high) } else { 0.0 };
        let high = (before.low > 0.0).then(|| ratio(after.high, before.low));
        Self { low, high }
    }
}

impl Row {
    fn verdict(&self) -> &'static str {
        let Some(Interval { low, high }) = self.interval else { return "?" };
        match (low > 1.0, high.is_some_and(|high| high < 1.0), self.better) {
            (true, _, Better::More) | (_, true, Better::Less) => "better",
            (true, _, Better::Less) | (_, true, Better::More) => "worse",
            _ => "same",
        }
    }

    /// By how much it is worse, as a share; below 0 where it is better.
    fn loss(&self) -> f64 {
        match self.better {
            Better::Less => self.ratio - 1.0,
            Better::More => 1.0 / self.ratio - 1.0,
        }
    }
}

struct Comparison {
    command: String,
    /// The results of each side.
    files: [Vec<String>; 2],
    rows: Vec<Row>,
    common: Vec<(String, String)>,
    /// Half of the way from least to greatest of repeated rows, as a share: nine of ten vary less.
    noise: Option<f64>,
    unverified: Vec<Key>,
    /// What was measured before, and is not in the other result, or not in all of its runs.
    missing: Vec<Key>,
    /// Whether both sides are of one question to a model, or of none.
    is_asked_alike: bool,
    notes: Vec<String>,
}

impl Comparison {
    fn new(before: Read, after: Read) -> Self {
        let sides = [&before.rows, &after.rows];
        let common = common(sides);
        let all = sides.into_iter().flat_map(|side| side.samples.values());
        let mut noises: Vec<f64> =
            all.filter(|(s, _)| s.is_repeated()).map(|(s, _)| s.noise()).collect();
        noises.sort_by(f64::total_cmp);
        let noise =
            noises.get((noises.len() * 9 / 10).min(noises.len().saturating_sub(1))).copied();
        let exact = before.exact && after.exact && noise.is_none();
        let is_asked_alike = before.asked.is_like(&after.asked);
        let mut rows = Vec::new();
        for key in &before.rows.order {
            let (a, better) = &before.rows.samples[key];
            let Some((b, _)) = after.rows.samples.get(key) else { continue };
            let is_judged = is_asked_alike && (exact || orders(a.runs, b.runs) >= LEAST_ORDERS);
            let interval = is_judged.then(|| Interval::new(a, b));
            let (before, after) = (a.value(), b.value());
            let (key, better, ratio) = (key.clone(), *better, ratio(after, before));
            rows.push(Row { key, better, before, after, ratio, interval });
        }
        let mut notes = Vec::new();
        for (name, side) in [("before", &before), ("after", &after)] {
            if side.mixed {
                notes.push(format!("the results of {name} are of several machines"));
            }
        }
        if before.machine != after.machine {
            notes.push(format!("not the same machine: {}; {}", before.machine, after.machine));
        }
        if before.on_host || after.on_host {
            notes.push(
                "kernels ran on the host executor (CPU threads): values differ from minute to minute by more than \
                 repeated runs show, and say nothing of a GPU"
                    .into(),
            );
        }
        if !is_asked_alike {
            notes.push(format!(
                "the model was asked otherwise, so that no value is better or worse: {}; {}",
                before.asked.text(),
                after.asked.text()
            ));
        }
        for (name, own, other) in
            [("before", &before.rows, &after.rows), ("after", &after.rows, &before.rows)]
        {
            let alone = own.order.iter().filter(|key| !other.samples.contains_key(key)).count();
            if alone > 0 {
                notes.push(format!("{alone} values {name} alone"));
            }
        }
        if let Some(noise) = noise {
            let noise = 100.0 * noise;
            notes.push(format!(
                "noise: of repeated values nine in ten lie within ±{noise:.1} % of their middle"
            ));
        }
        let both = before.names.iter().filter(|name| after.names.contains(name));
        // A result beside itself shows what the command says of equal ones.
        for name in both.filter(|_| before.names.len() + after.names.len() > 2) {
            notes.push(format!("{name} is on both sides, which brings them nearer to each other"));
        }
        let unbounded = |row: &&Row| row.interval.is_some_and(|interval| interval.high.is_none());
        let unbounded = rows.iter().filter(unbounded).count();
        if unbounded > 0 {
            notes.push(format!(
                "{unbounded} values have a least of 0 before: nothing bounds how many times as much they are after"
            ));
        }
        let unknown = rows.iter().filter(|row| row.interval.is_none()).count();
        if exact && is_asked_alike {
            notes.push("both are a model's: values are exact".into());
        } else if unknown > 0 && is_asked_alike {
            notes.push(format!(
                "{unknown} values were measured too seldom to be judged: three results of each \
                 side, apart by commas or by 'bench --runs 3', are enough"
            ));
        }
        let mut unverified = sides.map(|side| &side.unverified[..]).concat();
        let mut seen = BTreeSet::new();
        unverified.retain(|key| seen.insert(key.clone()));
        let is_missing = |key: &&Key| {
            after.rows.lacks_some(key)
                || !after.rows.samples.contains_key(*key) && !unverified.contains(key)
        };
        let missing = before.rows.order.iter().filter(is_missing).cloned().collect();
        let files = [before.names, after.names];
        let command = before.command;
        Self { command, files, rows, common, noise, unverified, missing, is_asked_alike, notes }
    }

    /// Rows that are worse by more than `limit`, and not by what they vary alone.
    fn beyond(&self, limit: f64) -> Vec<usize> {
        // A loss of the limit itself is not above it, as which a last digit of the division would have it.
        let most = limit + 1e-12 * (1.0 + limit);
        let is_worse = |row: &Row| row.loss() > most && row.verdict() == "worse";
        (0..self.rows.len()).filter(|&i| is_worse(&self.rows[i])).collect()
    }

    fn names(&self, keys: &[Key]) -> Vec<String> {
        keys.iter().map(|key| format!("{} {}", key.text(&self.common), key.measure)).collect()
    }

    fn json(&self) -> Vec<Value> {
        let row = |row: &Row| {
            json!({
                // With what all rows share: rows of several comparisons are joined by it.
                "row": row.key.text(&[]), "measure": row.key.measure,
                "before": row.before, "after": row.after, "ratio": row.ratio,
                "low": row.interval.map(|i| i.low), "high": row.interval.and_then(|i| i.high),
                "verdict": row.verdict(),
            })
        };
        self.rows.iter().map(row).collect()
    }
}

/// In how many orders `a` values of one side and `b` of another may come, as sides go; at most [`LEAST_ORDERS`].
fn orders(a: usize, b: usize) -> u64 {
    let (few, all) = (a.min(b), a + b);
    let mut orders = 1;
    for i in 0..few {
        orders = orders * (all - i) as u64 / (i + 1) as u64;
        if orders >= LEAST_ORDERS {
            break;
        }
    }
    orders.min(LEAST_ORDERS)
}
