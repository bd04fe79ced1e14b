//! Programs that poll drive the engine themselves, and those that stop are not forgotten (`interop/polling.c`).

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::preloaded::{compiled, over_each_link};

static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("polling"));

#[track_caller]
fn case(name: &str) {
    over_each_link(PROGRAM.as_deref(), name);
}

#[test]
fn who_polls_carries_operations_out_and_the_engines_thread_stays_out() {
    case("alone");
}

#[test]
fn a_program_that_stops_polling_is_not_forgotten() {
    case("stops");
}

#[test]
fn who_polls_for_an_acknowledgement_looks_on_for_the_answer() {
    case("answers");
}

#[test]
fn polling_leaves_errno_and_cancellation_alone() {
    case("undisturbed");
}

#[test]
fn a_signal_handler_that_polls_waits_for_nothing_below_it() {
    case("handler");
}

#[test]
fn a_program_that_looks_libibverbs_up_by_itself_drives_the_engine() {
    case("looked_up");
}
