//! All-reduce among ranks that are threads of this process.

#[path = "../support/world.rs"]
mod world;

mod all_reduce;
mod ends;
mod errors;
