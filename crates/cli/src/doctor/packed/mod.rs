//! Recorded machines as one text, such as those of tests/fixtures/doctor: what they are, and the files that they stand
//! for.
//!
//! A line is a statement; docs/doctor.md has them. In values `~` stands for a space and `|` for the end of a line. A
//! later statement about the same thing adds to the earlier or replaces it. Anybody may have written a text: it is
//! bounded, and its files lie in the folder that it is unpacked to, wherever its names and links lead.

mod files;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::{env, process};

use bellpush_cli::input;

use super::read::{MAX_BYTES, short};
use crate::guard::Guard;

/// Most machines that are each the base of the next.
const MAX_BASES: usize = 8;
/// Most PCI functions, each of which has a configuration space.
const MAX_FUNCTIONS: usize = 4096;
/// Most statements, and fields of statements.
const MAX_FIELDS: usize = 1 << 16;
/// Most prefixes of files to leave out.
const MAX_DROPPED: usize = 1024;
/// Most files and links.
const MAX_FILES: usize = 1 << 14;
/// Most bytes of files and names.
const MAX_TREE: usize = 64 << 20;
/// Longest name of a file in a machine, with its folders, and longest field of a statement.
const MAX_NAME: usize = 1024;
/// Most zeros behind the bytes of a file: the rest of a configuration space.
const MAX_ZEROS: usize = 4096;
/// Most folders above a file.
const MAX_FOLDERS: usize = 64;

type Fields = BTreeMap<String, String>;
/// Contents, and what links name, by the name below the folder.
type Files = BTreeMap<String, Vec<u8>>;
type Links = BTreeMap<String, String>;

/// What statements stand for.
#[derive(Debug, Default)]
struct Tree {
    files: Files,
    links: Links,
    /// Of all that was ever added.
    bytes: usize,
}

/// A machine as its text says it.
#[derive(Debug, Default, Clone)]
pub struct Packed {
    /// What it is.
    pub what: String,
    /// Where it comes from.
    #[allow(dead_code, reason = "the tests make a table of them")]
    pub source: String,
    /// Check, severity, and part of what is found.
    #[allow(dead_code, reason = "the tests compare it with what is found")]
    pub expected: Vec<(String, String, String)>,
    /// Where its base is looked for, and how many are below it.
    folder: PathBuf,
    depth: usize,
    /// The texts that were read.
    inputs: Vec<PathBuf>,
    statements: usize,
    /// Statements, and fields of statements.
    fields: usize,
    files: BTreeMap<String, String>,
    /// Contents that are no text, and how many zeros follow.
    raw: BTreeMap<String, (Vec<u8>, usize)>,
    links: BTreeMap<String, String>,
    /// Path below /sys/devices, by address.
    places: BTreeMap<String, String>,
    pci: BTreeMap<String, Fields>,
    /// Models of GPUs, by address.
    gpus: BTreeMap<String, String>,
    rdma: BTreeMap<String, Fields>,
    ports: BTreeMap<String, Fields>,
    nets: BTreeMap<String, Fields>,
    env: Vec<String>,
    dropped: Vec<String>,
}

fn text(value: &str) -> String {
    value.replace('~', " ").replace('|', "\n")
}

/// Bytes in hexadecimal, and behind `+` how many zeros follow.
fn raw(value: &str) -> Result<(Vec<u8>, usize), String> {
    let (digits, zeros) = value.split_once('+').unwrap_or((value, "0"));
    let pair = |pair: &[u8]| {
        let [high, low] = *pair else { return None };
        let digit = |c: u8| char::from(c).to_digit(16);
        Some((digit(high)? * 16 + digit(low)?) as u8)
    };
    let bytes = digits.as_bytes().chunks(2).map(pair).collect::<Option<Vec<_>>>();
    let zeros = zeros.parse().ok().filter(|&zeros| zeros <= MAX_ZEROS);
    bytes.zip(zeros).ok_or_else(|| format!("bytes: no hexadecimal: {}", short(value)))
}

fn fields<'a>(words: impl Iterator<Item = &'a str>) -> Result<Fields, String> {
    let pair = |word: &'a str| {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("{word}: no ="))?;
        Ok((key.to_owned(), text(value)))
    };
    words.map(pair).collect()
}

fn add<'a>(
    to: &mut BTreeMap<String, Fields>,
    mut words: impl Iterator<Item = &'a str>,
) -> Result<(), String> {
    let name = words.next().ok_or("no name")?.to_owned();
    to.entry(name).or_default().extend(fields(words)?);
    Ok(())
}

impl Packed {
    /// Reads a text.
    ///
    /// # Errors
    /// One line for what is none, with the number of its line.
    pub fn read(path: &Path) -> Result<Self, String> {
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut own = Self { folder, ..Self::default() };
        own.add(path)?;
        match own.statements {
            0 => Err(format!("{}: no statement of a machine in it", path.display())),
            _ => Ok(own),
        }
    }

    fn add(&mut self, path: &Path) -> Result<(), String> {
        self.inputs.push(path.to_owned());
        let at = path.display();
        let bytes = input::read(path, MAX_BYTES).map_err(|e| format!("{at}: {e}"))?;
        let all = String::from_utf8(bytes)
            .map_err(|_| format!("{at}: neither a directory nor a text of statements"))?;
        for (nth, line) in all.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // What is wrong with a base says itself where.
            let placed = |what: String| match line.starts_with("base ") && what.contains(".machine")
            {
                true => what,
                false => format!("{at}, line {}: {}", nth + 1, short(&what)),
            };
            self.statement(line).map_err(placed)?;
        }
        Ok(())
    }

    /// Adds one statement.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn statement(&mut self, line: &str) -> Result<(), String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split_whitespace();
        let halves =
            |by: &str| rest.split_once(by).ok_or_else(|| format!("{word}: no {by:?} in it"));
        self.statements += 1;
        self.fields += 1;
        if ["pci", "rdma", "port", "net", "dev"].contains(&word) {
            self.fields += words.clone().count();
            if words.clone().any(|word| word.len() > MAX_NAME) {
                return Err(format!("{word}: a field longer than {MAX_NAME} B"));
            }
        }
        if self.fields > MAX_FIELDS {
            return Err(format!("more than {MAX_FIELDS} statements and fields"));
        }
        match word {
            "what" => self.what = rest.into(),
            "source" => self.source = rest.into(),
            "base" => self.base(rest)?,
            "expect" => {
                let (check, severity) =
                    words.next().zip(words.next()).ok_or("expect: two words")?;
                let found = words.collect::<Vec<_>>().join(" ");
                self.expected.push((check.into(), severity.into(), found));
            }
            "file" => {
                let (path, value) = halves(" = ")?;
                self.file(path, &text(value));
            }
            "bytes" => {
                let (path, value) = halves(" = ")?;
                self.raw.insert(path.into(), raw(value)?);
            }
            "link" => {
                let (path, target) = halves(" -> ")?;
                self.links.insert(path.into(), target.into());
            }
            "drop" if self.dropped.len() == MAX_DROPPED => {
                return Err(format!("drop: more than {MAX_DROPPED}"));
            }
            "drop" => self.dropped.push(rest.into()),
            "env" => self.env.push(rest.into()),
            "kernel" => self.file("proc/sys/kernel/osrelease", rest),
            "cmdline" => self.file("proc/cmdline", rest),
            "cpu" => self.file("proc/cpuinfo", &format!("processor\t: 0\nmodel name\t: {rest}")),
            "modules" => {
                let lines: Vec<_> = words.map(|m| format!("{m} 16384 0 - Live 0x0")).collect();
                self.file("proc/modules", &lines.join("\n"));
            }
            "memlock" => self.file(
                "proc/self/limits",
                &format!(
                    "Limit  Soft Limit  Hard Limit  Units\nMax locked \
             memory         {rest}            {rest}            bytes"
                ),
            ),
            "capabilities" => {
                self.file("proc/self/status", &format!("Name:\tbash\nCapEff:\t{rest}"))
            }
            "shm" => {
                self.file("proc/self/mounts", &format!("tmpfs /dev/shm tmpfs rw,nosuid{rest} 0 0"))
            }
            "nvidia" => self.nvidia(rest)?,
            "gpu" => {
                let (address, model) = halves(" ")?;
                self.gpus.insert(address.to_owned(), model.to_owned());
            }
            "dev" => words.for_each(|name| self.file(&format!("dev/{name}"), "")),
            "node" => self.node(rest)?,
            "pci" => {
                let place = words.next().ok_or("pci: no function")?;
                let address = place.rsplit('/').next().unwrap_or(place).to_owned();
                if place.contains('/') {
                    self.places.insert(address.clone(), place.into());
                }
                self.pci.entry(address).or_default().extend(fields(words)?);
                if self.pci.len() > MAX_FUNCTIONS {
                    return Err(format!("more than {MAX_FUNCTIONS} PCI functions"));
                }
            }
            "rdma" => add(&mut self.rdma, words)?,
            "port" => add(&mut self.ports, words)?,
            "net" => add(&mut self.nets, words)?,
            _ => return Err(format!("{word}: no such statement")),
        }
        Ok(())
    }

    /// Another machine of the same folder, to which the rest adds.
    fn base(&mut self, name: &str) -> Result<(), String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(format!("base {name}: no name of a machine in the same folder"));
        }
        self.depth += 1;
        if self.depth > MAX_BASES {
            return Err(format!("base {name}: more than {MAX_BASES}, each of the next"));
        }
        // What it is and where it comes from is its own.
        let own = (self.what.clone(), self.source.clone());
        let path = self.folder.join(format!("{name}.machine"));
        self.add(&path)?;
        (self.what, self.source) = own;
        self.expected.clear();
        Ok(())
    }

    fn file(&mut self, path: &str, content: &str) {
        self.files.insert(path.into(), format!("{content}\n"));
    }

    fn nvidia(&mut self, rest: &str) -> Result<(), String> {
        let mut words = rest.split_whitespace();
        let (kind, version) = words.next().zip(words.next()).ok_or("nvidia: kind and version")?;
        let module = match kind {
            "open" => {
                format!("NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build")
            }
            _ => format!("NVIDIA UNIX x86_64 Kernel Module  {version}  Wed Mar 22 2023"),
        };
        let lines = format!("NVRM version: {module}\nGCC version:  gcc version 11.4.0");
        self.file("proc/driver/nvidia/version", &lines);
        let dwords = words.collect::<Vec<_>>().join(" ");
        let params =
            format!("EnableStreamMemOPs: 0\nRegistryDwords: \"{dwords}\"\nDmaRemapPeerMmio: 1");
        self.file("proc/driver/nvidia/params", &params);
        Ok(())
    }

    fn node(&mut self, rest: &str) -> Result<(), String> {
        let (number, rest) = rest.split_once(' ').ok_or("node: its number, and more")?;
        let own = fields(rest.split_whitespace())?;
        let get = |key: &str| own.get(key).ok_or_else(|| format!("node {number}: no {key}"));
        let dir = format!("sys/devices/system/node/node{number}");
        let (cpus, distance, package) = (get("cpulist")?, get("distance")?, get("package")?);
        self.file(&format!("{dir}/cpulist"), cpus);
        self.file(&format!("{dir}/distance"), &distance.replace(',', " "));
        let first = cpus.split('-').next().unwrap_or(cpus);
        self.file(
            &format!("sys/devices/system/cpu/cpu{first}/topology/physical_package_id"),
            package,
        );
        Ok(())
    }

    /// Writes the tree below `root`, a new folder.
    ///
    /// # Errors
    /// What cannot be written, or must not.
    #[allow(dead_code, reason = "the tests make folders")]
    pub fn write(&self, root: &Path) -> Result<(), String> {
        self.tree()?.write(root)
    }

    /// Its files and links, all of them in the folder.
    fn tree(&self) -> Result<Tree, String> {
        let Tree { mut files, mut links, bytes } = self.expanded()?;
        for start in &self.dropped {
            leave_out(&mut files, start);
            leave_out(&mut links, start);
        }
        let is_there = |name: &str| files.contains_key(name) || links.contains_key(name);
        for name in files.keys().chain(links.keys()) {
            if !is_inside(name) {
                return Err(format!("{}: no name of a file in a machine", short(name)));
            }
            for (end, _) in name.match_indices('/') {
                if is_there(&name[..end]) {
                    let above = short(&name[..end]);
                    return Err(format!("{}: {above} is no folder", short(name)));
                }
            }
        }
        for (name, target) in &links {
            if files.contains_key(name) {
                return Err(format!("{}: a file and a link", short(name)));
            }
            if !stays(name, target) {
                let (name, target) = (short(name), short(target));
                return Err(format!("link {name} -> {target}: it leads out of the machine"));
            }
        }
        Ok(Tree { files, links, bytes })
    }
}

/// Removes what begins so.
fn leave_out<T>(from: &mut BTreeMap<String, T>, start: &str) {
    let all = from.range::<str, _>((Bound::Included(start), Bound::Unbounded));
    let names = all.map(|(name, _)| name).take_while(|name| name.starts_with(start));
    for name in names.cloned().collect::<Vec<_>>() {
        from.remove(&name);
    }
}

impl Tree {
    fn write(&self, root: &Path) -> Result<(), String> {
        let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
        let place = |name: &str| {
            let path = root.join(name);
            let folder = path.parent().unwrap_or(root);
            fs::create_dir_all(folder).map_err(|e| failed(folder, e)).map(|()| path.clone())
        };
        for name in ["proc/-", "sys/-"] {
            place(name)?;
        }
        for (name, content) in &self.files {
            let path = place(name)?;
            let written = File::create_new(&path).and_then(|mut file| file.write_all(content));
            written.map_err(|e| failed(&path, e))?;
        }
        // Behind the files: none is written by way of a link.
        for (name, target) in &self.links {
            let path = place(name)?;
            symlink(target, &path).map_err(|e| failed(&path, e))?;
        }
        Ok(())
    }
}

/// Whether it is a name below a folder, and that of one file alone.
fn is_inside(name: &str) -> bool {
    let mut parts = name.split('/');
    let is_deep = name.matches('/').count() > MAX_FOLDERS;
    let is_plain =
        |part: &str| !part.is_empty() && part != "." && part != ".." && part.len() <= 255;
    name.len() <= MAX_NAME && !is_deep && !name.contains('\0') && parts.all(is_plain)
}

/// Whether a link leads to a place below the same folder, by itself and by way of others.
///
/// It goes up at its begin alone, where its own folders are, none of which is a link. Behind a name, which may be a
/// link, `..` would be above wherever that leads.
fn stays(name: &str, target: &str) -> bool {
    let mut depth = Some(name.matches('/').count());
    let is_short = !target.is_empty() && target.len() <= MAX_NAME && !target.contains('\0');
    is_short
        && Path::new(target).components().all(|part| {
            match part {
                Component::Normal(_) => depth = None,
                Component::ParentDir => match depth {
                    Some(1..) => depth = depth.map(|depth| depth - 1),
                    _ => return false,
                },
                Component::CurDir => {}
                _ => return false,
            }
            true
        })
}

/// A machine that was unpacked to a folder of its own, which goes with this value.
pub struct Unpacked {
    /// The folder.
    pub root: PathBuf,
    /// What the machine is.
    pub what: String,
    /// The texts that say it.
    pub inputs: Vec<PathBuf>,
    /// Removes the folder where this process cannot.
    _guard: Option<Guard>,
}

impl Unpacked {
    /// Reads a text, and writes its files. With a guard nothing stays of them if this process is killed.
    ///
    /// # Errors
    /// One line for what is none, or where there is no room for it.
    pub fn new(path: &Path, guarded: bool) -> Result<Self, String> {
        let packed = Packed::read(path)?;
        let wrong = |what| format!("{}: {what}", path.display());
        let tree = packed.tree().map_err(wrong)?;
        let within = env::temp_dir();
        for nth in 0.. {
            let root = within.join(format!("bellpush-doctor-{}-{nth}", process::id()));
            match DirBuilder::new().mode(0o700).create(&root) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists && nth < 1000 => {}
                Err(e) => return Err(format!("{}: {e}", root.display())),
                Ok(()) => {
                    let (what, inputs) = (packed.what, packed.inputs);
                    let mut own = Self { root, what, inputs, _guard: None };
                    if guarded {
                        let guard = Guard::start(&own.root);
                        own._guard = Some(guard.map_err(|e| format!("no guard: {e}"))?);
                    }
                    tree.write(&own.root).map_err(wrong)?;
                    return Ok(own);
                }
            }
        }
        unreachable!("the last is an error")
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        // A folder that stays harms nobody.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The machine of this name of tests/fixtures/doctor.
#[cfg(test)]
pub fn machine(name: &str) -> super::machine::Machine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/doctor");
    let unpacked = Unpacked::new(&folder.join(format!("{name}.machine")), false).unwrap();
    let root = super::read::Root::new(&unpacked.root, std::sync::Arc::default()).unwrap();
    super::machine::Machine::read(&root, false)
}
