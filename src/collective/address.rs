//! What a rank tells the others about itself: text, since it crosses processes and hosts.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::nic::{Mtu, NicAddress, QpAddress};
use crate::transport::{Address, Link};
use crate::wire::{Psn, Qpn, Rkey};

/// A rank's options that all ranks must share, and its endpoints. Opaque; goes through JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankAddress {
    pub(super) rank: u32,
    /// PCI address of its GPU, if that has one. Ranks that name the same share it, or are on different hosts.
    pub(super) gpu: Option<String>,
    /// Names and values, in one order at every rank.
    pub(super) options: Vec<(String, String)>,
    /// By channel and peer; the own rank's is `None`.
    pub(super) endpoints: Vec<Option<End>>,
}

/// An endpoint's [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    nic: NicName,
    qpn: u32,
    psn: u32,
    mtu: usize,
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
            iova: address.iova,
            rkey: address.rkey.0,
            bytes: address.bytes,
        })
    }

    /// `None` for numbers that no endpoint has.
    pub fn address(&self) -> Option<Address> {
        let nic = match self.nic {
            NicName::InProcess(n) => NicAddress::InProcess(n),
            NicName::Ip(ip) => NicAddress::Ip(ip),
            NicName::Lid { lid, gid } => NicAddress::Lid { lid, gid },
        };
        let qpn = (self.qpn <= Qpn::MAX).then_some(Qpn(self.qpn))?;
        let psn = (self.psn < Psn::MODULUS).then(|| Psn::new(self.psn))?;
        let qp = QpAddress { nic, qpn, psn, mtu: Mtu::new(self.mtu)? };
        let Self { iova, bytes, .. } = *self;
        Some(Address { link: Link::Qp(qp), iova, rkey: Rkey(self.rkey), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_json_and_odd_numbers_are_refused() {
        let qp = |nic| QpAddress { nic, qpn: Qpn(7), psn: Psn::new(0xfffffe), mtu: Mtu::MAX };
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
            ] {
                assert_eq!(bad.address(), None, "{bad:?}");
            }
        }
    }
}
