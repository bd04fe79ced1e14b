//! The command line, the examples, and `./x`.

#[cfg(feature = "cli")]
#[allow(dead_code)]
#[path = "../../src/bin/bellpush/cli.rs"]
mod cli;
#[cfg(feature = "cli")]
#[allow(dead_code)]
#[path = "../../src/bin/bellpush/sim.rs"]
mod sim;
#[cfg(feature = "cli")]
#[allow(dead_code)]
#[path = "../../src/bin/bellpush/sim_report.rs"]
mod sim_report;
#[cfg(feature = "cli")]
#[allow(dead_code)]
#[path = "../../src/bin/bellpush/tlp.rs"]
mod tlp;
#[cfg(feature = "cli")]
#[allow(dead_code)]
#[path = "../../src/bin/bellpush/topo.rs"]
mod topo;
#[cfg(feature = "cli")]
#[allow(dead_code)]
#[path = "../../src/bin/bellpush/values.rs"]
mod values;

mod examples;
mod front_door;
#[cfg(feature = "cli")]
mod pcie;
#[cfg(feature = "cli")]
mod show;
