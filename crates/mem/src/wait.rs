//! Words of memory at which a thread of one process waits for those of others (futexes).

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crate::{MemError, View};

impl View {
    /// Stores before this are seen before loads after it are made: of two threads that each store a word, call
    /// this and load the other's word, one sees what the other has stored.
    #[inline]
    pub fn full_barrier(&self) {
        #[cfg(feature = "model")]
        if self.mem.is_modelled() {
            return loom::sync::atomic::fence(Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Waits until somebody calls [`View::wake_u32`] for this word, for `most` at longest; not at all if the word
    /// is not `value`. Returns whether it ended before that time. It may end for no reason, as by a signal.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`], [`MemError::Misaligned`], and [`MemError::Far`] where the processor does not
    /// reach the word.
    pub fn wait_u32(&self, offset: usize, value: u32, most: Duration) -> Result<bool, MemError> {
        let word = self.futex(offset)?;
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(most.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: most.subsec_nanos().into(),
        };
        // Not the private kind: who wakes may be another process.
        // SAFETY: the word is mapped for as long as `self` lives; the timeout outlives the call, which writes
        // neither.
        let ended = unsafe {
            libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, &raw const timeout)
        };
        Ok(ended == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT))
    }

    /// Ends the wait of one thread, of any process, that waits at this word.
    ///
    /// # Errors
    /// As [`View::wait_u32`].
    pub fn wake_u32(&self, offset: usize) -> Result<(), MemError> {
        let word = self.futex(offset)?;
        // SAFETY: the word is mapped for as long as `self` lives; the call writes nothing, and fails only for an
        // address that is none.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
        Ok(())
    }

    fn futex(&self, offset: usize) -> Result<*mut u8, MemError> {
        let at = self.at(offset, 4)?;
        match at.is_multiple_of(4) {
            true => self.mem.at(at, 4),
            false => Err(MemError::Misaligned { offset: at, align: 4 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::HostMem;

    const LONG: Duration = Duration::from_secs(20);

    fn words() -> View {
        let file = HostMem::sealed_file(c"test", 4096).unwrap();
        View::new(&HostMem::shared(&file, 4096).unwrap(), 0, 16).unwrap()
    }

    #[test]
    fn who_waits_is_woken_and_waits_no_longer_than_it_says() {
        let view = words();
        let start = Instant::now();
        assert!(!view.wait_u32(4, 0, Duration::from_millis(5)).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert!(view.wait_u32(4, 1, LONG).unwrap(), "the word is another");
        let waker = view.clone();
        let thread = std::thread::spawn(move || {
            // Until the other does not wait any more: it may not have begun to at the first try.
            while waker.load_u32(8, Ordering::Acquire).unwrap() == 0 {
                waker.wake_u32(4).unwrap();
                std::thread::yield_now();
            }
        });
        assert!(view.wait_u32(4, 0, LONG).unwrap());
        assert!(start.elapsed() < LONG);
        view.store_u32(8, 1, Ordering::Release).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn what_is_no_word_is_refused() {
        let view = words();
        assert!(matches!(view.wait_u32(2, 0, LONG), Err(MemError::Misaligned { .. })));
        assert!(matches!(view.wake_u32(16), Err(MemError::OutOfBounds { .. })));
    }
}
