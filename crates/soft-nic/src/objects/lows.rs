//! Which low bytes an index of memory keys has had.

/// A set of low bytes.
#[derive(Default, PartialEq)]
pub(super) struct Used([u64; 4]);

impl Used {
    pub(super) fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte) / 64] |= 1 << (byte % 64);
    }

    pub(super) fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte) / 64] >> (byte % 64) & 1 == 1
    }

    pub(super) fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}
