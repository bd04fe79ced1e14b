//! Copies into, out of and between [`HostMem`]s.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::{self, in_pieces};
use crate::{HostMem, Intent, MemError};

impl HostMem {
    /// Says that a device loads from the memory: what is copied into it is left where such loads find it
    /// soonest. For good, and a hint only.
    pub fn read_by_device(&self) {
        self.device_reads.store(true, Ordering::Relaxed);
    }

    /// Whether a copy of so many bytes into this memory leaves the caches of the core that makes it.
    #[inline]
    fn leaves(&self, bytes: usize) -> bool {
        cache::LEAVES.contains(&bytes) && self.device_reads.load(Ordering::Relaxed)
    }

    /// Copies bytes out. No ordering, and no atomicity beyond a byte.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        if let Some(far) = self.as_far() {
            return far.read(offset, into);
        }
        let from = self.at(offset, into.len())?;
        // SAFETY: `from` is valid for the length; libc's memcpy is opaque to the compiler, so a
        // concurrent writer changes which bytes are copied and nothing else.
        unsafe { libc::memcpy(into.as_mut_ptr().cast(), from.cast(), into.len()) };
        Ok(())
    }

    /// Aligned 8-byte words, each loaded at once. No ordering.
    #[inline]
    pub(crate) fn read_words<const N: usize>(&self, offset: usize) -> Result<[u64; N], MemError> {
        if self.is_far() {
            let mut words = [[0; 8]; N];
            self.read(offset, words.as_flattened_mut())?;
            return Ok(words.map(u64::from_ne_bytes));
        }
        let from = self.at(offset, N * 8)?;
        if !offset.is_multiple_of(8) {
            return Err(MemError::Misaligned { offset, align: 8 });
        }
        let mut words = [0; N];
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: the range was checked, and the base is page-aligned; an atomic may be shared.
            *word = unsafe { AtomicU64::from_ptr(from.add(i * 8).cast()) }.load(Ordering::Relaxed);
        }
        Ok(words)
    }

    /// Aligned 8-byte words, each stored at once, the last with release: who finds it finds the others. Nothing is
    /// written where not all can be.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`] and [`MemError::Misaligned`].
    #[inline]
    pub fn publish_words<const N: usize>(
        &self,
        offset: usize,
        words: [u64; N],
    ) -> Result<(), MemError> {
        self.check(offset, N * 8)?;
        if !offset.is_multiple_of(8) {
            return Err(MemError::Misaligned { offset, align: 8 });
        }
        for (i, word) in words.into_iter().enumerate() {
            let order = if i + 1 == N { Ordering::Release } else { Ordering::Relaxed };
            if self.is_far() {
                self.store_u64(offset + i * 8, word, order)?;
                continue;
            }
            // SAFETY: the range was checked, and the base is page-aligned; an atomic may be shared.
            let to = unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset + i * 8).cast()) };
            to.store(word, order);
        }
        Ok(())
    }

    /// Copies bytes in. No ordering. On x86-64 whoever looks meanwhile finds each aligned unit of 16 bytes that is
    /// written as a whole either old or new, since memcpy stores vectors; elsewhere no atomicity beyond a byte.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        if let Some(far) = self.as_far() {
            return far.write(offset, from);
        }
        let to = self.at(offset, from.len())?;
        if self.is_device() {
            let n = from.len();
            self.at(offset, n.next_multiple_of(4))?;
            // SAFETY: both ranges are valid, the destination's also as whole words.
            return unsafe { store_words(from.as_ptr(), to, n, offset) };
        }
        let leaves = self.leaves(from.len());
        let fetch = |at, n| self.prefetch(offset + at, n, Intent::Write);
        in_pieces(from.len(), fetch, |at, n| {
            let part = &from[at..at + n];
            // SAFETY: as in `read`, the other way; `at + n` stays within the checked length.
            unsafe { libc::memcpy(to.add(at).cast(), part.as_ptr().cast(), n) };
            if leaves {
                self.prefetch(offset + at, n, Intent::Elsewhere);
            }
            Ok(())
        })
    }

    /// Copies between mappings (or within one, where the ranges may overlap); ordering and atomicity as of
    /// [`HostMem::write`], where they do not.
    pub fn copy_to(
        &self,
        offset: usize,
        to: &HostMem,
        to_offset: usize,
        bytes: usize,
    ) -> Result<(), MemError> {
        match (self.as_far(), to.as_far()) {
            (None, None) => {}
            (Some(far), None) => return far.read_to_host(offset, to, to_offset, bytes),
            (None, Some(far)) => return far.write_from_host(to_offset, self, offset, bytes),
            (Some(from), Some(to)) => {
                return crate::copy(&**from, offset, &**to, to_offset, bytes);
            }
        }
        let from = self.at(offset, bytes)?;
        let into = to.at(to_offset, bytes)?;
        if to.is_device() {
            to.at(to_offset, bytes.next_multiple_of(4))?;
            // SAFETY: both ranges were checked, the destination's also as whole words.
            return unsafe { store_words(from, into, bytes, to_offset) };
        }
        if (from as usize).abs_diff(into as usize) < bytes {
            // SAFETY: both ranges were checked; memmove allows overlap.
            unsafe { libc::memmove(into.cast(), from.cast(), bytes) };
            return Ok(());
        }
        #[cfg(target_arch = "x86_64")]
        if bytes >= cache::STREAM_FROM {
            let head = into.align_offset(16);
            let blocks = (bytes - head) / 64;
            let tail = head + blocks * 64;
            // SAFETY: both ranges were checked and lie apart; head, blocks and tail are parts of
            // them, and `into + head` is a multiple of 16.
            unsafe {
                libc::memcpy(into.cast(), from.cast(), head);
                cache::stream_blocks(from.add(head), into.add(head), blocks);
                libc::memcpy(into.add(tail).cast(), from.add(tail).cast(), bytes - tail);
            }
            return Ok(());
        }
        let leaves = to.leaves(bytes);
        let fetch = |at, n| {
            self.prefetch(offset + at, n, Intent::Read);
            to.prefetch(to_offset + at, n, Intent::Write);
        };
        in_pieces(bytes, fetch, |at, n| {
            // SAFETY: both ranges were checked, `at + n` stays within them, and they lie apart.
            unsafe { libc::memcpy(into.add(at).cast(), from.add(at).cast(), n) };
            if leaves {
                to.prefetch(to_offset + at, n, Intent::Elsewhere);
            }
            Ok(())
        })
    }

    /// Sets `bytes` bytes from `offset` to `value`.
    #[inline]
    pub fn fill(&self, offset: usize, bytes: usize, value: u8) -> Result<(), MemError> {
        if let Some(far) = self.as_far() {
            self.check(offset, bytes)?;
            return far.write(offset, &vec![value; bytes]);
        }
        let to = self.at(offset, bytes)?;
        // SAFETY: the range was checked.
        unsafe { libc::memset(to.cast(), value.into(), bytes) };
        Ok(())
    }
}

/// Copies to a device's memory, which takes whole 4-byte words (as `mlx5_memcpy_to_dm` writes it);
/// the last one is filled up with zeros.
///
/// # Safety
/// `from` is valid for `bytes`, `into` for as many rounded up to words; they lie apart.
unsafe fn store_words(
    from: *const u8,
    into: *mut u8,
    bytes: usize,
    offset: usize,
) -> Result<(), MemError> {
    if !into.addr().is_multiple_of(4) {
        return Err(MemError::Misaligned { offset, align: 4 });
    }
    for at in (0..bytes).step_by(4) {
        let mut word = [0; 4];
        // SAFETY: within both ranges, as the caller promises; volatile, so that it stays one store.
        unsafe {
            libc::memcpy(word.as_mut_ptr().cast(), from.add(at).cast(), (bytes - at).min(4));
            into.add(at).cast::<u32>().write_volatile(u32::from_ne_bytes(word));
        }
    }
    // The words may be held back in a write-combining buffer.
    crate::device_barrier();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;

    #[test]
    fn access_outside_is_refused_and_touches_nothing() {
        let mem = HostMem::alloc(10).unwrap();
        assert_eq!(mem.len(), PAGE_BYTES);
        assert!(mem.write(PAGE_BYTES - 3, &[1; 4]).is_err());
        assert!(mem.write(usize::MAX, &[1; 4]).is_err());
        let mut all = vec![0xff; PAGE_BYTES];
        mem.read(0, &mut all).unwrap();
        assert!(all.iter().all(|&b| b == 0));
    }

    #[test]
    fn words_are_published_all_or_none() {
        let near = HostMem::alloc(PAGE_BYTES).unwrap();
        let far =
            HostMem::far(std::sync::Arc::new(crate::View::new(&near, 0, PAGE_BYTES).unwrap()));
        for (mem, first) in [(&near, 1), (&far.unwrap(), 5)] {
            let words = [first, 2, 3, 4];
            mem.publish_words(PAGE_BYTES - 32, words).unwrap();
            assert_eq!(near.read_words(PAGE_BYTES - 32).unwrap(), words);
            let refused = mem.publish_words(PAGE_BYTES - 24, [9; 4]);
            assert!(matches!(refused, Err(MemError::OutOfBounds { .. })));
            let refused = mem.publish_words(PAGE_BYTES - 36, [9; 4]);
            assert!(matches!(refused, Err(MemError::Misaligned { .. })));
            assert_eq!(near.read_words(PAGE_BYTES - 32).unwrap(), words);
            assert_eq!(near.read_words(PAGE_BYTES - 40).unwrap(), [0]);
        }
    }

    #[test]
    fn words_are_read_as_they_lie() {
        let mem = HostMem::alloc(PAGE_BYTES).unwrap();
        let bytes: Vec<u8> = (0..32).collect();
        mem.write(PAGE_BYTES - 32, &bytes).unwrap();
        let words: [u64; 4] = mem.read_words(PAGE_BYTES - 32).unwrap();
        assert_eq!(bytemuck::cast_slice::<_, u8>(&words), bytes);
        let far = HostMem::far(std::sync::Arc::new(crate::View::new(&mem, 0, PAGE_BYTES).unwrap()));
        assert_eq!(far.unwrap().read_words(PAGE_BYTES - 32).unwrap(), words);
        let outside = mem.read_words::<4>(PAGE_BYTES - 24);
        assert!(matches!(outside, Err(MemError::OutOfBounds { .. })));
        assert!(matches!(mem.read_words::<1>(4), Err(MemError::Misaligned { .. })));
    }

    #[test]
    fn copies_of_every_size_and_overlap_are_exact() {
        let (a, b) = (HostMem::alloc(3 * PAGE_BYTES).unwrap(), HostMem::alloc(3 * PAGE_BYTES));
        let b = b.unwrap();
        let bytes: Vec<u8> = (0..a.len() as u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let all = |mem: &HostMem| {
            let mut all = vec![0; mem.len()];
            mem.read(0, &mut all).unwrap();
            all
        };
        let lengths = [0, 1, 255, 511, 512, 513, 1023, 1024, 1025, 1280, 4095, 4096, 4097, 5000];
        // Once more with lines that leave the cache: nothing else changes.
        for (n, read) in lengths.map(|n| (n, false)).into_iter().chain(lengths.map(|n| (n, true))) {
            if read {
                b.read_by_device();
            }
            for (from, to) in [(0, 0), (3, 77), (77, 3), (64, 320), (320, 64), (1000, 1001)] {
                let mut expected = vec![0xa5; b.len()];
                expected[to..to + n].copy_from_slice(&bytes[from..from + n]);
                a.write(0, &bytes).unwrap();
                b.fill(0, b.len(), 0xa5).unwrap();
                a.copy_to(from, &b, to, n).unwrap();
                assert_eq!(all(&b), expected, "{n} bytes from {from} to {to}");
                b.fill(0, b.len(), 0xa5).unwrap();
                b.write(to, &bytes[from..from + n]).unwrap();
                assert_eq!(all(&b), expected, "{n} bytes written to {to}");
                // Within one mapping, where the ranges overlap.
                let mut expected = bytes.clone();
                expected.copy_within(from..from + n, to);
                a.copy_to(from, &a, to, n).unwrap();
                assert_eq!(all(&a), expected, "{n} bytes moved from {from} to {to}");
            }
        }
    }

    /// What LL messages of collectives rest on. A unit's words count up together: whoever reads its later half and
    /// then its earlier one finds the earlier one no older.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn aligned_units_of_16_bytes_are_written_at_once() {
        use std::sync::atomic::AtomicBool;
        const BYTES: usize = 40 << 10;
        let (to, stop) = (HostMem::alloc(BYTES).unwrap(), AtomicBool::new(false));
        let from = HostMem::alloc(BYTES).unwrap();
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                let mut looks = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    for at in (0..BYTES).step_by(16) {
                        let late = to.load_u64(at + 8, Ordering::Acquire).unwrap();
                        let early = to.load_u64(at, Ordering::Acquire).unwrap();
                        assert!(early >= late, "{at}: {early} beside {late}");
                        looks += u64::from(early > 0);
                    }
                }
                looks
            });
            let lengths =
                [16, 32, 48, 80, 112, 240, 272, 1040, 4112, 5520, 8208, 17_008, BYTES - 48];
            let started = std::time::Instant::now();
            for round in 1u64.. {
                let words = vec![round; BYTES / 8];
                let bytes: &[u8] = bytemuck::cast_slice(&words);
                from.write(0, bytes).unwrap();
                for (n, at) in lengths.iter().zip([0, 16, 32, 48].iter().cycle()) {
                    to.write(*at, &bytes[..*n]).unwrap();
                    from.copy_to(*at, &to, *at, *n).unwrap();
                    from.copy_to(48 - *at, &to, *at, *n).unwrap();
                }
                if started.elapsed().as_millis() > 500 {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(looker.join().unwrap() > 0, "nothing was seen");
        });
    }

    #[test]
    fn copies_of_every_length_and_alignment_move_just_their_bytes() {
        let from = HostMem::alloc(1 << 18).unwrap();
        let bytes: Vec<u8> = (0..1 << 18).map(|i: u32| (i ^ i >> 8 ^ i >> 13) as u8).collect();
        from.write(0, &bytes).unwrap();
        for n in [0, 1, 511, 512, 513, 4096, 16383, 16384, 16385, 16447, 65600, 200_001] {
            for (at, to_at) in [(0, 0), (1, 0), (0, 1), (5, 64), (16, 15), (63, 33)] {
                let to = HostMem::alloc(1 << 18).unwrap();
                to.fill(0, 1 << 18, 0xa5).unwrap();
                from.copy_to(at, &to, to_at, n).unwrap();
                let mut got = vec![0; 1 << 18];
                to.read(0, &mut got).unwrap();
                assert!(got[..to_at].iter().chain(&got[to_at + n..]).all(|&b| b == 0xa5), "{n}");
                assert!(got[to_at..to_at + n] == bytes[at..at + n], "{n} {at} {to_at}");
            }
        }
    }

    #[test]
    fn a_devices_memory_takes_whole_words_and_stays_mapped() {
        let host = HostMem::alloc(PAGE_BYTES).unwrap();
        host.fill(0, 64, 0xa5).unwrap();
        // SAFETY: the pages are `host`'s, which is the owner.
        let device = unsafe { HostMem::of_device(host.addr(), PAGE_BYTES, host.clone()) };
        device.write(4, &[1, 2, 3, 4, 5]).unwrap();
        let mut got = [0; 16];
        host.read(0, &mut got).unwrap();
        assert_eq!(got, [0xa5, 0xa5, 0xa5, 0xa5, 1, 2, 3, 4, 5, 0, 0, 0, 0xa5, 0xa5, 0xa5, 0xa5]);
        let from = HostMem::alloc(PAGE_BYTES).unwrap();
        from.write(1, b"bellpush").unwrap();
        from.copy_to(1, &device, 8, 7).unwrap();
        host.read(8, &mut got[..8]).unwrap();
        assert_eq!(&got[..8], b"bellpus\0");
        assert!(matches!(device.write(2, &[1]), Err(MemError::Misaligned { .. })));
        assert!(matches!(device.write(PAGE_BYTES - 3, &[1; 4]), Err(MemError::OutOfBounds { .. })));
        drop(device);
        host.read(8, &mut got[..8]).unwrap();
        assert_eq!(&got[..8], b"bellpus\0", "its owner unmaps it");
    }
}
