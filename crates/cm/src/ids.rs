//! Identifiers with addresses, ports and events: what programs ask for (`librdmacm`, by way of what
//! Linux's `ucma` and `cma` make of it).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bellpush_wire::cm::{MAD_BYTES, PortSpace};

use crate::Random;
use crate::cm::Cm;
use crate::connection::ConnId;
use crate::error::IdError;
use crate::events::{EventKind, UserEvent, Waiting};
use crate::id::{ACK_TIMEOUT, Address, Id, Kind, Link, Space, Stage, bounded_ack_timeout};
use crate::ports::Ports;

/// Most identifiers of a process: librdmacm's table holds no more.
const MOST: usize = 1 << 16;
/// Most requests that wait at an identifier, and as many if a program names no number.
const MOST_BACKLOG: u32 = 1024;

/// Whom a program reads events from: an open file of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChannelId(pub u64);

/// A device that connections go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its address.
    pub address: IpAddr,
    /// Its node GUID.
    pub guid: u64,
    /// Its largest path MTU by its code: 1 is 256 bytes.
    pub mtu: u8,
}

/// An option of an identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opt {
    /// Type of service: the traffic class of its packets.
    TypeOfService(u8),
    /// Whether others may have the same port.
    ReuseAddress(bool),
    /// Whether IPv6's any address is IPv6's alone.
    V6Only(bool),
    /// How long its queue pair waits for an acknowledgement: 4.096 µs · 2^n.
    AckTimeout(u8),
}

/// A message that a device is to send from queue pair 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Send {
    /// The device's number.
    pub device: usize,
    /// Where to.
    pub to: IpAddr,
    /// The datagram's payload.
    pub mad: [u8; MAD_BYTES],
}

/// Whether requests for a service are for this process, where others have devices at the same address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The device's number.
    pub device: usize,
    /// The service.
    pub service: u64,
    /// Whether they are.
    pub offered: bool,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) info: DeviceInfo,
    pub(crate) cm: Cm,
    /// Whose connections they are.
    pub(crate) owners: HashMap<ConnId, u32>,
}

/// The identifiers of a process.
#[derive(Debug)]
pub struct Ids {
    pub(crate) devices: BTreeMap<usize, Device>,
    pub(crate) ids: BTreeMap<u32, Id>,
    /// Every number below is taken.
    free: u32,
    pub(crate) channels: HashMap<ChannelId, VecDeque<Waiting>>,
    /// Channels of which a program may want to know that they have events, or none any more.
    pub(crate) changed: HashSet<ChannelId>,
    pub(crate) ports: Ports,
    pub(crate) random: Random,
    pub(crate) sends: VecDeque<Send>,
    offers: VecDeque<Offer>,
}

impl Ids {
    /// No identifiers. What peers see of it is drawn from a source that no other process has.
    pub fn new(random: Random) -> Self {
        Self {
            devices: BTreeMap::new(),
            ids: BTreeMap::new(),
            free: 0,
            channels: HashMap::new(),
            changed: HashSet::new(),
            ports: Ports::default(),
            random,
            sends: VecDeque::new(),
            offers: VecDeque::new(),
        }
    }

    // ---- Devices --------------------------------------------------------------------------------

    /// Has connections go through a device.
    pub fn attach(&mut self, device: usize, info: DeviceInfo) {
        let cm = Cm::new(info.guid, self.random.clone());
        self.devices.insert(device, Device { info, cm, owners: HashMap::new() });
        let listeners = self.ids.values().filter(|id| id.stage == Stage::Listening);
        let ports: Vec<_> =
            listeners.filter_map(|id| Some((id.space.ports()?, id.source?.port()))).collect();
        ports.into_iter().for_each(|(space, port)| self.listen_on_all(space, port));
    }

    /// Has a device that was attached just now use these communication IDs alone, of which `count` is
    /// a power of two and `first` a multiple: others at its address have the rest.
    pub fn confine(&mut self, device: usize, first: u32, count: u32) {
        self.with_cm(device, |cm| cm.confine(first, count));
    }

    /// The next change of what this process offers.
    pub fn next_offer(&mut self) -> Option<Offer> {
        self.offers.pop_front()
    }

    /// The device, if it is attached.
    pub fn device(&self, device: usize) -> Option<&DeviceInfo> {
        self.devices.get(&device).map(|device| &device.info)
    }

    /// Lets all devices go if nothing is left that needs them; says whether it did.
    pub fn detach_idle(&mut self) -> bool {
        let idle = self.ids.is_empty() && self.devices.values().all(|device| device.cm.is_idle());
        if idle {
            self.devices.clear();
        }
        idle
    }

    /// Takes a message that came to queue pair 1 of a device.
    pub fn receive(&mut self, now_ns: u64, device: usize, from: IpAddr, mad: &[u8]) {
        if let Some(at) = self.devices.get_mut(&device) {
            at.cm.receive(now_ns, from, mad);
            self.pump(now_ns, device);
        }
    }

    /// Does what is due.
    pub fn poll(&mut self, now_ns: u64) {
        for device in self.devices.keys().copied().collect::<Vec<_>>() {
            self.with_cm(device, |cm| cm.poll(now_ns));
            self.pump(now_ns, device);
        }
    }

    /// When [`Ids::poll`] has something to do.
    pub fn due_ns(&self) -> Option<u64> {
        self.devices.values().filter_map(|device| device.cm.due_ns()).min()
    }

    /// The next message that is to be sent.
    pub fn next_send(&mut self) -> Option<Send> {
        self.sends.pop_front()
    }

    // ---- Channels -------------------------------------------------------------------------------

    /// Opens a channel.
    pub fn open(&mut self, channel: ChannelId) {
        self.channels.insert(channel, VecDeque::new());
    }

    /// Closes a channel, and destroys its identifiers.
    pub fn close(&mut self, now_ns: u64, channel: ChannelId) {
        let own: Vec<_> =
            self.ids.iter().filter(|(_, id)| id.channel == channel).map(|(&id, _)| id).collect();
        for id in own {
            let _ = self.destroy(now_ns, channel, id); // it is the channel's own
        }
        self.channels.remove(&channel);
        self.changed.remove(&channel);
    }

    /// A channel on which something changed, and whether it has events now.
    pub fn next_changed(&mut self) -> Option<(ChannelId, bool)> {
        let channel = *self.changed.iter().next()?;
        self.changed.remove(&channel);
        Some((channel, self.has_events(channel)))
    }

    /// Whether a channel has events.
    pub fn has_events(&self, channel: ChannelId) -> bool {
        self.channels.get(&channel).is_some_and(|events| !events.is_empty())
    }

    /// Takes a channel's next event.
    pub fn next_event(&mut self, channel: ChannelId) -> Option<UserEvent> {
        let Waiting { of, mut event } = self.channels.get_mut(&channel)?.pop_front()?;
        self.changed.insert(channel);
        let id = self.ids.get_mut(&of)?;
        id.events_reported += 1;
        event.uid = id.uid;
        if event.kind == EventKind::ConnectRequest {
            id.backlog += 1;
        }
        Some(event)
    }

    // ---- Identifiers ----------------------------------------------------------------------------

    pub(crate) fn add(&mut self, id: Id) -> Result<u32, IdError> {
        if self.ids.len() >= MOST {
            return Err(IdError::Full);
        }
        // The lowest that is free, as Linux numbers them: librdmacm keeps a table.
        while self.ids.contains_key(&self.free) {
            self.free += 1;
        }
        let number = self.free;
        self.ids.insert(number, id);
        Ok(number)
    }

    /// Creates an identifier, which the program calls `uid`.
    ///
    /// # Errors
    /// [`IdError::Full`]; [`IdError::Unknown`] of a channel that was closed meanwhile, which would never let go of it.
    pub fn create(&mut self, channel: ChannelId, uid: u64, space: Space) -> Result<u32, IdError> {
        if !self.channels.contains_key(&channel) {
            return Err(IdError::Unknown);
        }
        let kind = if space == Space::Udp { Kind::Datagrams } else { Kind::Connection };
        let psn = self.random.next() & 0xff_ffff;
        self.add(Id {
            channel,
            uid,
            space,
            kind,
            stage: Stage::Idle,
            source: None,
            destination: None,
            device: None,
            connection: None,
            is_passive: false,
            has_port: false,
            backlog: 0,
            events_reported: 0,
            shares: false,
            v6_only: false,
            traffic_class: 0,
            ack_timeout: ACK_TIMEOUT,
            psn,
            link: Link::default(),
        })
    }

    /// The identifier, if it is the channel's.
    fn get(&mut self, channel: ChannelId, id: u32) -> Result<&mut Id, IdError> {
        let id = self.ids.get_mut(&id).ok_or(IdError::Unknown)?;
        if id.channel == channel { Ok(id) } else { Err(IdError::OtherChannel) }
    }

    /// Destroys an identifier; how many of its events the program has been given.
    ///
    /// # Errors
    /// [`IdError::Unknown`], [`IdError::OtherChannel`].
    pub fn destroy(
        &mut self,
        now_ns: u64,
        channel: ChannelId,
        number: u32,
    ) -> Result<u32, IdError> {
        self.get(channel, number)?;
        let id = self.ids.remove(&number).expect("it was found");
        self.free = self.free.min(number);
        if let (true, Some(source)) = (id.has_port, id.source) {
            self.ports.give_back(number, id.space, source.port());
            if let (Stage::Listening, Some(space)) = (id.stage, id.space.ports()) {
                self.tell_offers(space, source.port());
            }
            if let (Stage::Listening, Some(space)) = (id.stage, id.space.ports())
                && !self.ports.has_listener(id.space, source.port())
            {
                let service = space.service(source.port());
                self.devices.values_mut().for_each(|device| device.cm.unlisten(service));
            }
        }
        if let (Some(device), Some(connection)) = (id.device, id.connection) {
            self.let_go(now_ns, device, connection);
        }
        // What nobody has read yet is forgotten, and with it those who asked.
        let mut requests = Vec::new();
        if let Some(events) = self.channels.get_mut(&channel) {
            events.retain(|waiting| {
                if waiting.of == number && waiting.event.kind == EventKind::ConnectRequest {
                    requests.push(waiting.event.id);
                }
                waiting.of != number
            });
            self.changed.insert(channel);
        }
        for request in requests {
            let _ = self.destroy(now_ns, channel, request); // the same channel's
        }
        Ok(id.events_reported)
    }

    fn let_go(&mut self, now_ns: u64, device: usize, connection: ConnId) {
        if let Some(at) = self.devices.get_mut(&device) {
            at.owners.remove(&connection);
            at.cm.remove(now_ns, connection);
        }
        self.pump(now_ns, device);
    }

    /// Hands an identifier and its events over to another channel; how many events the program has
    /// been given.
    ///
    /// # Errors
    /// [`IdError::Unknown`], also of a channel that was closed; [`IdError::OtherChannel`].
    pub fn migrate(&mut self, from: ChannelId, number: u32, to: ChannelId) -> Result<u32, IdError> {
        if !self.channels.contains_key(&to) {
            return Err(IdError::Unknown);
        }
        let id = self.get(from, number)?;
        id.channel = to;
        let reported = id.events_reported;
        if from != to {
            let events = self.channels.get_mut(&from).map(std::mem::take).unwrap_or_default();
            let (moved, left): (VecDeque<_>, _) =
                events.into_iter().partition(|waiting| waiting.of == number);
            // Those who asked it are its channel's as well.
            for waiting in
                moved.iter().filter(|waiting| waiting.event.kind == EventKind::ConnectRequest)
            {
                if let Some(request) = self.ids.get_mut(&waiting.event.id) {
                    request.channel = to;
                }
            }
            self.channels.insert(from, left);
            self.channels.entry(to).or_default().extend(moved);
            self.changed.extend([from, to]);
        }
        Ok(reported)
    }

    /// Gives an identifier an address and a port.
    ///
    /// # Errors
    /// [`IdError::Stage`], [`IdError::NotLocal`], [`IdError::InUse`], [`IdError::Unsupported`].
    pub fn bind(&mut self, channel: ChannelId, number: u32, to: Address) -> Result<(), IdError> {
        let id = self.get(channel, number)?;
        if id.stage != Stage::Idle {
            return Err(IdError::Stage);
        }
        let at = match (to, id.space) {
            (Address::Ip(at), Space::Tcp | Space::Udp) => at,
            (Address::IbAny, Space::Ib) => {
                id.stage = Stage::Bound;
                return Ok(());
            }
            _ => return Err(IdError::Unsupported("an address of InfiniBand's on Ethernet")),
        };
        let (space, choice) = (id.space, (id.shares, id.v6_only));
        let at = SocketAddr::new(self.unless_loopback(at.ip().to_canonical()), at.port());
        let device = match at.ip().is_unspecified() {
            true => None,
            false => {
                let found = self.devices.iter().find(|(_, device)| device.info.address == at.ip());
                Some(*found.ok_or(IdError::NotLocal(at.ip()))?.0)
            }
        };
        let port =
            self.ports.take(&self.random, number, space, at, choice).ok_or(IdError::InUse)?;
        let id = self.get(channel, number)?;
        (id.source, id.device) = (Some(SocketAddr::new(at.ip(), port)), device);
        (id.stage, id.has_port) = (Stage::Bound, true);
        Ok(())
    }

    /// Any address for this host's own, where no device is on the loopback interface: Linux does the
    /// same.
    fn unless_loopback(&self, ip: IpAddr) -> IpAddr {
        let on_loopback = self.devices.values().any(|device| device.info.address.is_loopback());
        match ip {
            IpAddr::V4(Ipv4Addr::LOCALHOST) if !on_loopback => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(Ipv6Addr::LOCALHOST) if !on_loopback => Ipv6Addr::UNSPECIFIED.into(),
            _ => ip,
        }
    }

    /// Finds the device that leads to an address. The answer is an event.
    ///
    /// # Errors
    /// [`IdError::Stage`], [`IdError::NoDevice`], and as [`Ids::bind`].
    pub fn resolve_address(
        &mut self,
        channel: ChannelId,
        number: u32,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<(), IdError> {
        let id = self.get(channel, number)?;
        if id.space == Space::Ib {
            return Err(IdError::Unsupported("InfiniBand's port space"));
        }
        if !matches!(id.stage, Stage::Idle | Stage::Bound) {
            return Err(IdError::Stage);
        }
        let ip = to.ip().to_canonical();
        let (stage, bound) = (id.stage, id.device);
        let fits = |info: &DeviceInfo| info.address.is_ipv4() == ip.is_ipv4();
        let first =
            self.devices.iter().find(|(_, device)| fits(&device.info)).map(|(&number, _)| number);
        if stage == Stage::Idle {
            let any: IpAddr = match ip {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let first = first.ok_or(IdError::NoDevice)?;
            self.bind(channel, number, Address::Ip(from.unwrap_or(SocketAddr::new(any, 0))))?;
            self.get(channel, number)?.device.get_or_insert(first);
        } else {
            self.get(channel, number)?.device = Some(bound.or(first).ok_or(IdError::NoDevice)?);
        }
        let device = self.get(channel, number)?.device.ok_or(IdError::NoDevice)?;
        let own = self.devices[&device].info;
        if !fits(&own) {
            return Err(IdError::Value("source and destination are of different families"));
        }
        let id = self.get(channel, number)?;
        let port = id.source.map_or(0, |source| source.port());
        id.source = Some(SocketAddr::new(own.address, port));
        // A device that is not on the loopback interface reaches nobody there but itself.
        let is_own = ip.is_unspecified() || ip.is_loopback() && !own.address.is_loopback();
        let ip = if is_own { own.address } else { ip };
        id.destination = Some(SocketAddr::new(ip, to.port()));
        id.stage = Stage::AddrResolved;
        self.push(number, EventKind::AddrResolved, 0, None);
        Ok(())
    }

    /// Finds the way to the address that was resolved. The answer is an event.
    ///
    /// # Errors
    /// [`IdError::Stage`].
    pub fn resolve_route(&mut self, channel: ChannelId, number: u32) -> Result<(), IdError> {
        let id = self.get(channel, number)?;
        if id.stage != Stage::AddrResolved {
            return Err(IdError::Stage);
        }
        id.stage = Stage::RouteResolved;
        self.push(number, EventKind::RouteResolved, 0, None);
        Ok(())
    }

    /// Gives an identifier that has no address yet any one and a free port, as listening does.
    ///
    /// # Errors
    /// As [`Ids::bind`], [`IdError::Stage`] apart.
    pub fn bind_if_idle(&mut self, channel: ChannelId, number: u32) -> Result<(), IdError> {
        if self.get(channel, number)?.stage != Stage::Idle {
            return Ok(());
        }
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        self.bind(channel, number, Address::Ip(any))
    }

    /// Takes requests.
    ///
    /// # Errors
    /// [`IdError::Stage`], [`IdError::InUse`], and as [`Ids::bind_if_idle`].
    pub fn listen(&mut self, channel: ChannelId, number: u32, backlog: u32) -> Result<(), IdError> {
        self.bind_if_idle(channel, number)?;
        let id = self.get(channel, number)?;
        let (Stage::Bound, Some(source), Some(space)) = (id.stage, id.source, id.space.ports())
        else {
            return Err(IdError::Stage);
        };
        let own = id.space;
        if !self.ports.listen(number, own, source.port()) {
            return Err(IdError::InUse);
        }
        let id = self.get(channel, number)?;
        id.stage = Stage::Listening;
        id.backlog = if (1..MOST_BACKLOG).contains(&backlog) { backlog } else { MOST_BACKLOG };
        self.listen_on_all(space, source.port());
        Ok(())
    }

    /// Every device takes requests for the port: which identifier they are for is looked up then.
    fn listen_on_all(&mut self, space: PortSpace, port: u16) {
        let service = space.service(port);
        self.devices.values_mut().for_each(|device| device.cm.listen(service));
        self.tell_offers(space, port);
    }

    /// Tells of each device whether somebody listens there.
    fn tell_offers(&mut self, space: PortSpace, port: u16) {
        for (&device, at) in &self.devices {
            let offered = self.ports.listener(space.into(), at.info.address, port).is_some();
            self.offers.push_back(Offer { device, service: space.service(port), offered });
        }
    }

    /// Sets an option.
    ///
    /// # Errors
    /// [`IdError::Stage`], [`IdError::Value`].
    pub fn set(&mut self, channel: ChannelId, number: u32, option: Opt) -> Result<(), IdError> {
        let id = self.get(channel, number)?;
        match option {
            Opt::TypeOfService(class) => id.traffic_class = class,
            Opt::AckTimeout(code) if code < 32 => id.ack_timeout = bounded_ack_timeout(code),
            Opt::AckTimeout(_) => return Err(IdError::Value("a timeout has five bits")),
            Opt::ReuseAddress(shares) if id.stage == Stage::Idle => id.shares = shares,
            Opt::V6Only(only) if matches!(id.stage, Stage::Idle | Stage::Bound) => {
                id.v6_only = only
            }
            Opt::ReuseAddress(_) | Opt::V6Only(_) => return Err(IdError::Stage),
        }
        Ok(())
    }

    /// How far an identifier is, and what it is.
    ///
    /// # Errors
    /// [`IdError::Unknown`], [`IdError::OtherChannel`].
    pub fn look(
        &mut self,
        channel: ChannelId,
        number: u32,
    ) -> Result<(Stage, Kind, Space), IdError> {
        self.get(channel, number).map(|id| (id.stage, id.kind, id.space))
    }
}
