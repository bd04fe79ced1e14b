//! Hex as people have it: xxd, `hexdump -C`, tcpdump, lists with `0x`, gdb's `x`, bare digits, and kernel logs.

use super::DecodeError;
use super::literal::{Literal, literal, pairs, widest};
use super::log::{HEADS, Said, is_log, said, unlogged};

/// Bytes that belong together: a dump.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chunk {
    /// What the line before it calls it.
    pub said: Option<Said>,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether they were read as words of a gdb or hexdump, whose order is the host's.
    pub doubtful: bool,
}

/// Most bytes of all dumps.
const MOST: usize = 64 << 20;

struct Reader {
    chunks: Vec<Chunk>,
    /// Offset or address of the current dump's beginning, if its lines say one.
    base: Option<u64>,
    /// Bytes of the line before, which `*` repeats.
    row: Vec<u8>,
    /// `*` came: lines like the one before stand until the next offset.
    repeats: bool,
    host_words: bool,
    total: usize,
    /// Digits of the offset of the line before; 0 if it had none, or one with a colon.
    digits: usize,
    /// Whether lines may be of a log, and no dump.
    log: bool,
    /// What od's offsets count in, once that is known.
    radix: Option<u32>,
    /// Whether its rows are of bytes, and not of words.
    bytes: bool,
    /// An offset that may be data, until the next line goes on from it.
    unsure: Option<String>,
    /// Digits of words that are written without their leading zeros.
    width: Option<usize>,
}

fn is_hex(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A word between quotes, as much of it as fits a line.
pub(super) fn quoted(word: &str) -> String {
    match word.char_indices().nth(40) {
        Some((end, _)) => format!("{:?}...", &word[..end]),
        None => format!("{word:?}"),
    }
}

fn unprefixed(word: &str) -> &str {
    word.strip_prefix("0x").or(word.strip_prefix("0X")).unwrap_or(word)
}

/// How a line begins.
struct Begin<'a> {
    /// Its offset.
    at: u64,
    /// The offset's digits, where they may be octal or decimal: od's.
    digits: Option<&'a str>,
    /// Whether it may be an address: another dump may begin at any.
    address: bool,
    /// What follows.
    rest: &'a str,
    /// Whether a colon is between them.
    colon: bool,
    /// Whether its words may be those of a host.
    doubtful: bool,
}

/// xxd, tcpdump, the kernel; gdb: `0x7ffe0010 <sq+16>:`.
fn before_colon(line: &str) -> Option<Begin<'_>> {
    let (head, rest) = line.split_once(':')?;
    let head = head.split_once(" <").map_or(head, |(head, _)| head).trim();
    let digits = Some(unprefixed(head)).filter(|head| is_hex(head))?;
    let at = u64::from_str_radix(digits, 16).ok()?;
    let address = head.starts_with("0x");
    // gdb's words; bytes have no order.
    let doubtful = address && rest.starts_with('\t') && has_words(rest);
    Some(Begin { at, digits: None, address, rest, colon: true, doubtful })
}

/// Whether some of the words are longer than a byte.
fn has_words(rest: &str) -> bool {
    rest.split_whitespace().any(|word| unprefixed(word).len() > 2)
}

/// hexdump, od and Wireshark: an offset, then bytes or groups. `digits` are those of the offset before.
fn before_space(line: &str, digits: usize) -> Option<Begin<'_>> {
    let mut words = line.split_whitespace();
    let (first, second) = (words.next().filter(|word| is_hex(word))?, words.next());
    let odd = !first.len().is_multiple_of(2);
    let (wide, doubtful) = match second.map(str::len) {
        Some(2) => (first.len() >= 4, false),
        Some(4) => (first.len() == 7 || digits > 0 && first.len() == digits, true),
        // od -t x4 and x8
        Some(8 | 16) => (first.len() == 7 || first.len() == 6 || odd, true),
        // The last line says where the bytes end, in as many digits: plain hexdump's 7, hexdump -C's 8, od -A x's 6.
        None => (first.len() == 7 || first.len() == digits, false),
        _ => (false, false),
    };
    let at = wide.then(|| u64::from_str_radix(first, 16).ok())??;
    let doubtful = doubtful && second.is_some();
    let digits = (first.len() == 7).then_some(first);
    Some(Begin {
        at,
        digits,
        address: false,
        rest: &line[line.find(first)? + first.len()..],
        colon: false,
        doubtful,
    })
}

/// Words of plain od (octal) and xxd -b (binary), which look like hex.
fn octal(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let (first, second) = (words.next()?, words.next()?);
    let is = |word: &str, most: u8| word.bytes().all(|byte| (b'0'..=most).contains(&byte));
    if first.len() == 7 && is(first, b'7') && second.len() == 6 && is(second, b'7') {
        return Some("words of od are octal: od -t x1 writes hex".into());
    }
    // 6 bytes of a row, each of 8 digits; words of 4 bytes are 4.
    let row = [first, second].into_iter().chain(words).skip(1).take(6);
    let binary = first.ends_with(':') && row.clone().count() == 6;
    let binary = binary && row.clone().all(|word| word.len() == 8 && is(word, b'1'));
    binary.then(|| "words of xxd -b are binary: xxd writes hex".into())
}

/// The part of a dump's line that is hex: what follows is the same as characters.
fn without_characters(rest: &str, colon: bool) -> &str {
    let hex = rest.trim_start();
    let end = |mark: &str| hex.find(mark).unwrap_or(hex.len());
    if colon {
        return &hex[..end("  ").min(end(" | "))];
    }
    // `hexdump -C` has two spaces in the middle of its bytes, too, and bars around its characters; od -t x1z has `>`.
    // Wireshark has three spaces before them, hexdump -x four between words.
    let bytes = hex.split(' ').next().is_some_and(|word| word.len() == 2);
    let spaces = if bytes { end("   ") } else { hex.len() };
    &hex[..end("  |").min(end("  >")).min(spaces)]
}

impl Reader {
    fn begin(&mut self) -> Result<(), String> {
        self.sure()?;
        if self.chunks.last().is_some_and(|chunk| !chunk.bytes.is_empty()) {
            self.chunks.push(Chunk::default());
        }
        (self.base, self.repeats, self.digits, self.radix) = (None, false, 0, None);
        self.row.clear();
        Ok(())
    }

    /// Refuses a first offset that no line has gone on from: it may be data; and a `*` that stands for nobody knows how
    /// many rows.
    fn sure(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.repeats) && !self.log {
            return Err("'*' without an offset behind it".into());
        }
        match self.unsure.take() {
            Some(word) => Err(format!(
                "{word} may be an offset or data: begin offsets with 0, or write all words alike"
            )),
            None => Ok(()),
        }
    }

    /// The offset of a line: one of 7 digits is octal or decimal, if od wrote it.
    fn offset(&mut self, begin: &Begin<'_>) -> Result<u64, String> {
        let have = self.chunk().bytes.len() as u64;
        let end = self.base.map_or(0, |base| base.saturating_add(have));
        let Some(digits) = begin.digits.filter(|_| self.base.is_some() && begin.at > 0) else {
            return Ok(begin.at);
        };
        let value = |radix: u32| u64::from_str_radix(digits, radix).ok();
        if let Some(radix) = self.radix {
            return value(radix)
                .ok_or_else(|| format!("{digits:?} is no offset like those before"));
        }
        let row = self.row.len().max(1) as u64;
        let fits = |radix: &u32| {
            value(*radix).is_some_and(|at| match self.repeats {
                true => at > end && (at - end).is_multiple_of(row),
                false => at == end,
            })
        };
        // od's alone: hexdump's offsets of bytes have 8 digits.
        let radices = if self.bytes { &[8, 10][..] } else { &[16, 8, 10] };
        let found: Vec<u32> = radices.iter().copied().filter(fits).collect();
        match found[..] {
            [radix] => {
                self.radix = Some(radix);
                Ok(value(radix).unwrap_or(begin.at))
            }
            [] => Ok(begin.at),
            _ => Err(format!(
                "{digits:?} may be hex or octal: hexdump -v, od -v or od -A x write what is not"
            )),
        }
    }

    fn chunk(&mut self) -> &mut Chunk {
        if self.chunks.is_empty() {
            self.chunks.push(Chunk::default());
        }
        self.chunks.last_mut().expect("there is one")
    }

    /// A line's offset: it goes on where the one before ended, or begins another dump.
    fn at(&mut self, at: u64, begin: &Begin<'_>) -> Result<(), String> {
        let have = self.chunk().bytes.len() as u64;
        let Some(base) = self.base else {
            self.begin()?;
            self.base = Some(at);
            if !begin.colon && at > 0 {
                self.unsure = Some(format!("{at:#x}"));
            }
            return Ok(());
        };
        let end = base.saturating_add(have);
        let Some(missing) = at.checked_sub(end) else {
            if at > 0 && !begin.address && !self.log {
                return Err(format!(
                    "the bytes before end at {end:#x}, and {at:#x} is none of a dump's first"
                ));
            }
            self.begin()?;
            self.base = Some(at);
            return Ok(());
        };
        if missing == 0 {
            (self.repeats, self.unsure) = (false, None);
            return Ok(());
        }
        if !self.repeats || self.row.is_empty() {
            // As xxd -d counts.
            let decimal = format!("{at:x}").parse() == Ok(end);
            let how = if decimal { ": offsets seem to be decimal, and xxd writes hex" } else { "" };
            return Err(format!("{missing} bytes before {at:#x} are not there{how}"));
        }
        if missing > (MOST - self.total) as u64 {
            return Err(format!("'*' stands for more than {MOST} bytes"));
        }
        self.unsure = None;
        let row = self.row.iter().copied().cycle().take(missing as usize).collect::<Vec<_>>();
        self.total += row.len();
        self.chunk().bytes.extend(row);
        self.repeats = false;
        Ok(())
    }

    /// The bytes of a word.
    fn word(&self, word: &str, into: &mut Vec<u8>) -> Result<(), String> {
        let digits = unprefixed(word);
        if !is_hex(digits) {
            return Err(format!("{} is not hex", quoted(word)));
        }
        let odd = !digits.len().is_multiple_of(2);
        if odd && digits.len() == word.len() {
            return Err(format!("{} has an odd number of digits", quoted(word)));
        }
        let width = self.width.filter(|_| digits.len() < word.len()).unwrap_or(0);
        let width = width.max(digits.len() + usize::from(odd));
        let padded = "0".repeat(width - digits.len()) + digits;
        let pairs = padded.as_bytes().chunks_exact(2);
        let begin = into.len();
        into.extend(pairs.map(|pair| {
            let digit = |at: usize| (pair[at] as char).to_digit(16).unwrap_or(0) as u8;
            digit(0) << 4 | digit(1)
        }));
        if self.host_words {
            if padded.len() > 16 {
                let word = quoted(word);
                return Err(format!("{word} is no word of a host: it has more than 8 bytes"));
            }
            into[begin..].reverse();
        }
        Ok(())
    }

    /// Whether a line of a log is one of a dump: words like `add` or `dead` are hex digits, too.
    fn is_dump(&self, begin: Option<&Begin<'_>>, digits: usize, row: &[u8]) -> bool {
        match begin {
            Some(_) => digits >= 4,
            None => row.len() >= 8 && row.len().is_multiple_of(4),
        }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        if line == "*" {
            self.repeats = true;
            return Ok(());
        }
        let apart = pairs(line).filter(|_| !self.log);
        let mut line = apart.as_deref().unwrap_or(line);
        if let Some(what) = octal(line) {
            return Err(what);
        }
        let begin = match apart {
            Some(_) => None,
            None => before_colon(line).or_else(|| before_space(line, self.digits)),
        };
        if begin.is_none() && !self.log {
            match literal(line) {
                Some(Literal::Nothing) => return Ok(()),
                Some(Literal::Bytes(bytes)) => return self.take(&bytes?, false),
                Some(Literal::Rest(rest)) => line = rest,
                None => {}
            }
        }
        let (rest, doubtful) = match &begin {
            Some(it) => (without_characters(it.rest, it.colon), it.doubtful),
            None => (line, false),
        };
        let row = self.words(rest)?;
        if begin.is_none() && !row.is_empty() {
            self.sure()?;
        }
        let head = line.len() - begin.as_ref().map_or(line.len(), |it| it.rest.len());
        let digits = unprefixed(&line[..head]).trim_end_matches(':').len();
        if self.log && !self.is_dump(begin.as_ref(), digits, &row) {
            return Ok(());
        }
        if let Some(it) = &begin {
            let at = self.offset(it)?;
            self.ends(at, it.colon, &row)?;
            self.at(at, it)?;
            self.digits = if it.colon { 0 } else { digits };
            self.bytes = rest.split_whitespace().next().is_some_and(|word| word.len() == 2);
        }
        self.take(&row, doubtful)
    }

    fn take(&mut self, row: &[u8], doubtful: bool) -> Result<(), String> {
        self.total += row.len();
        if self.total > MOST {
            return Err(format!("more than {MOST} bytes"));
        }
        let chunk = self.chunk();
        chunk.doubtful |= doubtful;
        chunk.bytes.extend_from_slice(row);
        if !row.is_empty() {
            self.row = row.to_vec();
        }
        Ok(())
    }

    /// The bytes of words: `"\x00\x2f"`, `{0x00, 0x2f};`, gdb's `0x0 <repeats 12 times>`.
    fn words(&self, rest: &str) -> Result<Vec<u8>, String> {
        let plain = rest.replace("\\x", " ");
        let words = plain.split(|c: char| c.is_whitespace() || ",;{}[]()\"'".contains(c));
        let mut words = words.filter(|word| !word.is_empty());
        let (mut row, mut last) = (Vec::new(), 0..0);
        while let Some(word) = words.next() {
            if word == "<repeats" && !last.is_empty() {
                let times = words.next().and_then(|times| times.parse::<usize>().ok());
                let times = times.filter(|_| words.next() == Some("times>"));
                let times = times.ok_or("'<repeats' without a number of times")?;
                if times.saturating_mul(last.len()) > MOST - row.len().min(MOST) {
                    return Err(format!("more than {MOST} bytes"));
                }
                let again = row[last.clone()].repeat(times.saturating_sub(1));
                row.extend(again);
                continue;
            }
            let begin = row.len();
            self.word(word, &mut row)?;
            last = begin..row.len();
        }
        Ok(row)
    }

    /// Checks an offset without bytes: the bytes before end there.
    fn ends(&mut self, at: u64, colon: bool, row: &[u8]) -> Result<(), String> {
        let have = self.chunk().bytes.len() as u64;
        let end = self.base.map(|base| base.saturating_add(have));
        match end.filter(|end| row.is_empty() && !colon && at < *end) {
            // Words are filled up.
            Some(end) if end - at < 8 && self.chunk().doubtful => {
                let chunk = self.chunk();
                chunk.bytes.truncate((have - (end - at)) as usize);
                Ok(())
            }
            Some(end) => Err(format!("the bytes end at {end:#x}, and not at {at:#x}")),
            None => Ok(()),
        }
    }
}

/// The dumps of a text. `blank` says that an empty line ends one.
///
/// # Errors
/// [`DecodeError`], which names the line.
pub fn parse(text: &str, host_words: bool, blank: bool) -> Result<Vec<Chunk>, DecodeError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let log = text.lines().any(is_log);
    let mut reader = Reader {
        chunks: Vec::new(),
        base: None,
        row: Vec::new(),
        repeats: false,
        host_words,
        total: 0,
        digits: 0,
        log,
        radix: None,
        bytes: false,
        unsure: None,
        width: if log { None } else { widest(text) },
    };
    let at = |number: usize, what: String| DecodeError(format!("line {}: {what}", number + 1));
    for (number, whole) in text.lines().enumerate() {
        if whole.is_empty() && !blank {
            continue;
        }
        let (line, _) = unlogged(whole);
        let said = said(line);
        if said.is_some() || blank && line.is_empty() {
            reader.begin().map_err(|what| at(number, what))?;
            reader.chunk().said = said;
            continue;
        }
        if line.is_empty() || line.starts_with('#') || line.starts_with("//") {
            continue;
        }
        match reader.line(line) {
            Ok(()) => {}
            Err(what) if log && (what.contains("is not hex") || what.contains("odd number")) => {}
            Err(what) => return Err(at(number, what)),
        }
    }
    reader.sure().map_err(|what| at(text.lines().count().saturating_sub(1), what))?;
    reader.chunks.retain(|chunk| !chunk.bytes.is_empty());
    Ok(reader.chunks)
}

fn is_plain(c: char) -> bool {
    !c.is_control() || c.is_whitespace()
}

/// Bytes without a terminal's escapes for colours (ECMA-48, CSI ... final byte).
pub fn without_escapes(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, behind)) = rest.split_first() {
        let escape = rest.strip_prefix(b"\x1b[").and_then(|all| {
            let len = all.iter().position(|byte| !(0x20..0x40).contains(byte))?;
            (0x40..0x7f).contains(&all[len]).then(|| &all[len + 1..])
        });
        rest = escape.unwrap_or(behind);
        if escape.is_none() {
            plain.push(byte);
        }
    }
    plain
}

/// Whether bytes are text: without that they are taken as they are.
///
/// # Errors
/// [`DecodeError`] for what is a log or other text with control characters, or UTF-16: as binary it would be
/// decoded to nonsense.
pub fn is_text(bytes: &[u8]) -> Result<bool, DecodeError> {
    if std::str::from_utf8(bytes).is_ok_and(|text| text.chars().all(is_plain)) {
        return Ok(true);
    }
    let wide = |at: usize| bytes.iter().skip(at).step_by(2).take(32).all(|&byte| byte == 0);
    if bytes.starts_with(b"\xff\xfe") && wide(3) || bytes.starts_with(b"\xfe\xff") && wide(2) {
        return Err(DecodeError("it is text in UTF-16: convert it to UTF-8".into()));
    }
    let printable = bytes.iter().filter(|byte| byte.is_ascii_graphic() || **byte == b' ').count();
    let mostly = !bytes.contains(&0) && bytes.len() >= 32 && printable >= bytes.len() / 8 * 7;
    let head = |(head, _): &(&str, Said)| bytes.windows(head.len()).any(|it| it == head.as_bytes());
    if mostly || HEADS.iter().any(head) {
        let odd = bytes.iter().position(|&byte| !is_plain(byte.into())).unwrap_or(0);
        let what = "in what seems to be text: remove it, or --hex or --binary say what it is";
        return Err(DecodeError(format!("byte {odd}: {:#04x} {what}", bytes[odd])));
    }
    Ok(false)
}
