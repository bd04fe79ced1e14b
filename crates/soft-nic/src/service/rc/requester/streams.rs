//! Streams of an initiator of dynamic connections (`mlx5dv_dci_streams`): work requests of one are carried out in
//! order, and an error of one ends it alone until it is reset.
//!
//! All streams go through one queue. When the oldest message fails, what is behind it goes again in a session of its
//! own, numbered anew; the target carried none of it out, since it takes requests in order. Where that is not certain,
//! nothing goes twice: a peer that does not answer, or has no receives for too long, fails all that it was asked for,
//! each message by its stream; and what fails here behind others that left already fails the queue pair.

use super::Requester;
use crate::objects::qp::Qp;
use crate::service::outstanding::{Failure, Outstanding};
use crate::service::requester::Tally;
use crate::vendor::Vendor;
use bellpush_wire::cqe::Syndrome as Cause;

/// What becomes of a message whose stream is in error.
pub(super) const FLUSHED: Failure = (Cause::WrFlush, Vendor::Flush);

/// The streams that are in error, and how many end the queue pair.
pub(super) struct Streams {
    most: usize,
    failed: Vec<u16>,
}

/// How far a failure goes.
enum Reach {
    /// This message: its stream is in error already.
    Message,
    /// Its stream.
    Stream,
    /// The streams of all that the peer was asked for.
    Peer,
    QueuePair,
}

impl Reach {
    fn of(cause: Cause) -> Self {
        match cause {
            Cause::WrFlush => Self::Message,
            Cause::LocalLength | Cause::LocalProt => Self::Stream,
            Cause::RemoteInvalReq | Cause::RemoteAccess | Cause::RemoteOp => Self::Stream,
            Cause::TransportRetryExc | Cause::RnrRetryExc => Self::Peer,
            _ => Self::QueuePair,
        }
    }
}

impl Streams {
    pub(super) fn new(most: usize) -> Self {
        Self { most, failed: Vec::new() }
    }

    pub(super) fn has_failed(&self, stream: Option<u16>) -> bool {
        stream.is_some_and(|stream| self.failed.contains(&stream))
    }

    /// Takes a stream in error; whether it was not before.
    fn fail(&mut self, stream: u16) -> bool {
        let is_new = !self.failed.contains(&stream);
        if is_new {
            self.failed.push(stream);
        }
        is_new
    }

    fn reset(&mut self, stream: u16) {
        self.failed.retain(|&other| other != stream);
    }
}

impl Requester {
    /// Whether a stream is in error.
    pub(in crate::service::rc) fn is_in_error(&self, stream: u16) -> bool {
        self.streams.as_ref().is_some_and(|streams| streams.has_failed(Some(stream)))
    }

    /// Takes a stream out of error.
    pub(in crate::service::rc) fn reset_stream(&mut self, stream: u16) {
        if let Some(streams) = &mut self.streams {
            streams.reset(stream);
        }
    }

    /// The oldest message fails, and no more than has to with it. False: the queue pair does.
    pub(super) fn contain(&mut self, qp: &Qp, tally: &mut Tally, failure: Failure) -> bool {
        let (Some(streams), Some(front)) = (&mut self.streams, self.outstanding.front()) else {
            return false;
        };
        let Some(stream) = front.stream else { return false };
        let sent = self.sent;
        // What of a message the peer was asked for.
        let left = |message: &Outstanding| message.packets > 0 && sent.distance(message.first) > 0;
        let is_local = matches!(failure.0, Cause::LocalLength | Cause::LocalProt);
        if is_local && self.outstanding.iter().skip(1).any(left) {
            return false;
        }
        let reach = Reach::of(failure.0);
        match reach {
            Reach::QueuePair => return false,
            Reach::Message => {}
            Reach::Stream => _ = streams.fail(stream),
            Reach::Peer => self.outstanding.iter().filter(|&m| left(m)).for_each(|message| {
                message.stream.map(|stream| streams.fail(stream));
            }),
        }
        if streams.failed.len() >= streams.most {
            return false;
        }
        let mut told = vec![stream];
        if let Some(message) = self.outstanding.pop_front() {
            message.tell_failed(qp, tally, failure);
            message.recycle(&mut self.spare);
        }
        while matches!(reach, Reach::Peer) && self.outstanding.front().is_some_and(left) {
            let Some(message) = self.outstanding.pop_front() else { break };
            let stream = message.stream.unwrap_or(0);
            let is_first = !told.contains(&stream);
            told.push(stream);
            message.tell_failed(qp, tally, if is_first { failure } else { FLUSHED });
            message.recycle(&mut self.spare);
        }
        self.begin_session();
        true
    }

    /// What is left goes again, behind all that was ever sent.
    fn begin_session(&mut self) {
        let start = self.sent;
        let mut next = start;
        for message in &mut self.outstanding {
            if message.failed.is_none()
                && self.streams.as_ref().is_some_and(|it| it.has_failed(message.stream))
            {
                (message.failed, message.packets, message.waits) = (Some(FLUSHED), 0, false);
            }
            (message.first, message.got) = (next, 0);
            next = message.end();
        }
        (self.next, self.oldest) = (next, start);
        if let Some(session) = &mut self.session {
            session.start = start;
        }
        self.age();
        // What goes again takes PSNs again.
        self.lived = self.lived.saturating_add(next.distance(start).max(0) as u32);
        (self.cursor, self.at, self.reads) = (0, 0, 0);
        (self.deadline, self.recovering, self.not_before) = (None, None, 0);
        (self.tries, self.waited_ns, self.rnr_tries) = (0, 0, 0);
    }
}
