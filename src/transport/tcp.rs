//! The baseline without RDMA: payload is copied to host memory and written to a TCP connection.
//!
//! A connection begins with the listener's key, a random number of 128 bits: others that connect are
//! sent away, and whoever has the key is the peer. A frame is three little-endian 64-bit words (kind, offset, bytes) and, for a put, the payload. A
//! flush is answered with the number of frames handled, once all of them are in memory.

use std::any::Any;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::endpoint::{Address, Link};
use super::order::OneStream;
use super::{Error, Memory, Options, Put};
use crate::gpu::{Event, Gpu, Mapped, Stream};
use crate::mem::{Dma, own_thread};
use crate::nic::soft::Random;
use crate::wire::Rkey;

const PUT: u64 = 1;
const ADD: u64 = 2;
const FLUSH: u64 = 3;
/// Bytes staged at a time; two pieces are in flight, one being copied, one being written.
const PIECE: usize = 256 << 10;
/// How long who connects may take to show the key. The peer writes it at once.
const SHOWS: Duration = Duration::from_secs(1);
/// Who may be about to show it at a time; of more the oldest is sent away.
const STRANGERS: usize = 256;

pub(super) struct Tcp {
    local: Memory,
    staging: Mapped,
    copied: [Event; 2],
    timeout: Duration,
    listening: SocketAddr,
    key: u128,
    receiver: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    /// Why nothing is received any more, unless the peer went in good order.
    deaf: Arc<OnceLock<Ended>>,
    /// Held by whoever calls: callers on several threads come one after the other.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    order: OneStream,
    sender: Option<Sender>,
    /// Why nothing can be sent any more: a frame was sent in part, or an answer is outstanding.
    mute: Option<Ended>,
}

struct Sender {
    stream: TcpStream,
    /// Bound of each header, piece of a payload, and answer.
    timeout: Duration,
    frames: u64,
    buffer: Vec<u8>,
}

/// What ended a direction of the connection.
#[derive(Clone)]
struct Ended {
    what: &'static str,
    kind: ErrorKind,
    why: String,
}

impl From<Ended> for Error {
    fn from(Ended { what, kind, why }: Ended) -> Self {
        Error::Tcp { what, source: io::Error::new(kind, why) }
    }
}

fn tcp(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Tcp { what, source }
}

impl Tcp {
    pub fn new(gpu: &Arc<Gpu>, local: Memory, options: &Options) -> Result<Self, Error> {
        let memory = local.dma();
        Self::receiving_into(gpu, local, memory, options)
    }

    fn receiving_into(
        gpu: &Arc<Gpu>,
        local: Memory,
        memory: Arc<dyn Dma>,
        options: &Options,
    ) -> Result<Self, Error> {
        let staging = gpu.alloc_mapped(2 * PIECE, options.host_numa)?;
        let copied = [gpu.event()?, gpu.event()?];
        let random = Random::system().map_err(tcp("cannot listen"))?;
        let key = (0..4).fold(0, |key, _| key << 32 | u128::from(random.number()));
        let listener = TcpListener::bind((options.tcp_listen, 0)).map_err(tcp("cannot listen"))?;
        let listening = listener.local_addr().map_err(tcp("cannot listen"))?;
        listener.set_nonblocking(true).map_err(tcp("cannot listen"))?;
        let (stop, deaf) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::new()));
        let (stopped, says) = (stop.clone(), deaf.clone());
        // Last of what may fail: the thread ends when an endpoint is dropped.
        let receiver = std::thread::Builder::new()
            .name("bellpush-tcp".into())
            .spawn(move || {
                own_thread::mark();
                // Whatever ends it closes the connection, which the peer notices; this end's own calls say why.
                let received =
                    catch_unwind(AssertUnwindSafe(|| receive(&listener, key, &*memory, &stopped)));
                let (kind, why) = match received {
                    Ok(Ok(())) => return,
                    Ok(Err(e)) => (e.kind(), e.to_string()),
                    Err(panic) => (ErrorKind::Other, panicked(&*panic)),
                };
                let _ = says.set(Ended { what: "receiving ended", kind, why }); // the only one who sets it
            })
            .map_err(tcp("cannot start the receiving thread"))?;
        Ok(Self {
            local,
            staging,
            copied,
            timeout: options.timeout,
            listening,
            key,
            receiver: Some(receiver),
            stop,
            deaf,
            state: Mutex::default(),
        })
    }

    pub fn address(&self) -> Address {
        let bytes = self.local.bytes() as u64;
        let link = Link::Tcp { listener: self.listening, key: self.key };
        Address { link, iova: 0, rkey: Rkey(0), bytes }
    }

    pub fn connect(&mut self, to: SocketAddr, key: u128) -> Result<(), Error> {
        let mut stream =
            TcpStream::connect_timeout(&to, self.timeout).map_err(tcp("cannot connect"))?;
        stream.set_nodelay(true).map_err(tcp("cannot connect"))?;
        stream.set_read_timeout(Some(self.timeout)).map_err(tcp("cannot connect"))?;
        stream.set_write_timeout(Some(self.timeout)).map_err(tcp("cannot connect"))?;
        stream.write_all(&key.to_le_bytes()).map_err(tcp("cannot connect"))?;
        let sender =
            Some(Sender { stream, timeout: self.timeout, frames: 0, buffer: vec![0; PIECE] });
        *self.lock() = State { sender, ..State::default() };
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the connection ended, if it did.
    pub fn failure(&self) -> Option<Error> {
        self.ended(&self.lock()).err()
    }

    fn ended(&self, state: &State) -> Result<(), Error> {
        let ended = self.deaf.get().or(state.mute.as_ref());
        ended.map_or(Ok(()), |ended| Err(ended.clone().into()))
    }

    /// One call. It is over when it returns, so any stream may come next; unless it failed.
    fn call(
        &self,
        stream: &Stream,
        send: impl FnOnce(&mut State) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut state = self.lock();
        state.order.admit(stream)?;
        self.ended(&state)?;
        let sent = send(&mut state);
        if sent.is_err() {
            state.order.queued(stream);
        }
        sent
    }

    pub fn put(&self, stream: &Stream, put: Put) -> Result<(), Error> {
        self.call(stream, |state| {
            self.write(state, stream, &put)?;
            let Some(signal) = put.signal else { return Ok(()) };
            state.send(|sender| sender.frame(ADD, signal.word.0, signal.add))
        })
    }

    fn write(&self, state: &mut State, stream: &Stream, put: &Put) -> Result<(), Error> {
        let (local, remote, bytes) = (put.from.0, put.to.0, put.bytes);
        let pieces: Vec<(u64, usize)> = (0..bytes)
            .step_by(PIECE)
            .map(|at| (local + at, (bytes - at).min(PIECE as u64) as usize))
            .collect();
        let Memory::Device(device) = &self.local else {
            stream.synchronize(self.timeout)?; // the work that wrote the payload
            return state.send(|sender| {
                sender.frame(PUT, remote, bytes)?;
                for (at, n) in pieces {
                    self.local.read(at as usize, &mut sender.buffer[..n])?;
                    sender.write_buffer(n)?;
                }
                Ok(())
            });
        };
        let stage = |i: usize| -> Result<(), Error> {
            let (at, n) = pieces[i];
            stream.copy_to_host(device, at as usize, &self.staging, i % 2 * PIECE, n)?;
            Ok(stream.record(&self.copied[i % 2])?)
        };
        stage(0)?;
        // Before the frame begins: it cannot be taken back.
        self.copied[0].wait(self.timeout)?;
        state.send(|sender| {
            sender.frame(PUT, remote, bytes)?;
            for (i, (_, n)) in pieces.iter().enumerate() {
                if i + 1 < pieces.len() {
                    stage(i + 1)?;
                }
                self.copied[i % 2].wait(self.timeout)?;
                self.staging.host().read(i % 2 * PIECE, &mut sender.buffer[..*n])?;
                sender.write_buffer(*n)?;
            }
            Ok(())
        })
    }

    pub fn quiet(&self, stream: &Stream) -> Result<(), Error> {
        let mut state = self.lock();
        state.order.admit(stream)?;
        if state.order.is_busy() {
            stream.synchronize(self.timeout)?; // copies of a put that failed
            state.order.waited();
        }
        self.ended(&state)?;
        state.send(|sender| {
            sender.frame(FLUSH, 0, 0)?;
            let answer = sender.answer().map_err(tcp("no answer from the peer"))?;
            if answer != sender.frames {
                let source = io::Error::new(ErrorKind::InvalidData, "the peer lost frames");
                return Err(Error::Tcp { what: "flush", source });
            }
            Ok(())
        })
    }
}

/// What a panic said.
fn panicked(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the receiving thread panicked: {}", said.unwrap_or("(no message)"))
}

impl State {
    /// Sends frames. One that was sent in part, or whose answer may still come, ends the connection: what
    /// came after it would be taken for its rest.
    fn send(&mut self, frames: impl FnOnce(&mut Sender) -> Result<(), Error>) -> Result<(), Error> {
        let sender = self.sender.as_mut().ok_or(Error::NotConnected)?;
        frames(sender).inspect_err(|error| {
            let kind = match error {
                Error::Tcp { source, .. } => source.kind(),
                _ => ErrorKind::Other,
            };
            let what = "an earlier call failed half-way";
            self.mute.get_or_insert(Ended { what, kind, why: error.to_string() });
            let _ = sender.stream.shutdown(Shutdown::Both); // the peer need not wait; it may be gone
        })
    }
}

impl Sender {
    fn frame(&mut self, kind: u64, offset: u64, bytes: u64) -> Result<(), Error> {
        let mut header = [0; 24];
        for (word, value) in header.chunks_exact_mut(8).zip([kind, offset, bytes]) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        self.whole(header.len(), |mut stream, done| stream.write(&header[done..]))
            .map_err(tcp("cannot send"))?;
        self.frames += 1;
        Ok(())
    }

    /// The answer to a flush.
    fn answer(&self) -> io::Result<u64> {
        let mut answer = [0; 8];
        self.whole(answer.len(), |mut stream, done| stream.read(&mut answer[done..]))?;
        Ok(u64::from_le_bytes(answer))
    }

    fn write_buffer(&self, n: usize) -> Result<(), Error> {
        self.whole(n, |mut stream, done| stream.write(&self.buffer[done..n]))
            .map_err(tcp("cannot send"))
    }

    /// Reads or writes `bytes` bytes: one wait, however many parts they go in. A peer that takes or
    /// gives a byte now and then does not make it longer.
    fn whole(
        &self,
        bytes: usize,
        mut part: impl FnMut(&TcpStream, usize) -> io::Result<usize>,
    ) -> io::Result<()> {
        let (mut done, since) = (0, Instant::now());
        while done < bytes {
            if since.elapsed() >= self.timeout {
                return Err(ErrorKind::TimedOut.into());
            }
            match part(&self.stream, done) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Takes the connection of whoever has the key and handles its frames until it ends between two of them, or `stop` is
/// set.
fn receive(
    listener: &TcpListener,
    key: u128,
    memory: &dyn Dma,
    stop: &AtomicBool,
) -> io::Result<()> {
    let Some(mut peer) = accept(listener, key, stop)? else { return Ok(()) };
    let mut buffer = vec![0; PIECE];
    let mut frames = 0u64;
    loop {
        let mut header = [0; 24];
        match read_exact(&mut peer, &mut header[..1], stop) {
            Err(_) if stop.load(Ordering::Relaxed) => return Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return Ok(());
            }
            first => first?,
        }
        read_exact(&mut peer, &mut header[1..], stop)?;
        let word = |i: usize| {
            let bytes = header[i * 8..][..8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let (kind, offset, bytes) = (word(0), word(1), word(2));
        frames += 1;
        let bad = |why| io::Error::new(ErrorKind::InvalidData, why);
        match kind {
            PUT => {
                // The peer is a stranger: what it says of offsets is checked by the memory, before
                // a byte of the payload is taken.
                let end = offset.checked_add(bytes).ok_or_else(|| bad("range"))?;
                if end > memory.bytes() as u64 {
                    return Err(bad("range"));
                }
                let mut at = offset;
                while at < end {
                    let n = (end - at).min(PIECE as u64) as usize;
                    read_exact(&mut peer, &mut buffer[..n], stop)?;
                    memory.write(at as usize, &buffer[..n]).map_err(io::Error::other)?;
                    at += n as u64;
                }
            }
            ADD => {
                memory.fetch_add(offset as usize, bytes).map_err(io::Error::other)?;
            }
            FLUSH => {
                let answer = frames.to_le_bytes();
                moved(answer.len(), stop, |done| peer.write(&answer[done..]))?;
            }
            _ => return Err(bad("unknown frame")),
        }
    }
}

/// The connection of whoever shows the key first; `None` when `stop` is set. Strangers are no error,
/// and those that say nothing keep nobody waiting.
fn accept(listener: &TcpListener, key: u128, stop: &AtomicBool) -> io::Result<Option<TcpStream>> {
    let mut waiting = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let came = match listener.accept() {
            Ok((stream, _)) => Some(stream),
            Err(e) if e.kind() == ErrorKind::WouldBlock => None,
            Err(e) => return Err(e),
        };
        let is_idle = came.is_none();
        waiting.extend(came.and_then(|stream| Stranger::new(stream).ok()));
        if waiting.len() > STRANGERS {
            waiting.pop_front();
        }
        let mut i = 0;
        while let Some(stranger) = waiting.get_mut(i) {
            match stranger.shows(key) {
                None => i += 1,
                Some(false) => drop(waiting.remove(i)),
                Some(true) => return waiting.remove(i).map(Stranger::becomes_peer).transpose(),
            }
        }
        if is_idle {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(None)
}

/// Who has connected and not shown all of the key.
struct Stranger {
    stream: TcpStream,
    until: Instant,
    shown: [u8; 16],
    len: usize,
}

impl Stranger {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, until: Instant::now() + SHOWS, shown: [0; 16], len: 0 })
    }

    /// Whether it has the key; `None` as long as it may still show it.
    fn shows(&mut self, key: u128) -> Option<bool> {
        while self.len < self.shown.len() {
            match self.stream.read(&mut self.shown[self.len..]) {
                Ok(0) => return Some(false),
                Ok(n) => self.len += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < self.until => {
                    return None;
                }
                Err(_) => return Some(false),
            }
        }
        // All bits are compared, whichever differ.
        Some(std::hint::black_box(u128::from_le_bytes(self.shown) ^ key) == 0)
    }

    fn becomes_peer(self) -> io::Result<TcpStream> {
        let stream = self.stream;
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        // Both end now and then, to look at `stop`.
        stream.set_read_timeout(Some(Duration::from_millis(50)))?;
        stream.set_write_timeout(Some(Duration::from_millis(50)))?;
        Ok(stream)
    }
}

fn read_exact(peer: &mut TcpStream, into: &mut [u8], stop: &AtomicBool) -> io::Result<()> {
    moved(into.len(), stop, |done| peer.read(&mut into[done..]))
}

/// Reads or writes, `part` by part, `bytes` bytes. Looks at `stop` before each, so that a peer keeps it neither by
/// sending all the time nor by taking nothing.
fn moved(
    bytes: usize,
    stop: &AtomicBool,
    mut part: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        if stop.load(Ordering::Relaxed) {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        match part(done) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(e) => match e.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return Err(e),
            },
        }
    }
    Ok(())
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.lock().sender = None;
        if let Some(receiver) = self.receiver.take() {
            let until = Instant::now() + Duration::from_secs(1);
            while !receiver.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if receiver.is_finished() {
                let _ = receiver.join();
            }
        }
    }
}

#[cfg(test)]
#[path = "tcp_tests.rs"]
mod tests;
