//! The crates as they would be published.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::preloaded::root;
use crate::said;

/// Manifests of the crates that may be published.
fn published() -> Vec<(String, String)> {
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

/// The program from the crates' own files, without an nvcc, a GPU or the checkout.
#[test]
#[ignore = "minutes: builds everything anew"]
fn the_program_is_installed_from_its_crates() {
    let temp = tempfile::tempdir().unwrap();
    let files = temp.path().join("crates");
    said(Command::new(root().join("x")).args(["package", "crates"]).arg(&files));
    let mut patches = Vec::new();
    for entry in fs::read_dir(&files).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "crate") {
            continue;
        }
        said(Command::new("tar").arg("-xzf").arg(&path).arg("-C").arg(temp.path()));
        let folder = path.file_stem().unwrap().to_str().unwrap();
        let name = folder.rsplit_once('-').unwrap().0;
        let place = temp.path().join(folder);
        patches.push(format!("patch.crates-io.{name}.path='{}'", place.display()));
    }
    assert_eq!(patches.len(), published().len());
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["install", "--quiet", "--debug", "--path"]);
    cargo.arg(temp.path().join(format!("bellpush-cli-{}", env!("CARGO_PKG_VERSION"))));
    cargo.arg("--root").arg(temp.path().join("root")).env("BELLPUSH_NVCC", "none");
    cargo.arg("--target-dir").arg(temp.path().join("target")).current_dir(temp.path());
    for patch in &patches {
        cargo.args(["--config", patch]);
    }
    said(&mut cargo);
    let program = temp.path().join("root/bin/bellpush");
    let version = said(Command::new(&program).arg("--version"));
    assert_eq!(version, format!("bellpush {} (unknown)\n", env!("CARGO_PKG_VERSION")));
    let rows = said(Command::new(&program).args([
        "bench",
        "--sizes",
        "8",
        "--messages",
        "50",
        "--json",
        "-",
    ]));
    assert!(rows.contains("\"verified\": true") || rows.contains("\"verified\":true"), "{rows}");
}
