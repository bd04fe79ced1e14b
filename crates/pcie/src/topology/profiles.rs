//! What is known of root complexes by the name of their CPU. A profile fills in what a topology
//! file leaves unknown; where nobody reported anything there is none.

use super::p2p::P2p;
use super::packets::peer_bytes;

/// Share of what the links of a way carry from which on a rate tells of them and not of the root
/// complex: single streams over one link have at least so much of it (docs/results/pcie-copies.md).
const LINKS_SHARE: f64 = 0.85;
/// What a link of x16 carries one way, GB/s.
const GEN3: f64 = 14.4;
const GEN4: f64 = 28.8;
const GEN5: f64 = 57.6;
/// What a NIC of 400 Gb/s carries one way, GB/s.
const NDR: f64 = 50.0;

/// Peer traffic of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Reads, and their completions.
    Reads,
    /// Writes.
    Writes,
}

/// A rate of peer traffic through a root complex that somebody reported.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeenRate {
    /// Machine.
    pub machine: &'static str,
    /// Reads or writes.
    pub of: Peer,
    /// Least and greatest one-way rate of its pairs, GB/s.
    pub gb_per_s: [f64; 2],
    /// What the links on the way carry, GB/s.
    pub links_gb_per_s: f64,
    /// Who reported it.
    pub source: &'static str,
}

impl SeenRate {
    /// Whether it tells of the links on its way, not of the root complex.
    fn is_by_links(&self) -> bool {
        self.gb_per_s[1] >= LINKS_SHARE * self.links_gb_per_s
    }
}

/// What reports say of a limit of peer traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// Nothing.
    Unknown,
    /// It is not below this rate, GB/s, which the links on the way explain.
    AtLeast(f64),
    /// Less than the links carry passes: from the least to the greatest rate of any machine, GB/s.
    Seen([f64; 2]),
}

impl Limit {
    /// The rate that the simulation takes as a cap, GB/s.
    pub fn cap(self) -> Option<f64> {
        if let Self::Seen([_, most]) = self { Some(most) } else { None }
    }
}

/// What was reported of the root complexes of one family of CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RootProfile {
    /// Family.
    pub name: &'static str,
    /// Parts of CPU names; `?` stands for any character.
    cpus: &'static [&'static str],
    /// Whether peer reads pass.
    pub reads: Option<bool>,
    /// Whether peer writes pass.
    pub writes: Option<bool>,
    /// Rates of machines, of devices of one socket.
    pub seen: &'static [SeenRate],
    /// The same of devices of two sockets: what one root complex has to the other socket. Where two
    /// flows were run, each had as much as one alone, so it is no limit that they share.
    pub far: &'static [SeenRate],
    /// Who reported what passes.
    pub source: &'static str,
}

const fn seen(
    (machine, source): (&'static str, &'static str),
    of: Peer,
    gb_per_s: [f64; 2],
    links_gb_per_s: f64,
) -> SeenRate {
    SeenRate { machine, of, gb_per_s, links_gb_per_s, source }
}

type Report = (&'static str, &'static str);
const P40: Report = (
    "E5-2650 v4, P40, three P4600",
    "forums.developer.nvidia.com 55564: three NVMe drives into a P40",
);
const W2123: Report = ("Xeon W-2123, WX 8100", "ROCm/ROCm#787");
const MI25: Report = ("EPYC 7261, MI25", "ROCm/ROCmValidationSuite#427");
const A40: Report = ("2 x EPYC 7302, A40", "NVIDIA/nccl-tests#74, half of both ways");
const GENOA: Report = ("2 x EPYC 9374F, RTX PRO 6000", "rtx6kpro, hardware/pcie-bandwidth.md");
const ADA: Report = ("2 x EPYC 9374F, RTX 6000 Ada", "luigifcruz/stelline, asus-esc8000a-e12.md");
const TURIN: Report = ("2 x Turin, RTX PRO 6000", "rtx6kpro, hardware/pcie-bandwidth.md");
const ESC8000A: Report = ("ESC8000A-E13P, PEX890xx", "rtx6kpro, hardware/collapse-report.md");
const ROCK: Report =
    ("one EPYC 9575F, four Switchtec", "rtx6kpro, hardware/asrockrack-turin-cpayne-16gpu.md");
const WRX80: Report =
    ("Threadripper PRO 3995WX, RTX 4090", "tinygrad/open-gpu-kernel-modules#6, half of both ways");
const WRX90: Report = ("Threadripper PRO 7955WX", "rtx6kpro, hardware/wrx90-cpayne-*.md");
const PUGET: Report = (
    "Threadripper PRO 7965WX, RTX 6000 Ada",
    "luigifcruz/stelline, hardware/puget-threadripper-pro-wrx90.md",
);

const ROME8: Report =
    ("2 x EPYC 7542, 8 x RTX 4090", "the post \"RTX4090 GPUDirect P2P Unlocked!\" (blog.chlc.cc)");
const TINYBOX: Report = (
    "tinybox green (tiny14), 6 x RTX 4090",
    "tinygrad/open-gpu-kernel-modules, README.md of branch 550.54.15-p2p",
);
const WRX80ADA: Report = (
    "Threadripper PRO 5995WX, 2 x RTX 6000 Ada",
    "dbkinghorn/Notes, 2023/NV-4090-P2P (Puget Systems)",
);
const W3365: Report =
    ("Xeon W-3365, 2 x RTX 6000 Ada", "dbkinghorn/Notes, 2023/NV-4090-P2P (Puget Systems)");
const STACKS: Report = (
    "2 x Xeon 8480+, MI300X and ConnectX-7, a switch a stack",
    "tlrmchlsmth/j-llm-d, branch raj/ttft, glm-disagg-pcie/nixl-iio-investigation",
);

const UNKNOWN: RootProfile =
    RootProfile { name: "", cpus: &[], reads: None, writes: None, seen: &[], far: &[], source: "" };

/// The profiles; of two that match a name, the first counts. Families without one: Sandy Bridge,
/// Ivy Bridge, Haswell, Skylake-SP, Ice Lake-SP, Emerald and Granite Rapids, Milan. For them
/// reports give rates without a CPU's name, or a CPU without rates between devices.
pub const PROFILES: [RootProfile; 14] = [
    RootProfile {
        name: "Intel client",
        cpus: &["Intel(R) Core(TM)"],
        reads: Some(false),
        writes: Some(true),
        source: "NVIDIA/open-gpu-kernel-modules#1253: measured on Arrow Lake; a maintainer says it of \
                 all client CPUs",
        ..UNKNOWN
    },
    RootProfile {
        name: "Broadwell E5",
        cpus: &["E5-26?? v4", "E5-26??v4"],
        writes: Some(true),
        seen: &[seen(P40, Peer::Writes, [7.1, 7.1], 9.6)],
        source: P40.1,
        ..UNKNOWN
    },
    RootProfile {
        name: "Skylake-W",
        cpus: &["Xeon(R) W-21??", "Xeon W-21??"],
        writes: Some(true),
        seen: &[seen(W2123, Peer::Writes, [10.26, 10.26], GEN3)],
        source: W2123.1,
        ..UNKNOWN
    },
    RootProfile {
        name: "Ice Lake-W",
        cpus: &["Xeon(R) W-33??", "Xeon W-33??"],
        writes: Some(true),
        seen: &[seen(W3365, Peer::Writes, [20.77, 21.31], GEN4)],
        source: W3365.1,
        ..UNKNOWN
    },
    // By 2 MiB and eight queue pairs; requests of 128 B have the least rates, of 4 KiB the greatest.
    RootProfile {
        name: "Sapphire Rapids",
        cpus: &["Platinum 84??", "Gold 64??", "Gold 54??", "Silver 44??"],
        reads: Some(true),
        writes: Some(true),
        seen: &[
            seen(STACKS, Peer::Reads, [31.7, 34.0], NDR),
            seen(STACKS, Peer::Writes, [44.9, 44.9], NDR),
        ],
        far: &[seen(STACKS, Peer::Reads, [15.47, 15.47], NDR)],
        source: STACKS.1,
    },
    RootProfile {
        name: "Naples",
        cpus: &["EPYC 7??1"],
        writes: Some(true),
        seen: &[seen(MI25, Peer::Writes, [7.03, 7.056], GEN3)],
        source: MI25.1,
        ..UNKNOWN
    },
    RootProfile {
        name: "Rome",
        cpus: &["EPYC 7??2"],
        writes: Some(true),
        seen: &[
            seen(A40, Peer::Writes, [25.0, 25.0], GEN4),
            seen(ROME8, Peer::Writes, [25.51, 26.01], GEN4),
            seen(TINYBOX, Peer::Writes, [26.24, 26.24], GEN4),
        ],
        far: &[
            seen(A40, Peer::Writes, [20.25, 20.25], GEN4),
            seen(ROME8, Peer::Writes, [19.5, 22.53], GEN4),
        ],
        source: A40.1,
        ..UNKNOWN
    },
    RootProfile {
        name: "Genoa",
        cpus: &["EPYC 9??4"],
        writes: Some(true),
        seen: &[
            seen(GENOA, Peer::Writes, [54.0, 54.0], GEN5),
            seen(ADA, Peer::Writes, [26.3, 26.3], GEN4),
        ],
        far: &[
            seen(GENOA, Peer::Writes, [32.0, 39.0], GEN5),
            seen(ADA, Peer::Writes, [26.3, 26.3], GEN4),
        ],
        source: GENOA.1,
        ..UNKNOWN
    },
    // The "READ" columns of rtx6kpro are copies by PyTorch, which the GPU with the data runs: they are
    // writes (sim/copy_order.rs), and no rate of a peer's read is published. That reads pass, loads say.
    RootProfile {
        name: "Turin",
        cpus: &["EPYC 9??5"],
        reads: Some(true),
        writes: Some(true),
        seen: &[
            seen(TURIN, Peer::Writes, [56.6, 56.6], GEN5),
            seen(ROCK, Peer::Writes, [56.3, 56.4], GEN5),
        ],
        far: &[
            seen(TURIN, Peer::Writes, [49.7, 51.0], GEN5),
            seen(ESC8000A, Peer::Writes, [36.8, 47.3], GEN5),
        ],
        source: "rtx6kpro, hardware/pcie-bandwidth.md (writes; loads of 128 B by p2pmark --latency)",
    },
    RootProfile {
        name: "Threadripper PRO 3000",
        cpus: &["Threadripper PRO 39??WX"],
        writes: Some(true),
        seen: &[seen(WRX80, Peer::Writes, [25.2, 25.2], GEN4)],
        source: WRX80.1,
        ..UNKNOWN
    },
    RootProfile {
        name: "Threadripper PRO 7000",
        cpus: &["Threadripper PRO 79??WX"],
        reads: Some(true),
        writes: Some(true),
        seen: &[
            seen(WRX90, Peer::Writes, [52.0, 56.4], GEN5),
            seen(PUGET, Peer::Writes, [26.3, 26.3], GEN4),
            seen(PUGET, Peer::Reads, [26.9, 26.9], GEN4),
        ],
        far: &[],
        source: "rtx6kpro, hardware/wrx90-cpayne-*.md (writes; loads of 128 B by p2pmark --latency); \
                 luigifcruz/stelline (reads by SSDs)",
    },
    RootProfile {
        name: "Threadripper PRO 5000",
        cpus: &["Threadripper PRO 59??WX"],
        reads: Some(true),
        writes: Some(true),
        seen: &[seen(WRX80ADA, Peer::Writes, [26.27, 27.02], GEN4)],
        source: "NVIDIA/open-gpu-kernel-modules#1253 (reads); dbkinghorn/Notes, 2023/NV-4090-P2P \
                 (writes)",
        ..UNKNOWN
    },
    RootProfile {
        name: "Threadripper PRO",
        cpus: &["Threadripper PRO"],
        reads: Some(true),
        writes: Some(true),
        source: "NVIDIA/open-gpu-kernel-modules#1253: 180 Gb/s both ways, the NIC's rate",
        ..UNKNOWN
    },
    RootProfile {
        name: "Grace",
        cpus: &["Grace", "Neoverse-V2"],
        reads: Some(true),
        writes: Some(true),
        source: "NVIDIA/nccl#1579: GPUDirect RDMA runs on GH200 and raises NCCL's rates; no rate of a \
                 way given",
        ..UNKNOWN
    },
];

/// Whether `text` has a part that matches `pattern`.
fn has(text: &str, pattern: &str) -> bool {
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    text.windows(pattern.len()).any(|part| {
        part.iter().zip(pattern).all(|(&c, &p)| p == b'?' || c.eq_ignore_ascii_case(&p))
    })
}

/// What reports say of a limit, those of the machine `without`, also wired anew, left out.
fn limit(seen: &[SeenRate], of: Peer, without: &str) -> Limit {
    let is_other = |s: &&SeenRate| s.of == of && !without.starts_with(s.machine);
    let rates = || seen.iter().filter(is_other);
    let greatest = |rates: &mut dyn Iterator<Item = &SeenRate>| {
        rates.map(|s| s.gb_per_s[1]).fold(0.0, f64::max)
    };
    let most = greatest(&mut rates());
    let below = rates().filter(|s| !s.is_by_links());
    let least = below.map(|s| s.gb_per_s[0]).fold(f64::INFINITY, f64::min);
    match rates().count() {
        0 => Limit::Unknown,
        // A machine that has its links' rate has it for the family, unless faster links had less.
        _ if greatest(&mut rates().filter(|s| s.is_by_links())) == most => Limit::AtLeast(most),
        _ => Limit::Seen([least, most]),
    }
}

/// What is known of a root complex of a CPU by its name, as in `/proc/cpuinfo`: its own fields, what
/// Intel's do to packets, and what machines of the CPU's family were seen to do, but for the machine
/// `without`.
pub(crate) fn known_of(cpu: &str, own: P2p, without: &str) -> (P2p, Option<&'static RootProfile>) {
    let own = P2p { tlp_bytes: own.tlp_bytes.or_else(|| peer_bytes(cpu)), ..own };
    let profile = RootProfile::of(cpu);
    (profile.map_or(own, |p| p.fill(own, without)), profile)
}

impl RootProfile {
    /// The profile of a CPU by its name, as in `/proc/cpuinfo`.
    pub fn of(cpu: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|p| p.cpus.iter().any(|pattern| has(cpu, pattern)))
    }

    /// Its name and source, in brackets.
    pub(super) fn cited(&self) -> String {
        format!(" ({}: {})", self.name, self.source)
    }

    /// What reports say of a limit of devices of one socket, those of the machine `without`, also wired
    /// anew, left out.
    pub fn limit(&self, of: Peer, without: &str) -> Limit {
        limit(self.seen, of, without)
    }

    /// The same of devices of two sockets.
    pub fn far_limit(&self, of: Peer, without: &str) -> Limit {
        limit(self.far, of, without)
    }

    /// What is known of a root complex: the file's fields, and this profile's for those that the
    /// file leaves unknown. A limit that others saw counts where the file has none of that kind.
    pub(crate) fn fill(&self, p2p: P2p, without: &str) -> P2p {
        let cap = |own: Option<f64>, limit: Limit| {
            own.or(p2p.cap_gb_per_s.is_none().then(|| limit.cap()).flatten())
        };
        let (near, far) = (|of| self.limit(of, without), |of| self.far_limit(of, without));
        P2p {
            reads: p2p.reads.or(self.reads),
            writes: p2p.writes.or(self.writes),
            read_gb_per_s: cap(p2p.read_gb_per_s, near(Peer::Reads)),
            write_gb_per_s: cap(p2p.write_gb_per_s, near(Peer::Writes)),
            far_read_gb_per_s: cap(p2p.far_read_gb_per_s, far(Peer::Reads)),
            far_write_gb_per_s: cap(p2p.far_write_gb_per_s, far(Peer::Writes)),
            ..p2p
        }
    }

    /// A limit in words, with who saw it; `is_far`: of devices of two sockets.
    pub(super) fn limit_text(&self, of: Peer, is_far: bool) -> Option<String> {
        let seen = if is_far { self.far } else { self.seen };
        let below = || seen.iter().filter(|s| s.of == of && !s.is_by_links());
        let range = |[least, most]: [f64; 2]| {
            if least == most { format!("{most}") } else { format!("{least} to {most}") }
        };
        let named = |s: &SeenRate| format!("{}, {}", s.machine, s.source);
        match limit(seen, of, "") {
            Limit::Seen(rates) => {
                let sources: Vec<String> = below().map(named).collect();
                let range = range(rates);
                Some(format!("at most {range} GB/s, as seen on {}", sources.join("; ")))
            }
            // What one machine had is no limit of the family, and no promise to another.
            Limit::AtLeast(rate) => {
                let less = below().map(|s| format!("; {} on {}", range(s.gb_per_s), named(s)));
                let less: String = less.collect();
                Some(format!("limit unknown, {rate} GB/s were seen{less}"))
            }
            Limit::Unknown => None,
        }
    }
}

impl super::Topology {
    /// Says of all its sockets that they are this CPU, by its name as in `/proc/cpuinfo`: what is known of its root
    /// complexes counts from then on. Whether there is a socket.
    pub fn name_cpu(&mut self, cpu: &str) -> bool {
        let is_socket = |node: &&mut super::Node| node.kind == super::Kind::Socket;
        let sockets = self.nodes.iter_mut().filter(is_socket);
        sockets.map(|node| cpu.clone_into(&mut node.model)).count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cpus_find_their_family() {
        let of = |cpu| RootProfile::of(cpu).map(|p| p.name);
        for (cpu, want) in [
            ("AMD EPYC 9575F 64-Core Processor", Some("Turin")),
            ("AMD EPYC 9374F 32-Core Processor", Some("Genoa")),
            ("AMD EPYC 7302 16-Core Processor", Some("Rome")),
            ("AMD EPYC 7763 64-Core Processor", None),
            ("Intel(R) Xeon(R) CPU E5-2650 v4 @ 2.20GHz", Some("Broadwell E5")),
            ("Intel(R) Xeon(R) CPU E5-2620 v2 @ 2.10GHz", None),
            ("Intel(R) Core(TM) Ultra 9 285K", Some("Intel client")),
            ("INTEL(R) XEON(R) PLATINUM 8580", None),
            ("AMD Ryzen Threadripper PRO 7995WX 96-Cores", Some("Threadripper PRO 7000")),
            ("AMD Ryzen Threadripper PRO 3995WX 64-Cores", Some("Threadripper PRO 3000")),
            ("AMD Ryzen Threadripper PRO 5995WX 64-Cores", Some("Threadripper PRO 5000")),
            ("AMD Ryzen Threadripper PRO 9995WX 96-Cores", Some("Threadripper PRO")),
            ("AMD EPYC 7261 8-Core Processor", Some("Naples")),
            ("Intel(R) Xeon(R) W-2123 CPU @ 3.60GHz", Some("Skylake-W")),
            ("Intel(R) Xeon(R) W-3365 CPU @ 2.70GHz", Some("Ice Lake-W")),
            ("Intel(R) Xeon(R) Platinum 8480+", Some("Sapphire Rapids")),
            ("Intel(R) Xeon(R) Gold 6438Y+", Some("Sapphire Rapids")),
            ("Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz", None),
            ("Intel(R) Xeon(R) Processor", None),
            ("NVIDIA Grace CPU", Some("Grace")),
            ("", None),
            ("EPYC", None),
        ] {
            assert_eq!(of(cpu), want, "{cpu}");
        }
    }

    #[test]
    fn a_profile_tells_something_and_who_said_it() {
        for p in PROFILES {
            assert!(!p.source.is_empty() && !p.cpus.is_empty(), "{}", p.name);
            assert!(p.reads.is_some() || p.writes.is_some(), "{}", p.name);
        }
    }

    #[test]
    fn a_file_goes_before_the_profile() {
        let turin = RootProfile::of("AMD EPYC 9575F").unwrap();
        let filled = turin.fill(P2p { reads: Some(false), ..P2p::default() }, "");
        assert_eq!((filled.reads, filled.writes), (Some(false), Some(true)));
        let naples = RootProfile::of("AMD EPYC 7261").unwrap();
        let write = |p2p| naples.fill(p2p, "").limits()[0];
        assert_eq!(write(P2p::default()), 7.056);
        assert_eq!(write(P2p { write_gb_per_s: Some(9.0), ..P2p::default() }), 9.0);
        assert_eq!(write(P2p { cap_gb_per_s: Some(9.0), ..P2p::default() }), 9.0);
    }

    #[test]
    fn a_limit_is_what_links_do_not_explain_and_not_of_the_machine_itself() {
        let of = |cpu| RootProfile::of(cpu).unwrap();
        assert_eq!(of("EPYC 7261").limit(Peer::Writes, ""), Limit::Seen([7.03, 7.056]));
        assert_eq!(of("EPYC 7261").limit(Peer::Reads, ""), Limit::Unknown);
        assert_eq!(of("EPYC 7261").limit(Peer::Writes, "EPYC 7261, MI25"), Limit::Unknown);
        // A link's rate on one machine says nothing of a limit.
        assert_eq!(of("EPYC 9575F").limit(Peer::Writes, ""), Limit::AtLeast(56.6));
        assert_eq!(of("EPYC 9374F").limit(Peer::Writes, GENOA.0), Limit::AtLeast(26.3));
        assert_eq!(Limit::AtLeast(26.3).cap(), None);
    }

    /// A copy of PyTorch is a write of the GPU that has the data, whatever its source calls it: Turin's
    /// reads pass by loads alone, without a rate, and Threadripper PRO 7000 has what SSDs read.
    #[test]
    fn copies_that_push_are_no_rates_of_reads() {
        let of = |cpu| RootProfile::of(cpu).unwrap();
        let turin = of("EPYC 9575F");
        assert_eq!((turin.reads, turin.limit(Peer::Reads, "")), (Some(true), Limit::Unknown));
        let storm = of("Threadripper PRO 7955WX");
        assert_eq!(storm.limit(Peer::Reads, ""), Limit::AtLeast(26.9));
        // What a GPU's memory answers comes in lines of 128 B, some of them joined: 55.6 of Gen5 x16 at MPS
        // 256 and MRRS 512. No read has more.
        let reads = PROFILES.iter().flat_map(|p| p.seen).filter(|s| s.of == Peer::Reads);
        assert_eq!(reads.clone().count(), 2);
        reads.for_each(|s| assert!(s.gb_per_s[1] < 55.6, "{s:?}"));
    }

    /// Between two sockets others say of each machine of a family; a slow link that is full says
    /// nothing of a faster one.
    #[test]
    fn what_two_sockets_pass_is_known_from_other_machines() {
        let of = |cpu| RootProfile::of(cpu).unwrap();
        let far = |cpu, without| of(cpu).far_limit(Peer::Writes, without);
        assert_eq!(far("EPYC 7302", ""), Limit::Seen([19.5, 22.53]));
        assert_eq!(far("EPYC 7302", A40.0), Limit::Seen([19.5, 22.53]));
        assert_eq!(far("EPYC 7542", ROME8.0), Limit::Seen([20.25, 20.25]));
        assert_eq!(far("EPYC 9374F", ""), Limit::Seen([32.0, 39.0]));
        assert_eq!(far("EPYC 9374F", GENOA.0), Limit::AtLeast(26.3));
        assert_eq!(far("EPYC 9575F", ""), Limit::AtLeast(51.0));
        assert_eq!(far("EPYC 9575F", TURIN.0), Limit::Seen([36.8, 47.3]));
        assert_eq!(far("EPYC 7261", ""), Limit::Unknown);
        let stacks = of("Xeon Platinum 8480+");
        assert_eq!(stacks.far_limit(Peer::Reads, ""), Limit::Seen([15.47, 15.47]));
        assert_eq!(stacks.far_limit(Peer::Reads, STACKS.0), Limit::Unknown);
        assert_eq!(stacks.limit(Peer::Reads, ""), Limit::Seen([31.7, 34.0]));
        assert_eq!(stacks.limit(Peer::Writes, ""), Limit::AtLeast(44.9));
    }

    /// Beside the greatest rate that was seen stands what other machines of the family had less.
    #[test]
    fn a_limit_in_words_has_the_lowest_rate_too() {
        let text = |cpu, is_far| RootProfile::of(cpu).unwrap().limit_text(Peer::Writes, is_far);
        let turin = "limit unknown, 51 GB/s were seen; 36.8 to 47.3 on ESC8000A-E13P, PEX890xx, \
                     rtx6kpro, hardware/collapse-report.md";
        assert_eq!(text("EPYC 9575F", true).as_deref(), Some(turin));
        let near = "limit unknown, 56.6 GB/s were seen";
        assert_eq!(text("EPYC 9575F", false).as_deref(), Some(near));
        assert!(
            text("EPYC 9374F", true).unwrap().starts_with("at most 32 to 39 GB/s, as seen on ")
        );
    }

    /// One function says of a CPU what `topo` and `sim` have and what the rows of others do.
    #[test]
    fn a_cpu_is_known_by_its_family_and_its_vendor() {
        let known = |cpu, without| known_of(cpu, P2p::default(), without).0;
        let rome = known("EPYC 7542", "");
        assert_eq!((rome.far_limits(), rome.tlp_bytes), ([22.53, 0.0], None));
        assert_eq!(known("EPYC 7542", ROME8.0).far_limits(), [20.25, 0.0]);
        let stacks = known("Intel(R) Xeon(R) Platinum 8480+", "");
        assert_eq!((stacks.limits(), stacks.far_limits()), ([0.0, 34.0], [0.0, 15.47]));
        assert_eq!((stacks.tlp_bytes, known("", "").tlp_bytes), (Some(64), None));
        let own = P2p { tlp_bytes: Some(256), far_write_gb_per_s: Some(9.0), ..P2p::default() };
        let filled = known_of("Xeon W-2123", own, "").0;
        assert_eq!((filled.tlp_bytes, filled.far_limits()[0]), (Some(256), 9.0));
    }
}
