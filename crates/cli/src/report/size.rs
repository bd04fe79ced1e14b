//! Sizes in bytes, as text.
//!
//! A size is a whole number with an optional binary suffix: `8`, `8B`, `4K` or `4KiB`, `M` or
//! `MiB`, `G` or `GiB`, in any case. Decimal suffixes (`kB`, `MB`, `GB`) are refused, since GB
//! means 10⁹ bytes in rates. Commas separate the elements of a list. `8..4MiB` stands for the
//! powers of two in this range, both ends included.

use bellpush::preload::one_line;

const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// A text that is neither a size nor a list of sizes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// A size is missing.
    #[error("a size is missing")]
    Missing,
    /// The text is not a whole number, or its suffix is unknown.
    #[error("'{}' is not a size: write a whole number of bytes, or one with KiB, MiB or GiB", one_line(.0))]
    Malformed(String),
    /// The suffix is decimal.
    #[error("'{}' has a decimal unit: sizes take {binary}", one_line(.given))]
    Decimal {
        /// The text.
        given: String,
        /// The binary suffix to use.
        binary: &'static str,
    },
    /// The size exceeds 2⁶⁴ − 1 bytes.
    #[error("'{}' is too large", one_line(.0))]
    TooLarge(String),
    /// The size is zero.
    #[error("'{}' is zero bytes: a size is at least 1", one_line(.0))]
    Zero(String),
    /// An end of a range is not a power of two.
    #[error("'{}' is not a power of two, which both ends of a range must be", one_line(.0))]
    NotAPowerOfTwo(String),
    /// The range is descending.
    #[error("the range '{}' runs backwards", one_line(.0))]
    Backwards(String),
}

/// Parses one size.
///
/// # Errors
/// A [`SizeError`] that quotes the text.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SizeError::Missing);
    }
    let malformed = || SizeError::Malformed(text.into());
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    if digits.is_empty() {
        return Err(malformed());
    }
    let shift = match suffix.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "kb" => return Err(SizeError::Decimal { given: text.into(), binary: "KiB" }),
        "mb" => return Err(SizeError::Decimal { given: text.into(), binary: "MiB" }),
        "gb" => return Err(SizeError::Decimal { given: text.into(), binary: "GiB" }),
        _ => return Err(malformed()),
    };
    let too_large = || SizeError::TooLarge(text.into());
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    match number.checked_mul(1 << shift).ok_or_else(too_large)? {
        0 => Err(SizeError::Zero(text.into())),
        bytes => Ok(bytes),
    }
}

/// Parses a list of sizes and ranges: ascending, each size once.
///
/// # Errors
/// The [`SizeError`] of the first invalid part.
pub fn parse_list(text: &str) -> Result<Vec<u64>, SizeError> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => sizes.push(parse(part)?),
            Some((low, high)) => {
                // Of `8..=` the second end is `=`, which says little by itself.
                let is_no_word = |end: &str| {
                    let end = end.trim();
                    !end.is_empty() && !end.chars().any(char::is_alphanumeric)
                };
                if is_no_word(low) || is_no_word(high) {
                    return Err(SizeError::Malformed(part.trim().into()));
                }
                let power = |end: &str| match parse(end)? {
                    size if size.is_power_of_two() => Ok(size),
                    _ => Err(SizeError::NotAPowerOfTwo(end.trim().into())),
                };
                let (low, high) = (power(low)?, power(high)?);
                if low > high {
                    return Err(SizeError::Backwards(part.trim().into()));
                }
                sizes.extend((low.ilog2()..=high.ilog2()).map(|shift| 1u64 << shift));
            }
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

/// Formats a size exactly, in the largest unit that divides it: `8 B`, `4 KiB`, `1536 B`.
pub fn print(bytes: u64) -> String {
    UNITS
        .iter()
        .find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(|| format!("{bytes} B"), |(unit, shift)| format!("{} {unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("8", 8),
            ("8B", 8),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4 kib", 4096),
            (" 4M ", 4 << 20),
            ("2GiB", 2 << 30),
            ("100", 100),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        let refuse = |text: &str| parse_list(text).unwrap_err().to_string();
        assert_eq!(refuse(""), "a size is missing");
        assert_eq!(refuse("8,,16"), "a size is missing");
        assert_eq!(refuse("8.."), "a size is missing");
        let whole = "is not a size: write a whole number of bytes, or one with KiB, MiB or GiB";
        for text in ["x", "-4", "1.5KiB", "4TiB", "KiB", "0x10"] {
            assert_eq!(refuse(text), format!("'{text}' {whole}"));
        }
        assert_eq!(refuse("4kB"), "'4kB' has a decimal unit: sizes take KiB");
        assert_eq!(refuse("0"), "'0' is zero bytes: a size is at least 1");
        assert_eq!(refuse("99999999999999999999"), "'99999999999999999999' is too large");
        assert_eq!(refuse("17179869184G"), "'17179869184G' is too large");
        assert_eq!(
            refuse("12..64"),
            "'12' is not a power of two, which both ends of a range must be"
        );
        assert_eq!(refuse("64..8"), "the range '64..8' runs backwards");
        for range in ["8..=", "8...", "..."] {
            assert!(refuse(range).starts_with(&format!("'{range}' is not a size")), "{range}");
        }
    }

    #[test]
    fn lists_and_ranges() {
        assert_eq!(parse_list("4KiB,8,64,8"), Ok(vec![8, 64, 4096]));
        assert_eq!(parse_list("8..64, 100"), Ok(vec![8, 16, 32, 64, 100]));
        assert_eq!(parse_list("8..4MiB").map(|s| s.len()), Ok(20));
        assert_eq!(parse_list("8..8"), Ok(vec![8]));
    }

    #[test]
    fn prints_exactly() {
        for (bytes, text) in [
            (0, "0 B"),
            (8, "8 B"),
            (1536, "1536 B"),
            (4096, "4 KiB"),
            (4 << 20, "4 MiB"),
            (3 << 30, "3 GiB"),
        ] {
            assert_eq!(print(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(number in 1u64.., shift in 0u32..40) {
            let bytes = (number >> shift).max(1) << (shift / 2);
            prop_assume!(bytes != 0);
            prop_assert_eq!(parse(&print(bytes)), Ok(bytes));
        }

        #[test]
        fn any_text_is_answered(text in ".{0,24}") {
            if let Ok(sizes) = parse_list(&text) {
                prop_assert!(!sizes.is_empty() && sizes.is_sorted() && !sizes.contains(&0));
            }
        }
    }
}
