//! libFuzzer's entry to the check, which is a module of the library: it looks into that.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Only `./x fuzz` builds it.
    #[cfg(fuzzing)]
    bellpush::collective::fuzzed::run(data);
    #[cfg(not(fuzzing))]
    let _ = data;
});
