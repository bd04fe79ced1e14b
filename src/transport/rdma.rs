//! What every RDMA path has: a queue pair, its memory, the local region, and a window or none.

use std::sync::Arc;

use super::memory::view_of;
use super::{Error, Kick, Memory, Options, Path};
use crate::gpu::args::{self, DeviceEndpoint};
use crate::gpu::{Gpu, Mapped};
use crate::mem::View;
use crate::nic::{Access, Inband, Mr, Nic, QpAttr, QueuePair};
use crate::wire::Iova;

/// A window of slots: device memory of the NIC (push) or host memory (staged).
pub(super) struct WindowMem {
    pub mapped: Mapped,
    pub view: View,
    pub mr: Mr,
    /// What gather entries call the window's first byte.
    pub gather_base: u64,
    pub slots: u32,
    pub slot_bytes: u32,
    pub seq0: u32,
}

pub(super) struct Rdma {
    nic: Arc<dyn Nic>,
    pub qp: Arc<dyn QueuePair>,
    pub queues: Mapped,
    pub local: Memory,
    pub local_mr: Mr,
    pub window: Option<WindowMem>,
    pub sq_blocks: u32,
    pub send_cqes: u32,
}

impl Rdma {
    pub fn new(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        path: Path,
        local: Memory,
        options: &Options,
    ) -> Result<Self, Error> {
        let inband = path.kick() == Some(Kick::Inband);
        let mut guard = Undo { nic: nic.clone(), mrs: Vec::new() };
        let local_mr = nic.register(local.dma()?, Iova(local.addr()), Access::ALL)?;
        guard.mrs.push(local_mr);
        let window = match path.has_window() {
            true => Some(Self::window(gpu, nic, path, options, &mut guard)?),
            false => None,
        };
        // What may be out at once: the ring, or the slots, which an in-band queue pair sends from
        // without passing through the ring.
        let slots = window.as_ref().filter(|_| inband).map_or(0, |w| w.slots.next_power_of_two());
        let attr = QpAttr {
            sq_blocks: options.sq_blocks,
            rq_wqes: 0,
            rq_sges: 0,
            // Twice that: device code reports its consumer index a quarter ring late.
            send_cqes: options.sq_blocks.max(slots) * 2,
            recv_cqes: 0,
            rnr_retry: 7,
            inband: match &window {
                Some(w) if inband => Some(Inband {
                    window: w.view.clone(),
                    slot_bytes: w.slot_bytes,
                    slots: w.slots,
                    line: options.line,
                    seq0: w.seq0,
                }),
                _ => None,
            },
            blueflame: path.kick() == Some(Kick::Blueflame),
        };
        let queues = gpu.alloc_mapped(nic.queue_bytes(&attr), options.host_numa)?;
        let qp = nic.create_qp(&attr, view_of(&queues)?)?;
        guard.mrs.clear(); // Rdma's own drop takes over
        Ok(Self {
            nic: nic.clone(),
            qp,
            queues,
            local,
            local_mr,
            window,
            sq_blocks: attr.sq_blocks,
            send_cqes: attr.send_cqes,
        })
    }

    fn window(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        path: Path,
        options: &Options,
        guard: &mut Undo,
    ) -> Result<WindowMem, Error> {
        let slots = (options.window_bytes / u64::from(options.slot_bytes)) as u32;
        let mapped = gpu.alloc_mapped(options.window_bytes as usize, options.host_numa)?;
        let view = View::new(
            mapped.host().ok_or(Error::NotConnected)?,
            0,
            slots as usize * options.slot_bytes as usize,
        )?;
        let (mr, gather_base) = match path.data() {
            super::Data::Push => (nic.alloc_dm(view.clone())?.mr, 0),
            _ => {
                let base = mapped.addr();
                (nic.register(Arc::new(view.clone()), Iova(base), Access::NONE)?, base)
            }
        };
        guard.mrs.push(mr);
        Ok(WindowMem {
            mapped,
            view,
            mr,
            gather_base,
            slots,
            slot_bytes: options.slot_bytes,
            seq0: options.inband_seq0,
        })
    }

    pub fn register(&self, memory: &Memory, access: Access) -> Result<Mr, Error> {
        Ok(self.nic.register(memory.dma()?, Iova(memory.addr()), access)?)
    }

    pub fn deregister(&self, mr: Mr) {
        // The NIC knows no other owner of the key; a second deregistration cannot happen.
        let _ = self.nic.deregister(mr);
    }

    /// The kernel's view of a queue: the GPU's address of what the NIC calls `view`.
    pub fn device_addr(&self, view: &View) -> u64 {
        self.queues.addr() + (view.addr() - self.queues.host_addr())
    }

    /// The endpoint's fixed part as kernels see it; state, status and sink are the caller's.
    pub fn device(&self, options: &Options) -> DeviceEndpoint {
        let q = self.qp.queues();
        let mut ep: DeviceEndpoint = bytemuck::Zeroable::zeroed();
        ep.qp.sq = self.device_addr(&q.sq);
        ep.qp.cq = self.device_addr(&q.send_cq);
        ep.qp.dbr = self.device_addr(&q.dbr);
        ep.qp.cq_dbr = self.device_addr(&q.send_cq_dbr);
        ep.qp.uar = self.device_addr(&q.uar);
        ep.qp.timeout_ns = options.timeout.as_nanos().min(u128::from(u64::MAX)) as u64;
        ep.qp.qpn = self.qp.qpn().0;
        // A credit for each slot. Without, what the ring and the CQ hold, so that a negative control
        // spoils messages and nothing else.
        let room = self.send_cqes / 2;
        let slots = self.window.as_ref().filter(|_| options.credits).map_or(room, |w| w.slots);
        ep.qp.slot_limit = slots.min(room);
        ep.qp.sq_log = self.sq_blocks.ilog2();
        ep.qp.cq_log = self.send_cqes.ilog2();
        // Credits come home with CQEs, so a long row of WQEs asks for one at least four times a
        // window, or a ring where there is no window.
        let slots = self.window.as_ref().map_or(self.sq_blocks, |w| w.slots.min(self.sq_blocks));
        ep.qp.credit_period = 1 << (slots / 4).max(1).ilog2();
        if let Some(w) = &self.window {
            ep.qp.window = args::Window {
                va: w.mapped.addr(),
                gather_base: w.gather_base,
                lkey: w.mr.lkey.0,
                slot_bytes: w.slot_bytes,
                slots: w.slots,
                inband_seq0: w.seq0,
            };
        }
        ep.local_va = self.local.addr();
        ep.local_iova = self.local_mr.iova.0;
        ep.local_bytes = self.local_mr.bytes;
        ep.local_lkey = self.local_mr.lkey.0;
        ep
    }
}

impl Drop for Rdma {
    fn drop(&mut self) {
        // The queue pair first: after this the NIC touches none of the memory.
        let _ = self.nic.destroy_qp(self.qp.qpn());
        if let Some(window) = &self.window {
            self.deregister(window.mr);
        }
        self.deregister(self.local_mr);
    }
}

/// Deregisters what a constructor had registered when a later step failed.
struct Undo {
    nic: Arc<dyn Nic>,
    mrs: Vec<Mr>,
}

impl Drop for Undo {
    fn drop(&mut self) {
        for mr in self.mrs.drain(..) {
            let _ = self.nic.deregister(mr);
        }
    }
}

impl Rdma {
    /// What the peer needs to know.
    pub fn address(&self) -> super::Address {
        super::Address {
            link: super::endpoint::Link::Qp(self.qp.address()),
            iova: self.local_mr.iova.0,
            rkey: self.local_mr.rkey,
            bytes: self.local_mr.bytes,
        }
    }
}
