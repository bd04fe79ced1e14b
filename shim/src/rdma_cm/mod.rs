//! `/dev/infiniband/rdma_cm`: connections by librdmacm.
//!
//! A program's descriptor is the reading end of a pipe, in which there is a byte as long as there are
//! events: `poll` and `epoll` are the system's own. Commands come by `write`. What they mean is in
//! `bellpush_cm`; here is what it needs of the world: a thread that has the time, and the devices'
//! queue pairs 1.
//!
//! | file | what |
//! |---|---|
//! | `abi` | the kernel's structs |
//! | `commands` | commands: copied out, then checked |
//! | `claims` | ports, as other processes of an address see them |
//! | `answers` | what queries and events say |

mod abi;
mod answers;
mod claims;
mod commands;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bellpush_cm::{self as cm, ChannelId, DeviceInfo, Ids, Offer};
use bellpush_soft_nic::Random;
use bellpush_soft_nic::link::{Notice, Share};
use bellpush_wire::cm::MAD_BYTES;

use self::claims::Claims;
use crate::device::Device;
use crate::error::Refusal;
use crate::events::EventPipe;
use crate::files::Kind;
use crate::layout;
use crate::process::{Process, lock_until};
use crate::thread::Quiet;

pub use abi::VERSION;
#[cfg(test)]
pub use abi::command;
pub use commands::{MAX_COMMAND_BYTES, Named, Outcome};

/// Messages that wait for the thread at most; like any datagram, those beyond are lost.
const MOST_MESSAGES: usize = 1024;
/// How often devices that nobody needs any more are asked whether they have sent everything.
const UNSENT: Duration = Duration::from_millis(20);
/// How long a program that ends waits until its peers were told.
const FAREWELL: Duration = Duration::from_millis(50);

/// How long a command waits until what came of it is sent.
const SENDING: Duration = Duration::from_millis(20);

/// What the thread is told.
enum Note {
    /// A management datagram came to a device.
    Message { device: usize, from: IpAddr, mad: Box<[u8; MAD_BYTES]> },
    /// Something may be due earlier than it was.
    Wake,
}

/// An open file of the device.
pub struct CmFile {
    channel: ChannelId,
    pipe: EventPipe,
    /// Whether there is a byte in the pipe. Changes under the state's lock.
    is_ready: AtomicBool,
}

impl CmFile {
    fn set_ready(&self, ready: bool) {
        if self.is_ready.swap(ready, Ordering::Relaxed) == ready {
            return;
        }
        match ready {
            true => self.pipe.push(&[0]),
            false => drop(self.pipe.purge(|_| true)),
        }
    }
}

/// What the process has of it.
struct State {
    ids: Ids,
    devices: Vec<Option<Arc<Device>>>,
    files: HashMap<ChannelId, Arc<CmFile>>,
    claims: Claims,
}

/// Connection management of a process.
pub struct RdmaCm {
    state: Mutex<State>,
    begin: Instant,
    notes: SyncSender<Note>,
    next_channel: AtomicU64,
}

impl RdmaCm {
    /// Starts the thread.
    pub fn start(devices: usize) -> Result<Arc<Self>, Refusal> {
        let random = Random::system();
        let random = random.map_err(|source| Refusal::System { call: "getrandom", source })?;
        let (notes, inbox) = sync_channel(MOST_MESSAGES);
        let ids = Ids::new(cm::Random::of(move || random.number()));
        let (devices, files, claims) = (vec![None; devices], HashMap::new(), Claims::default());
        let state = State { ids, devices, files, claims };
        let (state, begin, next_channel) = (Mutex::new(state), Instant::now(), AtomicU64::new(0));
        let cm = Arc::new(Self { state, begin, notes, next_channel });
        let own = cm.clone();
        let quiet = Quiet::new();
        let spawned =
            std::thread::Builder::new().name("bellpush-cm".into()).spawn(move || own.run(&inbox));
        drop(quiet);
        spawned.map_err(|source| Refusal::System { call: "a thread", source })?;
        Ok(cm)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// The thread: messages and time.
    fn run(&self, inbox: &Receiver<Note>) {
        loop {
            let note = match self.wait() {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => inbox.recv_timeout(wait),
            };
            let mut state = self.state();
            match note {
                Ok(Note::Message { device, from, mad }) => {
                    state.ids.receive(self.now_ns(), device, from, &mad[..]);
                }
                Ok(Note::Wake) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            state.ids.poll(self.now_ns());
            flush(&mut state);
            release(&mut state);
            let unused = take_unused(&mut state);
            drop(state);
            // Their engines end, which may be about to tell of a message.
            drop(unused);
        }
    }

    /// How long the thread has nothing to do, unless it is told something.
    fn wait(&self) -> Option<Duration> {
        let state = self.state();
        let due = state.ids.due_ns();
        let wait = due.map(|due| Duration::from_nanos(due.saturating_sub(self.now_ns())));
        // Nobody tells when the last message is sent.
        let goes = state.files.is_empty() && state.devices.iter().any(Option::is_some);
        let goes = goes || state.claims.has_left();
        goes.then_some(UNSENT).into_iter().chain(wait).min()
    }

    /// Opens the device; what comes back is the program's descriptor.
    pub fn open(&self, process: &Process) -> Result<OwnedFd, Refusal> {
        let (pipe, reader) = EventPipe::new(1)?;
        let reader = std::fs::File::from(reader);
        let channel = ChannelId(self.next_channel.fetch_add(1, Ordering::Relaxed));
        let file = Arc::new(CmFile { channel, pipe, is_ready: AtomicBool::new(false) });
        process.files.add(&reader, Kind::RdmaCm(file.clone()))?;
        let mut state = self.state();
        state.ids.open(channel);
        state.files.insert(channel, file);
        Ok(reader.into())
    }

    /// The program's last descriptor of a file is gone.
    pub fn close(&self, file: &CmFile) {
        let mut state = self.state();
        state.ids.close(self.now_ns(), file.channel);
        state.files.remove(&file.channel);
        self.finish(state);
    }

    /// The program ends: its peers are told.
    pub fn farewell(&self) {
        let until = Instant::now() + FAREWELL;
        let Some(mut state) = lock_until(&self.state, until) else { return };
        for channel in state.files.keys().copied().collect::<Vec<_>>() {
            state.ids.close(self.now_ns(), channel);
        }
        flush(&mut state);
        let devices: Vec<_> = state.devices.iter().flatten().cloned().collect();
        drop(state);
        while devices.iter().any(|device| !device.nic.has_sent_mads()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        // An engine of a process that ends goes with it.
        std::mem::forget(devices);
    }

    /// Ends a command: what came of it is sent and told. A program may end right behind it, past all
    /// handlers, and other processes of its address may hear from it that it listens.
    fn finish(&self, mut state: MutexGuard<'_, State>) {
        flush(&mut state);
        let unsent = |device: &&Arc<Device>| !device.nic.has_sent_mads();
        let devices: Vec<_> = state.devices.iter().flatten().filter(unsent).cloned().collect();
        let has_left = state.claims.has_left();
        drop(state);
        send_now(&devices);
        if has_left {
            release(&mut self.state());
        }
        // A full inbox wakes the thread as well.
        let _ = self.notes.try_send(Note::Wake);
    }

    /// Has all of the process's devices, opened where they are not: the first at the address that is
    /// asked for, if it is one of this machine's own and no other is given.
    fn attach(
        &self,
        process: &Process,
        state: &mut State,
        at: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        for index in 0..state.devices.len() {
            if state.devices[index].is_some() {
                continue;
            }
            let wanted = at.filter(|at| index == 0 && at.is_loopback());
            let device = process.device(index, wanted)?;
            let notes = self.notes.clone();
            // Of a device that was attached before, the thread is told already.
            device.nic.tell_mads(Box::new(move |from, mad| {
                let _ = notes.try_send(Note::Message { device: index, from, mad: Box::new(*mad) });
            }));
            let (address, guid) = (device.address, u64::from_be_bytes(layout::guid(index)));
            let mtu = mtu_code(device.mtu.bytes());
            state.ids.attach(index, DeviceInfo { address, guid, mtu });
            if let Some((first, count)) = device.nic.share().map(Share::ids) {
                state.ids.confine(index, first, count);
            }
            state.devices[index] = Some(device);
        }
        Ok(())
    }
}

/// A path MTU by its code: 1 is 256 bytes.
fn mtu_code(bytes: usize) -> u8 {
    (bytes.ilog2() - 7) as u8
}

/// Sends what is to be sent, and has descriptors say whether they have events.
fn flush(state: &mut State) {
    while let Some(send) = state.ids.next_send() {
        if let Some(Some(device)) = state.devices.get(send.device) {
            // What finds no room is lost, like any datagram, and sent again.
            let _ = device.nic.send_mad(send.to, send.mad);
        }
    }
    while let Some(Offer { device, service, offered }) = state.ids.next_offer() {
        if !offered {
            state.claims.leave(device, service);
        }
        if let Some(Some(device)) = state.devices.get(device) {
            let notice = if offered { Notice::Offers } else { Notice::Withdraws };
            device.nic.notice(notice(service));
        }
    }
    while let Some((channel, ready)) = state.ids.next_changed() {
        if let Some(file) = state.files.get(&channel) {
            file.set_ready(ready);
        }
    }
}

/// Gives ports free that nothing listens at any more, once their devices have sent that.
fn release(state: &mut State) {
    let State { devices, claims, .. } = state;
    let has_sent = |device: &Arc<Device>| device.nic.has_sent_mads();
    claims.release(|index| devices[index].as_ref().is_none_or(has_sent));
}

/// Has messages sent, in the calling thread where the engine has other things to do.
fn send_now(devices: &[Arc<Device>]) {
    let begin = Instant::now();
    for device in devices {
        device.driver.send();
        while !device.nic.has_sent_mads() && begin.elapsed() < SENDING {
            std::thread::sleep(Duration::from_micros(50));
            device.driver.send();
        }
    }
}

/// Devices that no identifier and no peer needs any more. What they have yet to send, they send.
fn take_unused(state: &mut State) -> Vec<Arc<Device>> {
    let sent = state.devices.iter().flatten().all(|device| device.nic.has_sent_mads());
    if !state.files.is_empty() || !sent || !state.ids.detach_idle() {
        return Vec::new();
    }
    state.devices.iter_mut().filter_map(Option::take).collect()
}

/// Opens the device in a program.
pub fn open(process: &'static Process) -> Result<i32, Refusal> {
    process.sweep();
    let cm = process.rdma_cm()?;
    Ok(cm.open(process)?.into_raw_fd())
}
