//! What the process has: options, devices, and the descriptors that are ours.
//!
//! A child of a fork has none of it: no engine's thread came along. Its inherited descriptors answer
//! `EIO`, and devices that it opens itself are new ones. A child that no handler of a fork has seen
//! (`vfork`, `posix_spawn`, the bare system call) opens none and leaves the parent's alone.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use bellpush_mem::{guarded, hidden};
use bellpush_preload::{Preload, VARIABLE};

use bellpush_soft_nic::log;

use crate::counters;
use crate::device::{At, Device, Gone};
use crate::dir::Written;
use crate::drive::{Drivers, Inside};
use crate::error::Refusal;
use crate::files::{FileId, Files, Kind, descriptors, file_id};
use crate::layout;
use crate::rdma_cm::RdmaCm;
use crate::real;
use crate::trap;
use crate::tree::Tree;

/// The process's state.
pub struct Process {
    /// Its number: a child that did not come of `fork` has the same state, and none of what is
    /// behind it.
    pid: libc::pid_t,
    /// Its options.
    pub options: Preload,
    /// Its sysfs files.
    pub tree: Tree,
    /// The program's descriptors that are ours.
    pub files: Files,
    devices: Mutex<Vec<Slot>>,
    /// Its connection management, once somebody has opened the device for it.
    rdma_cm: Mutex<Option<Arc<RdmaCm>>>,
    /// Who drives the engines of the devices that are open.
    pub drivers: Drivers,
    /// Refusals that were told.
    told: Mutex<HashSet<String>>,
}

/// A device that is open, or was.
#[derive(Default)]
struct Slot {
    open: Weak<Device>,
    /// When that one is gone.
    gone: Option<Gone>,
    /// Where it was: it comes back there if it can.
    last: Option<IpAddr>,
    /// Where the parent's was when it forked: a server's children are found where it is.
    parents: Option<IpAddr>,
}

/// Refusals that are told at most.
const MOST_TOLD: usize = 1000;
/// How long a process that ends waits for what its captures hold back, which is 100 ms at most.
const CAPTURE: Duration = Duration::from_millis(150);
/// How long a process that ends waits for what others have locked.
const END_PATIENCE: Duration = Duration::from_millis(200);
const LOCK_PAUSE: Duration = Duration::from_micros(50);

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock, if whoever has it lets it go until then: it may be the very thread that asks, interrupted by a handler.
pub fn lock_until<T>(mutex: &Mutex<T>, until: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
        }
    }
}

/// The process's state, once the object is initialised and if its options make sense.
pub fn process() -> Option<&'static Process> {
    // SAFETY: what is stored here is leaked.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// The same, if it is this process's. Asks the system for the process's number.
pub fn own() -> Option<&'static Process> {
    process().filter(|process| process.is_here())
}

/// Prints a line on stderr, where it may be that nobody reads. By the system call: what Rust has for
/// it panics then, and has a lock, which a thread that a fork leaves behind may hold.
pub fn say(line: &str) {
    print(&format!("bellpush: {line}"));
}

/// As [`say`], of a line of the log.
fn print(line: &str) {
    let line = format!("{line}\n");
    // SAFETY: writes bytes of ours.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Reads the options and lays the sysfs files out. Called once, when the object is loaded.
pub fn start() {
    real::resolve();
    hidden::move_up_to(floor());
    let text = std::env::var(VARIABLE).unwrap_or_default();
    let options = match Preload::parse(if text.is_empty() { "{}" } else { &text }) {
        Ok(options) => options,
        Err(e) => return say(&format!("{e}; there is no device")),
    };
    // `RUST_LOG` is the program's.
    match log::Printing::from_environment(false) {
        Ok(Some(printing)) => _ = log::install(printing, print),
        Ok(None) => {}
        Err(error) => say(&format!("{error}; nothing is logged")),
    }
    let tree = match Tree::open(&options) {
        Ok(tree) => tree,
        Err(e) => return say(&format!("cannot lay out sysfs files: {e}; there is no device")),
    };
    install(options, tree, Files::default(), Vec::new());
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
    // SAFETY: the handlers are functions that stay.
    unsafe { libc::pthread_atfork(Some(forks), Some(has_forked), Some(forked)) };
}

/// Where descriptors go that the program does not know of: above those that programs give numbers
/// to, and what `select` can name is left to the program as far as it may have more.
fn floor() -> RawFd {
    // SAFETY: all zeros are limits; the call writes no more.
    let most = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur
    };
    (most / 2).min(512) as RawFd
}

/// Begins a process's state; `parents` says where its parent's devices were.
fn install(options: Preload, tree: Tree, files: Files, parents: Vec<Option<IpAddr>>) {
    let mut devices: Vec<_> =
        parents.into_iter().map(|parents| Slot { parents, ..Slot::default() }).collect();
    devices.resize_with(options.devices, Slot::default);
    // SAFETY: takes nothing and cannot fail.
    let pid = unsafe { libc::getpid() };
    let (devices, drivers) = (Mutex::new(devices), Drivers::new(options.devices));
    let (rdma_cm, told) = (Mutex::default(), Mutex::default());
    let process = Process { pid, options, tree, files, devices, rdma_cm, drivers, told };
    PROCESS.store(Box::into_raw(Box::new(process)), Ordering::Release);
}

extern "C" fn forks() {
    hidden::fork_begins();
}

extern "C" fn has_forked() {
    hidden::fork_ends();
}

/// In the child of a fork: the parent's state is left as it is (its locks may be held, its threads
/// are gone) and a new one begins. What the parent's devices hold open it must not hold as well:
/// their addresses would stay taken when the parent has closed them.
extern "C" fn forked() {
    hidden::forked();
    guarded::is_programs_own();
    let Some(parent) = process() else { return };
    hidden::close_inherited();
    trap::forked();
    // Another thread of the parent's may have held it, which is not here to let go of it.
    let devices = parent.devices.try_lock();
    let at = devices.iter().flat_map(|slots| slots.iter()).map(|slot| slot.last.or(slot.parents));
    let at = at.collect();
    install(parent.options.clone(), parent.tree.inherited(), parent.files.in_child(), at);
}

impl Process {
    /// Whether this is the process, and not a child that has its memory (`vfork`) or was made by
    /// the system call alone.
    pub fn is_here(&self) -> bool {
        // SAFETY: takes nothing and cannot fail.
        self.pid == unsafe { libc::getpid() }
    }

    /// What a descriptor of ours is.
    pub fn find(&self, fd: RawFd) -> Option<Kind> {
        if self.files.is_empty() {
            return None;
        }
        let id = file_id(fd)?;
        match self.is_here() {
            true => self.files.find(id),
            false => self.files.inherited(id).map(|rdev| Kind::Inherited { rdev }),
        }
    }

    /// Device number that `fstat` says of a descriptor that is ours.
    pub fn rdev(&self, id: FileId) -> Option<u64> {
        match self.is_here() {
            true => self.files.rdev(id),
            false => self.files.inherited(id).flatten(),
        }
    }

    /// A program closes a descriptor: when no other is left of its file, what it stands for goes.
    /// Called before the descriptor is closed.
    pub fn closing(&self, fd: RawFd) {
        if let Some(id) = self.ours(fd)
            && !has_other(fd, id)
        {
            self.let_go(id);
        }
    }

    /// The same, of a descriptor whose number another has by now.
    pub fn replaced(&self, id: FileId) {
        if !has_other(-1, id) {
            self.let_go(id);
        }
    }

    /// The file behind a descriptor, if it is ours.
    pub fn ours(&self, fd: RawFd) -> Option<FileId> {
        file_id(fd).filter(|&id| self.files.has(id))
    }

    /// Nothing leads to a file any more.
    fn let_go(&self, id: FileId) {
        match self.files.remove(id) {
            Some(Kind::Device(context)) => context.shut_down(),
            Some(Kind::RdmaCm(file)) => {
                let cm = lock(&self.rdma_cm).clone();
                cm.inspect(|cm| cm.close(&file));
            }
            Some(Kind::Subscribed(channel)) => {
                drop(channel);
                let devices: Vec<_> =
                    lock(&self.devices).iter().filter_map(|slot| slot.open.upgrade()).collect();
                devices.iter().for_each(|device| device.listeners.subscriptions.sweep());
            }
            _ => {}
        }
    }

    /// Lets go what was closed and not seen to be: by a system call of the program's own, or inside
    /// of libc.
    pub fn sweep(&self) {
        let all = self.files.all();
        if all.is_empty() {
            return;
        }
        let open: HashSet<_> = descriptors().into_iter().filter_map(file_id).collect();
        all.into_iter().filter(|id| !open.contains(id)).for_each(|id| self.let_go(id));
    }

    /// The program's descriptors in a range that are ours.
    pub fn ours_in(&self, range: RangeInclusive<RawFd>) -> Vec<RawFd> {
        if self.files.is_empty() {
            return Vec::new();
        }
        let inside = descriptors().into_iter().filter(|fd| range.contains(fd));
        inside.filter(|&fd| self.ours(fd).is_some()).collect()
    }

    /// Connection management, begun if it is not.
    pub fn rdma_cm(&self) -> Result<Arc<RdmaCm>, Refusal> {
        let mut slot = lock(&self.rdma_cm);
        if let Some(cm) = &*slot {
            return Ok(cm.clone());
        }
        let cm = RdmaCm::start(self.options.devices)?;
        *slot = Some(cm.clone());
        Ok(cm)
    }

    /// The process ends. A handler may have called `exit` while the thread was at something here: what is locked for long
    /// is left alone.
    pub fn end(&self) {
        self.drivers.take_leave();
        let until = Instant::now() + END_PATIENCE;
        // What this very thread was at below may have one of the NIC's locks, which are waited for without a bound.
        let is_free = !Inside::is_entered();
        let cm = lock_until(&self.rdma_cm, until).and_then(|cm| cm.clone());
        if let Some(cm) = cm.filter(|_| is_free) {
            cm.farewell();
            self.drivers.take_leave(); // of a link that delays
        }
        let devices = lock_until(&self.devices, until);
        let of = |slot: &Slot| slot.open.upgrade();
        let open: Vec<_> = devices.iter().flat_map(|slots| slots.iter().map(of)).collect();
        drop(devices);
        for device in open.iter().flatten().filter(|_| is_free) {
            device.tell_end();
            device.nic.flush_recording();
        }
        // The engine of a device that is still open writes them.
        if self.options.pcap.is_some() && open.iter().any(Option::is_some) {
            std::thread::sleep(CAPTURE);
        }
        std::mem::forget(open); // whoever has them, they are not to be closed from here
        self.tree.remove();
    }

    /// A device, opened if it is not: at an address that is `wanted`, if the options give it none.
    pub fn device(&self, index: usize, wanted: Option<IpAddr>) -> Result<Arc<Device>, Refusal> {
        let mut devices = lock(&self.devices);
        let slot = devices.get_mut(index).ok_or(Refusal::Unsupported("a device of that number"))?;
        if let Some(device) = slot.open.upgrade() {
            return Ok(device);
        }
        // Another thread may have closed it just now, and its address is still taken.
        // Whoever ends it does so without a lock of this object's, and neither that thread nor those that it waits for
        // (the engine's, the watch's, a program's in a step) come here: the list may be held meanwhile.
        if let Some(gone) = slot.gone.take() {
            gone.wait();
        }
        // Where this process was before, somebody else may be by now, with whom it has nothing to do.
        let at = match (wanted.or(slot.parents), slot.last) {
            (Some(wanted), _) => At::Beside(wanted),
            (None, last) => last.map_or(At::Anywhere, At::Alone),
        };
        let (device, gone) = Device::open(&self.options, index, at)?;
        self.drivers.add(index, &device.driver);
        let (open, last) = (Arc::downgrade(&device), Some(device.address));
        *slot = Slot { open, gone: Some(gone), last, ..*slot };
        drop(devices);
        // For those that read below a directory that they have opened.
        if let Err(e) = self.tree.stay(&self.options).and_then(|()| self.show_gid(index).map(drop))
        {
            say(&format!("cannot show the GID of mlx5_{index}: {e}"));
        }
        Ok(device)
    }

    /// The tree is there, if it can be.
    pub fn stay(&self) {
        let _ = self.tree.stay(&self.options); // without it, there are no such files
    }

    /// A file of the tree is to be opened: it is there, and says what this process's device has by now, if it is a
    /// counter, the port's state or the GID. Other processes that have the tree may put theirs in its place; what is
    /// returned stays.
    pub fn opening(&self, path: &Path) -> Option<Written> {
        self.stay();
        let below = path.strip_prefix(self.tree.path()).ok().and_then(Path::to_str);
        let (index, file) =
            below.and_then(layout::of_device).filter(|&(index, _)| index < self.options.devices)?;
        let written = if counters::is_counter(file) {
            let counted =
                self.opened(index).map(|device| device.nic.counters()).unwrap_or_default();
            self.tree.dir().and_then(|dir| counters::write(&dir, index, &counted, file))
        } else if file == layout::GID {
            self.show_gid(index).map(Some)
        } else if [layout::STATE, layout::PHYS_STATE].contains(&file) {
            self.show_state(index, file).map(Some)
        } else {
            return None;
        };
        written.unwrap_or_else(|e| {
            say(&format!("cannot write {file} of mlx5_{index}: {e}"));
            None
        })
    }

    /// A device that is open.
    fn opened(&self, index: usize) -> Option<Arc<Device>> {
        lock(&self.devices).get(index)?.open.upgrade()
    }

    /// Has a device's files show its address: where it is, else where it was, else where it is to be. Returns the
    /// GID's.
    fn show_gid(&self, index: usize) -> io::Result<Written> {
        let last = lock(&self.devices).get(index).and_then(|slot| slot.last);
        let address = last.or_else(|| self.options.addresses.get(index).copied());
        let (dir, port) = (self.tree.dir()?, layout::port(index));
        dir.replace(&format!("{port}/gid_attrs/ndevs/0"), &layout::interface(address))?;
        dir.replace(&format!("{port}/gids/0"), &layout::gid_line(address))
    }

    /// Has a file of a device's say the port's state. One that is not open is as it is to be.
    fn show_state(&self, index: usize, file: &str) -> io::Result<Written> {
        let is_up = self.opened(index).is_none_or(|device| device.listeners.is_port_up());
        let state =
            if file == layout::STATE { layout::state_line } else { layout::phys_state_line };
        let name = file.rsplit_once('/').map_or(file, |(_, name)| name);
        self.tree.dir()?.replace(&format!("{}/{name}", layout::port(index)), state(is_up))
    }

    /// Tells what a program was refused, if the options say so; the same is told once.
    pub fn refused(&self, what: &str, refusal: &Refusal) {
        // Answers that libraries look for: that an entry of the GID table is empty, that commands go by `ioctl`, that
        // nothing has happened.
        let is_answer = matches!(refusal, Refusal::NoGid(_) | Refusal::NoCore | Refusal::NoEvent);
        if !self.options.verbose || is_answer {
            return;
        }
        let line = format!("{what}: {refusal}");
        let mut told = lock(&self.told);
        if told.len() < MOST_TOLD && told.insert(line.clone()) {
            say(&line);
        }
    }
}

/// Whether the program has another descriptor of a file.
fn has_other(fd: RawFd, id: FileId) -> bool {
    descriptors().into_iter().any(|other| other != fd && file_id(other) == Some(id))
}
