//! Looks after queue pairs that stand still, for people who debug a program or a kernel of their own:
//! one line for every queue pair whenever the program gets SIGUSR2, and with `--verbose` one for each
//! that has had work to do for two seconds and did not get on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::Duration;

use bellpush_soft_nic::{QpReport, SoftNic};

use crate::error::Refusal;
use crate::process::say;
use crate::thread::Quiet;

/// How often it looks whether it was asked, and how many of these make a look of its own.
const TICK: Duration = Duration::from_millis(100);
const TICKS: u32 = 20;
/// How long it waits for the engine to come out of a step.
const PATIENCE: Duration = Duration::from_millis(500);
/// Lines of one look, and of standing queue pairs in all.
const MOST_LINES: usize = 64;
const MOST_STANDING: usize = 1000;

/// How often the program got SIGUSR2.
static ASKED: AtomicU32 = AtomicU32::new(0);

extern "C" fn asked(_signal: libc::c_int) {
    ASKED.fetch_add(1, Ordering::Relaxed);
}

/// How often SIGUSR2 asked so far.
pub fn asked_so_far() -> u32 {
    ASKED.load(Ordering::Relaxed)
}

/// Has SIGUSR2 ask, unless the program has its own use for it.
fn listen() {
    static ONCE: Once = Once::new();
    // SAFETY: all zeros are a sigaction; the handler adds to an atomic and no more.
    ONCE.call_once(|| unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let found = libc::sigaction(libc::SIGUSR2, std::ptr::null(), &mut action);
        if found == 0 && action.sa_sigaction == libc::SIG_DFL {
            action.sa_sigaction = asked as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        }
    });
}

/// The thread that looks. Dropping it ends it.
pub struct Watch {
    /// `None` once it is to end.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins to look after a device's queue pairs, which tells unasked if it is `verbose`.
    pub fn start(index: usize, nic: Arc<SoftNic>, verbose: bool) -> Result<Self, Refusal> {
        listen();
        let (stop, stopped) = channel::<()>();
        let asked = ASKED.load(Ordering::Relaxed);
        let mut look = Look { index, verbose, asked, ..Look::default() };
        let quiet = Quiet::new();
        let spawned =
            std::thread::Builder::new().name(format!("bellpush-watch{index}")).spawn(move || {
                while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    look.tick(&nic);
                }
            });
        drop(quiet);
        let thread = spawned.map_err(|source| Refusal::System { call: "a thread", source })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was reported where it happened
        }
    }
}

#[derive(Default)]
struct Look {
    index: usize,
    verbose: bool,
    asked: u32,
    ticks: u32,
    /// What was outstanding at the last look, and whether that was said.
    before: HashMap<u32, (QpReport, bool)>,
    said: usize,
}

impl Look {
    fn tick(&mut self, nic: &SoftNic) {
        nic.look_for_trace(PATIENCE);
        let asked = ASKED.load(Ordering::Relaxed);
        if asked != self.asked {
            self.asked = asked;
            self.tell_all(&nic.reports(PATIENCE));
        }
        self.ticks += u32::from(self.verbose);
        if self.ticks == TICKS {
            self.ticks = 0;
            self.tell_standing(nic.reports(PATIENCE));
        }
    }

    fn tell_all(&self, reports: &[QpReport]) {
        for report in reports.iter().take(MOST_LINES) {
            say(&format!("mlx5_{}: {report}", self.index));
        }
        if reports.len() > MOST_LINES {
            say(&format!(
                "mlx5_{}: and {} queue pairs more",
                self.index,
                reports.len() - MOST_LINES
            ));
        }
    }

    fn tell_standing(&mut self, reports: Vec<QpReport>) {
        let mut now = HashMap::new();
        for report in reports.into_iter().filter(QpReport::is_outstanding) {
            let before = self.before.get(&report.qpn.0).filter(|(before, _)| *before == report);
            let mut told = before.is_some_and(|(_, told)| *told);
            if before.is_some() && !told && self.said < MOST_STANDING {
                say(&format!("mlx5_{}: stands still: {report}", self.index));
                self.said += 1;
                told = true;
            }
            now.insert(report.qpn.0, (report, told));
        }
        self.before = now;
    }
}
