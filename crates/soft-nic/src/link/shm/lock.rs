//! Locks on bytes of a link's file: the system drops them when a process ends, however it ends.
//!
//! They belong to an open file and not to a process, so that NICs of one process exclude each
//! other as well, each with an open file of its own.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use super::table::PORTS;
use crate::link::LinkError;

/// Held while the table is changed. A port's lock is its number.
const TABLE: usize = PORTS;
/// Shared by all who have the link open.
const PRESENCE: usize = PORTS + 1;
/// How long to try for the table's lock. Changes take microseconds; a process that is stopped in
/// the middle of one holds on.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

fn flock(kind: libc::c_int, byte: usize) -> libc::flock {
    libc::flock {
        l_type: kind as _,
        l_whence: libc::SEEK_SET as _,
        l_start: byte as _,
        l_len: 1,
        l_pid: 0,
    }
}

fn set(file: &File, kind: libc::c_int, byte: usize) -> Result<bool, LinkError> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&flock(kind, byte))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => {
            Err(LinkError::System { call: "lock of a shared link", source: errno.into() })
        }
    }
}

/// As [`set`], of a lock that nobody else has who keeps to the rules.
fn surely(file: &File, kind: libc::c_int, byte: usize) -> Result<(), LinkError> {
    match set(file, kind, byte)? {
        true => Ok(()),
        false => {
            let source = io::ErrorKind::WouldBlock.into();
            Err(LinkError::System { call: "lock of a shared link that nobody should have", source })
        }
    }
}

/// Takes a port that nobody holds, under the table's lock. It is held until it is left, or the process ends.
pub(super) fn hold_port(file: &File, port: usize) -> Result<(), LinkError> {
    surely(file, libc::F_WRLCK, port)
}

/// Gives a port back. Closing the file is not enough: a process that is being spawned has it open,
/// too, for a moment.
pub(super) fn leave_port(file: &File, port: usize) {
    // Fails only for a file that is closed, and then the lock is gone.
    let _ = set(file, libc::F_UNLCK, port);
}

/// Says that the link is not open here any more; explicitly, as [`leave_port`].
pub(super) fn be_absent(file: &File) {
    let _ = set(file, libc::F_UNLCK, PRESENCE);
}

/// Whether another open file holds a port.
pub(super) fn is_held(file: &File, port: usize) -> Result<bool, LinkError> {
    let mut lock = flock(libc::F_WRLCK, port);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|errno| LinkError::System {
        call: "query of a shared link's lock",
        source: errno.into(),
    })?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Says that the link is open here, until the process ends or says otherwise.
pub(super) fn be_present(file: &File) -> Result<(), LinkError> {
    surely(file, libc::F_RDLCK, PRESENCE) // under the table's lock nobody is alone
}

/// Whether nobody else has the link open; if so, nobody else can until `file` is present or closed.
pub(super) fn be_alone(file: &File) -> bool {
    matches!(set(file, libc::F_WRLCK, PRESENCE), Ok(true))
}

/// The right to change the table, as long as it lives.
pub(super) struct TableLock<'a>(&'a File);

impl<'a> TableLock<'a> {
    /// Waits for the lock, but not for long.
    pub(super) fn take(file: &'a File) -> Result<Self, LinkError> {
        let start = Instant::now();
        while !set(file, libc::F_WRLCK, TABLE)? {
            if start.elapsed() > PATIENCE {
                let source = io::ErrorKind::TimedOut.into();
                return Err(LinkError::System { call: "lock of a shared link's table", source });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(Self(file))
    }
}

impl Drop for TableLock<'_> {
    fn drop(&mut self) {
        // Fails only for a file that is closed, and then the lock is gone.
        let _ = set(self.0, libc::F_UNLCK, TABLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_another_has_is_not_taken_for_held() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let [ours, theirs] =
            [(); 2].map(|()| File::options().read(true).write(true).open(file.path()).unwrap());
        hold_port(&theirs, 3).unwrap();
        assert!(is_held(&ours, 3).unwrap() && hold_port(&ours, 3).is_err());
        hold_port(&ours, 4).unwrap();
        assert!(be_alone(&theirs));
        let refused = be_present(&ours).unwrap_err();
        assert!(matches!(refused, LinkError::System { .. }), "{refused}");
        be_absent(&theirs);
        be_present(&ours).unwrap();
        be_present(&theirs).unwrap();
        assert!(!be_alone(&theirs));
    }
}
