//! gpu
mod module;
pub use module::*;
