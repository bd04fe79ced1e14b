//! What is known of root complexes by the name of their CPU. A profile fills in what a topology
//! file leaves unknown; where nobody reported anything there is none.

use super::p2p::P2p;

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
    /// Highest one-way rate of peer reads that was reported, GB/s: no limit, only seen.
    pub reads_seen_gb_per_s: Option<f64>,
    /// The same of writes.
    pub writes_seen_gb_per_s: Option<f64>,
    /// Who reported it.
    pub source: &'static str,
}

const UNKNOWN: RootProfile = RootProfile {
    name: "",
    cpus: &[],
    reads: None,
    writes: None,
    reads_seen_gb_per_s: None,
    writes_seen_gb_per_s: None,
    source: "",
};

/// The profiles. Families without one: Sandy Bridge, Ivy Bridge, Haswell, Skylake, Ice Lake,
/// Sapphire, Emerald and Granite Rapids, Naples, Milan. For them reports give rates without a CPU's
/// name, or a CPU without rates.
pub const PROFILES: [RootProfile; 7] = [
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
        writes_seen_gb_per_s: Some(7.1),
        source: "forums.developer.nvidia.com 55564: three NVMe drives of 3.2 GB/s into a P40, \
                 E5-2650 v4, Gen3",
        ..UNKNOWN
    },
    RootProfile {
        name: "Rome",
        cpus: &["EPYC 7??2"],
        writes: Some(true),
        writes_seen_gb_per_s: Some(25.0),
        source: "NVIDIA/nccl-tests#74: A40s, EPYC 7302, Gen4 x16, half of 50 GB/s both ways",
        ..UNKNOWN
    },
    RootProfile {
        name: "Genoa",
        cpus: &["EPYC 9??4"],
        writes: Some(true),
        writes_seen_gb_per_s: Some(54.0),
        source: "voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md: EPYC 9374F, Gen5 x16",
        ..UNKNOWN
    },
    RootProfile {
        name: "Turin",
        cpus: &["EPYC 9??5"],
        reads: Some(true),
        writes: Some(true),
        reads_seen_gb_per_s: Some(51.3),
        writes_seen_gb_per_s: Some(56.6),
        source: "rtx6kpro, hardware/collapse-report.md (reads) and pcie-bandwidth.md (writes): EPYC \
                 9575F, Gen5 x16",
    },
    RootProfile {
        name: "Threadripper PRO",
        cpus: &["Threadripper PRO"],
        reads: Some(true),
        writes: Some(true),
        reads_seen_gb_per_s: Some(22.5),
        writes_seen_gb_per_s: Some(22.5),
        source: "NVIDIA/open-gpu-kernel-modules#1253: 180 Gb/s, the NIC's rate",
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

impl RootProfile {
    /// The profile of a CPU by its name, as in `/proc/cpuinfo`.
    pub fn of(cpu: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|p| p.cpus.iter().any(|pattern| has(cpu, pattern)))
    }

    /// Its name and source, in brackets.
    pub(super) fn cited(&self) -> String {
        format!(" ({}: {})", self.name, self.source)
    }

    /// What is known of a root complex: the file's fields, and this profile's for those that the
    /// file leaves unknown.
    pub(crate) fn fill(&self, p2p: P2p) -> P2p {
        P2p { reads: p2p.reads.or(self.reads), writes: p2p.writes.or(self.writes), ..p2p }
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
            ("AMD Ryzen Threadripper PRO 7995WX 96-Cores", Some("Threadripper PRO")),
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
        let filled = turin.fill(P2p { reads: Some(false), ..P2p::default() });
        assert_eq!((filled.reads, filled.writes), (Some(false), Some(true)));
    }
}
