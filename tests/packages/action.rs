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

/// A folder with stand-ins for what a job installs and starts, and the PATH that has them first. Devices are there for
/// programs whose environment has the object's path and options.
fn stand_ins(bin: &Path) -> String {
    fs::create_dir(bin).unwrap();
    stand_in(bin, "apt-get", "exit 0");
    stand_in(bin, "sudo", "exec \"$@\"");
    stand_in(bin, "ibv_devinfo", "case $BELLPUSH_PRELOAD in *colour*) exit 1;; esac");
    stand_in(bin, "ibv_devices", "echo device; case $BELLPUSH_PRELOAD in *2*) echo mlx5_1;; esac");
    stand_in(bin, "ib_write_bw", "test -n \"$LD_PRELOAD\" && echo BW average");
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())
}

/// The script that is made of a workflow, or what is said instead.
fn played(workflow: &Path) -> Result<String, String> {
    let mut play = Command::new("python3");
    play.arg(root().join("packaging/action/play.py")).arg(workflow);
    let out = run(play.arg(root().join("packaging/action")));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if out.status.success() { Ok(text(out.stdout)) } else { Err(text(out.stderr)) }
}

/// The workflow that stands beside the action, step by step as GitHub has them.
#[test]
fn a_job_with_the_action_goes_as_its_workflow_says() {
    if !run(Command::new("python3").args(["-c", "import yaml"])).status.success() {
        return println!("SKIPPED: no PyYAML");
    }
    let temp = tempfile::tempdir().unwrap();
    let path = stand_ins(&temp.path().join("bin"));
    let place = |name: &str| temp.path().join(name);
    fs::write(place("bellpush.deb"), "").unwrap();
    let own = root().join("packaging/action/workflow.yml");
    let job = |script: &str, runner: &str| {
        fs::create_dir(place(runner)).unwrap();
        fs::write(place("job.sh"), script).unwrap();
        let mut bash = Command::new("bash");
        bash.arg(place("job.sh")).current_dir(temp.path()).env("PATH", &path);
        bash.env_remove("LD_PRELOAD").env_remove("BELLPUSH_PRELOAD");
        run(bash.env("RUNNER_TEMP", place(runner)))
    };
    let script = played(&own).unwrap();
    let done = job(&script, "runner");
    assert!(done.status.success(), "{done:?}");
    let shown = String::from_utf8(done.stdout).unwrap();
    assert_eq!(shown.matches("== ").count(), 5, "{shown}");
    assert_eq!(shown.matches("mlx5_1").count(), 2, "{shown}");
    assert_eq!(shown.matches("BW average").count(), 1, "{shown}");

    // Each step is there to fail: one that wants what the job does not have ends it.
    let text = fs::read_to_string(&own).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        fs::write(place("changed.yml"), text.replacen(from, to, 1)).unwrap();
        played(&place("changed.yml"))
    };
    for (nth, (from, to)) in [
        ("{\"devices\": 2}", "{\"colour\": 2}"),
        ("run: with-mlx5 sh", "run: sh"),
        ("shell: with-mlx5 bash", "shell: bash"),
        ("outputs.options", "outputs.preload"),
        ("! ibv_devices", "! with-mlx5 ibv_devices"),
    ]
    .into_iter()
    .enumerate()
    {
        let failed = job(&changed(from, to).unwrap(), &format!("runner {nth}"));
        assert!(!failed.status.success(), "{to}: {failed:?}");
    }
    for (from, to, why) in [
        ("outputs.preload", "outputs.object", ""),
        ("steps.mlx5.", "steps.mlx.", "expression steps.mlx.outputs.preload"),
        ("deb: bellpush.deb", "package: bellpush.deb", "with: package is not known here"),
        ("    id: mlx5", "    if: false", "if is not known here"),
        ("permissions: {}", "permissions: write-all", "a token that may do something"),
        ("bash -e {0}", "bash -e", "has no {0}"),
    ] {
        let said = match changed(from, to) {
            Ok(script) => {
                let failed = job(&script, "runner of none");
                assert!(!failed.status.success(), "{to}");
                String::from_utf8(failed.stderr).unwrap()
            }
            Err(said) => said,
        };
        let why = if why.is_empty() { "no such output" } else { why };
        assert!(said.contains(why), "{to}: {said}");
    }
}

#[test]
fn only_programs_that_ask_for_a_device_have_one() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name| temp.path().join(name);
    let path = stand_ins(&place("bin"));
    fs::write(place("made.deb"), "").unwrap();
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
