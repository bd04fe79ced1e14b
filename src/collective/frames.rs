//! Frames between two processes of a job, after their handshake: kind, length, bytes, and an HMAC
//! over these and the frame's number, with a key of this connection alone. A frame that was
//! changed, omitted, replayed or meant for another connection is an error.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sha2::Sha256;

/// A frame's kinds, and the longest one.
pub(super) const DATA: u8 = 1;
pub(super) const FAILED: u8 = 2;
const MAX_FRAME: usize = 64 << 20;
const HEAD: usize = 5;
const MAC: usize = 32;

/// A connection to another process of the job.
pub(super) struct Line {
    stream: TcpStream,
    key: [u8; 32],
    from_root: bool,
    sent: u64,
    received: u64,
}

impl Line {
    /// A connection after its handshake, which gave the key. `from_root`: this side is rank 0.
    pub fn new(stream: TcpStream, key: [u8; 32], from_root: bool) -> Self {
        Self { stream, key, from_root, sent: 0, received: 0 }
    }

    /// Bounds each write.
    pub fn limit(&self, each: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(each))
    }

    /// Whether the peer has closed the connection. Its earlier frames may still be there to be
    /// received, so a look at the received bytes would not tell.
    pub fn is_closed(&self) -> bool {
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut looks = [PollFd::new(&self.stream, ended)];
        let looked = poll(&mut looks, Some(&Timespec::default()));
        looked.is_ok() && looks[0].revents().intersects(ended)
    }

    pub fn send(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).ok().filter(|&n| n as usize <= MAX_FRAME);
        let length = length.ok_or(io::ErrorKind::InvalidInput)?;
        let head = [&[kind][..], &length.to_le_bytes()].concat();
        let mac = self.mac(self.from_root, self.sent, &head, bytes).finalize().into_bytes();
        self.sent += 1;
        self.stream.write_all(&head)?;
        self.stream.write_all(bytes)?;
        self.stream.write_all(&mac)
    }

    pub fn receive(&mut self, until: Instant) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; HEAD];
        read_all(&mut self.stream, &mut head, until)?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > MAX_FRAME || !matches!(head[0], DATA | FAILED) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        read_all(&mut self.stream, &mut bytes, until)?;
        let mut mac = [0; MAC];
        read_all(&mut self.stream, &mut mac, until)?;
        let right = self.mac(!self.from_root, self.received, &head, &bytes);
        right.verify_slice(&mac).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        self.received += 1;
        Ok((head[0], bytes))
    }

    fn mac(&self, from_root: bool, number: u64, head: &[u8], bytes: &[u8]) -> Hmac<Sha256> {
        let mut mac = keyed(&self.key);
        mac.update(&[from_root.into()]);
        mac.update(&number.to_le_bytes());
        mac.update(head);
        mac.update(bytes);
        mac
    }
}

pub(super) fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

pub(super) fn read_all(
    stream: &mut TcpStream,
    mut into: &mut [u8],
    until: Instant,
) -> io::Result<()> {
    while !into.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => into = &mut into[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// What a rank says in two frames, as bytes on the way.
    fn said() -> (Vec<u8>, usize) {
        let (stream, mut on_the_way) = pair();
        let mut rank = Line::new(stream, [7; 32], false);
        rank.send(DATA, b"first").unwrap();
        rank.send(DATA, b"later").unwrap();
        drop(rank);
        let mut bytes = Vec::new();
        on_the_way.read_to_end(&mut bytes).unwrap();
        (bytes, HEAD + 5 + MAC)
    }

    /// What rank 0 hears of these bytes.
    fn heard(bytes: &[u8], key: [u8; 32], from_root: bool) -> Vec<io::Result<(u8, Vec<u8>)>> {
        let (mut stream, end) = pair();
        stream.write_all(bytes).unwrap();
        drop(stream);
        let mut root = Line::new(end, key, from_root);
        let until = Instant::now() + Duration::from_secs(10);
        (0..2).map(|_| root.receive(until)).collect()
    }

    #[test]
    fn a_frame_that_was_changed_repeated_or_left_out_is_an_error() {
        let (bytes, each) = said();
        let right = heard(&bytes, [7; 32], true);
        assert_eq!(right[0].as_ref().unwrap(), &(DATA, b"first".to_vec()));
        assert_eq!(right[1].as_ref().unwrap(), &(DATA, b"later".to_vec()));
        let refused = |heard: &io::Result<_>| {
            heard.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::InvalidData)
        };
        for changed in [0, HEAD + 1, HEAD + 5] {
            let mut bytes = bytes.clone();
            bytes[changed] ^= 3;
            assert!(refused(&heard(&bytes, [7; 32], true)[0]), "byte {changed}");
        }
        let twice = [&bytes[..each], &bytes[..each]].concat();
        assert!(refused(&heard(&twice, [7; 32], true)[1]), "the first said again");
        assert!(refused(&heard(&bytes[each..], [7; 32], true)[0]), "the first left out");
        assert!(refused(&heard(&bytes, [8; 32], true)[0]), "another connection's");
        assert!(refused(&heard(&bytes, [7; 32], false)[0]), "one's own, sent back");
    }
}
