//! Rows of the model's commands as CSV, and where files go.

use std::io::Write;
use std::path::Path;

use serde_json::Value;

use crate::cli::CliError;

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(s) if s.contains([',', '"', '\n']) => {
            format!("\"{}\"", s.replace('"', "\"\""))
        }
        Value::String(s) => s.clone(),
        Value::Array(_) | Value::Object(_) => {
            format!("\"{}\"", value.to_string().replace('"', "\"\""))
        }
        other => other.to_string(),
    }
}

/// One line a row, after a line of the first row's keys.
pub fn to_csv(results: &[Value]) -> String {
    let Some(Value::Object(first)) = results.first() else { return String::new() };
    let keys: Vec<&String> = first.keys().collect();
    let mut text = keys.iter().map(|k| k.as_str()).collect::<Vec<_>>().join(",") + "\n";
    for row in results {
        text += &keys.iter().map(|k| cell(&row[k.as_str()])).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    text
}

/// Writes a file, or prints for `-`. A reader that has seen enough is no error.
pub fn put(path: &Path, text: &str) -> Result<(), CliError> {
    let done = if path.as_os_str() == "-" {
        std::io::stdout().lock().write_all(text.as_bytes())
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
