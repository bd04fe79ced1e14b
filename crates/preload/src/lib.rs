//! What the preloaded object (`shim/`) is told: one environment variable, JSON.
//!
//! `bellpush run` writes it; whoever preloads the object by hand may, too. All fields may be
//! left out: `LD_PRELOAD=libbellpush_shim.so ibv_devinfo` shows one device with default options.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The environment variable.
pub const VARIABLE: &str = "BELLPUSH_PRELOAD";

/// Most devices of a process.
pub const MAX_DEVICES: usize = 16;
/// Most bytes of device memory.
pub const MAX_DM_BYTES: u64 = 256 << 20;

/// What carries packets between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// UDP port 4791.
    #[default]
    Udp,
    /// Shared memory, between processes of one user on one machine.
    Shm,
}

/// Devices of a process, and where they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preload {
    /// Number of devices, `mlx5_0` on.
    pub devices: usize,
    /// Addresses of the first devices. The others, and all without, take the first free one of
    /// 127.0.0.0/16 when a program opens them.
    pub addresses: Vec<IpAddr>,
    /// What carries their packets.
    pub link_type: Wire,
    /// Largest path MTU; what the link carries if that is less, or if this is not given.
    pub mtu: Option<usize>,
    /// Bytes of device memory that a device has.
    pub dm_bytes: u64,
    /// Faults of the link, as `bellpush bench --link` takes them.
    pub link: Option<String>,
    /// A fault script, as `bellpush run --fault` reads it.
    pub fault: Option<String>,
    /// What takes every freedom that the rules give, and reports programs that rely on more: `SEED[,KIND…]`.
    pub adversary: Option<String>,
    /// Capture of what the devices send and receive; `%p` stands for the process's number, `%d`
    /// for the device's, which is needed where there are several.
    pub pcap: Option<PathBuf>,
    /// Recording of what the devices are asked, see and do; with `%p` and `%d` as in `pcap`.
    pub record: Option<PathBuf>,
    /// Whether a recording has payload whole, and not as a hash.
    pub record_payload: bool,
    /// Memory that traces and counters go to: a file that `bellpush run` and `bellpush trace` hold, below `/proc`.
    pub trace: Option<PathBuf>,
    /// Whether refusals and openings are told on stderr.
    pub verbose: bool,
    /// Directory of the devices' sysfs files; without one the object makes its own and removes it
    /// when the process ends.
    pub sysfs: Option<PathBuf>,
}

impl Default for Preload {
    fn default() -> Self {
        Self {
            devices: 1,
            addresses: Vec::new(),
            link_type: Wire::default(),
            mtu: None,
            dm_bytes: 1 << 20,
            link: None,
            fault: None,
            adversary: None,
            pcap: None,
            record: None,
            record_payload: false,
            trace: None,
            verbose: false,
            sysfs: None,
        }
    }
}

/// Why a preloaded object cannot use what it was told.
#[derive(Debug, thiserror::Error)]
pub enum PreloadError {
    /// It is not JSON, or has other fields.
    #[error("{VARIABLE} is not understood: {}", one_line(.0))]
    Json(#[from] serde_json::Error),
    /// A value is out of range.
    #[error("{what} is {value}, but must be {must}")]
    Value {
        /// The field.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is accepted.
        must: &'static str,
    },
}

/// Text of others' in an error's one line: control characters are written out.
pub fn one_line(text: &dyn std::fmt::Display) -> String {
    let plain = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.to_string().chars().map(plain).collect()
}

/// A capture's or recording's name for one device, whose number stands for `%d`.
pub fn of_device(name: &Path, device: usize) -> PathBuf {
    name.to_string_lossy().replace("%d", &device.to_string()).into()
}

impl Preload {
    /// Reads the variable's value.
    ///
    /// # Errors
    /// [`PreloadError`].
    pub fn parse(text: &str) -> Result<Self, PreloadError> {
        let options: Self = serde_json::from_str(text)?;
        options.check()?;
        Ok(options)
    }

    /// The variable's value.
    pub fn emit(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and lists of them are JSON")
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`PreloadError::Value`].
    pub fn check(&self) -> Result<(), PreloadError> {
        let refuse = |what, value: &dyn ToString, must| {
            Err(PreloadError::Value { what, value: value.to_string(), must })
        };
        if !(1..=MAX_DEVICES).contains(&self.devices) {
            return refuse("number of devices", &self.devices, "1 to 16");
        }
        if self.addresses.len() > self.devices {
            let must = "at most as many as there are devices";
            return refuse("number of addresses", &self.addresses.len(), must);
        }
        if self.dm_bytes > MAX_DM_BYTES || !self.dm_bytes.is_multiple_of(4096) {
            return refuse("device memory", &self.dm_bytes, "whole pages, at most 256 MiB");
        }
        let paths = [
            ("the capture's name", &self.pcap),
            ("the recording's name", &self.record),
            ("the trace's name", &self.trace),
            ("the name of the sysfs directory", &self.sysfs),
        ];
        for (what, path) in paths {
            if let Some(path) = path.as_ref().filter(|path| path.to_str().is_none()) {
                return refuse(what, &path.display(), "UTF-8"); // as JSON is
            }
        }
        for (what, path) in [paths[0], paths[1]] {
            if let Some(path) = path
                && self.devices > 1
                && path != Path::new("/dev/null") // which holds nothing that could be lost
                && of_device(path, 0) == of_device(path, 1)
            {
                let must = "one with %d, the device's number, where there are several devices";
                return refuse(what, &path.display(), must);
            }
        }
        match self.mtu {
            Some(mtu) if ![256, 512, 1024, 2048, 4096].contains(&mtu) => {
                refuse("path MTU", &mtu, "256, 512, 1024, 2048 or 4096")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let options = Preload {
            devices: 2,
            addresses: vec!["127.0.0.9".parse().unwrap()],
            link_type: Wire::Shm,
            mtu: Some(2048),
            link: Some("loss=1%".into()),
            fault: Some("[[fault]]\non = \"cqe\"\naction = \"drop\"\n".into()),
            adversary: Some("7,payload".into()),
            pcap: Some("/tmp/a b-%p%d.pcap".into()),
            record: Some("/tmp/r-%p-%d".into()),
            record_payload: true,
            trace: Some("/proc/1/fd/3".into()),
            ..Preload::default()
        };
        assert_eq!(Preload::parse(&options.emit()).unwrap(), options);
        assert_eq!(Preload::parse("{}").unwrap(), Preload::default());
        let by_hand = r#"{"link_type": "shm", "devices": 3}"#;
        assert_eq!(Preload::parse(by_hand).unwrap().devices, 3);
        let nowhere = r#"{"devices": 2, "pcap": "/dev/null"}"#;
        assert_eq!(Preload::parse(nowhere).unwrap().pcap, Some("/dev/null".into()));
        let one_file = r#"{"devices": 1, "record": "a", "pcap": "b"}"#;
        assert_eq!(Preload::parse(one_file).unwrap().record, Some("a".into()));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (text, named) in [
            ("devices=1", VARIABLE),
            (r#"{"device": 1}"#, "device"),
            (r#"{"devices": 0}"#, "number of devices is 0"),
            (r#"{"devices": 17}"#, "number of devices is 17"),
            (r#"{"addresses": ["::1", "::2"]}"#, "number of addresses is 2"),
            (r#"{"addresses": ["x"]}"#, "invalid IP address"),
            (r#"{"mtu": 1500}"#, "path MTU is 1500"),
            (r#"{"dm_bytes": 100}"#, "device memory is 100"),
            (r#"{"devices": 2, "pcap": "a-%p"}"#, "the capture's name is a-%p"),
            (
                r#"{"devices": 2, "record": "a"}"#,
                "the recording's name is a, but must be one with %d",
            ),
        ] {
            let error = Preload::parse(text).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
