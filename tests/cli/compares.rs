//! `bellpush compare` as a program.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn compare(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bellpush")).arg("compare").args(args).output().unwrap()
}

fn result(name: &str) -> String {
    format!("{}/../../docs/results/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

struct Changed {
    dir: tempfile::TempDir,
}

impl Changed {
    fn file(&self, name: &str, from: &str, change: impl Fn(&mut Value)) -> String {
        let path: PathBuf = self.dir.path().join(name);
        let mut json: Value =
            serde_json::from_slice(&std::fs::read(result(from)).unwrap()).unwrap();
        change(&mut json);
        std::fs::write(&path, json.to_string()).unwrap();
        path.display().to_string()
    }

    /// Three repetitions, 1 % apart, of which `change` changes the rows, as one argument.
    fn three(&self, name: &str, change: impl Fn(&mut Vec<Value>)) -> String {
        let of = |percent: f64| {
            self.file(&format!("{name}{percent}.json"), "h200.json", |json| {
                let rows = json["results"].as_array_mut().unwrap();
                change(rows);
                for row in rows {
                    let ns = row["latency_ns_p50"].as_f64();
                    let ns = ns.map(|ns| ns * (1.0 + percent / 100.0));
                    row["latency_ns_p50"] = json!(ns);
                }
            })
        };
        [-1.0, 0.0, 1.0].map(of).join(",")
    }
}

#[test]
fn results_of_every_command_are_compared() {
    let own = result("h200.json");
    let same = compare(&[&own, &own, "--json", "-"]);
    assert!(same.status.success(), "{}", text(&same));
    let json: Value = serde_json::from_slice(&same.stdout).unwrap();
    let rows = json["results"].as_array().unwrap();
    assert!(rows.len() > 500 && rows.iter().all(|r| r["ratio"] == 1.0), "{}", rows.len());
    let hosts = compare(&[&result("link-h200.json"), &result("link-h100.json")]);
    let told = text(&hosts);
    assert!(hosts.status.success() && told.contains("not the same machine: cuda:NVIDIA H200"));
    assert!(told.contains("fence.sys, nothing outstanding") && told.contains(" worse\n"), "{told}");
    let brief = compare(&[&result("link-h200.json"), &result("link-h100.json"), "--brief"]);
    assert!(text(&brief).lines().count() < told.lines().count());
    let together = result("link-h100-together.json");
    assert!(compare(&[&together, &together]).status.success());
}

/// Whoever has not read the page can tell which side is which, in what unit, and which way is better.
#[test]
fn columns_say_what_they_are() {
    let [h200, h100] = ["link-h200.json", "link-h100.json"].map(result);
    let told = text(&compare(&[&h200, &h100]));
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("A, before: ") && lines[0].ends_with("link-h200.json"), "{told}");
    assert!(lines[1].starts_with("B, after:  ") && lines[1].ends_with("link-h100.json"), "{told}");
    let head: Vec<&str> = lines[3].split("  ").map(str::trim).filter(|w| !w.is_empty()).collect();
    let wanted = [
        "row",
        "measure",
        "unit",
        "better",
        "A, before",
        "B, after",
        "B÷A",
        "B÷A least, most",
        "B is",
    ];
    assert_eq!(head.join("|").replace("unit better", "unit|better"), wanted.join("|"), "{told}");
    // Each value is below its head, however long its row's name is.
    let place = |line: &str, what: &str| line.find(what).map(|at| line[..at].chars().count());
    let [unit, better, last] =
        ["unit", "better", "B is"].map(|head| place(lines[3], head).unwrap());
    let end =
        lines.iter().position(|line| line.starts_with("A before, B after")).expect("a legend");
    let mut values = 0;
    for line in &lines[4..end] {
        let cells: Vec<char> = line.chars().collect();
        let Some(verdict) = cells.get(last..).map(|rest| rest.iter().collect::<String>()) else {
            continue; // a name that stands above its values
        };
        if !["better", "worse", "same", "?"].contains(&verdict.as_str()) {
            continue;
        }
        values += 1;
        let cell = |at: usize| cells[at..].iter().take_while(|c| **c != ' ').collect::<String>();
        let is_time = cell(unit) == "ns";
        assert!(is_time || cell(unit) == "GB/s", "{line}");
        assert_eq!(cell(better), if is_time { "less" } else { "more" }, "{line}");
    }
    assert!(values > 100, "{values}");
    for part in ["B÷A above 1", "medians", "any run of each", "?: too few runs"] {
        assert!(lines[end].contains(part), "{part}: {}", lines[end]);
    }
    // A field's own name stays where others look for it.
    let own = result("h200.json");
    assert!(text(&compare(&[&own, &own])).contains("latency_ns_p50  ns    less "));
}

#[test]
fn what_got_worse_fails_and_is_named() {
    let changed = Changed { dir: tempfile::tempdir().unwrap() };
    let slower = |factor: f64| {
        changed.three(&format!("{factor}-"), |rows| {
            let is_one = |row: &&mut Value| row["size_bytes"] == 8 && row["data"] == "pull";
            for row in rows.iter_mut().filter(is_one) {
                let ns = row["latency_ns_p50"].as_f64().unwrap();
                row["latency_ns_p50"] = json!(ns * factor);
            }
        })
    };
    let own = changed.three("own", |_| ());
    let fail = |after: &str, limit: &str| compare(&[&own, after, "--fail-above", limit, "--brief"]);
    let by_half = fail(&slower(1.5), "5%");
    assert_eq!(by_half.status.code(), Some(1), "{}", text(&by_half));
    let told = text(&by_half);
    assert!(told.contains("pull") && told.contains("latency_ns_p50: 50.0 % worse"), "{told}");
    assert!(fail(&slower(1.5), "60").status.success());
    assert!(fail(&slower(0.5), "5%").status.success(), "faster is no loss");
    // Repeated with another outcome, the change is within what the rows vary.
    let both = format!("{own},{}", slower(1.6));
    let within = compare(&[&both, &slower(1.5), "--fail-above", "5%"]);
    assert!(within.status.success(), "{}", text(&within));
    // What is gone, and what was not verified, is no success.
    for (name, what) in [("gone", "MISSING: "), ("unverified", "NOT VERIFIED: ")] {
        let bad = changed.three(name, |rows| match name {
            "gone" => rows.truncate(1),
            _ => rows.iter_mut().for_each(|row| row["verified"] = json!(false)),
        });
        let output = fail(&bad, "5%");
        assert_eq!(output.status.code(), Some(1), "{name}: {}", text(&output));
        assert!(text(&output).contains(what), "{name}: {}", text(&output));
    }
    let own = result("h200.json");
    let slower = |factor: f64| slower(factor).split(',').next().unwrap().to_owned();
    let svg = compare(&[&own, &slower(1.5), "--svg", "-"]);
    assert!(text(&svg).contains("</svg>"));
    // Rows without sizes: one below the other, each with its verdict.
    let links = [result("link-h200.json"), result("link-h100.json")];
    let svg = text(&compare(&[&links[0], &links[1], "--svg", "-"]));
    assert!(
        svg.contains("fence.sys") && svg.contains("class=\"worse\"") && svg.ends_with("</svg>\n")
    );
    assert!(svg.matches("<circle").count() > 20 && !svg.contains("NaN"), "{svg}");
    let csv = text(&compare(&[&own, &slower(1.5), "--csv", "-"]));
    assert!(csv.starts_with("row,measure,before,after,ratio,low,high,verdict\n"), "{csv}");
}

#[test]
fn what_cannot_be_compared_is_one_line() {
    let changed = Changed { dir: tempfile::tempdir().unwrap() };
    let file = |name: &str, bytes: &[u8]| {
        let path = changed.dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let own = result("h200.json");
    let deep = [b"{\"results\":".as_slice(), &b"[".repeat(100_000)].concat();
    for (before, after, reason) in [
        (own.clone(), "/nowhere".into(), "/nowhere"),
        (own.clone(), "/dev/zero".into(), "not a regular file"),
        (own.clone(), file("empty", b""), "no JSON"),
        (own.clone(), file("deep", &deep), "no JSON"),
        (own.clone(), file("list", b"[]"), "no list of results"),
        (own.clone(), file("rows", b"{\"results\":[3]}"), "result 1 is no row"),
        (own.clone(), file("none", b"{\"results\":[]}"), "no row in common"),
        (own.clone(), result("link-h200.json"), "bench beside link: not the same"),
        (format!("{own},{}", result("link-h200.json")), own.clone(), "among those of bench"),
    ] {
        let output = compare(&[&before, &after]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{reason}: {error}");
        assert!(error.contains(reason) && error.lines().count() == 1, "{reason}: {error}");
    }
    // What is named is written all the same.
    let [json, csv, svg] = ["o.json", "o.csv", "o.svg"].map(|name| file(name, b""));
    let names = ["--fail-above", "5%", "--json", &json, "--csv", &csv, "--svg", &svg];
    let unjudged = compare(&[&[own.as_str(), &own], &names[..]].concat());
    assert_eq!(unjudged.status.code(), Some(2));
    for (path, begin) in [(&json, "{\n"), (&csv, "row,"), (&svg, "<svg")] {
        let written = std::fs::read_to_string(path).unwrap();
        assert!(written.starts_with(begin), "{path}: {written}");
    }
    let once = compare(&[&own, &own, "--fail-above", "5%"]);
    assert!(once.status.code() == Some(2) && text(&once).contains("measured often enough"));
    let twice = compare(&[&format!("{own},{own}"), &own]);
    assert!(twice.status.code() == Some(2) && text(&twice).contains("a second time"));
    // Laid out anew, and of another date, it is the same.
    let anew = changed.file("anew", "h200.json", |json| json["meta"]["date"] = json!("today"));
    let twice = compare(&[&format!("{own},{anew}"), &own]);
    assert!(twice.status.code() == Some(2) && text(&twice).contains("a second time"));
    let bad =
        changed.file("bad", "h200.json", |json| json["results"][3]["latency_ns_p50"] = json!(-5));
    let negative = compare(&[&own, &bad]);
    assert!(negative.status.code() == Some(2) && text(&negative).contains("latency_ns_p50 is -5"));
    let share = compare(&[&own, &own, "--fail-above", "x"]);
    assert!(share.status.code() == Some(2) && text(&share).contains("--fail-above x"));
    let kept = changed.file("kept", "h200.json", |_| {});
    let link = changed.dir.path().join("link");
    std::os::unix::fs::symlink(&kept, &link).unwrap();
    for to in [kept.clone(), link.display().to_string()] {
        let over = compare(&[&own, &kept, "--csv", &to]);
        assert!(
            over.status.code() == Some(2) && text(&over).contains("a file that is read"),
            "{to}"
        );
    }
    assert_eq!(std::fs::read(&kept).unwrap().first(), Some(&b'{'), "it is as it was");
}

/// Of which nothing arrived has neither a latency nor a rate, on one side or on both.
#[test]
fn what_was_not_verified_fails_though_nothing_was_measured() {
    let changed = Changed { dir: tempfile::tempdir().unwrap() };
    let nothing = |rows: &mut Vec<Value>, rate: Value| {
        for field in ["latency_ns_p50", "latency_ns_p99"] {
            rows[0][field] = Value::Null;
        }
        (rows[0]["bandwidth_gb_s"], rows[0]["verified"]) = (rate, json!(false));
    };
    for rate in [json!(0.0), Value::Null] {
        let name = |side: &str| format!("{side}{rate}");
        let before = changed.three(&name("before"), |rows| nothing(rows, rate.clone()));
        let after = changed.three(&name("after"), |rows| nothing(rows, rate.clone()));
        let output = compare(&[&before, &after, "--fail-above", "5", "--brief"]);
        assert_eq!(output.status.code(), Some(1), "{rate}: {}", text(&output));
        assert!(text(&output).contains("NOT VERIFIED: "), "{rate}: {}", text(&output));
        // A row that the other side does not have.
        let without = changed.three(&name("without"), |rows| drop(rows.remove(0)));
        let output = compare(&[&without, &after, "--fail-above", "5", "--brief"]);
        assert_eq!(output.status.code(), Some(1), "{rate}: {}", text(&output));
    }
}

/// Results whose fields have other meanings, and those that have nothing to compare.
#[test]
fn results_of_other_commands_are_refused() {
    let changed = Changed { dir: tempfile::tempdir().unwrap() };
    let links = [result("link-h200.json"), result("link-h100.json")];
    let own = changed.dir.path().join("compared").display().to_string();
    assert!(compare(&[&links[0], &links[1], "--json", &own]).status.success());
    for command in [json!("tlp"), json!("compare"), json!(7)] {
        let other =
            changed.file("other", "h200.json", |json| json["meta"]["command"] = command.clone());
        for file in [&other, &own] {
            let output = compare(&[file, file]);
            assert_eq!(output.status.code(), Some(2), "{command}: {}", text(&output));
            assert_eq!(text(&output).lines().count(), 1, "{command}: {}", text(&output));
        }
    }
    let shares = changed.file("shares", "h200.json", |json| {
        json["meta"]["command"] = json!("sim --sensitivity");
        json["results"] = json!([{ "push": "push/kernel", "bytes": 8, "base": 1.5 }]);
    });
    let output = compare(&[&shares, &shares]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output).contains("no value of which more or less is better"),
        "{}",
        text(&output)
    );
}

/// A row of a model is the same though what was known of it changed, and however it was written; and a model that was
/// asked otherwise is told of.
#[test]
fn what_a_model_says_is_compared_row_by_row() {
    let changed = Changed { dir: tempfile::tempdir().unwrap() };
    let file = |name: &str, command: &str, seed: u64, row: Value| {
        changed.file(name, "h200.json", |json| {
            json["meta"] = json!({ "command": command, "source": "model", "seed": seed,
                "in_flight": 8, "set": [] });
            json["results"] = json!([row]);
        })
    };
    let validated = |name: &str, kind: &str, first: Value| {
        let row = json!({ "table": "t", "row": "r", "measured": 10.0, "model": 8.0,
            "kind": kind, "first_asked": first, "published": true, "note": "" });
        file(name, "sim", 1, row)
    };
    let scaled_of = |name: &str, seed: u64, us: f64| {
        let row = json!({ "path": "pull", "gpus": 16, "bytes": 8, "algorithm": "Ring", "all_reduce_us": us });
        file(name, "sim --scale", seed, row)
    };
    let scaled = |name: &str, us: f64| scaled_of(name, 1, us);
    let asked = |name: &str, seed: u64, ratio: Value| {
        let row = json!({ "path": "pull", "bytes": 8, "completed_ns": 9.0, "time_ratio": ratio,
            "rate_ratio": ratio });
        file(name, "sim --what", seed, row)
    };
    let [before, after] =
        [validated("a", "predicted", json!(null)), validated("b", "known before", json!(9))];
    let output = compare(&[&before, &after, "--fail-above", "0"]);
    assert!(output.status.success() && text(&output).contains(" 1 the same"), "{}", text(&output));
    let output = compare(&[&scaled("c", 5.0), &scaled("d", 6.0), "--fail-above", "5"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let output = compare(&[&asked("e", 1, json!(1)), &asked("f", 2, json!(1.0))]);
    let told = text(&output);
    assert!(output.status.success() && told.contains(" 0 the same, 1 unknown"), "{told}");
    assert!(told.contains("or worse: seed 1, in_flight 8; seed 2, "), "{told}");
    let output = compare(&[&scaled_of("g", 1, 5.0), &scaled_of("h", 2, 6.0), "--fail-above", "5"]);
    let told = text(&output);
    assert!(output.status.code() == Some(2) && told.contains("no row can be judged: "), "{told}");
    assert!(told.contains("\n0 better, 0 worse"), "{told}");
}

/// A question that is put in other words is the same.
#[test]
fn a_model_that_was_asked_the_same_is_judged() {
    let dir = tempfile::tempdir().unwrap();
    let sim = |name: &str, args: &str| {
        let file = dir.path().join(name).display().to_string();
        let mut sim = Command::new(env!("CARGO_BIN_EXE_bellpush"));
        sim.args("sim --topology two-sockets --path pull --sizes 4KiB".split(' '));
        let output = sim.args(args.split(' ')).args(["--json", &file]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        file
    };
    let sets = "--set nic_tags=8 --set mrrs=512 --set gen=4";
    let other = "--set gen=4.0 --set mrrs=512 --set nic_tags=8 --seed 1 --gpu gpu0 --nic nic0";
    let told = text(&compare(&[&sim("one", sets), &sim("other", other)]));
    assert!(told.contains("exact") && told.contains("0 unknown"), "{told}");
    assert!(!told.contains("otherwise") && !told.contains(" 0 the same"), "{told}");
    let meta = |name: &str| -> Value {
        let json: Value =
            serde_json::from_slice(&std::fs::read(dir.path().join(name)).unwrap()).unwrap();
        json["meta"].clone()
    };
    assert_eq!((&meta("one")["gpu"], &meta("one")["nic"]), (&json!("gpu0"), &json!("nic0")));
}

/// Numbers and names that no machine gives: results come from others.
#[test]
fn odd_numbers_and_names_stay_in_their_place() {
    let changed = Changed { dir: tempfile::tempdir().unwrap() };
    let huge = |name: &str, ns: f64| {
        changed.file(name, "h200.json", |json| {
            let row = |n: u64| json!({ "data": "tcp", "latency_ns_p50": ns, "messages": n });
            json["results"] = json!((0..4).map(row).collect::<Vec<_>>());
        })
    };
    let output = compare(&[&huge("a", 1.5e308), &huge("b", 1.7e308), "--fail-above", "1"]);
    let told = text(&output);
    assert!(output.status.code() == Some(1) && told.contains("13.3 % worse"), "{told}");
    assert!(told.lines().all(|line| line.len() < 120), "{told}");
    let tiny = text(&compare(&[&huge("c", 2.5e-5), &huge("d", 2e-5)]));
    assert!(tiny.contains("2.500e-5") && tiny.contains("2.000e-5"), "{tiny}");
    let named = changed.file("named", "link-h200.json", |json| {
        json["results"] = json!([{ "row": "=cmd|' /C calc'!A0</text>\u{fffe}\u{1b}", "unit": "ns",
            "median": 5.0, "min": 4.0, "max": 6.0 }]);
    });
    let csv = text(&compare(&[&named, &named, "--csv", "-"]));
    assert!(csv.lines().nth(1).unwrap().starts_with("'=cmd|"), "{csv}");
    let svg = text(&compare(&[&named, &named, "--svg", "-"]));
    assert!(!svg.contains(['\u{fffe}', '\u{1b}']) && !svg.contains("A0</text>"), "{svg}");
}

/// Whatever a file is called, it holds one result.
#[test]
fn one_file_holds_one_result() {
    let dir = tempfile::tempdir().unwrap();
    let own = result("link-h200.json");
    std::os::unix::fs::symlink("there", dir.path().join("link")).unwrap();
    std::fs::write(dir.path().join("there"), "as it was").unwrap();
    for (csv, json) in [("new", "./new"), ("there", "link")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bellpush"));
        command.current_dir(dir.path()).args(["compare", &own, &own, "--csv", csv, "--json", json]);
        let output = command.output().unwrap();
        let told = text(&output);
        assert!(
            output.status.code() == Some(2) && told.contains("one result fits"),
            "{csv}: {told}"
        );
    }
    assert_eq!(std::fs::read(dir.path().join("there")).unwrap(), b"as it was");
}
