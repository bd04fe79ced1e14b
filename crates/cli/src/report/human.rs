//! Numbers for human readers, with three significant digits.

use bellpush::pcie::text::is_unfit;

/// A time: `950 ns`, `2.54 µs`, `1.20 ms`, `3.00 s`.
pub fn time_ns(ns: f64) -> String {
    scaled(ns, &[("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)])
}

/// A rate of messages: `614 M/s`, `33.6 k/s`, `12.0 /s`.
pub fn per_second(rate: f64) -> String {
    scaled(rate, &[("G/s", 1e9), ("M/s", 1e6), ("k/s", 1e3), ("/s", 1.0)])
}

/// A bandwidth in GB/s, without its unit.
pub fn gb_s(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        r if r < 0.000_1 => format!("{r:.1e}"),
        r if r < 0.1 => format!("{r:.4}"),
        r => significant(r),
    }
}

/// A number with so many decimals, or with two significant digits where those would say less.
pub fn decimals(value: f64, places: usize) -> String {
    let is_said =
        value == 0.0 || !value.is_finite() || value.abs() * 10f64.powi(places as i32) >= 9.5;
    let plain = format!("{value:.places$}");
    if is_said {
        return plain;
    }
    // Of the first digit.
    let place = -value.abs().log10().floor();
    if place > 6.0 { format!("{value:.1e}") } else { format!("{value:.*}", place as usize + 1) }
}

/// From one number to another; a unit that both have is said once.
pub fn range([low, high]: [String; 2]) -> String {
    match (low.rsplit_once(' '), high.rsplit_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number}..{high}"),
        _ => format!("{low}..{high}"),
    }
}

/// Foreign text, made fit for a terminal line: without control characters, and without those that
/// turn the text around, hide in it or end a line (Unicode Standard Annex 9).
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_unfit(c) { '\u{fffd}' } else { c }).collect()
}

fn scaled(value: f64, units: &[(&str, f64)]) -> String {
    // Chosen by the printed value: 999.7 ns is 1.00 µs, not 1000 ns.
    let unit = units.iter().find(|(_, scale)| value >= scale * 0.9995);
    match unit.or(units.last()) {
        Some((unit, scale)) => format!("{} {unit}", significant(value / scale)),
        None => significant(value),
    }
}

fn significant(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (ns, text) in [
            (0.0, "0.00 ns"),
            (95.92, "95.9 ns"),
            (950.0, "950 ns"),
            (999.7, "1.00 µs"),
            (2537.0, "2.54 µs"),
            (48868.0, "48.9 µs"),
            (1.2e6, "1.20 ms"),
            (61e9, "61.0 s"),
        ] {
            assert_eq!(time_ns(ns), text);
        }
    }

    #[test]
    fn rates() {
        assert_eq!(per_second(33.6e6), "33.6 M/s");
        assert_eq!(per_second(12.0), "12.0 /s");
        let texts = [0.0, 0.000_02, 0.0032, 0.35, 2.54, 52.4, 364.0].map(gb_s);
        assert_eq!(texts, ["0", "2.0e-5", "0.0032", "0.35", "2.54", "52.4", "364"]);
    }

    #[test]
    fn small_numbers_keep_two_digits() {
        for (value, text) in [
            (57.6, "57.60"),
            (0.1, "0.10"),
            (0.09, "0.090"),
            (0.0049, "0.0049"),
            (0.001_23, "0.0012"),
            (-0.004, "-0.0040"),
            (1.2e-8, "1.2e-8"),
            (0.0, "0.00"),
        ] {
            assert_eq!(decimals(value, 2), text);
        }
        assert_eq!(
            [decimals(0.96, 1), decimals(0.94, 1), decimals(0.0, 3)],
            ["1.0", "0.94", "0.000"]
        );
    }

    #[test]
    fn ranges() {
        let of = |ends: [f64; 2]| range(ends.map(time_ns));
        assert_eq!(of([2400.0, 2710.0]), "2.40..2.71 µs");
        assert_eq!(of([950.0, 1200.0]), "950 ns..1.20 µs");
        assert_eq!(range([1.5, 30.0].map(gb_s)), "1.50..30.0");
    }

    #[test]
    fn control_characters_are_shown_not_obeyed() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(printable("a\u{fffe}\u{ffff}b"), "a\u{fffd}\u{fffd}b");
        let turned = "a\u{202e}b\u{2066}c\u{200b}d\u{feff}";
        assert_eq!(printable(turned), "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}");
        assert_eq!(printable("é — µs 日本"), "é — µs 日本");
    }
}
