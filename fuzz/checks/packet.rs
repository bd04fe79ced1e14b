//! Any bytes, as what UDP carries and as an IP packet: they are refused, or they are understood in
//! full, so that what is emitted from the understanding is understood in the same way.

use std::net::Ipv4Addr;

use bellpush::wire::roce::{
    Addresses, BTH_BYTES, Envelope, ICRC_BYTES, MAX_IP_UDP_BYTES, MAX_PACKET_BYTES, Packet,
};

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let addresses = Addresses::V4 { src: Ipv4Addr::LOCALHOST, dst: Ipv4Addr::BROADCAST };
    udp(data, &Envelope::new(addresses, 7));
    if let Ok((envelope, payload)) = Envelope::parse(data) {
        let mut head = [0; MAX_IP_UDP_BYTES];
        let n = envelope.emit(&[payload], &mut head);
        let again = [&head[..n], payload].concat();
        assert_eq!(Envelope::parse(&again), Ok((envelope, payload)));
        udp(payload, &envelope);
    }
}

fn udp(data: &[u8], envelope: &Envelope) {
    if data.len() <= MAX_PACKET_BYTES {
        let whole = Packet::check(data, envelope).is_ok();
        assert!(!whole || data.len() >= BTH_BYTES + ICRC_BYTES);
    }
    let Ok(packet) = Packet::parse(data) else { return };
    let mut buf = [0xa5; MAX_PACKET_BYTES];
    let mut frame = packet.headers.emit(packet.payload.len(), &mut buf);
    frame.payload_mut().copy_from_slice(packet.payload);
    let n = frame.finish(Some(envelope));
    assert!(buf[n..].iter().all(|&b| b == 0xa5), "written behind the packet");
    assert_eq!(Packet::check(&buf[..n], envelope), Ok(()));
    assert_eq!((n, Packet::parse(&buf[..n])), (data.len(), Ok(packet)));
}
