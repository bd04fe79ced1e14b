//! The devices' sysfs files, in a directory of their own, and which paths lead there.
//!
//! libibverbs reads them with `openat` relative to directories that it opened, so they are real
//! files. What a kernel would answer anew at each look (GIDs) is asked for by `ioctl`; the files
//! have what is known beforehand.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bellpush_preload::Preload;

use crate::dir::{self, Dir};
use crate::layout::{self, Entry};
use crate::real;

/// What every path that leads to the tree begins with, and where it leads.
const PREFIXES: [(&[u8], &[u8]); 9] = [
    (b"/sys/class/infiniband_verbs", b"/class/infiniband_verbs"),
    (b"/sys/class/infiniband_mad", b"/class/infiniband_mad"),
    (b"/sys/class/infiniband_cm", b"/class/infiniband_cm"),
    (b"/sys/class/infiniband", b"/class/infiniband"),
    (b"/sys/class/misc/rdma_cm", b"/class/misc/rdma_cm"),
    (b"/dev/infiniband", b"/dev/infiniband"),
    // The PCI functions: no machine's own have that domain.
    (b"/sys/devices/pcibe11:00", b"/devices/pcibe11:00"),
    (b"/sys/bus/pci/devices/be11:", b"/bus/pci/devices/be11:"),
    // Libraries look for it before they register GPU memory by its address.
    (b"/sys/module/nvidia_peermem", b"/class/nvidia_peermem"),
];
/// What lists the functions: the machine's own and these. Below it the machine's own are where they always were.
const LIST: (&[u8], &[u8]) = (b"/sys/bus/pci/devices", b"/bus/pci/devices");
const LISTED: &str = "bus/pci/devices";
/// What functions are devices of. By its name programs find the machine's own.
const BUS: (&[u8], &[u8]) = (b"/sys/bus/pci", b"/bus/pci");
const UVERBS: &[u8] = b"/dev/infiniband/uverbs";
const RDMA_CM_PATH: &[u8] = b"/dev/infiniband/rdma_cm";
/// `st_rdev` of the connection manager's device: a miscellaneous one.
pub const RDMA_CM: u64 = libc::makedev(10, 255);

/// What lies in its directory; the last one is there when all is.
const PARTS: [&str; 4] = ["dev", "bus", "devices", "class"];

/// Names that are tried for a directory of this process's own.
const MOST_NAMES: usize = 100;

/// Longest path that is looked at.
pub const PATH_BYTES: usize = 4096;

/// The tree.
pub struct Tree {
    root: CString,
    /// Whether this process made the directory, and removes it when it ends.
    made: AtomicBool,
    /// The process ends: nothing is laid out any more.
    ended: AtomicBool,
}

/// What a path is.
pub enum Target<'a> {
    /// Nothing of ours.
    Foreign,
    /// A file of the tree.
    File(Inside<'a>),
    /// The list of PCI functions, which the machine has as well.
    List(Inside<'a>),
    /// The character device with this index, and the file that stands for it.
    Uverbs(usize, Inside<'a>),
    /// The connection manager's device, and the file that stands for it.
    RdmaCm(Inside<'a>),
}

/// A path below the tree's root, in parts: programs look at paths in signal handlers, with little
/// stack, and nearly all paths are not ours.
pub struct Inside<'a>([&'a [u8]; 3]);

impl Inside<'_> {
    /// Does something with the path. The only place where its bytes take stack.
    #[cold]
    #[inline(never)]
    pub fn with<R>(&self, call: impl FnOnce(&CStr) -> R) -> R {
        let mut to = [0; PATH_BYTES];
        let mut at = 0;
        for part in self.0 {
            to[at..at + part.len()].copy_from_slice(part); // `target` has added them up
            at += part.len();
        }
        call(CStr::from_bytes_until_nul(&to).unwrap_or_default())
    }
}

/// Whether a path begins with a prefix, as a whole name or up to a colon.
fn begins(path: &[u8], prefix: &[u8]) -> bool {
    let ends = prefix.ends_with(b":") || matches!(path.get(prefix.len()), None | Some(b'/'));
    path.starts_with(prefix) && ends
}

/// Whether a path leads to the tree if it is looked up from the root directory.
fn may_begin_at_root(path: &[u8]) -> bool {
    path.starts_with(b"sys/") || path.starts_with(b"dev/")
}

/// Whether a descriptor is the root directory.
fn is_root(dir: c_int) -> bool {
    let of = |found: c_int, stat: libc::stat| (found == 0).then_some((stat.st_dev, stat.st_ino));
    // SAFETY: all zeros are a status; the calls fill it in.
    let (root, other) = unsafe {
        let (mut root, mut other): (libc::stat, libc::stat) = std::mem::zeroed();
        let found = real::fstatat(libc::AT_FDCWD, c"/".as_ptr(), &mut root, 0);
        let known = if dir == libc::AT_FDCWD {
            real::fstatat(dir, c".".as_ptr(), &mut other, 0)
        } else {
            real::fstat(dir, &mut other)
        };
        (of(found, root), of(known, other))
    };
    root.is_some() && root == other
}

impl Tree {
    /// The tree in the directory that the options name, or in one of its own; its files are laid
    /// out where they are not there yet.
    pub fn open(options: &Preload) -> io::Result<Self> {
        let path = |root: &Path| CString::new(root.as_os_str().as_bytes());
        let (root, made, dir) = match &options.sysfs {
            Some(root) => {
                let root = std::path::absolute(root)?;
                DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
                let root = path(&root)?;
                let dir = Dir::open(&root, true)?;
                (root, false, dir)
            }
            None => {
                let name = format!("bellpush-{}", std::process::id());
                let root = std::path::absolute(std::env::temp_dir().join(name))?;
                let (root, dir) = own(path(&root)?)?;
                (root, true, dir)
            }
        };
        if made {
            // Of a process that was killed and had this one's number, perhaps: other devices.
            for part in PARTS {
                let _ = dir.remove(part); // in most cases there is none
            }
        }
        match dir.has("class") {
            true => list_anew(&dir, Path::new(OsStr::from_bytes(root.as_bytes()))),
            false => lay_out(&dir, options)?,
        }
        // As `realpath` has it.
        let root = path(&std::fs::canonicalize(Path::new(OsStr::from_bytes(root.as_bytes())))?)?;
        Ok(Self { root, made: made.into(), ended: false.into() })
    }

    /// The same tree for the child of a fork, which leaves it to its parent.
    pub fn inherited(&self) -> Self {
        Self { root: self.root.clone(), made: false.into(), ended: false.into() }
    }

    /// Lays the files out again if whoever made them has ended and taken them along: a program that
    /// goes on as a child of itself (a daemon) has the devices.
    pub fn stay(&self, options: &Preload) -> io::Result<()> {
        match self.dir() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            found => return found.map(drop),
        }
        if self.ended.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::NotFound.into());
        }
        match dir::make(&self.root) {
            // A child beside this one was quicker.
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            // Before it looks whether the process ends: one of the two removes it.
            _ => self.made.store(true, Ordering::SeqCst),
        }
        let laid_out = lay_out(&self.dir()?, options);
        // The process may have begun to end meanwhile, and nobody comes by any more.
        if self.ended.load(Ordering::SeqCst) {
            self.remove();
            return Err(io::ErrorKind::NotFound.into());
        }
        laid_out
    }

    fn is_made(&self) -> bool {
        self.made.load(Ordering::SeqCst)
    }

    /// What a path is that is looked up from `dir`. Allocates nothing.
    ///
    /// # Safety
    /// `path` is a C string, or null.
    pub unsafe fn target<'a>(&'a self, dir: c_int, path: *const c_char) -> Target<'a> {
        if path.is_null() {
            return Target::Foreign;
        }
        // SAFETY: as the caller promises.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        // hwloc looks all of them up from the root directory, which it has opened.
        let skip = usize::from(may_begin_at_root(path) && is_root(dir));
        let is_list = |prefix: &[u8]| {
            path.strip_prefix(prefix).is_some_and(|rest| rest.iter().all(|&byte| byte == b'/'))
        };
        let listed = is_list(&LIST.0[skip..]).then_some(&LIST);
        let begins = |(prefix, _): &&(&[u8], &[u8])| begins(path, &prefix[skip..]);
        let Some((prefix, inside)) = listed.or_else(|| PREFIXES.iter().find(begins)) else {
            return Target::Foreign;
        };
        let parts = [self.root.as_bytes(), inside, &path[prefix.len() - skip..]];
        if parts.iter().map(|part| part.len()).sum::<usize>() >= PATH_BYTES {
            return Target::Foreign;
        }
        let to = Inside(parts);
        if listed.is_some() {
            return Target::List(to);
        }
        if path == &RDMA_CM_PATH[skip..] {
            return Target::RdmaCm(to);
        }
        let number =
            path.strip_prefix(&UVERBS[skip..]).and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| digits.parse().ok()) {
            Some(index) => Target::Uverbs(index, to),
            None => Target::File(to),
        }
    }

    /// What programs know a canonical path as that leads into the tree.
    pub fn known(&self, canonical: &[u8]) -> Option<CString> {
        let inside = canonical.strip_prefix(self.root.as_bytes())?;
        let mut all = PREFIXES.iter().chain([&BUS]);
        let (prefix, part) = all.find(|(_, part)| begins(inside, part))?;
        let known = [*prefix, &inside[part.len()..]].concat();
        CString::new(known).ok().filter(|known| known.as_bytes().len() < PATH_BYTES)
    }

    /// Its directory, opened.
    pub fn dir(&self) -> io::Result<Dir> {
        Dir::open(&self.root, !self.is_made())
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.root.as_bytes()))
    }

    /// Removes a directory that this process made, as it ends.
    pub fn remove(&self) {
        self.ended.store(true, Ordering::SeqCst); // before it looks; who lays out looks behind that
        if self.is_made() {
            let _ = std::fs::remove_dir_all(self.path()); // nobody is left to be told
        }
    }
}

/// A directory of this process's own, with that name or one like it. Others may have taken the name
/// first; a directory of this user's alone was made by this process before it became another program
/// (`exec`), or by one that was killed.
fn own(name: CString) -> io::Result<(CString, Dir)> {
    for attempt in 0.. {
        let mut root = name.clone().into_bytes();
        if attempt > 0 {
            root.extend_from_slice(format!("-{attempt}").as_bytes());
        }
        let root = CString::new(root)?;
        match dir::make(&root) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        match Dir::open(&root, false) {
            Err(_) if attempt < MOST_NAMES => {}
            opened => return Ok((root, opened?)),
        }
    }
    unreachable!("the last attempt returns")
}

/// Links to what the machine has on its bus, by their names there, and where they lead: the list of all functions has the
/// machine's own, and who goes up from it comes to the bus.
fn on_the_bus() -> Vec<(String, String)> {
    let mut all = Vec::new();
    // By names that do not lead to the tree.
    for (from, to) in [("/sys/bus/./pci", "bus/pci"), ("/sys/bus/./pci/devices", LISTED)] {
        let entries = std::fs::read_dir(from).into_iter().flatten().flatten();
        let link = |entry: std::fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let place = std::fs::canonicalize(entry.path()).ok()?;
            let is_list = from.ends_with("pci") && name == "devices";
            (!is_list)
                .then_some((format!("{to}/{name}"), place.into_os_string().into_string().ok()?))
        };
        all.extend(entries.filter_map(link));
    }
    all
}

/// Functions come and go, and a directory that was laid out stays: its list is made what the machine's is.
fn list_anew(dir: &Dir, root: &Path) {
    for (name, to) in on_the_bus() {
        let _ = dir.link(&name, &to); // another process may have been quicker
    }
    let entries = std::fs::read_dir(root.join(LISTED)).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| std::fs::metadata(entry.path()).is_err()) {
        if let Some(name) = entry.file_name().to_str() {
            let _ = dir.remove(&format!("{LISTED}/{name}")); // so may it here
        }
    }
}

/// Writes the files beside their place and moves them there: of several processes that do, one
/// wins, and none sees half a tree.
fn lay_out(dir: &Dir, options: &Preload) -> io::Result<()> {
    let scratch = format!(".{}", std::process::id());
    let mut entries = layout::common();
    entries.extend(on_the_bus().into_iter().map(|(name, to)| (name, Entry::Link(to))));
    for index in 0..options.devices {
        entries.extend(layout::device(index, options.addresses.get(index).copied()));
    }
    for (name, entry) in entries {
        let path = format!("{scratch}/{name}");
        let (folder, _) = path.rsplit_once('/').expect("below the scratch directory");
        dir.make(folder)?;
        match entry {
            Entry::Text(text) => drop(dir.write(&path, format!("{text}\n").as_bytes())?),
            Entry::Bytes(bytes) => drop(dir.write(&path, &bytes)?),
            Entry::Link(to) => dir.link(&path, &to)?,
        }
    }
    for part in PARTS {
        match dir.rename(&format!("{scratch}/{part}"), part) {
            // Another process was quicker.
            Err(_) if dir.has(part) => {}
            moved => moved?,
        }
    }
    dir.remove(&scratch)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A directory that the options name, which goes with this.
    struct Named(PathBuf);

    impl Drop for Named {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Another thread may still look up a path.
    #[test]
    fn a_tree_that_went_with_its_process_does_not_come_back() {
        let name = format!("bellpush-ended-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let options = Preload::parse("{}").unwrap();
        let path = CString::new(root.as_os_str().as_bytes()).unwrap();
        let tree = Tree { root: path, made: true.into(), ended: false.into() };
        tree.stay(&options).unwrap();
        assert!(root.join("class").exists(), "control: it is laid out");
        tree.remove();
        assert!(tree.stay(&options).is_err());
        assert!(!root.exists());
    }

    #[test]
    fn a_list_that_was_laid_out_before_is_made_what_the_machines_is() {
        let name = format!("bellpush-list-{}", std::process::id());
        let named = Named(std::env::temp_dir().join(name));
        let options = format!(r#"{{"sysfs": "{}"}}"#, named.0.display());
        let options = Preload::parse(&options).unwrap();
        Tree::open(&options).unwrap();
        let list = named.0.join(LISTED);
        let names = || {
            let entries = std::fs::read_dir(&list).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let first = names();
        assert!(first.iter().any(|name| name == "be11:01:00.0"), "{first:?}");
        // A function went, and others came: all that the machine has.
        for name in first.iter().filter(|name| *name != "be11:01:00.0") {
            std::fs::remove_file(list.join(name)).unwrap();
        }
        symlink("/sys/devices/pcigone/0000:ff:1f.7", list.join("0000:ff:1f.7")).unwrap();
        Tree::open(&options).unwrap();
        assert_eq!(names(), first);
    }
}
