//! A shared link's memory: who makes it, who finds it, who joins it.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;

use super::lock::{self, PATIENCE, TableLock};
use super::ring::RING_BYTES;
use super::table::{LINK_BYTES, PORTS, Table};
use super::{ShmLink, members};
use crate::link::LinkError;
use bellpush_mem::hidden::Hidden;
use bellpush_mem::{HostMem, PAGE_BYTES, View};

/// What a link's addresses are taken from when none is given.
const FREE_RANGE: &str = "127.0.0.1 to 127.0.0.254";
/// How often a link's file that vanished while it was opened is opened again.
const OPEN_TRIES: usize = 100;
/// How long to wait before somebody who may be ending is asked for the link's memory again.
const PAUSE: Duration = Duration::from_millis(1);
/// How often a call is made at most that signals interrupt.
const INTERRUPTIONS: usize = 1000;

/// A link that NICs of this machine can be on, and the memory behind it.
#[derive(Clone)]
pub struct ShmNet(Arc<Net>);

pub(super) struct Net {
    pub(super) table: Table,
    /// Where the file lies, unless it has no name.
    pub(super) path: Option<PathBuf>,
    pub(super) icrc: bool,
    /// Has the locks.
    file: Hidden<File>,
    /// The memory, for those who come; it is what has the locks where the link has no name.
    memory: Option<Hidden<File>>,
    /// Whose locks those are: the child of a fork has the same open files, and is not on the link.
    process: u32,
}

fn system(call: &'static str) -> impl Fn(io::Error) -> LinkError {
    move |source| LinkError::System { call, source }
}

impl ShmNet {
    /// A link of this process alone. With `icrc`, packets have one, for links that corrupt.
    ///
    /// # Errors
    /// [`LinkError::System`] and [`LinkError::Memory`].
    pub fn anonymous(icrc: bool) -> Result<Self, LinkError> {
        let file = members::make()?;
        let (table, process) = (map(&file)?, std::process::id());
        let net = Net { table, path: None, icrc, file: Hidden::new(file), memory: None, process };
        net.table.format(icrc)?;
        Ok(Self(net.into()))
    }

    /// The link of this name, shared with other processes of this user; made when it is not there,
    /// removed when the last has left.
    ///
    /// # Errors
    /// [`LinkError::Name`], [`LinkError::Foreign`] when what has the name is something else,
    /// [`LinkError::Unreachable`] after a second, [`LinkError::OtherIcrc`], [`LinkError::System`],
    /// [`LinkError::Memory`].
    pub fn named(name: &str, icrc: bool) -> Result<Self, LinkError> {
        let fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 100 || !name.chars().all(fine) {
            return Err(LinkError::Name { name: name.into() });
        }
        let user = nix::unistd::geteuid();
        let path = PathBuf::from(format!("/dev/shm/bellpush-{user}-{name}"));
        let (start, mut vanished) = (Instant::now(), 0);
        loop {
            match Self::named_now(&path, icrc) {
                Ok(Some(net)) => return Ok(net),
                Ok(None) if vanished < OPEN_TRIES => vanished += 1,
                Ok(None) => {
                    let source = io::ErrorKind::TimedOut.into();
                    return Err(LinkError::System { call: "open of a shared link", source });
                }
                // The descriptors of a process that ends are gone before its locks are.
                Err(LinkError::Unreachable { .. }) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(PAUSE);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// The link whose file lies there; `None` if that has lost its name meanwhile.
    fn named_now(path: &Path, icrc: bool) -> Result<Option<Self>, LinkError> {
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false);
        open.mode(0o600).custom_flags(libc::O_NOFOLLOW);
        // Kept before it has a lock, which the child of a fork by another thread would have as well.
        let file = Hidden::make(|| open.open(path)).map_err(system("open of a shared link"))?;
        let lock = TableLock::take(&file)?;
        let meta = file.metadata().map_err(system("stat of a shared link"))?;
        // The last to leave removes the file: whoever opened it just then has a file without
        // a name.
        if !has_name(&file, path) {
            return Ok(None);
        }
        let name = || path.display().to_string();
        if meta.uid() != nix::unistd::geteuid().as_raw() || !meta.is_file() {
            return Err(LinkError::Foreign { path: name() });
        }
        let alone = lock::be_alone(&file);
        // Nobody else would remove what could not be made.
        let (memory, table) = join(&file, &name(), icrc, alone)
            .inspect_err(|_| drop(alone.then(|| std::fs::remove_file(path))))?;
        lock::be_present(&file)?;
        drop(lock);
        file.is_watched();
        let (path, process) = (Some(path.into()), std::process::id());
        Ok(Some(Self(Net { table, path, icrc, file, memory: Some(memory), process }.into())))
    }

    /// Takes the link's name away: who is on it stays, and nobody comes. So nothing is left of it even where all its
    /// processes are killed.
    pub fn unname(&self) {
        if !self.0.is_here() {
            return;
        }
        let Ok(_lock) = TableLock::take(&self.0.file) else { return };
        self.0.remove();
    }

    /// Removes this user's links whose names begin so and that nobody is on: those of processes that were killed before
    /// they could take the name away.
    pub fn sweep(prefix: &str) {
        let begin = format!("bellpush-{}-{prefix}", nix::unistd::geteuid());
        let Ok(folder) = std::fs::read_dir("/dev/shm") else { return };
        for entry in folder.flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(&begin)) {
                remove_unused(&entry.path());
            }
        }
    }

    /// Puts a NIC with this address on the link.
    ///
    /// # Errors
    /// [`LinkError::InUse`], [`LinkError::Full`], [`LinkError::System`], [`LinkError::Memory`].
    pub fn attach(&self, addr: IpAddr) -> Result<ShmLink, LinkError> {
        self.attach_to(|taken| {
            if taken.contains(&addr) { Err(LinkError::InUse { addr }) } else { Ok(addr) }
        })
    }

    /// Puts a NIC with the first free address of 127.0.0.x on the link.
    ///
    /// # Errors
    /// As [`ShmNet::attach`].
    pub fn attach_free(&self) -> Result<ShmLink, LinkError> {
        self.attach_to(|taken| {
            let mut all = (1..255).map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
            let free = all.find(|addr| !taken.contains(addr));
            free.ok_or(LinkError::NoneFree { range: FREE_RANGE })
        })
    }

    fn attach_to(
        &self,
        choose: impl FnOnce(&[IpAddr]) -> Result<IpAddr, LinkError>,
    ) -> Result<ShmLink, LinkError> {
        // An open file of the link's own, because locks belong to one.
        let path = format!("/proc/self/fd/{}", self.0.file.as_raw_fd());
        // As in `named_now`.
        let file = Hidden::make(|| OpenOptions::new().read(true).write(true).open(path))
            .map_err(system("open of a shared link"))?;
        file.is_watched();
        let table = &self.0.table;
        let lock = TableLock::take(&file)?;
        let mut free = None;
        let (mut taken, mut held) = (Vec::new(), Vec::new());
        for port in 0..PORTS {
            if !lock::is_held(&file, port)? {
                free = free.or(Some(port));
                if table.port(port)?.is_some() {
                    table.strike(port)?; // its holder died
                }
            } else if let Some(holder) = table.port(port)? {
                taken.push(holder.addr);
                held.push(port);
            }
        }
        let addr = choose(&taken)?;
        let port = free.ok_or(LinkError::Full { ports: PORTS })?;
        for other in held.into_iter().chain([port]) {
            for at in [Table::ring_at(port, other), Table::ring_at(other, port)] {
                reserve(self.0.memory(), at, RING_BYTES)?;
            }
        }
        lock::hold_port(&file, port)?;
        let me = table.enter(port, addr)?;
        drop(lock);
        ShmLink::new(self.0.clone(), file, port, me)
    }
}

/// The memory of the link that has this file: new if nobody else is there, and theirs else.
fn join(
    file: &File,
    path: &str,
    icrc: bool,
    alone: bool,
) -> Result<(Hidden<File>, Table), LinkError> {
    let memory = Hidden::make(|| if alone { members::make() } else { members::find(file, path) })?;
    memory.is_watched();
    if alone {
        reserve(&memory, 0, PAGE_BYTES)?;
    }
    let table = map(&memory)?;
    if alone {
        table.format(icrc)?;
    }
    match table.icrc()? {
        None => return Err(LinkError::Foreign { path: path.into() }),
        Some(theirs) if theirs != icrc => {
            return Err(LinkError::OtherIcrc { path: path.into(), icrc: theirs });
        }
        Some(_) => {}
    }
    members::enter(file, &memory, alone)?;
    Ok((memory, table))
}

/// The file has holes where nobody has written, and a store for which there is no memory would end the process.
fn reserve(file: &File, at: usize, bytes: usize) -> Result<(), LinkError> {
    uninterrupted(|| posix_fallocate(file, at as i64, bytes as i64))
        .map_err(|errno| system("reservation of a shared link's memory")(errno.into()))
}

/// Makes a call again that a signal has interrupted: Linux ends the reservation of memory for any (before 6.10 and its
/// stable releases of 2024), whatever the signal's handler says.
fn uninterrupted(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let mut tries = std::iter::repeat_with(&mut call).take(INTERRUPTIONS);
    tries.find(|done| *done != Err(Errno::EINTR)).unwrap_or(Err(Errno::EINTR))
}

fn map(file: &File) -> Result<Table, LinkError> {
    let memory = HostMem::shared(file, LINK_BYTES)?;
    Ok(Table::new(View::new(&memory, 0, LINK_BYTES)?))
}

/// Whether a file has this name.
fn has_name(file: &File, path: &Path) -> bool {
    let id = |meta: Metadata| (meta.dev(), meta.ino());
    let named = path.symlink_metadata().map(id);
    matches!((file.metadata().map(id), named), (Ok(ours), Ok(named)) if ours == named)
}

/// Removes a file's name, unless another file has it by now. Under the file's lock, as whoever opens it looks whether it
/// still has its name.
fn remove(file: &File, path: &Path) {
    if has_name(file, path) {
        let _ = std::fs::remove_file(path);
    }
}

/// Whoever has just opened the file, and is not on the link yet, finds that it has no name any more and makes another.
fn remove_unused(path: &Path) {
    let mut open = OpenOptions::new();
    let Ok(file) = open.read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path) else {
        return;
    };
    let Ok(_lock) = TableLock::take(&file) else { return };
    if lock::be_alone(&file) {
        remove(&file, path); // another link may have the name since the file was opened
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if self.path.is_none() || !self.is_here() {
            return;
        }
        // Without the lock (someone holds it for long) the file stays, for the next to use.
        let Ok(_lock) = TableLock::take(&self.file) else { return };
        if lock::be_alone(&self.file) {
            self.remove();
        }
        lock::be_absent(&self.file);
    }
}

impl Net {
    /// Whether this is the process that is on the link.
    pub(super) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    fn memory(&self) -> &File {
        self.memory.as_ref().unwrap_or(&self.file)
    }

    /// As [`remove`].
    fn remove(&self) {
        self.path.iter().for_each(|path| remove(&self.file, path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link's name that no other test has.
    fn name(test: &str) -> (String, PathBuf) {
        let name = format!("unit-{}-{test}", std::process::id());
        let path = format!("/dev/shm/bellpush-{}-{name}", nix::unistd::geteuid());
        (name, path.into())
    }

    fn opened(path: &Path) -> File {
        OpenOptions::new().read(true).write(true).open(path).unwrap()
    }

    #[test]
    fn who_comes_while_the_last_member_ends_waits_for_it() {
        let (name, path) = name("ending");
        let net = ShmNet::named(&name, false).unwrap();
        let left = opened(&path);
        lock::be_present(&left).unwrap();
        // Whoever is killed loses the memory's descriptor first, and then the locks.
        drop(net);
        let start = Instant::now();
        let refused = ShmNet::named(&name, false).err().unwrap();
        assert!(matches!(refused, LinkError::Unreachable { .. }), "{refused}");
        assert!(start.elapsed() < 5 * PATIENCE, "the wait has an end");
        let comes = std::thread::scope(|scope| {
            let comes = scope.spawn(|| ShmNet::named(&name, false).map(drop));
            std::thread::sleep(50 * PAUSE);
            drop(left);
            comes.join().unwrap()
        });
        comes.unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_name_that_is_another_links_by_now_is_not_swept_away() {
        let (name, path) = name("swept");
        std::fs::write(&path, b"of a process that was killed").unwrap();
        let file = opened(&path);
        let lock = TableLock::take(&file).unwrap();
        let opens = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)).count()
        };
        let net = std::thread::scope(|scope| {
            let sweeps = scope.spawn(|| ShmNet::sweep(&name));
            let start = Instant::now();
            while opens() < 2 {
                assert!(start.elapsed() < 10 * PATIENCE, "the file was not opened");
            }
            std::fs::remove_file(&path).unwrap();
            let net = ShmNet::named(&name, false).unwrap();
            drop(lock);
            sweeps.join().unwrap();
            net
        });
        assert!(path.exists(), "a link is there");
        drop(net);
        assert!(!path.exists());
    }

    #[test]
    fn a_call_that_signals_interrupt_is_made_again_and_not_for_ever() {
        let call = |interrupted: usize, then| {
            let mut calls = 0;
            let done = uninterrupted(|| {
                calls += 1;
                if calls > interrupted { then } else { Err(Errno::EINTR) }
            });
            (done, calls)
        };
        assert_eq!(call(0, Ok(())), (Ok(()), 1));
        assert_eq!(call(9, Ok(())), (Ok(()), 10));
        assert_eq!(call(9, Err(Errno::ENOSPC)), (Err(Errno::ENOSPC), 10));
        assert_eq!(call(usize::MAX, Ok(())), (Err(Errno::EINTR), INTERRUPTIONS));
    }

    #[test]
    fn a_copy_in_the_child_of_a_fork_takes_nothing_away() {
        let (name, path) = name("forked");
        // As the child has it, from which the parent's number differs.
        let mut childs = ShmNet::named(&name, false).unwrap();
        Arc::get_mut(&mut childs.0).unwrap().process += 1;
        let link = childs.attach_free().unwrap();
        let port = link.port;
        drop(link);
        assert!(childs.0.table.is_taken(port).unwrap(), "the parent's port");
        childs.unname();
        drop(childs);
        assert!(path.exists(), "the parent's name");
        std::fs::remove_file(&path).unwrap();
    }
}
