//! What libcuda reads of the environment, once, when it is initialised.

use std::fs;

const WANTED: [(&str, &str); 2] = [
    // Loading a kernel at its first launch waits for running kernels: load all at once. Where it is
    // set otherwise, each function of ours is still loaded with its module.
    ("CUDA_MODULE_LOADING", "EAGER"),
    // Streams that share one of the (by default 8) connections wait for each other, and a copy that
    // waits for a spinning kernel is a deadlock: as many as there can be.
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
];

/// Sets what libcuda should read, where the program's environment does not say it, and where this can be
/// done: only a process of one thread may change its environment, which C code reads without a lock. Opening
/// a GPU calls this; a program that starts threads before that calls it first, or is started with
/// `CUDA_DEVICE_MAX_CONNECTIONS=32`. Returns whether all is set.
pub fn prepare() -> bool {
    set(&WANTED)
}

fn set(wanted: &[(&str, &str)]) -> bool {
    let missing = wanted.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return true;
    }
    if !alone() {
        return false;
    }
    for (name, value) in missing {
        // SAFETY: there is no other thread, and none is started meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    true
}

/// Whether this is the process's only thread.
fn alone() -> bool {
    fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_of_several_threads_keeps_its_environment() {
        let unset = "BELLPUSH_TEST_THAT_NOBODY_SETS";
        std::thread::scope(|scope| {
            let (done, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || wait.recv());
            assert!(!super::set(&[(unset, "1")]));
            assert!(super::set(&[("PATH", "")]), "what is set needs no change");
            drop(done);
        });
        assert!(std::env::var_os(unset).is_none());
        assert!(std::env::var_os("PATH").is_some_and(|path| !path.is_empty()));
    }
}
