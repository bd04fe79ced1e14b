//! What `--nic mlx5_0` rests on, on a device: where queues lie, device memory, regions, connections,
//! and what is refused how.
//!
//! `BELLPUSH_TEST_NIC` names the device; without it one test runs all others on the software device,
//! `bellpush run -- …`, and the others pass.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use self::machine::doctor;
use crate::preloaded;
use bellpush::collective::Member;
use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::mem::{Dma, HostMem, MemError, View};
use bellpush::nic::mlx5::{DeviceName, Mlx5Error, Mlx5Nic, devices};
use bellpush::nic::queue::HostQp;
use bellpush::nic::{
    Access, Mr, Nic, NicAddress, NicError, Order, QpAddress, QpAttr, QpState, QueueMemory,
    QueuePair,
};
use bellpush::transport::{
    CompareSwap, Endpoint, FetchAdd, Local, Memory, Options, Put, Remote, Signal,
};
use bellpush::wire::cqe::CqeOpcode;
use bellpush::wire::wqe::{Opcode, Operands, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Lkey, Qpn};

#[path = "mlx5_machine.rs"]
mod machine;

const WAIT: Duration = Duration::from_secs(10);

fn name() -> Option<DeviceName> {
    std::env::var("BELLPUSH_TEST_NIC").ok().map(|name| name.parse().expect("a device's name"))
}

fn device() -> Option<Arc<Mlx5Nic>> {
    name().map(|name| Mlx5Nic::open(&name).unwrap_or_else(|e| panic!("{e}")))
}

fn attr() -> QpAttr {
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

struct End {
    qp: Arc<dyn QueuePair>,
    host: HostQp,
    memory: View,
    buf: View,
    mr: Mr,
}

fn view(bytes: usize) -> View {
    View::new(&HostMem::alloc(bytes).unwrap(), 0, bytes).unwrap()
}

fn end(nic: &dyn Nic, attr: &QpAttr) -> End {
    let memory = view(nic.queue_bytes(attr));
    let qp = nic.create_qp(attr, memory.clone().into()).unwrap_or_else(|e| panic!("{e}"));
    let buf = view(1 << 16);
    let mr = nic.register(Arc::new(buf.clone()), Iova(0x5000), Access::ALL).unwrap();
    End { host: HostQp::new(&*qp), qp, memory, buf, mr }
}

fn pair(nic: &dyn Nic) -> (End, End) {
    let (a, b) = (end(nic, &attr()), end(nic, &attr()));
    a.qp.connect(b.qp.address()).unwrap();
    b.qp.connect(a.qp.address()).unwrap();
    (a, b)
}

impl End {
    fn sge(&self, offset: u64, bytes: u32) -> Sge {
        Sge { addr: Iova(self.mr.iova.0 + offset), lkey: self.mr.lkey, bytes }
    }
}

fn refused(result: Result<Arc<dyn QueuePair>, NicError>) -> String {
    match result {
        Err(error) => error.to_string(),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn queues_lie_in_the_memory_given_and_the_register_does_not() {
    let Some(nic) = device() else { return };
    for (sq_blocks, rq_wqes, rq_sges, send_cqes, recv_cqes) in
        [(64, 16, 4, 128, 32), (64, 0, 0, 128, 0), (1024, 64, 1, 2048, 64), (32768, 0, 0, 65536, 0)]
    {
        let attr = QpAttr { sq_blocks, rq_wqes, rq_sges, send_cqes, recv_cqes, ..attr() };
        let end = end(&*nic, &attr);
        let (q, given) = (end.qp.queues(), &end.memory);
        let mut parts = vec![
            (q.sq.addr(), q.sq.len(), sq_blocks as usize * 64),
            (q.dbr.addr(), q.dbr.len(), 8),
            (q.send_cq.addr(), q.send_cq.len(), send_cqes as usize * 64),
            (q.send_cq_dbr.addr(), q.send_cq_dbr.len(), 8),
        ];
        if rq_wqes > 0 {
            parts.push((q.rq.addr(), q.rq.len(), (rq_wqes * rq_sges * 16) as usize));
            parts.push((q.recv_cq.addr(), q.recv_cq.len(), recv_cqes as usize * 64));
            parts.push((q.recv_cq_dbr.addr(), q.recv_cq_dbr.len(), 8));
            assert_eq!(1 << q.rq_stride_log, rq_sges * 16);
        }
        for &(addr, len, wanted) in &parts {
            assert_eq!(len, wanted);
            assert!(addr >= given.addr() && addr + len as u64 <= given.addr() + given.len() as u64);
        }
        parts.sort_unstable();
        for two in parts.windows(2) {
            assert!(two[0].0 + two[0].1 as u64 <= two[1].0, "{parts:x?} overlap");
        }
        assert!(q.uar.mem().is_device() && !q.sq.mem().is_device());
        assert_eq!((q.order, end.qp.state()), (Order::Strict, QpState::Reset));
    }
}

#[test]
fn sends_land_in_receives_whatever_their_size() {
    let Some(nic) = device() else { return };
    let (mut a, mut b) = pair(&*nic);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    // Short ones as well: libmlx5 would have had them scattered into the CQE.
    for (round, bytes) in [1u32, 8, 31, 32, 33, 64, 5000].into_iter().cycle().take(300).enumerate()
    {
        let data: Vec<u8> = (0..bytes).map(|i| (i + round as u32 * 7) as u8).collect();
        a.buf.write(0, &data).unwrap();
        b.host.rq.post(&[b.sge(64, 20), b.sge(1000, 6000)]).unwrap();
        let payload = [Piece::Data(a.sge(0, bytes))];
        a.host.send(&SendWr::new(Opcode::Send).payload(&payload)).unwrap();
        let received = b.host.wait_recv(WAIT).unwrap();
        assert_eq!((received.opcode, received.byte_cnt), (CqeOpcode::RespSend, bytes));
        assert_eq!(a.host.wait_send(WAIT).unwrap().opcode, CqeOpcode::Req);
        let (mut got, first) = (vec![0; bytes as usize], (bytes as usize).min(20));
        b.buf.read(64, &mut got[..first]).unwrap();
        b.buf.read(1000, &mut got[first..]).unwrap();
        assert!(got == data, "{bytes} bytes in round {round}");
    }
}

#[test]
fn a_read_of_few_bytes_lands_in_memory() {
    let Some(nic) = device() else { return };
    let (mut a, b) = pair(&*nic);
    b.buf.write(10, b"bellpush").unwrap();
    let payload = [Piece::Data(a.sge(3, 8))];
    let from = Iova(b.mr.iova.0 + 10);
    a.host.send(&SendWr::new(Opcode::RdmaRead).to(from, b.mr.rkey).payload(&payload)).unwrap();
    assert_eq!(a.host.wait_send(WAIT).unwrap().opcode, CqeOpcode::Req);
    let mut got = [0; 8];
    a.buf.read(3, &mut got).unwrap();
    assert_eq!(&got, b"bellpush");
}

#[test]
fn device_memory_is_a_zero_based_window_that_a_wqe_gathers_from() {
    let Some(nic) = device() else { return };
    let (mut a, b) = pair(&*nic);
    let dm = nic.alloc_dm(4096).unwrap().expect("the software device has some");
    assert_eq!((dm.mr.iova, dm.mr.bytes, dm.view.len()), (Iova(0), 4096, 4096));
    assert!(dm.view.mem().is_device());
    for (at, n) in [(0u64, 64u32), (512, 1000), (4092, 4)] {
        let data: Vec<u8> = (0..n).map(|i| (i * 3 + 1) as u8).collect();
        dm.view.write(at as usize, &data).unwrap();
        let payload = [Piece::Data(Sge { addr: Iova(at), lkey: dm.mr.lkey, bytes: n })];
        let to = Iova(b.mr.iova.0 + 7);
        a.host.send(&SendWr::new(Opcode::RdmaWrite).to(to, b.mr.rkey).payload(&payload)).unwrap();
        assert_eq!(a.host.wait_send(WAIT).unwrap().opcode, CqeOpcode::Req, "{n} bytes at {at}");
        let mut got = vec![0; n as usize];
        b.buf.read(7, &mut got).unwrap();
        assert!(got == data, "{n} bytes at {at}");
    }
    // One byte too far is the NIC's to refuse.
    let payload = [Piece::Data(Sge { addr: Iova(4093), lkey: dm.mr.lkey, bytes: 4 })];
    a.host
        .send(&SendWr::new(Opcode::RdmaWrite).to(b.mr.iova, b.mr.rkey).payload(&payload))
        .unwrap();
    assert_eq!(a.host.wait_send(WAIT).unwrap().opcode, CqeOpcode::ReqErr);
}

/// Windows come and go many times over what the device has; when there is no more, the message says
/// how much there is.
#[test]
fn device_memory_comes_back_and_its_end_is_told() {
    let Some(nic) = device() else { return };
    let before = nic.alloc_dm(64 << 10).unwrap().expect("the software device has some");
    for _ in 0..100 {
        let dm = nic.alloc_dm(64 << 10).unwrap().expect("as before");
        nic.deregister(dm.mr).unwrap();
        drop(dm.view); // the memory itself goes with its last view
    }
    match nic.alloc_dm(1 << 40) {
        Err(NicError::Device(why)) => match why.downcast_ref() {
            Some(&Mlx5Error::DeviceMemory { bytes, max, .. }) => {
                assert!(bytes == 1 << 40 && max >= 128 << 10, "{max}");
            }
            _ => panic!("{why}"),
        },
        other => panic!("{other:?}"),
    }
    nic.deregister(before.mr).unwrap();
    assert!(matches!(nic.deregister(before.mr), Err(NicError::NoSuchRegion(_))), "twice");
}

#[test]
fn what_a_device_cannot_be_opened_for_is_told_in_one_line() {
    let Some(name) = name() else { return };
    let open = |text: String| match Mlx5Nic::open(&text.parse().unwrap()) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{text} opened"),
    };
    assert!(devices().unwrap().contains(&name.device));
    let none = open("mlx5_99".into());
    assert!(none.contains("mlx5_99") && none.contains(&name.device), "{none}");
    assert!(open(format!("{}:200", name.device)).contains("port 200"));
    assert!(open(format!("{}:{}:255", name.device, name.port)).contains("GID 255"));
    for line in [none, open(format!("{}:200", name.device))] {
        assert_eq!(line.lines().count(), 1);
    }
}

/// Runs one test of this program by itself, with variables and perhaps a doctored machine; whether it
/// is that run.
fn alone(test: &str, variables: &[(&str, &str)], object: Option<&Path>) -> bool {
    const MARK: &str = "BELLPUSH_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("mlx5::{test}")])
        .env(MARK, "1")
        .envs(variables.iter().copied());
    if let Some(object) = object {
        let others = std::env::var("LD_PRELOAD").unwrap_or_default();
        command.env("LD_PRELOAD", format!("{}:{others}", object.display()));
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// libmlx5 takes the size of CQEs from its environment where nobody says it.
#[test]
fn cqes_have_64_bytes_whatever_libmlx5_would_take() {
    let (Some(_), test) = (name(), "cqes_have_64_bytes_whatever_libmlx5_would_take") else {
        return;
    };
    if alone(test, &[("MLX5_CQE_SIZE", "128")], None) {
        let nic = device().unwrap();
        let (mut a, b) = pair(&*nic);
        let payload = [Piece::Data(a.sge(0, 8))];
        let to = b.mr.iova;
        a.host.send(&SendWr::new(Opcode::RdmaWrite).to(to, b.mr.rkey).payload(&payload)).unwrap();
        assert_eq!(a.host.wait_send(WAIT).unwrap().opcode, CqeOpcode::Req);
    }
}

/// Their results might be in the other byte order: endpoints refuse them, and a peer that posts one
/// all the same gets an error, not a wrong number.
#[test]
fn on_a_card_without_atomics_they_are_refused() {
    let (Some(_), test) = (name(), "on_a_card_without_atomics_they_are_refused") else { return };
    let doctor = doctor("atomics.so");
    if !alone(test, &[("DOCTOR", "atomics")], Some(&doctor)) {
        return;
    }
    let nic = device().unwrap();
    assert!(!nic.atomics());
    let (mut a, b) = pair(&*nic);
    let payload = [Piece::Data(a.sge(0, 8))];
    let atomic = Some(Operands { swap_add: 1, compare: 0 });
    let wr = SendWr { atomic, ..SendWr::new(Opcode::AtomicFa) }.to(b.mr.iova, b.mr.rkey);
    a.host.send(&wr.payload(&payload)).unwrap();
    assert_eq!(a.host.wait_send(WAIT).unwrap().opcode, CqeOpcode::ReqErr);
    let nic: Arc<dyn Nic> = nic;
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let memory = || Memory::from(gpu.alloc_mapped(4096, None).unwrap());
    let path = "pull/kernel".parse().unwrap();
    let both = (memory(), memory());
    let (a, _b) = Endpoint::pair(&gpu, &nic, path, both, Options::default()).unwrap();
    let stream = gpu.stream().unwrap();
    let (word, old) = (Remote(0), Local(0));
    let put = Put { from: Local(0), to: Remote(0), bytes: 8, signal: None };
    let signal = Some(Signal { word: Remote(64), add: 1 });
    for refused in [
        a.fetch_add(&stream, FetchAdd { word, add: 1, old }),
        a.compare_swap(&stream, CompareSwap { word, compare: 1, swap: 2, old }),
        a.put(&stream, Put { signal, ..put }),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("atomics") && error.contains(nic.name()), "{error}");
    }
    a.put(&stream, put).unwrap();
    a.quiet(&stream).unwrap();
}

/// Reset and connected again, a queue pair works as before, with another first PSN; the CQ goes on where it was, over its
/// end.
#[test]
fn a_queue_pair_begins_again_after_a_reset() {
    let Some(nic) = device() else { return };
    let (mut a, mut b) = pair(&*nic);
    // The first 60 of a round are taken when all are complete: the NIC looks at the CQ's record meanwhile.
    for (round, writes) in [80u32, 260, 150, 61, 280].into_iter().enumerate() {
        for i in 0..writes {
            let value = i + 1000 * round as u32;
            a.buf.write(4 * (i as usize % 64), &value.to_ne_bytes()).unwrap();
            let payload = [Piece::Data(a.sge(4 * u64::from(i % 64), 4))];
            let to = Iova(b.mr.iova.0 + 7);
            let wr = SendWr::new(Opcode::RdmaWrite).to(to, b.mr.rkey).payload(&payload);
            a.host.send(&wr).unwrap();
            let first = if i == 59 { 0 } else { i };
            for n in (first..=i).filter(|_| i >= 59) {
                let cqe = a.host.wait_send(WAIT).unwrap_or_else(|e| panic!("{round}, {n}: {e}"));
                assert_eq!((cqe.opcode, cqe.wqe_counter), (CqeOpcode::Req, n as u16), "{round}");
            }
        }
        let mut got = [0; 4];
        b.buf.read(7, &mut got).unwrap();
        assert_eq!(u32::from_ne_bytes(got), writes - 1 + 1000 * round as u32);
        if round == 1 {
            a.qp.fail();
        }
        let before = (a.qp.address(), b.qp.address());
        for end in [&mut a, &mut b] {
            end.qp.reset().unwrap();
            end.host.begin_again(&*end.qp);
            assert_eq!(end.qp.state(), QpState::Reset);
        }
        let now = (a.qp.address(), b.qp.address());
        assert_eq!((now.0.qpn, now.1.qpn), (before.0.qpn, before.1.qpn));
        assert!(now.0.psn != before.0.psn && now.1.psn != before.1.psn);
        a.qp.connect(now.1).unwrap();
        b.qp.connect(now.0).unwrap();
        assert!(a.qp.connect(now.1).is_err(), "once");
    }
}

/// Without a device that is named, all of this once more on the software device.
#[test]
fn all_of_it_passes_on_the_software_device() {
    if name().is_some() {
        return;
    }
    let me = std::env::current_exe().unwrap();
    let dm = (64 << 20).to_string();
    let command = ["env", "BELLPUSH_TEST_NIC=mlx5_0", me.to_str().unwrap(), "mlx5::"];
    let mut running = preloaded::Running::start(&["--dm-bytes", &dm], &command);
    running.wait(6 * WAIT); // a test of them may hang: that is what some are about
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.text);
}

#[test]
fn all_reduce_refuses_a_card_before_it_makes_anything() {
    let Some(nic) = device() else { return };
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let nic: Arc<dyn Nic> = nic;
    let options = bellpush::collective::Options::new("push/kernel".parse().unwrap());
    let made = Member::new(&gpu, std::slice::from_ref(&nic), 0, 2, &options);
    let why = made.err().expect("it is refused").to_string();
    assert!(why.contains("cannot take all-reduce") && why.contains(nic.name()), "{why}");
}

#[test]
fn queue_pairs_that_cannot_be_made_are_refused_by_name() {
    let Some(nic) = device() else { return };
    let make = |attr: QpAttr| refused(nic.create_qp(&attr, view(8 << 20).into()));
    for sq_blocks in [0, 48, 1 << 16] {
        assert!(make(QpAttr { sq_blocks, ..attr() }).contains("send queue"));
    }
    assert!(make(QpAttr { rq_wqes: 24, ..attr() }).contains("receive queue"));
    assert!(make(QpAttr { recv_cqes: 0, ..attr() }).contains("receive CQ"));
    assert!(make(QpAttr { send_cqes: 1 << 31, ..attr() }).contains("send CQ"));
    assert!(make(QpAttr { rnr_retry: 8, ..attr() }).contains("RNR"));
    let inband = bellpush::nic::Inband {
        window: view(4096),
        slot_bytes: 128,
        slots: 8,
        line: bellpush::nic::LineFormat::L12S4,
        seq0: 2,
    };
    let line = make(QpAttr { inband: Some(inband), ..attr() });
    assert!(line.contains("push/inband") && line.contains("push/kernel"), "{line}");
    let short = view(nic.queue_bytes(&attr()) - 4096);
    // libmlx5 would store to the addresses of memory that the processor does not reach.
    let far = HostMem::far(Arc::new(view(8 << 20))).unwrap();
    let far = View::new(&far, 0, far.len()).unwrap();
    assert!(matches!(nic.create_qp(&attr(), far.into()), Err(NicError::Memory(MemError::Far))));
    let main = || QueueMemory::from(view(nic.queue_bytes(&attr())));
    for apart in [
        QueueMemory { sq: Some(view(8 << 20)), ..main() },
        QueueMemory { dbr: Some(view(4096)), ..main() },
        QueueMemory { send_cq: Some(view(8 << 20)), ..main() },
    ] {
        let line = refused(nic.create_qp(&attr(), apart));
        assert!(line.contains("sq_place") && line.contains("one piece of host memory"), "{line}");
    }
    let line = refused(nic.create_qp(&attr(), short.into()));
    assert!(line.contains("queue memory") && line.contains("queue_bytes"), "{line}");
    drop(end(&*nic, &attr())); // and it still works
}

#[test]
fn peers_out_of_reach_and_second_connections_are_refused() {
    let Some(nic) = device() else { return };
    let (a, b) = (end(&*nic, &attr()), end(&*nic, &attr()));
    let NicAddress::Ip(ip) = a.qp.address().nic else { return };
    let other = if ip.is_ipv4() { "2001:db8::1" } else { "10.0.0.1" };
    for nic in [
        NicAddress::Ip(other.parse().unwrap()),
        NicAddress::InProcess(1),
        NicAddress::Lid { lid: 3, gid: [1; 16] },
    ] {
        let error = a.qp.connect(QpAddress { nic, ..b.qp.address() }).unwrap_err().to_string();
        assert!(error.contains(&ip.to_string()) && error.contains(&nic.to_string()), "{error}");
        assert_eq!(a.qp.state(), QpState::Reset, "nothing was changed");
    }
    a.qp.connect(b.qp.address()).unwrap();
    assert!(matches!(a.qp.connect(b.qp.address()), Err(NicError::State { .. })));
    assert_eq!(a.qp.state(), QpState::Rts);
    a.qp.fail();
    assert_eq!(a.qp.state(), QpState::Err);
}

#[test]
fn a_destroyed_queue_pair_is_gone_and_its_views_do_no_harm() {
    let Some(nic) = device() else { return };
    let (mut a, b) = pair(&*nic);
    let address = b.qp.address();
    nic.destroy_qp(a.qp.qpn()).unwrap();
    assert!(matches!(nic.destroy_qp(a.qp.qpn()), Err(NicError::NoSuchQp(_))));
    assert!(matches!(nic.destroy_qp(Qpn(0xff_fff0)), Err(NicError::NoSuchQp(_))));
    assert_eq!(a.qp.state(), QpState::Err);
    assert!(a.qp.connect(address).is_err());
    a.qp.fail();
    // Its memory and its register are still there, and nobody answers.
    a.host.send(&SendWr::new(Opcode::Nop)).unwrap();
    assert!(a.host.wait_send(Duration::from_millis(50)).is_err());
    // The NIC goes before what came of it.
    drop(nic);
    a.host.send(&SendWr::new(Opcode::Nop)).unwrap();
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn a_key_that_is_gone_is_an_error_and_trouble_is_none() {
    let Some(nic) = device() else { return };
    let (mut a, b) = pair(&*nic);
    nic.deregister(b.mr).unwrap();
    let payload = [Piece::Data(a.sge(0, 8))];
    a.host
        .send(&SendWr::new(Opcode::RdmaWrite).to(b.mr.iova, b.mr.rkey).payload(&payload))
        .unwrap();
    let failed = a.host.wait_send(WAIT).unwrap();
    assert_eq!((failed.opcode, failed.syndrome), (CqeOpcode::ReqErr, 0x13));
    assert_eq!(a.qp.state(), QpState::Err);
    assert!(matches!(nic.deregister(Mr { lkey: Lkey(1), ..a.mr }), Err(NicError::NoSuchRegion(1))));
}

/// A WRITE that the peer refuses: the peer's queue pair gets an asynchronous event.
fn shut_off(a: &mut End, b: &End) {
    let payload = [Piece::Data(a.sge(0, 8))];
    let beyond = Iova(b.mr.iova.0 + b.mr.bytes);
    a.host.send(&SendWr::new(Opcode::RdmaWrite).to(beyond, b.mr.rkey).payload(&payload)).unwrap();
    assert_eq!(a.host.wait_send(WAIT).unwrap().opcode, CqeOpcode::ReqErr);
}

#[test]
fn an_event_is_told_to_the_queue_pair_that_it_is_of_and_to_no_other() {
    let Some(nic) = device() else { return };
    let ((mut a, b), (c, d)) = (pair(&*nic), pair(&*nic));
    shut_off(&mut a, &b);
    let start = Instant::now();
    let told = loop {
        match b.qp.trouble() {
            Some(told) => break told.to_string(),
            None => assert!(start.elapsed() < WAIT, "no event came"),
        }
    };
    assert!(told.contains("access violation") && told.contains(nic.name()), "{told}");
    assert_eq!(b.qp.trouble().unwrap().to_string(), told, "it stays broken");
    for other in [&c.qp, &d.qp] {
        assert!(other.trouble().is_none());
    }
    assert!(nic.trouble().is_none());
    // Whoever gets its memory, and with it perhaps its address, has no part in it.
    for qp in [&a.qp, &b.qp] {
        nic.destroy_qp(qp.qpn()).unwrap();
    }
    // All of them stay, so that one of them gets it.
    let mut all = Vec::new();
    for _ in 0..20 {
        let (e, f) = pair(&*nic);
        assert!(e.qp.trouble().is_none() && f.qp.trouble().is_none());
        all.push((e, f));
    }
}

/// Only one of them finds the event; the others must not wait for the next one.
#[test]
fn threads_that_look_for_trouble_at_once_all_come_back() {
    const THREADS: usize = 4;
    let Some(nic) = device() else { return };
    for round in 0..60 {
        let (mut a, b) = pair(&*nic);
        let (tell, told) = channel();
        let barrier = Arc::new(Barrier::new(THREADS + 1));
        for _ in 0..THREADS {
            let (nic, barrier, tell) = (nic.clone(), barrier.clone(), tell.clone());
            std::thread::spawn(move || {
                barrier.wait();
                // Until the event is there and taken: it comes while they look.
                for _ in 0..200 {
                    let _ = nic.trouble();
                }
                let _ = tell.send(());
            });
        }
        barrier.wait();
        shut_off(&mut a, &b);
        for _ in 0..THREADS {
            told.recv_timeout(WAIT).unwrap_or_else(|_| panic!("a thread hangs in round {round}"));
        }
        nic.destroy_qp(a.qp.qpn()).unwrap();
        nic.destroy_qp(b.qp.qpn()).unwrap();
    }
}

#[test]
fn queue_pairs_in_the_same_memory_begin_with_other_packet_numbers() {
    let Some(nic) = device() else { return };
    let memory = view(nic.queue_bytes(&attr()));
    let mut psns: Vec<u32> = (0..16)
        .map(|_| {
            memory.write(0, &vec![0; memory.len()]).unwrap();
            let qp = nic.create_qp(&attr(), memory.clone().into()).unwrap();
            nic.destroy_qp(qp.qpn()).unwrap();
            qp.address().psn.value()
        })
        .collect();
    psns.sort_unstable();
    psns.dedup();
    // Sixteen of 2^24: that two are alike by chance happens once in 140,000 runs.
    assert!(psns.len() >= 15, "{psns:x?}");
}

#[test]
fn a_connection_that_fails_leaves_the_queue_pair_for_another() {
    let Some(nic) = device() else { return };
    let (a, b) = (end(&*nic, &attr()), end(&*nic, &attr()));
    let nowhere = NicAddress::Ip("224.0.0.1".parse().unwrap());
    let error = a.qp.connect(QpAddress { nic: nowhere, ..b.qp.address() }).unwrap_err();
    assert!(error.to_string().contains("to RTR"), "{error}");
    assert_eq!(a.qp.state(), QpState::Reset);
    a.qp.connect(b.qp.address()).unwrap();
    assert_eq!(a.qp.state(), QpState::Rts);
}

#[test]
fn many_queue_pairs_come_and_go() {
    let Some(nic) = device() else { return };
    let attr = QpAttr { rq_wqes: 0, recv_cqes: 0, ..attr() };
    for round in 0..30 {
        let ends: Vec<End> = (0..8).map(|_| end(&*nic, &attr)).collect();
        let mut numbers: Vec<u32> = ends.iter().map(|e| e.qp.qpn().0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ends.len(), "round {round}");
        for end in ends {
            nic.destroy_qp(end.qp.qpn()).unwrap();
            nic.deregister(end.mr).unwrap();
        }
    }
}
