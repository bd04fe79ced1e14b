//! perftest, unmodified, on software devices: `bellpush run -- ib_write_bw …`.

use crate::preloaded::{alone, pair_succeeds, there};

pub const BANDWIDTHS: [&str; 4] = ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"];
pub const LATENCIES: [&str; 4] = ["ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_atomic_lat"];

#[test]
fn perftest_finds_the_device_and_verifies() {
    let _alone = alone();
    for command in [
        &["ib_write_bw", "-F", "-n", "100", "-s", "4096"][..],
        &["ib_send_bw", "-F", "-n", "100", "-e", "-s", "1024"],
        &["ib_read_lat", "-F", "-n", "50"],
        &["ib_atomic_bw", "-F", "-n", "50"],
    ] {
        if !there(command[0]) {
            return;
        }
        pair_succeeds(&[], command);
    }
}

#[test]
#[ignore = "all of perftest takes minutes"]
fn all_of_perftest() {
    let _alone = alone();
    let mut all = Vec::new();
    for program in BANDWIDTHS {
        // Atomics have one size.
        let sizes = if program == "ib_atomic_bw" { "-A CMP_AND_SWAP" } else { "-a" };
        for options in [sizes, "-b", "-q 8", "-b -q 8"] {
            let n = if options == "-a" { 20 } else { 300 };
            all.push(format!("{program} -n {n} {options}"));
        }
    }
    for program in LATENCIES {
        let sizes = if program == "ib_atomic_lat" { "-A CMP_AND_SWAP" } else { "-a" };
        let n = if sizes == "-a" { 20 } else { 300 };
        all.push(format!("{program} -n {n} {sizes}"));
        all.push(format!("{program} -n 300"));
    }
    for (services, programs) in [
        (&["UC", "UD"][..], ["ib_send_bw -n 500", "ib_send_lat -n 300"]),
        (&["UC"], ["ib_write_bw -n 500", "ib_write_lat -n 300"]),
        (&["UC"], ["ib_write_bw -n 300 -b -q 8", "ib_send_bw -n 300 -b"]),
    ] {
        for service in services {
            all.extend(programs.map(|program| format!("{program} -c {service}")));
        }
    }
    for options in ["-q 4 --use-srq", "-e", "-I 64 -s 64"] {
        all.push(format!("ib_send_bw -n 500 {options}"));
    }
    for command in all {
        let command: Vec<&str> = command.split(' ').chain(["-F"]).collect();
        if !there(command[0]) {
            return;
        }
        println!("{command:?}");
        pair_succeeds(&[], &command);
    }
}
