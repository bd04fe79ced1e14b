//! What a run has done, in numbers, and what it holds of the system.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use super::bed::Bed;
use super::config::Config;
use super::ops::Op;

#[derive(Debug, Default)]
pub struct Tally {
    pub rounds: u64,
    left_out: BTreeMap<String, u64>,
    operations: BTreeMap<String, u64>,
    paths: BTreeMap<String, u64>,
    carriers: BTreeMap<&'static str, u64>,
    /// Bytes that operations moved.
    bytes: u64,
    pub compared: u64,
    pub immediates: u64,
    pub resets: u64,
    pub waited_again: u64,
    pub mismatches: u64,
    adversaries: u64,
    findings: u64,
    scripts: u64,
    struck: u64,
    lossy: u64,
    packets: u64,
    again: u64,
    /// Longest round, in ms, and its number.
    pub longest: (u128, u64),
}

impl Tally {
    pub fn begin(&mut self, config: &Config) {
        self.rounds += 1;
        for connection in &config.connections {
            let shared = if connection.shared { " shared" } else { "" };
            *self.paths.entry(format!("{}{shared}", connection.path)).or_default() += 1;
        }
        *self.carriers.entry(config.carrier.name()).or_default() += 1;
        self.adversaries += u64::from(config.adversary.is_some());
        self.scripts += u64::from(config.trouble.is_some());
        self.lossy += u64::from(config.carrier.faults().is_some());
    }

    pub fn operation(&mut self, op: &Op) {
        *self.operations.entry(op.name()).or_default() += 1;
        self.bytes += op.bytes() as u64;
    }

    pub fn left_out(&mut self, why: &str) {
        *self.left_out.entry(why.into()).or_default() += 1;
    }

    pub fn close(&mut self, bed: &Bed, struck: u64) {
        self.struck += struck;
        for nic in &bed.nics {
            let counters = nic.counters();
            self.packets += counters.tx_packets;
            self.again += counters.retransmitted;
            self.findings += nic.finding_counts().iter().map(|(_, n)| n).sum::<u64>();
        }
    }

    fn all_operations(&self) -> u64 {
        self.operations.values().sum()
    }

    /// One line for those who wait.
    pub fn line(&self) -> String {
        format!(
            "{} rounds, {} operations, {} MiB; {} faults struck, {} adversary findings, {} mismatches",
            self.rounds,
            self.all_operations(),
            self.bytes >> 20,
            self.struck,
            self.findings,
            self.mismatches
        )
    }

    pub fn summary(&self) -> String {
        let mut text = String::new();
        let mut row = |what: &str, told: String| _ = writeln!(text, "{what:<22}{told}");
        row(
            "rounds",
            format!(
                "{}, the longest {} ms (round {})",
                self.rounds, self.longest.0, self.longest.1
            ),
        );
        row("operations", format!("{}: {}", self.all_operations(), list(&self.operations)));
        row("connections", list(&self.paths));
        row("carriers", list(&self.carriers));
        row("bytes", format!("{} moved, {} compared", self.bytes, self.compared));
        row("immediates", self.immediates.to_string());
        row("fault scripts", format!("{}, struck {} times", self.scripts, self.struck));
        row("links with faults", self.lossy.to_string());
        row("packets", format!("{}, {} of them sent again", self.packets, self.again));
        row("resets", self.resets.to_string());
        row("waits made again", self.waited_again.to_string());
        row("adversary", format!("{} rounds, {} findings", self.adversaries, self.findings));
        row("mismatches", self.mismatches.to_string());
        if !self.left_out.is_empty() {
            row("left out", list(&self.left_out));
        }
        text
    }
}

fn list<K: std::fmt::Display>(map: &BTreeMap<K, u64>) -> String {
    let all: Vec<String> = map.iter().map(|(name, n)| format!("{name} {n}")).collect();
    all.join(", ")
}

/// What the process holds of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Bytes of memory that are resident.
    pub resident: u64,
    pub threads: u64,
    pub descriptors: u64,
}

impl Held {
    /// As the kernel says; zeros where it does not.
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|line| line.split_whitespace().next());
            word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
        };
        let descriptors = fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64);
        Self { resident: of("VmRSS:") << 10, threads: of("Threads:"), descriptors }
    }

    /// What has grown by more than it may, from `self` to `end`.
    pub fn grown(&self, end: &Self) -> Option<String> {
        let all = [
            ("resident memory", self.resident, end.resident, MAX_GROWTH_BYTES),
            ("the number of threads", self.threads, end.threads, MAX_GROWTH_COUNT),
            ("the number of descriptors", self.descriptors, end.descriptors, MAX_GROWTH_COUNT),
        ];
        let (what, from, to, most) =
            all.into_iter().find(|(_, from, to, most)| *to > from + most)?;
        Some(format!("{what} has grown from {from} to {to}, by more than {most}"))
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { resident, threads, descriptors } = self;
        let mib = *resident as f64 / f64::from(1 << 20);
        write!(f, "{mib:.1} MiB, {threads} threads, {descriptors} descriptors")
    }
}

/// How much resident memory may grow behind the warm-up: a round has two memories of up to 10 MiB, and twice as much in
/// the model, of which the allocator keeps some.
const MAX_GROWTH_BYTES: u64 = 64 << 20;
/// How many more threads and descriptors there may be: some end a moment after their round.
const MAX_GROWTH_COUNT: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_beyond_the_bounds_is_told() {
        let held = Held { resident: 100 << 20, threads: 4, descriptors: 9 };
        assert_eq!(held.grown(&held), None);
        let more = |resident, threads, descriptors| {
            let end = Held {
                resident: held.resident + resident,
                threads: held.threads + threads,
                descriptors: held.descriptors + descriptors,
            };
            held.grown(&end)
        };
        assert_eq!(more(64 << 20, 8, 8), None);
        assert!(more((64 << 20) + 1, 0, 0).unwrap().contains("resident memory"));
        assert!(more(0, 9, 0).unwrap().contains("threads"));
        assert!(more(0, 0, 9).unwrap().contains("descriptors"));
        let now = Held::now();
        assert!(now.resident > 1 << 20 && now.threads >= 1 && now.descriptors >= 3, "{now}");
    }
}
