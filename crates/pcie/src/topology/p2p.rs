//! What stands between two devices beside the tree: limits of root complexes, chips that hold
//! several switches, IOMMUs, and behaviours of whole platforms.

use super::profiles::Peer;

/// Treatment of traffic between the ports of a root complex. `None` means unknown, or no limit. A limit
/// is of each root port out of which such traffic leaves, each way: two ports have twice as much together.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct P2p {
    /// Whether memory reads are forwarded. Intel's client CPUs, for one, forward writes only. The
    /// simulation takes `None` (unknown) as allowed, and [`Route::notes`](super::Route::notes) says
    /// so.
    pub reads: Option<bool>,
    /// Whether memory writes are forwarded; as `reads`.
    pub writes: Option<bool>,
    /// Size of TLPs into which forwarded writes and completions are cut; `None`: they are not cut.
    pub tlp_bytes: Option<u32>,
    /// Limit of open reads towards a peer; `None`: unlimited.
    pub read_slots: Option<u32>,
    /// Largest read that is forwarded in one piece; `None`: the requester's MRRS.
    pub read_bytes: Option<u32>,
    /// Bandwidth limit of forwarded traffic out of each root port, GB/s; `None`: unlimited.
    pub cap_gb_per_s: Option<f64>,
    /// Bandwidth limit of what forwarded reads return, GB/s.
    pub read_gb_per_s: Option<f64>,
    /// Bandwidth limit of forwarded writes, GB/s.
    pub write_gb_per_s: Option<f64>,
    /// Bandwidth limit of what forwarded reads return from devices of another socket, GB/s.
    pub far_read_gb_per_s: Option<f64>,
    /// Bandwidth limit of forwarded writes by devices of another socket, GB/s.
    pub far_write_gb_per_s: Option<f64>,
}

/// The least of some limits, GB/s; 0: none.
fn least<const N: usize>(limits: [Option<f64>; N]) -> f64 {
    limits.into_iter().flatten().min_by(f64::total_cmp).unwrap_or(0.0)
}

impl P2p {
    /// Bandwidth limit of forwarded writes and of completions, GB/s; 0: none.
    pub(crate) fn limits(&self) -> [f64; 2] {
        [self.write_gb_per_s, self.read_gb_per_s].map(|own| least([own, self.cap_gb_per_s]))
    }

    /// The same of what devices of another socket send.
    pub(crate) fn far_limits(&self) -> [f64; 2] {
        let both = [
            (self.far_write_gb_per_s, self.write_gb_per_s),
            (self.far_read_gb_per_s, self.read_gb_per_s),
        ];
        both.map(|(far, own)| least([far, own, self.cap_gb_per_s]))
    }

    /// Whether it has a limit of its own of such traffic; `is_far`: by devices of another socket.
    pub(super) fn says_rate(&self, of: Peer, is_far: bool) -> bool {
        let own = match (of, is_far) {
            (Peer::Reads, false) => self.read_gb_per_s,
            (Peer::Writes, false) => self.write_gb_per_s,
            (Peer::Reads, true) => self.far_read_gb_per_s,
            (Peer::Writes, true) => self.far_write_gb_per_s,
        };
        own.or(self.cap_gb_per_s).is_some()
    }
}

/// Treatment of device addresses by the IOMMU of a root complex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Iommu {
    /// Nothing is known; the simulation takes it as off.
    #[default]
    Unknown,
    /// Off, or addresses pass unchanged.
    Off,
    /// Device addresses are translated. No switch can route them to a peer, so all peer traffic
    /// goes up to the root complex. Hits cost no time that pcie-bench (Neugebauer et al., SIGCOMM
    /// 2018, section 6.5) could measure; misses cost the simulation's `iotlb_walk_ns`.
    Translates,
}

impl Iommu {
    /// The value's name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Off => "off",
            Self::Translates => "translates",
        }
    }
}

/// One package with several (virtual) switches.
#[derive(Debug, Clone, PartialEq)]
pub struct Chip {
    /// Name.
    pub id: String,
    /// Whether peer traffic between its switches stays inside; `None` (unknown) is taken as no.
    pub crosses: Option<bool>,
}

/// Lanes that several root ports share by bifurcation.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    /// Name.
    pub id: String,
    /// Lanes of all its ports together.
    pub lanes: u32,
}

/// Whether posted writes of one source switch to several root ports at once collapse.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Collapse {
    /// Nobody looked; the simulation takes it as absent, and warns.
    #[default]
    Unknown,
    /// Looked for and not there.
    Absent,
    /// Seen.
    Seen(PostedCollapse),
}

/// A collapse of posted writes, as a platform was seen to have it.
#[derive(Debug, Clone, PartialEq)]
pub struct PostedCollapse {
    /// Least number of devices below one switch that write at once.
    pub sources: u32,
    /// Least number of root ports to which they write.
    pub roots: u32,
    /// Rate of all these writes together, GB/s.
    pub gb_per_s: f64,
    /// Who saw it.
    pub source: String,
}

/// A platform that was seen to collapse, and how a capture shows that it is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KnownCollapse {
    /// Platform.
    pub platform: &'static str,
    /// Device of its root ports.
    pub(super) root_port: u16,
    /// Part of the name of its switches.
    pub(super) chip: &'static str,
    sources: u32,
    roots: u32,
    gb_per_s: f64,
    source: &'static str,
}

/// Platforms of which all reports agree. The simulation, the drawings and the warnings have them from here
/// or from a topology file; [`LOOKED_FOR`] has the others.
pub const KNOWN_COLLAPSES: [KnownCollapse; 1] = [KnownCollapse {
    platform: "EPYC 9005 (Turin) with PEX890xx switches",
    root_port: 0x153e,
    chip: "PEX890xx",
    sources: 2,
    roots: 2,
    gb_per_s: 2.7,
    source: "local-inference-lab/rtx6kpro, hardware/collapse-report.md",
}];

/// Other platforms on which somebody looked, and what was seen. None is an entry above: on the first
/// reports contradict each other, on the others nothing was seen of the patterns that were tried.
pub const LOOKED_FOR: [(&str, &str); 3] = [
    (
        "Threadripper PRO 7955WX with four PM50100, four GPUs each",
        "11.6 to 13.5 GB/s from two senders in two reports, 52 to 56 in another of the same machine",
    ),
    ("the same CPU with PM50100 of two GPUs a virtual switch", "no loss"),
    ("EPYC 9575F with four PM50100, four GPUs each", "no loss"),
];

impl KnownCollapse {
    /// Fewest devices below one switch that any platform was seen to need for it.
    pub fn least_sources() -> usize {
        KNOWN_COLLAPSES.iter().map(|k| k.sources as usize).min().unwrap_or(usize::MAX)
    }

    /// What was seen, as a topology has it.
    pub fn seen(&self) -> PostedCollapse {
        let Self { sources, roots, gb_per_s, .. } = *self;
        PostedCollapse { sources, roots, gb_per_s, source: self.source.to_owned() }
    }
}
