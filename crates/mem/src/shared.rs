//! Host memory that other processes map too.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::host::Owner;
use crate::{HostMem, MemError, PAGE_BYTES};

impl HostMem {
    /// As [`HostMem::shared_at`] from the beginning, of a file that this library has made for processes of
    /// this user: none of us cuts it off, and another program of the user's that does could end us as well.
    #[doc(hidden)]
    pub fn shared(file: &File, bytes: usize) -> Result<Arc<Self>, MemError> {
        // SAFETY: see above.
        unsafe { Self::shared_at(file, 0, bytes) }
    }

    /// Maps `bytes` bytes (rounded up to whole pages) of a file that other processes may map as well, from a
    /// byte on that begins a page. Pages come into being when they are touched.
    ///
    /// # Safety
    /// Nobody makes the file shorter while the memory lives: an access behind its end would fault.
    ///
    /// ```compile_fail,E0133
    /// # use bellpush_mem::HostMem;
    /// let file = std::fs::File::open("/dev/shm/somebodys").unwrap();
    /// let mem = HostMem::shared_at(&file, 0, 4096);
    /// ```
    ///
    /// # Errors
    /// [`MemError::File`] when the file is shorter, [`MemError::Map`] when the system refuses.
    pub unsafe fn shared_at(file: &File, offset: u64, bytes: usize) -> Result<Arc<Self>, MemError> {
        let map = |source| MemError::Map { bytes, source };
        let len = bytes
            .checked_next_multiple_of(PAGE_BYTES)
            .filter(|&len| len > 0)
            .ok_or_else(|| map(io::ErrorKind::InvalidInput.into()))?;
        let there = file.metadata().map_err(map)?.len();
        let start = i64::try_from(offset).map_err(|_| map(io::ErrorKind::InvalidInput.into()))?;
        if there < offset.saturating_add(len as u64) {
            return Err(MemError::File { bytes: len, len: there });
        }
        // SAFETY: a mapping at an address of the system's choice aliases nothing of ours; that
        // others write the file is what HostMem's accesses allow for.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                start,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(map(io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| map(io::ErrorKind::Other.into()))?;
        Ok(Arc::new(Self::over(base, len, Owner::mapping())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_a_file_are_the_same_memory() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * PAGE_BYTES as u64).unwrap();
        let (a, b) = (HostMem::shared(&file, PAGE_BYTES + 1), HostMem::shared(&file, PAGE_BYTES));
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!((a.len(), b.len()), (2 * PAGE_BYTES, PAGE_BYTES));
        a.write(100, b"bell").unwrap();
        let mut got = [0; 4];
        b.read(100, &mut got).unwrap();
        assert_eq!(&got, b"bell");
        // SAFETY: the file keeps its length.
        let second = |bytes| unsafe { HostMem::shared_at(&file, PAGE_BYTES as u64, bytes) };
        let behind = second(2 * PAGE_BYTES);
        let second = second(PAGE_BYTES).unwrap();
        second.write(0, b"push").unwrap();
        a.read(PAGE_BYTES, &mut got).unwrap();
        assert_eq!(&got, b"push");
        assert!(behind.is_err());
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE_BYTES as u64).unwrap();
        let error = HostMem::shared(&file, PAGE_BYTES + 1).unwrap_err();
        assert!(matches!(error, MemError::File { bytes: 8192, len: 4096 }), "{error}");
        assert!(matches!(HostMem::shared(&file, 0), Err(MemError::Map { .. })));
    }
}
