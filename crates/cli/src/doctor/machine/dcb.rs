//! How interfaces of RoCE treat priorities. Only rtnetlink tells it, so that a recorded machine has the answer as text:
//! the file `netlink/dcb/INTERFACE`, a line for each thing, or `error N` with the system's number.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use bellpush::mem::dcb::{self, Dcb};
use rustix::io::Errno;

use super::rdma::{Netdev, RdmaDevice};
use crate::doctor::read::{Root, Seen};

/// Priorities of IEEE 802.1Q, and code points of DiffServ (RFC 2474).
const PRIORITIES: u8 = 8;
const DSCPS: u8 = 64;

/// Asks about the interfaces of RoCE ports, and those that their bonds are made of.
pub fn ask(root: &Root, live: bool, rdma: &[RdmaDevice], netdevs: &mut [Netdev]) {
    let ports = rdma.iter().filter(|device| device.is_mlx5()).flat_map(|device| &device.ports);
    let of_ports = ports.filter(|port| port.is_ethernet()).filter_map(|p| p.netdev.as_deref());
    let mut wanted: BTreeSet<String> = of_ports.map(str::to_owned).collect();
    let bonds = netdevs.iter().filter(|netdev| wanted.contains(&netdev.name));
    let members = bonds.filter_map(|netdev| netdev.bond.as_ref()).flat_map(|(_, all)| all.clone());
    let members: Vec<String> = members.collect();
    wanted.extend(members);
    for netdev in netdevs.iter_mut().filter(|netdev| wanted.contains(&netdev.name)) {
        netdev.dcb = read(root, live, &netdev.name);
    }
}

fn read(root: &Root, live: bool, interface: &str) -> Seen<Dcb> {
    let name = format!("netlink/dcb/{interface}");
    let answer = root.answer(&name, live, || match dcb::ask(interface) {
        Ok(dcb) => text(&dcb),
        Err(e) => format!("error {}", e.raw_os_error().unwrap_or(Errno::BADMSG.raw_os_error())),
    });
    let error = answer.known().and_then(|text| text.strip_prefix("error ")?.parse().ok());
    match error {
        Some(number) => {
            Seen::Unreadable(format!("rtnetlink: {}", io::Error::from_raw_os_error(number)))
        }
        None => answer.parse(&name, |text| parsed(text)),
    }
}

/// Lines for what is known.
fn text(dcb: &Dcb) -> String {
    let mut lines = String::new();
    let mut line = |words: String| lines.extend([words, "\n".to_owned()]);
    let list = |all: &[u8]| {
        let words: Vec<String> = all.iter().map(u8::to_string).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    };
    if let Some(dcbx) = dcb.dcbx {
        line(format!("dcbx {dcbx}"));
    }
    if let Some(pfc) = dcb.pfc {
        line(format!("pfc {}", list(&priorities(pfc))));
    }
    if let Some(queues) = &dcb.queues {
        line(format!("queues {}", list(queues)));
    }
    if let Some(dscp) = &dcb.dscp {
        for priority in 0..PRIORITIES {
            let own = dscp.iter().filter(|(_, p)| **p == priority).map(|(dscp, _)| *dscp);
            let own: Vec<u8> = own.collect();
            if !own.is_empty() {
                line(format!("dscp {priority} {}", list(&own)));
            }
        }
        if dscp.is_empty() {
            line("dscp none".to_owned());
        }
    }
    if dcb.odd_dscps > 0 {
        line(format!("odd-dscps {}", dcb.odd_dscps));
    }
    lines
}

/// The priorities of a mask.
pub fn priorities(mask: u8) -> Vec<u8> {
    (0..PRIORITIES).filter(|priority| mask >> priority & 1 != 0).collect()
}

fn parsed(text: &str) -> Option<Dcb> {
    let mut dcb = Dcb::default();
    for line in text.lines() {
        let (key, value) = line.trim().split_once(' ')?;
        match key {
            "dcbx" => dcb.dcbx = Some(value.parse().ok()?),
            "pfc" => {
                let on = numbers(value, PRIORITIES)?.into_iter();
                dcb.pfc = Some(on.fold(0, |mask, priority| mask | 1 << priority));
            }
            "queues" => dcb.queues = Some(numbers(value, PRIORITIES)?.try_into().ok()?),
            "dscp" if value == "none" => dcb.dscp = Some(BTreeMap::new()),
            "dscp" => {
                let (priority, list) = value.split_once(' ')?;
                let priority: u8 = priority.parse().ok().filter(|p| *p < PRIORITIES)?;
                let own = numbers(list, DSCPS)?.into_iter().map(|dscp| (dscp, priority));
                dcb.dscp.get_or_insert_default().extend(own);
            }
            "odd-dscps" => dcb.odd_dscps = value.parse().ok()?,
            _ => return None,
        }
    }
    Some(dcb)
}

/// Numbers below `end`, between commas, or `none`.
fn numbers(list: &str, end: u8) -> Option<Vec<u8>> {
    if list == "none" {
        return Some(Vec::new());
    }
    list.split(',').map(|word| word.parse().ok().filter(|number| *number < end)).collect()
}

#[cfg(test)]
#[path = "dcb_live.rs"]
mod live;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_the_same_from_its_text() {
        let map = |all: &[(u8, u8)]| Some(all.iter().copied().collect());
        for dcb in [
            Dcb::default(),
            Dcb { pfc: Some(0), dscp: map(&[]), ..Dcb::default() },
            Dcb {
                dcbx: Some(9),
                pfc: Some(1 << 3 | 1 << 7),
                queues: Some([1, 0, 2, 3, 4, 5, 6, 7]),
                dscp: map(&[(0, 0), (24, 3), (26, 3), (63, 7)]),
                odd_dscps: 2,
            },
        ] {
            assert_eq!(parsed(&text(&dcb)), Some(dcb.clone()), "{}", text(&dcb));
        }
    }

    #[test]
    fn a_text_that_is_none_is_refused() {
        for text in [
            "x",
            "pfc",
            "pfc 8",
            "pfc 3,",
            "dcbx 256",
            "queues 0,1,2",
            "queues none",
            "queues 0,1,2,3,4,5,6,8",
            "dscp 3",
            "dscp 8 26",
            "dscp 3 64",
            "odd-dscps -1",
            "ets 1",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    /// An attribute of netlink, of as many bytes as it says and filled up to a multiple of 4.
    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() + 4) as u16;
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    proptest::proptest! {
        /// Whatever attributes the system answers with, what is taken from them is in bounds.
        #[test]
        fn any_answer_is_read_or_refused(
            ieee in proptest::collection::vec((0_u16..5, proptest::collection::vec(0_u8..9, 0..80)), 0..6),
            apps in proptest::collection::vec((4_u8..6, 0_u8..10, 0_u16..80), 0..6),
        ) {
            const DCB_ATTR_IEEE: u16 = 13;
            const APP_TABLE: u16 = 3;
            let app = |(selector, priority, dscp): &(u8, u8, u16)| {
                attribute(1, &[&[*selector, *priority][..], &dscp.to_ne_bytes()].concat())
            };
            let table = attribute(APP_TABLE, &apps.iter().map(app).collect::<Vec<_>>().concat());
            let others = ieee.iter().map(|(kind, payload)| attribute(*kind, payload));
            let nest = [table].into_iter().chain(others).collect::<Vec<_>>().concat();
            let message = [vec![0; 20], attribute(DCB_ATTR_IEEE, &nest)].concat();
            if let Ok(dcb) = dcb::answer(&message) {
                let dscp = dcb.dscp.iter().flatten();
                proptest::prop_assert!(dscp.clone().all(|(dscp, p)| *dscp < DSCPS && *p < PRIORITIES));
                proptest::prop_assert!(dcb.queues.iter().flatten().all(|queue| *queue < PRIORITIES));
                proptest::prop_assert_eq!(parsed(&text(&dcb)), Some(dcb));
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "((dcbx|pfc|queues|dscp|odd-dscps|x) [0-9, none-]{0,12}\n?){0,6}") {
            if let Some(Dcb { queues, dscp, .. }) = parsed(&text) {
                let dscp = dscp.unwrap_or_default();
                proptest::prop_assert!(dscp.iter().all(|(dscp, p)| *dscp < DSCPS && *p < PRIORITIES));
                proptest::prop_assert!(queues.iter().flatten().all(|queue| *queue < PRIORITIES));
            }
        }
    }
}
