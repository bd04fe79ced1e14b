//! Paths whose posts a kernel makes: the endpoint's state in GPU memory, and verbs launched from the
//! host.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use super::memory::Place;
use super::rdma::Rdma;
use super::{Address, Error, Memory, Options, Path};
use crate::gpu::args::{
    Code, DeviceEndpoint, OpArgs, QP_STATE_BYTES, QP_STATE_MAX_CREDITS, Scope, Status, Verb,
};
use crate::gpu::{DeviceMem, Dims, Gpu, Kept, Kernel, Mapped, Module, Stream};
use crate::nic::{Access, Mr, Nic};

/// Offsets in the auxiliary page: the queue pair's status, the atomics' sink, the verbs' statuses.
const STATUS: usize = 0;
const SINK: usize = 64;
const VERBS: usize = 128;
/// Verbs that may be queued before their statuses are looked at.
const MAX_QUEUED: usize = 512;
const AUX_BYTES: usize = VERBS + MAX_QUEUED * 4;

pub(super) struct KernelPosted {
    pub rdma: Rdma,
    /// What kernels are handed.
    pub device: DeviceEndpoint,
    state: Arc<DeviceMem>,
    aux: Mapped,
    aux_mr: Mr,
    verb: Kernel,
    /// All memory that a verb reaches by address: a stream keeps it until the verb has run, also
    /// when the endpoint goes first.
    reached: Arc<Reached>,
    timeout: std::time::Duration,
    /// Names of the verbs whose statuses were not looked at yet, in order.
    queued: Mutex<Vec<&'static str>>,
}

struct Reached {
    _state: Arc<DeviceMem>,
    _places: Vec<Place>,
    _aux: Mapped,
    _local: Memory,
}

impl KernelPosted {
    pub fn new(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        path: Path,
        local: Memory,
        options: &Options,
    ) -> Result<Self, Error> {
        let unsupported = Error::Unsupported {
            path,
            what: "be taken by this NIC",
            why: "it needs a doorbell: push/inband is the software NIC's own; take push/kernel",
        };
        let name = path.kernel_name(options.line, nic.order()).ok_or(unsupported)?;
        let verb = gpu.load(&Module::builtin())?.kernel(&format!("bp_verb_{name}"))?;
        let rdma = Rdma::new(gpu, nic, path, local, options)?;
        let state = gpu.alloc(QP_STATE_BYTES + rdma.sq_blocks as usize * 4)?;
        let aux = gpu.alloc_mapped(AUX_BYTES, options.host_numa)?;
        let aux_mr = rdma
            .register(&Memory::Host(aux.clone()), Access { local_write: true, ..Access::NONE })?;
        let mut device = rdma.device(options);
        device.qp.state = state.addr();
        device.qp.ready = state.addr() + QP_STATE_BYTES as u64;
        device.qp.status = aux.addr() + STATUS as u64;
        device.sink_iova = aux_mr.iova.0 + SINK as u64;
        device.sink_lkey = aux_mr.lkey.0;
        let reached = Arc::new(Reached {
            _state: state.clone(),
            _places: rdma.places(),
            _aux: aux.clone(),
            _local: rdma.local.clone(),
        });
        let timeout = options.timeout;
        let queued = Mutex::default();
        Ok(Self { rdma, device, state, aux, aux_mr, verb, reached, timeout, queued })
    }

    pub fn set_peer(&mut self, peer: &Address) {
        self.device.remote_iova = peer.iova;
        self.device.remote_bytes = peer.bytes;
        self.device.remote_rkey = peer.rkey.0;
    }

    fn op(&self, verb: Verb, local: Option<u64>, remote: u64, bytes: u64) -> OpArgs {
        let mut op: OpArgs = bytemuck::Zeroable::zeroed();
        op.ep = self.device;
        op.op = verb as u32;
        op.scope = Scope::Block as u32;
        op.count = 1;
        op.local = local.map_or(0, |offset| self.device.local_va + offset);
        op.remote_offset = remote;
        op.bytes = bytes;
        op
    }

    fn launch(&self, stream: &Stream, name: &'static str, mut op: OpArgs) -> Result<(), Error> {
        let full = self.lock().len() >= MAX_QUEUED - 1; // the last one is quiet's
        if full && op.op != Verb::Quiet as u32 {
            stream.synchronize(self.timeout * 2)?;
            self.check_statuses()?;
        }
        let mut queued = self.lock();
        op.status = self.aux.addr() + (VERBS + queued.len() * 4) as u64;
        // A warp posts fastest; more threads only where there is payload for them to copy.
        let threads = if op.bytes <= 4096 { 32 } else { 512 };
        let dims = Dims::new(1, threads);
        stream.launch_own(&self.verb, dims, &op, [self.reached.clone() as Kept])?;
        queued.push(name);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<&'static str>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first failure among the verbs that have run; the queue pair's own reason if it has one.
    fn check_statuses(&self) -> Result<(), Error> {
        let Some(aux) = self.aux.host() else { return Err(Error::NotConnected) };
        let names = std::mem::take(&mut *self.lock());
        for (i, verb) in names.into_iter().enumerate() {
            // Acquire: the status before whatever the caller reads next; written by a kernel that
            // has ended.
            let raw = aux.load_u32(VERBS + i * 4, Ordering::Acquire)?;
            if let Err(code) = Code::check(raw) {
                self.ended()?;
                return Err(Error::Verb { verb, code });
            }
        }
        Ok(())
    }

    /// The reason as an error, if the queue pair ended.
    pub fn ended(&self) -> Result<(), Error> {
        let Some(aux) = self.aux.host() else { return Ok(()) };
        // Acquire: pairs with device code, which writes the reason before the code.
        let code = aux.load_u32(STATUS, Ordering::Acquire)?;
        let mut raw = [0; size_of::<Status>()];
        aux.read(STATUS, &mut raw)?;
        let status: Status = bytemuck::pod_read_unaligned(&raw);
        match Code::check(code) {
            Ok(()) => Ok(()),
            Err(code) => Err(Error::Completion {
                code,
                syndrome: status.syndrome as u8,
                vendor: (status.syndrome >> 8) as u8,
                ticket: status.ticket,
            }),
        }
    }

    pub fn put(&self, stream: &Stream, local: u64, remote: u64, bytes: u64) -> Result<(), Error> {
        self.launch(stream, "put", self.op(Verb::Put, Some(local), remote, bytes))
    }

    pub fn put_signal(
        &self,
        stream: &Stream,
        local: u64,
        remote: u64,
        bytes: u64,
        signal: u64,
        value: u64,
    ) -> Result<(), Error> {
        let mut op = self.op(Verb::PutSignal, Some(local), remote, bytes);
        op.signal_offset = signal;
        op.value = value;
        self.launch(stream, "put_signal", op)
    }

    pub fn get(&self, stream: &Stream, local: u64, remote: u64, bytes: u64) -> Result<(), Error> {
        self.launch(stream, "get", self.op(Verb::Get, Some(local), remote, bytes))
    }

    pub fn fetch_add(
        &self,
        stream: &Stream,
        remote: u64,
        value: u64,
        result: u64,
    ) -> Result<(), Error> {
        let mut op = self.op(Verb::FetchAdd, Some(result), remote, 8);
        op.value = value;
        self.launch(stream, "fetch_add", op)
    }

    pub fn compare_swap(
        &self,
        stream: &Stream,
        remote: u64,
        compare: u64,
        swap: u64,
        result: u64,
    ) -> Result<(), Error> {
        let mut op = self.op(Verb::CompareSwap, Some(result), remote, 8);
        op.value = swap;
        op.compare = compare;
        self.launch(stream, "compare_swap", op)
    }

    pub fn quiet(&self, stream: &Stream) -> Result<(), Error> {
        self.launch(stream, "quiet", self.op(Verb::Quiet, None, 0, 0))?;
        // The kernel's own wait is bounded by the timeout; twice that covers what was queued before.
        stream.synchronize(self.timeout * 2)?;
        self.check_statuses()
    }

    pub fn max_credits_in_use(&self) -> Result<u32, Error> {
        let mut raw = [0; 4];
        self.state.copy_out(QP_STATE_MAX_CREDITS, &mut raw)?;
        Ok(u32::from_ne_bytes(raw))
    }
}

impl Drop for KernelPosted {
    fn drop(&mut self) {
        self.rdma.deregister(self.aux_mr);
    }
}
