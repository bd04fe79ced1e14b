//! The command line of bellpush.
//!
//! Exit status: 0 success, 1 a verification failed, 2 invalid input or a missing device or file;
//! one line on stderr then names the error and its remedy. `doctor` has 3 as well; `run` and `trace` end as
//! their program does.

mod amount;
mod bench;
mod cli;
mod compare;
#[path = "decode/command.rs"]
mod decode;
mod doctor;
mod explained;
#[cfg(test)]
#[path = "../../../fuzz/checks/files.rs"]
mod files;
#[cfg(test)]
mod files_tests;
mod flows;
mod guard;
mod launch;
mod link;
mod manual;
mod metrics;
mod pcie_link;
mod plan;
mod post;
mod replay;
mod run;
mod serve;
mod show;
mod sim;
mod sim_marks;
mod sim_options;
mod sim_report;
mod sim_rows;
mod sim_totals;
mod soak;
mod tlp;
mod topo;
#[path = "trace/command.rs"]
mod trace;
mod values;
mod what;

use std::io::Write;
use std::process::ExitCode;

use bellpush::nic::soft::log;
use clap::{CommandFactory, Parser, Subcommand};

use cli::CliError;
#[cfg(test)]
use topo::measured;

/// GPU-initiated networking: measurements, checks and reports.
#[derive(Debug, Parser)]
#[command(name = "bellpush", version = cli::version())]
#[command(after_help = "Exit status: 0 all went well, 1 a verification failed, 2 wrong input or \
                        something missing.\n`doctor` has 3 for what is prevented as well; `run` \
                        and `trace` end as their program does.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure and verify every path between GPU and NIC
    Bench(Box<bench::BenchArgs>),
    /// Run a program on software mlx5 devices, unchanged
    Run(run::RunArgs),
    /// Trace a program on software devices for Perfetto, or say what a traced run waits for
    Trace(trace::TraceArgs),
    /// Make the decisions of a recording again, and say what differs
    Replay(replay::ReplayArgs),
    /// Say what WQEs, CQEs, doorbells and packets are, field by field, and what is wrong with them
    Decode(decode::DecodeArgs),
    /// Tidy up when `run` is killed
    #[command(name = guard::COMMAND, hide = true)]
    Guard(guard::GuardArgs),
    /// Check the library with random operations, faults and adversaries, for as long as is wanted
    Soak(soak::SoakArgs),
    /// Act as server for rdma-core's pingpong programs or perftest, on the software NIC
    Serve(serve::ServeArgs),
    /// Print the table of a saved result, or make its report
    Show(show::ShowArgs),
    /// Compare two saved results, row by row, with how far they vary
    Compare(compare::CompareArgs),
    /// Compute the bytes that transfers put on a PCIe link, TLP by TLP
    Tlp(tlp::TlpArgs),
    /// Say what a machine can do for GPU-initiated networking, and why not
    Doctor(doctor::DoctorArgs),
    /// Draw a PCIe topology, classify its GPU-NIC pairs, recommend a path
    Topo(topo::TopoArgs),
    /// Simulate whole operations over PCIe topologies
    Sim(sim::SimArgs),
    /// Measure this machine's PCIe and NVLink beside what the model predicts
    Link(pcie_link::LinkArgs),
    /// Write the manual pages
    #[command(hide = true)]
    Man(manual::ManArgs),
    /// Print a shell's completions
    #[command(hide = true)]
    Completions(manual::CompletionsArgs),
}

fn main() -> ExitCode {
    bellpush::gpu::environment::prepare(); // while there is one thread
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return cli::usage(&error),
    };
    if let Err(error) = logged() {
        return error.report();
    }
    let outcome = match cli.command {
        Command::Bench(args) => bench::run(*args),
        Command::Run(args) => run::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Decode(args) => decode::run(&args),
        Command::Guard(args) => guard::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Tlp(args) => modelled("tlp", tlp::run(&args)),
        Command::Doctor(args) => doctor::run(&args),
        Command::Topo(args) => modelled("topo", topo::run(&args)),
        Command::Sim(args) => modelled("sim", sim::run(&args)),
        Command::Link(args) => pcie_link::run(&args),
        Command::Man(args) => manual::man(Cli::command(), &args),
        Command::Completions(args) => manual::completions(Cli::command(), &args),
    };
    outcome.unwrap_or_else(|error: CliError| error.report())
}

/// Has what software NICs log printed, if the environment asks for it.
fn logged() -> Result<(), CliError> {
    let printing = log::Printing::from_environment(true);
    let help = "docs/trace.md says what it may be";
    if let Some(printing) = printing.map_err(|error| CliError::new(error, help))? {
        // Who reads it may have gone.
        log::install(printing, |line| _ = writeln!(std::io::stderr(), "{line}"));
    }
    Ok(())
}

/// Runs a command of the model, whose error is one message. A closed pipe is no error.
fn modelled(
    command: &str,
    outcome: Result<(), Box<dyn std::error::Error>>,
) -> Result<ExitCode, CliError> {
    let Err(error) = outcome else { return Ok(ExitCode::SUCCESS) };
    let closed = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    match error.downcast::<CliError>() {
        Ok(error) => Err(*error),
        Err(e) if e.downcast_ref().is_some_and(closed) => Ok(ExitCode::SUCCESS),
        Err(e) => Err(CliError::new(e, format!("see 'bellpush {command} --help'"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
