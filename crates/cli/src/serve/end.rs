//! A memory region and a queue pair of the software NIC, to which the CPU posts.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bellpush::mem::{HostMem, PAGE_BYTES, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::{CqAttr, Objects, Qp, SoftNic};
use bellpush::nic::{
    Access, Change, Connection, MAX_RD_ATOMIC, Mr, Mtu, Nic, NicAddress, QpAddress, QpAttr,
    QpState, QpType, QueuePair,
};
use bellpush::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush::wire::wqe::{Datagram, Opcode, Operands, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Psn, Qpn, Rkey};

use super::exchange::{ServeError, gid_of};

/// Most outstanding receives, and most outstanding sends of one basic block.
pub const DEPTH: u32 = 256;
/// Most outstanding READs and atomics, of the peer and of this end.
pub const MAX_READS: u32 = 16;
/// Most regions of one driver.
const MAX_REGIONS: usize = 256;
/// Interval between two polls of a completion queue.
const NAP: Duration = Duration::from_micros(20);
/// Q_Key of received datagrams, as in rdma-core's examples.
pub const QKEY: u32 = 0x1111_1111;
/// Bytes of the global route header area before a datagram's payload (InfiniBand vol. 1, 11.4.1.2).
pub const GRH_BYTES: usize = 40;

/// The peer's description of its queue pair.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    pub address: IpAddr,
    pub qpn: u32,
    pub psn: u32,
}

/// A work request on this end's memory; fields that the operation does not use are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub opcode: Opcode,
    pub offset: usize,
    pub bytes: usize,
    pub addr: u64,
    pub rkey: u32,
    /// Immediate data, addend, or compare operand.
    pub a: u64,
    /// Swap operand, or a datagram's Q_Key.
    pub b: u64,
}

/// One of the two completion queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Send,
    Recv,
}

/// Memory with all rights, and a queue pair.
pub struct End {
    nic: Arc<SoftNic>,
    pub memory: View,
    pub mr: Mr,
    /// Parts of the memory that were registered again.
    regions: Vec<Mr>,
    qp: Option<Open>,
}

struct Open {
    qp: Arc<Qp>,
    local: QpAddress,
    queues: HostQp,
    peer: Option<Peer>,
}

impl End {
    /// Allocates and registers memory, a multiple of 4 KiB.
    pub fn open(nic: &Arc<SoftNic>, bytes: usize) -> Result<Self, ServeError> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let memory = View::new(&HostMem::alloc(bytes)?, 0, bytes)?;
        let mr = nic.register(Arc::new(memory.clone()), Iova(memory.addr()), Access::ALL)?;
        Ok(Self { nic: nic.clone(), memory, mr, regions: Vec::new(), qp: None })
    }

    /// Registers a part of the memory again. It always has local write, whatever `access` contains.
    pub fn region(
        &mut self,
        offset: usize,
        bytes: usize,
        access: Access,
    ) -> Result<Mr, ServeError> {
        if self.regions.len() >= MAX_REGIONS {
            return Err(ServeError::Regions(MAX_REGIONS));
        }
        let part = self.memory.part(offset, bytes)?;
        let iova = Iova(part.addr());
        let mr = self.nic.register(Arc::new(part), iova, Access { local_write: true, ..access })?;
        self.regions.push(mr);
        Ok(mr)
    }

    /// Creates a queue pair in INIT, in place of the previous one.
    pub fn new_qp(&mut self, kind: QpType) -> Result<QpAddress, ServeError> {
        self.close_qp()?;
        let attr = QpAttr {
            sq_blocks: DEPTH,
            rq_wqes: DEPTH,
            rq_sges: 1,
            send_cqes: DEPTH,
            recv_cqes: DEPTH,
            rnr_retry: 7,
            ack_timeout: 14,
            inband: None,
            blueflame: false,
        };
        let bytes = self.nic.queue_bytes(&attr);
        let queues = SoftNic::place(&attr, &View::new(&HostMem::alloc(bytes)?, 0, bytes)?)?;
        let cq = |ring: &View, dbr: &View| {
            let (ring, dbr, uar) = (ring.clone(), dbr.clone(), queues.uar.clone());
            self.nic.create_cq(&CqAttr { ring, dbr, uar, notify: None })
        };
        let objects = Objects {
            kind,
            pd: self.nic.default_pd().clone(),
            send_cq: cq(&queues.send_cq, &queues.send_cq_dbr)?,
            recv_cq: Some(cq(&queues.recv_cq, &queues.recv_cq_dbr)?),
            srq: None,
            uidx: 0,
        };
        let qp = self.nic.create_with(&attr, queues, objects)?;
        let (local, queues) = (qp.address(), HostQp::new(&*qp));
        // A connection to itself: INIT needs nothing from the peer.
        qp.modify(QpState::Init, &connection(local, local).change(kind, QpState::Init))?;
        self.qp = Some(Open { qp, local, queues, peer: None });
        Ok(local)
    }

    fn close_qp(&mut self) -> Result<(), ServeError> {
        match self.qp.take() {
            Some(open) => Ok(self.nic.destroy_qp(open.qp.qpn())?),
            None => Ok(()),
        }
    }

    /// Moves the queue pair to RTS; `with` has the attributes that the peer's address does not
    /// give.
    pub fn connect(&mut self, peer: Peer, mtu: Mtu, with: Change) -> Result<(), ServeError> {
        let open = self.open_qp()?;
        let NicAddress::Ip(own) = open.local.nic else {
            return Err(ServeError::Family(peer.address));
        };
        if own.is_ipv4() != peer.address.is_ipv4() {
            return Err(ServeError::Family(peer.address));
        }
        let nic = NicAddress::Ip(peer.address);
        let (qpn, psn) = (Qpn(peer.qpn), Psn::new(peer.psn));
        // These programs do not tell how many READs they answer at a time.
        let remote = QpAddress { nic, qpn, psn, mtu, rd_atomic: MAX_RD_ATOMIC };
        let mut connection = connection(open.local, remote);
        // The agreed values, even if they exceed this NIC's limits: the NIC then refuses them.
        connection.with = Change { path_mtu: Some(mtu), ..merged(connection.with, with) };
        for to in [QpState::Rtr, QpState::Rts] {
            open.qp.modify(to, &connection.change(open.qp.kind(), to))?;
        }
        open.peer = Some(peer);
        Ok(())
    }

    fn open_qp(&mut self) -> Result<&mut Open, ServeError> {
        let none = ServeError::Malformed { what: "a request without", text: "qp".into() };
        self.qp.as_mut().ok_or(none)
    }

    fn entry(&self, offset: usize, bytes: usize) -> Result<Sge, ServeError> {
        let part = self.memory.part(offset, bytes)?;
        Ok(Sge { addr: Iova(part.addr()), lkey: self.mr.lkey, bytes: bytes as u32 })
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, offset: usize, bytes: usize) -> Result<(), ServeError> {
        let entry = self.entry(offset, bytes)?;
        self.open_qp()?.queues.rq.post(&[entry])?;
        Ok(())
    }

    /// Posts a signalled work request.
    pub fn post(&mut self, work: &Work) -> Result<(), ServeError> {
        let payload = [Piece::Data(self.entry(work.offset, work.bytes)?)];
        let open = self.open_qp()?;
        let mut wr = SendWr::new(work.opcode).payload(&payload);
        if work.opcode.has_remote() {
            wr = wr.to(Iova(work.addr), Rkey(work.rkey));
        }
        wr.atomic = match work.opcode {
            Opcode::AtomicFa => Some(Operands { swap_add: work.a, compare: 0 }),
            Opcode::AtomicCs => Some(Operands { swap_add: work.b, compare: work.a }),
            _ => None,
        };
        wr.imm = work.a as u32;
        wr.datagram = match (open.qp.kind(), open.peer) {
            (QpType::Ud, Some(peer)) => {
                let (to, qpn) = (gid_of(peer.address), Qpn(peer.qpn));
                Some(Datagram::new(to, qpn, work.b as u32))
            }
            _ => None,
        };
        open.queues.send(&wr)?;
        Ok(())
    }

    /// The next completion within a time. The poller sleeps between polls, since engine and peer
    /// need the cores.
    pub fn poll(&mut self, side: Side, timeout: Duration) -> Result<Option<Cqe>, ServeError> {
        let start = Instant::now();
        let queues = &mut self.open_qp()?.queues;
        loop {
            let found = match side {
                Side::Send => queues.poll_send()?,
                Side::Recv => queues.poll_recv()?,
            };
            if found.is_some() || start.elapsed() >= timeout {
                return Ok(found);
            }
            thread::sleep(NAP);
        }
    }

    /// The next completion, which must come within a time and be successful.
    pub fn wait(
        &mut self,
        side: Side,
        what: &'static str,
        timeout: Duration,
    ) -> Result<Cqe, ServeError> {
        let cqe = self.poll(side, timeout)?.ok_or(ServeError::Timeout { what, timeout })?;
        good(what, cqe)
    }

    /// The queue pair's state.
    pub fn state(&mut self) -> Result<QpState, ServeError> {
        Ok(self.open_qp()?.qp.state())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // An object that the NIC no longer knows needs no destruction.
        let _ = self.close_qp();
        for mr in self.regions.drain(..).chain([self.mr]) {
            let _ = self.nic.deregister(mr);
        }
    }
}

fn connection(local: QpAddress, peer: QpAddress) -> Connection {
    let mut connection = Connection::new(local, peer);
    connection.with.qkey = Some(QKEY);
    connection
}

/// Attributes that programs choose: those of `over` where it has them, else those of `under`.
fn merged(under: Change, over: Change) -> Change {
    Change {
        timeout: over.timeout.or(under.timeout),
        retry_cnt: over.retry_cnt.or(under.retry_cnt),
        rnr_retry: over.rnr_retry.or(under.rnr_retry),
        min_rnr_timer: over.min_rnr_timer.or(under.min_rnr_timer),
        ..under
    }
}

/// The completion, if it is successful.
pub fn good(what: &'static str, cqe: Cqe) -> Result<Cqe, ServeError> {
    if !cqe.opcode.is_error() {
        return Ok(cqe);
    }
    Err(ServeError::Completion { what, syndrome: Syndrome::from_code(cqe.syndrome) })
}

/// Immediate data of a completion; 0 if it has none.
pub fn immediate(cqe: &Cqe) -> u32 {
    let has = matches!(cqe.opcode, CqeOpcode::RespWrImm | CqeOpcode::RespSendImm);
    if has { cqe.imm } else { 0 }
}
