//! Common parts of the subcommands: one-line errors, output, exit statuses.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;

use bellpush_cli::input::{self, InputError};
use bellpush_cli::report::{self, ReportError, Results, machine, table};
use clap::error::ErrorKind;

/// Exit status when bytes did not arrive as they should.
pub const UNVERIFIED: u8 = 1;
/// Exit status for invalid input or a missing device or file.
pub const UNUSABLE: u8 = 2;

/// An error and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    what: String,
    remedy: String,
}

impl CliError {
    /// Both texts have no final full stop.
    pub fn new(what: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self { what: what.to_string(), remedy: remedy.to_string() }
    }

    /// Prints the line on stderr.
    pub fn report(&self) -> ExitCode {
        let _ = writeln!(io::stderr(), "bellpush: {self}"); // stderr may be closed
        ExitCode::from(UNUSABLE)
    }
}

impl std::error::Error for CliError {}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values from the command line may contain control characters.
        let line = format!("{}; {}", self.what, self.remedy);
        f.write_str(&report::human::printable(&line))
    }
}

/// Version and commit.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> =
        LazyLock::new(|| format!("{} ({})", machine::VERSION, machine::COMMIT));
    &VERSION
}

/// Handles input that clap does not turn into a command: prints help and version in full, errors in
/// one line.
pub fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print(); // stdout may be closed
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(UNUSABLE)
        }
        _ => one_line(&error.to_string()).report(),
    }
}

/// The first paragraph of clap's text, and its tip if it has one.
fn one_line(text: &str) -> CliError {
    let first: Vec<&str> =
        text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let what = first.join(" ");
    // Nobody means an option's name as a value.
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
    let tip = tip.filter(|tip| !tip.starts_with("to pass"));
    let usage = text.lines().find_map(|line| line.trim().strip_prefix("Usage: "));
    let command: Vec<&str> = usage
        .unwrap_or_default()
        .split_whitespace()
        .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()))
        .collect();
    let help = match command.as_slice() {
        [] => "see 'bellpush --help'".to_string(),
        words => format!("see '{} --help'", words.join(" ")),
    };
    CliError::new(what.trim_start_matches("error: "), tip.map_or(help, str::to_owned))
}

/// Reads a file, or stdin for `-`, of so many bytes at most: what has no end is refused before memory is full.
pub fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>, CliError> {
    input::read(path, most).map_err(|e| {
        let name = match path.as_os_str() == "-" {
            true => "stdin".into(),
            false => path.display().to_string(),
        };
        let remedy = match &e {
            _ if path.is_dir() => "name a file in it",
            InputError::Io(e) if e.kind() == io::ErrorKind::NotFound => "check the name",
            InputError::Io(_) => "check that it may be read",
            _ => "name another file",
        };
        CliError::new(format!("cannot read {name}: {e}"), remedy)
    })
}

/// Longest file of bytes to send: it is in memory whole.
const MOST_OF_A_PAYLOAD: u64 = 4 << 30;

/// The bytes to send: a non-empty file.
pub fn read_payload(path: &Path) -> Result<Vec<u8>, CliError> {
    let bytes = read_at_most(path, MOST_OF_A_PAYLOAD)?;
    if bytes.is_empty() {
        let what = format!("the payload {} is empty", path.display());
        return Err(CliError::new(what, "name a file with at least one byte"));
    }
    Ok(bytes)
}

/// Refuses destinations to which a result could not be saved, before anything is measured. Writes
/// nothing.
pub fn check_places(json: Option<&Path>, report_dir: Option<&Path>) -> Result<(), CliError> {
    let refuse = |place: &Path, why: &str| {
        let what = format!("cannot write {}: {why}", place.display());
        Err(CliError::new(what, "name a place that can be written"))
    };
    if let Some(path) = json.filter(|path| path.as_os_str() != "-") {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        if path.is_dir() {
            return refuse(path, "it is a directory");
        }
        if parent.is_some_and(|p| !p.is_dir()) {
            return refuse(path, "its directory does not exist");
        }
    }
    match report_dir {
        Some(dir) if dir.exists() && !dir.is_dir() => refuse(dir, "it is not a directory"),
        _ => Ok(()),
    }
}

/// Writes the requested JSON and report, and prints the table. The exit status tells whether
/// everything was verified. The table goes to stderr where the JSON goes to stdout.
///
/// The files come first: a reader who closes the table's pipe still gets them.
pub fn emit(
    results: &Results,
    json: Option<&Path>,
    report_dir: Option<&Path>,
) -> Result<ExitCode, CliError> {
    if let Some(path) = json {
        results.write_json(path).or_else(unless_closed).map_err(|e| unwritten(&e))?;
    }
    let page = match report_dir {
        Some(dir) => Some(report::write_report(dir, results).map_err(|e| unwritten(&e))?),
        None => None,
    };
    let mut text = table::render(results);
    if let Some(page) = page {
        text.push_str(&format!("\n report: {}\n", page.display()));
    }
    let printed = if json.is_some_and(|path| path.as_os_str() == "-") {
        io::stderr().lock().write_all(text.as_bytes())
    } else {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    };
    match printed {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("cannot print the table: {e}"), "check where output goes"))
        }
        _ => Ok(verdict(results)),
    }
}

/// 0 where every row was verified, otherwise 1.
fn verdict(results: &Results) -> ExitCode {
    if results.all_verified() { ExitCode::SUCCESS } else { ExitCode::from(UNVERIFIED) }
}

/// A closed pipe is no error.
fn unless_closed(error: ReportError) -> Result<(), ReportError> {
    match error {
        ReportError::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Err(other),
    }
}

fn unwritten(error: &ReportError) -> CliError {
    let remedy = match error {
        ReportError::Io { .. } => "name a place that can be written",
        _ => "this result cannot be saved; please report it",
    };
    CliError::new(error, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_is_cut_to_one_line() {
        for (text, line) in [
            (
                "error: unexpected argument '--size' found\n\n  tip: a similar argument exists: \
                 '--sizes'\n\nUsage: bellpush bench --sizes <LIST>\n\nFor more information, try.",
                "unexpected argument '--size' found; a similar argument exists: '--sizes'",
            ),
            (
                "error: the following required arguments were not provided:\n  <FILE>\n\nUsage: \
                 bellpush show <FILE>\n",
                "the following required arguments were not provided: <FILE>; see 'bellpush show \
                 --help'",
            ),
            (
                "error: unexpected argument '--topology' found\n\n  tip: to pass '--topology' as a \
                 value, use '-- --topology'\n\nUsage: bellpush topo [OPTIONS] [WHAT]\n",
                "unexpected argument '--topology' found; see 'bellpush topo --help'",
            ),
            ("error: what?", "what?; see 'bellpush --help'"),
        ] {
            assert_eq!(one_line(text).to_string(), line);
        }
    }

    #[test]
    fn an_error_is_one_line_whatever_it_quotes() {
        assert_eq!(CliError::new("'a\nb'", "stop").to_string(), "'a\u{fffd}b'; stop");
    }
}
