//! The command line, the examples, and `./x`.

#[allow(dead_code)]
#[path = "../../crates/cli/src/amount.rs"]
mod amount;
#[allow(dead_code)]
#[path = "../../crates/cli/src/cli.rs"]
mod cli;
#[allow(dead_code)]
#[path = "../../crates/cli/src/doctor/mod.rs"]
mod doctor;
#[path = "../../crates/cli/src/explained.rs"]
mod explained;
#[allow(dead_code)]
#[path = "../../crates/cli/src/flows.rs"]
mod flows;
#[allow(dead_code)]
#[path = "../../crates/cli/src/guard.rs"]
mod guard;
#[allow(dead_code)]
#[path = "../../crates/cli/src/sim.rs"]
mod sim;
#[path = "../../crates/cli/src/sim_marks.rs"]
mod sim_marks;
#[path = "../../crates/cli/src/sim_options.rs"]
mod sim_options;
#[allow(dead_code)]
#[path = "../../crates/cli/src/sim_report.rs"]
mod sim_report;
#[path = "../../crates/cli/src/sim_rows.rs"]
mod sim_rows;
#[path = "../../crates/cli/src/sim_totals.rs"]
mod sim_totals;
#[allow(dead_code)]
#[path = "../../crates/cli/src/tlp.rs"]
mod tlp;
#[allow(dead_code)]
#[path = "../../crates/cli/src/topo.rs"]
mod topo;
#[allow(dead_code)]
#[path = "../../crates/cli/src/values.rs"]
mod values;
#[path = "../../crates/cli/src/what.rs"]
mod what;

mod apart;
mod bench;
mod compares;
mod decode;
mod details;
mod diagnoses;
mod documented;
mod environment;
mod examples;
mod front_door;
mod inputs;
mod packed;
mod pages;
mod pcie;
mod post;
mod priorities;
mod recorded;
mod serves;
mod settles;
mod show;
mod soak;
mod tables;
mod tune;
mod unseen;
mod usable;
mod verdicts;
