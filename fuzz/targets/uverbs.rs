//! libFuzzer's entry to the check, which is a module of the preloaded object's crate: it looks into that.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Only `./x fuzz` builds it.
    #[cfg(fuzzing)]
    bellpush_shim_fuzz::uverbs::run(data);
    #[cfg(not(fuzzing))]
    let _ = data;
});
