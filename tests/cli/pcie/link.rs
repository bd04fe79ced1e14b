//! `bellpush link`.

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
    assert!(text.contains("GPU 0 stores to GPU 1") && text.contains("host memory: "), "{text}");
    for (args, reason) in [
        (&["0,0"][..], "0 stands twice"),
        (&["x"], "x"),
        (&["host,"], "is no device"),
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
