//! Atomics of memory that can only be copied: read, changed, written back.

use crate::{Dma, MemError};

/// Changes an aligned word of 8 bytes, and returns the old one. Others of the NIC's are kept out by the caller; nobody
/// keeps out kernels and other devices.
///
/// Of a half that stays as it is nothing is written: it may be a word of somebody else's, who has stored to it since it
/// was read. An operand of 4 bytes has such a neighbour, and a card leaves that alone.
///
/// # Errors
/// Those of the memory.
pub fn rewrite(
    mem: &(impl Dma + ?Sized),
    offset: usize,
    change: impl FnOnce(u64) -> u64,
) -> Result<u64, MemError> {
    let mut was = [0; 8];
    mem.read(offset, &mut was)?;
    let old = u64::from_ne_bytes(was);
    let new = change(old).to_ne_bytes();
    let part = match [0..4, 4..8].map(|half| was[half.clone()] != new[half]) {
        [false, false] => return Ok(old),
        [true, false] => 0..4,
        [false, true] => 4..8,
        [true, true] => 0..8,
    };
    mem.write(offset + part.start, &new[part])?;
    Ok(old)
}
