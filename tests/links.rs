//! One suite for all packet links: every link passes every case.

#[path = "links/suite.rs"]
mod suite;

use std::net::IpAddr;

use bellpush::nic::soft::link::{Faulty, Link, LinkError, ShmNet, UdpLink};

use suite::Maker;

/// Links in shared memory of this process.
struct Anonymous(ShmNet);

impl Maker for Anonymous {
    fn make() -> Self {
        Self(ShmNet::anonymous(false).unwrap())
    }

    fn attach(&self, addr: Option<IpAddr>) -> Result<Box<dyn Link>, LinkError> {
        Ok(match addr {
            Some(addr) => Box::new(self.0.attach(addr)?),
            None => Box::new(self.0.attach_free()?),
        })
    }
}

/// The same, under faults that do nothing.
struct Harmless(ShmNet);

impl Maker for Harmless {
    fn make() -> Self {
        Self(ShmNet::anonymous(true).unwrap())
    }

    fn attach(&self, addr: Option<IpAddr>) -> Result<Box<dyn Link>, LinkError> {
        let inner: Box<dyn Link> = match addr {
            Some(addr) => Box::new(self.0.attach(addr)?),
            None => Box::new(self.0.attach_free()?),
        };
        Ok(Box::new(Faulty::new(inner, "seed=1".parse().unwrap())?))
    }
}

/// UDP on loopback.
struct Udp;

impl Maker for Udp {
    fn make() -> Self {
        Self
    }

    fn attach(&self, addr: Option<IpAddr>) -> Result<Box<dyn Link>, LinkError> {
        Ok(match addr {
            Some(addr) => Box::new(UdpLink::open(addr, None)?),
            None => Box::new(UdpLink::open_free()?),
        })
    }
}

suite!(shm, Anonymous);
suite!(udp, Udp);
suite!(faulty, Harmless);
