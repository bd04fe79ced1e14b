//! The C header beside the functions of the library: their types, which their names do not tell.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

/// A type of the library's functions as C has it; `inner` is a name, where one is declared.
fn c_type(rust: &str, inner: &str) -> String {
    let rust = rust.trim();
    for (pointer, constant) in [("*const ", "const "), ("*mut ", "")] {
        if let Some(to) = rust.strip_prefix(pointer) {
            // What a pointer to a pointer must not change is that pointer.
            let is_pointer = to.trim_start().starts_with('*');
            return match is_pointer {
                true => c_type(to, &format!("*{constant}{inner}")),
                false => format!("{constant}{}", c_type(to, &format!("*{inner}"))),
            };
        }
    }
    let name = match rust {
        "c_char" => "char",
        "c_int" => "int",
        "c_void" => "void",
        "u64" => "uint64_t",
        "u32" => "uint32_t",
        "usize" => "size_t",
        "Comm" => "bellpush",
        "Context" => "bellpush_context",
        "End" => "bellpush_endpoint",
        "DeviceEndpoint" => "struct bp_endpoint",
        other => panic!("a type that this test does not know: {other}"),
    };
    format!("{name} {inner}")
}

/// The functions that a source exports, as declarations of C.
fn declarations(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in source.split("extern \"C\" fn ").skip(1) {
        let (head, _) = part.split_once('{').unwrap();
        let (name, rest) = head.split_once('(').unwrap();
        let (arguments, returns) = rest.split_once(')').unwrap();
        let arguments: Vec<String> = arguments
            .split(',')
            .filter_map(|argument| Some(c_type(argument.split_once(':')?.1, "")))
            .collect();
        let arguments = match arguments.is_empty() {
            true => "void".into(),
            false => arguments.join(", "),
        };
        let returns = returns.trim().strip_prefix("->").map_or("c_void", str::trim);
        found.push(c_type(returns, &format!("{name}({arguments});")));
    }
    found
}

/// Whether a compiler takes the header and these declarations together, and what it says.
fn compiled(declarations: &[String]) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::from("#include <bellpush.h>\n");
    declarations.iter().for_each(|line| writeln!(text, "{line}").unwrap());
    let file = dir.path().join("both.c");
    fs::write(&file, text).unwrap();
    let capi = crate::root().join("capi");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
    let output = compiler.arg(capi).arg(file).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn the_header_declares_the_types_that_the_library_has() {
    let mut all = Vec::new();
    for entry in fs::read_dir(crate::root().join("capi/src")).unwrap() {
        let source = fs::read_to_string(entry.unwrap().path()).unwrap();
        all.extend(declarations(&source));
    }
    assert!(all.len() > 20, "{all:?}");
    let (is_taken, said) = compiled(&all);
    assert!(is_taken, "{said}");
    // Another type of one argument, of what is returned, one argument less.
    let put = all.iter().find(|line| line.contains("bellpush_put(")).unwrap();
    let less = put.replacen("uint64_t , ", "", 1);
    for other in [put.replacen("uint64_t", "uint32_t", 1), put.replacen("int", "void", 1), less] {
        assert_ne!(other, *put);
        let (is_taken, said) = compiled(&[other]);
        assert!(!is_taken && said.contains("conflicting types"), "{said}");
    }
}
