//! An endpoint's address as text, since it crosses processes and hosts.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Address, Link};
use crate::nic::{MAX_RD_ATOMIC, Mtu, NicAddress, QpAddress};
use crate::wire::{Psn, Qpn, Rkey};

/// An endpoint's [`Address`]. One with other fields comes from another version and is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct End {
    nic: NicName,
    qpn: u32,
    psn: u32,
    mtu: usize,
    rd_atomic: u8,
    iova: u64,
    rkey: u32,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NicName {
    InProcess(u64),
    Ip(IpAddr),
    Lid { lid: u16, gid: [u8; 16] },
}

impl End {
    /// `None` for an endpoint without a queue pair.
    pub fn of(address: &Address) -> Option<Self> {
        let Link::Qp(qp) = address.link else { return None };
        Some(Self {
            nic: match qp.nic {
                NicAddress::InProcess(n) => NicName::InProcess(n),
                NicAddress::Ip(ip) => NicName::Ip(ip),
                NicAddress::Lid { lid, gid } => NicName::Lid { lid, gid },
            },
            qpn: qp.qpn.0,
            psn: qp.psn.value(),
            mtu: qp.mtu.bytes(),
            rd_atomic: qp.rd_atomic,
            iova: address.iova,
            rkey: address.rkey.0,
            bytes: address.bytes,
        })
    }

    /// `None` for values that no endpoint has.
    pub fn address(&self) -> Option<Address> {
        let nic = match self.nic {
            NicName::InProcess(n) => NicAddress::InProcess(n),
            NicName::Ip(ip) => NicAddress::Ip(ip),
            NicName::Lid { lid, gid } => NicAddress::Lid { lid, gid },
        };
        let qpn = (self.qpn <= Qpn::MAX).then_some(Qpn(self.qpn))?;
        let psn = (self.psn < Psn::MODULUS).then(|| Psn::new(self.psn))?;
        let rd_atomic = (self.rd_atomic <= MAX_RD_ATOMIC).then_some(self.rd_atomic)?;
        let qp = QpAddress { nic, qpn, psn, mtu: Mtu::new(self.mtu)?, rd_atomic };
        let Self { iova, bytes, .. } = *self;
        Some(Address { link: Link::Qp(qp), iova, rkey: Rkey(self.rkey), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_json_and_odd_numbers_are_refused() {
        let qp = |nic| {
            let (qpn, psn, rd_atomic) = (Qpn(7), Psn::new(0xfffffe), 5);
            QpAddress { nic, qpn, psn, mtu: Mtu::MAX, rd_atomic }
        };
        let ip = NicAddress::Ip("127.0.0.9".parse().unwrap());
        for nic in [NicAddress::InProcess(3), ip, NicAddress::Lid { lid: 4, gid: [5; 16] }] {
            let address =
                Address { link: Link::Qp(qp(nic)), iova: u64::MAX - 5, rkey: Rkey(9), bytes: 77 };
            let end = End::of(&address).unwrap();
            let json = serde_json::to_string(&end).unwrap();
            let back: End = serde_json::from_str(&json).unwrap();
            assert_eq!(back.address(), Some(address), "{json}");
            for bad in [
                End { mtu: 1000, ..end.clone() },
                End { qpn: 1 << 24, ..end.clone() },
                End { psn: 1 << 24, ..end.clone() },
                End { rd_atomic: 17, ..end.clone() },
            ] {
                assert_eq!(bad.address(), None, "{bad:?}");
            }
            // Of versions before and after this one:
            for other in ["\"rd_atom\":5,", "\"rd_atomic\":5,\"more\":1,", ""] {
                let other = json.replace("\"rd_atomic\":5,", other);
                assert!(serde_json::from_str::<End>(&other).is_err(), "{other}");
            }
        }
    }
}
