//! Hex as people have it: xxd, `hexdump -C`, tcpdump, lists with `0x`, gdb's `x`, bare digits, and kernel logs.

use super::DecodeError;

/// What a log says that a dump is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// A CQE.
    Cqe,
    /// A WQE.
    Wqe,
}

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

/// Words that a line of a log has before a dump.
const HEADS: [(&str, Said); 7] = [
    ("dump error cqe", Said::Cqe),
    ("completion with error", Said::Cqe),
    ("Error CQE", Said::Cqe),
    ("Error cqe", Said::Cqe),
    ("WC error", Said::Cqe),
    ("dump wqe", Said::Wqe),
    ("WQE DUMP", Said::Wqe),
];

/// What a line of a log says that the lines behind it are.
fn said(line: &str) -> Option<Said> {
    HEADS.iter().find(|(head, _)| line.contains(head)).map(|(_, said)| *said)
}

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
}

/// Whether brackets around it make it a time stamp of the kernel: `1.5`, `+0.000005`, `Nov26 10:00`,
/// `Tue Nov 26 10:00:00 2024`. A list of bytes has neither a dot nor a colon.
fn is_stamp(text: &str) -> bool {
    text.contains(['.', ':']) && !text.contains(['[', ','])
}

/// Whether brackets around it make it the thread or CPU that wrote the line (`CONFIG_PRINTK_CALLER`).
fn is_caller(text: &str) -> bool {
    let number = text.trim_start().strip_prefix(['C', 'T']);
    number.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A line behind its priority: `<4>`, `4,123,5678,-;` of /dev/kmsg, `kern  :warn  :` of `dmesg -x`.
fn behind_priority(line: &str) -> Option<&str> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some((level, rest)) = line.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        return digits(level).then_some(rest);
    }
    if let Some((head, rest)) = line.split_once(';') {
        let mut parts = head.split(',');
        return (parts.clone().count() == 4 && parts.by_ref().take(3).all(digits)).then_some(rest);
    }
    let (facility, rest) = line.split_once(':')?;
    let (level, rest) = rest.split_once(':')?;
    let word = |text: &str| {
        let text = text.trim_end();
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase())
    };
    let known = ["emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"];
    (word(facility) && known.contains(&level.trim_end())).then_some(rest)
}

/// A line behind `dmesg --time-format iso`'s stamp, `2024-11-26T10:00:00,123456+00:00`.
fn behind_iso(line: &str) -> Option<&str> {
    let (stamp, rest) = line.split_once(' ')?;
    let (date, time) = stamp.split_once('T')?;
    let is = |text: &str, mark| text.split(mark).count() >= 3 && text.starts_with(char::is_numeric);
    (is(date, '-') && is(time, ':')).then_some(rest)
}

/// A line without what a log puts before it, and whether it had any of that.
fn unlogged(line: &str) -> (&str, bool) {
    let whole = line.trim();
    let mut line = whole.split_once("kernel: ").map_or(whole, |(_, rest)| rest).trim();
    line = behind_priority(line).unwrap_or(line).trim_start();
    line = behind_iso(line).unwrap_or(line);
    let bracketed = |line| str::strip_prefix(line, '[').and_then(|rest| rest.split_once(']'));
    if let Some((stamp, rest)) = bracketed(line).filter(|(stamp, _)| is_stamp(stamp)) {
        line = rest.trim_start();
    }
    if let Some((_, rest)) =
        bracketed(line).filter(|(it, _)| line.len() < whole.len() && is_caller(it))
    {
        line = rest.trim_start();
    }
    let line = line.strip_prefix("cqe_dump:").unwrap_or(line).trim();
    (line, line.len() < whole.len())
}

fn is_hex(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn unprefixed(word: &str) -> &str {
    word.strip_prefix("0x").or(word.strip_prefix("0X")).unwrap_or(word)
}

/// How a line begins.
struct Begin<'a> {
    /// Its offset.
    at: u64,
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
    let doubtful = head.starts_with("0x") && rest.starts_with('\t');
    Some(Begin { at, rest, colon: true, doubtful })
}

/// hexdump, od and Wireshark: an offset, then bytes or groups that are shorter. `digits` are those of the offset before.
fn before_space(line: &str, digits: usize) -> Option<Begin<'_>> {
    let mut words = line.split_whitespace();
    let (first, second) = (words.next().filter(|word| is_hex(word))?, words.next());
    let (wide, doubtful) = match second.map(str::len) {
        Some(2) => (first.len() >= 4, false),
        Some(4) => (first.len() == 7, true),
        // The last line says where the bytes end, in as many digits: plain hexdump's 7, hexdump -C's 8, od -A x's 6.
        None => (first.len() == 7 || first.len() == digits, false),
        _ => (false, false),
    };
    let at = wide.then(|| u64::from_str_radix(first, 16).ok())??;
    Some(Begin { at, rest: &line[first.len()..], colon: false, doubtful })
}

/// The part of a dump's line that is hex: what follows is the same as characters.
fn without_characters(rest: &str, colon: bool) -> &str {
    let hex = rest.trim_start();
    // `hexdump -C` has two spaces in the middle of its bytes, too, and bars around its characters.
    if !colon && let Some((hex, _)) = hex.split_once('|') {
        return hex;
    }
    let end = |mark: &str| hex.find(mark).unwrap_or(hex.len());
    &hex[..end("  ").min(end(" | "))]
}

impl Reader {
    fn begin(&mut self) {
        if self.chunks.last().is_some_and(|chunk| !chunk.bytes.is_empty()) {
            self.chunks.push(Chunk::default());
        }
        (self.base, self.repeats, self.digits) = (None, false, 0);
        self.row.clear();
    }

    fn chunk(&mut self) -> &mut Chunk {
        if self.chunks.is_empty() {
            self.chunks.push(Chunk::default());
        }
        self.chunks.last_mut().expect("there is one")
    }

    /// A line's offset: it goes on where the one before ended, or begins another dump.
    fn at(&mut self, at: u64) -> Result<(), String> {
        let have = self.chunk().bytes.len() as u64;
        let Some(base) = self.base else {
            self.begin();
            self.base = Some(at);
            return Ok(());
        };
        let end = base.saturating_add(have);
        let missing = match at.checked_sub(end) {
            Some(missing) => missing,
            None => {
                self.begin();
                self.base = Some(at);
                return Ok(());
            }
        };
        if missing == 0 {
            self.repeats = false;
            return Ok(());
        }
        if !self.repeats || self.row.is_empty() {
            return Err(format!("{missing} bytes before {at:#x} are not there"));
        }
        if missing > (MOST - self.total) as u64 {
            return Err(format!("'*' stands for more than {MOST} bytes"));
        }
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
            return Err(format!("{word:?} is not hex"));
        }
        let odd = !digits.len().is_multiple_of(2);
        if odd && digits.len() == word.len() {
            return Err(format!("{word:?} has an odd number of digits"));
        }
        let padded = if odd { format!("0{digits}") } else { digits.to_owned() };
        let pairs = padded.as_bytes().chunks_exact(2);
        let begin = into.len();
        into.extend(pairs.map(|pair| {
            let digit = |at: usize| (pair[at] as char).to_digit(16).unwrap_or(0) as u8;
            digit(0) << 4 | digit(1)
        }));
        if self.host_words {
            if padded.len() > 16 {
                return Err(format!("{word:?} is no word of a host: it has more than 8 bytes"));
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
        let begin = before_colon(line).or_else(|| before_space(line, self.digits));
        let (rest, doubtful) = match &begin {
            Some(it) => (without_characters(it.rest, it.colon), it.doubtful),
            None => (line, false),
        };
        // `"\x00\x2f"`, `{0x00, 0x2f};`
        let plain = rest.replace("\\x", " ");
        let words = plain.split(|c: char| c.is_whitespace() || ",;{}[]()\"'".contains(c));
        let mut row = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            self.word(word, &mut row)?;
        }
        let head = line.len() - begin.as_ref().map_or(line.len(), |it| it.rest.len());
        let digits = unprefixed(&line[..head]).trim_end_matches(':').len();
        if self.log && !self.is_dump(begin.as_ref(), digits, &row) {
            return Ok(());
        }
        if let Some(it) = &begin {
            self.ends(it, &row)?;
            self.at(it.at)?;
            self.digits = if it.colon { 0 } else { digits };
        }
        self.total += row.len();
        if self.total > MOST {
            return Err(format!("more than {MOST} bytes"));
        }
        let chunk = self.chunk();
        chunk.doubtful |= doubtful;
        chunk.bytes.extend_from_slice(&row);
        if !row.is_empty() {
            self.row = row;
        }
        Ok(())
    }

    /// Checks an offset without bytes: the bytes before end there.
    fn ends(&mut self, begin: &Begin<'_>, row: &[u8]) -> Result<(), String> {
        let have = self.chunk().bytes.len() as u64;
        let end = self.base.map(|base| base.saturating_add(have));
        match end.filter(|end| row.is_empty() && !begin.colon && begin.at < *end) {
            Some(end) => Err(format!("the bytes end at {end:#x}, and not at {:#x}", begin.at)),
            None => Ok(()),
        }
    }
}

/// Whether a line is of a log, so that others may be that are no dump.
fn is_log(line: &str) -> bool {
    said(line).is_some()
        || line.contains("kernel: ")
        || line.trim_start().starts_with('[') && line.contains("] ")
        || line.contains("mlx5")
        || unlogged(line).1
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
    };
    for (number, whole) in text.lines().enumerate() {
        let (line, _) = unlogged(whole);
        let said = said(line);
        if said.is_some() || blank && line.is_empty() {
            reader.begin();
            reader.chunk().said = said;
            continue;
        }
        if line.is_empty() || line.starts_with('#') || line.starts_with("//") {
            continue;
        }
        match reader.line(line) {
            Ok(()) => {}
            Err(what) if log && (what.contains("is not hex") || what.contains("odd number")) => {}
            Err(what) => return Err(DecodeError(format!("line {}: {what}", number + 1))),
        }
    }
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
