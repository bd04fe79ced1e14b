//! Short measurements: a put by every path, and the counters around it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Nic, open_verbs};
use bellpush::pcie::topology::Address;
use bellpush::transport::{Kick, Path};
use bellpush_cli::report::human::time_ns;
use serde_json::{Value, json};

use super::checks::CHECKS;
use super::finding::{Finding, Lack, Need};
use super::grown::{self, Counters, card, port};
use super::in_one_line;
use super::machine::Machine;
use super::puts::{BYTES, Failure, PUTS, gpu, reasons, time};
use super::read::short;
use super::verdict::needs;
use crate::cli::CliError;

/// When no further path is begun.
const LONGEST: Duration = Duration::from_secs(4);

/// The check of NICs' device memory.
const WINDOW: &str = "rdma-window";

/// What was measured.
#[derive(Debug)]
pub struct Measured {
    /// Where kernels ran, and the NIC.
    pub on: String,
    /// Bytes of the NIC's device memory (MEMIC).
    pub device_memory: u64,
    /// Whether the NIC has atomics.
    pub atomics: bool,
    /// The GPU that was opened, where it tells its address.
    pub gpu: Option<Address>,
    /// Why kernels ran on CPU threads, so that times rank nothing: CUDA's refusal.
    pub refused: Option<String>,
    /// Median time of a put in ns of each path, or why there was none.
    pub paths: Vec<(Path, Result<f64, Failure>)>,
    /// Counters that have changed, and by how much.
    pub counters: Counters,
}

/// Measures on the software NIC, or the card `nic`. `read` reads the machine's counters.
pub fn measure(nic: &str, read: impl Fn() -> Counters) -> Result<Measured, CliError> {
    let (gpu, refused) = gpu().map_err(|e| CliError::new(e, "leave out --live"))?;
    let is_soft = nic == "soft";
    let opened: Arc<dyn Nic> = match is_soft {
        true => SoftNic::open(SoftConfig::new(&InProcess::new())).map_err(|e| {
            CliError::new(format!("the software NIC did not start: {e}"), "leave out --live")
        })?,
        false => open_verbs(nic).map_err(|e| {
            CliError::new(
                format!("--nic: {e}"),
                "bellpush doctor without --live says what is missing",
            )
        })?,
    };
    let before = read();
    let begun = Instant::now();
    let mut paths = Vec::new();
    for path in Path::ALL {
        let timed = match begun.elapsed() < LONGEST {
            true => time(&gpu, &opened, path),
            false => Err(Failure::NotBegun),
        };
        paths.push((path, timed));
    }
    let counters = grown::between(before, read());
    Ok(Measured {
        gpu: gpu.describe().pci.as_deref().and_then(|pci| pci.parse().ok()),
        refused,
        on: short(&format!("{}, {}", gpu.describe(), opened.name())),
        device_memory: opened.dm_bytes(),
        atomics: opened.atomics(),
        paths,
        counters,
    })
}

impl Measured {
    /// Adds what it means to what the checks have found, which are told again what verbs alone tell.
    pub fn add_to(&self, m: &mut Machine, nic: &str, findings: &mut Vec<Finding>) {
        if let Some(device) = card(nic) {
            m.device_memory.insert(device.to_owned(), self.device_memory);
            for check in CHECKS.iter().filter(|check| check.id == WINDOW) {
                let at =
                    findings.iter().position(|f| f.check == check.id).unwrap_or(findings.len());
                findings.retain(|f| f.check != check.id);
                findings.splice(at..at, check.findings(m).into_iter().map(in_one_line));
            }
        }
        findings.extend(self.findings(m, nic).into_iter().map(in_one_line));
    }

    /// What it means on this machine.
    pub fn findings(&self, m: &Machine, nic: &str) -> Vec<Finding> {
        let mut all = self.of_paths(nic);
        all.iter_mut().for_each(|finding| finding.subject = port(nic).to_owned());
        all.extend(self.refusal(m));
        all.extend(self.of_counters(m, nic));
        for finding in &mut all {
            finding.check = "live";
            finding.source = "measured";
        }
        all
    }

    /// Of the paths. That tcp carried its bytes says nothing of a card, and push/inband is expected of none.
    fn of_paths(&self, nic: &str) -> Vec<Finding> {
        let card = card(nic);
        let is_asked = |path: Path| card.is_none() || needs(path, false).contains(&Need::Nic);
        let count =
            self.paths.iter().filter(|(path, timed)| timed.is_ok() && is_asked(*path)).count();
        let is_expected = |path: Path| card.is_some() && path.kick() == Some(Kick::Inband);
        let failed = |is_it: fn(&Failure) -> bool| -> Vec<(Path, &Failure)> {
            let all = self.paths.iter().filter_map(|(path, it)| Some((*path, it.as_ref().err()?)));
            all.filter(|(path, why)| is_it(why) && !is_expected(*path)).collect()
        };
        let lacking = failed(|why| matches!(why, Failure::Unsupported(_)));
        let failing = failed(|why| matches!(why, Failure::Failed(_)));
        let waiting = failed(|why| *why == Failure::NotBegun);
        let is_whole = count == 0 && waiting.is_empty();
        let mut all = Vec::new();
        if count > 0 {
            let mut finding = Finding::fine(format!("{count} paths carried their bytes"));
            finding.shows = self.shown(nic);
            all.push(finding);
        }
        let lacks = |finding: Finding, paths: &[(Path, &Failure)], is_all: bool| match card {
            None => finding,
            Some(device) if is_whole && is_all => finding.lacks_nic(device),
            Some(device) => paths.iter().fold(finding, |mut finding, (path, _)| {
                let (gpu, nic) = (self.opened(), Some(device.to_owned()));
                finding.lacks.push(Lack { need: Need::Path(*path), gpu, nic });
                finding
            }),
        };
        let cost = "these paths cannot be taken";
        if !failing.is_empty() {
            let finding = lacks(Finding::warn(reasons(&failing)), &failing, true);
            all.push(finding.expected("every path carries its bytes").cost(cost));
        }
        if !lacking.is_empty() {
            // Few cards have all of them.
            let found = reasons(&lacking);
            let finding = if card.is_none() { Finding::warn(found) } else { Finding::note(found) };
            all.push(lacks(finding, &lacking, failing.is_empty()).cost(cost));
        }
        if !waiting.is_empty() {
            let how = "bellpush bench --nic, with --data and --kick of each path";
            all.push(Finding::unseen(reasons(&waiting), how));
        }
        all
    }

    /// Of the counters.
    fn of_counters(&self, m: &Machine, nic: &str) -> Vec<Finding> {
        match &self.counters {
            Ok(counters) => grown::findings(counters, m, nic),
            Err(why) => {
                let found = format!("which counters grew meanwhile: {}", short(why));
                vec![Finding::unseen(found, "rdma statistic, and ethtool -S, before and after")]
            }
        }
    }

    /// The GPU that kernels ran on.
    fn opened(&self) -> Option<Address> {
        self.gpu.filter(|_| self.refused.is_none())
    }

    /// What the GPU and the card have, by the paths that carried their bytes: of the card alone where kernels ran on CPU
    /// threads, whose memory is no GPU's.
    fn shown(&self, nic: &str) -> Vec<Lack> {
        let device = card(nic);
        let carried = self.paths.iter().filter(|(_, timed)| timed.is_ok());
        let mut all: Vec<Lack> = Vec::new();
        // What a CPU rings says nothing of doorbells in a GPU's address space.
        let has =
            |path: Path, need: &Need| *need != Need::NicPages || path.kick() != Some(Kick::Cpu);
        let had = |path: Path| needs(path, false).into_iter().filter(move |need| has(path, need));
        for need in carried.flat_map(|(path, _)| had(*path)) {
            let gpu = self.opened();
            let lack = match (need, device, gpu) {
                (Need::Nic, Some(name), _) => Lack { need, gpu: None, nic: Some(name.to_owned()) },
                (Need::Gpu, _, Some(_)) => Lack { need, gpu, nic: None },
                (_, Some(name), Some(_)) => Lack { need, gpu, nic: Some(name.to_owned()) },
                _ => continue,
            };
            if !all.contains(&lack) {
                all.push(lack);
            }
        }
        all
    }

    /// CUDA's refusal, where the machine has a GPU.
    fn refusal(&self, m: &Machine) -> Option<Finding> {
        let why = self.refused.as_ref().filter(|_| !m.seen_gpus().is_empty())?;
        Some(
            Finding::prevents(&[Need::Gpu], format!("no GPU was opened: {why}"))
                .expected("a GPU that opens")
                .cost("kernels ran on CPU threads, and what was measured says nothing of the GPU")
                .fix("mend what is found of the GPU, its driver and this program"),
        )
    }

    /// As text.
    pub fn text(&self) -> String {
        let mut out = format!(
            "\nMeasured, a put of {BYTES} B until its completion is seen, median of {PUTS}: {}\n",
            self.on
        );
        if let Some(why) = &self.refused {
            out += "  kernels on CPU threads: the times show what works, and rank nothing\n";
            let _ = writeln!(out, "  no GPU was opened: {why}");
        }
        let memory = match self.device_memory {
            0 => "none, the window is host memory".to_owned(),
            bytes => format!("{bytes} B"),
        };
        let atomics = if self.atomics { "on 8 bytes" } else { "none" };
        let _ = writeln!(out, "  device memory (MEMIC): {memory}; atomics: {atomics}");
        for (path, timed) in &self.paths {
            let timed = timed.as_ref().map_or_else(Failure::to_string, |ns| time_ns(*ns));
            let _ = writeln!(out, "  {:15} {timed}", path.to_string());
        }
        for (name, more) in self.counters.iter().flatten() {
            let _ = writeln!(out, "  {name} +{more}");
        }
        out
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let paths = self.paths.iter().map(|(path, timed)| {
            let (ns, error) = (timed.as_ref().ok(), timed.as_ref().err().map(Failure::to_string));
            json!({ "path": path.to_string(), "bytes": BYTES, "median_ns": ns, "error": error })
        });
        json!({
            "on": self.on, "host_executor": self.refused.is_some(), "gpu_refused": self.refused,
            "puts": paths.collect::<Vec<_>>(),
            "device_memory_bytes": self.device_memory, "atomics": self.atomics,
            "counters": self.counters.as_ref().map_or_else(|_| json!({}), |all| json!(all)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::doctor::finding::Severity;
    use crate::doctor::packed::machine;
    use crate::doctor::verdict::{Group, Verdicts, answer, settle};

    fn measured(gpu: Option<&str>, refused: Option<&str>, paths: &[Path]) -> Measured {
        Measured {
            on: "of a test".into(),
            device_memory: 0,
            atomics: true,
            gpu: gpu.map(|address| address.parse().unwrap()),
            refused: refused.map(str::to_owned),
            paths: paths.iter().map(|path| (*path, Ok(1.0))).collect(),
            counters: Ok(BTreeMap::new()),
        }
    }

    /// Why CUDA was refused is told, and is a fault where there is a GPU.
    #[test]
    fn a_refused_gpu_is_told() {
        let refused = measured(None, Some("T4 has compute capability 7.5"), &[Path::TCP]);
        let prevented = |measured: &Measured, name: &str| {
            let found = measured.findings(&machine(name), "soft").into_iter();
            let found = found.filter(|finding| finding.prevents == [Need::Gpu]);
            found.map(|finding| finding.found).collect::<Vec<_>>()
        };
        let why = "no GPU was opened: T4 has compute capability 7.5";
        assert_eq!(prevented(&refused, "ib-switches"), [why]);
        assert!(prevented(&refused, "laptop").is_empty(), "no GPU of NVIDIA");
        assert!(refused.text().contains(why), "{}", refused.text());
        assert_eq!(refused.json()["gpu_refused"], "T4 has compute capability 7.5");
        let opened = measured(Some("0000:19:00.0"), None, &[Path::TCP]);
        assert!(prevented(&opened, "ib-switches").is_empty());
        assert_eq!(opened.json()["host_executor"], false);
    }

    /// What a check has not seen is known of the GPU and the card that carried a path's bytes, and of no other.
    #[test]
    fn paths_that_work_answer_what_was_not_seen() {
        let (m, gpu) = (machine("ib-switches"), Some("0000:19:00.0"));
        let unseen = || Finding::unseen("dma-buf", "--live").hides(&[Need::GpuMemory]);
        let pull = Path::ALL.into_iter().find(|path| path.to_string() == "pull/cpu").unwrap();
        let push = Path::ALL.into_iter().find(|path| path.to_string() == "push/cpu").unwrap();
        // Whether pull/cpu is possible with each pair, by GPU and card.
        let possible = |measured: &Measured, nic: &str, unseen: Finding| {
            let mut findings = measured.findings(&m, nic);
            findings.push(unseen);
            answer(&m, &mut findings);
            let mut all = BTreeMap::new();
            for group in Verdicts::of(&m, &findings).groups() {
                let verdict = group.paths.iter().find(|verdict| verdict.path == pull).unwrap();
                all.extend(group.pairs.iter().map(|pair| (*pair, verdict.is_possible())));
            }
            (all.into_values().collect::<Vec<_>>(), findings.pop().unwrap().severity)
        };
        let (known, hidden) = (Some(true), None);
        let all = [known, hidden, hidden, hidden];
        let still = (vec![hidden; 4], Severity::Unseen);
        let card = measured(gpu, None, &[pull]);
        assert_eq!(possible(&card, "mlx5_0", unseen()), (all.to_vec(), Severity::Unseen));
        // Of that pair alone, it is answered whole.
        let mut own = unseen();
        own.hides.clear();
        let own = own.lacks_of_pair(Need::GpuMemory, gpu.unwrap().parse().unwrap(), "mlx5_0");
        assert_eq!(possible(&card, "mlx5_0:1", own), (vec![known; 4], Severity::Note));
        // A push reads no GPU memory; threads' memory is no GPU's; the software NIC is no card.
        assert_eq!(possible(&measured(gpu, None, &[push]), "mlx5_0", unseen()), still);
        let threads = measured(None, Some("no driver"), &[pull]);
        assert_eq!(possible(&threads, "mlx5_0", unseen()).1, Severity::Unseen);
        assert_eq!(possible(&card, "soft", unseen()), still);
        // Port, index of the GID and marks are of the same card.
        for name in ["mlx5_0:1", "mlx5_0:1:3", "mlx5_0,tc=106", "mlx5_0:1,tc=106,sl=3"] {
            assert_eq!(possible(&card, name, unseen()), (all.to_vec(), Severity::Unseen), "{name}");
        }
    }

    /// Counters that could not be read are no counters that stand still, and all that they ever counted is no growth.
    #[test]
    fn counters_that_were_not_read_are_unseen() {
        let m = machine("roce-genoa");
        let read = |names: &[&str]| -> Counters {
            Ok(names.iter().map(|name| (format!("mlx5_0:1 {name}"), 900)).collect())
        };
        let none = || Err("/sys did not answer within 4 s".to_owned());
        let told = |before: Counters, after: Counters| {
            let mut own = measured(None, Some("no driver"), &[]);
            own.counters = grown::between(before, after);
            let all = own.of_counters(&m, "mlx5_0").into_iter();
            let shown = own.json()["counters"].as_object().unwrap().len();
            (all.map(|f| (f.severity, f.found)).collect::<Vec<_>>(), shown)
        };
        let both = ["packet_seq_err", "rx_icrc_encapsulated"];
        for (before, after) in [(none(), read(&both)), (read(&both), none())] {
            let (all, _) = told(before, after);
            let wanted = "which counters grew meanwhile: /sys did not answer within 4 s";
            assert_eq!(all, [(Severity::Unseen, wanted.to_owned())]);
        }
        assert_eq!(told(read(&both[..1]), read(&both)), (Vec::new(), 0), "one is new");
    }

    /// A path that the CPU rings shows nothing of NIC pages in a GPU, and needs none where the window is in host memory.
    #[test]
    fn pages_are_of_those_who_ring() {
        let m = machine("ib-switches");
        let named =
            |name: &str| Path::ALL.into_iter().find(|path| path.to_string() == name).unwrap();
        for (name, shows) in [
            ("push/cpu", false),
            ("pull/cpu", false),
            ("push/stream", true),
            ("push/kernel", true),
            ("staged/kernel", true),
        ] {
            let own = measured(Some("0000:19:00.0"), None, &[named(name)]);
            let shown = own.shown("mlx5_0").iter().any(|lack| lack.need == Need::NicPages);
            assert_eq!(shown, shows, "{name}");
        }
        let refused = [Finding::prevents(&[Need::NicPages], "no PeerMappingOverride")];
        let possible = |m: &Machine| {
            let groups = Verdicts::of(m, &refused).groups();
            let of = |group: &Group| {
                let paths =
                    group.paths.iter().filter(|verdict| verdict.is_possible() == Some(true));
                paths.map(|verdict| verdict.path.to_string()).collect::<Vec<_>>().join(" ")
            };
            groups.iter().map(|group| (group.pairs.len(), of(group))).collect::<Vec<_>>()
        };
        let is = |count: usize, paths: &str| (count, paths.to_owned());
        let (with, without) = ("pull/cpu staged/cpu tcp", "push/cpu pull/cpu staged/cpu tcp");
        assert_eq!(possible(&m), [is(4, with)]);
        assert_eq!(possible(&machine("connectx-4"))[0].1, without);
        // Of one that was measured.
        let mut m = m;
        m.device_memory.insert("mlx5_1".into(), 0);
        assert_eq!(possible(&m), [is(2, without), is(2, with)]);
        // Where nothing is refused they are alike.
        assert_eq!(Verdicts::of(&m, &[]).groups().len(), 1);
    }

    /// A card that carries nothing cannot be used, whatever else its name says.
    #[test]
    fn a_card_is_known_by_its_name_with_options() {
        let m = machine("ib-switches");
        for nic in ["mlx5_0", "mlx5_0:1", "mlx5_0,tc=106", "mlx5_0:1:3,tc=106,sl=3"] {
            let mut nothing = measured(None, Some("no driver"), &[]);
            nothing.paths =
                Path::ALL.into_iter().map(|path| (path, Err(Failure::of("refused")))).collect();
            let findings = nothing.findings(&m, nic);
            let against = Verdicts::of(&m, &findings);
            assert_eq!(against.against_nic("mlx5_0"), ["live"], "{nic}");
            assert!(against.against_nic("mlx5_1").is_empty(), "{nic}");
        }
    }

    /// Paths that failed are in the verdict of the GPU and the card that failed: some, and the card where none carried
    /// anything. What a card has not is worth knowing, and push/inband is expected of none.
    #[test]
    fn paths_that_fail_cannot_be_taken() {
        let m = machine("ib-switches");
        let failing = || Err(Failure::of("syndrome 0x13"));
        let none = || Err(Failure::Unsupported("no BlueFlame".into()));
        // Each path's result, what is found of it, and how many paths each pair can take.
        let told = |refused: Option<&str>, of: &dyn Fn(Path) -> Result<f64, Failure>| {
            let gpu = refused.is_none().then_some("0000:19:00.0");
            let mut own = measured(gpu, refused, &[]);
            own.paths = Path::ALL.into_iter().map(|path| (path, of(path))).collect();
            let mut findings = own.of_paths("mlx5_0:1");
            findings.iter_mut().for_each(|finding| finding.check = "live");
            settle(&m, &mut findings);
            let mut can = BTreeMap::new();
            for group in Verdicts::of(&m, &findings).groups() {
                let count = group.paths.iter().filter(|v| v.is_possible() == Some(true)).count();
                can.extend(group.pairs.into_iter().map(|pair| (pair, count)));
            }
            let said = findings.into_iter().map(|f| (f.severity, f.found));
            (said.collect::<Vec<_>>(), can.into_values().collect::<Vec<_>>())
        };
        let is_tcp = |path: Path| path == Path::TCP;
        let is_inband = |path: Path| path.kick() == Some(Kick::Inband);
        let is_blueflame = |path: Path| path.kick() == Some(Kick::Blueflame);
        // tcp needs no card.
        let (said, can) = told(None, &|path| if is_tcp(path) { Ok(1.0) } else { failing() });
        assert_eq!((said.len(), said[0].0, can), (1, Severity::Warning, vec![1, 12, 1, 12]));
        assert!(
            said[0]
                .1
                .ends_with("pull/cpu, staged/kernel, staged/stream, staged/cpu: syndrome 0x13")
        );
        let pull = |path: Path| match path.to_string().as_str() {
            "pull/kernel" | "pull/cpu" => failing(),
            _ if is_inband(path) || is_blueflame(path) => none(),
            _ => Ok(1.0),
        };
        let (said, can) = told(None, &pull);
        let texts: Vec<(Severity, &str)> = said.iter().map(|(s, t)| (*s, t.as_str())).collect();
        let wanted = [
            (Severity::Fine, "7 paths carried their bytes"),
            (Severity::Warning, "pull/kernel, pull/cpu: syndrome 0x13"),
            (Severity::Note, "push/blueflame, pull/blueflame: no BlueFlame"),
        ];
        assert_eq!((&texts[..], can), (&wanted[..], vec![8, 12, 12, 12]));
        // Kernels on CPU threads: the card's matter with every GPU.
        assert_eq!(told(Some("no driver"), &pull).1, [8, 12, 8, 12]);
        // Of what was not begun nothing is known.
        let late = |path: Path| if is_inband(path) { failing() } else { Err(Failure::NotBegun) };
        let (said, can) = told(None, &late);
        assert_eq!((said.len(), said[0].0, can), (1, Severity::Unseen, vec![12; 4]));
    }

    /// A card that carried bytes opens, has a port and an address, and says how much memory it has: what checks say
    /// against that is worth knowing.
    #[test]
    fn a_card_that_carried_bytes_can_be_used() {
        let mut m = machine("roce-v1-only");
        m.uverbs.refused = Some(m.uverbs.nodes.values().cloned().collect());
        let checks = |m: &Machine| -> Vec<Finding> {
            CHECKS.iter().flat_map(|check| check.findings(m)).collect()
        };
        let told = |all: &[Finding], check: &str| -> Vec<(String, Severity)> {
            let own = all.iter().filter(|f| f.check == check);
            own.map(|f| (f.found.clone(), f.severity)).collect()
        };
        let whole = checks(&m);
        let mut measured = measured(None, Some("no driver"), &[Path::ALL[8]]);
        measured.device_memory = 4096;
        let mut findings = whole.clone();
        measured.add_to(&mut m, "mlx5_0:1", &mut findings);
        answer(&m, &mut findings);
        settle(&m, &mut findings);
        // Of the card that carried them; the other's are what they were.
        let of_gids: Vec<Severity> =
            told(&findings, "roce-gid").into_iter().map(|it| it.1).collect();
        assert_eq!(of_gids, [Severity::Note, Severity::Warning]);
        let nodes = findings.iter().find(|f| f.check == "rdma-nodes").unwrap();
        let lacking: Vec<_> = nodes.lacks.iter().map(|lack| lack.nic.as_deref()).collect();
        assert_eq!((nodes.severity, &lacking[..]), (Severity::Warning, &[Some("mlx5_1")][..]));
        let windows = told(&findings, WINDOW);
        assert_eq!(windows[0], ("4096 B of device memory".to_owned(), Severity::Fine));
        assert!(windows[1].0.contains(" of mlx5_1 is not"), "{windows:?}");
        assert!(Verdicts::of(&m, &findings).against_nic("mlx5_0").is_empty());
        // Where it carried nothing, all stays.
        let mut findings = whole.clone();
        measured.paths.clear();
        measured.add_to(&mut m, "mlx5_0:1", &mut findings);
        answer(&m, &mut findings);
        settle(&m, &mut findings);
        assert_eq!(told(&findings, "rdma-nodes")[0].1, Severity::Prevents);
        assert!(told(&findings, "roce-gid").iter().all(|(_, s)| *s == Severity::Warning));
        // What is said of all cards at once is of the other alone, too.
        let mut program = whole;
        program.push(Finding::prevents(&[Need::Nic], "rdma-core 28"));
        measured.paths = vec![(Path::ALL[8], Ok(1.0))];
        measured.add_to(&mut m, "mlx5_0", &mut program);
        assert!(Verdicts::of(&m, &program).against_nic("mlx5_0").is_empty());
    }
}
