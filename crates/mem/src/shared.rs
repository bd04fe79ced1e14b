//! Host memory that other processes map too.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::host::Owner;
use crate::{HostMem, MemError, PAGE_BYTES};

impl HostMem {
    /// As [`HostMem::shared_at`] from the beginning, of a file that is sealed against being made shorter
    /// (`F_SEAL_SHRINK`, fcntl(2)): whoever maps another is ended by SIGBUS as soon as anybody cuts it off.
    ///
    /// # Errors
    /// [`MemError::Unsealed`] of any other file, and as [`HostMem::shared_at`].
    #[doc(hidden)]
    pub fn shared(file: &File, bytes: usize) -> Result<Arc<Self>, MemError> {
        // SAFETY: no memory is passed. A file that has no seals refuses.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(MemError::Unsealed);
        }
        // SAFETY: the seal, which nobody takes away, keeps the file's length.
        unsafe { Self::shared_at(file, 0, bytes) }
    }

    /// An anonymous file of so many zeros, whose length nobody changes any more. The name shows in /proc alone.
    ///
    /// # Errors
    /// The system's.
    #[doc(hidden)]
    pub fn sealed_file(name: &CStr, bytes: usize) -> io::Result<File> {
        // SAFETY: the name ends with a zero byte.
        let fd = unsafe {
            libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else has.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: no memory is passed.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok(file),
            _ => Err(io::Error::last_os_error()),
        }
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
        let there = length(file).map_err(map)?;
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

/// How long a file is. By the system call itself: the preloaded object has libc's functions tell a program that its file is
/// a device, and `File::metadata` asks those.
fn length(file: &File) -> io::Result<u64> {
    // SAFETY: all zeros are a status, which the call fills in.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        match libc::syscall(libc::SYS_fstat, file.as_raw_fd(), &raw mut status) {
            0 => Ok(status.st_size as u64),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_a_file_are_the_same_memory() {
        let file = HostMem::sealed_file(c"test", 2 * PAGE_BYTES).unwrap();
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
        let file = HostMem::sealed_file(c"test", PAGE_BYTES).unwrap();
        let error = HostMem::shared(&file, PAGE_BYTES + 1).unwrap_err();
        assert!(matches!(error, MemError::File { bytes: 8192, len: 4096 }), "{error}");
        assert!(matches!(HostMem::shared(&file, 0), Err(MemError::Map { .. })));
    }

    #[test]
    fn a_file_that_somebody_could_cut_off_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE_BYTES as u64).unwrap();
        assert!(matches!(HostMem::shared(&file, PAGE_BYTES), Err(MemError::Unsealed)));
        // SAFETY: the name ends with a zero byte, and the descriptor is new.
        let memory = unsafe {
            let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING);
            libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_GROW);
            File::from_raw_fd(fd)
        };
        assert!(matches!(HostMem::shared(&memory, PAGE_BYTES), Err(MemError::Unsealed)));
        let file = HostMem::sealed_file(c"test", PAGE_BYTES).unwrap();
        for bytes in [0, PAGE_BYTES as u64 - 1, 2 * PAGE_BYTES as u64] {
            assert_eq!(file.set_len(bytes).unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        HostMem::shared(&file, PAGE_BYTES).unwrap();
    }
}
