//! What messages do.
//!
//! A message is for a connection if it names that connection's ID, comes from its peer's address, and
//! does not name another ID of the peer's than the known one: whoever guesses an ID cannot end, accept
//! or delay a stranger's connection.

use std::net::IpAddr;

use bellpush_wire::cm::{
    Drep, Dreq, Mad, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq, reason, sidr_status,
    transport,
};

use crate::cm::{Cm, RETRIES};
use crate::connection::{ConnId, Connection, Patience, State, timeout_ns};
use crate::consumer::{Event, Output, Request};

/// How long a consumer may take to answer what was asked, as an MRA says it: 69 s.
const CONSUMER: u8 = 24;

/// What an MRA or REJ speaks of.
const OF_REQ: u8 = 0;
const OF_REP: u8 = 1;

/// How long a request waits for somebody who offers its service. An active side takes the refusal for final, and
/// programs such as perftest ask for a second connection before their server, which has taken the first one, listens
/// again: on a network of switches the request is slower than that.
const HOLD_NS: u64 = 100_000_000;
/// Requests that wait so; others are refused at once.
const MOST_HELD: usize = 64;

/// A request that waits for its service.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) due_ns: u64,
    pub(crate) from: IpAddr,
    pub(crate) transaction: u64,
    pub(crate) request: Request,
}

impl Cm {
    /// Takes a message that came from an address. What is not one, or is for nobody, is dropped.
    pub fn receive(&mut self, now_ns: u64, from: IpAddr, bytes: &[u8]) {
        let Ok(mad) = Mad::parse(bytes) else { return };
        let transaction = mad.transaction;
        match mad.message {
            Message::Req(req) => self.on_req(Some(now_ns), from, transaction, &req),
            Message::Mra(mra) => self.on_mra(now_ns, from, &mra),
            Message::Rej(rej) => self.on_rej(now_ns, from, &rej),
            Message::Rep(rep) => self.on_rep(from, transaction, &rep),
            Message::Rtu(rtu) => self.on_rtu(from, &rtu),
            Message::Dreq(dreq) => self.on_dreq(now_ns, from, transaction, &dreq),
            Message::Drep(drep) => self.on_drep(now_ns, from, &drep),
            Message::SidrReq(req) => self.on_sidr_req(Some(now_ns), from, transaction, &req),
            Message::SidrRep(rep) => self.on_sidr_rep(from, &rep),
        }
    }

    /// The connection that a message is for.
    fn of(&mut self, from: IpAddr, id: u32, remote_id: u32) -> Option<(ConnId, &mut Connection)> {
        let id = ConnId(id);
        let connection = self.connections.get_mut(&id)?;
        let is_its = connection.peer == from
            && (connection.remote_id == 0 || connection.remote_id == remote_id);
        is_its.then_some((id, connection))
    }

    /// Answers somebody with whom there is no connection.
    fn reply(&mut self, to: IpAddr, transaction: u64, message: Message) {
        self.out
            .push_back(Output::Send { to, mad: Mad { transaction, modifier: 0, message }.emit() });
    }

    fn refuse(&mut self, to: IpAddr, transaction: u64, (rejected, remote_id): (u8, u32), why: u16) {
        let (info_bytes, info, private) = (0, [0; 72], [0; 148]);
        let rej = Rej { local_id: 0, remote_id, rejected, info_bytes, reason: why, info, private };
        self.reply(to, transaction, Message::Rej(rej));
    }

    /// Whether a request for what nobody offers waits for it; `now_ns` is `None` if it has.
    fn hold(
        &mut self,
        now_ns: Option<u64>,
        from: IpAddr,
        transaction: u64,
        request: Request,
    ) -> bool {
        let Some(now_ns) = now_ns else { return false };
        if self.held.iter().any(|held| held.from == from && held.request == request) {
            return true;
        }
        let has_room = self.held.len() < MOST_HELD;
        if has_room {
            let due_ns = now_ns.saturating_add(HOLD_NS);
            self.held.push_back(Held { due_ns, from, transaction, request });
        }
        has_room
    }

    pub(crate) fn on_req(
        &mut self,
        now_ns: Option<u64>,
        from: IpAddr,
        transaction: u64,
        req: &Req,
    ) {
        let refuse = |cm: &mut Self, why| cm.refuse(from, transaction, (OF_REQ, req.local_id), why);
        let key = (from, req.local_id, false);
        if let Some(&id) = self.by_remote.get(&key) {
            let connection = &self.connections[&id];
            match connection.state {
                _ if connection.remote_qpn != req.qpn => refuse(self, reason::STALE),
                // It is with the consumer: the peer need not ask again for a while.
                State::ReqReceived => self.acknowledge(id, OF_REQ),
                State::TimeWait => refuse(self, reason::STALE),
                _ => {} // the answer is under way, or will be sent again
            }
            return;
        }
        if req.local_id == 0 || req.qpn == 0 {
            return;
        }
        if (req.transport, req.extended_transport) != (transport::RC, 0) {
            return refuse(self, reason::INVALID_TRANSPORT);
        }
        if !self.services.contains(&req.service) {
            if !self.hold(now_ns, from, transaction, Request::Connection(Box::new(*req))) {
                refuse(self, reason::INVALID_SERVICE);
            }
            return;
        }
        if let Some(&old) = self.by_qpn.get(&(from, req.qpn)) {
            // The peer has begun anew, and its queue pair with it: what was before is over.
            refuse(self, reason::STALE);
            if self.connections[&old].state == State::TimeWait {
                return;
            }
            self.settle(old, State::Closed);
            return self.tell(old, Event::Disconnected { timed_out: true });
        }
        let Ok(id) = self.free_id() else { return };
        let linger_ns = timeout_ns(req.path.ack_timeout);
        let connection = self.new_connection(from, req.service, linger_ns);
        let connection = Connection {
            state: State::ReqReceived,
            remote_id: req.local_id,
            remote_qpn: req.qpn,
            transaction,
            patience: Patience::with(req.local_timeout, req.cm_retries.min(RETRIES)),
            ..connection
        };
        self.connections.insert(id, connection);
        self.by_remote.insert(key, id);
        self.by_qpn.insert((from, req.qpn), id);
        let request = Request::Connection(Box::new(*req));
        self.tell(id, Event::Request { request, from });
    }

    /// Says that the consumer takes its time.
    fn acknowledge(&mut self, id: ConnId, acknowledged: u8) {
        let remote_id = self.connections[&id].remote_id;
        let mra =
            Mra { local_id: id.0, remote_id, acknowledged, timeout: CONSUMER, private: [0; 222] };
        self.send(id, Message::Mra(mra));
    }

    fn on_mra(&mut self, now_ns: u64, from: IpAddr, mra: &Mra) {
        let Some((id, connection)) = self.of(from, mra.remote_id, mra.local_id) else { return };
        let waits = match connection.state {
            State::ReqSent => mra.acknowledged == OF_REQ,
            State::RepSent => mra.acknowledged == OF_REP,
            _ => false,
        };
        // Once: else a peer could have this side wait for ever.
        if waits && !connection.delayed {
            connection.delayed = true;
            let due = now_ns + timeout_ns(mra.timeout) + connection.patience.wait_ns;
            self.set_due(id, Some(due));
        }
    }

    fn on_rep(&mut self, from: IpAddr, transaction: u64, rep: &Rep) {
        let Some((id, connection)) = self.of(from, rep.remote_id, rep.local_id) else {
            return self.refuse(from, transaction, (OF_REP, rep.local_id), reason::INVALID_ID);
        };
        match connection.state {
            State::ReqSent if rep.local_id != 0 && rep.qpn != 0 => {
                (connection.remote_id, connection.remote_qpn) = (rep.local_id, rep.qpn);
                self.settle(id, State::RepReceived);
                self.by_remote.insert((from, rep.local_id, false), id);
                self.by_qpn.insert((from, rep.qpn), id);
                self.tell(id, Event::Response(Box::new(*rep)));
            }
            State::RepReceived => self.acknowledge(id, OF_REP),
            // The RTU was lost.
            State::Established => {
                if let Some(mad) = connection.message {
                    self.out.push_back(Output::Send { to: from, mad });
                }
            }
            _ => {}
        }
    }

    fn on_rtu(&mut self, from: IpAddr, rtu: &Rtu) {
        let Some((id, connection)) = self.of(from, rtu.remote_id, rtu.local_id) else { return };
        if connection.state == State::RepSent {
            self.settle(id, State::Established);
            self.tell(id, Event::Established);
        }
    }

    fn on_rej(&mut self, now_ns: u64, from: IpAddr, rej: &Rej) {
        // A peer that gives up before it has had an answer knows no ID of this side.
        let by_remote = self.by_remote.get(&(from, rej.local_id, false)).copied();
        let own = match rej.remote_id {
            0 => by_remote.map_or(0, |id| id.0),
            id => id,
        };
        let Some((id, connection)) = self.of_rejected(from, own, rej) else { return };
        match connection.state {
            State::ReqSent
            | State::ReqReceived
            | State::RepSent
            | State::RepReceived
            | State::Established => {
                self.settle(id, State::Closed);
                self.tell(id, Event::Rejected { reason: rej.reason, private: rej.private });
            }
            State::DreqSent => {
                self.tell(id, Event::Disconnected { timed_out: false });
                self.linger(now_ns, id);
            }
            _ => {}
        }
    }

    /// As [`Cm::of`]; who rejects a request may have given it no ID.
    fn of_rejected(
        &mut self,
        from: IpAddr,
        id: u32,
        rej: &Rej,
    ) -> Option<(ConnId, &mut Connection)> {
        let known = self.connections.get(&ConnId(id)).map_or(0, |connection| connection.remote_id);
        self.of(from, id, if rej.local_id == 0 { known } else { rej.local_id })
    }

    fn on_dreq(&mut self, now_ns: u64, from: IpAddr, transaction: u64, dreq: &Dreq) {
        let drep = |local_id| {
            Message::Drep(Drep { local_id, remote_id: dreq.local_id, private: [0; 224] })
        };
        let Some((id, connection)) = self.of(from, dreq.remote_id, dreq.local_id) else {
            // It was over here before.
            return self.reply(from, transaction, drep(dreq.remote_id));
        };
        if connection.local_qpn != dreq.remote_qpn || connection.remote_id == 0 {
            return;
        }
        // The answer goes with the question's transaction.
        connection.transaction = transaction;
        match connection.state {
            State::RepSent | State::Established if connection.owned => {
                self.settle(id, State::DreqReceived);
                self.tell(id, Event::Disconnected { timed_out: false });
            }
            // Both sides at once: each has said it.
            State::DreqSent => {
                self.send(id, drep(id.0));
                self.tell(id, Event::Disconnected { timed_out: false });
                self.linger(now_ns, id);
            }
            State::TimeWait => {
                self.send(id, drep(id.0));
            }
            _ => {}
        }
    }

    fn on_drep(&mut self, now_ns: u64, from: IpAddr, drep: &Drep) {
        let Some((id, connection)) = self.of(from, drep.remote_id, drep.local_id) else { return };
        if connection.state == State::DreqSent {
            self.tell(id, Event::Disconnected { timed_out: false });
            self.linger(now_ns, id);
        }
    }

    pub(crate) fn on_sidr_req(
        &mut self,
        now_ns: Option<u64>,
        from: IpAddr,
        transaction: u64,
        req: &SidrReq,
    ) {
        let key = (from, req.request_id, true);
        if let Some(id) = self.by_remote.get(&key) {
            let connection = &self.connections[id];
            if let (State::SidrAnswered, Some(mad)) = (connection.state, connection.message) {
                self.out.push_back(Output::Send { to: from, mad });
            }
            return;
        }
        if !self.services.contains(&req.service) {
            if self.hold(now_ns, from, transaction, Request::Datagrams(Box::new(*req))) {
                return;
            }
            let (request_id, service, status) =
                (req.request_id, req.service, sidr_status::NOT_SUPPORTED);
            let (info, private) = ([0; 72], [0; 136]);
            let rep = SidrRep {
                request_id,
                status,
                info_bytes: 0,
                qpn: 0,
                service,
                qkey: 0,
                info,
                private,
            };
            return self.reply(from, transaction, Message::SidrRep(rep));
        }
        let Ok(id) = self.free_id() else { return };
        let connection = self.new_connection(from, req.service, 0);
        let (state, remote_id) = (State::SidrReceived, req.request_id);
        self.connections.insert(id, Connection { state, remote_id, transaction, ..connection });
        self.by_remote.insert(key, id);
        let request = Request::Datagrams(Box::new(*req));
        self.tell(id, Event::Request { request, from });
    }

    fn on_sidr_rep(&mut self, from: IpAddr, rep: &SidrRep) {
        let Some((id, connection)) = self.of(from, rep.request_id, 0) else { return };
        if connection.state != State::SidrSent || connection.service != rep.service {
            return;
        }
        self.settle(id, State::Closed);
        self.tell(id, Event::Datagrams(Box::new(*rep)));
    }
}
