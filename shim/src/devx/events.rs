//! Event channels of DEVX (`mlx5dv_devx_create_event_channel`): events of objects that were made through DEVX, and the
//! port's, as the device words them (mlx5 PRM, "Events").

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bellpush_mem::hidden::Hidden;
use bellpush_nic::QueuePair;
use bellpush_soft_nic::Event;

use crate::abi::ids::attr;
use crate::commands::{Command, Undo};
use crate::context::Object;
use crate::device::Source;
use crate::error::Refusal;
use crate::events::EventPipe;
use crate::files::Kind;
use crate::real;

/// `MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA`: events are their cookies alone.
const OMIT_DATA: u64 = 1 << 0;
/// Bytes of `struct mlx5_ib_uapi_devx_async_event_hdr`: the cookie.
const COOKIE_BYTES: usize = 8;
/// Bytes of an event as the device words it (`struct mlx5_eqe`).
const EQE_BYTES: usize = 64;
/// Types of a subscription at most, as of the kernel.
const MOST_TYPES: usize = 255;

/// Types of events, `MLX5_EVENT_TYPE_*`.
mod kind {
    pub const COMPLETION: u16 = 0x0;
    pub const ESTABLISHED: u16 = 0x2;
    pub const SQ_DRAINED: u16 = 0x3;
    pub const CQ_ERROR: u16 = 0x4;
    pub const WQ_FATAL: u16 = 0x5;
    pub const DEVICE_FATAL: u16 = 0x8;
    pub const PORT_CHANGE: u16 = 0x9;
    pub const WQ_REQUEST: u16 = 0x10;
    pub const WQ_ACCESS: u16 = 0x11;
    pub const LAST_WQE: u16 = 0x13;
    pub const SRQ_LIMIT: u16 = 0x14;

    /// What queue pairs have.
    pub const OF_QP: [u16; 6] =
        [ESTABLISHED, SQ_DRAINED, WQ_FATAL, WQ_REQUEST, WQ_ACCESS, LAST_WQE];
    /// What CQs have.
    pub const OF_CQ: [u16; 2] = [COMPLETION, CQ_ERROR];
    /// What pools have.
    pub const OF_RMP: [u16; 1] = [SRQ_LIMIT];
    /// What the device has.
    pub const OF_DEVICE: [u16; 2] = [DEVICE_FATAL, PORT_CHANGE];
}

/// Who is told of an event.
#[derive(Clone)]
enum Target {
    /// The channel, with the subscriber's cookie.
    Channel(u64),
    /// An `eventfd` of the program's.
    Counter(Arc<Hidden<File>>),
}

#[derive(Clone)]
struct Subscription {
    types: Vec<u16>,
    /// The channel that it was made through, with which it ends.
    channel: Weak<EventPipe>,
    target: Target,
}

/// Who wants what of which object; without an object, of the device.
#[derive(Default)]
pub struct Subscriptions(Mutex<HashMap<Option<Source>, Vec<Subscription>>>);

impl Subscriptions {
    fn lock(&self) -> MutexGuard<'_, HashMap<Option<Source>, Vec<Subscription>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects of which somebody is told, but for the device.
    #[cfg(any(test, fuzzing))]
    pub fn count(&self) -> usize {
        self.lock().keys().flatten().count()
    }

    /// Nobody is told of an object any more.
    pub fn remove(&self, source: Source) {
        self.lock().remove(&Some(source));
    }

    /// Forgets subscriptions whose channel is closed: they hold descriptors.
    pub fn sweep(&self) {
        self.lock().retain(|_, all| {
            all.retain(|it| it.channel.strong_count() > 0);
            !all.is_empty()
        });
    }

    /// Tells of an event of the NIC's.
    pub fn tell(&self, what: Event) {
        let qp = |qpn: bellpush_wire::Qpn| Some(Source::Qp(qpn.0));
        let (source, of, subtype) = match what {
            Event::QpFatal(qpn) => (qp(qpn), kind::WQ_FATAL, 0),
            Event::QpRequest(qpn) => (qp(qpn), kind::WQ_REQUEST, 0),
            Event::QpAccess(qpn) => (qp(qpn), kind::WQ_ACCESS, 0),
            Event::Established(qpn) => (qp(qpn), kind::ESTABLISHED, 0),
            Event::SqDrained(qpn) => (qp(qpn), kind::SQ_DRAINED, 0),
            Event::LastWqe(qpn) => (qp(qpn), kind::LAST_WQE, 0),
            Event::CqOverrun(number) => (Some(Source::Cq(number)), kind::CQ_ERROR, 0),
            Event::SrqLimit(number) => (Some(Source::Srq(number)), kind::SRQ_LIMIT, 0),
            Event::DeviceFatal => (None, kind::DEVICE_FATAL, 0),
            // `MLX5_PORT_CHANGE_SUBTYPE_ACTIVE` and `_DOWN`.
            Event::PortUp => (None, kind::PORT_CHANGE, 4),
            Event::PortDown => (None, kind::PORT_CHANGE, 1),
        };
        self.tell_as(source, of, subtype);
    }

    /// Tells of a CQ's completion event.
    pub fn tell_completion(&self, cq: u32) {
        self.tell_as(Some(Source::Cq(cq)), kind::COMPLETION, 0);
    }

    fn tell_as(&self, source: Option<Source>, of: u16, subtype: u8) {
        // Told without the lock: a channel has its own.
        let told: Vec<_> = match self.lock().get(&source) {
            Some(all) => all.iter().filter(|it| it.types.contains(&of)).cloned().collect(),
            None => return,
        };
        let event = eqe(source, of, subtype);
        for subscription in told {
            subscription.tell(&event);
        }
    }
}

impl Subscription {
    fn tell(&self, eqe: &[u8; EQE_BYTES]) {
        let Some(pipe) = self.channel.upgrade() else { return };
        match &self.target {
            Target::Channel(cookie) => {
                let mut event = cookie.to_ne_bytes().to_vec();
                if pipe.event_bytes() > COOKIE_BYTES {
                    event.extend_from_slice(eqe);
                }
                pipe.push(&event);
            }
            Target::Counter(file) => count(file),
        }
    }
}

/// Adds 1 to an `eventfd`, unless it is full: the engine does not wait until the program has read it.
///
/// But for a program that adds almost 2^64 itself between the look and the write, to one that blocks: the engine then
/// waits until it is read. No way of writing rules that out: `O_NONBLOCK` is the program's as well, an `eventfd` is
/// not to be opened anew (`ENXIO`), and does not take `RWF_NOWAIT` (`EOPNOTSUPP`).
fn count(counter: &Hidden<File>) {
    let fd = counter.as_raw_fd();
    let mut room = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, which outlives the call.
    if counter.is_there() && unsafe { real::poll(&mut room, 1, 0) } == 1 {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes bytes of ours.
        unsafe { real::write(fd, one.as_ptr().cast(), one.len()) };
    }
}

/// The program's `eventfd`, doubled.
fn eventfd(fd: i32) -> Result<File, Refusal> {
    let value = |must| Refusal::Value { what: "descriptor", value: fd as u64, must };
    if fd < 0 {
        return Err(value("one"));
    }
    // SAFETY: the program's descriptor, which is only doubled.
    let doubled = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    let doubled =
        doubled.map_err(|source| Refusal::System { call: "dup of an eventfd", source })?;
    let path = format!("/proc/self/fd/{}", doubled.as_raw_fd());
    match std::fs::read_link(path) {
        Ok(name) if name.as_os_str() == "anon_inode:[eventfd]" => Ok(File::from(doubled)),
        _ => Err(value("an eventfd")),
    }
}

/// An event as the device words it: queue pairs, CQs and SRQs have their number at one place, a port at another.
fn eqe(source: Option<Source>, of: u16, subtype: u8) -> [u8; EQE_BYTES] {
    let mut eqe = [0; EQE_BYTES];
    (eqe[1], eqe[3]) = (of as u8, subtype);
    match source {
        Some(Source::Qp(number) | Source::Cq(number) | Source::Srq(number)) => {
            eqe[56..60].copy_from_slice(&number.to_be_bytes());
        }
        None => eqe[40] = 1 << 4, // port 1
    }
    eqe
}

/// `MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC`.
pub fn create_channel(c: &mut Command<'_>) -> Result<(), Refusal> {
    let flags = c.request.number(attr::DEVX_EVENT_FD_FLAGS)?;
    let event_bytes = match flags {
        0 => COOKIE_BYTES + EQE_BYTES,
        OMIT_DATA => COOKIE_BYTES,
        _ => return Err(Refusal::Unsupported("a flag of an event channel")),
    };
    let (pipe, reader) = EventPipe::of_packets(event_bytes)?;
    let reader = File::from(reader);
    c.process.files.add(&reader, Kind::Subscribed(Arc::new(pipe)))?;
    let fd = reader.into_raw_fd();
    c.undo = Some(Undo::Descriptor(fd));
    c.request.put_handle(attr::DEVX_EVENT_FD_HANDLE, fd as u64);
    Ok(())
}

/// `MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT`.
pub fn subscribe(c: &mut Command<'_>) -> Result<(), Refusal> {
    let fd = c.request.fd(attr::DEVX_SUBSCRIBE_FD_HANDLE)?;
    let Some(Kind::Subscribed(pipe)) = c.process.find(fd) else {
        let must = "an event channel of DEVX";
        return Err(Refusal::Value { what: "descriptor", value: fd as u64, must });
    };
    let mut cq = None;
    let (source, may) = match c.request.has(attr::DEVX_SUBSCRIBE_OBJ_HANDLE) {
        false => (None, &kind::OF_DEVICE[..]),
        true => {
            let handle = c.request.handle(attr::DEVX_SUBSCRIBE_OBJ_HANDLE)?;
            match c.objects.get(handle) {
                Some(Object::DevxQp(qp)) => (Some(Source::Qp(qp.qp.qpn().0)), &kind::OF_QP[..]),
                Some(Object::DevxCq(it)) => {
                    cq = Some(it.clone());
                    (Some(Source::Cq(it.cq.number())), &kind::OF_CQ[..])
                }
                Some(Object::DevxRmp(rmp)) => {
                    (Some(Source::Srq(rmp.srq.number())), &kind::OF_RMP[..])
                }
                _ => return Err(Refusal::Handle { what: "DEVX object with events", handle }),
            }
        }
    };
    let listed = c.request.bytes(attr::DEVX_SUBSCRIBE_TYPES, 2 * MOST_TYPES)?;
    let types: Vec<_> =
        listed.chunks_exact(2).map(|two| u16::from_ne_bytes([two[0], two[1]])).collect();
    if listed.is_empty() || listed.len() % 2 != 0 {
        let (value, must) = (listed.len() as u64, "that of at least one number of 16 bits");
        return Err(Refusal::Value { what: "length of the list of event types", value, must });
    }
    if let Some(&other) = types.iter().find(|of| !may.contains(of)) {
        let must = "one that the object has";
        return Err(Refusal::Value { what: "event type", value: other.into(), must });
    }
    let target = match c.request.has(attr::DEVX_SUBSCRIBE_FD_NUM) {
        false => Target::Channel(c.request.number_or(attr::DEVX_SUBSCRIBE_COOKIE, 0)?),
        true => {
            let counter = eventfd(c.request.word(attr::DEVX_SUBSCRIBE_FD_NUM)? as i32)?;
            Target::Counter(Arc::new(Hidden::new(counter)))
        }
    };
    let device = &c.context.device;
    let all = &device.listeners.subscriptions;
    let completions = types.contains(&kind::COMPLETION);
    let channel = Arc::downgrade(&pipe);
    all.lock().entry(source).or_default().push(Subscription { types, channel, target });
    // After that: it may be armed already.
    if let Some(cq) = cq.filter(|_| completions) {
        let listeners = device.listeners.clone();
        let notify = move |number| listeners.subscriptions.tell_completion(number);
        device.nic.notify(&cq.cq, &cq.uar, Arc::new(notify));
    }
    Ok(())
}
