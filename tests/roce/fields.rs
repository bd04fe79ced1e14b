//! What an address vector says of IP and UDP headers is what packets have: traffic class, hop
//! limit, source port and flow label, as far as the link carries them.

use std::net::{IpAddr, Ipv6Addr};

use crate::queue_pairs::{attr, inline, make_qp};
use bellpush::nic::soft::link::{Carries, Link, ShmNet, UdpLink};
use bellpush::nic::soft::{Engine, SoftConfig, SoftNic};
use bellpush::nic::{
    AddressVector, Change, Connection, Mtu, Nic, NicAddress, NicError, QpAddress, QpState,
    QueuePair,
};
use bellpush::wire::roce::{Envelope, Fields, Packet, ROCE_PORT, flow_label_of, udp_src_port};
use bellpush::wire::wqe::{Opcode, SendWr};
use bellpush::wire::{Iova, Psn, Qpn, Rkey};

const PEER_QPN: Qpn = Qpn(0x1234);

/// Has a queue pair send a WRITE with an address vector; returns its number and the headers that
/// its packet came with.
fn envelope_of(
    (nic, engine): (&SoftNic, &mut Engine),
    peer: &mut dyn Link,
    av: impl Fn(AddressVector) -> AddressVector,
) -> (Qpn, Envelope) {
    let (qp, memory) = make_qp(nic, &attr());
    let mut host = bellpush::nic::queue::HostQp::new(&*qp);
    let there = NicAddress::Ip(peer.address());
    let me = qp.address();
    let them = QpAddress { nic: there, qpn: PEER_QPN, psn: Psn::new(5), mtu: Mtu::ALL[0], ..me };
    let mut connection = Connection::new(me, them);
    connection.with.av = Some(av(AddressVector::to(there)));
    qp.connect_with(&connection).unwrap();
    host.send(&SendWr::new(Opcode::RdmaWrite).to(Iova(0), Rkey(1)).payload(&inline(b"x"))).unwrap();
    let mut seen = None;
    for i in 0..1000 {
        engine.step(i * 1000);
        peer.recv(0, 64, &mut |received| {
            Packet::check(received.bytes, &received.envelope).expect("the ICRC is of its fields");
            seen.get_or_insert(received.envelope);
        })
        .unwrap();
        if seen.is_some() {
            break;
        }
    }
    drop(memory);
    (qp.qpn(), seen.expect("a packet came"))
}

fn marked(av: AddressVector) -> AddressVector {
    AddressVector { flow_label: 0x5_4321, hop_limit: 9, traffic_class: 0xa8, ..av }
}

#[test]
fn connections_send_what_their_address_vector_says() {
    let v6 = |host: u16| IpAddr::from(Ipv6Addr::new(0xfd47, 0, 0, 0, 0, 0, 0, host));
    let v4 = |host: u16| IpAddr::from([127, 0, 0, host as u8]);
    for (is_v6, ends) in [(false, [v4(1), v4(2)]), (true, [v6(1), v6(2)])] {
        let net = ShmNet::anonymous(true).unwrap();
        let link = Box::new(net.attach(ends[0]).unwrap());
        let mut peer = net.attach(ends[1]).unwrap();
        let (nic, mut engine) = SoftNic::manual_on(&SoftConfig::default(), link).unwrap();
        assert_eq!(nic.carries(), Some(Carries::ALL));
        let (qpn, plain) = envelope_of((&nic, &mut engine), &mut peer, |av| av);
        let port = udp_src_port(flow_label_of(qpn, PEER_QPN));
        assert_eq!((plain.traffic_class, plain.hop_limit, plain.src_port), (0, 64, port));
        let (_, marked) = envelope_of((&nic, &mut engine), &mut peer, marked);
        assert_eq!((marked.traffic_class, marked.hop_limit), (0xa8, 9));
        assert_eq!(marked.src_port, udp_src_port(0x5_4321));
        assert_eq!(marked.flow_label, if is_v6 { 0x5_4321 } else { 0 });
        let (_, unset) =
            envelope_of((&nic, &mut engine), &mut peer, |av| AddressVector { hop_limit: 0, ..av });
        assert_eq!(unset.hop_limit, 64, "0 asks for the usual one");
    }
}

#[test]
fn a_udp_link_says_what_it_cannot_send_and_keeps_its_port() {
    let link = UdpLink::open([127, 0, 61, 1].into(), None).unwrap();
    let mut peer = UdpLink::open([127, 0, 61, 2].into(), None).unwrap();
    assert!(link.describe().contains("one source port"), "{}", link.describe());
    let (nic, mut engine) = SoftNic::manual_on(&SoftConfig::default(), Box::new(link)).unwrap();
    let carries = nic.carries().unwrap();
    assert!(carries.traffic_class && carries.hop_limit && !carries.src_port && !carries.flow_label);
    let (_, envelope) = envelope_of((&nic, &mut engine), &mut peer, |av| AddressVector {
        traffic_class: 0xab,
        ..marked(av)
    });
    assert_eq!(envelope.src_port, ROCE_PORT);
    assert_eq!((envelope.traffic_class, envelope.hop_limit), (0xab, 9));
}

/// The source ports of the packets that come to `peer` next, whose ICRC is of them.
fn ports_at(engine: &mut Engine, peer: &mut UdpLink, at: &mut u64) -> Vec<u16> {
    let mut ports = vec![];
    for _ in 0..100 {
        *at += 1_000_000;
        engine.step(*at);
        peer.recv(0, 64, &mut |received| {
            Packet::check(received.bytes, &received.envelope).expect("the ICRC is of its fields");
            ports.push(received.envelope.src_port);
        })
        .unwrap();
    }
    ports.sort_unstable();
    ports
}

#[test]
fn packets_of_a_queue_pair_leave_from_the_port_that_it_was_given() {
    let link = UdpLink::open([127, 0, 61, 5].into(), None).unwrap();
    let mut peer = UdpLink::open([127, 0, 61, 6].into(), None).unwrap();
    let (nic, mut engine) = SoftNic::manual_on(&SoftConfig::default(), Box::new(link)).unwrap();
    let there = NicAddress::Ip(peer.address());
    let mut ends: Vec<_> = (0..2)
        .map(|_| {
            let (qp, memory) = make_qp(&nic, &attr());
            let host = bellpush::nic::queue::HostQp::new(&*qp);
            (qp, memory, host)
        })
        .collect();
    let connect = |qp: &bellpush::nic::soft::Qp| {
        let me = qp.address();
        let them = QpAddress { nic: there, qpn: PEER_QPN, psn: Psn::new(5), ..me };
        let mut connection = Connection::new(me, QpAddress { mtu: Mtu::ALL[0], ..them });
        connection.with.timeout = Some(0);
        qp.connect_with(&connection).unwrap();
    };
    ends.iter().for_each(|(qp, ..)| connect(qp));
    let from = |port| Change { src_port: Some(port), ..Change::default() };
    let wr = || SendWr::new(Opcode::RdmaWrite).to(Iova(0), Rkey(1));
    let mut at = 0;
    let mut sent = |ends: &mut [(_, _, bellpush::nic::queue::HostQp)]| {
        ends.iter_mut().for_each(|(_, _, host)| {
            host.send(&wr().payload(&inline(b"x"))).unwrap();
        });
        ports_at(&mut engine, &mut peer, &mut at)
    };
    assert_eq!(sent(&mut ends), [ROCE_PORT, ROCE_PORT]);

    ends[0].0.modify(QpState::Rts, &from(55_555)).unwrap();
    assert_eq!(ends[0].0.query().src_port, Some(55_555));
    assert_eq!(sent(&mut ends), [ROCE_PORT, 55_555], "of the one, and of the other as before");
    ends[1].0.modify(QpState::Rts, &from(55_555)).unwrap();
    ends[0].0.modify(QpState::Rts, &from(55_556)).unwrap();
    assert_eq!(sent(&mut ends), [55_555, 55_556], "a port may be given to several");

    let _holder = std::net::UdpSocket::bind("127.0.61.5:55557").unwrap();
    for (port, why) in [(55_557, "another program's"), (0, "none")] {
        let refused = ends[0].0.modify(QpState::Rts, &from(port));
        assert!(matches!(refused, Err(NicError::Attribute { .. })), "{why}: {refused:?}");
    }
    assert_eq!(sent(&mut ends), [55_555, 55_556], "as before");
    let not_in_rts = Change { src_port: Some(55_558), ..Change::default() };
    assert!(ends[0].0.modify(QpState::Sqd, &not_in_rts).is_err());

    let is_free = |port: u16| std::net::UdpSocket::bind(("127.0.61.5", port)).is_ok();
    assert!(!is_free(55_555) && !is_free(55_556) && is_free(55_558));
    ends[0].0.reset().unwrap();
    assert!(is_free(55_556) && ends[0].0.query().src_port.is_none());
    nic.destroy_qp(ends[1].0.qpn()).unwrap();
    assert!(is_free(55_555));
}

#[test]
fn a_udp_socket_sends_class_and_hops_and_goes_back_to_the_usual_ones() {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
    use std::os::fd::AsRawFd;

    let mut link = UdpLink::open([127, 0, 61, 3].into(), None).unwrap();
    let to = IpAddr::from([127, 0, 61, 4]);
    let socket = std::net::UdpSocket::bind((to, ROCE_PORT)).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    setsockopt(&socket, sockopt::IpRecvTos, &true).unwrap();
    setsockopt(&socket, sockopt::Ipv4RecvTtl, &true).unwrap();
    let fields =
        |traffic_class, hop_limit| Fields { traffic_class, hop_limit, ..Fields::default() };
    let sent = [fields(0, 64), fields(0x68, 64), fields(0x68, 7), fields(0, 64), fields(0, 64)];
    let mut batch = bellpush::nic::soft::link::TxBatch::new(8);
    for (i, fields) in sent.into_iter().enumerate() {
        assert!(batch.push_with(to, fields, |buf| {
            buf[..16].fill(i as u8);
            Some(16)
        }));
    }
    while !batch.is_empty() {
        link.send(0, &mut batch).unwrap();
    }
    for (i, fields) in sent.into_iter().enumerate() {
        let (mut buf, mut control) = ([0; 64], nix::cmsg_space!(u8, i32));
        let mut slices = [std::io::IoSliceMut::new(&mut buf)];
        let got =
            recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::empty())
                .unwrap();
        let (mut class, mut hops) = (None, None);
        for message in got.cmsgs().unwrap() {
            match message {
                ControlMessageOwned::Ipv4Tos(tos) => class = Some(tos),
                ControlMessageOwned::Ipv4Ttl(ttl) => hops = Some(ttl),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(got.bytes, 16);
        assert_eq!((class, hops), (Some(fields.traffic_class), Some(fields.hop_limit.into())));
        assert_eq!(buf[0], i as u8, "in order");
    }
}
