//! What programs look up by name, past the loader's own binding (`interop/lookups.c`).

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::preloaded::{alone, compiled, succeeds};

static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("lookups"));

#[track_caller]
fn case(name: &str) {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    succeeds(&["--link-type", "shm"], &[program.to_str().unwrap(), name]);
}

#[test]
fn a_uar_is_registered_with_the_driver_as_the_memory_that_it_is() {
    case("driver");
}

#[test]
fn all_else_is_found_as_without_the_object() {
    case("others");
}

#[test]
fn who_patches_libcs_functions_hears_of_the_programs_calls() {
    case("patched");
}
