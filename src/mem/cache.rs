//! Cache hints: they move lines, never data's values, so that bounds are the only rule they keep.

use super::{HostMem, View};

/// What a line is fetched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// To be loaded.
    Read,
    /// To be stored to: the line is wanted exclusively.
    Write,
}

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

impl HostMem {
    /// Asks for the lines of `bytes` bytes from `offset`, as far as they lie in the mapping. A
    /// hint: it does not wait, and does nothing on processors without such an instruction.
    #[inline]
    pub fn prefetch(&self, offset: usize, bytes: usize, intent: Intent) {
        let end = offset.saturating_add(bytes).min(self.len());
        // The mapping starts with a page, so that lines of offsets are lines of addresses.
        let mut at = offset & !(LINE_BYTES - 1);
        while at < end {
            prefetch_line(self, at, intent);
            at += LINE_BYTES;
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
fn prefetch_line(mem: &HostMem, at: usize, intent: Intent) {
    use std::arch::asm;
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let Ok(line) = mem.at(at, LINE_BYTES) else { return };
    match intent {
        // SAFETY: a hint about an address inside the mapping; it neither faults nor changes data.
        Intent::Read => unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) },
        // The intrinsic for this becomes a plain prefetch unless the compiler may assume PRFCHW.
        // SAFETY: as above; processors without the instruction's effect decode it as a NOP.
        Intent::Write => unsafe {
            asm!("prefetchw byte ptr [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        },
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch_line(_: &HostMem, _: usize, _: Intent) {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Dma, PAGE_BYTES};

    #[test]
    fn any_range_may_be_prefetched_and_nothing_changes() {
        let mem = HostMem::alloc(PAGE_BYTES).unwrap();
        mem.write(0, &[7; PAGE_BYTES]).unwrap();
        let view = View::new(&mem, 64, 128).unwrap();
        let odd = [0, 1, 63, 64, 65, 127, 128, 129, PAGE_BYTES, usize::MAX - 1, usize::MAX];
        for intent in [Intent::Read, Intent::Write] {
            for offset in odd {
                for bytes in odd {
                    mem.prefetch(offset, bytes, intent);
                    view.prefetch(offset, bytes, intent);
                }
            }
        }
        let mut all = [0; PAGE_BYTES];
        view.mem.read(0, &mut all).unwrap();
        assert_eq!(all, [7; PAGE_BYTES]);
        assert_eq!(view.bytes(), 128);
    }
}
