//! Two queue pairs, their memory, and engines stepped by hand.
#![allow(dead_code, missing_docs)]

use std::net::IpAddr;
use std::sync::Arc;

use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::gpu_engine::EngineOptions;
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::link::{Faults, Faulty, Link, ShmLink, ShmNet};
use bellpush::nic::soft::offload::Offload;
use bellpush::nic::soft::{CqAttr, Engine, InProcess, Objects, Qp, SoftConfig, SoftNic, Srq};
use bellpush::nic::{
    Access, Change, Connection, Inband, LineFormat, Mr, Nic, QpAttr, QpType, QueuePair,
};
use bellpush::wire::cqe::{Cqe, Syndrome};
use bellpush::wire::wqe::{Piece, SendWr, Sge};
use bellpush::wire::{Iova, Lkey};

/// Registered memory with its view.
pub struct Buf {
    pub view: View,
    pub mr: Mr,
}

impl Buf {
    pub fn new(nic: &SoftNic, bytes: usize, iova: u64, access: Access) -> Self {
        let mem = HostMem::alloc(bytes).unwrap();
        let view = View::new(&mem, 0, bytes).unwrap();
        let mr = nic.register(Arc::new(view.clone()), Iova(iova), access).unwrap();
        Self { view, mr }
    }

    pub fn sge(&self, offset: u64, bytes: u32) -> Sge {
        Sge { addr: Iova(self.mr.iova.0 + offset), lkey: self.mr.lkey, bytes }
    }

    pub fn data(&self, offset: u64, bytes: u32) -> Piece<'static> {
        Piece::Data(self.sge(offset, bytes))
    }

    pub fn at(&self, offset: u64) -> Iova {
        Iova(self.mr.iova.0 + offset)
    }

    pub fn put(&self, offset: usize, bytes: &[u8]) {
        self.view.write(offset, bytes).unwrap();
    }

    pub fn get(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.view.read(offset, &mut out).unwrap();
        out
    }
}

pub fn attr() -> QpAttr {
    QpAttr {
        sq_blocks: 64,
        rq_wqes: 16,
        rq_sges: 4,
        send_cqes: 128,
        recv_cqes: 32,
        rnr_retry: 7,
        ack_timeout: 14,
        inband: None,
        blueflame: false,
    }
}

/// A queue pair with its poster.
pub struct End {
    pub qp: Arc<Qp>,
    pub host: HostQp,
    pub memory: Arc<HostMem>,
    pub buf: Buf,
}

/// Two NICs, each with a queue pair, connected to each other.
pub struct Pair {
    pub nics: [Arc<SoftNic>; 2],
    pub engines: Vec<Engine>,
    pub a: End,
    pub b: End,
    pub now_ns: u64,
    /// Goes after all that writes.
    pub recorded: Check,
}

pub const BUF_BYTES: usize = 128 << 10;
pub const A_IOVA: u64 = 0x10_0000;
pub const B_IOVA: u64 = 0x7000_0000_0000;

pub fn make_qp(nic: &SoftNic, attr: &QpAttr) -> (Arc<Qp>, Arc<HostMem>) {
    let memory = HostMem::alloc(nic.queue_bytes(attr)).unwrap();
    let view = View::new(&memory, 0, memory.len()).unwrap();
    (nic.create(attr, &view).unwrap(), memory)
}

/// A queue pair of any type, with CQs that others could share, and receives from an SRQ if there
/// is one.
pub fn make_typed(
    nic: &SoftNic,
    kind: QpType,
    attr: &QpAttr,
    srq: Option<Arc<Srq>>,
) -> (Arc<Qp>, Arc<HostMem>) {
    make_at(nic, (kind, attr), srq, None)
}

/// The same, which rings at a page of another's if one is given.
pub fn make_at(
    nic: &SoftNic,
    (kind, attr): (QpType, &QpAttr),
    srq: Option<Arc<Srq>>,
    page: Option<View>,
) -> (Arc<Qp>, Arc<HostMem>) {
    let memory = HostMem::alloc(nic.queue_bytes(attr)).unwrap();
    let view = View::new(&memory, 0, memory.len()).unwrap();
    let mut queues = SoftNic::place(attr, &view).unwrap();
    queues.uar = page.unwrap_or(queues.uar);
    let cq = |ring: &View, dbr: &View| {
        let (ring, dbr, uar) = (ring.clone(), dbr.clone(), queues.uar.clone());
        nic.create_cq(&CqAttr { ring, dbr, uar, notify: None }).unwrap()
    };
    let objects = Objects {
        kind,
        pd: nic.default_pd().clone(),
        send_cq: cq(&queues.send_cq, &queues.send_cq_dbr),
        recv_cq: Some(cq(&queues.recv_cq, &queues.recv_cq_dbr)),
        srq,
        uidx: 0,
    };
    (nic.create_with(attr, queues, objects).unwrap(), memory)
}

fn typed_end(nic: &SoftNic, kind: QpType, attr: &QpAttr, iova: u64) -> End {
    let (qp, memory) = make_typed(nic, kind, attr, None);
    let host = HostQp::new(&*qp);
    End { qp, host, memory, buf: Buf::new(nic, BUF_BYTES, iova, Access::ALL) }
}

fn end(nic: &SoftNic, attr: &QpAttr, iova: u64) -> End {
    let (qp, memory) = make_qp(nic, attr);
    let host = HostQp::new(&*qp);
    End { qp, host, memory, buf: Buf::new(nic, BUF_BYTES, iova, Access::ALL) }
}

impl Pair {
    pub fn new(attr: &QpAttr) -> Self {
        Self::with(attr, &self::attr())
    }

    pub fn with(attr_a: &QpAttr, attr_b: &QpAttr) -> Self {
        Self::on(&InProcess::new(), attr_a, attr_b)
    }

    pub fn on(link: &Arc<InProcess>, attr_a: &QpAttr, attr_b: &QpAttr) -> Self {
        let mut engines = Vec::new();
        let offload = offload();
        let nics = [0, 1].map(|_| {
            let config = SoftConfig { offload: offload.clone(), ..SoftConfig::new(link) };
            let (nic, e) = SoftNic::manual(&config).unwrap();
            engines.extend(e);
            nic
        });
        let a = end(&nics[0], attr_a, A_IOVA);
        let b = end(&nics[1], attr_b, B_IOVA);
        a.qp.connect(b.qp.address()).unwrap();
        b.qp.connect(a.qp.address()).unwrap();
        Self { nics, engines, a, b, now_ns: 0, recorded: Check::new() }
    }

    /// The same on a packet link in memory, with the faults that are named. None (an empty text): without ICRC as well, so
    /// that payload goes from and to its place.
    pub fn on_packets(faults: &str, attr_a: &QpAttr, attr_b: &QpAttr, with: &Change) -> Self {
        Self::of(packet_nics(faults, !faults.is_empty()), attr_a, attr_b, with)
    }

    /// The same on NICs that are there.
    pub fn of(
        (nics, engines): ([Arc<SoftNic>; 2], Vec<Engine>),
        attr_a: &QpAttr,
        attr_b: &QpAttr,
        with: &Change,
    ) -> Self {
        let a = end(&nics[0], attr_a, A_IOVA);
        let b = end(&nics[1], attr_b, B_IOVA);
        connect(&a.qp, &b.qp, with);
        Self { nics, engines, a, b, now_ns: 0, recorded: Check::new() }
    }

    /// Queue pairs of any type on a packet link in memory.
    pub fn typed(kind: QpType, faults: &str, attr: &QpAttr, with: &Change) -> Self {
        let (nics, engines) = packet_nics(faults, !faults.is_empty());
        let a = typed_end(&nics[0], kind, attr, A_IOVA);
        let b = typed_end(&nics[1], kind, attr, B_IOVA);
        connect(&a.qp, &b.qp, with);
        Self { nics, engines, a, b, now_ns: 0, recorded: Check::new() }
    }

    /// Steps, going straight to the next time at which something is to happen, until `done` or
    /// until `ns` have passed. Says whether it was done.
    pub fn run_until(&mut self, ns: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now_ns + ns;
        while self.now_ns < end {
            let now = self.now_ns;
            let progress: Vec<_> = self.engines.iter_mut().map(|e| e.step(now)).collect();
            if done(self) {
                return true;
            }
            let busy = progress.iter().any(|p| p.is_busy());
            let next = progress.iter().filter_map(|p| p.next_ns).min();
            self.now_ns = match next {
                Some(at) if !busy => at.max(now + 1_000).min(end),
                None if !busy => end,
                _ => now + 1_000,
            };
        }
        done(self)
    }

    /// One step of every engine; says whether any was busy.
    pub fn step(&mut self) -> bool {
        self.now_ns += 1_000;
        let now = self.now_ns;
        self.engines.iter_mut().map(|e| e.step(now).is_busy()).fold(false, |a, b| a | b)
    }

    /// Steps until nothing is left to do at once.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the engines do not come to rest");
    }

    /// Steps for a while, over pauses.
    pub fn run_for(&mut self, ns: u64) {
        let end = self.now_ns + ns;
        while self.now_ns < end {
            self.step();
        }
    }

    /// Posts at A, settles, and takes A's completions.
    pub fn send(&mut self, wr: &SendWr<'_>) -> Vec<Cqe> {
        self.a.host.send(wr).unwrap();
        self.settle();
        self.sent()
    }

    pub fn sent(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.a.host.poll_send().unwrap()).collect()
    }

    pub fn received(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.b.host.poll_recv().unwrap()).collect()
    }
}

/// Whether NICs get the engine of `kernels/engine/engine.cuh`. The program says so, in a constant of its root:
/// a suite that another program takes in then runs on that one's engine, whatever the two are called.
pub const ON_GPU_ENGINE: bool = match crate::ENGINE.as_bytes() {
    b"cpu" | b"adversary" | b"recorded" => false,
    b"kernel" => true,
    _ => panic!("ENGINE is \"cpu\", \"kernel\", \"adversary\" or \"recorded\""),
};

/// That engine, stepped with the NIC, or none: the CPU's.
pub fn offload() -> Option<Arc<Offload>> {
    println!("engine: {}", crate::ENGINE);
    ON_GPU_ENGINE.then(|| stepped_engine(2, 1))
}

/// An engine that looks at everything twice with every step.
pub fn stepped_engine(blocks: u32, threads: u32) -> Arc<Offload> {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let options = EngineOptions { blocks, threads, rounds: Some(2), ..EngineOptions::new(&gpu) };
    bellpush::gpu_engine::open(&gpu, &[], options).unwrap()
}

/// Two NICs on a packet link in memory, each with its engine.
pub fn packet_nics(faults: &str, icrc: bool) -> ([Arc<SoftNic>; 2], Vec<Engine>) {
    packet_nics_over(icrc, |host, link| match faults {
        "" => Box::new(link),
        _ => {
            let mut faults: Faults = faults.parse().unwrap();
            faults.seed += u64::from(host); // the two directions differ
            Box::new(Faulty::new(link, faults).unwrap())
        }
    })
}

/// The same over what `wrap` makes of each NIC's end of the link.
pub fn packet_nics_over(
    icrc: bool,
    mut wrap: impl FnMut(u8, ShmLink) -> Box<dyn Link>,
) -> ([Arc<SoftNic>; 2], Vec<Engine>) {
    let net = ShmNet::anonymous(icrc).unwrap();
    let mut engines = Vec::new();
    let nics = [1u8, 2].map(|host| {
        let link = wrap(host, net.attach(IpAddr::from([127, 0, 0, host])).unwrap());
        let record = recorded::begin(host);
        let config = SoftConfig { seed: Some(host.into()), record, ..SoftConfig::default() };
        let (nic, engine) = SoftNic::manual_on(&config, link).unwrap();
        engines.push(engine);
        nic
    });
    (nics, engines)
}

pub use recorded::Check;

/// Recordings of packet NICs, in a program whose engine is "recorded": they are played when a [`Pair`] of them ends, and
/// make no difference.
pub mod recorded {
    use std::cell::RefCell;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use bellpush::nic::soft::record::{End, Record, RecordingError, replay};

    thread_local! {
        /// Those of no pair are played when the test's thread ends.
        static BEGUN: RefCell<Check> = const { RefCell::new(Check(Vec::new())) };
    }

    pub fn begin(host: u8) -> Option<Record> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if crate::ENGINE != "recorded" {
            return None;
        }
        let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("bellpush-record-{process}-{next}-{host}"));
        BEGUN.with_borrow_mut(|begun| begun.0.push(path.clone()));
        // One end has its payload whole, the other has hashes.
        Some(Record { path, whole: host == 1, script: None })
    }

    /// Plays recordings when it is dropped.
    pub struct Check(Vec<PathBuf>);

    impl Check {
        /// Of the NICs that this thread has made since the last.
        pub fn new() -> Self {
            BEGUN.replace(Self(Vec::new()))
        }
    }

    impl Drop for Check {
        fn drop(&mut self) {
            for path in self.0.drain(..) {
                let read = std::fs::read(&path).map_err(RecordingError::from);
                let played = read.and_then(replay);
                let _ = std::fs::remove_file(&path);
                if std::thread::panicking() {
                    continue;
                }
                let played = played.unwrap();
                assert!(!matches!(played.end, End::Differs(_)), "{played:#?}");
            }
        }
    }
}

/// Connects two queue pairs with each other; `with` says what is not as usual.
pub fn connect(a: &Qp, b: &Qp, with: &Change) {
    let (to_a, to_b) = (a.address(), b.address());
    for (qp, local, peer) in [(a, to_a, to_b), (b, to_b, to_a)] {
        let mut connection = Connection::new(local, peer);
        let given = &mut connection.with;
        given.access = with.access.or(given.access);
        given.path_mtu = with.path_mtu.or(given.path_mtu);
        given.max_rd_atomic = with.max_rd_atomic.or(given.max_rd_atomic);
        given.max_dest_rd_atomic = with.max_dest_rd_atomic.or(given.max_dest_rd_atomic);
        given.min_rnr_timer = with.min_rnr_timer.or(given.min_rnr_timer);
        given.timeout = with.timeout.or(given.timeout);
        given.retry_cnt = with.retry_cnt.or(given.retry_cnt);
        given.rnr_retry = with.rnr_retry.or(given.rnr_retry);
        given.qkey = with.qkey.or(given.qkey);
        qp.connect_with(&connection).unwrap();
    }
}

pub fn inline(bytes: &[u8]) -> [Piece<'_>; 1] {
    [Piece::Inline(bytes)]
}

pub fn bad_key() -> Lkey {
    Lkey(0x00de_ad01)
}

pub fn syndromes(cqes: &[Cqe]) -> Vec<Option<Syndrome>> {
    cqes.iter().map(|c| Syndrome::from_code(c.syndrome)).collect()
}

pub fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|i| ((i * 31 + seed * 17) >> 2 ^ i) as u8).collect()
}

pub fn inband(line: LineFormat, slots: u32, slot_bytes: u32, seq0: u32) -> Inband {
    let mem = HostMem::alloc((slots * slot_bytes) as usize).unwrap();
    let window = View::new(&mem, 0, mem.len()).unwrap();
    Inband { window, slot_bytes, slots, line, seq0 }
}
