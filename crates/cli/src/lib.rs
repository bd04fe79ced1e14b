//! What bellpush's command line, the examples and the fuzz targets share: results and their reports, decoders.

pub mod decode;
pub mod input;
pub mod link_limits;
pub mod report;
pub mod trace;
