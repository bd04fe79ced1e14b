//! Fields of any number of bits in big-endian bytes, and structs that are made of them.

/// The value of a field: `width` bits, at most 64, from bit `bit` (0: the most significant) of byte
/// `byte`.
pub(super) fn get(data: &[u8], byte: usize, bit: usize, width: usize) -> u64 {
    let bytes = (bit + width).div_ceil(8);
    let all =
        data[byte..byte + bytes].iter().fold(0_u128, |sum, &next| sum << 8 | u128::from(next));
    (all >> (bytes * 8 - bit - width) & mask(width)) as u64
}

/// Writes a field, of which the bits are 0 before.
pub(super) fn put(data: &mut [u8], byte: usize, bit: usize, width: usize, value: u64) {
    let bytes = (bit + width).div_ceil(8);
    let all = (u128::from(value) & mask(width)) << (bytes * 8 - bit - width);
    for (into, from) in data[byte..byte + bytes].iter_mut().zip(&all.to_be_bytes()[16 - bytes..]) {
        *into |= from;
    }
}

fn mask(width: usize) -> u128 {
    (1 << width) - 1
}

/// A value that bits stand for.
pub(super) trait Bits: Copy {
    fn from_bits(bits: u64) -> Self;
    fn to_bits(self) -> u64;
}

macro_rules! numbers {
    ($($int:ty)*) => {$(
        impl Bits for $int {
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
            fn to_bits(self) -> u64 {
                self.into()
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64);

impl Bits for bool {
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
    fn to_bits(self) -> u64 {
        self.into()
    }
}

/// Declares a struct by the places of its fields, so that it is read and written at the same ones:
/// `name: type = (byte, bit, width)`, then fields of whole bytes, `name: length = first byte`, then
/// structs of the same kind.
macro_rules! layout {
    (
        $(#[$doc:meta])* $name:ident
        { $($(#[$fdoc:meta])* $field:ident : $type:ty = ($byte:expr, $bit:expr, $width:expr);)* }
        { $($(#[$bdoc:meta])* $bytes:ident : $len:literal = $first:expr;)* }
        { $($(#[$sdoc:meta])* $part:ident : $struct:ident;)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $type,)*
            $($(#[$sdoc])* pub $part: $struct,)*
            $($(#[$bdoc])* pub $bytes: [u8; $len],)*
        }

        impl $name {
            /// Its fields without those of its parts.
            pub(super) const FIELDS: &'static [Field] = &[
                $(Field::of(stringify!($field), $byte, $bit, $width),)*
                $(Field::bytes(stringify!($bytes), $first, $len),)*
            ];

            /// Its fields and those of its parts, in the order of their places.
            #[allow(unused_mut, dead_code, reason = "most have no parts, and parts are asked for their own")]
            pub(super) fn fields() -> Vec<&'static Field> {
                let mut all: Vec<_> = Self::FIELDS.iter().collect();
                $(all.extend($struct::FIELDS);)*
                all.sort_by_key(|field| (field.at, std::cmp::Reverse(field.place())));
                all
            }

            fn read(data: &[u8; DATA_BYTES]) -> Self {
                Self {
                    $($field: Bits::from_bits(get(data, $byte, $bit, $width)),)*
                    $($part: $struct::read(data),)*
                    $($bytes: data[$first..$first + $len].try_into().expect("as many bytes"),)*
                }
            }

            fn write(&self, data: &mut [u8; DATA_BYTES]) {
                $(put(data, $byte, $bit, $width, self.$field.to_bits());)*
                $(self.$part.write(data);)*
                $(data[$first..$first + $len].copy_from_slice(&self.$bytes);)*
            }
        }
    };
}
pub(super) use layout;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_leaves_its_neighbours_alone() {
        let mut data = [0; 10];
        put(&mut data, 1, 3, 5, u64::MAX);
        put(&mut data, 1, 0, 3, 0b101);
        assert_eq!(data[..3], [0, 0b1011_1111, 0]);
        put(&mut data, 2, 0, 64, 0x0102_0304_0506_0708);
        assert_eq!(get(&data, 2, 0, 64), 0x0102_0304_0506_0708);
        assert_eq!(
            (get(&data, 1, 0, 3), get(&data, 1, 3, 5), get(&data, 2, 4, 12)),
            (5, 31, 0x102)
        );
    }
}
