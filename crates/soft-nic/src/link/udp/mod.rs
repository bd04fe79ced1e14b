//! RoCEv2 over UDP port 4791, IPv4 and IPv6 (InfiniBand annex A17).
//!
//! The ICRC covers IPv4's ID, which a UDP socket neither sets nor shows. What is sent has ID 0:
//! the socket is not connected and sets DF. What other implementations send may have another ID:
//! IPv4 is received from a raw socket, where the process may have one (on loopback, where only
//! software NICs are neighbours, it has none), and the UDP socket only sends. IPv6 has no ID; there
//! the raw socket is for packets without a UDP checksum, which a UDP socket drops.
//! [`Link::describe`] says which is in force.
//!
//! Runs of packets to one address go as one datagram that the system cuts up (GSO). Over IPv4 it
//! would count IDs up while doing so; there it is used on loopback alone, where nothing is cut up
//! before the receiving socket, which takes it as one (GRO).
//!
//! Traffic class and hop limit are options of the socket that follow the packets: they are set when
//! the next packets ask for others. quinn-udp writes the class of what it sends itself, so that
//! only packets of class 0 go by GSO. Everything has the source port that the socket is bound to,
//! and the flow label that the system chooses; a source port that was taken ([`Link::take_port`])
//! has a socket of its own, which only sends.

mod inbox;
mod socket;

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::net::if_::InterfaceFlags;
use quinn_udp::{Transmit, UdpSockRef};
use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg, sockopt};

use self::inbox::{Datagram, Inbox};
use self::socket::{Interface, Opened, endpoint, interface_of, is_up};
use super::{Carries, Link, LinkCounters, LinkError, Outgoing, Received, Run, TxBatch};
use bellpush_wire::roce::{
    Addresses, Envelope, Fields, MAX_PACKET_BYTES, ROCE_PORT, UDP_HEADER_BYTES,
};

/// Packets of one sendmmsg.
const SENDS: usize = 32;
/// Bytes of a datagram to be cut up: what fits with IP and UDP headers into IP's length.
const GSO_BYTES: usize = 65535 - 48;
/// What addresses are taken from when none is given.
const FREE_RANGE: &str = "127.0.0.1 to 127.0.255.255";

/// A NIC's end of the wire, as UDP sockets show it.
pub struct UdpLink {
    addr: IpAddr,
    interface: Interface,
    mtu: usize,
    /// UDP source port of what is sent.
    src_port: u16,
    udp: Inbox,
    /// RoCEv2's port, where the link was opened without it and has it by now.
    late: Option<Inbox>,
    raw: Option<Inbox>,
    /// What the raw socket is for, or why there is none.
    foreign: &'static str,
    counters: LinkCounters,
    /// Header fields that the socket's options ask for; none before the first packet.
    fields: Option<Fields>,
    /// Source ports that were taken.
    ports: HashMap<u16, Extra>,
    /// Destinations of a sendmmsg.
    to: Vec<SocketAddrAny>,
}

/// A socket for another source port.
struct Extra {
    opened: Opened,
    fields: Option<Fields>,
    users: usize,
}

/// Name of the network interface that has an address; `None` where none has.
pub fn interface_name(addr: IpAddr) -> Option<String> {
    Some(interface_of(addr.to_canonical()).ok()??.name)
}

impl UdpLink {
    /// A NIC at an address of this machine. `mtu` is the interface's, in bytes of IP packets, where
    /// it is to be another than what the system says.
    ///
    /// # Errors
    /// [`LinkError::InUse`], [`LinkError::NotLocal`], [`LinkError::System`].
    pub fn open(addr: IpAddr, mtu: Option<usize>) -> Result<Self, LinkError> {
        let addr = addr.to_canonical();
        let interface = local(addr)?;
        let (udp, raw) = open_port(addr, &interface)?;
        let foreign = match (addr, &raw) {
            (IpAddr::V4(_), Some(_)) => "IPv4 IDs read from a raw socket",
            (IpAddr::V6(_), Some(_)) => "packets without UDP checksum read from a raw socket",
            (IpAddr::V4(_), None) if addr.is_loopback() => "IPv4 ID 0 expected (loopback)",
            (IpAddr::V6(_), None) if addr.is_loopback() => "UDP checksum expected (loopback)",
            (IpAddr::V4(_), None) => "IPv4 ID 0 expected (no right to a raw socket)",
            (IpAddr::V6(_), None) => "UDP checksum expected (no right to a raw socket)",
        };
        let link = Self::with(addr, interface, mtu, ROCE_PORT, udp);
        Ok(Self { raw, foreign, ..link })
    }

    /// A NIC at an address whose RoCEv2 port another has: it sends from a port that the system
    /// chooses, and receives nothing.
    pub(super) fn open_beside(addr: IpAddr, mtu: Option<usize>) -> Result<Self, LinkError> {
        let interface = local(addr)?;
        let udp = socket::open_udp(socket::with_port(addr, interface.scope, 0), true)?;
        let at = udp.socket.local_addr().map_err(socket::system("getsockname"))?;
        let port = at.as_socket().map_or(0, |at| at.port());
        Ok(Self::with(addr, interface, mtu, port, udp))
    }

    fn with(
        addr: IpAddr,
        interface: Interface,
        mtu: Option<usize>,
        src_port: u16,
        udp: Opened,
    ) -> Self {
        let headers = Addresses::new(addr, addr).expect("one family").header_bytes();
        let mtu = mtu.unwrap_or(interface.mtu).saturating_sub(headers).min(MAX_PACKET_BYTES);
        Self {
            addr,
            interface,
            mtu,
            src_port,
            udp: Inbox::new(udp),
            late: None,
            raw: None,
            foreign: "another process of this address receives",
            counters: LinkCounters::default(),
            fields: None,
            ports: HashMap::new(),
            to: Vec::with_capacity(SENDS),
        }
    }

    /// Takes RoCEv2's port, which whoever had it has left: from now on packets come here. What is
    /// sent has the source port that it had.
    ///
    /// # Errors
    /// [`LinkError::InUse`], [`LinkError::System`].
    pub(super) fn take_over(&mut self) -> Result<(), LinkError> {
        let (udp, raw) = open_port(self.addr, &self.interface)?;
        (self.late, self.raw) = (Some(Inbox::new(udp)), raw);
        self.foreign = "received since the one that did so is gone";
        Ok(())
    }

    /// Sockets that packets come to.
    pub(super) fn inboxes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = [self.late.as_ref().or(Some(&self.udp)), self.raw.as_ref()];
        all.into_iter().flatten().map(|inbox| inbox.opened.socket.as_fd())
    }

    /// Whether the descriptors of [`UdpLink::take_over`] are still what they were.
    pub(super) fn is_whole(&self) -> bool {
        let late = [self.late.as_ref(), self.raw.as_ref().filter(|_| self.late.is_some())];
        late.into_iter().flatten().all(|inbox| inbox.opened.socket.is_there())
    }

    /// A NIC at the first address of 127.0.0.0/16 that none has: several processes of one host are
    /// a NIC each.
    ///
    /// # Errors
    /// [`LinkError::NoneFree`], [`LinkError::System`].
    pub fn open_free() -> Result<Self, LinkError> {
        first_free(|addr| Self::open(addr, None))
    }

    /// Descriptors of its sockets, of which one is readable when a packet has come: an engine that
    /// naps may wait there.
    ///
    /// # Errors
    /// [`LinkError::System`].
    pub fn descriptors(&self) -> Result<Vec<OwnedFd>, LinkError> {
        let inboxes = [Some(&self.udp), self.raw.as_ref()].into_iter().flatten();
        let sockets = inboxes.map(|inbox| inbox.opened.socket.try_clone().map(OwnedFd::from));
        sockets.collect::<Result<_, _>>().map_err(socket::system("dup of a socket"))
    }

    /// Packets behind the first `skip` that can go as one datagram, if they are several.
    fn gso_run<'a>(&self, batch: &'a TxBatch, skip: usize) -> Option<Run<'a>> {
        let most = self.udp.opened.state.max_gso_segments();
        let run = batch.run(skip, most, GSO_BYTES)?;
        let fine = gso_to(run.to) && run.fields.traffic_class == 0;
        (run.count > 1 && fine && run.to.is_ipv4() == self.addr.is_ipv4()).then_some(run)
    }

    /// What packets of a source port leave by.
    fn opened(&self, src_port: u16) -> &Opened {
        self.ports.get(&src_port).map_or(&self.udp.opened, |extra| &extra.opened)
    }

    /// Has the socket send with these fields, as far as it can.
    fn set_fields(&mut self, fields: Fields) -> Result<(), LinkError> {
        let (opened, set) = match self.ports.get_mut(&fields.src_port) {
            Some(extra) => (&extra.opened, &mut extra.fields),
            None => (&self.udp.opened, &mut self.fields),
        };
        if *set == Some(fields) {
            return Ok(());
        }
        // Until both are set: the socket may take one and refuse the other.
        *set = None;
        let (socket, now) = (&opened.socket, set);
        let (class, hops) = (fields.traffic_class, fields.hop_limit);
        let set = match self.addr {
            IpAddr::V4(_) => sockopt::set_ip_tos(socket, class)
                .and_then(|()| sockopt::set_ip_ttl(socket, hops.into())),
            IpAddr::V6(_) => sockopt::set_ipv6_tclass(socket, class.into())
                .and_then(|()| sockopt::set_ipv6_unicast_hops(socket, Some(hops))),
        };
        set.map_err(|errno| socket::system("IP_TOS and IP_TTL")(errno.into()))?;
        *now = Some(fields);
        Ok(())
    }

    fn send_run(&self, run: &Run<'_>) -> Sent {
        let transmit = Transmit {
            destination: endpoint(run.to, self.interface.scope),
            ecn: None,
            contents: run.bytes,
            segment_size: Some(run.segment),
            src_ip: None,
        };
        let opened = self.opened(run.fields.src_port);
        match opened.state.try_send(UdpSockRef::from(&opened.socket), &transmit) {
            Ok(()) => Sent::Packets(run.count),
            Err(error) => Sent::of(&error),
        }
    }

    /// Sends packets of the same fields one by one in one call: the system stops at the first that
    /// it refuses.
    fn send_each<'a>(&mut self, packets: impl Iterator<Item = Outgoing<'a>>) -> Sent {
        let mut slices = [[IoSlice::new(&[])]; SENDS];
        self.to.clear();
        let mut port = ROCE_PORT;
        for (packet, slice) in packets.zip(&mut slices) {
            port = packet.fields.src_port;
            if packet.to.is_ipv4() != self.addr.is_ipv4() {
                break; // the first of the next call
            }
            self.to.push(endpoint(packet.to, self.interface.scope).into());
            *slice = [IoSlice::new(packet.bytes)];
        }
        if self.to.is_empty() {
            return Sent::Refused;
        }
        let mut none: [SendAncillaryBuffer<'_, '_, '_>; SENDS] = Default::default();
        let mut none = none.iter_mut();
        let last = self.to.len() - 1;
        let mut messages: [MMsgHdr<'_>; SENDS] = std::array::from_fn(|i| {
            let control = none.next().expect("one for each");
            MMsgHdr::new_with_addr(&self.to[i.min(last)], &slices[i.min(last)], control)
        });
        let socket = &self.opened(port).socket;
        match sendmmsg(&**socket, &mut messages[..=last], SendFlags::DONTWAIT) {
            Ok(n) => Sent::Packets(n),
            Err(errno) => Sent::of(&errno.into()),
        }
    }
}

/// What opens at the first address of 127.0.0.0/16 where it does not find it in use.
pub(super) fn first_free<L>(
    mut open: impl FnMut(IpAddr) -> Result<L, LinkError>,
) -> Result<L, LinkError> {
    for host in 1..=u16::MAX {
        let [high, low] = host.to_be_bytes();
        match open(Ipv4Addr::new(127, 0, high, low).into()) {
            Err(LinkError::InUse { .. }) => {}
            opened => return opened,
        }
    }
    Err(LinkError::NoneFree { range: FREE_RANGE })
}

/// The interface of an address that a NIC can have.
fn local(addr: IpAddr) -> Result<Interface, LinkError> {
    if addr.is_unspecified() || addr.is_multicast() {
        return Err(LinkError::NotLocal { addr });
    }
    interface_of(addr)?.ok_or(LinkError::NotLocal { addr })
}

/// RoCEv2's port at an address, and the raw socket beside it. The port first: where another has it,
/// nothing was opened yet that whoever looks after descriptors would miss.
fn open_port(addr: IpAddr, interface: &Interface) -> Result<(Opened, Option<Inbox>), LinkError> {
    let udp = socket::open_udp(endpoint(addr, interface.scope), false)?;
    let raw = match addr.is_loopback() {
        true => None,
        false => socket::open_raw(addr, interface.scope)?.map(Inbox::new),
    };
    // All of a family's packets from one socket: two would not keep the order, when one peer's
    // IDs come round to 0.
    if addr.is_ipv4() && raw.is_some() {
        socket::deafen(&udp)?;
    }
    Ok((udp, raw))
}

/// What became of packets.
enum Sent {
    /// So many went out.
    Packets(usize),
    /// None now: buffers are full.
    Full,
    /// The first never will.
    Refused,
}

impl Sent {
    fn of(error: &io::Error) -> Self {
        let full = [Errno::AGAIN, Errno::NOBUFS, Errno::INTR].map(Errno::raw_os_error);
        let is_full = error.raw_os_error().is_some_and(|errno| full.contains(&errno));
        if is_full { Self::Full } else { Self::Refused }
    }
}

/// The headers that a packet came with, as far as the socket tells.
fn envelope_of(datagram: &Datagram<'_>, addresses: Addresses, src_port: u16) -> Envelope {
    let usual = Envelope::new(addresses, src_port);
    let hop_limit = datagram.hops.unwrap_or(usual.hop_limit);
    Envelope { traffic_class: datagram.class, hop_limit, ..usual }
}

/// What a raw socket gave: of IPv4 from the IP header on, of IPv6 from the UDP header on.
fn of_raw<'a>(datagram: &Datagram<'a>, addr: IpAddr) -> Option<Received<'a>> {
    if addr.is_ipv4() {
        let (envelope, bytes) = Envelope::parse(datagram.bytes).ok()?;
        return Some(Received { envelope, bytes, checked: false });
    }
    let (udp, bytes) = datagram.bytes.split_first_chunk::<UDP_HEADER_BYTES>()?;
    let [src_port, _, length, _] =
        [0, 2, 4, 6].map(|at| u16::from_be_bytes([udp[at], udp[at + 1]]));
    if usize::from(length) != datagram.bytes.len() {
        return None;
    }
    let addresses = Addresses::new(datagram.from.ip(), addr)?;
    let envelope = envelope_of(datagram, addresses, src_port);
    Some(Received { envelope, bytes, checked: false })
}

fn hand_out(
    counters: &mut LinkCounters,
    each: &mut dyn FnMut(&Received<'_>),
    packet: &Received<'_>,
) {
    if packet.bytes.len() > MAX_PACKET_BYTES {
        counters.rx_dropped += 1;
        return;
    }
    counters.rx_packets += 1;
    counters.rx_bytes += packet.bytes.len() as u64;
    each(packet);
}

/// Whether datagrams may be cut up on their way to that address: what cuts them counts IPv4 IDs up,
/// unless they are cut on arrival.
fn gso_to(to: IpAddr) -> bool {
    to.is_ipv6() || to.is_loopback()
}

impl Link for UdpLink {
    fn address(&self) -> IpAddr {
        self.addr
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn src_port(&self) -> u16 {
        self.src_port
    }

    fn joins(&self) -> bool {
        self.udp.opened.state.max_gso_segments() > 1 && gso_to(self.addr)
    }

    fn carries(&self) -> Carries {
        Carries { traffic_class: true, hop_limit: true, src_port: false, flow_label: false }
    }

    fn fields(&self, wanted: &Fields) -> Fields {
        let taken = self.ports.contains_key(&wanted.src_port);
        let port = if taken { wanted.src_port } else { self.src_port };
        self.carries().of(wanted, port)
    }

    fn take_port(&mut self, port: u16) -> Result<(), LinkError> {
        if port == self.src_port {
            return Ok(());
        }
        if let Some(extra) = self.ports.get_mut(&port) {
            extra.users += 1;
            return Ok(());
        }
        let addr = socket::with_port(self.addr, self.interface.scope, port);
        let opened = match port {
            0 => Err(LinkError::Port { port }),
            _ => socket::open_udp(addr, true).map_err(|why| match why {
                LinkError::InUse { .. } => LinkError::Port { port },
                other => other,
            }),
        }?;
        self.ports.insert(port, Extra { opened, fields: None, users: 1 });
        Ok(())
    }

    fn leave_port(&mut self, port: u16) {
        if let Some(extra) = self.ports.get_mut(&port) {
            extra.users -= 1;
            if extra.users == 0 {
                self.ports.remove(&port);
            }
        }
    }

    fn send(&mut self, _now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        let (mut taken, mut one_by_one) = (0, 0);
        while let Some(fields) = batch.iter().nth(taken).map(|packet| packet.fields) {
            if self.set_fields(fields).is_err() {
                // An error would have what was sent before it sent again.
                self.counters.tx_lost += 1;
                taken += 1;
                continue;
            }
            let run = self.gso_run(batch, taken).filter(|_| one_by_one <= taken);
            let sent = if let Some(run) = &run {
                self.send_run(run)
            } else {
                // Up to where the next run begins.
                let singles = (taken + 1..batch.len().min(taken + SENDS))
                    .find(|&at| at >= one_by_one && self.gso_run(batch, at).is_some());
                let n = singles.unwrap_or(taken + SENDS) - taken;
                let same = |packet: &Outgoing<'_>| packet.fields == fields;
                self.send_each(batch.iter().skip(taken).take(n).take_while(same))
            };
            match (sent, run) {
                (Sent::Packets(n), _) => {
                    let bytes = batch.iter().skip(taken).take(n).map(|packet| packet.bytes.len());
                    self.counters.tx_packets += n as u64;
                    self.counters.tx_bytes += bytes.sum::<usize>() as u64;
                    taken += n;
                }
                (Sent::Full, _) => {
                    self.counters.tx_full += 1;
                    break;
                }
                // Perhaps it is the run that is refused, or one of its packets.
                (Sent::Refused, Some(run)) => one_by_one = taken + run.count,
                (Sent::Refused, None) => {
                    self.counters.tx_lost += 1;
                    taken += 1;
                }
            }
        }
        batch.take(taken);
        Ok(taken)
    }

    fn recv(
        &mut self,
        _now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        let (mut tried, dropped) = (0, self.counters.rx_dropped);
        // A link that was opened without RoCEv2's port hears nothing at its own.
        let beside = (self.src_port != ROCE_PORT).then_some(&mut self.late);
        let mut udp = beside.map_or(Some(&mut self.udp), Option::as_mut);
        while tried < most
            && let Some(udp) = &mut udp
            && let Some(datagram) = udp.take()?
        {
            tried += 1;
            let addresses = Addresses::new(datagram.from.ip(), self.addr);
            let addresses = addresses.expect("the socket's family");
            let envelope = envelope_of(&datagram, addresses, datagram.from.port());
            let received = Received { envelope, bytes: datagram.bytes, checked: false };
            hand_out(&mut self.counters, each, &received);
        }
        while tried < most
            && let Some(raw) = &mut self.raw
            && let Some(datagram) = raw.take()?
        {
            tried += 1;
            match of_raw(&datagram, self.addr) {
                Some(packet) => hand_out(&mut self.counters, each, &packet),
                None => self.counters.rx_dropped += 1,
            }
        }
        Ok(tried - (self.counters.rx_dropped - dropped) as usize)
    }

    fn is_up(&mut self) -> bool {
        // What else goes wrong says nothing of the interface: the program may have closed the socket.
        match self.udp.opened.socket.interface_flags(&self.interface.name) {
            Ok(flags) => self.interface.is_up = is_up(InterfaceFlags::from_bits_retain(flags)),
            Err(e) if e.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                self.interface.is_up = false;
            }
            Err(_) => {}
        }
        self.interface.is_up
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }

    fn describe(&self) -> String {
        let opened = &self.udp.opened;
        let gso = match opened.state.max_gso_segments() {
            1 => "no GSO".into(),
            _ if self.addr.is_ipv4() && !self.addr.is_loopback() => "no GSO (IPv4)".into(),
            n => format!("GSO of {n}"),
        };
        let deaf = self.addr.is_ipv4() && self.raw.is_some();
        let gro = if !deaf && opened.state.gro_segments() > 1 { "GRO" } else { "no GRO" };
        format!(
            "UDP {} on {}, packets up to {} bytes, {gso}, {gro}, receive buffer {} bytes, {}, one \
             source port, the system's flow labels",
            socket::with_port(self.addr, self.interface.scope, self.src_port),
            self.interface.name,
            self.mtu,
            opened.recv_bytes,
            self.foreign,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv6Addr, SocketAddr};

    #[test]
    fn a_raw_packet_of_ipv6_begins_with_its_udp_header() {
        let (ours, theirs) = ("fd47::1", "fd47::2");
        let (addr, from): (IpAddr, Ipv6Addr) = (ours.parse().unwrap(), theirs.parse().unwrap());
        // Source port 51770, port 4791, 12 bytes, no checksum; then BTH to ICRC.
        let bytes = [0xca, 0x3a, 0x12, 0xb7, 0, 12, 0, 0, 1, 2, 3, 4];
        let from_them = SocketAddr::from((from, 0));
        let datagram = |bytes| Datagram { from: from_them, class: 0x6a, hops: Some(3), bytes };
        let received = datagram(&bytes);
        let received = of_raw(&received, addr).unwrap();
        assert_eq!(received.bytes, [1, 2, 3, 4]);
        let Envelope { addresses, src_port, traffic_class, hop_limit, .. } = received.envelope;
        assert_eq!((addresses.src(), src_port), (from.into(), 51770));
        assert_eq!((traffic_class, hop_limit), (0x6a, 3));
        for wrong in [&bytes[..7], &bytes[..11], &[&bytes[..], &[5]].concat()] {
            assert!(of_raw(&datagram(wrong), addr).is_none(), "{wrong:?}");
        }
    }
}
