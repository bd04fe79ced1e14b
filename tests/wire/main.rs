//! Formats: constants that Rust and device code share, mlx5 layouts, and packets from fuzzing.

mod corpus;
mod header;
mod mlx5_layout;
