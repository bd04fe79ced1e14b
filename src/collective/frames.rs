//! Frames between two processes of a job, after their handshake: kind, length, bytes, and an HMAC
//! over these and the frame's number, with a key of this connection and direction alone. A frame that
//! was changed, cut off, omitted, replayed, sent back or meant for another connection is an error, and
//! ends the connection's use.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sha2::Sha256;

/// A frame's kinds, and the longest one.
pub(super) const DATA: u8 = 1;
pub(super) const FAILED: u8 = 2;
pub(super) const MAX_FRAME: usize = 64 << 20;
pub(super) const HEAD: usize = 5;
pub(super) const MAC: usize = 32;
/// Bytes that memory is taken for before they have come.
const PIECE: usize = 64 << 10;

/// Keys of the two directions of a connection.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub sends: [u8; 32],
    pub receives: [u8; 32],
}

/// A connection to another process of the job.
pub(super) struct Line {
    stream: TcpStream,
    keys: Keys,
    sent: u64,
    received: u64,
}

impl Line {
    /// A connection after its handshake, which gave the keys.
    pub fn new(stream: TcpStream, keys: Keys) -> Self {
        Self { stream, keys, sent: 0, received: 0 }
    }

    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Whether the peer has closed the connection. Its earlier frames may still be there to be
    /// received, so a look at the received bytes would not tell.
    pub fn is_closed(&self) -> bool {
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut looks = [PollFd::new(&self.stream, ended)];
        let looked = poll(&mut looks, Some(&Timespec::default()));
        looked.is_ok() && looks[0].revents().intersects(ended)
    }

    pub fn send(&mut self, kind: u8, bytes: &[u8], until: Instant) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).ok().filter(|&n| n as usize <= MAX_FRAME);
        let length = length.ok_or(io::ErrorKind::InvalidInput)?;
        let head = [&[kind][..], &length.to_le_bytes()].concat();
        let mac = mac(&self.keys.sends, self.sent, &head, bytes).finalize().into_bytes();
        self.sent += 1;
        [&head, bytes, &mac].into_iter().try_for_each(|part| write_all(&self.stream, part, until))
    }

    pub fn receive(&mut self, until: Instant) -> io::Result<(u8, Vec<u8>)> {
        self.receive_at_most(MAX_FRAME, until)
    }

    /// The same, of a frame of no more than so many bytes; longer ones are [`io::ErrorKind::InvalidData`].
    pub fn receive_at_most(&mut self, most: usize, until: Instant) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; HEAD];
        read_all(&mut self.stream, &mut head, until)?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > most.min(MAX_FRAME) || !matches!(head[0], DATA | FAILED) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let from = bytes.len();
            bytes.resize(length.min(from + PIECE), 0);
            read_all(&mut self.stream, &mut bytes[from..], until)?;
        }
        let mut theirs = [0; MAC];
        read_all(&mut self.stream, &mut theirs, until)?;
        // In constant time.
        let right = mac(&self.keys.receives, self.received, &head, &bytes);
        right.verify_slice(&theirs).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        self.received += 1;
        Ok((head[0], bytes))
    }
}

pub(super) fn mac(key: &[u8; 32], number: u64, head: &[u8], bytes: &[u8]) -> Hmac<Sha256> {
    let mut mac = keyed(key);
    mac.update(&number.to_le_bytes());
    mac.update(head);
    mac.update(bytes);
    mac
}

pub(super) fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// How long until a time; an error when it has come.
fn left(until: Instant) -> io::Result<Option<Duration>> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
}

/// Bounded as a whole: a peer that takes a little now and then does not renew its time.
fn write_all(mut stream: &TcpStream, mut from: &[u8], until: Instant) -> io::Result<()> {
    while !from.is_empty() {
        stream.set_write_timeout(left(until)?)?;
        match stream.write(from) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => from = &from[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(super) fn read_all(
    stream: &mut TcpStream,
    mut into: &mut [u8],
    until: Instant,
) -> io::Result<()> {
    while !into.is_empty() {
        stream.set_read_timeout(left(until)?)?;
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

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn a_peer_that_takes_a_little_now_and_then_holds_up_no_longer_than_others() {
        let (stream, mut slow) = pair();
        let mut rank = Line::new(stream, RANK);
        let takes = std::thread::spawn(move || {
            while slow.read(&mut [0; 64 << 10]).is_ok_and(|n| n > 0) {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let begin = Instant::now();
        let sent = rank.send(DATA, &vec![0; 32 << 20], begin + Duration::from_millis(300));
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
        rank.stream.shutdown(std::net::Shutdown::Both).unwrap();
        drop(rank);
        // What is in the buffers is not waited for.
        drop(takes);
    }

    /// A rank's keys; rank 0 has them the other way round.
    const RANK: Keys = Keys { sends: [7; 32], receives: [9; 32] };
    const ROOT: Keys = Keys { sends: RANK.receives, receives: RANK.sends };
    const SAID: [&[u8]; 2] = [b"first", b"later"];
    const EACH: usize = HEAD + 5 + MAC;

    /// What a rank says in two frames, as bytes on the way.
    fn said() -> Vec<u8> {
        let (stream, mut on_the_way) = pair();
        let mut rank = Line::new(stream, RANK);
        SAID.iter().for_each(|said| rank.send(DATA, said, soon()).unwrap());
        drop(rank);
        let mut bytes = Vec::new();
        on_the_way.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 2 * EACH);
        bytes
    }

    /// What is heard of these bytes, until there is an error.
    fn heard(bytes: &[u8], keys: Keys) -> (Vec<Vec<u8>>, io::ErrorKind) {
        let (mut stream, end) = pair();
        stream.write_all(bytes).unwrap();
        drop(stream);
        let (mut line, mut all) = (Line::new(end, keys), Vec::new());
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            match line.receive(until) {
                Ok((_, bytes)) => all.push(bytes),
                Err(e) => return (all, e.kind()),
            }
        }
    }

    /// Checks that so many frames are heard, and that the next is refused.
    #[track_caller]
    fn refused_after(frames: usize, bytes: &[u8], keys: Keys) {
        let (all, end) = heard(bytes, keys);
        assert_eq!(
            (&all[..], end),
            (&SAID.map(<[u8]>::to_vec)[..frames], io::ErrorKind::InvalidData)
        );
    }

    #[test]
    fn what_was_said_is_heard() {
        let (all, end) = heard(&said(), ROOT);
        assert_eq!((all, end), (SAID.map(<[u8]>::to_vec).into(), io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn a_frame_that_was_changed_is_an_error() {
        // Kind, length, bytes, MAC.
        for changed in [0, 1, HEAD, HEAD + 4, HEAD + 5, EACH - 1] {
            let mut bytes = said();
            bytes[changed] ^= 3;
            let (all, end) = heard(&bytes, ROOT);
            // With another length, what follows is taken for the frame, or misses.
            let wrong = [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof];
            assert!(all.is_empty() && wrong.contains(&end), "byte {changed}: {end}");
        }
    }

    #[test]
    fn a_frame_that_comes_again_or_too_early_or_not_at_all_is_an_error() {
        let bytes = said();
        let (first, later) = bytes.split_at(EACH);
        refused_after(1, &[first, first].concat(), ROOT);
        refused_after(2, &[first, later, first].concat(), ROOT);
        refused_after(2, &[first, later, later].concat(), ROOT);
        refused_after(0, &[later, first].concat(), ROOT);
        refused_after(0, later, ROOT);
    }

    #[test]
    fn a_frame_that_was_cut_off_is_an_error() {
        let bytes = said();
        for end in [EACH + 1, EACH + HEAD, EACH + HEAD + 3, 2 * EACH - 1] {
            let (all, error) = heard(&bytes[..end], ROOT);
            assert_eq!((all.len(), error), (1, io::ErrorKind::UnexpectedEof), "{end} bytes");
        }
        // Bytes left out of the middle.
        for at in [1, HEAD, EACH - 1] {
            refused_after(0, &[&bytes[..at], &bytes[at + 1..]].concat(), ROOT);
        }
    }

    #[test]
    fn a_frame_of_another_connection_or_direction_is_an_error() {
        let bytes = said();
        refused_after(0, &bytes, RANK); // sent back to the rank that said it
        refused_after(0, &bytes, Keys { receives: [8; 32], ..ROOT });
    }

    #[test]
    fn a_frame_longer_than_the_longest_is_an_error_at_once() {
        let announced = [&[DATA][..], &(MAX_FRAME as u32).to_le_bytes(), &[0; 100]].concat();
        assert_eq!(heard(&announced, ROOT), (vec![], io::ErrorKind::UnexpectedEof));
        let longer = [&[DATA][..], &(MAX_FRAME as u32 + 1).to_le_bytes(), &[0; 100]].concat();
        refused_after(0, &longer, ROOT);
    }
}
