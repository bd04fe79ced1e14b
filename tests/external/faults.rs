//! Memory that goes under the engine's hands, and programs that handle faults of their own (`interop/faults.c`).

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::preloaded::{compiled, over_each_link};

static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("faults"));

#[track_caller]
fn case(name: &str) {
    over_each_link(PROGRAM.as_deref(), name);
}

#[test]
fn memory_that_is_gone_is_an_error_and_no_signal() {
    case("gone");
}

#[test]
fn a_programs_own_handler_has_its_own_faults() {
    case("own");
}

#[test]
fn faults_that_cannot_be_caught_do_not_happen() {
    case("blocked");
}

#[test]
fn memory_may_go_while_it_is_in_use() {
    case("meanwhile");
}
