//! Ranks that come, are kept out, are stopped or lost. They are a program of their own: their waits are measured by the
//! clock, and the many threads of `collective` would be in their way.

mod blame;
mod processes;
