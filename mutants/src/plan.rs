//! Planted bugs as files say them: `mutants/AREA/NAME.toml`.
//!
//! ```toml
//! what = "the answer of the oldest entry is given to a duplicate"
//! test = "--test roce faults::replay_answers_the_newest"
//! [[edit]]
//! file = "crates/soft-nic/src/service/rc/replay.rs"
//! find = '''exact text, occurring exactly once in the file'''
//! replace = '''the bug'''
//! ```
//!
//! `test` is arguments of `cargo test`, by which one target is chosen and a test in it. `root = true`
//! says that only root can run what notices the bug.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

/// A planted bug.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutant {
    /// `AREA/NAME`.
    pub name: String,
    pub what: String,
    /// Arguments of `cargo test`.
    pub test: Vec<String>,
    /// Only root's test notices it.
    pub root: bool,
    edits: Vec<Edit>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    file: PathBuf,
    find: String,
    replace: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    what: String,
    test: String,
    #[serde(default)]
    root: bool,
    edit: Vec<Edit>,
}

/// What chooses a target of a package, so that one test program is built and no more.
const TARGETS: &[&str] = &["--test", "--lib", "--bin", "--example"];
const PACKAGES: &[&str] = &["--package", "-p"];
/// The folders of objects that tests build for themselves, and arguments of `cargo build` for them.
const OBJECTS: &[(&str, &[&str])] = &[
    ("shim", &["--package", "bellpush-shim"]),
    ("capi", &["--package", "bellpush-c", "--no-default-features"]),
];

impl Mutant {
    fn parse(name: &str, text: &str) -> Result<Self, String> {
        let bad = |why: String| format!("mutants/{name}.toml: {why}");
        let written: Written =
            toml::from_str(text).map_err(|e| bad(e.to_string().trim().replace('\n', " ")))?;
        let test: Vec<String> = written.test.split_whitespace().map(str::to_owned).collect();
        let (name, Written { what, root, edit: edits, .. }) = (name.into(), written);
        let mutant = Self { name, what, test, root, edits };
        mutant.check().map_err(bad)?;
        Ok(mutant)
    }

    fn check(&self) -> Result<(), String> {
        if self.what.is_empty() || self.what.contains(['\n', '|']) {
            return Err("`what` is to be one line without `|`".into());
        }
        if !self.test.iter().any(|word| TARGETS.contains(&word.as_str())) {
            return Err(format!("`test` chooses no target: one of {}", TARGETS.join(", ")));
        }
        if self.edits.is_empty() {
            return Err("there is no [[edit]]".into());
        }
        for Edit { file, find, replace } in &self.edits {
            let file_name = file.display();
            if !file.components().all(|part| matches!(part, Component::Normal(_))) {
                return Err(format!("{file_name} is not a path within the tree"));
            }
            if find.is_empty() || find == replace {
                return Err(format!("the edit of {file_name} changes nothing"));
            }
        }
        Ok(())
    }

    /// Packages of objects that tests build for themselves, where a bug of these is in one: they are
    /// built first, so that one that does not compile is told from one that is caught.
    pub fn objects(&self) -> impl Iterator<Item = &'static [&'static str]> {
        OBJECTS
            .iter()
            .filter(|(folder, _)| self.edits.iter().any(|e| e.file.starts_with(folder)))
            .map(|o| o.1)
    }

    /// Whether the test is one of another package than the library's.
    pub fn names_package(&self) -> bool {
        self.test.iter().any(|word| PACKAGES.contains(&word.as_str()))
    }

    /// The files that change, with the bug in them; each text that is looked for is to be there
    /// exactly once.
    pub fn apply(&self, tree: &Path) -> Result<BTreeMap<PathBuf, String>, String> {
        let mut changed = BTreeMap::new();
        for Edit { file, find, replace } in &self.edits {
            let bad = |why: &str| format!("mutants/{}.toml: {}: {why}", self.name, file.display());
            let text = match changed.remove(file) {
                Some(text) => text,
                None => fs::read_to_string(tree.join(file)).map_err(|e| bad(&e.to_string()))?,
            };
            match text.matches(find.as_str()).count() {
                1 => changed.insert(file.clone(), text.replacen(find, replace, 1)),
                n => {
                    let line = find.trim().lines().next().unwrap_or_default();
                    return Err(bad(&format!("occurs {n} times, not once: {line}")));
                }
            };
        }
        Ok(changed)
    }
}

/// All planted bugs of a tree, in order of their names; all of them apply.
pub fn read_all(tree: &Path) -> Result<Vec<Mutant>, String> {
    let folder = tree.join("mutants");
    let mut all = Vec::new();
    for area in entries(&folder)?.into_iter().filter(|path| path.is_dir()) {
        for file in entries(&area)? {
            if file.extension().is_some_and(|extension| extension == "toml") {
                let name = file.strip_prefix(&folder).expect("within it").with_extension("");
                let text = fs::read_to_string(&file).map_err(|e| format!("{name:?}: {e}"))?;
                all.push(Mutant::parse(&name.to_string_lossy(), &text)?);
            }
        }
    }
    for mutant in &all {
        mutant.apply(tree)?;
    }
    Ok(all)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let bad = |e| format!("{}: {e}", folder.display());
    let entries = fs::read_dir(folder).map_err(bad)?.collect::<Result<Vec<_>, _>>().map_err(bad)?;
    let mut paths: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
    paths.sort();
    Ok(paths)
}

/// Those that have one of the names: `AREA/NAME`, or an area. No name means all.
pub fn choose(all: Vec<Mutant>, names: &[String]) -> Result<Vec<Mutant>, String> {
    let fits = |mutant: &Mutant, name: &str| {
        mutant.name == name || mutant.name.split('/').next() == Some(name)
    };
    if let Some(name) = names.iter().find(|name| !all.iter().any(|mutant| fits(mutant, name))) {
        return Err(format!("no planted bug and no area is named {name}; --list shows them"));
    }
    let chosen = |mutant: &Mutant| names.is_empty() || names.iter().any(|name| fits(mutant, name));
    Ok(all.into_iter().filter(chosen).collect())
}

/// The K-th of N parts of them, as `K/N` says: every N-th, so that each part has some of each area.
pub fn part(all: Vec<Mutant>, text: &str) -> Result<Vec<Mutant>, String> {
    let number = |text: &str| text.parse::<usize>().ok();
    match text.split_once('/').and_then(|(k, n)| number(k).zip(number(n))) {
        Some((k, n)) if 1 <= k && k <= n => Ok(all.into_iter().skip(k - 1).step_by(n).collect()),
        _ => Err(format!("--part={text}: not K/N with K from 1 to N")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "what = \"one is two\"\ntest = \"--test t a::b\"\n\
        [[edit]]\nfile = \"src/a.rs\"\nfind = '''one'''\nreplace = '''two'''\n";

    fn tree(text: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("src")).unwrap();
        fs::write(tree.path().join("src/a.rs"), text).unwrap();
        tree
    }

    #[test]
    fn parts_hold_each_bug_once() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let names = |all: Vec<Mutant>| all.into_iter().map(|m| m.name).collect::<Vec<_>>();
        let mut parts: Vec<_> = (1..=7)
            .flat_map(|k| names(part(read_all(tree).unwrap(), &format!("{k}/7")).unwrap()))
            .collect();
        parts.sort();
        let mut all = names(read_all(tree).unwrap());
        all.sort();
        assert_eq!(parts, all);
        for bad in ["0/3", "4/3", "1", "a/2", "1/0", "/", "-1/2"] {
            assert!(part(Vec::new(), bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn those_of_this_tree_apply() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let all = read_all(tree).unwrap();
        assert!(!all.is_empty());
        for mutant in &all {
            let at = mutant.test.iter().position(|word| word == "--test");
            let Some(at) = at.filter(|_| !mutant.names_package()) else { continue };
            let program = tree.join("tests").join(&mutant.test[at + 1]);
            let there = program.with_extension("rs").exists() || program.join("main.rs").exists();
            assert!(there, "mutants/{}.toml: no {}", mutant.name, program.display());
        }
    }

    #[test]
    fn a_bug_is_planted_where_its_text_is_once() {
        let mutant = Mutant::parse("wire/a", GOOD).unwrap();
        let changed = mutant.apply(tree("zero one three").path()).unwrap();
        assert_eq!(changed[Path::new("src/a.rs")], "zero two three");
        for text in ["one one", "none of it".replace("one", "1").as_str()] {
            let why = mutant.apply(tree(text).path()).unwrap_err();
            assert!(why.starts_with("mutants/wire/a.toml: src/a.rs: occurs "), "{why}");
        }
    }

    #[test]
    fn a_bad_file_is_refused_in_one_line() {
        for (from, to) in [
            ("what", "waht"),
            ("one is two", ""),
            ("--test t a::b", "a::b"),
            ("src/a.rs", "/etc/passwd"),
            ("src/a.rs", "../a.rs"),
            ("two'''", "one'''"),
            ("[[edit]]", "[[edits]]"),
        ] {
            let why = Mutant::parse("wire/a", &GOOD.replace(from, to)).unwrap_err();
            assert!(why.starts_with("mutants/wire/a.toml: ") && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn names_choose() {
        let names = ["nic/a", "nic/b", "wire/a"];
        let all = || names.map(|name| Mutant::parse(name, GOOD).unwrap()).to_vec();
        let chosen = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            choose(all(), &names).map(|chosen| chosen.len())
        };
        assert_eq!(chosen(&[]), Ok(3));
        assert_eq!(chosen(&["nic"]), Ok(2));
        assert_eq!(chosen(&["nic", "wire/a"]), Ok(3));
        assert!(chosen(&["wire/b"]).unwrap_err().contains("wire/b"));
    }
}
