//! What the findings mean: which paths each GPU can take with each card, and the exit status.

use std::collections::{BTreeMap, BTreeSet};

use bellpush::pcie::topology::Address;
use bellpush::transport::{Data, Kick, Path};

use super::finding::{Finding, Lack, Need, Severity};
use super::machine::rdma::RdmaDevice;
use super::machine::{Machine, RANKED};
use super::read::short;

/// Exit status of a machine with warnings, and of one where something is prevented.
pub const WARNED: u8 = 1;
/// The same, of one where something is prevented. 2 is wrong input, as everywhere.
pub const PREVENTED: u8 = 3;
/// Everything that several paths may need.
const NEEDS: [Need; 4] = [Need::Gpu, Need::Nic, Need::GpuMemory, Need::NicPages];
/// Most pairs that a line names.
const NAMED: usize = 8;

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

/// What a path needs on a card, whose window is in host memory where it has no memory of its own.
pub fn needs(path: Path, is_window_hosted: bool) -> Vec<Need> {
    let mut needs = Vec::new();
    if path == Path::TCP {
        return needs;
    }
    needs.extend([Need::Gpu, Need::Nic]);
    if path.data() == Data::Pull {
        needs.push(Need::GpuMemory);
    }
    // The window of a push, and the doorbell of a kernel or a stream.
    if path.data() == Data::Push && !is_window_hosted || path.kick() != Some(Kick::Cpu) {
        needs.push(Need::NicPages);
    }
    needs
}

/// Checks by what they say of a need.
type Checks = BTreeMap<Need, Vec<&'static str>>;

/// What the checks say of a GPU and a card: what they prevent, and what they did not see.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    by: Checks,
    unseen: Checks,
}

impl Cell {
    fn add(&mut self, finding: &Finding, need: Need) {
        let unseen = finding.severity == Severity::Unseen;
        let all = if unseen { &mut self.unseen } else { &mut self.by };
        let checks = all.entry(need).or_default();
        if !checks.contains(&finding.check) {
            checks.push(finding.check);
        }
    }

    /// Every path; push/inband is omitted: no card has it.
    fn paths(&self, is_window_hosted: bool) -> Vec<PathVerdict> {
        let on_a_card = Path::ALL.into_iter().filter(|p| p.kick() != Some(Kick::Inband));
        let checks = |path: Path, of: &Checks| {
            let needs = needs(path, is_window_hosted).into_iter().chain([Need::Path(path)]);
            union(needs.filter_map(|need| of.get(&need)).flatten().copied())
        };
        let verdict = |path: Path| PathVerdict {
            path,
            by: checks(path, &self.by),
            unseen: checks(path, &self.unseen),
        };
        on_a_card.map(verdict).collect()
    }
}

/// Each once, in their order.
fn union(checks: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let mut all = Vec::new();
    checks.for_each(|check| {
        if !all.contains(&check) {
            all.push(check);
        }
    });
    all
}

/// Pairs of a GPU and a card of which the same is said.
pub struct Group {
    /// Numbers of GPUs and cards in [`Verdicts`].
    pub pairs: Vec<(usize, usize)>,
    /// Every path.
    pub paths: Vec<PathVerdict>,
}

/// What every GPU can with every card.
pub struct Verdicts {
    /// The GPUs; one without an address where none is shown.
    pub gpus: Vec<Option<Address>>,
    /// RDMA devices that are of mlx5 or may be; one without a name where none is shown.
    pub nics: Vec<Option<String>>,
    /// Those of them that have no memory for a window, by their numbers.
    hosted: BTreeSet<usize>,
    /// Whether there are more of them than are looked at.
    pub is_cut: bool,
    /// A row for each GPU.
    cells: Vec<Cell>,
}

impl Verdicts {
    /// The verdicts of a machine.
    pub fn of(m: &Machine, findings: &[Finding]) -> Self {
        let mut gpus: Vec<_> =
            m.seen_gpus().into_iter().filter(|a| m.is_given(*a)).map(Some).collect();
        let is_asked = |device: &&RdmaDevice| device.is_mlx5() || device.may_be_mlx5();
        let nics = m.rdma.iter().filter(is_asked).map(|device| Some(device.name.clone()));
        let mut nics: Vec<_> = nics.collect();
        let is_cut = gpus.len() > RANKED || nics.len() > RANKED;
        gpus.truncate(RANKED);
        nics.truncate(RANKED);
        // What is so of all is so where nothing is shown.
        if gpus.is_empty() {
            gpus.push(None);
        }
        if nics.is_empty() {
            nics.push(None);
        }
        let cells = vec![Cell::default(); gpus.len() * nics.len()];
        let is_hosted = |nic: &Option<String>| nic.as_ref().is_some_and(|nic| m.lacks_memory(nic));
        let all = nics.iter().enumerate().filter(|(_, nic)| is_hosted(nic));
        let hosted = all.map(|(nth, _)| nth).collect();
        let mut own = Self { gpus, nics, hosted, is_cut, cells };
        let lacks = findings.iter().flat_map(|finding| &finding.lacks);
        let tried: BTreeSet<Need> =
            lacks.map(|of| of.need).filter(|need| matches!(need, Need::Path(_))).collect();
        for need in NEEDS.into_iter().chain(tried) {
            let shown = own.shown(findings, need);
            for finding in findings {
                let is_answered = |at: &usize| {
                    let may_err = finding.severity == Severity::Unseen || need == Need::Nic;
                    may_err && shown.contains(at)
                };
                for at in own.concerned(finding, need).into_iter().filter(|at| !is_answered(at)) {
                    own.cells[at].add(finding, need);
                }
            }
        }
        own
    }

    /// Pairs that were seen to have what is needed.
    fn shown(&self, findings: &[Finding], need: Need) -> BTreeSet<usize> {
        findings.iter().flat_map(|finding| self.pairs_of(&finding.shows, need)).collect()
    }

    /// Pairs of these devices.
    fn pairs_of(&self, devices: &[Lack], need: Need) -> BTreeSet<usize> {
        let mut cells = BTreeSet::new();
        for of in devices.iter().filter(|of| of.need == need) {
            let gpus = numbers(&self.gpus, of.gpu.as_ref());
            for nic in numbers(&self.nics, of.nic.as_ref()) {
                cells.extend(gpus.clone().map(|gpu| gpu * self.nics.len() + nic));
            }
        }
        cells
    }

    /// Pairs to which a finding says that they lack something, or that they may lack it.
    fn concerned(&self, finding: &Finding, need: Need) -> BTreeSet<usize> {
        let all = [&finding.prevents, &finding.hides];
        if finding.lacks.is_empty() {
            let is_said = all.iter().any(|needs| needs.contains(&need));
            return if is_said { (0..self.cells.len()).collect() } else { BTreeSet::new() };
        }
        self.pairs_of(&finding.lacks, need)
    }

    /// Pairs of which a need is asked: those that can be used, where it is what they do together.
    fn asked(&self, need: Need) -> BTreeSet<usize> {
        let is_usable = |at: &usize| {
            let by = &self.cells[*at].by;
            !by.contains_key(&Need::Gpu) && !by.contains_key(&Need::Nic)
        };
        let all: BTreeSet<usize> = (0..self.cells.len()).collect();
        let usable: BTreeSet<usize> = all.iter().copied().filter(is_usable).collect();
        match need {
            Need::GpuMemory | Need::NicPages if !usable.is_empty() => usable,
            _ => all,
        }
    }

    /// Checks by which no card can use a GPU; none of one that can be used.
    pub fn against_gpu(&self, gpu: Address) -> Vec<&'static str> {
        let row = self.gpus.iter().position(|own| *own == Some(gpu));
        let width = self.nics.len();
        row.map_or_else(Vec::new, |g| self.against(Need::Gpu, g * width..(g + 1) * width))
    }

    /// Checks by which no GPU can use an RDMA device.
    pub fn against_nic(&self, nic: &str) -> Vec<&'static str> {
        let column = self.nics.iter().position(|own| own.as_deref() == Some(nic));
        let width = self.nics.len();
        column.map_or_else(Vec::new, |n| {
            self.against(Need::Nic, (0..self.gpus.len()).map(move |g| g * width + n))
        })
    }

    /// Checks that say of all of these pairs that they lack something.
    fn against(&self, need: Need, pairs: impl Iterator<Item = usize>) -> Vec<&'static str> {
        let all: Option<Vec<_>> = pairs.map(|at| self.cells[at].by.get(&need)).collect();
        union(all.unwrap_or_default().into_iter().flatten().copied())
    }

    /// The pairs by what is said of them, those with the most paths first.
    pub fn groups(&self) -> Vec<Group> {
        let mut by_cell: BTreeMap<(&Cell, bool), Vec<(usize, usize)>> = BTreeMap::new();
        for (at, cell) in self.cells.iter().enumerate() {
            let pair = (at / self.nics.len(), at % self.nics.len());
            by_cell.entry((cell, self.hosted.contains(&pair.1))).or_default().push(pair);
        }
        let mut groups: Vec<Group> = Vec::new();
        for ((cell, is_hosted), pairs) in by_cell {
            let paths = cell.paths(is_hosted);
            // Where the window is matters to some of what is said.
            match groups.iter_mut().find(|group| group.paths == paths) {
                Some(group) => group.pairs.extend(pairs),
                None => groups.push(Group { pairs, paths }),
            }
        }
        groups.iter_mut().for_each(|group| group.pairs.sort_unstable());
        let can = |group: &Group| {
            group.paths.iter().filter(|verdict| verdict.is_possible() == Some(true)).count()
        };
        groups.sort_by_key(|group| (std::cmp::Reverse(can(group)), group.pairs[0]));
        groups
    }

    /// Every path, as the pair has it that has it best.
    pub fn best(&self) -> Vec<PathVerdict> {
        let groups = self.groups();
        let of = |nth: usize| {
            let all: Vec<&PathVerdict> = groups.iter().map(|group| &group.paths[nth]).collect();
            let rank = |verdict: &&&PathVerdict| match verdict.is_possible() {
                Some(true) => 2,
                None => 1,
                Some(false) => 0,
            };
            let most = all.iter().map(|verdict| rank(&verdict)).max();
            let best: Vec<_> = all.iter().filter(|verdict| Some(rank(verdict)) == most).collect();
            PathVerdict {
                path: all[0].path,
                by: union(best.iter().flat_map(|verdict| verdict.by.iter().copied())),
                unseen: union(best.iter().flat_map(|verdict| verdict.unseen.iter().copied())),
            }
        };
        (0..groups[0].paths.len()).map(of).collect()
    }

    /// Whether kernels run on a GPU; `None` where that is not to be seen.
    pub fn has_gpu(&self) -> Option<bool> {
        let said = |checks: &Checks| checks.contains_key(&Need::Gpu);
        if self.cells.iter().any(|cell| !said(&cell.by) && !said(&cell.unseen)) {
            return Some(true);
        }
        self.cells.iter().all(|cell| said(&cell.by)).then_some(false)
    }

    /// Which pairs a group has, in words.
    pub fn who(&self, m: &Machine, group: &Group) -> String {
        let gpus: BTreeSet<usize> = group.pairs.iter().map(|pair| pair.0).collect();
        let nics: BTreeSet<usize> = group.pairs.iter().map(|pair| pair.1).collect();
        let gpu = |g: &usize| self.gpus[*g].map_or_else(|| "no GPU".to_owned(), |a| label(m, a));
        let nic = |n: &usize| short(self.nics[*n].as_deref().unwrap_or("no card"));
        let list = |all: Vec<String>| all.join(", ");
        let of_gpus = || list(gpus.iter().map(gpu).collect());
        let of_nics = || list(nics.iter().map(nic).collect());
        let is_product = gpus.len() * nics.len() == group.pairs.len();
        let (all_gpus, all_nics) = (gpus.len() == self.gpus.len(), nics.len() == self.nics.len());
        match (is_product, all_gpus, all_nics) {
            (true, true, _) if gpus.len() > 1 => format!("{} with each GPU", of_nics()),
            (true, _, true) if nics.len() > 1 => format!("{} with each card", of_gpus()),
            (true, _, _) => format!("{} with {}", of_nics(), of_gpus()),
            (false, _, _) => {
                let pairs = group.pairs.iter().take(NAMED);
                let named: Vec<_> =
                    pairs.map(|(g, n)| format!("{} with {}", nic(n), gpu(g))).collect();
                match group.pairs.len() - named.len() {
                    0 => list(named),
                    more => format!("{}, and {more} pairs more (--json)", list(named)),
                }
            }
        }
    }
}

/// A GPU as lists call it, without its address.
pub fn label(m: &Machine, gpu: Address) -> String {
    m.gpu_name(gpu).split(' ').next().unwrap_or_default().to_owned()
}

/// Numbers of the devices of which something is so: one, or without any all.
fn numbers<T: PartialEq>(all: &[Option<T>], one: Option<&T>) -> std::ops::Range<usize> {
    match one {
        None => 0..all.len(),
        Some(one) => match all.iter().position(|own| own.as_ref() == Some(one)) {
            Some(at) => at..at + 1,
            None => 0..0,
        },
    }
}

/// Makes findings of devices that lack something prevent it where they leave it to no pair of a GPU and a card: those
/// that do so by themselves, and where none does, those that do so together. The others leave a pair, and are what
/// their checks say.
pub fn settle(m: &Machine, findings: &mut [Finding]) {
    let verdicts = Verdicts::of(m, findings);
    if verdicts.is_cut {
        return; // a pair that is not looked at may be left
    }
    for need in NEEDS {
        let asked = verdicts.asked(need);
        let mut takes = Vec::new();
        for (nth, finding) in findings.iter().enumerate() {
            let concerned = verdicts.concerned(finding, need);
            let of_asked: BTreeSet<usize> = concerned.intersection(&asked).copied().collect();
            if finding.severity != Severity::Unseen && !of_asked.is_empty() {
                takes.push((nth, of_asked));
            }
        }
        let taken: BTreeSet<usize> = takes.iter().flat_map(|(_, pairs)| pairs).copied().collect();
        if taken != asked {
            continue;
        }
        if takes.iter().any(|(_, pairs)| *pairs == asked) {
            takes.retain(|(_, pairs)| *pairs == asked);
        }
        for (nth, _) in takes {
            findings[nth].severity = Severity::Prevents;
            if !findings[nth].prevents.contains(&need) {
                findings[nth].prevents.push(need);
            }
        }
    }
}

/// What is said of findings that messages by `--live` have answered.
const ANSWERED: &str = "none: messages by --live went through";

/// Makes notes of findings by which cards cannot be used that were then seen to carry bytes; of one that names others as
/// well, these are left.
fn contradict(verdicts: &Verdicts, findings: &mut [Finding]) {
    let shown = findings.iter().flat_map(|finding| &finding.shows);
    let carried: BTreeSet<String> =
        shown.filter(|of| of.need == Need::Nic).filter_map(|of| of.nic.clone()).collect();
    let is_carried = |nic: &Option<String>| nic.as_ref().is_some_and(|nic| carried.contains(nic));
    let are_all = verdicts.nics.iter().all(is_carried);
    for finding in findings.iter_mut().filter(|finding| finding.severity != Severity::Unseen) {
        let count = finding.lacks.len();
        finding.lacks.retain(|of| of.need != Need::Nic || !is_carried(&of.nic));
        let is_of_all = count == 0 && are_all && finding.prevents.contains(&Need::Nic);
        if is_of_all || count > 0 && finding.lacks.is_empty() {
            finding.prevents.retain(|need| *need != Need::Nic);
            if finding.prevents.is_empty() {
                finding.severity = finding.severity.min(Severity::Note);
                finding.cost = ANSWERED.to_owned();
            }
        }
    }
}

/// Makes notes of what checks have not seen and what was then seen of every device that it hides, and of what was then
/// seen to be otherwise.
pub fn answer(m: &Machine, findings: &mut [Finding]) {
    let verdicts = Verdicts::of(m, findings);
    if verdicts.is_cut {
        return;
    }
    contradict(&verdicts, findings);
    let shown = NEEDS.map(|need| verdicts.shown(findings, need));
    for finding in findings.iter_mut().filter(|finding| finding.severity == Severity::Unseen) {
        let hidden = NEEDS.map(|need| verdicts.concerned(finding, need));
        let is_answered = hidden.iter().zip(&shown).all(|(hidden, shown)| hidden.is_subset(shown));
        if is_answered && hidden.iter().any(|hidden| !hidden.is_empty()) {
            finding.severity = Severity::Note;
            finding.cost = ANSWERED.to_owned();
            finding.hides.clear();
            finding.lacks.clear();
        }
    }
}

/// The exit status: that of the worst finding.
pub fn status(findings: &[Finding]) -> u8 {
    match findings.iter().map(|f| f.severity).max() {
        Some(Severity::Prevents) => PREVENTED,
        Some(Severity::Warning) => WARNED,
        _ => 0,
    }
}
