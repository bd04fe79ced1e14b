//! The program's descriptors that are ours, by their files.
//!
//! `close` and `fstat`, which programs call in signal handlers, look here. So the list is held with
//! signals blocked: no handler interrupts a thread that holds it, and none waits for a thread that
//! waits for the handler's. Nothing is allocated or freed while it is held.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bellpush_mem::hidden;

use crate::context::Context;
use crate::error::Refusal;
use crate::events::EventPipe;
use crate::rdma_cm::CmFile;
use crate::real;
use crate::tree;

/// What a descriptor of ours is.
#[derive(Clone)]
pub enum Kind {
    /// An open device.
    Device(Arc<Context>),
    /// A completion channel or an asynchronous event descriptor.
    Events(Arc<EventPipe>),
    /// An event channel of DEVX.
    Subscribed(Arc<EventPipe>),
    /// An event channel of librdmacm's.
    RdmaCm(Arc<CmFile>),
    /// Any of them, opened by the process that this one was forked from.
    Inherited {
        /// Device number that `fstat` reports of an open device.
        rdev: Option<u64>,
    },
}

impl Kind {
    /// Device number that `fstat` reports.
    fn rdev(&self) -> Option<u64> {
        match self {
            Self::Device(context) => Some(context.device.rdev),
            Self::Events(_) | Self::Subscribed(_) => None,
            Self::RdmaCm(_) => Some(tree::RDMA_CM),
            Self::Inherited { rdev } => *rdev,
        }
    }
}

/// Device and inode: a descriptor is recognised by its file, whatever number a program gave it.
pub type FileId = (u64, u64);

/// The file behind a descriptor.
pub fn file_id(fd: RawFd) -> Option<FileId> {
    // SAFETY: all zeros are a stat; fstat writes no more than one.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (real::fstat(fd, &mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

/// Descriptors of this process that the program knows of. To list them takes one more: without,
/// every number that one can have is as good as listed.
pub fn descriptors() -> Vec<RawFd> {
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    let listed =
        std::fs::read_dir("/proc/self/fd").and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut all: Vec<_> = match listed {
        Ok(entries) => entries.into_iter().filter_map(number).collect(),
        Err(_) => (0..highest()).collect(),
    };
    all.retain(|&fd| !hidden::is_hidden(fd));
    all
}

/// Past the highest number of a descriptor, or what Linux allows unless it is told otherwise.
fn highest() -> RawFd {
    // SAFETY: asks for a limit.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    limit.clamp(0, 1 << 20) as RawFd
}

struct OpenFile {
    id: FileId,
    kind: Kind,
}

/// All signals are blocked until it is dropped.
struct NoSignals(libc::sigset_t);

impl NoSignals {
    fn new() -> Self {
        // SAFETY: the sets are ours; all zeros are a signal set.
        unsafe {
            let (mut all, mut mask): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigfillset(&mut all);
            real::pthread_sigmask(libc::SIG_SETMASK, &all, &mut mask);
            Self(mask)
        }
    }
}

impl Drop for NoSignals {
    fn drop(&mut self) {
        // SAFETY: what `new` found.
        unsafe { real::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// The list, held. Fields go in this order: the list is let go before signals come.
struct Held<'a> {
    list: MutexGuard<'a, Vec<OpenFile>>,
    _quiet: NoSignals,
}

/// Files of ours that are open.
#[derive(Default)]
pub struct Files {
    list: Mutex<Vec<OpenFile>>,
    /// How many there are: without any, nobody need look.
    count: AtomicUsize,
    /// How many of them take commands by `write`.
    written: AtomicUsize,
}

impl Files {
    fn hold(&self) -> Held<'_> {
        let quiet = NoSignals::new();
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        Held { list, _quiet: quiet }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Whether there is none that takes commands by `write`.
    pub fn none_is_written(&self) -> bool {
        self.written.load(Ordering::Relaxed) == 0
    }

    /// Whether a file is ours.
    pub fn has(&self, id: FileId) -> bool {
        self.hold().list.iter().any(|file| file.id == id)
    }

    /// What a file of ours is.
    pub fn find(&self, id: FileId) -> Option<Kind> {
        self.hold().list.iter().find(|file| file.id == id).map(|file| file.kind.clone())
    }

    /// What `fstat` says of a file that is ours: an open device's number.
    pub fn rdev(&self, id: FileId) -> Option<u64> {
        self.hold().list.iter().find(|file| file.id == id)?.kind.rdev()
    }

    /// As [`Files::rdev`], in a child that may have been made while a thread of the parent held
    /// the list, and will hold it for ever. The outer option says whether the file is ours.
    pub fn inherited(&self, id: FileId) -> Option<Option<u64>> {
        let list = self.list.try_lock().ok()?;
        list.iter().find(|file| file.id == id).map(|file| file.kind.rdev())
    }

    /// Takes a file on.
    pub fn add(&self, file: &File, kind: Kind) -> Result<(), Refusal> {
        let id = file_id(file.as_raw_fd()).ok_or_else(|| Refusal::last("fstat"))?;
        let written = usize::from(matches!(kind, Kind::RdmaCm(_)));
        let mut spare = Vec::new();
        loop {
            let mut held = self.hold();
            let (used, room) = (held.list.len(), held.list.capacity());
            if used < room {
                held.list.push(OpenFile { id, kind });
                break;
            }
            if spare.capacity() > used {
                spare.append(&mut held.list);
                // What was the list goes when it is not held any more.
                std::mem::swap(&mut *held.list, &mut spare);
                continue;
            }
            drop(held);
            spare = Vec::with_capacity(2 * used + 8);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.written.fetch_add(written, Ordering::Relaxed);
        Ok(())
    }

    /// Lets a file go; what it was.
    pub fn remove(&self, id: FileId) -> Option<Kind> {
        let mut held = self.hold();
        let at = held.list.iter().position(|file| file.id == id)?;
        let gone = held.list.swap_remove(at);
        self.count.fetch_sub(1, Ordering::Relaxed);
        if matches!(gone.kind, Kind::RdmaCm(_)) {
            self.written.fetch_sub(1, Ordering::Relaxed);
        }
        drop(held);
        Some(gone.kind)
    }

    /// All files.
    pub fn all(&self) -> Vec<FileId> {
        let mut all = Vec::new();
        loop {
            let held = self.hold();
            if held.list.len() <= all.capacity() {
                all.extend(held.list.iter().map(|file| file.id));
                return all;
            }
            let need = held.list.len();
            drop(held);
            all.reserve(need);
        }
    }

    /// What the child of a fork has of its parent's files. A list that is held stays so in the
    /// child: without it, inherited descriptors are files that know nothing of verbs.
    pub fn in_child(&self) -> Self {
        let inherited: Vec<_> = self.list.try_lock().map_or_else(
            |_| Vec::new(),
            |list| {
                let file = |file: &OpenFile| {
                    let kind = Kind::Inherited { rdev: file.kind.rdev() };
                    OpenFile { id: file.id, kind }
                };
                list.iter().map(file).collect()
            },
        );
        let written = self.written.load(Ordering::Relaxed).into();
        Self { count: inherited.len().into(), list: Mutex::new(inherited), written }
    }
}
