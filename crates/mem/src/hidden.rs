//! Descriptors of ours among a program's own.
//!
//! A NIC inside of a program has sockets and files there that the program does not know of. A
//! program may close what it did not open, as launchers and daemons do, and whatever it opens next
//! has the number: a NIC that went on would read the program's socket, or write into its file. So
//! each such descriptor is kept here with the identity of its file. The preloaded object, which
//! sees the program's `close`, leaves alone what is kept; and whoever uses a descriptor can see
//! whether it still is what it was.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, RangeInclusive};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Descriptors that can be kept, by number; one beyond (a program with so many open) is not, and
/// still knows whether it is what it was.
const MOST: usize = 1 << 16;

/// Files behind descriptors that are kept; 0 where none is. Read by hooks in signal handlers and
/// between `vfork` and `exec`, so that it is atomics and nothing else.
static KEPT: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// No descriptor above it was ever kept.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);
/// Where descriptors are moved to; 0 leaves them where the system put them.
static FLOOR: AtomicI32 = AtomicI32::new(0);

/// Threads that make or close what is kept, and those that fork.
static AT_WORK: AtomicU32 = AtomicU32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);
/// How long the ones wait for the others, unless those never come to an end.
const FORK_PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(50);

thread_local! {
    /// What [`gather`] is gathering.
    static GATHERED: RefCell<Option<Vec<Mark>>> = const { RefCell::new(None) };
    /// The thread is at work.
    static WORKS: Cell<bool> = const { Cell::new(false) };
}

/// Does what no fork of another thread may come between: making a descriptor and keeping it. The child would have one
/// that it does not know of, and that with a name or a port of the parent's.
pub fn undivided<R>(work: impl FnOnce() -> R) -> R {
    if WORKS.replace(true) {
        return work();
    }
    let at_work = AtWork::new();
    let done = work();
    drop(at_work);
    done
}

struct AtWork;

impl AtWork {
    fn new() -> Self {
        let begin = Instant::now();
        loop {
            // Whoever begins to fork sees this, or is seen.
            AT_WORK.fetch_add(1, Ordering::SeqCst);
            if FORKS.load(Ordering::SeqCst) == 0 || begin.elapsed() > FORK_PATIENCE {
                return Self;
            }
            AT_WORK.fetch_sub(1, Ordering::SeqCst);
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(1, Ordering::SeqCst);
        WORKS.set(false);
    }
}

/// Before a fork (`pthread_atfork`): waits until nobody is at [`undivided`] work, and has nobody begin. A handler of the
/// program's that forks may have interrupted such work of its own thread, for which it does not wait.
pub fn fork_begins() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    let (begin, own) = (Instant::now(), u32::from(WORKS.get()));
    while AT_WORK.load(Ordering::SeqCst) > own && begin.elapsed() < FORK_PATIENCE {
        std::thread::sleep(PAUSE);
    }
}

/// After it, in the parent.
pub fn fork_ends() {
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

/// After it, in the child, which has this thread alone.
pub fn forked() {
    FORKS.store(0, Ordering::SeqCst);
    AT_WORK.store(WORKS.get().into(), Ordering::SeqCst);
}

/// Has descriptors put from this number on, out of the way of programs that count on low ones.
pub fn move_up_to(floor: RawFd) {
    FLOOR.store(floor, Ordering::Relaxed);
}

/// A number for the file behind a descriptor, never 0. By the system call itself: libc's function
/// may be the preloaded object's.
fn file_behind(fd: RawFd) -> Option<u64> {
    // SAFETY: all zeros are a stat; the call writes no more than one.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::syscall(libc::SYS_fstat, fd, &raw mut stat) == 0).then_some(stat)?
    };
    // Inodes of sockets, pipes and memory are of 32 bits, devices' numbers of 20.
    Some((stat.st_ino ^ (stat.st_dev << 40)) | 1 << 63)
}

/// A descriptor, and the file that it stood for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    fd: RawFd,
    file: u64,
}

impl Mark {
    /// Whether the descriptor still stands for its file.
    pub fn is_there(self) -> bool {
        file_behind(self.fd) == Some(self.file)
    }

    fn place(self) -> Option<&'static AtomicU64> {
        KEPT.get(usize::try_from(self.fd).ok()?)
    }
}

/// A file whose descriptor the program does not know of. Where the program has closed it all the
/// same, the number is not closed a second time: it may be somebody else's.
#[derive(Debug)]
pub struct Hidden<F> {
    file: ManuallyDrop<F>,
    mark: Mark,
}

impl<F: AsRawFd + From<OwnedFd> + Into<OwnedFd>> Hidden<F> {
    /// Makes a file and keeps its descriptor. Who [gathers](gather) hears of it by [`Hidden::is_watched`] only: what is
    /// made may not come to be what it is for.
    ///
    /// # Errors
    /// Of what makes it.
    pub fn make<E>(make: impl FnOnce() -> Result<F, E>) -> Result<Self, E> {
        undivided(|| gather(|| make().map(Self::new)).0)
    }

    /// Keeps a file's descriptor.
    pub fn new(file: F) -> Self {
        let file = moved_up(file);
        let fd = file.as_raw_fd();
        // An open descriptor has a file behind it; if not, it is never found to be there.
        let mark = Mark { fd, file: file_behind(fd).unwrap_or(0) };
        if let Some(place) = mark.place() {
            // Relaxed: a program that closes it at this very moment is as one that did so before.
            place.store(mark.file, Ordering::Relaxed);
            HIGHEST.fetch_max(fd, Ordering::Relaxed);
        }
        let kept = Self { file: ManuallyDrop::new(file), mark };
        kept.is_watched();
        kept
    }
}

impl<F> Hidden<F> {
    /// Tells who gathers what this thread keeps.
    pub fn is_watched(&self) {
        // What is made by a handler of the process's end, behind the destructors of the thread's own, nobody gathers.
        let _ = GATHERED.try_with(|gathered| {
            if let Some(gathered) = &mut *gathered.borrow_mut() {
                gathered.push(self.mark);
            }
        });
    }

    /// Whether the descriptor still stands for the file.
    pub fn is_there(&self) -> bool {
        self.mark.is_there()
    }
}

impl<F: AsRawFd> Hidden<F> {
    /// Flags of a network interface (`IFF_UP` and so on), as this socket's network namespace has it.
    ///
    /// Libc's own functions open a socket for each look. A program that closed that meanwhile would be ended by glibc,
    /// which takes what it then reads for somebody else's.
    ///
    /// # Errors
    /// The system's; `ENODEV` where no interface has the name.
    pub fn interface_flags(&self, name: &str) -> io::Result<libc::c_int> {
        // SAFETY: all zeros are a request.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The last byte stays 0; the system's names are shorter.
        let most = request.ifr_name.len() - 1;
        for (to, from) in request.ifr_name[..most].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let fd = self.file.as_raw_fd();
        // By the system call itself, as above.
        // SAFETY: reads the name and writes the flags; what is no socket refuses.
        match unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::SIOCGIFFLAGS, &raw mut request) } {
            // SAFETY: the call has written this field.
            0 => Ok(unsafe { request.ifr_ifru.ifru_flags }.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl<F> Deref for Hidden<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.file
    }
}

impl<F: AsFd> AsFd for Hidden<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<F> Drop for Hidden<F> {
    fn drop(&mut self) {
        undivided(|| {
            let is_there = self.is_there();
            if let Some(place) = self.mark.place() {
                // Another descriptor of ours may have the number by now.
                let (file, relaxed) = (self.mark.file, Ordering::Relaxed);
                let _ = place.compare_exchange(file, 0, relaxed, relaxed);
            }
            if is_there {
                // SAFETY: dropped here alone, and not used after that.
                unsafe { ManuallyDrop::drop(&mut self.file) };
            }
        });
    }
}

/// The file with its descriptor from the floor on; where it is, if there is no room there.
fn moved_up<F: AsRawFd + From<OwnedFd> + Into<OwnedFd>>(file: F) -> F {
    let floor = FLOOR.load(Ordering::Relaxed);
    if floor == 0 {
        return file;
    }
    // Never where standard streams would be: programs move files there.
    for floor in [floor, 3] {
        // SAFETY: the descriptor is open; the call makes another.
        let fd = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, floor) };
        if fd >= 0 {
            // SAFETY: a new descriptor that nobody else has.
            return unsafe { OwnedFd::from_raw_fd(fd) }.into();
        }
    }
    file
}

/// Whether a descriptor is kept, and is what it was. Takes no lock and allocates nothing.
pub fn is_hidden(fd: RawFd) -> bool {
    let place = usize::try_from(fd).ok().and_then(|at| KEPT.get(at));
    let file = place.map_or(0, |place| place.load(Ordering::Relaxed));
    file != 0 && Mark { fd, file }.is_there()
}

/// Descriptors in a range that are kept, in order.
pub fn hidden_in(range: RangeInclusive<RawFd>) -> impl Iterator<Item = RawFd> {
    let last = (*range.end()).min(HIGHEST.load(Ordering::Relaxed));
    ((*range.start()).max(0)..=last).filter(|&fd| is_hidden(fd))
}

/// What this thread begins to keep while it does something.
pub fn gather<R>(work: impl FnOnce() -> R) -> (R, Vec<Mark>) {
    let gathers = |marks| GATHERED.try_with(|gathered| gathered.replace(marks)).ok().flatten();
    let outer = gathers(Some(Vec::new()));
    let result = work();
    (result, gathers(outer).unwrap_or_default())
}

/// In the child of a fork: closes what the parent keeps, which the child would hold open as long
/// as it lives: a port that others want, or a lock. The child's copies of their owners find out.
pub fn close_inherited() {
    for fd in hidden_in(0..=RawFd::MAX) {
        KEPT[fd as usize].store(0, Ordering::Relaxed);
        // SAFETY: a descriptor of ours, which nothing in this process uses: no thread came along.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::{Mutex, mpsc};
    use std::thread;

    use super::*;

    /// Of the tests that hold up forks or work.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// How long something takes on a thread of its own: no more than many times as long as anybody waits.
    fn took(what: &str, work: impl FnOnce() + Send + 'static) -> Duration {
        let (says, hears) = mpsc::channel();
        let begin = Instant::now();
        thread::spawn(move || {
            work();
            says.send(begin.elapsed())
        });
        hears.recv_timeout(20 * FORK_PATIENCE).unwrap_or_else(|_| panic!("{what} does not end"))
    }

    /// A thread within work that is undivided, until the sender goes.
    fn working() -> (mpsc::Sender<()>, thread::JoinHandle<()>) {
        let (ends, waits) = mpsc::channel::<()>();
        let (says, hears) = mpsc::channel();
        let worker = thread::spawn(move || {
            undivided(|| {
                says.send(()).unwrap();
                waits.recv().unwrap_err();
            });
        });
        hears.recv().unwrap();
        (ends, worker)
    }

    /// A file whose number no other test of this process has.
    fn file(number: RawFd) -> File {
        let file = tempfile::tempfile().unwrap();
        // SAFETY: a descriptor of this test's, and a new one that nobody else has.
        unsafe { File::from_raw_fd(libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number)) }
    }

    #[test]
    fn a_descriptor_is_kept_as_long_as_its_file() {
        let (kept, marks) = gather(|| Hidden::new(file(700)));
        let fd = kept.as_raw_fd();
        assert!(is_hidden(fd) && kept.is_there());
        assert_eq!((marks.len(), marks[0].fd), (1, fd));
        assert_eq!(hidden_in(fd..=fd).collect::<Vec<_>>(), [fd]);
        drop(kept);
        assert!(!is_hidden(fd) && hidden_in(fd..=fd).next().is_none());
        assert!(!is_hidden(-1) && !is_hidden(RawFd::MAX));
    }

    #[test]
    fn no_fork_comes_between_making_and_keeping() {
        static WORKED: AtomicU32 = AtomicU32::new(0);
        let _alone = ONE_AT_A_TIME.lock().unwrap();
        let pause = || thread::sleep(FORK_PATIENCE / 20);
        let (says, hears) = mpsc::channel();
        let worker = thread::spawn(move || {
            undivided(|| {
                says.send(()).unwrap();
                pause();
                undivided(|| WORKED.fetch_add(1, Ordering::SeqCst));
            });
            hears_end(&says)
        });
        fn hears_end(says: &mpsc::Sender<()>) {
            says.send(()).unwrap();
            undivided(|| WORKED.fetch_add(1, Ordering::SeqCst));
        }
        hears.recv().unwrap();
        fork_begins();
        assert_eq!(WORKED.load(Ordering::SeqCst), 1, "the fork waits");
        hears.recv().unwrap();
        pause();
        assert_eq!(WORKED.load(Ordering::SeqCst), 1, "who begins waits for the fork");
        fork_ends();
        worker.join().unwrap();
        assert_eq!(WORKED.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_fork_and_work_that_do_not_end_are_not_waited_for_for_ever() {
        let _alone = ONE_AT_A_TIME.lock().unwrap();
        let (ends, worker) = working();
        let waited = took("the fork", fork_begins);
        assert!(waited >= FORK_PATIENCE, "work is waited for: {waited:?}");
        let waited = took("work", || undivided(|| ()));
        assert!(waited >= FORK_PATIENCE, "the fork is waited for: {waited:?}");
        fork_ends();
        drop(ends);
        worker.join().unwrap();
    }

    /// A signal handler that forks may have interrupted it.
    #[test]
    fn a_fork_does_not_wait_for_its_own_thread() {
        let _alone = ONE_AT_A_TIME.lock().unwrap();
        let waited = took("the fork", || undivided(fork_begins));
        fork_ends();
        assert!(waited < FORK_PATIENCE / 2, "{waited:?}");
    }

    #[test]
    fn a_child_waits_for_nobody_of_its_parents() {
        let _alone = ONE_AT_A_TIME.lock().unwrap();
        let (ends, worker) = working();
        FORKS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the child has this thread alone, allocates nothing and ends by itself.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: only says when this process is ended, should it wait for ever.
            unsafe { libc::alarm(20) };
            forked();
            let begin = Instant::now();
            undivided(|| ());
            fork_begins();
            fork_ends();
            let is_soon = begin.elapsed() < FORK_PATIENCE / 2;
            // SAFETY: ends this process, whose parent's destructors are not its own.
            unsafe { libc::_exit(if is_soon { 0 } else { 1 }) };
        }
        fork_ends();
        drop(ends);
        worker.join().unwrap();
        let mut status = 0;
        // SAFETY: a child of this test's, which its alarm ends at the latest; the call writes the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "it waited for who did not come along");
    }

    #[test]
    fn a_socket_that_is_there_tells_of_interfaces() {
        let socket = Hidden::new(std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap());
        let flags = socket.interface_flags("lo").unwrap();
        assert_eq!(flags & (libc::IFF_UP | libc::IFF_LOOPBACK), libc::IFF_UP | libc::IFF_LOOPBACK);
        for none in ["no such one", "a name that is longer than one of an interface"] {
            let refused = socket.interface_flags(none).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENODEV));
        }
        let file = Hidden::new(file(1000));
        assert!(file.interface_flags("lo").is_err());
    }

    #[test]
    fn a_number_that_has_another_file_is_nobodys_to_close() {
        let kept = Hidden::new(file(800));
        let fd = kept.as_raw_fd();
        let mut stranger = file(900);
        // SAFETY: the number is this test's own; `kept` is told apart from what has it now.
        assert_eq!(unsafe { libc::dup2(stranger.as_raw_fd(), fd) }, fd);
        assert!(!kept.is_there() && !is_hidden(fd));
        drop(kept);
        // SAFETY: the descriptor that dup2 made, which is closed when this goes.
        let mut theirs = unsafe { File::from_raw_fd(fd) };
        std::io::Write::write_all(&mut theirs, b"mine").unwrap();
        std::io::Seek::rewind(&mut stranger).unwrap();
        assert_eq!(std::io::read_to_string(&mut stranger).unwrap(), "mine");
    }
}
