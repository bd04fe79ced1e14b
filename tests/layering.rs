//! The tree's own rules: `unsafe` stays in its places, device code includes nothing from outside, files stay short
//! enough to read, and documents name files that are there.
//!
//! Rust is read as tokens, so that comments and strings do not count and paths inside macros do.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

/// Where `unsafe` may stand. (loom's cells hand out raw pointers; that test models shared memory.)
const UNSAFE_PLACES: &[&str] = &[
    "crates/mem/",
    "crates/broken-mem/",
    "crates/abi/src/", // says which structures kernels take
    "crates/gpu/",
    "crates/mlx5/",
    "bindgen/",
    "shim/",
    "capi/",
    "src/collective/communicator.rs", // launch kernels by addresses, and so do:
    "src/gpu_engine.rs",
    "src/transport/kernel_posted.rs",
    "src/transport/peers.rs",
    "crates/cli/src/launch.rs",
    "examples/allreduce/src/bare.rs",
    "examples/allreduce/src/nccl.rs", // a C library
    "benches/paths.rs",
    "benches/wqe.rs",
    "tests/support/test_bed.rs",
    "tests/kernels/executor",
    "tests/nic_alloc.rs", // counts allocations, for which an allocator is unsafe to write
    "examples/custom_kernel/", // declare their own kernels and arguments, as a user must
    "examples/stencil/",
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

fn has_unsafe(source: &str) -> bool {
    fn within(stream: TokenStream) -> bool {
        stream.into_iter().any(|token| match token {
            TokenTree::Ident(word) => word == "unsafe",
            TokenTree::Group(group) => within(group.stream()),
            _ => false,
        })
    }
    within(source.parse().expect("the file is Rust"))
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
fn unsafe_stays_in_its_places() {
    let outside = |file: &str| !UNSAFE_PLACES.iter().any(|place| file.starts_with(place));
    let wrong = rust_sources().filter(|(file, text)| outside(file) && has_unsafe(text));
    none(wrong.map(|(file, _)| format!("{file} contains unsafe")).collect());
}

#[test]
fn pure_modules_forbid_unsafe() {
    for name in ["wire", "cm", "pcie", "preload", "nic", "soft-nic"] {
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

// ---- Documents ----------------------------------------------------------------------------------

/// What a document names and the tree does not have: targets of links, and files in backticks, which may begin at the
/// root, at the document's folder or at any folder. Names with capitals are places for names.
fn missing(file: &str, text: &str, tree: &[String]) -> Vec<String> {
    let folder = Path::new(file).parent().expect("the file lies in a folder");
    let there = |name: &str| {
        let ends = format!("/{name}");
        tree.iter().any(|path| path == name || path.ends_with(&ends))
    };
    let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let links = links.filter(|to| !to.is_empty() && !to.starts_with("http"));
    let links = links.filter(|to| !root().join(folder).join(to).exists()).map(str::to_owned);
    let extension = |word: &str| {
        let known = ["rs", "cu", "cuh", "h", "hpp", "cpp", "c", "toml", "md", "py", "sh"];
        word.rsplit_once('.').is_some_and(|(_, end)| known.contains(&end))
    };
    let plain =
        |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || "0123456789/._-".contains(c));
    let named = text.split('`').skip(1).step_by(2);
    let named = named.filter(|word| word.contains('/') && extension(word) && plain(word));
    let named = named.filter(|word| !there(word)).map(str::to_owned);
    links.chain(named).map(|what| format!("{file} names {what}, which is not there")).collect()
}

#[test]
fn documents_name_files_that_are_there() {
    let mut tree: Vec<_> = sources().into_iter().map(|(file, _)| file).collect();
    let folders =
        [".cargo", "docs", "examples", "interop", "mutants", "crates", "capi", "packaging"];
    tree.extend(
        folders.iter().flat_map(|f| files(f, &["md", "toml", "sh", "py", "c", "cu"])).map(|f| f.0),
    );
    let of_others = "src/modules/transport/ibgda/ibgda.cpp"; // NVSHMEM's
    tree.push(of_others.into());
    let mut documents = files("docs", &["md"]);
    documents.retain(|(file, _)| !file.starts_with("docs/results/")); // what was true then
    for file in ["README.md", "ARCHITECTURE.md"] {
        documents.push((file.into(), fs::read_to_string(root().join(file)).expect(file)));
    }
    // Fences are cut out: three backticks would turn inside and outside round.
    let unfenced = |text: &str| text.split("```").step_by(2).collect::<String>();
    none(documents.iter().flat_map(|(file, text)| missing(file, &unfenced(text), &tree)).collect());
}

/// Tests that rows of a table name, as `FILE::TEST`, and that are not there; rows that name none.
fn untested(text: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut heads = true;
    for line in text.lines() {
        let is_row = line.starts_with("| ");
        heads &= !line.starts_with("|---");
        if !is_row || heads {
            heads |= !line.starts_with('|');
            continue;
        }
        let named = line.split('`').skip(1).step_by(2);
        let tests: Vec<_> = named.filter_map(|word| word.split_once(".rs::")).collect();
        if tests.is_empty() {
            wrong.push(format!("no test: {line}"));
        }
        for (file, test) in tests {
            let there = source(&format!("{file}.rs")).is_some_and(|text| {
                let begin = text.find(&format!("fn {test}(")).or(text.find(&format!("fn {test}<")));
                begin.is_some()
            });
            if !there {
                wrong.push(format!("{file}.rs has no {test}"));
            }
        }
    }
    wrong
}

#[test]
fn promises_have_tests_that_are_there() {
    let text = fs::read_to_string(root().join("docs/security.md")).expect("the page");
    let promises = text.split("\n## ").filter(|part| part.starts_with("Promise"));
    let promises: String = promises.collect();
    assert!(promises.lines().filter(|line| line.starts_with("| ")).count() > 40);
    none(untested(&promises, |file| fs::read_to_string(root().join(file)).ok()));
}

/// Planted bugs of a row that are not there, or whose test the row does not name as `FILE::TEST`.
fn uncaught(row: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let named: Vec<_> = row.split('`').skip(1).step_by(2).collect();
    let tests: Vec<_> = named.iter().filter_map(|word| word.split_once(".rs::")).collect();
    let is_bug = |word: &&&str| {
        let is_path = word.contains(['.', ' ', ':']) || word.starts_with("crates/");
        word.matches('/').count() == 1 && !is_path
    };
    let catches = |line: &str| {
        let target = line.split_once("--test ").and_then(|(_, rest)| rest.split(' ').next());
        let package = line.split_once("-p bellpush-").and_then(|(_, rest)| rest.split(' ').next());
        let folder = match (target, package) {
            (Some(target), _) => format!("tests/{target}/"),
            (None, Some("shim")) => "shim/".into(),
            (None, Some(package)) => format!("crates/{package}/"),
            (None, None) => "src/".into(),
        };
        // Modules are in the file's path; those of unit tests have no name of their own there.
        let parts = line.rsplit(' ').next().unwrap_or_default().split("::");
        let parts: Vec<_> = parts.filter(|part| !["", "tests"].contains(part)).collect();
        tests.iter().any(|(file, test)| {
            let has = |part: &&str| {
                let is_it =
                    |name: &str| name == *part || name.strip_suffix("_tests") == Some(*part);
                test.starts_with(*part) || file.split('/').any(is_it)
            };
            file.starts_with(&folder) && parts.iter().all(has)
        })
    };
    let wrong = named.iter().filter(is_bug).filter_map(|bug| {
        let Some(text) = source(&format!("mutants/{bug}.toml")) else {
            return Some(format!("there is no bug {bug}"));
        };
        let line = text.lines().find_map(|line| line.strip_prefix("test = \"")?.strip_suffix('"'));
        let line = line.unwrap_or_default();
        (!catches(line)).then(|| format!("the row of {bug} does not name its test: {line}"))
    });
    wrong.collect()
}

#[test]
fn invariants_have_tests_that_are_there() {
    let text = fs::read_to_string(root().join("docs/reliability.md")).expect("the page");
    let table = text.split_once("| | invariant |").expect("the table").1;
    let table = table.split_once("\n\n").expect("its end").0;
    let table = format!("| | invariant |{table}");
    let rows = || table.lines().filter(|line| line.starts_with("| "));
    assert_eq!(rows().count(), 10);
    let source = |file: &str| fs::read_to_string(root().join(file)).ok();
    none(untested(&table, source));
    none(rows().flat_map(|row| uncaught(row, source)).collect());
}

#[test]
fn a_bug_whose_test_a_row_does_not_name_is_found() {
    let source = |file: &str| match file {
        "mutants/nic/a.toml" => Some("test = \"--test roce errors::late\"\n".to_owned()),
        "mutants/nic/b.toml" => Some("test = \"-p bellpush-nic --lib queue::tests::full\"".into()),
        _ => None,
    };
    for (row, wrong) in [
        ("| `tests/roce/errors.rs::late_ones_are_told` | `nic/a` | `cargo test --test roce` |", 0),
        ("| `tests/soft_nic/errors.rs::late_ones_are_told` | `nic/a` |", 1),
        ("| `tests/roce/errors.rs::early_ones_are_told` | `nic/a` |", 1),
        ("| `crates/nic/src/queue_tests.rs::full_ones_are_refused` | `nic/b` |", 0),
        ("| `crates/nic/src/rings.rs::full_ones_are_refused` | `nic/b`, `nic/c` |", 2),
        ("| `crates/nic`, `order.cuh`, `objects/mr.rs` |", 0),
    ] {
        assert_eq!(uncaught(row, source).len(), wrong, "{row}");
    }
}

/// Numbers of three digits and more of a row that none of the pages which it links to has.
fn unsaid(row: &str, page: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let links = row.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let pages: String = links.filter_map(page).collect();
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != ',');
        words.map(|word| word.trim_matches(',').to_owned()).collect()
    };
    let there = words(&pages);
    let is_number =
        |word: &String| word.len() > 2 && word.chars().all(|c| c.is_ascii_digit() || c == ',');
    let numbers = words(row).into_iter().filter(is_number);
    numbers.filter(|number| !there.contains(number)).map(|n| format!("{n} of: {row}")).collect()
}

#[test]
fn figures_are_those_of_their_pages() {
    let text = fs::read_to_string(root().join("docs/reliability.md")).expect("the page");
    let rows = ["| fuzzing |", "| soak |", "| fault scripts under others' programs |"];
    let found: Vec<_> =
        text.lines().filter(|line| rows.iter().any(|row| line.starts_with(row))).collect();
    assert_eq!(found.len(), rows.len());
    let page = |name: &str| fs::read_to_string(root().join("docs").join(name)).ok();
    none(found.iter().flat_map(|row| unsaid(row, page)).collect());
}

// ---- What users include -------------------------------------------------------------------------

/// Functions of a header that have no comment above them, nor above the functions right before them.
fn uncommented(file: &str, text: &str) -> Vec<String> {
    let is_comment = |line: &str| {
        let line = line.trim_start();
        line.starts_with("//") || line.starts_with("/*") || line.starts_with("* ")
    };
    let is_function = |line: &str| {
        let is_device = line.starts_with("BP_DEV ") || line.starts_with("BP_DEV_COLD ");
        let is_c = file.starts_with("capi/") && line.contains("bellpush_");
        let begins =
            line.starts_with(|c: char| c.is_ascii_lowercase()) && !line.starts_with("typedef");
        line.contains('(') && (is_device || is_c && begins)
    };
    let lines: Vec<&str> = text.lines().collect();
    let functions = lines.iter().enumerate().filter(|(_, line)| is_function(line));
    let bare = functions.filter(|(nth, _)| {
        let paragraph = lines[..*nth].iter().rev().take_while(|line| !line.trim().is_empty());
        !paragraph.into_iter().any(|line| is_comment(line))
    });
    bare.map(|(nth, line)| format!("{file}:{}: no comment above {line}", nth + 1)).collect()
}

#[test]
fn functions_that_users_call_have_a_comment() {
    let headers: Vec<_> = files("kernels/include/bellpush", &["h", "cuh"])
        .into_iter()
        .chain(files("capi", &["h"]))
        .filter(|(file, _)| !file.contains("/impl/"))
        .collect();
    assert!(headers.len() > 12, "{}", headers.len());
    none(headers.iter().flat_map(|(file, text)| uncommented(file, text)).collect());
}

#[test]
fn a_function_without_a_comment_is_found() {
    for (file, source, wrong) in [
        ("capi/a.h", "/* What it does. */\nint bellpush_a(void);\nint bellpush_b(void);\n", 0),
        ("capi/a.h", "/* What it does. */\nint bellpush_a(void);\n\nint bellpush_b(void);\n", 1),
        ("capi/a.h", "typedef struct bellpush_a (bellpush_b);\n", 0),
        ("a.cuh", "// What it does.\ntemplate <class P>\nBP_DEV void a(P p) {\n}\n", 0),
        ("a.cuh", "template <class P>\nBP_DEV void a(P p) {\n  b(p);\n}\n", 1),
        ("a.cuh", "BP_DEV_COLD void a();\n", 1),
    ] {
        assert_eq!(uncommented(file, source).len(), wrong, "{source}");
    }
}

// ---- Crates of others ---------------------------------------------------------------------------

/// Packages of a lock file that are neither of this checkout nor, with their checksum, from crates.io.
fn strange(lock: &str, ours: &[&str]) -> Vec<String> {
    let field = |package: &str, name: &str| {
        let begin = format!("{name} = ");
        let line = package.lines().find_map(|line| line.strip_prefix(&begin).map(str::to_owned));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").skip(1);
    let wrong = packages.filter_map(|package| {
        let name = field(package, "name").unwrap_or_default();
        let fine = match field(package, "source") {
            None => ours.contains(&name.as_str()),
            Some(source) => {
                source == "registry+https://github.com/rust-lang/crates.io-index"
                    && field(package, "checksum").is_some_and(|sum| sum.len() == 64)
            }
        };
        (!fine).then_some(name)
    });
    wrong.collect()
}

#[test]
fn crates_of_others_are_from_crates_io_with_a_checksum() {
    let mut manifests = vec![fs::read_to_string(root().join("Cargo.toml")).expect("text")];
    let folders = ["bindgen", "capi", "crates", "examples", "fuzz", "mutants", "shim"];
    let all = folders.iter().flat_map(|folder| files(folder, &["toml"]));
    manifests.extend(all.filter(|(file, _)| file.ends_with("Cargo.toml")).map(|(_, text)| text));
    let name = |text: &String| text.split("name = \"").nth(1)?.split('"').next().map(str::to_owned);
    let ours: Vec<String> = manifests.iter().filter_map(name).collect();
    let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("the lock file");
    assert!(lock.matches("[[package]]").count() > 100);
    none(strange(&lock, &ours));
}

// ---- Negative controls -------------------------------------------------------------------------

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
    assert!(has_unsafe("fn f() { g(|| unsafe { h() }) }"));
    assert!(has_unsafe("unsafe impl Send for X {}"));
    assert!(!has_unsafe("#![forbid(unsafe_code)] // unsafe\nconst S: &str = \"unsafe\";"));
}

#[test]
fn a_name_that_is_not_there_is_found() {
    let tree = ["crates/wire/src/wqe.rs".to_owned()];
    for (text, wrong) in [
        ("`crates/wire/src/wqe.rs`, `src/wqe.rs` and `mutants/AREA/NAME.toml`", 0),
        ("[here](../README.md#status), [there](https://example.com/a.md)", 0),
        ("`crates/wire/wqe.rs`", 1),
        ("[a page](gone.md)", 1),
    ] {
        assert_eq!(missing("docs/a.md", text, &tree).len(), wrong, "{text}");
    }
}

#[test]
fn a_long_file_is_found() {
    assert!(too_long(("a.rs".into(), "\n".repeat(MAX_LINES))).is_some());
    assert!(too_long(("a.rs".into(), "\n".repeat(MAX_LINES - 1))).is_none());
}

#[test]
fn a_promise_without_its_test_is_found() {
    let table = |row: &str| format!("Text.\n\n| promise | test |\n|---|---|\n{row}\n\nMore.\n");
    let source = |file: &str| (file == "tests/a.rs").then(|| "fn it_is_so() {}".to_owned());
    for (row, wrong) in [
        ("| it is so | `tests/a.rs::it_is_so` |", 0),
        ("| it is so | `tests/a.rs::it_is` |", 1),
        ("| it is so | `tests/b.rs::it_is_so`, `tests/a.rs::it_is_so` |", 1),
        ("| it is so | |", 1),
    ] {
        assert_eq!(untested(&table(row), source).len(), wrong, "{row}");
    }
}

#[test]
fn a_figure_of_another_run_is_found() {
    let page = |name: &str| (name == "a.md").then(|| "**1,310 cells, 467**".to_owned());
    for (row, wrong) in [
        ("| soak | 1,310 of 12, 467, an H200 | [a](a.md) |", 0),
        ("| soak | 1,310 and 310 | [a](a.md) |", 1),
        ("| soak | 467 | [b](b.md) |", 1),
    ] {
        assert_eq!(unsaid(row, page).len(), wrong, "{row}");
    }
}

#[test]
fn a_crate_from_elsewhere_is_found() {
    let package = |source: &str| format!("[[package]]\nname = \"a\"\nversion = \"1\"\n{source}\n");
    let registry = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n";
    let sum = format!("checksum = \"{}\"\n", "0".repeat(64));
    for (source, wrong) in [
        (format!("{registry}{sum}"), 0),
        (registry.to_owned(), 1),
        (format!("source = \"git+https://example.com/a\"\n{sum}"), 1),
        (String::new(), 1),
    ] {
        assert_eq!(strange(&package(&source), &["b"]).len(), wrong, "{source}");
    }
    assert!(strange(&package(""), &["a"]).is_empty());
}
