//! What the findings mean: which paths a card of this machine can take, and the exit status.

use std::collections::BTreeMap;

use bellpush::transport::{Data, Kick, Path};

use super::finding::{Finding, Need, Severity};

/// Exit status of a machine with warnings, and of one where something is prevented.
pub const WARNED: u8 = 1;
/// The same, of one where something is prevented. 2 is wrong input, as everywhere.
pub const PREVENTED: u8 = 3;

/// A path on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathVerdict {
    /// The path.
    pub path: Path,
    /// Checks that prevent it.
    pub by: Vec<&'static str>,
    /// Checks that did not see what it needs.
    pub unseen: Vec<&'static str>,
}

impl PathVerdict {
    /// Whether it can be taken; `None` where that cannot be seen.
    pub fn is_possible(&self) -> Option<bool> {
        match (self.by.is_empty(), self.unseen.is_empty()) {
            (false, _) => Some(false),
            (true, true) => Some(true),
            (true, false) => None,
        }
    }
}

/// What a path needs on a card.
pub fn needs(path: Path) -> Vec<Need> {
    let mut needs = Vec::new();
    if path == Path::TCP {
        return needs;
    }
    needs.extend([Need::Gpu, Need::Nic]);
    if path.data() == Data::Pull {
        needs.push(Need::GpuMemory);
    }
    // The window of a push, and the doorbell of a kernel or a stream.
    if path.data() == Data::Push || path.kick() != Some(Kick::Cpu) {
        needs.push(Need::NicPages);
    }
    needs
}

/// Every path on a card of this machine. push/inband is omitted: no card has it.
pub fn paths(findings: &[Finding]) -> Vec<PathVerdict> {
    let by = by_need(findings, |f| &f.prevents);
    let unseen = by_need(findings, |f| &f.hides);
    let on_a_card = Path::ALL.into_iter().filter(|p| p.kick() != Some(Kick::Inband));
    let checks = |path: Path, of: &BTreeMap<Need, Vec<&'static str>>| {
        needs(path)
            .into_iter()
            .flat_map(|need| of.get(&need).cloned().unwrap_or_default())
            .collect()
    };
    let verdict =
        |path: Path| PathVerdict { path, by: checks(path, &by), unseen: checks(path, &unseen) };
    on_a_card.map(verdict).collect()
}

/// Checks whose findings name a need, each once.
fn by_need(
    findings: &[Finding],
    needs: fn(&Finding) -> &Vec<Need>,
) -> BTreeMap<Need, Vec<&'static str>> {
    let mut by: BTreeMap<Need, Vec<&'static str>> = BTreeMap::new();
    for finding in findings {
        for &need in needs(finding) {
            let checks = by.entry(need).or_default();
            if !checks.contains(&finding.check) {
                checks.push(finding.check);
            }
        }
    }
    by
}

/// The worst of the findings, and the exit status that it means.
pub fn status(findings: &[Finding]) -> u8 {
    match findings.iter().map(|f| f.severity).max() {
        Some(Severity::Prevents) => PREVENTED,
        Some(Severity::Warning) => WARNED,
        _ => 0,
    }
}
