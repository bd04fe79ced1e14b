//! Logs: of the kernel, of libmlx5 in the journal, and what tcpdump prints before a packet.

/// What a log says that a dump is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// A CQE.
    Cqe,
    /// A WQE.
    Wqe,
    /// WQEs of a send queue of Ethernet.
    Ethernet,
}

/// Words that a line of a log has before a dump.
pub(super) const HEADS: [(&str, Said); 9] = [
    ("dump error cqe", Said::Cqe),
    ("completion with error", Said::Cqe),
    ("Error CQE", Said::Cqe),
    ("Error cqe", Said::Cqe),
    ("WC error", Said::Cqe),
    ("dump wqe", Said::Wqe),
    ("WQE DUMP", Said::Ethernet),
    // DPDK's files of errors
    ("MLX5 Error CQ", Said::Cqe),
    ("MLX5 Error SQ", Said::Ethernet),
];

/// What a line of a log says that the lines behind it are.
pub(super) fn said(line: &str) -> Option<Said> {
    HEADS.iter().find(|(head, _)| line.contains(head)).map(|(_, said)| *said)
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

/// A line behind the journal's `Nov 26 10:00:00 host program[1234]: `.
fn behind_process(line: &str) -> Option<&str> {
    let (head, rest) = line.split_once("]: ")?;
    let (head, number) = head.rsplit_once('[')?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (digits && head.contains(':') && head.split_whitespace().count() >= 3).then_some(rest)
}

/// A line without what a log puts before it, and whether it had any of that.
pub(super) fn unlogged(line: &str) -> (&str, bool) {
    let whole = line.trim();
    let mut line = whole.split_once("kernel: ").map_or(whole, |(_, rest)| rest).trim();
    line = behind_process(line).unwrap_or(line);
    line = behind_priority(line).unwrap_or(line).trim_start();
    line = behind_iso(line).unwrap_or(line);
    let bracketed = |line| str::strip_prefix(line, '[').and_then(|rest| rest.split_once(']'));
    if let Some((_, rest)) = bracketed(line).filter(|(stamp, _)| is_stamp(stamp)) {
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

/// Whether a line is of a log, so that others may be that are no dump.
pub(super) fn is_log(line: &str) -> bool {
    if line.is_empty() {
        return false;
    }
    said(line).is_some()
        || line.contains("kernel: ")
        || line.trim_start().starts_with('[') && line.contains("] ")
        || line.contains("mlx5")
        || is_tcpdump(line)
        || unlogged(line).1
}

/// Whether a line is what tcpdump prints before a packet's bytes: `10:00:00.000001 IP 10.0.0.1.49152 > 10.0.0.2.4791: UDP`.
fn is_tcpdump(line: &str) -> bool {
    line.contains(" > ") && ["IP ", "IP6 ", "ethertype", "UDP"].iter().any(|it| line.contains(it))
}
