//! The report: as text, as JSON, as a shell script.

use std::fmt::Write as _;

use bellpush::pcie::topology::Address;
use serde_json::{Value, json};

use super::finding::{Finding, Lack, Need, Severity};
use super::live::Measured;
use super::machine::{Machine, RANKED};
use super::placement::Placement;
use super::read::short;
use super::right::Right;
use super::verdict::{PathVerdict, Verdicts, label, status};

/// Version of the JSON: one more where a key changes its meaning or goes.
const VERSION: u32 = 3;
/// Columns of a line.
const WIDTH: usize = 100;
/// Most GPUs or NICs of the table; the JSON has all.
const MOST: usize = 16;

/// Everything that is told of one machine.
pub struct Report<'a> {
    /// What the machine is called.
    pub name: String,
    /// What a recorded machine says that it is; empty where it says nothing.
    pub what: String,
    /// It.
    pub machine: &'a Machine,
    /// What the checks found, and what is told of it.
    right: Right,
    verdicts: Verdicts,
    placement: Placement,
    /// What was measured.
    live: Option<&'a Measured>,
}

/// The checks that a verdict names.
type ChecksOf = fn(&PathVerdict) -> &Vec<&'static str>;

fn wrapped(out: &mut String, label: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    let mut line = format!("  {label:9}");
    let mut is_empty = true;
    for word in text.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{line}");
            line = " ".repeat(11);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(out, "{line}");
}

impl<'a> Report<'a> {
    /// What is told of a machine of this name, and what a recorded one says that it is.
    pub fn new(
        [name, what]: [String; 2],
        machine: &'a Machine,
        findings: &[Finding],
        live: Option<&'a Measured>,
    ) -> Self {
        let right = Right::of(machine, findings);
        let verdicts = Verdicts::of(machine, findings);
        let placement = Placement::of(machine, &verdicts);
        Self { name, what, machine, right, verdicts, placement, live }
    }

    fn of(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        self.right.findings.iter().filter(move |f| f.severity == severity)
    }

    /// The report as text, the verdict first.
    pub fn text(&self) -> String {
        let m = self.machine;
        let known = |text: Option<&String>| short(text.map_or("unknown", String::as_str));
        let mut out = format!("bellpush doctor: {}\n", short(&self.name));
        wrapped(&mut out, "recorded", &self.what);
        let (linux, cpu) = (known(m.system.release.known()), known(m.system.cpu.known()));
        let counted = |n: usize, what: &str, is_seen: bool, of: &str| match (n, is_seen) {
            (0, false) => format!("{what}s{of}: not seen"),
            (1, _) => format!("1 {what}{of}"),
            (n, _) => format!("{n} {what}s{of}"),
        };
        let is_unseen = |check: &str| self.of(Severity::Unseen).any(|f| f.check == check);
        let gpus = counted(m.gpus().len(), "NVIDIA GPU", !is_unseen("gpu"), "");
        let cards = counted(m.mlx5().count(), "device", !is_unseen("rdma-device"), " of mlx5");
        wrapped(&mut out, "machine", &format!("Linux {linux}; {cpu}; {gpus}; {cards}"));
        self.verdict(&mut out);
        self.placement(&mut out);
        for (severity, head) in [(Severity::Prevents, "PREVENTS"), (Severity::Warning, "WARNING")] {
            for f in self.of(severity) {
                let subject =
                    if f.subject.is_empty() { String::new() } else { format!("  {}", f.subject) };
                let _ = writeln!(out, "\n{head} {}{subject}", f.check);
                let parts = [
                    ("found", &f.found),
                    ("expected", &f.expected),
                    ("costs", &f.cost),
                    ("fix", &f.fix),
                ];
                for (label, text) in parts {
                    wrapped(&mut out, label, text);
                }
                wrapped(&mut out, "source", f.source);
            }
        }
        for (severity, head) in
            [(Severity::Unseen, "Not to be seen here:"), (Severity::Note, "Worth knowing:")]
        {
            self.short_list(severity, head, &mut out);
        }
        let fine = self.right.lines();
        if !fine.is_empty() {
            out += "\nAs it should be:\n";
        }
        fine.iter().for_each(|line| wrapped(&mut out, "", line));
        if let Some(live) = self.live {
            out += &live.text();
        }
        self.remedy(&mut out);
        out
    }

    /// How much a script mends, and what has to be done by hand, in a line each.
    fn remedy(&self, out: &mut String) {
        let (mended, by_hand): (Vec<&Finding>, Vec<&Finding>) =
            self.bad().partition(|f| f.has_command());
        let mut lines = Vec::new();
        if !mended.is_empty() {
            let of = if self.machine.live { "" } else { " --machine …" };
            let (n, all) = (mended.len(), mended.len() + by_hand.len());
            lines.push((
                "to mend",
                format!(
                    "`bellpush doctor{of} --fix` prints a shell script with the fixes of {n} of \
                     {all} findings above; it runs nothing"
                ),
            ));
        }
        if !by_hand.is_empty() {
            lines.push(("by hand", format!("{}: see `fix` above", listed(&by_hand))));
        }
        if !lines.is_empty() {
            out.push('\n');
        }
        lines.iter().for_each(|(label, text)| wrapped(out, label, text));
    }

    /// What is to be mended.
    fn bad(&self) -> impl Iterator<Item = &Finding> {
        self.right.findings.iter().filter(|f| f.severity >= Severity::Warning)
    }

    fn verdict(&self, out: &mut String) {
        let verdicts = &self.verdicts;
        let groups = verdicts.groups();
        for group in &groups {
            if groups.len() > 1 {
                wrapped(out, "card", &verdicts.who(self.machine, group));
            }
            can(if groups.len() > 1 { "can" } else { "card can" }, &group.paths, out);
        }
        if verdicts.is_cut {
            let text = format!("the first {RANKED} GPUs and {RANKED} cards alone are looked at");
            wrapped(out, "", &text);
        }
        wrapped(
            out,
            "soft NIC",
            &format!(
                "every path, push/inband as well, with kernels on {}",
                match verdicts.has_gpu() {
                    Some(true) => "the GPU",
                    Some(false) => "CPU threads",
                    None => "the GPU, or else on CPU threads: that is not to be seen",
                }
            ),
        );
        let count = |s| self.of(s).count();
        let (p, w) = (count(Severity::Prevents), count(Severity::Warning));
        let (u, fine) = (count(Severity::Unseen), count(Severity::Fine));
        let text = format!("{p} prevent something, {w} warnings, {u} not to be seen, {fine} fine");
        wrapped(out, "findings", &text);
    }

    fn placement(&self, out: &mut String) {
        let m = self.machine;
        let all = &self.placement.pairs;
        if all.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "\nClass and NUMA distance of every GPU and NIC; * what a GPU should take, \
             of what can be used"
        );
        let mut nics: Vec<Address> = all.iter().map(|p| p.nic).collect();
        nics.sort_unstable();
        nics.dedup();
        let shown = &nics[..nics.len().min(MOST)];
        let _ = write!(out, "{:6}", "");
        for &nic in shown {
            let _ = write!(out, " {:>12}", short(&m.nic_name(nic)));
        }
        out.push('\n');
        for (n, gpu) in m.gpus().into_iter().enumerate().take(MOST) {
            let _ = write!(out, "{:6}", format!("GPU{n}"));
            for pair in all.iter().filter(|p| p.gpu == gpu && shown.contains(&p.nic)) {
                let distance = pair.distance.map_or_else(|| "?".into(), |d| d.to_string());
                let star = if pair.is_given { "*" } else { " " };
                let _ = write!(out, " {:>12}", format!("{star}{} {distance}", pair.class));
            }
            out.push('\n');
        }
        self.unplaced(out);
        if let Some((gpus, nics)) = m.unranked() {
            let _ = writeln!(
                out,
                "  {gpus} GPUs and {nics} NICs: --json has the first {RANKED} of each, unranked"
            );
        } else if nics.len() > MOST || m.gpus().len() > MOST {
            let _ = writeln!(out, "  the rest: --json");
        }
    }

    /// Why GPUs should take no NIC, a line for each reason.
    fn unplaced(&self, out: &mut String) {
        let without = &self.placement.without;
        let mut told: Vec<&str> = Vec::new();
        for (_, why) in without {
            if told.contains(&why.as_str()) {
                continue;
            }
            told.push(why);
            let same = without.iter().filter(|(_, own)| own == why);
            let names: Vec<String> = same.map(|(gpu, _)| label(self.machine, *gpu)).collect();
            wrapped(out, "no star", &format!("{}: {why}", names.join(", ")));
        }
    }

    fn short_list(&self, severity: Severity, head: &str, out: &mut String) {
        let mut is_first = true;
        for f in self.of(severity) {
            if is_first {
                let _ = writeln!(out, "\n{head}");
                is_first = false;
            }
            let mut text = f.check.to_owned();
            for (mark, part) in [("  ", &f.subject), (": ", &f.found), ("; ", &f.cost)] {
                if !part.is_empty() && (mark != "; " || severity == Severity::Note) {
                    text += mark;
                    text += part;
                }
            }
            if severity == Severity::Unseen && !f.fix.is_empty() {
                text += &format!(" ({})", f.fix);
            }
            wrapped(out, "", &text);
        }
    }

    /// The report as JSON.
    pub fn json(&self) -> Value {
        let findings = self.right.findings.iter().map(|f| {
            let of = |needs: &[Need]| needs.iter().map(|n| need(*n)).collect::<Vec<String>>();
            json!({
                "check": f.check, "severity": f.severity.name(), "subject": f.subject,
                "found": f.found, "expected": f.expected, "cost": f.cost, "fix": f.fix,
                "source": f.source, "script": f.script, "prevents": of(&f.prevents),
                "hides": of(&f.hides), "lacks": f.lacks.iter().map(lack).collect::<Vec<_>>(),
            })
        });
        let verdicts = &self.verdicts;
        let groups = verdicts.groups().into_iter().map(|group| {
            let pair = |(g, n): &(usize, usize)| {
                let gpu = verdicts.gpus[*g].map(|gpu| gpu.to_string());
                json!({ "gpu": gpu, "nic": verdicts.nics[*n].as_deref().map(short) })
            };
            let pairs: Vec<Value> = group.pairs.iter().map(pair).collect();
            json!({ "pairs": pairs, "paths": of_paths(&group.paths) })
        });
        let m = self.machine;
        let placement = self.placement.pairs.iter().map(|p| {
            json!({
                "gpu": p.gpu.to_string(), "nic": p.nic.to_string(), "name": short(&m.nic_name(p.nic)),
                "class": p.class, "numa_distance": p.distance, "assigned": p.is_given,
            })
        });
        let without = self.placement.without.iter();
        let without = without.map(|(gpu, why)| json!({ "gpu": gpu.to_string(), "why": why }));
        let left_out = self.right.left_out.iter();
        let left_out =
            left_out.map(|(name, check)| json!({ "device": short(name), "check": check }));
        json!({
            "meta": {
                "command": "doctor", "version": VERSION, "machine": self.name, "live": m.live,
            },
            "status": status(&self.right.findings),
            "paths_on_a_card": of_paths(&verdicts.best()),
            "verdicts": groups.collect::<Vec<_>>(),
            "kernels": verdicts.has_gpu().map(|has| if has { "gpu" } else { "cpu" }),
            "placement": placement.collect::<Vec<_>>(),
            "without_nic": without.collect::<Vec<_>>(),
            "findings": findings.collect::<Vec<_>>(),
            "left_out": left_out.collect::<Vec<_>>(),
            "measured": self.live.map(Measured::json),
        })
    }

    /// A shell script of what would mend it.
    pub fn script(&self) -> String {
        let mut out = format!(
            "#!/bin/sh\n# What would mend what `bellpush doctor` found of {}. Nothing has been \
             run: read it first.\n# Most lines need root; settings of PCI functions last until \
             the next boot.\n",
            short(&self.name)
        );
        let by_hand: Vec<&Finding> = self.bad().filter(|f| !f.has_command()).collect();
        if !by_hand.is_empty() {
            let _ = writeln!(out, "# By hand, no command mends them: {}.", listed(&by_hand));
        }
        for f in self.bad() {
            let about =
                if f.subject.is_empty() { String::new() } else { format!(" {}", f.subject) };
            let _ = writeln!(out, "\n# {}{about}: {}", f.check, f.found);
            if !f.has_command() {
                let _ = writeln!(out, "# by hand: {}", f.fix);
            }
            f.script.iter().for_each(|line| {
                let _ = writeln!(out, "{line}");
            });
        }
        out
    }
}

/// Findings by their checks, each with what it speaks of.
fn listed(all: &[&Finding]) -> String {
    let mut by_check: Vec<(&str, Vec<&str>)> = Vec::new();
    for f in all {
        let subject = Some(f.subject.as_str()).filter(|subject| !subject.is_empty());
        match by_check.iter_mut().find(|(check, _)| *check == f.check) {
            Some((_, subjects)) => subjects.extend(subject),
            None => by_check.push((f.check, subject.into_iter().collect())),
        }
    }
    let told = by_check.into_iter().map(|(check, subjects)| match subjects.is_empty() {
        true => check.to_owned(),
        false => format!("{check} ({})", subjects.join(", ")),
    });
    told.collect::<Vec<_>>().join(", ")
}

/// What can be taken, what cannot, and what is not to be seen, with the checks that say so.
fn can(label: &str, all: &[PathVerdict], out: &mut String) {
    let names = |all: &[&PathVerdict]| {
        let names: Vec<String> = all.iter().map(|v| v.path.to_string()).collect();
        names.join(" ")
    };
    let of = |possible: Option<bool>| -> Vec<&PathVerdict> {
        all.iter().filter(|v| v.is_possible() == possible).collect()
    };
    wrapped(out, label, &names(&of(Some(true))));
    let kinds: [(_, _, ChecksOf); 2] =
        [("not seen", None, |v| &v.unseen), ("cannot", Some(false), |v| &v.by)];
    for (label, possible, checks) in kinds {
        let mut told: Vec<&[&str]> = Vec::new();
        let group = of(possible);
        for verdict in &group {
            if told.contains(&checks(verdict).as_slice()) {
                continue;
            }
            told.push(checks(verdict));
            let same = group.iter().filter(|v| checks(v) == checks(verdict));
            let same: Vec<&PathVerdict> = same.copied().collect();
            wrapped(out, label, &format!("{}: {}", names(&same), checks(verdict).join(", ")));
        }
    }
}

fn of_paths(all: &[PathVerdict]) -> Vec<Value> {
    let path = |v: &PathVerdict| {
        json!({
            "path": v.path.to_string(), "possible": v.is_possible(), "prevented_by": v.by,
            "unseen_by": v.unseen,
        })
    };
    all.iter().map(path).collect()
}

fn lack(lack: &Lack) -> Value {
    json!({
        "need": need(lack.need), "gpu": lack.gpu.map(|gpu| gpu.to_string()),
        "nic": lack.nic.as_deref().map(short),
    })
}

fn need(need: Need) -> String {
    match need {
        Need::Gpu => "gpu".to_owned(),
        Need::Nic => "nic".to_owned(),
        Need::GpuMemory => "gpu-memory".to_owned(),
        Need::NicPages => "nic-pages".to_owned(),
        Need::Path(path) => path.to_string(),
    }
}
