//! Asynchronous events (InfiniBand vol. 1, 11.6.3): what happened to an object without a work
//! request to report it on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use crate::log;
use crate::record::Recorder;
use crate::trace::{Kind, Tracer};
use bellpush_wire::Qpn;

/// Events kept for an owner that does not ask for them.
const MOST: usize = 4096;

/// Something that happened to an object of the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// The queue pair went to ERR because of its own work (`IBV_EVENT_QP_FATAL`).
    QpFatal(Qpn),
    /// A peer's request was malformed or not supported (`IBV_EVENT_QP_REQ_ERR`).
    QpRequest(Qpn),
    /// A peer's request named memory that it may not use (`IBV_EVENT_QP_ACCESS_ERR`).
    QpAccess(Qpn),
    /// The first packet came while the queue pair was in RTR (`IBV_EVENT_COMM_EST`).
    Established(Qpn),
    /// The queue pair is in SQD and its send queue has drained (`IBV_EVENT_SQ_DRAINED`).
    SqDrained(Qpn),
    /// A queue pair with an SRQ is in ERR and takes no more receives from it
    /// (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastWqe(Qpn),
    /// A completion found no room (`IBV_EVENT_CQ_ERR`); the number is the CQ's.
    CqOverrun(u32),
    /// Fewer receives are posted than the limit that was armed (`IBV_EVENT_SRQ_LIMIT_REACHED`);
    /// the number is the SRQ's.
    SrqLimit(u32),
    /// An engine of the NIC panicked: its queue pairs are in ERR, and it takes no others
    /// (`IBV_EVENT_DEVICE_FATAL`).
    DeviceFatal,
    /// The port carries packets (`IBV_EVENT_PORT_ACTIVE`).
    PortUp,
    /// It does not (`IBV_EVENT_PORT_ERR`).
    PortDown,
}

impl Event {
    /// The object's number, and `ibv_event_type`.
    pub fn coded(self) -> (u32, u64) {
        match self {
            Self::CqOverrun(number) => (number, 0),
            Self::QpFatal(qpn) => (qpn.0, 1),
            Self::QpRequest(qpn) => (qpn.0, 2),
            Self::QpAccess(qpn) => (qpn.0, 3),
            Self::Established(qpn) => (qpn.0, 4),
            Self::SqDrained(qpn) => (qpn.0, 5),
            Self::DeviceFatal => (0, 8),
            Self::PortUp => (0, 9),
            Self::PortDown => (0, 10),
            Self::SrqLimit(number) => (number, 15),
            Self::LastWqe(qpn) => (qpn.0, 16),
        }
    }
}

/// Called with each event as it comes.
///
/// It runs on whatever thread met the event, which may hold locks of the NIC: it must only pass the
/// news on.
pub type EventSink = Box<dyn Fn(Event) + Send + Sync>;

/// Events that the owner has not asked for yet. The oldest go when there are too many.
#[derive(Default)]
pub(crate) struct Events {
    queue: Mutex<VecDeque<Event>>,
    sink: OnceLock<EventSink>,
    recorder: Option<Arc<Recorder>>,
    trace: Option<Arc<Tracer>>,
}

impl Events {
    /// None yet; those that come are written down by a recorder and a tracer, if there are such.
    pub(crate) fn new(recorder: Option<Arc<Recorder>>, trace: Option<Tracer>) -> Self {
        Self { recorder, trace: trace.map(Arc::new), ..Self::default() }
    }

    /// Who writes down what happens to the NIC's objects, and when.
    #[inline]
    pub(crate) fn trace(&self) -> Option<&Arc<Tracer>> {
        self.trace.as_ref()
    }

    /// Has events told instead of kept; says whether that was not asked for before.
    pub(crate) fn tell(&self, sink: EventSink) -> bool {
        self.sink.set(sink).is_ok()
    }

    pub(crate) fn push(&self, event: Event) {
        if let Some(recorder) = &self.recorder {
            recorder.told(event);
        }
        let (number, code) = event.coded();
        log::of_object(number, code);
        if let Some(trace) = &self.trace {
            trace.mark(Kind::Async, number, 0, [code, 0]);
        }
        if let Some(sink) = self.sink.get() {
            return sink(event);
        }
        let mut events = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == MOST {
            events.pop_front();
        }
        events.push_back(event);
    }

    pub(crate) fn pop(&self) -> Option<Event> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_events_are_kept() {
        let events = Events::default();
        for n in 0..=MOST as u32 {
            events.push(Event::SrqLimit(n));
        }
        assert_eq!(events.pop(), Some(Event::SrqLimit(1)));
        assert_eq!(std::iter::from_fn(|| events.pop()).count(), MOST - 1);
    }

    #[test]
    fn a_sink_gets_what_would_be_kept() {
        use std::sync::mpsc;
        let (events, (told, tells)) = (Events::default(), mpsc::channel());
        assert!(events.tell(Box::new(move |event| told.send(event).unwrap())));
        events.push(Event::PortUp);
        assert_eq!((tells.try_recv(), events.pop()), (Ok(Event::PortUp), None));
        assert!(!events.tell(Box::new(|_| {})), "there is one already");
    }
}
