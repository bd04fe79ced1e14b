//! Gives the library its name, with the series of its interface: programs that were linked with it load that series and
//! no other, wherever it lies.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = |part| std::env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo sets it");
    // Before 1.0 each minor version is a series of its own, as in CMake's package of it.
    let series = match (version("MAJOR"), version("MINOR")) {
        (major, minor) if major == "0" => format!("{major}.{minor}"),
        (major, _) => major,
    };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbellpush_c.so.{series}");
}
