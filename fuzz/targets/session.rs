//! libFuzzer's entry to [`check`].

#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

#[path = "../checks/session.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::session(data);
});
