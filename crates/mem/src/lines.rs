//! Lines that end with a sequence, verified and copied out in one pass.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Intent, MemError, View};

/// How far ahead of the line that is copied the lines are fetched.
const AHEAD_BYTES: usize = 1024;

impl View {
    /// Joins the first `DATA` bytes of lines of `LINE` bytes from `offset` on into `into`, as long
    /// as the last 4 bytes of a line have `value` in the bits of `mask` (in memory's byte order);
    /// `into` says how many lines at most. Returns how many were joined; what lies in `into`
    /// after them is left as it was.
    ///
    /// A line's last 8 bytes are loaded once, with acquire, before its others: the data is what the
    /// writer stored with, or before, the sequence that was checked.
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

    /// As [`View::join_lines`], with all 4 bytes of a sequence, by loads of 16 bytes where the processor has them and
    /// the lines lie so. Up to 4 bytes of `into` behind what was joined may have changed.
    ///
    /// # Errors
    /// As [`View::join_lines`].
    #[inline]
    pub fn join_units<const LINE: usize, const DATA: usize>(
        &self,
        offset: usize,
        value: u32,
        into: &mut [u8],
    ) -> Result<usize, MemError> {
        const { assert!(LINE.is_multiple_of(16) && DATA + 4 == LINE) };
        #[cfg(target_arch = "x86_64")]
        {
            let bytes = (into.len() / DATA).saturating_mul(LINE);
            let start = self.at(offset, bytes)?;
            if start.is_multiple_of(16) && !self.mem.is_far() && !self.mem.is_modelled() {
                let base = self.mem.at(start, bytes)?;
                // SAFETY: as many lines as fit into `into` lie behind `base`, which is a multiple of 16: the mapping
                // begins with a page.
                return Ok(unsafe { join_units::<LINE, DATA>(base, value, into) });
            }
        }
        self.join_lines::<LINE, DATA>(offset, u32::MAX, value, into)
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

/// Joins lines of `LINE` bytes from `base` on: as many as fit into `into`, and end with `value`.
///
/// # Safety
/// So many lines are mapped from `base` on, which is a multiple of 16.
#[cfg(target_arch = "x86_64")]
unsafe fn join_units<const LINE: usize, const DATA: usize>(
    base: *const u8,
    value: u32,
    into: &mut [u8],
) -> usize {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_set1_epi32,
        _mm_storeu_si128,
    };
    /// Of a mask of 16 bytes, those of the last word.
    const LAST: i32 = 0xf000;
    let units = LINE / 16;
    // Assembly, so that a concurrent writer changes which bytes are loaded and nothing else. One instruction, whose 16
    // bytes come at once on processors with AVX; x86-64 keeps loads in order, and so does the compiler these.
    let load = |line: usize, unit: usize| -> __m128i {
        let value;
        // SAFETY: the caller's promise: 16 bytes of a line, aligned to as many.
        unsafe {
            asm!(
                "movdqa {value}, xmmword ptr [{from}]",
                value = out(xmm_reg) value,
                from = in(reg) base.wrapping_add(line * LINE + unit * 16),
                options(nostack, preserves_flags, readonly),
            );
        }
        value
    };
    // SAFETY: SSE2 is part of x86-64.
    let wanted = unsafe { _mm_set1_epi32(value.cast_signed()) };
    // SAFETY: as above.
    let fits = |tail: __m128i| unsafe { _mm_cmpeq_epi32(tail, wanted) };
    // SAFETY: as above.
    let both = |a: __m128i, b: __m128i| unsafe { _mm_and_si128(a, b) };
    // SAFETY: as above.
    let is_all = |mask: __m128i| unsafe { _mm_movemask_epi8(mask) } & LAST == LAST;
    // A unit of a line's data and, of its last one, 4 bytes that the next line's begin will write over.
    let store = |into: &mut [u8], at: usize, unit: __m128i| {
        let to: &mut [u8] = &mut into[at..at + 16];
        // SAFETY: 16 bytes, of any alignment.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), unit) };
    };
    let lines = into.len() / DATA;
    let mut line = 0;
    // One branch for four lines, and all their sequences before any of their data.
    while (line + 4) * DATA + 4 <= into.len() {
        let tails: [__m128i; 4] = std::array::from_fn(|i| load(line + i, units - 1));
        let [a, b, c, d] = tails.map(fits);
        if !is_all(both(both(a, b), both(c, d))) {
            break;
        }
        for (i, tail) in tails.into_iter().enumerate() {
            let to = (line + i) * DATA;
            for unit in 0..units - 1 {
                store(into, to + unit * 16, load(line + i, unit));
            }
            store(into, to + (units - 1) * 16, tail);
        }
        line += 4;
    }
    // What is left, or the four of which one differs, one by one, and nothing behind a line's data.
    while line < lines {
        let tail = load(line, units - 1);
        if !is_all(fits(tail)) {
            break;
        }
        let to = line * DATA;
        for unit in 0..units - 1 {
            store(into, to + unit * 16, load(line, unit));
        }
        let mut last = [0; 16];
        store(&mut last, 0, tail);
        into[to + (units - 1) * 16..to + DATA].copy_from_slice(&last[..12]);
        line += 1;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dma, HostMem};

    fn window() -> View {
        let mem = HostMem::alloc(4096).unwrap();
        View::new(&mem, 64, 2048).unwrap()
    }

    fn check<const LINE: usize, const DATA: usize>(mask: u32, value: u32) {
        let view = window();
        let mut lines: Vec<u8> = (0..2048u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for line in lines.chunks_exact_mut(LINE) {
            let tail = u32::from_ne_bytes(line[LINE - 4..].try_into().unwrap());
            line[LINE - 4..].copy_from_slice(&(tail & !mask | value).to_ne_bytes());
        }
        view.write(0, &lines).unwrap();
        for count in [0, 1, 2, 5, 2048 / LINE] {
            let mut into = vec![0xa5; count * DATA];
            let joined = view.join_lines::<LINE, DATA>(0, mask, value, &mut into).unwrap();
            assert_eq!(joined, count);
            let parts = lines.chunks_exact(LINE).take(count).map(|l| &l[..DATA]);
            assert_eq!(into, parts.collect::<Vec<_>>().concat());
        }
        // A line with another value ends the walk, and nothing from it on is copied.
        let bad = 2048 / LINE - 2;
        view.write(bad * LINE + LINE - 4, &(value ^ mask).to_ne_bytes()).unwrap();
        let mut into = vec![0xa5; 2048 / LINE * DATA];
        assert_eq!(view.join_lines::<LINE, DATA>(0, mask, value, &mut into).unwrap(), bad);
        assert!(into[bad * DATA..].iter().all(|&b| b == 0xa5));
    }

    #[test]
    fn lines_of_every_size_are_joined_up_to_the_first_other_one() {
        check::<16, 12>(u32::MAX, 0x0102_0304);
        check::<16, 14>(0xffff_0000u32.to_le(), 0x0304_0000u32.to_le());
        check::<64, 60>(u32::MAX, 9);
    }

    fn check_units<const LINE: usize, const DATA: usize>(value: u32) {
        let view = window();
        let mut lines: Vec<u8> = (0..2048u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for line in lines.chunks_exact_mut(LINE) {
            line[DATA..].copy_from_slice(&value.to_ne_bytes());
        }
        view.write(0, &lines).unwrap();
        let wanted: Vec<u8> = lines.chunks_exact(LINE).flat_map(|l| &l[..DATA]).copied().collect();
        let all = 2048 / LINE;
        for count in [0, 1, 2, 3, 4, 5, 8, 9, all - 1, all] {
            // Behind whole lines there is room for a part of one, or none.
            for more in [0, 3, 4, DATA - 1] {
                let mut into = vec![0xa5; count * DATA + more];
                assert_eq!(view.join_units::<LINE, DATA>(0, value, &mut into).unwrap(), count);
                assert_eq!(into[..count * DATA], wanted[..count * DATA], "{count} and {more}");
                assert!(into[count * DATA..].iter().skip(4).all(|&b| b == 0xa5));
            }
        }
        // A line with another value ends the walk, wherever it is.
        for bad in 0..all {
            view.write(0, &lines).unwrap();
            view.write(bad * LINE + DATA, &(value ^ 0x100).to_ne_bytes()).unwrap();
            let mut into = vec![0xa5; all * DATA];
            assert_eq!(view.join_units::<LINE, DATA>(0, value, &mut into).unwrap(), bad);
            assert_eq!(into[..bad * DATA], wanted[..bad * DATA]);
            assert!(into[bad * DATA..].iter().skip(4).all(|&b| b == 0xa5), "{bad}");
            // And what was missing is joined behind the rest.
            view.write(bad * LINE + DATA, &value.to_ne_bytes()).unwrap();
            let rest = &mut into[bad * DATA..];
            let joined = view.join_units::<LINE, DATA>(bad * LINE, value, rest).unwrap();
            assert_eq!((joined, &into), (all - bad, &wanted));
        }
        // Lines that lie otherwise are joined as others are.
        let moved = view.part(8, 1024).unwrap();
        moved.write(0, &lines[..1024]).unwrap();
        let mut into = vec![0; 1024 / LINE * DATA];
        assert_eq!(moved.join_units::<LINE, DATA>(0, value, &mut into).unwrap(), 1024 / LINE);
        assert_eq!(into, wanted[..into.len()]);
        assert!(view.join_units::<LINE, DATA>(2048 - LINE + 16, value, &mut into).is_err());
    }

    #[test]
    fn units_are_joined_up_to_the_first_other_line() {
        check_units::<16, 12>(0x0102_0304);
        check_units::<64, 60>(9);
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
