//! The baseline without RDMA: payload is copied to host memory and written to a TCP connection.
//!
//! A frame is three little-endian 64-bit words (kind, offset, bytes) and, for a put, the payload. A
//! flush is answered with the number of frames handled, once all of them are in memory.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::endpoint::{Address, Link};
use super::{Error, Memory, Options};
use crate::gpu::{Event, Gpu, Mapped, Stream};
use crate::mem::Dma;
use crate::wire::Rkey;

const PUT: u64 = 1;
const ADD: u64 = 2;
const FLUSH: u64 = 3;
/// Bytes staged at a time; two pieces are in flight, one being copied, one being written.
const PIECE: usize = 256 << 10;

pub(super) struct Tcp {
    local: Memory,
    staging: Mapped,
    copied: [Event; 2],
    timeout: Duration,
    listening: SocketAddr,
    receiver: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    sender: Mutex<Option<Sender>>,
}

struct Sender {
    stream: TcpStream,
    frames: u64,
    buffer: Vec<u8>,
}

fn tcp(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Tcp { what, source }
}

impl Tcp {
    pub fn new(gpu: &Arc<Gpu>, local: Memory, options: &Options) -> Result<Self, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(tcp("cannot listen"))?;
        let listening = listener.local_addr().map_err(tcp("cannot listen"))?;
        listener.set_nonblocking(true).map_err(tcp("cannot listen"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (memory, stopped) = (local.dma()?, stop.clone());
        let receiver = std::thread::Builder::new()
            .name("bellpush-tcp".into())
            .spawn(move || {
                // A connection that breaks ends the receiver; the sender notices at its flush.
                let _ = receive(&listener, &*memory, &stopped);
            })
            .map_err(tcp("cannot start the receiving thread"))?;
        Ok(Self {
            local,
            staging: gpu.alloc_mapped(2 * PIECE, options.host_numa)?,
            copied: [gpu.event()?, gpu.event()?],
            timeout: options.timeout,
            listening,
            receiver: Some(receiver),
            stop,
            sender: Mutex::new(None),
        })
    }

    pub fn address(&self) -> Address {
        let bytes = self.local.bytes() as u64;
        Address { link: Link::Tcp(self.listening), iova: 0, rkey: Rkey(0), bytes }
    }

    pub fn connect(&mut self, to: SocketAddr) -> Result<(), Error> {
        let stream =
            TcpStream::connect_timeout(&to, self.timeout).map_err(tcp("cannot connect"))?;
        stream.set_nodelay(true).map_err(tcp("cannot connect"))?;
        stream.set_read_timeout(Some(self.timeout)).map_err(tcp("cannot connect"))?;
        stream.set_write_timeout(Some(self.timeout)).map_err(tcp("cannot connect"))?;
        *self.lock() = Some(Sender { stream, frames: 0, buffer: vec![0; PIECE] });
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Sender>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn put(&self, stream: &Stream, local: u64, remote: u64, bytes: u64) -> Result<(), Error> {
        let mut guard = self.lock();
        let sender = guard.as_mut().ok_or(Error::NotConnected)?;
        sender.frame(PUT, remote, bytes)?;
        let pieces: Vec<(u64, usize)> = (0..bytes)
            .step_by(PIECE)
            .map(|at| (local + at, (bytes - at).min(PIECE as u64) as usize))
            .collect();
        let Memory::Device(device) = &self.local else {
            stream.synchronize(self.timeout)?; // the work that wrote the payload
            for (at, n) in pieces {
                self.local.read(at as usize, &mut sender.buffer[..n])?;
                sender.write_buffer(n)?;
            }
            return Ok(());
        };
        let stage = |i: usize| -> Result<(), Error> {
            let (at, n) = pieces[i];
            stream.copy_to_host(device, at as usize, &self.staging, i % 2 * PIECE, n)?;
            Ok(stream.record(&self.copied[i % 2])?)
        };
        stage(0)?;
        for i in 0..pieces.len() {
            if i + 1 < pieces.len() {
                stage(i + 1)?;
            }
            self.copied[i % 2].wait(self.timeout)?;
            let n = pieces[i].1;
            let staged = self.staging.host().ok_or(Error::NotConnected)?;
            staged.read(i % 2 * PIECE, &mut sender.buffer[..n])?;
            sender.write_buffer(n)?;
        }
        Ok(())
    }

    pub fn add(&self, offset: u64, value: u64) -> Result<(), Error> {
        let mut guard = self.lock();
        guard.as_mut().ok_or(Error::NotConnected)?.frame(ADD, offset, value)
    }

    pub fn quiet(&self) -> Result<(), Error> {
        let mut guard = self.lock();
        let sender = guard.as_mut().ok_or(Error::NotConnected)?;
        sender.frame(FLUSH, 0, 0)?;
        let mut answer = [0; 8];
        sender.stream.read_exact(&mut answer).map_err(tcp("no answer from the peer"))?;
        if u64::from_le_bytes(answer) != sender.frames {
            let source = io::Error::new(ErrorKind::InvalidData, "the peer lost frames");
            return Err(Error::Tcp { what: "flush", source });
        }
        Ok(())
    }
}

impl Sender {
    fn frame(&mut self, kind: u64, offset: u64, bytes: u64) -> Result<(), Error> {
        let mut header = [0; 24];
        for (word, value) in header.chunks_exact_mut(8).zip([kind, offset, bytes]) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        self.stream.write_all(&header).map_err(tcp("cannot send"))?;
        self.frames += 1;
        Ok(())
    }

    fn write_buffer(&mut self, n: usize) -> Result<(), Error> {
        self.stream.write_all(&self.buffer[..n]).map_err(tcp("cannot send"))
    }
}

/// Takes one connection and handles its frames until it ends or `stop` is set.
fn receive(listener: &TcpListener, memory: &dyn Dma, stop: &AtomicBool) -> io::Result<()> {
    let mut peer = loop {
        match listener.accept() {
            Ok((peer, _)) => break peer,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e),
        }
    };
    peer.set_nonblocking(false)?;
    peer.set_nodelay(true)?;
    // Wakes the reader now and then to look at `stop`.
    peer.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut buffer = vec![0; PIECE];
    let mut frames = 0u64;
    loop {
        let mut header = [0; 24];
        read_exact(&mut peer, &mut header, stop)?;
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
            FLUSH => peer.write_all(&frames.to_le_bytes())?,
            _ => return Err(bad("unknown frame")),
        }
    }
}

/// `read_exact` that looks at `stop` whenever nothing comes for a while.
fn read_exact(peer: &mut TcpStream, mut into: &mut [u8], stop: &AtomicBool) -> io::Result<()> {
    while !into.is_empty() {
        match peer.read(into) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => into = &mut into[n..],
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if stop.load(Ordering::Relaxed) {
                    return Err(e);
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        *self.lock() = None;
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
