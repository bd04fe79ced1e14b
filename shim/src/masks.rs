//! Whether a thread of the program's blocks a signal of faults: it would end by a doorbell that is caught (`trap`).

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use bellpush_mem::guarded;

/// How long after a look at the threads' masks the next may come while one of them is in the way; twice as long
/// after each look in vain, up to a bound, and never for more than a part of the time.
const MASKS_NS: u64 = 100_000_000;
const MOST_MASKS_NS: u64 = 5_000_000_000;
const MASKS_PART: u64 = 50;

/// How often a thread has blocked or let through a signal of faults.
static CHANGES: AtomicU64 = AtomicU64::new(0);
/// How often it had when no thread was found that blocks one.
static CLEARED: AtomicU64 = AtomicU64::new(u64::MAX);

/// The calling thread has blocked a signal of faults: who counts this sees its mask. Or it is about to let one through
/// that it blocks: who looks at its mask after this does not see what threads inherited that it made before.
pub fn change() {
    CHANGES.fetch_add(1, Ordering::SeqCst);
}

/// Whether nothing has changed since no thread was found that blocks one. Sequentially consistent with [`change`].
pub fn are_clear() -> bool {
    CHANGES.load(Ordering::SeqCst) == CLEARED.load(Ordering::Relaxed)
}

/// Whether no thread of the program's blocks a signal of faults, as far as anybody can say.
pub fn nobody_blocks() -> bool {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static PAUSE: AtomicU64 = AtomicU64::new(MASKS_NS);
    let changes = CHANGES.load(Ordering::SeqCst);
    if CLEARED.load(Ordering::Relaxed) == changes {
        return true;
    }
    let start = crate::clock::cycles();
    if start < NEXT.load(Ordering::Relaxed) {
        return false;
    }
    let is_clear = does_nobody_block() == Some(true);
    // After the look, which takes long where there are many threads.
    let end = crate::clock::cycles();
    let pause = PAUSE.load(Ordering::Relaxed);
    NEXT.store(end + pause.max(MASKS_PART * (end - start)), Ordering::Relaxed);
    let next = if is_clear { MASKS_NS } else { (2 * pause).min(MOST_MASKS_NS) };
    PAUSE.store(next, Ordering::Relaxed);
    if is_clear {
        CLEARED.store(changes, Ordering::Relaxed);
    }
    is_clear
}

/// A look at the masks of all threads but those of this object. `None`: a thread cannot be looked at, as one that has
/// ended, whose children may have its mask; or the program's threads have names like this object's.
fn does_nobody_block() -> Option<bool> {
    const OWN: &str = "bellpush-";
    if fs::read_to_string("/proc/self/comm").ok()?.starts_with(OWN) {
        return None;
    }
    for thread in fs::read_dir("/proc/self/task").ok()? {
        let status = fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        if field("Name:\t")?.starts_with(OWN) {
            continue;
        }
        if guarded::is_blocked_by(u64::from_str_radix(field("SigBlk:\t")?, 16).ok()?) {
            return Some(false);
        }
    }
    Some(true)
}
