//! What is as it should be, without what is said of devices that cannot be used: a report would praise them.

use std::collections::BTreeMap;

use super::finding::{Finding, Need, Severity};
use super::machine::Machine;
use super::verdict::label;

/// What is told of a machine: the text and the JSON have the same.
pub struct Right {
    /// The findings, what is fine of them without devices that cannot be used.
    pub findings: Vec<Finding>,
    /// Devices that cannot be used of which something would be fine, and the check that says so.
    pub left_out: BTreeMap<String, &'static str>,
}

impl Right {
    /// Of a machine's findings.
    pub fn of(m: &Machine, findings: &[Finding]) -> Self {
        let broken = broken(m, findings);
        let mut own = Self { findings: Vec::new(), left_out: BTreeMap::new() };
        for f in findings {
            let all = f.subject.split(", ").filter(|device| !device.is_empty());
            let (bad, good): (Vec<&str>, Vec<&str>) =
                all.partition(|device| broken.iter().any(|(name, _)| names(device, name)));
            if f.severity != Severity::Fine || bad.is_empty() {
                own.findings.push(f.clone());
                continue;
            }
            for device in bad {
                let these = broken.iter().filter(|(name, _)| names(device, name));
                own.left_out.extend(these.map(|(name, check)| (name.clone(), *check)));
            }
            if !good.is_empty() {
                own.findings.push(Finding { subject: good.join(", "), ..f.clone() });
            }
        }
        own
    }

    /// What is fine: a line for each check and what it found, and one of what is left out.
    pub fn lines(&self) -> Vec<String> {
        let mut all: Vec<(&str, &str, Vec<&str>)> = Vec::new();
        for f in self.findings.iter().filter(|f| f.severity == Severity::Fine) {
            let is_same = |line: &&mut (&str, &str, Vec<&str>)| {
                (line.0, line.1) == (f.check, &f.found[..]) && !line.2.is_empty()
            };
            let device = Some(f.subject.as_str()).filter(|subject| !subject.is_empty());
            match all.iter_mut().find(is_same).filter(|_| device.is_some()) {
                Some(line) => line.2.extend(device),
                None => all.push((f.check, &f.found, device.into_iter().collect())),
            }
        }
        let told = |(check, found, devices): (&str, &str, Vec<&str>)| match devices.is_empty() {
            true => format!("{check}: {found}"),
            false => format!("{check}  {}: {found}", devices.join(", ")),
        };
        let mut lines: Vec<String> = all.into_iter().map(told).collect();
        if !self.left_out.is_empty() {
            let names: Vec<String> =
                self.left_out.iter().map(|(name, check)| format!("{name} ({check})")).collect();
            lines.push(format!("left out, since it cannot be used: {}", names.join(", ")));
        }
        lines
    }
}

/// Devices that cannot be used, by the names that subjects have, and the check that says so.
fn broken(m: &Machine, findings: &[Finding]) -> BTreeMap<String, &'static str> {
    let withheld = m.gpus().into_iter().filter(|gpu| !m.is_given(*gpu));
    let mut all: BTreeMap<String, &'static str> =
        withheld.map(|gpu| (label(m, gpu), "gpu")).collect();
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
