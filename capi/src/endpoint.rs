//! A GPU with a NIC, and endpoints on the program's own memory.

use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Duration;

use bellpush::abi::wire::DeviceEndpoint;
use bellpush::collective::MAX_TIMEOUT;
use bellpush::gpu::{self, Event, Gpu, HostOptions, Stream};
use bellpush::nic::soft::link::{Link, ShmNet, UdpLink};
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{self, Nic, Order};
use bellpush::transport::{self, Address, Get, Local, Put, Reach, Remote, Signal};

use crate::job::{Code, Failure, LANES, at_rest};
use crate::options::{EndpointOptions, Executor, OpenOptions, Wire};

/// The link of all contexts of this process that are on none of their own.
static PROCESS: LazyLock<Arc<InProcess>> = LazyLock::new(InProcess::new);

/// What `bellpush_open` makes. Endpoints keep what they need of it.
pub struct Context {
    gpu: Arc<Gpu>,
    nic: Arc<dyn Nic>,
    /// The child of a fork has neither its threads nor its GPU.
    process: u32,
}

/// What `bellpush_endpoint_new` makes.
pub struct End {
    /// Dropped before the stream that it queued calls on.
    endpoint: RwLock<transport::Endpoint>,
    stream: Stream,
    event: Event,
    gpu: Arc<Gpu>,
    process: u32,
}

/// What a call was asked in vain is refused; what the GPU, the NIC or the peer failed at has failed.
impl From<transport::Error> for Failure {
    fn from(error: transport::Error) -> Self {
        use transport::Error as E;
        let code = match &error {
            E::Path(_) | E::Option { .. } | E::Range { .. } | E::Empty | E::TooLong { .. } => {
                Code::Refused
            }
            E::Misaligned { .. } | E::OtherStream | E::Recording | E::NotConnected => Code::Refused,
            E::AlreadyConnected | E::Busy | E::PeerNotReset | E::OtherLink { .. } => Code::Refused,
            E::PeerRegion { .. } | E::Unsupported { .. } | E::Tuning(_) => Code::Refused,
            _ => Code::Failed,
        };
        Self { code, text: error.to_string() }
    }
}

/// Of a call that makes something: if it fails, nothing was done.
fn unmade(error: transport::Error) -> Failure {
    Failure::refused(error.to_string())
}

fn own_process(process: u32) -> Result<(), Failure> {
    if process == std::process::id() {
        return Ok(());
    }
    Err(Failure::refused("it is of the process that forked this one"))
}

impl Context {
    pub fn open(options: &OpenOptions) -> Result<Self, Failure> {
        let gpu = match options.executor {
            Executor::Host => Gpu::open(gpu::Executor::Host(HostOptions::default()))?,
            Executor::Cuda => Gpu::open(gpu::Executor::Cuda(options.gpu.unwrap_or(0)))?,
        };
        Ok(Self { gpu, nic: open_nic(options)?, process: std::process::id() })
    }

    /// # Safety
    /// `addr` and `bytes` are memory of the program that stays until the endpoint is closed.
    pub unsafe fn endpoint(
        &self,
        path: &str,
        options: &EndpointOptions,
        addr: u64,
        bytes: u64,
    ) -> Result<End, Failure> {
        own_process(self.process)?;
        let path = path.parse()?;
        let mut made = transport::Options::default().line(options.line).receives(options.receives);
        if let Some(bytes) = options.window_bytes {
            made = made.window_bytes(bytes);
        }
        if let Some(bytes) = options.slot_bytes {
            made = made.slot_bytes(bytes);
        }
        if let Some(blocks) = options.sq_blocks {
            made = made.sq_blocks(blocks);
        }
        match Duration::try_from_secs_f64(options.timeout_s) {
            Ok(timeout) if timeout <= MAX_TIMEOUT => made = made.timeout(timeout),
            Ok(_) => return Err(Failure::refused("options: timeout_s: at most a year")),
            Err(e) => return Err(Failure::refused(format!("options: timeout_s: {e}"))),
        }
        if bytes == 0 {
            return Err(Failure::refused("the region has no bytes"));
        }
        let length = usize::try_from(bytes).map_err(|e| Failure::refused(e.to_string()))?;
        // SAFETY: the caller's promise.
        let region = unsafe { self.gpu.borrow(addr, length, true) }?;
        let endpoint = transport::Endpoint::new(&self.gpu, &self.nic, path, region.into(), made);
        let endpoint = RwLock::new(endpoint.map_err(unmade)?);
        let (stream, event) = (self.gpu.stream()?, self.gpu.event()?);
        Ok(End { endpoint, stream, event, gpu: self.gpu.clone(), process: self.process })
    }

    /// Its GPU and its NIC.
    pub fn parts(&self) -> Result<(&Arc<Gpu>, &Arc<dyn Nic>), Failure> {
        own_process(self.process)?;
        Ok((&self.gpu, &self.nic))
    }

    /// Gives up the GPU and the NIC, which endpoints keep for themselves.
    pub fn close(self: Box<Self>) -> Result<(), Failure> {
        if own_process(self.process).is_err() {
            std::mem::forget(self);
        }
        Ok(())
    }

    /// Whether its NIC is to have the doorbell record visible before the doorbell.
    pub fn is_strict(&self) -> Result<bool, Failure> {
        Ok(self.parts()?.1.order() == Order::Strict)
    }
}

fn open_nic(options: &OpenOptions) -> Result<Arc<dyn Nic>, Failure> {
    if options.address.is_some() && options.link != Wire::Udp {
        return Err(Failure::refused("options: address: of NICs on udp"));
    }
    if options.name.is_some() != (options.link == Wire::Shm) {
        return Err(Failure::refused("options: link shm takes a name, and no other link does"));
    }
    if options.nic != "soft" {
        if options.link != Wire::Process {
            return Err(Failure::refused("options: link: of the NIC soft alone"));
        }
        return Ok(nic::open_verbs(&options.nic)?);
    }
    let link: Box<dyn Link> = match options.link {
        Wire::Process => return Ok(SoftNic::open(SoftConfig::new(&PROCESS))?),
        Wire::Udp => Box::new(match options.address {
            Some(address) => UdpLink::open(address, None)?,
            None => UdpLink::open_free()?,
        }),
        Wire::Shm => {
            let name = options.name.as_deref().unwrap_or_default();
            Box::new(ShmNet::named(name, false)?.attach_free()?)
        }
    };
    Ok(SoftNic::open_on(SoftConfig::default(), link)?)
}

impl End {
    fn endpoint(&self) -> Result<impl std::ops::Deref<Target = transport::Endpoint>, Failure> {
        own_process(self.process)?;
        Ok(self.endpoint.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the peer needs, as JSON.
    pub fn address(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string(&self.endpoint()?.address())?)
    }

    pub fn connect(&self, peer: &str) -> Result<(), Failure> {
        own_process(self.process)?;
        let wrong = |e: serde_json::Error| Failure::refused(format!("the peer's address: {e}"));
        let peer: Address = serde_json::from_str(peer).map_err(wrong)?;
        let mut endpoint = self.endpoint.write().unwrap_or_else(PoisonError::into_inner);
        endpoint.connect(peer).map_err(unmade)
    }

    pub fn device(&self) -> Result<DeviceEndpoint, Failure> {
        Ok(self.endpoint()?.device()?)
    }

    /// Whether a kernel has to be compiled for `bp::reach::system`.
    pub fn is_system(&self) -> Result<bool, Failure> {
        Ok(self.endpoint()?.reach() == Reach::System)
    }

    /// Queues a call behind what `stream` has, and what `stream` gets later behind the call.
    ///
    /// # Safety
    /// `stream` is NULL or a stream of this GPU.
    unsafe fn queue(
        &self,
        stream: u64,
        call: impl FnOnce(&transport::Endpoint) -> Result<(), transport::Error>,
    ) -> Result<(), Failure> {
        let endpoint = self.endpoint()?;
        if self.gpu.is_host() {
            if stream != 0 {
                return Err(Failure::refused("the host executor has no CUDA streams: pass NULL"));
            }
            return Ok(call(&endpoint)?);
        }
        // SAFETY: the caller's promise.
        unsafe { self.stream.follow(stream, &self.event)? };
        call(&endpoint)?;
        // SAFETY: the caller's promise.
        let after = unsafe { self.stream.precede(stream, &self.event) };
        after.map_err(|why| Failure::failed(why.to_string()))
    }

    /// # Safety
    /// As [`End::queue`].
    pub unsafe fn put(
        &self,
        (from, to, bytes): (u64, u64, u64),
        signal: Option<(u64, u64)>,
        stream: u64,
    ) -> Result<(), Failure> {
        let signal = signal.map(|(word, add)| Signal { word: Remote(word), add });
        let put = Put { from: Local(from), to: Remote(to), bytes, signal };
        // SAFETY: the caller's promise.
        unsafe { self.queue(stream, |endpoint| endpoint.put(&self.stream, put)) }
    }

    /// # Safety
    /// As [`End::queue`].
    pub unsafe fn get(
        &self,
        (from, to, bytes): (u64, u64, u64),
        stream: u64,
    ) -> Result<(), Failure> {
        let get = Get { from: Remote(from), to: Local(to), bytes };
        // SAFETY: the caller's promise.
        unsafe { self.queue(stream, |endpoint| endpoint.get(&self.stream, get)) }
    }

    pub fn quiet(&self) -> Result<(), Failure> {
        Ok(self.endpoint()?.quiet(&self.stream)?)
    }

    pub fn poll_immediate(&self) -> Result<Option<u32>, Failure> {
        Ok(self.endpoint()?.poll_immediate()?)
    }

    /// Ends everything; what may still use the region stays, and says so.
    pub fn close(self: Box<Self>) -> Result<(), Failure> {
        if own_process(self.process).is_err() {
            std::mem::forget(self);
            return Ok(());
        }
        if !self.gpu.is_host() {
            // What is queued behind the program's own work gets its time; whether it ended is looked at next.
            let _ = self.stream.synchronize(LANES);
        }
        if at_rest(&self.stream, LANES) {
            return Ok(());
        }
        std::mem::forget(self);
        let text = "kernels of this endpoint are still at it: its region must stay for good".into();
        Err(Failure { code: Code::InUse, text })
    }
}
