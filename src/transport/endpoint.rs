//! The endpoint: options, connection, and the calls that are the same on every path.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::host_posted::HostPosted;
use super::kernel_posted::KernelPosted;
use super::tcp::Tcp;
use super::{Error, Kick, Memory, Path};
use crate::gpu::args::{Code, DeviceEndpoint};
use crate::gpu::{Gpu, Stream};
use crate::nic::{LineFormat, Nic, QpAddress};
use crate::wire::Rkey;

/// How an endpoint is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of the window (push, staged); 128 KiB is what a ConnectX's MEMIC holds.
    pub window_bytes: u64,
    /// Bytes of a slot, a multiple of 64.
    pub slot_bytes: u32,
    /// Line format of in-band slots.
    pub line: LineFormat,
    /// Sequence of the first lap; 2, so that the zero-filled window needs no scrubbing. Tests start
    /// it near its end.
    pub inband_seq0: u32,
    /// Depth of the send queue in 64-byte blocks, a power of two from 64 to 32768.
    pub sq_blocks: u32,
    /// Bound of every single wait, on the GPU and on the host. A call may make more than one: see
    /// [`Endpoint::quiet`].
    pub timeout: Duration,
    /// NUMA node for queues and window; `None` leaves it to the system.
    pub host_numa: Option<usize>,
    /// `false` is a negative control: slots are written without a credit, so messages are lost.
    pub credits: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window_bytes: 128 << 10,
            slot_bytes: 4096,
            line: LineFormat::L12S4,
            inband_seq0: 2,
            sq_blocks: 1024,
            timeout: Duration::from_secs(5),
            host_numa: None,
            credits: true,
        }
    }
}

impl Options {
    /// Refuses what no endpoint of this path can be made with.
    ///
    /// # Errors
    /// [`Error::Option`], naming the option.
    pub fn check(&self, path: Path) -> Result<(), Error> {
        let refuse = |what, value, must| Err(Error::Option { what, value, must });
        if !self.sq_blocks.is_power_of_two() || !(64..=32768).contains(&self.sq_blocks) {
            return refuse(
                "the send queue's depth",
                self.sq_blocks.into(),
                "a power of two from 64 to 32768",
            );
        }
        if self.timeout.is_zero() {
            return refuse("the timeout", 0, "more than 0");
        }
        if !path.has_window() {
            return Ok(());
        }
        let slot = u64::from(self.slot_bytes);
        if slot == 0 || slot % 64 != 0 {
            return refuse("the slot size", slot, "a multiple of 64 bytes");
        }
        if self.window_bytes < slot {
            return refuse("the window size", self.window_bytes, "at least one slot");
        }
        if self.window_bytes > 1 << 30 || self.window_bytes / slot > 32768 {
            return refuse("the window size", self.window_bytes, "at most 1 GiB and 32768 slots");
        }
        // An atomic's WQE has 64 bytes, and the sequences come on top, whatever the line.
        if path.kick() == Some(Kick::Inband) && slot < 128 {
            return refuse("the slot size", slot, "at least 128 bytes for in-band slots");
        }
        Ok(())
    }
}

/// What a peer needs to know to connect and to address the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// How an endpoint is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// A queue pair.
    Qp(QpAddress),
    /// A TCP listener.
    Tcp(SocketAddr),
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
    inner: Inner,
}

enum Inner {
    Kernel(KernelPosted),
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
            None => Inner::Tcp(Tcp::new(gpu, local, &options)?),
            Some(_) if path.posted_by_gpu() => {
                Inner::Kernel(KernelPosted::new(gpu, nic, path, local, &options)?)
            }
            Some(_) => Inner::Host(HostPosted::new(gpu, nic, path, local, &options)?),
        };
        Ok(Self { path, options, local_bytes, peer: None, inner })
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

    /// What the peer needs for its [`Endpoint::connect`].
    pub fn address(&self) -> Address {
        match &self.inner {
            Inner::Kernel(posted) => posted.rdma.address(),
            Inner::Host(posted) => posted.rdma.address(),
            Inner::Tcp(tcp) => tcp.address(),
        }
    }

    /// Connects to a peer, once.
    ///
    /// # Errors
    /// [`Error::Option`] for a region that no addresses can name, and what the NIC or the system refuses.
    pub fn connect(&mut self, peer: Address) -> Result<(), Error> {
        // Every address of the region can be named, which nothing checks later.
        if peer.iova.checked_add(peer.bytes).is_none() {
            let must = "within 64 bits, from the region's address to its end";
            return Err(Error::Option { what: "the peer's region", value: peer.bytes, must });
        }
        match (&mut self.inner, peer.link) {
            (Inner::Kernel(posted), Link::Qp(qp)) => {
                posted.rdma.qp.connect(qp)?;
                posted.set_peer(&peer);
            }
            (Inner::Host(posted), Link::Qp(qp)) => posted.rdma.qp.connect(qp)?,
            (Inner::Tcp(tcp), Link::Tcp(to)) => tcp.connect(to)?,
            _ => {
                let why = "the peer's address is of another kind; make both ends with one path";
                return Err(Error::Unsupported { path: self.path, what: "connect", why });
            }
        }
        self.peer = Some(peer);
        Ok(())
    }

    /// What kernels need to call the device verbs with this endpoint.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on paths that the host posts, [`Error::NotConnected`].
    pub fn device(&self) -> Result<DeviceEndpoint, Error> {
        self.peer.ok_or(Error::NotConnected)?;
        match &self.inner {
            Inner::Kernel(posted) => Ok(posted.device),
            _ => Err(Error::Unsupported {
                path: self.path,
                what: "be used by a kernel",
                why: "the host posts on this path; take kick kernel, blueflame or inband",
            }),
        }
    }

    /// Checks a message against both regions; the peer's address if it fits.
    fn message(&self, local: u64, remote: u64, bytes: u64) -> Result<Address, Error> {
        let peer = self.peer.ok_or(Error::NotConnected)?;
        if bytes == 0 {
            return Err(Error::Empty);
        }
        let fits = |which, offset: u64, len: u64| match offset.checked_add(bytes) {
            Some(end) if end <= len => Ok(()),
            _ => Err(Error::Range { which, offset, bytes, len }),
        };
        fits("local", local, self.local_bytes)?;
        fits("remote", remote, peer.bytes)?;
        Ok(peer)
    }

    /// Writes `bytes` bytes of the local region at `local` to the peer's region at `remote`.
    ///
    /// # Errors
    /// For 0 bytes, a range outside a region, [`Error::OtherStream`] and [`Error::Recording`], nothing is queued. A
    /// call that has to wait for room (host-posted paths), or for the 511 calls that are queued (kernel-posted ones),
    /// returns that wait's error. What fails later is [`Endpoint::quiet`]'s to report, and nobody else's.
    pub fn put(&self, stream: &Stream, local: u64, remote: u64, bytes: u64) -> Result<(), Error> {
        let peer = self.message(local, remote, bytes)?;
        match &self.inner {
            Inner::Kernel(posted) => posted.put(stream, local, remote, bytes),
            Inner::Host(posted) => posted.put(stream, &peer, local, remote, bytes),
            Inner::Tcp(tcp) => tcp.put(stream, local, remote, bytes),
        }
    }

    /// As [`Endpoint::put`], then adds `value` to the 8-byte word of the peer's region at `signal`;
    /// who sees the signal sees the data.
    ///
    /// # Errors
    /// As [`Endpoint::put`]. The signal is not added then; the data may have been written. After a timeout the same
    /// call may be made again.
    pub fn put_signal(
        &self,
        stream: &Stream,
        local: u64,
        remote: u64,
        bytes: u64,
        signal: u64,
        value: u64,
    ) -> Result<(), Error> {
        self.word(signal)?;
        self.atomics()?;
        let peer = self.message(local, remote, bytes)?;
        match &self.inner {
            Inner::Kernel(posted) => posted.put_signal(stream, local, remote, bytes, signal, value),
            Inner::Host(posted) => {
                posted.put_signal(stream, &peer, (local, remote, bytes), signal, value)
            }
            Inner::Tcp(tcp) => tcp.put_signal(stream, (local, remote, bytes), signal, value),
        }
    }

    /// Reads `bytes` bytes of the peer's region at `remote` into the local region at `local`.
    ///
    /// # Errors
    /// As [`Endpoint::put`]; [`Error::Unsupported`] on tcp.
    pub fn get(&self, stream: &Stream, local: u64, remote: u64, bytes: u64) -> Result<(), Error> {
        let peer = self.message(local, remote, bytes)?;
        match &self.inner {
            Inner::Kernel(posted) => posted.get(stream, local, remote, bytes),
            Inner::Host(posted) => posted.get(stream, &peer, local, remote, bytes),
            Inner::Tcp(_) => Err(self.one_sided("get")),
        }
    }

    /// Adds `value` to the 8-byte word of the peer's region at `remote`; the old value goes to the
    /// local region at `result`.
    ///
    /// # Errors
    /// As [`Endpoint::get`]; offsets must be multiples of 8.
    pub fn fetch_add(
        &self,
        stream: &Stream,
        remote: u64,
        value: u64,
        result: u64,
    ) -> Result<(), Error> {
        let peer = self.message(result, remote, 8)?;
        self.word(remote)?;
        self.atomics()?;
        match &self.inner {
            Inner::Kernel(posted) => posted.fetch_add(stream, remote, value, result),
            Inner::Host(posted) => posted.fetch_add(stream, &peer, remote, value, result),
            Inner::Tcp(_) => Err(self.one_sided("fetch_add")),
        }
    }

    /// Writes `swap` to the 8-byte word of the peer's region at `remote` if it holds `compare`; the
    /// old value goes to the local region at `result`.
    ///
    /// # Errors
    /// As [`Endpoint::fetch_add`].
    pub fn compare_swap(
        &self,
        stream: &Stream,
        remote: u64,
        compare: u64,
        swap: u64,
        result: u64,
    ) -> Result<(), Error> {
        let peer = self.message(result, remote, 8)?;
        self.word(remote)?;
        self.atomics()?;
        match &self.inner {
            Inner::Kernel(posted) => posted.compare_swap(stream, remote, compare, swap, result),
            Inner::Host(posted) => {
                posted.compare_swap(stream, &peer, remote, compare, swap, result)
            }
            Inner::Tcp(_) => Err(self.one_sided("compare_swap")),
        }
    }

    fn atomics(&self) -> Result<(), Error> {
        match &self.inner {
            Inner::Kernel(posted) => posted.rdma.atomics(),
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
    /// then always. [`Error::Timeout`] or [`GpuError::Timeout`](crate::gpu::GpuError::Timeout), after which the calls go
    /// on and can be waited for again, or what the NIC reports in its place, such as a port that went down.
    /// [`Error::OtherStream`], without waiting, where calls are on another stream; [`Error::NotRun`] where one ended
    /// before it ran them.
    pub fn quiet(&self, stream: &Stream) -> Result<(), Error> {
        let (ended, rdma) = match &self.inner {
            Inner::Kernel(posted) => (posted.quiet(stream), &posted.rdma),
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
            Inner::Host(posted) => Ok(posted.max_credits_in_use()),
            Inner::Tcp(_) => Ok(0),
        }
    }

    /// Why the queue pair ended, if it did; readable while kernels run.
    pub fn failure(&self) -> Option<Error> {
        match &self.inner {
            Inner::Kernel(posted) => posted.ended().err(),
            Inner::Host(posted) => posted.failure(),
            Inner::Tcp(tcp) => tcp.failure(),
        }
    }

    fn word(&self, offset: u64) -> Result<(), Error> {
        let peer = self.peer.ok_or(Error::NotConnected)?;
        if !offset.is_multiple_of(8) {
            return Err(Error::Option {
                what: "the word's offset",
                value: offset,
                must: "a multiple of 8",
            });
        }
        match offset.checked_add(8) {
            Some(end) if end <= peer.bytes => Ok(()),
            _ => Err(Error::Range { which: "remote", offset, bytes: 8, len: peer.bytes }),
        }
    }

    fn one_sided(&self, what: &'static str) -> Error {
        let why = "tcp carries puts only; take an RDMA path";
        Error::Unsupported { path: self.path, what, why }
    }
}
