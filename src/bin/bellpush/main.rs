//! The command line of bellpush.
//!
//! Exit status: 0 all went well, 1 a verification failed, 2 wrong input or something missing; then
//! one line on stderr says what is wrong and what to do.

mod bench;
mod cli;
mod plan;
mod show;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use cli::CliError;

/// GPU-initiated networking: measurements, checks and reports.
#[derive(Debug, Parser)]
#[command(name = "bellpush", version = cli::version())]
#[command(after_help = "Exit status: 0 all went well, 1 a verification failed, 2 wrong input or \
                        something missing.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure and verify every path between GPU and NIC
    Bench(Box<bench::BenchArgs>),
    /// Print the table of a saved result, or make its report
    Show(show::ShowArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return cli::usage(&error),
    };
    let outcome = match cli.command {
        Command::Bench(args) => bench::run(*args),
        Command::Show(args) => show::run(&args),
    };
    outcome.unwrap_or_else(|error: CliError| error.report())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
