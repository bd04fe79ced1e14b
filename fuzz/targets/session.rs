//! libFuzzer's entry to [`check`].

#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

/// Which engine `common` makes NICs with.
#[allow(dead_code)]
const ENGINE: &str = "cpu";

#[path = "../checks/session.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::session(data);
});
