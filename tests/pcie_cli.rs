//! The command modules of the PCIe model, called without the command line around them.
#![cfg(feature = "cli")]
#![allow(missing_docs)]

use clap::Parser;

#[path = "../src/bin/bellpush/cli.rs"]
#[allow(dead_code)]
mod cli;

#[path = "../src/bin/bellpush/values.rs"]
#[allow(dead_code)]
mod values;

#[path = "../src/bin/bellpush/tlp.rs"]
#[allow(dead_code)]
mod tlp;

#[path = "../src/bin/bellpush/topo.rs"]
#[allow(dead_code)]
mod topo;

#[path = "../src/bin/bellpush/sim.rs"]
#[allow(dead_code)]
mod sim;

#[path = "../src/bin/bellpush/sim_report.rs"]
#[allow(dead_code)]
mod sim_report;

#[derive(Parser)]
struct Topo {
    #[command(flatten)]
    args: topo::TopoArgs,
}

#[derive(Parser)]
struct Sim {
    #[command(flatten)]
    args: sim::SimArgs,
}

fn topo(args: &[&str]) -> Result<String, String> {
    let parsed = Topo::try_parse_from([&["topo"], args].concat()).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    topo::run_to(&parsed.args, &mut out).map_err(|e| e.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

fn sim(args: &[&str]) -> Result<String, String> {
    let parsed = Sim::try_parse_from([&["sim"], args].concat()).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    sim::run_to(&parsed.args, &mut out).map_err(|e| e.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

#[derive(Parser)]
struct Tlp {
    #[command(flatten)]
    args: tlp::TlpArgs,
}

fn tlp(args: &[&str]) -> Result<String, String> {
    let parsed = Tlp::try_parse_from([&["tlp"], args].concat()).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    tlp::run_to(&parsed.args, &mut out).map_err(|e| e.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

const GEN3: [&str; 10] =
    ["--gen", "3", "--lanes", "8", "--mps", "256", "--mrrs", "512", "--rcb", "64"];

#[test]
fn tlp_json_holds_the_published_numbers() {
    let text = tlp(&[&GEN3[..], &["--sizes", "64,512", "--json", "-"]].concat()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let row = json["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["bytes"] == 64 && r["dllp_tax"] == true)
        .unwrap();
    assert!((row["write"].as_f64().unwrap() - 42.098).abs() < 5.1e-4);
    assert!((row["both"].as_f64().unwrap() - 33.077).abs() < 5.1e-4);
}

#[test]
fn tlp_says_when_no_tax_is_known_and_refuses_the_impossible() {
    assert!(tlp(&["--gen", "6"]).unwrap().contains("no limits published"));
    assert!(tlp(&["--mps", "100"]).unwrap_err().contains("MPS of 100 B"));
    assert!(tlp(&["--lanes", "0"]).unwrap_err().contains("0 lanes"));
}

#[test]
fn topo_draws_classes_and_recommends() {
    let text = topo(&["two-root-complexes"]).unwrap();
    assert!(text.contains("NODE") && text.contains("use push/"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&topo(&["desktop", "--json", "-"]).unwrap()).unwrap();
    let row = &json["results"][0];
    assert_eq!(row["class"], "PHB");
    // No peer reads on a client CPU: no pull there.
    assert!(row["advice"][0]["completed_ns"]["pull"].is_null());
    assert!(topo(&["dgx-h100", "--no-predict", "--svg", "-"]).unwrap().contains("</svg>"));
    assert!(topo(&["no-such-file"]).unwrap_err().contains("same-switch"));
}

#[test]
fn topo_reports_a_bad_file_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    let text = "[[socket]]\nid = \"s0\"\n[[gpu]]\nid = \"g\"\nparent = \"rc\"\n";
    std::fs::write(&file, text).unwrap();
    let error = topo(&[file.to_str().unwrap()]).unwrap_err();
    assert!(error.contains("line 5: g: unknown device \"rc\""), "{error}");
}

#[test]
fn sim_prints_json_csv_and_refuses_nonsense() {
    let base = ["--topology", "same-switch", "--sizes", "8,4KiB"];
    let text = sim(&[&base[..], &["--json", "-"]].concat()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["results"].as_array().unwrap().len(), 10);
    assert_eq!(text, sim(&[&base[..], &["--json", "-"]].concat()).unwrap());
    let csv = sim(&[&base[..], &["--csv", "-", "--path", "pull"]].concat()).unwrap();
    assert_eq!(csv.lines().count(), 3);
    let table = sim(&base).unwrap();
    assert!(table.contains("window that keeps the wire busy"));
    for (args, reason) in [
        (["--sizes", "4GB"], "unknown unit"),
        (["--sizes", "4GiB"], "from 1 B"),
        (["--sizes", "64MiB"], "at most 16 MiB"),
        (["--sizes", "0"], "from 1 B"),
        (["--path", "teleport"], "unknown"),
        (["--set", "wire_ns=-1"], "not negative"),
        (["--set", "speed=1"], "one of"),
        (["--gpu", "gpu9"], "no GPU"),
    ] {
        let error = sim(&args).unwrap_err();
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}

#[test]
fn sim_losses_say_why() {
    let text = sim(&["--topology", "two-root-complexes", "--sizes", "64", "--losses"]).unwrap();
    assert!(text.contains("the fence before the doorbell"), "{text}");
}

/// Kernels on CPU threads, two executors: every kind of row moves what it should.
#[test]
fn link_runs_on_the_host_executor_and_says_that_its_numbers_are_no_links() {
    let run = |args: &[&str]| {
        let command = [&["link", "--gpu", "host"], args].concat();
        std::process::Command::new(env!("CARGO_BIN_EXE_bellpush")).args(command).output().unwrap()
    };
    let output = run(&["--json", "-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["meta"]["notes"][0].as_str().unwrap().contains("no link's"));
    assert_eq!(json["meta"]["calibration"], serde_json::json!([]));
    let rows = json["results"].as_array().unwrap();
    for kind in ["stream", "burst", "latency", "fence.sys", "fence.gpu", "round-trip"] {
        assert!(rows.iter().any(|r| r["kind"] == kind && r["target"] == "peer"), "{kind}");
    }
    for row in rows {
        assert!(row["verified"] == true && row["measured"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["model"].is_null(), "{row}");
    }
    let text = String::from_utf8(run(&["--peer", "none"]).stdout).unwrap();
    assert!(text.contains("no link's") && !text.contains("the peer's memory"), "{text}");
    for (args, reason) in [
        (["--peer", "0"], "no peer"),
        (["--gen", "7"], "generation 7"),
        (["--lanes", "3"], "3 lanes"),
        (["--set", "speed=1"], "one of"),
        (["--timeout-ms", "0"], "nothing ends at once"),
        (["--json", "no/such/place"], "does not exist"),
    ] {
        let output = run(&args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(reason), "{args:?}: {error}");
    }
}

#[test]
fn sim_report_is_one_page_with_every_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    let args = ["--topology", "desktop", "--sizes", "8,4KiB,64KiB", "--in-flight", "2"];
    sim(&[&args[..], &["--report", file.to_str().unwrap()]].concat()).unwrap();
    let page = std::fs::read_to_string(&file).unwrap();
    // Latency and rate, window and distance, tags, four of the GPU's accesses.
    assert_eq!(page.matches("<svg ").count(), 9);
    for text in ["There is no pull here", "The window", "stores to host, measured", "wire_ns"] {
        assert!(page.contains(text), "{text}");
    }
    let error = sim(&["--report", "no/such/place/page.html", "--sizes", "8"]).unwrap_err();
    assert!(error.contains("does not exist"), "{error}");
    for other in ["--losses", "--sensitivity", "--validate"] {
        let error = sim(&["--report", "page.html", other]).unwrap_err();
        assert!(error.contains("--report"), "{error}");
    }
}
