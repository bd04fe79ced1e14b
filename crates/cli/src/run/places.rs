//! Files that a run's devices write: what cannot be written, or must not, is refused before the program starts.

use std::fs::File;
use std::path::{Path, PathBuf, absolute};

use bellpush::nic::soft::pcap;
use bellpush::preload::{MAX_DEVICES, of_device};

use super::DeviceArgs;
use crate::cli::CliError;
use crate::values;

impl DeviceArgs {
    /// Refuses places that cannot be written, the fault script's, and one file for two results; `output` is a file of
    /// the command's own. Writes nothing. What is there already stays open: the reader of a named pipe would take its
    /// closing for the end.
    pub fn check_places(&self, output: Option<&Path>) -> Result<Vec<File>, CliError> {
        let mut open = Vec::new();
        let output = whole(output)?;
        for device in 0..self.devices.min(MAX_DEVICES) {
            let (pcap, record) = (place(&self.pcap, device)?, place(&self.record, device)?);
            let places = [("--output", &output), ("--pcap", &pcap), ("--record", &record)];
            values::check_places(&places)?;
            values::keep_inputs(&self.fault, &places)?;
            for path in [&pcap, &record].into_iter().flatten() {
                let file = pcap::try_place(path).map_err(|e| {
                    let what = format!("cannot write {}: {e}", path.display());
                    CliError::new(what, "name a place that can be written")
                })?;
                open.extend(file);
            }
        }
        Ok(open)
    }
}

/// Where a device writes. None where the folder's name has the number of a process that is yet to be started.
fn place(name: &Option<PathBuf>, device: usize) -> Result<Option<PathBuf>, CliError> {
    let name = name.as_ref().map(|name| of_device(name, device));
    let place = whole(name.as_deref())?;
    let is_known = |place: &PathBuf| {
        !place.parent().is_some_and(|folder| folder.to_string_lossy().contains("%p"))
    };
    Ok(place.filter(is_known))
}

/// The whole path: `-` is a file's name here as any other.
fn whole(name: Option<&Path>) -> Result<Option<PathBuf>, CliError> {
    let name = name.map(absolute).transpose();
    name.map_err(|e| CliError::new(format!("a file without a name: {e}"), "name one"))
}
