use std::sync::Arc;

use super::*;
use crate::objects::mkey::Indirect;
use crate::{SoftConfig, SoftNic};
use bellpush_broken_mem::Telling;
use bellpush_mem::{HostMem, View};
use bellpush_nic::queue::HostQp;
use bellpush_nic::{Access, Nic, QpAttr};
use bellpush_wire::roce::{Bth, Headers, Opcode, Service, Tail};
use bellpush_wire::umr::{Part, Translation, Umr};
use bellpush_wire::wqe::Sge;
use bellpush_wire::{Lkey, Psn};

fn attr() -> QpAttr {
    QpAttr {
        sq_blocks: 4,
        rq_wqes: 4,
        rq_sges: 4,
        send_cqes: 4,
        recv_cqes: 4,
        rnr_retry: 7,
        ack_timeout: 14,
        inband: None,
        blueflame: false,
    }
}

/// Its CQE would say the bytes that are left over 4 GiB.
#[test]
fn no_send_is_longer_than_a_message_whatever_its_receive_holds() {
    // One byte more than a message, and one less.
    for (offset, expected) in
        [(MAX_MESSAGE_BYTES, Syndrome::LocalLength), (MAX_MESSAGE_BYTES - 1, Syndrome::LocalProt)]
    {
        let (nic, _engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
        let memory = HostMem::alloc(nic.queue_bytes(&attr())).unwrap();
        let qp = nic.create(&attr(), &View::new(&memory, 0, memory.len()).unwrap()).unwrap();
        let mut host = HostQp::new(&*qp);
        // Of a key that is none: what fits is refused when it is to be written.
        let entry = Sge { addr: Iova(0), lkey: Lkey(1), bytes: MAX_MESSAGE_BYTES };
        host.rq.post(&[entry; 4]).unwrap();
        let operation = Operation::send(Position::Last, Tail::Plain);
        let bth = Bth::new(Opcode::new(Service::Rc, operation), qp.qpn, Psn::new(0));
        let packet = Incoming { headers: &Headers::new(bth), payload: Payload::Bytes(&[1]) };
        let message = Message::Send { offset: offset as usize };
        let mut reassembly = Reassembly { message, ..Reassembly::default() };
        let regions = nic.device.mrs.read();
        let refused =
            reassembly.accept(&qp, Domain::of(&qp, &regions), &packet, Mtu::new(256).unwrap());
        assert!(matches!(refused, Err(Refused::Receive(..))), "{refused:?}");
        let cqe = host.poll_recv().unwrap().unwrap();
        assert_eq!(Syndrome::from_code(cqe.syndrome), Some(expected));
    }
}

#[test]
fn a_receive_is_complete_whose_message_finds_its_key_invalidated() {
    let (nic, _engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
    let memory = HostMem::alloc(nic.queue_bytes(&attr()) + 4096).unwrap();
    let qp = nic.create(&attr(), &View::new(&memory, 4096, memory.len() - 4096).unwrap()).unwrap();
    let user = Domain::of(&qp, &nic.device.mrs.read()).user;
    let mrs = &nic.device.mrs;
    let key = mrs.create_indirect(nic.default_pd(), Indirect::new(1, true), None).unwrap();
    // Another queue pair of the key's is quicker, while the payload is written.
    let others = mrs.clone();
    let tell = Box::new(move || others.read().invalidate(user, key).unwrap());
    let view = View::new(&memory, 0, 4096).unwrap();
    let mr = nic.register(Arc::new(Telling::new(view, tell)), Iova(0), Access::ALL).unwrap();
    let part = Part { addr: Iova(0), lkey: mr.lkey, bytes: 8, stride: 0 };
    let bind = Umr {
        free: Some(false),
        bytes: Some(8),
        translation: Some(Translation { repeat: 1, parts: vec![part] }),
        ..Umr::default()
    };
    mrs.write().update(user, key.0, &bind).unwrap();
    let mut host = HostQp::new(&*qp);
    host.rq.post(&[Sge { addr: Iova(0), lkey: mr.lkey, bytes: 64 }]).unwrap();
    let operation = Operation::send(Position::Only, Tail::Invalidate);
    let bth = Bth::new(Opcode::new(Service::Rc, operation), qp.qpn, Psn::new(0));
    let mut headers = Headers::new(bth);
    headers.ext.ieth = Some(key);
    let packet = Incoming { headers: &headers, payload: Payload::Bytes(&[1]) };
    let (mut reassembly, mtu) = (Reassembly::default(), Mtu::new(256).unwrap());
    let regions = mrs.read();
    let refused = reassembly.accept(&qp, Domain::of(&qp, &regions), &packet, mtu);
    assert_eq!(refused, Err(Refused::Receive(Syndrome::RemoteAccess, Vendor::Mkey)));
    let cqe = host.poll_recv().unwrap().expect("it is not lost");
    assert_eq!(Syndrome::from_code(cqe.syndrome), Some(Syndrome::RemoteInvalReq));
    assert!(!reassembly.is_under_way() && !reassembly.holds_receive());
    // Of a key that is invalid from the start nothing is taken.
    host.rq.post(&[Sge { addr: Iova(0), lkey: mr.lkey, bytes: 64 }]).unwrap();
    let refused = reassembly.accept(&qp, Domain::of(&qp, &regions), &packet, mtu);
    assert!(matches!(refused, Err(Refused::Request(Syndrome::RemoteAccess, _))), "{refused:?}");
    assert!(host.poll_recv().unwrap().is_none());
}
