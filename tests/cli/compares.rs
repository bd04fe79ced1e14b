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
        (own.clone(), "/dev/zero".into(), "more than"),
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
        assert!(error.contains(reason) && error.lines().count() <= 2, "{reason}: {error}");
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
        assert!(over.status.code() == Some(2) && text(&over).contains("files to compare"), "{to}");
    }
    assert_eq!(std::fs::read(&kept).unwrap().first(), Some(&b'{'), "it is as it was");
}
