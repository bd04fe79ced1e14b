//! The connection manager of one NIC: what a consumer asks for, and time.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;

use bellpush_wire::cm::{
    Drep, Dreq, MAD_BYTES, Mad, Message, Rej, Rep, Req, Rtu, SidrRep, SidrReq, reason, sidr_status,
    transport,
};

use crate::Random;
use crate::connection::{ConnId, Connection, Patience, State, timeout_ns};
use crate::consumer::{Accept, CmError, Connect, Event, MOST, Output, Request};
use crate::receive::Held;

/// How long an answer may take, by its code: 0.54 s. Linux says 4.3 s, for networks of switches and
/// subnet managers.
pub(crate) const RESPONSE: u8 = 17;
/// How often a message is sent again.
pub(crate) const RETRIES: u8 = 15;
/// The one partition.
pub(crate) const PKEY: u16 = 0xffff;

/// The connection manager of one NIC.
#[derive(Debug)]
pub struct Cm {
    guid: u64,
    pub(crate) connections: HashMap<ConnId, Connection>,
    /// Connections by their peer's address and communication ID; of datagrams, by their request's.
    pub(crate) by_remote: HashMap<(IpAddr, u32, bool), ConnId>,
    /// Connections by their peer's queue pair.
    pub(crate) by_qpn: HashMap<(IpAddr, u32), ConnId>,
    pub(crate) services: HashSet<u64>,
    /// Requests for services that nobody offered, the oldest first.
    pub(crate) held: VecDeque<Held>,
    timers: BTreeSet<(u64, ConnId)>,
    last: u32,
    /// Its IDs: the first, and one less than how many.
    own: (u32, u32),
    random: Random,
    pub(crate) out: VecDeque<Output>,
}

impl Cm {
    /// A connection manager, whose IDs are drawn from a source that no other has.
    pub fn new(guid: u64, random: Random) -> Self {
        Self {
            guid,
            connections: HashMap::new(),
            by_remote: HashMap::new(),
            by_qpn: HashMap::new(),
            services: HashSet::new(),
            held: VecDeque::new(),
            timers: BTreeSet::new(),
            last: random.next(),
            own: (0, u32::MAX),
            random,
            out: VecDeque::new(),
        }
    }

    /// Has all IDs from now on be among so many from a first one on: others at its address have the
    /// rest. `count` is a power of two, and `first` a multiple of it.
    pub fn confine(&mut self, first: u32, count: u32) {
        self.own = (first, count.saturating_sub(1));
    }

    /// Takes requests for a service.
    pub fn listen(&mut self, service: u64) {
        self.services.insert(service);
    }

    /// Takes them no more.
    pub fn unlisten(&mut self, service: u64) {
        self.services.remove(&service);
    }

    /// What is to be sent or told next.
    pub fn output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When [`Cm::poll`] has something to do.
    pub fn due_ns(&self) -> Option<u64> {
        let held = self.held.front().map(|held| held.due_ns);
        self.timers.first().map(|&(due, _)| due).into_iter().chain(held).min()
    }

    /// Whether there is no connection, nor anything that one owes its peer.
    pub fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.held.is_empty()
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// [`CmError::Full`].
    pub fn connect(&mut self, now_ns: u64, ask: Connect) -> Result<ConnId, CmError> {
        let id = self.free_id()?;
        let path = ask.path;
        let message = Message::Req(Req {
            local_id: id.0,
            service: ask.service,
            guid: self.guid,
            qkey: 0,
            qpn: ask.qpn,
            responder_resources: ask.responder_resources,
            initiator_depth: ask.initiator_depth,
            remote_timeout: RESPONSE,
            transport: transport::RC,
            flow_control: ask.flow_control,
            psn: ask.psn,
            local_timeout: RESPONSE,
            retry: ask.retry,
            pkey: PKEY,
            mtu: ask.mtu,
            rnr_retry: ask.rnr_retry,
            cm_retries: RETRIES,
            srq: ask.srq,
            extended_transport: 0,
            path,
            private: ask.private,
        });
        let linger_ns = timeout_ns(path.ack_timeout);
        let connection = self.new_connection(ask.to, ask.service, linger_ns);
        let connection = Connection { local_qpn: ask.qpn, ..connection };
        self.connections.insert(id, connection);
        self.ask(now_ns, id, State::ReqSent, message);
        Ok(id)
    }

    /// Asks which queue pair takes datagrams for a service.
    ///
    /// # Errors
    /// [`CmError::Full`].
    pub fn find(
        &mut self,
        now_ns: u64,
        to: IpAddr,
        service: u64,
        private: [u8; 216],
    ) -> Result<ConnId, CmError> {
        let id = self.free_id()?;
        let connection = self.new_connection(to, service, 0);
        self.connections.insert(id, connection);
        let message = Message::SidrReq(SidrReq { request_id: id.0, pkey: PKEY, service, private });
        self.ask(now_ns, id, State::SidrSent, message);
        Ok(id)
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn accept(&mut self, now_ns: u64, id: ConnId, with: &Accept) -> Result<(), CmError> {
        let guid = self.guid;
        let connection = self.get(id, &[State::ReqReceived])?;
        connection.local_qpn = with.qpn;
        let message = Message::Rep(Rep {
            local_id: id.0,
            remote_id: connection.remote_id,
            qkey: 0,
            qpn: with.qpn,
            psn: with.psn,
            responder_resources: with.responder_resources,
            initiator_depth: with.initiator_depth,
            ack_delay: 0,
            failover: 1, // not supported
            flow_control: with.flow_control,
            rnr_retry: with.rnr_retry,
            srq: with.srq,
            guid,
            private: with.private,
        });
        self.ask(now_ns, id, State::RepSent, message);
        Ok(())
    }

    /// Answers who takes datagrams.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn offer(
        &mut self,
        id: ConnId,
        qpn: u32,
        qkey: u32,
        private: [u8; 136],
    ) -> Result<(), CmError> {
        self.answer_sidr(id, sidr_status::VALID, qpn, qkey, private)
    }

    fn answer_sidr(
        &mut self,
        id: ConnId,
        status: u8,
        qpn: u32,
        qkey: u32,
        private: [u8; 136],
    ) -> Result<(), CmError> {
        let connection = self.get(id, &[State::SidrReceived])?;
        let (request_id, service) = (connection.remote_id, connection.service);
        connection.state = State::SidrAnswered;
        let rep = SidrRep {
            request_id,
            status,
            info_bytes: 0,
            qpn,
            service,
            qkey,
            info: [0; 72],
            private,
        };
        let mad = self.send(id, Message::SidrRep(rep));
        self.get(id, &[State::SidrAnswered])?.message = Some(mad);
        Ok(())
    }

    /// Says that this side is ready, after a [`Event::Response`].
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn establish(&mut self, id: ConnId) -> Result<(), CmError> {
        let connection = self.get(id, &[State::RepReceived])?;
        connection.state = State::Established;
        let rtu = Rtu { local_id: id.0, remote_id: connection.remote_id, private: [0; 224] };
        let mad = self.send(id, Message::Rtu(rtu));
        // For a peer that has not seen it, and sends its REP again.
        self.get(id, &[State::Established])?.message = Some(mad);
        Ok(())
    }

    /// A packet has come over the connection: the peer is ready, even though its RTU was lost.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`], [`CmError::Established`].
    pub fn is_in_use(&mut self, id: ConnId) -> Result<(), CmError> {
        if self.get(id, &[State::RepSent, State::Established])?.state == State::Established {
            return Err(CmError::Established);
        }
        self.settle(id, State::Established);
        self.tell(id, Event::Established);
        Ok(())
    }

    /// Rejects what a peer asks for or has accepted.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn reject(&mut self, id: ConnId, why: u16, private: [u8; 148]) -> Result<(), CmError> {
        let from = [State::ReqReceived, State::RepSent, State::RepReceived, State::SidrReceived];
        let connection = self.get(id, &from)?;
        let (state, remote_id) = (connection.state, connection.remote_id);
        if state == State::SidrReceived {
            let first = private[..136].try_into().expect("136 bytes");
            return self.answer_sidr(id, sidr_status::REJECTED, 0, 0, first);
        }
        let rejected = u8::from(state != State::ReqReceived);
        let (info_bytes, info) = (0, [0; 72]);
        let rej =
            Rej { local_id: id.0, remote_id, rejected, info_bytes, reason: why, info, private };
        self.send(id, Message::Rej(rej));
        self.settle(id, State::Closed);
        Ok(())
    }

    /// Ends a connection, or confirms that the peer has.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn disconnect(&mut self, now_ns: u64, id: ConnId) -> Result<(), CmError> {
        let connection = self.get(id, &[State::Established, State::DreqReceived])?;
        let (state, remote_id, remote_qpn) =
            (connection.state, connection.remote_id, connection.remote_qpn);
        if state == State::DreqReceived {
            self.send(id, Message::Drep(Drep { local_id: id.0, remote_id, private: [0; 224] }));
            self.linger(now_ns, id);
        } else {
            let dreq = Dreq { local_id: id.0, remote_id, remote_qpn, private: [0; 220] };
            self.ask(now_ns, id, State::DreqSent, Message::Dreq(dreq));
        }
        Ok(())
    }

    /// Lets a connection go, whatever its state: its peer learns of it, and the consumer hears of it
    /// no more.
    pub fn remove(&mut self, now_ns: u64, id: ConnId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.owned = false;
        match connection.state {
            State::ReqSent => {
                let (remote_id, private) = (connection.remote_id, [0; 148]);
                let (mut info, guid) = ([0; 72], self.guid.to_be_bytes());
                info[..8].copy_from_slice(&guid);
                let reason = reason::TIMEOUT;
                let rej = Rej {
                    local_id: id.0,
                    remote_id,
                    rejected: 2,
                    info_bytes: 8,
                    reason,
                    info,
                    private,
                };
                self.send(id, Message::Rej(rej));
                self.forget(id);
            }
            State::ReqReceived | State::RepSent | State::RepReceived | State::SidrReceived => {
                let _ = self.reject(id, reason::CONSUMER, [0; 148]); // the state allows it
                self.forget(id);
            }
            State::Established | State::DreqReceived => {
                let _ = self.disconnect(now_ns, id); // the state allows it
            }
            // The peer's answer is waited for.
            State::DreqSent => {}
            State::TimeWait | State::Closed | State::SidrSent | State::SidrAnswered => {
                self.forget(id)
            }
        }
    }

    /// Forgets a request as if it had not come: the peer will ask again.
    pub fn ignore(&mut self, id: ConnId) {
        self.forget(id);
    }

    /// Does what is due.
    pub fn poll(&mut self, now_ns: u64) {
        while self.held.front().is_some_and(|held| held.due_ns <= now_ns) {
            let Some(Held { from, transaction, request, .. }) = self.held.pop_front() else {
                break;
            };
            match request {
                Request::Connection(req) => self.on_req(None, from, transaction, &req),
                Request::Datagrams(req) => self.on_sidr_req(None, from, transaction, &req),
            }
        }
        while let Some(&(due, id)) = self.timers.first()
            && due <= now_ns
        {
            self.timers.remove(&(due, id));
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.due_ns = None;
            if connection.state == State::TimeWait {
                self.settle(id, State::Closed);
                self.tell(id, Event::TimeWaitExit);
                continue;
            }
            if connection.left > 0
                && let Some(mad) = connection.message
            {
                connection.left -= 1;
                let (to, next) = (connection.peer, now_ns + connection.patience.wait_ns);
                self.out.push_back(Output::Send { to, mad });
                self.set_due(id, Some(next));
                continue;
            }
            match connection.state {
                State::DreqSent => {
                    self.tell(id, Event::Disconnected { timed_out: true });
                    self.linger(now_ns, id);
                }
                _ => {
                    self.settle(id, State::Closed);
                    self.tell(id, Event::Unreachable);
                }
            }
        }
    }

    // ---- Below, for the above and for what messages do ------------------------------------------

    pub(crate) fn free_id(&mut self) -> Result<ConnId, CmError> {
        if self.connections.len() == MOST {
            return Err(CmError::Full);
        }
        loop {
            let (first, mask) = self.own;
            self.last = first | self.last.wrapping_add(1) & mask;
            // 0 stands for an ID that is not known.
            if self.last != 0 && !self.connections.contains_key(&ConnId(self.last)) {
                return Ok(ConnId(self.last));
            }
        }
    }

    pub(crate) fn new_connection(
        &mut self,
        peer: IpAddr,
        service: u64,
        linger_ns: u64,
    ) -> Connection {
        let transaction = u64::from(self.random.next()) << 32 | u64::from(self.random.next());
        Connection {
            state: State::Closed,
            owned: true,
            peer,
            remote_id: 0,
            remote_qpn: 0,
            local_qpn: 0,
            service,
            transaction,
            patience: Patience::with(RESPONSE, RETRIES),
            message: None,
            left: 0,
            due_ns: None,
            delayed: false,
            linger_ns,
        }
    }

    /// The connection, if it is in one of these states.
    pub(crate) fn get(&mut self, id: ConnId, states: &[State]) -> Result<&mut Connection, CmError> {
        let connection = self.connections.get_mut(&id).ok_or(CmError::Unknown)?;
        if states.contains(&connection.state) { Ok(connection) } else { Err(CmError::State) }
    }

    /// Sends a message of a connection.
    pub(crate) fn send(&mut self, id: ConnId, message: Message) -> [u8; MAD_BYTES] {
        let connection = &self.connections[&id];
        let mad = Mad { transaction: connection.transaction, modifier: 0, message }.emit();
        self.out.push_back(Output::Send { to: connection.peer, mad });
        mad
    }

    /// Sends a message that wants an answer, and goes to a state.
    fn ask(&mut self, now_ns: u64, id: ConnId, state: State, message: Message) {
        let mad = self.send(id, message);
        let connection = self.connections.get_mut(&id).expect("its message was sent");
        (connection.state, connection.message, connection.delayed) = (state, Some(mad), false);
        connection.left = connection.patience.retries;
        let due = now_ns + connection.patience.wait_ns;
        self.set_due(id, Some(due));
    }

    /// Goes to a state in which nothing is waited for.
    pub(crate) fn settle(&mut self, id: ConnId, state: State) {
        self.set_due(id, None);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        (connection.state, connection.message) = (state, None);
        if state == State::Closed {
            self.unlink(id);
            if !self.connections[&id].owned {
                self.forget(id);
            }
        }
    }

    /// Waits until no packet of the connection is under way. Who has no consumer does not.
    pub(crate) fn linger(&mut self, now_ns: u64, id: ConnId) {
        self.settle(id, State::TimeWait);
        let connection = &self.connections[&id];
        match connection.owned {
            true => self.set_due(id, Some(now_ns + connection.linger_ns)),
            false => self.forget(id),
        }
    }

    pub(crate) fn set_due(&mut self, id: ConnId, due_ns: Option<u64>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut connection.due_ns, due_ns) {
            self.timers.remove(&(before, id));
        }
        due_ns.map(|due| self.timers.insert((due, id)));
    }

    pub(crate) fn tell(&mut self, id: ConnId, event: Event) {
        if self.connections.get(&id).is_some_and(|connection| connection.owned) {
            self.out.push_back(Output::Event { id, event });
        }
    }

    /// Messages of its peer lead to it no more.
    fn unlink(&mut self, id: ConnId) {
        let Some(Connection { peer, remote_id, remote_qpn, .. }) = self.connections.get(&id) else {
            return;
        };
        for key in [false, true].map(|datagrams| (*peer, *remote_id, datagrams)) {
            if self.by_remote.get(&key) == Some(&id) {
                self.by_remote.remove(&key);
            }
        }
        let key = (*peer, *remote_qpn);
        if self.by_qpn.get(&key) == Some(&id) {
            self.by_qpn.remove(&key);
        }
    }

    pub(crate) fn forget(&mut self, id: ConnId) {
        self.set_due(id, None);
        self.unlink(id);
        self.connections.remove(&id);
    }
}
