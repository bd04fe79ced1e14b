//! What programs find of a device in sysfs (`interop/sysfs.c`).

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::preloaded::{alone, compiled, succeeds, there};

static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("sysfs"));

#[track_caller]
fn case(options: &[&str], environment: &[&str], name: &str) {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    let program = [program.to_str().unwrap(), name];
    succeeds(options, &[&["env"], environment, &program[..]].concat());
}

#[test]
fn each_function_of_libc_that_takes_a_path_finds_the_device() {
    case(&[], &[], "functions");
}

#[test]
fn a_function_is_one_of_the_machines() {
    case(&[], &[], "lists");
}

/// hwloc places what it finds in sysfs: UCX, Open MPI and MPICH ask it.
#[test]
fn hwloc_finds_the_function_and_its_device() {
    let _alone = alone();
    if !there("lstopo-no-graphics") {
        return;
    }
    let text = succeeds(&["--devices", "2"], &["lstopo-no-graphics"]);
    for line in ["PCI be11:01:00.0 (InfiniBand)", "\"mlx5_0\"", "\"mlx5_1\""] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn a_shell_finds_its_way_about() {
    let _alone = alone();
    let lines = "cd /sys/class/infiniband && ls -l mlx5_0 && cd mlx5_0/device/infiniband_verbs && ls -lL uverbs0";
    let text = succeeds(&[], &["sh", "-ec", lines]);
    assert!(
        text.contains("-> ../../devices/pcibe11:00/") && text.contains("abi_version"),
        "{text}"
    );
    assert!(!text.contains("No such file"), "{text}");
}

#[test]
fn a_function_is_a_device_of_its_bus() {
    {
        let _alone = alone();
        let link = "/sys/class/infiniband/mlx5_0/device/subsystem";
        let text = succeeds(&[], &["readlink", link]);
        assert!(text.contains("../../../../bus/pci\n"), "{text}");
    }
    case(&[], &[], "subsystems");
}

#[test]
fn a_device_is_a_pci_function_with_a_port() {
    case(&[], &[], "layout");
}

#[test]
fn a_gid_is_shown_as_soon_as_there_is_one() {
    case(&[], &[], "gids");
    let given = "GIVEN=0000:0000:0000:0000:0000:ffff:7f09:0807";
    case(&["--address", "127.9.8.7"], &[given], "gids");
}

#[test]
fn processes_that_share_the_files_see_their_own_values() {
    case(&[], &[], "own");
}

#[test]
fn the_ports_state_is_shown_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faults.toml");
    let script = "[[fault]]\non = \"port\"\naction = \"down\"\nafter = \"200ms\"\nfor = \"300ms\"\n\
                  [[fault]]\non = \"device\"\naction = \"fatal\"\nafter = \"1s\"\n";
    std::fs::write(&path, script).unwrap();
    case(&["--fault", path.to_str().unwrap()], &[], "states");
}

#[test]
fn the_status_of_a_device_is_the_same_by_each_call() {
    case(&[], &[], "statuses");
    let _alone = alone();
    let text = succeeds(&[], &["stat", "-c", "%F", "/dev/infiniband/uverbs0"]);
    assert_eq!(text, "character special file\n");
}

/// Nor does a user who may not look into the files lose the machine's own functions.
#[test]
fn a_child_whose_parent_took_the_files_along_has_them() {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    let text = succeeds(&[], &[program.to_str().unwrap(), "orphans"]);
    assert!(text.contains("found\n"), "{text}");
}
