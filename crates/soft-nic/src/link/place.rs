//! Payload of packets where it lies: in private memory, or in memory that a link shares with others,
//! which spares a copy on either side.
//!
//! What is in shared memory may change at any moment, because somebody else has it mapped: its place
//! and length are private, and its bytes are copied once, to where they belong, and not looked at.

use std::ops::Range;

use bellpush_mem::{Dma, MemError, View};
use bellpush_wire::roce::Envelope;

/// A range of memory that a link shares with others.
#[derive(Debug, Clone, Copy)]
pub struct Shared<'a> {
    view: &'a View,
    at: usize,
    bytes: usize,
}

impl<'a> Shared<'a> {
    /// `bytes` bytes from `at` on.
    ///
    /// # Panics
    /// When the view does not have them.
    pub fn new(view: &'a View, at: usize, bytes: usize) -> Self {
        assert!(at <= view.len() && bytes <= view.len() - at, "{bytes} bytes from {at} on");
        Self { view, at, bytes }
    }

    /// Its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "as of a packet")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// A part of it.
    ///
    /// # Panics
    /// When it has no such part.
    #[must_use]
    pub fn part(&self, part: Range<usize>) -> Self {
        assert!(part.start <= part.end && part.end <= self.bytes, "{part:?} of {}", self.bytes);
        Self { at: self.at + part.start, bytes: part.len(), ..*self }
    }

    /// Fills all of it.
    ///
    /// # Errors
    /// [`MemError`] as of a [`View`].
    ///
    /// # Panics
    /// When there are more or fewer bytes.
    pub fn write(&self, bytes: &[u8]) -> Result<(), MemError> {
        assert_eq!(bytes.len(), self.bytes);
        self.view.write(self.at, bytes)
    }

    /// Copies its first words out; its place is a multiple of 8.
    ///
    /// # Errors
    /// [`MemError`] as of a [`View`].
    ///
    /// # Panics
    /// When it is shorter.
    #[inline]
    pub(crate) fn words<const N: usize>(&self) -> Result<[u64; N], MemError> {
        assert!(N * 8 <= self.bytes);
        self.view.read_words(self.at)
    }

    /// Copies all of it out.
    ///
    /// # Errors
    /// [`MemError`] as of a [`View`].
    ///
    /// # Panics
    /// When `into` has another length.
    pub fn read(&self, into: &mut [u8]) -> Result<(), MemError> {
        assert_eq!(into.len(), self.bytes);
        self.view.read(self.at, into)
    }
}

/// A packet that has arrived, where it lies.
#[derive(Debug)]
pub struct InPlace<'a> {
    /// As of [`Received`](super::Received).
    pub envelope: &'a Envelope,
    /// A private copy of the packet; of one in shared memory only its beginning, with
    /// [`MAX_HEADER_BYTES`](bellpush_wire::roce::MAX_HEADER_BYTES) at least.
    pub head: &'a [u8],
    /// All of a packet that is in shared memory.
    pub shared: Option<Shared<'a>>,
    /// As of [`Received`](super::Received).
    pub checked: bool,
}

impl InPlace<'_> {
    /// Length in bytes, BTH to ICRC.
    pub(crate) fn bytes(&self) -> usize {
        self.shared.map_or(self.head.len(), |shared| shared.bytes)
    }
}

/// The payload of a packet that has come.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Payload<'a> {
    /// A private copy.
    Bytes(&'a [u8]),
    Shared(Shared<'a>),
}

impl Payload<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared(shared) => shared.bytes,
        }
    }

    /// A part of it, which it has.
    pub(crate) fn part(&self, part: Range<usize>) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(&bytes[part]),
            Self::Shared(shared) => Self::Shared(shared.part(part)),
        }
    }

    /// Copies all of it to its place.
    pub(crate) fn write_to(&self, to: &dyn Dma, offset: usize) -> Result<(), MemError> {
        match self {
            Self::Bytes(bytes) => to.write(offset, bytes),
            Self::Shared(Shared { view, at, bytes }) => {
                to.write_from_host(offset, view.mem(), view.offset() + at, *bytes)
            }
        }
    }
}

/// Where the payload of a packet goes that is being built.
#[derive(Debug)]
pub enum Room<'a> {
    /// Private memory.
    Bytes(&'a mut [u8]),
    /// Memory that whoever takes the packet already sees.
    Shared(Shared<'a>),
}

impl Room<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared(shared) => shared.bytes,
        }
    }

    /// Fills it from `at` on.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) -> Result<(), MemError> {
        match self {
            Self::Bytes(into) => into[at..at + bytes.len()].copy_from_slice(bytes),
            Self::Shared(to) => to.part(at..at + bytes.len()).write(bytes)?,
        }
        Ok(())
    }

    /// Fills `bytes` bytes of it from `at` on with what lies in memory.
    pub(crate) fn read(
        &mut self,
        (at, bytes): (usize, usize),
        from: &dyn Dma,
        offset: usize,
    ) -> Result<(), MemError> {
        match self {
            Self::Bytes(into) => from.read(offset, &mut into[at..at + bytes]),
            Self::Shared(to) => {
                let to = to.part(at..at + bytes);
                from.read_to_host(offset, to.view.mem(), to.view.offset() + to.at, bytes)
            }
        }
    }
}

/// A packet that is built where the link's next one lies: what is known of it before its payload.
#[derive(Debug, Clone, Copy)]
pub struct Apart<'a> {
    /// BTH and extension headers.
    pub head: &'a [u8],
    /// Bytes of payload.
    pub payload: usize,
    /// Pad and ICRC.
    pub tail: &'a [u8],
}

/// What became of a packet that was to be built in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Built {
    /// It is on its way.
    Yes,
    /// Its payload could not be had: there is no packet.
    Failed,
    /// The link has no place for it now: it goes by [`Link::send`](super::Link::send).
    Elsewhere,
}
