//! The process that has an address's port: it hands the others their packets.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::message::{BUFFER_BYTES, ToKeeper, packet_header, welcome};
use super::share::Share;
use super::socket::{self, Came, Line, Sent};
use super::{FLUSH_NS, MOST_FLUSH_NS};
use crate::link::{Notice, Received};
use bellpush_mem::hidden::Hidden;
use bellpush_wire::cm::{GSI_QPN, MAD_BYTES, Mad, Message};
use bellpush_wire::roce::{Opcode, Operation, Service};

/// Processes that have not said yet what they want, at most.
const MOST_STRANGERS: usize = 8;
/// How long one may take to say it.
const HELLO_PATIENCE: Duration = Duration::from_secs(2);
/// How long processes that another keeper had may take to come.
const HAND_OVER: Duration = Duration::from_secs(1);
/// Messages that one has heard at a time.
const MOST_HEARD: usize = 64;
/// Services of one member: as many as there are ports, of both kinds.
const MOST_SERVICES: usize = 1 << 17;
/// Packets that wait for a member which does not take them.
const MOST_WAITING: usize = 1024;
/// Requests of which it is known who has them.
const MOST_REQUESTS: usize = 1024;
/// Bytes before a datagram's payload: BTH and DETH; and those behind it.
const UD_HEADER_BYTES: usize = 20;
const ICRC_BYTES: usize = 4;

/// What one process wants of the messages to queue pair 1.
#[derive(Debug, Default)]
pub(super) struct Wants {
    pub(super) manages: bool,
    pub(super) services: HashSet<u64>,
}

impl Wants {
    pub(super) fn hear(&mut self, notice: Notice) {
        match notice {
            Notice::Manages => self.manages = true,
            Notice::Offers(service) => {
                if self.services.len() < MOST_SERVICES {
                    self.services.insert(service);
                }
            }
            Notice::Withdraws(service) => drop(self.services.remove(&service)),
        }
    }
}

struct Member {
    line: Line,
    /// `None` until it has said what it wants.
    share: Option<Share>,
    since: Instant,
    wants: Wants,
    waiting: VecDeque<Box<[u8]>>,
    /// When what waits is tried again, and how long after the try before: a member that is stopped
    /// must not keep the keeper busy.
    retry_ns: u64,
    wait_ns: u64,
    is_gone: bool,
}

impl Member {
    fn new(line: Line) -> Self {
        let (share, since, wants, waiting) =
            (None, Instant::now(), Wants::default(), VecDeque::new());
        let (retry_ns, wait_ns) = (0, FLUSH_NS);
        Self { line, share, since, wants, waiting, retry_ns, wait_ns, is_gone: false }
    }

    /// Hands a packet over; says whether there was room.
    fn forward(&mut self, received: &Received<'_>, now_ns: u64) -> bool {
        let header = packet_header(&received.envelope);
        if self.waiting.is_empty() {
            match self.line.send(&[&header, received.bytes]) {
                Sent::Yes => return true,
                Sent::End => self.is_gone = true,
                Sent::Full => (self.retry_ns, self.wait_ns) = (now_ns + FLUSH_NS, FLUSH_NS),
            }
        }
        let has_room = self.waiting.len() < MOST_WAITING && !self.is_gone;
        if has_room {
            self.waiting.push_back([&header, received.bytes].concat().into());
        }
        has_room
    }

    fn flush(&mut self, now_ns: u64) {
        if now_ns < self.retry_ns {
            return;
        }
        self.wait_ns = (2 * self.wait_ns).min(MOST_FLUSH_NS);
        while let Some(message) = self.waiting.front() {
            match self.line.send(&[message]) {
                Sent::Yes => {
                    self.wait_ns = FLUSH_NS;
                    self.waiting.pop_front();
                }
                Sent::Full => {
                    self.retry_ns = now_ns + self.wait_ns;
                    return;
                }
                Sent::End => {
                    self.is_gone = true;
                    return;
                }
            }
        }
    }
}

/// A request's sender and ID, and whether it is one for datagrams.
type Request = (IpAddr, u32, bool);

/// Who has which request: it may come again when nobody offers the service any more.
#[derive(Default)]
struct Requests {
    by: HashMap<Request, Share>,
    order: VecDeque<Request>,
}

impl Requests {
    fn note(&mut self, request: Request, of: Share) {
        if self.by.insert(request, of).is_none() {
            self.order.push_back(request);
        }
        if self.order.len() > MOST_REQUESTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.by.remove(&oldest);
        }
    }
}

/// Whom a packet is for.
#[derive(PartialEq, Eq)]
enum For {
    A(Share),
    /// A process that is there and has not come yet, perhaps: nobody may answer in its place, and
    /// the packet comes again.
    Later,
}

pub(super) struct Keeper {
    here: IpAddr,
    own: Share,
    /// Of processes that were there before it was the keeper; nobody's once they had time to come.
    before: Vec<Share>,
    since: Instant,
    listener: Option<Hidden<Socket>>,
    members: Vec<Member>,
    requests: Requests,
    buffer: Box<[u8; BUFFER_BYTES]>,
    /// Packets that a member had no room for, or that came before it.
    pub(super) lost: u64,
}

impl Keeper {
    pub(super) fn new(here: IpAddr, own: Share) -> Self {
        let others = (0..Share::MOST).map(Share::wrapping).filter(|&share| share != own);
        let mut keeper = Self {
            here,
            own,
            before: others.filter(|&share| socket::is_held(here, share)).collect(),
            since: Instant::now(),
            listener: None,
            members: Vec::new(),
            requests: Requests::default(),
            buffer: Box::new([0; BUFFER_BYTES]),
            lost: 0,
        };
        keeper.listen();
        keeper
    }

    /// The one before may have the name for a moment yet.
    fn listen(&mut self) {
        self.listener = socket::listen(self.here).ok();
    }

    /// Whether nobody else is at the address, or to come.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.members.is_empty() && self.before.is_empty()
    }

    /// How many have a line to it.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// When what a member has not taken is to be tried again, if there is anything.
    pub(super) fn flush_at(&self) -> Option<u64> {
        let late = self.members.iter().filter(|member| !member.waiting.is_empty());
        late.map(|member| member.retry_ns).min()
    }

    /// Hands over what had to wait and is due.
    pub(super) fn flush(&mut self, now_ns: u64) {
        self.members.iter_mut().for_each(|member| member.flush(now_ns));
    }

    /// Takes new members in.
    pub(super) fn admit(&mut self) {
        if self.listener.as_ref().is_none_or(|listener| !listener.is_there()) {
            return self.listen();
        }
        let strangers = self.members.iter().filter(|member| member.share.is_none()).count();
        for _ in strangers..MOST_STRANGERS {
            let Some(listener) = &self.listener else { return };
            match socket::accept(listener) {
                Ok(Some(line)) => self.members.push(Member::new(line)),
                Ok(None) => return,
                // Perhaps there are no descriptors left: it is tried again.
                Err(_) => return,
            }
        }
    }

    /// Hears what members say, and lets those go that are gone.
    pub(super) fn hear(&mut self) {
        if self.since.elapsed() >= HAND_OVER {
            self.before.clear();
        }
        for at in 0..self.members.len() {
            self.hear_one(at);
        }
        self.members.retain(|member| {
            let is_late = member.share.is_none() && member.since.elapsed() > HELLO_PATIENCE;
            !member.is_gone && !is_late
        });
    }

    fn hear_one(&mut self, at: usize) {
        for _ in 0..MOST_HEARD {
            let member = &mut self.members[at];
            if !member.line.is_there() {
                member.is_gone = true;
            }
            if member.is_gone {
                return;
            }
            let message = match member.line.receive(&mut self.buffer[..]) {
                Came::Nothing => return,
                Came::End => None,
                Came::Message(bytes) => ToKeeper::parse(bytes),
            };
            match (message, member.share) {
                (Some(ToKeeper::Notice(notice)), Some(_)) => member.wants.hear(notice),
                (Some(ToKeeper::Hello(wanted)), None) => {
                    let is_free = self.is_free(wanted);
                    let member = &mut self.members[at];
                    member.share = is_free.then_some(wanted);
                    member.is_gone = !is_free || member.line.send(&[&welcome(wanted)]) != Sent::Yes;
                }
                // It is gone, or says what no member would.
                _ => member.is_gone = true,
            }
        }
    }

    /// Whether nobody here has a share. The kernel says whose it is: one that ends leaves it to
    /// another before its line is seen to end.
    fn is_free(&self, share: Share) -> bool {
        let mut others = self.members.iter().filter(|member| !member.is_gone);
        share != self.own && others.all(|member| member.share != Some(share))
    }

    /// Whether processes that were there before may be still to come.
    fn is_new(&self) -> bool {
        !self.before.is_empty() && self.since.elapsed() < HAND_OVER
    }

    /// Of one that is gone, whoever is left says that there is no such thing.
    fn of(&self, share: Share) -> For {
        if self.has(share) {
            return For::A(share);
        }
        let is_late = self.before.contains(&share) && self.is_new();
        if is_late { For::Later } else { For::A(self.own) }
    }

    /// Hands a packet to whom it is for; says whether that was another process.
    pub(super) fn hand_over(&mut self, received: &Received<'_>, own: &Wants, now_ns: u64) -> bool {
        let Some(qpn) = received.bytes.get(4..8) else { return false };
        let qpn = u32::from_be_bytes([0, qpn[1], qpn[2], qpn[3]]);
        let to = match qpn {
            0 => return false,
            GSI_QPN => self.manager_for(received, own),
            _ => self.of(Share::of_qpn(qpn)),
        };
        let went = match to {
            For::A(share) => {
                let Some(member) = self.member(share) else { return false };
                member.forward(received, now_ns)
            }
            For::Later => false,
        };
        self.lost += u64::from(!went);
        true
    }

    fn member(&mut self, share: Share) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.share == Some(share))
    }

    fn has(&self, share: Share) -> bool {
        share == self.own || self.members.iter().any(|member| member.share == Some(share))
    }

    /// Whose connection manager a message is for.
    fn manager_for(&mut self, received: &Received<'_>, own: &Wants) -> For {
        let from = received.envelope.addresses.src();
        let ud = Opcode::new(Service::Ud, Operation::SendOnly).code();
        let whole = UD_HEADER_BYTES + MAD_BYTES + ICRC_BYTES;
        if received.bytes.len() != whole || received.bytes[0] != ud {
            return For::A(self.own);
        }
        let mad = &received.bytes[UD_HEADER_BYTES..UD_HEADER_BYTES + MAD_BYTES];
        let Ok(mad) = Mad::parse(mad) else { return For::A(self.own) };
        let id = match mad.message {
            Message::Req(req) => {
                return self.offerer((from, req.local_id, false), req.service, own);
            }
            Message::SidrReq(req) => {
                return self.offerer((from, req.request_id, true), req.service, own);
            }
            // Its sender gives up before it has heard of an ID.
            Message::Rej(rej) if rej.remote_id == 0 => {
                let asked = self.requests.by.get(&(from, rej.local_id, false));
                return For::A(asked.copied().unwrap_or(self.own));
            }
            Message::Rej(rej) => rej.remote_id,
            Message::Rep(rep) => rep.remote_id,
            Message::Rtu(rtu) => rtu.remote_id,
            Message::Mra(mra) => mra.remote_id,
            Message::Dreq(dreq) => dreq.remote_id,
            Message::Drep(drep) => drep.remote_id,
            Message::SidrRep(rep) => rep.request_id,
        };
        self.of(Share::of_id(id))
    }

    /// Who takes a request.
    fn offerer(&mut self, request: Request, service: u64, own: &Wants) -> For {
        let before = self.requests.by.get(&request).copied();
        if let Some(share) = before.filter(|&share| self.has(share)) {
            return For::A(share);
        }
        let mut found = self.find_offerer(service, own);
        if found.is_none() {
            // A member may have said just now that it offers the service.
            self.hear();
            found = self.find_offerer(service, own);
        }
        if let Some(share) = found {
            self.requests.note(request, share);
            return For::A(share);
        }
        if self.is_new() {
            return For::Later;
        }
        // Somebody must say that nobody does.
        let manages = |member: &&Member| member.wants.manages;
        let other = self.members.iter().find(manages).and_then(|member| member.share);
        For::A(other.filter(|_| !own.manages).unwrap_or(self.own))
    }

    fn find_offerer(&self, service: u64, own: &Wants) -> Option<Share> {
        if own.services.contains(&service) {
            return Some(self.own);
        }
        let offers = |member: &&Member| member.wants.services.contains(&service);
        self.members.iter().find(offers).and_then(|member| member.share)
    }
}
