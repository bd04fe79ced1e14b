//! What a check says.

use bellpush::pcie::topology::Address;
use bellpush::transport::Path;

use super::machine::Machine;

/// How much a finding matters. The order is that of the report, worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Worth knowing; costs nothing, or nothing that bellpush needs.
    Note,
    /// It cannot be seen here.
    Unseen,
    /// It works, and costs something.
    Warning,
    /// It prevents something.
    Prevents,
}

impl Severity {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Note => "note",
            Self::Unseen => "unseen",
            Self::Warning => "warning",
            Self::Prevents => "prevents",
        }
    }
}

/// What paths need, each of which a finding may prevent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Kernels on a GPU.
    Gpu,
    /// An mlx5 device that opens and has an active port.
    Nic,
    /// Registration of GPU memory, and reads of it by the NIC.
    GpuMemory,
    /// The NIC's pages mapped into the GPU: doorbells and windows.
    NicPages,
    /// This path, which was tried.
    Path(Path),
}

/// Some devices that lack what paths need, while others may have it; or that were seen to have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// What they lack.
    pub need: Need,
    /// The GPU; every one where there is none.
    pub gpu: Option<Address>,
    /// The RDMA device; every one where there is none.
    pub nic: Option<String>,
}

/// A check's answer about one subject.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Id of the check.
    pub check: &'static str,
    /// How much it matters, of what it takes from devices when [`settle`](super::verdict::settle) has looked at it.
    pub severity: Severity,
    /// What it speaks of, such as a device; empty for the machine.
    pub subject: String,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
    /// What the difference costs.
    pub cost: String,
    /// What mends it.
    pub fix: String,
    /// Commands that mend it, for `--fix`.
    pub script: Vec<String>,
    /// What it prevents.
    pub prevents: Vec<Need>,
    /// What may or may not work, as it cannot be seen.
    pub hides: Vec<Need>,
    /// What some devices lack, or may lack where that is not to be seen. Without any, what it prevents and what it hides
    /// is so of all devices.
    pub lacks: Vec<Lack>,
    /// What some devices were seen to have: it answers what checks do not see of them.
    pub shows: Vec<Lack>,
    /// Where this is written; the check's, unless the finding has its own.
    pub source: &'static str,
}

impl Finding {
    fn new(severity: Severity, found: impl Into<String>) -> Self {
        Self {
            check: "",
            severity,
            subject: String::new(),
            found: found.into(),
            expected: String::new(),
            cost: String::new(),
            fix: String::new(),
            script: Vec::new(),
            prevents: Vec::new(),
            hides: Vec::new(),
            lacks: Vec::new(),
            shows: Vec::new(),
            source: "",
        }
    }

    /// As it should be.
    pub fn fine(found: impl Into<String>) -> Self {
        Self::new(Severity::Fine, found)
    }

    /// Worth knowing.
    pub fn note(found: impl Into<String>) -> Self {
        Self::new(Severity::Note, found)
    }

    /// Not to be seen here; `how` it could be.
    pub fn unseen(found: impl Into<String>, how: impl Into<String>) -> Self {
        Self::new(Severity::Unseen, found).fix(how)
    }

    /// Costs something.
    pub fn warn(found: impl Into<String>) -> Self {
        Self::new(Severity::Warning, found)
    }

    /// Prevents something.
    pub fn prevents(needs: &[Need], found: impl Into<String>) -> Self {
        Self { prevents: needs.to_vec(), ..Self::new(Severity::Prevents, found) }
    }

    /// What may or may not work.
    pub fn hides(mut self, needs: &[Need]) -> Self {
        self.hides = needs.to_vec();
        self
    }

    /// What a GPU lacks, beside any NIC.
    pub fn lacks_of_gpu(mut self, need: Need, gpu: Address) -> Self {
        self.lacks.push(Lack { need, gpu: Some(gpu), nic: None });
        self
    }

    /// What an RDMA device lacks, beside any GPU.
    pub fn lacks_of_nic(mut self, need: Need, nic: &str) -> Self {
        self.lacks.push(Lack { need, gpu: None, nic: Some(nic.to_owned()) });
        self
    }

    /// An RDMA device that cannot be used, by any GPU.
    pub fn lacks_nic(self, nic: &str) -> Self {
        self.lacks_of_nic(Need::Nic, nic)
    }

    /// What a GPU and an RDMA device lack together.
    pub fn lacks_of_pair(mut self, need: Need, gpu: Address, nic: &str) -> Self {
        self.lacks.push(Lack { need, gpu: Some(gpu), nic: Some(nic.to_owned()) });
        self
    }

    /// What it speaks of.
    pub fn of(mut self, subject: impl Into<String>) -> Self {
        self.subject = subject.into();
        self
    }

    /// What was expected.
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = expected.into();
        self
    }

    /// What the difference costs.
    pub fn cost(mut self, cost: impl Into<String>) -> Self {
        self.cost = cost.into();
        self
    }

    /// What mends it.
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    /// A command that mends it.
    pub fn script(mut self, line: impl Into<String>) -> Self {
        self.script.push(line.into());
        self
    }

    /// Whether its script has a command, and not comments alone.
    pub fn has_command(&self) -> bool {
        self.script.iter().any(|line| !line.starts_with('#'))
    }

    /// Where this is written, if not where the check says.
    pub fn source(mut self, source: &'static str) -> Self {
        self.source = source;
        self
    }
}

/// One check.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Its name in reports.
    pub id: &'static str,
    /// What it looks at.
    pub about: &'static str,
    /// Where its expectation is written.
    pub source: &'static str,
    /// The check. No finding: there is nothing that it applies to.
    pub run: fn(&Machine) -> Vec<Finding>,
}

impl Check {
    /// Its findings, with its name and source.
    pub fn findings(&self, machine: &Machine) -> Vec<Finding> {
        let mut all = (self.run)(machine);
        for finding in &mut all {
            finding.check = self.id;
            if finding.source.is_empty() {
                finding.source = self.source;
            }
        }
        all
    }
}

/// One argument of a shell.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/=,+%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    // No name has a line's end; a control character would end a line of the script.
    let line: String = text.chars().filter(|c| !c.is_control()).collect();
    format!("'{}'", line.replace('\'', "'\\''"))
}
