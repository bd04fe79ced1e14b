//! Panics of any thread: NICs and host kernels contain theirs, so that a program sees errors; a run is to see them all.

use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static SO_FAR: AtomicU64 = AtomicU64::new(0);

/// Counts from now on. Each is still said on stderr.
pub fn count() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let say = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            SO_FAR.fetch_add(1, Ordering::Relaxed);
            say(info);
        }));
    });
}

/// How many there were.
pub fn so_far() -> u64 {
    SO_FAR.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_of_another_thread_is_counted() {
        super::count();
        super::count();
        let before = super::so_far();
        let ended = std::thread::spawn(|| panic!("this one is wanted")).join();
        assert!(ended.is_err() && super::so_far() > before);
    }
}
