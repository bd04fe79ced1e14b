//! How every file that the command is to read is read: bounded, and without waiting for what never comes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// How long a pipe may have nobody who writes it.
const NO_WRITER: Duration = Duration::from_secs(1);
/// How long who writes a pipe may say nothing: a measurement at the other end takes minutes.
const SILENCE: Duration = Duration::from_secs(600);

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The system's.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A folder, a device or a socket.
    #[error("not a regular file; `-` reads standard input")]
    NotRegular,
    /// A pipe whose other end nobody has.
    #[error("not a regular file, but a pipe that nobody writes; `-` reads standard input")]
    NoWriter,
    /// A pipe whose other end somebody has, and does not use.
    #[error("a pipe that says nothing for {} s", SILENCE.as_secs())]
    Silent,
    /// It has more bytes than anything of its kind.
    #[error("more than {0} bytes")]
    Long(u64),
}

/// Reads a regular file, a pipe that somebody writes, or stdin for `-`, of so many bytes at most.
///
/// # Errors
/// [`InputError`].
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, InputError> {
    if path.as_os_str() == "-" {
        return whole(&mut io::stdin().lock(), most);
    }
    // Asked before it is opened: of some devices that alone does something.
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_fifo() {
        return Err(InputError::NotRegular);
    }
    // Who opens a named pipe would wait for its writer.
    let at_once = OFlags::NONBLOCK.bits() as i32;
    let mut file = File::options().read(true).custom_flags(at_once).open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_fifo() {
        true => pipe(&mut file, most),
        false if kind.is_file() => whole(&mut file, most),
        false => Err(InputError::NotRegular),
    }
}

fn whole(from: &mut dyn Read, most: u64) -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(InputError::Long(most)),
        false => Ok(bytes),
    }
}

fn pipe(file: &mut File, most: u64) -> Result<Vec<u8>, InputError> {
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    // What is ready without a byte is at its end: who wrote it wrote nothing.
    let mut was_written = is_ready(file, NO_WRITER)?;
    loop {
        match file.read(&mut piece) {
            // Before its first writer a pipe looks as if it were at its end.
            Ok(0) if !was_written => return Err(InputError::NoWriter),
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if !is_ready(file, SILENCE)? {
                    return Err(InputError::Silent);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
        was_written = true;
        if bytes.len() as u64 > most {
            return Err(InputError::Long(most));
        }
    }
}

/// Whether within a time it has bytes, or lost its last writer.
fn is_ready(file: &File, within: Duration) -> io::Result<bool> {
    let within = Timespec::try_from(within).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&within)) {
        Ok(ready) => Ok(ready > 0),
        // A program that is stopped and goes on is looked at again.
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    fn fifo(dir: &tempfile::TempDir) -> std::path::PathBuf {
        let path = dir.path().join("fifo");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        path
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        for path in [dir.path(), &socket, Path::new("/dev/zero"), Path::new("/dev/null")] {
            let refused = read(path, 10).unwrap_err();
            assert!(matches!(refused, InputError::NotRegular), "{path:?}: {refused}");
        }
        let nowhere = read(&dir.path().join("nowhere"), 10).unwrap_err();
        assert!(matches!(&nowhere, InputError::Io(e) if e.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn a_pipe_without_a_writer_is_refused_soon() {
        let dir = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        let refused = read(&fifo(&dir), 10).unwrap_err();
        assert!(matches!(refused, InputError::NoWriter), "{refused}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    /// A writer may come late, pause, and write nothing.
    #[test]
    fn a_pipe_with_a_writer_is_read_to_its_end() {
        for pieces in [&[][..], &[b"a".as_slice()], &[b"one, ", b"two"], &[&[7; 200_000]]] {
            let dir = tempfile::tempdir().unwrap();
            let path = fifo(&dir);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(50));
                    let mut to = File::options().write(true).open(&path).unwrap();
                    for piece in pieces {
                        std::thread::sleep(Duration::from_millis(50));
                        io::Write::write_all(&mut to, piece).unwrap();
                    }
                });
                assert_eq!(read(&path, 1 << 20).unwrap(), pieces.concat());
            });
        }
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert!(matches!(read(&path, 4).unwrap_err(), InputError::Long(4)));
        let pipe = fifo(&dir);
        std::thread::scope(|scope| {
            // Its reader goes away in the midst.
            scope.spawn(|| fs::write(&pipe, vec![0; 1 << 20]).is_err());
            assert!(matches!(read(&pipe, 1000).unwrap_err(), InputError::Long(1000)));
        });
    }
}
