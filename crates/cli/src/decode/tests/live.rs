//! A recording as it grows.

use std::path::Path;
use std::sync::Arc;

use bellpush::mem::{HostMem, View};
use bellpush::nic::queue::{HostCq, HostSq};
use bellpush::nic::soft::link::ShmNet;
use bellpush::nic::soft::record::Record;
use bellpush::nic::soft::{SoftConfig, SoftNic};
use bellpush::nic::{Access, Nic, QpAttr, QueuePair};
use bellpush::wire::wqe::Flags;

use super::*;

/// What a NIC writes down that sends two WRITEs; the number of its queue pair.
fn recorded(path: &Path) -> u32 {
    let net = ShmNet::anonymous(false).unwrap();
    let (mut made, mut qpn) = (Vec::new(), 0);
    for nth in 0..2 {
        let record = Record { path: path.into(), whole: true, script: None };
        let record = (nth == 0).then_some(record);
        let config = SoftConfig { record, ..SoftConfig::default() };
        let (nic, engine) =
            SoftNic::manual_on(&config, Box::new(net.attach_free().unwrap())).unwrap();
        let attr = QpAttr {
            sq_blocks: 16,
            rq_wqes: 16,
            rq_sges: 1,
            send_cqes: 16,
            recv_cqes: 16,
            rnr_retry: 7,
            ack_timeout: 14,
            inband: None,
            blueflame: false,
        };
        let memory = HostMem::alloc(nic.queue_bytes(&attr)).unwrap();
        let view = View::new(&memory, 0, memory.len()).unwrap();
        let qp = nic.create(&attr, &view).unwrap();
        made.push((nic, engine, qp));
    }
    for (one, other) in [(0, 1), (1, 0)] {
        made[one].2.connect(made[other].2.address()).unwrap();
    }
    let region = HostMem::alloc(4096).unwrap();
    let region = View::new(&region, 0, region.len()).unwrap();
    let mr = made[1].0.register(Arc::new(region), Iova(0), Access::ALL).unwrap();
    let queues = made[0].2.queues();
    qpn = qpn.max(made[0].2.qpn().0);
    let mut sq = HostSq::new(made[0].2.qpn(), queues);
    let mut cq = HostCq::new(&queues.send_cq, &queues.send_cq_dbr);
    let mut now_ns = 0;
    for _ in 0..2 {
        let piece = [Piece::Inline(&[7; 24])];
        let write = SendWr::new(WqeOpcode::RdmaWrite).to(Iova(64), mr.rkey).payload(&piece);
        sq.post(&SendWr { flags: Flags::SIGNALLED, ..write }).unwrap();
        sq.ring().unwrap();
        for _ in 0..4 {
            now_ns += 1_000_000;
            made.iter_mut().for_each(|(_, engine, _)| _ = engine.step(now_ns));
        }
        sq.retire(cq.poll().unwrap().expect("a CQE").wqe_counter);
    }
    qpn
}

#[test]
fn what_comes_piece_by_piece_is_what_comes_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic");
    let qpn = recorded(&path);
    let bytes = std::fs::read(&path).unwrap();
    let whole = items(Kind::Record, &bytes, &Options::default());
    for kind in ["wqe", "cqe", "doorbell", "dbr", "packet"] {
        assert!(whole.iter().any(|item| item.kind == kind), "no {kind}");
    }
    // Without its last byte, which says that the device was closed.
    let cut = items(Kind::Record, &bytes[..bytes.len() - 1], &Options::default());
    let (end, before) = cut.split_last().unwrap();
    assert!(end.kind == "end" && end.summary.contains("the recording stops here"), "{end:?}");
    assert_eq!(before, whole);
    for step in [1, 7, 1000] {
        let (mut live, mut all) = (Live::new(&Options::default(), None), Vec::new());
        for (nth, piece) in bytes.chunks(step).enumerate() {
            assert!(!live.is_closed(), "{nth}");
            let mut each = |item| {
                all.push(item);
                true
            };
            assert!(live.feed(piece, &mut each).unwrap());
        }
        assert!(live.is_closed());
        assert_eq!(all, whole, "{step} bytes at a time");
    }
    // Of one queue pair, and of one that there is not.
    for (qpn, count) in [(qpn, 2), (qpn + 1, 0)] {
        let (mut live, mut wqes) = (Live::new(&Options::default(), Some(qpn)), 0);
        let mut each = |item: Item| {
            assert_ne!(item.kind, "packet");
            wqes += u32::from(item.kind == "wqe");
            true
        };
        live.feed(&bytes, &mut each).unwrap();
        assert_eq!(wqes, count, "{qpn:#x}");
    }
    // Enough is enough, and what is damaged is named by its place in the whole.
    let mut live = Live::new(&Options::default(), None);
    assert!(!live.feed(&bytes, &mut |_| false).unwrap());
    let mut damaged = bytes.clone();
    let end = damaged.len() - 1;
    damaged.truncate(end);
    damaged.push(0x7f);
    let mut live = Live::new(&Options::default(), None);
    live.feed(&damaged[..end], &mut |_| true).unwrap();
    let error = live.feed(&damaged[end..], &mut |_| true).unwrap_err();
    assert!(error.0.starts_with(&format!("byte {end}: ")), "{error}");
}
