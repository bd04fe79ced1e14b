//! What an adversary found: where a program relied on what the rules do not give.

use std::fmt;
use std::sync::{Mutex, OnceLock};

use super::{Kind, SourceLine, lock};
use bellpush_wire::Qpn;

/// Findings that are kept.
const KEPT: usize = 1000;
/// Findings that are told one by one; then one at each power of ten.
const TOLD: u64 = 20;

/// A place where a program relied on what the rules do not give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The freedom that showed it.
    pub kind: Kind,
    /// The queue pair.
    pub qpn: Qpn,
    /// The WQE's index, as its CQE has it: in basic blocks modulo 2^16. `None` for what a peer posted.
    pub wqe: Option<u16>,
    /// The index of the WQE of that queue pair on whose end it should have waited, where that is another.
    pub behind: Option<u16>,
    /// The line of a kernel that posted the WQE, where that is known ([`crate::SoftNic::name_kernels`]).
    pub posted_at: Option<SourceLine>,
    /// Address of the first byte, as the WQE names it; of a WQE's own bytes, its offset in the ring.
    pub address: u64,
    /// Bytes there, among which some are not as they should be.
    pub bytes: u32,
    /// What was seen.
    pub seen: &'static str,
    /// What would have ordered it.
    pub remedy: &'static str,
    /// Where the rule stands.
    pub rule: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: queue pair {:#x}", self.kind, self.qpn.0)?;
        if let Some(index) = self.wqe {
            write!(f, ", WQE {index:#x}")?;
        }
        if let Some(line) = &self.posted_at {
            write!(f, " (posted at {line})")?;
        }
        let Self { address, bytes, seen, remedy, rule, .. } = self;
        let ring = if self.kind == Kind::Record { "ring offset " } else { "" };
        write!(f, ": {bytes} bytes at {ring}{address:#x}: {seen}")?;
        if let Some(index) = self.behind {
            write!(f, " (WQE {index:#x})")?;
        }
        write!(f, "; {remedy} ({rule})")
    }
}

/// Called with a finding, and how many there are by now.
pub type FindingSink = Box<dyn Fn(&Finding, u64) + Send + Sync>;

/// All of a device.
#[derive(Default)]
pub(super) struct Findings {
    kept: Mutex<Kept>,
    sink: OnceLock<FindingSink>,
}

#[derive(Default)]
struct Kept {
    all: Vec<Finding>,
    counts: [u64; Kind::ALL.len()],
}

impl Findings {
    pub(super) fn add(&self, finding: Finding) {
        let count = {
            let mut kept = lock(&self.kept);
            kept.counts[finding.kind as usize] += 1;
            if kept.all.len() < KEPT {
                kept.all.push(finding.clone());
            }
            kept.counts.iter().sum()
        };
        if let Some(sink) = self.sink.get().filter(|_| is_told(count)) {
            sink(&finding, count);
        }
    }

    pub(super) fn all(&self) -> Vec<Finding> {
        lock(&self.kept).all.clone()
    }

    pub(super) fn counts(&self) -> Vec<(Kind, u64)> {
        let counts = lock(&self.kept).counts;
        Kind::ALL.into_iter().zip(counts).filter(|&(_, n)| n > 0).collect()
    }

    pub(super) fn tell(&self, sink: FindingSink) -> bool {
        self.sink.set(sink).is_ok()
    }
}

/// Whether so many are worth a line.
fn is_told(count: u64) -> bool {
    count <= TOLD || 10u64.checked_pow(count.ilog10()) == Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_told_and_all_are_counted() {
        let told: Vec<u64> = (1..=10_000).filter(|&n| is_told(n)).collect();
        let wanted: Vec<u64> = (1..=20).chain([100, 1000, 10_000]).collect();
        assert_eq!(told, wanted);
        let findings = Findings::default();
        let finding = Finding {
            kind: Kind::Payload,
            qpn: Qpn(0x12),
            wqe: Some(31),
            behind: None,
            posted_at: None,
            address: 0x1000,
            bytes: 64,
            seen: "seen",
            remedy: "remedy",
            rule: "rule",
        };
        for _ in 0..1001 {
            findings.add(finding.clone());
        }
        assert_eq!(findings.counts(), [(Kind::Payload, 1001)]);
        assert_eq!(findings.all().len(), KEPT);
        let text = "payload: queue pair 0x12, WQE 0x1f: 64 bytes at 0x1000: seen; remedy (rule)";
        assert_eq!(finding.to_string(), text);
        let posted_at = Some(SourceLine { file: "src/put.cu".into(), line: 20 });
        let located = Finding { posted_at, ..finding.clone() };
        let text = "payload: queue pair 0x12, WQE 0x1f (posted at src/put.cu:20): 64 bytes at 0x1000: seen; remedy (rule)";
        assert_eq!(located.to_string(), text);
        let behind = Finding { behind: Some(30), ..finding.clone() };
        let text = "payload: queue pair 0x12, WQE 0x1f: 64 bytes at 0x1000: seen (WQE 0x1e); remedy (rule)";
        assert_eq!(behind.to_string(), text);
        let record = Finding { kind: Kind::Record, wqe: None, address: 64, ..finding };
        let text = "record: queue pair 0x12: 64 bytes at ring offset 0x40: seen; remedy (rule)";
        assert_eq!(record.to_string(), text);
    }
}
