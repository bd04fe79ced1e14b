//! libFuzzer's entry to [`check`]. Beside it what it checks of the command that is no part of its library.

#![no_main]

#[path = "../../crates/cli/src/amount.rs"]
mod amount;
#[path = "../checks/files.rs"]
mod check;
#[allow(dead_code, reason = "its options, which nothing here opens")]
#[path = "../../crates/cli/src/link.rs"]
mod link;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::run(data);
});
