//! What a bench aims at, printed beside what it measured. Off by ten times it fails: then the machine
//! is busy, or something else was measured than is said.
#![allow(dead_code, reason = "each bench uses its part")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use criterion::Bencher;

/// How far off an aim a bench may be.
const OFF: f64 = 10.0;

/// What was measured so far under each name: units of work, and the time that they took.
static MEASURED: Mutex<BTreeMap<String, (u64, Duration)>> = Mutex::new(BTreeMap::new());

/// Keeps a measurement of criterion's, whose samples add up.
pub fn note(name: &str, units: u64, spent: Duration) {
    let mut all = MEASURED.lock().expect("no bench panics with the lock");
    let sum = all.entry(name.into()).or_default();
    *sum = (sum.0 + units, sum.1 + spent);
}

/// `Bencher::iter`, kept under a name; an iteration is so many units of work.
pub fn iter<R>(b: &mut Bencher<'_>, name: &str, units: u64, mut once: impl FnMut() -> R) {
    b.iter_custom(|iterations| {
        let start = Instant::now();
        for _ in 0..iterations {
            black_box(once());
        }
        let spent = start.elapsed();
        note(name, units * iterations, spent);
        spent
    });
}

/// Units a second, if they were measured: an argument may have chosen other rows.
pub fn rate(name: &str) -> Option<f64> {
    let all = MEASURED.lock().expect("no bench panics with the lock");
    let (units, spent) = all.get(name)?;
    Some(*units as f64 / spent.as_secs_f64())
}

/// Aims so far, and how many were missed by more than [`OFF`].
#[derive(Default)]
pub struct Aims {
    missed: usize,
}

impl Aims {
    /// At least `aim` was to be reached.
    pub fn at_least(&mut self, what: &str, measured: Option<f64>, aim: f64, unit: &str) {
        self.say(what, measured, ("at least", aim), unit, |m| m >= aim / OFF, |m| m >= aim);
    }

    /// At most `aim` was to be taken.
    pub fn at_most(&mut self, what: &str, measured: Option<f64>, aim: f64, unit: &str) {
        self.say(what, measured, ("at most", aim), unit, |m| m <= aim * OFF, |m| m <= aim);
    }

    fn say(
        &mut self,
        what: &str,
        measured: Option<f64>,
        (how, aim): (&str, f64),
        unit: &str,
        near: impl Fn(f64) -> bool,
        reached: impl Fn(f64) -> bool,
    ) {
        let Some(measured) = measured else { return };
        // Not a number is never near.
        let verdict = match (reached(measured), near(measured)) {
            (true, _) => "reached",
            (_, true) => "missed",
            _ => "OFF BY TEN TIMES",
        };
        self.missed += usize::from(!near(measured));
        println!("aim: {what}: {how} {aim} {unit}: {measured:.3}: {verdict}");
    }

    /// What the program ends with. `cargo test` runs benches too, unoptimised and once: that is no
    /// measurement.
    pub fn end(self) -> ExitCode {
        let measuring = std::env::args().any(|arg| arg == "--bench");
        if measuring && self.missed > 0 {
            eprintln!("{} of the aims are off by more than ten times", self.missed);
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}
