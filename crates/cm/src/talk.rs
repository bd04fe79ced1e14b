//! Identifiers talk to their peers: connect, accept, reject, disconnect, and what comes of it.

use std::net::{IpAddr, SocketAddr};

use bellpush_wire::cm::{IP_HEADER_BYTES, IpHeader, PortSpace, SidrRep, reason, sidr_status};

use crate::cm::Cm;
use crate::connection::ConnId;
use crate::consumer::{Accept, Connect, Event, Output, Request};
use crate::error::IdError;
use crate::events::{ConnParam, DatagramParam, EventKind, Param, UserEvent, Waiting};
use crate::id::{
    ACK_TIMEOUT, Id, Kind, Link, Parameters, QpAttributes, Route, Space, Stage, UDP_QKEY,
};
use crate::ids::{ChannelId, Device, Ids, Send};
use crate::link::{link_of, reply};

/// `-ETIMEDOUT`, as events say it.
const TIMED_OUT: i32 = -110;

/// What queries say of an identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Its own address and port.
    pub source: Option<SocketAddr>,
    /// Its peer's.
    pub destination: Option<SocketAddr>,
    /// The device that it is on.
    pub device: Option<usize>,
    /// The way to its peer, once it was looked for.
    pub route: Option<Route>,
    /// Port space and queue pair.
    pub space: Space,
    /// What its queue pair is.
    pub kind: Kind,
}

/// Private data in a message's room, behind `first`.
fn room<const N: usize>(first: &[u8], private: &[u8]) -> Result<[u8; N], IdError> {
    let mut all = [0; N];
    let used = first.len() + private.len();
    if used > N {
        return Err(IdError::Value("the private data are longer than the message has room for"));
    }
    all[..first.len()].copy_from_slice(first);
    all[first.len()..used].copy_from_slice(private);
    Ok(all)
}

impl Ids {
    fn own(&self, channel: ChannelId, number: u32) -> Result<&Id, IdError> {
        let id = self.ids.get(&number).ok_or(IdError::Unknown)?;
        if id.channel == channel { Ok(id) } else { Err(IdError::OtherChannel) }
    }

    fn device_of(&self, id: &Id) -> Result<(usize, &Device), IdError> {
        let number = id.device.ok_or(IdError::Stage)?;
        Ok((number, self.devices.get(&number).ok_or(IdError::NoDevice)?))
    }

    /// Asks the peer for a connection, or for its queue pair for datagrams.
    ///
    /// # Errors
    /// [`IdError::Stage`], [`IdError::Value`] of private data that are too long, [`IdError::Full`].
    pub fn connect(
        &mut self,
        now_ns: u64,
        channel: ChannelId,
        number: u32,
        with: &Parameters,
    ) -> Result<(), IdError> {
        let id = self.own(channel, number)?;
        let (Stage::RouteResolved, Some(from), Some(to)) = (id.stage, id.source, id.destination)
        else {
            return Err(IdError::Stage);
        };
        let (device, at) = self.device_of(id)?;
        let route = id.route(&at.info).ok_or(IdError::Stage)?;
        let header = IpHeader { from, to: to.ip() }.emit();
        let space = id.space.ports().ok_or(IdError::Stage)?;
        let (service, to) = (space.service(to.port()), to.ip());
        let ask = match id.kind {
            Kind::Datagrams => Err(room(&header, &with.private)?),
            Kind::Connection => Ok(Connect {
                to,
                service,
                qpn: with.qpn,
                psn: id.psn,
                responder_resources: with.responder_resources,
                initiator_depth: with.initiator_depth,
                retry: with.retry.min(7),
                rnr_retry: with.rnr_retry.min(7),
                flow_control: with.flow_control,
                srq: with.srq,
                mtu: route.mtu,
                path: id.path(&route),
                private: room(&header, &with.private)?,
            }),
        };
        let asked = self.with_cm(device, |cm| match ask {
            Ok(connect) => cm.connect(now_ns, connect),
            Err(private) => cm.find(now_ns, to, service, private),
        });
        let connection = asked.ok_or(IdError::NoDevice)??;
        self.take_on(device, connection, number);
        let id = self.ids.get_mut(&number).expect("it was found");
        (id.stage, id.connection) = (Stage::Connecting, Some(connection));
        id.link = Link {
            mtu: route.mtu,
            ack_timeout: id.ack_timeout,
            retry: with.retry.min(7),
            rnr_retry: with.rnr_retry.min(7),
            responder_resources: with.responder_resources,
            initiator_depth: with.initiator_depth,
            ..Link::default()
        };
        self.pump(now_ns, device);
        Ok(())
    }

    fn take_on(&mut self, device: usize, connection: ConnId, number: u32) {
        if let Some(device) = self.devices.get_mut(&device) {
            device.owners.insert(connection, number);
        }
    }

    /// Where a connection is that the program is to answer for.
    fn open_connection(
        &self,
        channel: ChannelId,
        number: u32,
    ) -> Result<(usize, ConnId, &Id), IdError> {
        let id = self.own(channel, number)?;
        match (id.stage, id.device, id.connection) {
            (Stage::Connecting, Some(device), Some(connection)) => Ok((device, connection, id)),
            _ => Err(IdError::Stage),
        }
    }

    /// Accepts a connection, and says what the program calls it from now on; without parameters, a
    /// connection that the peer has accepted.
    ///
    /// # Errors
    /// [`IdError::Stage`], [`IdError::Value`].
    pub fn accept(
        &mut self,
        now_ns: u64,
        channel: ChannelId,
        number: u32,
        with: Option<(u64, &Parameters)>,
    ) -> Result<(), IdError> {
        let (device, connection, id) = self.open_connection(channel, number)?;
        let (kind, psn) = (id.kind, id.psn);
        let done = match (with, kind) {
            (None, _) => self.with_cm(device, |cm| cm.establish(connection)),
            (Some((_, with)), Kind::Connection) => {
                let accept = Accept {
                    qpn: with.qpn,
                    psn,
                    responder_resources: with.responder_resources,
                    initiator_depth: with.initiator_depth,
                    rnr_retry: with.rnr_retry.min(7),
                    flow_control: with.flow_control,
                    srq: with.srq,
                    private: room(&[], &with.private)?,
                };
                self.with_cm(device, |cm| cm.accept(now_ns, connection, &accept))
            }
            (Some((_, with)), Kind::Datagrams) => {
                let private = room(&[], &with.private)?;
                self.with_cm(device, |cm| cm.offer(connection, with.qpn, UDP_QKEY, private))
            }
        };
        done.ok_or(IdError::NoDevice)??;
        if let (Some((uid, _)), Some(id)) = (with, self.ids.get_mut(&number)) {
            id.uid = uid;
        }
        self.pump(now_ns, device);
        Ok(())
    }

    /// Rejects what a peer asks for, or has accepted.
    ///
    /// # Errors
    /// [`IdError::Stage`], [`IdError::Value`].
    pub fn reject(
        &mut self,
        now_ns: u64,
        channel: ChannelId,
        number: u32,
        why: u16,
        private: &[u8],
    ) -> Result<(), IdError> {
        let (device, connection, id) = self.open_connection(channel, number)?;
        if id.kind == Kind::Datagrams {
            room::<136>(&[], private)?;
        }
        let private = room(&[], private)?;
        let done = self.with_cm(device, |cm| cm.reject(connection, why, private));
        done.ok_or(IdError::NoDevice)??;
        self.pump(now_ns, device);
        Ok(())
    }

    /// Ends the connection, or confirms that the peer has.
    ///
    /// # Errors
    /// [`IdError::Stage`] of an identifier that was not connected.
    pub fn disconnect(
        &mut self,
        now_ns: u64,
        channel: ChannelId,
        number: u32,
    ) -> Result<(), IdError> {
        let id = self.own(channel, number)?;
        let (Some(device), Some(connection)) = (id.device, id.connection) else {
            return Err(IdError::Stage);
        };
        // As Linux does it: where there is nothing to be ended, all is well.
        let _ = self.with_cm(device, |cm| cm.disconnect(now_ns, connection));
        self.pump(now_ns, device);
        Ok(())
    }

    /// The program has seen a packet of the peer's, which must be ready then.
    ///
    /// # Errors
    /// [`IdError::Stage`]; [`IdError::Established`] where this is no news.
    pub fn is_in_use(
        &mut self,
        now_ns: u64,
        channel: ChannelId,
        number: u32,
    ) -> Result<(), IdError> {
        let (device, connection, _) = self.open_connection(channel, number)?;
        self.with_cm(device, |cm| cm.is_in_use(connection)).ok_or(IdError::NoDevice)??;
        self.pump(now_ns, device);
        Ok(())
    }

    /// Attributes of its queue pair for a state, by the state's number.
    ///
    /// # Errors
    /// [`IdError::Stage`] as long as they are not known.
    pub fn qp(&self, channel: ChannelId, number: u32, state: u32) -> Result<QpAttributes, IdError> {
        let id = self.own(channel, number)?;
        id.qp(state, &self.device_of(id)?.1.info)
    }

    /// What queries say.
    ///
    /// # Errors
    /// [`IdError::Unknown`], [`IdError::OtherChannel`].
    pub fn facts(&self, channel: ChannelId, number: u32) -> Result<Facts, IdError> {
        let id = self.own(channel, number)?;
        Ok(self.facts_of(id))
    }

    /// The same, of an identifier of any channel.
    pub fn facts_of_any(&self, number: u32) -> Option<Facts> {
        self.ids.get(&number).map(|id| self.facts_of(id))
    }

    fn facts_of(&self, id: &Id) -> Facts {
        let has_route =
            matches!(id.stage, Stage::RouteResolved | Stage::Connecting | Stage::Disconnected);
        let route = self
            .device_of(id)
            .ok()
            .filter(|_| has_route)
            .and_then(|(_, device)| id.route(&device.info));
        let Id { source, destination, device, space, kind, .. } = *id;
        Facts { source, destination, device, route, space, kind }
    }

    // ---- What comes of it -----------------------------------------------------------------------

    pub(crate) fn with_cm<T>(
        &mut self,
        device: usize,
        body: impl FnOnce(&mut Cm) -> T,
    ) -> Option<T> {
        self.devices.get_mut(&device).map(|device| body(&mut device.cm))
    }

    /// Takes what came out of a device's connection manager.
    pub(crate) fn pump(&mut self, now_ns: u64, device: usize) {
        while let Some(output) = self.with_cm(device, Cm::output).flatten() {
            match output {
                Output::Send { to, mad } => self.sends.push_back(Send { device, to, mad }),
                Output::Event { id, event: Event::Request { request, from } } => {
                    self.on_request(device, id, &request, from);
                }
                Output::Event { id, event } => {
                    let owner = self
                        .devices
                        .get(&device)
                        .and_then(|device| device.owners.get(&id))
                        .copied();
                    match owner {
                        Some(owner) => self.on_event(owner, event),
                        None => drop(self.with_cm(device, |cm| cm.remove(now_ns, id))),
                    }
                }
            }
        }
    }

    fn on_request(&mut self, device: usize, connection: ConnId, request: &Request, from: IpAddr) {
        if let Err(why) = self.new_connection(device, connection, request, from) {
            self.with_cm(device, |cm| match why {
                Some(why) => drop(cm.reject(connection, why, [0; 148])),
                None => cm.ignore(connection),
            });
            // Whoever asks again begins anew.
            if why.is_some() {
                self.with_cm(device, |cm| cm.ignore(connection));
            }
        }
    }

    /// A peer's request becomes an identifier. The error is a REJ's reason; `None`: no answer yet, there
    /// is no room.
    fn new_connection(
        &mut self,
        device: usize,
        connection: ConnId,
        request: &Request,
        from: IpAddr,
    ) -> Result<(), Option<u16>> {
        let (space, port) =
            PortSpace::of(request.service()).ok_or(Some(reason::INVALID_SERVICE))?;
        // A port's service has one kind of request: its program reads no other.
        let (asks_for, private) = match request {
            Request::Connection(req) => (PortSpace::Tcp, &req.private[..]),
            Request::Datagrams(req) => (PortSpace::Udp, &req.private[..]),
        };
        if space != asks_for {
            return Err(Some(reason::INVALID_SERVICE));
        }
        let at = self.devices.get(&device).ok_or(None)?;
        let own = at.info;
        let (header, private) = private.split_at(IP_HEADER_BYTES);
        let header = IpHeader::parse(header.try_into().expect("as many bytes"))
            .map_err(|_| Some(reason::CONSUMER))?;
        // Who asks is where the message came from, and who is asked is here: else packets of the
        // connection would go to a third party.
        if header.from.ip().to_canonical() != from || header.to.to_canonical() != own.address {
            return Err(Some(reason::CONSUMER));
        }
        let listener = self
            .ports
            .listener(space.into(), own.address, port)
            .ok_or(Some(reason::INVALID_SERVICE))?;
        let link = match request {
            Request::Connection(req) => link_of(req, from, own.mtu)?,
            Request::Datagrams(_) => Link::default(),
        };
        let psn = self.random.next() & 0xff_ffff;
        let Id { channel, kind, traffic_class, v6_only, .. } =
            *self.ids.get(&listener).ok_or(None)?;
        if self.ids[&listener].backlog == 0 {
            return Err(None);
        }
        let number = self.add(Id {
            channel,
            uid: 0,
            space: space.into(),
            kind,
            stage: Stage::Connecting,
            source: Some(SocketAddr::new(own.address, port)),
            destination: Some(SocketAddr::new(from, header.from.port())),
            device: Some(device),
            connection: Some(connection),
            is_passive: true,
            has_port: false,
            backlog: 0,
            events_reported: 0,
            shares: false,
            v6_only,
            traffic_class,
            ack_timeout: if link.is_known { link.ack_timeout } else { ACK_TIMEOUT },
            psn,
            link,
        });
        let number = number.map_err(|_| None)?;
        self.take_on(device, connection, number);
        self.ids.get_mut(&listener).expect("it was found").backlog -= 1;
        let private = private.to_vec();
        let param = match request {
            Request::Datagrams(_) => {
                Param::Datagrams(DatagramParam { private, ..DatagramParam::default() })
            }
            Request::Connection(req) => Param::Connection(ConnParam {
                qpn: req.qpn,
                private,
                // What the peer asks of this side is what this side offers.
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                flow_control: req.flow_control,
                retry: req.retry,
                rnr_retry: req.rnr_retry,
                srq: req.srq,
            }),
        };
        let event =
            UserEvent { uid: 0, id: number, kind: EventKind::ConnectRequest, status: 0, param };
        self.queue(channel, Waiting { of: listener, event });
        Ok(())
    }

    fn on_event(&mut self, number: u32, event: Event) {
        let Some(id) = self.ids.get_mut(&number) else { return };
        let was_connected = id.stage == Stage::Connecting;
        match event {
            Event::Request { .. } => {}
            Event::Response(rep) => {
                id.link = reply(id.link, &rep);
                let param = Param::Connection(ConnParam {
                    qpn: rep.qpn,
                    private: rep.private.to_vec(),
                    responder_resources: rep.initiator_depth,
                    initiator_depth: rep.responder_resources,
                    flow_control: rep.flow_control,
                    retry: 0,
                    rnr_retry: rep.rnr_retry,
                    srq: rep.srq,
                });
                self.push(number, EventKind::ConnectResponse, 0, Some(param));
            }
            Event::Established => self.push(number, EventKind::Established, 0, None),
            Event::Rejected { reason, private } => {
                let param = ConnParam { private: private.to_vec(), ..ConnParam::default() };
                self.push(
                    number,
                    EventKind::Rejected,
                    reason.into(),
                    Some(Param::Connection(param)),
                );
            }
            Event::Unreachable => self.push(number, EventKind::Unreachable, TIMED_OUT, None),
            Event::Disconnected { timed_out } if was_connected => {
                id.stage = Stage::Disconnected;
                self.push(
                    number,
                    EventKind::Disconnected,
                    if timed_out { TIMED_OUT } else { 0 },
                    None,
                );
            }
            Event::Disconnected { .. } => {}
            Event::TimeWaitExit => self.push(number, EventKind::TimewaitExit, 0, None),
            Event::Datagrams(rep) => self.on_datagrams(number, &rep),
        }
    }

    fn on_datagrams(&mut self, number: u32, rep: &SidrRep) {
        let private = rep.private.to_vec();
        let param = Param::Datagrams(DatagramParam { qpn: rep.qpn, qkey: rep.qkey, private });
        let (kind, status) = match rep.status {
            sidr_status::VALID => (EventKind::Established, 0),
            other => (EventKind::Unreachable, other.into()),
        };
        self.push(number, kind, status, Some(param));
    }

    /// Tells an identifier's program something. Of one that it has not accepted it is told nothing: the
    /// accept will fail.
    pub(crate) fn push(&mut self, number: u32, kind: EventKind, status: i32, param: Option<Param>) {
        let Some(id) = self.ids.get(&number) else { return };
        if id.uid == 0 && id.is_passive {
            return;
        }
        let param = param.unwrap_or(match id.kind {
            Kind::Connection => Param::Connection(ConnParam::default()),
            Kind::Datagrams => Param::Datagrams(DatagramParam::default()),
        });
        let event = UserEvent { uid: 0, id: number, kind, status, param };
        self.queue(id.channel, Waiting { of: number, event });
    }

    fn queue(&mut self, channel: ChannelId, waiting: Waiting) {
        if let Some(events) = self.channels.get_mut(&channel) {
            events.push_back(waiting);
            self.changed.insert(channel);
        }
    }
}
