//! Asynchronous events of a device (`ibv_get_async_event`): what goes wrong with an object, the port
//! or the device outside of any request.
//!
//! Whoever asks takes all events that there are, so none grows old unread. One that names an object
//! is kept for that object, and is the reason of nobody else's failure. Of the port's events none is
//! kept: the port is asked how it is now.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use libc::c_int;
use rdma_sys::{ibv_async_event, ibv_context, ibv_event_type as e};

/// `struct ibv_async_event`, with the type as the number that it is: rdma-sys has a Rust enum there,
/// which must never hold an event that its header did not list, and which the library writes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    /// Address of the object, or the port's number in its first bytes.
    element: u64,
    kind: u32,
}

const _: () = assert!(
    size_of::<Event>() == size_of::<ibv_async_event>()
        && align_of::<Event>() == align_of::<ibv_async_event>()
        && std::mem::offset_of!(Event, kind) == std::mem::offset_of!(ibv_async_event, event_type)
);

unsafe extern "C" {
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut Event) -> c_int;
    fn ibv_ack_async_event(event: *mut Event);
    fn ibv_event_type_str(kind: u32) -> *const c_char;
}

/// Whom an event is about.
#[derive(Debug, PartialEq, Eq)]
enum About {
    /// A queue pair or a CQ that does not work any more.
    Object,
    /// The whole device, for good.
    Device,
    /// Nobody: it is no failure, or it is the port's.
    Nobody,
}

fn about(kind: u32) -> About {
    const OBJECT: &[e] = &[
        e::IBV_EVENT_CQ_ERR,
        e::IBV_EVENT_QP_FATAL,
        e::IBV_EVENT_QP_REQ_ERR,
        e::IBV_EVENT_QP_ACCESS_ERR,
        e::IBV_EVENT_PATH_MIG_ERR,
    ];
    if OBJECT.iter().any(|&known| known as u32 == kind) {
        return About::Object;
    }
    if kind == e::IBV_EVENT_DEVICE_FATAL as u32 { About::Device } else { About::Nobody }
}

/// An event in libibverbs' words, which has some for one that it does not know.
fn words(kind: u32) -> String {
    // SAFETY: takes any number, and gives a string that is never freed.
    let text = unsafe { CStr::from_ptr(ibv_event_type_str(kind)) };
    text.to_string_lossy().into_owned()
}

/// What has happened so far.
#[derive(Default)]
pub(super) struct Events(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The first event of each object that lives, by its address.
    objects: HashMap<usize, u32>,
    device: Option<u32>,
}

impl Seen {
    fn note(&mut self, event: Event) {
        match about(event.kind) {
            About::Object => _ = self.objects.entry(event.element as usize).or_insert(event.kind),
            About::Device => _ = self.device.get_or_insert(event.kind),
            About::Nobody => {}
        }
    }
}

/// Has reads of the context's events return at once where there are none.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn never_wait(context: NonNull<ibv_context>) -> io::Result<()> {
    // SAFETY: an open context, whose descriptor nobody else sets flags of.
    let done = unsafe {
        let fd = (*context.as_ptr()).async_fd;
        match libc::fcntl(fd, libc::F_GETFL) {
            -1 => -1,
            flags => libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK),
        }
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Events {
    /// What happened to the device, or to one of these objects.
    ///
    /// # Safety
    /// The context is open, and [`never_wait`] was called for it.
    pub unsafe fn look(&self, context: NonNull<ibv_context>, objects: &[usize]) -> Option<String> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut event = Event { element: 0, kind: 0 };
        // SAFETY: the caller's promise, and a structure of ours to fill in. The object that it names
        // lives until the event is acknowledged, because its destruction waits for that.
        while unsafe { ibv_get_async_event(context.as_ptr(), &mut event) } == 0 {
            seen.note(event); // first: once it is acknowledged, another object may have the address
            // SAFETY: an event of that context, acknowledged once.
            unsafe { ibv_ack_async_event(&mut event) };
        }
        let own = || objects.iter().find_map(|object| seen.objects.get(object));
        seen.device.as_ref().or_else(own).copied().map(words)
    }

    /// Forgets an object that is gone: another may get its address.
    pub fn forget(&self, object: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).objects.remove(&object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_no_header_lists_is_nobodys_and_has_words() {
        for kind in [e::IBV_EVENT_WQ_FATAL as u32 + 1, 99, u32::MAX] {
            assert_eq!(about(kind), About::Nobody);
            assert_eq!(words(kind), "unknown");
        }
        assert_eq!(
            words(e::IBV_EVENT_QP_ACCESS_ERR as u32),
            "local access violation work queue error"
        );
    }

    #[test]
    fn an_objects_event_is_its_own_and_the_devices_everybodys() {
        let mut seen = Seen::default();
        for (element, kind) in [
            (0x1000, e::IBV_EVENT_COMM_EST),
            (1, e::IBV_EVENT_PORT_ERR),
            (0x1000, e::IBV_EVENT_QP_FATAL),
            (0x1000, e::IBV_EVENT_QP_REQ_ERR),
        ] {
            seen.note(Event { element, kind: kind as u32 });
        }
        assert_eq!(seen.device, None);
        let first = HashMap::from([(0x1000, e::IBV_EVENT_QP_FATAL as u32)]);
        assert_eq!(seen.objects, first);
        seen.note(Event { element: 0, kind: e::IBV_EVENT_DEVICE_FATAL as u32 });
        assert_eq!(seen.device, Some(e::IBV_EVENT_DEVICE_FATAL as u32));
    }
}
