//! What checks of commands need (`fuzz/checks/uverbs`): the device opened in this very process, without `LD_PRELOAD`,
//! and memory to give commands that is looked at afterwards.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::ids::VERBS_IOCTL;
use crate::context::Context;
use crate::files::{self, Kind};
use crate::process::{self, Process};
use crate::real;

const PAGE: usize = 4096;
/// Bytes of commands and answers; and of queues and regions, which the device writes as it likes.
pub const ARENA: usize = 4 * PAGE;
pub const QUEUES: usize = 64 * PAGE;

/// Addresses of the process's memory. Each part lies between pages that cannot be accessed.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Of commands and answers.
    pub arena: u64,
    /// Of queues and regions.
    pub queues: u64,
    /// A page that can be read and not written.
    pub constant: u64,
    /// A page that cannot be accessed.
    pub hole: u64,
}

impl Memory {
    fn map() -> Self {
        let pages = (ARENA + QUEUES) / PAGE + 5;
        // SAFETY: new mappings at no place in particular, parts of which get rights.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start =
                libc::mmap(std::ptr::null_mut(), pages * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert!(start != libc::MAP_FAILED, "no memory");
            let start = start as u64;
            let arena = start + PAGE as u64;
            let queues = arena + (ARENA + PAGE) as u64;
            let constant = queues + (QUEUES + PAGE) as u64;
            for (at, bytes, rights) in [
                (arena, ARENA, libc::PROT_READ | libc::PROT_WRITE),
                (queues, QUEUES, libc::PROT_READ | libc::PROT_WRITE),
                (constant, PAGE, libc::PROT_READ),
            ] {
                assert_eq!(libc::mprotect(at as *mut _, bytes, rights), 0);
            }
            Self { arena, queues, constant, hole: start }
        }
    }

    /// Writes the arena, all of it.
    pub fn fill(&self, bytes: &[u8; ARENA]) {
        // SAFETY: mapped for writing for good, and reached by copies alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.arena as *mut u8, ARENA) };
    }

    /// Reads the arena.
    pub fn read(&self, into: &mut [u8; ARENA]) {
        // SAFETY: mapped for good; no command is under way.
        unsafe { std::ptr::copy_nonoverlapping(self.arena as *const u8, into.as_mut_ptr(), ARENA) };
    }

    /// Zeros the queues, which no object uses.
    pub fn clear_queues(&self) {
        // SAFETY: mapped for writing for good.
        unsafe { std::ptr::write_bytes(self.queues as *mut u8, 0, QUEUES) };
    }
}

/// A device that is open, and what it has.
pub struct Opened {
    process: &'static Process,
    context: std::sync::Arc<Context>,
    fd: Option<OwnedFd>,
    /// Memory for commands.
    pub memory: Memory,
    before: u64,
    _alone: MutexGuard<'static, ()>,
}

fn context(process: &Process, fd: RawFd) -> std::sync::Arc<Context> {
    match process.find(fd) {
        Some(Kind::Device(context)) => context,
        _ => panic!("the descriptor is not the device's"),
    }
}

impl Opened {
    /// Opens the device; one at a time.
    pub fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        /// Another opening, with which the device stays from one check to the next.
        static STAYS: OnceLock<(OwnedFd, Memory)> = OnceLock::new();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if process::process().is_none() {
            process::start();
        }
        let process = process::process().expect("the process's state");
        let open = || Context::open(process, 0, true).expect("the device");
        let (_, memory) = STAYS.get_or_init(|| (open(), Memory::map()));
        memory.clear_queues();
        let fd = open();
        let context = context(process, fd.as_raw_fd());
        let mut opened =
            Self { process, context, fd: Some(fd), memory: *memory, before: 0, _alone: alone };
        opened.before = opened.dm_left();
        opened
    }

    /// Sends the command at an address; its errno.
    pub fn ioctl(&self, addr: u64) -> Result<(), i32> {
        let fd = self.descriptor();
        self.context.ioctl(self.process, fd, VERBS_IOCTL, addr)
    }

    /// How many objects there are.
    pub fn objects(&self) -> usize {
        self.context.count()
    }

    fn dm_left(&self) -> u64 {
        *self.context.device.dm_left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device's descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.fd.as_ref().expect("it is open").as_raw_fd()
    }

    /// Closes the device, with all that is left.
    pub fn end(mut self) {
        let fd = self.fd.take().expect("it is open");
        self.process.closing(fd.as_raw_fd());
        drop(fd);
        assert_eq!(self.context.count(), 0, "objects outlive the device's descriptor");
        assert_eq!(self.dm_left(), self.before, "device memory is not given back");
        assert_eq!(self.context.device.listeners.count(), 0, "events are told to nobody");
    }
}

/// Closes a descriptor that a command has made.
pub fn close(fd: RawFd) {
    process::process().inspect(|process| process.closing(fd));
    // SAFETY: a descriptor of the check's own.
    unsafe { real::close(fd) };
}

/// Descriptors that the program knows of.
pub fn visible() -> Vec<RawFd> {
    // To list them takes one, which is gone then.
    files::descriptors().into_iter().filter(|&fd| files::file_id(fd).is_some()).collect()
}

/// How many descriptors the process has.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
