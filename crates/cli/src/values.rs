//! Sizes, CSV output and destinations of the model's commands.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use bellpush::pcie::topology::{BUILTIN_NAMES, Topology, builtin, from_toml};
use bellpush_cli::input;
use serde_json::Value;

use crate::amount;
use crate::cli::{self, CliError};

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(s) => {
            // A spreadsheet takes such a text for a formula; names are the file's, and the file is somebody's.
            let is_formula = s.len() > 1 && s.starts_with(['=', '+', '-', '@']);
            let s = if is_formula { format!("'{s}") } else { s.clone() };
            match s.contains([',', '"', '\n', '\r']) {
                true => format!("\"{}\"", s.replace('"', "\"\"")),
                false => s,
            }
        }
        Value::Array(_) | Value::Object(_) => {
            format!("\"{}\"", value.to_string().replace('"', "\"\""))
        }
        other => other.to_string(),
    }
}

/// One line per row, after a line with the keys of all rows: a warning among rates has keys of its own.
pub fn to_csv(results: &[Value]) -> String {
    let mut columns: Vec<&str> = Vec::new();
    let mut known = BTreeSet::new();
    for key in results.iter().filter_map(Value::as_object).flat_map(|row| row.keys()) {
        if known.insert(key) {
            columns.push(key);
        }
    }
    if columns.is_empty() { String::new() } else { to_csv_of(&columns, results) }
}

/// The same of these columns.
pub fn to_csv_of(columns: &[&str], results: &[Value]) -> String {
    let mut text = columns.join(",") + "\n";
    for row in results {
        text += &columns.iter().map(|name| cell(&row[*name])).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    text
}

/// A topology by name: a built-in, or a TOML file.
pub fn topology(name: &str) -> Result<Topology, String> {
    if let Some(topology) = builtin(name) {
        return Ok(topology);
    }
    let text = read_text(Path::new(name))
        .map_err(|e| format!("{e} (built in: {})", BUILTIN_NAMES.join(", ")))?;
    let mut topology = from_toml(&text).map_err(|e| format!("{name}: {e}"))?;
    if topology.name.is_empty() {
        topology.name = name.to_owned();
    }
    Ok(topology)
}

/// The file that a topology's name stands for, where it is not built in.
pub fn topology_file(name: &String) -> Option<PathBuf> {
    builtin(name).is_none().then(|| PathBuf::from(name))
}

/// Longest file that the model's commands read: `lspci -vvv` of a large machine has a few million bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a file, or stdin for `-`, of 64 MiB at most.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, String> {
    read_at_most(path, MAX_BYTES)
}

/// The same, of so many bytes at most.
pub fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    input::read(path, most).map_err(|e| format!("{}: {e}", path.display()))
}

/// Text of a file, or of stdin for `-`.
pub fn read_text(path: &Path) -> Result<String, String> {
    let text = String::from_utf8(read_bytes(path)?);
    text.map_err(|e| format!("{}: {}", path.display(), e.utf8_error()))
}

/// Parses a number of bytes with an optional KiB, MiB, GiB or TiB.
pub fn bytes(text: &str) -> Result<u64, CliError> {
    amount::bytes(text).map_err(|what| CliError::new(what, "a size is like 64 or 4KiB"))
}

fn is_stdout(path: Option<&PathBuf>) -> bool {
    path.is_some_and(|path| path.as_os_str() == "-")
}

/// Whether two places are one file, by whatever names.
fn is_one(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| {
        let there = path.canonicalize().ok();
        there.or_else(|| {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            Some(parent.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?))
        })
    };
    let holds = |path: &Path| path.metadata().map_or(true, |it| it.is_file()); // /dev/null holds nothing
    holds(a) && (a == b || real(a).is_some_and(|a| real(b) == Some(a)))
}

/// Refuses two results on standard output or in one file, and destinations that cannot be written.
/// Returns whether standard output is taken.
pub fn check_places(places: &[(&str, &Option<PathBuf>)]) -> Result<bool, CliError> {
    let mut taken: Vec<&str> = Vec::new();
    for (n, (name, place)) in places.iter().enumerate() {
        let other = places[..n].iter().find(|(_, other)| {
            other.as_ref().zip(place.as_ref()).is_some_and(|(a, b)| is_one(a, b))
        });
        if let Some((first, path)) = other.filter(|_| !is_stdout(place.as_ref())) {
            let path = path.as_ref().map_or(String::new(), |path| path.display().to_string());
            return Err(CliError::new(
                format!("{first} and {name} {path}: one result fits in a file"),
                "name another file for one of them",
            ));
        }
        if is_stdout(place.as_ref()) {
            taken.push(name);
        } else {
            cli::check_places(place.as_deref(), None)?;
        }
    }
    match taken.as_slice() {
        [first, second, ..] => Err(CliError::new(
            format!("{first} - and {second} -: one result fits on standard output"),
            "name a file for one of them",
        )),
        taken => Ok(!taken.is_empty()),
    }
}

/// Refuses to write over a file that is read.
pub fn keep_inputs<'a>(
    inputs: impl IntoIterator<Item = &'a PathBuf>,
    places: &[(&str, &Option<PathBuf>)],
) -> Result<(), CliError> {
    let inputs: Vec<_> = inputs.into_iter().filter_map(|path| path.canonicalize().ok()).collect();
    for (name, place) in places {
        let Some(place) = place.as_ref().filter(|p| p.as_os_str() != "-") else { continue };
        // A file that is not there yet has no other name.
        if place.canonicalize().is_ok_and(|there| inputs.contains(&there)) {
            let what = format!("{name} {}: it would replace a file that is read", place.display());
            return Err(CliError::new(what, "name another file"));
        }
    }
    Ok(())
}

/// Writes a file, or to `out` for `-`. A closed pipe is no error.
pub fn put(path: &Path, text: &str, out: &mut dyn Write) -> Result<(), CliError> {
    let done = if path.as_os_str() == "-" {
        out.write_all(text.as_bytes())
    } else {
        std::fs::write(path, text)
    };
    match done {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            let what = format!("cannot write {}: {e}", path.display());
            Err(CliError::new(what, "name a place that can be written"))
        }
        _ => Ok(()),
    }
}

/// The CPU's name in a text of `/proc/cpuinfo`: `model name` of x86; of an Arm the part number of its cores.
pub fn cpu_name(text: &str) -> Option<String> {
    let of = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    of("model name").or_else(|| {
        let (implementer, part) = (of("CPU implementer")?, of("CPU part")?);
        Some(match (implementer.as_str(), part.as_str()) {
            ("0x41", "0xd4f") => "Arm Neoverse-V2".to_owned(),
            ("0x41", "0xd0c") => "Arm Neoverse-N1".to_owned(),
            _ => format!("Arm {implementer} {part}"),
        })
    })
}

/// Whether a text of `/proc/cpuinfo` says that there is a hypervisor.
pub fn is_guest(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_known_by_its_cpus_flags() {
        for (text, is) in [
            ("model name\t: x\nflags\t\t: fpu hypervisor vme\n", true),
            ("model name\t: x hypervisor\nflags\t\t: fpu vme\n", false),
            ("", false),
        ] {
            assert_eq!(is_guest(text), is, "{text:?}");
        }
    }

    /// RFC 4180, 2: fields with line breaks, quotes and commas are quoted.
    #[test]
    fn cells_are_quoted_where_a_reader_would_split_them() {
        for (value, quoted) in [("a\rb", true), ("a\nb", true), ("a,b", true), ("a b", false)] {
            assert_eq!(cell(&value.into()).starts_with('"'), quoted, "{value:?}");
        }
        assert_eq!(cell(&"a \"b\"".into()), "\"a \"\"b\"\"\"");
        assert_eq!(cell(&Value::Null), "");
        assert_eq!(cell(&"=1+1, so".into()), "\"'=1+1, so\"", "no formula");
        assert_eq!(cell(&serde_json::json!(-1.5)), "-1.5", "a number is one");
    }
}
