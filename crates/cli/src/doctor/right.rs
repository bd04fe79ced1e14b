//! What is as it should be, without what is said of devices that cannot be used: a report would praise them.

use std::collections::BTreeMap;

use super::finding::{Finding, Need, Severity};
use super::machine::Machine;
use super::verdict::label;

/// A check, what it found, and of which devices; none for the machine.
struct Line<'a> {
    check: &'static str,
    found: &'a str,
    devices: Vec<&'a str>,
}

/// The findings that are fine.
pub struct Right<'a> {
    lines: Vec<Line<'a>>,
    count: usize,
    /// Devices that cannot be used of which something would be fine, and the check that says so.
    left_out: BTreeMap<String, &'static str>,
}

impl<'a> Right<'a> {
    /// Of a machine's findings.
    pub fn of(m: &Machine, findings: &'a [Finding]) -> Self {
        let broken = broken(m, findings);
        let mut own = Self { lines: Vec::new(), count: 0, left_out: BTreeMap::new() };
        for f in findings.iter().filter(|f| f.severity == Severity::Fine) {
            let all = f.subject.split(", ").filter(|device| !device.is_empty());
            let (bad, good): (Vec<&str>, Vec<&str>) =
                all.partition(|device| broken.iter().any(|(name, _)| names(device, name)));
            for device in &bad {
                let these = broken.iter().filter(|(name, _)| names(device, name));
                own.left_out.extend(these.map(|(name, check)| (name.clone(), *check)));
            }
            if good.is_empty() && !bad.is_empty() {
                continue;
            }
            own.count += 1;
            let is_same = |line: &&mut Line<'_>| {
                line.check == f.check && line.found == f.found && !line.devices.is_empty()
            };
            match own.lines.iter_mut().find(is_same).filter(|_| !good.is_empty()) {
                Some(line) => line.devices.extend(good),
                None => own.lines.push(Line { check: f.check, found: &f.found, devices: good }),
            }
        }
        own
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// A line for each check and what it found.
    pub fn lines(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for Line { check, found, devices } in &self.lines {
            let of = devices.join(", ");
            all.push(if of.is_empty() {
                format!("{check}: {found}")
            } else {
                format!("{check}  {of}: {found}")
            });
        }
        if !self.left_out.is_empty() {
            let names: Vec<String> =
                self.left_out.iter().map(|(name, check)| format!("{name} ({check})")).collect();
            all.push(format!("left out, since it cannot be used: {}", names.join(", ")));
        }
        all
    }
}

/// Devices that cannot be used, by the names that subjects have, and the check that says so.
pub fn broken(m: &Machine, findings: &[Finding]) -> BTreeMap<String, &'static str> {
    let mut all = BTreeMap::new();
    for f in
        findings.iter().filter(|f| f.severity >= Severity::Note && f.severity != Severity::Unseen)
    {
        for lack in &f.lacks {
            let name = match (lack.need, lack.gpu, &lack.nic) {
                (Need::Gpu, Some(gpu), None) => label(m, gpu),
                (Need::Nic, None, Some(nic)) => nic.clone(),
                _ => continue,
            };
            all.entry(name).or_insert(f.check);
        }
    }
    all
}

/// Whether a device's text, such as `mlx5_0:1 (ens1np0)` or `GPU0 mlx5_0`, has this name in it.
fn names(device: &str, name: &str) -> bool {
    device.split_whitespace().any(|word| word == name || word.split(':').next() == Some(name))
}
