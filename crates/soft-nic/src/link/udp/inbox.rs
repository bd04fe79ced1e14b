//! What a socket has received, packet by packet.

use std::net::SocketAddr;

use super::socket::{Opened, system};
use crate::link::LinkError;
use bellpush_mem::datagrams::Datagrams;

/// A socket and the datagrams that were received from it and not handed out yet.
pub(super) struct Inbox {
    pub(super) opened: Opened,
    datagrams: Datagrams,
    filled: usize,
    /// Next packet: its datagram, and where it begins there.
    next: (usize, usize),
}

/// A packet with what the socket told of it.
pub(super) struct Datagram<'a> {
    pub(super) from: SocketAddr,
    /// ToS or traffic class.
    pub(super) class: u8,
    /// TTL or hop limit, where the socket tells it.
    pub(super) hops: Option<u8>,
    pub(super) bytes: &'a [u8],
}

impl Inbox {
    pub(super) fn new(opened: Opened) -> Self {
        Self { opened, datagrams: Datagrams::default(), filled: 0, next: (0, 0) }
    }

    /// The next packet, from the socket when all that was received is handed out.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<Datagram<'_>>, LinkError> {
        if self.next.0 == self.filled && !self.refill()? {
            return Ok(None);
        }
        let (at, start) = self.next;
        let (told, bytes) =
            self.datagrams.get(at).expect("an IP socket's datagrams have addresses");
        let end = start.saturating_add(told.stride).min(told.len);
        self.next = if end == told.len { (at + 1, 0) } else { (at, end) };
        let (class, hops) = (told.class.unwrap_or(0), told.hops);
        Ok(Some(Datagram { from: told.from, class, hops, bytes: &bytes[start..end] }))
    }

    fn refill(&mut self) -> Result<bool, LinkError> {
        (self.filled, self.next) = (0, (0, 0));
        let received = self.datagrams.receive(&*self.opened.socket);
        self.filled = received.map_err(system("recvmmsg"))?;
        Ok(self.filled > 0)
    }
}
