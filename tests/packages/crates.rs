//! The crates as they would be published.

use std::fs;
use std::path::Path;

use crate::preloaded::root;

/// Manifests of the crates that may be published.
pub fn published() -> Vec<(String, String)> {
    let folders = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let manifests = folders.chain([root().to_owned()]).map(|folder| folder.join("Cargo.toml"));
    let read =
        manifests.map(|file| (file.display().to_string(), fs::read_to_string(file).unwrap()));
    read.filter(|(_, text)| !text.contains("\npublish = false")).collect()
}

#[test]
fn published_crates_say_what_they_are() {
    let crates = published();
    assert!(crates.len() > 10);
    for (file, text) in &crates {
        let manifest: toml::Table = text.parse().unwrap();
        let package = manifest["package"].as_table().unwrap();
        for key in ["description", "license", "keywords", "categories", "rust-version"] {
            assert!(package.contains_key(key), "{file} has no {key}");
        }
        let keywords = package["keywords"].as_array().unwrap();
        assert!((1..=5).contains(&keywords.len()), "{file}: {keywords:?}");
        assert!(
            Path::new(file).with_file_name("LICENSE-MIT").is_file(),
            "{file} without its licence"
        );
        let dependencies = manifest["dependencies"].as_table().unwrap();
        for (name, value) in dependencies.iter().filter(|(_, value)| value.get("path").is_some()) {
            assert_eq!(value.get("version"), Some(&package["version"]), "{file}: {name}");
        }
    }
}
