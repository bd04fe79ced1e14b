//! Endpoints and the verbs of device code. With `BELLPUSH_TEST_NIC=NAME` on a verbs device: `./x test` runs them once more
//! on the software device, but `calls`, whose subject is the host's side.

#[cfg(feature = "mlx5")]
#[path = "../support/preloaded.rs"]
mod preloaded;
#[path = "../support/test_bed.rs"]
mod test_bed;

mod calls;
mod delivery;
#[cfg(feature = "mlx5")]
mod mlx5;
mod model;
mod verbs;
mod verbs_faults;

/// Which engine the NICs have.
const ENGINE: &str = "cpu";
