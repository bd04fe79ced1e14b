//! What programs look up by name, past the loader's own binding (`interop/lookups.c`).

use std::path::{Path, PathBuf};
use std::process::Command;
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

/// Libraries' constructors may leave an errno. This program has none but libc's; with the object it begins as without.
#[test]
fn a_program_begins_with_the_errno_that_it_has_without_the_object() {
    let _alone = alone();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("errno");
    let source = program.with_extension("c");
    std::fs::write(&source, "#include <errno.h>\nint main(void) { return errno; }\n").unwrap();
    let Ok(compiler) = Command::new("cc").arg("-o").arg(&program).arg(&source).status() else {
        println!("SKIPPED: no cc");
        return;
    };
    assert!(compiler.success());
    assert!(Command::new(&program).status().unwrap().success());
    succeeds(&[], &[program.to_str().unwrap()]);
}
