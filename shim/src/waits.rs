//! Traces of the program: where its devices write theirs, and when its threads wait for a completion.
//!
//! A thread waits from a poll that finds nothing, or an arming, to a poll that finds something. What a program does
//! by other means, as one that reads its CQs itself, is not seen.

use std::cell::Cell;
use std::fs::OpenOptions;
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

/// What waits are written down with: the first device's.
static TRACER: OnceLock<Arc<Tracer>> = OnceLock::new();

/// A device is open, and may have a trace.
pub fn begin(nic: &SoftNic) {
    if let Some(tracer) = nic.tracer() {
        let _ = TRACER.set(tracer); // another device's already
    }
}

thread_local! {
    static WAITS: Cell<bool> = const { Cell::new(false) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread has polled, or armed a CQ.
#[inline]
pub fn after(found: bool, armed: bool) {
    let Some(tracer) = TRACER.get() else { return };
    if WAITS.get() != found {
        return; // it goes on waiting, or did not wait
    }
    // A child of the program's that was not started anew has its parent's memory, and is not its parent.
    if !process().is_some_and(|process| process.drivers.are_here()) {
        return;
    }
    WAITS.set(!found);
    if THREAD.get() == 0 {
        // SAFETY: it cannot fail, and touches no memory.
        THREAD.set(unsafe { libc::gettid() } as u32);
    }
    let kind = if found { Kind::WaitEnds } else { Kind::WaitBegins };
    tracer.mark(kind, THREAD.get(), 0, [armed.into(), 0]);
}
