//! The end that SIGINT and SIGTERM ask for: the first lets the round end and the run be summed up, a second one ends
//! the process.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

use nix::sys::signal::{SigSet, Signal, raise};

/// Takes both from here on, for this thread and those that it starts; where the first is told.
pub fn take() -> io::Result<Arc<OnceLock<Signal>>> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block()?;
    let first = Arc::new(OnceLock::new());
    let told = first.clone();
    thread::Builder::new().name("bellpush-signals".into()).spawn(move || {
        while let Ok(signal) = signals.wait() {
            if told.set(signal).is_err() {
                // As if none had been taken. One that the process ignores, as in a shell's background, ends it too.
                let _ = signals.thread_unblock();
                let _ = raise(signal);
                std::process::exit(128 + signal as i32);
            }
        }
    })?;
    Ok(first)
}
