//! Results: rows, statistics, JSON, tables, plots and pages.
//!
//! A run yields [`Results`]: its circumstances ([`Meta`]) and one [`Row`] per path and size. The
//! terminal table, the SVG plots and the HTML page all print the same notes and footnotes
//! ([`notes`]), so that no number of the software NIC can pass for a NIC's.
//!
//! GB is 10⁹ bytes; sizes are in KiB and MiB.

mod bars;
pub mod chart;
mod checkout;
mod error;
mod file;
mod frame;
pub mod html;
pub mod human;
pub mod label;
pub mod machine;
mod names;
pub mod notes;
pub mod page;
pub mod plot;
mod repeated;
mod row;
mod series;
mod setup;
pub mod size;
pub mod stats;
pub mod table;

pub use error::ReportError;
pub use html::write_report;
pub use names::{Places, Side, UnknownSide, WrongPlaces};

pub use bellpush::transport::{Data, Kick};
pub use row::{Machine, Meta, Nic, Results, Row};
