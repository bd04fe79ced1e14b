//! Lines of whole units of 16 bytes, each loaded by one instruction.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_set1_epi32, _mm_storeu_si128,
};
use std::sync::atomic::{AtomicU64, Ordering};

use super::AHEAD_BYTES;
use crate::cache::prefetch_line;
use crate::{Intent, LINE_BYTES};

/// Of a mask of 16 bytes, those of the last word.
const LAST: i32 = 0xf000;

/// Whether the processor loads 16 aligned bytes of cacheable memory at once: those with AVX do (Intel SDM vol. 3A,
/// guaranteed atomic operations; AMD64 vol. 2, 7.3.2, access atomicity).
#[inline]
pub(super) fn at_once() -> bool {
    std::arch::is_x86_feature_detected!("avx")
}

/// As [`crate::View::join_lines`], of lines from `base` on, of which the first [`AHEAD_BYTES`] have been fetched.
///
/// # Safety
/// As many lines as fit into `into` are mapped from `base` on, which is a multiple of 16, and [`at_once`] holds.
#[inline]
pub(super) unsafe fn join<const LINE: usize, const DATA: usize>(
    base: *const u8,
    (mask, value): (u32, u32),
    into: &mut [u8],
) -> usize {
    let units = LINE / 16;
    // Assembly, so that a concurrent writer changes which bytes are loaded and nothing else. x86-64 keeps loads in order,
    // and so does the compiler these.
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
    // SAFETY: SSE2 is part of x86-64; here and below.
    let [mask, wanted] = [mask, value].map(|word| unsafe { _mm_set1_epi32(word.cast_signed()) });
    // SAFETY: as above.
    let both = |a: __m128i, b: __m128i| unsafe { _mm_and_si128(a, b) };
    // SAFETY: as above.
    let fits = |tail: __m128i| unsafe { _mm_cmpeq_epi32(both(tail, mask), wanted) };
    // SAFETY: as above.
    let is_all = |fits: __m128i| unsafe { _mm_movemask_epi8(fits) } & LAST == LAST;
    // A unit of a line's data and, of its last one, the bytes behind it, which the next line's begin will write over.
    let store = |into: &mut [u8], at: usize, unit: __m128i| {
        let to: &mut [u8] = &mut into[at..at + 16];
        // SAFETY: 16 bytes, of any alignment.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), unit) };
    };
    let lines = into.len() / DATA;
    let mut line = 0;
    // One branch for four lines, and all their sequences before any of their data.
    while (line + 4) * DATA + (LINE - DATA) <= into.len() {
        for at in (line * LINE + AHEAD_BYTES..).step_by(LINE_BYTES).take(4 * LINE / LINE_BYTES) {
            if at < lines * LINE {
                prefetch_line(base.wrapping_add(at), Intent::Read);
            }
        }
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
        into[to + (units - 1) * 16..to + DATA].copy_from_slice(&last[..16 - (LINE - DATA)]);
        line += 1;
    }
    if let Some(last) = line.checked_sub(1) {
        // Acquire: what the writer stored before these lines is there for the loads that follow, which the compiler, and a
        // race detector, do not see from the instructions above.
        // SAFETY: the last 8 bytes of a line, aligned; words in the mapping may be shared as atomics.
        let tail =
            unsafe { AtomicU64::from_ptr(base.add(last * LINE + LINE - 8).cast_mut().cast()) };
        tail.load(Ordering::Acquire);
    }
    line
}
