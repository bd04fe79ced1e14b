//! Plants the bugs of `mutants/AREA/NAME.toml`, each by itself, in a copy of the tree, and wants
//! the test that is named there to notice it: to compile, to run, and to fail, where it passes
//! without the bug. `./x mutants` runs this.

mod plan;
mod scratch;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use plan::Mutant;
use scratch::{Ran, Scratch};

const USAGE: &str = "./x mutants [--list | --write | --check] [--part=K/N] [AREA | AREA/NAME]...";
/// The document that ends with the table.
const DOCUMENT: &str = "docs/reliability.md";
const MARK: &str = "<!-- written by ./x mutants --write -->\n";

#[derive(PartialEq, Eq)]
enum Task {
    Run,
    List,
    Write,
    Check,
}

fn main() -> ExitCode {
    let (mut task, mut names, mut features) = (Task::Run, Vec::new(), Vec::new());
    let mut part = String::from("1/1");
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--list" => task = Task::List,
            "--write" => task = Task::Write,
            "--check" => task = Task::Check,
            word if word.starts_with("--features=") => features.push(argument),
            word if word.starts_with("--part=") => part = word["--part=".len()..].into(),
            word if word.starts_with('-') => return refuse(USAGE),
            _ => names.push(argument),
        }
    }
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member of the workspace");
    let chosen = plan::read_all(tree)
        .and_then(|all| plan::choose(all, &names))
        .and_then(|all| plan::part(all, &part));
    let mutants = match chosen {
        Ok(mutants) => mutants,
        Err(why) => return refuse(&why),
    };
    match task {
        Task::List => print!("{}", table(&mutants)),
        Task::Write if !names.is_empty() || part != "1/1" => {
            return refuse("--write writes all of them");
        }
        Task::Write => {
            let path = tree.join(DOCUMENT);
            let written = document(tree, &mutants)
                .and_then(|text| fs::write(&path, text).map_err(|e| e.to_string()));
            if let Err(why) = written {
                return refuse(&format!("{DOCUMENT}: {why}"));
            }
        }
        Task::Check => println!("{} apply", mutants.len()),
        Task::Run => match Scratch::copy(tree, features).and_then(|copy| run(&copy, &mutants)) {
            Ok(true) => {}
            Ok(false) => return ExitCode::FAILURE,
            Err(why) => return refuse(&why),
        },
    }
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("mutants: {why}");
    ExitCode::from(2)
}

fn table(mutants: &[Mutant]) -> String {
    let mut table = String::from("| bug | what | test |\n|---|---|---|\n");
    for Mutant { name, what, test, .. } in mutants {
        table += &format!("| `{name}` | {what} | `{}` |\n", test.join(" "));
    }
    table
}

/// The document with the table as it is now.
fn document(tree: &Path, mutants: &[Mutant]) -> Result<String, String> {
    let text = fs::read_to_string(tree.join(DOCUMENT)).map_err(|e| e.to_string())?;
    let (before, _) = text.split_once(MARK).ok_or("there is no mark where the table goes")?;
    Ok(format!("{before}{MARK}\n{}", table(mutants)))
}

/// Whether all were caught.
fn run(scratch: &Scratch, all: &[Mutant]) -> Result<bool, String> {
    let user = fs::metadata("/proc/self").map_err(|e| format!("/proc/self: {e}"))?.uid();
    let (mutants, left_out): (Vec<_>, Vec<_>) = all.iter().partition(|m| !m.root || user == 0);
    for mutant in left_out {
        println!("{}: left out: only root can run its test", mutant.name);
    }
    // First of all every test in the tree as it is: one that fails there says nothing.
    let mut sound = BTreeMap::new();
    for mutant in &mutants {
        if !sound.contains_key(&mutant.test) {
            let ran = scratch.test(mutant);
            eprintln!("unmodified: {}: {}", mutant.test.join(" "), word(&ran, "passes", "FAILS"));
            sound.insert(mutant.test.clone(), ran);
        }
    }
    let width = |text: fn(&Mutant) -> usize| mutants.iter().map(|m| text(m)).max().unwrap_or(0);
    let name_width = width(|mutant| mutant.name.len());
    let test_width = width(|mutant| mutant.test.join(" ").len());
    let mut caught = 0;
    for mutant in &mutants {
        let start = Instant::now();
        let verdict = match &sound[&mutant.test] {
            Ran::Passed => {
                let ran = scratch.test_with(mutant)?;
                caught += usize::from(ran == Ran::Failed);
                word(&ran, "SURVIVES", "caught")
            }
            other => format!("ERROR without the bug: {}", word(other, "", "the test fails")),
        };
        let (name, test, seconds) =
            (&mutant.name, mutant.test.join(" "), start.elapsed().as_secs());
        println!("{name:name_width$}  {test:test_width$}  {verdict}, {seconds} s");
    }
    println!("{caught} of {} caught", mutants.len());
    println!("{caught} passed, {} failed", mutants.len() - caught);
    Ok(caught == mutants.len())
}

fn word(ran: &Ran, passed: &str, failed: &str) -> String {
    match ran {
        Ran::Passed => passed.into(),
        Ran::Failed => failed.into(),
        Ran::Neither(why) => format!("ERROR: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_table() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mutants = plan::read_all(tree).unwrap();
        let text = fs::read_to_string(tree.join(DOCUMENT)).unwrap();
        assert!(text == document(tree, &mutants).unwrap(), "type: ./x mutants --write");
    }
}
