//! Environment variables that libcuda reads when it is initialised.

use std::fs;

const WANTED: [(&str, &str); 2] = [
    // A kernel that is loaded at its first launch waits for running kernels; eager loading avoids
    // this. If the variable has another value, each of our functions is still loaded with its
    // module.
    ("CUDA_MODULE_LOADING", "EAGER"),
    // Streams that share a connection (by default there are 8) wait for each other. A copy behind a
    // spinning kernel that waits for it would be a deadlock, so this asks for the maximum.
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
];

/// Sets the variables that libcuda should read and that the program's environment does not set.
///
/// This is possible only in a process of one thread, since C code reads the environment without a
/// lock. Opening a GPU calls this function. A program that starts threads earlier calls it before
/// them, or is started with `CUDA_DEVICE_MAX_CONNECTIONS=32`. Returns whether all variables are
/// set.
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

/// Whether the process has only this thread.
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
