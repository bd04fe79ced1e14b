use bellpush_mem::{Dma, HostMem, View};
use bellpush_wire::roce::{Bth, Deth, Operation, ROCE_PORT, Reth, Service};
use bellpush_wire::{Iova, Psn, Qpn, Rkey};

use super::*;
use crate::link::{LinkCounters, LinkError, Received, Shared, ShmLink, ShmNet};

const HEAD: usize = MAX_HEADER_BYTES;
const ADDRESS: [u8; 4] = [127, 0, 0, 1];

/// A link with one packet, whose sender changes its beginning as soon as that was copied out. It fails on what is built
/// on it, once that is filled.
struct Changing {
    memory: View,
    bytes: usize,
}

impl Link for Changing {
    fn address(&self) -> IpAddr {
        ADDRESS.into()
    }

    fn mtu(&self) -> usize {
        MAX_PACKET_BYTES
    }

    fn src_port(&self) -> u16 {
        ROCE_PORT
    }

    fn carries(&self) -> Carries {
        Carries::ALL
    }

    fn has_icrc(&self) -> bool {
        false
    }

    fn is_in_place(&self) -> bool {
        true
    }

    fn send(&mut self, _: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        assert!(batch.is_empty(), "what was built on the link is sent there");
        Ok(0)
    }

    fn build(
        &mut self,
        _: IpAddr,
        _: &Fields,
        packet: Apart<'_>,
        fill: &mut dyn FnMut(Room<'_>) -> bool,
    ) -> Result<Built, LinkError> {
        assert!(fill(Room::Bytes(&mut vec![0; packet.payload])));
        Err(LinkError::Port { port: 1 })
    }

    fn recv(
        &mut self,
        _: u64,
        _: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        let mut whole = vec![0; self.bytes];
        self.memory.read(0, &mut whole)?;
        each(&Received { envelope: envelope(), bytes: &whole, checked: false });
        Ok(1)
    }

    fn recv_in_place(
        &mut self,
        _: u64,
        _: usize,
        each: &mut dyn FnMut(&InPlace<'_>),
    ) -> Result<usize, LinkError> {
        let mut head = [0; HEAD];
        self.memory.read(0, &mut head)?;
        self.memory.fill(0, HEAD, 0xff)?;
        let shared = Some(Shared::new(&self.memory, 0, self.bytes));
        each(&InPlace { envelope: &envelope(), head: &head, shared, checked: false });
        Ok(1)
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    fn describe(&self) -> String {
        "a packet".into()
    }
}

fn envelope() -> Envelope {
    let addresses = Addresses::new([127, 0, 0, 2].into(), ADDRESS.into());
    Envelope::new(addresses.unwrap(), ROCE_PORT)
}

/// What comes of a packet of an operation: its headers, the bytes of it and of its payload that are private, and the
/// payload.
fn taken(opcode: Opcode, whole: bool) -> (Headers, Vec<u8>, Option<Vec<u8>>, Vec<u8>) {
    let mut headers = Headers::new(Bth::new(opcode, Qpn(5), Psn::new(9)));
    let set = opcode.extensions();
    headers.ext.reth = set.reth.then_some(Reth { addr: Iova(1), rkey: Rkey(2), bytes: 3 });
    headers.ext.deth = set.deth.then_some(Deth { qkey: 4, source: Qpn(6) });
    let memory = HostMem::alloc(1 << 13).unwrap();
    let memory = View::new(&memory, 0, 1 << 13).unwrap();
    let mut packet = vec![0; MAX_PACKET_BYTES];
    let mut frame = headers.emit(1001, &mut packet);
    frame.payload_mut().iter_mut().zip(0u32..).for_each(|(byte, i)| *byte = (i * 7) as u8);
    let bytes = frame.finish(None);
    memory.write(0, &packet[..bytes]).unwrap();
    headers.bth.pad = 3;
    let link = Box::new(Changing { memory, bytes });
    let (counters, events) = (Arc::default(), Arc::new(Events::new(None, None)));
    let mut port =
        Port::new((link, whole), Arc::new(AtomicBool::new(true)), counters, events, None);
    let mut got = None;
    let came = port.receive(|arrived| {
        let Incoming { headers, payload } = *arrived.packet;
        let to = HostMem::alloc(4096).unwrap();
        let to = View::new(&to, 0, 4096).unwrap();
        payload.write_to(&to, 0).unwrap();
        let mut placed = vec![0; payload.len()];
        to.read(0, &mut placed).unwrap();
        let private = match payload {
            Payload::Bytes(bytes) => Some(bytes.to_vec()),
            Payload::Shared(_) => None,
        };
        got = Some((*headers, arrived.bytes.to_vec(), private, placed));
    });
    assert_eq!(came, 1);
    let (got, private, payload, placed) = got.unwrap();
    assert_eq!(got, headers, "what was checked");
    assert_eq!(private, packet[..private.len()], "as it was when it was checked");
    (got, private, payload, placed)
}

#[test]
fn what_a_sender_changes_after_the_check_is_payload_at_most() {
    let sent: Vec<u8> = (0..1001u32).map(|i| (i * 7) as u8).collect();
    for operation in [Operation::SendMiddle, Operation::WriteOnly, Operation::ReadResponseMiddle] {
        let (headers, private, payload, placed) = taken(Opcode::rc(operation), false);
        assert_eq!((private.len(), payload), (HEAD, None), "{operation:?}");
        // Its own sender's, who may have sent that at once.
        let changed = HEAD - headers.bytes();
        assert_eq!(placed[..changed], vec![0xff; changed]);
        assert_eq!(placed[changed..], sent[changed..]);
    }
}

#[test]
fn what_somebody_looks_into_is_private() {
    let sent: Vec<u8> = (0..1001u32).map(|i| (i * 7) as u8).collect();
    let datagram = Opcode::new(Service::Ud, Operation::SendOnly);
    let rc = [Operation::SendFirst, Operation::SendOnly].map(Opcode::rc);
    let write = (Opcode::rc(Operation::WriteOnly), true); // under an adversary
    for (opcode, whole) in [(rc[0], false), (rc[1], false), (datagram, false), write] {
        let (headers, private, payload, placed) = taken(opcode, whole);
        assert_eq!(private.len(), headers.bytes() + 1001 + 3 + ICRC_BYTES, "{opcode:?}");
        assert_eq!((payload.as_ref(), &placed), (Some(&sent), &sent));
    }
}

/// A port on a link, whose packets go at once.
fn port_on(link: ShmLink) -> Port {
    let (counters, events) = (Arc::default(), Arc::new(Events::new(None, None)));
    let enabled = Arc::new(AtomicBool::new(true));
    Port::new((Box::new(link), false), enabled, counters, events, None)
}

fn send(port: &mut Port, to: IpAddr, psn: u32, bytes: usize) {
    let bth = Bth::new(Opcode::rc(Operation::WriteMiddle), Qpn(5), Psn::new(psn));
    let route = Route { to, fields: Fields::default() };
    let fill = |room: &mut Room<'_>| room.put(0, &vec![psn as u8; bytes]);
    port.send(&route, &Headers::new(bth), bytes, fill).unwrap();
}

/// A link that fails on a packet that is filled has lost it: it counts as an error, and as no packet.
#[test]
fn a_packet_that_is_lost_while_it_is_built_is_not_counted_as_sent() {
    let memory = HostMem::alloc(64).unwrap();
    let link = Changing { memory: View::new(&memory, 0, 64).unwrap(), bytes: 64 };
    let (counters, events): (Arc<Live>, _) = (Arc::default(), Arc::new(Events::new(None, None)));
    let enabled = Arc::new(AtomicBool::new(true));
    let mut port = Port::new((Box::new(link), false), enabled, counters.clone(), events, None);
    port.begin(0);
    send(&mut port, [127, 0, 0, 2].into(), 1, 1000);
    port.flush();
    let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((of(&counters.tx_packets), of(&counters.tx_bytes)), (0, 0));
    assert_eq!(of(&counters.link_errors), 1);
}

#[test]
fn long_packets_do_not_overtake_short_ones() {
    let net = ShmNet::anonymous(false).unwrap();
    let [mut a, mut b] = [(); 2].map(|()| port_on(net.attach_free().unwrap()));
    let (to, mut sent) = (b.address, 0);
    let mut got = Vec::new();
    // More at a time than the ring takes, too.
    for count in [1, 2, 3, 200, 1] {
        for _ in 0..count {
            send(&mut a, to, sent, [4096, 8, 8, 600, 512, 511][sent as usize % 6]);
            sent += 1;
        }
        let before = got.len();
        while got.len() - before < count {
            a.flush();
            b.receive(|arrived| got.push(arrived.packet.headers.bth.psn.value()));
        }
    }
    assert!(got.iter().copied().eq(0..sent), "{got:?}");
}

#[test]
fn a_packet_that_is_built_in_place_wakes_whoever_rests() {
    let net = ShmNet::anonymous(false).unwrap();
    let (link, other) = (net.attach_free().unwrap(), net.attach_free().unwrap());
    let (rest, mut port) = (other.rest().unwrap(), port_on(link));
    let most = std::time::Duration::from_secs(10);
    let came = std::thread::scope(|scope| {
        let rests = scope.spawn(|| rest.wait(most).unwrap());
        std::thread::sleep(most / 100); // one that comes later finds the packet without a wake
        let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn(5), Psn::new(1));
        let route = Route { to: other.address(), fields: Fields::default() };
        let fill = |room: &mut Room<'_>| room.put(0, &[7; 1000]);
        port.send(&route, &Headers::new(bth), 1000, fill).unwrap();
        port.flush();
        rests.join().unwrap()
    });
    assert!(came, "it was not woken");
}
