//! libFuzzer's entry to [`check`].

#![no_main]

#[path = "../checks/cm/mod.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::run(data);
});
