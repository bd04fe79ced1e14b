//! An endpoint's address as text, since it crosses processes and hosts.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{Address, Link};
use crate::nic::{MAX_RD_ATOMIC, Mtu, NicAddress, QpAddress};
use crate::wire::{Psn, Qpn, Rkey};

/// An endpoint's [`Address`]. One with other fields comes from another version and is refused. Without `Debug`: it has
/// a tcp endpoint's key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Text {
    link: LinkText,
    iova: u64,
    rkey: u32,
    bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum LinkText {
    Qp(QpText),
    /// The key as 32 hexadecimal digits: numbers of some formats end at 64 bits.
    Tcp {
        listener: SocketAddr,
        key: String,
    },
    Auto {
        bell: QpText,
        inband: Option<QpText>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QpText {
    nic: NicName,
    qpn: u32,
    psn: u32,
    mtu: usize,
    rd_atomic: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NicName {
    InProcess(u64),
    Ip(IpAddr),
    Lid { lid: u16, gid: [u8; 16] },
}

impl From<Address> for Text {
    fn from(Address { link, iova, rkey, bytes }: Address) -> Self {
        let link = match link {
            Link::Qp(qp) => LinkText::Qp(qp.into()),
            Link::Tcp { listener, key } => LinkText::Tcp { listener, key: format!("{key:032x}") },
            Link::Auto { bell, inband } => {
                LinkText::Auto { bell: bell.into(), inband: inband.map(QpText::from) }
            }
        };
        Self { link, iova, rkey: rkey.0, bytes }
    }
}

impl TryFrom<Text> for Address {
    type Error = &'static str;

    fn try_from(Text { link, iova, rkey, bytes }: Text) -> Result<Self, &'static str> {
        let link = match link {
            LinkText::Qp(qp) => Link::Qp(qp.address()?),
            LinkText::Tcp { listener, key } => {
                let is_key = key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit());
                let key = is_key.then(|| u128::from_str_radix(&key, 16).ok()).flatten();
                Link::Tcp { listener, key: key.ok_or("the key is not 32 hexadecimal digits")? }
            }
            LinkText::Auto { bell, inband } => Link::Auto {
                bell: bell.address()?,
                inband: inband.map(|qp| qp.address()).transpose()?,
            },
        };
        Ok(Self { link, iova, rkey: Rkey(rkey), bytes })
    }
}

impl From<QpAddress> for QpText {
    fn from(qp: QpAddress) -> Self {
        Self {
            nic: match qp.nic {
                NicAddress::InProcess(n) => NicName::InProcess(n),
                NicAddress::Ip(ip) => NicName::Ip(ip),
                NicAddress::Lid { lid, gid } => NicName::Lid { lid, gid },
            },
            qpn: qp.qpn.0,
            psn: qp.psn.value(),
            mtu: qp.mtu.bytes(),
            rd_atomic: qp.rd_atomic,
        }
    }
}

impl QpText {
    fn address(&self) -> Result<QpAddress, &'static str> {
        let nic = match self.nic {
            NicName::InProcess(n) => NicAddress::InProcess(n),
            NicName::Ip(ip) => NicAddress::Ip(ip),
            NicName::Lid { lid, gid } => NicAddress::Lid { lid, gid },
        };
        let qpn = (self.qpn <= Qpn::MAX).then_some(Qpn(self.qpn));
        let psn = (self.psn < Psn::MODULUS).then(|| Psn::new(self.psn));
        let rd_atomic = (self.rd_atomic <= MAX_RD_ATOMIC).then_some(self.rd_atomic);
        Ok(QpAddress {
            nic,
            qpn: qpn.ok_or("no queue pair has that number")?,
            psn: psn.ok_or("no packet has that sequence number")?,
            mtu: Mtu::new(self.mtu).ok_or("no path has that MTU")?,
            rd_atomic: rd_atomic.ok_or("no NIC has so many READs outstanding")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qp(nic: NicAddress) -> QpAddress {
        QpAddress { nic, qpn: Qpn(7), psn: Psn::new(0xfffffe), mtu: Mtu::MAX, rd_atomic: 5 }
    }

    fn addresses() -> Vec<Address> {
        let ip = NicAddress::Ip("127.0.0.9".parse().unwrap());
        let lid = NicAddress::Lid { lid: 4, gid: [5; 16] };
        let mut links = [NicAddress::InProcess(3), ip, lid].map(|nic| Link::Qp(qp(nic))).to_vec();
        links.push(Link::Tcp { listener: "[::1]:5".parse().unwrap(), key: u128::MAX - 1 });
        links.push(Link::Auto { bell: qp(ip), inband: Some(qp(lid)) });
        links.push(Link::Auto { bell: qp(ip), inband: None });
        let of = |link| Address { link, iova: u64::MAX - 5, rkey: Rkey(9), bytes: 77 };
        links.into_iter().map(of).collect()
    }

    #[test]
    fn what_is_logged_of_an_address_lets_nobody_connect() {
        let (listener, key) =
            ("127.0.0.1:5".parse().unwrap(), 0x1234_5678_9abc_def0_u128 << 60 | 77);
        let link = Link::Tcp { listener, key };
        let address = Address { link, iova: 1, rkey: Rkey(2), bytes: 3 };
        for text in [format!("{address:?}"), format!("{link:#?}"), format!("{link:x?}")] {
            for shown in [format!("{key}"), format!("{key:x}"), " key".into()] {
                assert!(!text.contains(&shown), "{text}");
            }
            assert!(text.contains("Tcp") && text.contains(&listener.to_string()), "{text}");
        }
        for address in addresses() {
            let text = format!("{address:?}");
            let kind = match address.link {
                Link::Qp(_) => "Qp(QpAddress { nic: ",
                Link::Tcp { .. } => "Tcp { listener: [::1]:5, .. }",
                Link::Auto { .. } => "Auto { bell: QpAddress { nic: ",
            };
            assert!(text.contains(kind) && text.contains("bytes: 77"), "{text}");
        }
    }

    #[test]
    fn an_address_survives_json() {
        for address in addresses() {
            let json = serde_json::to_string(&address).unwrap();
            assert_eq!(serde_json::from_str::<Address>(&json).unwrap(), address, "{json}");
        }
    }

    #[test]
    fn numbers_that_no_endpoint_has_and_other_fields_are_refused() {
        let good = addresses().into_iter().map(|a| serde_json::to_string(&a).unwrap());
        let good: Vec<String> = good.collect();
        let mut changed = 0;
        for (from, to) in [
            ("\"mtu\":4096", "\"mtu\":1000"),
            ("\"qpn\":7", "\"qpn\":16777216"),
            ("\"psn\":16777214", "\"psn\":16777216"),
            ("\"rd_atomic\":5", "\"rd_atomic\":17"),
            ("\"key\":\"f", "\"key\":\"+"),
            ("\"key\":\"f", "\"key\":\""),
            // Of versions before and after this one:
            ("\"rd_atomic\":5", "\"rd_atom\":5"),
            ("\"rd_atomic\":5", "\"rd_atomic\":5,\"more\":1"),
            ("\"bytes\":77", "\"bytes\":77,\"more\":1"),
            (",\"bytes\":77", ""),
        ] {
            for json in good.iter().filter(|json| json.contains(from)) {
                let bad = json.replace(from, to);
                assert!(serde_json::from_str::<Address>(&bad).is_err(), "{bad}");
                changed += 1;
            }
        }
        assert!(changed > 25, "{changed}");
    }
}
