//! Queue pair 1: management datagrams come and go without a queue.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use crate::queue_pairs::packet_nics;
use bellpush::nic::soft::link::{Link, ShmNet, TxBatch};
use bellpush::nic::soft::{DropReason, Engine, SoftConfig, SoftNic};
use bellpush::wire::cm::{GSI_QKEY, GSI_QPN, MAD_BYTES};
use bellpush::wire::roce::{Bth, Deth, Headers, Opcode, Operation, Service};
use bellpush::wire::{Psn, Qpn};

type Came = Arc<Mutex<Vec<(IpAddr, [u8; MAD_BYTES])>>>;

fn listen(nic: &SoftNic) -> Came {
    let came = Came::default();
    let into = came.clone();
    assert!(nic.tell_mads(Box::new(move |from, mad| into.lock().unwrap().push((from, *mad)))));
    came
}

fn step(engines: &mut [Engine]) {
    for now in 0..10 {
        for engine in engines.iter_mut() {
            engine.step(now);
        }
    }
}

fn ip(nic: &SoftNic) -> IpAddr {
    let (bellpush::nic::NicAddress::Ip(address), _) = nic.address() else { panic!() };
    address
}

#[test]
fn datagrams_reach_the_peers_manager() {
    let (nics, mut engines) = packet_nics("", true);
    let came = listen(&nics[1]);
    let mads: Vec<[u8; MAD_BYTES]> = (0..600).map(|i| [i as u8; MAD_BYTES]).collect();
    mads.iter().for_each(|&mad| nics[0].send_mad(ip(&nics[1]), mad).unwrap());
    assert!(!nics[0].has_sent_mads());
    step(&mut engines);
    assert!(nics[0].has_sent_mads());
    let came = came.lock().unwrap();
    assert_eq!(came.len(), mads.len());
    assert!(came.iter().zip(&mads).all(|((from, got), sent)| (*from, got) == (ip(&nics[0]), sent)));
    assert!(!nics[1].tell_mads(Box::new(|_, _| ())), "the first has them");
}

#[test]
fn no_more_wait_than_there_is_room_for() {
    let (nics, _engines) = packet_nics("", true);
    let full = (0..5000).find(|_| nics[0].send_mad(ip(&nics[1]), [0; MAD_BYTES]).is_err());
    assert_eq!(full, Some(1024));
}

#[test]
fn what_is_no_management_datagram_is_dropped() {
    let net = ShmNet::anonymous(true).unwrap();
    let link = net.attach_free().unwrap();
    let to = link.address();
    let (nic, engine) = SoftNic::manual_on(&SoftConfig::default(), Box::new(link)).unwrap();
    let mut peer = net.attach_free().unwrap();
    let mut engines = [engine];
    let mut send = |service, qkey, bytes: usize| {
        let opcode = Opcode::new(service, Operation::SendOnly);
        let mut headers = Headers::new(Bth::new(opcode, Qpn(GSI_QPN), Psn::new(0)));
        headers.ext.deth = (service == Service::Ud).then_some(Deth { qkey, source: Qpn(GSI_QPN) });
        let addresses = bellpush::wire::roce::Addresses::new(peer.address(), to).unwrap();
        let envelope = bellpush::wire::roce::Envelope::new(addresses, peer.src_port());
        let mut batch = TxBatch::new(1);
        batch.push(to, |buf| Some(headers.emit(bytes, buf).finish(Some(&envelope))));
        peer.send(0, &mut batch).unwrap();
        step(&mut engines);
    };
    let drops = |reason: DropReason| {
        nic.counters().drops[DropReason::ALL.iter().position(|&r| r == reason).unwrap()]
    };
    send(Service::Ud, GSI_QKEY, MAD_BYTES);
    assert_eq!(drops(DropReason::NoSuchQp), 1, "without a manager there is no queue pair 1");
    let came = listen(&nic);
    send(Service::Ud, GSI_QKEY, MAD_BYTES);
    send(Service::Ud, GSI_QKEY + 1, MAD_BYTES);
    send(Service::Ud, GSI_QKEY, MAD_BYTES - 4);
    send(Service::Rc, GSI_QKEY, MAD_BYTES);
    let counted = [DropReason::Qkey, DropReason::Length, DropReason::Opcode].map(drops);
    assert_eq!((counted, came.lock().unwrap().len()), ([1, 1, 1], 1));
}
