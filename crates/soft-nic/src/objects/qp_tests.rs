use super::*;
use crate::{InProcess, SoftConfig, SoftNic};
use bellpush_mem::HostMem;
use bellpush_nic::{Inband, Nic, QpAttr};

fn attr() -> QpAttr {
    QpAttr {
        sq_blocks: 64,
        rq_wqes: 0,
        rq_sges: 0,
        send_cqes: 128,
        recv_cqes: 0,
        rnr_retry: 7,
        ack_timeout: 14,
        inband: None,
        blueflame: false,
    }
}

/// Whether it suits alone on its page, and beside another.
fn suits(attr: &QpAttr) -> [bool; 2] {
    let (nic, _engines) = SoftNic::manual(&SoftConfig::new(&InProcess::new())).unwrap();
    let mem = HostMem::alloc(nic.queue_bytes(attr)).unwrap();
    let qp = nic.create(attr, &View::new(&mem, 0, mem.len()).unwrap()).unwrap();
    [true, false].map(|alone| qp.suits(alone))
}

#[test]
fn engines_elsewhere_have_no_largest_ring() {
    for (sq_blocks, is) in [(64, true), (1 << 14, true), (1 << 15, false)] {
        let ring = QpAttr { sq_blocks, send_cqes: 2 * sq_blocks, ..attr() };
        assert_eq!(suits(&ring), [is, false], "{sq_blocks} blocks");
    }
}

#[test]
fn an_in_band_queue_pair_needs_no_page_of_its_own() {
    let slots_of = |slot_bytes| {
        let mem = HostMem::alloc(4 * slot_bytes as usize).unwrap();
        let window = View::new(&mem, 0, mem.len()).unwrap();
        let line = LineFormat::L12S4;
        QpAttr { inband: Some(Inband { window, line, slot_bytes, slots: 4, seq0: 2 }), ..attr() }
    };
    assert_eq!(suits(&slots_of(128)), [true; 2]);
    let largest = (128..).step_by(64).find(|&bytes| !Offload::takes_slots_of(bytes));
    assert_eq!(suits(&slots_of(largest.unwrap())), [false; 2]);
}
