//! Recorded machines of tests/fixtures/doctor, by name.

use std::fs;
use std::path::{Path, PathBuf};

pub use crate::doctor::packed::Packed as Recorded;

/// Folder of the texts.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/doctor")
}

/// Names of all of them.
pub fn names() -> Vec<String> {
    let name = |path: PathBuf| {
        (path.extension()? == "machine").then(|| path.file_stem()?.to_str().map(str::to_owned))?
    };
    let entries = fs::read_dir(folder()).unwrap();
    let mut names: Vec<String> = entries.filter_map(|e| name(e.unwrap().path())).collect();
    names.sort();
    names
}

/// The text of the machine of this name.
pub fn text_of(name: &str) -> PathBuf {
    folder().join(format!("{name}.machine"))
}

/// The machine of this name.
pub fn recorded(name: &str) -> Recorded {
    Recorded::read(&text_of(name)).unwrap_or_else(|e| panic!("{e}"))
}
