//! Completion channels and asynchronous event descriptors: pipes, so that `read`, `poll` and
//! `epoll` on them are the system's own.
//!
//! The kernel forgets events of an object that is destroyed, and tells how many were read: the
//! library waits until as many were acknowledged. So what lies unread in the pipe is taken out,
//! sifted, and put back.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bellpush_mem::hidden::Hidden;
use bytemuck::{Zeroable, bytes_of};

use crate::abi::verbs::AsyncEventDesc;
use crate::error::Refusal;
use crate::real;

/// Room for events in a pipe, in bytes; what is beyond waits in memory.
const PIPE_BYTES: libc::c_int = 1 << 20;

/// Reports events of one object.
pub struct Reporter {
    pipe: Arc<EventPipe>,
    /// What the program knows the object by: each event begins with it.
    element: u64,
    reported: AtomicU32,
}

impl Reporter {
    /// Reports events of an object to a pipe.
    pub fn new(pipe: Arc<EventPipe>, element: u64) -> Arc<Self> {
        Arc::new(Self { pipe, element, reported: AtomicU32::new(0) })
    }

    /// Reports a completion event (`struct ib_uverbs_comp_event_desc`).
    pub fn completion(&self) {
        self.push(bytes_of(&self.element));
    }

    /// Reports an asynchronous event.
    pub fn event(&self, event_type: u32) {
        let element = self.element;
        self.push(bytes_of(&AsyncEventDesc { element, event_type, ..AsyncEventDesc::zeroed() }));
    }

    fn push(&self, event: &[u8]) {
        self.reported.fetch_add(1, Ordering::Relaxed);
        self.pipe.push(event);
    }

    /// Takes back what was not read; how many events were. Called when no new ones come.
    pub fn read_so_far(&self) -> u32 {
        let unread = self.pipe.purge(|event| event.starts_with(&self.element.to_ne_bytes()));
        self.reported.load(Ordering::Relaxed).wrapping_sub(unread)
    }
}

/// A pipe of events of one size.
pub struct EventPipe {
    writer: Hidden<File>,
    /// Keeps the pipe open: a write to one that nobody reads would raise a signal. An opening of its
    /// own, which does not wait whatever the program's does. Made with the pipe: a program that has
    /// no descriptor left still ends its objects, for which it waits until their events are read.
    keep: Hidden<File>,
    event_bytes: usize,
    /// Events that found no room.
    waiting: Mutex<VecDeque<Vec<u8>>>,
}

impl EventPipe {
    /// A pipe, and the descriptor for the program.
    pub fn new(event_bytes: usize) -> Result<(Self, OwnedFd), Refusal> {
        Self::with(event_bytes, 0)
    }

    /// One whose every read takes one event, however much room it has.
    pub fn of_packets(event_bytes: usize) -> Result<(Self, OwnedFd), Refusal> {
        Self::with(event_bytes, libc::O_DIRECT)
    }

    fn with(event_bytes: usize, flags: libc::c_int) -> Result<(Self, OwnedFd), Refusal> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | flags) } != 0 {
            return Err(Refusal::last("pipe"));
        }
        // SAFETY: two new descriptors that nobody else has.
        let (reader, writer) =
            unsafe { (OwnedFd::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let keep = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let keep = keep.map_err(|source| Refusal::System { call: "open of a pipe", source })?;
        // SAFETY: flags and sizes of a pipe of ours; without more room it holds less.
        unsafe {
            libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK | flags);
            libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES);
        }
        let waiting = Mutex::default();
        let (writer, keep) = (Hidden::new(writer), Hidden::new(keep));
        Ok((Self { writer, keep, event_bytes, waiting }, reader))
    }

    /// Bytes of an event.
    pub fn event_bytes(&self) -> usize {
        self.event_bytes
    }

    /// Reports an event.
    pub fn push(&self, event: &[u8]) {
        debug_assert_eq!(event.len(), self.event_bytes);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back(event.to_vec());
        self.write(&mut waiting);
    }

    /// Writes as many events as there is room for. An event is written whole or not at all; none
    /// into what the program has in the pipe's place, if it has closed that.
    fn write(&self, waiting: &mut VecDeque<Vec<u8>>) {
        if !self.writer.is_there() {
            return;
        }
        while let Some(event) = waiting.front() {
            // Past this object's own hook: the engine is here at every completion event.
            // SAFETY: writes bytes of ours.
            let written =
                unsafe { real::write(self.writer.as_raw_fd(), event.as_ptr().cast(), event.len()) };
            if written < 0 {
                return;
            }
            waiting.pop_front();
        }
    }

    /// Takes out the events that nobody has read yet and that `is_of` an object; says how many.
    pub fn purge(&self, is_of: impl Fn(&[u8]) -> bool) -> u32 {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut unread = Vec::new();
        if self.keep.is_there() {
            let _ = (&*self.keep).read_to_end(&mut unread); // ends when nothing is left
        }
        let events = unread.chunks_exact(self.event_bytes).map(<[u8]>::to_vec);
        let all: VecDeque<Vec<u8>> = events.chain(waiting.drain(..)).collect();
        let before = all.len();
        *waiting = all.into_iter().filter(|event| !is_of(event)).collect();
        let purged = before - waiting.len();
        self.write(&mut waiting);
        purged as u32
    }
}
