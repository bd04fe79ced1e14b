//! Traces of the program: where its devices write theirs, and when its threads wait for a completion.
//!
//! A thread waits from a poll that finds nothing, or an arming, to a poll that finds something. What a program does
//! by other means, as one that reads its CQs itself, is not seen.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use bellpush_preload::Preload;
use bellpush_soft_nic::SoftNic;
use bellpush_soft_nic::trace::{Kind, Tracer, Tracing};

use crate::process::{process, say};

/// The memory that whoever started the program holds.
pub fn tracing(options: &Preload) -> Option<Arc<Tracing>> {
    static OPENED: OnceLock<Option<Arc<Tracing>>> = OnceLock::new();
    let path = options.trace.as_ref()?;
    let open = || {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let opened = file.and_then(|file| Tracing::open(&file));
        opened.inspect_err(|e| say(&format!("no trace: {}: {e}", path.display()))).ok()
    };
    OPENED.get_or_init(open).clone()
}

/// What waits are written down with: the process's first device's.
struct Waits {
    tracer: Arc<Tracer>,
    process: u32,
}

/// Null, or one that stays: of a process whose child has another, that is its child's.
static WAITING: AtomicPtr<Waits> = AtomicPtr::new(std::ptr::null_mut());

fn waiting() -> Option<&'static Waits> {
    // SAFETY: null, or a box that is never freed. Acquire: pairs with the release below.
    unsafe { WAITING.load(Ordering::Acquire).as_ref() }
}

/// A device is open, and may have a trace.
pub fn begin(nic: &SoftNic) {
    let process = std::process::id();
    if waiting().is_some_and(|it| it.process == process) {
        return; // another device's already
    }
    if let Some(tracer) = nic.tracer() {
        let waits = Box::into_raw(Box::new(Waits { tracer, process }));
        WAITING.store(waits, Ordering::Release);
    }
}

thread_local! {
    static WAITS: Cell<bool> = const { Cell::new(false) };
    /// The thread, and its process: a child's first thread has its parent's memory.
    static THREAD: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The calling thread has polled, or armed a CQ.
#[inline]
pub fn after(found: bool, armed: bool) {
    let Some(Waits { tracer, process: own }) = waiting() else { return };
    if THREAD.get().0 != *own {
        WAITS.set(false);
    }
    if WAITS.get() != found {
        return; // it goes on waiting, or did not wait
    }
    // A child of the program's that was not started anew has its parent's memory, and is not its parent.
    if !process().is_some_and(|process| process.drivers.are_here()) {
        return;
    }
    WAITS.set(!found);
    if THREAD.get().0 != *own {
        // SAFETY: it cannot fail, and touches no memory.
        THREAD.set((*own, unsafe { libc::gettid() } as u32));
    }
    let kind = if found { Kind::WaitEnds } else { Kind::WaitBegins };
    tracer.mark(kind, THREAD.get().1, 0, [armed.into(), 0]);
}

#[cfg(test)]
mod tests {
    use bellpush_soft_nic::SoftConfig;

    use super::*;

    /// What the child of a fork does with what it inherited is not its parent's doing.
    #[test]
    fn a_child_writes_nothing_into_its_parents_trace() {
        let tracing = Tracing::new(true, true).unwrap();
        let config = SoftConfig { trace: Some((tracing.clone(), 0)), ..SoftConfig::default() };
        let (nic, _engines) = SoftNic::manual(&config).unwrap();
        let tracer = nic.tracer().unwrap();
        let begin = |thread: u32| tracer.mark(Kind::WaitBegins, thread, 0, [0; 2]);
        let counted = |qp: u32| tracer.mark(Kind::Timeout, qp, 0, [0; 2]);
        begin(1);
        counted(0x11);
        let mut status = 0;
        // SAFETY: the child stores to memory, without a lock, and ends.
        unsafe {
            let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t;
            if child == 0 {
                begin(2);
                counted(0x11);
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
        assert_eq!(status, 0);
        begin(3);
        let device = tracing.devices(true).pop().unwrap();
        let numbers: Vec<_> = device.marks.iter().map(|mark| mark.number).collect();
        assert_eq!(numbers, [1, 0x11, 3]);
        assert_eq!(device.qps.iter().map(|qp| qp.of(Kind::Timeout)).collect::<Vec<_>>(), [1]);
    }
}
