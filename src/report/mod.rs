//! Results: rows, statistics, JSON, tables, plots and pages.
//!
//! A run yields [`Results`]: its circumstances ([`Meta`]) and one [`Row`] per path and size. Rows,
//! [`stats`] and [`size`] need only the library; the terminal table, the SVG plots and the HTML
//! page need the `cli` feature. All of them print the same notes and footnotes ([`notes`]), so that
//! no number of the software NIC can pass for a NIC's.
//!
//! GB is 10⁹ bytes; sizes are in KiB and MiB. From the rest of the crate this module uses the names
//! of paths only.

#[cfg(feature = "cli")]
pub mod chart;
mod checkout;
mod error;
mod file;
#[cfg(feature = "cli")]
pub mod html;
pub mod human;
pub mod label;
pub mod machine;
mod names;
pub mod notes;
#[cfg(feature = "cli")]
pub mod page;
#[cfg(feature = "cli")]
pub mod plot;
mod row;
#[cfg(feature = "cli")]
mod series;
pub mod size;
pub mod stats;
#[cfg(feature = "cli")]
pub mod table;

pub use error::ReportError;
#[cfg(feature = "cli")]
pub use html::write_report;
pub use names::{Line, Side, UnknownName};

pub use crate::transport::{Data, Kick};
pub use row::{Machine, Meta, Nic, Results, Row};
