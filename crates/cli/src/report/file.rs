//! Files that appear whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::ReportError;

/// Writes a file through a temporary one in the same directory, or writes to stdout for `-`.
///
/// An existing target that is not a regular file (a pipe, `/dev/null`) is written in place: a
/// rename would replace the device by a file.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), ReportError> {
    let io = |source| ReportError::Io { action: "write", path: path.into(), source };
    if path.as_os_str() == "-" {
        let mut out = io::stdout().lock();
        return out.write_all(bytes).and_then(|()| out.flush()).map_err(io);
    }
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Err(io(io::ErrorKind::IsADirectory.into())),
        Ok(meta) if !meta.is_file() => OpenOptions::new()
            .write(true)
            .open(path)
            .and_then(|mut f| f.write_all(bytes))
            .map_err(io),
        // Through a symbolic link, so that the link stays one.
        Ok(_) => fs::canonicalize(path).and_then(|real| replace(&real, bytes)).map_err(io),
        Err(_) => replace(path, bytes).map_err(io),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temp = temporary(path)?;
    let written = (|| {
        let mut file = File::create_new(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temp, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temp); // it may never have been there
    }
    written
}

/// A name beside the target that no other writer uses.
fn temporary(path: &Path) -> io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let nth = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.{nth}.tmp", std::process::id()));
    Ok(path.with_file_name(hidden))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_whole_and_leaves_nothing_beside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn follows_links_and_spares_devices() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("a.json"), dir.path().join("link"));
        write(&path, b"one").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

        let null = dir.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        write(&null, b"gone").unwrap();
        assert!(fs::symlink_metadata(&null).unwrap().is_symlink());
    }

    #[test]
    fn says_what_it_could_not_write() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no/such/r.json");
        let error = write(&missing, b"x").unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("no/such/r.json"), "{error}");
        assert!(write(dir.path(), b"x").unwrap_err().to_string().contains("directory"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
