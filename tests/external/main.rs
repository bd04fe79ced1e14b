//! Programs that are not ours, or not Rust, on the preloaded object and the C library: one at a time.

#[path = "../support/preloaded.rs"]
mod preloaded;

mod adversary;
mod apart;
mod c_abi;
mod closing;
mod datagrams;
mod doctor;
mod doorbells;
mod fault_table;
mod faults;
mod interrupted;
mod leaving;
mod lookups;
mod mpi;
mod perftest;
mod polling;
mod python;
mod pyverbs;
mod rdma_cm;
mod record;
mod run;
mod scripted;
mod shim;
mod strangers;
mod sysfs;
mod trace;
mod ucx;
