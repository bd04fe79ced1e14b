//! The result of a run: its circumstances, and one row per path and size.
//!
//! The JSON is `{"meta": {…}, "results": [ … ]}`. Reading and writing both validate, so that every
//! file that exists can be shown. A reader ignores unknown fields, so that an older program can
//! show a newer program's results.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::names::{Places, Side};
use super::{Data, Kick, ReportError, file};
use bellpush::transport::Reach;
use bellpush::wire::inband::LineFormat;

/// The machine, without anything that identifies it: no host name, no network addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model.
    pub cpu: String,
    /// Logical CPUs.
    pub cores: u32,
    /// NUMA nodes that have memory.
    pub numa_nodes: u32,
    /// Operating system kernel, name and release.
    pub kernel: String,
    /// Host memory.
    pub memory_bytes: u64,
}

/// The NIC of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// `soft`, or a verbs device's name.
    pub name: String,
    /// Whether it is a software NIC, whose times are not a NIC's.
    pub software: bool,
}

/// The circumstances of a run, and the means to repeat it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Version of bellpush.
    pub version: String,
    /// Commit of bellpush, with `+dirty` where the sources had changes and `+unchecked` where the
    /// checkout was gone when the result was written; or `unknown`.
    pub commit: String,
    /// The command line, absolute paths shortened to their last part.
    pub command_line: String,
    /// Start of the run, UTC, RFC 3339.
    pub date: String,
    /// The machine.
    pub machine: Machine,
    /// PCIe topology of the machine's GPUs and NICs, as `bellpush topo --save` writes it; `None` where none was seen.
    #[serde(default)]
    pub topology: Option<String>,
    /// GPU model, where there is one.
    pub gpu: Option<String>,
    /// GPU driver version, where there is one.
    pub driver: Option<String>,
    /// The NIC.
    pub nic: Nic,
    /// Executor of the kernels: `cuda:NAME` or `host`.
    pub executor: String,
    /// Seed of everything random.
    pub seed: u64,
    /// Notes for the reader; the reports add the standing notes of [`super::notes`].
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One path at one message size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Data path: the mover of the payload.
    pub data: Data,
    /// Kick: the signal to the NIC; `None` for tcp and auto only.
    pub kick: Option<Kick>,
    /// `soft`, or a verbs device's name.
    pub nic: String,
    /// Place of the software NIC's engine; `None` for a real NIC and for tcp.
    #[serde(default)]
    pub engine: Option<Side>,
    /// Executor of the kernels: `cuda:NAME` or `host`.
    pub executor: String,
    /// Message size, bytes.
    pub size_bytes: u64,
    /// Messages sent.
    pub messages: u64,
    /// Median time from post to completion, ns; `None` where no message completed.
    pub latency_ns_p50: Option<f64>,
    /// 99th percentile of the time from post to completion, ns.
    pub latency_ns_p99: Option<f64>,
    /// Median of half a round trip between two processes, ns: from a put to the peer's sight of its signal.
    #[serde(default)]
    pub one_way_ns_p50: Option<f64>,
    /// 99th percentile of half a round trip, ns.
    #[serde(default)]
    pub one_way_ns_p99: Option<f64>,
    /// Payload bytes per time, in 10⁹ bytes per second.
    pub bandwidth_gb_s: f64,
    /// Messages per second.
    pub messages_per_s: f64,
    /// Whether every byte arrived, once, in order.
    pub verified: bool,
    /// Posted messages of which nothing arrived; the receiver counts them from the bytes.
    pub dropped: u64,
    /// Messages that arrived with bytes of another message or offset, as their tags show.
    pub overwritten: u64,
    /// Messages that arrived with bytes that no sender wrote.
    pub corrupted: u64,
    /// Largest number of window credits in use at one time; `None` where the path has no window.
    pub max_credits_in_use: Option<u64>,
    /// Window size, bytes; `None` where the path has no window.
    pub window_bytes: Option<u64>,
    /// Slot size, bytes; `None` where the path has no window.
    pub slot_bytes: Option<u64>,
    /// In-band line format.
    #[serde(default)]
    pub line: Option<LineFormat>,
    /// Side whose clock timed post and completion.
    pub observer: Option<Side>,
    /// NUMA node of the host memory: `near` or `far` of the GPU, or a number.
    #[serde(default)]
    pub host_numa: Option<String>,
    /// Side of the memory from which messages were sent, where it was not the GPU's.
    #[serde(default)]
    pub from: Option<Side>,
    /// Side of the destination memory.
    #[serde(default)]
    pub dest: Option<Side>,
    /// Messages posted in a row before the first wait; the latency is that of the whole row.
    #[serde(default)]
    pub in_flight: Option<u32>,
    /// Processes of which the two ends are part: 2, or one where it is not said.
    #[serde(default)]
    pub processes: Option<u32>,
    /// Whether messages went in both directions at once; counts and rates are their sum.
    #[serde(default)]
    pub both_ways: Option<bool>,
    /// Blocks of the kernel that posted each message together; `None` where no kernel posts.
    #[serde(default)]
    pub blocks: Option<u32>,
    /// Queue pairs used.
    #[serde(default)]
    pub qps: Option<u32>,
    /// Engine threads or blocks of the software NIC.
    #[serde(default)]
    pub engines: Option<u32>,
    /// Places of queues and window that were asked for; `None` where all were left open, and for tcp.
    #[serde(default)]
    pub places: Option<Places>,
    /// Scope of the fence before the sender's doorbell, which follows from where they lay; `None` where no kernel
    /// posts.
    #[serde(default)]
    pub reach: Option<Reach>,
    /// Threads that help the software NIC's engines to copy.
    #[serde(default)]
    pub copy_threads: Option<u32>,
    /// Whether senders kept within the credits; `None` where the path has no window.
    #[serde(default)]
    pub credits: Option<bool>,
    /// Reason why a number is an artefact of the software NIC.
    #[serde(default)]
    pub artefact: Option<String>,
}

impl Row {
    /// A row without measurements, for struct update syntax.
    pub fn new(data: Data, kick: Option<Kick>, size_bytes: u64) -> Self {
        Self {
            data,
            kick,
            nic: String::new(),
            engine: None,
            executor: String::new(),
            size_bytes,
            messages: 0,
            latency_ns_p50: None,
            latency_ns_p99: None,
            one_way_ns_p50: None,
            one_way_ns_p99: None,
            bandwidth_gb_s: 0.0,
            messages_per_s: 0.0,
            verified: false,
            dropped: 0,
            overwritten: 0,
            corrupted: 0,
            max_credits_in_use: None,
            window_bytes: None,
            slot_bytes: None,
            line: None,
            observer: None,
            host_numa: None,
            from: None,
            dest: None,
            in_flight: None,
            processes: None,
            both_ways: None,
            blocks: None,
            qps: None,
            engines: None,
            places: None,
            reach: None,
            copy_threads: None,
            credits: None,
            artefact: None,
        }
    }

    /// `data/kick`, `tcp` or `auto`.
    pub fn path(&self) -> String {
        match self.kick {
            Some(kick) => format!("{}/{kick}", self.data),
            None => self.data.to_string(),
        }
    }

    /// Whether the kernels of this row ran on the host.
    pub fn on_host_executor(&self) -> bool {
        self.executor == "host"
    }

    /// The first field that contradicts the others, with its value and the rule.
    fn fault(&self) -> Option<(&'static str, String, &'static str)> {
        let kick = || self.kick.map_or("null", Kick::as_str).to_string();
        match (self.data, self.kick) {
            (Data::Tcp, Some(_)) => return Some(("kick", kick(), "but tcp has none")),
            (Data::Auto, Some(_)) => return Some(("kick", kick(), "but auto chooses it")),
            (Data::Tcp | Data::Auto, None) => {}
            (_, None) => return Some(("kick", kick(), "which is for tcp and auto only")),
            (data, Some(Kick::Inband)) if data != Data::Push => {
                return Some(("kick", kick(), "which is for push only"));
            }
            _ => {}
        }
        if self.size_bytes == 0 {
            return Some(("size_bytes", "0".into(), "but a message has at least one byte"));
        }
        let measured = [
            ("latency_ns_p50", self.latency_ns_p50),
            ("latency_ns_p99", self.latency_ns_p99),
            ("one_way_ns_p50", self.one_way_ns_p50),
            ("one_way_ns_p99", self.one_way_ns_p99),
            ("bandwidth_gb_s", Some(self.bandwidth_gb_s)),
            ("messages_per_s", Some(self.messages_per_s)),
        ];
        let bad = |v: &f64| !v.is_finite() || *v < 0.0;
        measured.into_iter().find_map(|(field, v)| {
            let v = v.filter(bad)?;
            Some((field, v.to_string(), "but it must be finite and not negative"))
        })
    }
}

/// A run: its circumstances and its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The circumstances.
    pub meta: Meta,
    /// The rows.
    pub results: Vec<Row>,
}

impl Results {
    /// Whether every row was verified.
    pub fn all_verified(&self) -> bool {
        self.results.iter().all(|row| row.verified)
    }

    /// Adds the rows of another run of the same set-up; what differs, where that is not so.
    pub fn add(&mut self, other: Self) -> Option<&'static str> {
        let (own, its) = (&mut self.meta, other.meta);
        let differs = [
            ("machine", own.machine != its.machine || own.gpu != its.gpu),
            ("NIC", own.nic != its.nic),
            ("executor", own.executor != its.executor),
            ("program", own.commit != its.commit || own.version != its.version),
        ];
        if let Some((what, _)) = differs.into_iter().find(|(_, differs)| *differs) {
            return Some(what);
        }
        if own.command_line != its.command_line {
            own.command_line = format!("{}; {}", own.command_line, its.command_line);
        }
        own.notes.extend(its.notes);
        self.results.extend(other.results);
        None
    }

    /// Checks that there are rows, and that every row is consistent.
    ///
    /// # Errors
    /// [`ReportError::NoRows`], or [`ReportError::Row`] for the first inconsistent row.
    pub fn validate(&self) -> Result<(), ReportError> {
        if self.results.is_empty() {
            return Err(ReportError::NoRows);
        }
        for (i, row) in self.results.iter().enumerate() {
            if let Some((field, value, rule)) = row.fault() {
                return Err(ReportError::Row { row: i + 1, field, value, rule });
            }
        }
        Ok(())
    }

    /// Parses the JSON of a result.
    ///
    /// # Errors
    /// [`ReportError::Empty`], [`ReportError::Json`], and errors of [`Self::validate`].
    pub fn parse(json: &[u8]) -> Result<Self, ReportError> {
        if json.trim_ascii().is_empty() {
            return Err(ReportError::Empty);
        }
        let results: Self = serde_json::from_slice(json)?;
        results.validate()?;
        Ok(results)
    }

    /// The JSON, indented, with a final newline.
    ///
    /// # Errors
    /// Errors of [`Self::validate`].
    pub fn to_json(&self) -> Result<String, ReportError> {
        self.validate()?;
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Writes the JSON, or prints it where the path is `-`. The file appears whole or not at all.
    ///
    /// # Errors
    /// Errors of [`Self::validate`], and [`ReportError::Io`].
    pub fn write_json(&self, path: &Path) -> Result<(), ReportError> {
        file::write(path, self.to_json()?.as_bytes())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Rows as a run on two GPUs, or on none, would give them.
    pub fn sample(executor: &str) -> Results {
        let paths = [
            (Data::Push, Some(Kick::Inband), 2500.0, 30.0),
            (Data::Push, Some(Kick::Kernel), 4000.0, 21.0),
            (Data::Pull, Some(Kick::Kernel), 3800.0, 38.0),
            (Data::Tcp, None, 21000.0, 2.5),
        ];
        let mut results = Vec::new();
        for size_bytes in [8u64, 4096, 1 << 20] {
            for (data, kick, base, gb_s) in paths {
                // Rounded: what JSON gives back is then the same to the last bit.
                let ns = (base + size_bytes as f64 / gb_s).round();
                results.push(Row {
                    nic: "soft".into(),
                    engine: (data != Data::Tcp).then_some(Side::Host),
                    executor: executor.into(),
                    messages: 1000,
                    latency_ns_p50: Some(ns),
                    latency_ns_p99: Some((ns * 1.5).round()),
                    bandwidth_gb_s: (size_bytes as f64 / ns * 1e4).round() / 1e4,
                    messages_per_s: (1e9 / ns).round(),
                    verified: true,
                    ..Row::new(data, kick, size_bytes)
                });
            }
        }
        let nic = Nic { name: "soft".into(), software: true };
        let meta = Meta { nic, executor: executor.into(), seed: 7, ..Meta::default() };
        Results { meta, results }
    }

    #[test]
    fn json_round_trip() {
        let results = sample("host");
        let json = results.to_json().unwrap();
        assert_eq!(Results::parse(json.as_bytes()).unwrap(), results);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let tcp = value["results"].as_array().unwrap().iter().find(|r| r["data"] == "tcp").unwrap();
        assert!(tcp.as_object().unwrap()["kick"].is_null());
        assert_eq!(value["results"][0]["kick"], "inband");
    }

    #[test]
    fn runs_of_one_set_up_are_added() {
        let mut all = sample("host");
        assert_eq!(all.add(sample("host")), None);
        assert_eq!(all.results.len(), 2 * sample("host").results.len());
        let mut other = sample("host");
        other.meta.command_line = "bellpush bench".into();
        assert_eq!(all.add(other), None);
        assert!(all.meta.command_line.ends_with("; bellpush bench"));
        assert_eq!(all.add(sample("cuda:X")), Some("executor"));
        let mut other = sample("host");
        other.meta.machine.cores = 3;
        assert_eq!(all.add(other), Some("machine"));
        assert_eq!(all.results.len(), 3 * sample("host").results.len());
    }

    #[test]
    fn unusable_text_is_refused() {
        let refuse = |json: &str| Results::parse(json.as_bytes()).unwrap_err().to_string();
        assert_eq!(refuse(" \n"), "it is empty");
        assert!(refuse("[1]").starts_with("it is not a bellpush result: "));
        assert!(refuse("{}").contains("missing field `meta`"));
        assert!(refuse("not json").contains("line 1 column 2"));
    }

    #[test]
    fn contradicting_rows_are_refused_in_both_directions() {
        let refuse = |change: fn(&mut Row)| {
            let mut results = sample("host");
            change(&mut results.results[2]);
            results.to_json().unwrap_err().to_string()
        };
        assert_eq!(
            refuse(|r| r.kick = None),
            "row 3 is not valid: kick is null, which is for tcp and auto only"
        );
        assert_eq!(
            refuse(|r| r.kick = Some(Kick::Inband)),
            "row 3 is not valid: kick is inband, which is for push only"
        );
        assert_eq!(
            refuse(|r| r.data = Data::Tcp),
            "row 3 is not valid: kick is kernel, but tcp has none"
        );
        assert_eq!(
            refuse(|r| r.data = Data::Auto),
            "row 3 is not valid: kick is kernel, but auto chooses it"
        );
        assert_eq!(
            refuse(|r| r.latency_ns_p50 = Some(f64::NAN)),
            "row 3 is not valid: latency_ns_p50 is NaN, but it must be finite and not negative"
        );
        assert!(refuse(|r| r.size_bytes = 0).contains("at least one byte"));
        let empty = Results { results: vec![], ..sample("host") };
        assert_eq!(empty.to_json().unwrap_err().to_string(), "it has no rows");
    }

    #[test]
    fn a_result_that_cannot_be_written_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        let mut results = sample("host");
        results.write_json(&path).unwrap();
        results.results[0].bandwidth_gb_s = f64::INFINITY;
        results.write_json(&path).unwrap_err();
        assert_eq!(Results::parse(&std::fs::read(&path).unwrap()).unwrap(), sample("host"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
