//! Big-endian integers of alignment 1, for structs that are cast from wire bytes.

use bytemuck::{Pod, Zeroable};

macro_rules! big_endian {
    ($name:ident, $int:ty, $bytes:literal) => {
        /// A big-endian integer; alignment 1.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Converts from the machine's byte order.
            #[inline]
            pub const fn new(value: $int) -> Self {
                Self(value.to_be_bytes())
            }

            /// The value in the machine's byte order.
            #[inline]
            pub const fn get(self) -> $int {
                <$int>::from_be_bytes(self.0)
            }
        }

        impl From<$int> for $name {
            #[inline]
            fn from(value: $int) -> Self {
                Self::new(value)
            }
        }
    };
}

big_endian!(Be16, u16, 2);
big_endian!(Be32, u32, 4);
big_endian!(Be64, u64, 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_most_significant_first() {
        assert_eq!(bytemuck::bytes_of(&Be16::new(0x0102)), [1, 2]);
        assert_eq!(bytemuck::bytes_of(&Be32::new(0x0102_0304)), [1, 2, 3, 4]);
        assert_eq!(Be64::new(0x0102_0304_0506_0708).get(), 0x0102_0304_0506_0708);
        assert_eq!(align_of::<Be64>(), 1);
    }
}
