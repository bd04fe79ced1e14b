//! Manual pages and completions: every command that help shows, and no other.

use std::fs;
use std::process::{Command, Stdio};

use crate::preloaded::{bellpush, there};
use crate::{commands, run, said};

#[test]
fn each_command_has_a_page() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("man/man1");
    let printed = said(Command::new(bellpush()).arg("man").arg(&folder));
    let mut wanted: Vec<_> = commands()
        .iter()
        .map(|name| format!("bellpush-{name}.1"))
        .chain(["bellpush.1".into()])
        .collect();
    let listed = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut found: Vec<_> = listed.map(|name| name.into_string().unwrap()).collect();
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
    assert_eq!(printed.lines().count(), wanted.len());
    let page = fs::read_to_string(folder.join("bellpush-run.1")).unwrap();
    for text in [".TH", "bellpush\\-run", "\\-\\-dm\\-bytes", "The program and its arguments"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let main = fs::read_to_string(folder.join("bellpush.1")).unwrap();
    for name in commands() {
        assert!(main.contains(&format!("bellpush\\-{name}(1)")), "{name}: {main}");
    }
    if there("man") {
        for name in found {
            let mut man = Command::new("man");
            man.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8"]).arg(folder.join(&name));
            let out = run(man.env("MANPAGER", "cat").stdin(Stdio::null()));
            assert!(out.status.success() && out.stderr.is_empty(), "{name}: {out:?}");
        }
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_one_line_and_status_2() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "").unwrap();
    let out = run(Command::new(bellpush()).arg("man").arg(file.join("man1")));
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code() == Some(2) && text.lines().count() == 1, "{text}");
    assert!(text.contains("name a folder"), "{text}");
}

#[test]
fn each_shell_completes_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let text = said(Command::new(bellpush()).args(["completions", shell]));
        for name in commands() {
            assert!(text.contains(&name), "{shell}: {name}");
        }
        for hidden in ["guard", "completions"] {
            assert!(!text.contains(hidden), "{shell} offers {hidden}");
        }
        if shell == "bash" || there(shell) {
            let temp = tempfile::tempdir().unwrap();
            let file = temp.path().join("bellpush");
            fs::write(&file, text).unwrap();
            said(Command::new(shell).arg("-n").arg(&file));
        }
    }
    // As a shell does it: `bellpush so<TAB>`.
    let script = "source <(\"$0\" completions bash); COMP_WORDS=(bellpush so); COMP_CWORD=1; \
                  _bellpush bellpush so bellpush; printf '%s\\n' \"${COMPREPLY[@]}\"";
    assert_eq!(said(Command::new("bash").args(["-c", script, bellpush()])), "soak\n");
    let out = run(Command::new(bellpush()).args(["completions", "csh"]));
    assert_eq!(out.status.code(), Some(2));
}
