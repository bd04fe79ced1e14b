//! What is printed and written of each size.

use bellpush::collective::{Communicator, Options};
use bellpush::transport::Kick;
use bellpush::wire::inband::LineFormat;
use bellpush_cli::report::machine;
use serde::{Deserialize, Serialize};

use crate::nccl::Nccl;
use crate::rank::Measured;
use crate::{Args, Failure};

/// One size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub bytes: u64,
    pub count: u64,
    pub dtype: String,
    pub op: String,
    pub algorithm: String,
    pub channels: u32,
    pub ranks: u32,
    pub data: String,
    pub kick: Option<String>,
    /// Of in-band slots.
    #[serde(default)]
    pub line: Option<LineFormat>,
    pub executor: String,
    pub engine: String,
    pub calls: u32,
    /// Whether a batch of calls was one CUDA graph.
    pub graph: bool,
    /// Median and least of the slowest rank's times of a call, in µs.
    pub time_us: f64,
    pub least_us: f64,
    /// Bus bandwidth, 2 (N - 1) / N bytes a time, in GB/s.
    pub bus_gb_s: f64,
    pub verified: bool,
    /// NICs of a rank.
    #[serde(default)]
    pub nics: usize,
    /// With `--compare`.
    pub nccl: Option<Compared>,
}

/// NCCL's times of the same calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Compared {
    pub version: i32,
    pub time_us: f64,
    pub least_us: f64,
    pub bus_gb_s: f64,
    /// Our median time by NCCL's.
    pub ratio: f64,
}

/// What rank 0 prints and writes; the others' say nothing.
pub struct Table<'a> {
    args: &'a Args,
    options: &'a Options,
    executor: String,
    nics: usize,
    ranks: u32,
    speaks: bool,
    rows: Vec<Row>,
}

impl<'a> Table<'a> {
    pub fn new(
        args: &'a Args,
        options: &'a Options,
        (executor, what, nics): (&str, &str, usize),
        ranks: u32,
        speaks: bool,
    ) -> Self {
        if speaks {
            println!("{ranks} ranks ({what}) on {executor}, {}, software NIC", options.path);
            print!(
                "{:>12} {:>10} {:>9} {:>12} {:>10}",
                "bytes", "algorithm", "channels", "µs", "GB/s bus"
            );
            match args.compare {
                Some(_) => println!(" {:>12} {:>10} {:>7}", "NCCL µs", "GB/s bus", "ratio"),
                None => println!(),
            }
        }
        Self { args, options, executor: executor.into(), nics, ranks, speaks, rows: Vec::new() }
    }

    pub fn add(&mut self, communicator: &Communicator, all: &[Measured]) {
        let row = self.row(communicator, all);
        if self.speaks {
            print!(
                "{:>12} {:>10} {:>9} {:>12.1} {:>10.3}",
                row.bytes, row.algorithm, row.channels, row.time_us, row.bus_gb_s
            );
            match &row.nccl {
                Some(n) => println!(" {:>12.1} {:>10.3} {:>7.2}", n.time_us, n.bus_gb_s, n.ratio),
                None => println!(),
            }
        }
        self.rows.push(row);
    }

    pub fn write(self) -> Result<(), Failure> {
        let Some(file) = self.args.json.as_ref().filter(|_| self.speaks) else { return Ok(()) };
        let nic = bellpush_cli::report::Nic { name: "soft".into(), software: true };
        let meta = machine::meta(nic, &self.executor, self.args.seed);
        let all = serde_json::json!({ "meta": meta, "results": self.rows });
        let text = serde_json::to_string_pretty(&all)? + "\n";
        if file.as_os_str() == "-" {
            print!("{text}");
        } else {
            std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        }
        Ok(())
    }

    fn row(&self, communicator: &Communicator, all: &[Measured]) -> Row {
        let Self { args, options, .. } = self;
        let (median, least) = median_and_least(all.iter().map(|m| &*m.batches).collect());
        let Measured { count, calls, .. } = all[0];
        let plan = communicator.plan(count, args.dtype, args.op);
        let bytes = count * args.dtype.bytes();
        let ranks = f64::from(self.ranks);
        let bus = |ns: u64| 2.0 * (ranks - 1.0) / ranks * bytes as f64 / ns.max(1) as f64;
        let nccl = args.compare.as_ref().and_then(|_| {
            let (ns, least) = median_and_least(all.iter().map(|m| &*m.nccl).collect());
            Some(Compared {
                version: Nccl::version().ok()?,
                time_us: ns as f64 / 1e3,
                least_us: least as f64 / 1e3,
                bus_gb_s: bus(ns),
                ratio: median as f64 / ns.max(1) as f64,
            })
        });
        Row {
            bytes,
            count,
            dtype: args.dtype.to_string(),
            op: args.op.to_string(),
            algorithm: if args.bare { "bare".into() } else { plan.algorithm.to_string() },
            channels: plan.channels,
            ranks: self.ranks,
            data: options.path.data().to_string(),
            kick: options.path.kick().map(|k| k.to_string()),
            line: (options.path.kick() == Some(Kick::Inband)).then_some(args.line),
            executor: self.executor.clone(),
            engine: args.engine.clone(),
            calls,
            graph: args.graph,
            time_us: median as f64 / 1e3,
            least_us: least as f64 / 1e3,
            bus_gb_s: bus(median),
            verified: true,
            nics: self.nics,
            nccl,
        }
    }
}

/// Of the slowest rank's times, batch by batch.
fn median_and_least(ranks: Vec<&[u64]>) -> (u64, u64) {
    let batches = ranks.iter().map(|times| times.len()).min().unwrap_or(0);
    let slowest = |b: usize| ranks.iter().map(|times| times[b]).max().unwrap_or(0);
    let mut times: Vec<u64> = (0..batches).map(slowest).collect();
    times.sort_unstable();
    let at = |i: usize| times.get(i).copied().unwrap_or(0);
    (at(times.len() / 2), at(0))
}
