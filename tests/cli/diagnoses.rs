//! `bellpush doctor`, on recorded machines of tests/fixtures/doctor and on this one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::Parser;

use crate::doctor::{DoctorArgs, check_table, findings_of, told};
use crate::recorded::{names, recorded};

#[derive(Parser)]
struct Doctor {
    #[command(flatten)]
    args: DoctorArgs,
}

fn doctor(args: &[&str]) -> Result<(u8, String), String> {
    let parsed = Doctor::try_parse_from([&["doctor"], args].concat()).map_err(|e| e.to_string())?;
    told(&parsed.args).map_err(|e| e.to_string())
}

fn on(root: &Path, args: &[&str]) -> (u8, String) {
    doctor(&[&["--root", root.to_str().unwrap()], args].concat()).unwrap()
}

/// A recorded machine with some statements more.
fn machine(name: &str, more: &[&str]) -> tempfile::TempDir {
    let mut machine = recorded(name);
    more.iter().for_each(|line| machine.statement(line));
    let dir = tempfile::tempdir().unwrap();
    machine.write(dir.path());
    dir
}

/// What is wrong with a machine by the checks: warnings and worse.
fn wrong(root: &Path) -> Vec<[String; 4]> {
    let is_wrong = |f: &[String; 4]| matches!(f[1].as_str(), "warning" | "prevents");
    findings_of(root).unwrap().into_iter().filter(is_wrong).collect()
}

/// Every fault of every machine is named, and nothing else is.
#[test]
fn each_fault_is_named_and_no_other() {
    let all = names();
    assert!(all.len() >= 24, "{}", all.len());
    let mut failed = Vec::new();
    for name in all {
        let machine = recorded(&name);
        let dir = tempfile::tempdir().unwrap();
        machine.write(dir.path());
        let found = wrong(dir.path());
        let said: BTreeSet<(&str, &str)> =
            found.iter().map(|f| (f[0].as_str(), f[1].as_str())).collect();
        let expected: BTreeSet<(&str, &str)> =
            machine.expected.iter().map(|e| (e.0.as_str(), e.1.as_str())).collect();
        if said != expected {
            failed.push(format!("{name}: expected {expected:?}, found {found:#?}"));
        }
        for (check, severity, part) in &machine.expected {
            let is_it =
                |f: &&[String; 4]| f[0] == *check && f[1] == *severity && f[3].contains(part);
            if found.iter().find(is_it).is_none() && said == expected {
                failed.push(format!("{name}: {check} does not say {part:?}: {found:#?}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
