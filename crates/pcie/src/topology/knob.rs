//! Numbers and switches of a whole topology, set at once: the questions "what if".

use super::model::{Kind, RATES, Topology};
use super::p2p::Iommu;
use crate::Origin;
use crate::tlp::{Gen, LinkSpeed, Mps, Mrrs, TlpError};

/// What can be set of all its nodes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knob {
    /// MRRS of every device, bytes.
    Mrrs,
    /// MPS of every link, bytes.
    Mps,
    /// Generation of every link.
    Generation,
    /// ACS redirection in every downstream port.
    Acs,
    /// Relaxed ordering of every GPU and NIC: on relaxes, off keeps their writes in order.
    RelaxedOrdering,
    /// IOMMUs of all root complexes: on translates, off passes.
    Iommu,
    /// Whether root complexes forward peer reads.
    P2pReads,
    /// Whether root complexes forward peer writes.
    P2pWrites,
    /// Size to which root complexes cut peer TLPs, bytes.
    P2pTlpBytes,
    /// Peer reads that a root complex keeps open.
    P2pReadSlots,
    /// Peer traffic through each root complex, GB/s.
    P2pCap,
    /// Rate between sockets, GB/s.
    Sockets,
}

impl Knob {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Mrrs,
        Self::Mps,
        Self::Generation,
        Self::Acs,
        Self::RelaxedOrdering,
        Self::Iommu,
        Self::P2pReads,
        Self::P2pWrites,
        Self::P2pTlpBytes,
        Self::P2pReadSlots,
        Self::P2pCap,
        Self::Sockets,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mrrs => "mrrs",
            Self::Mps => "mps",
            Self::Generation => "gen",
            Self::Acs => "acs",
            Self::RelaxedOrdering => "ro",
            Self::Iommu => "iommu",
            Self::P2pReads => "p2p_reads",
            Self::P2pWrites => "p2p_writes",
            Self::P2pTlpBytes => "p2p_tlp_bytes",
            Self::P2pReadSlots => "p2p_read_slots",
            Self::P2pCap => "p2p_cap_gb_per_s",
            Self::Sockets => "socket_gb_per_s",
        }
    }

    /// The values that a topology can have.
    pub const fn takes(self) -> &'static str {
        match self {
            Self::Mrrs | Self::Mps => "a power of two from 128 to 4096",
            Self::Generation => "1 to 6",
            Self::P2pTlpBytes => "a power of two from 32 to 4096",
            Self::P2pReadSlots => "a whole number from 1",
            Self::P2pCap | Self::Sockets => "0.001 to 1000000",
            _ => "on or off",
        }
    }

    /// What it is.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Mrrs => "MRRS of every device, bytes",
            Self::Mps => "MPS of every link, bytes",
            Self::Generation => "generation of every link",
            Self::Acs => "ACS redirection in every downstream port",
            Self::RelaxedOrdering => "relaxed ordering of every GPU and NIC",
            Self::Iommu => "whether IOMMUs translate",
            Self::P2pReads => "whether root complexes forward peer reads",
            Self::P2pWrites => "whether root complexes forward peer writes",
            Self::P2pTlpBytes => "size to which root complexes cut peer TLPs, bytes",
            Self::P2pReadSlots => "peer reads that a root complex keeps open",
            Self::P2pCap => "peer traffic through each root complex, GB/s",
            Self::Sockets => "rate between sockets, GB/s",
        }
    }

    /// The least and the most that a topology can have; of a switch, off and on.
    pub(crate) const fn extremes(self) -> [f64; 2] {
        match self {
            Self::Mrrs | Self::Mps => [128.0, 4096.0],
            Self::Generation => [1.0, 6.0],
            Self::P2pTlpBytes => [32.0, 4096.0],
            Self::P2pReadSlots => [1.0, 1e9],
            Self::P2pCap | Self::Sockets => RATES,
            _ => [0.0, 1.0],
        }
    }

    /// Whether it is on or off.
    pub const fn is_switch(self) -> bool {
        matches!(
            self,
            Self::Acs | Self::RelaxedOrdering | Self::Iommu | Self::P2pReads | Self::P2pWrites
        )
    }
}

/// A whole number from 1; `None` for others.
fn whole(value: f64) -> Option<u32> {
    (value.fract() == 0.0 && (1.0..=1e9).contains(&value)).then_some(value as u32)
}

impl Topology {
    /// A copy with a knob set; a switch is on at any value but 0. `None` where no topology can have
    /// the value.
    pub fn with(&self, knob: Knob, value: f64) -> Option<Self> {
        let mut copy = self.clone();
        let on = value != 0.0;
        for node in &mut copy.nodes {
            let is_root = node.kind == Kind::RootComplex;
            match knob {
                Knob::Mrrs | Knob::Mps | Knob::Generation => {
                    let number = whole(value)?;
                    let set = |link: &mut super::PcieLink| -> Result<(), TlpError> {
                        match knob {
                            Knob::Mrrs => link.mrrs = Mrrs::new(number)?,
                            Knob::Mps => link.mps = Mps::new(number)?,
                            _ => {
                                let lanes = link.speed.lanes();
                                link.speed = LinkSpeed::new(Gen::new(number)?, lanes)?;
                            }
                        }
                        Ok(())
                    };
                    node.link.as_mut().map_or(Ok(()), set).ok()?;
                }
                Knob::Acs => (node.acs, node.port_acs) = (on && node.kind != Kind::Socket, None),
                Knob::RelaxedOrdering if matches!(node.kind, Kind::Gpu | Kind::Nic) => {
                    node.relaxed_ordering = Some(on);
                }
                Knob::Iommu if is_root => {
                    node.iommu = if on { Iommu::Translates } else { Iommu::Off };
                }
                Knob::P2pReads if is_root => node.p2p.reads = Some(on),
                Knob::P2pWrites if is_root => node.p2p.writes = Some(on),
                Knob::P2pTlpBytes if is_root => {
                    let size = whole(value).filter(|s| s.is_power_of_two());
                    node.p2p.tlp_bytes = Some(size.filter(|s| (32..=4096).contains(s))?);
                }
                Knob::P2pReadSlots if is_root => node.p2p.read_slots = Some(whole(value)?),
                Knob::P2pCap if is_root => node.p2p.cap_gb_per_s = Some(rate(value)?),
                _ => {}
            }
        }
        if knob == Knob::Sockets {
            let gb_per_s = rate(value)?;
            for link in &mut copy.interconnects {
                (link.gb_per_s, link.origin) = (gb_per_s, Origin::Read);
            }
        }
        Some(copy)
    }
}

fn rate(value: f64) -> Option<f64> {
    (RATES[0]..=RATES[1]).contains(&value).then_some(value)
}
