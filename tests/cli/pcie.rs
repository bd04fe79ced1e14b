//! The command modules of the PCIe model, called without the command line around them.

use clap::Parser;

use crate::{sim, tlp, topo};

#[path = "pcie/link.rs"]
mod link_runs;
#[path = "pcie/nics.rs"]
mod nics;
#[path = "pcie/odd.rs"]
mod odd;
#[path = "pcie/refused.rs"]
mod refused;
#[path = "pcie/sim.rs"]
mod sim_runs;
#[path = "pcie/summary.rs"]
mod summary;
#[path = "pcie/told.rs"]
mod told;

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
        .find(|r| r["bytes"] == 64 && r["tax"] == "pcie-bench")
        .unwrap();
    assert!((row["write"].as_f64().unwrap() - 42.098).abs() < 5.1e-4);
    assert!((row["both"].as_f64().unwrap() - 33.077).abs() < 5.1e-4);
}

#[test]
fn tlp_says_when_no_tax_is_known_and_refuses_the_impossible() {
    assert!(tlp(&["--gen", "6"]).unwrap().contains("no limits published"));
    assert!(tlp(&["--mps", "100"]).unwrap_err().contains("MPS of 100 B"));
    for (args, reason) in [
        (&["--gen", "0"][..], "generation 0"),
        (&["--gen", "7"], "generation 7"),
        (&["--lanes", "0"], "0 lanes"),
        (&["--lanes", "3"], "3 lanes"),
        (&["--mps", "8192"], "MPS of 8192 B"),
        (&["--mrrs", "0"], "MRRS of 0 B"),
        (&["--rcb", "256"], "RCB of 256 B"),
        (&["--sizes", "0"], "at least 1 byte"),
        (&["--sizes", "64,0", "--json", "-"], "at least 1 byte"),
        (&["--sizes", "4KB"], "unknown unit"),
        (&["--sizes", "18446744073709551616"], "not a size"),
        (&["--sizes", "18446744073709551615"], "so that 64 bits count the bytes on the wire"),
        (&["--sizes", "16777216TiB"], "more than 64 bits hold"),
        (&["--sizes", "1048576TiB", "--offset", "1"], "must end at or below"),
        (&["--offset", "18446744073709551615"], "must end at or below"),
        (&["--offset", "4GiB", "--addr32"], "32-bit addressing"),
        (&["--json", "no/such/place"], "no/such/place: its directory does not exist"),
    ] {
        let error = tlp(args).unwrap_err();
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}

#[test]
fn tlp_takes_any_size_and_address() {
    let rows = |args: &[&str]| {
        let text = tlp(&[&GEN3[..], args, &["--json", "-"]].concat()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["results"].as_array().unwrap().clone()
    };
    // A TiB at once, as fast as a page.
    let (much, page) = (rows(&["--sizes", "1TiB"]), rows(&["--sizes", "4KiB"]));
    for key in ["write", "read", "read_rcb", "both"] {
        let (a, b) = (much[0][key].as_f64().unwrap(), page[0][key].as_f64().unwrap());
        assert!((a / b - 1.0).abs() < 1e-9, "{key}");
    }
    // Splits follow the address within its page, wherever the page is.
    assert_eq!(
        rows(&["--offset", "8175", "--sizes", "64"])[0]["write"],
        rows(&["--offset", "4079", "--sizes", "64"])[0]["write"]
    );
    assert_ne!(
        rows(&["--offset", "4079", "--sizes", "64"])[0]["write"],
        rows(&["--offset", "0", "--sizes", "64"])[0]["write"]
    );
}

#[test]
fn one_result_fits_on_standard_output() {
    let both = ["--json", "-", "--csv", "-", "--topology", "desktop", "--sizes", "8"];
    assert!(sim(&both).unwrap_err().contains("one result fits"));
    let error = topo(&["desktop", "--no-predict", "--json", "-", "--svg", "-"]).unwrap_err();
    assert!(error.contains("--svg - and --json -"), "{error}");
    let file = std::env::temp_dir().join(format!("one-result-{}", std::process::id()));
    let file = file.to_str().unwrap();
    let error = sim(&["--topology", "desktop", "--csv", file, "--json", file]).unwrap_err();
    assert!(error.contains("--csv and --json") && error.contains("in a file"), "{error}");
    // What draws nothing takes no drawing.
    for mode in [&["--losses"][..], &["--flows", "gpu0>nic0"], &["--scale", "16"]] {
        let error = sim(&[&["--topology", "desktop", "--svg", "-"], mode].concat()).unwrap_err();
        assert!(error.contains("--svg is for the table"), "{mode:?}: {error}");
    }
    let page = sim(&["--topology", "desktop", "--sizes", "8", "--report", "-"]).unwrap();
    assert!(
        page.to_lowercase().starts_with("<!doctype html>") && page.trim_end().ends_with("</html>")
    );
}

#[test]
fn topo_draws_classes_and_recommends() {
    let example = topo(&["two-sockets", "--no-predict"]).unwrap();
    assert!(example.contains("mark are of the built-in example.\n"), "{example}");
    assert!(!example.contains("were read"), "{example}");
    let text = topo(&["two-root-complexes"]).unwrap();
    // A ConnectX-7: nothing of the software NIC's, and its own fences and queues.
    assert!(text.contains("NODE") && text.contains("tie pull, staged"), "{text}");
    assert!(!text.contains("inband") && !text.contains("software NIC"), "{text}");
    for said in [
        "--nic cx7 (the NIC's name is a ConnectX's)",
        "CQE in host memory",
        "a fence of system scope",
        "220 B inline",
        "rc0, rc1: unknown, taken as allowed; where they are refused",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&topo(&["desktop", "--json", "-"]).unwrap()).unwrap();
    let row = &json["results"][0];
    assert_eq!(row["class"], "PHB");
    // No peer reads on a client CPU: no pull there.
    let figures = row["advice"][0]["figures"].as_object().unwrap();
    assert!(figures.contains_key("staged") && !figures.contains_key("pull"));
    assert!(json["meta"]["advice"]["why"].as_str().unwrap().starts_with("the default"));
    assert!(topo(&["dgx-h100", "--no-predict", "--svg", "-"]).unwrap().contains("</svg>"));
    assert!(topo(&["no-such-file"]).unwrap_err().contains("same-switch"));
    for given in ["0", "-5", "inf", "NaN"] {
        let error = topo(&["machine", "--socket-gb-per-s", given]).unwrap_err();
        assert!(error.contains("must be more than 0"), "{error}");
    }
}

/// Every time and rate has its interval and a letter, a near thing is called a tie, and what is
/// given is not moved.
#[test]
fn topo_ranks_with_intervals_and_ties() {
    let text = topo(&["same-switch", "--nic", "software", "--set", "wire_ns=700"]).unwrap();
    assert!(text.contains("--nic software (as the command says)"), "{text}");
    assert!(text.contains("use push/inband") || text.contains("tie push/inband"), "{text}");
    let rows: Vec<&str> = text.lines().filter(|l| l.contains(" nic0  PIX ")).collect();
    assert_eq!(rows.len(), 4, "{text}");
    for row in rows {
        let paths = row.matches("push/").count() + row.matches("  pull ").count();
        assert!(paths >= 3 && row.matches("a [").count() >= paths - 1, "{row}");
    }
    assert!(text.contains("tie with ") && text.contains(" %"), "{text}");
    assert!(text.contains("assumed: ") && text.contains("nic_port_ns 100"), "{text}");
    assert!(!text.contains("wire_ns"), "what is given is not moved: {text}");
    assert!(text.contains("fitted: ") && !text.contains("nvlink_ns"), "{text}");
    for (args, reason) in [
        (["--nic", "cx9"], "--nic \"cx9\" is no NIC that is modelled; there are cx7, software"),
        (["--set", "wire=1"], "no such parameter; there are link_ns"),
    ] {
        let error = topo(&[&["same-switch"], &args[..]].concat()).unwrap_err();
        assert!(error.contains(reason) && error.lines().count() == 1, "{error}");
    }
}

/// A file that leaves MPS and MRRS out has them assumed: they are marked, and moved.
#[test]
fn what_a_file_leaves_out_is_marked_and_moved() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.toml");
    let text = "[[socket]]\nid='s0'\n[[root_complex]]\nid='rc0'\nsocket='s0'\n[[gpu]]\nid='gpu0'\n\
                parent='rc0'\ngen=4\nlanes=16\nmps=256\nmrrs=512\n[[nic]]\nid='nic0'\nparent='rc0'\n";
    std::fs::write(&file, text).unwrap();
    let told = topo(&[file.to_str().unwrap()]).unwrap();
    assert!(told.contains("GPU gpu0  Gen4 x16 MPS 256 MRRS 512\n"), "{told}");
    let marked = "NIC nic0  Gen5 x16 (assumed) MPS 256 (assumed) MRRS 512 (assumed)";
    assert!(told.contains(marked) && told.contains("without a mark were read"), "{told}");
    assert!(told.contains("MPS, MRRS."), "{told}");
}

/// A capture of a real machine.
fn captured(name: &str) -> String {
    format!("{}/../../tests/fixtures/topo/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn topo_reads_captures_of_other_machines() {
    let file = |name| captured(name);
    let (tree, details) = (file("esc8000a-e12.tree"), file("esc8000a-e12.lspci"));
    let matrix = file("esc8000a-e12.smi");
    let text = topo(&["--from", &tree, "--from", &details, "--nvidia-smi", &matrix]).unwrap();
    for said in ["28 classes, 0 differ", "GPU3   NIC3   NODE", "now Gen1 x16", "ACS of 7 of 7"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    // Every link is known: two ports of a card have the same.
    let below = text.split_once("\nDetails:\n").unwrap().1;
    assert_eq!(below.matches("  pull ").count(), 16, "{text}");
    assert!(text.contains("MPS 256 MRRS 512 packets 128 (assumed)"), "{text}");
    assert!(text.contains("s0 <-> s1  rate unknown\n"), "{text}");
    // The tree alone knows no link, and nothing is predicted from none.
    let text = topo(&["--from", &tree]).unwrap();
    assert!(text.contains("4 pairs without prediction") && !text.contains("use "), "{text}");
    let json = topo(&["--from", &tree, "--nvidia-smi", &matrix, "--json", "-"]).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    // The tree says NODE or SYS.
    assert_eq!(json["results"][0]["class"], "NODE");
    assert_eq!(json["results"][0]["class_of_nvidia_smi"], true);
    assert_eq!(json["capture"]["nvidia_smi"]["compared"], 28);
    assert!(json["capture"]["devices"][0]["link"].is_null());
    // Bridges that the capture does not show are nearer than another socket's.
    let text = topo(&["--from", &details, "--no-predict"]).unwrap();
    for own in ["GPU0   NIC0   ?", "GPU1   NIC0   ?", "GPU2   NIC1   ?", "GPU3   NIC1   ?"] {
        assert!(text.contains(own), "{own}: {text}");
    }
    // A matrix alone.
    let text = topo(&["--nvidia-smi", &file("quda-669.smi")]).unwrap();
    assert!(text.contains("GPU4   mlx5_0 PHB") && text.contains("a matrix shows classes alone"));
    let wrong = |args: &[&str]| topo(args).unwrap_err();
    assert!(wrong(&["--from", &matrix]).contains("no device"));
    assert!(wrong(&["--nvidia-smi", &tree]).contains("line 57: no header"));
    assert!(wrong(&["dgx-h100", "--nvidia-smi", &matrix]).contains("stands alone"));
    assert!(wrong(&["dgx-h100", "--from", &tree]).contains("cannot be used with"));
    assert!(wrong(&["--sysfs", "/nowhere"]).contains("/nowhere/bus/pci/devices"));
}

/// What `--save` writes is the same machine.
#[test]
fn topo_saves_a_file_of_the_same_machine() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved.toml").display().to_string();
    let classes = |args: &[&str]| {
        let json = topo(&[args, &["--no-predict", "--json", "-"]].concat()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let rows = json["results"].as_array().unwrap().iter();
        let text = |r: &serde_json::Value, f: &str| r[f].as_str().unwrap_or_default().to_owned();
        let rows = rows.map(|r| (text(r, "gpu"), text(r, "nic"), text(r, "class")));
        let mut rows: Vec<_> = rows.collect();
        rows.sort();
        rows
    };
    for source in [
        &["--from", &captured("esc8000a-e13p.lspci")][..],
        &["--from", &captured("esc8000a-e12.lspci"), "--from", &captured("esc8000a-e12.tree")],
        &["dgx-h100"],
        &["epyc-2s"],
    ] {
        let text = topo(&[source, &["--no-predict", "--save", "-"]].concat()).unwrap();
        std::fs::write(&saved, &text).unwrap();
        let (own, captured) = (classes(&[&saved]), classes(source));
        assert_eq!(own.len(), captured.len());
        assert_eq!(own.len(), captured.len());
        for (own, captured) in own.iter().zip(&captured) {
            assert_eq!((&own.0, &own.1), (&captured.0, &captured.1));
            // What a capture leaves open, such as `NODE|SYS`, is open in the file, unless another
            // device of the same root complex tells.
            let is_one = captured.2.split('|').any(|class| class == own.2);
            assert!(is_one || own.2 == captured.2, "{own:?} {captured:?}");
        }
        assert_eq!(topo(&[&saved, "--no-predict", "--save", "-"]).unwrap(), text);
    }
}

/// What the capture does not show, its file does not assume.
#[test]
fn topo_saves_what_is_unknown_as_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved.toml").display().to_string();
    let tree = captured("esc8000a-e12.tree");
    topo(&["--from", &tree, "--no-predict", "--save", &saved]).unwrap();
    let text = std::fs::read_to_string(&saved).unwrap();
    for said in ["link = \"unknown\"", "id = \"s?\"\nunknown = true", "card = \"0000:"] {
        assert!(text.contains(said) && !text.contains("gen = "), "{said}: {text}");
    }
    let told = topo(&[&saved]).unwrap();
    assert!(told.contains("NODE|SYS") && told.contains("4 pairs without prediction"), "{told}");
    let gpu = text.split_once("[[gpu]]\nid = \"").unwrap().1.split('"').next().unwrap();
    let flow = format!("{gpu}>s?");
    let flow = ["--topology", &saved, "--flows", &flow];
    for args in [&["--topology", &saved, "--sizes", "8"][..], &flow] {
        let error = sim(args).unwrap_err();
        assert!(error.contains(" is unknown: give its gen and lanes"), "{error}");
    }
    // Nothing was found: there is nothing to read again.
    let none = dir.path().join("none.lspci").display().to_string();
    std::fs::write(&none, "00:00.0 Host bridge: Intel Corporation Device 1234\n").unwrap();
    let error = topo(&["--from", &none, "--no-predict", "--save", "-"]).unwrap_err();
    assert!(error.contains("--save: nothing to save"), "{error}");
}

#[test]
fn topo_warns_of_the_collapse_and_draws_loads() {
    let file = captured("esc8000a-e13p.lspci");
    let args = ["--from", &file, "--no-predict", "--socket-gb-per-s", "22", "--load", "all-to-all"];
    let text = topo(&args).unwrap();
    assert!(
        text.contains("posted-write collapse") && text.contains("s0 -> s1  2.00 GB of 22.0 GB/s"),
        "{text}"
    );
    let page = topo(&[&args[..], &["--html", "-"]].concat()).unwrap();
    // 91 ms of the sockets' link: the busiest, red.
    for said in ["<svg", "22 GB/s</text>", "↓91 ↑91 ms", "stroke:rgb(214,0,30)", "<pre>", "</html>"]
    {
        assert!(page.contains(said), "{said}");
    }
    assert!(topo(&["dgx-h100", "--load", "ring"]).unwrap_err().contains("is no workload"));
    let pairs = topo(&["dgx-h100", "--no-predict", "--load", "gpu0>nic5"]).unwrap();
    assert!(pairs.contains("s0 -> s1  1.00 GB of 22.0 GB/s, 45.5 ms"), "{pairs}");
}

/// What has no part in the answer is refused, and what was asked for is in the JSON.
#[test]
fn topo_takes_nothing_that_changes_nothing() {
    for (args, said) in [
        (&["--no-predict", "--set", "wire_ns=9"][..], "--set is for the recommendation"),
        (&["--no-predict", "--nic", "cx7"], "--nic is for the recommendation"),
        (&["--socket-gb-per-s", "5"], "--socket-gb-per-s: no part in same-switch"),
    ] {
        let error = topo(&[&["same-switch"], args].concat()).unwrap_err();
        assert!(error.contains(said) && error.lines().count() == 1, "{error}");
    }
    let args = ["dgx-h100", "--no-predict", "--load", "gpu0>nic0", "--json", "-"];
    let json: serde_json::Value = serde_json::from_str(&topo(&args).unwrap()).unwrap();
    assert_eq!(
        (&json["loads"][0]["from"], &json["loads"][0]["buffers"]),
        (&"gpu0".into(), &1.0.into())
    );
    // The way is to the NIC that the GPU is given, which the advice is for.
    let text = topo(&["dgx-h100", "--no-predict"]).unwrap();
    assert!(text.contains("gpu1 > sw0 > nic1") && text.contains("gpu7 > sw3 > nic7"), "{text}");
    let text = sim(&["--topology", "desktop", "--sizes", "8"]).unwrap();
    assert!(text.contains("record in host memory behind one fence"), "{text}");
}

/// `RlxdOrd` of `lspci -vv` is the device's order, in the drawing, the file and the JSON.
#[test]
fn topo_reads_relaxed_ordering() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lspci.txt").display().to_string();
    let text = "00:01.0 PCI bridge [0604]: Intel Corporation Device [8086:0001]\n\
        \tBus: primary=00, secondary=01, subordinate=01, sec-latency=0\n\
        01:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20f1]\n\
        \t\tDevCtl:\tCorrErr- NonFatalErr- FatalErr- UnsupReq-\n\
        \t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-\n\
        \t\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes\n\
        \t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n\
        00:03.0 Infiniband controller [0207]: Mellanox Technologies MT2910 [15b3:1021]\n\
        \t\t\tRlxdOrd- ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-\n";
    std::fs::write(&file, text).unwrap();
    let told = topo(&["--from", &file, "--no-predict"]).unwrap();
    assert!(told.contains("RlxdOrd+") && told.contains("  relaxed ordering\n"), "{told}");
    assert!(told.contains("RlxdOrd-") && told.contains("  no relaxed ordering"), "{told}");
    let saved = topo(&["--from", &file, "--no-predict", "--save", "-"]).unwrap();
    for said in ["relaxed_ordering = true", "relaxed_ordering = false"] {
        assert_eq!(saved.matches(said).count(), 1, "{saved}");
    }
    let json = topo(&["--from", &file, "--no-predict", "--json", "-"]).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let order = |i: usize| &json["capture"]["devices"][i]["relaxed_ordering"];
    assert_eq!((order(0), order(1)), (&false.into(), &true.into()));
}

/// A file has what a capture has: pairs of GPUs, and what is known of collapses, its own data.
#[test]
fn topo_of_a_file_shows_gpus_and_its_collapse() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcie/machines/esc8000a-e13p.toml");
    let text = topo(&[root, "--no-predict"]).unwrap();
    let row = text.lines().find(|l| l.starts_with("gpu0 ")).unwrap();
    assert_eq!(row.split_whitespace().nth(1), Some("X"), "{text}");
    assert!(text.contains("gpu0, gpu1 of switch vs-a0 to "), "{text}");
    assert!(text.contains("all these writes together get 2.7 GB/s"), "{text}");
    assert!(!text.contains("Unless both switches"), "the file has the chips: {text}");
    let drawn = text.lines().find(|l| l.contains("GPU gpu0 ")).unwrap();
    assert!(drawn.ends_with("Gen5 x16 MPS 256 MRRS 512"), "read, and not assumed: {drawn}");
    let unknown = topo(&["dgx-h100", "--no-predict"]).unwrap();
    assert!(unknown.contains("on this platform is unknown."), "{unknown}");
    assert!(unknown.contains("EPYC 9005"), "{unknown}");
    let few = topo(&["same-switch", "--no-predict"]).unwrap();
    assert!(!few.contains("posted-write collapse"), "{few}");
}

/// A file whose root complex caps, or refuses.
#[test]
fn topo_load_has_the_root_complexes_and_says_what_is_no_flow() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, field: &str| {
        let path = dir.path().join(name);
        let text = format!(
            "[[socket]]\nid='s0'\ncpu='AMD EPYC 9575F'\n[[root_complex]]\nid='rc0'\nsocket='s0'\n{field}\n\
             [[root_port]]\nid='rp0'\nparent='rc0'\n\
             [[gpu]]\nid='gpu0'\nparent='rp0'\n[[nic]]\nid='nic0'\nparent='rc0'\n"
        );
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let capped = file("capped.toml", "p2p_cap_gb_per_s=9.0");
    let text = topo(&[&capped, "--no-predict", "--load", "gpu0>nic0"]).unwrap();
    assert!(text.contains("of 9.0 GB/s") && text.contains("peers 9 GB/s"), "{text}");
    let closed = file("closed.toml", "p2p_writes=false");
    let refused = |load: &str| topo(&[&closed, "--no-predict", "--load", load]).unwrap_err();
    assert_eq!(refused("gpu0>nic0"), "gpu0>nic0: rc0 refuses peer writes");
    assert_eq!(refused("gpu0>gpu0"), "gpu0>gpu0: both ends are the same");
    assert_eq!(refused("rp0>gpu0"), "rp0>gpu0: a root port neither sends nor receives");
    // Not even staged is there, and why is said.
    let text = topo(&[&closed, "--nic", "cx7"]).unwrap();
    assert!(
        text.contains("no staged: not possible: rc0 refuses peer writes, which the receiving NIC"),
        "{text}"
    );
    assert!(text.contains("no push/kernel: not possible: rc0 refuses peer writes\n"), "{text}");
    // A write to the host is no peer's: neither refused, nor said to pass.
    let flow = sim(&["--topology", &closed, "--flows", "gpu0>s0"]).unwrap();
    assert!(!flow.contains("peer"), "{flow}");
    let peer = sim(&["--topology", &capped, "--flows", "gpu0>nic0"]).unwrap();
    assert!(peer.contains("peer traffic is forwarded"), "{peer}");
}

/// A result of `bellpush link` of this machine takes the place of what was fitted elsewhere.
#[test]
fn topo_takes_what_link_measured() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/link-h200.json");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let with = |name: &str, gpu: &str| {
        topo(&[name, "--save", &at("machine.toml")]).unwrap();
        let text = std::fs::read_to_string(at("machine.toml")).unwrap();
        std::fs::write(at("machine.toml"), text.replace("\"H100\"", gpu)).unwrap();
        at("machine.toml")
    };
    let machine = with("two-root-complexes", "\"GH100 [H200 SXM 141GB]\"");
    let told = topo(&[&machine, "--measured", root, "--save", &at("own.toml")]).unwrap();
    let is_right = |told: &str| {
        assert!(told.contains("measured, not moved: sm_ns 85.5662"), "{told}");
        let fitted = told.lines().find(|l| l.starts_with("fitted: ")).unwrap();
        assert!(!fitted.contains("gpu_port_ns") && fitted.contains("post_ns 62"), "{told}");
    };
    is_right(&told);
    // The machine's own file has the values, for `topo` and for `sim`; the command comes before it.
    let own = at("own.toml");
    assert_eq!(topo(&[&own]).unwrap(), told);
    let set = topo(&[&own, "--set", "gpu_port_ns=236"]).unwrap();
    assert!(set.contains("measured, not moved: sm_ns 85.5662, nvlink_ns"), "{set}");
    let all = |args: &[&str]| sim(&[&["--path", "pull", "--sizes", "64"], args].concat()).unwrap();
    let [plain, given] = [&machine, &own].map(|file| all(&["--topology", file]));
    let set = ["--set", "gpu_port_ns=236.18760585784912"];
    assert!(plain != given, "{given}");
    assert!(all(&[&["--topology", &machine][..], &set].concat()) != plain);
    let bad = std::fs::read_to_string(&own).unwrap().replace("sm_ns = 8", "sm_ns = 800000");
    std::fs::write(at("bad.toml"), bad).unwrap();
    let error = topo(&[&at("bad.toml")]).unwrap_err();
    assert!(error.contains("measured: sm_ns: 800000") && error.contains("line "), "{error}");
    let args = ["link", "--measured", root, "--json", &at("again.json")];
    let done =
        std::process::Command::new(env!("CARGO_BIN_EXE_bellpush")).args(args).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // Read and found good: what is refused is the topology.
    for result in [root, &at("again.json")] {
        let other = topo(&["two-root-complexes", "--measured", result]).unwrap_err();
        assert!(
            other.contains("measured on \"NVIDIA H200\"; the GPUs here are \"H100\""),
            "{other}"
        );
        let slow = with("desktop", "\"\"");
        let other = topo(&[&slow, "--measured", result]).unwrap_err();
        let no_link = "measured on Gen5 x16, MPS 256; no GPU here has that link";
        assert!(other.contains(no_link), "{other}");
    }
    // A value with which the model does not predict its own row, and one of another row.
    let text = std::fs::read_to_string(root).unwrap();
    for (from, to, reason) in [
        (
            "236.18760585784912",
            "20.0",
            "gpu_port_ns 20: row \"a word of host memory loaded\" was measured as 1116.9, and with",
        ),
        ("\"parameter\": \"dram_ns\"", "\"parameter\": \"post_ns\"", "\"post_ns\" is no parameter"),
        (
            "\"row\": \"fence.sys, nothing outstanding\"",
            "\"row\": \"a word of host memory loaded\"",
            "fence_idle_ns is fitted to row \"fence.sys, nothing outstanding\", not to",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(at("changed.json"), text.replacen(from, to, 1)).unwrap();
        let error = topo(&[&machine, "--measured", &at("changed.json")]).unwrap_err();
        assert!(error.contains(reason) && error.lines().count() == 1, "{error}");
    }
    for (name, reason) in [("/dev/zero", "not a regular file"), ("/nowhere", "/nowhere: ")] {
        let error = topo(&["same-switch", "--measured", name]).unwrap_err();
        assert!(error.contains(reason) && error.lines().count() == 1, "{error}");
    }
}

/// This machine, whatever it has.
#[test]
fn topo_reads_the_running_machine() {
    if !std::path::Path::new("/sys/bus/pci/devices").is_dir() {
        assert!(topo(&[]).unwrap_err().contains("/sys/bus/pci/devices"));
        return;
    }
    assert!(topo(&[]).unwrap().starts_with("this machine"));
    assert!(topo(&["--sysfs", "/sys"]).unwrap().starts_with("/sys: "));
    let text = topo(&["--json", "-"]).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(json["results"].is_array());
}

#[test]
fn topo_reports_every_kind_of_bad_file_with_line_and_reason() {
    let base = "[[socket]]\nid = \"s0\"\n[[root_complex]]\nid = \"rc0\"\nsocket = \"s0\"\n";
    let gpu = |link: &str| format!("{base}[[gpu]]\nid = \"g\"\nparent = \"rc0\"\n{link}");
    let bad = [
        (
            format!(
                "{base}[[switch]]\nid = \"a\"\nparent = \"b\"\n[[switch]]\nid = \"b\"\nparent = \"a\"\n"
            ),
            "line 8",
            "loop",
        ),
        (gpu("gen = 5\nlanes = 0\n"), "line 10", "0 lanes"),
        (gpu("gen = 5\nlanes = 16\nmps = 100\n"), "line 11", "MPS of 100 B"),
        (gpu("gen = 9\nlanes = 16\n"), "line 9", "generation 9"),
        (gpu("speed = 9\n"), "line 9", "speed"),
        (gpu("link = \"unknown\"\ngen = 4\n"), "line 9", "an unknown link has no gen"),
        (String::new(), "", "no [[socket]]: a topology has a [[socket]] and a [[root_complex]]"),
        ("[[socket]]\nid = \"s0\"\n".into(), "", "no [[root_complex]]: a topology has"),
        (base.replace("\"s0\"\n[[", "\"s0\"\n[[[["), "line 3", ""),
    ];
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    for (text, line, reason) in bad {
        std::fs::write(&file, &text).unwrap();
        for error in [
            topo(&[file.to_str().unwrap()]).unwrap_err(),
            sim(&["--topology", file.to_str().unwrap(), "--sizes", "8"]).unwrap_err(),
        ] {
            assert!(error.contains(line) && error.contains(reason), "{text}\n{error}");
        }
    }
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
