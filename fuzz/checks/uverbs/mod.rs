//! Sequences of commands of the preloaded device: what the bytes of an input say, sent by a program that means harm.
//! Any input is a sequence. The layer that takes a command's bytes is driven in this very process.
//!
//! What must hold, whatever the bytes say:
//!
//! - a refusal is one of the kernel's errnos, and nothing was written and no object made or lost;
//! - a command that is malformed, or names an object that is not there or of another kind, is refused;
//! - nothing is written but the answers that a command asks for, where it asks for them;
//! - a new handle, number or page is nobody's; what was made and changed is what a query answers;
//! - an object that another uses is not destroyed, and one that none uses is; it is not there any more then;
//! - when all is destroyed, or the device is closed, nothing is left: neither objects nor device memory, nor somebody
//!   who is told of events, nor (in the process of `./x fuzz`) a descriptor.

mod command;
mod devx;
mod make;
mod memory;
mod model;
mod moves;
#[cfg(test)]
mod tests;

use std::os::fd::RawFd;
use std::sync::OnceLock;

use crate::fuzzed::{self, Opened};
use command::{Cmd, Done, Layout};
use model::{Kind, Live};

/// Commands of a sequence at most.
const MOST: usize = 120;
/// Objects at most.
const MOST_LIVE: usize = 60;

/// What a sequence led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Outcome {
    /// Commands that were carried out, and that were refused.
    pub done: u64,
    pub refused: u64,
    /// Of these, such as had to be.
    pub wrong: u64,
    /// Objects that were made, of how many kinds, and that were destroyed.
    pub made: u64,
    pub kinds: u32,
    pub destroyed: u64,
    /// Objects that were not destroyed because another uses them.
    pub busy: u64,
    /// Moves of queue pairs.
    pub moved: u64,
}

/// An input that is read from its beginning; behind its end are zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }
}

struct Session {
    device: Opened,
    live: Vec<Live>,
    /// Handles of what was destroyed.
    dead: Vec<u64>,
    descriptors: Vec<RawFd>,
    /// Whether it is known who uses whom: a command whose bytes were changed may have named another.
    exact: bool,
    outcome: Outcome,
}

/// Descriptors after the first sequence of the process, and how many come later and stay: a scratch file.
static FIRST: OnceLock<usize> = OnceLock::new();
const LATER: usize = 3;

/// Looks whether descriptors are left, in a process in which nobody else opens any.
fn count_descriptors(exact: bool, before: &[RawFd]) {
    for fd in fuzzed::visible().into_iter().filter(|fd| !before.contains(fd)) {
        assert!(!exact, "descriptor {fd} is left");
        // Of a command whose answer nobody understands.
        fuzzed::close(fd);
    }
    let now = fuzzed::descriptors();
    let first = *FIRST.get_or_init(|| now);
    assert!(now <= first + LATER, "{now} descriptors, {first} at first");
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) -> Outcome {
    let mut input = Input(data);
    let how = input.u8();
    let mut it = Session {
        device: Opened::new(),
        live: Vec::new(),
        dead: Vec::new(),
        descriptors: Vec::new(),
        exact: true,
        outcome: Outcome::default(),
    };
    // Without the device's own, which goes.
    let own = it.device.descriptor();
    let before: Vec<_> = fuzzed::visible().into_iter().filter(|&fd| fd != own).collect();
    it.begin(how);
    for _ in 0..MOST {
        if input.0.is_empty() {
            break;
        }
        it.step(&mut input);
    }
    let exact = it.exact;
    let outcome = it.end(how & 1 != 0);
    if cfg!(fuzzing) {
        count_descriptors(exact, &before);
    }
    outcome
}

impl Session {
    /// What most sequences begin with.
    fn begin(&mut self, how: u8) {
        if how & 2 != 0 {
            return; // no context: nothing but it is to be had
        }
        self.plain(make::context());
        self.plain(make::uar(0));
        self.plain(make::pd());
    }

    fn plain(&mut self, made: make::Made) {
        self.send(made, &Layout::default());
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.u8();
        if what >= 250 {
            let cmd = command::raw(input, &self.device.memory);
            return self.send(make::Made::of(cmd), &Layout::default());
        }
        let Some(mut made) = make::one(what, input, self) else { return };
        let mut layout = Layout::default();
        if input.u8() > 170 {
            made.cmd.slip(input, &mut layout);
        }
        self.send(made, &layout);
    }

    fn send(&mut self, made: make::Made, layout: &Layout) {
        let before = self.device.objects();
        let done = made.cmd.send(&self.device, layout);
        let now = self.device.objects();
        self.outcome.wrong += u64::from(made.cmd.wrong.is_some());
        match done.errno {
            Ok(()) => self.outcome.done += 1,
            Err(errno) => {
                self.outcome.refused += 1;
                // As in the kernel, what cannot be told of its end has ended.
                let ended = errno == libc::EFAULT && made.destroys && now + 1 == before;
                let same = before == now || ended;
                assert!(same, "{errno}, and objects came or went: {:?}", made.cmd);
            }
        }
        (made.after)(self, &made.cmd, &done, (before, now));
    }

    /// Takes on what a command has made.
    fn take_on(&mut self, cmd: &Cmd, done: &Done, mut new: Live) {
        new.handle = done.handle();
        self.is_new(cmd, &new);
        self.outcome.made += 1;
        self.outcome.kinds |= 1 << new.kind as u32;
        self.exact &= !cmd.vague;
        self.live.push(new);
    }

    fn is_new(&self, cmd: &Cmd, new: &Live) {
        // One whose answer was changed says nothing of its handle, and what it named may be gone.
        if cmd.vague || !self.exact {
            return;
        }
        for old in &self.live {
            assert_ne!(old.handle, new.handle, "{cmd:?}: the handle is another's: {old:?}");
            let same = old.kind.numbers() == new.kind.numbers() && old.number == new.number;
            assert!(!same || new.number == 0, "{cmd:?}: the number is another's: {old:?}");
            let apart = old.pages.1 <= new.pages.0 || new.pages.1 <= old.pages.0;
            assert!(apart, "{cmd:?}: pages are another's: {old:?}");
        }
    }

    /// Whether somebody uses an object.
    fn is_used(&self, handle: u64) -> bool {
        self.live.iter().any(|other| other.uses.contains(&handle))
    }

    /// Destroys everything, or closes the device as it is.
    fn end(mut self, closes: bool) -> Outcome {
        while !closes && !self.live.is_empty() {
            let left = self.live.len();
            // Two may have one handle, where a command that was changed has made one of them.
            for live in self.live.clone().iter().rev() {
                self.plain(make::destroy(live));
            }
            if self.live.len() == left {
                // What nobody knows of uses it.
                assert!(!self.exact, "nothing can be destroyed of {:?}", self.live);
                break;
            }
        }
        if !closes && self.exact {
            assert_eq!(self.device.objects(), 0, "objects are left that nobody has");
        }
        for fd in std::mem::take(&mut self.descriptors) {
            fuzzed::close(fd);
        }
        self.device.end();
        self.outcome
    }
}

/// The pieces of an input that say which object is meant.
struct Picked {
    handle: u64,
    number: u32,
    wrong: Option<&'static str>,
}

impl Session {
    /// An object of one of these kinds; now and then one of another, or none.
    fn pick(&self, input: &mut Input<'_>, kinds: &[Kind]) -> Picked {
        let at = input.u8();
        let is_one = |live: &&Live| kinds.contains(&live.kind);
        let right: Vec<_> = self.live.iter().filter(is_one).collect();
        if at < 230 && !right.is_empty() {
            let live = right[usize::from(at) % right.len()];
            return Picked { handle: live.handle, number: live.number, wrong: None };
        }
        let others: Vec<_> = self.live.iter().filter(|live| !is_one(live)).collect();
        if at < 243 && !others.is_empty() {
            let live = others[usize::from(at) % others.len()];
            let wrong = Some("an object is of another kind");
            // Numbers of each kind are its own.
            return Picked { handle: live.handle, number: 0xff_fff0, wrong };
        }
        let handle = match self.dead.get(usize::from(at) % self.dead.len().max(1)) {
            Some(&dead) if at < 248 => dead,
            _ if at < 252 => 0x7fff_0000,
            _ => u64::from(at) << 33,
        };
        Picked { handle, number: 0xff_fff0, wrong: Some("an object is not there") }
    }
}
