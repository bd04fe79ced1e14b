//! CQEs with the time in them, which is another in a replay.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::play::{PLAIN, read, recorded, replay, same};
use crate::queue_pairs::{Pair, attr, connect, inline, make_qp};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::record::{self, End};
use bellpush::nic::soft::{Cq, CqAttr, CqLayout, Objects, Qp, SoftNic};
use bellpush::nic::{Change, Nic, QpType};
use bellpush::wire::Rkey;
use bellpush::wire::cqe::{CQE_BYTES, CQE_TAIL_OFFSET, CQE_TIMESTAMP, Syndrome};
use bellpush::wire::wqe::{Opcode, SendWr};

/// What no replay's clock says.
fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0x0101_0101_0101_0101);
    NOW.fetch_add(0x0101, Ordering::Relaxed)
}

/// A pair that is recorded, and beside it a queue pair of A's whose CQs have stamps.
struct Bed {
    p: Pair,
    files: [PathBuf; 2],
    _qp: Arc<Qp>,
    cq: Arc<Cq>,
    host: HostQp,
}

impl Bed {
    fn new(dir: &Path) -> Self {
        let (p, files) = recorded(dir, PLAIN);
        let nic = &p.nics[0];
        let memory = HostMem::alloc(nic.queue_bytes(&attr())).unwrap();
        let view = View::new(&memory, 0, memory.len()).unwrap();
        let queues = SoftNic::place(&attr(), &view).unwrap();
        let make = |ring: &View, dbr: &View| {
            let (ring, dbr, uar) = (ring.clone(), dbr.clone(), queues.uar.clone());
            let layout = CqLayout { timestamp: Some(clock), ..CqLayout::default() };
            nic.create_cq_with(&CqAttr { ring, dbr, uar, notify: None }, layout).unwrap()
        };
        let cq = make(&queues.send_cq, &queues.send_cq_dbr);
        let objects = Objects {
            kind: QpType::Rc,
            pd: nic.default_pd().clone(),
            send_cq: cq.clone(),
            recv_cq: Some(make(&queues.recv_cq, &queues.recv_cq_dbr)),
            srq: None,
            uidx: 0,
        };
        let qp = nic.create_with(&attr(), queues, objects).unwrap();
        let (peer, _memory) = make_qp(&p.nics[1], &attr());
        connect(&qp, &peer, &Change::default());
        let host = HostQp::new(&*qp);
        Self { p, files, _qp: qp, cq, host }
    }

    fn write(&mut self, rkey: Rkey) {
        let payload = inline(b"12345678");
        let wr = SendWr::new(Opcode::RdmaWrite).to(self.p.b.buf.at(0), rkey).payload(&payload);
        self.host.send(&wr).unwrap();
        self.p.settle();
    }
}

#[test]
fn a_cq_that_was_resized_has_the_time_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut bed = Bed::new(dir.path());
    let rkey = bed.p.b.buf.mr.rkey;
    bed.write(rkey);
    assert!(bed.host.poll_send().unwrap().is_some());
    let memory = HostMem::alloc(16384).unwrap();
    let ring = View::new(&memory, 0, memory.len()).unwrap();
    bed.cq.resize(ring.clone(), CQE_BYTES).unwrap();
    bed.write(rkey);
    // Behind the entry that says that the ring is another.
    let mut stamp = [0; 8];
    ring.read(2 * CQE_BYTES + CQE_TIMESTAMP.start, &mut stamp).unwrap();
    assert_ne!(stamp, [0; 8]);
    let files = bed.files.clone();
    drop(bed);
    let played = replay(&files[0]).unwrap();
    assert!(same(&played), "{played:#?}");
}

#[test]
fn an_error_has_no_stamp_and_is_compared_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut bed = Bed::new(dir.path());
    let rkey = bed.p.b.buf.mr.rkey;
    bed.write(Rkey(rkey.0 ^ 0x100));
    let cqe = bed.host.poll_send().unwrap().unwrap();
    assert_eq!(Syndrome::from_code(cqe.syndrome), Some(Syndrome::RemoteAccess));
    let files = bed.files.clone();
    drop(bed);
    let bytes = read(&files[0]);
    assert!(same(&record::replay(bytes.clone()).unwrap()));
    // Its body as it was written: the length, zeros, the vendor's code and the syndrome.
    let end = CQE_TAIL_OFFSET;
    let is_body = |part: &[u8]| {
        let zeros = part[1..end - 1].iter().all(|&byte| byte == 0);
        usize::from(part[0]) == end && zeros && part[end] == Syndrome::RemoteAccess as u8
    };
    let places: Vec<_> = bytes.windows(end + 1).enumerate().filter(|it| is_body(it.1)).collect();
    assert_eq!(places.len(), 1);
    let mut changed = bytes.clone();
    changed[places[0].0 + end] = Syndrome::RemoteOp as u8;
    let played = record::replay(changed).unwrap();
    assert!(matches!(played.end, End::Differs(_)), "{played:#?}");
}
