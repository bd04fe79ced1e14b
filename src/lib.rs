//! bellpush: GPU-initiated networking.
//!
//! A CUDA kernel writes the NIC's work-queue entries (WQEs), pushes the payload by posted writes into a
//! window of NIC-side memory under credits, and rings the doorbell. The library contains a software NIC
//! that consumes real mlx5 work queues, so that everything runs without an RDMA NIC.
//!
//! | module | what |
//! |---|---|
//! | [`transport`] | paths and endpoints: `put`, `get`, atomics, `quiet` |
//! | [`collective`] | all-reduce among threads or processes |
//! | [`gpu_engine`] | the software NIC's engine on a GPU |
//! | [`nic`] | the software NIC, and mlx5 devices through libibverbs |
//! | [`gpu`] | CUDA GPUs and the host executor: memory, kernels, streams |
//! | [`abi`] | kernel arguments, statuses and structures that host and kernels share |
//! | [`mem`] | memory shared with GPUs and NICs |
//! | [`wire`] | mlx5 and RoCEv2 formats |
//! | [`pcie`] | the PCIe model |
//! | [`preload`] | configuration of the preloaded object (`bellpush run`) |
//!
//! This package is `transport`, `collective` and `gpu_engine`; `collective` uses `transport`. All others are crates of
//! their own, re-exported. Of these [`gpu`] alone needs a C++ compiler. The command line, its measurements and reports
//! are the crate `bellpush-cli`, which uses this one.
//!
//! Documents in the repository:
//!
//! | document | about |
//! |---|---|
//! | `README.md` | first steps, and which path to choose |
//! | `docs/device-api.md` | the verbs in kernels, statuses, the host's calls |
//! | `docs/auto.md` | endpoints that choose the path by size |
//! | `docs/peers.md` | tables of peers, rails, barriers; recovery of a queue pair that ended |
//! | `docs/all-reduce.md` | all-reduce from Rust, C and PyTorch |
//! | `docs/protocol.md` | the protocol between GPU and NIC, normative |
//! | `docs/hardware.md` | real NICs |
//! | `docs/preload.md`, `docs/devx.md` | programs of rdma-core, and NVSHMEM, on a software device |
//! | `docs/pcie.md` | the PCIe model |
//! | `docs/reliability.md` | planted bugs, and the tests that notice them |
//! | `docs/results` | all measurements |
//! | `ARCHITECTURE.md`, `docs/design` | map, layers, glossary; how each part works |
//! | `CHANGELOG.md` | changes |

/// A method for each option, which returns the options with another value.
macro_rules! setters {
    ($($option:ident: $type:ty),* $(,)?) => {$(
        #[doc = concat!(
            "These options with another [`", stringify!($option), "`](Self#structfield.", stringify!($option), ")."
        )]
        #[must_use]
        pub fn $option(self, $option: $type) -> Self {
            Self { $option, ..self }
        }
    )*};
}

pub mod collective;
pub mod gpu_engine;
pub mod nic;
pub mod transport;

pub use bellpush_abi as abi;
pub use bellpush_gpu as gpu;
pub use bellpush_mem as mem;
pub use bellpush_pcie as pcie;
pub use bellpush_preload as preload;
pub use bellpush_wire as wire;
pub use gpu::host_kernels;
