//! What a packet link is made of, on the command line.

use std::net::IpAddr;
use std::path::PathBuf;

use bellpush::nic::soft::link::{Captured, Faults, Faulty, Link, LinkError, UdpLink};

#[derive(Debug, clap::Args)]
pub struct LinkArgs {
    /// Address of the NIC, UDP port 4791 [default: the first free 127.x.y.z]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// What happens to packets that the NIC sends, such as loss=1%,dup=0.1%,reorder=1%,seed=7
    #[arg(long, value_name = "FAULTS")]
    link: Option<Faults>,
    /// Record what the NIC sends and receives
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

impl LinkArgs {
    /// Opens the link. The capture sees what the NIC sees: faults come after it.
    pub fn open(&self) -> Result<Box<dyn Link>, LinkError> {
        let mut link: Box<dyn Link> = Box::new(match self.address {
            Some(address) => UdpLink::open(address, None)?,
            None => UdpLink::open_free()?,
        });
        if let Some(faults) = self.link {
            link = Box::new(Faulty::new(link, faults)?);
        }
        if let Some(path) = &self.pcap {
            link = Box::new(Captured::new(link, path)?);
        }
        Ok(link)
    }
}
