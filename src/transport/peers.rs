//! A table of peers: endpoints to every rank over every rail, and barriers of all ranks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::kernel_posted::KernelPosted;
use super::order::OneStream;
use super::{Address, Endpoint, Error, Memory, Options, Path, Progress, Reach};
use crate::abi::entry::Scope;
use crate::abi::peers::{PeersArgs, PeersOp, PeersStatus};
use crate::abi::wire::{
    Code, DeviceEndpoint, DevicePeers, PEERS_WORDS, QP_STATE_BYTES, RemoteWords,
};
use crate::gpu::{DeviceMem, Dims, Gpu, Kept, Kernel, Mapped, Module, Stream};
use crate::mem::{Dma, PAGE_BYTES};
use crate::nic::{Access, LineFormat, Mr, Nic, NicError, Order};
use crate::wire::Iova;

/// Most ranks of a table.
const MAX_RANKS: u32 = 4096;
/// Most rails.
const MAX_RAILS: u32 = 64;
const _: () = assert!(MAX_RANKS.ilog2() as usize <= PEERS_WORDS);
/// Offset of the own rank's stand-in for a queue pair's state, behind the barriers' progress.
const STAND_IN: usize = 64;

/// A rank's ends for the other ranks' [`Peers::connect`]. Opaque; serialised as text of any kind that serde has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeersAddress {
    rank: u32,
    ranks: u32,
    rails: u32,
    path: String,
    /// By rank and rail; `None` for the rank itself.
    ends: Vec<Option<Address>>,
    /// Address and key of the words of its barriers.
    words: (u64, u32),
}

/// A rank's endpoints to `n - 1` others over `rails` NICs each, all with one local region, and what its barriers need.
///
/// A rail is a NIC of the list that [`Peers::new`] takes; one that is named twice gives two queue pairs. Rails connect
/// NICs of the same place in the lists. There is no endpoint to the rank itself: its own memory is at hand.
///
/// Kernels use [`Peers::device`] (`kernels/include/bellpush/peers.cuh`), the host [`Peers::endpoint`] and the calls
/// here, which are queued on one stream at a time, that of the endpoints' calls.
pub struct Peers {
    address: PeersAddress,
    endpoints: Vec<Option<Endpoint>>,
    device: DevicePeers,
    connected: bool,
    timeout: Duration,
    region: Memory,
    gpu: Arc<Gpu>,
    kernel: Kernel,
    memory: Arc<Reached>,
    _words_mr: Words,
    calls: Mutex<Calls>,
}

impl Drop for Peers {
    /// All queue pairs before any memory, as `Endpoint::end` says.
    fn drop(&mut self) {
        self.endpoints.iter().flatten().for_each(Endpoint::end);
    }
}

/// What kernels reach beside the endpoints' own memory.
struct Reached {
    table: Arc<DeviceMem>,
    remotes: Arc<DeviceMem>,
    /// The barriers' progress, and a queue pair's state for the own rank's entry, which nobody uses but to find it
    /// without an error.
    state: Arc<DeviceMem>,
    words: Memory,
    status: Mapped,
}

/// A registration of the barriers' words.
struct Words(Arc<dyn Nic>, Mr);

impl Drop for Words {
    fn drop(&mut self) {
        // The NIC knows no other owner of the key.
        let _ = self.0.deregister(self.1);
    }
}

#[derive(Default)]
struct Calls {
    order: OneStream,
    /// Calls that were queued since the last wait, each with the waits that it makes at most.
    waits: u32,
    /// The last one's name.
    what: &'static str,
}

impl Peers {
    /// Rank `rank` of `ranks`, not connected yet. `region` is the local region of all endpoints.
    ///
    /// # Errors
    /// [`Error::Option`] for numbers out of range, [`Error::Unsupported`] for a path that the host posts and for `auto`,
    /// [`NicError::Unsupported`] for a NIC without atomics, and as [`Endpoint::new`].
    pub fn new(
        gpu: &Arc<Gpu>,
        nics: &[Arc<dyn Nic>],
        (rank, ranks): (u32, u32),
        path: Path,
        region: Memory,
        options: &Options,
    ) -> Result<Self, Error> {
        let rails = check(nics, (rank, ranks))?;
        let name = kernel_name(path, options.line).ok_or(Error::Unsupported {
            path,
            what: "be used by a table of peers",
            why: "a table has one path, on which kernels post; take kick kernel, blueflame or inband",
        })?;
        let endpoints = (0..ranks)
            .flat_map(|peer| nics.iter().map(move |nic| (peer, nic)))
            .map(|(peer, nic)| {
                let local = region.clone();
                let make = || Endpoint::new(gpu, nic, path, local, options.clone());
                (peer != rank).then(make).transpose()
            })
            .collect::<Result<Vec<_>, _>>()?;
        let on_host = nics[0].is_software() && !gpu.is_host(); // it reaches a GPU's memory by copies alone
        let words: Memory = match on_host {
            true => gpu.alloc_mapped(PAGE_BYTES, options.host_numa)?.into(),
            false => gpu.alloc(PAGE_BYTES)?.into(),
        };
        let access = Access { remote_atomic: true, ..Access::NONE };
        let mr = nics[0].register(words.dma(), Iova(words.addr()), access)?;
        let words_mr = Words(nics[0].clone(), mr);
        let memory = Arc::new(Reached {
            table: gpu.alloc(endpoints.len() * size_of::<DeviceEndpoint>())?,
            remotes: gpu.alloc(ranks as usize * size_of::<RemoteWords>())?,
            state: gpu.alloc(STAND_IN + QP_STATE_BYTES)?,
            words,
            status: gpu.alloc_mapped(size_of::<PeersStatus>(), options.host_numa)?,
        });
        let device = DevicePeers {
            endpoints: memory.table.addr(),
            remotes: memory.remotes.addr(),
            words: memory.words.addr(),
            progress: memory.state.addr(),
            rank,
            n: ranks,
            rails,
            rounds: ranks.next_power_of_two().ilog2(),
        };
        let words = (mr.iova.0, mr.rkey.0);
        let ends = Vec::new();
        let address = PeersAddress { rank, ranks, rails, path: path.to_string(), ends, words };
        let kernel = gpu.load(&Module::builtin())?.kernel(&format!("bp_peers_{name}"))?;
        let (timeout, calls) = (options.timeout, Mutex::default());
        let mut peers = Self {
            address,
            endpoints,
            device,
            connected: false,
            timeout,
            region,
            gpu: gpu.clone(),
            kernel,
            memory,
            _words_mr: words_mr,
            calls,
        };
        peers.note_ends();
        Ok(peers)
    }

    fn note_ends(&mut self) {
        let ends = self.endpoints.iter().map(|e| e.as_ref().map(Endpoint::address));
        self.address.ends = ends.collect();
    }

    /// What the other ranks need for their [`Peers::connect`]: another one after each [`Peers::reset`].
    pub fn address(&self) -> &PeersAddress {
        &self.address
    }

    /// Connects to all ranks, once, and once more after each [`Peers::reset`]. Their addresses are in the order of
    /// ranks, this rank's among them. Returns at once; no rank waits for another.
    ///
    /// # Errors
    /// [`Error::Differs`] before anything is connected, and as [`Endpoint::connect`].
    pub fn connect(&mut self, all: &[PeersAddress]) -> Result<(), Error> {
        if self.connected {
            return Err(Error::AlreadyConnected);
        }
        let addresses = self.addresses(all)?;
        let own = self.stand_in();
        let mut table: Vec<DeviceEndpoint> = Vec::new();
        for (endpoint, address) in self.endpoints.iter_mut().zip(addresses) {
            table.push(match (endpoint, address) {
                (Some(endpoint), Some(to)) => {
                    endpoint.connect(to)?;
                    endpoint.device()?
                }
                _ => own,
            });
        }
        self.memory.table.copy_in(0, bytemuck::cast_slice(&table))?;
        let remote =
            |a: &PeersAddress| RemoteWords { iova: a.words.0, rkey: a.words.1, reserved: 0 };
        let remotes: Vec<RemoteWords> = all.iter().map(remote).collect();
        self.memory.remotes.copy_in(0, bytemuck::cast_slice(&remotes))?;
        self.connected = true;
        Ok(())
    }

    /// Where each endpoint connects to, if all addresses go with this rank's.
    fn addresses(&self, all: &[PeersAddress]) -> Result<Vec<Option<Address>>, Error> {
        let PeersAddress { rank, ranks, rails, ref path, .. } = self.address;
        let differs = |rank, what, theirs: &dyn ToString, ours: &dyn ToString| {
            Err(Error::Differs { rank, what, theirs: theirs.to_string(), ours: ours.to_string() })
        };
        if all.len() != ranks as usize {
            return differs(rank, "a number of addresses", &all.len(), &ranks);
        }
        for (peer, it) in (0..ranks).zip(all) {
            for (what, theirs, ours) in [
                ("the number", it.rank, peer),
                ("ranks", it.ranks, ranks),
                ("rails", it.rails, rails),
            ] {
                if theirs != ours {
                    return differs(peer, what, &theirs, &ours);
                }
            }
            if it.path != *path {
                return differs(peer, "the path", &it.path, path);
            }
        }
        let mut found = Vec::new();
        for (peer, it) in (0..ranks).zip(all) {
            for rail in 0..rails {
                // What the peer made for this rank.
                let end = it.ends.get((rank * rails + rail) as usize).copied().flatten();
                found.push(match (peer == rank, end) {
                    (true, _) => None,
                    (false, Some(to)) => Some(to),
                    (false, None) => {
                        return differs(peer, "endpoints", &"that are none", &"needs them");
                    }
                });
            }
        }
        Ok(found)
    }

    /// The own rank's entry: of no path, so that verbs refuse it; a wait for a signal finds no error.
    fn stand_in(&self) -> DeviceEndpoint {
        let mut ep: DeviceEndpoint = bytemuck::Zeroable::zeroed();
        ep.qp.state = self.memory.state.addr() + STAND_IN as u64;
        ep.qp.timeout_ns = self.timeout.as_nanos().min(u128::from(u64::MAX)) as u64;
        ep
    }

    /// What kernels need (`struct bp_peers`).
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn device(&self) -> Result<DevicePeers, Error> {
        if self.connected { Ok(self.device) } else { Err(Error::NotConnected) }
    }

    /// The endpoint to a rank on a rail; `None` for this rank, and for ranks and rails that there are not.
    pub fn endpoint(&self, rank: u32, rail: u32) -> Option<&Endpoint> {
        let PeersAddress { ranks, rails, .. } = self.address;
        if rank >= ranks || rail >= rails {
            return None;
        }
        self.endpoints[(rank * rails + rail) as usize].as_ref()
    }

    /// This rank, and how many there are.
    pub fn rank(&self) -> (u32, u32) {
        (self.address.rank, self.address.ranks)
    }

    /// Queues a barrier of all ranks (`bp::barrier_all`), behind what the stream has: after it, everything that any
    /// rank had put before its own barrier is there, of rails on several hardware NICs what came by rail 0's
    /// (`docs/peers.md`). What it came to, [`Peers::finish`] says.
    ///
    /// # Errors
    /// [`Error::NotConnected`], [`Error::OtherStream`] also for calls of the endpoints, [`Error::Recording`], and what
    /// the GPU refuses.
    pub fn barrier(&self, stream: &Stream) -> Result<(), Error> {
        self.call(stream, "a barrier", PeersOp::Barrier, 0)
    }

    /// Queues a wait for everything that was posted on all endpoints (`bp::quiet_all`).
    ///
    /// # Errors
    /// As [`Peers::barrier`].
    pub fn quiet(&self, stream: &Stream) -> Result<(), Error> {
        self.call(stream, "a quiet", PeersOp::Quiet, 0)
    }

    /// Queues an all-gather round the ring of ranks: regions have a chunk of `bytes` for each rank, in their order, of
    /// which each rank has filled its own.
    ///
    /// # Errors
    /// As [`Peers::barrier`], and [`Error::Range`] for chunks that the region has no room for.
    pub fn all_gather(&self, stream: &Stream, bytes: u64) -> Result<(), Error> {
        let (len, all) =
            (self.region.bytes() as u64, u64::from(self.address.ranks).checked_mul(bytes));
        if all.is_none_or(|all| all > len) {
            return Err(Error::Range {
                which: "local",
                offset: 0,
                bytes: all.unwrap_or(u64::MAX),
                len,
            });
        }
        self.call(stream, "an all-gather", PeersOp::AllGather, bytes)
    }

    fn call(
        &self,
        stream: &Stream,
        what: &'static str,
        op: PeersOp,
        bytes: u64,
    ) -> Result<(), Error> {
        let peers = self.device()?;
        let mut calls = self.lock();
        calls.order.admit(stream)?;
        // The table's kernel and the endpoints' calls use the same queue pairs. Nobody queues on one meanwhile.
        let mut others: Vec<_> = self.posted().map(KernelPosted::lock).collect();
        others.iter().try_for_each(|its| its.order.admit(stream))?;
        let args = PeersArgs {
            peers,
            op: op as u32,
            scope: Scope::Block as u32,
            local: self.region.addr(),
            bytes,
            status: self.memory.status.addr(),
            count: 1,
            reserved: 0,
        };
        let endpoints = self.posted().map(KernelPosted::reached);
        let kept: Vec<Kept> = endpoints.chain([self.memory.clone() as Kept]).collect();
        // SAFETY: the kernel takes this argument; its addresses are of memory that the stream keeps.
        unsafe { stream.launch_keeping(&self.kernel, Dims::new(1, self.threads()), &args, kept) }?;
        calls.order.queued(stream);
        others.iter_mut().for_each(|its| its.order.queued(stream));
        let entries = peers.n * peers.rails;
        let barrier = entries + 2 * peers.rounds;
        let waits = match op {
            PeersOp::Quiet | PeersOp::Sync | PeersOp::Barrier => barrier,
            PeersOp::AllGather => peers.n * (barrier + peers.rails),
        };
        calls.waits = calls.waits.saturating_add(2 * waits + 1);
        calls.what = what;
        Ok(())
    }

    /// A warp for each endpoint, as far as a block has warps; few fibres on the host executor.
    fn threads(&self) -> u32 {
        let warps = (self.device.n * self.device.rails).min(16);
        if self.gpu.is_host() { 32 * warps.min(2) } else { 32 * warps }
    }

    /// Waits until the calls that were queued have run, and says how they ended: the first failure since the last
    /// `finish`. Bounded by the waits of all calls that are queued, each at most [`Options::timeout`].
    ///
    /// # Errors
    /// [`Error::Peers`]; [`GpuError::Timeout`](crate::gpu::GpuError::Timeout), after which the calls go on;
    /// [`Error::OtherStream`].
    pub fn finish(&self, stream: &Stream) -> Result<(), Error> {
        let mut calls = self.lock();
        calls.order.admit(stream)?;
        stream.synchronize(self.timeout.saturating_mul(calls.waits.saturating_add(1)))?;
        calls.order.waited();
        calls.waits = 0;
        let status = self.memory.status.host();
        // Acquire: pairs with device code, which writes the rank before the code.
        let code = status.load_u32(0, Ordering::Acquire)?;
        let whom = status.load_u32(4, Ordering::Relaxed)?;
        status.store_u32(0, 0, Ordering::Relaxed)?; // launching a kernel orders what was stored before it
        let (what, rank) = (calls.what, self.address.rank);
        Code::check(code).map_err(|code| Error::Peers { what, rank, whom, code })
    }

    /// Takes all endpoints and the barriers back to before [`Peers::connect`], in the same memory
    /// ([`Endpoint::reset`]): every rank does so before any connects again. Returns how far each endpoint had come, by
    /// rank and rail.
    ///
    /// # Errors
    /// [`Error::Busy`] while calls of this table, or of one of its endpoints, are queued: nothing is reset then. As
    /// [`Endpoint::reset`]; after that call it again.
    pub fn reset(&mut self) -> Result<Vec<Option<Progress>>, Error> {
        // Before anything is reset: what was refused goes on as it was.
        if self.lock().order.is_busy() || self.posted().any(KernelPosted::is_busy) {
            return Err(Error::Busy);
        }
        self.connected = false;
        let reset = |e: &mut Option<Endpoint>| e.as_mut().map(Endpoint::reset).transpose();
        let progress = self.endpoints.iter_mut().map(reset).collect::<Result<Vec<_>, _>>()?;
        // After the queue pairs: nobody adds to the words any more.
        self.memory.words.write(0, &[0; PEERS_WORDS * 8])?;
        self.memory.state.write(0, &[0; STAND_IN])?;
        self.memory.status.host().write(0, &[0; size_of::<PeersStatus>()])?;
        *self.lock() = Calls::default();
        self.note_ends();
        Ok(progress)
    }

    fn posted(&self) -> impl Iterator<Item = &KernelPosted> {
        self.endpoints.iter().flatten().filter_map(Endpoint::kernel_posted)
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernel of a path: the strict one, which does for every NIC, but in-band, where there is no doorbell.
fn kernel_name(path: Path, line: LineFormat) -> Option<&'static str> {
    if !path.posted_by_gpu() || path == Path::AUTO {
        return None;
    }
    let name = |order| path.kernel_name(line, order, Reach::System);
    name(Order::Strict).or_else(|| name(Order::Later))
}

/// Refuses numbers out of range and NICs that barriers cannot use; returns the number of rails.
fn check(nics: &[Arc<dyn Nic>], (rank, ranks): (u32, u32)) -> Result<u32, Error> {
    let refuse = |what, value, must| Err(Error::Option { what, value, must });
    if ranks == 0 || ranks > MAX_RANKS {
        return refuse("the number of ranks", ranks.into(), "from 1 to 4096");
    }
    if rank >= ranks {
        return refuse("the rank", rank.into(), "less than the number of ranks");
    }
    if nics.is_empty() || nics.len() > MAX_RAILS as usize {
        return refuse("the number of rails", nics.len() as u64, "from 1 to 64");
    }
    if !nics[0].atomics() {
        let what = "barriers of a table of peers: it has no atomics with results in this machine's byte order";
        return Err(NicError::Unsupported { nic: nics[0].name().into(), what }.into());
    }
    Ok(nics.len() as u32)
}
