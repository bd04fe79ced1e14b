//! Device code: its executors, its order of loads and stores, and the models of both.

#[path = "../support/credit.rs"]
mod credit;

mod asan;
mod device;
#[cfg(feature = "bench-kernels")]
mod executor;
mod loom_ring;
mod observers;
mod spin;
mod tsan;
mod window;
