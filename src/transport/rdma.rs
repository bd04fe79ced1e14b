//! What every RDMA path has: a queue pair, its memory, the local region, and a window or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::place::Place;
use super::reset::Tally;
use super::{Data, Error, Kick, Memory, MemoryPlace, Options, Path, Reach, receives};
use crate::abi::wire::{DeviceEndpoint, Window};
use crate::gpu::{Gpu, Mapped};
use crate::mem::{MemError, View};
use crate::nic::queue::HostCq;
use crate::nic::{Access, Inband, Mr, Nic, NicError, QpAttr, QueueMemory, QueuePair};
use crate::wire::cqe::CQE_BYTES;
use crate::wire::doorbell::DBR_BYTES;
use crate::wire::roce::ack_timeout_ns;
use crate::wire::wqe::WQEBB_BYTES;
use crate::wire::{Iova, Qpn};

/// A window of slots: device memory of the NIC (push; host memory where it has none) or host memory
/// (staged).
pub(super) struct WindowMem {
    pub place: Place,
    /// The slots, somewhere in there.
    pub view: View,
    /// Its region; gather entries count from `mr.iova`.
    pub mr: Mr,
    pub slots: u32,
    pub slot_bytes: u32,
    pub seq0: u32,
}

impl WindowMem {
    /// For whoever posts on the host: the mapped memory, and where in it the slots begin.
    pub fn on_host(&self) -> Result<(&Mapped, usize), Error> {
        let mapped = self.place.mapped().ok_or(MemError::Far)?;
        Ok((mapped, (self.view.addr() - mapped.host_addr()) as usize))
    }
}

pub(super) struct Rdma {
    nic: Arc<dyn Nic>,
    pub qp: Arc<dyn QueuePair>,
    /// Queues, and a UAR page that is the NIC's own.
    places: Vec<Place>,
    pub local: Memory,
    local_is_near: bool,
    pub local_mr: Mr,
    pub window: Option<WindowMem>,
    pub sq_blocks: u32,
    pub send_cqes: u32,
    /// The queue pair is destroyed.
    ended: AtomicBool,
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
        let mut guard = Undo { nic: nic.clone(), qp: None, mrs: Vec::new() };
        let local_mr = nic.register(local.dma(), Iova(local.addr()), Access::ALL)?;
        guard.mrs.push(local_mr);
        let window = match path.has_window() {
            true => Some(Self::window(gpu, nic, path, options, &mut guard)?),
            false => None,
        };
        // What may be out at once: the ring, or the slots, which an in-band queue pair sends from
        // without passing through the ring.
        let slots = window.as_ref().filter(|_| inband).map_or(0, |w| w.slots);
        let attr = QpAttr {
            sq_blocks: options.sq_blocks,
            rq_wqes: options.receives,
            rq_sges: 1, // which stays empty
            // Twice that: device code reports its consumer index a quarter ring late.
            send_cqes: options.sq_blocks.max(slots) * 2,
            recv_cqes: options.receives,
            rnr_retry: 7,
            ack_timeout: ack_timeout_for(options.timeout),
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
        let (qp, mut places) = Self::queue_pair(gpu, nic, path, &attr, options)?;
        guard.qp = Some(qp.qpn());
        if options.receives != 0 && !receives::are_reached(&*qp) {
            let why = "the host posts and takes them, and their queue or doorbell record lies in a GPU's memory; take \
                       host memory for it";
            return Err(Error::Unsupported { path, what: "have receives", why });
        }
        let page = qp.queues().uar.mem();
        if page.is_device() {
            places.push(Place::of_nic(gpu, &qp.queues().uar)?);
        }
        (guard.mrs, guard.qp) = (Vec::new(), None); // Rdma's own drop takes over
        Ok(Self {
            nic: nic.clone(),
            qp,
            places,
            local_is_near: local.is_of(gpu),
            local,
            local_mr,
            window,
            sq_blocks: attr.sq_blocks,
            send_cqes: attr.send_cqes,
            ended: AtomicBool::new(false),
        })
    }

    /// A queue pair with its queues where the options want them. What they leave open lies in the NIC's memory where
    /// it has some and a kernel posts (and the host can reach it, where there are receives), and then the CQ in the
    /// memory of the GPU that looks at it; else in host memory.
    fn queue_pair(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        path: Path,
        attr: &QpAttr,
        options: &Options,
    ) -> Result<(Arc<dyn QueuePair>, Vec<Place>), Error> {
        let bytes = nic.queue_bytes(attr);
        let own = if path.posted_by_gpu() { nic.alloc_queues(bytes)? } else { None };
        // The host posts receives, and takes their completions.
        let own = own.filter(|own| options.receives == 0 || !own.mem().is_far());
        let has_own = own.is_some();
        let main = match &own {
            Some(own) => Place::of_nic(gpu, own)?,
            None => Place::on_host(gpu, bytes, options.host_numa)?,
        };
        let apart = |what, wanted, bytes| match wanted {
            MemoryPlace::Gpu => reached(path, what, Place::on_gpu(gpu, bytes)?).map(Some),
            MemoryPlace::Host if has_own => Place::on_host(gpu, bytes, options.host_numa).map(Some),
            MemoryPlace::Host | MemoryPlace::Auto => Ok(None),
        };
        let cq = match options.cq_place {
            MemoryPlace::Auto if has_own => MemoryPlace::Gpu,
            wanted => wanted,
        };
        let sq_bytes = attr.sq_blocks as usize * WQEBB_BYTES;
        let sq = apart("have its send queue in GPU memory", options.sq_place, sq_bytes)?;
        let dbr = apart("have its doorbell record in GPU memory", options.dbr_place, DBR_BYTES)?;
        let cq_bytes = attr.send_cqes as usize * CQE_BYTES;
        let send_cq = apart("have its completion queue in GPU memory", cq, cq_bytes)?;
        let view = |place: &Option<Place>| place.as_ref().map(|place| place.view().clone());
        let memory = QueueMemory {
            main: main.view().clone(),
            sq: view(&sq),
            dbr: view(&dbr),
            send_cq: view(&send_cq),
        };
        let qp = nic.create_qp(attr, memory)?;
        Ok((qp, [Some(main), sq, dbr, send_cq].into_iter().flatten().collect()))
    }

    fn window(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        path: Path,
        options: &Options,
        guard: &mut Undo,
    ) -> Result<WindowMem, Error> {
        let slots = options.slots();
        let bytes = slots as usize * options.slot_bytes as usize;
        let push = path.data() == Data::Push;
        let own = push && options.window_place == MemoryPlace::Auto;
        let mut dm = if own { nic.alloc_dm(bytes)? } else { None };
        if let Some(far) = dm.take_if(|dm| dm.view.mem().is_far() && !path.posted_by_gpu()) {
            nic.deregister(far.mr)?; // a stream's copies go to mapped memory
        }
        let (place, view, mr) = match dm {
            Some(dm) => {
                guard.mrs.push(dm.mr);
                (Place::of_nic(gpu, &dm.view)?, dm.view, dm.mr)
            }
            None => {
                let what = "have its window in GPU memory";
                let place = match options.window_place {
                    MemoryPlace::Gpu => reached(path, what, Place::on_gpu(gpu, bytes)?)?,
                    _ => Place::on_host(gpu, bytes, options.host_numa)?,
                };
                let view = place.view().clone();
                // A push window is zero-based, as device memory is.
                let addr = place.device_addr(&view).expect("a place is where it is");
                let base = Iova(if push { 0 } else { addr });
                let mr = nic.register(place.dma().clone(), base, Access::NONE)?;
                guard.mrs.push(mr);
                (place, view, mr)
            }
        };
        Ok(WindowMem {
            place,
            view,
            mr,
            slots,
            slot_bytes: options.slot_bytes,
            seq0: options.inband_seq0,
        })
    }

    pub fn register(&self, memory: &Memory, access: Access) -> Result<Mr, Error> {
        Ok(self.nic.register(memory.dma(), Iova(memory.addr()), access)?)
    }

    /// What happened to the NIC or the queue pair, where that may be why a wait ended.
    pub fn trouble(&self) -> Option<NicError> {
        self.qp.trouble().or_else(|| self.nic.trouble())
    }

    /// Refuses what takes an atomic of the NIC's where it has none, or gives their results in another
    /// byte order.
    pub fn atomics(&self) -> Result<(), Error> {
        if self.nic.atomics() {
            return Ok(());
        }
        let what = "fetch_add, compare_swap and signals: it has no atomics with results in this \
                    machine's byte order";
        Err(NicError::Unsupported { nic: self.nic.name().into(), what }.into())
    }

    /// Moves the queue pair to RESET and takes what is left in its send CQ: what completed before, and what was flushed.
    /// (libmlx5 leaves a CQ alone whose memory it has handed out: `MLX5_CQ_FLAGS_DV_OWNED`.)
    pub fn reset(&self, cq: &mut HostCq, tally: &mut Tally) -> Result<(), Error> {
        self.qp.reset()?;
        for _ in 0..self.send_cqes {
            let Some(cqe) = cq.poll()? else { break };
            tally.take(&cqe);
        }
        Ok(cq.report()?) // kernels report what they take a quarter ring late
    }

    pub fn deregister(&self, mr: Mr) {
        // The NIC knows no other owner of the key; a second deregistration cannot happen.
        let _ = self.nic.deregister(mr);
    }

    /// The mapping that a queue or register lies in, and its place there.
    pub fn mapping(&self, addr: u64) -> (&Mapped, u64) {
        let found = self.places.iter().filter_map(Place::mapped).find_map(|mapped| {
            let at = addr.checked_sub(mapped.host_addr())?;
            (at < mapped.bytes() as u64).then_some((mapped, at))
        });
        found.expect("queues lie in the memory that they were given, or are registers")
    }

    /// All memory of the queue pair that the GPU reaches.
    pub fn places(&self) -> Vec<Place> {
        let window = self.window.as_ref().map(|w| w.place.clone());
        self.places.iter().cloned().chain(window).collect()
    }

    /// The scope of the fence before a doorbell. It follows from where everything lies that this GPU stores and the NIC
    /// then looks at: WQEs, doorbell record, and payload, in the window or in the local region. The local region counts
    /// on every path: the result of a get or an atomic must not land before what a kernel stored there. BlueFlame
    /// has a buffer that is never this GPU's memory (path.cuh), and nothing rings for in-band slots.
    pub fn reach(&self, path: Path) -> Reach {
        let q = self.qp.queues();
        let queues = [&q.sq, &q.dbr].map(|view| self.place_of(view).0);
        let mut stored = queues.into_iter().chain(self.window.as_ref().map(|w| &w.place));
        let near = self.local_is_near && stored.all(Place::is_near);
        if near && path.kick() == Some(Kick::Kernel) { Reach::Gpu } else { Reach::System }
    }

    /// Destroys the queue pair; the memory stays. A second call does nothing: the number may be another's by then.
    pub fn end(&self) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            let _ = self.nic.destroy_qp(self.qp.qpn());
        }
    }

    /// Where a queue lies, and the GPU's address of it.
    fn place_of(&self, view: &View) -> (&Place, u64) {
        let found = self.places.iter().find_map(|place| Some((place, place.device_addr(view)?)));
        found.expect("queues lie in the memory that they were given, or are registers")
    }

    /// The kernel's view of a queue: the GPU's address of what the NIC calls `view`.
    fn device_addr(&self, view: &View) -> u64 {
        self.place_of(view).1
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
            ep.qp.window = Window {
                va: w.place.device_addr(&w.view).expect("a window lies in its memory"),
                gather_base: w.mr.iova.0,
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
        self.end();
        if let Some(window) = &self.window {
            self.deregister(window.mr);
        }
        self.deregister(self.local_mr);
    }
}

/// Refuses memory that whoever posts does not reach.
fn reached(path: Path, what: &'static str, place: Place) -> Result<Place, Error> {
    if path.posted_by_gpu() || place.mapped().is_some() {
        return Ok(place);
    }
    let why = "the processor posts on this path, and does not reach a GPU's memory; take host memory, or a kick of a \
               kernel's";
    Err(Error::Unsupported { path, what, why })
}

/// Destroys and deregisters what a constructor had made when a later step failed.
struct Undo {
    nic: Arc<dyn Nic>,
    qp: Option<Qpn>,
    mrs: Vec<Mr>,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(qpn) = self.qp {
            let _ = self.nic.destroy_qp(qpn);
        }
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

/// The longest local ACK timeout with which a queue pair fails within the time that this end waits, so that the wait
/// tells why; until then a peer may be silent, which is stopped for a while and goes on. Not below the usual 67 ms
/// (code 14).
fn ack_timeout_for(timeout: Duration) -> u8 {
    let each = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX) / 8; // with 7 retries
    (14..31).rev().find(|&code| ack_timeout_ns(code).is_some_and(|ns| ns <= each)).unwrap_or(14)
}
