//! Ten thousand queue pairs on a packet link, of which one is active.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::queue_pairs::{self, Buf, attr, inline};
use bellpush::mem::{HostMem, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::link::ShmNet;
use bellpush::nic::soft::{Engine, Qp, SoftConfig, SoftNic};
use bellpush::nic::{Access, Nic, QpAttr, QpState, QueuePair};
use bellpush::wire::wqe::{Opcode, SendWr};

const MANY: usize = 10_000;
/// Queue pairs are spread over so many UAR pages, as a process's are.
const PAGES: usize = 16;

struct Crowd {
    nics: [Arc<SoftNic>; 2],
    engines: Vec<Engine>,
    a: Vec<Arc<Qp>>,
    b: Vec<Arc<Qp>>,
    /// The last queue pair of A, on a page of its own.
    alone: Arc<Qp>,
    buf: Buf,
    now_ns: u64,
    _memory: Arc<HostMem>,
}

impl Crowd {
    fn new(count: usize) -> Self {
        let attr = QpAttr { sq_blocks: 16, rq_wqes: 0, recv_cqes: 0, send_cqes: 16, ..attr() };
        let net = ShmNet::anonymous(true).unwrap();
        let mut engines = Vec::new();
        let nics = [1u8, 2].map(|host| {
            let link = Box::new(net.attach(IpAddr::from([127, 0, 0, host])).unwrap());
            // Ten thousand make a recording that is long.
            let record = if count < 1000 { queue_pairs::recorded::begin(host) } else { None };
            let config = SoftConfig { record, ..SoftConfig::default() };
            let (nic, engine) = SoftNic::manual_on(&config, link).unwrap();
            engines.push(engine);
            nic
        });
        let each = nics[0].queue_bytes(&attr);
        let memory = HostMem::alloc(2 * count * each).unwrap();
        let place = |i: usize| {
            let view = View::new(&memory, i * each, each).unwrap();
            SoftNic::place(&attr, &view).unwrap()
        };
        let pages: Vec<View> = (0..PAGES).map(|i| place(i).uar).collect();
        let make = |nic: &SoftNic, first: usize| -> Vec<Arc<Qp>> {
            (0..count)
                .map(|i| {
                    let mut queues = place(first + i);
                    if i + 1 < count {
                        queues.uar = pages[i % (PAGES - 1)].clone();
                    }
                    nic.create_on(&attr, queues).unwrap()
                })
                .collect()
        };
        let (a, b) = (make(&nics[0], 0), make(&nics[1], count));
        for (a, b) in a.iter().zip(&b) {
            a.connect(b.address()).unwrap();
            b.connect(a.address()).unwrap();
        }
        let buf = Buf::new(&nics[1], 4096, 0, Access::ALL);
        let alone = a[count - 1].clone();
        Self { nics, engines, a, b, alone, buf, now_ns: 0, _memory: memory }
    }

    /// Writes, waits, and returns the median time of one.
    fn ping(&mut self, qp: &Qp, times: usize) -> Duration {
        let mut host = HostQp::new(qp);
        let payload = inline(b"12345678");
        let wr = SendWr::new(Opcode::RdmaWrite).to(self.buf.at(0), self.buf.mr.rkey);
        let wr = wr.payload(&payload);
        let mut took: Vec<Duration> = (0..times)
            .map(|_| {
                host.send(&wr).unwrap();
                let start = Instant::now();
                for _ in 0..1000 {
                    self.now_ns += 1_000;
                    for engine in &mut self.engines {
                        engine.step(self.now_ns);
                    }
                    if let Some(cqe) = host.poll_send().unwrap() {
                        assert!(!cqe.opcode.is_error(), "{cqe:?}");
                        return start.elapsed();
                    }
                }
                panic!("no completion");
            })
            .collect();
        took.sort();
        took[times / 2]
    }
}

#[test]
fn one_active_queue_pair_among_ten_thousand() {
    let alone = {
        let mut crowd = Crowd::new(PAGES);
        let qp = crowd.alone.clone();
        crowd.ping(&qp, 15)
    };
    let mut crowd = Crowd::new(MANY);
    let qp = crowd.alone.clone();
    let own_page = crowd.ping(&qp, 500);
    let shared = crowd.a[0].clone();
    let shared_page = crowd.ping(&shared, 15);
    println!(
        "WRITE of 8 B, posted to complete, both engines on this thread: {alone:?} of {PAGES} queue \
         pairs; of {MANY}: {own_page:?} on a UAR page of its own, {shared_page:?} on one that {} share",
        MANY / (PAGES - 1)
    );
    // Idle ones on other pages cost nothing. (Caches, and whoever else uses the machine.)
    assert!(own_page < alone * 10 + Duration::from_micros(20), "{own_page:?}, alone {alone:?}");
    // Nor do those on its page: 666 looks took more than 10 us by themselves.
    assert!(
        shared_page < alone * 10 + Duration::from_micros(20),
        "{shared_page:?}, alone {alone:?}"
    );
    // All of them work.
    for i in (0..MANY).step_by(97) {
        let qp = crowd.a[i].clone();
        crowd.ping(&qp, 1);
    }
    for qp in crowd.a.iter().chain(&crowd.b) {
        assert_eq!(qp.state(), QpState::Rts);
    }
    assert!(crowd.nics[1].counters().drops.iter().all(|&n| n == 0));
}

/// Of two that ring a register before the engine looks, the later one's word alone is there.
#[test]
fn a_doorbell_that_anothers_has_written_over_is_found() {
    let mut crowd = Crowd::new(PAGES * 40);
    // On one page, the first of them and the last.
    let page = (0..PAGES * 40 - 1).filter(|i| i % (PAGES - 1) == 3);
    let rung: Vec<_> = page.map(|i| crowd.a[i].clone()).collect();
    let mut hosts: Vec<_> =
        [0, rung.len() - 1, rung.len() / 2].map(|i| HostQp::new(&*rung[i])).into_iter().collect();
    let payload = inline(b"12345678");
    let wr = SendWr::new(Opcode::RdmaWrite).to(crowd.buf.at(0), crowd.buf.mr.rkey);
    let wr = wr.payload(&payload);
    for round in 0..20 {
        for host in &mut hosts {
            host.send(&wr).unwrap();
        }
        let mut done = vec![false; hosts.len()];
        for _ in 0..30 {
            crowd.now_ns += 1_000;
            let now = crowd.now_ns;
            for engine in &mut crowd.engines {
                engine.step(now);
            }
            for (done, host) in done.iter_mut().zip(&mut hosts) {
                *done |= host.poll_send().unwrap().is_some();
            }
        }
        assert!(done.iter().all(|&done| done), "{round}: {done:?}");
    }
}
