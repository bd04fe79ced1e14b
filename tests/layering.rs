//! The tree's own rules: dependencies point one way, `unsafe` stays in its places, device code
//! includes nothing from outside, and files stay short enough to read.
//!
//! Rust is read as tokens, so that comments and strings do not count and paths inside macros do.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// What each module may import of ours, itself always included; the crates that the library re-exports, which cannot
/// import it, are everyone's.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("gpu", &[]),
    ("nic", &[]),
    ("engine", &["nic", "gpu"]),
    ("transport", &["nic", "gpu"]),
    ("collective", &["transport", "nic", "gpu"]),
    ("report", &["transport"]),
];

/// Where `unsafe` may stand. (loom's cells hand out raw pointers; that test models shared memory.)
const UNSAFE_PLACES: &[&str] = &[
    "crates/mem/",
    "crates/broken-mem/",
    "src/gpu/",
    "crates/mlx5/",
    "bindgen/",
    "shim/",
    "capi/",
    "src/bin/bellpush/launch.rs", // the commands launch kernels by addresses, and so do:
    "examples/allreduce/bare.rs",
    "benches/paths.rs",
    "benches/wqe.rs",
    "tests/support/test_bed.rs",
    "tests/kernels/executor",
    "tests/nic_alloc.rs", // counts allocations, for which an allocator is unsafe to write
    "examples/custom_kernel/", // declares its own kernels and their arguments, as a user must
    "tests/kernels/loom_ring.rs",
];

/// Longest file, in lines. Generated bindings are not for reading.
const MAX_LINES: usize = 600;
const GENERATED: &[&str] = &["bindings.rs", "sys.rs"];

/// Headers of the C standard; device code may include these alone.
const C_HEADERS: &[&str] = &[
    "assert.h",
    "errno.h",
    "float.h",
    "inttypes.h",
    "limits.h",
    "math.h",
    "stdarg.h",
    "stdbool.h",
    "stddef.h",
    "stdint.h",
    "stdio.h",
    "stdlib.h",
    "string.h",
    "time.h",
];
/// The host executor, which no GPU compiles, may also have threads.
const HOST_HEADERS: &[&str] =
    &["atomic", "mutex", "new", "thread", "vector", "sched.h", "unistd.h"];

// ---- Rust, as tokens ---------------------------------------------------------------------------

/// Identifiers and punctuation in order; groups stay groups.
#[derive(Debug)]
enum Token {
    Word(String),
    Colons,
    Group(Delimiter, Vec<Token>),
    Other(char),
}

fn tokens(source: &str) -> Vec<Token> {
    let stream: TokenStream = source.parse().expect("the file is Rust");
    flatten(stream)
}

fn flatten(stream: TokenStream) -> Vec<Token> {
    let mut out = Vec::new();
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        out.push(match tree {
            TokenTree::Group(g) => Token::Group(g.delimiter(), flatten(g.stream())),
            TokenTree::Ident(word) => Token::Word(word.to_string()),
            TokenTree::Literal(_) => Token::Other('0'),
            TokenTree::Punct(p) if p.as_char() == ':' => {
                let next_is_colon =
                    |t: &TokenTree| matches!(t, TokenTree::Punct(p) if p.as_char() == ':');
                if trees.next_if(next_is_colon).is_some() {
                    Token::Colons
                } else {
                    Token::Other(':')
                }
            }
            TokenTree::Punct(p) => Token::Other(p.as_char()),
        });
    }
    out
}

/// Every path in `tokens` that starts at `crate`, `super`, `self` or `bellpush`, made absolute from
/// `module`. Groups of a `use` are multiplied out.
fn paths(tokens: &[Token], module: &[String], out: &mut BTreeSet<Vec<String>>) {
    let mut i = 0;
    let mut module = module.to_vec();
    let outer = module.len();
    while i < tokens.len() {
        match &tokens[i] {
            // The body of an inline module: `super` means something else there.
            Token::Word(word) if word == "mod" => {
                if let (Some(Token::Word(name)), Some(Token::Group(Delimiter::Brace, body))) =
                    (tokens.get(i + 1), tokens.get(i + 2))
                {
                    module.push(name.clone());
                    paths(body, &module, out);
                    module.truncate(outer);
                    i += 2;
                }
            }
            Token::Word(word) if starts_path(word) && !after_colons(tokens, i) => {
                let mut at = match word.as_str() {
                    "super" => module[..module.len().saturating_sub(1)].to_vec(),
                    "self" => module.clone(),
                    _ => Vec::new(),
                };
                if matches!(tokens.get(i + 1), Some(Token::Colons)) {
                    i = path_tail(tokens, i + 2, &mut at, out);
                    continue;
                }
            }
            Token::Group(_, body) => paths(body, &module, out),
            _ => {}
        }
        i += 1;
    }
}

fn starts_path(word: &str) -> bool {
    matches!(word, "crate" | "super" | "self" | "bellpush")
}

fn after_colons(tokens: &[Token], i: usize) -> bool {
    i > 0 && matches!(tokens[i - 1], Token::Colons)
}

/// The rest of a path behind `::`; returns where it ends.
fn path_tail(
    tokens: &[Token],
    mut i: usize,
    at: &mut Vec<String>,
    out: &mut BTreeSet<Vec<String>>,
) -> usize {
    loop {
        match tokens.get(i) {
            Some(Token::Word(word)) if word == "super" => {
                at.pop();
            }
            Some(Token::Word(word)) => at.push(word.clone()),
            Some(Token::Group(Delimiter::Brace, items)) => {
                for item in items.split(|t| matches!(t, Token::Other(','))) {
                    path_tail(item, 0, &mut at.clone(), out);
                }
                return i + 1;
            }
            Some(Token::Other('*')) => {}
            _ => {
                out.insert(at.clone());
                return i;
            }
        }
        if !matches!(tokens.get(i + 1), Some(Token::Colons)) {
            out.insert(at.clone());
            return i + 1;
        }
        i += 2;
    }
}

fn has_unsafe(tokens: &[Token]) -> bool {
    tokens.iter().any(|token| match token {
        Token::Word(word) => word == "unsafe",
        Token::Group(_, body) => has_unsafe(body),
        _ => false,
    })
}

/// Module path of a file under `src`, or `None` for the root and the binaries.
fn module_of(file: &str) -> Option<Vec<String>> {
    let inner = file.strip_prefix("src/")?.strip_suffix(".rs")?;
    let inner = inner.strip_suffix("/mod").unwrap_or(inner);
    if inner == "lib" || inner.starts_with("bin/") {
        return None;
    }
    Some(inner.split('/').map(str::to_owned).collect())
}

/// Imports of `file` that point the wrong way.
fn wrong_imports(file: &str, source: &str) -> Vec<String> {
    let Some(module) = module_of(file) else { return Vec::new() };
    let of = module[0].as_str();
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|rule| rule.0 == of) else {
        return vec![format!("{file}: no rule says what {of} may import")];
    };
    let mut found = BTreeSet::new();
    paths(&tokens(source), &module, &mut found);
    let ours = |top: &str| MAY_IMPORT.iter().any(|rule| rule.0 == top);
    let wrong = found.iter().filter(|path| {
        path.first().is_some_and(|top| ours(top) && top != of && !allowed.contains(&top.as_str()))
    });
    wrong.map(|path| format!("{file}: {of} imports {}", path.join("::"))).collect()
}

// ---- Device code -------------------------------------------------------------------------------

/// Includes of a file in `kernels/` that reach outside of it; of one in `kernels/include/`, which users copy or
/// install without the rest, those that reach outside of that.
fn foreign_includes(file: &str, source: &str, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let (public, host) = (file.starts_with("kernels/include/"), is_host_half(file));
    let folder = Path::new(file).parent().expect("the file lies in a folder");
    let there = |path: PathBuf| !path.to_string_lossy().contains("..") && exists(&path);
    let mut wrong = Vec::new();
    for line in source.lines() {
        let Some(directive) = line.trim_start().strip_prefix('#') else { continue };
        let Some(named) = directive.trim_start().strip_prefix("include") else { continue };
        let named = named.trim();
        let fine = if let Some((name, _)) = named.strip_prefix('<').and_then(|s| s.split_once('>'))
        {
            C_HEADERS.contains(&name)
                || host && HOST_HEADERS.contains(&name)
                || name.starts_with("bellpush/") && there(Path::new("kernels/include").join(name))
        } else if let Some((name, _)) = named.strip_prefix('"').and_then(|s| s.split_once('"')) {
            let folders = [folder, Path::new("kernels")];
            !public && folders.iter().any(|folder| there(folder.join(name)))
        } else {
            false
        };
        if !fine {
            wrong.push(format!("{file} includes {named}"));
        }
    }
    wrong
}

/// The host executor's half, which asks the operating system for time and for other threads' turns.
fn is_host_half(file: &str) -> bool {
    file.starts_with("kernels/host/") || file == "kernels/include/bellpush/impl/lane.hpp"
}

// ---- The tree ----------------------------------------------------------------------------------

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files below `folder` with one of these extensions, as (path from the root, text).
fn files(folder: &str, extensions: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.expect("the folder can be listed").path()) {
            if path.is_dir() {
                // Build outputs of nested packages, and fuzzing corpora.
                if !["target", "corpus"].iter().any(|name| path.ends_with(name)) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
                found.push((name_of(&path), fs::read_to_string(&path).expect("text")));
            }
        }
    }
    found.sort();
    found
}

fn name_of(path: &Path) -> String {
    let path: PathBuf = path.strip_prefix(root()).expect("below the root").into();
    path.to_string_lossy().into_owned()
}

fn sources() -> Vec<(String, String)> {
    let folders = [
        "src", "crates", "kernels", "shim", "capi", "examples", "benches", "tests", "fuzz",
        "bindgen", "mutants",
    ];
    let extensions = ["rs", "h", "hpp", "c", "cpp", "cu", "cuh"];
    let mut all: Vec<_> = folders.iter().flat_map(|f| files(f, &extensions)).collect();
    all.push(("build.rs".into(), fs::read_to_string(root().join("build.rs")).expect("text")));
    all
}

fn rust_sources() -> impl Iterator<Item = (String, String)> {
    sources().into_iter().filter(|(file, _)| file.ends_with(".rs"))
}

#[track_caller]
fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn dependencies_point_one_way() {
    none(files("src", &["rs"]).iter().flat_map(|(file, text)| wrong_imports(file, text)).collect());
}

#[test]
fn unsafe_stays_in_its_places() {
    let outside = |file: &str| !UNSAFE_PLACES.iter().any(|place| file.starts_with(place));
    let wrong = rust_sources().filter(|(file, text)| outside(file) && has_unsafe(&tokens(text)));
    none(wrong.map(|(file, _)| format!("{file} contains unsafe")).collect());
}

#[test]
fn pure_modules_forbid_unsafe() {
    for name in ["wire", "pcie", "preload", "nic", "soft-nic"] {
        let file = format!("crates/{name}/src/lib.rs");
        let text = fs::read_to_string(root().join(&file)).expect(&file);
        assert!(text.contains("#![forbid(unsafe_code)]"), "{file} does not forbid unsafe code");
    }
}

#[test]
fn device_code_includes_nothing_from_outside() {
    let kernels = files("kernels", &["h", "hpp", "c", "cpp", "cu", "cuh"]);
    assert!(!kernels.is_empty());
    let exists = |path: &Path| root().join(path).is_file();
    none(kernels.iter().flat_map(|(file, text)| foreign_includes(file, text, exists)).collect());
}

#[test]
fn inline_assembly_stays_in_two_headers() {
    let mut found: Vec<_> = files("kernels", &["h", "hpp", "cu", "cuh"]);
    found.retain(|(file, text)| {
        !is_host_half(file)
            && text
                .lines()
                .any(|line| !line.trim_start().starts_with("//") && line.contains("asm volatile"))
    });
    found.sort();
    let names: Vec<_> = found.iter().map(|(file, _)| file.as_str()).collect();
    assert_eq!(
        names,
        ["kernels/include/bellpush/exec.cuh", "kernels/include/bellpush/impl/order.cuh"]
    );
}

#[test]
fn files_are_short_enough_to_read() {
    let generated = |file: &str| GENERATED.iter().any(|name| file.ends_with(name));
    let long = sources().into_iter().filter(|(file, _)| !generated(file)).filter_map(too_long);
    none(long.collect());
}

fn too_long((file, text): (String, String)) -> Option<String> {
    let lines = text.lines().count();
    (lines >= MAX_LINES).then(|| format!("{file} has {lines} lines; {MAX_LINES} are too many"))
}

// ---- Negative controls -------------------------------------------------------------------------

#[test]
fn a_wrong_import_is_found_however_it_is_written() {
    for (file, source) in [
        ("src/gpu/args.rs", "use crate::engine::Launch;"),
        ("src/gpu/args.rs", "use crate::{engine::Launch};"),
        ("src/gpu/mod.rs", "use super::engine;"),
        ("src/gpu/args.rs", "fn f() { let x = super::super::engine::open(0, 0); }"),
        ("src/gpu/mod.rs", "mod tests { use super::super::engine::open; }"),
        ("src/gpu/mod.rs", "fn f() { assert_eq!(crate::engine::open(0, 0), q); }"),
        ("src/nic.rs", "type T = Vec<crate::gpu::Gpu>;"),
        ("src/gpu/mod.rs", "use crate::nic::Nic;"),
        ("src/gpu/mod.rs", "use crate::{mem::View, engine::{Launch}};"),
        ("src/nic.rs", "impl From<crate::gpu::GpuError> for Error {}"),
        ("src/transport/mod.rs", "use crate::report::Row;"),
        ("src/newcomer.rs", ""),
    ] {
        assert_eq!(wrong_imports(file, source).len(), 1, "{file}: {source}");
    }
}

#[test]
fn a_right_import_is_not_complained_about() {
    for (file, source) in [
        (
            "src/gpu/args.rs",
            "use super::{Gpu, host::Fibre}; use crate::gpu::Gpu; use crate::mem::View;",
        ),
        (
            "src/gpu/args.rs",
            "//! use crate::nic;\n/// crate::gpu::x\nconst S: &str = \"crate::nic::x\";",
        ),
        ("src/nic.rs", "pub use bellpush_soft_nic as soft; pub use self::soft::SoftConfig;"),
        ("src/gpu/mod.rs", "mod tests { use super::*; }"),
        ("src/transport/mod.rs", "use crate::{gpu::Gpu, nic::soft::SoftNic};"),
        ("src/bin/bellpush/main.rs", "use bellpush::report;"),
    ] {
        none(wrong_imports(file, source));
    }
}

#[test]
fn an_outside_include_is_found() {
    let there = ["kernels/engine/run.cuh", "kernels/include/bellpush/wire.h"];
    let exists = |path: &Path| there.iter().any(|file| path == Path::new(file));
    for (file, source, wrong) in [
        ("kernels/engine/a.cuh", "#include <stdint.h>\n#include \"run.cuh\"", 0),
        ("kernels/entry/a.cu", "#include <bellpush/wire.h>\n#include \"engine/run.cuh\"", 0),
        ("kernels/host/a.hpp", "#include <bellpush/wire.h>\n# include <thread>", 0),
        ("kernels/include/bellpush/a.cuh", "#include <bellpush/wire.h>", 0),
        ("kernels/include/bellpush/a.cuh", "#include \"wire.h\"", 1),
        ("kernels/include/bellpush/a.cuh", "#include \"engine/run.cuh\"", 1),
        ("kernels/include/bellpush/a.cuh", "#include <bellpush/missing.h>", 1),
        ("kernels/a.cuh", "#include <thread>", 1),
        ("kernels/a.cuh", "#include <cuda/atomic>", 1),
        ("kernels/a.cuh", "  # include \"../src/secret.h\"", 1),
        ("kernels/a.cuh", "#include \"missing.h\"", 1),
        ("kernels/a.cuh", "#include MACRO", 1),
        ("kernels/a.cuh", "// #include <thread>", 0),
    ] {
        assert_eq!(foreign_includes(file, source, exists).len(), wrong, "{source}");
    }
}

#[test]
fn unsafe_is_found_in_code_alone() {
    assert!(has_unsafe(&tokens("fn f() { g(|| unsafe { h() }) }")));
    assert!(has_unsafe(&tokens("unsafe impl Send for X {}")));
    assert!(!has_unsafe(&tokens("#![forbid(unsafe_code)] // unsafe\nconst S: &str = \"unsafe\";")));
}

#[test]
fn a_long_file_is_found() {
    assert!(too_long(("a.rs".into(), "\n".repeat(MAX_LINES))).is_some());
    assert!(too_long(("a.rs".into(), "\n".repeat(MAX_LINES - 1))).is_none());
}
