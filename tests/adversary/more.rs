//! The suites with more seeds, and with each freedom by itself: this program once more for each. A run without these has
//! one seed, and the usual freedoms together.

use std::io::{Read, Seek, SeekFrom};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SUITES: [&str; 5] = ["auto::", "calls::", "peers::", "placement::", "all_reduce::"];
const SEEDS: [u64; 4] = [100, 2_000, 30_000, u64::MAX - 50];
/// Of a run of all suites.
const LIMIT: Duration = Duration::from_secs(400);

fn kinds() -> &'static [&'static str] {
    match crate::ENGINE {
        "adversary" => &["payload", "record", "cqe", "payload,writes", "writes,atomics"],
        _ => &[
            "payload",
            "record",
            "cqe",
            "payload,writes",
            "writes,atomics",
            "packets",
            "acks",
            "routing",
        ],
    }
}

fn run(adversary: &str) {
    let mut file = tempfile::tempfile().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(SUITES)
        .env("BELLPUSH_TEST_ADVERSARY", adversary)
        .stdout(Stdio::from(file.try_clone().unwrap()))
        .stderr(Stdio::from(file.try_clone().unwrap()))
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{adversary}: {LIMIT:?} are over");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let mut said = String::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut said)).unwrap();
    assert!(status.success(), "BELLPUSH_TEST_ADVERSARY={adversary}: {status}\n{said}");
    println!("{adversary}: {:?}", begun.elapsed());
}

#[test]
#[ignore = "minutes: every suite with more seeds and kinds"]
fn every_suite_with_more_seeds_and_each_kind() {
    for seed in SEEDS {
        run(&seed.to_string());
    }
    for (seed, kind) in (7..).zip(kinds()) {
        run(&format!("{seed},{kind}"));
    }
}
