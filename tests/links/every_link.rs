//! One suite for all packet links: every link passes every case.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU8, Ordering};

use bellpush::nic::soft::link::{Faulty, Link, LinkError, ShmNet, UdpLink};

use crate::suite;
use crate::suite::Maker;

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

/// UDP on loopback, on a subnet of its own: another test must not claim an address that this one
/// has given back for a moment.
struct Udp(Ipv4Addr);

impl Maker for Udp {
    fn make() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(100);
        let (net, process) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
        Self(Ipv4Addr::new(127, net, (process % 250) as u8, 0))
    }

    fn attach(&self, addr: Option<IpAddr>) -> Result<Box<dyn Link>, LinkError> {
        if let Some(addr) = addr {
            return Ok(Box::new(UdpLink::open(addr, None)?));
        }
        let [a, b, c, _] = self.0.octets();
        for d in 1..255 {
            match UdpLink::open(Ipv4Addr::new(a, b, c, d).into(), None) {
                Err(LinkError::InUse { .. }) => {}
                opened => return Ok(Box::new(opened?)),
            }
        }
        Err(LinkError::NoneFree { range: "the test's subnet" })
    }
}

suite!(shm, Anonymous);
suite!(udp, Udp);
suite!(faulty, Harmless);
