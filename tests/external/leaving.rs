//! Programs that leave as soon as they have what they waited for (`interop/leaving.c`).

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::preloaded::{alone, compiled, over_each_link, run};

static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("leaving"));

#[track_caller]
fn leaves_by(how: &str) {
    over_each_link(PROGRAM.as_deref(), how);
}

#[test]
fn a_message_is_acknowledged_whose_receiver_ends_at_once() {
    leaves_by("_exit");
    leaves_by("_Exit");
    leaves_by("quick_exit");
}

#[test]
fn a_message_is_acknowledged_whose_receiver_ends_in_order() {
    leaves_by("exit");
    leaves_by("main");
}

/// What a wire delays it does not lose.
#[test]
fn a_message_is_acknowledged_over_a_link_that_delays() {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    for (link, how) in [("delay=1ms", "_exit"), ("delay=20ms", "_exit"), ("delay=5ms", "main")] {
        let ended = run(&["--link", link], &[program.to_str().unwrap(), how]);
        assert_eq!(ended.code, Some(0), "{link}, {how}: {}", ended.text);
    }
}

#[track_caller]
fn leaves_with_7(arguments: &[&str]) {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    let ended = run(&[], &[&[program.to_str().unwrap()], arguments].concat());
    assert_eq!(ended.code, Some(7), "{arguments:?}: {}", ended.text);
    assert!(!ended.text.contains("panicked"), "{arguments:?}: {}", ended.text);
}

#[test]
fn a_thread_that_may_be_cancelled_at_once_takes_nobody_along() {
    leaves_with_7(&["at-once", "_exit"]);
    leaves_with_7(&["at-once", "exit"]);
    leaves_with_7(&["polls-at-once"]);
}

#[test]
fn handlers_of_the_end_open_devices() {
    leaves_with_7(&["late"]);
}

#[test]
fn a_handler_ends_a_process_that_opens_devices() {
    leaves_with_7(&["interrupted"]);
}

#[test]
fn the_devices_threads_outlive_the_programs() {
    leaves_with_7(&["pthread_exit"]);
}

/// Nothing in there is a point of cancellation that is none without a device.
#[test]
fn a_thread_that_is_to_be_cancelled_leaves_with_its_status() {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    for how in ["_exit", "exit"] {
        let ended = run(&[], &[program.to_str().unwrap(), "cancelled", how]);
        assert_eq!(ended.code, Some(7), "{how}: {}", ended.text);
    }
}
