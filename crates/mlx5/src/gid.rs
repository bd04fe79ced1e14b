//! Which of a port's GIDs is its address.
//!
//! A RoCE port has a GID for each IP address of its network interface, and one for its link-local
//! IPv6 address, each as RoCE v1 and v2 (InfiniBand vol. 1, annex A17.3). Packets of one queue pair
//! carry one of them as source, and peers send to it.

use std::net::{IpAddr, Ipv6Addr};

/// One entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gid {
    pub index: u8,
    pub raw: [u8; 16],
    /// RoCE v2: packets go over UDP.
    pub roce_v2: bool,
}

impl Gid {
    /// The address that a GID of RoCE v2 stands for: IPv4 addresses are mapped (`::ffff:a.b.c.d`).
    pub fn ip(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.raw);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    fn rank(&self) -> u8 {
        match self.ip() {
            IpAddr::V4(ip) if !ip.is_link_local() => 0,
            IpAddr::V6(ip) if !ip.is_unicast_link_local() => 1,
            IpAddr::V4(_) => 2,
            IpAddr::V6(_) => 3,
        }
    }
}

/// The GID of an address, as [`Gid::ip`] reads it.
pub(super) fn of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The GID to use: the one asked for, else of RoCE v2 the first IPv4 address, then IPv6, then
/// link-local ones, which reach no further than the wire.
pub(super) fn choose(gids: &[Gid], wanted: Option<u8>) -> Option<Gid> {
    let v2 = gids.iter().copied().filter(|gid| gid.roce_v2);
    match wanted {
        Some(index) => v2.into_iter().find(|gid| gid.index == index),
        None => v2.min_by_key(|gid| (gid.rank(), gid.index)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, ip: &str, roce_v2: bool) -> Gid {
        Gid { index, raw: of(ip.parse().unwrap()), roce_v2 }
    }

    /// What a ConnectX port with one address of each family shows.
    fn table() -> Vec<Gid> {
        vec![
            gid(0, "fe80::e42:a1ff:fe00:1", false),
            gid(1, "fe80::e42:a1ff:fe00:1", true),
            gid(2, "10.0.0.7", false),
            gid(3, "10.0.0.7", true),
            gid(5, "fd00::7", true),
        ]
    }

    #[test]
    fn a_routable_ipv4_address_is_preferred() {
        let mut gids = table();
        assert_eq!(choose(&gids, None).unwrap().index, 3);
        gids.remove(3);
        assert_eq!(choose(&gids, None).unwrap().index, 5, "then IPv6");
        gids.pop();
        assert_eq!(choose(&gids, None).unwrap().index, 1, "then the wire's own");
        gids.push(gid(7, "169.254.3.4", true));
        assert_eq!(choose(&gids, None).unwrap().index, 7);
    }

    #[test]
    fn v1_is_never_chosen_and_an_index_is_obeyed() {
        let gids = table();
        assert_eq!(choose(&gids, Some(1)).unwrap().index, 1);
        assert_eq!(choose(&gids, Some(2)), None, "RoCE v1");
        assert_eq!(choose(&gids, Some(4)), None, "empty");
        assert_eq!(choose(&gids[..1], None), None);
    }

    #[test]
    fn addresses_survive_the_way_through_a_gid() {
        for text in ["10.0.0.7", "127.0.0.2", "fe80::1", "2001:db8::5"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(Gid { index: 0, raw: of(ip), roce_v2: true }.ip(), ip);
        }
    }
}
