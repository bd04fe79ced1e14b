//! Lines that end with a sequence, verified and copied out in one pass.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Intent, MemError, View};

#[cfg(target_arch = "x86_64")]
mod units;

/// How far ahead of the line that is copied the lines are fetched.
const AHEAD_BYTES: usize = 1024;

impl View {
    /// Joins the first `DATA` bytes of lines of `LINE` bytes from `offset` on into `into`, as long
    /// as the last 4 bytes of a line have `value` in the bits of `mask` (in memory's byte order);
    /// `into` says how many lines at most. Returns how many were joined; of what lies in `into`
    /// after them, as many bytes as a line has behind its data may have changed.
    ///
    /// A line's last bytes, 16 on a processor with AVX where the line lies at a multiple of that, else 8, are loaded once,
    /// with acquire, before its others: the data is what the writer stored with, or before, the sequence that was checked.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`] and [`MemError::Misaligned`] when not all lines lie in the view,
    /// 8-byte aligned.
    #[inline]
    pub fn join_lines<const LINE: usize, const DATA: usize>(
        &self,
        offset: usize,
        mask: u32,
        value: u32,
        into: &mut [u8],
    ) -> Result<usize, MemError> {
        const { assert!(LINE.is_multiple_of(8) && LINE - 8 <= DATA && DATA <= LINE) };
        let bytes = (into.len() / DATA).saturating_mul(LINE);
        let start = self.at(offset, bytes)?;
        if self.mem.is_far() && !self.mem.is_modelled() {
            return self.join_far::<LINE, DATA>(offset, (mask, value), into);
        }
        let base = self.mem.at_or_modelled(start, bytes)?;
        if !start.is_multiple_of(8) {
            return Err(MemError::Misaligned { offset, align: 8 });
        }
        self.prefetch(offset, bytes.min(AHEAD_BYTES), Intent::Read);
        #[cfg(target_arch = "x86_64")]
        if LINE.is_multiple_of(16)
            && start.is_multiple_of(16)
            && !self.mem.is_modelled()
            && units::at_once()
        {
            // SAFETY: as many lines as fit into `into` lie behind `base`, which is a multiple of 16: the mapping begins
            // with a page.
            return Ok(unsafe { units::join::<LINE, DATA>(base, (mask, value), into) });
        }
        let load = |at: usize, order: Ordering| {
            #[cfg(feature = "model")]
            if let Some(model) = self.mem.modelled_word(start + at, 8) {
                return model.load_u64(start + at, order);
            }
            // SAFETY: all lines were checked to lie in the mapping, 8-byte aligned; words in them
            // may be shared as atomics.
            unsafe { AtomicU64::from_ptr(base.add(at).cast()) }.load(order)
        };
        // Acquire: the writer's data, stored before or with the sequence, is visible to the loads
        // that follow.
        let tail = |line: usize| load(line * LINE + LINE - 8, Ordering::Acquire);
        // The bytes that come last in memory.
        let later = |word: u64| {
            if cfg!(target_endian = "little") { (word >> 32) as u32 } else { word as u32 }
        };
        let differs = |last: u64| later(last) & mask ^ value;
        let join = |line: usize, last: u64, part: &mut [u8]| {
            let (whole, rest) = part.split_at_mut(LINE - 8);
            for (k, to) in whole.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *to = load(line * LINE + k * 8, Ordering::Relaxed).to_ne_bytes();
            }
            rest.copy_from_slice(&last.to_ne_bytes()[..DATA - (LINE - 8)]);
        };
        // Four lines at a time: one branch, and all four sequences before any data.
        let mut line = 0;
        let mut parts = into.chunks_exact_mut(4 * DATA);
        for four in &mut parts {
            let ahead = line * LINE + AHEAD_BYTES;
            if ahead < bytes {
                self.prefetch(offset + ahead, (4 * LINE).min(bytes - ahead), Intent::Read);
            }
            let tails = [tail(line), tail(line + 1), tail(line + 2), tail(line + 3)];
            if tails.iter().fold(0, |any, &t| any | differs(t)) != 0 {
                break;
            }
            for (i, part) in four.as_chunks_mut::<DATA>().0.iter_mut().enumerate() {
                join(line + i, tails[i], part);
            }
            line += 4;
        }
        // What is left, or the four of which one differs, one by one.
        for part in into[line * DATA..].chunks_exact_mut(DATA) {
            let last = tail(line);
            if differs(last) != 0 {
                return Ok(line);
            }
            join(line, last, part);
            line += 1;
        }
        Ok(line)
    }

    /// The same in a device's memory that is far. It is copied twice: sequences that the first copy
    /// has say that the second one has the data.
    fn join_far<const LINE: usize, const DATA: usize>(
        &self,
        offset: usize,
        (mask, value): (u32, u32),
        into: &mut [u8],
    ) -> Result<usize, MemError> {
        let mut lines = vec![0; into.len() / DATA * LINE];
        let start = self.at(offset, lines.len())?;
        self.mem.read(start, &mut lines)?;
        let fits = |line: &&[u8]| {
            let tail = line[LINE - 4..].try_into().expect("four bytes");
            u32::from_ne_bytes(tail) & mask == value
        };
        let joined = lines.chunks_exact(LINE).take_while(fits).count();
        self.mem.read(start, &mut lines[..joined * LINE])?;
        for (line, part) in lines.chunks_exact(LINE).zip(into.chunks_exact_mut(DATA)).take(joined) {
            part.copy_from_slice(&line[..DATA]);
        }
        Ok(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dma, HostMem};

    fn window() -> View {
        let mem = HostMem::alloc(4096).unwrap();
        View::new(&mem, 64, 2048).unwrap()
    }

    /// Lines at a place of the view, whose units of 16 bytes lie aligned or not.
    fn check<const LINE: usize, const DATA: usize>(from: usize, mask: u32, value: u32) {
        let view = window().part(from, 1024).unwrap();
        let mut lines: Vec<u8> = (0..1024u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for line in lines.chunks_exact_mut(LINE) {
            let tail = u32::from_ne_bytes(line[LINE - 4..].try_into().unwrap());
            line[LINE - 4..].copy_from_slice(&(tail & !mask | value).to_ne_bytes());
        }
        view.write(0, &lines).unwrap();
        let wanted: Vec<u8> = lines.chunks_exact(LINE).flat_map(|l| &l[..DATA]).copied().collect();
        let all = 1024 / LINE;
        let join = |at: usize, into: &mut [u8]| {
            view.join_lines::<LINE, DATA>(at * LINE, mask, value, into).unwrap()
        };
        let is_kept = |rest: &[u8]| rest.iter().skip(LINE - DATA).all(|&b| b == 0xa5);
        for count in [0, 1, 2, 3, 4, 5, 8, 9, all - 1, all] {
            // Behind whole lines there is room for a part of one, or none.
            for more in [0, 3, 4, DATA - 1] {
                let mut into = vec![0xa5; count * DATA + more];
                assert_eq!(join(0, &mut into), count);
                assert_eq!(into[..count * DATA], wanted[..count * DATA], "{count} and {more}");
                assert!(is_kept(&into[count * DATA..]), "{count} and {more}");
            }
        }
        // A line of which one bit of the value is another ends the walk, wherever it is.
        for bad in 0..all {
            let bit = mask & 1 << (bad % 4 * 8);
            let bit = if bit == 0 { 1 << mask.trailing_zeros() } else { bit };
            let at = bad * LINE + LINE - 4;
            let tail = u32::from_ne_bytes(lines[at..at + 4].try_into().unwrap());
            view.write(at, &(tail ^ bit).to_ne_bytes()).unwrap();
            let mut into = vec![0xa5; all * DATA];
            assert_eq!(join(0, &mut into), bad);
            assert_eq!(into[..bad * DATA], wanted[..bad * DATA]);
            assert!(is_kept(&into[bad * DATA..]), "{bad}");
            // And what was missing is joined behind the rest.
            view.write(at, &lines[at..at + 4]).unwrap();
            assert_eq!(join(bad, &mut into[bad * DATA..]), all - bad);
            assert_eq!(into, wanted);
        }
    }

    #[test]
    fn lines_of_every_size_are_joined_up_to_the_first_other_one() {
        for from in [0, 8, 16] {
            check::<16, 12>(from, u32::MAX, 0x0102_0304);
            check::<16, 14>(from, 0xffff_0000u32.to_le(), 0x0304_0000u32.to_le());
            check::<64, 60>(from, u32::MAX, 9);
        }
    }

    /// Each line of a lap carries the lap's number throughout; the next lap is written once this one has been joined.
    fn check_written<const LINE: usize, const DATA: usize>() {
        const LAPS: u64 = 20_000;
        let (view, joined) = (window().part(0, 512).unwrap(), AtomicU64::new(0));
        let until = |lap: u64| {
            while joined.load(Ordering::Acquire) < lap {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for lap in 1..=LAPS {
                    until(lap - 1);
                    // Ascending, and so the word with the sequence last of each line.
                    for at in (0..512).step_by(8) {
                        view.store_u64(at, lap | lap << 32, Ordering::Release).unwrap();
                    }
                }
            });
            let mut into = vec![0; 512 / LINE * DATA];
            for lap in 1..=LAPS {
                let mut have = 0;
                while have < 512 / LINE {
                    let rest = &mut into[have * DATA..];
                    let value = lap as u32;
                    let more = view.join_lines::<LINE, DATA>(have * LINE, u32::MAX, value, rest);
                    have += more.unwrap();
                    if have < 512 / LINE {
                        std::thread::yield_now();
                    }
                }
                let words = into.as_chunks::<4>().0;
                let stale = words.iter().position(|&word| word != (lap as u32).to_ne_bytes());
                // The writer ends whatever was found.
                joined.store(if stale.is_some() { LAPS } else { lap }, Ordering::Release);
                assert_eq!(stale, None, "lap {lap}, lines of {LINE}");
            }
        });
    }

    #[test]
    fn lines_that_another_thread_writes_are_joined_whole() {
        check_written::<16, 12>();
        check_written::<64, 60>();
    }

    #[test]
    fn lines_outside_the_view_are_refused() {
        let view = window();
        let mut into = [0; 24];
        assert!(view.join_lines::<16, 12>(2048 - 16, 0, 0, &mut into).is_err());
        assert!(view.join_lines::<16, 12>(usize::MAX - 7, 0, 0, &mut into).is_err());
        let misaligned = view.join_lines::<16, 12>(4, 0, 0, &mut into);
        assert!(matches!(misaligned, Err(MemError::Misaligned { .. })));
    }

    /// A memory that only copies reach behaves as one that the processor reaches.
    #[test]
    fn memory_that_is_far_is_copied() {
        let near = window();
        let far = HostMem::far(std::sync::Arc::new(near.clone())).unwrap();
        let view = View::new(&far, 64, 1024).unwrap();
        assert!(far.is_far() && view.as_host().is_none());
        assert_eq!(view.device_addr(), Some(near.addr() + 64));
        view.write(3, &[7; 100]).unwrap();
        let mut got = [0; 100];
        near.read(67, &mut got).unwrap();
        assert_eq!(got, [7; 100]);
        view.store_u64(8, 0x0102_0304_0506_0708, Ordering::Release).unwrap();
        assert_eq!(near.load_u64(72, Ordering::Acquire).unwrap(), 0x0102_0304_0506_0708);
        assert_eq!(
            view.load_u32(8, Ordering::Acquire).unwrap(),
            near.load_u32(72, Ordering::Acquire).unwrap()
        );
        assert_eq!(view.fetch_add(8, 1).unwrap(), 0x0102_0304_0506_0708);
        view.fill(0, 16, 0xa5).unwrap();
        assert_eq!(view.load_u32(12, Ordering::Acquire).unwrap(), 0xa5a5_a5a5);
        // Out of bounds and alignment as ever; and no pointer to it is handed out.
        assert!(matches!(
            view.load_u64(1020, Ordering::Acquire),
            Err(MemError::OutOfBounds { .. })
        ));
        assert!(matches!(
            view.store_u32(2, 0, Ordering::Release),
            Err(MemError::Misaligned { .. })
        ));
        assert!(matches!(far.at(0, 1), Err(MemError::Far)));
        // Copies each way, and lines.
        let other = window();
        crate::copy(&view, 0, &other, 5, 300).unwrap();
        crate::copy(&other, 5, &view, 500, 300).unwrap();
        let (mut a, mut b) = ([0; 300], [1; 300]);
        view.read(0, &mut a).unwrap();
        view.read(500, &mut b).unwrap();
        assert_eq!(a, b);
        let mut lines = [[9u8; 16]; 4];
        lines[2][12..].fill(8);
        view.write(0, lines.as_flattened()).unwrap();
        let mut into = [0; 48];
        let value = u32::from_ne_bytes([9; 4]);
        assert_eq!(view.join_lines::<16, 12>(0, u32::MAX, value, &mut into).unwrap(), 2);
        assert_eq!((into[..24].to_vec(), into[24]), (vec![9; 24], 0));
    }
}
