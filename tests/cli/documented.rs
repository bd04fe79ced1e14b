//! Each command that README and the pages show is run: here, or by a test that `commands` names, or it is said why not.
//! Those of docs/results are excepted: they say how a measurement was made, on machines that are not here and for
//! minutes. Of them it is looked at that today's program has the command and each of its options.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

mod commands;
mod long;
mod named;

use commands::{
    COMMANDS,
    How::{Here, Not, There},
};

/// Exit statuses that are no failure: `doctor` says by 1 and more what it found.
fn passes(command: &str, status: Option<i32>) -> bool {
    status == Some(0) || command.contains("bellpush doctor") && matches!(status, Some(1 | 3))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The program is called by one name, whoever starts it.
fn plain(line: &str) -> String {
    let line = line.trim();
    let prompts = ["$ ", "host-a$ ", "host-b$ ", "sudo -E "];
    let line = prompts.iter().fold(line, |line, prompt| line.strip_prefix(prompt).unwrap_or(line));
    line.replace("./x run ", "bellpush ")
        .replace("./x bench", "bellpush bench")
        .replace("target/release/bellpush", "bellpush")
}

/// What pages show as commands: every line of a block of `sh`; of other blocks and of indented lines those that begin
/// like a command.
fn commands(text: &str) -> Vec<String> {
    const PROGRAMS: &[&str] = &[
        "bellpush ",
        "LD_PRELOAD=",
        "./x ",
        "cargo ",
        "target/release/",
        "$ ",
        "host-a$ ",
        "host-b$ ",
        "sudo ",
        "git ",
    ];
    let (mut found, mut block, mut open) = (Vec::<String>::new(), None, false);
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language.trim()) };
            open = false;
            continue;
        }
        let begins = PROGRAMS.iter().any(|program| line.trim_start().starts_with(program));
        let is_command = match block {
            Some("sh") => !line.trim().is_empty() && !line.trim_start().starts_with('#'),
            Some("") => begins || line.contains("| bellpush "),
            Some(_) => false,
            None => line.starts_with("    ") && begins,
        };
        if let Some(last) = found.last_mut().filter(|_| open) {
            *last = format!("{} {}", last.trim_end_matches('\\').trim_end(), line.trim());
        } else if is_command {
            found.push(plain(line));
        } else {
            continue;
        }
        open = line.ends_with('\\');
    }
    found
}

fn pages() -> Vec<(String, String)> {
    let alone = ["README.md", "packaging/README.md"].map(|name| root().join(name));
    pages_of(alone.into(), &["docs", "docs/design", "docs/tutorial"])
}

fn pages_of(mut files: Vec<PathBuf>, folders: &[&str]) -> Vec<(String, String)> {
    let root = root();
    for folder in folders {
        let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    files.sort();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    files.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

fn how(command: &str) -> Option<usize> {
    // A comment stands one blank behind the command, however it is aligned.
    let words = command.split_whitespace().collect::<Vec<_>>().join(" ");
    let fits = |begin: &str| {
        words.starts_with(begin) || begin.ends_with(" #") && words == begin.trim_end_matches(" #")
    };
    let fitting = COMMANDS.iter().enumerate().filter(|(_, (begin, _))| fits(begin));
    fitting.max_by_key(|(_, (begin, _))| begin.len()).map(|(nth, _)| nth)
}

#[test]
fn each_command_is_run_or_it_is_said_why_not() {
    let mut wrong = Vec::new();
    let mut used = vec![false; COMMANDS.len()];
    let mut count = 0;
    for (page, text) in pages() {
        for command in commands(&text) {
            count += 1;
            match how(&command) {
                Some(nth) => used[nth] = true,
                None => wrong.push(format!("{page}: nobody runs: {command}")),
            }
        }
    }
    for ((begin, how), used) in COMMANDS.iter().zip(used) {
        if !used {
            wrong.push(format!("no page has: {begin}"));
        }
        if let Not(why) = how {
            println!("not run: {begin}: {why}");
        }
        if let There(test) = how {
            match named::Source::read(&root(), test).reached(test) {
                Some(text) => {
                    let words = named::words(begin).into_iter();
                    let not = words.filter(|word| !named::has(&text, word));
                    wrong.extend(not.map(|word| format!("{begin}: {test} has no {word}")));
                }
                None => wrong.push(format!("{begin}: there is no test {test}")),
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(count > 90, "{count}");
}

#[test]
fn commands_are_found_as_pages_show_them() {
    let text = "bellpush no\n\n```sh\n./x run topo a \\\n    --b   # what\n\n# bellpush no\nmake it\n```\n\n    \
                cargo x\n    bell\n\n```\n$ bellpush decode c\nanswer\ndmesg | bellpush d\n```\n```rust\n./x no\n```\n";
    let found = commands(text);
    let wanted = [
        "bellpush topo a --b   # what",
        "make it",
        "cargo x",
        "bellpush decode c",
        "dmesg | bellpush d",
    ];
    assert_eq!(found, wanted);
}

/// Helps of commands, by name; empty where there is no such command.
#[derive(Default)]
struct Helps(BTreeMap<String, String>);

impl Helps {
    /// Whether a call of `bellpush` names a command that is there, and options of it. `None` for what is no call.
    fn know(&mut self, call: &str) -> Option<bool> {
        let mut words = call.strip_prefix("bellpush ")?.split_whitespace();
        // `bellpush COMMAND` stands for all; a device calls itself `bellpush soft`.
        let name = words
            .next()
            .filter(|name| *name != "soft" && name.chars().all(|c| c.is_ascii_lowercase()))?;
        let help = self.0.entry(name.to_owned()).or_insert_with(|| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_bellpush"));
            let output = program.args([name, "--help"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        });
        let there: Vec<&str> =
            help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
        let options =
            words.take_while(|word| *word != "--").map(|word| word.trim_start_matches('['));
        let options = options.filter(|word| word.starts_with("--"));
        let mut options = options.filter_map(|word| word.split(['=', ',', '[', ']']).next());
        Some(!help.is_empty() && options.all(|option| there.contains(&option)))
    }
}

/// Commands within sentences, which is all that pages of design have: each is there, with its options.
#[test]
fn commands_within_sentences_are_there() {
    let (mut helps, mut wrong, mut count) = (Helps::default(), Vec::new(), 0);
    for (page, text) in pages() {
        let sentences = text.split("```").step_by(2).collect::<String>();
        for span in sentences.split('`').skip(1).step_by(2).map(plain) {
            let Some(is_there) = helps.know(&span) else { continue };
            count += 1;
            if !is_there {
                wrong.push(format!("{page}: {span}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(count > 30, "{count}");
}

/// What pages of results were measured by: `bellpush` and `./x` have the commands and options still.
#[test]
fn commands_of_results_have_their_options() {
    let front = fs::read_to_string(root().join("x")).unwrap();
    let (mut helps, mut wrong, mut count) = (Helps::default(), Vec::new(), 0);
    for (page, text) in pages_of(Vec::new(), &["docs/results"]) {
        let sentences = text.split("```").step_by(2).collect::<String>();
        let spans = sentences.split('`').skip(1).step_by(2).map(plain);
        for line in commands(&text).into_iter().chain(spans) {
            let line = line.split(" #").next().unwrap();
            // One may be started by another: `bellpush run -- bellpush bench`.
            for call in line.split(" -- ") {
                let verb = call.strip_prefix("./x ").and_then(|rest| rest.split([' ', ';']).next());
                let of_front = verb.map(|verb| front.contains(&format!("\n#   ./x {verb}")));
                let Some(is_there) = helps.know(call).or(of_front) else { continue };
                count += 1;
                if !is_there {
                    wrong.push(format!("{page}: {call}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(count > 60, "{count}");
}

#[test]
fn an_option_that_is_gone_is_found() {
    let mut helps = Helps::default();
    for (call, known) in [
        ("bellpush bench --sizes 8,64 [--both-ways] --gpu=0", Some(true)),
        ("bellpush bench --sises 8", Some(false)),
        ("bellpush bench [--gone]", Some(false)),
        ("bellpush run --link-type shm -- program --of-its-own", Some(true)),
        ("bellpush gone", Some(false)),
        ("bellpush COMMAND", None),
        ("cargo test", None),
    ] {
        assert_eq!(helps.know(call), known, "{call}");
    }
}

#[test]
fn commands_of_the_pages_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let programs = at.join("programs");
    fs::create_dir(&programs).unwrap();
    symlink(env!("CARGO_BIN_EXE_bellpush"), programs.join("bellpush")).unwrap();
    symlink(root().join("docs"), at.join("docs")).unwrap();
    symlink(root().join("tests"), at.join("tests")).unwrap();
    let fixtures = root().join("tests/fixtures/decode");
    for (from, to) in
        [("write.hex", "sq.hex"), ("dmesg.txt", "dmesg.txt"), ("pingpong.pcap", "capture.pcapng")]
    {
        fs::copy(fixtures.join(from), at.join(to)).unwrap();
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let (mut ran, mut failed) = (Vec::new(), Vec::new());
    for (page, text) in pages() {
        for command in commands(&text) {
            let Some((_, Here(replaced, behind))) = how(&command).map(|nth| &COMMANDS[nth]) else {
                continue;
            };
            let short = replaced.iter().fold(command.clone(), |c, (from, to)| c.replace(from, to));
            let (body, _) = short.split_once(" #").unwrap_or((&short, ""));
            let line = format!("{} {behind}", body.trim_end());
            if ran.contains(&line) {
                continue;
            }
            if let Err(what) = run(&line, at, &path) {
                failed.push(format!("{page}: {command}\n  as: {line}\n  {what}"));
            }
            ran.push(line);
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
    assert!(ran.len() >= 25, "{ran:#?}");
}

/// What the tutorial shows of a program is in the program: each line of a fenced block behind a link to its source, but
/// those that leave something out, and without remarks.
#[test]
fn what_the_tutorial_quotes_is_in_the_programs() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tutorial"));
    let mut quoted = 0;
    for page in ["2-kernel.md", "3-two-processes.md"] {
        let text = fs::read_to_string(folder.join(page)).unwrap();
        let mut source = None;
        for (nth, part) in text.split("```").enumerate() {
            if nth % 2 == 0 {
                let links = part.split("](").skip(1).filter_map(|link| link.split(')').next());
                source =
                    links.filter(|to| to.ends_with(".cu") || to.ends_with(".rs")).last().or(source);
                continue;
            }
            let Some((_, lines)) =
                part.split_once('\n').filter(|(kind, _)| ["cpp", "rust"].contains(kind))
            else {
                continue;
            };
            let program = fs::read_to_string(folder.join(source.unwrap())).unwrap();
            for line in lines.lines().filter(|line| !line.contains('…')) {
                let code = line.split("  //").next().unwrap().trim();
                assert!(
                    program.contains(code),
                    "{page} quotes a line that {source:?} has not: {code}"
                );
                quoted += 1;
            }
        }
    }
    assert!(quoted >= 27, "only {quoted} lines");
}

/// README's program is the example that it names: each line, in that order.
#[test]
fn what_the_readme_quotes_is_in_the_example() {
    let text = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let (readme, example) = (text("README.md"), text("examples/quickstart.rs"));
    let (_, program) = readme.split_once("```rust\n").expect("a program");
    let (program, _) = program.split_once("```").expect("its end");
    let mut rest = example.lines().map(str::trim);
    let quoted: Vec<&str> = program.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    for line in &quoted {
        assert!(rest.any(|own| own == *line), "quickstart.rs has not, or not there: {line}");
    }
    assert!(quoted.len() > 15, "only {} lines", quoted.len());
}

/// Runs a line of a shell, for at most a minute.
fn run(line: &str, at: &Path, path: &str) -> Result<(), String> {
    let complaint = tempfile::tempfile().unwrap();
    let mut shell = Command::new("bash")
        .args(["-c", line])
        .current_dir(at)
        .env("PATH", path)
        .env("XDG_CONFIG_HOME", at)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(complaint.try_clone().unwrap())
        .spawn()
        .unwrap();
    let since = Instant::now();
    let status = loop {
        match shell.try_wait().unwrap() {
            Some(status) => break status,
            None if since.elapsed() > Duration::from_secs(60) => {
                shell.kill().unwrap();
                shell.wait().unwrap();
                return Err("not done within a minute".into());
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if passes(line, status.code()) {
        return Ok(());
    }
    let mut said = String::new();
    let mut complaint = complaint;
    std::io::Seek::rewind(&mut complaint).unwrap();
    std::io::Read::read_to_string(&mut complaint, &mut said).unwrap();
    Err(format!("{status}: {said}"))
}
