//! `bellpush bench --post`: every row posts what it says, on the host executor.

use std::process::{Command, Output};

fn post(args: &[&str]) -> Output {
    let command = [&["bench", "--post", "--gpu", "host"], args].concat();
    Command::new(env!("CARGO_BIN_EXE_bellpush")).args(command).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn every_row_is_verified_and_has_its_floor() {
    let output = post(&["--runs", "2", "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["meta"]["command"], "bench --post");
    assert_eq!(json["meta"]["runs"], 2);
    assert!(json["meta"]["notes"][0].as_str().unwrap().contains("host executor"));
    let rows = json["results"].as_array().unwrap();
    // How many threads copy depends on the machine.
    let is_of = |row: &serde_json::Value, name: &str| {
        let own = row.as_str().unwrap();
        own == name || name.ends_with("copy threads") && own.starts_with(name)
    };
    for (row, place) in [
        ("exclusive thread", "ggh"),
        ("exclusive thread strict", "hhh"),
        ("exclusive in-band 8 B block", "window-h"),
        ("exclusive batch of 32 warp", "ggh"),
        ("shared by a warp", "ggh"),
        ("shared by all threads", "ggh"),
        ("exclusive put_signal set thread", "hhh"),
        ("exclusive in-band put_value 8 B thread", "window-h"),
        ("test_signal thread", "ggh"),
        ("streams push/inband 60+4, window 1MiB, copy threads", "window-h"),
    ] {
        assert!(rows.iter().any(|r| is_of(&r["row"], row) && r["place"] == place), "{row} {place}");
    }
    for row in rows {
        assert!(row["verified"] == true && row["wrong"].is_null(), "{row}");
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
        assert!(0.0 < number("min") && number("min") <= number("median"), "{row}");
        assert!(number("median") <= number("max") && number("floor") > 0.0, "{row}");
        assert!(number("times_floor") > 0.0, "{row}");
    }
    // The table, beside the JSON on standard output.
    assert!(text(&output.stderr).contains("shared by all threads"), "{}", text(&output.stderr));
}

#[test]
fn rows_are_chosen_by_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("post.json");
    let args = ["--runs", "1", "--only", "exclusive block hhh,exclusive strict ggh", "--json"];
    let output = post(&[&args[..], &[file.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let rows: Vec<_> = json["results"].as_array().unwrap().iter().map(|r| &r["row"]).collect();
    assert_eq!(rows, ["exclusive thread strict", "exclusive block"]);
    let table = text(&output.stdout);
    assert!(table.contains("exclusive block") && table.contains("host executor"), "{table}");
}

#[test]
fn streams_stand_beside_the_bare_exchange() {
    let output = post(&["--runs", "1", "--only", "streams", "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["results"].as_array().unwrap();
    let count =
        |word: &str| rows.iter().filter(|r| r["row"].as_str().unwrap().contains(word)).count();
    // As many for each number of copy threads.
    assert!(rows.len() >= 6 && rows.len().is_multiple_of(6), "{rows:?}");
    for path in ["push/kernel,", "push/inband 60+4,", "push/inband 12+4,"] {
        assert_eq!(count(path), rows.len() / 3, "{path}");
    }
    assert_eq!((count("window 128KiB"), count("window 1MiB")), (rows.len() / 2, rows.len() / 2));
    for row in rows {
        assert!(row["unit"] == "GB/s" && row["verified"] == true, "{row}");
        for best in ["one_block", "up_to_four", "in_order"] {
            let bare = &row["bare"][best];
            assert!(bare["median"].as_f64().unwrap() > 0.0 && bare["threads"] == 1, "{row}");
        }
        assert_eq!(row["bare"]["one_block"]["blocks"], 1);
        assert_eq!(row["floor"], row["bare"]["up_to_four"]["median"]);
    }
    let table = text(&output.stderr);
    assert!(table.contains("bare push/inband 12+4, window 128KiB: 1 block"), "{table}");
    assert!(!table.contains("exclusive") && !table.contains("no NIC reads"), "{table}");
}

#[test]
fn nonsense_is_refused_in_one_line() {
    for (args, reason) in [
        (&["--only", "teleport"][..], "no row has these words"),
        (&["--runs", "0"], "--runs is 0"),
        (&["--runs", "-1"], "--runs"),
        (&["--timeout-ms", "0"], "--timeout-ms is 0"),
        (&["--json", "no/such/place"], "does not exist"),
        (&["--tearing"], "--tearing"),
    ] {
        let output = post(args);
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(reason), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let alone =
        Command::new(env!("CARGO_BIN_EXE_bellpush")).args(["bench", "--only", "x"]).output();
    let alone = alone.unwrap();
    assert!(alone.status.code() == Some(2) && text(&alone.stderr).contains("--post"));
}
