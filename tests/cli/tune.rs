//! `bellpush bench --tune`, and rows of the path `auto`, on the host executor.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn bench(file: &Path, args: &[&str]) -> Output {
    let short = ["bench", "--gpu", "host", "--sizes", "8,64,4KiB,64KiB", "--seconds", "0.1"];
    Command::new(env!("CARGO_BIN_EXE_bellpush"))
        .args(short)
        .args(args)
        .env("BELLPUSH_TUNING", file)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn tuning_keeps_a_table_with_which_auto_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    let tuned = bench(&file, &["--tune", "--messages", "320"]);
    let (out, told) = (text(&tuned.stdout), text(&tuned.stderr));
    assert!(tuned.status.success(), "{out}{told}");
    for part in [
        "GPU host, NIC soft, engine on the host",
        "worst: ",
        "kept in ",
        "this table ranks the software NIC and the host executor, not a GPU",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    for size in ["8 B", "64 B", "4 KiB", "64 KiB"] {
        let rows = out.lines().filter(|line| line.contains(&format!(" {size} ")));
        assert!(rows.count() >= 1, "{size}: {out}");
    }
    // Both ratios are to the best path's time; as many of them count as level as are.
    let ratios: Vec<[f64; 2]> = out
        .lines()
        .filter_map(|line| {
            let words: Vec<f64> =
                line.split_whitespace().rev().map_while(|w| w.parse().ok()).collect();
            let [apart, times, auto, us] = words.get(..4)? else { return None };
            assert!((auto / us - times).abs() < 0.02 + 0.02 / us, "{line}");
            Some([*times, *apart])
        })
        .collect();
    assert!(ratios.len() >= 4, "{out}");
    assert!(ratios.iter().all(|row| row[1] >= 1.0), "{out}");
    // As printed, to a thousandth.
    let level = |nth: usize| {
        let below = |bound: f64| ratios.iter().filter(|row| row[nth] < bound).count();
        below(1.0495)..=below(1.0505)
    };
    let said = out.lines().find(|line| line.starts_with("within 5 %:")).unwrap();
    let said: Vec<usize> = said.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    assert!(
        level(0).contains(&said[1]) && said[2] == ratios.len() && level(1).contains(&said[3]),
        "{said:?} {out}"
    );
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["version"], 1);
    let table = &json["tables"][0];
    assert_eq!(table["machine"]["gpu"], "host");
    for scope in ["thread", "warp", "block"] {
        let ranges = table[scope].as_array().unwrap();
        assert!((1..=8).contains(&ranges.len()) && ranges.last().unwrap()["up_to"].is_null());
    }

    let rows = bench(
        &file,
        &["--data", "auto,push", "--kick", "kernel", "--messages", "64", "--json", "-"],
    );
    assert!(rows.status.success(), "{}", text(&rows.stderr));
    let json: serde_json::Value = serde_json::from_slice(&rows.stdout).unwrap();
    let auto: Vec<_> =
        json["results"].as_array().unwrap().iter().filter(|row| row["data"] == "auto").collect();
    assert_eq!(auto.len(), 4);
    assert!(auto.iter().all(|row| row["verified"] == true && row["kick"].is_null()), "{auto:?}");
    let notes = json["meta"]["notes"].to_string();
    assert!(
        notes.contains("auto's table: measured, from") && notes.contains("tuning.json"),
        "{notes}"
    );
}

/// A table is of the memory from which it was measured; that of the other stays.
#[test]
fn host_memory_has_a_table_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    let tune = ["--tune", "--messages", "64"];
    for source in ["host", "gpu"] {
        let tuned = bench(&file, &[&tune[..], &["--source", source]].concat());
        let (out, told) = (text(&tuned.stdout), text(&tuned.stderr));
        assert!(tuned.status.success(), "{out}{told}");
        assert!(out.contains(&format!("region={source},")), "{out}");
        if source == "gpu" {
            break;
        }
        let rows = ["--data", "auto", "--messages", "64", "--json", "-"];
        let asked = |source: &str| {
            let rows = bench(&file, &[&rows[..], &["--source", source]].concat());
            assert!(rows.status.success(), "{}", text(&rows.stderr));
            let json: serde_json::Value = serde_json::from_slice(&rows.stdout).unwrap();
            let all = json["results"].as_array().unwrap().clone();
            assert!(all.iter().all(|row| row["verified"] == true));
            let from = if source == "host" { "host".into() } else { serde_json::Value::Null };
            assert!(all.iter().all(|row| row["from"] == from), "{all:?}");
            json["meta"]["notes"].to_string()
        };
        assert!(asked("host").contains("auto's table: measured, from"));
        assert!(asked("gpu").contains("auto's table: built in"), "{}", asked("gpu"));
    }
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let tables = json["tables"].as_array().unwrap();
    let mut regions: Vec<_> = tables.iter().map(|t| t["machine"]["region"].as_str()).collect();
    regions.sort_unstable();
    assert_eq!(regions, [Some("gpu"), Some("host")]);
}

#[test]
fn without_a_table_rows_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap();
    let rows = Command::new(env!("CARGO_BIN_EXE_bellpush"))
        .args([
            "bench",
            "--gpu",
            "host",
            "--sizes",
            "8",
            "--seconds",
            "0.05",
            "--data",
            "auto",
            "--json",
            "-",
        ])
        .env_remove("BELLPUSH_TUNING")
        .env("XDG_CONFIG_HOME", home)
        .output()
        .unwrap();
    assert!(rows.status.success(), "{}", text(&rows.stderr));
    let json: serde_json::Value = serde_json::from_slice(&rows.stdout).unwrap();
    let notes = json["meta"]["notes"].to_string();
    assert!(notes.contains("auto's table: built in") && notes.contains(home), "{notes}");
    assert!(fs::read_dir(home).unwrap().next().is_none(), "a bench without --tune keeps nothing");
}

/// A table of the host executor is kept where it was asked for, and not by a user whose GPU is not found.
#[test]
fn without_a_gpu_nothing_is_kept_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    let refused = Command::new(env!("CARGO_BIN_EXE_bellpush"))
        .args(["bench", "--tune", "--sizes", "8", "--messages", "64", "--seconds", "0.05"])
        .env("BELLPUSH_TUNING", &file)
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    let told = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.lines().count() == 1 && told.contains("no GPU"), "{told}");
    assert!(told.contains("--tune --gpu host") && refused.stdout.is_empty(), "{told}");
    assert!(!file.exists());
}

#[test]
fn what_cannot_be_kept_is_refused_before_it_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    fs::write(&file, "{\"version\": 7}").unwrap();
    for args in [&["--tune"][..], &["--data", "auto"]] {
        let refused = bench(&file, args);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stdout));
        let told = text(&refused.stderr);
        assert!(told.lines().count() == 1 && told.contains("version 7"), "{told}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"version\": 7}");
    for option in [&["--data", "push"][..], &["--tearing"], &["--json", "x"], &["--line", "60+4"]] {
        let refused = bench(&file, &[&["--tune"], option].concat());
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains("cannot be used with"), "{}", text(&refused.stderr));
    }
    let named = bench(&folder.path().join("none.json"), &["--data", "auto"]);
    assert_eq!(named.status.code(), Some(2));
    assert!(text(&named.stderr).contains("none.json"), "{}", text(&named.stderr));
}
