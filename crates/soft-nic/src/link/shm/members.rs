//! Where the memory of a link with a name is.
//!
//! Whoever maps a file that somebody cuts off is ended by SIGBUS at the next access, and any process of the user may
//! cut off a file that has a name. So a link's packets are in an anonymous file, which is sealed against that
//! (`F_SEAL_SHRINK`, fcntl(2); Linux seals no others). The file with the name has the locks, and a list of the
//! processes that have the memory open; it is read and written by system calls alone. Who comes opens the memory by
//! `/proc/PID/fd/FD` of any of them.
//!
//! The list is hostile: what an entry leads to counts only if it is the file that the entry says, this user's, of a
//! link's size, and sealed. Even to ask a file for its size may take for ever, on a file system that a server answers
//! for; its name is asked for first, which the kernel has by itself.

use std::ffi::CStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::table::LINK_BYTES;
use crate::link::LinkError;
use bellpush_mem::HostMem;

/// "bellpush", and the version of the list.
const MAGIC: [u8; 8] = *b"bellpsh3";
/// Entries of the list at most. Processes beyond are on the link as well, but nobody asks them for its memory.
const MOST: usize = 64;
/// Process, descriptor, inode, device.
const ENTRY_BYTES: usize = 24;
const LIST_BYTES: usize = MAGIC.len() + MOST * ENTRY_BYTES;

/// The memory's name, and what `/proc/PID/fd/FD` says of it (proc_pid_fd(5), memfd_create(2)).
const NAME: &CStr = c"bellpush-link";
const SHOWN: &str = "/memfd:bellpush-link (deleted)";

/// A new link's memory.
pub(super) fn make() -> Result<File, LinkError> {
    HostMem::sealed_file(NAME, LINK_BYTES)
        .map_err(|source| LinkError::System { call: "memory of a shared link", source })
}

/// One who has the memory open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    process: u32,
    descriptor: u32,
    inode: u64,
    device: u64,
}

impl Entry {
    /// This process.
    fn own(memory: &File) -> io::Result<Self> {
        let meta = memory.metadata()?;
        let descriptor = memory.as_raw_fd() as u32; // an open one is not negative
        Ok(Self { process: std::process::id(), descriptor, inode: meta.ino(), device: meta.dev() })
    }

    fn bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..4].copy_from_slice(&self.process.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.descriptor.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.inode.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.device.to_ne_bytes());
        bytes
    }

    fn of(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        Self { process: word(0), descriptor: word(4), inode: long(8), device: long(16) }
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", self.process, self.descriptor).into()
    }

    /// Whether it says so of a file, and the file can be a link's memory.
    fn is(&self, meta: &Metadata) -> bool {
        let user = nix::unistd::geteuid().as_raw();
        (meta.ino(), meta.dev()) == (self.inode, self.device)
            && meta.is_file()
            && meta.uid() == user
            && meta.len() == LINK_BYTES as u64
    }

    /// Whether the process still has the memory open.
    fn is_there(&self) -> bool {
        let path = self.path();
        std::fs::read_link(&path).is_ok_and(|shown| shown == Path::new(SHOWN))
            && std::fs::metadata(&path).is_ok_and(|meta| self.is(&meta))
    }

    /// The memory, if it is still there and this process may have it. That it is sealed is seen when it is mapped.
    fn open(&self) -> Option<File> {
        if !self.is_there() {
            return None; // nothing is opened that is something else
        }
        let mut open = OpenOptions::new();
        open.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = open.open(self.path()).ok()?;
        file.metadata().is_ok_and(|meta| self.is(&meta)).then_some(file)
    }
}

/// The entries of a list; `None` if it is none.
fn entries(list: &File) -> io::Result<Option<Vec<Entry>>> {
    let mut bytes = [0; LIST_BYTES];
    let mut have = 0;
    while have < LIST_BYTES {
        match list.read_at(&mut bytes[have..], have as u64)? {
            0 => break,
            more => have += more,
        }
    }
    if have < MAGIC.len() || bytes[..MAGIC.len()] != MAGIC {
        return Ok(None);
    }
    let (all, _) = bytes[MAGIC.len()..have].as_chunks();
    Ok(Some(all.iter().map(Entry::of).collect()))
}

/// The memory of the link whose list this is, by one of those who have it open; under the table's lock.
///
/// # Errors
/// [`LinkError::Foreign`] for what is no list, [`LinkError::Unreachable`], [`LinkError::System`].
pub(super) fn find(list: &File, path: &str) -> Result<File, LinkError> {
    let all = entries(list)
        .map_err(|source| LinkError::System { call: "read of a shared link's list", source })?;
    let all = all.ok_or_else(|| LinkError::Foreign { path: path.into() })?;
    all.iter().find_map(Entry::open).ok_or_else(|| LinkError::Unreachable { path: path.into() })
}

/// Enters this process into the list, which is made if `is_new`; under the table's lock.
///
/// # Errors
/// [`LinkError::System`].
pub(super) fn enter(list: &File, memory: &File, is_new: bool) -> Result<(), LinkError> {
    let enter = || {
        let own = Entry::own(memory)?;
        if is_new {
            // Left by processes that died: anything may be in it.
            list.set_len(0)?;
            list.write_all_at(&MAGIC, 0)?;
        }
        let all = entries(list)?.unwrap_or_default();
        let free = all.iter().position(|entry| *entry == own || !entry.is_there());
        let at = free.unwrap_or(all.len());
        if at < MOST {
            list.write_all_at(&own.bytes(), (MAGIC.len() + at * ENTRY_BYTES) as u64)?;
        }
        Ok(())
    };
    enter().map_err(|source| LinkError::System {
        call: "list of a shared link in /dev/shm (a container's --shm-size)",
        source,
    })
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::MFdFlags;

    use super::*;

    fn list(entries: &[Entry]) -> File {
        let list = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = entries.iter().flat_map(Entry::bytes).collect();
        list.write_all_at(&[&MAGIC, &*bytes].concat(), 0).unwrap();
        list
    }

    fn finds(list: &File) -> Result<u64, LinkError> {
        find(list, "LINK").map(|file| file.metadata().unwrap().ino())
    }

    #[test]
    fn the_memory_is_found_by_those_who_have_it_open() {
        let (memory, list) = (make().unwrap(), tempfile::tempfile().unwrap());
        assert!(matches!(finds(&list), Err(LinkError::Foreign { .. })));
        enter(&list, &memory, true).unwrap();
        let inode = memory.metadata().unwrap().ino();
        assert_eq!(finds(&list).unwrap(), inode);
        let second = find(&list, "LINK").unwrap();
        enter(&list, &second, false).unwrap();
        drop(memory);
        assert_eq!(finds(&list).unwrap(), inode);
        let third = find(&list, "LINK").unwrap();
        enter(&list, &third, false).unwrap();
        assert_eq!(entries(&list).unwrap().unwrap().len(), 2, "a place that is free is used");
        drop((second, third));
        assert!(matches!(finds(&list), Err(LinkError::Unreachable { .. })));
    }

    #[test]
    fn entries_that_lead_elsewhere_are_not_followed() {
        let memory = make().unwrap();
        let own = Entry::own(&memory).unwrap();
        let small = HostMem::sealed_file(NAME, 4096).unwrap();
        let other = HostMem::sealed_file(c"other", LINK_BYTES).unwrap();
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(LINK_BYTES as u64).unwrap();
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let wrong = [
            Entry { process: u32::MAX, ..own },
            Entry { descriptor: u32::MAX, ..own },
            Entry { inode: own.inode ^ 1, ..own },
            Entry { device: own.device ^ 1, ..own },
            Entry::own(&small).unwrap(),
            Entry::own(&other).unwrap(),
            Entry::own(&plain).unwrap(),
            Entry::own(&null).unwrap(),
        ];
        for entry in wrong {
            assert!(matches!(finds(&list(&[entry])), Err(LinkError::Unreachable { .. })));
        }
        assert_eq!(finds(&list(&[&wrong[..], &[own]].concat())).unwrap(), own.inode);
        // Neither half an entry nor a list that has no end is read beyond.
        let long = list(&[wrong[0]; MOST]);
        long.write_all_at(&own.bytes(), LIST_BYTES as u64).unwrap();
        assert!(matches!(finds(&long), Err(LinkError::Unreachable { .. })));
        enter(&long, &memory, false).unwrap();
        assert_eq!(finds(&long).unwrap(), own.inode);
        let half = list(&[own]);
        half.set_len(MAGIC.len() as u64 + 20).unwrap();
        assert!(matches!(finds(&half), Err(LinkError::Unreachable { .. })));
    }

    #[test]
    fn memory_that_is_not_sealed_is_not_mapped() {
        let made = nix::sys::memfd::memfd_create("bellpush-link", MFdFlags::MFD_CLOEXEC);
        let memory = File::from(made.unwrap());
        memory.set_len(LINK_BYTES as u64).unwrap();
        let found = find(&list(&[Entry::own(&memory).unwrap()]), "LINK").unwrap();
        let refused = HostMem::shared(&found, LINK_BYTES).unwrap_err();
        assert!(matches!(refused, bellpush_mem::MemError::Unsealed), "{refused}");
    }
}
