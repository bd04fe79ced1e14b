//! Programs on software devices that close descriptors they do not know, make children that do,
//! and look at files in signal handlers (`interop/closing.c`); and others who were first in the
//! temporary directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use crate::preloaded::{Ended, OBJECT, Running, alone, bellpush, compiled, run, succeeds};

static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("closing"));

#[track_caller]
fn case_with(options: &[&str], name: &str) {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    succeeds(options, &[program.to_str().unwrap(), name]);
}

#[test]
fn children_that_close_everything_leave_their_parent_its_device() {
    case_with(&[], "children");
    let _alone = alone();
    if PROGRAM.is_some() {
        let folder = tempfile::tempdir().unwrap();
        let ended = by_hand(folder.path(), r#"LD_PRELOAD="$OBJECT" exec "$PROGRAM" children"#);
        assert_eq!((ended.code, &*ended.text), (Some(0), ""));
    }
}

#[test]
fn a_program_that_goes_on_as_its_own_child_has_its_devices() {
    let _alone = alone();
    if PROGRAM.is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ended = by_hand(folder.path(), r#"LD_PRELOAD="$OBJECT" exec "$PROGRAM" daemonized"#);
    assert_eq!((ended.code, &*ended.text), (Some(0), "works\n"));
    assert_eq!(entries(folder.path()), 0);
}

#[test]
fn a_child_does_not_hold_its_parents_address() {
    case_with(&[], "held");
}

#[test]
fn a_program_does_not_close_what_it_does_not_know() {
    case_with(&[], "unknowns");
    case_with(&["--link-type", "shm"], "unknowns");
    let folder = tempfile::tempdir().unwrap();
    case_with(&["--pcap", folder.path().join("%p").to_str().unwrap()], "unknowns");
}

#[test]
fn a_program_without_a_descriptor_left_ends_its_objects() {
    case_with(&[], "full");
}

#[test]
fn a_device_whose_sockets_are_gone_leaves_the_programs_alone() {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    let text = succeeds(&[], &[program.to_str().unwrap(), "past"]);
    assert_eq!(text.matches("closed a descriptor of the device's").count(), 1, "{text}");
}

#[test]
fn a_stderr_that_nobody_reads_costs_nothing_but_what_is_said() {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    LazyLock::force(&OBJECT);
    let (_, nobodys) = std::io::pipe().unwrap();
    let mut run = Command::new(bellpush());
    run.args(["run", "--"]).arg(program).arg("past").stderr(nobodys);
    assert_eq!(run.status().unwrap().code(), Some(0));
}

#[test]
fn regions_go_with_a_descriptor_however_it_is_closed() {
    case_with(&[], "regions");
}

#[test]
fn handlers_may_close_whatever_they_interrupt() {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    let mut running = Running::start(&[], &[program.to_str().unwrap(), "handlers"]);
    assert_eq!(running.wait(Duration::from_secs(60)), Some(0));
}

#[test]
fn looking_at_files_takes_little_stack() {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    let taken = |ended: Ended| -> usize {
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        ended.text.trim().parse().unwrap()
    };
    let with = taken(run(&[], &[program.to_str().unwrap(), "stack"]));
    let without = taken(Running::spawn(Command::new(program).arg("stack")).end());
    assert!(with < without + 1024, "{with} bytes of stack instead of {without}");
}

#[test]
fn the_devices_file_cannot_be_cut_off() {
    case_with(&[], "sealed");
}

#[test]
fn the_programs_signals_are_not_for_the_devices_threads() {
    case_with(&[], "masked");
    case_with(&["--verbose"], "masked");
}

/// Runs a shell's script, which preloads the object for programs by `$PRELOAD`, in a temporary
/// directory of its own.
fn by_hand(folder: &Path, script: &str) -> Ended {
    LazyLock::force(&OBJECT);
    let object = Path::new(bellpush()).with_file_name("libbellpush_shim.so");
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script]).env("TMPDIR", folder).env_remove("BELLPUSH_PRELOAD");
    command.env("OBJECT", object).env("VICTIM", folder.join("victim"));
    if let Some(program) = &*PROGRAM {
        command.env("PROGRAM", program);
    }
    Running::spawn(&mut command).end()
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn what_others_have_planted_is_not_written_through() {
    let _alone = alone();
    if PROGRAM.is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    // A shell keeps its number when it becomes the program. A directory that others may write, and
    // one of another user's, which only root can make here:
    let is_root = nix::unistd::geteuid().is_root();
    let plants = ["chmod 777", "chown 65534"];
    for (i, plant) in plants[..if is_root { 2 } else { 1 }].iter().enumerate() {
        let script = r#"d="$TMPDIR/bellpush-$$"; s="$d/.$$/class/infiniband_verbs"
            mkdir -p "$s"; chmod 700 "$d"; ln -s "$VICTIM" "$s/abi_version"; PLANT "$d"
            LD_PRELOAD="$OBJECT" exec "$PROGRAM" sealed"#;
        let ended = by_hand(folder.path(), &script.replace("PLANT", plant));
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(entries(folder.path()), 2 + i, "its own directory is gone, the others are left");
    }
    // A link to a directory of the user's own:
    let elsewhere = folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o700)).unwrap();
    let script = r#"ln -s elsewhere "$TMPDIR/bellpush-$$"
        LD_PRELOAD="$OBJECT" exec "$PROGRAM" sealed"#;
    let ended = by_hand(folder.path(), script);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert_eq!(entries(&elsewhere), 0);
    // Beneath a counter:
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::set_permissions(&tree, Permissions::from_mode(0o700)).unwrap();
    let script = r#"ln -s "$VICTIM" "$TMPDIR/tree/.counter-$$"
        export BELLPUSH_PRELOAD="{\"sysfs\": \"$TMPDIR/tree\"}"
        LD_PRELOAD="$OBJECT" exec cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"#;
    let ended = by_hand(folder.path(), script);
    assert_eq!((ended.code, &*ended.text), (Some(0), "0\n"));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn files_of_a_process_that_had_the_same_number_are_not_believed() {
    let _alone = alone();
    if PROGRAM.is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = r#"d="$TMPDIR/bellpush-$$"; mkdir -m 700 "$d"; mkdir "$d/class" "$d/dev"
        LD_PRELOAD="$OBJECT" exec "$PROGRAM" sealed"#;
    let ended = by_hand(folder.path(), script);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert_eq!(entries(folder.path()), 0);
}

#[test]
fn a_shared_link_for_which_there_is_no_memory_is_refused() {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    LazyLock::force(&OBJECT);
    // One page, and a file has it.
    let script = r#"mount -t tmpfs -o size=4k none /dev/shm || { echo SKIPPED; exit; }
        echo full > /dev/shm/full; exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, "sh", bellpush(), "run", "--link-type", "shm", "--"]);
    let ended = Running::spawn(command.arg(program).arg("sealed")).end();
    if ended.text.contains("SKIPPED") || ended.text.contains("unshare:") {
        println!("SKIPPED: no namespace with a /dev/shm of its own: {}", ended.text);
        return;
    }
    assert!(ended.text.contains("a container's --shm-size"), "{ended:?}");
}

#[test]
fn a_named_directory_that_others_may_write_is_refused() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::set_permissions(&tree, Permissions::from_mode(0o770)).unwrap();
    let script = r#"export BELLPUSH_PRELOAD="{\"sysfs\": \"$TMPDIR/tree\"}"
        LD_PRELOAD="$OBJECT" exec cat /dev/null"#;
    let ended = by_hand(folder.path(), script);
    assert!(ended.text.contains("not this user's alone to write"), "{}", ended.text);
    assert_eq!(entries(&tree), 0);
    // This user's own, and by a link that the user named, it is written into.
    fs::set_permissions(&tree, Permissions::from_mode(0o700)).unwrap();
    symlink("tree", folder.path().join("link")).unwrap();
    let ended = by_hand(folder.path(), &script.replace("/tree", "/link"));
    assert_eq!((ended.code, &*ended.text), (Some(0), ""));
    assert_eq!(entries(&tree), 4, "bus, class, dev, devices");
}

#[test]
fn a_program_that_becomes_another_leaves_one_directory_and_then_none() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let script = r#"export LD_PRELOAD="$OBJECT"; exec sh -c 'exec ls "$TMPDIR"'"#;
    let ended = by_hand(folder.path(), script);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert_eq!(ended.text.lines().count(), 1, "{}", ended.text);
    assert_eq!(entries(folder.path()), 0);
}
