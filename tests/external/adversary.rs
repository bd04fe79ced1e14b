//! Programs on devices that take every freedom: silent about those that keep to the rules, and a line on stderr for
//! each place where one relies on more (`interop/adversary.c`).

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::preloaded::{Ended, alone, compiled, pair_succeeds, run, succeeds, there};

static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("adversary"));

/// How a line of a finding begins.
const FOUND: &str = "bellpush: adversary:";
const SEEDS: [&str; 3] = ["1", "2", "3"];
const CASES: [&str; 6] = ["payload", "writes", "record", "doorbell", "cqe", "packets"];

fn case(options: &[&str], name: &str) -> Option<Ended> {
    Some(run(options, &[PROGRAM.as_ref()?.to_str().unwrap(), name]))
}

#[track_caller]
fn silent(ended: &str, what: &str) {
    assert!(!ended.contains("bellpush: "), "{what}: {ended}");
}

#[test]
fn programs_that_keep_to_the_rules_are_nobodys_finding() {
    let _alone = alone();
    for name in CASES {
        for seed in SEEDS.iter().chain(&["1,doorbell"]) {
            let right = format!("{name}-right");
            let Some(ended) = case(&["--adversary", seed], &right) else { return };
            assert_eq!(ended.code, Some(0), "{right}, seed {seed}: {}", ended.text);
            silent(&ended.text, &right);
        }
    }
}

/// Kinds that look at the record without a doorbell would see that libmlx5 clears it, and what is put back counts nothing
/// that is there.
#[test]
fn a_record_that_a_reset_left_as_it_was_counts_again_with_its_doorbell() {
    let _alone = alone();
    for kinds in ["1,doorbell", "2,doorbell", "3,doorbell,cqe,packets"] {
        let Some(ended) = case(&["--adversary", kinds], "reset-right") else { return };
        assert_eq!(ended.code, Some(0), "{kinds}: {}", ended.text);
        silent(&ended.text, kinds);
    }
}

#[test]
fn programs_that_rely_on_more_are_told_of_and_keep_their_status() {
    let _alone = alone();
    for name in ["payload", "writes"] {
        let wrong = format!("{name}-wrong");
        let Some(ended) = case(&[], &wrong) else { return };
        assert_eq!(ended.code, Some(0), "{wrong}: without an adversary it goes unnoticed");
        silent(&ended.text, &wrong);
        let adversary = format!("1,{name}");
        let ended = case(&["--adversary", &adversary], &wrong).unwrap();
        assert_eq!(ended.code, Some(0), "{wrong}: {}", ended.text);
        for line in [format!("{FOUND} mlx5_0: {name}: queue pair "), "found in all: ".to_string()] {
            assert!(ended.text.contains(&line), "{wrong}: no {line:?}: {}", ended.text);
        }
        assert!(ended.text.matches(FOUND).count() <= 25, "{wrong}: {}", ended.text);
    }
}

/// What it carries out may be what lay there before: such a program may fail as well.
#[test]
fn a_record_before_its_wqe_is_told_of() {
    let _alone = alone();
    let Some(ended) = case(&["--adversary", "1,record"], "record-wrong") else { return };
    assert!(ended.text.contains("mlx5_0: record: queue pair "), "{}", ended.text);
    assert!(ended.text.contains("after the doorbell record"), "{}", ended.text);
}

/// Without an adversary the device takes the later of record and register: only a program that never rings stands still.
#[test]
fn doorbells_that_are_missing_or_early_are_told_of() {
    let _alone = alone();
    for (name, without, said) in [
        ("doorbell-early-wrong", Some(0), "before the doorbell record counted"),
        ("doorbell-unrung-wrong", Some(1), "no doorbell was rung"),
    ] {
        let Some(ended) = case(&[], name) else { return };
        assert_eq!(ended.code, without, "{name}: {}", ended.text);
        silent(&ended.text, name);
        let ended = case(&["--adversary", "1,doorbell"], name).unwrap();
        assert_eq!(ended.code, Some(1), "{name}: it stands still: {}", ended.text);
        let line = format!("{FOUND} mlx5_0: doorbell: queue pair ");
        assert!(ended.text.contains(&line) && ended.text.contains(said), "{name}: {}", ended.text);
    }
    // Record and register are read at opposite times: one of the two is drawn for each queue pair.
    let tells = |seed: u32| {
        let ended = case(&["--adversary", &seed.to_string()], "doorbell-early-wrong").unwrap();
        ended.text.contains(" doorbell: queue pair ")
    };
    assert!((1..=12).any(tells), "the usual kinds leave it out");
}

#[test]
fn programs_that_rely_on_an_order_that_is_none_notice_it_themselves() {
    let _alone = alone();
    for name in ["cqe", "packets"] {
        let wrong = format!("{name}-wrong");
        // Which come late is drawn; what a program is at then is the machine's.
        let mut notices = false;
        for seed in 1..=20 {
            let adversary = format!("{seed},{name}");
            let Some(ended) = case(&["--adversary", &adversary], &wrong) else { return };
            notices = ended.code == Some(1);
            assert_eq!(ended.text.contains("not so: "), notices, "{wrong}: {ended:?}");
            if notices {
                break;
            }
        }
        assert!(notices, "{wrong}: not with 20 seeds");
    }
}

#[test]
fn an_adversary_that_makes_no_sense_is_refused() {
    for (adversary, why) in [("payload", "no seed"), ("1,late", "no adversary is named")] {
        let ended = run(&["--adversary", adversary], &["true"]);
        assert_ne!(ended.code, Some(0));
        assert!(ended.text.contains(why), "{}", ended.text);
    }
    succeeds(&["--adversary", "1,writes=all,acks"], &["true"]);
}

#[test]
fn perftest_is_nobodys_finding() {
    let _alone = alone();
    for seed in SEEDS {
        for command in [
            &["ib_write_bw", "-F", "-n", "200", "-s", "4096"][..],
            &["ib_send_bw", "-F", "-n", "200", "-e", "-s", "1024"],
            &["ib_read_bw", "-F", "-n", "200"],
            &["ib_atomic_bw", "-F", "-n", "200"],
            &["ib_write_lat", "-F", "-n", "200"],
        ] {
            if !there(command[0]) {
                return;
            }
            for kinds in [seed, &format!("{seed},doorbell")] {
                let said = pair_succeeds(&["--adversary", kinds], command);
                said.iter().for_each(|text| silent(text, command[0]));
            }
        }
    }
}

/// Not `ucp_put_bw`: when its last message begins, it writes to the buffer of those before, which it has fenced and not
/// flushed (UCX 1.13.1, `send_last_iter`).
#[test]
fn ucx_is_nobodys_finding() {
    let _alone = alone();
    for seed in SEEDS {
        for transport in ["rc_v", "rc_x", "dc_x", "ud_v"] {
            for test in ["tag_lat", "ucp_put_lat", "ucp_get", "ucp_fadd", "stream_bw"] {
                if !there("ucx_perftest") {
                    return;
                }
                let choice = format!("UCX_TLS={transport},self");
                let command = ["env", &choice, "UCX_NET_DEVICES=mlx5_0:1", "ucx_perftest"];
                let command = [&command[..], &["-t", test, "-n", "50", "-w", "5"]].concat();
                for kinds in [seed, &format!("{seed},doorbell")] {
                    let said = pair_succeeds(&["--adversary", kinds], &command);
                    said.iter().for_each(|text| silent(text, test));
                }
            }
        }
    }
}
