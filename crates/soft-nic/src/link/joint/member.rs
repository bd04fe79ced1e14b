//! A process at an address whose port another has.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::keeper::Wants;
use super::message::{BUFFER_BYTES, Short, ToKeeper, ToMember};
use super::share::Share;
use super::socket::{self, Bundle, Came, Line, Sent};
use super::{ALONE, MOST_RETRY, RETRY};
use crate::link::{Notice, Received};

/// How long a keeper may take to answer one that was a member before.
const ANSWER: Duration = Duration::from_secs(2);
/// How often a busy engine looks whether the program has closed the line.
const LOOKS: u32 = 64;

/// What became of a wish to be a member.
pub(super) enum Joined {
    Yes(Member),
    /// Nobody is there.
    NoAnswer,
    /// Somebody is there and takes nobody in now, or was there until now.
    Later,
    /// Whoever is there is somebody else, or has no room.
    Refused,
}

enum State {
    Joined,
    /// It has asked a new keeper.
    Asks {
        since: Instant,
    },
    /// There is no keeper that it knows of.
    Orphan,
}

struct Alone {
    since: Instant,
    next: Instant,
    wait: Duration,
}

pub(super) struct Member {
    here: IpAddr,
    line: Option<Line>,
    state: State,
    /// Since when no keeper hands it anything, and when it may look for one again.
    alone: Option<Alone>,
    /// What the keeper is to be told, and had no room for.
    unsaid: VecDeque<Short>,
    buffer: Box<[u8; BUFFER_BYTES]>,
    looks: u32,
}

impl Member {
    /// Asks the keeper of an address to take a process in that has a share.
    pub(super) fn join(here: IpAddr, share: Share, until: Instant) -> Joined {
        let line = match socket::connect(here) {
            Ok(Some(line)) => line,
            Ok(None) => return Joined::Refused,
            // So many wait to be heard that there is no room for one more.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Joined::Later,
            Err(_) => return Joined::NoAnswer,
        };
        if line.send(&[&ToKeeper::Hello(share).emit()]) != Sent::Yes {
            return Joined::Later;
        }
        let mut buffer = Box::new([0; BUFFER_BYTES]);
        while Instant::now() < until {
            let message = match line.receive(&mut buffer[..]) {
                Came::Nothing => {
                    thread::sleep(RETRY);
                    continue;
                }
                Came::End => return Joined::Later,
                Came::Message(bytes) => ToMember::parse(bytes, here),
            };
            if !matches!(message, Some(ToMember::Welcome(given)) if given == share) {
                return Joined::Refused;
            }
            let (state, unsaid) = (State::Joined, VecDeque::new());
            let member =
                Self { here, line: Some(line), state, alone: None, unsaid, buffer, looks: 0 };
            return Joined::Yes(member);
        }
        Joined::Refused
    }

    /// Has a bundle know of its line.
    pub(super) fn enter(&self, bundle: &Bundle) {
        self.line.iter().for_each(|line| bundle.add(line));
    }

    /// Has a bundle forget it.
    pub(super) fn leave(&mut self, bundle: &Bundle) {
        if let Some(line) = self.line.take() {
            bundle.remove(&line);
        }
    }

    /// Whether there is no keeper that it knows of, so that it may become one.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, State::Orphan)
    }

    /// Whether a keeper hands it its packets.
    pub(super) fn is_joined(&self) -> bool {
        matches!(self.state, State::Joined)
    }

    /// Whether it has been without one for longer than a hand-over takes.
    pub(super) fn is_lost(&self) -> bool {
        self.alone.as_ref().is_some_and(|alone| alone.since.elapsed() > ALONE)
    }

    /// Whether it may look for a keeper, or become one, now; how long until the next time. Where it
    /// finds none it looks ever more seldom.
    pub(super) fn looks_now(&mut self) -> (bool, Duration) {
        let now = Instant::now();
        let alone = self.alone.get_or_insert(Alone { since: now, next: now, wait: RETRY });
        let is_due = now >= alone.next;
        if is_due {
            alone.next = now + alone.wait;
            alone.wait = (2 * alone.wait).min(MOST_RETRY);
        }
        (is_due, alone.next - now)
    }

    pub(super) fn tell(&mut self, notice: Notice) {
        if self.is_joined() {
            self.unsaid.push_back(ToKeeper::Notice(notice).emit());
            self.speak();
        }
    }

    /// Says what is to be said, as far as there is room.
    fn speak(&mut self) {
        let Some(line) = &self.line else { return };
        while let Some(message) = self.unsaid.front() {
            match line.send(&[message]) {
                Sent::Yes => drop(self.unsaid.pop_front()),
                Sent::Full => return,
                Sent::End => {
                    self.state = State::Orphan;
                    return;
                }
            }
        }
    }

    /// Asks a new keeper, where the old one is gone; waits for none that does not answer.
    pub(super) fn tend(&mut self, share: Share, bundle: &Bundle) {
        match self.state {
            State::Joined => self.speak(),
            State::Asks { since } if since.elapsed() < ANSWER => {}
            State::Asks { .. } => self.state = State::Orphan,
            State::Orphan => {
                self.leave(bundle);
                self.unsaid.clear();
                let Ok(Some(line)) = socket::connect(self.here) else { return };
                if line.send(&[&ToKeeper::Hello(share).emit()]) == Sent::Yes {
                    bundle.add(&line);
                    self.line = Some(line);
                    self.state = State::Asks { since: Instant::now() };
                }
            }
        }
    }

    /// Hands out packets that the keeper has handed over; returns how many.
    pub(super) fn receive(
        &mut self,
        most: usize,
        own: &Wants,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> usize {
        self.looks = self.looks.wrapping_add(1);
        let mut count = 0;
        for _ in 0..most {
            let Some(line) = &self.line else { break };
            let is_its = count > 0 || !self.looks.is_multiple_of(LOOKS) || line.is_there();
            let came = if is_its { line.receive(&mut self.buffer[..]) } else { Came::End };
            match came {
                Came::Nothing => break,
                Came::End => {
                    self.state = State::Orphan;
                    break;
                }
                Came::Message(bytes) => match ToMember::parse(bytes, self.here) {
                    Some(ToMember::Packet(received)) => {
                        count += 1;
                        each(&received);
                    }
                    Some(ToMember::Welcome(_)) if !matches!(self.state, State::Joined) => {
                        self.welcomed(own);
                    }
                    // What is no message is dropped, like a packet that is none.
                    _ => {}
                },
            }
        }
        count
    }

    /// A new keeper does not know what this process wants.
    fn welcomed(&mut self, own: &Wants) {
        (self.state, self.alone) = (State::Joined, None);
        let manages = own.manages.then_some(Notice::Manages);
        let offers = own.services.iter().map(|&service| Notice::Offers(service));
        let all = manages.into_iter().chain(offers);
        self.unsaid.extend(all.map(|notice| ToKeeper::Notice(notice).emit()));
        self.speak();
    }
}
