//! `bellpush_bench`: puts between two endpoints of one context, timed, and compared byte for byte.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpush::collective::MAX_TIMEOUT;
use bellpush::gpu::{Gpu, Stream};
use bellpush::nic::Nic;
use bellpush::transport::{self, Endpoint, Local, Memory, Path, Put, Remote};
use serde::{Deserialize, Serialize};

use crate::job::Failure;

/// Most puts between two waits, and most bytes of them, where the rate is measured.
const IN_FLIGHT: u64 = 16;
const IN_FLIGHT_BYTES: u64 = 1 << 20;
/// Bounds of what is asked for.
const MOST_ROWS: usize = 256;
const MOST_BYTES: u64 = 64 << 20;
const MOST_MESSAGES: u32 = 1 << 20;
/// Bytes of the text before the rows, of a row, and of an error in it.
const HEAD: usize = 256;
const ROW: usize = 384;
const ERROR: usize = 160;

/// Options with the header's names.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BenchOptions {
    pub paths: Vec<String>,
    pub sizes: Vec<u64>,
    pub messages: u32,
    pub timeout_s: f64,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self { paths: Vec::new(), sizes: vec![8, 4096], messages: 1000, timeout_s: 5.0 }
    }
}

/// What is measured of a path and a size.
#[derive(Debug, Serialize)]
struct Row {
    path: String,
    bytes: u64,
    messages: u32,
    /// From the call to its completion seen, one put at a time.
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    /// With up to [`IN_FLIGHT`] puts before a wait.
    gb_per_s: Option<f64>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Rows {
    on: String,
    rows: Vec<Row>,
}

/// Measures what `options` ask for; the result is JSON of at most `room` bytes with its NUL.
pub fn bench(
    (gpu, nic): (&Arc<Gpu>, &Arc<dyn Nic>),
    options: &BenchOptions,
    room: usize,
) -> Result<String, Failure> {
    let wrong = |text: String| Failure::refused(format!("options: {text}"));
    let paths: Vec<Path> = match options.paths.is_empty() {
        true => Path::ALL.to_vec(),
        false => options.paths.iter().map(|path| path.parse()).collect::<Result<_, _>>()?,
    };
    if options.sizes.is_empty() || options.sizes.iter().any(|s| !(1..=MOST_BYTES).contains(s)) {
        return Err(wrong(format!("sizes: one or more, of 1 to {MOST_BYTES} bytes")));
    }
    if !(1..=MOST_MESSAGES).contains(&options.messages) {
        return Err(wrong(format!("messages: 1 to {MOST_MESSAGES}")));
    }
    let timeout = Duration::try_from_secs_f64(options.timeout_s).ok();
    let timeout = timeout.filter(|time| !time.is_zero() && *time <= MAX_TIMEOUT);
    let timeout = timeout.ok_or_else(|| wrong("timeout_s: more than 0, at most a year".into()))?;
    let count = paths.len() * options.sizes.len();
    if count > MOST_ROWS {
        return Err(wrong(format!("{count} rows: at most {MOST_ROWS}")));
    }
    // Before minutes are spent on what has no room.
    let need = HEAD + count * ROW;
    if room < need {
        return Err(Failure::refused(format!("{count} rows take {need} bytes, not {room}")));
    }
    let mut rows = Vec::new();
    for path in paths {
        for &bytes in &options.sizes {
            let taken = Taken::of(gpu, nic, path, bytes, options.messages, timeout);
            let (taken, error) = match taken {
                Ok(taken) => (Some(taken), None),
                Err(why) => (None, Some(one_line(&why))),
            };
            rows.push(Row {
                path: path.to_string(),
                bytes,
                messages: options.messages,
                p50_ns: taken.as_ref().map(|taken| taken.of_hundred(50)),
                p99_ns: taken.as_ref().map(|taken| taken.of_hundred(99)),
                gb_per_s: taken.as_ref().map(|taken| taken.gb_per_s),
                error,
            });
        }
    }
    let on = one_line(&format!("{}, {}", gpu.describe(), nic.name()));
    let text = serde_json::to_string(&Rows { on, rows })?;
    match text.len() < room {
        true => Ok(text),
        false => Err(Failure::refused(format!("the rows take {} bytes", text.len() + 1))),
    }
}

/// The beginning of a text without what JSON would write longer.
fn one_line(text: &str) -> String {
    let plain =
        |c: char| if c == ' ' || c.is_ascii_graphic() && c != '"' && c != '\\' { c } else { '\'' };
    text.chars().map(plain).take(ERROR).collect()
}

/// Times of puts.
struct Taken {
    /// In ns, the shortest first.
    each: Vec<u64>,
    gb_per_s: f64,
}

impl Taken {
    fn of(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        path: Path,
        bytes: u64,
        messages: u32,
        timeout: Duration,
    ) -> Result<Self, String> {
        let at_once = (IN_FLIGHT_BYTES / bytes).clamp(1, IN_FLIGHT);
        let mut pair = Pair::new(gpu, nic, path, at_once * bytes, timeout)?;
        for _ in 0..messages.div_ceil(10).min(100) {
            pair.puts(1, bytes)?;
        }
        let each = (0..messages).map(|_| Ok(pair.puts(1, bytes)?.as_nanos() as u64));
        let mut each = each.collect::<Result<Vec<u64>, String>>()?;
        each.sort_unstable();
        let turns = u64::from(messages).div_ceil(at_once);
        let mut together = Duration::ZERO;
        for _ in 0..turns {
            together += pair.puts(at_once, bytes)?;
        }
        let ns = together.as_nanos().max(1) as f64;
        Ok(Self { each, gb_per_s: (turns * at_once * bytes) as f64 / ns })
    }

    /// The time that so many of a hundred puts did not exceed.
    fn of_hundred(&self, percent: usize) -> u64 {
        self.each[(self.each.len() * percent).div_ceil(100).max(1) - 1]
    }
}

/// Two ends that are connected with each other.
struct Pair {
    sender: Endpoint,
    /// Its window is written.
    _receiver: Endpoint,
    stream: Stream,
    from: Memory,
    to: Memory,
    turn: u64,
}

impl Pair {
    fn new(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        path: Path,
        room: u64,
        timeout: Duration,
    ) -> Result<Self, String> {
        let room = usize::try_from(room).map_err(told)?;
        let from = Memory::from(gpu.alloc(room).map_err(told)?);
        let to = Memory::from(gpu.alloc_mapped(room, None).map_err(told)?);
        let options = transport::Options::default().timeout(timeout);
        let both = (from.clone(), to.clone());
        let (sender, receiver) = Endpoint::pair(gpu, nic, path, both, options).map_err(told)?;
        let stream = gpu.stream().map_err(told)?;
        Ok(Self { sender, _receiver: receiver, stream, from, to, turn: 0 })
    }

    /// The time of so many puts and a wait for all; their bytes are compared.
    fn puts(&mut self, count: u64, bytes: u64) -> Result<Duration, String> {
        self.turn += 1;
        let sent = pattern(self.turn, (count * bytes) as usize);
        self.from.write(0, &sent).map_err(told)?;
        let begun = Instant::now();
        for at in (0..count).map(|nth| nth * bytes) {
            let put = Put { from: Local(at), to: Remote(at), bytes, signal: None };
            self.sender.put(&self.stream, put).map_err(told)?;
        }
        self.sender.quiet(&self.stream).map_err(told)?;
        let taken = begun.elapsed();
        let mut arrived = vec![0; sent.len()];
        self.to.read(0, &mut arrived).map_err(told)?;
        same(&sent, &arrived)?;
        Ok(taken)
    }
}

fn told(why: impl Display) -> String {
    why.to_string()
}

/// Other bytes at each turn, for each put in flight and for each packet: what another brought, or the turn before, is no
/// match.
fn pattern(turn: u64, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    for (word, part) in all.chunks_mut(8).enumerate() {
        let mixed = mixed(turn << WORD_BITS | word as u64).to_le_bytes();
        part.copy_from_slice(&mixed[..part.len()]);
    }
    // Puts of less than two words, in which there may be no whole one, lie here: neighbouring bytes differ.
    let near = all.iter_mut().take(NEAR).enumerate();
    near.for_each(|(i, byte)| *byte = (i as u64 * 7 + turn * 13) as u8);
    all
}

/// Words of the largest put, in bits, and bytes of which no two have one value.
const WORD_BITS: u32 = (MOST_BYTES / 8).ilog2();
const NEAR: usize = 256;

/// Another word for each (splitmix64).
fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn same(sent: &[u8], arrived: &[u8]) -> Result<(), String> {
    match sent.iter().zip(arrived).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} of {} arrived with another value", sent.len())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bellpush::gpu::{Executor, HostOptions};
    use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};

    use super::*;
    use crate::job::Code;

    fn of(options: &str, room: usize) -> Result<serde_json::Value, Failure> {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new())).unwrap();
        let text = bench((&gpu, &nic), &serde_json::from_str(options).unwrap(), room)?;
        assert!(text.len() < room && !text.contains('\n'));
        Ok(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn rows_are_of_what_was_asked() {
        let told = of(
            r#"{"paths": ["push/kernel", "tcp"], "sizes": [1, 100000], "messages": 20}"#,
            1 << 14,
        );
        let told = told.unwrap();
        assert!(told["on"].as_str().unwrap().starts_with("host, "), "{told}");
        let rows = told["rows"].as_array().unwrap();
        let named: Vec<_> = rows
            .iter()
            .map(|row| (row["path"].as_str().unwrap(), row["bytes"].as_u64().unwrap()))
            .collect();
        assert_eq!(
            named,
            [("push/kernel", 1), ("push/kernel", 100_000), ("tcp", 1), ("tcp", 100_000)]
        );
        for row in rows {
            let [p50, p99] = ["p50_ns", "p99_ns"].map(|key| row[key].as_u64().unwrap());
            assert!(0 < p50 && p50 <= p99 && row["gb_per_s"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["error"].is_null() && row["messages"] == 20, "{row}");
        }
    }

    #[test]
    fn a_path_that_cannot_be_taken_says_why() {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new())).unwrap();
        let none = Duration::ZERO;
        let why = Taken::of(&gpu, &nic, "pull/kernel".parse().unwrap(), 8, 1, none).err().unwrap();
        assert!(!why.is_empty());
        let hostile = "\"\\\n\u{202e}".repeat(100);
        let line = one_line(&hostile);
        assert_eq!(serde_json::to_string(&line).unwrap().len(), ERROR + 2, "{line}");
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for (options, room, why) in [
            (r#"{"sizes": []}"#, 1 << 16, "sizes"),
            (r#"{"sizes": [0]}"#, 1 << 16, "sizes"),
            (r#"{"sizes": [67108865]}"#, 1 << 16, "sizes"),
            (r#"{"messages": 0}"#, 1 << 16, "messages"),
            (r#"{"timeout_s": -1}"#, 1 << 16, "timeout_s"),
            (r#"{"timeout_s": 0}"#, 1 << 16, "timeout_s"),
            (r#"{"timeout_s": 1e-12}"#, 1 << 16, "timeout_s"),
            (r#"{"timeout_s": 1e99}"#, 1 << 16, "timeout_s"),
            (r#"{"paths": ["push/pigeon"]}"#, 1 << 16, "pigeon"),
            (r#"{"paths": ["tcp"], "sizes": [8]}"#, HEAD + ROW - 1, "1 rows take 640 bytes"),
        ] {
            let failure = of(options, room).unwrap_err();
            assert!(failure.code as i32 == Code::Refused as i32, "{options}: {}", failure.text);
            assert!(failure.text.contains(why), "{options}: {}", failure.text);
        }
        let many = format!(r#"{{"paths": ["tcp"], "sizes": [{}8]}}"#, "8, ".repeat(256));
        assert!(of(&many, 1 << 20).unwrap_err().text.contains("257 rows"));
    }

    #[test]
    fn times_are_of_so_many_in_a_hundred() {
        let taken = |each: &[u64]| Taken { each: each.to_vec(), gb_per_s: 1.0 };
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!([50, 99].map(|n| taken(&hundred).of_hundred(n)), [50, 99]);
        assert_eq!([50, 99].map(|n| taken(&[7]).of_hundred(n)), [7, 7]);
        assert_eq!([50, 99].map(|n| taken(&[1, 2, 9]).of_hundred(n)), [2, 9]);
    }

    #[test]
    fn bytes_that_differ_are_told() {
        let sent = pattern(1, 600);
        let mut arrived = sent.clone();
        same(&sent, &arrived).unwrap();
        arrived[599] ^= 1;
        assert_eq!(
            same(&sent, &arrived).unwrap_err(),
            "byte 599 of 600 arrived with another value"
        );
        // What the turn before left there is found.
        assert!(same(&sent, &pattern(2, 600)).is_err());
    }

    /// No put in flight and no packet carries what another does.
    #[test]
    fn bytes_of_another_put_are_no_match() {
        let distinct = |sent: &[u8], bytes: usize| {
            let all: Vec<&[u8]> = sent.chunks_exact(bytes).collect();
            all.iter().collect::<BTreeSet<_>>().len() == all.len()
        };
        for bytes in [1, 2, 7, 8, 9, 15, 16, 17, 23, 64, 100, 255, 256, 4096, 65536] {
            let at_once = (IN_FLIGHT_BYTES as usize / bytes).min(IN_FLIGHT as usize);
            for turn in 1..20 {
                assert!(distinct(&pattern(turn, at_once * bytes), bytes), "{at_once} of {bytes} B");
            }
        }
        // Payloads of RoCE at its smallest MTU, in one put that is longer than all in flight.
        assert!(distinct(&pattern(1, 2 << 20), 256));
    }
}
