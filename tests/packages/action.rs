//! The recipe for GitHub Actions without GitHub: its script, with stand-ins for what it installs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::preloaded::root;
use crate::{run, said};

/// A program of one line.
fn stand_in(folder: &Path, name: &str, line: &str) {
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn only_programs_that_ask_for_a_device_have_one() {
    let temp = tempfile::tempdir().unwrap();
    let (bin, place) = (temp.path().join("bin"), |name| temp.path().join(name));
    fs::create_dir(&bin).unwrap();
    stand_in(&bin, "apt-get", "exit 0");
    stand_in(&bin, "sudo", "exec \"$@\"");
    stand_in(&bin, "ibv_devinfo", "case $BELLPUSH_PRELOAD in *colour*) exit 1;; esac");
    fs::write(place("made.deb"), "").unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let setup = |options: &str| {
        let mut script = Command::new(root().join("packaging/action/setup.sh"));
        script.env("PATH", &path).env("BELLPUSH_DEB", place("made.deb")).env_remove("LD_PRELOAD");
        script.env("BELLPUSH_OPTIONS", options).env("RUNNER_TEMP", temp.path());
        for file in ["ENV", "PATH", "OUTPUT"] {
            script.env(format!("GITHUB_{file}"), place(file));
        }
        run(&mut script)
    };
    assert!(!setup("{\"colour\": 1}").status.success());
    assert!(!place("OUTPUT").exists(), "options that are wrong gave outputs");
    let done = setup("{\"devices\": 2,\n \"name\": \"it's $HOME\"}");
    assert!(done.status.success(), "{done:?}");
    // What is written there is the environment of every later step.
    assert!(!place("ENV").exists(), "{:?}", fs::read_to_string(place("ENV")));
    let object = "/usr/lib/bellpush/libbellpush_shim.so";
    let options = "{\"devices\": 2,  \"name\": \"it's $HOME\"} ";
    let outputs = fs::read_to_string(place("OUTPUT")).unwrap();
    assert_eq!(outputs, format!("preload={object}\noptions={options}\n"));

    let folder = fs::read_to_string(place("PATH")).unwrap();
    let wrapper = Path::new(folder.trim()).join("with-mlx5");
    let mut asks = Command::new(wrapper);
    asks.env_remove("LD_PRELOAD").env_remove("BELLPUSH_PRELOAD");
    let shown =
        said(asks.args(["sh", "-c", "echo \"$LD_PRELOAD|$BELLPUSH_PRELOAD|$0|$1\"", "a b", "c"]));
    assert_eq!(shown, format!("{object}|{options}|a b|c\n"));
}
