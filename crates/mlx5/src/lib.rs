//! Real NICs: mlx5 devices (ConnectX-4 and later) through libibverbs and libmlx5.
//!
//! Verbs make the objects; posting and polling are ours, by CPU or GPU, with the same bytes as for
//! the software NIC. So this module has no data path: it places rings and doorbell records in memory
//! that the caller's GPU has mapped, finds the doorbell register and device memory, and connects.
//!
//! | file | what |
//! |---|---|
//! | `device` | devices, ports and addresses; `gid`: which address |
//! | `events` | what goes wrong outside of requests |
//! | `qp` | queue pairs; `pool`: whence libmlx5 takes their memory |
//! | `memory` | regions and device memory |
//! | `object` | the order in which objects go |
//! | `dv`, `bindings` | libmlx5's direct verbs, loaded by name |
//! | `verbs` | verbs that are inline functions in C |
//!
//! What silicon does differently from the software NIC is stated in `docs/hardware.md`.

#[allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]
#[rustfmt::skip]
mod bindings;
mod device;
mod dv;
mod error;
mod events;
mod gid;
mod memory;
mod object;
mod pool;
mod qp;
mod verbs;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_sys::{ibv_alloc_pd, ibv_dealloc_pd, ibv_pd};

pub use device::{DeviceName, Marks, devices};
pub use error::Mlx5Error;

use crate::device::Device;
use crate::memory::Regions;
use crate::object::{Destroy, Object};
use crate::qp::Qp;
use bellpush_mem::Dma;
use bellpush_nic::{Access, Dm, Mr, Nic, NicError, Order, QpAttr, QueueMemory, QueuePair};
use bellpush_wire::{Iova, Psn, Qpn};

/// What the software device of `bellpush run` calls itself, somewhere in its firmware version or
/// board.
const SOFTWARE_MARK: &str = "bellpush";

/// An mlx5 device, opened by name.
pub struct Mlx5Nic {
    // Fields go in this order: queue pairs, then regions, then the domain.
    qps: Mutex<HashMap<u32, Arc<Qp>>>,
    regions: Regions,
    pd: Arc<Object<ibv_pd>>,
    device: Arc<Device>,
    software: bool,
    random: RandomState,
    /// Queue pairs so far.
    created: AtomicU64,
}

impl Mlx5Nic {
    /// Opens a device.
    ///
    /// # Errors
    /// One line that says what is missing: the device, the right to open it, libmlx5 or one of its
    /// functions, a capability, an active port, an address.
    pub fn open(name: &DeviceName) -> Result<Arc<Self>, NicError> {
        let device = Arc::new(Device::open(name)?);
        let how = (ibv_dealloc_pd as Destroy<ibv_pd>, "ibv_dealloc_pd");
        // SAFETY: an open context; null or a fresh domain that this alone frees.
        let pd = unsafe {
            let raw = ibv_alloc_pd(device.context().as_ptr());
            Arc::new(Object::take(&device, raw, "ibv_alloc_pd", how, device.clone())?)
        };
        let board = format!("/sys/class/infiniband/{}/board_id", device.name);
        let board = std::fs::read_to_string(board).unwrap_or_default();
        let software = [&device.firmware, &board].iter().any(|s| s.contains(SOFTWARE_MARK));
        let (qps, regions) = (Mutex::default(), Regions::default());
        let (random, created) = (RandomState::new(), AtomicU64::new(0));
        Ok(Arc::new(Self { qps, regions, pd, device, software, random, created }))
    }

    fn qps(&self) -> MutexGuard<'_, HashMap<u32, Arc<Qp>>> {
        self.qps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Mlx5Nic {
    fn drop(&mut self) {
        for (_, qp) in self.qps().drain() {
            let _ = qp.destroy(); // what it used is kept then
        }
    }
}

impl Nic for Mlx5Nic {
    fn name(&self) -> &str {
        &self.device.name
    }

    fn is_software(&self) -> bool {
        self.software
    }

    fn order(&self) -> Order {
        Order::Strict
    }

    fn atomics(&self) -> bool {
        self.device.atomics
    }

    fn dm_bytes(&self) -> u64 {
        self.device.max_dm_bytes
    }

    fn trouble(&self) -> Option<NicError> {
        self.device.trouble(&[]).map(NicError::from)
    }

    fn register(&self, mem: Arc<dyn Dma>, iova: Iova, access: Access) -> Result<Mr, NicError> {
        self.regions.register(&self.device, &self.pd, mem, iova, access)
    }

    fn deregister(&self, mr: Mr) -> Result<(), NicError> {
        self.regions.deregister(mr)
    }

    fn alloc_dm(&self, bytes: usize) -> Result<Option<Dm>, NicError> {
        self.regions.alloc_dm(&self.device, &self.pd, bytes)
    }

    fn queue_bytes(&self, attr: &QpAttr) -> usize {
        qp::queue_bytes(attr)
    }

    fn create_qp(
        &self,
        attr: &QpAttr,
        memory: QueueMemory,
    ) -> Result<Arc<dyn QueuePair>, NicError> {
        let QueueMemory { main: memory, sq: None, dbr: None, send_cq: None } = memory else {
            let what = "a send queue, doorbell record or CQ in memory of its own (Options::sq_place, dbr_place, \
                        cq_place): libmlx5 lays all queues out in one piece of host memory. Leave them out, or take \
                        host";
            return Err(NicError::Unsupported { nic: self.name().into(), what });
        };
        // Memory is used again, at the same address: packets to its last queue pair must not fit.
        let count = self.created.fetch_add(1, Ordering::Relaxed);
        let psn = Psn::new(self.random.hash_one((memory.addr(), count)) as u32);
        let qp = Qp::create(&self.device, &self.pd, attr, memory, psn)?;
        self.qps().insert(qp.qpn().0, qp.clone());
        Ok(qp)
    }

    fn destroy_qp(&self, qpn: Qpn) -> Result<(), NicError> {
        let qp = self.qps().remove(&qpn.0).ok_or(NicError::NoSuchQp(qpn.0))?;
        qp.destroy()
    }
}
