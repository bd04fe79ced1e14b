//! Wire formats as typed values. The crate does no I/O, has no unsafe code and depends on no other
//! crate of bellpush.
//!
//! Packets are in [`roce`], messages of the connection manager in [`cm`]; the other modules hold the formats that a program and a NIC share.
//! Their layouts follow the mlx5 Programmer's Reference Manual ("Work Queue Structures",
//! "Completion Queue Entries", "Doorbells") and agree byte for byte with `kernels/include/bellpush/wire.h`. No
//! parser trusts its input: it takes a copy of the bytes, checks the copy once and returns values.

#![forbid(unsafe_code)]

pub mod be;
pub mod blueflame;
pub mod cm;
pub mod cqe;
pub mod doorbell;
pub mod fields;
pub mod inband;
pub mod line;
mod masked;
pub mod mmo;
mod plain;
pub mod roce;
mod seg;
pub mod tm;
pub mod umr;
pub mod wait;
pub mod wqe;

pub use plain::PlainWrite;

/// Local key of a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Lkey(pub u32);
/// Remote key of a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rkey(pub u32);
/// Queue pair number, 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Qpn(pub u32);
/// Address inside a memory region, as WQEs and packets give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Iova(pub u64);

impl Qpn {
    /// Largest queue pair number: 2^24 - 1.
    pub const MAX: u32 = 0xff_ffff;
}

/// Packet sequence number: 24 bits in wrapping order (InfiniBand vol. 1, 9.7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u32"))]
pub struct Psn(u32);

impl From<u32> for Psn {
    /// As [`Psn::new`].
    fn from(value: u32) -> Self {
        Self::new(value)
    }
}

impl Psn {
    /// Number of distinct values.
    pub const MODULUS: u32 = 1 << 24;

    /// The low 24 bits of `value`.
    #[inline]
    pub fn new(value: u32) -> Self {
        Self(value & (Self::MODULUS - 1))
    }

    /// The value, below [`Psn::MODULUS`].
    #[inline]
    pub fn value(self) -> u32 {
        self.0
    }

    /// The PSN `n` packets later.
    #[must_use]
    #[inline]
    pub fn plus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// Signed distance from `other` to `self`: negative when `self` comes before, in
    /// `-2^23 .. 2^23`.
    #[inline]
    pub fn distance(self, other: Self) -> i32 {
        // Shifting to the top of 32 bits makes the subtraction wrap at 24.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }

    /// Whether `self` comes before `other`.
    #[inline]
    pub fn before(self, other: Self) -> bool {
        self.distance(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_name_the_value_that_is_wrong() {
        use crate::cm::{IpHeaderError, MadError};
        use crate::roce::{IpError, PacketError};
        let all: [(&dyn std::error::Error, &str); 12] = [
            (&wqe::WqeError::Short { have: 17, need: 64 }, "17"),
            (&wqe::WqeError::Segment(48), "48"),
            (&wqe::WqeError::Message(1 << 32), "4294967296"),
            (&cqe::CqeOpcodeError(7), "0x7"),
            (&MadError::Length(255), "255"),
            (&MadError::Class { class: 4, version: 9 }, "0x04"),
            (&IpHeaderError::Ip(5), "5"),
            (&IpError::Length { udp: 99, ip: 8 }, "99"),
            (&IpError::Checksum, "checksum"),
            (&PacketError::Version(15), "15"),
            (&PacketError::Icrc { stored: 1, computed: 0xabcd_0123 }, "0x2301cdab"),
            (&PacketError::Pad { pad: 3, bytes: 0 }, "3"),
        ];
        for (error, value) in all {
            assert!(error.to_string().contains(value), "{error:?}: {error}");
        }
    }

    #[test]
    fn packet_numbers_wrap_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert!(last.before(last.plus(1)) && !last.plus(1).before(last) && !last.before(last));
        assert_eq!(Psn::new(3).distance(last), 4);
        assert_eq!(last.distance(Psn::new(3)), -4);
        assert_eq!(Psn::new(0x80_0000).distance(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x1ff_ffff), last);
    }

    proptest! {
        /// As numbers that do not wrap say it: `n` packets later, within half of all.
        #[test]
        fn packet_numbers_compare_across_any_wrap(
            at in prop_oneof![0u32..1 << 24, 0xff_fff0u32..1 << 24, 0x7f_fff0u32..0x80_0010],
            n in prop_oneof![0u32..1 << 23, 0u32..16, 0x7f_fff0u32..1 << 23],
            laps in 0u32..256,
        ) {
            let (from, to) = (Psn::new(at), Psn::new(at).plus(n));
            prop_assert_eq!(to.value(), (at + n) % Psn::MODULUS);
            prop_assert_eq!(from.plus(laps << 24), from);
            prop_assert_eq!((to.distance(from), from.distance(to)), (n as i32, -(n as i32)));
            prop_assert_eq!((from.before(to), to.before(from)), (n != 0, false));
            let half = from.plus(1 << 23);
            prop_assert_eq!(half.distance(from), -(1 << 23));
            prop_assert!(half.before(from) && from.before(half), "half of all apart: each before the other");
        }
    }
}
