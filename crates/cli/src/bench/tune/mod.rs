//! `bellpush bench --tune`: which path is best for which size, kept for the path `auto`; and `auto` beside the best.

mod choose;
mod table;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use bellpush::gpu::{Executor, Gpu};
use bellpush::nic::NicError;
use bellpush::transport::{
    Choice, Data, Error, Kick, Machine, Origin, Path, Ranges, Tuning, TuningError,
};
use bellpush_cli::report::notes::HOST_EXECUTOR;
use bellpush_cli::report::size;
use indicatif::ProgressBar;

use self::choose::{Costs, ranges};
use self::table::Beside;
use super::measure::{Ask, Callers, Lane};
use super::payload::Payload;
use super::test_bed::TestBed;
use super::{options, progress, transport_error};
use crate::cli::{CliError, UNVERIFIED};
use crate::plan::{self, BenchPlan};

/// Times that everything is measured, in turn: a path's median is that of its passes'.
const PASSES: usize = 3;
/// Which of what is measured in turn is auto; the others are the best fixed path and the same again.
const AUTO: usize = 0;
/// The turns of each pass: each is as often behind each other one as the others are.
const TURNS: [[usize; 3]; 6] =
    [[AUTO, 1, 2], [2, 1, AUTO], [1, 2, AUTO], [AUTO, 2, 1], [1, AUTO, 2], [2, AUTO, 1]];
/// Part of the plan's messages, and of a row's time, that one size takes in a pass.
const PART: u32 = 16;

/// Measures, keeps the table, and prints it with auto beside the best fixed paths.
///
/// # Errors
/// One line for a file that is not ours, or a machine on which nothing can be measured.
pub fn run(plan: &BenchPlan, payload: &Payload) -> Result<ExitCode, CliError> {
    has_gpu(plan.gpu)?;
    let file = Tuning::file().map_err(refused)?;
    let bed = TestBed::new(plan)?;
    let machine = machine(&bed, plan)?;
    // What could not be replaced is told before anything is measured.
    match Tuning::load(&file, &machine) {
        Ok(_) | Err(TuningError::NoTable { .. }) => {}
        Err(TuningError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        Err(other) => return Err(refused(other)),
    }
    let mut run = Run {
        bed: &bed,
        plan,
        payload,
        sizes: finer(&plan.sizes_bytes),
        scopes: scopes(&bed),
        wrong: Vec::new(),
    };
    let costs = run.costs()?;
    let tables: Vec<Ranges> = costs.iter().map(|costs| ranges(&run.sizes, costs)).collect();
    let tuning = match tables.as_slice() {
        [all] => Tuning::for_all(all.clone()),
        [thread, warp, block] => Tuning::new(thread.clone(), warp.clone(), block.clone()),
        _ => unreachable!("one scope or all three"),
    };
    let rows = run.beside(&tuning, &costs)?;
    let mut notes: Vec<String> = std::mem::take(&mut run.wrong);
    let verified = notes.is_empty();
    if bed.gpu.is_host() {
        notes.push(of_host(&machine));
        notes.push("one thread was measured, for all scopes".into());
        notes.push(HOST_EXECUTOR.into());
    }
    if verified {
        tuning.save(&file, &machine).map_err(refused)?;
        notes.insert(0, format!("kept in {}", file.display()));
    } else {
        notes.push("not kept: messages were lost or spoiled".into());
    }
    let text = table::render(&machine, &run.scopes, &tables, &rows, &notes);
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("cannot print the table: {e}"), "check where output goes"))
        }
        _ => Ok(if verified { ExitCode::SUCCESS } else { ExitCode::from(UNVERIFIED) }),
    }
}

/// Refuses a machine without a GPU whose user has not asked for the host executor: a table of that is of no use to any
/// GPU, and would be kept.
fn has_gpu(wanted: plan::Gpu) -> Result<(), CliError> {
    if wanted != plan::Gpu::Auto {
        return Ok(());
    }
    Gpu::open(Executor::Cuda(0)).map(drop).map_err(|why| {
        let remedy = "on the host executor times rank nothing of a GPU: '--tune --gpu host' \
                      measures them all the same, and keeps them for the host executor alone";
        CliError::new(format!("--tune: no GPU: {why}"), remedy)
    })
}

/// What a table of the host executor is of.
fn of_host(machine: &Machine) -> String {
    let nic = match machine.nic.as_str() {
        "soft" => "the software NIC".to_owned(),
        name => format!("NIC {name}"),
    };
    format!(
        "this table ranks {nic} and the host executor, not a GPU: endpoints of the host executor \
         alone take it"
    )
}

/// Where the table comes from that rows of auto are measured with.
pub fn origin(bed: &TestBed, plan: &BenchPlan) -> Result<Origin, CliError> {
    Ok(Tuning::of(&machine(bed, plan)?).map_err(refused)?.origin)
}

fn machine(bed: &TestBed, plan: &BenchPlan) -> Result<Machine, CliError> {
    Machine::of(&bed.gpu, &bed.nic, &bed.src, &options(plan, bed, Path::AUTO))
        .map_err(|e| transport_error(&e))
}

fn refused(error: TuningError) -> CliError {
    CliError::new(error, "or name another file in BELLPUSH_TUNING")
}

/// The sizes, with one between each and its double.
fn finer(sizes: &[u64]) -> Vec<u64> {
    let between = sizes.windows(2).filter(|pair| pair[1] == pair[0] * 2 && pair[0] > 1);
    let mut all: Vec<u64> =
        between.map(|pair| pair[0] + pair[0] / 2).chain(sizes.iter().copied()).collect();
    all.sort_unstable();
    all
}

/// Who posts, by the name of their table. Lanes of the host executor only take turns on a processor.
fn scopes(bed: &TestBed) -> Vec<(&'static str, Callers)> {
    match bed.gpu.is_host() {
        true => vec![("all", Callers::Thread)],
        false => {
            vec![("thread", Callers::Thread), ("warp", Callers::Warp), ("block", Callers::Block)]
        }
    }
}

/// The fixed path of a choice, and the sizes that it is for.
fn fixed(choice: Choice) -> (Path, u64) {
    let path = |data, kick| Path::new(data, kick).expect("these go together");
    match choice {
        Choice::Push => (path(Data::Push, Kick::Kernel), u64::MAX),
        Choice::Inband => (path(Data::Push, Kick::Inband), u64::MAX),
        Choice::Blueflame => (path(Data::Push, Kick::Blueflame), 220),
        Choice::Pull => (path(Data::Pull, Kick::Kernel), u64::MAX),
        Choice::PullBlueflame => (path(Data::Pull, Kick::Blueflame), u64::MAX),
        // No endpoint has it for its path: a table with nothing else.
        _ => (Path::AUTO, 220),
    }
}

struct Run<'a> {
    bed: &'a TestBed,
    plan: &'a BenchPlan,
    payload: &'a Payload,
    sizes: Vec<u64>,
    scopes: Vec<(&'static str, Callers)>,
    /// What arrived otherwise than it was sent.
    wrong: Vec<String>,
}

impl Run<'_> {
    /// What each choice takes at each size, for each scope.
    fn costs(&mut self) -> Result<Vec<Costs>, CliError> {
        let mut seen = vec![BTreeMap::<(Choice, usize), Vec<f64>>::new(); self.scopes.len()];
        let mut choices = Choice::ALL.to_vec();
        let bar = progress(PASSES * self.scopes.len() * choices.len());
        for _ in 0..PASSES {
            let mut there = Vec::new();
            for &choice in &choices {
                let (_, most) = fixed(choice);
                let sizes: Vec<usize> =
                    (0..self.sizes.len()).filter(|&at| self.sizes[at] <= most).collect();
                let mut is_there = true;
                for (scope, seen) in seen.iter_mut().enumerate() {
                    bar.set_message(format!("{choice}, {}", self.scopes[scope].0));
                    let given = Tuning::for_all(Ranges::always(choice));
                    match self.pass(fixed(choice).0, given, scope, &sizes, &bar)? {
                        None => is_there = false,
                        Some(medians) => medians.into_iter().for_each(|(at, ns)| {
                            seen.entry((choice, at)).or_default().push(ns);
                        }),
                    }
                    bar.inc(1);
                }
                if is_there {
                    there.push(choice);
                }
            }
            choices = there;
        }
        bar.finish_and_clear();
        let costs: Vec<Costs> = seen
            .into_iter()
            .map(|seen| seen.into_iter().map(|(at, all)| (at, median(all))).collect())
            .collect();
        let all_there = |costs: &Costs| {
            (0..self.sizes.len()).all(|at| costs.keys().any(|&(_, there)| there == at))
        };
        if costs.iter().all(all_there) {
            return Ok(costs);
        }
        let what = "no path could be measured at some size";
        Err(CliError::new(what, "see what bellpush bench says of each path"))
    }

    /// Auto and, at each size, the path that was best, twice, in turn.
    fn beside(&mut self, tuning: &Tuning, costs: &[Costs]) -> Result<Vec<Beside>, CliError> {
        let mut rows = Vec::new();
        let bar = progress(TURNS.len() * self.scopes.len());
        for (scope, costs) in costs.iter().enumerate() {
            let best: Vec<Choice> =
                (0..self.sizes.len()).map(|at| choose::best(costs, at)).collect();
            let mut seen = vec![[const { Vec::new() }; 3]; self.sizes.len()];
            for turns in TURNS {
                bar.set_message(format!("auto, {}", self.scopes[scope].0));
                for series in turns {
                    let medians = match series {
                        AUTO => {
                            let all: Vec<usize> = (0..self.sizes.len()).collect();
                            self.pass(Path::AUTO, tuning.clone(), scope, &all, &bar)?
                        }
                        _ => Some(self.best_pass(&best, scope, &bar)?),
                    };
                    for (at, ns) in medians.into_iter().flatten() {
                        seen[at][series].push(ns);
                    }
                }
                bar.inc(1);
            }
            rows.extend(seen.into_iter().enumerate().map(|(at, seen)| {
                let [auto, first, second] = seen;
                let (scope, bytes) = (self.scopes[scope].0, self.sizes[at]);
                let best_ns = median([first.as_slice(), &second].concat());
                let two_ns = [median(first), median(second)];
                Beside { scope, bytes, best: best[at], best_ns, two_ns, auto_ns: median(auto) }
            }));
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    /// Medians of the best path of each size, ns.
    fn best_pass(
        &mut self,
        best: &[Choice],
        scope: usize,
        bar: &ProgressBar,
    ) -> Result<Vec<(usize, f64)>, CliError> {
        let mut all = Vec::new();
        for choice in Choice::ALL {
            let sizes: Vec<usize> = (0..best.len()).filter(|&at| best[at] == choice).collect();
            if sizes.is_empty() {
                continue;
            }
            let given = Tuning::for_all(Ranges::always(choice));
            let medians = self.pass(fixed(choice).0, given, scope, &sizes, bar)?;
            all.extend(medians.into_iter().flatten());
        }
        Ok(all)
    }

    /// Medians of one path at some sizes, ns; `None` where the NIC cannot take the path. Other queue pairs are gone
    /// meanwhile: an engine would look at them too.
    fn pass(
        &mut self,
        path: Path,
        given: Tuning,
        scope: usize,
        sizes: &[usize],
        bar: &ProgressBar,
    ) -> Result<Option<Vec<(usize, f64)>>, CliError> {
        let ask = Ask {
            options: options(self.plan, self.bed, path).tuning(Some(given)),
            qps: 1,
            messages: (self.plan.messages / u64::from(PART)).max(1),
            in_flight: self.plan.in_flight,
            blocks: 1,
            callers: self.scopes[scope].1,
            limit: self.plan.row_limit / PART,
        };
        let lane = match Lane::new(self.bed, path, &ask) {
            Err(why @ (Error::Nic(NicError::Unsupported { .. }) | Error::Unsupported { .. })) => {
                bar.suspend(|| eprintln!("bellpush: {path} is left out: {why}"));
                return Ok(None);
            }
            lane => lane.map_err(|e| transport_error(&e))?,
        };
        let mut medians = Vec::new();
        for &at in sizes {
            let bytes = self.sizes[at];
            let seen = lane.latencies(bytes as usize, self.payload, &ask);
            let seen = seen.map_err(|e| transport_error(&e))?;
            if !seen.is_whole() {
                let why = seen.failure.unwrap_or_else(|| "not what was sent arrived".into());
                let what = format!("NOT VERIFIED: {path}, {}: {why}", size::print(bytes));
                if !self.wrong.contains(&what) {
                    self.wrong.push(what);
                }
                return Ok(Some(medians)); // a queue pair that failed is of no more use
            }
            let median = seen.latency_ns.as_ref().and_then(|ns| ns.percentile(50.0));
            medians.extend(median.map(|ns| (at, ns as f64)));
        }
        Ok(Some(medians))
    }
}

/// Of an even number the mean of the two in the middle.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    let (low, high) = (all.len().saturating_sub(1) / 2, all.len() / 2);
    all.get(low).zip(all.get(high)).map_or(f64::NAN, |(low, high)| f64::midpoint(*low, *high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_between_the_two_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), 3.0);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn each_has_each_other_one_before_it_equally_often() {
        let mut behind = std::collections::BTreeMap::new();
        for turns in TURNS {
            turns.windows(2).for_each(|pair| *behind.entry((pair[0], pair[1])).or_insert(0) += 1);
        }
        assert_eq!(behind.into_values().collect::<Vec<_>>(), [2; 6]);
        for place in 0..3 {
            let mut there = TURNS.map(|turns| turns[place]);
            there.sort_unstable();
            assert_eq!(there, [0, 0, 1, 1, 2, 2]);
        }
    }

    #[test]
    fn sizes_are_measured_between_doubles() {
        assert_eq!(finer(&[1, 2, 4, 8, 24, 48]), [1, 2, 3, 4, 6, 8, 24, 36, 48]);
    }
}
