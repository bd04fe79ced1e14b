//! What programs may be told, and because of what.

use std::net::IpAddr;

use bellpush_cm::{EventKind, Param, UserEvent};
use bellpush_wire::cm::{IP_HEADER_BYTES, Message, Rep, Req};

use super::{CHANNELS, Call, Known, World};

impl World {
    /// Whether an event may come of a message.
    pub(super) fn is_because(
        &mut self,
        n: usize,
        event: &UserEvent,
        from: IpAddr,
        message: &Message,
    ) {
        use EventKind::*;
        let named = |id: u32| self.hosts[n].named.get(&id) == Some(&event.id);
        let known = self.hosts[n].known.get(&event.id);
        let its = |id| known.is_some_and(|it| it.remote_id.is_none_or(|known| known == id));
        let is_right = match (message, event.kind) {
            (Message::Req(req), ConnectRequest) => {
                says_what_was_asked(&event.param, req);
                true
            }
            (Message::SidrReq(req), ConnectRequest) => {
                matches!(&event.param, Param::Datagrams(it)
                    if it.private == req.private[IP_HEADER_BYTES..])
            }
            // Its queue pair begins anew.
            (Message::Req(_), Disconnected) => true,
            (Message::Rep(rep), ConnectResponse) => {
                self.says_what_was_answered(n, event, rep);
                named(rep.remote_id)
            }
            (Message::Rtu(rtu), Established) => named(rtu.remote_id) && its(rtu.local_id),
            (Message::Rej(rej), Rejected | Disconnected) => {
                let of = rej.remote_id == 0 && its(rej.local_id) || named(rej.remote_id);
                of && (rej.local_id == 0 || its(rej.local_id))
            }
            (Message::Dreq(dreq), Disconnected) => {
                let qpn = known.is_some_and(|it| it.qpn == dreq.remote_qpn);
                named(dreq.remote_id) && its(dreq.local_id) && qpn
            }
            (Message::Drep(drep), Disconnected) => named(drep.remote_id) && its(drep.local_id),
            (Message::SidrRep(rep), Established | Unreachable) => {
                named(rep.request_id) && (event.kind == Established) == (rep.status == 0)
            }
            _ => false,
        };
        assert!(is_right, "{event:?} because of {message:?}");
        if event.kind == ConnectRequest {
            let facts = self.hosts[n].ids.facts_of_any(event.id).expect("it is new");
            assert_eq!(facts.destination.map(|at| at.ip()), Some(from), "a third party is asked");
            let local_id = match message {
                Message::Req(req) => req.local_id,
                Message::SidrReq(req) => req.request_id,
                _ => unreachable!("the kinds that ask"),
            };
            let new = Known { peer: Some(from), remote_id: Some(local_id), ..Known::default() };
            self.hosts[n].known.insert(event.id, new);
        } else {
            let peer = known.and_then(|known| known.peer);
            assert_eq!(peer, Some(from), "{event:?} of somebody else");
            if let (Message::Rep(rep), Some(known)) =
                (message, self.hosts[n].known.get_mut(&event.id))
            {
                known.remote_id = Some(rep.local_id);
            }
        }
    }

    pub(super) fn says_what_was_answered(&self, n: usize, event: &UserEvent, rep: &Rep) {
        let Param::Connection(it) = &event.param else { panic!("{event:?}") };
        let said = (it.qpn, it.responder_resources, it.initiator_depth, &it.private[..]);
        assert_eq!(said, (rep.qpn, rep.initiator_depth, rep.responder_resources, &rep.private[..]));
        let qp = |state| CHANNELS.map(|at| self.hosts[n].ids.qp(at, event.id, state).ok());
        let [rtr, rts] = [qp(2), qp(3)].map(|all| all.into_iter().flatten().next().unwrap());
        assert_eq!((rtr.dest_qpn, rts.sq_psn), (Some(rep.qpn), Some(rep.psn)));
    }

    pub(super) fn take(&mut self, n: usize) -> Vec<UserEvent> {
        let ids = &mut self.hosts[n].ids;
        let next = || CHANNELS.iter().find_map(|&channel| ids.next_event(channel));
        std::iter::from_fn(next).collect()
    }

    pub(super) fn heed(&mut self, n: usize) {
        if !self.lazy {
            self.read(n);
        }
    }

    pub(super) fn read(&mut self, n: usize) {
        for event in self.take(n) {
            self.heard(n, &event);
        }
    }

    /// Whether a program may be told that now.
    pub(super) fn heard(&mut self, n: usize, event: &UserEvent) {
        use EventKind::*;
        self.outcome.events += 1;
        if event.kind == ConnectRequest {
            return self.heard_request(n, event);
        }
        let known = self.hosts[n].known.get_mut(&event.id);
        let Some(known) = known else { panic!("{event:?} of no identifier") };
        let called = |call| known.calls.contains(&call);
        let none_of = |kinds: &[EventKind]| !kinds.iter().any(|kind| known.told.contains(kind));
        let over = [Rejected, Unreachable, Disconnected, TimewaitExit];
        let connects = called(Call::Connect) || known.passive && called(Call::Accept);
        let is_legal = none_of(&[event.kind])
            && match event.kind {
                AddrResolved => called(Call::ResolveAddress),
                RouteResolved => called(Call::ResolveRoute) && !none_of(&[AddrResolved]),
                ConnectResponse => called(Call::Connect) && !known.datagrams && none_of(&over),
                Established if known.datagrams => called(Call::Connect) && none_of(&over),
                Established => known.passive && called(Call::Accept) && none_of(&over),
                Rejected => connects && !known.datagrams && none_of(&over),
                Unreachable => {
                    connects && none_of(&over) && none_of(&[Established, ConnectResponse])
                }
                Disconnected if known.datagrams => false,
                Disconnected => {
                    let was_up = known.passive && called(Call::Accept);
                    (was_up || !none_of(&[ConnectResponse])) && none_of(&over)
                }
                TimewaitExit => called(Call::Disconnect) && !none_of(&[Disconnected]),
                ConnectRequest => false,
            };
        assert!(is_legal, "{event:?} of {known:?}");
        assert_eq!(event.uid, known.uid, "{event:?}");
        known.told.push(event.kind);
        let counted = match event.kind {
            Established if known.datagrams => &mut self.outcome.datagrams,
            Established => &mut self.outcome.established,
            Disconnected => &mut self.outcome.ended,
            _ => return,
        };
        *counted += 1;
    }

    pub(super) fn heard_request(&mut self, n: usize, event: &UserEvent) {
        let datagrams = matches!(event.param, Param::Datagrams(_));
        let host = &mut self.hosts[n];
        let listens = |known: &Known| {
            known.uid == event.uid
                && known.calls.contains(&Call::Listen)
                && known.datagrams == datagrams
        };
        assert!(host.known.values().any(listens), "{event:?} of nobody who listens");
        let known = host.known.entry(event.id).or_default();
        assert!(known.told.is_empty() && known.uid == 0, "{event:?} of an old identifier");
        (known.passive, known.datagrams) = (true, datagrams);
        known.peer =
            host.ids.facts_of_any(event.id).and_then(|it| it.destination).map(|to| to.ip());
        known.told.push(event.kind);
    }
}

fn says_what_was_asked(param: &Param, req: &Req) {
    let Param::Connection(it) = param else { panic!("{param:?} of {req:?}") };
    let said = (it.qpn, it.responder_resources, it.initiator_depth, it.retry, it.rnr_retry, it.srq);
    let asked =
        (req.qpn, req.initiator_depth, req.responder_resources, req.retry, req.rnr_retry, req.srq);
    assert_eq!(said, asked);
    assert_eq!(it.private, req.private[IP_HEADER_BYTES..]);
}
