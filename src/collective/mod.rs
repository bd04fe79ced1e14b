//! Collectives whose sends are posted by kernels: all-reduce among ranks. Each rank has a GPU (or a
//! host executor) and a NIC.
//!
//! Every rank creates a [`Member`], the ranks exchange their [`RankAddress`]es, and each becomes a
//! [`Communicator`]. [`Communicator::threads`] does this for ranks that are threads of one process.
//! One launch reduces and sends. The head of `kernels/collective/collective.cuh` explains why slots may be
//! reused, and how the ranks agree on the one that failed.
//!
//! Guarantees: every rank gets the same bits, and a silent rank is named within a bounded time.
//! docs/all-reduce.md describes use and errors.

mod address;
mod bootstrap;
mod calls;
mod communicator;
mod error;
mod frames;
#[cfg(any(test, fuzzing))]
#[path = "../../fuzz/checks/bootstrap.rs"]
#[doc(hidden)]
#[allow(missing_docs)]
pub mod fuzzed;
mod handshake;
mod job;
mod kinds;
mod layout;
mod member;
mod secret;
mod status;

pub use address::RankAddress;
pub use bootstrap::{Bootstrap, BootstrapError};
pub use communicator::{Buffer, Communicator, Recording};
pub use error::{Call, Error};
pub use job::Job;
pub use kinds::{Algorithm, Dtype, Op};
pub use member::{MAX_RANKS, MAX_TIMEOUT, Member, Options, Place};
