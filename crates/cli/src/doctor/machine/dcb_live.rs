//! A recording of what rtnetlink answered just now, in a network namespace of the test's own.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use super::*;
use crate::doctor::machine::Machine;
use crate::doctor::packed::Packed;
use crate::doctor::{examine, record};

/// Set within the namespace.
const INSIDE: &str = "BELLPUSH_TEST_OWN_NETWORK";

/// What the checks of RoCE find of a machine.
fn found(machine: &Machine) -> Vec<[String; 5]> {
    let all = examine(machine).into_iter().filter(|f| f.check.starts_with("roce-"));
    all.map(|f| [f.check.into(), f.severity.name().into(), f.subject, f.found, f.fix]).collect()
}

/// A machine that is in a folder, but for the interfaces that the system is asked about.
fn is_kept(machine: &Packed, number: i32) {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    machine.write(dir.path()).unwrap();
    let root = |path: &Path| Root::new(path, Arc::default()).unwrap();
    let asked = root(dir.path());
    let live = Machine::read(&asked, true);
    record::write(&asked, &live, to.path()).unwrap();
    let kept = |name: &str| fs::read_to_string(to.path().join("netlink/dcb").join(name)).unwrap();
    for interface in ["ens1np0", "ens2np0"] {
        let error = dcb::ask(interface).expect_err("its driver knows no priorities");
        assert_eq!(error.raw_os_error(), Some(number), "{interface}: {error}");
        assert_eq!(kept(interface), format!("error {number}"), "{interface}");
    }
    assert_eq!(fs::read_dir(to.path().join("netlink/dcb")).unwrap().count(), 2);
    let (now, again) = (found(&live), found(&Machine::read(&root(to.path()), false)));
    let why = format!("rtnetlink: {}", io::Error::from_raw_os_error(number));
    let is_unseen = |f: &&[String; 5]| f[1] == "unseen" && f[3].contains(&why);
    assert_eq!(now.iter().filter(is_unseen).count(), 1, "{now:#?}");
    assert_eq!(now, again);
}

/// The recording has what was answered, and leads to the same findings.
#[test]
fn an_answer_of_the_system_is_kept_as_it_was() {
    if env::var_os(INSIDE).is_none() {
        let (_, own) = module_path!().split_once("::").unwrap();
        let mut again = Command::new("unshare");
        again.arg("-rn").arg(env::current_exe().unwrap()).env(INSIDE, "1");
        let name = format!("{own}::an_answer_of_the_system_is_kept_as_it_was");
        let Ok(output) = again.args(["--exact", &name, "--nocapture"]).output() else {
            return println!("SKIPPED: no `unshare`");
        };
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if said.contains("unshare failed") || said.contains("SKIPPED") {
            return println!("SKIPPED: no right to make a network namespace, or no `ip`: {said}");
        }
        return assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
    let ip = |args: &str| Command::new("ip").args(args.split(' ')).status();
    let made = ip("link add ens1np0 type veth peer name ens2np0");
    if !made.is_ok_and(|status| status.success()) {
        return println!("SKIPPED: no `ip`, or no interfaces of type veth");
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/doctor");
    let machine = Packed::read(&fixtures.join("roce-upstream.machine")).unwrap();
    is_kept(&machine, Errno::OPNOTSUPP.raw_os_error());
    assert!(ip("link del ens1np0").unwrap().success());
    is_kept(&machine, Errno::NODEV.raw_os_error());
}
