//! `bellpush doctor` on the preloaded device, which is a card to it.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::preloaded::{alone, bellpush, run, there};

/// Whether this build opens cards, and libraries are there for it.
fn has_cards() -> bool {
    if !cfg!(feature = "mlx5") {
        println!("SKIPPED: a build without cards");
    }
    cfg!(feature = "mlx5") && there("ibv_devinfo")
}

/// A put by every path that a card has, and what verbs alone tell of the card.
#[test]
fn a_card_is_measured_and_says_what_it_has() {
    let _alone = alone();
    if !has_cards() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("doctor.json");
    let file = file.to_str().unwrap();
    let ended = run(&[], &[bellpush(), "doctor", "--live", "--nic", "mlx5_0", "--json", file]);
    assert!(matches!(ended.code, Some(0 | 1 | 3)), "{ended:?}");
    let text = ended.text;
    let json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let measured = &json["measured"];
    let name = measured["on"].as_str().unwrap();
    assert!(name.ends_with("mlx5_0"), "{name}");
    let puts = measured["puts"].as_array().unwrap().iter();
    let carried = puts.filter(|put| put["median_ns"].is_number());
    let all: Vec<&str> = carried.map(|put| put["path"].as_str().unwrap()).collect();
    assert!(!all.contains(&"push/inband"), "no card has it: {text}");
    for path in ["pull/kernel", "push/kernel", "push/cpu", "staged/cpu"] {
        assert!(all.contains(&path), "{path}: {text}");
    }
    let bytes = measured["device_memory_bytes"].as_u64().unwrap();
    assert!(bytes > 0 && measured["atomics"] == true, "{measured}");
    let line = format!("  device memory (MEMIC): {bytes} B; atomics: on 8 bytes");
    assert!(text.lines().any(|l| l == line), "{line:?}: {text}");
    // Nothing is said against the use of a card that was used.
    let all = json["findings"].as_array().unwrap();
    let of = |check: &str| {
        all.iter().find(|f| f["check"] == check).unwrap_or_else(|| panic!("{check}: {text}"))
    };
    assert_eq!(of("rdma-nodes")["severity"], "fine", "{text}");
    assert_eq!(of("rdma-window")["found"], format!("{bytes} B of device memory"), "{text}");
    assert!(
        !all.iter().any(|f| f["prevents"].as_array().unwrap().contains(&"nic".into())),
        "{text}"
    );
}

/// A card whose every WQE fails cannot be used.
#[test]
fn a_card_whose_paths_fail_cannot_be_used() {
    let _alone = alone();
    if !has_cards() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (script, file) = (path("fail.toml"), path("doctor.json"));
    let fault = "[[fault]]\non = \"wqe\"\naction = \"fail\"\nsyndrome = \"remote-access-error\"\n";
    fs::write(&script, fault).unwrap();
    let doctor = [bellpush(), "doctor", "--live", "--nic", "mlx5_0", "--json", &file];
    let ended = run(&["--fault", &script], &doctor);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let mut all = json["findings"].as_array().unwrap().iter();
    let live = all.find(|f| f["check"] == "live" && f["severity"] == "prevents");
    let live = live.unwrap_or_else(|| panic!("{json}"));
    assert_eq!(live["lacks"][0]["nic"], "mlx5_0", "{live}");
    let mut paths = json["paths_on_a_card"].as_array().unwrap().iter();
    let pull = paths.find(|path| path["path"] == "pull/cpu").unwrap();
    assert!(pull["prevented_by"].as_array().unwrap().contains(&"live".into()), "{pull}");
}

/// Before it is opened a device of no given address has none yet, which is no fault of it.
#[test]
fn a_device_that_is_not_open_lacks_no_address() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("doctor.json");
    let file = file.to_str().unwrap();
    for (options, severity) in [(&[][..], "unseen"), (&["--address", "127.0.0.5"][..], "fine")] {
        let ended = run(options, &[bellpush(), "doctor", "--json", file]);
        assert!(matches!(ended.code, Some(0 | 1 | 3)), "{ended:?}");
        let json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let all = json["findings"].as_array().unwrap();
        let gid = all.iter().find(|f| f["check"] == "roce-gid").unwrap_or_else(|| panic!("{json}"));
        assert_eq!(gid["severity"], severity, "{gid}");
    }
}

/// What the pages show: a bench on a software device, which it takes for a card.
#[test]
fn a_bench_takes_the_device_for_a_card() {
    let _alone = alone();
    if !has_cards() {
        return;
    }
    let size = ["--sizes", "8", "--messages", "20", "--seconds", "0.01"];
    let ended = run(&[], &[&[bellpush(), "bench", "--nic", "mlx5_0"], &size[..]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for path in ["pull/kernel", "push/kernel", "staged/cpu"] {
        assert!(ended.text.contains(path), "{path}: {ended:?}");
    }
    assert!(!ended.text.contains("push/inband"), "no card has it: {ended:?}");
}

/// A card that is not there is refused in one line.
#[test]
fn a_card_that_is_not_there_is_refused() {
    let mut doctor = Command::new(bellpush());
    let output = doctor.args(["doctor", "--live", "--nic", "mlx5_99"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let line = String::from_utf8_lossy(&output.stderr);
    assert!(line.lines().count() == 1 && line.contains("--nic"), "{line}");
}
