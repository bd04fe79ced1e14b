//! Files that a run's devices write: what must not be written is refused before the program starts.

use std::path::{Path, PathBuf, absolute};

use super::DeviceArgs;
use crate::cli::CliError;
use crate::values;

impl DeviceArgs {
    /// Refuses to write over the fault script, and two results in one file; `output` is a file of the command's own.
    /// Writes nothing.
    pub fn check_places(&self, output: Option<&Path>) -> Result<(), CliError> {
        let (pcap, record) = (whole(self.pcap.as_deref())?, whole(self.record.as_deref())?);
        let output = whole(output)?;
        let places = [("--output", &output), ("--pcap", &pcap), ("--record", &record)];
        values::check_places(&places)?;
        values::keep_inputs(&self.fault, &places)
    }
}

/// The whole path: `-` is a file's name here as any other.
fn whole(name: Option<&Path>) -> Result<Option<PathBuf>, CliError> {
    let name = name.map(absolute).transpose();
    name.map_err(|e| CliError::new(format!("a file without a name: {e}"), "name one"))
}
