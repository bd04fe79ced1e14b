//! libFuzzer's entry to [`check`]. Beside it what it checks of the command that is no part of its library.

#![no_main]

#[path = "../../crates/cli/src/amount.rs"]
mod amount;
#[path = "../checks/files.rs"]
mod check;
#[allow(dead_code, reason = "what it prints, which nothing here does")]
#[path = "../../crates/cli/src/cli.rs"]
mod cli;
#[allow(dead_code, reason = "its command, which nothing here runs")]
#[path = "../../crates/cli/src/compare/mod.rs"]
mod compare;
#[allow(dead_code, reason = "its options, which nothing here opens")]
#[path = "../../crates/cli/src/link.rs"]
mod link;
#[allow(dead_code, reason = "files, which nothing here opens")]
#[path = "../../crates/cli/src/topo/measured.rs"]
mod measured;
#[allow(dead_code, reason = "the same")]
#[path = "../../crates/cli/src/values.rs"]
mod values;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::run(data);
});
