//! A recording, read. None of its bytes is trusted.

use std::sync::Arc;

use super::event::{Event, Header, MAGIC};

/// Why a file cannot be used as a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The system's.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// It does not begin as one of this version.
    #[error("it is not a recording of this version of bellpush")]
    NotOne,
    /// It begins as one of another version.
    #[error("it is a recording of format {found}, and this bellpush reads format {reads} alone")]
    Version {
        /// The format's version in the file.
        found: char,
        /// The one that is read.
        reads: char,
    },
    /// It is damaged, or not what this program writes.
    #[error("byte {at}: {what}")]
    Broken {
        /// Where, from the file's beginning.
        at: usize,
        /// What is wrong there.
        what: String,
    },
    /// Its NIC cannot be made.
    #[error("no NIC like the recorded one: {0}")]
    Nic(String),
}

impl RecordingError {
    /// The same of a part of a recording that begins `before` bytes into it.
    pub(super) fn behind(self, before: usize) -> Self {
        match self {
            Self::Broken { at, what } => Self::Broken { at: before + at, what },
            other => other,
        }
    }
}

/// A recording in memory.
pub(super) struct Recording {
    pub(super) header: Header,
    pub(super) bytes: Arc<[u8]>,
    /// Where its events begin.
    pub(super) first: usize,
}

impl Recording {
    pub(super) fn of(bytes: Vec<u8>) -> Result<Self, RecordingError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| not_ours(&bytes))?;
        let (header, rest) =
            postcard::take_from_bytes(rest).map_err(|error| broken(MAGIC.len(), plain(error)))?;
        let first = bytes.len() - rest.len();
        Ok(Self { header, bytes: bytes.into(), first })
    }

    pub(super) fn events(&self) -> Events<'_> {
        Events { all: &self.bytes, at: self.first }
    }
}

/// Why bytes are refused that do not begin with [`MAGIC`].
pub(super) fn not_ours(bytes: &[u8]) -> RecordingError {
    let (name, version) = MAGIC.split_at(MAGIC.len() - 2);
    let (reads, found) = (version[0], bytes.strip_prefix(name).and_then(|rest| rest.first()));
    match found {
        Some(&found) if found != reads && found.is_ascii_alphanumeric() => {
            RecordingError::Version { found: found.into(), reads: reads.into() }
        }
        _ => RecordingError::NotOne,
    }
}

pub(super) fn broken(at: usize, error: impl std::fmt::Display) -> RecordingError {
    RecordingError::Broken { at, what: error.to_string() }
}

/// What is wrong with bytes, in words of a recording rather than of its encoding.
pub(super) fn plain(error: postcard::Error) -> &'static str {
    use postcard::Error;
    match error {
        Error::DeserializeUnexpectedEnd => "the file ends in it",
        Error::DeserializeBadVarint => "a number of more bytes than it may have",
        Error::DeserializeBadUtf8 | Error::DeserializeBadChar => "a text that is not UTF-8",
        Error::DeserializeBadBool | Error::DeserializeBadOption | Error::DeserializeBadEnum => {
            "a choice that there is not"
        }
        _ => "no event of a recording",
    }
}

/// Longest event, in bytes: a key of 2^16 parts takes 1.6 MiB, a piece of a copy whose payload is there whole 1 MiB.
const LONGEST: usize = 2 << 20;

/// What begins at a place is not whole. Who wrote it was ended, unless more follows than belongs to anything.
pub(super) fn cut(bytes: &[u8], at: usize) -> Result<(), RecordingError> {
    match bytes.len() - at {
        ..=LONGEST => Ok(()),
        left => Err(broken(at, format!("an event of more than the {left} bytes that follow"))),
    }
}

pub(super) fn behind_the_end(at: usize) -> RecordingError {
    broken(at, "bytes behind the end")
}

/// The event at a place, and where the next one is; `None` at the end, also where the last event is not whole: who
/// wrote it was ended.
pub(super) fn event_at(
    bytes: &[u8],
    at: usize,
) -> Result<Option<(Event<'_>, usize)>, RecordingError> {
    match postcard::take_from_bytes(&bytes[at..]) {
        Ok((Event::Closed, rest)) if !rest.is_empty() => {
            Err(behind_the_end(bytes.len() - rest.len()))
        }
        Ok((event, rest)) => Ok(Some((event, bytes.len() - rest.len()))),
        Err(postcard::Error::DeserializeUnexpectedEnd) => cut(bytes, at).map(|()| None),
        Err(error) => Err(broken(at, plain(error))),
    }
}

/// The events of a recording.
pub(super) struct Events<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Events<'a> {
    type Item = Result<Event<'a>, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        match event_at(self.all, self.at).transpose()? {
            Ok((event, next)) => {
                self.at = next;
                Some(Ok(event))
            }
            Err(error) => {
                self.at = self.all.len();
                Some(Err(error))
            }
        }
    }
}
