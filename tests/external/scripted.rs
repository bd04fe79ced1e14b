//! Fault scripts under programs that know nothing of them: `bellpush run --fault FILE`.

use std::path::PathBuf;
use std::process::Command;

use crate::preloaded::{Running, alone, bellpush, pair, succeeds, there};

fn script(folder: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = folder.path().join("faults.toml");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_program_gets_the_status_that_a_script_names() {
    let _alone = alone();
    if !there("ib_write_bw") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = script(
        &folder,
        "[[fault]]\non = \"wqe\"\naction = \"fail\"\nopcode = \"write\"\nnth = 100\n\
         syndrome = \"remote-access-error\"\n",
    );
    let fault = ["--verbose", "--fault", path.to_str().unwrap()];
    for link in ["udp", "shm"] {
        let options = [&fault[..], &["--link-type", link]].concat();
        let [_, client] = pair(&options, &["ib_write_bw", "-F", "-n", "500", "-s", "4096"]);
        // IBV_WC_REM_ACCESS_ERR, by a vendor code that no other cause has.
        for words in ["Failed status 10", "syndrom 0x19", "fault 1 of the script strikes"] {
            assert!(client.text.contains(words), "{link}: {client:?}");
        }
        assert_ne!(client.code, Some(0), "{client:?}");
    }
}

#[test]
fn a_fault_that_has_not_struck_is_told_at_the_end() {
    let _alone = alone();
    if !there("ibv_devinfo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = script(
        &folder,
        "[[fault]]\non = \"port\"\naction = \"down\"\nafter = \"3000s\"\n\
         [[fault]]\non = \"cqe\"\naction = \"drop\"\nnth = 100\n",
    );
    let fault = ["--fault", path.to_str().unwrap()];
    let told = succeeds(&[&fault[..], &["--verbose"]].concat(), &["ibv_devinfo"]);
    for number in [1, 2] {
        let line = format!("bellpush: mlx5_0: fault {number} of the script has not struck\n");
        assert_eq!(told.matches(&line).count(), 1, "{line}: {told}");
    }
    let quiet = succeeds(&fault, &["ibv_devinfo"]);
    assert!(!quiet.contains("has not struck"), "{quiet}");
}

#[test]
fn a_program_that_watches_hears_of_port_and_device() {
    let _alone = alone();
    if !there("ibv_asyncwatch") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = script(
        &folder,
        "[[fault]]\non = \"port\"\naction = \"down\"\nafter = \"200ms\"\nfor = \"300ms\"\n\
         [[fault]]\non = \"device\"\naction = \"fatal\"\nafter = \"1s\"\n",
    );
    let watch = ["timeout", "--signal=KILL", "4", "stdbuf", "-oL", "ibv_asyncwatch"];
    let ended = Running::start(&["--fault", path.to_str().unwrap()], &watch).end();
    let mut rest = &*ended.text;
    for event in ["IBV_EVENT_PORT_ERR", "IBV_EVENT_PORT_ACTIVE", "IBV_EVENT_DEVICE_FATAL"] {
        let at = rest.find(event).unwrap_or_else(|| panic!("no {event}, or too early: {ended:?}"));
        rest = &rest[at + event.len()..];
    }
    let more = rest.matches("event_type").count() - rest.matches("IBV_EVENT_PORT_ERR").count();
    assert_eq!(more, 0, "the port goes with the device, and nothing else: {ended:?}");
}

#[test]
fn a_script_that_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = |path: &std::path::Path| {
        let run = ["run", "--fault", path.to_str().unwrap(), "--", "true"];
        let output = Command::new(bellpush()).args(run).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (text, what) in [
        ("[[fault]]\non = \"cqe\"\n", "fault 1: no fault has on = \"cqe\" and action = \"\""),
        ("[[fault]\n", "line 1: "),
        ("\u{0}", "line 1: "),
        (
            "[[fault]]\non = \"port\"\naction = \"down\"\ndevice = 1\n",
            "names a device that is not there",
        ),
    ] {
        let (code, said) = run(&script(&folder, text));
        assert_eq!((code, said.contains(what)), (Some(2), true), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    std::fs::write(folder.path().join("faults.toml"), [0xff; 8]).unwrap();
    assert!(run(&folder.path().join("faults.toml")).1.contains("is not text"));
    let (code, said) = run(&folder.path().join("none.toml"));
    assert!(code == Some(2) && said.contains("cannot read"), "{said}");
    assert!(run(std::path::Path::new("/dev/zero")).1.contains("not a regular file"));
}
