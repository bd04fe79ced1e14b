//! Sessions of an initiator of dynamic connections (see [`Dceth`]).

use super::Requester;
use super::streams::Streams;
use crate::link::port::Route;
use crate::queue::sq::{Scratch, SendQueue};
use bellpush_wire::Qpn;
use bellpush_wire::roce::Dceth;

/// PSNs after which a session is of another life. Which of two sessions of one life is the older a target knows by their
/// first PSNs, and would not of two that are half of all PSNs apart.
const LIFE: u32 = 1 << 22;

/// Whether the next WQE may be taken.
#[derive(PartialEq, Eq)]
pub(super) enum Turn {
    Same,
    Waits,
}

impl Requester {
    /// It has no peer of its own, and this is its life: see [`Dceth`]. With streams, so many in
    /// error end it.
    pub(in crate::service::rc) fn dynamic(&mut self, life: u32, streams: Option<usize>) {
        self.streams = streams.map(Streams::new);
        self.session = Some(Dceth { key: 0, source: Qpn(0), start: self.next, life });
    }

    /// A session begins: it is the first of the next life, if this one is long.
    pub(super) fn age(&mut self) {
        if let Some(session) = self.session.as_mut().filter(|_| self.lived >= LIFE) {
            session.life = session.life.wrapping_add(1);
            self.lived = 0;
        }
    }

    /// Turns to the target of the next WQE. A session begins whenever nothing is outstanding; another target's turn
    /// comes then.
    pub(super) fn turn(&mut self, sq: &mut SendQueue, scratch: &mut Scratch) -> Turn {
        let posted = sq.fetch(scratch);
        let to = posted.and_then(|posted| posted.wqe.ok()?.datagram);
        // What has no target is a local operation, or fails.
        let (Some(to), Some(session)) = (to, &mut self.session) else { return Turn::Same };
        let route = Route { to: to.address(), fields: to.fields() };
        if self.outstanding.is_empty() {
            (self.path.route, self.path.dest) = (route, to.qpn);
            *session = Dceth { key: to.dc_key(), source: sq.qp.qpn, start: self.next, ..*session };
            self.age();
            return Turn::Same;
        }
        let same = (self.path.route, self.path.dest, session.key) == (route, to.qpn, to.dc_key());
        if same { Turn::Same } else { Turn::Waits }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::objects::state::Attributes;
    use crate::service::PeerPath;
    use bellpush_nic::Mtu;
    use bellpush_wire::roce::{Fields, Service};

    #[test]
    fn sessions_of_one_life_begin_within_a_quarter_of_all_psns() {
        let route = Route { to: IpAddr::from([127, 0, 0, 1]), fields: Fields::default() };
        let path = PeerPath { route, dest: Qpn(1), mtu: Mtu::MAX, service: Service::Dc };
        let mut requester = Requester::new(path, &Attributes::default());
        requester.dynamic(u32::MAX, None);
        let mut life = |lived| {
            requester.lived = lived;
            requester.age();
            (requester.session.map(|session| session.life), requester.lived)
        };
        assert_eq!(life(LIFE - 1), (Some(u32::MAX), LIFE - 1));
        assert_eq!(life(LIFE), (Some(0), 0));
        assert_eq!(life(1), (Some(0), 1));
    }
}
