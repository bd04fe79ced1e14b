//! module
/// A kernel of the host executor.
pub type HostKernel = unsafe extern "C" fn(args: *const std::ffi::c_void) -> usize;
/// Makes the table.
#[macro_export]
macro_rules! host_kernels {
    ($($name:ident),* $(,)?) => {{
        unsafe extern "C" {
            $(fn $name(args: *const ::core::ffi::c_void) -> usize;)*
        }
        const TABLE: &[(&str, $crate::gpu::HostKernel)] = &[$((stringify!($name), $name)),*];
        TABLE
    }};
}
mod builtin { use super::HostKernel; include!(concat!(env!("OUT_DIR"), "/builtin.rs"));
/// x
pub const N: usize = HOST.len(); pub const M: usize = FATBINS.len(); }
pub use builtin::{N, M, WHY_NO_FATBINS as W};
