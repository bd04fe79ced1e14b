//! Paths whose posts a kernel makes: the endpoint's state in GPU memory, and verbs launched from the
//! host.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytemuck::Zeroable;

use super::order::OneStream;
use super::place::Place;
use super::rdma::Rdma;
use super::reset::Tally;
use super::{
    Address, CompareSwap, Error, FetchAdd, Get, Kick, Local, Memory, Options, Path, Progress, Put,
    Reach, Remote,
};
use crate::abi::entry::{OpArgs, Scope, Verb};
use crate::abi::wire::{Code, DeviceEndpoint, QP_STATE_BYTES, QpState, Status};
use crate::gpu::{DeviceMem, Dims, Gpu, GpuError, Kept, Kernel, Mapped, Module, Stream};
use crate::mem::Dma;
use crate::nic::queue::HostCq;
use crate::nic::{Access, Mr, Nic};

/// Offsets in the auxiliary page: the queue pair's status, the atomics' sink, the verbs' statuses.
const STATUS: usize = 0;
const SINK: usize = 64;
const VERBS: usize = 128;
/// Verbs that may be queued before their statuses are looked at; the last one is a `quiet`.
const MAX_QUEUED: usize = 512;
/// A status that no kernel has written yet; none writes it.
const NOT_RUN: u32 = u32::MAX;
/// Longest payload that a warp copies by itself.
pub(super) const WARP_BYTES: u64 = 4096;
/// Blocks of the longest WQE: its control segment counts at most 63 units of 16 bytes.
const MAX_WQE_BLOCKS: u32 = 16;
const AUX_BYTES: usize = VERBS + MAX_QUEUED * 4;

pub(super) struct KernelPosted {
    pub rdma: Rdma,
    /// What the kernels' fence before a doorbell must reach.
    pub reach: Reach,
    /// What kernels are handed.
    pub device: DeviceEndpoint,
    kick: Option<Kick>,
    state: Arc<DeviceMem>,
    /// Whether a call of the stream has failed that no `quiet` has reported, as `OpArgs::failed`.
    failed: Arc<DeviceMem>,
    aux: Mapped,
    aux_mr: Mr,
    verb: Kernel,
    /// All memory that a verb reaches by address: a stream keeps it until the verb has run, also
    /// when the endpoint goes first.
    reached: Arc<Reached>,
    timeout: Duration,
    /// Held by whoever queues or waits: callers on several threads come one after the other.
    calls: Mutex<Calls>,
}

#[derive(Default)]
pub(super) struct Calls {
    pub order: OneStream,
    /// Names of the verbs whose statuses were not looked at yet; the n-th owns the n-th status.
    queued: Vec<&'static str>,
    /// The first failure that no `quiet` has reported yet.
    failed: Option<(&'static str, Code)>,
    /// A verb whose stream ended before it ran. Nobody knows how far it came.
    not_run: Option<&'static str>,
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
        let kernel = |reach| path.kernel_name(options.line, nic.order(), reach);
        if kernel(Reach::System).is_none() {
            return Err(unsupported);
        }
        let rdma = Rdma::new(gpu, nic, path, local, options)?;
        let reach = rdma.reach(path);
        let name = kernel(reach).ok_or(unsupported)?;
        let verb = gpu.load(&Module::builtin())?.kernel(&format!("bp_verb_{name}"))?;
        let state = gpu.alloc(QP_STATE_BYTES + rdma.sq_blocks as usize * 4)?;
        begin(&state, &QpState::zeroed(), rdma.sq_blocks)?;
        let failed = gpu.alloc(4)?;
        failed.write(0, &[0; 4])?;
        let aux = gpu.alloc_mapped(AUX_BYTES, options.host_numa)?;
        let aux_mr = rdma
            .register(&Memory::Host(aux.clone()), Access { local_write: true, ..Access::NONE })?;
        let mut device = rdma.device(options);
        device.qp.state = state.addr();
        device.qp.ready = state.addr() + QP_STATE_BYTES as u64;
        device.tag = path.tag(options.line, nic.order(), reach);
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
        let (calls, kick) = (Mutex::default(), path.kick());
        Ok(Self {
            rdma,
            reach,
            device,
            kick,
            state,
            failed,
            aux,
            aux_mr,
            verb,
            reached,
            timeout,
            calls,
        })
    }

    /// Calls of both queue pairs, which one stream orders, end with the first failure among them.
    pub fn fail_with(&mut self, other: &Self) {
        self.failed = other.failed.clone();
    }

    pub fn set_peer(&mut self, peer: &Address) {
        self.device.remote_iova = peer.iova;
        self.device.remote_bytes = peer.bytes;
        self.device.remote_rkey = peer.rkey.0;
    }

    /// All memory that kernels reach through `device`, for the streams that run them to keep.
    pub fn reached(&self) -> Kept {
        self.reached.clone()
    }

    pub fn op(&self, verb: Verb, local: Option<Local>, remote: Remote, bytes: u64) -> OpArgs {
        let mut op: OpArgs = bytemuck::Zeroable::zeroed();
        op.ep = self.device;
        op.op = verb as u32;
        op.scope = Scope::Block as u32;
        op.count = 1;
        op.local = local.map_or(0, |local| self.device.local_va + local.0);
        op.remote_offset = remote.0;
        op.bytes = bytes;
        op
    }

    fn call(&self, stream: &Stream, name: &'static str, op: &OpArgs) -> Result<(), Error> {
        self.call_by(&self.verb, stream, name, op)
    }

    /// Queues a verb's kernel, which is compiled for the path in `op.ep.tag`.
    pub fn call_by(
        &self,
        kernel: &Kernel,
        stream: &Stream,
        name: &'static str,
        op: &OpArgs,
    ) -> Result<(), Error> {
        let mut calls = self.lock();
        calls.order.admit(stream)?;
        if calls.queued.len() + 1 >= MAX_QUEUED {
            self.wait(&mut calls, stream)?;
        }
        self.launch(&mut calls, kernel, stream, name, op)
    }

    /// Whether a call may be queued on this stream.
    ///
    /// # Errors
    /// [`Error::OtherStream`], [`Error::Recording`].
    pub fn admit(&self, stream: &Stream) -> Result<(), Error> {
        self.lock().order.admit(stream)
    }

    fn launch(
        &self,
        calls: &mut Calls,
        kernel: &Kernel,
        stream: &Stream,
        name: &'static str,
        op: &OpArgs,
    ) -> Result<(), Error> {
        if let Some(verb) = calls.not_run {
            return Err(Error::NotRun { verb });
        }
        let at = VERBS + calls.queued.len() * 4;
        // Relaxed: launching a kernel orders what was stored before it.
        self.aux.host().store_u32(at, NOT_RUN, Ordering::Relaxed)?;
        let status = self.aux.addr() + at as u64;
        let op = OpArgs { status, failed: self.failed.addr(), ..*op };
        // A warp posts fastest; more threads only where there is payload for them to copy.
        let threads = if op.bytes <= WARP_BYTES { 32 } else { 512 };
        let dims = Dims::new(1, threads);
        let kept = [self.reached.clone() as Kept, self.failed.clone()];
        // SAFETY: the verb takes this argument; its addresses are of memory that `kept` keeps.
        unsafe { stream.launch_keeping(kernel, dims, &op, kept) }?;
        calls.queued.push(name);
        calls.order.queued(stream);
        Ok(())
    }

    /// What is queued, which is the caller's to add to until it lets go.
    pub fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all verbs have run, and keeps the first failure among them for `quiet`.
    fn wait(&self, calls: &mut Calls, stream: &Stream) -> Result<(), Error> {
        if calls.order.is_busy() {
            // A kernel's own wait is bounded by the timeout; twice that covers what was queued before.
            stream.synchronize(self.timeout.saturating_mul(2))?;
            calls.order.waited();
        }
        let aux = self.aux.host();
        for (i, verb) in std::mem::take(&mut calls.queued).into_iter().enumerate() {
            // Acquire: the status before whatever the caller reads next; written by a kernel that
            // has ended.
            match aux.load_u32(VERBS + i * 4, Ordering::Acquire)? {
                NOT_RUN => _ = calls.not_run.get_or_insert(verb),
                raw => {
                    if let Err(code) = Code::check(raw) {
                        calls.failed.get_or_insert((verb, code));
                    }
                }
            }
        }
        Ok(())
    }

    /// The reason as an error, if the queue pair ended.
    pub fn ended(&self) -> Result<(), Error> {
        let aux = self.aux.host();
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

    /// What is pushed, a kernel reads: another GPU's memory may receive, and be pulled, but this GPU's
    /// kernels may not reach it.
    pub fn payload(&self) -> Result<(), Error> {
        match &self.rdma.local {
            Memory::Device(mem)
                if self.rdma.window.is_some() && !Arc::ptr_eq(mem.gpu(), self.state.gpu()) =>
            {
                Err(GpuError::OtherGpu { what: "memory" }.into())
            }
            _ => Ok(()),
        }
    }

    pub fn put(&self, stream: &Stream, put: Put) -> Result<(), Error> {
        self.payload()?;
        let Some(signal) = put.signal else {
            let op = self.op(Verb::Put, Some(put.from), put.to, put.bytes);
            return self.call(stream, "put", &op);
        };
        let mut op = self.op(Verb::PutSignal, Some(put.from), put.to, put.bytes);
        (op.signal_offset, op.value) = (signal.word.0, signal.add);
        self.call(stream, "put_signal", &op)
    }

    pub fn get(&self, stream: &Stream, get: Get) -> Result<(), Error> {
        self.call(stream, "get", &self.op(Verb::Get, Some(get.to), get.from, get.bytes))
    }

    pub fn fetch_add(&self, stream: &Stream, add: FetchAdd) -> Result<(), Error> {
        let mut op = self.op(Verb::FetchAdd, Some(add.old), add.word, 8);
        op.value = add.add;
        self.call(stream, "fetch_add", &op)
    }

    pub fn compare_swap(&self, stream: &Stream, swap: CompareSwap) -> Result<(), Error> {
        let mut op = self.op(Verb::CompareSwap, Some(swap.old), swap.word, 8);
        (op.compare, op.value) = (swap.compare, swap.swap);
        self.call(stream, "compare_swap", &op)
    }

    pub fn quiet(&self, stream: &Stream) -> Result<(), Error> {
        let mut calls = self.lock();
        calls.order.admit(stream)?;
        if calls.queued.len() >= MAX_QUEUED {
            self.wait(&mut calls, stream)?; // a `quiet` before this one gave up
        }
        let op = self.op(Verb::Quiet, None, Remote(0), 0);
        self.launch(&mut calls, &self.verb, stream, "quiet", &op)?;
        self.wait(&mut calls, stream)?;
        if let Some(verb) = calls.not_run {
            return Err(Error::NotRun { verb });
        }
        let Some((verb, code)) = calls.failed.take() else { return Ok(()) };
        self.failed.write(0, &[0; 4])?; // it is reported: calls are carried out again
        self.ended()?; // the queue pair's own reason, if it has one
        Err(Error::Verb { verb, code })
    }

    pub fn max_credits_in_use(&self) -> Result<u32, Error> {
        Ok(self.counters()?.max_credits)
    }

    fn counters(&self) -> Result<QpState, Error> {
        let mut raw = [0; QP_STATE_BYTES];
        self.state.copy_out(0, &mut raw)?;
        Ok(bytemuck::pod_read_unaligned(&raw))
    }

    /// Whether calls of the host's are queued.
    pub fn is_busy(&self) -> bool {
        self.lock().order.is_busy()
    }

    /// Takes the queue pair back to its beginning, with all that kernels count.
    pub fn reset(&mut self) -> Result<Progress, Error> {
        if self.is_busy() {
            return Err(Error::Busy);
        }
        let counters = self.counters()?;
        let failed = match self.ended() {
            Err(Error::Completion { code: Code::CqeError, ticket, .. }) => Some(ticket),
            _ => None,
        };
        let mut tally = Tally::new(counters.reserved, counters.done, failed);
        let q = self.rdma.qp.queues();
        let mut cq = HostCq::at(&q.send_cq, &q.send_cq_dbr, counters.cq_ci);
        self.rdma.reset(&mut cq, &mut tally)?;
        let complete = self.behind_last(tally.progress.complete)?;
        let taken = cq.consumer();
        let start = QpState { cq_ci: taken, cq_ci_reported: taken, ..QpState::zeroed() };
        begin(&self.state, &start, self.rdma.sq_blocks)?;
        self.failed.write(0, &[0; 4])?;
        self.aux.host().write(STATUS, &[0; size_of::<Status>()])?;
        *self.lock() = Calls::default();
        Ok(Progress { complete, ..tally.progress })
    }

    /// `done`, moved to the end of the WQE in whose middle it may be: its CQE names its first block
    /// (`kernels/include/bellpush/impl/completion.cuh`). In-band a WQE has one ticket.
    fn behind_last(&self, done: u64) -> Result<u64, Error> {
        if done == 0 || self.kick == Some(Kick::Inband) {
            return Ok(done);
        }
        let (start, mut word) = (done - 1, [0; 4]);
        let block = (start % u64::from(self.rdma.sq_blocks)) as usize;
        self.state.copy_out(QP_STATE_BYTES + block * 4, &mut word)?;
        let blocks = u32::from_ne_bytes(word).wrapping_sub(start as u32);
        Ok(if (1..=MAX_WQE_BLOCKS).contains(&blocks) { start + u64::from(blocks) } else { done })
    }
}

/// Writes what kernels count, and the ready words of a queue pair that has posted nothing.
fn begin(state: &Arc<DeviceMem>, counters: &QpState, sq_blocks: u32) -> Result<(), Error> {
    state.write(0, bytemuck::bytes_of(counters))?;
    // Each ready word begins with its block's number, which no ticket of the block takes for ready (completion.cuh).
    let ready: Vec<u32> = (0..sq_blocks).collect();
    Ok(state.write(QP_STATE_BYTES, bytemuck::cast_slice(&ready))?)
}

impl Drop for KernelPosted {
    fn drop(&mut self) {
        self.rdma.deregister(self.aux_mr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Executor, HostOptions};
    use crate::nic::soft::{InProcess, SoftConfig, SoftNic};

    /// A stream that is held up: calls beyond the statuses are refused, and the statuses used again later.
    #[test]
    fn no_call_is_queued_beyond_the_statuses() {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let (nic, _engine) = SoftNic::manual(&SoftConfig::new(&InProcess::new())).unwrap();
        let nic: Arc<dyn Nic> = nic;
        let local = Memory::from(gpu.alloc(4096).unwrap());
        let options = Options::default().timeout(Duration::from_millis(5));
        let path = "push/kernel".parse().unwrap();
        let posted = KernelPosted::new(&gpu, &nic, path, local, &options).unwrap();
        let stream = gpu.stream().unwrap();
        let mut held = posted.op(Verb::WaitSignal, None, Remote(0), 0);
        held.local = posted.aux.addr() + SINK as u64;
        held.value = 1;
        held.ep.qp.timeout_ns = 60_000_000_000;
        held.status = posted.aux.addr() + SINK as u64 + 8;
        let kept = [posted.reached.clone() as Kept];
        // SAFETY: as in `launch`.
        unsafe { stream.launch_keeping(&posted.verb, Dims::new(1, 32), &held, kept) }.unwrap();
        let late = |ended: Result<(), Error>| {
            assert!(matches!(ended, Err(Error::Gpu(GpuError::Timeout { .. }))), "{ended:?}");
        };
        let put = Put { from: Local(0), to: Remote(0), bytes: 8, signal: None };
        for _ in 0..MAX_QUEUED - 1 {
            posted.put(&stream, put).unwrap();
        }
        for _ in 0..3 {
            late(posted.put(&stream, put));
            late(posted.quiet(&stream));
            assert_eq!(posted.lock().queued.len(), MAX_QUEUED);
        }
        posted.aux.host().store_u32(SINK, 1, Ordering::Release).unwrap();
        stream.synchronize(Duration::from_secs(30)).unwrap();
        // The put went nowhere: there is no peer.
        let ended = posted.quiet(&stream);
        assert!(
            matches!(ended, Err(Error::Verb { verb: "put", code: Code::Invalid })),
            "{ended:?}"
        );
        posted.quiet(&stream).unwrap();
        assert_eq!(posted.lock().queued.len(), 0);
    }
}
