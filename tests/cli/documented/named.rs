//! Whether a test that is named for a command has the command's words: in its body, in functions that it calls, or in
//! scripts of `packaging/` that it starts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Words of a command that its test has to have: of the program its subcommand, options by their long names, what
/// `bellpush run` starts; of others the program and what it is given. Names of files, and values, are the page's own.
pub fn words(begin: &str) -> Vec<&str> {
    let mut words: Vec<&str> = begin.split_whitespace().filter(|word| *word != "#").collect();
    let is_ours = words.contains(&"bellpush");
    let is_run = words.contains(&"--");
    if is_ours {
        words.drain(..=words.iter().position(|word| *word == "bellpush").unwrap());
    }
    let nth = words.iter().enumerate();
    let kept = nth.filter(|(nth, word)| match word.strip_prefix("--") {
        Some(name) => !name.is_empty(),
        None if word.starts_with('-') || *word == &"export" => false,
        None => !is_ours || *nth == 0 || is_run && !word.starts_with("./"),
    });
    let bare = kept.map(|(_, word)| word.rsplit('/').next().unwrap_or(word));
    let bare = bare.map(|word| {
        if word.starts_with("--") { word } else { word.split('=').next().unwrap_or(word) }
    });
    bare.filter(|word| word.contains(|c: char| c.is_ascii_alphabetic())).collect()
}

/// Whether a text has a word that is no part of a longer one.
pub fn has(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

/// Functions that a test can reach, by name, each with its body.
pub struct Source {
    functions: BTreeMap<String, String>,
    /// Scripts by the names of their files.
    scripts: BTreeMap<String, String>,
}

impl Source {
    /// Of `FILE::TEST` the file, the ones that it is a module of, and what tests of programs share.
    pub fn read(root: &Path, test: &str) -> Self {
        let file = Path::new(test.split("::").next().unwrap());
        let folder = file.parent().unwrap();
        let above = [folder.with_extension("rs"), folder.join("main.rs"), file.to_owned()];
        let mut functions = BTreeMap::new();
        for name in [Path::new("tests/support/preloaded.rs")]
            .into_iter()
            .chain(above.iter().map(|p| p.as_path()))
        {
            functions.extend(bodies(&fs::read_to_string(root.join(name)).unwrap_or_default()));
        }
        let packaging =
            fs::read_dir(root.join("packaging")).unwrap().map(|entry| entry.unwrap().path());
        let scripts = packaging.filter(|path| path.extension().is_some_and(|it| it == "sh"));
        let scripts = scripts.map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap())
        });
        Self { functions, scripts: scripts.collect() }
    }

    /// The text of `FILE::TEST` with all that it calls; `None` where it is not there.
    pub fn reached(&self, test: &str) -> Option<String> {
        let (_, name) = test.split_once("::")?;
        let (mut seen, mut left) = (BTreeSet::new(), vec![name.to_owned()]);
        let mut text = String::new();
        self.functions.get(name)?;
        while let Some(name) = left.pop() {
            let Some(body) = self.functions.get(&name).filter(|_| seen.insert(name.clone())) else {
                continue;
            };
            text += body;
            let called = body.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            left.extend(
                called.filter(|word| self.functions.contains_key(*word)).map(str::to_owned),
            );
        }
        let named = self.scripts.iter().filter(|(name, _)| text.contains(*name));
        let scripts: String = named.map(|(_, text)| text.as_str()).collect();
        Some(text + &scripts)
    }
}

/// Functions of a file as rustfmt writes them: each ends with a brace below its first line.
fn bodies(text: &str) -> BTreeMap<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = BTreeMap::new();
    for (nth, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let begin = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        let Some(name) = begin.strip_prefix("fn ") else { continue };
        let name = name.split(['(', '<']).next().unwrap().to_owned();
        let end = format!("{}}}", " ".repeat(indent));
        let body = lines[nth + 1..].iter().take_while(|line| **line != end);
        // A first line is a signature; its own words are no command's.
        found.insert(name, body.map(|line| format!("{line}\n")).collect());
    }
    found
}

#[test]
fn words_of_commands_are_found_in_tests() {
    for (begin, wanted) in [
        ("bellpush topo #", &["topo"][..]),
        ("bellpush bench --nic mlx5_0", &["bench", "--nic"]),
        ("bellpush run -- env UCX_TLS", &["run", "env", "UCX_TLS"]),
        ("bellpush run -- ./program", &["run"]),
        ("mpirun -np 4 target/release/allreduce", &["mpirun", "allreduce"]),
        ("export BELLPUSH_ROOT", &["BELLPUSH_ROOT"]),
        ("BELLPUSH_LOG=debug", &["BELLPUSH_LOG"]),
    ] {
        assert_eq!(words(begin), wanted, "{begin}");
    }
    let text = "#[test]\nfn one() {\n    start(\"soak\");\n}\n\npub fn start(name: &str) {\n    run(&[\"bench\"]);\n}\n\n\
                fn other() {\n    \"sim\";\n    \"try.sh\"\n}\n";
    let scripts = BTreeMap::from([("try.sh".to_owned(), "cargo install".to_owned())]);
    let source = Source { functions: bodies(text), scripts };
    let of = |test: &str| source.reached(test);
    let one = of("a.rs::one").unwrap();
    assert!(has(&one, "soak") && has(&one, "bench") && !has(&one, "sim") && !has(&one, "ben"));
    assert!(has(&of("a.rs::other").unwrap(), "install") && of("a.rs::gone").is_none());
}
