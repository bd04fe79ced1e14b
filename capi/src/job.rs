//! A process's part of a job: its GPU, its NICs, its communicator.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use bellpush::collective::{
    self, Bootstrap, BootstrapError, Communicator, Dtype, Job, MAX_TIMEOUT, Member, Op, RankAddress,
};
use bellpush::gpu::{self, Event, Gpu, GpuError, HostOptions, Stream};
use bellpush::nic::soft::link::{Link, LinkError, ShmNet, UdpLink};
use bellpush::nic::soft::{Nap, SoftConfig, SoftNic};
use bellpush::nic::{Nic, NicError};
use bellpush::transport::{Memory, PathError};

use crate::options::{Executor, Link as LinkKind, Options};

/// Number of calls after which the host waits for them, frees their memory and learns of
/// mismatches.
const CALLS: u32 = 256;
/// After a failure: bound of the wait for the calls behind it, which do nothing.
const END: Duration = Duration::from_secs(1);
/// Bound of the wait for cancelled lanes of the host executor. Each ends in its next wait, and
/// moves a bounded number of bytes before it.
pub const LANES: Duration = Duration::from_secs(10);

/// The header's codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    Refused = -1,
    Differs = -2,
    Failed = -3,
    InUse = -4,
}

/// A code and its one-line message.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub text: String,
}

impl Failure {
    pub fn refused(text: impl Into<String>) -> Self {
        Self { code: Code::Refused, text: text.into() }
    }

    pub fn failed(text: impl Into<String>) -> Self {
        Self { code: Code::Failed, text: text.into() }
    }
}

/// After a call has been queued it can no longer be refused: every error is a failure.
fn queued(error: impl Into<Failure>) -> Failure {
    let failure = error.into();
    match failure.code {
        Code::Refused => Failure { code: Code::Failed, ..failure },
        Code::Differs | Code::Failed | Code::InUse => failure,
    }
}

impl From<collective::Error> for Failure {
    fn from(error: collective::Error) -> Self {
        use collective::Error as E;
        let code = match &error {
            E::Mismatch { .. } => Code::Differs,
            E::Silent { .. } | E::Link { .. } | E::Late { .. } => Code::Failed,
            E::Corrupt { .. } | E::Abandoned | E::Ended { .. } => Code::Failed,
            _ => Code::Refused,
        };
        Self { code, text: error.to_string() }
    }
}

macro_rules! refused {
    ($($error:ty),+) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::refused(error.to_string())
            }
        }
    )+};
}
refused!(GpuError, BootstrapError, LinkError, NicError, PathError);
refused!(serde_json::Error, std::io::Error);

/// The communicator that `bellpush_join` creates.
pub struct Comm {
    /// Dropped before the GPU and the NICs that it uses.
    communicator: Communicator,
    stream: Stream,
    event: Event,
    gpu: Arc<Gpu>,
    bootstrap: Bootstrap,
    /// Number of calls since the last synchronisation.
    calls: AtomicU32,
    /// Why calls ended where the communicator itself continues, such as a call that did not end in
    /// time: every later call returns it.
    ended: OnceLock<String>,
    /// Process that joined. The child of a fork has neither its threads nor its memory, and must
    /// not use its connections.
    process: u32,
}

impl Comm {
    pub fn join(options: &Options) -> Result<Self, Failure> {
        let seconds = |name: &str, given: f64| match Duration::try_from_secs_f64(given) {
            Err(e) => Err(Failure::refused(format!("options: {name}: {e}"))),
            Ok(most) if most > MAX_TIMEOUT => {
                Err(Failure::refused(format!("options: {name}: at most a year")))
            }
            Ok(timeout) => Ok(timeout),
        };
        let timeout = seconds("timeout_s", options.timeout_s)?;
        let join_timeout = seconds("join_timeout_s", options.join_timeout_s)?;
        if options.link == LinkKind::Shm && !options.address.all().is_empty() {
            return Err(Failure::refused(
                "options: address: of NICs on udp; on shm they find their own",
            ));
        }
        let path = options.path.parse()?;
        let mut made = collective::Options::new(path);
        made.timeout = timeout;
        made.algorithm = options.algorithm.as_deref().map(str::parse).transpose()?;
        made.channels = options.channels.unwrap_or(match options.executor {
            Executor::Host => 1,
            Executor::Cuda => made.channels,
        });
        made.chunk_bytes = options.chunk_bytes;
        made.endpoint.line = options.line;

        let job = Job::from_env(join_timeout, timeout)?.ok_or_else(|| {
            Failure::refused("no launcher started this process: RANK and WORLD_SIZE are not set")
        })?;
        let job = Job { communicator: options.name.clone(), ..job };
        let gpu = open(options, &job)?;
        let mut bootstrap = Bootstrap::join(&job)?;
        let communicator = Self::connect(options, &made, &job, &gpu, &mut bootstrap)
            .inspect_err(|why| bootstrap.fail(&why.text))?;
        let (stream, event) = (gpu.stream()?, gpu.event()?);
        let (calls, ended, process) = (AtomicU32::new(0), OnceLock::new(), std::process::id());
        Ok(Self { communicator, stream, event, gpu, bootstrap, calls, ended, process })
    }

    /// NICs of this process, and the rank on them.
    fn connect(
        options: &Options,
        made: &collective::Options,
        job: &Job,
        gpu: &Arc<Gpu>,
        bootstrap: &mut Bootstrap,
    ) -> Result<Communicator, Failure> {
        // Process number and time of rank 0 name the job's link.
        let now = UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos());
        let mine = format!("{:?} job-{}-{now}", options.link, std::process::id());
        let said = bootstrap.all_gather(mine.as_bytes())?;
        let said: Vec<_> = said.iter().map(|text| String::from_utf8_lossy(text)).collect();
        let kind = |text: &str| text.split(' ').next().map(str::to_lowercase);
        if let Some(rank) = said.iter().position(|text| kind(text) != kind(&mine)) {
            let (theirs, ours) = (kind(&said[rank]), kind(&mine));
            let named = |kind: Option<String>| kind.unwrap_or_default();
            let text =
                format!("rank {rank}'s link is {}, this one's {}", named(theirs), named(ours));
            return Err(Failure::refused(text));
        }
        let name = said[0].split(' ').next_back().unwrap_or_default().to_owned();
        let cores = bootstrap.cores()?;
        let wanted = match (options.nics, options.address.all().len()) {
            (Some(_), 1..) => {
                return Err(Failure::refused("options: either nics or address says how many"));
            }
            (None, 0) if gpu.is_host() => Some(1),
            (given, 0) => given,
            (None, n) => Some(n),
        };
        let count = bootstrap.nics(wanted, made.channels, cores)?;
        let (nics, nets) = nics(options, &name, count, Nap::for_threads(count + 1, cores))?;
        let member = Member::new(gpu, &nics, job.rank, job.ranks, made)?;
        let said = bootstrap.all_gather(&serde_json::to_vec(member.address())?)?;
        let ranks: Vec<RankAddress> =
            said.iter().map(|text| serde_json::from_slice(text)).collect::<Result<_, _>>()?;
        let communicator = member.connect(&ranks)?;
        // All ranks are connected before any sends.
        bootstrap.all_gather(&[])?;
        nets.iter().for_each(ShmNet::unname);
        Ok(communicator)
    }

    pub fn rank(&self) -> Result<u32, Failure> {
        self.check_process()?;
        Ok(self.communicator.rank())
    }

    pub fn ranks(&self) -> Result<u32, Failure> {
        self.check_process()?;
        Ok(self.communicator.ranks())
    }

    /// # Safety
    /// As `bellpush_all_reduce`.
    pub unsafe fn all_reduce(
        &self,
        (input, output): (u64, u64),
        count: u64,
        dtype: Dtype,
        op: Op,
        stream: u64,
    ) -> Result<(), Failure> {
        if self.gpu.is_host() {
            self.check_process()?; // with CUDA the driver refuses, and a call costs no system call
        }
        self.check_ended()?;
        let bytes = usize::try_from(count.saturating_mul(dtype.bytes())).unwrap_or(usize::MAX);
        if self.gpu.is_host() && stream != 0 {
            return Err(Failure::refused("the host executor has no CUDA streams: pass NULL"));
        }
        // Ranks must agree on an empty call too; its memory is not accessed.
        let memory = |addr: u64, write: bool| -> Result<Memory, Failure> {
            if bytes == 0 {
                return Ok(self.gpu.alloc(8)?.into());
            }
            // SAFETY: the caller's promise: until the call is done, which the stream waits for.
            Ok(unsafe { self.gpu.borrow(addr, bytes, write)? }.into())
        };
        let from = memory(input, input == output)?;
        let to = if input == output { from.clone() } else { memory(output, true)? };
        if !self.gpu.is_host() {
            // SAFETY: the caller's promise.
            unsafe { self.stream.follow(stream, &self.event)? };
        }
        self.communicator.all_reduce(&self.stream, &from, &to, count, dtype, op)?;
        if self.gpu.is_host() {
            return self.synchronize();
        }
        // SAFETY: the caller's promise.
        unsafe { self.stream.precede(stream, &self.event) }.map_err(|why| self.end(why))?;
        if self.calls.fetch_add(1, Ordering::Relaxed) >= CALLS {
            self.synchronize()
        } else {
            Ok(())
        }
    }

    fn check_process(&self) -> Result<(), Failure> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Failure::refused("the communicator is of the process that forked this one"))
    }

    fn check_ended(&self) -> Result<(), Failure> {
        self.ended.get().map_or(Ok(()), |why| Err(Failure::failed(why)))
    }

    /// Takes note of what ends the communicator, of calls that were queued.
    fn end(&self, why: impl Into<Failure>) -> Failure {
        let failure = queued(why);
        if failure.code != Code::Differs {
            self.ended.get_or_init(|| failure.text.clone());
        }
        failure
    }

    pub fn synchronize(&self) -> Result<(), Failure> {
        self.check_process()?;
        self.calls.store(0, Ordering::Relaxed);
        let waited = || Ok(self.communicator.synchronize(&self.stream)?);
        let ended =
            self.check_ended().and_then(|()| waited().map_err(|why: Failure| self.end(why)));
        let Err(why) = ended else { return Ok(()) };
        // After the return the elements are the program's again, which may free them.
        let _ = self.stream.synchronize(END);
        if at_rest(&self.stream, LANES) {
            return Err(why);
        }
        let text =
            format!("{}; kernels are still at it: the elements must stay for good", why.text);
        Err(Failure { code: Code::InUse, text })
    }

    /// Leaves when all ranks have what they need. An absent rank is not waited for again.
    pub fn leave(mut self) {
        if self.check_process().is_err() {
            std::mem::forget(self);
            return;
        }
        match self.synchronize() {
            // The other ranks have failed too, or will.
            Err(why) if why.code != Code::Differs => self.bootstrap.fail(&why.text),
            _ => drop(self.bootstrap.all_gather(&[])),
        }
    }
}

/// Whether a stream's work has ended. The host executor's lanes are cancelled and waited for.
pub fn at_rest(stream: &Stream, most: Duration) -> bool {
    let since = Instant::now();
    loop {
        match stream.query() {
            Ok(true) => return true,
            // A faulted kernel on a GPU has ended. On the host other lanes may continue.
            Err(_) if !stream.gpu().is_host() => return true,
            _ if stream.end() => return true,
            _ if !stream.gpu().is_host() || since.elapsed() >= most => return false,
            _ => {}
        }
    }
}

fn open(options: &Options, job: &Job) -> Result<Arc<Gpu>, Failure> {
    Ok(match options.executor {
        Executor::Host => Gpu::open(gpu::Executor::Host(HostOptions::default()))?,
        Executor::Cuda => {
            let usual = || Ok::<_, GpuError>(job.local_rank as usize % Gpu::cuda_count()?.max(1));
            Gpu::open(gpu::Executor::Cuda(options.gpu.map_or_else(usual, Ok)?))?
        }
    })
}

type Nics = (Vec<Arc<dyn Nic>>, Vec<ShmNet>);

/// The NICs of all places, and the links, whose names are removed once all ranks are connected.
fn nics(options: &Options, job: &str, count: usize, nap: Nap) -> Result<Nics, Failure> {
    let (mut made, mut nets) = (Vec::<Arc<dyn Nic>>::new(), Vec::new());
    if options.link == LinkKind::Shm {
        ShmNet::sweep("job-");
    }
    for place in 0..count {
        let link: Box<dyn Link> = match (options.link, options.address.all().get(place)) {
            (LinkKind::Shm, _) => {
                let net = ShmNet::named(&format!("{job}-{place}"), false)?;
                nets.push(net.clone());
                Box::new(net.attach_free()?)
            }
            (LinkKind::Udp, Some(address)) => Box::new(UdpLink::open(*address, None)?),
            (LinkKind::Udp, None) => Box::new(UdpLink::open_free()?),
        };
        made.push(SoftNic::open_on(SoftConfig { nap, ..SoftConfig::default() }, link)?);
    }
    Ok((made, nets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_queued_is_not_refused() {
        let late = || GpuError::Timeout { what: "the stream", after: Duration::from_secs(1) };
        assert_eq!(Failure::from(late()).code, Code::Refused);
        assert_eq!(queued(late()).code, Code::Failed);
        assert_eq!(queued(collective::Error::Gpu(late())).code, Code::Failed);
        assert_eq!(queued(collective::Error::Overlap).code, Code::Failed);
    }

    fn pair(timeout: Duration, executor: HostOptions) -> (Arc<Gpu>, Vec<Communicator>) {
        let gpu = Gpu::open(gpu::Executor::Host(executor)).unwrap();
        let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::default()).unwrap();
        let mut options = collective::Options::new("push/inband".parse().unwrap());
        (options.channels, options.timeout) = (1, timeout);
        let places = [(gpu.clone(), nic.clone()), (gpu.clone(), nic)];
        let ranks = Communicator::threads(&places, &options).unwrap();
        (gpu, ranks)
    }

    /// The communicator itself goes on after a wait that was too short, but its calls' elements are the program's.
    #[test]
    fn after_a_failure_every_call_says_failed() {
        let (gpu, mut ranks) = pair(Duration::from_secs(3), HostOptions::default());
        let job = Job {
            rank: 0,
            ranks: 1,
            local_rank: 0,
            root: ([127, 0, 0, 1], 1).into(),
            secret: String::new(),
            start: String::new(),
            communicator: "after a failure".into(),
            join_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
        };
        let (stream, event) = (gpu.stream().unwrap(), gpu.event().unwrap());
        let comm = Comm {
            communicator: ranks.remove(0),
            stream,
            event,
            gpu,
            bootstrap: Bootstrap::join(&job).unwrap(),
            calls: AtomicU32::new(0),
            ended: OnceLock::new(),
            process: std::process::id(),
        };
        comm.synchronize().unwrap();
        let late = GpuError::Timeout { what: "the stream", after: Duration::from_secs(1) };
        assert_eq!(comm.end(late).code, Code::Failed);
        let mut elements = [0f32; 4];
        let at = elements.as_mut_ptr() as u64;
        // SAFETY: the elements are there, and nothing is queued.
        let call = unsafe { comm.all_reduce((at, at), 4, Dtype::F32, Op::Sum, 0) };
        for said in [call, comm.synchronize(), comm.synchronize()] {
            let failure = said.unwrap_err();
            assert_eq!(failure.code, Code::Failed);
            assert!(failure.text.contains("the stream"), "{}", failure.text);
        }
    }

    /// Lanes that are threads cannot be ended: they go on until they have waited in vain.
    #[test]
    fn lanes_that_go_on_are_told_of_and_not_waited_for_without_end() {
        let (gpu, ranks) = pair(Duration::from_secs(3), HostOptions::threads());
        let (stream, memory) = (gpu.stream().unwrap(), Memory::from(gpu.alloc(400).unwrap()));
        assert!(at_rest(&stream, Duration::ZERO), "it has no work");
        let stream = gpu.stream().unwrap();
        ranks[0].all_reduce(&stream, &memory, &memory, 100, Dtype::F32, Op::Sum).unwrap();
        std::thread::sleep(Duration::from_millis(400)); // it has begun, else it never would
        let since = Instant::now();
        assert!(!at_rest(&stream, Duration::from_millis(300)));
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
        assert!(at_rest(&stream, Duration::from_secs(30)), "they have waited in vain");
    }
}
