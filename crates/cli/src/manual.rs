//! `bellpush man` and `bellpush completions`: manual pages and shells' completions, from the definition of the command
//! line. Hidden: packages call them (`packaging/package.sh`), and what they write lies where shells and `man` look.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::cli::CliError;

/// `bellpush man DIR`
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Where the pages go: bellpush.1, and bellpush-COMMAND.1 for each command
    dir: PathBuf,
}

/// `bellpush completions SHELL`
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes one page for `command` and one for each of its commands that help shows; names on stdout.
///
/// # Errors
/// A folder or file that cannot be written.
pub fn man(command: Command, args: &ManArgs) -> Result<ExitCode, CliError> {
    let dir = &args.dir;
    let unwritten = |path: &Path, e: io::Error| {
        let what = format!("cannot write {}: {e}", path.display());
        CliError::new(what, "name a folder that can be written")
    };
    std::fs::create_dir_all(dir).map_err(|e| unwritten(dir, e))?;
    let mut command = shown(command).disable_help_subcommand(true);
    command.build();
    let pages: Vec<Command> =
        std::iter::once(&command).chain(command.get_subcommands()).cloned().collect();
    for page in pages {
        let name = page.get_display_name().unwrap_or(page.get_name()).to_owned();
        let path = dir.join(format!("{name}.1"));
        let mut text = Vec::new();
        clap_mangen::Man::new(page).render(&mut text).map_err(|e| unwritten(&path, e))?;
        std::fs::write(&path, text).map_err(|e| unwritten(&path, e))?;
        let _ = writeln!(io::stdout(), "{}", path.display()); // stdout may be closed
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what the shell reads to complete command lines of `command`.
pub fn completions(command: Command, args: &CompletionsArgs) -> Result<ExitCode, CliError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut shown(command), "bellpush", &mut text);
    let _ = io::stdout().lock().write_all(&text); // a closed pipe is no error
    Ok(ExitCode::SUCCESS)
}

/// The command without the commands that its help does not show, which no shell should offer either.
fn shown(command: Command) -> Command {
    let subcommands: Vec<Command> =
        command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    let mut shown = Command::new("bellpush").subcommands(subcommands);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(after) = command.get_after_help() {
        shown = shown.after_help(after.clone());
    }
    // Without the commit of `--version`, which would change the pages with every commit.
    shown.version(env!("CARGO_PKG_VERSION")).subcommand_required(true)
}
