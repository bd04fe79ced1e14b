//! The end that SIGINT and SIGTERM ask for: the first lets the round end and the run be summed up, a second one ends
//! the process. One that the process ignores, as SIGINT in a script's background, stays ignored.

use std::fs;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

use nix::sys::signal::{SigSet, Signal, raise};

/// Takes both from here on, for this thread and those that it starts; where the first is told.
pub fn take() -> io::Result<Arc<OnceLock<Signal>>> {
    let ignored = ignored()?;
    let taken = [Signal::SIGINT, Signal::SIGTERM].into_iter();
    // A blocked signal is waited for even where it is ignored.
    let signals =
        SigSet::from_iter(taken.filter(|signal| ignored >> (*signal as u32 - 1) & 1 == 0));
    signals.thread_block()?;
    let first = Arc::new(OnceLock::new());
    if signals.iter().next().is_none() {
        return Ok(first);
    }
    let told = first.clone();
    thread::Builder::new().name("bellpush-signals".into()).spawn(move || {
        while let Ok(signal) = signals.wait() {
            if told.set(signal).is_err() {
                // As if none had been taken.
                let _ = signals.thread_unblock();
                let _ = raise(signal);
                std::process::exit(128 + signal as i32);
            }
        }
    })?;
    Ok(first)
}

/// The signals that the process ignores, a bit each from 1 on (proc(5), SigIgn).
fn ignored() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.ok_or_else(|| io::Error::other("/proc/self/status has no SigIgn"))
}
