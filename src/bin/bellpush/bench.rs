//! `bellpush bench`: measures and verifies the paths between GPU and NIC.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::CliError;
use crate::plan::BenchPlan;

/// What to measure, as typed; [`BenchPlan`] is what it means.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Sizes: 8, 4KiB, 1MiB; lists 8,64,4KiB; ranges 8..4MiB in powers of two. \
                        Exit status: 0 every row was verified, 1 some row was not, 2 wrong input \
                        or something missing.")]
pub struct BenchArgs {
    /// CUDA device, or `host` for kernels on CPU threads [default: 0 if there is one, else host]
    #[arg(long, value_name = "N|host", allow_hyphen_values = true)]
    pub gpu: Option<String>,
    /// Host memory near the GPU or on another NUMA node [default: where the system puts it]
    #[arg(long, value_name = "near|far")]
    pub host_numa: Option<String>,
    /// `soft` for the software NIC, or a verbs device's name
    #[arg(long, value_name = "NIC", default_value = "soft")]
    pub nic: String,
    /// Who moves the payload: push, pull, staged, tcp [default: all]
    #[arg(long, value_name = "LIST")]
    pub data: Option<String>,
    /// What tells the NIC: kernel, blueflame, inband, stream, cpu [default: all]
    #[arg(long, value_name = "LIST")]
    pub kick: Option<String>,
    /// Message sizes
    #[arg(long, value_name = "LIST", default_value = "8..4MiB", allow_hyphen_values = true)]
    pub sizes: String,
    /// Messages a row
    #[arg(long, value_name = "N", default_value = "10000", allow_negative_numbers = true)]
    pub messages: u64,
    /// Time limit of a row in seconds: it ends with fewer messages
    #[arg(long, value_name = "S", default_value = "2", allow_negative_numbers = true)]
    pub seconds: f64,
    /// Window of NIC-side memory
    #[arg(long, value_name = "SIZE", default_value = "128KiB", allow_hyphen_values = true)]
    pub window: String,
    /// Slot of the window, a multiple of 64
    #[arg(long, value_name = "SIZE", default_value = "4096", allow_hyphen_values = true)]
    pub slot: String,
    /// In-band line: payload bytes + sequence bytes, 12+4, 14+2 or 60+4 [default: 12+4]
    #[arg(long, value_name = "FORMAT")]
    pub line: Option<String>,
    /// Engines of the software NIC
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub engines: u32,
    /// Queue pairs
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub qps: u32,
    /// Seed of payloads and faults
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub seed: u64,
    /// Send this file's bytes instead of generated ones
    #[arg(long, value_name = "FILE")]
    pub payload: Option<PathBuf>,
    /// Save the result; `-` prints it on stdout
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write an HTML page with plots into this directory
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Whether senders keep to the window's credits; `off` shows what is lost without
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub credits: String,
    /// Tear in-band lines on purpose, to see that torn ones are waited for
    #[arg(long)]
    pub tearing: bool,
    /// Where messages land
    #[arg(long, value_name = "host|gpu", default_value = "host")]
    pub dest: String,
    /// Give up waiting for one completion after this time
    #[arg(long, value_name = "MS", default_value = "5000", allow_negative_numbers = true)]
    pub timeout_ms: u64,
}

/// Measures.
pub fn run(args: BenchArgs) -> Result<ExitCode, CliError> {
    let _plan = BenchPlan::try_from(&args)?;
    Err(CliError::new("this build cannot measure yet", "use 'bellpush show' on a saved result"))
}
