//! All-reduce among ranks that are threads of this process.

#[path = "../support/nics.rs"]
mod nics;
#[path = "../support/world.rs"]
mod world;

mod all_reduce;
mod ends;
mod errors;
mod links;

/// Which engine the NICs have.
const ENGINE: &str = "cpu";
