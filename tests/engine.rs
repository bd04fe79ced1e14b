//! The engine of `kernels/engine.cuh`: the tests of the software NIC's own engine, byte for byte the
//! same, on it; and what is its alone. (Each test module says by its path that it is taken in here.)

mod common;
#[path = "nic_errors.rs"]
mod nic_errors;
#[path = "nic_inband.rs"]
mod nic_inband;
#[path = "nic_join.rs"]
mod nic_join;
#[path = "nic_ops.rs"]
mod nic_ops;
