//! `ucx_perftest` of Debian's ucx-utils over TCP on loopback, both its processes.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

const PORT: &str = "13337";
/// Tries until the server listens, and the pause between two.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);
/// Unit of its MB/s.
const MIB: f64 = 1_048_576.0;

/// Ends with its scope.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill(); // most often it has ended
        let _ = self.0.wait();
    }
}

fn perftest(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["60", "ucx_perftest", "-p", PORT]).args(args).env("UCX_TLS", "tcp");
    command
}

/// Columns of the final line: iterations, three latencies (µs: median, average, overall), two
/// bandwidths (MiB/s: average, overall), and rates.
fn measure(test: &str, bytes: &str, iterations: &str) -> Option<Vec<f64>> {
    let quiet = || Stdio::null();
    let server = perftest(&[]).stdout(quiet()).stderr(quiet()).spawn().ok()?;
    let _server = Server(server);
    for _ in 0..TRIES {
        thread::sleep(PAUSE);
        let args = ["127.0.0.1", "-t", test, "-s", bytes, "-n", iterations];
        let output = perftest(&args).stderr(quiet()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = text.lines().find_map(|line| line.strip_prefix("Final:"));
        if let Some(columns) = last {
            return columns.split_whitespace().map(|column| column.parse().ok()).collect();
        }
    }
    None
}

/// Version line, if it is installed.
pub fn version() -> Option<String> {
    let output = Command::new("ucx_info").arg("-v").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| line.split("Version ").nth(1)).map(str::to_owned)
}

/// Median of put latency for 8 B in µs, and bytes a second of puts of 1 MiB.
pub fn put() -> Option<(f64, f64)> {
    let latency = *measure("ucp_put_lat", "8", "20000")?.get(1)?;
    let bandwidth = *measure("ucp_put_bw", "1048576", "2000")?.get(5)?;
    Some((latency, bandwidth * MIB))
}
