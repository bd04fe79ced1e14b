//! `bellpush soak`: random operations on random connections, faults and adversaries among them, against a model of what
//! memory must hold.
//!
//! A run is a sequence of rounds. What a round does follows from the seed and its number, so that `--round` does it
//! again; when packets and threads meet does not. The first finding ends the run.
//!
//! | where | what |
//! |---|---|
//! | `plan` | the command line |
//! | `rng` `config` `faults` `ops` | what a round is made of, drawn before it begins |
//! | `bed` `calls` | NICs, memories and endpoints; operations as calls |
//! | `immediates` | those that are to come, and that need not where a fault has dropped their CQE |
//! | `model` | what memory must hold, and may where a queue pair has ended |
//! | `panics` | those of any thread, counted |
//! | `round` | the operations one after the other, waits, comparisons, recovery |
//! | `signals` | the end that SIGINT and SIGTERM ask for |
//! | `tally` | what was done, in numbers |

mod bed;
mod calls;
mod config;
mod faults;
mod immediates;
mod model;
mod ops;
mod panics;
mod plan;
mod rng;
mod round;
mod signals;
mod tally;

use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bellpush::gpu::{Executor, Gpu, HostOptions};
use nix::sys::signal::Signal;

use crate::bench::test_bed::{open_gpu, say_where};
use crate::cli::{CliError, UNVERIFIED};
use config::Config;
use plan::SoakPlan;
use round::Finding;
use tally::{Held, Tally};

#[derive(Debug, clap::Args)]
pub struct SoakArgs {
    /// How long to go on; the last round ends soon after. SIGINT and SIGTERM end the run likewise, and a second one at
    /// once
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    minutes: f64,
    /// Seed of everything that is drawn
    #[arg(long, value_name = "S", default_value = "1", allow_negative_numbers = true)]
    seed: u64,
    /// End after so many rounds
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    rounds: Option<u64>,
    /// Run this round alone, once, and say what it is made of
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    round: Option<u64>,
    /// Executor of the kernels [default: the first CUDA device, or CPU threads]
    #[arg(long, value_name = "host|N")]
    gpu: Option<String>,
    /// Seconds between two lines of progress
    #[arg(long, value_name = "SECONDS", default_value = "10", allow_negative_numbers = true)]
    every: f64,
    /// Seconds after which a round hangs
    #[arg(long, value_name = "SECONDS", default_value = "180", allow_negative_numbers = true)]
    limit: f64,
    /// Negative control: flip a byte of the target before this round's last comparison
    #[arg(long, value_name = "K", hide = true)]
    spoil: Option<u64>,
}

/// Where the rounds are, for who watches over them.
#[derive(Default)]
pub struct Watch(Mutex<State>);

#[derive(Default)]
struct State {
    round: u64,
    config: String,
    at: String,
    /// When the round began.
    since: Option<Instant>,
    line: String,
    outcome: Option<Outcome>,
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the round does now.
    pub fn at(&self, what: String) {
        self.lock().at = what;
    }

    fn begin(&self, config: &Config) {
        let mut state = self.lock();
        (state.round, state.config) = (config.round, config.to_string());
        state.since = Some(Instant::now());
    }

    fn end(&self, line: String) {
        let mut state = self.lock();
        (state.since, state.line) = (None, line);
    }
}

/// What a run has come to.
struct Outcome {
    tally: Tally,
    /// What the process held at the start, behind the warm-up, and at the end.
    held: [Held; 3],
    /// Rounds behind the warm-up, in which growth was looked at.
    rounds_behind: u64,
    finding: Option<String>,
    /// What asked for the end before it was due.
    ended_by: Option<Signal>,
}

/// Runs rounds until the time is over, a signal asks for the end, or something is found.
///
/// # Errors
/// One line for invalid input or a missing device.
pub fn run(args: &SoakArgs) -> Result<ExitCode, CliError> {
    let plan = SoakPlan::try_from(args)?;
    // Before the executor starts its threads: a signal would end the process by one that takes it.
    let asked = signals::take().map_err(|e| CliError::new(e, "free some threads"))?;
    let gpu = open_gpu(plan.gpu)?;
    say_where(plan.gpu, &gpu);
    let threads = if gpu.is_host() {
        Gpu::open(Executor::Host(HostOptions::threads()))?
    } else {
        gpu.clone()
    };
    println!("seed {}, kernels on {}", plan.seed, gpu.describe());
    let watch = Arc::new(Watch::default());
    let (theirs, its) = (watch.clone(), plan.clone());
    let worker = thread::Builder::new().name("rounds".into()).spawn(move || {
        let outcome = rounds(&its, [&gpu, &threads], &theirs, &asked);
        theirs.lock().outcome = Some(outcome);
    });
    let worker = worker.map_err(|e| CliError::new(e, "free some threads"))?;
    let begin = Instant::now();
    let mut told = begin;
    while !worker.is_finished() {
        thread::sleep(Duration::from_millis(20));
        let state = watch.lock();
        if let Some(since) = state.since.filter(|since| since.elapsed() > plan.limit) {
            let what = format!("the round has not ended after {:?}", since.elapsed());
            report(&plan, &state, &what);
            // Kernels and NICs go on: nothing of theirs can be let go.
            std::process::exit(UNVERIFIED.into());
        }
        if told.elapsed() > plan.every {
            told = Instant::now();
            say(&format!("{:>6} s  {}", begin.elapsed().as_secs(), state.line));
        }
    }
    let panicked = worker.join().is_err();
    let mut state = watch.lock();
    match state.outcome.take() {
        Some(outcome) => Ok(conclude(&plan, &state, &outcome)),
        None => {
            report(&plan, &state, if panicked { "it panicked" } else { "it ended" });
            Ok(ExitCode::from(UNVERIFIED))
        }
    }
}

/// All rounds, each with NICs and endpoints of its own.
fn rounds(
    plan: &SoakPlan,
    gpus: [&Arc<Gpu>; 2],
    watch: &Watch,
    asked: &OnceLock<Signal>,
) -> Outcome {
    panics::count();
    let (begin, start) = (Instant::now(), Held::now());
    let (mut tally, mut warm, mut finding, mut ended_by) = (Tally::default(), None, None, None);
    for number in plan.rounds.clone() {
        let panics_before = panics::so_far();
        let config = Config::draw(plan.seed, number).within_reach(gpus[0].is_host());
        watch.begin(&config);
        tally.begin(&config);
        if plan.is_told {
            say(&config.to_string());
            ops::draw(&config)
                .iter()
                .enumerate()
                .for_each(|(n, op)| say(&format!("{n:>4} {op:?}")));
        }
        let since = Instant::now();
        let gpu = gpus[usize::from(config.threads)];
        let ended = round::run(gpu, &config, plan.spoil == Some(number), &mut tally, watch);
        let took = since.elapsed().as_millis();
        tally.longest = tally.longest.max((took, number));
        watch.end(tally.line());
        finding = ended.err().map(|Finding(what)| what);
        if panics::so_far() != panics_before {
            finding.get_or_insert(
                "a thread of a NIC's or a kernel's panicked, as stderr has it".into(),
            );
        }
        if finding.is_some() {
            break;
        }
        if warm.is_none() && plan.is_warm(begin.elapsed(), tally.rounds) {
            warm = Some((Held::now(), tally.rounds));
        }
        ended_by = asked.get().copied();
        if ended_by.is_some() || begin.elapsed() >= plan.length {
            break;
        }
    }
    let end = Held::now();
    let (warm, rounds) = warm.unwrap_or((end, tally.rounds));
    let rounds_behind = tally.rounds - rounds;
    Outcome { tally, held: [start, warm, end], rounds_behind, finding, ended_by }
}

fn conclude(plan: &SoakPlan, state: &State, outcome: &Outcome) -> ExitCode {
    let [start, warm, end] = outcome.held;
    say(outcome.tally.summary().trim_end());
    say(&format!("{:<22}{start}\n{:<22}{warm}\n{:<22}{end}", "start", "behind the warm-up", "end"));
    if let Some(signal) = outcome.ended_by {
        say(&format!("ended by {signal} after {} rounds", outcome.tally.rounds));
    }
    let grown = warm.grown(&end);
    match outcome.finding.as_ref().or(grown.as_ref()) {
        None => {
            if outcome.rounds_behind == 0 {
                say("growth was not looked at: no round came behind the warm-up");
            }
            say("clean");
            ExitCode::SUCCESS
        }
        Some(what) => {
            report(plan, state, what);
            ExitCode::from(UNVERIFIED)
        }
    }
}

/// Says what was found, and how to find it again.
fn report(plan: &SoakPlan, state: &State, what: &str) {
    let State { round, config, at, .. } = state;
    say(&format!(
        "FOUND in round {round} of seed {}: {what}\n  round: {config}\n  at: {at}\n  again: bellpush soak --seed {} --round {round}",
        plan.seed, plan.seed
    ));
}

/// A line on stdout, which may be closed.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
