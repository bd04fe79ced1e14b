//! `bellpush run`: runs a program that uses rdma-core on software devices.
//!
//! The program is unchanged: an object that is preloaded into it (`shim/`) takes the place of the
//! kernel's interface and of the card. Programs that it starts have the devices too.

mod places;

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::thread;

use bellpush::nic::soft::Adversary;
use bellpush::nic::soft::link::Faults;
use bellpush::nic::soft::script::{MAX_SCRIPT_BYTES, Script};
use bellpush::nic::soft::trace::Tracing;
use bellpush::preload::{Preload, VARIABLE, Wire};
use bellpush_cli::input;
use bellpush_cli::trace::stats;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::cli::CliError;
use crate::guard::Guard;
use crate::metrics;

/// File name of the preloaded object.
const OBJECT: &str = "libbellpush_shim.so";
/// Where an installation has it, as seen from the program's folder: `packaging/package.sh`.
const INSTALLED: &str = "../lib/bellpush";
/// Variable with the object's path, where it is in neither place.
const OBJECT_VARIABLE: &str = "BELLPUSH_SHIM";

/// Carrier of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LinkType {
    /// UDP port 4791, also between users and hosts
    Udp,
    /// Shared memory of this user on this machine
    Shm,
}

/// Devices of a program.
#[derive(Debug, clap::Args)]
pub struct DeviceArgs {
    /// Number of devices: mlx5_0 and so on
    #[arg(long, default_value_t = 1)]
    devices: usize,
    /// Address of a device; several apply to the first devices, in order [default: each process
    /// takes the first free 127.x.y.z]
    #[arg(long = "address", value_name = "IP")]
    addresses: Vec<IpAddr>,
    /// Carrier of packets
    #[arg(long, value_enum, default_value_t = LinkType::Udp)]
    link_type: LinkType,
    /// Largest path MTU [default: the link's limit]
    #[arg(long)]
    mtu: Option<usize>,
    /// Bytes of device memory
    #[arg(long, default_value_t = Preload::default().dm_bytes)]
    dm_bytes: u64,
    /// Faults of packets that a device sends, such as loss=1%,dup=0.1%,reorder=1%,seed=7
    #[arg(long, value_name = "FAULTS")]
    link: Option<String>,
    /// Faults of WQEs, CQEs, packets, queue pairs, the port and the device that a script names
    #[arg(long, value_name = "FILE")]
    fault: Option<PathBuf>,
    /// Take every freedom that the rules give a NIC, and report on stderr where the program relies on more; kinds:
    /// payload, writes, writes=all, record, cqe, packets, acks, routing, atomics, doorbell
    /// [default: all but writes=all]
    #[arg(long, value_name = "SEED[,KIND...]")]
    adversary: Option<Adversary>,
    /// Record the packets that a device sends and receives; %p is replaced by the process's number,
    /// %d by the device's, and is needed with several --devices
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Write down what each device is asked, sees and does, for 'bellpush replay'; %p and %d as in --pcap, and %p is
    /// needed where several processes open devices
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write payload down whole, and not as a hash
    #[arg(long, requires = "record")]
    record_payload: bool,
    /// Report opened devices, refused requests and what becomes of a script's faults on stderr
    #[arg(long)]
    verbose: bool,
    /// Say at the end what each device and queue pair has counted, on stderr
    #[arg(long)]
    pub stats: bool,
    /// Serve the same while the program runs, for Prometheus: http://127.0.0.1:PORT/metrics; 0: a free port
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "9464")]
    pub metrics: Option<u16>,
}

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub fn run(args: &RunArgs) -> Result<ExitCode, CliError> {
    let devices = &args.devices;
    let _pipes = devices.check_places(None)?;
    let counts = devices.stats || devices.metrics.is_some();
    let tracing = counts.then(|| Tracing::new(false, true)).transpose();
    let fault = "this is a fault; please report it";
    execute(devices, &args.command, tracing.map_err(|e| CliError::new(e, fault))?.as_ref())
}

/// Runs a program, whose devices write down what they do in memory of this process; its status.
pub fn execute(
    args: &DeviceArgs,
    command: &[OsString],
    tracing: Option<&Arc<Tracing>>,
) -> Result<ExitCode, CliError> {
    let help = "see 'bellpush run --help'";
    if let Some(faults) = &args.link {
        faults.parse::<Faults>().map_err(|e| CliError::new(e, help))?;
    }
    let script = |path: &PathBuf| read_script(path, args.devices);
    let fault = args.fault.as_ref().map(script).transpose()?;
    let directory = Directory::new()?;
    let absolute = |path: &Option<PathBuf>| path.as_deref().map(std::path::absolute).transpose();
    let (pcap, record) = (absolute(&args.pcap), absolute(&args.record));
    let options = Preload {
        devices: args.devices,
        addresses: args.addresses.clone(),
        link_type: match args.link_type {
            LinkType::Udp => Wire::Udp,
            LinkType::Shm => Wire::Shm,
        },
        mtu: args.mtu,
        dm_bytes: args.dm_bytes,
        link: args.link.clone(),
        fault,
        adversary: args.adversary.map(|adversary| adversary.to_string()),
        pcap: pcap.map_err(|e| CliError::new(e, "name the capture otherwise"))?,
        record: record.map_err(|e| CliError::new(e, "name the recording otherwise"))?,
        record_payload: args.record_payload,
        trace: tracing.and_then(|tracing| proc_path(tracing)),
        verbose: args.verbose,
        sysfs: Some(directory.0.clone()),
    };
    options.check().map_err(|e| CliError::new(e, help))?;
    let object = find_object()?;
    let (program, arguments) = command.split_first().expect("clap asks for one");
    if let (Some(port), Some(tracing)) = (args.metrics, tracing) {
        metrics::serve(port, tracing)?;
    }
    let fault = "this is a fault; please report it";
    let guard = Guard::start(&directory.0).map_err(|e| CliError::new(e, fault))?;
    let child = Command::new(program)
        .args(arguments)
        .env(VARIABLE, options.emit())
        .env("LD_PRELOAD", preload(&object))
        .spawn();
    let child = child.map_err(|e| {
        guard.done();
        let what = format!("cannot start {}: {e}", program.display());
        CliError::new(what, "name a program")
    })?;
    guard.watch(child.id());
    let status = wait(child).map_err(|e| CliError::new(e, fault))?;
    guard.done();
    if let Some(tracing) = tracing.filter(|_| args.stats) {
        eprint!("{}", stats::text(&tracing.devices(false), tracing.refused()));
    }
    Ok(code(status))
}

/// Where programs of this user find the memory that this process holds.
fn proc_path(tracing: &Tracing) -> Option<PathBuf> {
    let file = tracing.file()?.as_raw_fd();
    Some(format!("/proc/{}/fd/{file}", std::process::id()).into())
}

/// The text of a fault script that makes sense.
fn read_script(path: &Path, devices: usize) -> Result<String, CliError> {
    let (name, help) = (path.display(), "docs/faults.md says how a script is written");
    // A program's environment has room for so much.
    let bytes = input::read(path, MAX_SCRIPT_BYTES as u64)
        .map_err(|e| CliError::new(format!("cannot read {name}: {e}"), help))?;
    let text =
        String::from_utf8(bytes).map_err(|_| CliError::new(format!("{name} is not text"), help))?;
    let script: Script = text.parse().map_err(|e| CliError::new(format!("{name}: {e}"), help))?;
    if script.names_beyond(devices) {
        let what = format!("{name} names a device that is not there: there are {devices}, from 0");
        return Err(CliError::new(what, "give --devices"));
    }
    Ok(text)
}

/// The preloaded object, followed by other objects to be preloaded.
fn preload(object: &Path) -> OsString {
    let mut all = object.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

fn find_object() -> Result<PathBuf, CliError> {
    let named = env::var_os(OBJECT_VARIABLE).map(PathBuf::from);
    let near = || {
        let program = env::current_exe().ok()?;
        let (beside, installed) =
            (program.parent()?.join(OBJECT), program.parent()?.join(INSTALLED).join(OBJECT));
        Some(if !beside.is_file() && installed.is_file() { installed } else { beside })
    };
    let path = named.or_else(near).unwrap_or_else(|| OBJECT.into());
    let remedy = format!(
        "install a package of bellpush, which has it; or build it with 'cargo build -p bellpush-shim', \
         with --release if bellpush was; or name it in {OBJECT_VARIABLE}"
    );
    if !path.is_file() {
        return Err(CliError::new(format!("there is no {}", path.display()), remedy));
    }
    let path = path.canonicalize().map_err(|e| CliError::new(e, remedy))?;
    if path.as_os_str().as_bytes().iter().any(|byte| b": ".contains(byte)) {
        let what = format!("{} has a colon or a space in it", path.display());
        return Err(CliError::new(what, "LD_PRELOAD takes neither: copy it elsewhere"));
    }
    Ok(path)
}

/// A directory of this process alone, which is removed with the value.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, CliError> {
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        for attempt in 0.. {
            let name = format!("bellpush-run-{}-{attempt}", std::process::id());
            let path = env::temp_dir().join(name);
            match builder.create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => {}
                Err(e) => {
                    let what = format!("cannot create {}: {e}", path.display());
                    return Err(CliError::new(what, "set TMPDIR to a place that can be written"));
                }
            }
        }
        unreachable!("the last attempt returns")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // a remaining file is left to the system's cleaning of temporary files
    }
}

/// Waits for the program, and passes signals on to it: none of them ends this process any more. Those from a terminal
/// reach the program directly.
fn wait(mut child: Child) -> io::Result<ExitStatus> {
    use Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    // Not before the program is started, which would have them blocked.
    let signals = SigSet::from_iter([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]);
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    let pid = Pid::from_raw(child.id() as i32);
    thread::Builder::new().name("bellpush-signals".into()).spawn(move || {
        while let Ok(Some(info)) = signals.read_signal() {
            // SI_USER and its kin; a terminal's are SI_KERNEL, which is above.
            let by_a_process = info.ssi_code <= 0;
            match Signal::try_from(info.ssi_signo as i32) {
                Ok(Signal::SIGINT | Signal::SIGQUIT) if !by_a_process => {}
                Ok(signal) => drop(kill(pid, signal)), // it may have ended
                Err(_) => {}
            }
        }
    })?;
    child.wait()
}

/// The program's status as a shell would report it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
