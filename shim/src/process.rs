//! What the process has: options, devices, and the descriptors that are ours.
//!
//! A child of a fork has none of it: no engine's thread came along. Its inherited descriptors answer
//! `EIO`, and devices that it opens itself are new ones.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bellpush::preload::{Preload, VARIABLE};

use crate::context::Context;
use crate::counters;
use crate::device::Device;
use crate::error::Refusal;
use crate::events::EventPipe;
use crate::real;
use crate::tree::Tree;

/// What a descriptor of ours is.
#[derive(Clone)]
pub enum Kind {
    /// An open device.
    Device(Arc<Context>),
    /// A completion channel or an asynchronous event descriptor.
    Events(Arc<EventPipe>),
    /// Either, opened by the process that this one was forked from.
    Inherited {
        /// Device number that `fstat` reports of an open device.
        rdev: Option<u64>,
    },
}

/// Device and inode: a descriptor is recognised by its file, whatever number a program gave it.
pub type FileId = (u64, u64);

struct OpenFile {
    id: FileId,
    kind: Kind,
}

/// The process's state.
pub struct Process {
    /// Its options.
    pub options: Preload,
    /// Its sysfs files.
    pub tree: Tree,
    devices: Mutex<Vec<Slot>>,
    files: Mutex<Vec<OpenFile>>,
    /// Refusals that were told.
    told: Mutex<HashSet<String>>,
}

/// A device that is open, or was.
#[derive(Default)]
struct Slot {
    open: Weak<Device>,
    /// Where it was: it comes back there if it can.
    last: Option<std::net::IpAddr>,
}

/// Refusals that are told at most.
const MOST_TOLD: usize = 1000;

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// Descriptors in `files`: without any, `close` and `fstat` need not look.
static FILES: AtomicUsize = AtomicUsize::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process's state, once the object is initialised and if its options make sense.
pub fn process() -> Option<&'static Process> {
    // SAFETY: what is stored here is leaked.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Prints a line on stderr.
pub fn say(line: &str) {
    eprintln!("bellpush: {line}");
}

/// Reads the options and lays the sysfs files out. Called once, when the object is loaded.
pub fn start() {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    let options = match Preload::parse(if text.is_empty() { "{}" } else { &text }) {
        Ok(options) => options,
        Err(e) => return say(&format!("{e}; there is no device")),
    };
    let tree = match Tree::open(&options) {
        Ok(tree) => tree,
        Err(e) => return say(&format!("cannot lay out sysfs files: {e}; there is no device")),
    };
    install(options, tree, Vec::new());
    // What `nic::soft` does to GPU memory are copies, for which the program's kernels wait as they
    // would for a card. CUDA must not have a copy wait for a kernel in turn.
    let cuda = [
        // A kernel that is loaded at its first launch, while another runs, holds copies up until
        // that one ends.
        (c"CUDA_MODULE_LOADING", c"EAGER"),
        // Streams that share one of the (by default 8) connections to the GPU wait for each other:
        // as many as there can be.
        (c"CUDA_DEVICE_MAX_CONNECTIONS", c"32"),
    ];
    for (name, value) in cuda {
        // SAFETY: C strings; the loader runs this before the program has a thread. What the program
        // was given stays.
        unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 0) };
    }
    // SAFETY: the handler is a function that stays.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

fn install(options: Preload, tree: Tree, files: Vec<OpenFile>) {
    let mut devices = Vec::new();
    devices.resize_with(options.devices, Slot::default);
    FILES.store(files.len(), Ordering::Relaxed);
    let (devices, files) = (Mutex::new(devices), Mutex::new(files));
    let process = Process { options, tree, devices, files, told: Mutex::default() };
    PROCESS.store(Box::into_raw(Box::new(process)), Ordering::Release);
}

/// In the child of a fork: the parent's state is left as it is (its locks may be held, its threads
/// are gone) and a new one begins.
extern "C" fn forked() {
    let Some(parent) = process() else { return };
    // Without the list, inherited descriptors are files that know nothing of verbs.
    let mut inherited = Vec::new();
    if let Ok(files) = parent.files.try_lock() {
        inherited.extend(files.iter().map(|file| {
            let rdev = match &file.kind {
                Kind::Device(context) => Some(context.device.rdev),
                Kind::Events(_) => None,
                Kind::Inherited { rdev } => *rdev,
            };
            OpenFile { id: file.id, kind: Kind::Inherited { rdev } }
        }));
    }
    install(parent.options.clone(), parent.tree.inherited(), inherited);
}

/// The file behind a descriptor.
pub fn file_id(fd: RawFd) -> Option<FileId> {
    // SAFETY: all zeros are a stat; fstat writes no more than one.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (real::fstat(fd, &mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

impl Process {
    /// What a descriptor of ours is.
    pub fn find(&self, fd: RawFd) -> Option<Kind> {
        if FILES.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.find_id(file_id(fd)?)
    }

    /// What a file of ours is.
    pub fn find_id(&self, id: FileId) -> Option<Kind> {
        let files = lock(&self.files);
        files.iter().find(|file| file.id == id).map(|file| file.kind.clone())
    }

    /// Takes a file on.
    pub fn add(&self, file: &File, kind: Kind) -> Result<(), Refusal> {
        let id = file_id(file.as_raw_fd()).ok_or_else(|| Refusal::last("fstat"))?;
        lock(&self.files).push(OpenFile { id, kind });
        FILES.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A program closes a descriptor: when no other is left of its file, what it stands for goes.
    /// Called before the descriptor is closed.
    pub fn closing(&self, fd: RawFd) {
        let Some(id) = (FILES.load(Ordering::Relaxed) > 0).then(|| file_id(fd)).flatten() else {
            return;
        };
        let Some(kind) = self.find_id(id) else { return };
        let own: &[RawFd] = match &kind {
            Kind::Events(pipe) => &pipe.own(),
            _ => &[],
        };
        if has_other(fd, id, own) {
            return;
        }
        let gone = {
            let mut files = lock(&self.files);
            files.iter().position(|file| file.id == id).map(|at| files.swap_remove(at))
        };
        if gone.is_some() {
            FILES.fetch_sub(1, Ordering::Relaxed);
        }
        if let Kind::Device(context) = kind {
            context.shut_down();
        }
    }

    /// A device, opened if it is not.
    pub fn device(&self, index: usize) -> Result<Arc<Device>, Refusal> {
        let mut devices = lock(&self.devices);
        let slot = devices.get_mut(index).ok_or(Refusal::Unsupported("a device of that number"))?;
        if let Some(device) = slot.open.upgrade() {
            return Ok(device);
        }
        let device = Device::open(&self.options, index, slot.last)?;
        *slot = Slot { open: Arc::downgrade(&device), last: Some(device.address) };
        Ok(device)
    }

    /// A file of the tree is opened: one of a port's counters shows what this process's device has
    /// counted by now.
    pub fn opening(&self, path: &Path) {
        let below = path.strip_prefix(self.tree.path()).ok().and_then(Path::to_str);
        let Some(index) = below.and_then(counters::device_of) else { return };
        let device = lock(&self.devices).get(index).and_then(|slot| slot.open.upgrade());
        let counted = device.map(|device| device.nic.counters()).unwrap_or_default();
        if let Err(e) = counters::write(self.tree.path(), index, &counted) {
            say(&format!("cannot write the counters of mlx5_{index}: {e}"));
        }
    }

    /// Tells what a program was refused, if the options say so; the same is told once.
    pub fn refused(&self, what: &str, refusal: &Refusal) {
        // That an entry of the GID table is empty is an answer, which programs look for.
        if !self.options.verbose || matches!(refusal, Refusal::NoGid(_)) {
            return;
        }
        let line = format!("{what}: {refusal}");
        let mut told = lock(&self.told);
        if told.len() < MOST_TOLD && told.insert(line.clone()) {
            say(&line);
        }
    }
}

/// Whether the process has another descriptor of a file, beside our own.
fn has_other(fd: RawFd, id: FileId, own: &[RawFd]) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return false };
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    let others = entries.flatten().filter_map(number).filter(|n| *n != fd && !own.contains(n));
    others.into_iter().any(|other| file_id(other) == Some(id))
}
