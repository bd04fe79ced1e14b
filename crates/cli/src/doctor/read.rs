//! Bounded reads below a root, which is `/` or the copy of another machine.
//!
//! Regular files alone are read, 1 MiB of each at most, and nothing outside the root: a copy's
//! absolute links would lead to the running machine.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bellpush_cli::report::human::printable;

/// Longest file: /proc/self/environ and /proc/mounts are the largest that are read.
pub const MAX_BYTES: u64 = 1 << 20;
/// Most names of one folder.
const MAX_NAMES: usize = 4096;

/// What a machine shows of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<T> {
    /// It is there.
    Known(T),
    /// It is not there.
    Absent,
    /// It is there, or may be, and cannot be read; why.
    Unreadable(String),
}

impl<T> Seen<T> {
    /// The value, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            _ => None,
        }
    }

    /// The same, of another type; a value that does not parse is unreadable.
    pub fn parse<U>(self, what: &str, parse: impl FnOnce(&T) -> Option<U>) -> Seen<U> {
        match self {
            Self::Known(value) => match parse(&value) {
                Some(parsed) => Seen::Known(parsed),
                None => Seen::Unreadable(format!("{what}: not in the expected form")),
            },
            Self::Absent => Seen::Absent,
            Self::Unreadable(why) => Seen::Unreadable(why),
        }
    }

    /// The same, of another type.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Seen<U> {
        match self {
            Self::Known(value) => Seen::Known(map(value)),
            Self::Absent => Seen::Absent,
            Self::Unreadable(why) => Seen::Unreadable(why),
        }
    }

    /// Why it is not known, for a sentence.
    pub fn why_not(&self) -> &str {
        match self {
            Self::Known(_) => "known",
            Self::Absent => "not there",
            Self::Unreadable(why) => why,
        }
    }
}

/// How something was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// The content of a file.
    Content,
    /// The names in a folder.
    Names,
    /// Whether it is there.
    Presence,
    /// What a link names.
    Link,
}

/// The root of a machine.
#[derive(Debug)]
pub struct Root {
    /// As it was named, for messages.
    named: PathBuf,
    /// The same without links.
    real: PathBuf,
    /// What is being read, for the message when it does not return.
    reading: Arc<Mutex<PathBuf>>,
    /// What has been asked for.
    asked: Mutex<BTreeSet<(String, Asked)>>,
    /// What the system has answered.
    answers: Mutex<BTreeMap<String, String>>,
    /// Folders without links, as they were found: most files have theirs in common.
    folders: Mutex<BTreeMap<PathBuf, PathBuf>>,
}

impl Root {
    /// The root `dir`, which has to be a folder.
    pub fn new(dir: &Path, reading: Arc<Mutex<PathBuf>>) -> Result<Self, String> {
        let wrong = |e| format!("{}: {e}", dir.display());
        let real = fs::canonicalize(dir).map_err(wrong)?;
        if !real.is_dir() {
            return Err(format!("{}: not a directory", dir.display()));
        }
        let (named, asked, folders) = (dir.to_owned(), Mutex::default(), Mutex::default());
        Ok(Self { named, real, reading, asked, answers: Mutex::default(), folders })
    }

    /// A path below the root, as named.
    pub fn path(&self, name: &str) -> PathBuf {
        self.named.join(name)
    }

    fn ask(&self, name: &str, how: Asked) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.insert((name.to_owned(), how));
    }

    /// What has been asked for, by name.
    pub fn asked(&self) -> BTreeSet<(String, Asked)> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the system of the running machine answers to a question, or in a copy the file that has the answer.
    pub fn answer(&self, name: &str, live: bool, ask: impl FnOnce() -> String) -> Seen<String> {
        if !live {
            return self.text(name);
        }
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = name.into();
        let answer = ask();
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.insert(name.to_owned(), answer.clone());
        Seen::Known(answer)
    }

    /// All answers of the system, by the files that a copy has them in.
    pub fn answers(&self) -> BTreeMap<String, String> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The file that a name leads to, links followed.
    fn resolve(&self, name: &str) -> Result<PathBuf, Seen<()>> {
        let path = self.real.join(name);
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = path.clone();
        match self.without_links(&path) {
            Ok(real) if real.starts_with(&self.real) => Ok(real),
            Ok(_) => Err(Seen::Unreadable(format!("/{name} leads out of the tree"))),
            Err(e) => Err(unread(name, &e)),
        }
    }

    /// What `fs::canonicalize` says, with the folder's answer kept.
    fn without_links(&self, path: &Path) -> io::Result<PathBuf> {
        let (Some(parent), Some(last)) = (path.parent(), path.file_name()) else {
            return fs::canonicalize(path);
        };
        let lock = || self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = lock().get(parent).cloned();
        let folder = match kept {
            Some(folder) => folder,
            None => {
                let folder = fs::canonicalize(parent)?;
                lock().insert(parent.to_owned(), folder.clone());
                folder
            }
        };
        let path = folder.join(last);
        if fs::symlink_metadata(&path)?.is_symlink() { fs::canonicalize(path) } else { Ok(path) }
    }

    /// Content of a file.
    pub fn bytes(&self, name: &str) -> Seen<Vec<u8>> {
        self.head(name, MAX_BYTES)
    }

    /// The first bytes of a file.
    pub fn head(&self, name: &str, bytes: u64) -> Seen<Vec<u8>> {
        let max = bytes;
        self.ask(name, Asked::Content);
        let read = || -> Result<Vec<u8>, Seen<()>> {
            let real = self.resolve(name)?;
            let io = |e| unread(name, &e);
            // A pipe or a device would wait, or never end.
            if !fs::metadata(&real).map_err(io)?.is_file() {
                return Err(Seen::Unreadable(format!("/{name} is not a regular file")));
            }
            let mut bytes = Vec::new();
            let file = File::open(&real).map_err(io)?;
            file.take(max).read_to_end(&mut bytes).map_err(io)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Seen::Known(bytes),
            Err(Seen::Unreadable(why)) => Seen::Unreadable(why),
            Err(_) => Seen::Absent,
        }
    }

    /// The same as text, of a file that says by what it lacks: unreadable if it is too long.
    pub fn whole(&self, name: &str) -> Seen<String> {
        match self.bytes(name) {
            Seen::Known(bytes) if bytes.len() as u64 == MAX_BYTES => {
                Seen::Unreadable(format!("/{name} has more than {MAX_BYTES} B"))
            }
            bytes => bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()),
        }
    }

    /// The same as text, without space at its ends.
    pub fn text(&self, name: &str) -> Seen<String> {
        self.bytes(name).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The same as a number.
    pub fn number(&self, name: &str) -> Seen<u64> {
        self.text(name).parse(name, |text| text.parse().ok())
    }

    /// Names in a folder, in order.
    pub fn names(&self, name: &str) -> Seen<Vec<String>> {
        self.ask(name, Asked::Names);
        let real = match self.resolve(name) {
            Ok(real) => real,
            Err(Seen::Unreadable(why)) => return Seen::Unreadable(why),
            Err(_) => return Seen::Absent,
        };
        match fs::read_dir(real) {
            Ok(entries) => {
                let names = entries.take(MAX_NAMES).flatten().map(|e| e.file_name());
                let mut names: Vec<String> =
                    names.filter_map(|name: OsString| name.into_string().ok()).collect();
                names.sort_by_key(|name| natural(name));
                Seen::Known(names)
            }
            Err(e) => unread(name, &e).map(|()| Vec::new()),
        }
    }

    /// Names in a folder, none where there is no such folder.
    pub fn list(&self, name: &str) -> Vec<String> {
        self.names(name).known().cloned().unwrap_or_default()
    }

    /// Whether there is something of this name.
    pub fn has(&self, name: &str) -> bool {
        self.ask(name, Asked::Presence);
        self.own(name).is_some_and(|path| fs::symlink_metadata(path).is_ok())
    }

    /// A name whose folder is below the root: a copy's links may lead elsewhere.
    fn own(&self, name: &str) -> Option<PathBuf> {
        let path = self.real.join(name);
        let (folder, last) = (self.without_links(path.parent()?).ok()?, path.file_name()?);
        folder.starts_with(&self.real).then(|| folder.join(last))
    }

    /// Whether it is a folder, links followed.
    pub fn is_dir(&self, name: &str) -> bool {
        self.resolve(name).is_ok_and(|real| real.is_dir())
    }

    /// Where a name leads to, from the folder `top`.
    pub fn below(&self, name: &str, top: &str) -> Option<String> {
        let (real, top) = (self.resolve(name).ok()?, self.resolve(top).ok()?);
        Some(real.strip_prefix(top).ok()?.to_str()?.to_owned())
    }

    /// Last part of what a link names.
    pub fn link_name(&self, name: &str) -> Option<String> {
        self.ask(name, Asked::Link);
        let target = fs::read_link(self.own(name)?).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}

/// `mlx5_10` comes after `mlx5_9`.
fn natural(name: &str) -> (String, u64) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem.to_owned(), name[stem.len()..].parse().unwrap_or(0))
}

fn unread(name: &str, error: &std::io::Error) -> Seen<()> {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Seen::Absent,
        _ => Seen::Unreadable(format!("/{name}: {error}")),
    }
}

/// Others' text for one line of a terminal, not too long.
pub fn short(text: &str) -> String {
    let line = printable(text.trim());
    match line.char_indices().nth(160) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
