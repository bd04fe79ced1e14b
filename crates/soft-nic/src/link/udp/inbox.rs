//! What a socket has received, packet by packet.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;

use quinn_udp::{RecvMeta, UdpSockRef};

use super::socket::{Opened, system};
use crate::link::LinkError;

/// Datagrams of one recvmmsg, each of them many packets where the system merges them.
const BUFFERS: usize = 16;
/// Longest datagram, merged or not.
const BUFFER_BYTES: usize = 65536;

/// A socket and the datagrams that were received from it and not handed out yet.
pub(super) struct Inbox {
    pub(super) opened: Opened,
    bytes: Box<[u8]>,
    meta: [RecvMeta; BUFFERS],
    filled: usize,
    /// Next packet: its buffer, and where it begins there.
    next: (usize, usize),
}

/// A packet with what the socket told of it.
pub(super) struct Datagram<'a> {
    pub(super) from: SocketAddr,
    /// The two bits of explicit congestion notification.
    pub(super) ecn: u8,
    pub(super) bytes: &'a [u8],
}

impl Inbox {
    pub(super) fn new(opened: Opened) -> Self {
        Self {
            opened,
            bytes: vec![0; BUFFERS * BUFFER_BYTES].into(),
            meta: [RecvMeta::default(); BUFFERS],
            filled: 0,
            next: (0, 0),
        }
    }

    /// The next packet, from the socket when all that was received is handed out.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<Datagram<'_>>, LinkError> {
        if self.next.0 == self.filled && !self.refill()? {
            return Ok(None);
        }
        let (buffer, start) = self.next;
        let meta = &self.meta[buffer];
        let end = start.saturating_add(meta.stride.max(1)).min(meta.len);
        self.next = if end == meta.len { (buffer + 1, 0) } else { (buffer, end) };
        let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
        let bytes = &self.bytes[buffer * BUFFER_BYTES..][start..end];
        Ok(Some(Datagram { from: meta.addr, ecn, bytes }))
    }

    fn refill(&mut self) -> Result<bool, LinkError> {
        (self.filled, self.next) = (0, (0, 0));
        let mut chunks = self.bytes.chunks_exact_mut(BUFFER_BYTES);
        let mut slices: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().expect("one for each")));
        let socket = UdpSockRef::from(&self.opened.socket);
        match self.opened.state.recv(socket, &mut slices, &mut self.meta) {
            Ok(n) => self.filled = n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(system("recvmmsg")(error)),
        }
        Ok(self.filled > 0)
    }
}
