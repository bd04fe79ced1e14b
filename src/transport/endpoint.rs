//! The endpoint: its connection, and the calls that are the same on every path.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::address::Text;
use super::auto_posted::AutoPosted;
use super::host_posted::HostPosted;
use super::kernel_posted::KernelPosted;
use super::receives::Receives;
use super::tcp::Tcp;
use super::{
    CompareSwap, Data, Error, FetchAdd, Get, Local, Memory, Options, Path, Progress, Put, Reach,
    Remote, Signal, Tuning,
};
use crate::abi::wire::{Code, DeviceAutoEndpoint, DeviceEndpoint};
use crate::gpu::{Gpu, Stream};
use crate::nic::{Nic, QpAddress};
use crate::wire::Rkey;

/// What a peer needs to know to connect and to address the region. It crosses processes and hosts as text of any kind
/// that serde has; whoever reads a tcp endpoint's can connect to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "Text")]
pub struct Address {
    /// How to reach the endpoint.
    pub link: Link,
    /// Address of the region's first byte in WQEs.
    pub iova: u64,
    /// Key of the region.
    pub rkey: Rkey,
    /// Length of the region in bytes.
    pub bytes: u64,
}

/// How an endpoint is reached. `Debug` leaves the key out: what is logged lets nobody connect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// A queue pair.
    Qp(QpAddress),
    /// A TCP listener.
    Tcp {
        /// Its address, on the loopback interface.
        listener: SocketAddr,
        /// What a connection has to begin with: every user of the machine reaches the listener.
        key: u128,
    },
    /// The two queue pairs of an auto endpoint.
    Auto {
        /// The one with a doorbell.
        bell: QpAddress,
        /// The in-band one, where it has one.
        inband: Option<QpAddress>,
    },
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qp(qp) => f.debug_tuple("Qp").field(qp).finish(),
            Self::Tcp { listener, key: _ } => {
                f.debug_struct("Tcp").field("listener", listener).finish_non_exhaustive()
            }
            Self::Auto { bell, inband } => {
                f.debug_struct("Auto").field("bell", bell).field("inband", inband).finish()
            }
        }
    }
}

/// One end of a connection: a path, a local region, a peer's region.
///
/// `put` and its kin are queued on a stream, after the work that wrote the payload; they return when
/// they are queued. [`Endpoint::quiet`] waits for all of them and reports the first error.
///
/// Calls are made on one stream at a time, because nothing orders two: one on another stream is
/// [`Error::OtherStream`] until `quiet`, or [`Stream::synchronize`] on the first, has waited. (`tcp` and paths with the
/// kick `cpu` have nothing queued when a call returns, and take any stream.) Threads may call at once, and take turns.
pub struct Endpoint {
    path: Path,
    options: Options,
    local_bytes: u64,
    peer: Option<Address>,
    receives: Option<Mutex<Receives>>,
    /// The peer before the last reset, whose address must be another now.
    before: Option<Address>,
    inner: Inner,
}

enum Inner {
    Kernel(KernelPosted),
    Auto(Box<AutoPosted>),
    Host(HostPosted),
    Tcp(Tcp),
}

impl Endpoint {
    /// An endpoint whose local region is `local`, not connected yet. `nic` is not used by `tcp`.
    ///
    /// # Errors
    /// [`Error::Option`] for options out of range, and what GPU and NIC refuse.
    pub fn new(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        path: Path,
        local: Memory,
        options: Options,
    ) -> Result<Self, Error> {
        options.check(path)?;
        let local_bytes = local.bytes() as u64;
        let inner = match path.kick() {
            _ if path == Path::AUTO => {
                Inner::Auto(Box::new(AutoPosted::new(gpu, nic, local, &options)?))
            }
            None => Inner::Tcp(Tcp::new(gpu, local, &options)?),
            Some(_) if path.posted_by_gpu() => {
                Inner::Kernel(KernelPosted::new(gpu, nic, path, local, &options)?)
            }
            Some(_) => Inner::Host(HostPosted::new(gpu, nic, path, local, &options)?),
        };
        let (peer, before, receives) = (None, None, None);
        Ok(Self { path, options, local_bytes, peer, before, receives, inner })
    }

    /// Two endpoints of one process, connected with each other.
    ///
    /// # Errors
    /// As [`Endpoint::new`].
    pub fn pair(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        path: Path,
        (a, b): (Memory, Memory),
        options: Options,
    ) -> Result<(Self, Self), Error> {
        Self::between(gpu, [nic, nic], path, (a, b), &options)
    }

    /// Two endpoints of one process, each on a NIC, connected with each other.
    ///
    /// # Errors
    /// As [`Endpoint::new`].
    pub fn between(
        gpu: &Arc<Gpu>,
        [nic_a, nic_b]: [&Arc<dyn Nic>; 2],
        path: Path,
        (a, b): (Memory, Memory),
        options: &Options,
    ) -> Result<(Self, Self), Error> {
        let mut a = Self::new(gpu, nic_a, path, a, options.clone())?;
        let mut b = Self::new(gpu, nic_b, path, b, options.clone())?;
        let (to_a, to_b) = (a.address(), b.address());
        a.connect(to_b)?;
        b.connect(to_a)?;
        Ok((a, b))
    }

    /// The path.
    pub fn path(&self) -> Path {
        self.path
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The scope of the fence that a kernel needs before a doorbell of this endpoint: with which `bp::reach` it is to
    /// be compiled, the weaker of the two that it may have. It follows from where queues, window and local region lie
    /// ([`Options::sq_place`] and its kin). Where no kernel rings, [`Reach::System`].
    pub fn reach(&self) -> Reach {
        match &self.inner {
            Inner::Kernel(posted) => posted.reach,
            Inner::Auto(posted) => posted.bell.reach,
            Inner::Host(_) | Inner::Tcp(_) => Reach::System,
        }
    }

    /// What the peer needs for its [`Endpoint::connect`].
    pub fn address(&self) -> Address {
        match &self.inner {
            Inner::Kernel(posted) => posted.rdma.address(),
            Inner::Auto(posted) => posted.address(),
            Inner::Host(posted) => posted.rdma.address(),
            Inner::Tcp(tcp) => tcp.address(),
        }
    }

    /// Ends the connection, and keeps the memory until the drop: an engine on a GPU, for whose launches calls wait that
    /// give a GPU's memory back, is launched no more once it has no queue pair.
    pub(crate) fn end(&self) {
        match &self.inner {
            Inner::Kernel(posted) => posted.rdma.end(),
            Inner::Auto(posted) => posted.end(),
            Inner::Host(posted) => posted.rdma.end(),
            Inner::Tcp(_) => {}
        }
    }

    /// Connects to a peer, once, and once more after each [`Endpoint::reset`].
    ///
    /// # Errors
    /// [`Error::AlreadyConnected`], [`Error::PeerRegion`], [`Error::PeerNotReset`], [`Error::OtherLink`], and what the
    /// NIC or the system refuses.
    pub fn connect(&mut self, peer: Address) -> Result<(), Error> {
        if self.peer.is_some() {
            return Err(Error::AlreadyConnected);
        }
        if self.before.is_some_and(|before| before.link == peer.link) {
            return Err(Error::PeerNotReset);
        }
        // Every address of the region can be named, which nothing checks later.
        let Address { iova, bytes, .. } = peer;
        if iova.checked_add(bytes).is_none() {
            return Err(Error::PeerRegion { iova, bytes });
        }
        let path = self.path;
        match (&mut self.inner, peer.link) {
            (Inner::Kernel(posted), Link::Qp(qp)) => {
                posted.rdma.qp.connect(qp)?;
                posted.set_peer(&peer);
            }
            (Inner::Host(posted), Link::Qp(qp)) => posted.rdma.qp.connect(qp)?,
            (Inner::Tcp(tcp), Link::Tcp { listener, key }) => tcp.connect(listener, key)?,
            (Inner::Auto(posted), Link::Auto { bell, inband }) => {
                posted.connect(&peer, bell, inband)?;
            }
            (_, Link::Auto { .. }) => {
                return Err(Error::OtherLink { path, theirs: "an auto endpoint" });
            }
            (_, Link::Qp(_)) => return Err(Error::OtherLink { path, theirs: "a queue pair" }),
            (_, Link::Tcp { .. }) => {
                return Err(Error::OtherLink { path, theirs: "a TCP listener" });
            }
        }
        if self.options.receives != 0 {
            let qp = match &self.inner {
                Inner::Kernel(posted) => &posted.rdma.qp,
                Inner::Host(posted) => &posted.rdma.qp,
                Inner::Tcp(_) | Inner::Auto(_) => unreachable!("Options::check refuses receives"),
            };
            let before = self
                .receives
                .take()
                .map(|it| it.into_inner().unwrap_or_else(PoisonError::into_inner));
            self.receives = Some(Mutex::new(Receives::post_all(&**qp, before)?));
        }
        self.peer = Some(peer);
        Ok(())
    }

    /// Takes the oldest immediate that the peer has sent (`bp::put_imm`, `bp::signal_imm`), and makes room for another;
    /// `None` if none has come. What the peer put before it is in the local region. Needs [`Options::receives`].
    ///
    /// # Errors
    /// [`Error::NotConnected`]; [`Error::Option`] without receives; [`Error::Completion`] once the queue pair has ended,
    /// once for each receive that was left.
    pub fn poll_immediate(&self) -> Result<Option<u32>, Error> {
        self.peer.ok_or(Error::NotConnected)?;
        let must = "at least 1 for immediates: say so in the endpoint's options";
        let none = Error::Option { what: "the number of receives", value: 0, must };
        let receives = self.receives.as_ref().ok_or(none)?;
        receives.lock().unwrap_or_else(PoisonError::into_inner).poll()
    }

    /// What kernels need to call the device verbs with this endpoint.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on paths that the host posts, [`Error::NotConnected`].
    pub fn device(&self) -> Result<DeviceEndpoint, Error> {
        match &self.inner {
            Inner::Kernel(posted) => self.peer.map(|_| posted.device).ok_or(Error::NotConnected),
            Inner::Auto(_) => Err(Error::Unsupported {
                path: self.path,
                what: "be used as one queue pair",
                why: "it has two; take Endpoint::auto_device",
            }),
            _ => Err(Error::Unsupported {
                path: self.path,
                what: "be used by a kernel",
                why: "the host posts on this path; take kick kernel, blueflame or inband",
            }),
        }
    }

    /// What kernels need to call the verbs of auto endpoints (`bellpush/auto.cuh`).
    ///
    /// # Errors
    /// [`Error::Unsupported`] on other paths than [`Path::AUTO`], [`Error::NotConnected`].
    pub fn auto_device(&self) -> Result<DeviceAutoEndpoint, Error> {
        match &self.inner {
            Inner::Auto(posted) => self.peer.map(|_| posted.device()).ok_or(Error::NotConnected),
            _ => Err(Error::Unsupported {
                path: self.path,
                what: "choose a path by size",
                why: "it is one; make the endpoint with Path::AUTO",
            }),
        }
    }

    /// The table by which an endpoint of [`Path::AUTO`] chooses, without what its NIC, or its peer, cannot do.
    pub fn tuning(&self) -> Option<&Tuning> {
        match &self.inner {
            Inner::Auto(posted) => Some(posted.tuning()),
            _ => None,
        }
    }

    /// What is behind [`Endpoint::device`].
    pub(super) fn kernel_posted(&self) -> Option<&KernelPosted> {
        match &self.inner {
            Inner::Kernel(posted) => Some(posted),
            Inner::Host(_) | Inner::Tcp(_) | Inner::Auto(_) => None,
        }
    }

    /// Checks a message against both regions; the peer's address if it fits.
    fn message(&self, local: Local, remote: Remote, bytes: u64) -> Result<Address, Error> {
        let peer = self.peer.ok_or(Error::NotConnected)?;
        if bytes == 0 {
            return Err(Error::Empty);
        }
        within("local", local.0, bytes, self.local_bytes)?;
        within("remote", remote.0, bytes, peer.bytes)?;
        Ok(peer)
    }

    /// Writes bytes of the endpoint's region to the peer's, then adds to the signal's word if there is one.
    ///
    /// # Errors
    /// For 0 bytes, a range outside a region, [`Error::Misaligned`], [`Error::TooLong`] (on pull paths),
    /// [`Error::OtherStream`] and [`Error::Recording`], nothing is queued. A call that has to wait for room
    /// (host-posted paths), or for the 511 calls that are queued (kernel-posted ones), returns that wait's error. What
    /// fails later is [`Endpoint::quiet`]'s to report, and nobody else's. Whenever a put fails, its signal is not
    /// added, and its data may have been written; after a timeout the same call may be made again.
    pub fn put(&self, stream: &Stream, put: Put) -> Result<(), Error> {
        let peer = self.message(put.from, put.to, put.bytes)?;
        if self.path.data() == Data::Pull {
            one_wqe(put.bytes)?;
        }
        if let Some(Signal { word, .. }) = put.signal {
            self.atomic(&peer, word)?;
        }
        match &self.inner {
            Inner::Kernel(posted) => posted.put(stream, put),
            Inner::Auto(posted) => posted.put(stream, put),
            Inner::Host(posted) => posted.put(stream, &peer, put),
            Inner::Tcp(tcp) => tcp.put(stream, put),
        }
    }

    /// Reads bytes of the peer's region into the endpoint's.
    ///
    /// # Errors
    /// As [`Endpoint::put`]; [`Error::TooLong`] on every path, [`Error::Unsupported`] on tcp.
    pub fn get(&self, stream: &Stream, get: Get) -> Result<(), Error> {
        let peer = self.message(get.to, get.from, get.bytes)?;
        one_wqe(get.bytes)?;
        match &self.inner {
            Inner::Kernel(posted) => posted.get(stream, get),
            Inner::Auto(posted) => posted.get(stream, get),
            Inner::Host(posted) => posted.get(stream, &peer, get),
            Inner::Tcp(_) => Err(self.one_sided("get")),
        }
    }

    /// Adds to a word of the peer's region; its old value comes to the endpoint's.
    ///
    /// # Errors
    /// As [`Endpoint::get`].
    pub fn fetch_add(&self, stream: &Stream, op: FetchAdd) -> Result<(), Error> {
        let peer = self.message(op.old, op.word, 8)?;
        self.atomic(&peer, op.word)?;
        match &self.inner {
            Inner::Kernel(posted) => posted.fetch_add(stream, op),
            Inner::Auto(posted) => posted.fetch_add(stream, op),
            Inner::Host(posted) => posted.fetch_add(stream, &peer, op),
            Inner::Tcp(_) => Err(self.one_sided("fetch_add")),
        }
    }

    /// Writes a word of the peer's region if it holds the value to compare; its old value comes to the endpoint's.
    ///
    /// # Errors
    /// As [`Endpoint::get`].
    pub fn compare_swap(&self, stream: &Stream, op: CompareSwap) -> Result<(), Error> {
        let peer = self.message(op.old, op.word, 8)?;
        self.atomic(&peer, op.word)?;
        match &self.inner {
            Inner::Kernel(posted) => posted.compare_swap(stream, op),
            Inner::Auto(posted) => posted.compare_swap(stream, op),
            Inner::Host(posted) => posted.compare_swap(stream, &peer, op),
            Inner::Tcp(_) => Err(self.one_sided("compare_swap")),
        }
    }

    /// Checks an atomic's word, and whether the NIC has atomics.
    fn atomic(&self, peer: &Address, word: Remote) -> Result<(), Error> {
        // A NIC refuses a word by its address, with which the queue pair ends.
        let address = peer.iova.wrapping_add(word.0);
        let by_nic = !matches!(self.inner, Inner::Tcp(_));
        let stands = if by_nic { address } else { word.0 };
        if !stands.is_multiple_of(8) {
            return Err(Error::Misaligned { offset: word.0 });
        }
        within("remote", word.0, 8, peer.bytes)?;
        match &self.inner {
            Inner::Kernel(posted) => posted.rdma.atomics(),
            Inner::Auto(posted) => posted.bell.rdma.atomics(),
            Inner::Host(posted) => posted.rdma.atomics(),
            Inner::Tcp(_) => Ok(()),
        }
    }

    /// Waits until everything that this endpoint was called for is complete: the bytes are in the peer's memory, and
    /// fetched ones here. The calls are on `stream`, or were waited for. Bounded by twice the timeout, once for the
    /// stream and once for completion; and by as much again where an earlier `quiet` gave up with 511 calls queued.
    ///
    /// # Errors
    /// The first failure since the `quiet` before, reported once, unless it ended the queue pair or the connection:
    /// then always. [`Error::Timeout`] or [`GpuError::Timeout`](crate::gpu::GpuError::Timeout), after which the calls
    /// go on and can be waited for again, or what the NIC reports in its place, such as a port that went down.
    /// [`Error::OtherStream`], without waiting, where calls are on another stream; [`Error::NotRun`] where one ended
    /// before it ran them.
    pub fn quiet(&self, stream: &Stream) -> Result<(), Error> {
        let (ended, rdma) = match &self.inner {
            Inner::Kernel(posted) => (posted.quiet(stream), &posted.rdma),
            Inner::Auto(posted) => (posted.quiet(stream), &posted.bell.rdma),
            Inner::Host(posted) => (posted.quiet(stream), &posted.rdma),
            Inner::Tcp(tcp) => return tcp.quiet(stream),
        };
        ended.map_err(|error| match error {
            Error::Timeout { .. } | Error::Verb { code: Code::Timeout, .. } => {
                rdma.trouble().map_or(error, Error::Nic)
            }
            error => error,
        })
    }

    /// Largest number of window slots that were in use at once; 0 on paths without a window.
    ///
    /// # Errors
    /// When the GPU's memory cannot be read.
    pub fn max_credits_in_use(&self) -> Result<u32, Error> {
        match &self.inner {
            Inner::Kernel(posted) => posted.max_credits_in_use(),
            Inner::Auto(posted) => posted.max_credits_in_use(),
            Inner::Host(posted) => Ok(posted.max_credits_in_use()),
            Inner::Tcp(_) => Ok(0),
        }
    }

    /// Why the queue pair or the connection ended, if it did; readable while kernels run. On paths
    /// that kernels post, one of their waits has to have met the error: they alone take completions
    /// there.
    pub fn failure(&self) -> Option<Error> {
        match &self.inner {
            Inner::Kernel(posted) => posted.ended().err(),
            Inner::Auto(posted) => posted.ended().err(),
            Inner::Host(posted) => posted.failure(),
            Inner::Tcp(tcp) => tcp.failure(),
        }
    }

    /// Takes the endpoint back to before [`Endpoint::connect`], in the same memory: after an error, or a timeout that
    /// ended its queue pair. Then [`Endpoint::address`] is another, with another first PSN, and the endpoint connects
    /// again.
    ///
    /// Both ends are reset before either connects. Region, keys and queue pair number stay, so [`Endpoint::device`] is
    /// the same again if the peer is, and kernels that hold it (recorded ones too) may go on with it. Tickets count
    /// from 0 again. Other endpoints go on meanwhile.
    ///
    /// Kernels of your own must not use the endpoint while this runs; nobody counts them. Immediates that nobody has taken
    /// are lost. Of [`Path::AUTO`] both queue pairs are reset, and their tickets counted together.
    ///
    /// # Errors
    /// [`Error::Busy`] while calls of this endpoint are queued, and what the NIC refuses. [`Error::Unsupported`] on tcp.
    pub fn reset(&mut self) -> Result<Progress, Error> {
        let progress = match &mut self.inner {
            Inner::Kernel(posted) => posted.reset()?,
            Inner::Host(posted) => posted.reset()?,
            Inner::Auto(posted) => posted.reset()?,
            Inner::Tcp(_) => {
                let why =
                    "a TCP connection has nothing that could be used again; make another endpoint";
                return Err(Error::Unsupported { path: self.path, what: "be reset", why });
            }
        };
        self.before = self.peer.take().or(self.before);
        Ok(progress)
    }

    fn one_sided(&self, what: &'static str) -> Error {
        let why = "tcp carries puts only; take an RDMA path";
        Error::Unsupported { path: self.path, what, why }
    }
}

/// Longest message of one WQE (mlx5 PRM, `log_max_msg`), which `bp::max_message_bytes` is as well.
const MAX_MESSAGE_BYTES: u64 = 1 << 30;

fn one_wqe(bytes: u64) -> Result<(), Error> {
    match bytes {
        0..=MAX_MESSAGE_BYTES => Ok(()),
        _ => Err(Error::TooLong { bytes, most: MAX_MESSAGE_BYTES }),
    }
}

fn within(which: &'static str, offset: u64, bytes: u64, len: u64) -> Result<(), Error> {
    match offset.checked_add(bytes) {
        Some(end) if end <= len => Ok(()),
        _ => Err(Error::Range { which, offset, bytes, len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wqe_carries_a_gibibyte() {
        assert!(one_wqe(1 << 30).is_ok());
        for bytes in [(1 << 30) + 1, u64::MAX] {
            let told = one_wqe(bytes).unwrap_err();
            assert!(matches!(told, Error::TooLong { bytes: b, most: 0x4000_0000 } if b == bytes));
            assert!(told.to_string().contains("in parts"), "{told}");
        }
    }

    #[test]
    fn a_range_that_wraps_is_outside() {
        assert!(within("local", 8, 8, 16).is_ok());
        for (offset, bytes) in [(9, 8), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, u64::MAX), (17, 0)]
        {
            assert!(matches!(within("local", offset, bytes, 16), Err(Error::Range { .. })));
        }
    }
}
