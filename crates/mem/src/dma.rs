//! What a NIC needs of the memory behind an MR, wherever that memory lies.

use std::os::fd::OwnedFd;

use crate::{HostMem, MemError, View};

/// Device memory as a NIC of its own registers it.
#[derive(Debug)]
pub struct Exported {
    /// Address at which the device has it.
    pub addr: u64,
    /// The memory as a dma-buf, and its first byte's offset in that; or why there is none.
    pub dmabuf: Result<(OwnedFd, u64), MemError>,
}

/// Memory that a NIC reads and writes: host memory here, CUDA memory in `gpu`.
///
/// # Safety
/// NICs and kernels use the addresses that an implementation names: [`Dma::as_host`] and
/// [`Dma::device_addr`] are of [`Dma::bytes`] bytes that this value keeps mapped, and that may be read
/// and written in any way as long as it lives; an [`Exported`] is of the same memory.
///
/// ```compile_fail,E0200
/// # use bellpush_mem::{Dma, HostMem, MemError};
/// struct Anywhere;
/// impl Dma for Anywhere {
///     fn device_addr(&self) -> Option<u64> {
///         Some(0x1000)
///     }
/// #   fn bytes(&self) -> usize { 4096 }
/// #   fn read(&self, _: usize, _: &mut [u8]) -> Result<(), MemError> { Ok(()) }
/// #   fn write(&self, _: usize, _: &[u8]) -> Result<(), MemError> { Ok(()) }
/// #   fn fetch_add(&self, _: usize, _: u64) -> Result<u64, MemError> { Ok(0) }
/// #   fn compare_swap(&self, _: usize, _: u64, _: u64) -> Result<u64, MemError> { Ok(0) }
/// #   fn read_to_host(&self, _: usize, _: &HostMem, _: usize, _: usize) -> Result<(), MemError> { Ok(()) }
/// #   fn write_from_host(&self, _: usize, _: &HostMem, _: usize, _: usize) -> Result<(), MemError> { Ok(()) }
/// }
/// ```
///
/// Offsets are bytes from the start of the memory. Each call returns when the bytes have moved: a
/// NIC reports a completion only after that.
pub unsafe trait Dma: Send + Sync {
    /// Length in bytes.
    fn bytes(&self) -> usize;

    /// Copies bytes out of the memory.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError>;

    /// A word of 4 or 8 bytes, in the machine's byte order.
    ///
    /// # Errors
    /// As [`Dma::read`].
    fn load(&self, offset: usize, bytes: usize) -> Result<u64, MemError> {
        load_by_read(bytes, |word| self.read(offset, word))
    }

    /// As [`Dma::load`] of 8 bytes, by one who has seen the word before and looks whether it changed.
    ///
    /// # Errors
    /// As [`Dma::read`].
    fn poll(&self, offset: usize, seen: u64) -> Result<u64, MemError> {
        let _ = seen;
        self.load(offset, 8)
    }

    /// Copies bytes into the memory.
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError>;

    /// 8-byte fetch-and-add; returns the old value. `offset` is a multiple of 8.
    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError>;

    /// 8-byte compare-and-swap; returns the old value. `offset` is a multiple of 8.
    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError>;

    /// The memory as host memory, where the processor can load and store it.
    fn as_host(&self) -> Option<&View> {
        None
    }

    /// Device memory: the address by which kernels reach its first byte.
    fn device_addr(&self) -> Option<u64> {
        None
    }

    /// Where its first byte lies, to tell whether two of a process's memories are the same bytes; nobody reaches it
    /// by this address.
    fn place(&self) -> Option<u64> {
        self.as_host().map_or_else(|| self.device_addr(), |view| Some(view.addr()))
    }

    /// Device memory: what another device needs to reach it.
    fn export(&self) -> Option<Exported> {
        None
    }

    /// Copies to host memory: through a buffer, unless the memory knows a way of its own.
    fn read_to_host(
        &self,
        offset: usize,
        to: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        by_pieces(n, |start, piece| {
            self.read(offset + start, piece)?;
            to.write(at + start, piece)
        })
    }

    /// Copies from host memory, likewise.
    fn write_from_host(
        &self,
        offset: usize,
        from: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        by_pieces(n, |start, piece| {
            from.read(at + start, piece)?;
            self.write(offset + start, piece)
        })
    }
}

/// A word of 4 or 8 bytes by a copy of it.
pub(crate) fn load_by_read(
    bytes: usize,
    read: impl FnOnce(&mut [u8]) -> Result<(), MemError>,
) -> Result<u64, MemError> {
    if bytes == 4 {
        let mut word = [0; 4];
        read(&mut word)?;
        return Ok(u32::from_ne_bytes(word).into());
    }
    let mut word = [0; 8];
    read(&mut word)?;
    Ok(u64::from_ne_bytes(word))
}

/// Bytes that go through a buffer at once.
const PIECE_BYTES: usize = 1 << 20;

/// Has `each` move bytes through a buffer, a piece at a time.
fn by_pieces(
    bytes: usize,
    mut each: impl FnMut(usize, &mut [u8]) -> Result<(), MemError>,
) -> Result<(), MemError> {
    let mut piece = vec![0; bytes.min(PIECE_BYTES)];
    for start in (0..bytes).step_by(PIECE_BYTES) {
        let n = (bytes - start).min(PIECE_BYTES);
        each(start, &mut piece[..n])?;
    }
    Ok(())
}

// SAFETY: a view is a checked part of a mapping, which it keeps; one of far memory, of a `Dma`.
unsafe impl Dma for View {
    #[inline]
    fn bytes(&self) -> usize {
        self.len
    }

    #[inline]
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        self.mem.read(self.at(offset, into.len())?, into)
    }

    #[inline]
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        self.mem.write(self.at(offset, from.len())?, from)
    }

    #[inline]
    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        self.mem.fetch_add_u64(self.at(offset, 8)?, add)
    }

    #[inline]
    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        self.mem.compare_swap_u64(self.at(offset, 8)?, compare, swap)
    }

    #[inline]
    fn as_host(&self) -> Option<&View> {
        (!self.mem.is_far()).then_some(self)
    }

    #[inline]
    fn device_addr(&self) -> Option<u64> {
        self.mem.is_far().then(|| self.addr())
    }

    #[inline]
    fn read_to_host(
        &self,
        offset: usize,
        to: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        self.mem.copy_to(self.at(offset, n)?, to, at, n)
    }

    #[inline]
    fn write_from_host(
        &self,
        offset: usize,
        from: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        from.copy_to(at, &self.mem, self.at(offset, n)?, n)
    }
}

/// Copies `bytes` from one memory to another by the most direct way the two allow.
///
/// # Errors
/// What the memories' own copies report; nothing is said about how much had moved by then.
pub fn copy(
    from: &dyn Dma,
    from_offset: usize,
    to: &dyn Dma,
    to_offset: usize,
    bytes: usize,
) -> Result<(), MemError> {
    match (from.as_host(), to.as_host()) {
        (Some(f), _) => to.write_from_host(to_offset, &f.mem, f.at(from_offset, bytes)?, bytes),
        (None, Some(t)) => from.read_to_host(from_offset, &t.mem, t.at(to_offset, bytes)?, bytes),
        // Device to device.
        (None, None) => by_pieces(bytes, |start, piece| {
            from.read(from_offset + start, piece)?;
            to.write(to_offset + start, piece)
        }),
    }
}
