//! Compiles `kernel.cu` twice: with the C++ compiler for the host executor, always; with nvcc for
//! CUDA, where bellpush's own build found one. As `custom_kernel`'s: each of the two is to be copied by itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=kernel.cu");
    println!("cargo::rustc-check-cfg=cfg(kernel_fatbin)");
    let variable = |name| env::var_os(name).unwrap_or_else(|| panic!("{name} is not set"));
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(variable("OUT_DIR"));
    // What bellpush's build script tells those who depend on it.
    let include = PathBuf::from(variable("DEP_BELLPUSH_INCLUDE"));
    let kernel = root.join("kernel.cu");

    // gcc takes a .cu for a linker script; a one-line C++ file that includes it is C++.
    let unit = out.join("kernel.host.cpp");
    fs::write(&unit, format!("#include \"{}\"\n", kernel.display())).expect("OUT_DIR is writable");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .include(&include)
        .flag_if_supported("-fno-exceptions")
        .flag_if_supported("-fno-rtti")
        .flag_if_supported("-fstack-clash-protection")
        .cpp_link_stdlib(None)
        .file(unit)
        .compile("stencil_host");

    if let Some(nvcc) = env::var_os("DEP_BELLPUSH_NVCC") {
        fatbin(Path::new(&nvcc), &include, &kernel, &out.join("kernel.fatbin"));
        println!("cargo::rustc-cfg=kernel_fatbin");
    }
}

fn fatbin(nvcc: &Path, include: &Path, kernel: &Path, to: &Path) {
    let status = Command::new(nvcc)
        .args(["-fatbin", "-std=c++17", "-O3"])
        .args(["-gencode", "arch=compute_80,code=sm_80"])
        .args(["-gencode", "arch=compute_90,code=sm_90"])
        .args(["-gencode", "arch=compute_90,code=compute_90"])
        .arg("-I")
        .args([include.as_os_str(), "-o".as_ref(), to.as_os_str(), kernel.as_os_str()])
        .status()
        .unwrap_or_else(|e| panic!("{}: {e}", nvcc.display()));
    assert!(status.success(), "nvcc does not compile {}", kernel.display());
}
