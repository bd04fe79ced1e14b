//! `bellpush sim`.

use super::{sim, topo};

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
        (["--sizes", "4GB"], "--sizes: \"4GB\": unknown unit"),
        (["--sizes", "4GiB"], "from 1 B"),
        (["--sizes", "64MiB"], "at most 16 MiB"),
        (["--sizes", "0"], "from 1 B"),
        (["--path", "teleport"], "no such path; there are push/kernel"),
        (["--set", "wire_ns=-1"], "wire_ns=-1: must be from 0"),
        (["--set", "wire_ns=1e300"], "must be from 0 to"),
        (["--set", "wire_gb_per_s=0"], "must be from 0.001"),
        (["--set", "window_kib=1e12"], "must be from 8"),
        (["--set", "nic_tags=0"], "must be from 1"),
        (["--set", "staged_ends=1.5"], "must be a whole number"),
        (["--set", "blocks=NaN"], "must be from 1"),
        (["--set", "store_tlp_bytes=0"], "must be from 4"),
        (["--in-flight", "0"], "must be from 1 to 1024"),
        (["--in-flight", "100000000"], "must be from 1 to 1024"),
        (["--set", "speed=1"], "no such parameter; there are link_ns"),
        (["--gpu", "gpu9"], "no GPU"),
    ] {
        let error = sim(&args).unwrap_err();
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}

#[test]
fn sim_names_the_way_and_who_refuses_on_it() {
    let text = sim(&["--topology", "desktop", "--sizes", "8"]).unwrap();
    assert!(text.contains("gpu0 > rc0 > pch > nic0"), "{text}");
    assert!(text.contains("not possible: rc0 refuses peer reads"), "{text}");
    let text = sim(&["--topology", "two-root-complexes", "--sizes", "8"]).unwrap();
    assert!(text.contains("unknown, taken as allowed: rc0 reads"), "{text}");
    let text = topo(&["two-root-complexes", "--no-predict"]).unwrap();
    assert!(text.contains("NODE gpu0 > rp-gpu > rc0 > s0 > rc1 > rp-nic > nic0"), "{text}");
}

/// The NIC's requests alone climb: what is said of them must not be missing because the GPU's writes do not.
#[test]
fn a_way_back_that_is_another_one_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one-port.toml");
    let text = "[[socket]]\nid='s0'\n[[root_complex]]\nid='rc0'\nsocket='s0'\np2p_reads=false\n\
                [[switch]]\nid='sw0'\nparent='rc0'\n[[gpu]]\nid='gpu0'\nparent='sw0'\n\
                [[nic]]\nid='nic0'\nparent='sw0'\nport_acs=true\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let drawn = topo(&[file]).unwrap();
    assert!(drawn.contains("nic0 > sw0 > rc0 > sw0 > gpu0  (the way back)"), "{drawn}");
    assert!(drawn.contains("rc0 refuses peer reads."), "{drawn}");
    let simulated = sim(&["--topology", file, "--sizes", "8"]).unwrap();
    assert!(simulated.contains("(the way back, PHB)"), "{simulated}");
    assert!(simulated.contains("not possible: rc0 refuses peer reads"), "{simulated}");
    // A GPU's reads of the NIC stay in the switch; the completions climb, and nobody refuses them.
    let flow = sim(&["--topology", file, "--flows", "gpu0<nic0"]).unwrap();
    assert!(flow.contains("requests go gpu0 > sw0 > nic0") && !flow.contains("refuses"), "{flow}");
}

/// Where no push gets through there is no window either, and the next topology has its turn.
#[test]
fn a_topology_without_peer_writes_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("refuses.toml");
    let text = "[[socket]]\nid='s0'\n[[root_complex]]\nid='rc0'\nsocket='s0'\np2p_writes=false\n\
                [[gpu]]\nid='gpu0'\nparent='rc0'\n[[nic]]\nid='nic0'\nparent='rc0'\n";
    std::fs::write(&file, text).unwrap();
    let both = format!("{},same-switch", file.display());
    let told = sim(&["--topology", &both, "--sizes", "8"]).unwrap();
    assert!(told.contains("not possible: rc0 refuses peer writes"), "{told}");
    assert_eq!(told.matches("window that keeps the wire busy").count(), 1, "{told}");
}

#[test]
fn sim_flows_share_links_and_warn_of_collapses() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcie/machines/esc8000a-e13p.toml");
    let run = |flows: &str| sim(&["--topology", root, "--flows", flows]);
    let text = run("gpu0>gpu4,gpu1>gpu6").unwrap();
    assert!(text.contains("collapse to 2.7 GB/s") && text.contains("round 2"), "{text}");
    let dgx = ["--topology", "dgx-h100", "--flows", "gpu0>nic0,gpu1>nic0", "--message", "8"];
    let small = sim(&[&dgx[..], &["--in-flight", "256"]].concat()).unwrap();
    assert!(small.contains("messages_per_us 333."), "{small}");
    for (bytes, said) in [
        ("2MiB", "1 MiB"),
        ("64,128", "--message: \"64,128\": unknown unit"),
        ("0", "--message: 0: sizes go from 1 B"),
    ] {
        let error = sim(&[&dgx[..4], &["--message", bytes]].concat()).unwrap_err();
        assert!(error.contains(said), "{bytes}: {error}");
    }
    // A table of rates alone would not tell.
    let flows = ["--topology", root, "--flows", "gpu0>gpu4,gpu1>gpu6", "--csv", "-"];
    let csv = sim(&flows).unwrap();
    assert!(csv.contains("collapse to 2.7 GB/s"), "{csv}");
    assert!(
        csv.lines().next().unwrap().contains("warning")
            && csv.contains("nearest_limits")
            && csv.contains("posted-write collapse (read)"),
        "{csv}"
    );
    let pull = ["--topology", "two-root-complexes", "--path", "pull", "--sizes", "64KiB"];
    let pull = sim(&pull).unwrap();
    assert!(pull.contains("nic_tags (assumed) with wire_gb_per_s (assumed), none alone"), "{pull}");
    let reads = run("gpu4<gpu0,gpu6<gpu1").unwrap();
    assert!(!reads.contains("warning") && !reads.contains("round "), "{reads}");
    assert!(run("gpu0>gpu9").unwrap_err().contains("no device"));
    let error = sim(&["--topology", "desktop", "--flows", "nic0<gpu0"]).unwrap_err();
    assert!(error.contains("not possible: rc0 refuses peer reads"), "{error}");
}

/// Numbers of the whole topology are set as parameters are, and the name says so.
#[test]
fn numbers_of_the_topology_are_set() {
    let both = ["--topology", "same-switch", "--flows", "gpu0>nic0,nic0>gpu0", "--json", "-"];
    let sums = |more: &[&str]| -> Vec<f64> {
        let text = sim(&[&both[..], more].concat()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = json["results"].as_array().unwrap().iter();
        let rows = rows.filter(|r| r["flow"] == "all together");
        rows.map(|r| r["gb_per_s"].as_f64().unwrap()).collect()
    };
    let [as_it_is, on, off] = sums(&["--what", "acs=on|off"])[..] else { panic!("three") };
    assert_eq!(sums(&["--set", "acs=on"]), [on]);
    assert_eq!((sums(&["--set", "acs=off"]), as_it_is), (vec![off], off));
    assert!(on < 0.6 * off, "{on} {off}");
    let narrow = sums(&["--set", "acs=on", "--set", "mps=128"]);
    assert!(narrow[0] < 0.95 * on, "{narrow:?}");
    let table = sim(&["--topology", "same-switch", "--set", "acs=on", "--path", "pull"]).unwrap();
    assert!(table.starts_with("same-switch with acs=on (PHB), model"), "{table}");
    let flow = ["--topology", "two-root-complexes", "--flows", "gpu0>nic0", "--set"];
    for (set, said) in [
        ("acs=on", "--set acs: no part in these flows"),
        ("mps=100", "--set mps=100: no topology has it: a power of two from 128"),
        ("gen=4|5", "--set gen: one value at a time; ask for several with --what"),
        ("acs=yes", "--set acs=yes: on or off"),
    ] {
        let error = sim(&[&flow[..], &[set]].concat()).unwrap_err();
        assert!(error.contains(said), "{set}: {error}");
    }
    let error = sim(&["--validate", "--set", "acs=on"]).unwrap_err();
    assert!(error.contains("--set acs: no part in the rows of --validate"), "{error}");
    let error = topo(&["same-switch", "--set", "mrrs=512"]).unwrap_err();
    assert!(error.contains("mrrs is no parameter, but of the topology"), "{error}");
}

/// What if, of streams: one uplink carries both ways where ACS redirects.
#[test]
fn flows_are_asked_what_if() {
    let both = ["--topology", "same-switch", "--flows", "gpu0>nic0,nic0>gpu0"];
    let text = sim(&[&both[..], &["--what", "acs=on|off"]].concat()).unwrap();
    let rate = |settings: &str| {
        let is = |l: &&str| l.contains("flow all together") && l.contains(settings);
        let line = text.lines().find(is).unwrap_or_else(|| panic!("{settings}: {text}"));
        line.split("gb_per_s ").nth(1).unwrap().split(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!((rate("settings as it is") / 112.1 - 1.0).abs() < 0.01, "{text}");
    assert_eq!(rate("settings acs=off"), rate("settings as it is"));
    assert!((rate("settings acs=on") / 56.0 - 1.0).abs() < 0.01, "{text}");
    // Where nothing is to be redirected, it says so.
    let args = ["--topology", "two-root-complexes", "--flows", "gpu0>nic0", "--what", "acs=on"];
    let refused = sim(&args).unwrap_err();
    assert!(refused.contains("redirect, and there is no switch)"), "{refused}");
    let off = sim(&[
        "--topology",
        "two-root-complexes",
        "--flows",
        "nic0<gpu0",
        "--what",
        "p2p_reads=off",
    ]);
    assert!(off.unwrap().contains("why_not"), "a combination without the flow is told");
    let eight = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcie/machines/esc8000a-e13p.toml");
    let every = sim(&["--topology", eight, "--flows", "all-to-all"]);
    assert_eq!(every.unwrap().lines().filter(|l| l.contains("flow gpu")).count(), 56);
    let few = sim(&["--topology", "desktop", "--flows", "all-to-all"]).unwrap_err();
    assert!(few.contains("desktop has 1 GPUs, too few"), "{few}");
}

#[test]
fn sim_what_if_is_a_table_a_plot_and_json() {
    let base = ["--topology", "same-switch", "--path", "pull", "--sizes", "64KiB"];
    let run = |args: &[&str]| sim(&[&base[..], args].concat());
    let table = run(&["--what", "tags=8|64,acs=on|off"]).unwrap();
    let rows: Vec<&str> = table.lines().filter(|l| l.contains(" pull ")).collect();
    assert_eq!(rows.len(), 5, "{table}");
    assert!(rows[0].contains("PIX") && rows[0].contains(" 1.00 "), "{table}");
    assert!(rows[1].trim_start().starts_with("8       on") && rows[1].contains("PHB"), "{table}");
    let json = run(&["--what", "tags=8|64,acs=on|off", "--json", "-"]).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["meta"]["command"], "sim --what");
    let rows = json["results"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[1]["settings"]["acs"]), (5, &serde_json::json!("on")));
    assert!(rows[2]["rate_ratio"].as_f64().unwrap() < 0.5, "8 reads: {rows:?}");
    let svg = run(&["--what", "tags=8..64,acs=on|off", "--svg", "-"]).unwrap();
    assert!(svg.contains("</svg>") && svg.contains("pull, acs=off"), "{svg}");
    for (args, reason) in [
        (&["--what", "speed=1"][..], "--what \"speed\": no such number; there are mrrs, mps"),
        (&["--what", "mrrs=300"], "--what mrrs=300: no topology has it"),
        (&["--what", "tags=1..512,mrrs=128..4096,acs=on|off"], "more than 64 combinations"),
        (&["--what", "acs=on|off", "--svg", "-"], "no number of several values"),
        (&["--what", "tags=8|9,p2p_reads=off,acs=on", "--svg", "-"], "nothing to draw"),
        (&["--what", "tags=8|9", "--svg", "-", "--json", "-"], "one result fits"),
        (&["--svg", "-"], "--what"),
    ] {
        let error = run(args).unwrap_err();
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}

/// An option without use is refused: its name, and what it is for.
#[test]
fn sim_refuses_options_that_change_nothing() {
    let flows = ["--topology", "dgx-h100", "--flows", "gpu0>gpu1"];
    let what = ["--topology", "same-switch", "--path", "pull", "--sizes", "8", "--what", "tags=8"];
    let rows = ["--validate"];
    let one = ["--topology", "same-switch", "--sizes", "8"];
    for (base, more, said) in [
        (
            &flows[..],
            &["--sizes", "64"][..],
            "--sizes is for operations only; leave it out of --flows",
        ),
        (&flows, &["--path", "pull"], "--path is for the table of operations, --what and --report"),
        (&flows, &["--gpu", "gpu0"], "--gpu is for operations only"),
        (&flows, &["--nic", "nic0"], "--nic is for operations only"),
        (&flows, &["--in-flight", "8"], "--flows with --message only"),
        (&flows, &["--seed", "3"], "--seed is for operations only"),
        (&flows, &["--set", "nic_message_ns=9"], "--set nic_message_ns: no part in these flows"),
        (
            &flows,
            &["--set", "nic_message_ns=9"],
            "Least time from one message to the next at a NIC",
        ),
        (&flows, &["--set", "wire_ns=700"], "--set wire_ns: no part in these flows"),
        (&flows, &["--losses"], "--losses and --flows are two questions"),
        (
            &what,
            &["--set", "nic_message_ns=9"],
            "--set nic_message_ns: no part in these operations",
        ),
        (&what[..6], &["--what", "chip_ns=1|2"], "--what chip_ns: no part in these operations"),
        (
            &rows,
            &["--topology", "dgx-h100"],
            "--topology is for operations and flows only; leave it out of --validate",
        ),
        (&rows, &["--sizes", "8"], "--sizes is for operations only; leave it out of --validate"),
        (&rows, &["--in-flight", "2"], "--in-flight is for the table of operations"),
        (&rows, &["--set", "wire_ns=700"], "--set wire_ns: no part in the rows of --validate"),
        (&rows, &["--derivatives"], "--validate and --derivatives are two questions"),
        (
            &rows,
            &["--leave-one-out", "--path", "pull"],
            "leave it out of --validate --leave-one-out",
        ),
        (&rows, &["--leave-one-out", "--set", "nic_tags=9"], "no part in the rows of"),
        (&["--derivatives"], &["--seed", "2"], "--seed is for operations only; leave it out of"),
        (&["--derivatives"], &["--set", "fence_idle_ns=2"], "in the rows of --derivatives"),
        (&one, &["--losses", "--path", "pull"], "leave it out of --losses"),
        (&one, &["--losses", "--sensitivity"], "are two questions"),
        (&one, &["--sensitivity", "--in-flight", "2"], "leave it out of --sensitivity"),
        (&one, &["--scale", "8", "--path", "pull"], "leave it out of --scale"),
        (&one, &["--scale", "8", "--set", "socket_hop_ns=9"], "no part in the costs of --scale"),
        (&one, &["--set", "nic_message_ns=9"], "--set nic_message_ns: no part in these operations"),
        (&one, &["--set", "socket_hop_ns=9"], "--set socket_hop_ns: no part in these operations"),
    ] {
        let error = sim(&[base, more].concat()).unwrap_err();
        assert!(error.contains(said) && error.lines().count() == 1, "{more:?}: {error}");
    }
}

/// A value that has a part is taken, also where it moves nothing, or moves one topology of two.
#[test]
fn sim_takes_what_has_a_part() {
    let one = ["--topology", "same-switch", "--sizes", "8"];
    let two = ["--topology", "same-switch,two-sockets", "--sizes", "8"];
    let message = ["--topology", "dgx-h100", "--flows", "gpu0>nic0", "--message", "8"];
    for (base, more) in [
        (&one[..], &["--set", "wire_ns=600"][..]),
        (&two, &["--set", "socket_hop_ns=60"]),
        (&one, &["--set", "iotlb_walkers=2", "--what", "iommu=on"]),
        (&one, &["--set", "nic_tags=8", "--what", "tags=64"]),
        (&message, &["--in-flight", "64", "--set", "nic_message_ns=50"]),
    ] {
        assert!(sim(&[base, more].concat()).is_ok(), "{more:?}");
    }
}

#[test]
fn sim_losses_say_why() {
    let swept = sim(&["--topology", "two-root-complexes", "--sizes", "64"]).unwrap();
    assert!(
        swept.contains("keep them in host memory") && swept.contains("no card does"),
        "{swept}"
    );
    let text = sim(&["--topology", "two-root-complexes", "--sizes", "64", "--losses"]).unwrap();
    assert!(text.contains("the fence before the doorbell"), "{text}");
}

#[test]
fn sim_report_is_one_page_with_every_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    let args = ["--topology", "desktop", "--sizes", "8,4KiB,64KiB", "--in-flight", "2"];
    sim(&[&args[..], &["--report", file.to_str().unwrap()]].concat()).unwrap();
    let page = std::fs::read_to_string(&file).unwrap();
    // Latency and rate, window and distance, tags, four of the GPU's accesses; each wide and narrow.
    assert_eq!(page.matches("<svg ").count(), 2 * 9);
    for text in ["There is no pull here", "The window", "stores to host, measured", "wire_ns"] {
        assert!(page.contains(text), "{text}");
    }
    let error = sim(&["--report", "no/such/place/page.html", "--sizes", "8"]).unwrap_err();
    assert!(error.contains("does not exist"), "{error}");
    for other in ["--losses", "--sensitivity", "--validate", "--derivatives", "--flows=a>b"] {
        let error = sim(&["--report", "page.html", other]).unwrap_err();
        assert!(error.contains("--report"), "{error}");
    }
}

#[test]
fn what_if_the_order_is_relaxed() {
    let args = ["--topology", "two-root-complexes", "--path", "staged", "--sizes", "64KiB"];
    let more = ["--set", "write_buffer_ns=60", "--what", "ro=on|off", "--json", "-"];
    let text = sim(&[&args[..], &more].concat()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = json["results"].as_array().unwrap();
    assert_eq!(
        (&rows[1]["settings"]["ro"], &rows[2]["settings"]["ro"]),
        (&"on".into(), &"off".into())
    );
    let ratio = |i: usize| rows[i]["rate_ratio"].as_f64().unwrap();
    // As it is the order is unknown, and costs nothing.
    assert!(ratio(1) == 1.0 && ratio(2) < 0.8, "{} {}", ratio(1), ratio(2));
    assert!(sim(&["--what", "ro=maybe"]).unwrap_err().contains("on or off"));
    assert!(sim(&["--leave-one-out"]).unwrap_err().contains("--validate"));
}

#[test]
#[ignore = "simulates every compared row"]
fn validate_says_which_rows_are_fitted() {
    let json: serde_json::Value =
        serde_json::from_str(&sim(&["--validate", "--json", "-"]).unwrap()).unwrap();
    let rows = json["results"].as_array().unwrap();
    let count = |of: &str, kind: &str| {
        let is =
            |r: &&serde_json::Value| r["table"].as_str().unwrap().contains(of) && r["kind"] == kind;
        rows.iter().filter(is).count()
    };
    assert_eq!((count(", IOMMU", "fitted"), count(", IOMMU", "predicted")), (3, 87));
    assert_eq!(
        (count("Relaxed ordering", "known before"), count("Relaxed ordering", "predicted")),
        (6, 3)
    );
}
