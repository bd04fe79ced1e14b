//! libFuzzer's entry to [`check`].

#![no_main]

#[path = "../../tests/support/queue_pairs.rs"]
mod queue_pairs;

/// Which engine the NICs have.
#[allow(dead_code)]
const ENGINE: &str = "cpu";

#[path = "../checks/stream.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::stream(data);
});
