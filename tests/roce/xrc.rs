//! Extended reliable connections: one receiving end, several shared receive queues, each with its
//! own CQ, protection domain and user index.

use std::sync::Arc;

use crate::queue_pairs::{Buf, attr, connect, inline, packet_nics, pattern, syndromes};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::{HostCq, HostQp};
use bellpush::nic::soft::{
    Cq, CqAttr, Engine, InProcess, Objects, Pd, Qp, SoftConfig, SoftNic, Srq, SrqAttr, XrcSrq, Xrcd,
};
use bellpush::nic::{Access, Change, Mr, Mtu, Nic, NicError, QpAttr, QpState, QpType, QueuePair};
use bellpush::wire::Iova;
use bellpush::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush::wire::doorbell::{DBR_RCV_OFFSET, dbr_word};
use bellpush::wire::wqe::{DataSeg, INVALID_LKEY, Opcode, Operands, Piece, SendWr};

fn cq(nic: &SoftNic) -> (Arc<Cq>, HostCq) {
    let mem = HostMem::alloc(16384).unwrap();
    let part = |at, n| View::new(&mem, at, n).unwrap();
    let (uar, dbr, ring) = (part(0, 4096), part(4096, 8), part(8192, 4096));
    let host = {
        let attr = CqAttr { ring: ring.clone(), dbr: dbr.clone(), uar, notify: None };
        nic.create_cq(&attr).unwrap()
    };
    (host, HostCq::new(&ring, &dbr))
}

/// A shared receive queue of a domain, and all that goes with it.
pub(crate) struct Receiver {
    srq: Arc<Srq>,
    ring: View,
    dbr: View,
    posted: u16,
    cqes: HostCq,
    pd: Arc<Pd>,
    view: View,
    mr: Mr,
}

impl Receiver {
    fn new(nic: &SoftNic, xrcd: &Arc<Xrcd>, uidx: u32) -> Self {
        let (cq, cqes) = cq(nic);
        let pd = nic.create_pd().unwrap();
        let mem = HostMem::alloc(8192).unwrap();
        let (ring, dbr) = (View::new(&mem, 0, 1024).unwrap(), View::new(&mem, 4096, 8).unwrap());
        let attr = SrqAttr {
            pd: pd.clone(),
            ring: ring.clone(),
            stride_log: 6,
            dbr: dbr.clone(),
            limit: 0,
        };
        let xrc = XrcSrq { xrcd: xrcd.clone(), cq, uidx };
        let srq = nic.create_xrc_srq(&attr, xrc).unwrap();
        let view = View::new(&HostMem::alloc(65536).unwrap(), 0, 65536).unwrap();
        let iova = Iova(0x10_0000);
        let mr = nic.register_in(&pd, Arc::new(view.clone()), iova, Access::ALL).unwrap();
        Self { srq, ring, dbr, posted: 0, cqes, pd, view, mr }
    }

    /// Posts a receive of `bytes` bytes at an offset.
    pub(crate) fn post(&mut self, offset: u64, bytes: u32) {
        let index = usize::from(self.posted) % 16;
        let mut wqe = [0; 64];
        wqe[2..4].copy_from_slice(&(((index + 1) % 16) as u16).to_be_bytes());
        let lkey = self.mr.lkey.0.into();
        let addr = (self.mr.iova.0 + offset).into();
        let seg = DataSeg { byte_count: bytes.into(), lkey, addr };
        let end = DataSeg { lkey: INVALID_LKEY.0.into(), ..DataSeg::default() };
        wqe[16..32].copy_from_slice(bytemuck::bytes_of(&seg));
        wqe[32..48].copy_from_slice(bytemuck::bytes_of(&end));
        self.ring.write(index * 64, &wqe).unwrap();
        self.posted += 1;
        let word = dbr_word(self.posted);
        self.dbr.store_u32(DBR_RCV_OFFSET, word, std::sync::atomic::Ordering::Release).unwrap();
    }

    fn take(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.cqes.poll().unwrap()).collect()
    }

    fn get(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut got = vec![0; bytes];
        self.view.read(offset, &mut got).unwrap();
        got
    }
}

pub(crate) struct Xrc {
    nics: [Arc<SoftNic>; 2],
    engines: Vec<Engine>,
    now_ns: u64,
    send: Arc<Qp>,
    host: HostQp,
    cqes: HostCq,
    _memory: Arc<HostMem>,
    pub(crate) buf: Buf,
    recv: Arc<Qp>,
    xrcd: Arc<Xrcd>,
}

fn sending_end(nic: &SoftNic, cq: &Arc<Cq>) -> (Arc<Qp>, Arc<HostMem>) {
    let attr = QpAttr { rq_wqes: 0, ..attr() };
    let memory = HostMem::alloc(nic.queue_bytes(&attr)).unwrap();
    let queues = SoftNic::place(&attr, &View::new(&memory, 0, memory.len()).unwrap()).unwrap();
    let objects = Objects {
        kind: QpType::XrcSend,
        pd: nic.default_pd().clone(),
        send_cq: cq.clone(),
        recv_cq: None,
        srq: None,
        uidx: 7,
    };
    (nic.create_with(&attr, queues, objects).unwrap(), memory)
}

impl Xrc {
    fn new(faults: &str) -> Self {
        Self::on(packet_nics(faults, true))
    }

    /// The same on NICs that are there.
    pub(crate) fn on((nics, engines): ([Arc<SoftNic>; 2], Vec<Engine>)) -> Self {
        let (cq, cqes) = cq(&nics[0]);
        let (send, memory) = sending_end(&nics[0], &cq);
        let xrcd = nics[1].create_xrcd();
        let recv = nics[1].create_xrc_recv(&xrcd).unwrap();
        let with = Change { path_mtu: Mtu::new(256), timeout: Some(10), ..Change::default() };
        connect(&send, &recv, &with);
        let host = HostQp::new(&*send);
        let buf = Buf::new(&nics[0], 65536, 0x1000, Access::ALL);
        Self { nics, engines, now_ns: 0, send, host, cqes, _memory: memory, buf, recv, xrcd }
    }

    pub(crate) fn receiver(&self, uidx: u32) -> Receiver {
        Receiver::new(&self.nics[1], &self.xrcd, uidx)
    }

    fn run(&mut self, ns: u64) {
        let end = self.now_ns + ns;
        while self.now_ns < end {
            self.now_ns += 2_000;
            for engine in &mut self.engines {
                engine.step(self.now_ns);
            }
        }
    }

    pub(crate) fn post(&mut self, wr: &SendWr<'_>, to: &Receiver) -> Vec<Cqe> {
        self.post_to(wr, to.srq.number())
    }

    fn post_to(&mut self, wr: &SendWr<'_>, srqn: u32) -> Vec<Cqe> {
        self.host.send(&SendWr { srqn: Some(srqn), ..*wr }).unwrap();
        self.run(200_000);
        self.sent()
    }

    fn sent(&mut self) -> Vec<Cqe> {
        let host = &mut self.host;
        let all: Vec<Cqe> = std::iter::from_fn(|| self.cqes.poll().unwrap()).collect();
        all.iter().for_each(|cqe| host.sq.retire(cqe.wqe_counter));
        all
    }
}

#[test]
fn a_message_goes_to_the_queue_that_it_names() {
    let mut x = Xrc::new("");
    let mut receivers = [x.receiver(100), x.receiver(200)];
    assert_ne!(receivers[0].srq.number(), receivers[1].srq.number());
    for round in 0..6usize {
        let data = pattern(1 + round * 300, round as u64);
        x.buf.put(0, &data);
        let payload = [x.buf.data(0, data.len() as u32)];
        let to = &mut receivers[round % 2];
        to.post(64, 4096);
        let wr = SendWr { imm: round as u32, ..SendWr::new(Opcode::SendImm) }.payload(&payload);
        let cqes = x.post(&wr, to);
        assert_eq!((cqes.len(), cqes[0].opcode, cqes[0].uidx), (1, CqeOpcode::Req, 7));
        let got = to.take();
        assert_eq!((got.len(), got[0].opcode), (1, CqeOpcode::RespSendImm));
        assert_eq!((got[0].imm, got[0].byte_cnt), (round as u32, data.len() as u32));
        assert_eq!((got[0].uidx, got[0].qpn), ([100, 200][round % 2], x.recv.qpn()));
        assert_eq!(to.get(64, data.len()), data);
        assert!(receivers[(round + 1) % 2].take().is_empty(), "the other one sees nothing");
    }
}

#[test]
fn writes_reads_and_atomics_use_the_keys_of_the_queues_domain() {
    let mut x = Xrc::new("");
    let (mut to, other) = (x.receiver(1), x.receiver(2));
    let data = pattern(1500, 5);
    x.buf.put(0, &data);
    let (payload, back) = ([x.buf.data(0, 1500)], [x.buf.data(4000, 1500)]);
    let at = |offset: u64| Iova(to.mr.iova.0 + offset);
    let (rkey, a64, a8k) = (to.mr.rkey, at(64), at(8192));
    let wr = SendWr::new(Opcode::RdmaWrite).to(a64, rkey).payload(&payload);
    assert_eq!(syndromes(&x.post(&wr, &to)), [None]);
    assert_eq!(to.get(64, 1500), data);
    let wr = SendWr::new(Opcode::RdmaRead).to(a64, rkey).payload(&back);
    assert_eq!(syndromes(&x.post(&wr, &to)), [None]);
    assert_eq!(x.buf.get(4000, 1500), data);
    let atomic = Some(Operands { swap_add: 5, compare: 0 });
    let old = [x.buf.data(6000, 8)];
    let wr = SendWr { atomic, ..SendWr::new(Opcode::AtomicFa) }.to(a8k, rkey).payload(&old);
    assert_eq!(syndromes(&x.post(&wr, &to)), [None]);
    assert_eq!(to.get(8192, 8), 5u64.to_ne_bytes());
    to.post(0, 64);
    let wr = SendWr { imm: 3, ..SendWr::new(Opcode::RdmaWriteImm) }.to(a64, rkey).payload(&old);
    assert_eq!(syndromes(&x.post(&wr, &to)), [None]);
    assert_eq!(to.take()[0].opcode, CqeOpcode::RespWrImm);
    // The other queue's protection domain does not have the region.
    assert_ne!(to.pd.number(), other.pd.number());
    let wr = SendWr::new(Opcode::RdmaWrite).to(a64, rkey);
    let wr = wr.payload(&[Piece::Inline(b"no")]);
    assert_eq!(syndromes(&x.post(&wr, &other)), [Some(Syndrome::RemoteAccess)]);
}

#[test]
fn a_queue_that_the_domain_does_not_have_is_refused() {
    for case in 0..4 {
        let mut x = Xrc::new("");
        let mut good = x.receiver(1);
        let foreign = Receiver::new(&x.nics[1], &x.nics[1].create_xrcd(), 2);
        let plain = {
            let mem = HostMem::alloc(8192).unwrap();
            let part = |at, n| View::new(&mem, at, n).unwrap();
            let (ring, dbr) = (part(0, 1024), part(4096, 8));
            let pd = x.nics[1].create_pd().unwrap();
            x.nics[1].create_srq(&SrqAttr { pd, ring, stride_log: 6, dbr, limit: 0 }).unwrap()
        };
        good.post(0, 64);
        let srqn = match case {
            0 => 0xff_ffff,
            1 => foreign.srq.number(),
            2 => plain.number(),
            _ => {
                good.srq.close();
                good.srq.number()
            }
        };
        let payload = inline(b"hello");
        let wr = SendWr::new(Opcode::Send).payload(&payload);
        assert_eq!(syndromes(&x.post_to(&wr, srqn)), [Some(Syndrome::RemoteAccess)], "{case}");
        assert!(good.take().is_empty());
        assert_eq!((x.send.state(), x.recv.state()), (QpState::Err, QpState::Err));
    }
}

#[test]
fn an_empty_queue_is_not_ready_and_holds_the_others_up_no_longer() {
    let mut x = Xrc::new("");
    let (mut a, mut b) = (x.receiver(1), x.receiver(2));
    b.post(0, 64);
    let payload = inline(b"hello");
    let wr = SendWr::new(Opcode::Send).payload(&payload);
    assert!(x.post(&wr, &a).is_empty(), "no receive");
    assert!(x.post(&wr, &b).is_empty(), "in order");
    a.post(0, 64);
    x.run(20_000_000);
    assert_eq!(syndromes(&x.sent()), [None, None]);
    assert_eq!((a.take().len(), b.take().len()), (1, 1));
}

#[test]
fn loss_changes_only_the_time() {
    let mut x = Xrc::new("loss=8%,dup=4%,reorder=4%,seed=11");
    let mut receivers = [x.receiver(1), x.receiver(2)];
    for round in 0..40u64 {
        let data = pattern(700, round);
        x.buf.put(0, &data);
        let payload = [x.buf.data(0, 700)];
        let to = &mut receivers[round as usize % 2];
        to.post(0, 1000);
        x.host
            .send(
                &SendWr { srqn: Some(to.srq.number()), ..SendWr::new(Opcode::Send) }
                    .payload(&payload),
            )
            .unwrap();
        let mut done = vec![];
        for _ in 0..1000 {
            x.run(1_000_000);
            done.extend(x.sent());
            if !done.is_empty() {
                break;
            }
        }
        assert_eq!(syndromes(&done), [None], "round {round}");
        assert_eq!(to.take().len(), 1, "once");
        assert!(to.get(0, 700) == data);
    }
    assert!(x.nics[0].counters().retransmitted > 0, "control: something was lost");
}

#[test]
fn what_does_not_go_together_is_refused() {
    let (nic, _) = SoftNic::manual(&SoftConfig::new(&InProcess::new())).unwrap();
    let refused = nic.create_xrc_recv(&nic.create_xrcd()).err();
    assert!(matches!(refused, Some(NicError::Attribute { .. })), "{refused:?}");
    let x = Xrc::new("");
    let nic = &x.nics[0];
    let (cq, _) = cq(nic);
    let attr = attr();
    let memory = HostMem::alloc(nic.queue_bytes(&attr)).unwrap();
    let queues = SoftNic::place(&attr, &View::new(&memory, 0, memory.len()).unwrap()).unwrap();
    for kind in [QpType::XrcSend, QpType::XrcRecv] {
        let (send_cq, recv_cq) = (cq.clone(), Some(cq.clone()));
        let pd = nic.default_pd().clone();
        let objects = Objects { kind, pd, send_cq, recv_cq, srq: None, uidx: 0 };
        let refused = nic.create_with(&attr, queues.clone(), objects).err();
        assert!(matches!(refused, Some(NicError::Attribute { .. })), "{kind:?}");
    }
}
