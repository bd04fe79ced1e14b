//! Programs that leave as soon as they have what they waited for (`interop/leaving.c`).

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::preloaded::{alone, compiled, succeeds};

static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("leaving"));

#[track_caller]
fn leaves_by(how: &str) {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    for link in ["udp", "shm"] {
        succeeds(&["--link-type", link], &[program.to_str().unwrap(), how]);
    }
}

#[test]
fn a_message_is_acknowledged_whose_receiver_ends_at_once() {
    leaves_by("_exit");
    leaves_by("_Exit");
}

#[test]
fn a_message_is_acknowledged_whose_receiver_ends_in_order() {
    leaves_by("exit");
    leaves_by("main");
}
