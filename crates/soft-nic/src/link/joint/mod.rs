//! Several processes at one address, over UDP: one has RoCEv2's port and hands the others their
//! packets.
//!
//! The first process that opens an address is its *keeper*: it has the port, and a socket with a
//! name at which others of its user ask to be *members*. Each has a share of the address's queue
//! pair numbers and communication IDs ([`Share`]), so that these say whose a packet is; a request
//! for a connection is for whoever offers its service. A share is whose has bound its name, keeper
//! or member: the kernel knows of those too whom a new keeper has not heard yet. A member sends by a
//! UDP socket of its own, from another source port, and receives what the keeper hands over. When
//! the keeper is gone, the line to it ends: the first member that gets the port is the next one, and
//! the others ask it, with the shares that they have.
//!
//! | file | what |
//! |---|---|
//! | `share` | who has which numbers |
//! | `message` | what keeper and members tell each other |
//! | `socket` | the sockets for it |
//! | `user` | whose process is at the other end |
//! | `keeper` `member` | the two parts |

mod keeper;
mod member;
mod message;
mod share;
mod socket;
#[cfg(test)]
mod tests;
mod user;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

pub use share::Share;
pub use user::is_this_user;

use self::keeper::{Keeper, Wants};
use self::member::{Joined, Member};
use self::socket::{Bundle, Hold};
use super::udp::first_free;
use super::{Carries, Link, LinkCounters, LinkError, Notice, Received, TxBatch, UdpLink};
use crate::random::Random;
use bellpush_wire::roce::Fields;

/// How long an opening waits for a keeper's answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits for somebody who is there at all: whoever has the port listens a moment later.
const NOBODY: Duration = Duration::from_millis(300);
/// Between two tries, at first and at most.
const RETRY: Duration = Duration::from_millis(2);
const MOST_RETRY: Duration = Duration::from_millis(50);
/// How long a member's port is up without a keeper: longer than a hand-over takes.
const ALONE: Duration = Duration::from_secs(1);
/// Between two times that a keeper hears its members.
const HEAR_NS: u64 = 100_000;
/// When what a member has no room for is tried again: at first, and at most while it takes nothing.
const FLUSH_NS: u64 = 50_000;
const MOST_FLUSH_NS: u64 = 10_000_000;
/// Between two looks of a member that has lost its share, which nothing brings back.
const LOST_NS: u64 = 50_000_000;

/// A NIC's end of the wire, at an address that processes share.
pub struct JointLink {
    udp: UdpLink,
    share: Share,
    hold: Hold,
    part: Part,
    wants: Wants,
    /// Of one that began as a member: its descriptors change. What members tell a keeper is heard
    /// when its engine looks, which is soon enough.
    bundle: Option<Bundle>,
    hear_ns: u64,
    now_ns: u64,
}

enum Part {
    Keeper(Keeper),
    Member(Member),
}

/// Any number: with it those of queue pairs are harder to guess.
fn random() -> Result<u8, LinkError> {
    let random = Random::system();
    let random = random.map_err(|source| LinkError::System { call: "getrandom", source })?;
    Ok(random.number() as u8)
}

impl JointLink {
    /// A NIC at an address of this machine, beside those of other processes of this user. `mtu` as of
    /// [`UdpLink::open`].
    ///
    /// # Errors
    /// [`LinkError::InUse`] where another user or another program has the port or all names of the
    /// address's shares, the address has as many processes as it can ([`Share::MOST`]), or the one
    /// that has the port does not answer for two seconds; [`LinkError::NotLocal`],
    /// [`LinkError::System`].
    pub fn open(addr: IpAddr, mtu: Option<usize>) -> Result<Self, LinkError> {
        let (begin, addr) = (Instant::now(), addr.to_canonical());
        let mut seen = begin; // somebody who is there
        let mut held = None;
        loop {
            let port = match UdpLink::open(addr, mtu) {
                Ok(udp) => Some(udp),
                Err(LinkError::InUse { .. }) => None,
                Err(other) => return Err(other),
            };
            if held.is_none() {
                held = Hold::any(addr, random()?)?;
            }
            let joined = match (port, &held) {
                // One that has ended may have its share for a moment yet. The port is left meanwhile:
                // a member may want it.
                (_, None) => Joined::NoAnswer,
                (Some(udp), Some(_)) => return Self::keep(udp, held),
                (None, Some((share, _))) => Member::join(addr, *share, begin + PATIENCE),
            };
            match (joined, held.take()) {
                (Joined::Yes(member), Some(held)) => {
                    let udp = UdpLink::open_beside(addr, mtu)?;
                    let bundle = Bundle::new()?;
                    member.enter(&bundle);
                    return Ok(Self::new(udp, held, Part::Member(member), Some(bundle)));
                }
                (Joined::Later, mine) if begin.elapsed() < PATIENCE => {
                    (seen, held) = (Instant::now(), mine);
                    thread::sleep(RETRY);
                }
                (Joined::NoAnswer, mine)
                    if seen.elapsed() < NOBODY && begin.elapsed() < PATIENCE =>
                {
                    held = mine;
                    thread::sleep(RETRY);
                }
                _ => return Err(LinkError::InUse { addr }),
            }
        }
    }

    /// A NIC at an address that no other has yet, which others may join.
    ///
    /// # Errors
    /// As [`UdpLink::open`]; [`LinkError::InUse`] also where others have all names of the address's
    /// shares, of whichever user they are.
    pub fn open_alone(addr: IpAddr, mtu: Option<usize>) -> Result<Self, LinkError> {
        Self::keep(UdpLink::open(addr, mtu)?, None)
    }

    /// A NIC at the first address of 127.0.0.0/16 that none has, which others may join.
    ///
    /// # Errors
    /// As [`UdpLink::open_free`].
    pub fn open_free() -> Result<Self, LinkError> {
        first_free(|addr| Self::open_alone(addr, None))
    }

    /// The first at an address, or the first after another: those that were beside it live on.
    fn keep(udp: UdpLink, held: Option<(Share, Hold)>) -> Result<Self, LinkError> {
        let addr = udp.address();
        // Numbers of a process that ended are not the next one's: its peers may still send to them.
        let held = match held {
            Some(held) => held,
            None => Hold::any(addr, random()?)?.ok_or(LinkError::InUse { addr })?,
        };
        let keeper = Keeper::new(addr, held.0);
        Ok(Self::new(udp, held, Part::Keeper(keeper), None))
    }

    fn new(udp: UdpLink, held: (Share, Hold), part: Part, bundle: Option<Bundle>) -> Self {
        let (share, hold) = held;
        Self { udp, share, hold, part, wants: Wants::default(), bundle, hear_ns: 0, now_ns: 0 }
    }

    /// Descriptors of which one is readable when a packet has come: an engine that naps may wait
    /// there.
    ///
    /// # Errors
    /// [`LinkError::System`].
    pub fn descriptors(&self) -> Result<Vec<OwnedFd>, LinkError> {
        match &self.bundle {
            None => self.udp.descriptors(),
            Some(bundle) => Ok(vec![bundle.descriptor()?]),
        }
    }

    /// Whether this process has the port.
    pub fn keeps(&self) -> bool {
        matches!(self.part, Part::Keeper(_))
    }

    /// What is to be done now and then; returns how long until the next time, in nanoseconds.
    fn tend(&mut self) -> u64 {
        match &mut self.part {
            Part::Keeper(keeper) => {
                keeper.admit();
                keeper.hear();
                HEAR_NS
            }
            Part::Member(member) => {
                let Some(bundle) = &self.bundle else { return HEAR_NS };
                // The share may be another process's by now: one without neither asks nor keeps.
                let has_ended = member.has_ended();
                if !self.hold.is_there() {
                    if has_ended {
                        // It would be readable for ever, and the engine would not rest.
                        member.leave(bundle);
                    }
                    return LOST_NS;
                }
                let (is_due, wait) = if has_ended { member.looks_now() } else { (true, RETRY) };
                if is_due && has_ended && self.udp.take_over().is_ok() {
                    member.leave(bundle);
                    self.udp.inboxes().for_each(|inbox| bundle.add(inbox));
                    let here = self.udp.address();
                    self.part = Part::Keeper(Keeper::new(here, self.share));
                    self.hear_ns = 0;
                    return HEAR_NS;
                }
                if is_due {
                    member.tend(self.share, bundle);
                }
                wait.as_nanos() as u64
            }
        }
    }
}

impl Link for JointLink {
    fn address(&self) -> IpAddr {
        self.udp.address()
    }

    fn mtu(&self) -> usize {
        self.udp.mtu()
    }

    fn src_port(&self) -> u16 {
        self.udp.src_port()
    }

    fn carries(&self) -> Carries {
        self.udp.carries()
    }

    fn fields(&self, wanted: &Fields) -> Fields {
        self.udp.fields(wanted)
    }

    fn take_port(&mut self, port: u16) -> Result<(), LinkError> {
        self.udp.take_port(port)
    }

    fn leave_port(&mut self, port: u16) {
        self.udp.leave_port(port);
    }

    fn joins(&self) -> bool {
        self.udp.joins()
    }

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        self.udp.send(now_ns, batch)
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        match &mut self.part {
            Part::Keeper(keeper) if keeper.is_alone() => return self.udp.recv(now_ns, most, each),
            Part::Member(member) if !member.has_ended() => {
                return Ok(member.receive(most, &self.wants, each));
            }
            _ => {}
        }
        self.now_ns = now_ns;
        if now_ns >= self.hear_ns {
            self.hear_ns = now_ns + self.tend();
        }
        let wants = &self.wants;
        match &mut self.part {
            Part::Keeper(keeper) => {
                keeper.flush(now_ns);
                self.udp.recv(now_ns, most, &mut |received| {
                    if !keeper.hand_over(received, wants, now_ns) {
                        each(received);
                    }
                })
            }
            Part::Member(_) => Ok(0),
        }
    }

    fn share(&self) -> Option<Share> {
        Some(self.share)
    }

    fn tell(&mut self, notice: Notice) {
        self.wants.hear(notice);
        if let Part::Member(member) = &mut self.part {
            member.tell(notice);
        }
    }

    fn poll_at(&self) -> Option<u64> {
        match &self.part {
            Part::Keeper(keeper) => keeper.flush_at(),
            Part::Member(member) if member.has_ended() => Some(self.hear_ns),
            _ => None,
        }
    }

    /// A member that has lost its keeper wants to be looked at, and holds nothing.
    fn holds(&self) -> bool {
        matches!(&self.part, Part::Keeper(keeper) if keeper.flush_at().is_some())
    }

    fn is_up(&mut self) -> bool {
        self.tend();
        let is_lost = matches!(&self.part, Part::Member(member) if member.is_lost());
        !is_lost && self.udp.is_up() && self.udp.is_whole() && self.hold.is_there()
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.udp.counters();
        if let Part::Keeper(keeper) = &self.part {
            counters.rx_dropped += keeper.lost;
        }
        counters
    }

    fn describe(&self) -> String {
        let part = if self.keeps() { "keeper" } else { "member" };
        format!("{}; {part} of its address", self.udp.describe())
    }
}
