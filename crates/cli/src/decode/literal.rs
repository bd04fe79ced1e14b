//! Bytes as programs write them: C's lists, what gdb prints, Python's strings.

use super::text::quoted;

/// What a line is besides words of hex.
pub(super) enum Literal<'a> {
    /// No bytes.
    Nothing,
    /// Words of hex, behind a name and `=`.
    Rest(&'a str),
    /// A string of Python's.
    Bytes(Result<Vec<u8>, String>),
}

/// A line without offset of a program, or of what gdb and Python print; `None` for words of hex.
pub(super) fn literal(line: &str) -> Option<Literal<'_>> {
    // `unsigned int sq_len = 64;` of xxd -i
    if line.starts_with("unsigned int ") && line.contains("_len = ") {
        return Some(Literal::Nothing);
    }
    let value = line.split_once('=').map(|(_, value)| value.trim_start());
    if is_decimal(value.unwrap_or(line)) {
        let what = "a list of numbers that may be decimal or hex: print bytes.hex(), or write 0x";
        return Some(Literal::Bytes(Err(what.into())));
    }
    if let Some(bytes) = python(value.unwrap_or(line)) {
        return Some(Literal::Bytes(bytes));
    }
    if let Some(value) = value {
        return Some(Literal::Rest(value));
    }
    // gdb without addresses: `<sq+16>:`
    if let Some((name, rest)) = line.strip_prefix('<').and_then(|rest| rest.split_once(">:"))
        && !name.contains(char::is_whitespace)
    {
        return Some(Literal::Rest(rest));
    }
    if line.contains("\\x") {
        return escaped(line).err().map(|what| Literal::Bytes(Err(what)));
    }
    None
}

/// Whether a list is what Python and JSON print of numbers: decimal, without leading zeros.
fn is_decimal(list: &str) -> bool {
    let Some(inner) = list.strip_prefix('[') else { return false };
    let inner = inner.trim_end_matches([']', ',', ';']);
    let is = |word: &str| {
        word.bytes().all(|b| b.is_ascii_digit())
            && word.parse::<u8>().is_ok_and(|n| n.to_string() == word)
    };
    let mut words = inner.split(',').map(str::trim);
    inner.contains(',') && words.all(is)
}

/// Pairs of digits with colons or dashes between, apart.
pub(super) fn pairs(line: &str) -> Option<String> {
    let is_pairs = |word: &str, mark: char| {
        word.split(mark).all(|pair| pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    [':', '-'].into_iter().find_map(|mark| {
        let all = line.contains(mark) && line.split_whitespace().all(|word| is_pairs(word, mark));
        all.then(|| line.replace(mark, " "))
    })
}

/// Whether each `\x` has two digits and no more: C takes as many as there are, Python two.
fn escaped(line: &str) -> Result<(), String> {
    for part in line.split("\\x").skip(1) {
        let digits = part.bytes().take_while(u8::is_ascii_hexdigit).count();
        if digits != 2 || !part[2..].starts_with(['"', '\'', ' ', ',', ';', '}']) && part.len() > 2
        {
            return Err(format!("{} behind \\x is not one byte of two digits", quoted(part)));
        }
    }
    Ok(())
}

/// The bytes of `b'\x00\x12V\n'`.
fn python(text: &str) -> Option<Result<Vec<u8>, String>> {
    let text = text.strip_prefix('b').or(text.strip_prefix("bytearray(b"))?;
    let quote = text.chars().next().filter(|it| ['"', '\''].contains(it))?;
    let mut rest = text[1..].chars();
    let mut bytes = Vec::new();
    loop {
        let byte = match rest.next() {
            None => return Some(Err("a string without its end".into())),
            Some(c) if c == quote => return Some(Ok(bytes)),
            Some('\\') => escape(&mut rest),
            Some(c) => u8::try_from(c).ok().filter(u8::is_ascii),
        };
        match byte {
            Some(byte) => bytes.push(byte),
            None => return Some(Err(format!("byte {} of the string is none", bytes.len()))),
        }
    }
}

fn escape(rest: &mut std::str::Chars<'_>) -> Option<u8> {
    Some(match rest.next()? {
        'x' => {
            let digit = |c: char| c.to_digit(16);
            let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
            (high << 4 | low) as u8
        }
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        c @ ('\\' | '\'' | '"') => c as u8,
        _ => return None,
    })
}

/// Digits of the longest word with `0x`, if others are shorter and it is longer than a byte: gdb's `p/x` leaves leading
/// zeros out.
pub(super) fn widest(text: &str) -> Option<usize> {
    let (mut least, mut most) = (usize::MAX, 0);
    for line in text.lines() {
        // What stands before a colon is an offset or an address.
        let line = line.split_once(':').map_or(line, |(_, rest)| rest);
        for word in line.split(|c: char| c.is_whitespace() || ",;{}".contains(c)) {
            if let Some(digits) = word.strip_prefix("0x") {
                (least, most) = (least.min(digits.len()), most.max(digits.len()));
            }
        }
    }
    (least < most && (3..=16).contains(&most)).then(|| most.next_power_of_two())
}
