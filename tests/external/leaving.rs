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
