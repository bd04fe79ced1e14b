//! The default secret of a job. It is derived from a random secret of the user, which is created
//! once and kept in a file that only the user's processes can read, and from the name of the job.
//! Ranks on one host, or on hosts that share a home, find the same file; others need
//! `BELLPUSH_JOB_SECRET`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Random bytes of the user's secret; the file has two hexadecimal digits for each.
const BYTES: usize = 32;

/// The secret of the job named `job`, for this user.
///
/// # Errors
/// System errors; `PermissionDenied` for a file that others can read or own; `NotFound` for a user
/// without a home.
pub(super) fn of_job(
    var: impl Fn(&str) -> Option<String>,
    job: &str,
) -> Result<String, (PathBuf, io::Error)> {
    let homeless =
        || io::Error::new(io::ErrorKind::NotFound, "neither XDG_STATE_HOME nor HOME is set");
    let path = place(var).ok_or_else(|| (PathBuf::from("a file of the user's"), homeless()))?;
    let users = users(&path).map_err(|e| (path, e))?;
    let mut mac: Hmac<Sha256> =
        Mac::new_from_slice(users.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(job.as_bytes());
    Ok(hex(&mac.finalize().into_bytes()))
}

/// Path `bellpush/job-secret` in the user's directory for state (XDG Base Directory Specification).
fn place(var: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("bellpush/job-secret"))
}

/// The user's secret; the first caller creates it.
fn users(path: &Path) -> io::Result<String> {
    let user = nix::unistd::geteuid().as_raw();
    match read(path, user) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let directory = path.parent().ok_or(io::ErrorKind::NotFound)?;
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut random = [0; BYTES + 8];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let (random, name) = random.split_at(BYTES);
    // Written to a temporary file and linked: a visible file is whole, and of two creators one is
    // first.
    let aside = directory.join(format!("job-secret.{}-{}", std::process::id(), hex(name)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    let linked = file
        .write_all(hex(random).as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&aside, path));
    let _ = fs::remove_file(&aside); // The linked file does not depend on its temporary name.
    match linked {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => read(path, user),
    }
}

fn read(path: &Path, user: u32) -> io::Result<String> {
    // Non-blocking, in case the path is no regular file.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if !about.is_file() {
        return refuse("it is not a file");
    }
    if about.uid() != user {
        return refuse("it is another user's");
    }
    if about.mode() & 0o077 != 0 {
        return refuse("others can read or write it; its mode must be 600");
    }
    let mut text = String::new();
    file.take(2 * BYTES as u64 + 1).read_to_string(&mut text)?;
    if text.len() != 2 * BYTES || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not one of bellpush's"));
    }
    Ok(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn in_state(state: &Path, job: &str) -> Result<String, io::Error> {
        let var = |name: &str| (name == "XDG_STATE_HOME").then(|| state.display().to_string());
        of_job(var, job).map_err(|(path, e)| {
            assert_eq!(path, state.join("bellpush/job-secret"));
            e
        })
    }

    #[test]
    fn all_who_ask_at_once_get_the_same_and_another_job_another() {
        let state = tempfile::tempdir().unwrap();
        let ask = |job: &'static str| in_state(state.path(), job).unwrap();
        let secrets: Vec<String> = std::thread::scope(|s| {
            let askers: Vec<_> = (0..16).map(|_| s.spawn(|| ask("a"))).collect();
            askers.into_iter().map(|asker| asker.join().unwrap()).collect()
        });
        assert!(secrets.iter().all(|secret| *secret == secrets[0] && secret.len() == 64));
        assert_ne!(ask("b"), secrets[0]);
        let left = fs::read_dir(state.path().join("bellpush")).unwrap().count();
        assert_eq!(left, 1, "nothing lies about");
        let other = tempfile::tempdir().unwrap();
        assert_ne!(in_state(other.path(), "a").unwrap(), secrets[0], "another user's");
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_none_is_refused() {
        let state = tempfile::tempdir().unwrap();
        in_state(state.path(), "a").unwrap();
        let file = state.path().join("bellpush/job-secret");
        let refused = read(&file, nix::unistd::geteuid().as_raw() + 1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "another user's: {refused}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = in_state(state.path(), "a").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        for bad in ["", "short", &"x".repeat(64), &"a".repeat(65)] {
            fs::write(&file, bad).unwrap();
            let refused = in_state(state.path(), "a").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{bad}");
        }
    }
}
