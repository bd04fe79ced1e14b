//! Programs that ring by themselves and are interrupted meanwhile (`interop/interrupted.c`).

#![cfg(target_arch = "x86_64")]

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::preloaded::{compiled, over_each_link};

static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("interrupted"));

#[track_caller]
fn case(name: &str) {
    over_each_link(PROGRAM.as_deref(), name);
}

#[test]
fn a_handler_that_comes_between_doorbells_rings() {
    case("alarms");
}

#[test]
fn a_programs_own_handler_blocks_what_it_asks_for() {
    case("masks");
}

#[test]
fn a_handler_without_a_mask_rings_whatever_it_interrupts() {
    case("allocates");
}

#[test]
fn a_handler_that_lets_all_signals_through_rings_whatever_it_interrupts() {
    case("unblocks");
}

#[test]
fn a_handler_of_faults_that_is_left_by_a_jump_leaves_doorbells_be() {
    case("jumps");
}

#[test]
fn what_a_child_of_vfork_sets_is_its_own() {
    case("spawns");
}

#[test]
fn threads_that_are_cancelled_at_once_leave_nothing_behind() {
    case("cancels");
}

#[test]
fn a_timers_thread_rings() {
    case("timers");
}
