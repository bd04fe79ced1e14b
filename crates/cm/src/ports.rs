//! Who has which port.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::Random;
use crate::id::Space;

/// Ports that are given to those who do not ask for one, as Linux's `ip_local_port_range` has them.
const FIRST: u32 = 32_768;
const LAST: u32 = 60_999;

/// Who has a port.
#[derive(Debug, Clone, Copy)]
struct Holder {
    id: u32,
    address: IpAddr,
    /// Lets others have the port, too, as long as nobody listens.
    shares: bool,
    listens: bool,
    /// Has IPv6 alone, where its address is any.
    v6_only: bool,
}

/// Ports that are taken.
#[derive(Debug, Default)]
pub(crate) struct Ports(HashMap<(Space, u16), Vec<Holder>>);

/// Whether there is an address that both are.
fn overlap(a: &Holder, b: &Holder) -> bool {
    let covers = |any: &Holder, other: &Holder| match any.address {
        IpAddr::V6(v6) if v6.is_unspecified() => !any.v6_only || other.address.is_ipv6(),
        IpAddr::V4(v4) if v4.is_unspecified() => other.address.is_ipv4(),
        _ => any.address == other.address,
    };
    covers(a, b) || covers(b, a)
}

impl Ports {
    /// Takes a port, a free one for port 0; which.
    pub(crate) fn take(
        &mut self,
        random: &Random,
        id: u32,
        space: Space,
        at: SocketAddr,
        (shares, v6_only): (bool, bool),
    ) -> Option<u16> {
        let holder = Holder { id, address: at.ip(), shares, listens: false, v6_only };
        let port = match at.port() {
            0 => {
                let range = LAST - FIRST + 1;
                let start = random.next() % range;
                let mut all = (0..range).map(|i| (FIRST + (start + i) % range) as u16);
                all.find(|&port| !self.0.contains_key(&(space, port)))?
            }
            port => port,
        };
        let holders = self.0.entry((space, port)).or_default();
        let bars =
            |other: &Holder| overlap(&holder, other) && !(shares && other.shares && !other.listens);
        if holders.iter().any(bars) {
            return None;
        }
        holders.push(holder);
        Some(port)
    }

    /// Has a holder listen; says whether it may.
    pub(crate) fn listen(&mut self, id: u32, space: Space, port: u16) -> bool {
        let Some(holders) = self.0.get_mut(&(space, port)) else { return false };
        let Some(at) = holders.iter().position(|holder| holder.id == id) else { return false };
        let own = holders[at];
        if holders.iter().any(|other| other.id != id && overlap(&own, other)) {
            return false;
        }
        holders[at].listens = true;
        true
    }

    /// Who listens at an address and port.
    pub(crate) fn listener(&self, space: Space, address: IpAddr, port: u16) -> Option<u32> {
        let asked = Holder { id: 0, address, shares: false, listens: false, v6_only: true };
        let holders = self.0.get(&(space, port))?;
        holders
            .iter()
            .find(|holder| holder.listens && overlap(holder, &asked))
            .map(|holder| holder.id)
    }

    /// Whether anybody listens at a port.
    pub(crate) fn has_listener(&self, space: Space, port: u16) -> bool {
        self.0
            .get(&(space, port))
            .is_some_and(|holders| holders.iter().any(|holder| holder.listens))
    }

    /// Gives a port back.
    pub(crate) fn give_back(&mut self, id: u32, space: Space, port: u16) {
        if let Some(holders) = self.0.get_mut(&(space, port)) {
            holders.retain(|holder| holder.id != id);
            if holders.is_empty() {
                self.0.remove(&(space, port));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(ports: &mut Ports, id: u32, at: &str, shares: bool) -> Option<u16> {
        ports.take(&Random::seeded(1), id, Space::Tcp, at.parse().unwrap(), (shares, false))
    }

    #[test]
    fn a_port_has_one_holder_for_an_address() {
        let mut ports = Ports::default();
        assert_eq!(take(&mut ports, 1, "127.0.0.1:7", false), Some(7));
        assert_eq!(take(&mut ports, 2, "127.0.0.1:7", false), None);
        assert_eq!(take(&mut ports, 2, "127.0.0.2:7", false), Some(7));
        assert_eq!(take(&mut ports, 3, "0.0.0.0:7", true), None);
        assert_eq!(take(&mut ports, 3, "[::]:7", true), None, "IPv6's any is IPv4's, too");
        ports.give_back(1, Space::Tcp, 7);
        assert_eq!(take(&mut ports, 3, "127.0.0.1:7", false), Some(7));
        let free = take(&mut ports, 4, "127.0.0.1:0", false).unwrap();
        assert!((FIRST..=LAST).contains(&u32::from(free)));
    }

    #[test]
    fn those_who_share_may_not_listen_beside_others() {
        let mut ports = Ports::default();
        assert_eq!(take(&mut ports, 1, "127.0.0.1:7", true), Some(7));
        assert_eq!(take(&mut ports, 2, "127.0.0.1:7", true), Some(7));
        assert!(!ports.listen(1, Space::Tcp, 7));
        ports.give_back(2, Space::Tcp, 7);
        assert!(ports.listen(1, Space::Tcp, 7));
        assert_eq!(take(&mut ports, 2, "127.0.0.1:7", true), None);
        let at = |address: &str| ports.listener(Space::Tcp, address.parse().unwrap(), 7);
        assert_eq!((at("127.0.0.1"), at("127.0.0.2")), (Some(1), None));
    }
}
