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
//! | [`gpu`] | CUDA GPUs and the host executor: memory, kernels, streams |
//! | [`nic`] | the software NIC, and mlx5 devices through libibverbs |
//! | [`engine`] | the software NIC's engine on a GPU |
//! | [`mem`] | memory shared with GPUs and NICs |
//! | [`wire`] | mlx5 and RoCEv2 formats |
//! | [`pcie`] | the PCIe model |
//! | [`report`] | results: rows, statistics, JSON |
//! | [`preload`] | configuration of the preloaded object (`bellpush run`) |
//!
//! Dependencies point one way: `collective` uses `transport`, which uses `nic` and `gpu`; `engine` uses `nic` and
//! `gpu`; `report` uses `transport`. The layers below are separate crates, which build without a C++ compiler: [`wire`],
//! [`pcie`], [`mem`], and those that [`nic`] re-exports.
//!
//! Documents in the repository:
//!
//! | document | about |
//! |---|---|
//! | `README.md` | first steps, and which path to choose |
//! | `docs/device-api.md` | the verbs in kernels, statuses, the host's calls |
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
pub mod engine;
pub mod gpu;
pub mod nic;
pub mod report;
pub mod transport;

pub use bellpush_mem as mem;
pub use bellpush_pcie as pcie;
pub use bellpush_preload as preload;
pub use bellpush_wire as wire;
