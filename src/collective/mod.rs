//! Collectives whose sends are posted by kernels: all-reduce among ranks that each have a GPU (or a
//! host executor) and a NIC.
//!
//! Every rank makes a [`Member`], the ranks exchange their [`RankAddress`]es, and each becomes a
//! [`Communicator`]. [`Communicator::threads`] does it for ranks that are threads of one process.
//! One launch reduces and sends (`kernels/collective/collective.cuh`, whose head says why slots may be written
//! again, and how the ranks agree on which of them to blame).

mod address;
mod bootstrap;
mod calls;
mod communicator;
mod error;
mod frames;
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
