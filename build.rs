//! Hands on what the build of the kernels found to those who depend on this crate, for kernels of their own:
//! `DEP_BELLPUSH_INCLUDE`, the folder of the device headers, and `DEP_BELLPUSH_NVCC`, absent where there is none.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["include", "nvcc"] {
        let found = format!("DEP_BELLPUSH_GPU_{}", name.to_uppercase());
        println!("cargo::rerun-if-env-changed={found}");
        if let Ok(value) = std::env::var(&found) {
            println!("cargo::metadata={name}={value}");
        }
    }
}
