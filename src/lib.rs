//! bellpush: GPU-initiated networking.
//!
//! A CUDA kernel writes the NIC's work-queue entries, pushes the payload by posted writes into a
//! window of NIC-side memory under credits, and rings the doorbell. The library contains a
//! software NIC that consumes real mlx5 work queues, so that all of it runs without an RDMA NIC.
//!
//! Dependencies point one way: `collective` uses `transport`, which uses `nic`, `gpu` and `credit`,
//! which use `mem` and `wire`; `engine` uses `nic` and `gpu`; `mem` and `credit` use nothing of ours. [`wire`] and
//! [`pcie`] are crates of their own, without `unsafe` and without a C++ compiler.

pub mod collective;
pub mod credit;
pub mod engine;
pub mod gpu;
pub mod mem;
pub mod nic;
pub mod preload;
pub mod report;
pub mod transport;

pub use bellpush_pcie as pcie;
pub use bellpush_wire as wire;
