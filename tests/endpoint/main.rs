//! Endpoints, and the verbs of device code; with `BELLPUSH_TEST_NIC=NAME` on a verbs device, with `BELLPUSH_TEST_GPU=N`
//! on a GPU (`calls` then with `--test-threads 1`: tests that free memory wait for each other's kernels).
//!
//! `./x test` runs them a second time, on the software device, all but `calls`.

#[path = "../support/nics.rs"]
mod nics;
#[cfg(feature = "mlx5")]
#[path = "../support/preloaded.rs"]
mod preloaded;
#[path = "../support/test_bed.rs"]
mod test_bed;

mod auto;
mod calls;
mod delivery;
#[cfg(feature = "mlx5")]
mod mlx5;
mod model;
mod peers;
mod peers_cost;
mod placement;
mod reset;
mod verbs;
mod verbs_blocks;
mod verbs_bounds;
mod verbs_faults;
mod verbs_immediates;
mod verbs_many;
mod verbs_signals;

/// Which engine the NICs have.
const ENGINE: &str = "cpu";
