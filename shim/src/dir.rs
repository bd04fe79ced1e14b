//! Directories that files are written into: this user's alone.
//!
//! Temporary directories have predictable names, and others may have been there first. So what is
//! to be written into is opened, looked at, and written into by its descriptor: nothing that others
//! plant is ever beneath a directory which they cannot write.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use bellpush_mem::hidden::Hidden;

use crate::real;

/// A directory of this user's, which nobody else can write. The program's other threads do not close
/// it, nor what is written there: paths and bytes of ours would go where the program's own lead.
pub struct Dir(Hidden<OwnedFd>);

/// A file that was written. Whatever has its name by now, it is this one that is opened here.
pub struct Written {
    _file: Hidden<File>,
    path: CString,
}

impl Written {
    /// Leads to the file for as long as this is there.
    pub fn path(&self) -> &CStr {
        &self.path
    }
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// # Safety
/// As `openat`.
unsafe fn open(dir: RawFd, path: &CStr, flags: i32, mode: libc::mode_t) -> io::Result<File> {
    // SAFETY: a C string; as the caller promises.
    let fd = unsafe { real::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC, mode) };
    // SAFETY: a new descriptor that nobody else has.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { File::from_raw_fd(fd) }) }
}

/// Makes a directory for this user alone, where nothing is.
pub fn make(path: &CStr) -> io::Result<()> {
    // SAFETY: a C string.
    done(unsafe { libc::mkdir(path.as_ptr(), 0o700) })
}

impl Dir {
    /// Opens a directory; with `follow` also by a link to it.
    ///
    /// # Errors
    /// `EPERM` when it is another's, or others may write there.
    pub fn open(path: &CStr, follow: bool) -> io::Result<Self> {
        let nofollow = if follow { 0 } else { libc::O_NOFOLLOW };
        // SAFETY: opens for reading alone.
        let dir = unsafe { open(libc::AT_FDCWD, path, libc::O_DIRECTORY | nofollow, 0)? };
        let meta = dir.metadata()?;
        // SAFETY: takes nothing and cannot fail.
        let user = unsafe { libc::geteuid() };
        if meta.uid() != user || meta.mode() & 0o022 != 0 {
            let what = format!("{} is not this user's alone to write", path.to_string_lossy());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(Self(Hidden::new(dir.into())))
    }

    /// Whether there is a directory of that name.
    pub fn has(&self, name: &str) -> bool {
        let Ok(name) = CString::new(name) else { return false };
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        // SAFETY: opens for reading alone.
        unsafe { open(self.0.as_raw_fd(), &name, flags, 0) }.is_ok()
    }

    /// Makes a directory and those above it, as far as they are not there.
    pub fn make(&self, name: &str) -> io::Result<()> {
        let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
        for end in ends {
            let above = CString::new(&name[..end])?;
            // SAFETY: a C string and a descriptor of ours.
            match done(unsafe { libc::mkdirat(self.0.as_raw_fd(), above.as_ptr(), 0o755) }) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes a new file in place of what has the name, which is not followed if it is a link.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<Written> {
        let name = CString::new(name)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        self.unlink(&name);
        // SAFETY: a C string and a descriptor of ours.
        let file = unsafe { Hidden::new(open(self.0.as_raw_fd(), &name, flags, 0o644)?) };
        (&*file).write_all(bytes)?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Written { _file: file, path })
    }

    /// Removes a file, if it is there.
    fn unlink(&self, name: &CStr) {
        // SAFETY: a C string and a descriptor of ours.
        unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), 0) };
    }

    /// Writes a line in place of a file, as a whole: other threads and processes may be reading or replacing it.
    pub fn replace(&self, name: &str, line: &str) -> io::Result<Written> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let scratch = format!(".new-{}-{number}", std::process::id());
        let written = self.write(&scratch, format!("{line}\n").as_bytes());
        let placed = written.and_then(|written| self.rename(&scratch, name).map(|()| written));
        if placed.is_err() {
            self.unlink(&CString::new(scratch)?);
        }
        placed
    }

    /// Makes a link, which is not followed.
    pub fn link(&self, name: &str, to: &str) -> io::Result<()> {
        let (name, to) = (CString::new(name)?, CString::new(to)?);
        // SAFETY: C strings and a descriptor of ours.
        done(unsafe { libc::symlinkat(to.as_ptr(), self.0.as_raw_fd(), name.as_ptr()) })
    }

    /// Moves a file or a directory.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to, fd) = (CString::new(from)?, CString::new(to)?, self.0.as_raw_fd());
        // SAFETY: C strings and a descriptor of ours.
        done(unsafe { libc::renameat(fd, from.as_ptr(), fd, to.as_ptr()) })
    }

    /// Removes a directory and what is in it.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_dir_all(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use bellpush_mem::hidden::is_hidden;

    use super::*;

    #[test]
    fn a_directory_is_not_the_programs_to_close() {
        let folder = std::env::temp_dir().join(format!("bellpush-dir-{}", std::process::id()));
        let path = CString::new(folder.to_str().unwrap()).unwrap();
        make(&path).unwrap();
        let dir = Dir::open(&path, false).unwrap();
        assert!(is_hidden(dir.0.as_raw_fd()));
        dir.write("file", b"text").unwrap();
        assert_eq!(std::fs::read_to_string(folder.join("file")).unwrap(), "text");
        dir.replace("file", "line").unwrap();
        assert!(dir.replace("nowhere/file", "line").is_err());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left there");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
