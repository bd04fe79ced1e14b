//! Text of others' in a line of output: names of devices, machines and CPUs, as files and captures have them.

/// Whether a character does something else than stand in its place: controls, marks and overrides of direction
/// (Unicode Standard Annex 9), characters of no width, ends of lines, and what is none (Unicode, 23.7: XML has no room
/// for U+FFFE and U+FFFF).
pub fn is_unfit(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// The text with such characters written out: `\u{202e}`.
pub fn one_line(text: &str) -> String {
    let plain = |c: char| if is_unfit(c) { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unfit_is_written_out() {
        assert_eq!(
            one_line("a\u{202e}b\u{2066}\u{200b}\x1b\n"),
            r"a\u{202e}b\u{2066}\u{200b}\u{1b}\n"
        );
        assert_eq!(one_line("é — µs 日本"), "é — µs 日本");
    }
}
