//! `bellpush bench` on the host executor: messages by several blocks, lines of every format.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    let short = ["bench", "--gpu", "host", "--seconds", "0.1", "--messages", "40"];
    Command::new(env!("CARGO_BIN_EXE_bellpush")).args(short).args(args).output().unwrap()
}

#[test]
fn messages_by_several_blocks_are_measured_and_verified() {
    let paths = ["--data", "push,pull", "--kick", "kernel,inband", "--sizes", "8,200KiB"];
    for line in ["12+4", "60+4"] {
        let more = ["--blocks", "3", "--line", line, "--json", "-"];
        let output = bench(&[&paths[..], &more].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{line}: {told}");
        assert!(
            told.contains("pull/kernel is left out") && told.contains("several blocks"),
            "{told}"
        );
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = json["results"].as_array().unwrap();
        assert_eq!(rows.len(), 4, "two paths and two sizes: {json}");
        for row in rows {
            assert_eq!((&row["blocks"], &row["verified"]), (&3.into(), &true.into()), "{row}");
        }
    }
}

/// Lines that four lanes write, by the one block that there usually is.
#[test]
fn rows_of_every_line_format_are_verified() {
    for line in ["12+4", "14+2", "60+4"] {
        let paths = ["--data", "push", "--kick", "inband", "--sizes", "8,5000", "--json", "-"];
        let output = bench(&[&paths[..], &["--line", line]].concat());
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn several_blocks_are_refused_where_they_mean_nothing() {
    for (more, said) in [(&["--tune"][..], "--tune"), (&["--qps", "2"], "--qps with --blocks 2")] {
        let output = bench(&[&["--blocks", "2"], more].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(said), "{told}");
    }
}
