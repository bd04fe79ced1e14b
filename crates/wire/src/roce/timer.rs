//! Codes of timers and credits (InfiniBand vol. 1, 9.7.5.1.2, 9.7.5.2.8 and 9.7.6.1.3).

/// RNR NAK timer by code, in units of 10 µs (table "Encoding for RNR NAK Timer Field").
const RNR_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Nanoseconds of an RNR NAK timer code. Only the low 5 bits count.
pub fn rnr_timer_ns(code: u8) -> u64 {
    u64::from(RNR_10US[usize::from(code & 31)]) * 10_000
}

/// Code of the shortest RNR NAK timer of at least `ns` nanoseconds; code 0, the longest, if there
/// is none.
pub fn rnr_timer_code(ns: u64) -> u8 {
    (1..32).find(|&code| rnr_timer_ns(code) >= ns).unwrap_or(0)
}

/// Nanoseconds of a local ACK timeout code (low 5 bits): 4.096 µs · 2^code. `None`, no timeout, for
/// 0.
pub fn ack_timeout_ns(code: u8) -> Option<u64> {
    match code & 31 {
        0 => None,
        code => Some(4096 << code),
    }
}

/// Receive WQEs of an ACK's credit code (low 5 bits). `None` for code 31, which carries no credits.
pub fn credits(code: u8) -> Option<u32> {
    match u32::from(code & 31) {
        31 => None,
        code @ 0..=3 => Some(code),
        // From 4 on, two codes for each power of two: 4, 6, 8, 12, 16, 24, ...
        code => Some((2 + code % 2) << (code / 2 - 1)),
    }
}

/// Code of the largest number of credits that is not above `credits`.
pub fn credit_code(credits: u32) -> u8 {
    (0..31).rev().find(|&code| self::credits(code).is_some_and(|c| c <= credits)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_those_of_the_tables() {
        assert_eq!(rnr_timer_ns(0), 655_360_000);
        assert_eq!(rnr_timer_ns(1), 10_000);
        assert_eq!(rnr_timer_ns(14), 1_280_000);
        assert_eq!(rnr_timer_ns(31), 491_520_000);
        for code in 1..32 {
            assert_eq!(rnr_timer_code(rnr_timer_ns(code)), code);
            assert!(code == 1 || rnr_timer_ns(code) > rnr_timer_ns(code - 1));
        }
        assert_eq!(rnr_timer_code(0), 1);
        assert_eq!(rnr_timer_code(u64::MAX), 0);
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(1), Some(8192));
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(31), Some(4096 << 31));
    }

    #[test]
    fn credits_are_those_of_the_table() {
        let table = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
            1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, expected) in (0..31).zip(table) {
            assert_eq!(credits(code), Some(expected), "{code}");
            assert_eq!(credit_code(expected), code);
        }
        assert_eq!(credits(31), None);
        assert_eq!(credit_code(5), 4);
        assert_eq!(credit_code(u32::MAX), 30);
    }
}
