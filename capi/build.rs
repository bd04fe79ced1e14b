//! Gives the library its name: programs that are linked with it by its path would otherwise look for it there.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbellpush_c.so");
}
