//! perftest, unmodified, on the software device, beside `ucx_perftest` over TCP on loopback, in turns
//! in one run: what a program of libibverbs gets without a card, and what it would get without RDMA.
//!
//! `cargo bench --bench perftest -- [--rounds N]` prints the table; with `BELLPUSH_WRITE_RESULTS` set
//! it becomes docs/results/perftest.md. Both programs poll: on a machine with few cores that has other
//! work, times say little, and ratios are those of what was measured right after each other.
//!
//! Aim, over UDP: at least as good as UCX over TCP in every row.

mod aim;
#[path = "two_process/ucx.rs"]
#[allow(dead_code)] // the other benchmark's own
mod ucx;

use std::fmt::Write;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

const ROUNDS: usize = 5;
/// Unit of perftest's MB/s, and of UCX's.
const MIB: f64 = 1_048_576.0;
/// Tries until the server listens, and the pause between two.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);
const PORT: &str = "18616";

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// µs.
    Latency,
    /// GB/s.
    Bandwidth,
}

/// A line of the table: perftest's program and UCX's test, and a size.
struct Row {
    perftest: &'static str,
    ucx: &'static str,
    bytes: &'static str,
    iterations: &'static str,
    what: What,
}

const ROWS: &[Row] = &[
    row("ib_write_lat", "ucp_put_lat", "8", "5000", What::Latency),
    row("ib_read_lat", "ucp_get", "8", "5000", What::Latency),
    row("ib_send_lat", "tag_lat", "8", "5000", What::Latency),
    row("ib_write_bw", "ucp_put_bw", "65536", "5000", What::Bandwidth),
    row("ib_write_bw", "ucp_put_bw", "1048576", "1000", What::Bandwidth),
    row("ib_read_bw", "ucp_get", "1048576", "1000", What::Bandwidth),
    row("ib_send_bw", "tag_bw", "1048576", "1000", What::Bandwidth),
];

const fn row(
    perftest: &'static str,
    ucx: &'static str,
    bytes: &'static str,
    iterations: &'static str,
    what: What,
) -> Row {
    Row { perftest, ucx, bytes, iterations, what }
}

/// Ends with its scope.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill(); // most often it has ended
        let _ = self.0.wait();
    }
}

fn on_device(link: &str, row: &Row) -> Command {
    let mut command = Command::new("timeout");
    command.args(["120", env!("CARGO_BIN_EXE_bellpush"), "run", "--link-type", link, "--"]);
    command.args([row.perftest, "-F", "-p", PORT, "-s", row.bytes, "-n", row.iterations]);
    command
}

/// The typical latency in µs, or the average bandwidth in GB/s.
fn perftest(link: &str, row: &Row) -> Option<f64> {
    let server = on_device(link, row).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let _server = Server(server);
    for _ in 0..TRIES {
        thread::sleep(PAUSE);
        let mut client = on_device(link, row);
        let output = client.arg("127.0.0.1").stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
        let Some(line) = lines.nth(1) else { continue };
        let columns: Vec<f64> = line.split_whitespace().map_while(|c| c.parse().ok()).collect();
        return match row.what {
            // Size, iterations, least, most, typical.
            What::Latency => columns.get(4).copied(),
            // Size, iterations, peak, average.
            What::Bandwidth => columns.get(3).map(|mib| mib * MIB / 1e9),
        };
    }
    None
}

/// As [`perftest`], of columns that [`ucx::measure`] explains.
fn ucx(row: &Row) -> Option<f64> {
    let columns = ucx::measure(row.ucx, row.bytes, row.iterations)?;
    match row.what {
        What::Latency => columns.get(1).copied(),
        What::Bandwidth => columns.get(5).map(|mib| mib * MIB / 1e9),
    }
}

/// Median, with the lowest and the highest.
fn summary(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    match &*values {
        [] => String::new(),
        [only] => format!("{only:.2}"),
        [first, .., last] => {
            format!("{:.2} ({first:.2} to {last:.2})", values[values.len() / 2])
        }
    }
}

fn median(values: &[f64]) -> Option<f64> {
    values.get(values.len() / 2).copied()
}

/// Median of the rounds' ratios, with the lowest and the highest; empty where no round has both.
fn ratio(rounds: &[[Option<f64>; 3]], which: usize) -> (Option<f64>, String) {
    let of_round = |round: &[Option<f64>; 3]| Some(round[which]? / round[2]?);
    let mut ratios: Vec<f64> = rounds.iter().filter_map(of_round).collect();
    let text = summary(&mut ratios);
    (median(&ratios), text)
}

/// First line of what a program prints.
fn line_of(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map_or(String::new(), |it| String::from_utf8_lossy(&it.stdout).into_owned());
    text.lines().next().unwrap_or_default().into()
}

/// How busy the machine is: runnable tasks, a mean of the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").into()
}

/// Lowest to highest.
fn range(ratios: &[f64]) -> String {
    let least = ratios.iter().copied().reduce(f64::min).unwrap_or(f64::NAN);
    let most = ratios.iter().copied().reduce(f64::max).unwrap_or(f64::NAN);
    format!("{least:.2} to {most:.2}")
}

fn build_object() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--release", "--package", "bellpush-shim"]);
    let status = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).status();
    assert!(status.is_ok_and(|status| status.success()), "the preloaded object is not built");
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip_while(|arg| arg != "--rounds");
    let rounds = args.nth(1).map_or(ROUNDS, |n| n.parse().expect("a number of rounds"));
    build_object();
    let Some(version) = ucx::version() else {
        println!("SKIPPED: no ucx_perftest (apt-get install ucx-utils)");
        return ExitCode::SUCCESS;
    };
    let mut text = format!(
        "`BELLPUSH_WRITE_RESULTS=1 cargo bench --bench perftest -- --rounds {rounds}` writes this file: \
         unmodified perftest on two\nsoftware devices, a process each, over 127.0.0.1 and over shared \
         memory, and `ucx_perftest` with `UCX_TLS=tcp`\n(UCX {version}), in turns. {}, {}, {} cores, \
         load average {} before the first\nrow. Medians of {rounds} round{} (of an even number the upper), \
         lowest to highest in brackets; ratios are of what was\nmeasured in one round. Each program polls \
         and wants a core; on a busy machine only the ratios say something.\n`ucp_get` has no read over \
         TCP: UCX makes it of messages, and the first sentence leaves it out.\n\n\
         | perftest | UCX | bytes | | software device, udp | shm | UCX over TCP | udp ÷ UCX | shm ÷ UCX |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        line_of(env!("CARGO_BIN_EXE_bellpush"), &["--version"]),
        line_of("date", &["-u", "+%F"]),
        thread::available_parallelism().map_or(1, |n| n.get()),
        load(),
        if rounds == 1 { "" } else { "s" },
    );
    let mut aims = aim::Aims::default();
    let (mut times, mut bandwidths) = (Vec::new(), Vec::new());
    for row in ROWS {
        let found: Vec<[Option<f64>; 3]> =
            (0..rounds).map(|_| [perftest("udp", row), perftest("shm", row), ucx(row)]).collect();
        let [udp, shm, tcp] = [0, 1, 2].map(|which| {
            summary(&mut found.iter().filter_map(|round| round[which]).collect::<Vec<_>>())
        });
        let [(ratio, by_udp), (_, by_shm)] = [0, 1].map(|which| self::ratio(&found, which));
        let what = format!("{} of {} B", row.perftest, row.bytes);
        match row.what {
            What::Latency => aims.at_most(&what, ratio, 1.0, "of UCX's time"),
            What::Bandwidth => aims.at_least(&what, ratio, 1.0, "of UCX's bandwidth"),
        }
        if row.ucx != "ucp_get" {
            if row.what == What::Latency { &mut times } else { &mut bandwidths }.extend(ratio);
        }
        let unit = if row.what == What::Latency { "µs" } else { "GB/s" };
        let Row { perftest, ucx, bytes, .. } = row;
        let line = format!(
            "| {perftest} | {ucx} | {bytes} | {unit} | {udp} | {shm} | {tcp} | {by_udp} | {by_shm} |"
        );
        println!("{line}");
        writeln!(text, "{line}").expect("text grows");
    }
    if std::env::var_os("BELLPUSH_WRITE_RESULTS").is_some() {
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("docs/results/perftest.md");
        let (times, bandwidths) = (range(&times), range(&bandwidths));
        let head = format!(
            "# Results: perftest on the software device, beside UCX over TCP\n\n\
             **Over UDP on loopback the software device takes {times} times UCX's time over TCP for 8 B, and has {bandwidths}\n\
             times its bandwidth.**\n\n"
        );
        let text = head + &text;
        std::fs::write(&file, text).expect("the results' file can be written");
    }
    aims.end()
}
