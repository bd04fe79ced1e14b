//! Cache hints: they move lines, never data's values, so that bounds are the only rule they keep.

use crate::{HostMem, MemError, View};

/// Copies from this size on fetch ahead: shorter ones end before a fetch could help.
const AHEAD_FROM: usize = 512;
/// A piece of such a copy, and how far ahead of it its lines are fetched. On a Sapphire Rapids
/// server, 4 KiB to lines out of cache take 370 ns so and 534 ns without (from lines out of cache
/// as well, 602 and 669; all in cache, 101 and 115), and the pieces' size hardly matters.
const PIECE_BYTES: usize = 1024;
// From 2 KiB on a C library may copy by `rep movsb`, which stores no 16 bytes at once (`copies`).
const _: () = assert!(PIECE_BYTES < 2048);
const AHEAD_BYTES: usize = 1024;

/// Copies from this size on store past the cache. On the same server 16 KiB from a window to lines out of cache take
/// 1.1 us so and 1.4 us with fetching ahead, 64 KiB 3.7 and 5.9; where the destination is in cache, 16 KiB take 1.1 us
/// instead of 0.4. Slots that are written again and again are: all-reduces with messages of 64 KiB take 7 to 11 %
/// longer with stores past the cache (docs/results/allreduce-h200.md). So only what is too long for such slots goes
/// past it.
#[cfg(target_arch = "x86_64")]
pub(crate) const STREAM_FROM: usize = 128 << 10;

/// Copies of these sizes to memory that a device reads leave the core's own caches for the shared one, line by line: 1
/// MiB that 12 cores had just written took 24 blocks of a GPU 45 us to load, 31 so. It makes the copy itself half as
/// fast, which long messages feel more: all-reduces with messages of 15 KiB take 8 % less so, with 43 KiB and more up
/// to 20 % more (docs/results/allreduce-h200.md). Longer than a packet, which may be part of any message.
pub(crate) const LEAVES: std::ops::RangeInclusive<usize> = (4 << 10) + 1..=16 << 10;

/// Copies `blocks` blocks of 64 bytes with stores that bypass the cache.
///
/// # Safety
/// Both ranges are valid for the length and lie apart; `into` is a multiple of 16.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn stream_blocks(from: *const u8, into: *mut u8, blocks: usize) {
    if blocks == 0 {
        return;
    }
    // Assembly, so that a concurrent writer changes which bytes are copied and nothing else.
    // SAFETY: the caller's promise; movntdq wants 16-byte alignment, and SSE2 is part of x86-64.
    unsafe {
        std::arch::asm!(
            "2:",
            "prefetcht0 byte ptr [{from} + 1024]", // a hint: may lie past the end
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movntdq [{into}], {a}",
            "movntdq [{into} + 16], {b}",
            "movntdq [{into} + 32], {c}",
            "movntdq [{into} + 48], {d}",
            "add {from}, 64",
            "add {into}, 64",
            "dec {blocks}",
            "jnz 2b",
            // Such stores are not ordered with others: the copy before the CQE that reports it (and
            // before any later store), for whoever sees that.
            "sfence",
            from = inout(reg) from => _,
            into = inout(reg) into => _,
            blocks = inout(reg) blocks => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Goes through a copy of `bytes` bytes: `fetch` what comes, then `copy` what is due.
#[inline]
pub(crate) fn in_pieces(
    bytes: usize,
    fetch: impl Fn(usize, usize),
    mut copy: impl FnMut(usize, usize) -> Result<(), MemError>,
) -> Result<(), MemError> {
    if bytes < AHEAD_FROM {
        return copy(0, bytes);
    }
    fetch(0, AHEAD_BYTES.min(bytes));
    for at in (0..bytes).step_by(PIECE_BYTES) {
        let ahead = at + AHEAD_BYTES;
        if ahead < bytes {
            fetch(ahead, PIECE_BYTES.min(bytes - ahead));
        }
        copy(at, PIECE_BYTES.min(bytes - at))?;
    }
    Ok(())
}

/// What a line is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// To be loaded.
    Read,
    /// To be stored to: the line is wanted exclusively.
    Write,
    /// To be loaded by another core or a device: it leaves this core's caches for the shared one.
    Elsewhere,
}

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

impl HostMem {
    /// Puts the lines of `bytes` bytes from `offset`, as far as they lie in the mapping, out of every
    /// cache. They are in memory when this returns; on processors other than x86-64 it does nothing.
    pub fn evict(&self, offset: usize, bytes: usize) {
        self.each_line(offset, bytes, evict_line);
        evicted();
    }

    /// Asks for the lines of `bytes` bytes from `offset`, as far as they lie in the mapping. A
    /// hint: it does not wait, and does nothing on processors without such an instruction.
    #[inline]
    pub fn prefetch(&self, offset: usize, bytes: usize, intent: Intent) {
        self.each_line(offset, bytes, |line| prefetch_line(line, intent));
    }

    /// The lines of a range, as far as they lie in the mapping.
    #[inline]
    fn each_line(&self, offset: usize, bytes: usize, f: impl Fn(*const u8)) {
        let end = offset.saturating_add(bytes).min(self.len());
        if offset >= end {
            return;
        }
        // The mapping starts with a page, so that lines of offsets are lines of addresses.
        let first = offset & !(LINE_BYTES - 1);
        let Ok(base) = self.at(first, end - first) else { return };
        for line in (0..end - first).step_by(LINE_BYTES) {
            f(base.wrapping_add(line));
        }
    }
}

impl View {
    /// As [`HostMem::prefetch`], as far as the bytes lie in the view.
    #[inline]
    pub fn prefetch(&self, offset: usize, bytes: usize, intent: Intent) {
        let bytes = bytes.min(self.len.saturating_sub(offset));
        if bytes > 0 {
            self.mem.prefetch(self.offset + offset, bytes, intent);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn prefetch_line(line: *const u8, intent: Intent) {
    use std::arch::asm;
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    match intent {
        // SAFETY: a hint: it neither faults nor changes data, whatever the address.
        Intent::Read => unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) },
        // The intrinsic for this becomes a plain prefetch unless the compiler may assume PRFCHW.
        // SAFETY: as above; processors without the instruction's effect decode it as a NOP.
        Intent::Write => unsafe {
            asm!("prefetchw byte ptr [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        },
        // SAFETY: as above.
        Intent::Elsewhere => unsafe {
            asm!("cldemote byte ptr [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        },
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn evict_line(line: *const u8) {
    // SAFETY: moves a line of this mapping, which the caller looked up, and changes no data.
    unsafe { std::arch::x86_64::_mm_clflush(line) };
}

/// Waits for the evictions of this thread, before whatever it asks of a device next.
#[cfg(target_arch = "x86_64")]
#[inline]
fn evicted() {
    // SAFETY: a fence.
    unsafe { std::arch::x86_64::_mm_mfence() };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn evict_line(_: *const u8) {}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn evicted() {}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch_line(_: *const u8, _: Intent) {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dma, PAGE_BYTES};

    #[test]
    fn any_range_may_be_prefetched_or_evicted_and_nothing_changes() {
        let mem = HostMem::alloc(PAGE_BYTES).unwrap();
        mem.write(0, &[7; PAGE_BYTES]).unwrap();
        let view = View::new(&mem, 64, 128).unwrap();
        let odd = [0, 1, 63, 64, 65, 127, 128, 129, PAGE_BYTES, usize::MAX - 1, usize::MAX];
        for intent in [Intent::Read, Intent::Write, Intent::Elsewhere] {
            for offset in odd {
                for bytes in odd {
                    mem.prefetch(offset, bytes, intent);
                    view.prefetch(offset, bytes, intent);
                    mem.evict(offset, bytes);
                }
            }
        }
        let mut all = [0; PAGE_BYTES];
        view.mem.read(0, &mut all).unwrap();
        assert_eq!(all, [7; PAGE_BYTES]);
        assert_eq!(view.bytes(), 128);
    }
}
