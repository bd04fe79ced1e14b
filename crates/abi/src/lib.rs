//! Structures that host and kernels share, in the machine's byte order: one module for each C header that Rust
//! mirrors.
//!
//! | module | header | what |
//! |---|---|---|
//! | [`wire`] | `kernels/include/bellpush/wire.h` | endpoints, queue pairs, statuses |
//! | [`entry`] | `kernels/entry/args.h` | the verbs that the host requests |
//! | [`clock`] | `kernels/entry/clock.h` | what the host asks of the GPU's clock |
//! | [`peers`] | `kernels/entry/peers.h` | what the host requests of a table of peers |
//! | [`collective`] | `kernels/collective/collective.h` | all-reduce |
//! | [`engine`] | `kernels/engine/engine.h` | the software NIC's engine on a GPU |
//! | [`bench`](mod@bench) | `kernels/bench/args.h` | kernels that measure and test |
//!
//! Tests compare sizes, offsets and constants with the C side (`tests/wire/header.rs`, `tests/wire/mlx5_layout.rs`).

pub mod bench;
pub mod clock;
pub mod collective;
pub mod engine;
pub mod entry;
pub mod peers;
pub mod wire;

/// The one struct that a kernel takes, by value.
///
/// # Safety
/// The type has the layout of the kernel's C++ struct (each launch checks the size). The values are
/// covered by the promise of the launch.
pub unsafe trait KernelArgs: bytemuck::NoUninit {}
