//! `bellpush link`.

use super::{sim, topo};

/// Four executors at once, each set of flows moves what it should.
fn together_on_the_host_executor() {
    let run = |args: &[&str]| {
        let command = [&["link", "--together"], args].concat();
        std::process::Command::new(env!("CARGO_BIN_EXE_bellpush")).args(command).output().unwrap()
    };
    let output = run(&["host,host,host,host", "--json", "-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["results"].as_array().unwrap();
    let most = rows.iter().filter_map(|r| r["flows"].as_u64()).max();
    assert!(most == Some(8) && rows.iter().all(|r| r["verified"] == true), "{rows:?}");
    let rate = |r: &serde_json::Value| r["measured"].as_f64().unwrap() > 0.0;
    assert!(rows.iter().all(rate) && rows.iter().all(|r| r["model"].is_null()));
    let text = String::from_utf8(run(&["host,host"]).stdout).unwrap();
    assert!(text.contains("GPU 0 stores to GPU 1") && !text.contains("share a link"), "{text}");
    for (args, reason) in [
        (&["0,0"][..], "0 stands twice"),
        (&["x"], "x"),
        (&["host,"], "--together host,: \"\" is no GPU"),
        (&["host", "--topology", "/nowhere"], "/nowhere"),
        (&["host", "--gpu", "0"], "cannot be used with"),
    ] {
        let output = run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(reason) && output.status.code() != Some(0), "{args:?}: {error}");
    }
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
    together_on_the_host_executor();
    assert_eq!(json["meta"]["calibration"], serde_json::json!([]));
    let rows = json["results"].as_array().unwrap();
    for kind in ["stream", "burst", "latency", "fence.sys", "fence.gpu", "round-trip"] {
        assert!(rows.iter().any(|r| r["kind"] == kind && r["target"] == "peer"), "{kind}");
    }
    for held in ["core", "device", "another"] {
        assert!(rows.iter().any(|r| r["kind"] == "page" && r["held"] == held), "{held}");
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
        (["--set", "speed=1"], "no such parameter; there are link_ns"),
        (["--timeout-ms", "0"], "nothing ends at once"),
        (["--json", "no/such/place"], "does not exist"),
    ] {
        let output = run(&args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(reason), "{args:?}: {error}");
    }
}

/// What another machine's flows at once say of its ports, shared links and host.
#[test]
fn link_takes_a_result_of_several_gpus() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/link-h100-together.json");
    let run = |args: &[&str]| {
        let command = [&["link", "--measured", file], args].concat();
        std::process::Command::new(env!("CARGO_BIN_EXE_bellpush")).args(command).output().unwrap()
    };
    let output = run(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for said in [
        "to host memory, GB/s: ports: GPU 0 52.7, GPU 1 52.7, GPU 2 52.7, GPU 3 52.7",
        "root complexes and memory: at least 209.8",
        "root complexes and memory: 151.4, less than ports and shared links",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    // Saved again it is the same result, and can be read as one.
    let dir = tempfile::tempdir().unwrap();
    let again = dir.path().join("again.json");
    let again = again.to_str().unwrap();
    assert!(run(&["--json", again]).status.success());
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(again).unwrap()).unwrap();
    assert_eq!(saved["meta"]["limits"][1]["host_limits"], true);
    assert_eq!(saved["meta"]["limits"][0]["host_limits"], false);
    let twice = std::process::Command::new(env!("CARGO_BIN_EXE_bellpush"))
        .args(["link", "--measured", again])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(twice.stdout).unwrap(), text);
}

/// What several GPUs read from host memory together goes into their machine's file, and the model has it from there.
/// The errors are those of docs/results/link-h100.md: the rows of the four loads gave the limit, all others did not.
#[test]
fn what_several_gpus_measured_goes_into_a_topology() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let file = format!("{root}docs/results/link-h100-together.json");
    let machine = format!("{root}crates/pcie/machines/h100-4.toml");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let own = at("own.toml");
    let told = topo(&[&machine, "--no-predict", "--measured", &file, "--save", &own]).unwrap();
    assert!(
        told.contains("reads of memory 151.39") && !told.contains("writes to memory"),
        "{told}"
    );
    let text = std::fs::read_to_string(&own).unwrap();
    assert!(text.contains("memory_read_gb_per_s = 151.39") && !text.contains("memory_write"));
    assert_eq!(topo(&[&own, "--no-predict"]).unwrap(), told);
    let link = |topology: &str| {
        let args = ["link", "--measured", &file, "--topology", topology, "--json", "-"];
        let command =
            std::process::Command::new(env!("CARGO_BIN_EXE_bellpush")).args(args).output();
        let output = command.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["results"].as_array().unwrap().clone()
    };
    // Least and greatest error, percent, of the rows of so many flows one way; `None`: both ways at once.
    let errors = |rows: &[serde_json::Value], flows: usize, access: Option<&str>| {
        let is_set = |r: &&serde_json::Value| {
            let ways = r["together"].as_str().unwrap();
            let both = ways.contains("stores") && ways.contains("loads");
            let is_way = access.map_or(both, |way| !both && r["access"] == way);
            r["flows"] == flows && is_way && r["peer"].is_null()
        };
        let all = rows.iter().filter(is_set).map(|r| r["error_percent"].as_f64().unwrap());
        let all: Vec<i64> = all.map(|e| e.round() as i64).collect();
        (*all.iter().min().unwrap(), *all.iter().max().unwrap(), all.len())
    };
    let with = link(&own);
    let rows = [(4, Some("load")), (4, Some("store")), (2, Some("load")), (2, Some("store"))];
    let both = [(2, None), (8, None)];
    let of = |all: &[serde_json::Value]| {
        rows.iter().chain(&both).map(|&(n, way)| errors(all, n, way)).collect::<Vec<_>>()
    };
    assert_eq!(of(&with), WITH_A_LIMIT);
    let four = "gpu0<s0,gpu1<s0,gpu2<s0,gpu3<s0";
    let sum = |topology: &str| sim(&["--topology", topology, "--flows", four]).unwrap();
    assert!(
        sum(&own).contains("together  gb_per_s 151.")
            && sum(&own).contains("nearest_limits memory")
    );
    assert!(sum(&machine).contains("together  gb_per_s 230."), "{}", sum(&machine));
    assert!(with.iter().filter(|r| !r["peer"].is_null()).all(|r| r["model"].is_null()));
    // Whose memory it was, how many GPUs there are, and what was measured: else nothing is taken.
    let changed = |from: &str, to: &str| {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(at("changed.json"), text.replace(from, to)).unwrap();
        topo(&[&machine, "--measured", &at("changed.json")]).unwrap_err()
    };
    for (error, reason) in [
        (topo(&["dgx-h100", "--measured", &file]).unwrap_err(), "do not say whose the host memory"),
        (topo(&["same-switch", "--measured", &file]).unwrap_err(), "of 4 GPUs; here are 1"),
        (changed("NVIDIA H100", "NVIDIA H200"), "measured on \"cuda:NVIDIA H200"),
        (changed("\"verified\": true", "\"verified\": false"), "row 1: it did not move what"),
        (changed("\"measured\": 37.", "\"measured\": 50."), "no limit of host memory"),
        (changed("\"measured\": 37.", "\"measured\": -37."), "measured -37."),
        (changed("\"gpus\"", "\"cards\""), "meta.gpus are no names"),
    ] {
        assert!(error.contains(reason) && error.lines().count() == 1, "{reason}: {error}");
    }
    let few = std::process::Command::new(env!("CARGO_BIN_EXE_bellpush"))
        .args(["link", "--measured", &file, "--topology", "same-switch"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&few.stderr).into_owned();
    assert!(
        few.status.code() == Some(2) && error.contains("1 GPUs, and the rows are of 4"),
        "{error}"
    );
}

/// Least and greatest error, percent, and rows: four loads at once, four stores, pairs of loads, of stores, each GPU
/// both ways, all of them both ways.
const WITH_A_LIMIT: [(i64, i64, usize); 6] =
    [(0, 0, 4), (10, 10, 4), (14, 17, 12), (9, 12, 12), (10, 235, 8), (12, 132, 8)];

/// The model's errors on the two hosts that were measured, as the pages of results have them.
#[test]
#[ignore = "fits and predicts 350 rows, three times"]
fn pages_have_the_errors_of_both_hosts() {
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/");
    let within = |file: &str, more: &[&str]| {
        let file = format!("{results}{file}");
        let args = [&["link", "--measured", &file, "--json", "-"], more].concat();
        let output =
            std::process::Command::new(env!("CARGO_BIN_EXE_bellpush")).args(args).output().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = json["results"].as_array().unwrap().iter();
        let rows = rows.filter(|r| r["source"] == "predicted");
        let errors: Vec<f64> = rows.map(|r| r["error_percent"].as_f64().unwrap().abs()).collect();
        let at = |limit: f64| errors.iter().filter(|e| **e <= limit).count();
        [errors.len(), at(5.0), at(10.0), at(15.0), at(20.0)]
    };
    let [all, five, ten, _, twenty] = within("link-h200.json", &[]);
    assert_eq!([all, five, ten, twenty], [161, 103, 135, 154]);
    assert_eq!(within("link-h100.json", &[]), [161, 85, 128, 146, 153]);
    assert_eq!(within("link-h100.json", &["--no-fit"]), [174, 49, 100, 139, 150]);
}
