//! Writes `crates/mlx5/src/bindings.rs`, the mlx5dv structures and the table of functions that
//! libmlx5 is asked for at run time.
//!
//! `bellpush-bindgen` writes the file; `bellpush-bindgen --check` compares it with what the
//! installed header gives. Structures of mlx5dv.h only grow, and what grew is guarded by
//! `comp_mask`, so the committed file serves every later libmlx5; a comparison means something only
//! with the version that it was made from.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use bindgen::{Builder, EnumVariation};

/// What `crates/mlx5` calls and fills in, and no more: a symbol that is not there is an error
/// message, so nothing is asked for that is not needed.
const FUNCTIONS: &[&str] = &[
    "mlx5dv_is_supported",
    "mlx5dv_query_device",
    "mlx5dv_create_cq",
    "mlx5dv_create_qp",
    "mlx5dv_init_obj",
];
const TYPES: &[&str] = &[
    "mlx5dv_context",
    "mlx5dv_context_flags",
    "mlx5dv_obj",
    "mlx5dv_obj_type",
    "mlx5dv_cq_init_attr",
    "mlx5dv_cq_init_attr_mask",
    "mlx5dv_qp_init_attr",
    "mlx5dv_qp_init_attr_mask",
    "mlx5dv_qp_create_flags",
];
fn generate(header: &Path) -> Result<String, bindgen::BindgenError> {
    let exact = |names: &[&str]| names.iter().map(|n| format!("^{n}$")).collect::<Vec<_>>();
    let mut builder = Builder::default()
        .header(header.to_string_lossy())
        .dynamic_library_name("Libmlx5")
        // Each symbol by itself: an old library lacks some, and the message names them.
        .dynamic_link_require_all(false)
        .default_enum_style(EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_debug(false)
        .merge_extern_blocks(true)
        .layout_tests(true)
        .generate_comments(false)
        .allowlist_recursively(true)
        // The verbs types are rdma-sys's.
        .blocklist_type("ibv_.*")
        .blocklist_type("_ibv_.*|_compat_.*|verbs_.*|ib_uverbs_.*")
        .blocklist_type("__.*|pthread_.*|timespec|off_t|size_t")
        .opaque_type("mlx5dv_dc_init_attr")
        .blocklist_type("mlx5_wqe_av.*")
        .wrap_unsafe_ops(true)
        .raw_line("use libc::off_t;")
        .raw_line("use rdma_sys::*;")
        // Behind a pointer that we never look at.
        .raw_line("pub type mlx5_wqe_av = ::std::ffi::c_void;");
    for name in exact(FUNCTIONS) {
        builder = builder.allowlist_function(name);
    }
    for name in exact(TYPES) {
        builder = builder.allowlist_type(name);
    }
    Ok(builder.generate()?.to_string())
}

/// The version of rdma-core whose header is installed, such as `1.24.44.0`.
fn installed() -> Option<String> {
    let out = Command::new("pkg-config").args(["--modversion", "libmlx5"]).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_string())
}

fn run(check: bool) -> Result<(), String> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let file = here.join("../crates/mlx5/src/bindings.rs");
    let version = installed().ok_or("pkg-config finds no libmlx5: install libibverbs-dev")?;
    let first = format!("// Written by `./x bindings` from mlx5dv.h of libmlx5 {version}.\n");
    let old = std::fs::read_to_string(&file).unwrap_or_default();
    if check && old.lines().next() != first.lines().next() {
        println!("not compared: this machine has libmlx5 {version}");
        return Ok(());
    }
    let body = generate(&here.join("mlx5dv.h")).map_err(|e| e.to_string())?;
    let new = first + &body;
    if check && new != old {
        return Err(format!("{} is not what mlx5dv.h gives: ./x bindings", file.display()));
    }
    if check { Ok(()) } else { std::fs::write(&file, new).map_err(|e| e.to_string()) }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--check"] => true,
        _ => {
            eprintln!("bellpush-bindgen [--check]");
            return ExitCode::from(2);
        }
    };
    match run(check) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bellpush-bindgen: {why}");
            ExitCode::FAILURE
        }
    }
}
