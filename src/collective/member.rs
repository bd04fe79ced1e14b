//! A rank before it is connected: options, memory, endpoints.

use std::sync::Arc;
use std::time::Duration;

use super::address::RankAddress;
use super::communicator::{ALIKE, Communicator, Inner};
use super::layout::Layout;
use super::{Algorithm, Error};
use crate::abi::collective::{CHANNEL_BYTES, CollStatus, SHARED_BYTES};
use crate::abi::wire::DeviceEndpoint;
use crate::gpu::{Gpu, MAX_BLOCK, Module};
use crate::nic::{Nic, NicError, Order};
use crate::transport::{self, Data, Endpoint, Kick, Memory, Path, Reach};

/// Most ranks of a communicator: each has queue pairs to every other one.
pub const MAX_RANKS: u32 = 64;
/// Longest timeout, a year: several of them in nanoseconds still fit in 64 bits.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);
/// Most channels. All blocks of a launch must be resident at once: each channel has one block of
/// 512 threads, or two of 256, and a multiprocessor holds one or two of these.
const MAX_CHANNELS: u32 = 64;
/// The kernels' `BP_MAX_THREADS`.
pub(super) const MAX_THREADS: u32 = 512;
const _: () = assert!(MAX_THREADS <= MAX_BLOCK);

/// Place of a rank's region, to which the NICs of the other ranks write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// GPU memory if the NIC reaches it. Mapped host memory for the software NIC with a CUDA GPU,
    /// whose memory that NIC reaches only through the copy engine.
    Auto,
    /// GPU memory.
    Gpu,
    /// Mapped host memory.
    Host,
}

/// Options of a communicator: [`Options::new`], and a method for each option that differs from it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Path of the messages: one on which kernels post.
    pub path: Path,
    /// Algorithm; `None` chooses one by the call's length and the number of ranks.
    pub algorithm: Option<Algorithm>,
    /// Most channels of a call. A channel has queue pairs of its own to every rank, and one block
    /// of the launch, or two (a sending and a receiving one).
    pub channels: u32,
    /// Bytes of a call per channel between two ranks; with more ranks twice as many.
    pub channel_bytes: u64,
    /// Longest call of two ranks for which LL messages are the default algorithm, in bytes that
    /// a rank sends to the other; with more ranks half as much, to all others together.
    pub ll_bytes: u64,
    /// Most LL messages of a call that a rank sends to all others, one per channel and rank. A
    /// call has more if it would not fit otherwise.
    pub ll_messages: u32,
    /// Largest payload of a message in bytes, a multiple of 64. `None`: 64 KiB with two ranks and
    /// less with more, see [`Options::chunk`].
    pub chunk_bytes: Option<u32>,
    /// Smallest payload of a one-shot or two-shot message, in bytes. A channel's elements travel in
    /// up to three messages, or in four scattered and four gathered ones, if those are at least
    /// this long.
    pub message_bytes: u64,
    /// Threads per block; with CUDA rounded up to whole warps. `None`: on CUDA one per unit of a
    /// LL call, and 256 or 512 in other calls; few on the host executor, where each thread is a
    /// fibre.
    pub threads: Option<u32>,
    /// Place of the region.
    pub region: Place,
    /// Bound of each wait for another rank. It must exceed a rank's longest pause between two
    /// calls, such as a checkpoint.
    pub timeout: Duration,
    /// Bytes of a queue pair's window. `None`: 512 KiB with two ranks and less with more, see
    /// [`Options::window`].
    pub window_bytes: Option<u64>,
    /// Slots and queues of the endpoints. Their timeout and window size are ignored.
    pub endpoint: transport::Options,
    /// Whether messages are awaited before they are read.
    pub(super) waits: bool,
}

impl Options {
    /// The default options with this path.
    pub fn new(path: Path) -> Self {
        Self {
            path,
            algorithm: None,
            channels: 24,
            channel_bytes: 8 << 10,
            ll_bytes: 192 << 10,
            ll_messages: 24,
            chunk_bytes: None,
            message_bytes: 12 << 10,
            threads: None,
            region: Place::Auto,
            window_bytes: None,
            timeout: Duration::from_secs(300),
            // A slot holds any LL message in any line format: up to 8 KiB, and a third more for
            // its flags. Kernels build a message at once if it fits in the slot's lines.
            endpoint: transport::Options::default().slot_bytes(16 << 10),
            waits: true,
        }
    }

    setters! {
        path: Path,
        algorithm: Option<Algorithm>,
        channels: u32,
        channel_bytes: u64,
        ll_bytes: u64,
        ll_messages: u32,
        chunk_bytes: Option<u32>,
        message_bytes: u64,
        threads: Option<u32>,
        region: Place,
        timeout: Duration,
        window_bytes: Option<u64>,
        endpoint: transport::Options,
    }

    /// `false` is a negative control: messages are read without a wait for them.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn waits(self, waits: bool) -> Self {
        Self { waits, ..self }
    }

    /// Largest payload of a message with `ranks` ranks, in bytes. A rank has slots for eight
    /// messages to and from every other rank on every channel, so that a constant size would need
    /// memory that grows with the square of the ranks. The bytes that all ranks access at once
    /// should stay in the shared cache of their host (measured: docs/results/allreduce-h200.md).
    pub fn chunk(&self, ranks: u32) -> u32 {
        let by_ranks = (128 << 10) / ranks.clamp(2, MAX_RANKS).next_power_of_two();
        self.chunk_bytes.unwrap_or(by_ranks.max(4 << 10))
    }

    /// Bytes of a queue pair's window with `ranks` ranks. A rank has one window for every other
    /// rank on every channel. Credits return four times per window, so the latency of LL calls
    /// depends on its size (measured: docs/results/allreduce-h200.md).
    pub fn window(&self, ranks: u32) -> u64 {
        let by_ranks = (1 << 20) / u64::from(ranks.clamp(2, 8)).next_power_of_two();
        self.window_bytes.unwrap_or(by_ranks)
    }

    /// Time for which a rank that gives up listens for the others' reasons and waits for the
    /// delivery of its own. With the host's polling interval the sum stays below a second.
    pub(super) fn grace(&self) -> Duration {
        (self.timeout / 4).min(Duration::from_millis(800))
    }

    pub(super) fn check(&self, rank: u32, ranks: u32) -> Result<(), Error> {
        let refuse = |what, value, must| Err(Error::Option { what, value, must });
        if ranks == 0 || ranks > MAX_RANKS {
            return refuse("the number of ranks", ranks.into(), "from 1 to 64");
        }
        if rank >= ranks {
            return refuse("the rank", rank.into(), "less than the number of ranks");
        }
        if self.channels == 0 || self.channels > MAX_CHANNELS {
            return refuse("the number of channels", self.channels.into(), "from 1 to 64");
        }
        if self.ll_messages == 0 {
            return refuse("the number of messages of LL calls", 0, "more than 0");
        }
        if self.channel_bytes == 0 {
            return refuse("bytes a channel", 0, "more than 0");
        }
        let chunk = self.chunk(ranks);
        if chunk == 0 || !chunk.is_multiple_of(64) || chunk > 16 << 20 {
            let must = "a multiple of 64 bytes, at most 16 MiB";
            return refuse("the chunk size", chunk.into(), must);
        }
        if let Some(threads) = self.threads
            && (threads == 0
                || threads > MAX_THREADS
                || (threads > 32 && !threads.is_multiple_of(32)))
        {
            return refuse("threads a block", threads.into(), "1 to 32, or whole warps to 512");
        }
        if self.timeout.is_zero() || self.timeout > MAX_TIMEOUT {
            return refuse(
                "the timeout in s",
                self.timeout.as_secs(),
                "more than 0, at most a year",
            );
        }
        if !self.path.posted_by_gpu() {
            return Err(Error::Transport(transport::Error::Unsupported {
                path: self.path,
                what: "carry a collective",
                why: "the host posts on this path; take kick kernel, blueflame or inband",
            }));
        }
        Ok(())
    }

    /// The options that all ranks must share: they determine the places and the cutting of
    /// messages.
    fn shared(&self, ranks: u32, nics: usize, on_host: bool) -> Vec<(String, String)> {
        let named = |name: &str, value: &dyn std::fmt::Display| (name.into(), value.to_string());
        vec![
            named("version", &env!("CARGO_PKG_VERSION")),
            // Builds of one version may differ in these.
            named("constants", &format!("{ALIKE:?}")),
            named("ranks", &ranks),
            named("NICs", &nics),
            named("channels", &self.channels),
            named("bytes a channel", &self.channel_bytes),
            named("bytes of LL calls", &self.ll_bytes),
            named("messages of LL calls", &self.ll_messages),
            named("chunk size", &self.chunk(ranks)),
            named("bytes of a message at least", &self.message_bytes),
            // The algorithm of long calls depends on it.
            named("memory of regions", &if on_host { "host" } else { "GPU" }),
        ]
    }
}

/// A rank that has its memory and endpoints, but is not connected yet.
pub struct Member {
    address: RankAddress,
    inner: Inner,
}

impl Member {
    /// Creates rank `rank` of `ranks`. Channels are assigned to the NICs in turn. All ranks have
    /// the same number of NICs; a channel's queue pairs connect NICs at the same position of the
    /// list.
    ///
    /// # Errors
    /// [`Error::Option`] for a value out of range, [`NicError::Unsupported`] on a card, and errors of the GPU and the
    /// NICs.
    pub fn new(
        gpu: &Arc<Gpu>,
        nics: &[Arc<dyn Nic>],
        rank: u32,
        ranks: u32,
        options: &Options,
    ) -> Result<Self, Error> {
        options.check(rank, ranks)?;
        let nic = one_kind(nics)?;
        if nic.order() == Order::Strict {
            let what = "all-reduce: its kernels are for NICs that take the later of doorbell record and doorbell";
            return Err(transport::Error::from(NicError::Unsupported {
                nic: nic.name().into(),
                what,
            })
            .into());
        }
        let channels = options.channels;
        // A communicator of one rank copies on all channels, and sends nothing.
        let sending = if ranks == 1 { 1 } else { channels };
        let layout = Layout::new(ranks.into(), sending.into(), options.chunk(ranks).into());
        let pull = options.path.data() == Data::Pull;
        let bytes = if pull { layout.stage + layout.stage_bytes } else { layout.received };
        let on_host = match options.region {
            Place::Auto => nic.is_software() && !gpu.is_host(),
            Place::Gpu => false,
            Place::Host => true,
        };
        let region: Memory = match on_host {
            true => gpu.alloc_mapped(bytes as usize, options.endpoint.host_numa)?.into(),
            false => gpu.alloc(bytes as usize)?.into(),
        };
        // The NIC reads what it pulls; only this GPU reads what is pushed.
        let stage = match pull {
            true => None,
            false => Some(gpu.alloc(layout.stage_bytes as usize)?),
        };
        let endpoint =
            options.endpoint.clone().timeout(options.timeout).window_bytes(options.window(ranks));
        let mut endpoints = Vec::new();
        for (channel, peer) in (0..channels as usize).flat_map(|c| (0..ranks).map(move |r| (c, r)))
        {
            endpoints.push(match peer == rank {
                true => None,
                false => {
                    let (nic, region) = (&nics[channel % nics.len()], region.clone());
                    Some(Endpoint::new(gpu, nic, options.path, region, endpoint.clone())?)
                }
            });
        }
        let ends = endpoints.iter().map(|e| e.as_ref().map(Endpoint::address));
        let address = RankAddress {
            rank,
            gpu: gpu.describe().pci.clone(),
            options: options.shared(ranks, nics.len(), on_host),
            endpoints: ends.collect(),
        };

        let name = options.path.kernel_name(options.endpoint.line, nic.order(), Reach::System);
        let name = name.unwrap_or_default();
        let kernels = gpu.load(&Module::builtin())?;
        let table = gpu.alloc(endpoints.len() * size_of::<DeviceEndpoint>())?;
        let state = gpu.alloc(SHARED_BYTES + channels as usize * CHANNEL_BYTES)?;
        let status = gpu.alloc_mapped(2 * size_of::<CollStatus>(), options.endpoint.host_numa)?;
        let inner = Inner {
            gpu: gpu.clone(),
            rank,
            ranks,
            sharing: ranks,
            channels,
            options: options.clone(),
            layout,
            all_reduce: kernels.kernel(&format!("bp_all_reduce_{name}"))?,
            all_reduce_ll: kernels.kernel(&format!("bp_all_reduce_ll_{name}"))?,
            drain: kernels.kernel(&format!("bp_drain_{name}"))?,
            endpoints,
            region,
            stage,
            table,
            state,
            status,
        };
        Ok(Self { address, inner })
    }

    /// The address that the other ranks pass to [`Member::connect`].
    pub fn address(&self) -> &RankAddress {
        &self.address
    }

    /// Connects to all ranks. Their addresses are given in the order of ranks and include this
    /// rank's.
    ///
    /// # Errors
    /// [`Error::Differs`] when a rank has other options, and errors of the NIC.
    pub fn connect(mut self, ranks: &[RankAddress]) -> Result<Communicator, Error> {
        let Inner { rank, ranks: n, channels, .. } = self.inner;
        let differs = |rank, what, theirs: String, ours: String| {
            Err(Error::Differs { rank, what, theirs, ours })
        };
        if ranks.len() != n as usize {
            return differs(rank, "addresses", ranks.len().to_string(), n.to_string());
        }
        for (peer, address) in (0..n).zip(ranks) {
            if address.rank != peer {
                return differs(peer, "rank", address.rank.to_string(), peer.to_string());
            }
            if address.options != self.address.options {
                let text = |options: &[(String, String)]| {
                    let all: Vec<_> = options.iter().map(|(n, v)| format!("{n} {v}")).collect();
                    all.join(", ")
                };
                let (theirs, ours) = (text(&address.options), text(&self.address.options));
                return differs(peer, "options", theirs, ours);
            }
        }
        let mut table = Vec::new();
        for (index, endpoint) in self.inner.endpoints.iter_mut().enumerate() {
            let (channel, peer) = (index as u32 / n, index as u32 % n);
            let Some(endpoint) = endpoint else {
                table.push(bytemuck::Zeroable::zeroed());
                continue;
            };
            let theirs = ranks[peer as usize].endpoints.get((channel * n + rank) as usize);
            match theirs.copied().flatten() {
                Some(to) => endpoint.connect(to)?,
                None => {
                    let ours = format!("{} channels of {n} ranks", channels);
                    return differs(peer, "endpoints", "that are none".into(), ours);
                }
            }
            table.push(endpoint.device()?);
        }
        self.inner.table.copy_in(0, bytemuck::cast_slice(&table))?;
        let gpu = &self.address.gpu;
        self.inner.sharing = ranks.iter().filter(|other| other.gpu == *gpu).count().max(1) as u32;
        Ok(Communicator::new(self.inner))
    }
}

/// Any of a rank's NICs, where only their kind matters.
fn one_kind(nics: &[Arc<dyn Nic>]) -> Result<&Arc<dyn Nic>, Error> {
    let what = "the number of a rank's NICs";
    let first = nics.first().ok_or(Error::Option { what, value: 0, must: "more than 0" })?;
    let kind = |nic: &Arc<dyn Nic>| (nic.is_software(), nic.order());
    match nics.iter().position(|nic| kind(nic) != kind(first)) {
        None => Ok(first),
        Some(n) => {
            let (what, must) = ("a rank's NIC", "of the first one's kind");
            Err(Error::Option { what, value: n as u64, must })
        }
    }
}

/// The paths that carry collectives, for programs that list them.
impl Options {
    /// Paths with which a communicator can be created.
    pub fn paths() -> impl Iterator<Item = Path> {
        Path::ALL.into_iter().filter(|path| {
            path.posted_by_gpu()
                && matches!(path.kick(), Some(Kick::Kernel | Kick::Blueflame | Kick::Inband))
        })
    }
}
