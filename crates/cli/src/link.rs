//! Options of packet links on the command line.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bellpush::nic::soft::link::{
    Captured, Faults, FaultsError, Faulty, Link, LinkError, ShmNet, UdpLink,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, clap::Args)]
pub struct LinkArgs {
    /// Address of the NIC, UDP port 4791 [default: the first free 127.x.y.z]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Faults of packets that the NIC sends, such as loss=1%,dup=0.1%,reorder=1%,seed=7
    #[arg(long, value_name = "FAULTS")]
    link: Option<Faults>,
    /// Record the packets that the NIC sends and receives
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

impl LinkArgs {
    /// Opens the link. The capture records the NIC's view: faults occur behind it.
    pub fn open(&self) -> Result<Box<dyn Link>, LinkError> {
        let mut link: Box<dyn Link> = Box::new(match self.address {
            Some(address) => UdpLink::open(address, None)?,
            None => UdpLink::open_free()?,
        });
        if let Some(faults) = self.link {
            link = Box::new(Faulty::new(link, faults)?);
        }
        captured(link, self.pcap.as_deref())
    }
}

fn captured(link: Box<dyn Link>, pcap: Option<&Path>) -> Result<Box<dyn Link>, LinkError> {
    Ok(match pcap {
        Some(path) => Box::new(Captured::new(link, path)?),
        None => link,
    })
}

/// Carrier of packets between two NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// Shared memory.
    Shm,
    /// UDP sockets: on loopback, between the ends of one process.
    Udp,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Udp => "udp",
        })
    }
}

/// `shm` or `udp`, faults, or both: `udp,loss=1%`. Faults alone apply to `shm`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkSpec {
    wire: Option<Wire>,
    faults: Option<Faults>,
}

impl LinkSpec {
    /// The carrier, where one is named.
    pub fn wire(&self) -> Option<Wire> {
        self.wire
    }

    /// Opens the end of this process, of a link with another: at an address, which for shared memory and on loopback is
    /// the first free one, or through shared memory of this name.
    pub fn end(
        &self,
        wire: Wire,
        address: Option<IpAddr>,
        name: &str,
        pcap: Option<&Path>,
    ) -> Result<Box<dyn Link>, LinkError> {
        let mut end: Box<dyn Link> = match (wire, address) {
            (Wire::Shm, _) => Box::new(ShmNet::named(name, true)?.attach_free()?),
            (Wire::Udp, Some(address)) => Box::new(UdpLink::open(address, None)?),
            (Wire::Udp, None) => Box::new(UdpLink::open_free()?),
        };
        if let Some(faults) = self.faults {
            end = Box::new(Faulty::new(end, faults)?);
        }
        captured(end, pcap)
    }

    /// Opens both ends. The capture is at the first end and records both directions.
    pub fn pair(&self, pcap: Option<&Path>) -> Result<[Box<dyn Link>; 2], LinkError> {
        let open: [Box<dyn Link>; 2] = match self.wire {
            None | Some(Wire::Shm) => {
                let icrc = self.faults.is_some_and(|faults| faults.corrupt > 0.0);
                let net = ShmNet::anonymous(icrc)?;
                [Box::new(net.attach_free()?), Box::new(net.attach_free()?)]
            }
            Some(Wire::Udp) => [Box::new(UdpLink::open_free()?), Box::new(UdpLink::open_free()?)],
        };
        let [mut a, mut b] = open;
        if let Some(faults) = self.faults {
            a = Box::new(Faulty::new(a, faults)?);
            // The same rates of faults at both ends, but at different packets.
            b = Box::new(Faulty::new(b, Faults { seed: faults.seed.wrapping_add(1), ..faults })?);
        }
        Ok([captured(a, pcap)?, b])
    }
}

impl FromStr for LinkSpec {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let (first, rest) = text.split_once(',').unwrap_or((text, ""));
        let (wire, faults) = match first.trim() {
            "shm" => (Some(Wire::Shm), rest),
            "udp" => (Some(Wire::Udp), rest),
            _ => (None, text),
        };
        let named = faults.is_empty() && faults.len() < text.len();
        let faults = if named { None } else { Some(faults.parse()?) };
        Ok(Self { wire, faults })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_named_with_or_without_faults() {
        let spec = |text: &str| text.parse::<LinkSpec>().unwrap();
        assert_eq!(spec("shm"), LinkSpec { wire: Some(Wire::Shm), faults: None });
        assert_eq!(spec("udp"), LinkSpec { wire: Some(Wire::Udp), faults: None });
        let hurt = spec("loss=1%,dup=0.1%,reorder=1%,seed=7");
        assert_eq!(hurt.wire, None);
        assert!((hurt.faults.unwrap().loss - 0.01).abs() < 1e-9);
        assert_eq!(spec("udp,seed=3").faults.unwrap().seed, 3);
        for bad in ["tcp", "udp,shm", "loss=", "udp,loss"] {
            assert!(bad.parse::<LinkSpec>().is_err(), "{bad}");
        }
    }
}
