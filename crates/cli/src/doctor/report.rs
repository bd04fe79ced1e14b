//! The report: as text, as JSON, as a shell script.

use std::fmt::Write as _;

use bellpush::pcie::topology::{Address, candidates};
use serde_json::{Value, json};

use super::finding::{Finding, Lack, Need, Severity};
use super::live::Measured;
use super::machine::{Machine, RANKED};
use super::read::short;
use super::right::{Right, broken};
use super::verdict::{PathVerdict, Verdicts, is_left_nothing, status};

/// Version of the JSON: one more where a key changes its meaning or goes.
const VERSION: u32 = 2;
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
    /// What the checks found.
    pub findings: &'a [Finding],
    /// What was measured.
    pub live: Option<&'a Measured>,
}

/// A GPU and a NIC.
struct Pair {
    gpu: Address,
    nic: Address,
    class: String,
    distance: Option<u32>,
    is_given: bool,
}

/// The checks that a verdict names.
type ChecksOf = fn(&PathVerdict) -> &Vec<&'static str>;

fn pairs(m: &Machine, findings: &[Finding]) -> Vec<Pair> {
    let Some(tree) = m.pci.tree() else { return Vec::new() };
    let broken = broken(m, findings);
    let given = m.usable_pairs(|nic| broken.contains_key(&m.nic_name(nic)));
    let nodes: Vec<u32> = m.system.distances.keys().copied().collect();
    let distance = |a: Address, b: Address| {
        let place = nodes.iter().position(|&n| Some(n) == tree.numa(b))?;
        m.system.distances.get(&tree.numa(a)?)?.get(place).copied()
    };
    let mut all = Vec::new();
    let nics = candidates(&tree);
    for gpu in m.gpus().into_iter().take(RANKED) {
        for &nic in nics.iter().take(RANKED) {
            all.push(Pair {
                gpu,
                nic,
                class: tree.class(gpu, nic).to_string(),
                distance: distance(gpu, nic),
                is_given: given.iter().any(|p| p.gpu == gpu && p.nic == Some(nic)),
            });
        }
    }
    all
}

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

impl Report<'_> {
    fn of(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |f| f.severity == severity)
    }

    /// The report as text, the verdict first.
    pub fn text(&self) -> String {
        let m = self.machine;
        let right = Right::of(m, self.findings);
        let known = |text: Option<&String>| short(text.map_or("unknown", String::as_str));
        let mut out = format!("bellpush doctor: {}\n", short(&self.name));
        wrapped(&mut out, "recorded", &self.what);
        let (linux, cpu) = (known(m.system.release.known()), known(m.system.cpu.known()));
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        let (gpus, cards) = (m.gpus().len(), m.mlx5().count());
        wrapped(
            &mut out,
            "machine",
            &format!(
                "Linux {linux}; {cpu}; {gpus} NVIDIA GPU{}; {cards} device{} of mlx5",
                plural(gpus),
                plural(cards)
            ),
        );
        self.verdict(&right, &mut out);
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
        let fine = right.lines();
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

    /// That there is a script, where it mends something.
    fn remedy(&self, out: &mut String) {
        let bad = || self.findings.iter().filter(|f| f.severity >= Severity::Warning);
        let mended = bad().filter(|f| !f.script.is_empty()).count();
        if mended == 0 {
            return;
        }
        let of = if self.machine.live { "" } else { " --machine …" };
        let text = format!(
            "`bellpush doctor{of} --fix` prints a shell script with the fixes of {mended} of {} \
             findings above; it runs nothing",
            bad().count()
        );
        out.push('\n');
        wrapped(out, "to mend", &text);
    }

    fn verdict(&self, right: &Right<'_>, out: &mut String) {
        let verdicts = Verdicts::of(self.machine, self.findings);
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
        let (u, fine) = (count(Severity::Unseen), right.count());
        // Each of them leaves another device, and no device is left.
        let together = match p == 0 && is_left_nothing(&verdicts) {
            true => " by itself, all together every path on a card",
            false => "",
        };
        let text = format!(
            "{p} prevent something{together}, {w} warnings, {u} not to be seen, {fine} fine"
        );
        wrapped(out, "findings", &text);
    }

    fn placement(&self, out: &mut String) {
        let m = self.machine;
        let all = pairs(m, self.findings);
        if m.rdma.is_empty() || all.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "\nClass and NUMA distance of every GPU and NIC; * the NIC that a GPU should take"
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
        if let Some((gpus, nics)) = m.unranked() {
            let _ = writeln!(
                out,
                "  {gpus} GPUs and {nics} NICs: --json has the first {RANKED} of each, unranked"
            );
        } else if nics.len() > MOST || m.gpus().len() > MOST {
            let _ = writeln!(out, "  the rest: --json");
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
        let findings = self.findings.iter().map(|f| {
            let of = |needs: &[Need]| needs.iter().map(|n| need(*n)).collect::<Vec<&str>>();
            json!({
                "check": f.check, "severity": f.severity.name(), "subject": f.subject,
                "found": f.found, "expected": f.expected, "cost": f.cost, "fix": f.fix,
                "source": f.source, "script": f.script, "prevents": of(&f.prevents),
                "hides": of(&f.hides), "lacks": f.lacks.iter().map(lack).collect::<Vec<_>>(),
            })
        });
        let verdicts = Verdicts::of(self.machine, self.findings);
        let groups = verdicts.groups().into_iter().map(|group| {
            let pair = |(g, n): &(usize, usize)| {
                let gpu = verdicts.gpus[*g].map(|gpu| gpu.to_string());
                json!({ "gpu": gpu, "nic": verdicts.nics[*n].as_deref().map(short) })
            };
            let pairs: Vec<Value> = group.pairs.iter().map(pair).collect();
            json!({ "pairs": pairs, "paths": of_paths(&group.paths) })
        });
        let m = self.machine;
        let placement = pairs(m, self.findings).into_iter().map(|p| {
            json!({
                "gpu": p.gpu.to_string(), "nic": p.nic.to_string(), "name": short(&m.nic_name(p.nic)),
                "class": p.class, "numa_distance": p.distance, "assigned": p.is_given,
            })
        });
        json!({
            "meta": {
                "command": "doctor", "version": VERSION, "machine": self.name, "live": m.live,
            },
            "status": status(self.machine, self.findings),
            "paths_on_a_card": of_paths(&verdicts.best()),
            "verdicts": groups.collect::<Vec<_>>(),
            "kernels": verdicts.has_gpu().map(|has| if has { "gpu" } else { "cpu" }),
            "placement": if m.rdma.is_empty() { Vec::new() } else { placement.collect::<Vec<_>>() },
            "findings": findings.collect::<Vec<_>>(),
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
        let bad = self.findings.iter().filter(|f| f.severity >= Severity::Warning);
        for f in bad {
            let about =
                if f.subject.is_empty() { String::new() } else { format!(" {}", f.subject) };
            let _ = writeln!(out, "\n# {}{about}: {}", f.check, f.found);
            if f.script.is_empty() {
                let _ = writeln!(out, "# no command mends it: {}", f.fix);
            }
            f.script.iter().for_each(|line| {
                let _ = writeln!(out, "{line}");
            });
        }
        out
    }
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

fn need(need: Need) -> &'static str {
    match need {
        Need::Gpu => "gpu",
        Need::Nic => "nic",
        Need::GpuMemory => "gpu-memory",
        Need::NicPages => "nic-pages",
    }
}
