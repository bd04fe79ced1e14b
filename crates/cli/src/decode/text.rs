//! Hex as people have it: xxd, `hexdump -C`, tcpdump, lists with `0x`, gdb's `x`, bare digits, and kernel logs.

use super::DecodeError;

/// Bytes that belong together: a dump.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chunk {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether they were read as words of a gdb or hexdump, whose order is the host's.
    pub doubtful: bool,
}

/// Most bytes of all dumps.
const MOST: usize = 64 << 20;

/// Words that a line of a log has before a dump.
const HEADS: [&str; 5] =
    ["dump error cqe", "completion with error", "Error CQE", "dump wqe", "WC error"];

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
}

/// A line without what a log puts before it.
fn unlogged(line: &str) -> &str {
    let line = line.split_once("kernel: ").map_or(line, |(_, rest)| rest).trim();
    let line = match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((stamp, rest)) if stamp.contains('.') => rest.trim_start(),
        _ => line,
    };
    line.strip_prefix("cqe_dump:").unwrap_or(line).trim()
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

/// hexdump and Wireshark: an offset, then bytes or groups that are shorter.
fn before_space(line: &str) -> Option<Begin<'_>> {
    let mut words = line.split_whitespace();
    let (first, second) = (words.next().filter(|word| is_hex(word))?, words.next());
    let (wide, doubtful) = match second.map(str::len) {
        Some(2) => (first.len() >= 4, false),
        Some(4) => (first.len() == 7, true),
        // hexdump's last line says where the bytes end.
        None => (first.len() == 7, false),
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
        (self.base, self.repeats) = (None, false);
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

    fn line(&mut self, line: &str) -> Result<(), String> {
        if line == "*" {
            self.repeats = true;
            return Ok(());
        }
        let begin = before_colon(line).or_else(|| before_space(line));
        let (at, rest, doubtful) = match begin {
            Some(it) => (Some(it.at), without_characters(it.rest, it.colon), it.doubtful),
            None => (None, line, false),
        };
        // `"\x00\x2f"`, `{0x00, 0x2f};`
        let plain = rest.replace("\\x", " ");
        let words = plain.split(|c: char| c.is_whitespace() || ",;{}[]()\"'".contains(c));
        let mut row = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            self.word(word, &mut row)?;
        }
        if let Some(at) = at {
            self.at(at)?;
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
}

/// Whether a line is of a log, so that others may be that are no dump.
fn is_log(line: &str) -> bool {
    HEADS.iter().any(|head| line.contains(head))
        || line.contains("kernel: ")
        || line.trim_start().starts_with('[') && line.contains("] ")
        || line.contains("mlx5")
}

/// The dumps of a text. `blank` says that an empty line ends one.
///
/// # Errors
/// [`DecodeError`], which names the line.
pub fn parse(text: &str, host_words: bool, blank: bool) -> Result<Vec<Chunk>, DecodeError> {
    let log = text.lines().any(is_log);
    let (chunks, row) = (Vec::new(), Vec::new());
    let mut reader = Reader { chunks, base: None, row, repeats: false, host_words, total: 0 };
    for (number, whole) in text.lines().enumerate() {
        let line = unlogged(whole);
        if HEADS.iter().any(|head| line.contains(head)) || blank && line.is_empty() {
            reader.begin();
            continue;
        }
        if line.is_empty() || line.starts_with('#') || line.starts_with("//") {
            continue;
        }
        match reader.line(line) {
            Ok(()) => {}
            Err(what) if log && what.contains("is not hex") => {}
            Err(what) => return Err(DecodeError(format!("line {}: {what}", number + 1))),
        }
    }
    reader.chunks.retain(|chunk| !chunk.bytes.is_empty());
    Ok(reader.chunks)
}

/// Whether bytes are text: without that they are taken as they are.
pub fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes)
        .is_ok_and(|text| text.chars().all(|c| !c.is_control() || c.is_whitespace()))
}
