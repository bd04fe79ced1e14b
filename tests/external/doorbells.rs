//! Programs that ring by themselves, past libibverbs: their doorbells are carried out where they ring, and none is
//! lost (`interop/doorbells.c`).

#![cfg(target_arch = "x86_64")]

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::preloaded::{compiled, over_each_link};

static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("doorbells"));

#[track_caller]
fn case(name: &str) {
    over_each_link(PROGRAM.as_deref(), name);
}

#[test]
fn who_rings_carries_it_out_and_the_engines_thread_stays_out() {
    case("alone");
}

#[test]
fn no_doorbell_is_lost_whatever_the_engines_thread_is_at() {
    case("pauses");
}

#[test]
fn threads_ring_on_one_page() {
    case("threads");
}

#[test]
fn a_programs_own_handler_gets_its_own_faults() {
    case("handler");
}

#[test]
fn a_thread_that_blocks_all_signals_rings() {
    case("blocks");
}

#[test]
fn a_childs_stores_end_nobody() {
    case("child");
}

#[test]
fn a_page_serves_streams_and_libibverbs_as_before() {
    case("again");
}

#[test]
fn a_page_that_a_gpu_rings_is_left_alone() {
    case("given");
}

#[test]
fn nothing_is_written_below_a_coroutines_stack() {
    case("coroutine");
}

#[test]
fn a_handler_that_blocks_all_signals_rings() {
    case("masked");
}

#[test]
fn a_page_that_the_program_moves_is_left_alone() {
    case("moved");
}

#[test]
fn threads_named_as_the_objects_own_are_looked_at() {
    case("named");
}

#[test]
fn a_fault_in_a_step_leaves_the_alternate_stack_alone() {
    case("alternate");
}

#[test]
fn an_arming_that_anothers_stands_over_is_seen() {
    case("armed");
}
