//! The UDP link: what the wire really carries, and foreign peers. The cases beyond loopback run in
//! network namespaces of their own; where none can be made, one line says so.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::suite;
use crate::suite::{Maker, expect, push, send_all, send_one};
use bellpush::nic::soft::link::{Link, LinkError, TxBatch, UdpLink};
use bellpush::wire::roce::{
    Addresses, Bth, Envelope, Fields, Headers, Opcode, Operation, Packet, ROCE_PORT,
};
use bellpush::wire::{Psn, Qpn};
use nix::sched::{CloneFlags, unshare};
use socket2::{Domain, Protocol, Socket, Type};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ip(args: &str) -> bool {
    let ip = Command::new("ip").args(args.split(' ')).output();
    ip.is_ok_and(|output| output.status.success())
}

/// Two network namespaces with a wire between them: 10.9.9.1 to 4 and fd00:9::1 to 4 on one side,
/// where the test runs, 5 to 8 on the other.
struct Wire {
    /// Opens links on the other side.
    far: Sender<(IpAddr, Sender<Result<UdpLink, LinkError>>)>,
}

impl Wire {
    fn open(&self, addr: IpAddr) -> Result<UdpLink, LinkError> {
        let last = match addr {
            IpAddr::V4(addr) => addr.octets()[3],
            IpAddr::V6(addr) => addr.octets()[15],
        };
        if last < 5 {
            return UdpLink::open(addr, None);
        }
        let (answer, link) = channel();
        self.far.send((addr, answer)).unwrap();
        link.recv().unwrap()
    }
}

fn add_addresses(interface: &str, mut last: std::ops::RangeInclusive<u8>) -> bool {
    ip(&format!("link set {interface} up"))
        && last.all(|i| {
            ip(&format!("addr add 10.9.9.{i}/24 dev {interface}"))
                && ip(&format!("-6 addr add fd00:9::{i}/64 dev {interface} nodad"))
        })
}

fn new_namespace() -> bool {
    unshare(CloneFlags::CLONE_NEWNET).is_ok() && ip("link set lo up")
}

/// Runs a test beside a wire.
fn on_a_wire(test: impl FnOnce(&Wire) + Send) {
    let (far, requests) = channel::<(IpAddr, Sender<Result<UdpLink, LinkError>>)>();
    let (far_is, is_far) = channel();
    let (wire_is, is_wired) = channel::<bool>();
    thread::scope(|scope| {
        let other_side = scope.spawn(move || {
            far_is.send(new_namespace().then(nix::unistd::gettid)).unwrap();
            let wired = is_wired.recv().is_ok_and(|wired| wired) && add_addresses("wire1", 5..=8);
            far_is.send(wired.then(nix::unistd::gettid)).unwrap();
            for (addr, answer) in requests {
                answer.send(UdpLink::open(addr, None)).unwrap();
            }
        });
        let this_side = scope.spawn(move || {
            let wired = |thread: nix::unistd::Pid| {
                new_namespace()
                    && ip("link add wire0 type veth peer name wire1")
                    && ip(&format!("link set wire1 netns {thread}"))
                    && add_addresses("wire0", 1..=4)
            };
            let wired = is_far.recv().unwrap().is_some_and(wired);
            wire_is.send(wired).unwrap();
            if wired && is_far.recv().unwrap().is_some() {
                test(&Wire { far });
            } else {
                println!("SKIPPED: no network namespaces can be made here");
            }
        });
        this_side.join().unwrap();
        other_side.join().unwrap();
    });
}

/// NICs on both sides of the wire, turn by turn.
struct Far<'a> {
    wire: &'a Wire,
    prefix: &'static str,
}

impl Maker for Far<'_> {
    fn make() -> Self {
        unreachable!("made by the tests below")
    }

    fn attach(&self, addr: Option<IpAddr>) -> Result<Box<dyn Link>, LinkError> {
        if let Some(addr) = addr {
            return Ok(Box::new(self.wire.open(addr)?));
        }
        for i in [1, 5, 2, 6, 3, 7] {
            match self.wire.open(address(&format!("{}{i}", self.prefix))) {
                Err(LinkError::InUse { .. }) => {}
                opened => return Ok(Box::new(opened?)),
            }
        }
        Err(LinkError::NoneFree { range: "the wire" })
    }

    fn nobody(&self) -> IpAddr {
        address(&format!("{}77", self.prefix))
    }
}

fn all_cases(net: &Far<'_>) {
    suite::lengths(net);
    suite::batches(net);
    suite::standstill(net);
    suite::nobody(net);
    suite::addresses(net);
    suite::oneself(net);
    suite::bounded(net);
    suite::leaving(net);
    suite::threads(net);
}

#[test]
fn every_case_passes_over_ipv4_beyond_loopback() {
    on_a_wire(|wire| all_cases(&Far { wire, prefix: "10.9.9." }));
}

#[test]
fn every_case_passes_over_ipv6() {
    on_a_wire(|wire| all_cases(&Far { wire, prefix: "fd00:9::" }));
}

/// A raw socket that sees all UDP to an address, or nothing where there is no right to one.
fn sniffer(addr: IpAddr) -> Option<Socket> {
    let socket = match Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
        socket => socket.unwrap(),
    };
    socket.bind(&SocketAddr::new(addr, 0).into()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.set_recv_buffer_size(4 << 20).unwrap();
    Some(socket)
}

fn read(mut socket: &Socket, buf: &mut [u8]) -> usize {
    std::io::Read::read(&mut socket, buf).unwrap()
}

#[test]
fn ipv4_packets_have_id_0_and_df() {
    on_a_wire(|_| {
        for (from, to) in [("127.0.7.1", "127.0.7.2"), ("10.9.9.1", "10.9.9.2")] {
            let (from, to) = (address(from), address(to));
            let (mut a, b) = (UdpLink::open(from, None).unwrap(), UdpLink::open(to, None).unwrap());
            let Some(sniffer) = sniffer(to) else { return };
            let mut batch = TxBatch::new(32);
            for psn in 0..32 {
                assert!(push(&a, &mut batch, to, psn, 1024));
            }
            send_all(&mut a, &mut batch);
            let (mut buf, mut bytes) = (vec![0; 1 << 16], 0);
            while bytes < 32 * (1024 + 16) {
                let n = read(&sniffer, &mut buf);
                let (envelope, payload) = Envelope::parse(&buf[..n]).unwrap();
                assert_eq!((envelope.id, envelope.fragment), (0, 0x4000));
                assert_eq!((envelope.src_port, envelope.dst_port), (ROCE_PORT, ROCE_PORT));
                // Cut up by the sender, each is a packet with a right ICRC; as one, on loopback,
                // several.
                for packet in payload.chunks(1024 + 16) {
                    Packet::check(packet, &envelope).unwrap();
                    bytes += packet.len();
                }
                assert!(to.is_loopback() || payload.len() == 1024 + 16, "{}", payload.len());
            }
            drop(b);
        }
    });
}

/// A SEND in IP headers with this ID, as another implementation would send it.
fn foreign(from: IpAddr, to: IpAddr, id: u16, psn: u32) -> Vec<u8> {
    let addresses = Addresses::new(from, to).unwrap();
    let envelope = Envelope { id, ..Envelope::new(addresses, 0xc123) };
    let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn(7), Psn::new(psn));
    let mut packet = [0; 64];
    let n = Headers::new(bth).emit(0, &mut packet).finish(Some(&envelope));
    let mut frame = vec![0; 48];
    let headers = envelope.emit(&[&packet[..n]], &mut frame);
    frame.truncate(headers);
    frame.extend(&packet[..n]);
    frame
}

#[test]
fn foreign_packets_arrive_once_with_the_id_that_their_icrc_covers() {
    on_a_wire(|_| {
        let (from, to) = (address("10.9.9.1"), address("10.9.9.2"));
        let mut link = UdpLink::open(to, None).unwrap();
        if !link.describe().contains("read from a raw socket") {
            println!("SKIPPED: {}", link.describe());
            return;
        }
        let sender = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).unwrap();
        sender.set_header_included_v4(true).unwrap();
        // Linux replaces an ID of 0 in such a header, so that those come from a link.
        for (psn, id) in (0..).zip([1, 0x1234, 0xffff, 0x8000]) {
            let frame = foreign(from, to, id, psn);
            sender.send_to(&frame, &SocketAddr::new(to, 0).into()).unwrap();
            let mut ids = Vec::new();
            while ids.is_empty() {
                link.recv(0, 8, &mut |packet| {
                    Packet::check(packet.bytes, &packet.envelope).unwrap();
                    assert_eq!(packet.envelope.src_port, 0xc123);
                    ids.push(packet.envelope.id);
                })
                .unwrap();
            }
            assert_eq!(ids, [id]);
        }
        // UDP to another port is not ours.
        let mut frame = foreign(from, to, 9, 9);
        frame[23] ^= 1;
        sender.send_to(&frame, &SocketAddr::new(to, 0).into()).unwrap();
        let mut ours = UdpLink::open(from, None).unwrap();
        send_one(&mut ours, to, 77, 12);
        assert_eq!(expect(&mut link, 1), [(77, 12, from)]);
        assert!(suite::drain(&mut link).is_empty());
        assert_eq!(link.counters().rx_packets, 5);
        // A peer's IDs come round to 0, which every packet of a link has: the order stays.
        for psn in 100..110 {
            if psn % 2 == 0 {
                let frame = foreign(from, to, 0xfff0 | psn as u16, psn);
                sender.send_to(&frame, &SocketAddr::new(to, 0).into()).unwrap();
            } else {
                send_one(&mut ours, to, psn, 0);
            }
            thread::sleep(Duration::from_millis(1)); // the system may queue for each core
        }
        let order: Vec<u32> = expect(&mut link, 10).iter().map(|got| got.0).collect();
        assert_eq!(order, Vec::from_iter(100..110));
    });
}

#[test]
fn each_nic_of_a_host_claims_an_address_of_its_own() {
    let all: Vec<UdpLink> = (0..5).map(|_| UdpLink::open_free().unwrap()).collect();
    for (i, link) in all.iter().enumerate() {
        assert!(link.address().is_loopback());
        assert!(all[..i].iter().all(|other| other.address() != link.address()));
        println!("{}", link.describe());
    }
}

#[test]
fn addresses_that_no_nic_can_have_are_refused() {
    for text in ["203.0.113.7", "0.0.0.0", "::", "224.0.0.1", "2001:db8::1"] {
        let error = UdpLink::open(address(text), None).err().expect(text);
        assert!(matches!(error, LinkError::NotLocal { .. }), "{text}: {error}");
    }
}

#[test]
fn packets_fit_into_the_interface() {
    on_a_wire(|_| {
        let mtu = |text: &str, mtu| UdpLink::open(address(text), mtu).unwrap().mtu();
        assert_eq!(mtu("10.9.9.1", None), 1500 - 28);
        assert_eq!(mtu("fd00:9::1", None), 1500 - 48);
        assert_eq!(mtu("10.9.9.1", Some(9000)), bellpush::wire::roce::MAX_PACKET_BYTES);
        assert_eq!(mtu("127.0.0.1", None), bellpush::wire::roce::MAX_PACKET_BYTES);
    });
}

#[test]
fn a_port_goes_down_with_its_interface() {
    on_a_wire(|_| {
        let mut link = UdpLink::open(address("10.9.9.1"), None).unwrap();
        // The system tells of a carrier within a second or so.
        let mut becomes = |up: bool| {
            let start = std::time::Instant::now();
            while link.is_up() != up {
                assert!(start.elapsed().as_secs() < 10, "up: {}", !up);
                thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        becomes(true);
        assert!(ip("link set wire0 down"));
        becomes(false);
        assert!(ip("link set wire0 up"));
        becomes(true);
    });
}

/// No socket takes a hop limit of 0. The packet is lost, and what went before it goes once.
#[test]
fn a_packet_whose_fields_the_socket_refuses_costs_no_other() {
    let (mut a, mut b) = (UdpLink::open_free().unwrap(), UdpLink::open_free().unwrap());
    let (from, to) = (a.address(), b.address());
    let mut batch = TxBatch::new(3);
    for (psn, hop_limit) in [(0, 64), (1, 0), (2, 64)] {
        let fields = Fields { hop_limit, traffic_class: 8, ..Fields::default() };
        let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn(7), Psn::new(psn));
        let envelope = Envelope::new(Addresses::new(from, to).unwrap(), ROCE_PORT).with(&fields);
        assert!(batch.push_with(to, fields, |buf| {
            Some(Headers::new(bth).emit(0, buf).finish(Some(&envelope)))
        }));
    }
    send_all(&mut a, &mut batch);
    let psns: Vec<_> = expect(&mut b, 2).into_iter().map(|(psn, ..)| psn).collect();
    assert_eq!(psns, [0, 2]);
    thread::sleep(Duration::from_millis(50));
    assert!(suite::drain(&mut b).is_empty(), "a packet came twice");
    assert_eq!((a.counters().tx_packets, a.counters().tx_lost), (2, 1));
}

#[test]
fn what_other_programs_send_to_the_port_is_bounded() {
    let (mut a, from) = (UdpLink::open_free().unwrap(), address("127.0.0.1"));
    let stranger = std::net::UdpSocket::bind((from, 0)).unwrap();
    let to = SocketAddr::new(a.address(), ROCE_PORT);
    stranger.send_to(&[], to).unwrap();
    stranger.send_to(&[7; 3], to).unwrap();
    stranger.send_to(&[7; 60000], to).unwrap();
    let mut lengths = Vec::new();
    let start = std::time::Instant::now();
    while lengths.len() < 2 || a.counters().rx_dropped < 1 {
        a.recv(0, 8, &mut |packet| lengths.push(packet.bytes.len())).unwrap();
        assert!(start.elapsed().as_secs() < 5, "{lengths:?} {:?}", a.counters());
    }
    assert_eq!(lengths, [0, 3]);
    assert_eq!(a.counters().rx_dropped, 1);
}
