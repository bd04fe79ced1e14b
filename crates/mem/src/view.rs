//! Ordered access to words of a [`View`].

use std::sync::atomic::Ordering;

use crate::{MemError, View};

impl View {
    /// Atomic 4-byte load, in the machine's byte order.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`] and [`MemError::Misaligned`].
    #[inline]
    pub fn load_u32(&self, offset: usize, order: Ordering) -> Result<u32, MemError> {
        self.mem.load_u32(self.at(offset, 4)?, order)
    }

    /// Atomic 4-byte store, in the machine's byte order.
    ///
    /// # Errors
    /// As [`View::load_u32`].
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32, order: Ordering) -> Result<(), MemError> {
        self.mem.store_u32(self.at(offset, 4)?, value, order)
    }

    /// Atomic 8-byte load, in the machine's byte order.
    ///
    /// # Errors
    /// As [`View::load_u32`].
    #[inline]
    pub fn load_u64(&self, offset: usize, order: Ordering) -> Result<u64, MemError> {
        self.mem.load_u64(self.at(offset, 8)?, order)
    }

    /// As [`View::load_u64`] with acquire, by one who has seen the word before, looks whether it changed, and looks no
    /// second time until something else has happened.
    ///
    /// # Errors
    /// As [`View::load_u32`].
    #[inline]
    pub fn poll_u64(&self, offset: usize, seen: u64) -> Result<u64, MemError> {
        self.mem.poll_u64(self.at(offset, 8)?, seen)
    }

    /// Atomic 8-byte store, in the machine's byte order.
    ///
    /// # Errors
    /// As [`View::load_u32`].
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) -> Result<(), MemError> {
        self.mem.store_u64(self.at(offset, 8)?, value, order)
    }

    /// Aligned 8-byte words as they lie in memory, without order: a short copy that takes no call.
    ///
    /// # Errors
    /// As [`View::load_u32`].
    #[inline]
    pub fn read_words<const N: usize>(&self, offset: usize) -> Result<[u64; N], MemError> {
        self.mem.read_words(self.at(offset, N * 8)?)
    }

    /// Sets `bytes` bytes from `offset` to `value`.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`].
    #[inline]
    pub fn fill(&self, offset: usize, bytes: usize, value: u8) -> Result<(), MemError> {
        self.mem.fill(self.at(offset, bytes)?, bytes, value)
    }

    /// A part of the view.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`].
    #[inline]
    pub fn part(&self, offset: usize, bytes: usize) -> Result<View, MemError> {
        Ok(Self { mem: self.mem.clone(), offset: self.at(offset, bytes)?, len: bytes })
    }
}
