//! What `bellpush run` would leave behind when it is killed: its program, and its directory.
//!
//! A process beside it reads from a pipe until nobody can write there any more. If it was not told before that all went
//! well, it ends the program; the directory goes in either case.

use std::ffi::OsStr;
use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cli::CliError;

/// The command's name.
pub const COMMAND: &str = "guard";
/// What `bellpush run` says when its program has ended.
const DONE: &str = "done";
/// How long a program has that is asked to end.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// How long others may keep the directory from being removed.
const LINGER: Duration = Duration::from_secs(10);

/// The process beside `bellpush run`, which ends with this value.
pub struct Guard(Child);

impl Guard {
    /// Starts it, in a group of its own: what ends a terminal's programs, or a whole group, is not for it.
    pub fn start(directory: &Path) -> io::Result<Self> {
        let mut guard = Command::new("/proc/self/exe");
        guard.args([OsStr::new(COMMAND), directory.as_os_str()]).process_group(0);
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(guard.spawn()?))
    }

    /// Says a line. Without a guard there is only nobody to tidy up after a kill.
    fn tell(&self, line: &str) {
        if let Some(mut pipe) = self.0.stdin.as_ref() {
            let _ = writeln!(pipe, "{line}");
        }
    }

    /// Names the program.
    pub fn watch(&self, program: u32) {
        self.tell(&program.to_string());
    }

    /// The program has ended.
    pub fn done(&self) {
        self.tell(DONE);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait(); // killed or not, it is gone
    }
}

#[derive(Debug, clap::Args)]
pub struct GuardArgs {
    /// Directory to remove
    directory: PathBuf,
}

/// The process's own side.
pub fn run(args: &GuardArgs) -> Result<ExitCode, CliError> {
    let mut lines = io::stdin().lock().lines().map_while(Result::ok);
    let number = lines.next().and_then(|line| Pid::from_raw(line.parse().ok()?));
    // Taken while its parent has not waited for it: the number stays its own.
    let program = number.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
    let done = lines.any(|line| line == DONE);
    if let Some(program) = program.filter(|_| !done) {
        end(&program);
    }
    remove(&args.directory);
    Ok(ExitCode::SUCCESS)
}

/// Removes a directory, in which what the program has started may go on to make files for a moment.
fn remove(directory: &Path) {
    let end = Instant::now() + LINGER;
    while let Err(error) = fs::remove_dir_all(directory) {
        if error.kind() == io::ErrorKind::NotFound || Instant::now() > end {
            return; // what is left is the system's, as other temporary files
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Asks a program to end, and ends it when it does not.
fn end(program: &OwnedFd) {
    let _ = pidfd_send_signal(program, Signal::TERM); // it may have ended
    let mut ended = [PollFd::new(program, PollFlags::IN)];
    if !matches!(poll(&mut ended, Some(&PATIENCE)), Ok(1)) {
        let _ = pidfd_send_signal(program, Signal::KILL);
    }
}
